//! SIGTERM ends a run of any kind as its end does, with a checkpoint if asked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{ENDLESS, Running, podracer, run_dir};

/// Ends a run that has begun, and resumes it.
fn ends_when_asked(algo: &str, flags: &str) {
    let runs = tempfile::tempdir().unwrap();
    let words = format!("train {algo} {flags} {ENDLESS} --checkpoint-frequency 1000000000");
    let mut words: Vec<&str> = words.split_whitespace().collect();
    words.extend(["--runs-dir", runs.path().to_str().unwrap()]);
    let mut running = Running::start(podracer(&words));
    running.wait_for("step ");
    running.signal("TERM");
    let (status, err) = running.end();
    assert_eq!(status, Some(0), "{algo}: {err}");
    assert!(err.contains("continue with --resume "), "{algo}: {err}");
    let dir = run_dir(runs.path());
    let files = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name());
    assert!(files.into_iter().any(|name| name == "checkpoint.safetensors"), "{algo}");
}

#[test]
fn a_signal_ends_algorithms_of_one_loop() {
    ends_when_asked("ppo", "--num-envs 2");
    ends_when_asked("dqn", "--buffer-size 1000");
}

#[test]
fn a_signal_ends_actors_and_learners() {
    let small = "--env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 --num-steps 8";
    ends_when_asked("cleanba_ppo", small);
}

/// The run ends without the update for which the actors make a long rollout.
#[test]
fn in_the_middle_of_a_rollout() {
    let runs = tempfile::tempdir().unwrap();
    let words = format!(
        "train cleanba_ppo --env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 \
         --num-steps 1000000 {ENDLESS} --checkpoint-frequency 1"
    );
    let mut words: Vec<&str> = words.split_whitespace().collect();
    words.extend(["--runs-dir", runs.path().to_str().unwrap()]);
    let mut command = podracer(&words);
    // What comes from the cache is not compiled.
    command.env("PODRACER_CACHE", "off");
    let mut running = Running::start(command);
    running.wait_for("compiling sebulba_rollout");
    running.signal("TERM");
    let (status, err) = running.end();
    assert_eq!(status, Some(0), "{err}");
    assert!(!err.contains("step 4000000/"), "{err}");
    assert!(!run_dir(runs.path()).join("checkpoint.safetensors").exists(), "{err}");
}

/// The lock of a run below `folder`.
fn lock_below(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    entries.into_iter().find_map(|path| match path.is_dir() {
        true => lock_below(&path),
        false => path.ends_with("run.lock").then_some(path),
    })
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_comparison_leaves_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = podracer(&["compare", "--algos", "dqn", "--seconds", "1000"]);
    command.env("TMPDIR", folder.path());
    let mut running = Running::start(command);
    let lock = loop {
        assert!(running.child.try_wait().unwrap().is_none(), "{}", running.end().1);
        match lock_below(folder.path()) {
            Some(lock) => break lock,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let file = fs::File::options().write(true).open(lock).unwrap();
    running.signal("KILL");
    assert_eq!(running.end().0, None);
    // The system releases the lock when the run has ended.
    let began = Instant::now();
    while file.try_lock().is_err() {
        assert!(began.elapsed() < Duration::from_secs(20), "the run goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}
