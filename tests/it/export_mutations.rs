//! Damaged exported functions: whatever was done to a file, it is loaded, compiled and run, or it is an
//! error; the process lives. The usual test makes few mutations; the named command
//! `PODRACER_MUTATIONS=10000 cargo test --test it mutations -- --nocapture` makes more, from other
//! seeds with `PODRACER_MUTATION_SEED`.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use podracer::export::Exported;
use podracer::export::artifact::Artifact;
use podracer::trace::control::scan;
use podracer::{Array, Tensor, jit};

/// Functions that JAX exported and that run here.
const JAX: [&str; 8] =
    ["unused", "control", "complex", "draws", "learn", "linalg", "platforms", "zoo"];

/// Bytes that lengths, counts and positions are set to.
const EDGES: [u8; 10] = [0, 1, 2, 3, 4, 0x7f, 0x80, 0xfd, 0xfe, 0xff];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        let some = 1 + random.below(16);
        let until = (at + some).min(bytes.len());
        match random.below(10) {
            0..=3 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            4 | 5 if at < bytes.len() => bytes[at] = EDGES[random.below(EDGES.len())],
            6 => bytes.truncate(at),
            7 => drop(bytes.drain(at..until)),
            8 => {
                let copied = bytes[at..until].to_vec();
                bytes.splice(at..at, copied);
            }
            _ => {
                let from = random.below(other.len());
                let piece = &other[from..(from + some).min(other.len())];
                bytes.splice(at..until, piece.iter().copied());
            }
        }
    }
}

/// Loads, prints, compiles and runs a file. Returns what came of it, for counting.
fn outcome(bytes: &[u8]) -> &'static str {
    let exported = match Exported::from_bytes(bytes) {
        Ok(exported) => exported,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return "refused when it was loaded";
        }
    };
    let _ = exported.to_string();
    if let Err(error) = exported.compile() {
        return match error.to_string().contains("which it ended") {
            true => "ended the compiler's process",
            false => "refused by the compiler",
        };
    }
    // Whoever writes a loop may write one without end.
    let has_loop = exported.module().windows(5).any(|word| word == b"while");
    if has_loop || exported.in_types().iter().any(|ty| ty.bytes() > 1 << 24) {
        return "compiled";
    }
    let zeros: Vec<Array> =
        exported.in_types().iter().map(|ty| Array::zeros(&ty.shape[..], ty.dtype)).collect();
    match exported.call(&zeros) {
        Ok(results) => {
            for result in results {
                let _ = result.to_literal();
            }
            "ran"
        }
        Err(_) => "failed when it ran",
    }
}

fn sources() -> Vec<Artifact> {
    let fixture = |name: &&str| {
        let bytes = std::fs::read(format!("tests/fixtures/export/{name}.jaxexport")).unwrap();
        Artifact::decode(&bytes).unwrap()
    };
    let mut sources: Vec<Artifact> = JAX.iter().map(fixture).collect();
    let rnn = |(w, xs): (Tensor, Tensor)| {
        let step = |h: Tensor, x: Tensor| ((h.matmul(w) + x).tanh(), ());
        scan(step, w.sum([0]), xs).0.sort(0)
    };
    let zeros = |shape: &[usize]| Array::zeros(shape, podracer::DType::F32);
    let ours = jit(rnn).export(&(zeros(&[3, 3]), zeros(&[4, 3]))).unwrap();
    sources.push(Artifact::decode(&ours.to_bytes()).unwrap());
    sources
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn mutations_of_exported_functions_are_errors_at_worst() {
    let (count, seed) = (number("PODRACER_MUTATIONS", 24), number("PODRACER_MUTATION_SEED", 0));
    let sources = sources();
    let (next, counts) = (AtomicU64::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                break;
            }
            let mut random = Random(seed << 32 | i);
            let source = &sources[random.below(sources.len())];
            let other = &sources[random.below(sources.len())];
            // The module inside of a sound file, or the file without its checksum.
            let file = match random.below(4) {
                0 => {
                    let mut bytes = source.encode();
                    bytes.truncate(bytes.len() - 48);
                    mutate(&mut bytes, &other.encode(), &mut random);
                    bytes
                }
                _ => {
                    let mut artifact = source.clone();
                    mutate(&mut artifact.module, &other.module, &mut random);
                    artifact.encode()
                }
            };
            let outcome = outcome(&file);
            *counts.lock().unwrap().entry(outcome).or_insert(0u64) += 1;
            if count >= 1000 && i % 500 == 499 {
                println!("{}: {:?}", i + 1, counts.lock().unwrap());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |cores| cores.get()) {
            scope.spawn(work);
        }
    });
    let counts = counts.into_inner().unwrap();
    println!("{count} mutations, seed {seed}: {counts:?}");
    assert_eq!(counts.values().sum::<u64>(), count);
}
