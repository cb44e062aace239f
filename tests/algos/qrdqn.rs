//! QR-DQN: its loss, gradient and update compared with JAX, small runs, invalid settings.

use podracer::algos::qrdqn::{Args, QNetwork, TrainState, gradient_step, td_loss};
use podracer::optim::Adam;
use podracer::rl::Algorithm;
use podracer::rl::buffers::replay::Transition;
use podracer::{Tensor, interpret, value_and_grad};

use super::cases::{Case, refused};

const SMALL: &[&str] = &[
    "--total-timesteps=600",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=16",
    "--n-quantiles=11",
];

#[test]
fn loss_and_update_equal_jax() {
    let case = Case::of("qrdqn");
    let flags = ["--n-quantiles=5", "--gamma=0.9", "--batch-size=6", "--learning-rate=0.01"];
    let args = Args::from_flags(flags).unwrap();
    let q = QNetwork { layers: case.mlp("w", "b") };
    let target = QNetwork { layers: case.mlp("target_w", "target_b") };
    let batch = Transition {
        obs: case.f32("obs"),
        action: case.i32("action"),
        reward: case.f32("reward"),
        next_obs: case.f32("next_obs"),
        terminated: case.f32("terminated"),
    };
    type Nets = (QNetwork<Tensor>, QNetwork<Tensor>);
    let run = interpret(|((q, target), batch): (Nets, Transition<Tensor>)| {
        let loss = |q: QNetwork<Tensor>| td_loss(&q, &target, &batch, &args);
        let ((loss, _), grads) = value_and_grad(loss)(q.clone());
        let opt_state = Adam::default().init(&q);
        let train_state = TrainState { q, target, opt_state };
        let (train_state, _) = gradient_step(train_state, &batch, &args);
        let (train_state, metrics) = gradient_step(train_state, &batch, &args);
        (loss, grads, train_state.q, metrics)
    });
    let (loss, grads, updated, metrics) = run.call(((q, target), batch)).unwrap();
    case.close("loss", &loss);
    case.close("grad_w", &grads.layers.layers[0].w);
    case.close("grad_b", grads.layers.layers[0].b.as_ref().unwrap());
    // After the first of two updates, and after both.
    case.close("second_loss", &metrics.loss);
    case.close("second_q_values", &metrics.q_values);
    case.close("updated_w", &updated.layers.layers[0].w);
    case.close("updated_b", updated.layers.layers[0].b.as_ref().unwrap());
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(
        error(&["--n-quantiles=0"]),
        "--n-quantiles 0: must be a whole number from 1 to 1024"
    );
    assert_eq!(
        error(&["--train-frequency=7"]),
        "--target-network-frequency 100: must be a multiple of --train-frequency 7"
    );
    assert_eq!(
        error(&["--total-timesteps=3000000000"]),
        "--total-timesteps 3000000000: must be below 2^31: the program counts in i32"
    );
    let env_error = error(&["--env-id=Pendulum-v1"]);
    assert!(env_error.contains("qrdqn chooses among discrete actions"), "{env_error}");
}
