//! `--rnn`: runs with every recurrent cell, compiled and interpreted.

use std::path::Path;

use podracer::algos::{ppo_anakin_gru, ppo_atari_lstm, ppo_continuous_action_lstm};
use podracer::rl::Algorithm;

use super::every_algorithm::{ANAKIN, CARTPOLE_POSITIONS, PENDULUM_POSITIONS};
use super::scalars;

fn modes_agree<A: Algorithm>(runs: &Path, flags: &[&str], rnn: &str) {
    let log = |mode: &str| {
        let runs = format!("--runs-dir={}", runs.display());
        let more = ["--total-timesteps=32", "--json", "--rnn", rnn, "--mode", mode, &runs];
        let args = A::from_flags(flags.iter().copied().chain(more)).unwrap();
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
        modes_agree::<ppo_anakin_gru::Args>(runs.path(), ANAKIN, rnn);
        modes_agree::<ppo_atari_lstm::Args>(runs.path(), CARTPOLE_POSITIONS, rnn);
        modes_agree::<ppo_continuous_action_lstm::Args>(runs.path(), PENDULUM_POSITIONS, rnn);
    }
}

#[test]
fn other_cells_are_refused() {
    let error = ppo_anakin_gru::Args::from_flags(["--rnn=elman"]).unwrap_err().to_string();
    assert!(error.contains("possible values: lstm, gru, mingru, lru"), "{error}");
}
