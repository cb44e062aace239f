//! DQN in one program: two updates against JAX, modes and seeds against each other, boards, refused
//! settings.

use podracer::algos::dqn_anakin::{
    Args, Metrics, QNetwork, TracedArgs, TrainState, gradient_step, linear_schedule, update_target,
};
use podracer::envs::ObsKind;
use podracer::nn::{Activation, Encoder, Mlp};
use podracer::optim::Adam;
use podracer::rl::Algorithm;
use podracer::rl::buffers::replay::Transition;
use podracer::trace::ops::constant;
use podracer::{Array, DType, Tensor, interpret};

use super::cases::{Case, args, refused};
use super::models::model;
use super::scalars;

/// Four updates of the target network, gradient steps from the second on.
const SMALL: &[&str] = &[
    "--total-timesteps=400",
    "--num-envs=5",
    "--learning-starts=100",
    "--target-network-frequency=100",
    "--buffer-size=150",
    "--batch-size=16",
];

/// Two batches of six transitions, networks of four units, and a gradient step and an update of the
/// target network on each.
#[test]
fn two_updates_equal_jax() {
    let case = Case::of("dqn_anakin");
    let network = |name: &str| {
        let layer = |i| case.dense(&format!("{name}{i}_w"), &format!("{name}{i}_b"));
        let layers = Mlp { layers: (0..3).map(layer).collect(), activation: Activation::Relu };
        let convs = Encoder {
            convs: Vec::new(),
            dense: Vec::new(),
            obs_kind: ObsKind::Vector,
            shape: [3].into(),
            compute_dtype: DType::F32,
        };
        QNetwork { convs, layers }
    };
    let batches = [0, 1].map(|i| Transition {
        obs: case.f32(&format!("obs{i}")),
        action: case.i32(&format!("action{i}")),
        reward: case.f32(&format!("reward{i}")),
        next_obs: case.f32(&format!("next_obs{i}")),
        terminated: case.f32(&format!("terminated{i}")),
    });
    let args = Args::from_flags(["--gamma=0.9", "--tau=0.25"]).unwrap();
    type Networks = [QNetwork<Tensor>; 2];
    type Updated<T> = ([QNetwork<T>; 2], [Metrics<T>; 2]);
    let run = interpret(
        |([q, target], batches): (Networks, [Transition<Tensor>; 2])| -> Updated<Tensor> {
            let traced = TracedArgs::new(&args, &[]);
            let mut state = TrainState { opt_state: Adam::default().init(&q), q, target };
            let metrics = batches.map(|batch| {
                let (next, metrics) =
                    gradient_step(state.clone(), &batch, constant(0.01f32), &traced);
                state = update_target(next, &args);
                metrics
            });
            ([state.q, state.target], metrics)
        },
    );
    let networks = [network("q"), network("target")];
    let ([q, target], metrics) = run.call((networks, batches)).unwrap();
    let losses = metrics.each_ref().map(|m| [m.td_loss.clone(), m.q_values.clone()]);
    let losses: Vec<f32> = losses.as_flattened().iter().map(|x| x.item().unwrap()).collect();
    case.close("losses", &Array::new([2, 2], &losses).unwrap());
    case.close("updated_q0_w", &q.layers.layers[0].w);
    case.close("updated_q1_b", q.layers.layers[1].b.as_ref().unwrap());
    case.close("updated_q2_w", &q.layers.layers[2].w);
    case.close("updated_target0_b", target.layers.layers[0].b.as_ref().unwrap());
    case.close("updated_target1_w", &target.layers.layers[1].w);
    case.close("updated_target2_w", &target.layers.layers[2].w);
}

#[test]
fn epsilon_falls_and_stays() {
    let flags = ["--start-e=1", "--end-e=0.2", "--exploration-fraction=0.5"];
    let args = Args::from_flags(flags.into_iter().chain(["--total-timesteps=160"])).unwrap();
    let run =
        interpret(|global_step: Tensor| linear_schedule(global_step, &TracedArgs::new(&args, &[])));
    let at = |step: i32| run.call(Array::from(step)).unwrap().item::<f32>().unwrap();
    assert_eq!(at(0), 1.0);
    assert!((at(40) - 0.6).abs() < 1e-6 && (at(90) - 0.2).abs() < 1e-6);
}

