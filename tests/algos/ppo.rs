//! PPO: GAE by hand, modes against each other, errors about bad settings.

use std::path::Path;

use podracer::algos::ppo::{Agent, Args, Samples, TrainState, compute_gae, run_epochs};
use podracer::optim::Adam;
use podracer::rl::{Algorithm, checkpoint};
use podracer::trace::ops::{constant, full, zeros};
use podracer::{Array, DType, Error, Key, Tensor, interpret, random};

use super::scalars;

const SMALL: &[&str] = &[
    "--total-timesteps",
    "96",
    "--num-envs",
    "2",
    "--num-steps",
    "16",
    "--num-minibatches",
    "2",
    "--update-epochs",
    "2",
    "--json",
];

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = runs.to_str().unwrap();
    Args::from_flags(SMALL.iter().chain(more).copied().chain(["--runs-dir", runs])).unwrap()
}

/// `f32[T, 1]`: one number for each step of one environment.
fn by_step<const T: usize>(numbers: [f32; T]) -> Array {
    Array::new([T, 1], &numbers).unwrap()
}

#[test]
fn gae_is_the_sum_by_hand() {
    // Episodes end with steps 1 and 3.
    let (gamma, lambda) = (0.9, 0.8);
    let (rewards, values) = ([1.0f32, 2.0, 3.0, 4.0], [0.5f32, 0.25, -0.5, 1.0]);
    let run = interpret(|(rewards, dones, values, next): (Tensor, Tensor, Tensor, Tensor)| {
        compute_gae(rewards, dones, values, next, (gamma, lambda))
    });
    let dones = by_step([0.0, 1.0, 0.0, 1.0]);
    let (advantages, returns) =
        run.call((by_step(rewards), dones, by_step(values), Array::from([7.0f32]))).unwrap();
    // Step 3 ends its episode, so nothing follows; step 2 sees step 3. Step 1 ends its episode
    // too; step 0 sees step 1.
    let a3 = 4.0 - 1.0;
    let a2 = (3.0 + 0.9 * 1.0 + 0.5) + 0.9 * 0.8 * a3;
    let a1 = 2.0 - 0.25;
    let a0 = (1.0 + 0.9 * 0.25 - 0.5) + 0.9 * 0.8 * a1;
    let expected = [a0, a1, a2, a3];
    let advantages = advantages.to_vec::<f32>().unwrap();
    let returns = returns.to_vec::<f32>().unwrap();
    for i in 0..4 {
        assert!((advantages[i] - expected[i]).abs() < 1e-6, "{advantages:?} {expected:?}");
        assert!((returns[i] - expected[i] - values[i]).abs() < 1e-6);
    }
}

/// Adam counts its steps: two minibatches in each of three epochs, or in the first one only.
#[test]
fn epochs_after_the_target_kl_are_skipped() {
    let num_gradient_steps = |target_kl: Option<f64>| {
        let flags = ["--num-envs=2", "--num-steps=16", "--num-minibatches=2", "--update-epochs=3"];
        let args = Args { target_kl, ..Args::from_flags(flags).unwrap() };
        let run = interpret(|key: Key<Tensor>| {
            let [agent_key, obs_key, advantage_key, key] = key.split_n();
            let agent = Agent::init(agent_key, 4, 2);
            let train_state = TrainState { opt_state: Adam::default().init(&agent), agent };
            let samples = Samples {
                obs: random::normal(obs_key, [32, 4], DType::F32),
                actions: zeros([32], DType::I32),
                logprobs: full([32], -0.5, DType::F32),
                advantages: random::normal(advantage_key, [32], DType::F32),
                returns: zeros([32], DType::F32),
                values: zeros([32], DType::F32),
            };
            let (state, _) = run_epochs(train_state, samples, key, constant(0.01f32), &args);
            state.opt_state.count
        });
        run.call(Key::new(0)).unwrap().item::<i32>().unwrap()
    };
    assert_eq!(num_gradient_steps(None), 6);
    assert_eq!(num_gradient_steps(Some(1e9)), 6);
    assert_eq!(num_gradient_steps(Some(0.0)), 2);
}

