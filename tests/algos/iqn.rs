//! IQN: its loss, gradient and updates at given taus compared with JAX, small runs, invalid settings.

use podracer::algos::iqn::{Args, QNetwork, Taus, TrainState, gradient_step, td_loss};
use podracer::optim::Adam;
use podracer::rl::Algorithm;
use podracer::rl::buffers::replay::Transition;
use podracer::{Tensor, interpret, tree, value_and_grad};

use super::cases::{Case, refused};

const SMALL: &[&str] = &[
    "--total-timesteps=600",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=16",
    "--num-quantile-samples=4",
];

#[test]
fn loss_and_updates_equal_jax() {
    let case = Case::of("iqn");
    let flags = ["--quantile-embedding-dim=4", "--gamma=0.9", "--learning-rate=0.01"];
    let args = Args::from_flags(flags.into_iter().chain(["--batch-size=6"])).unwrap();
    let network = |prefix: &str| {
        let of = |name: &str| format!("{prefix}{name}");
        QNetwork {
            features: case.dense(&of("features_w"), &of("features_b")),
            embedding: case.dense(&of("embedding_w"), &of("embedding_b")),
            layers: case.mlp(&of("w"), &of("b")),
        }
    };
    let batch = Transition {
        obs: case.f32("obs"),
        action: case.i32("action"),
        reward: case.f32("reward"),
        next_obs: case.f32("next_obs"),
        terminated: case.f32("terminated"),
    };
    // The first axis is the update.
    let taus = Taus {
        taus: case.f32("taus"),
        next_taus: case.f32("next_taus"),
        action_taus: case.f32("action_taus"),
    };
    type Nets = (QNetwork<Tensor>, QNetwork<Tensor>);
    type Input = (Nets, Transition<Tensor>, Taus<Tensor>);
    let run = interpret(|((q, target), batch, taus): Input| {
        let of = |update| tree::map(taus, |x: Tensor| x.index_axis(0, update));
        let loss = |q: QNetwork<Tensor>| td_loss(&q, &target, &batch, of(0), &args);
        let ((loss, _), grads) = value_and_grad(loss)(q.clone());
        let opt_state = Adam::default().init(&q);
        let train_state = TrainState { q, target, opt_state };
        let (train_state, _) = gradient_step(train_state, &batch, of(0), &args);
        let (train_state, metrics) = gradient_step(train_state, &batch, of(1), &args);
        (loss, grads, train_state.q, metrics)
    });
    let input = ((network(""), network("target_")), batch, taus);
    let (loss, grads, updated, metrics) = run.call(input).unwrap();
    case.close("loss", &loss);
    case.close("grad_w", &grads.layers.layers[0].w);
    case.close("grad_embedding_w", &grads.embedding.w);
    case.close("second_loss", &metrics.loss);
    case.close("second_q_values", &metrics.q_values);
    case.close("updated_w", &updated.layers.layers[0].w);
    case.close("updated_features_w", &updated.features.w);
    case.close("updated_embedding_w", &updated.embedding.w);
    case.close("updated_embedding_b", updated.embedding.b.as_ref().unwrap());
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    for flag in ["--num-tau-samples", "--num-tau-prime-samples", "--num-quantile-samples"] {
        let text = error(&[&format!("{flag}=0")]);
        assert_eq!(text, format!("{flag} 0: must be a whole number from 1 to 1024"));
    }
    let env_error = error(&["--env-id=Pendulum-v1"]);
    assert!(env_error.contains("iqn chooses among discrete actions"), "{env_error}");
}
