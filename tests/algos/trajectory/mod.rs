//! Twenty updates beside CleanRL's own code: parameters after each update against the digests that
//! the scripts in `tests/fixtures/algos/cleanrl` recorded from CleanRL's files.
//!
//! Parameters and batches come from `noise`, which those scripts repeat bit for bit.

mod cleanba;
mod continuous;
mod images;
mod policies;
mod ppg_rnd;
mod q_learning;
mod trxl;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use podracer::optim::AdamState;
use podracer::tree::{self, Tree};
use podracer::{Array, Key, Tensor, jit};

/// Updates that a fixture records.
pub const UPDATES: usize = 20;

/// `count` numbers of a counter hashed with the name: FNV-1a, then the finaliser of MurmurHash3.
fn stream(name: &str, count: usize) -> impl Iterator<Item = u32> {
    let fnv = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let seed = name.bytes().fold(0x811c_9dc5, fnv);
    (0..count as u32).map(move |i| {
        let x = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9));
        let x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
        let x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
        x ^ (x >> 16)
    })
}

/// Uniform numbers in [-1, 1), exact in f32.
pub fn noise(name: &str, count: usize) -> Vec<f32> {
    stream(name, count).map(|bits| (bits >> 8) as f32 / (1u32 << 23) as f32 - 1.0).collect()
}

/// Uniform integers below `high`.
pub fn integers(name: &str, high: u32, count: usize) -> Vec<i32> {
    stream(name, count).map(|bits| ((bits >> 8) % high) as i32).collect()
}

/// An order of `count` indices.
pub fn permutation(name: &str, count: usize) -> Vec<i32> {
    let bits: Vec<u32> = stream(name, count).collect();
    let mut order: Vec<i32> = (0..count as i32).collect();
    order.sort_by_key(|&i| bits[i as usize]);
    order
}

/// [`noise`] as `f32` of a shape.
pub fn floats<const R: usize>(name: &str, shape: [usize; R]) -> Array {
    Array::new(shape, &noise(name, shape.iter().product())).unwrap()
}

/// [`noise`] times `scale`, as `f32` of a shape.
pub fn scaled<const R: usize>(name: &str, scale: f32, shape: [usize; R]) -> Array {
    let values: Vec<f32> = noise(name, shape.iter().product()).iter().map(|x| x * scale).collect();
    Array::new(shape, &values).unwrap()
}

/// [`integers`] as `i32` of a shape.
pub fn choices<const R: usize>(name: &str, high: u32, shape: [usize; R]) -> Array {
    Array::new(shape, &integers(name, high, shape.iter().product())).unwrap()
}

/// 1 in one of `one_in` places, else 0, as `f32` of a shape.
pub fn flags<const R: usize>(name: &str, one_in: u32, shape: [usize; R]) -> Array {
    let drawn = integers(name, one_in, shape.iter().product());
    let values: Vec<f32> = drawn.iter().map(|&x| f32::from(x == 0)).collect();
    Array::new(shape, &values).unwrap()
}

/// Minibatch indices of `epochs` epochs over `size` samples: one array for each minibatch.
pub fn minibatches(epochs: usize, minibatches: usize, size: usize) -> Vec<Array> {
    let orders = (0..epochs).map(|epoch| permutation(&format!("order {epoch}"), size));
    let chunks =
        |order: Vec<i32>| order.chunks(size / minibatches).map(<[i32]>::to_vec).collect::<Vec<_>>();
    orders.flat_map(chunks).map(|indices| Array::new([indices.len()], &indices).unwrap()).collect()
}

/// Parameters as the fixtures start them: kernels of unit gain, biases of a tenth, scales about 1.
/// `init` gives the structure and the shapes.
pub fn start<M>(prefix: &str, init: impl Fn(Key<Tensor>) -> M) -> M::With<Array>
where
    M: Tree<Tensor>,
    M::With<Array>: Tree<Array, With<Tensor> = M>,
{
    start_named(prefix, str::to_string, init)
}

