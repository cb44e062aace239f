//! PQN: its returns and its loss against JAX, small runs, errors about bad settings.

use podracer::algos::pqn::{Args, QNetwork, Samples, compute_q_lambda, td_loss};
use podracer::nn::LayerNorm;
use podracer::{Tensor, interpret, value_and_grad};

use super::cases::{Case, refused};

const SMALL: &[&str] = &["--total-timesteps=400", "--num-envs=2", "--num-steps=32"];

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
fn the_loss_is_that_of_jax() {
    let case = Case::of("pqn");
    let norm = LayerNorm { scale: case.f32("scale"), bias: case.f32("bias"), eps: 1e-5 };
    let q = QNetwork { hidden: vec![(case.dense("w0", "b0"), norm)], head: case.dense("w1", "b1") };
    let batch =
        Samples { obs: case.f32("obs"), actions: case.i32("action"), returns: case.f32("returns") };
    let run = interpret(|(q, batch): (QNetwork<Tensor>, Samples<Tensor>)| {
        value_and_grad(|q: QNetwork<Tensor>| td_loss(&q, &batch))(q)
    });
    let ((td_loss, metrics), grads) = run.call((q, batch)).unwrap();
    case.close("loss", &td_loss);
    case.close("q_values", &metrics.q_values);
    case.close("grad_w0", &grads.hidden[0].0.w);
    case.close("grad_scale", &grads.hidden[0].1.scale);
}

#[test]
fn settings_out_of_range_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(
        error(&["--num-minibatches=5"]),
        "--num-minibatches 5: must be a divisor of the batch, num-envs * num-steps = 64"
    );
    assert_eq!(
        error(&["--total-timesteps=63"]),
        "--total-timesteps 63: must be at least one batch, num-envs * num-steps = 64"
    );
    assert_eq!(error(&["--q-lambda=-1"]), "--q-lambda -1: must be a number from 0 to 1");
    let continuous = error(&["--env-id=Pendulum-v1"]);
    assert!(continuous.contains("pqn chooses among discrete actions"), "{continuous}");
}