#[test]
fn every_mode_logs_the_same_losses() {
    let runs = tempfile::tempdir().unwrap();
    let log = |mode: &str| {
        let summary = args(runs.path(), &["--mode", mode]).train().unwrap();
        assert_eq!((summary.mode.as_str(), summary.global_step), (mode, 96));
        scalars(&summary.run_dir)
    };
    let jit = log("jit");
    assert!(jit.keys().filter(|(tag, _)| tag == "losses/value_loss").count() == 3);
    for mode in ["eager", "interpret"] {
        let other = log(mode);
        assert_eq!(jit.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
        for (key, values) in &jit {
            for (a, b) in values.iter().zip(&other[key]) {
                let close = (a - b).abs() <= 1e-5 * a.abs().max(1.0);
                assert!(close || (a.is_nan() && b.is_nan()), "{key:?}: jit {a}, {mode} {b}");
            }
        }
    }
}

#[test]
fn one_seed_gives_one_run() {
    let runs = tempfile::tempdir().unwrap();
    let log = |seed: &str, threads: &str| {
        let flags = ["--seed", seed, "--num-threads", threads, "--target-kl", "0.001"];
        let summary = args(runs.path(), &flags).train().unwrap();
        let logged = scalars(&summary.run_dir).into_iter();
        logged
            .map(|(k, v)| (k, v.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()))
            .collect::<Vec<_>>()
    };
    assert_eq!(log("3", "1"), log("3", "2"));
    assert_ne!(log("3", "1"), log("4", "1"));
}

#[test]
fn a_saved_model_holds_everything_by_path() {
    let runs = tempfile::tempdir().unwrap();
    let summary = args(runs.path(), &["--save-model", "--no-anneal-lr"]).train().unwrap();
    let model = checkpoint::load(Path::new(&summary.run_dir).join("ppo.safetensors")).unwrap();
    let names: Vec<String> = model.entries().map(|entry| entry.name.to_string()).collect();
    for name in ["$.agent.actor.layers[0].w", "$.agent.critic.layers[2].b", "$.opt_state.count"] {
        assert!(names.iter().any(|n| n == name), "{name} is not among {names:?}");
    }
    let settings: serde_json::Value = model.metadata().unwrap();
    assert_eq!(settings["settings"]["anneal_lr"], false);
    assert_eq!(settings["settings"]["num_steps"], 16);
    // The model was evaluated.
    let logged = scalars(&summary.run_dir);
    assert_eq!(logged.keys().filter(|(tag, _)| tag == "eval/episodic_return").count(), 10);
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| args(runs.path(), flags).train().unwrap_err().to_string();
    assert_eq!(
        error(&["--num-minibatches", "3"]),
        "--num-minibatches 3: must be a divisor of the batch, num-envs * num-steps = 32"
    );
    assert_eq!(
        error(&["--num-envs", "0"]),
        "--num-envs 0: must be a whole number from 1 to 1048576"
    );
    assert_eq!(error(&["--gamma", "1.5"]), "--gamma 1.5: must be a number from 0 to 1");
    assert_eq!(
        error(&["--learning-rate", "NaN"]),
        "--learning-rate is not finite: must be a number from 0 to 1e15"
    );
    assert_eq!(
        error(&["--total-timesteps", "31"]),
        "--total-timesteps 31: must be at least one batch, num-envs * num-steps = 32"
    );
    let unknown = error(&["--env-id", "CartPole-v7"]);
    assert!(unknown.contains("CartPole-v7") && unknown.contains("CartPole-v1"), "{unknown}");
    let continuous = error(&["--env-id", "Pendulum-v1"]);
    assert!(continuous.contains("ppo chooses among discrete actions"), "{continuous}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run was begun");
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error() {
    let runs = tempfile::tempdir().unwrap();
    let file = runs.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = args(&file, &[]).train().unwrap_err();
    assert!(matches!(&error, Error::Io { .. }), "{error}");
    assert!(error.to_string().contains("file"), "{error}");
}

#[test]
fn a_nan_is_traced_to_its_operation() {
    let runs = tempfile::tempdir().unwrap();
    let flags = ["--learning-rate", "1e15", "--vf-coef", "1e15"];
    let error = args(runs.path(), &flags).train().unwrap_err();
    assert!(matches!(error, Error::Nan(_)), "{error}");
    assert!(error.to_string().contains("run again with --check-nans"), "{error}");
    let error = args(runs.path(), &[&flags[..], &["--check-nans"]].concat()).train().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Nan(_)) && text.contains("makes the first NaN"), "{text}");
    assert!(text.contains("src/") && text.contains(".rs:"), "{text}");
}
