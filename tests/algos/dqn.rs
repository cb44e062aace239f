//! DQN: its loss compared with JAX, small runs, invalid settings.

use podracer::algos::dqn::{Args, QNetwork, epsilon_greedy, linear_schedule, td_loss};
use podracer::rl::buffers::replay::Transition;
use podracer::{Array, Key, Tensor, interpret, value_and_grad};

use super::cases::{Case, args, refused};
use super::models::model;
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
fn td_loss_equals_jax() {
    let case = Case::of("dqn");
    let args = Args::from_flags(["--gamma=0.9"]).unwrap();
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
        value_and_grad(|q: QNetwork<Tensor>| td_loss(&q, &target, &batch, &args))(q)
    });
    let ((loss, metrics), grads) = run.call(((q, target), batch)).unwrap();
    case.close("loss", &loss);
    case.close("loss", &metrics.td_loss);
    case.close("q_values", &metrics.q_values);
    case.close("grad_w", &grads.layers.layers[0].w);
    case.close("grad_b", grads.layers.layers[0].b.as_ref().unwrap());
}

#[test]
fn epsilon_falls_and_stays() {
    let flags = ["--start-e=1", "--end-e=0.2", "--exploration-fraction=0.5"];
    let args = Args::from_flags(flags.into_iter().chain(["--total-timesteps=160"])).unwrap();
    let run = interpret(|global_step: Tensor| linear_schedule(global_step, &args));
    let at = |step: i32| run.call(Array::from(step)).unwrap().item::<f32>().unwrap();
    assert_eq!(at(0), 1.0);
    assert!((at(40) - 0.6).abs() < 1e-6 && (at(90) - 0.2).abs() < 1e-6);
}

#[test]
fn actions_are_greedy_or_random() {
    let run = interpret(|(q_values, epsilon): (Tensor, Tensor)| {
        epsilon_greedy(q_values, epsilon, Key::constant(3))
    });
    let q_values: Vec<f32> =
        (0..1200).map(|i| if i % 3 == 1 { 5.0 } else { i as f32 / 1e4 }).collect();
    let q_values = Array::new([400, 3], &q_values).unwrap();
    let actions = |epsilon: f32| {
        let actions = run.call((q_values.clone(), Array::from(epsilon))).unwrap();
        actions.to_vec::<i32>().unwrap()
    };
    assert!(actions(0.0).iter().all(|&action| action == 1));
    let others = actions(0.5).iter().filter(|&&action| action != 1).count();
    assert!((90..180).contains(&others), "{others} of 400, expected a third");
}

#[test]
fn results_do_not_depend_on_updates_per_call() {
    let runs = tempfile::tempdir().unwrap();
    let run = |updates: &str| {
        let more = ["--updates-per-call", updates, "--save-model", "--eval-episodes=0"];
        model(&args::<Args>(runs.path(), SMALL, &more).train().unwrap())
    };
    assert!(run("0") == run("2"));
    let error = refused::<Args>(SMALL, &["--updates-per-call=3"]);
    assert!(error.starts_with("--updates-per-call 3: must be a divisor of 10"), "{error}");
}

#[test]
fn several_environments_fill_one_buffer() {
    let runs = tempfile::tempdir().unwrap();
    let more = ["--num-envs=5", "--env-id=Acrobot-v1", "--mode=interpret", "--total-timesteps=300"];
    let summary = args::<Args>(runs.path(), SMALL, &more).train().unwrap();
    assert_eq!((summary.global_step, summary.mode.as_str()), (300, "interpret"));
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(
        error(&["--num-envs=3"]),
        "--train-frequency 10: must be a multiple of --num-envs 3, the timesteps of one step of all"
    );
    assert_eq!(
        error(&["--target-network-frequency=105"]),
        "--target-network-frequency 105: must be a multiple of --train-frequency 10"
    );
    assert_eq!(error(&["--gamma=1.5"]), "--gamma 1.5: must be a number from 0 to 1");
    assert_eq!(
        error(&["--batch-size=0"]),
        "--batch-size 0: must be a whole number from 1 to 1048576"
    );
    assert_eq!(error(&["--buffer-size=3"]), "--buffer-size 3: must be 10 to 2147483647");
    let env_error = error(&["--env-id=Pendulum-v1"]);
    assert!(env_error.contains("dqn chooses among discrete actions"), "{env_error}");
    let env_error = error(&["--env-id=MinAtar/Breakout-v1"]);
    assert!(env_error.contains("dqn takes vectors of floats"), "{env_error}");
}
