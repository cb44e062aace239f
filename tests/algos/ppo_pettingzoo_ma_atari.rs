//! PPO by self-play in Atari games for several players: its runs, its logs, refused settings. Its
//! updates are compared with CleanRL's in `trajectory`.

use std::path::Path;

use podracer::algos::ppo_pettingzoo_ma_atari::Args;
use podracer::rl::Algorithm;

use super::{message, scalars};

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    let small = [
        "--total-timesteps=64",
        "--num-envs=4",
        "--num-steps=8",
        "--num-minibatches=2",
        "--update-epochs=1",
        "--json",
        &runs,
    ];
    Args::from_flags(small.into_iter().chain(more.iter().copied())).unwrap()
}

/// Games of Entombed, whose players lose their last lives after some hundred steps.
#[test]
fn returns_are_logged_for_each_player_and_evaluated_against_random_ones() {
    let runs = tempfile::tempdir().unwrap();
    let game = ["--env-id=entombed_competitive_v3", "--num-envs=2", "--num-steps=500"];
    let more = ["--total-timesteps=1000", "--save-model", "--eval-episodes=2"];
    let summary = args(runs.path(), &[&game[..], &more].concat()).train().unwrap();
    let logged = scalars(&summary.run_dir);
    for name in ["return", "length"] {
        let ends = |player: usize| -> Vec<u64> {
            let tag = format!("charts/episodic_{name}-player{player}");
            logged.keys().filter(|(name, _)| *name == tag).map(|(_, step)| *step).collect()
        };
        assert!(!ends(0).is_empty() && ends(0) == ends(1), "{name}: {:?} {:?}", ends(0), ends(1));
    }
    let evaluated = logged.keys().filter(|(name, _)| name == "eval/episodic_return").count();
    assert_eq!(evaluated, 2);
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| message(args(runs.path(), flags).train());
    let odd = error(&["--env-id=quadrapong_v4", "--num-envs=6"]);
    assert!(odd.contains("num_envs is 6, expected a multiple of 4"), "{odd}");
    let vector = error(&["--env-id=CartPole-v1"]);
    assert!(vector.contains("ppo_pettingzoo_ma_atari takes images"), "{vector}");
    let unknown = error(&["--env-id=pong_v2"]);
    assert!(unknown.contains("pong_v3"), "{unknown}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run was started");
}
