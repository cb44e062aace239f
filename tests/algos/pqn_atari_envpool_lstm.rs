//! PQN with an LSTM: small runs on positions, boards and a game, invalid settings.
//! `trajectory::images` compares the update with CleanRL's.

use podracer::algos::pqn_atari_envpool_lstm::Args;
use podracer::rl::Algorithm;

use super::cases::{args, refused};
use super::models::model;

const SMALL: &[&str] = &[
    "--env-id=CartPolePositions-v0",
    "--total-timesteps=384",
    "--num-envs=4",
    "--num-steps=32",
    "--num-minibatches=2",
];

#[test]
fn boards_and_single_frames_have_their_networks() {
    let first = |more: &[&str]| {
        let runs = tempfile::tempdir().unwrap();
        let few = ["--total-timesteps=16", "--num-steps=4", "--update-epochs=1"];
        let saved = ["--save-model", "--eval-episodes=0"];
        let more = [&few, &saved[..], more].concat();
        let summary = args::<Args>(runs.path(), SMALL, &more).train().unwrap();
        assert_eq!(summary.global_step, 16);
        let model = model(&summary);
        model.iter().find(|(name, _)| name == "$.q.convs[0][0].w").unwrap().1.len() / 4
    };
    assert_eq!(first(&["--env-id=MinAtar/Breakout-v1"]), 3 * 3 * 4 * 16);
    assert_eq!(first(&["--env-id=Pong-v5"]), 8 * 8 * 32);
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(
        error(&["--num-minibatches=8"]),
        "--num-minibatches 8: must be a divisor of --num-envs 4: minibatches are whole environments"
    );
    let other = error(&["--env-id=Taxi-v3"]);
    assert!(other.contains("pqn_atari_envpool_lstm takes images"), "{other}");
}