#[test]
fn every_mode_logs_the_same_losses() {
    for env in ["CartPole-v1", "MinAtar/Breakout-v1"] {
        let runs = tempfile::tempdir().unwrap();
        let log = |mode: &str| {
            let flags = ["--mode", mode, "--env-id", env, "--total-timesteps=200"];
            scalars(&args::<Args>(runs.path(), SMALL, &flags).train().unwrap().run_dir)
        };
        let (jit, other) = (log("jit"), log("interpret"));
        assert_eq!(jit[&("losses/td_loss".to_string(), 100)], [0.0], "it learns too early");
        assert!(jit[&("losses/td_loss".to_string(), 200)][0] > 0.0, "it does not learn");
        assert_eq!(jit.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
        for (key, values) in &jit {
            for (a, b) in values.iter().zip(&other[key]) {
                let close = (a - b).abs() <= 1e-3 * a.abs().max(1.0);
                assert!(close, "{env} {key:?}: {a}, host {b}");
            }
        }
    }
}

#[test]
fn agents_of_one_program_are_the_agents_alone() {
    let runs = tempfile::tempdir().unwrap();
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
    };
    let layer = |flags: &[&str]| {
        let more = [flags, &["--save-model", "--eval-episodes=0"]].concat();
        let saved = model(&args::<Args>(runs.path(), SMALL, &more).train().unwrap());
        floats(&saved.iter().find(|(name, _)| name == "$.q.layers.layers[0].w").unwrap().1)
    };
    let alone = [layer(&["--seed=5"]), layer(&["--seed=6"])];
    assert_eq!(layer(&["--seed=5", "--num-seeds=2"]), alone.concat());
    assert_ne!(alone[0], alone[1]);
    // Products of batches round otherwise than those of one agent.
    let batch = layer(&["--seed=5", "--num-seeds=2", "--seed-axis=vmap"]);
    for (a, b) in alone.concat().iter().zip(batch) {
        assert!((a - b).abs() <= 1e-4, "{a} alone, {b} in a batch");
    }
    // Ten gradient steps, after which roundings have not changed an action yet.
    let short = |flags: &[&str]| {
        layer(&[&["--seed=5", "--total-timesteps=200", "--mode=interpret"], flags].concat())
    };
    let swept = short(&["--sweep=learning-rate=2.5e-4,1e-3", "--sweep=gamma=0.9,0.99"]);
    for (i, flags) in [
        ["--learning-rate=2.5e-4", "--gamma=0.9"],
        ["--learning-rate=2.5e-4", "--gamma=0.99"],
        ["--learning-rate=1e-3", "--gamma=0.9"],
        ["--learning-rate=1e-3", "--gamma=0.99"],
    ]
    .iter()
    .enumerate()
    {
        let one = short(flags);
        let part = &swept[i * one.len()..(i + 1) * one.len()];
        for (a, b) in one.iter().zip(part) {
            assert!((a - b).abs() <= 1e-5, "{flags:?}: {a} alone, {b} in a sweep");
        }
    }
    assert_ne!(swept[..4 * 120], swept[swept.len() - 4 * 120..]);
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(
        error(&["--num-envs=3"]),
        "--train-frequency 10: must be a multiple of --num-envs 3, the timesteps of one step of all"
    );
    assert_eq!(error(&["--buffer-size=3"]), "--buffer-size 3: must be 10 to 2147483647");
    let env_error = error(&["--env-id=Pendulum-v1"]);
    assert!(env_error.contains("dqn_anakin chooses among discrete actions"), "{env_error}");
    let pooled = error(&["--env-id=FrozenLake-v1"]);
    assert!(pooled.contains("is in the pool only") && pooled.contains("CartPole-v1"), "{pooled}");
}
