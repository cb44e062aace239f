//! PQN: its targets and its loss against JAX, small runs, its bad settings.

use podracer::algos::pqn::{Args, QNetwork, Rollout, Samples, loss, q_lambda};
use podracer::nn::LayerNorm;
use podracer::{Array, DType, Tensor, interpret, value_and_grad};

use super::cases::{Case, one_seed_gives_one_run, refused};

const SMALL: &[&str] = &["--total-timesteps=400", "--num-envs=2", "--num-steps=32"];

#[test]
fn the_targets_are_the_sums_by_hand() {
    let case = Case::of("q_lambda");
    let rollout = Rollout {
        obs: Array::zeros([5, 2, 1], DType::F32),
        actions: Array::zeros([5, 2], DType::I32),
        rewards: case.f32("rewards"),
        dones: case.f32("dones"),
        values: case.f32("values"),
    };
    let run =
        interpret(|(rollout, next): (Rollout<Tensor>, Tensor)| q_lambda(&rollout, next, 0.9, 0.65));
    case.close("returns", &run.call((rollout, case.f32("next_value"))).unwrap());
}

#[test]
fn the_loss_is_that_of_jax() {
    let case = Case::of("pqn");
    let norm = LayerNorm { scale: case.f32("scale"), bias: case.f32("bias"), eps: 1e-5 };
    let q = QNetwork { hidden: vec![(case.dense("w0", "b0"), norm)], head: case.dense("w1", "b1") };
    let batch =
        Samples { obs: case.f32("obs"), actions: case.i32("action"), returns: case.f32("returns") };
    let run = interpret(|(q, batch): (QNetwork<Tensor>, Samples<Tensor>)| {
        value_and_grad(|q: QNetwork<Tensor>| loss(&q, &batch))(q)
    });
    let ((td_loss, q_values), grads) = run.call((q, batch)).unwrap();
    case.close("loss", &td_loss);
    case.close("q_values", &q_values);
    case.close("grad_w0", &grads.hidden[0].0.w);
    case.close("grad_scale", &grads.hidden[0].1.scale);
}

#[test]
fn one_seed_is_one_run() {
    let tags = one_seed_gives_one_run::<Args>(SMALL);
    for tag in ["charts/episodic_return", "eval/episodic_return", "losses/td_loss"] {
        assert!(tags.iter().any(|t| t == tag), "{tags:?}");
    }
}

#[test]
fn settings_that_cannot_be_are_told() {
    let told = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(
        told(&["--num-minibatches=5"]),
        "--num-minibatches 5: must be a divisor of the batch, num-envs * num-steps = 64"
    );
    assert_eq!(
        told(&["--total-timesteps=63"]),
        "--total-timesteps 63: must be at least one batch, num-envs * num-steps = 64"
    );
    assert_eq!(told(&["--q-lambda=-1"]), "--q-lambda -1: must be a number from 0 to 1");
    let told_env = told(&["--env-id=Pendulum-v1"]);
    assert!(told_env.contains("pqn chooses among discrete actions"), "{told_env}");
}
