//! DQN: its loss against JAX, small runs, its bad settings.

use podracer::algos::dqn::{Args, QNetwork, loss};
use podracer::rl::replay::Transition;
use podracer::{Tensor, interpret, value_and_grad};

use super::cases::{Case, args, model, one_seed_gives_one_run, refused};
use podracer::rl::Algorithm;

/// 40 gradient steps, the first after 200 of 600 timesteps.
const SMALL: &[&str] = &[
    "--total-timesteps=600",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=16",
];

#[test]
fn the_loss_is_that_of_jax() {
    let case = Case::of("dqn");
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
        value_and_grad(|q: QNetwork<Tensor>| loss(&q, &target, &batch, 0.9))(q)
    });
    let ((td_loss, q_values), grads) = run.call(((q, target), batch)).unwrap();
    case.close("loss", &td_loss);
    case.close("q_values", &q_values);
    case.close("grad_w", &grads.layers.layers[0].w);
    case.close("grad_b", grads.layers.layers[0].b.as_ref().unwrap());
}

#[test]
fn one_seed_is_one_run() {
    let tags = one_seed_gives_one_run::<Args>(SMALL);
    for tag in ["charts/episodic_return", "eval/episodic_return", "losses/q_values"] {
        assert!(tags.iter().any(|t| t == tag), "{tags:?}");
    }
    assert!(tags.contains(&"losses/td_loss".to_string()));
}

#[test]
fn the_length_of_a_call_changes_nothing() {
    let runs = tempfile::tempdir().unwrap();
    let run = |rounds: &str| {
        let more = ["--rounds-per-call", rounds, "--save-model", "--eval-episodes=0"];
        model(&args::<Args>(runs.path(), SMALL, &more).train().unwrap())
    };
    assert!(run("0") == run("2"));
    let told = refused::<Args>(SMALL, &["--rounds-per-call=3"]);
    assert!(told.starts_with("--rounds-per-call 3: must be a divisor of 10"), "{told}");
}

#[test]
fn several_environments_fill_one_buffer() {
    let runs = tempfile::tempdir().unwrap();
    let more = ["--num-envs=5", "--env-id=Acrobot-v1", "--mode=eager", "--total-timesteps=300"];
    let summary = args::<Args>(runs.path(), SMALL, &more).train().unwrap();
    assert_eq!((summary.global_step, summary.mode.as_str()), (300, "eager"));
}

#[test]
fn settings_that_cannot_be_are_told() {
    let told = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(
        told(&["--num-envs=3"]),
        "--train-frequency 10: must be a multiple of --num-envs 3, the timesteps of one step of all"
    );
    assert_eq!(
        told(&["--target-network-frequency=105"]),
        "--target-network-frequency 105: must be a multiple of --train-frequency 10"
    );
    assert_eq!(told(&["--gamma=1.5"]), "--gamma 1.5: must be a number from 0 to 1");
    assert_eq!(
        told(&["--batch-size=0"]),
        "--batch-size 0: must be a whole number from 1 to 1048576"
    );
    assert_eq!(told(&["--buffer-size=3"]), "--buffer-size 3: must be 10 to 2147483647");
    let told_env = told(&["--env-id=Pendulum-v1"]);
    assert!(told_env.contains("dqn chooses among discrete actions"), "{told_env}");
    let told_env = told(&["--env-id=MinAtar/Breakout-v1"]);
    assert!(told_env.contains("dqn takes vectors of floats"), "{told_env}");
}
