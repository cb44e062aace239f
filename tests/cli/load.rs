//! Long runs whose memory, file descriptors and threads stay the same.
//!
//! `PODRACER_LOAD_MINUTES=60 cargo test --release --test cli load -- --ignored --nocapture`

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::podracer;

/// Memory and handles of a process at one time.
#[derive(Clone, Copy)]
struct Sample {
    /// Resident memory in KiB, without pages of files.
    anonymous: u64,
    files: u64,
    threads: u64,
}

/// A name, a figure of a sample, and how much it may grow.
type Row = (&'static str, fn(&Sample) -> u64, u64);

fn sample(pid: u32) -> Sample {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the run goes on");
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
    Sample { anonymous: field("RssAnon:"), files, threads: field("Threads:") }
}

/// The runs: 8 and 1,024 environments in one loop, and actors with a learner.
const RUNS: [&str; 3] = [
    "train ppo --env-id CartPole-v1 --checkpoint-frequency 500000",
    "train ppo --env-id CartPole-v1 --num-envs 1024 --num-minibatches 32 --checkpoint-frequency 500000",
    "train cleanba_ppo --env-id CartPole-v1 --num-devices 2 --learner-device-ids 1 \
     --checkpoint-frequency 500000",
];

/// Starts run `index`, whose standard error goes to a file: a pipe that nobody reads would stop it.
fn start(runs: &Path, index: usize) -> Child {
    let mut command = podracer(&RUNS[index].split_whitespace().collect::<Vec<_>>());
    command.args(["--total-timesteps", "1000000000000", "--runs-dir"]).arg(runs);
    command.stderr(File::create(progress(runs, index)).unwrap()).spawn().unwrap()
}

fn progress(runs: &Path, index: usize) -> std::path::PathBuf {
    runs.join(format!("{index}.txt"))
}

/// The middle one of the samples' values.
fn median(samples: &[Sample], value: fn(&Sample) -> u64) -> u64 {
    let mut values: Vec<u64> = samples.iter().map(value).collect();
    values.sort_unstable();
    values[values.len() / 2]
}

#[test]
#[ignore = "takes an hour"]
fn an_hour_of_training_takes_no_more_memory_than_its_first_quarter() {
    let minutes: f64 =
        std::env::var("PODRACER_LOAD_MINUTES").map_or(60.0, |text| text.parse().unwrap());
    let runs = tempfile::tempdir().unwrap();
    let mut all: Vec<Child> = (0..RUNS.len()).map(|index| start(runs.path(), index)).collect();
    let text = |index| fs::read_to_string(progress(runs.path(), index)).unwrap();
    while !(0..RUNS.len()).all(|index| text(index).contains("step ")) {
        for (index, run) in all.iter_mut().enumerate() {
            assert!(run.try_wait().unwrap().is_none(), "{}: {}", RUNS[index], text(index));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut samples = vec![Vec::new(); RUNS.len()];
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs_f64(60.0 * minutes) {
        for (run, samples) in all.iter().zip(&mut samples) {
            samples.push(sample(run.id()));
        }
        std::thread::sleep(Duration::from_secs_f64(minutes.min(1.0)));
    }
    for (index, (mut run, samples)) in all.into_iter().zip(samples).enumerate() {
        let (pid, line) = (run.id().to_string(), RUNS[index]);
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
        let (status, err) = (run.wait().unwrap(), text(index));
        assert!(status.success(), "{line}: {status}: {err}");
        let last = err.lines().rfind(|line| line.contains("step ")).unwrap_or_default();
        let quarter = samples.len() / 4;
        let (early, late) = (&samples[quarter..2 * quarter], &samples[3 * quarter..]);
        println!("{line}\n  {last}");
        let rows: [Row; 3] = [
            // A fiftieth and 16 MiB: what the allocator keeps varies.
            ("KiB of memory", |s| s.anonymous, median(early, |s| s.anonymous) / 50 + (16 << 10)),
            ("open files", |s| s.files, 2),
            ("threads", |s| s.threads, 0),
        ];
        for (name, value, slack) in rows {
            let (early, late) = (median(early, value), median(late, value));
            println!("  {name}: {early} in the second quarter, {late} in the last");
            assert!(late <= early + slack, "{line}: {name}: {early}, then {late}");
        }
    }
}
