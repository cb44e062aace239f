//! A run of PPO that is killed is resumed from its last checkpoint, and ends as if it had never
//! stopped.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use podracer::algos::ppo::Args;
use podracer::rl::{Algorithm, algorithm};

use super::scalars;

/// Environment variable with the child process's folder of runs.
const RUNS_DIR: &str = "PODRACER_TEST_RESUME_PPO";
/// Long enough to be killed in the middle.
const RUN: &[&str] = &[
    "--total-timesteps=40960",
    "--num-steps=64",
    "--checkpoint-frequency=2560",
    "--save-model",
    "--eval-episodes=2",
    "--json",
];

fn args(runs: &Path) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    Args::from_flags(RUN.iter().copied().chain([runs.as_str()])).unwrap()
}

/// The program that the test below kills.
#[test]
#[ignore = "run by a_killed_run_is_resumed_as_if_it_had_not_been"]
fn child() {
    let runs = std::env::var_os(RUNS_DIR).expect("the test that runs this sets it");
    args(runs.as_ref()).train().unwrap();
}

/// The folder of the only run.
fn run_in(runs: &Path) -> Option<PathBuf> {
    std::fs::read_dir(runs).ok()?.next().map(|entry| entry.unwrap().path())
}

fn bits(run: &Path) -> Vec<((String, u64), Vec<u32>)> {
    let logged = scalars(run.to_str().unwrap()).into_iter();
    logged.map(|(k, v)| (k, v.iter().map(|x| x.to_bits()).collect())).collect()
}

/// The arrays of the model, by name.
fn model(run: &Path) -> Vec<(String, Vec<u8>)> {
    let saved = podracer::rl::checkpoint::load(run.join("ppo.safetensors")).unwrap();
    saved.entries().map(|entry| (entry.name.to_string(), entry.data.to_vec())).collect()
}

#[test]
fn a_killed_run_is_resumed_as_if_it_had_not_been() {
    let root = tempfile::tempdir().unwrap();
    let (whole, parts) = (root.path().join("whole"), root.path().join("parts"));
    args(&whole).train().unwrap();
    let whole = run_in(&whole).unwrap();

    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "resume_ppo::child", "--ignored", "--nocapture"]).env(RUNS_DIR, &parts);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Killed a moment after some checkpoint: most likely amid a rollout or an update.
    let saved = || run_in(&parts).is_some_and(|run| run.join("checkpoint.safetensors").exists());
    while !saved() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was killed");
        sleep(Duration::from_millis(1));
    }
    sleep(Duration::from_millis(u64::from(std::process::id() % 40)));
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = run_in(&parts).unwrap();
    assert!(!killed.join("ppo.safetensors").exists(), "it finished before it was killed");

    let words = ["ppo", "--resume", killed.to_str().unwrap(), "--json"];
    let resumed: Args = algorithm::parse(words.map(Into::into)).unwrap();
    assert_eq!(resumed.train().unwrap().global_step, 40960);
    assert_eq!(bits(&killed), bits(&whole));
    assert!(model(&killed) == model(&whole), "another model");
}
