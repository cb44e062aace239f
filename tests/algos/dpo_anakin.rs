//! DPO in one program: two updates against JAX, modes and seeds against each other, refused settings.

use std::path::Path;

use podracer::algos::dpo_anakin::{
    Agent, Args, FlatTrainState, Metrics, Samples, TracedArgs, gradient_step,
};
use podracer::optim::Adam;
use podracer::rl::Algorithm;
use podracer::trace::jacobian::ravel;
use podracer::trace::ops::constant;
use podracer::{Tensor, interpret};

use super::cases::Case;
use super::models::model;
use super::scalars;

const SMALL: &[&str] = &[
    "--total-timesteps=96",
    "--num-envs=2",
    "--num-steps=16",
    "--num-minibatches=2",
    "--update-epochs=2",
    "--json",
    "--updates-per-call=1",
];

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    Args::from_flags(SMALL.iter().chain(more).copied().chain([&*runs])).unwrap()
}

/// Six samples of continuous actions, an agent of four units, and two gradient steps on them.
#[test]
fn two_updates_equal_jax() {
    let case = Case::of("dpo_anakin");
    let layers = |name: &str| {
        [0, 1, 2].map(|i| case.dense(&format!("{name}{i}_w"), &format!("{name}{i}_b")))
    };
    let agent = Agent {
        actor: layers("actor"),
        critic: layers("critic"),
        log_std: Some(case.f32("log_std")),
    };
    let batch = Samples {
        obs: case.f32("obs"),
        actions: case.f32("actions"),
        logprobs: case.f32("logprobs"),
        advantages: case.f32("advantages"),
        returns: case.f32("returns"),
        values: case.f32("values"),
    };
    let args = Args::from_flags(["--learning-rate=0.01"]).unwrap();
    type Updated<T> = (Agent<T>, Metrics<T>);
    let run = interpret(|(agent, batch): (Agent<Tensor>, Samples<Tensor>)| -> Updated<Tensor> {
        let (params, unravel) = ravel(&agent);
        let opt_state = Adam::default().init(&params);
        let mut state = FlatTrainState { params, opt_state };
        let args = TracedArgs::new(&args, &[]);
        let rate = constant(0.01f32);
        (state, _) = gradient_step(state, &unravel, &batch, rate, &args);
        let (state, metrics) = gradient_step(state, &unravel, &batch, rate, &args);
        (unravel(state.params), metrics)
    });
    let (updated, metrics) = run.call((agent, batch)).unwrap();
    // After the first of two updates, and after both.
    case.close("second_loss", &metrics.loss);
    case.close("second_value_loss", &metrics.value_loss);
    case.close("second_policy_loss", &metrics.policy_loss);
    case.close("second_entropy", &metrics.entropy);
    case.close("updated_actor0_w", &updated.actor[0].w);
    case.close("updated_actor1_b", updated.actor[1].b.as_ref().unwrap());
    case.close("updated_actor2_w", &updated.actor[2].w);
    case.close("updated_critic0_w", &updated.critic[0].w);
    case.close("updated_critic2_b", updated.critic[2].b.as_ref().unwrap());
    case.close("updated_log_std", updated.log_std.as_ref().unwrap());
}

#[test]
fn every_mode_logs_the_same_losses() {
    for env in ["Pendulum-v1", "CartPole-v1"] {
        let runs = tempfile::tempdir().unwrap();
        let log = |mode: &str| {
            let flags = ["--mode", mode, "--env-id", env, "--total-timesteps=64"];
            scalars(&args(runs.path(), &flags).train().unwrap().run_dir)
        };
        let (jit, other) = (log("jit"), log("interpret"));
        assert_eq!(jit.keys().filter(|(tag, _)| tag == "losses/policy_loss").count(), 2);
        assert_eq!(jit.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
        for (key, values) in &jit {
            for (a, b) in values.iter().zip(&other[key]) {
                // Two updates, of which the second sees the roundings of the first.
                let close = (a - b).abs() <= 1e-3 * a.abs().max(1.0);
                assert!(close || (a.is_nan() && b.is_nan()), "{env} {key:?}: {a}, host {b}");
            }
        }
    }
}

#[test]
fn many_seeds_at_once_are_the_seeds_alone() {
    let runs = tempfile::tempdir().unwrap();
    let actor = |flags: &[&str]| -> Vec<u8> {
        let summary = args(runs.path(), &[flags, &["--save-model"]].concat()).train().unwrap();
        let saved = model(&summary);
        let find = |(name, _): &&(String, Vec<u8>)| name == "$.train_state.agent.actor[0].w";
        saved.iter().find(find).unwrap().1.clone()
    };
    let many = actor(&["--seed=5", "--num-seeds=2"]);
    let alone = [actor(&["--seed=5"]), actor(&["--seed=6"])];
    assert!(many == alone.concat() && alone[0] != alone[1]);
}

/// A drift function with another shape is another policy.
#[test]
fn the_drift_function_has_two_parameters() {
    let runs = tempfile::tempdir().unwrap();
    let policy_loss = |flag: &str| {
        let summary = args(runs.path(), &["--mode=interpret", flag]).train().unwrap();
        scalars(&summary.run_dir)[&("losses/policy_loss".to_string(), 96)].clone()
    };
    let published = policy_loss("--dpo-alpha=2");
    assert_ne!(published, policy_loss("--dpo-alpha=0.1"));
    assert_ne!(published, policy_loss("--dpo-beta=0.1"));
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| args(runs.path(), flags).train().unwrap_err().to_string();
    let scale = error(&["--dpo-alpha=0"]);
    assert!(scale.starts_with("--dpo-alpha 0: must be a number from 1e-37"), "{scale}");
    let pooled = error(&["--env-id=HalfCheetah-v4"]);
    assert!(pooled.contains("is in the pool only") && pooled.contains("Pendulum-v1"), "{pooled}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run folder was created");
}