/// [`start`] for a fixture that knows the parameters by other names than their paths.
pub fn start_named<M>(
    prefix: &str,
    name_of: fn(&str) -> String,
    init: impl Fn(Key<Tensor>) -> M,
) -> M::With<Array>
where
    M: Tree<Tensor>,
    M::With<Array>: Tree<Array, With<Tensor> = M>,
{
    let key = Key::new(0);
    let template = jit(init).call(key).unwrap();
    let paths = tree::paths(&template);
    let values = paths.iter().zip(tree::leaves(&template)).map(|(path, leaf)| {
        let shape = leaf.shape().to_vec();
        let name = name_of(path);
        let mut values = noise(&format!("{prefix}{name}"), shape.iter().product());
        if let [inputs @ .., _] = &shape[..]
            && !inputs.is_empty()
        {
            let gain = (3.0 / inputs.iter().product::<usize>() as f64).sqrt() as f32;
            values.iter_mut().for_each(|x| *x *= gain);
        } else {
            let about = if path.ends_with("scale") { 1.0 } else { 0.0 };
            values.iter_mut().for_each(|x| *x = about + 0.1 * *x);
        }
        Array::new(shape, &values).unwrap()
    });
    tree::replace(&template, values.collect::<Vec<_>>())
}

/// Zeros of the parameters' shapes.
pub fn zeros_of<M: Tree<Array>>(params: &M) -> M {
    let zero = |x: Array| Array::zeros(x.shape(), x.dtype());
    let leaves: Vec<Array> = tree::leaves(params).into_iter().map(zero).collect();
    tree::replace(params, leaves)
}

/// The state of Adam and RAdam before the first update.
pub fn adam_state<M: Tree<Array>>(params: &M) -> AdamState<Array, M> {
    AdamState { count: Array::from(0i32), m: zeros_of(params), v: zeros_of(params) }
}

/// Three directions of projections for each parameter, made once.
#[derive(Default)]
struct Directions(RefCell<BTreeMap<String, [Vec<f32>; 3]>>);

impl Directions {
    /// Three projections, divided by the root of the number of entries, and five entries.
    fn digest(&self, path: &str, values: &[f32]) -> Vec<f64> {
        let mut all = self.0.borrow_mut();
        let directions = all.entry(path.to_string()).or_insert_with(|| {
            [0, 1, 2].map(|k| noise(&format!("direction {k} {path}"), values.len()))
        });
        let root = (values.len() as f64).sqrt();
        let mut digest = Vec::new();
        for direction in directions {
            let mut sum = 0.0;
            for i in 0..values.len() {
                sum += f64::from(values[i]) * f64::from(direction[i]);
            }
            digest.push(sum / root);
        }
        let entries = integers(&format!("entries {path}"), values.len() as u32, 5);
        digest.extend(entries.into_iter().map(|i| f64::from(values[i as usize])));
        digest
    }
}

/// A recorded trajectory: by path, the digest of the parameter after each update.
pub struct Trajectory {
    name: &'static str,
    rows: BTreeMap<String, Vec<Vec<f64>>>,
    name_of: fn(&str) -> String,
    directions: Directions,
}

impl Trajectory {
    /// The file of this name, without its ending.
    pub fn of(name: &'static str) -> Trajectory {
        Trajectory::named(name, str::to_string)
    }

    /// The file of this name, which knows the parameters by other names than their paths.
    pub fn named(name: &'static str, name_of: fn(&str) -> String) -> Trajectory {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/algos/cleanrl");
        let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
        let rows: BTreeMap<String, Vec<Vec<f64>>> = serde_json::from_str(&text).unwrap();
        assert!(rows.values().all(|updates| updates.len() == UPDATES), "{name}");
        Trajectory { name, rows, name_of, directions: Directions::default() }
    }

    /// Fails unless the parameters after update `update`, counted from 0, are those recorded, to 1e-5.
    #[track_caller]
    pub fn check<M: Tree<Array>>(&self, update: usize, params: &M) {
        let name = self.name;
        let paths: Vec<String> =
            tree::paths(params).iter().map(|path| (self.name_of)(path)).collect();
        let recorded: Vec<&String> = self.rows.keys().collect();
        let mut sorted: Vec<&String> = paths.iter().collect();
        sorted.sort();
        assert_eq!(sorted, recorded, "{name}");
        let mut faults = Vec::new();
        for (path, leaf) in paths.iter().zip(tree::leaves(params)) {
            let values = leaf.to_vec::<f32>().unwrap();
            let (ours, theirs) = (self.directions.digest(path, &values), &self.rows[path][update]);
            let distance = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(1.0);
            let worst = ours.iter().zip(theirs).map(distance).fold(0.0, f64::max);
            if worst > 1e-5 {
                faults.push(format!("{path} is off by {worst:e}: {ours:.7?}, expected {theirs:?}"));
            }
        }
        assert!(faults.is_empty(), "{name}, update {update}: {}", faults.join("\n"));
    }
}
