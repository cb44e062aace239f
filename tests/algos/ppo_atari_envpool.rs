//! PPO on Atari: its two rollouts against each other, execution modes, saved models, refused settings.

use std::path::Path;

use podracer::Error;
use podracer::algos::ppo_atari_envpool::Args;
use podracer::rl::{Algorithm, checkpoint};

use super::scalars;

/// Three updates of 24 steps each. Pong's first reward comes after some 30 steps.
const SMALL: &[&str] = &[
    "--env-id",
    "Pong-v5",
    "--total-timesteps",
    "72",
    "--num-envs",
    "2",
    "--num-steps",
    "12",
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

#[test]
fn both_rollouts_train_the_same_agent() {
    let runs = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let summary = args(runs.path(), more).train().unwrap();
        assert_eq!(summary.global_step, 72);
        scalars(&summary.run_dir)
    };
    let xla = run(&["--rollout", "xla", "--num-threads", "2"]);
    let host = run(&["--rollout", "host", "--num-threads", "1"]);
    assert_eq!(xla.keys().filter(|(tag, _)| tag == "losses/value_loss").count(), 3);
    assert_eq!(xla.keys().collect::<Vec<_>>(), host.keys().collect::<Vec<_>>());
    for (key, values) in &xla {
        for (a, b) in values.iter().zip(&host[key]) {
            // The policy is a program of its own or a part of the rollout's: the order of sums may
            // differ.
            assert!((a - b).abs() <= 1e-4 * a.abs().max(1.0), "{key:?}: xla {a}, host {b}");
        }
    }
    // The same seed again is the same run, bit for bit.
    let bits = |log: &std::collections::BTreeMap<(String, u64), Vec<f32>>| -> Vec<u32> {
        log.values().flatten().map(|x| x.to_bits()).collect()
    };
    assert_eq!(bits(&run(&["--num-threads", "1"])), bits(&xla));
}

#[test]
fn a_nan_of_a_rollout_is_traced_to_its_operation() {
    let runs = tempfile::tempdir().unwrap();
    for rollout in ["xla", "host"] {
        let flags = ["--learning-rate", "1e15", "--check-nans", "--rollout", rollout];
        let error = args(runs.path(), &flags).train().unwrap_err();
        assert!(matches!(error, Error::Nan(_)), "{error}");
        assert!(error.to_string().contains("makes the first NaN"), "{rollout}: {error}");
    }
}

#[test]
fn eager_mode_trains_the_same_agent() {
    let runs = tempfile::tempdir().unwrap();
    let run = |mode: &str| {
        let flags = ["--mode", mode, "--num-steps", "6", "--total-timesteps", "12"];
        let summary = args(runs.path(), &flags).train().unwrap();
        scalars(&summary.run_dir)
    };
    let (jit, eager) = (run("jit"), run("eager"));
    assert_eq!(jit.keys().collect::<Vec<_>>(), eager.keys().collect::<Vec<_>>());
    for (key, values) in &jit {
        for (a, b) in values.iter().zip(&eager[key]) {
            assert!((a - b).abs() <= 1e-4 * a.abs().max(1.0), "{key:?}: jit {a}, eager {b}");
        }
    }
}

#[test]
fn a_saved_model_is_evaluated_for_full_games() {
    let runs = tempfile::tempdir().unwrap();
    let flags = ["--save-model", "--eval-episodes", "1", "--envpool-reset"];
    let summary = args(runs.path(), &flags).train().unwrap();
    let returns = &scalars(&summary.run_dir)[&("eval/episodic_return".to_string(), 0)];
    // Rewards are signs in training, and so are Pong's own; an agent that has not learned loses.
    assert!(returns.len() == 1 && (-21.0..=-10.0).contains(&returns[0]), "{returns:?}");
    let file = Path::new(&summary.run_dir).join("ppo_atari_envpool.safetensors");
    let saved = checkpoint::load(file).unwrap();
    let shapes: Vec<_> = saved
        .entries()
        .filter(|entry| entry.name.starts_with("$.agent"))
        .map(|entry| (entry.name.to_string(), entry.ty.to_string()))
        .collect();
    assert!(
        shapes.contains(&("$.agent.trunk.convs[0].w".into(), "f32[8,8,4,32]".into())),
        "{shapes:?}"
    );
    assert!(shapes.contains(&("$.agent.actor.w".into(), "f32[512,6]".into())), "{shapes:?}");
    let elements: usize =
        saved.entries().filter(|x| x.name.starts_with("$.agent")).map(|x| x.ty.numel()).sum();
    // The trunk, six logits, one value.
    assert_eq!(elements, 1_684_128 + 512 * 6 + 6 + 513);
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error_of = |more: &[&str]| match args(runs.path(), more).train() {
        Err(Error::Config(text) | Error::Env(text)) => text,
        other => panic!("{other:?}"),
    };
    let text = error_of(&["--num-minibatches", "5"]);
    assert_eq!(
        text,
        "--num-minibatches 5: must be a divisor of the batch, num-envs * num-steps = 24"
    );
    let text = error_of(&["--total-timesteps", "23"]);
    assert!(text.contains("--total-timesteps 23: must be at least one batch"), "{text}");
    let text = error_of(&["--env-id", "Pomg-v5"]);
    assert!(text.contains("Pong-v5"), "{text}");
    // Refused settings leave no run folder behind.
    assert_eq!(std::fs::read_dir(runs.path()).unwrap().count(), 0);
}

/// Many environments are still being reset when the host takes over the pool.
#[test]
fn rollouts_on_the_host_wait_for_the_reset_of_the_environments() {
    let runs = tempfile::tempdir().unwrap();
    let flags = ["--rollout", "host", "--num-envs", "32", "--num-steps", "2"];
    let args = args(runs.path(), &[&flags[..], &["--total-timesteps", "64"]].concat());
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(args.train().map(|summary| summary.global_step)));
    let trained = receiver.recv_timeout(std::time::Duration::from_secs(300));
    assert_eq!(trained.expect("no deadlock").unwrap(), 64);
}
