//! PPO and IMPALA on Sebulba: their losses against NumPy, V-trace by hand. Their runs, on several
//! devices, are in `tests/devices`.

use podracer::algos::{cleanba_impala, cleanba_ppo};
use podracer::nn::ImageEncoder;
use podracer::nn::{Dense, PolicyHead};
use podracer::rl::Algorithm;
use podracer::rl::sebulba::Agent;
use podracer::{Array, Tensor, interpret, tree};

use super::cases::{args, refused};
use super::fixture::{acted, dense, expect, floats, ints, trunk, wave};
use super::models::model;

fn agent() -> Agent<Tensor> {
    let critic: Dense<Tensor> = dense([4, 1], 1.3);
    let actor = PolicyHead { layer: dense([4, 2], 0.3), log_std: None };
    Agent { network: ImageEncoder::Nature(trunk()), actor, critic }
}

#[test]
fn the_loss_of_ppo_is_that_of_numpy() {
    let args = cleanba_ppo::Args::from_flags([]).unwrap();
    expect("cleanba_ppo", || {
        // Three samples of two environments each.
        let batch = cleanba_ppo::Samples {
            obs: wave([2, 3, 3], 1.0),
            actions: ints([2, 3], &[0, 1, 1, 0, 1, 0]),
            logprobs: acted("ppo_log_prob").reshape([2, 3]),
            advantages: wave([2, 3], 6.0),
            returns: wave([2, 3], 7.0),
        };
        tree::leaves(&cleanba_ppo::ppo_loss(&agent(), batch, &args).1)
    });
}

#[test]
fn the_loss_of_impala_is_that_of_numpy() {
    let args = cleanba_impala::Args::from_flags([]).unwrap();
    expect("impala", || {
        let batch = cleanba_impala::Trajectories {
            obs: wave([2, 5, 3], 1.0),
            actions: ints([2, 4], &[0, 1, 1, 0, 1, 0, 0, 1]),
            logprobs: acted("impala_log_prob").reshape([2, 4]),
            rewards: wave([2, 4], 0.1),
            dones: floats([2, 4], &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
            weights: None,
        };
        // As if there were six environments.
        tree::leaves(&cleanba_impala::impala_loss(&agent(), batch, 6.0, &args).1)
    });
}

#[test]
fn vtrace_is_that_of_numpy() {
    expect("vtrace", || {
        let dones = floats([2, 4], &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let (rewards, discounts) = (wave([2, 4], 0.1), 0.99 * (1.0 - dones));
        let ratios = wave([2, 4], 0.9).exp();
        tree::leaves(&cleanba_impala::vtrace(rewards, discounts, ratios, wave([2, 5], 0.4)))
    });
}

/// Two steps: the first action's reward is the one that it brought, not the one before it.
#[test]
fn vtrace_equals_a_calculation_by_hand() {
    let f = interpret(|(rewards, values): (Tensor, Tensor)| {
        let discounts = floats([1, 2], &[0.5, 0.5]);
        let ratios = floats([1, 2], &[0.5, 4.0]);
        cleanba_impala::vtrace(rewards, discounts, ratios, values)
    });
    let array = |values: &[f32]| Array::new([1, values.len()], values).unwrap();
    let message = f.call((array(&[1.0, 2.0]), array(&[10.0, 20.0, 40.0]))).unwrap();
    // The second: weight min(1, 4) = 1, error 2 + 0.5 * 40 - 20 = 2, value of the action 22.
    // The first: weight 0.5, delta 0.5 (1 + 0.5 * 20 - 10) = 0.5, error 0.5 + 0.5 * 0.5 * 2 = 1;
    // value of the action 1 + 0.5 (20 + 2) = 12, advantage 0.5 (12 - 10) = 1.
    assert_eq!(message.errors.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(message.pg_advantages.to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

/// The command `podracer train` and the examples have one set of defaults.
#[test]
fn environments_of_vectors_have_defaults_of_their_own() {
    let impala = cleanba_impala::Args::from_flags(["--env-id", "CartPole-v1"]).unwrap();
    assert_eq!((impala.total_timesteps, impala.sebulba.local_num_envs), (1_500_000, 12));
    assert_eq!((impala.learning_rate, impala.vf_coef), (1e-3, 0.25));
    let given = ["--env-id", "CartPole-v1", "--local-num-envs", "8"];
    let given = cleanba_impala::Args::from_flags(given).unwrap();
    assert_eq!((given.total_timesteps, given.sebulba.local_num_envs), (1_500_000, 8));
    let frames = cleanba_impala::Args::from_flags(["--env-id", "Pong-v5"]).unwrap();
    assert_eq!(frames.total_timesteps, 50_000_000);
    let ppo = cleanba_ppo::Args::from_flags(["--env-id", "CartPole-v1"]).unwrap();
    assert!(ppo.total_timesteps < 50_000_000, "{}", ppo.total_timesteps);
}

/// Two parts of a minibatch make one step: as often as without, and of other gradients than those of
/// as many minibatches.
#[test]
fn impala_accumulates_gradients() {
    let runs = tempfile::tempdir().unwrap();
    let small = [
        "--env-id=CartPole-v1",
        "--local-num-envs=4",
        "--num-actor-threads=1",
        "--num-steps=16",
        "--total-timesteps=64",
        "--ent-coef=0",
        "--max-grad-norm=1e9",
    ];
    let model = |more: &[&str]| {
        let more = [&["--save-model", "--eval-episodes=0"], more].concat();
        model(&args::<cleanba_impala::Args>(runs.path(), &small, &more).train().unwrap())
    };
    let whole = model(&["--num-minibatches=1"]);
    let parts = model(&["--num-minibatches=1", "--gradient-accumulation-steps=2"]);
    assert!(whole != parts, "the mean of two parts' sums is half of the whole sum");
    assert!(parts != model(&["--num-minibatches=2"]), "these are two steps");
    let message = refused::<cleanba_impala::Args>(&small, &["--gradient-accumulation-steps=4"]);
    assert!(message.contains("gradient-accumulation-steps"), "{message}");
}
