//! PPO by self-play: its runs against each other, that it learns to win, its bad settings.

use std::path::Path;

use podracer::algos::ppo_self_play::{Args, train};
use podracer::rl::Algorithm;

use super::{same_twice, scalars, told};

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    let small = [
        "--total-timesteps=768",
        "--num-envs=8",
        "--num-steps=32",
        "--num-minibatches=2",
        "--update-epochs=2",
        "--snapshot-frequency=1",
        "--eval-frequency=2",
        "--json",
        &runs,
    ];
    Args::from_flags(small.into_iter().chain(more.iter().copied())).unwrap()
}

#[test]
fn one_seed_gives_one_run() {
    let runs = tempfile::tempdir().unwrap();
    for opponents in ["3", "0"] {
        let summary = same_twice(|| {
            let flags = ["--save-model", "--eval-episodes=7", "--num-opponents", opponents];
            train(&args(runs.path(), &flags)).unwrap()
        });
        let logged = scalars(&summary.run_dir);
        let count = |tag: &str| logged.keys().filter(|(name, _)| name == tag).count();
        assert_eq!(count("eval/win_rate_random"), 1);
        assert_eq!(count("eval/episodic_return"), 7);
        assert_eq!(count("charts/win_rate_past"), if opponents == "0" { 0 } else { 3 });
        let won = logged.iter().find(|((tag, _), _)| tag == "eval/win_rate_random").unwrap().1[0];
        assert!((0.2..=0.8).contains(&won), "an agent that learned nothing wins {won}");
    }
}

#[test]
fn settings_out_of_range_are_told() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| told(train(&args(runs.path(), flags)));
    assert_eq!(
        error(&["--num-opponents=2"]),
        "--num-envs 8: must be a multiple of --num-opponents plus one, 3"
    );
    let one = error(&["--env-id=Harvest-v0"]);
    assert!(one.contains("ppo_self_play is for 2 players, and this environment has 1"), "{one}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run was begun");
}
