//! A resumed run of actors and a learner equals the uninterrupted one, bit for bit.

use std::path::Path;

use podracer::algos::{cleanba_impala, cleanba_ppo, sebulba_sac};
use podracer::rl::Algorithm;

use super::sebulba::{all_scalars, model, run};

/// Updates of 12 environments, 8 steps each, in two actor threads.
const STEPS: [&str; 3] = ["--num-steps=8", "--num-actor-threads=2", "--local-num-envs=6"];
/// Flags of PPO and IMPALA.
const MINIBATCHES: [&str; 2] = ["--num-minibatches=2", "--no-anneal-lr"];

/// Compares a run of five updates with runs that are resumed after one to four of them.
fn resumed_equals_uninterrupted<A: Algorithm>(layout: &str, more: &[&str]) {
    let timesteps = |updates: u64| format!("--total-timesteps={}", updates * 96);
    let runs = tempfile::tempdir().unwrap();
    let train = |flags: &[&str]| run::<A>(runs.path(), layout, flags).unwrap();

    let five = timesteps(5);
    let whole = train(&[&STEPS[..], more, &[&five]].concat());
    for resumed_at in [1, 2, 4] {
        let first = timesteps(resumed_at);
        let checkpoints = ["--checkpoint-frequency=96", &first];
        let first = train(&[&STEPS[..], more, &checkpoints].concat());
        assert_eq!(first.global_step, resumed_at * 96);
        let resume = format!("--resume={}", first.run_dir);
        let rest =
            train(&[&STEPS[..], more, &["--checkpoint-frequency=96", &resume, &five]].concat());
        assert_eq!(rest.run_dir, first.run_dir);
        assert_eq!((rest.global_step, rest.episodes), (whole.global_step, whole.episodes));
        assert!(model(&rest) == model(&whole), "{layout}, resumed after {resumed_at}");
        // But the speed, and the times of threads.
        let timeless = |summary| -> Vec<_> {
            let all = all_scalars(summary).into_iter();
            all.filter(|(tag, ..)| !tag.contains("SPS") && !tag.starts_with("stats/")).collect()
        };
        assert_eq!(timeless(&rest), timeless(&whole), "{layout}, resumed after {resumed_at}");
    }
}

#[test]
fn ppo_that_overlaps_acting_and_learning() {
    let layout = "--actor-device-ids 0 --learner-device-ids 1 2";
    resumed_equals_uninterrupted::<cleanba_ppo::Args>(layout, &MINIBATCHES);
}

#[test]
fn ppo_that_waits_for_the_newest_parameters() {
    let layout = "--actor-device-ids 0 --learner-device-ids 0";
    let more = [&MINIBATCHES[..], &["--no-concurrency"]].concat();
    resumed_equals_uninterrupted::<cleanba_ppo::Args>(layout, &more);
}

#[test]
fn impala_with_bitwise_sums() {
    let layout = "--actor-device-ids 0 --learner-device-ids 0";
    let more = [&MINIBATCHES[..], &["--deterministic"]].concat();
    resumed_equals_uninterrupted::<cleanba_impala::Args>(layout, &more);
}

/// The replay buffer is full after two of the five updates.
#[test]
fn sac_with_its_replay_buffer() {
    let layout = "--actor-device-ids 0 --learner-device-ids 1 2";
    resumed_equals_uninterrupted::<sebulba_sac::Args>(layout, &[]);
}

/// The images' learner takes its gradient steps one by one, so that a signal ends an update early.
#[cfg(unix)]
#[test]
fn a_signal_in_the_middle_of_an_update() {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use podracer::rl::Summary;

    let runs = tempfile::tempdir().unwrap();
    let batch = 8 * 16;
    let podracer = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_podracer"));
        command.args(["train", "cleanba_ppo", "--json"]).args(flags);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let settings = [
        "--env-id=MinAtar/Breakout-v1",
        "--local-num-envs=8",
        "--num-actor-threads=1",
        "--num-steps=16",
        "--no-anneal-lr",
        "--save-model",
        "--eval-episodes=1",
        &format!("--runs-dir={}", runs.path().display()),
    ];
    let mut started = podracer(&settings)
        .args([&format!("--checkpoint-frequency={}", 4 * batch), "--total-timesteps=100000000"])
        .spawn()
        .unwrap();
    // The environment's id has a slash, and the run's folder is one level down.
    let folder = || {
        let games = std::fs::read_dir(runs.path()).unwrap().next()?.unwrap().path();
        let folder = std::fs::read_dir(games).ok()?.next()?.unwrap().path();
        folder.join("checkpoint.safetensors").exists().then_some(folder)
    };
    let folder = loop {
        if let Some(folder) = folder() {
            break folder;
        }
        assert_eq!(started.try_wait().unwrap(), None, "it ended without a checkpoint");
        std::thread::sleep(Duration::from_millis(20));
    };
    Command::new("kill").args(["-INT", &started.id().to_string()]).status().unwrap();
    let summary = |output: std::process::Output| -> Summary {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let stopped = summary(started.wait_with_output().unwrap());
    assert_eq!(stopped.global_step % batch, 0);

    let total = format!("--total-timesteps={}", stopped.global_step + 2 * batch);
    let resume = format!("--resume={}", folder.display());
    let rest = summary(podracer(&[&resume, &total]).output().unwrap());
    assert_eq!(
        (rest.global_step, Path::new(&rest.run_dir)),
        (stopped.global_step + 2 * batch, &*folder)
    );
    let whole = summary(podracer(&settings).arg(&total).output().unwrap());
    assert_eq!((whole.global_step, whole.episodes), (rest.global_step, rest.episodes));
    assert!(model(&rest) == model(&whole), "stopped at {}", stopped.global_step);
}
