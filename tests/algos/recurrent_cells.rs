//! `--rnn`: runs with every recurrent cell, compiled and interpreted.

use std::path::Path;

use podracer::algos::{ppo_anakin_gru, ppo_atari_lstm, ppo_continuous_action_lstm};
use podracer::rl::Algorithm;

use super::scalars;

const SMALL: &[&str] = &[
    "--total-timesteps=32",
    "--num-envs=2",
    "--num-steps=16",
    "--num-minibatches=2",
    "--update-epochs=1",
    "--json",
];

fn modes_agree<A: Algorithm>(runs: &Path, env_id: &str, rnn: &str) {
    let log = |mode: &str| {
        let runs = format!("--runs-dir={}", runs.display());
        let flags = ["--env-id", env_id, "--rnn", rnn, "--mode", mode, &runs];
        let args = A::from_flags(SMALL.iter().copied().chain(flags)).unwrap();
        scalars(&args.train().unwrap().run_dir)
    };
    let (jit, host) = (log("jit"), log("interpret"));
    assert_eq!(jit.keys().filter(|(tag, _)| tag == "losses/value_loss").count(), 1);
    assert_eq!(jit.keys().collect::<Vec<_>>(), host.keys().collect::<Vec<_>>());
    for (key, values) in jit.iter().filter(|((tag, _), _)| tag.starts_with("losses")) {
        for (a, b) in values.iter().zip(&host[key]) {
            let close = (a - b).abs() <= 1e-3 * a.abs().max(1.0);
            assert!(close || (a.is_nan() && b.is_nan()), "{} {rnn} {key:?}: {a}, {b}", A::NAME);
        }
    }
}

#[test]
fn every_cell_logs_the_same_losses_in_every_mode() {
    let runs = tempfile::tempdir().unwrap();
    for rnn in ["lstm", "gru", "mingru", "lru"] {
        modes_agree::<ppo_anakin_gru::Args>(runs.path(), "CartPolePositions-v0", rnn);
        modes_agree::<ppo_atari_lstm::Args>(runs.path(), "CartPolePositions-v0", rnn);
        let env_id = "PendulumPositions-v0";
        modes_agree::<ppo_continuous_action_lstm::Args>(runs.path(), env_id, rnn);
    }
}

#[test]
fn other_cells_are_refused() {
    let error = ppo_anakin_gru::Args::from_flags(["--rnn=elman"]).unwrap_err().to_string();
    assert!(error.contains("possible values: lstm, gru, mingru, lru"), "{error}");
}
