//! DQN on images: its loss compared with JAX, small runs on boards and on a game, invalid settings.

use podracer::DType;
use podracer::algos::dqn_atari::{Args, QNetwork, td_loss};
use podracer::envs::ObsKind;
use podracer::nn::Encoder;
use podracer::rl::Algorithm;
use podracer::rl::buffers::frames::SampledBatch;
use podracer::{Array, Tensor, interpret, value_and_grad};

use super::cases::{Case, args, refused};
use super::models::model;

const SMALL: &[&str] = &[
    "--env-id=MinAtar/Breakout-v1",
    "--total-timesteps=600",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=8",
];

/// A layer on the cells of boards with one channel, without convolutions.
pub fn trunk(case: &Case, prefix: &str) -> Encoder<Array> {
    let name = |part: &str| format!("{prefix}hidden_{part}");
    let dense = vec![case.dense(&name("w"), &name("b"))];
    Encoder {
        convs: Vec::new(),
        dense,
        obs_kind: ObsKind::Board,
        shape: [10, 10, 1].into(),
        compute_dtype: DType::F32,
    }
}

/// The batch of a case on boards.
pub fn sampled_batch(case: &Case) -> SampledBatch<Array> {
    SampledBatch {
        obs: case.boards("obs"),
        action: case.i32("action"),
        reward: case.f32("reward"),
        next_obs: case.boards("next_obs"),
        discount: case.f32("discount"),
    }
}

#[test]
fn td_loss_equals_jax() {
    let case = Case::of("dqn_atari");
    let net = |prefix: &str| QNetwork {
        trunk: trunk(&case, prefix),
        head: case.dense(&format!("{prefix}w"), &format!("{prefix}b")),
    };
    type Nets = (QNetwork<Tensor>, QNetwork<Tensor>);
    let run = interpret(|((q, target), batch): (Nets, SampledBatch<Tensor>)| {
        value_and_grad(|q: QNetwork<Tensor>| td_loss(&q, &target, &batch))(q)
    });
    let inputs = ((net(""), net("target_")), sampled_batch(&case));
    let ((loss, metrics), grads) = run.call(inputs).unwrap();
    case.close("loss", &loss);
    case.close("loss", &metrics.td_loss);
    case.close("q_values", &metrics.q_values);
    case.close("grad_w", &grads.head.w);
}

#[test]
fn atari_games_have_the_nature_network() {
    let runs = tempfile::tempdir().unwrap();
    let more = [
        "--env-id=Pong-v5",
        "--num-envs=2",
        "--total-timesteps=48",
        "--target-network-frequency=16",
        "--learning-starts=16",
        "--batch-size=2",
        "--save-model",
        "--eval-episodes=0",
    ];
    let summary = args::<Args>(runs.path(), SMALL, &more).train().unwrap();
    assert_eq!(summary.global_step, 48);
    let sizes: usize = model(&summary)
        .iter()
        .filter(|(name, _)| name.starts_with("$.q."))
        .map(|(_, bytes)| bytes.len() / 4)
        .sum();
    // The Nature network, and six values.
    assert_eq!(sizes, 1_684_128 + 512 * 6 + 6);
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(error(&["--tau=2"]), "--tau 2: must be a number from 0 to 1");
    assert_eq!(error(&["--buffer-size=11"]), "--buffer-size 11: must be 12 to 2147483647");
    let text = error(&["--env-id=CartPole-v1"]);
    assert!(text.contains("dqn_atari takes images u8[4, 84, 84] or boards"), "{text}");
    let text = error(&["--env-id=Pomg-v5"]);
    assert!(text.contains("Pong-v5"), "{text}");
    let text = error(&["--env-id=MinAtar/Pong-v1"]);
    assert!(text.contains("MinAtar/"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_buffer_larger_than_the_memory_is_refused() {
    let runs = tempfile::tempdir().unwrap();
    let more = ["--env-id=Pong-v5", "--buffer-size=2000000000"];
    let error = args::<Args>(runs.path(), SMALL, &more).train().unwrap_err().to_string();
    assert!(error.contains("--buffer-size 2000000000: with Pong-v5 they take"), "{error}");
}
