//! PQN on images: its returns compared with sums by hand, small runs on boards and on a game, invalid
//! settings. `trajectory::images` compares the update with CleanRL's.

use podracer::algos::pqn_atari_envpool::{Args, compute_q_lambda};
use podracer::rl::Algorithm;
use podracer::{Tensor, interpret};

use super::cases::{Case, args, refused};
use super::models::model;

const SMALL: &[&str] =
    &["--env-id=MinAtar/Breakout-v1", "--total-timesteps=600", "--num-envs=2", "--num-steps=32"];

#[test]
fn the_returns_are_the_sums_by_hand() {
    let case = Case::of("q_lambda");
    let run =
        interpret(|(rewards, dones, values, next_value): (Tensor, Tensor, Tensor, Tensor)| {
            compute_q_lambda(rewards, dones, values, next_value, (0.9, 0.65))
        });
    let [rewards, dones, values] = ["rewards", "dones", "values"].map(|name| case.f32(name));
    let returns = run.call((rewards, dones, values, case.f32("next_value"))).unwrap();
    case.close("returns", &returns);
}

#[test]
fn atari_games_have_cleanrls_network() {
    let runs = tempfile::tempdir().unwrap();
    let more = ["--env-id=Pong-v5", "--total-timesteps=16", "--num-steps=4", "--save-model"];
    let more = [&more[..], &["--num-minibatches=2", "--update-epochs=1", "--eval-episodes=0"]];
    let summary = args::<Args>(runs.path(), SMALL, &more.concat()).train().unwrap();
    assert_eq!(summary.global_step, 16);
    let sizes: usize = model(&summary)
        .iter()
        .filter(|(name, _)| name.starts_with("$.q."))
        .map(|(_, bytes)| bytes.len() / 4)
        .sum();
    // The Nature network, a scale and a bias for each output of its four layers, and six values.
    let norms = 2 * (32 * 20 * 20 + 64 * 9 * 9 + 64 * 7 * 7 + 512);
    assert_eq!(sizes, 1_684_128 + norms + 512 * 6 + 6);
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(
        error(&["--num-minibatches=5"]),
        "--num-minibatches 5: must be a divisor of the batch, num-envs * num-steps = 64"
    );
    assert_eq!(error(&["--q-lambda=-1"]), "--q-lambda -1: must be a number from 0 to 1");
    let vector = error(&["--env-id=CartPole-v1"]);
    assert!(
        vector.contains("pqn_atari_envpool takes images u8[channels, height, width]"),
        "{vector}"
    );
    let unknown = error(&["--env-id=Pomg-v5"]);
    assert!(unknown.contains("Pong-v5"), "{unknown}");
}
