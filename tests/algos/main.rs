//! The algorithms and what they train with: one binary, one module each.

mod a2c;
mod anakin;
mod c51;
mod c51_atari;
mod cases;
mod cleanba;
mod continuous;
mod crossq;
mod dpo_anakin;
mod dqn;
mod dqn_anakin;
mod dqn_atari;
mod every_algorithm;
mod fitting;
mod fixture;
mod iqn;
mod models;
mod own_environments;
#[path = "../peers/mod.rs"]
mod peers;
mod ppg;
mod ppo;
mod ppo_anakin;
mod ppo_anakin_gru;
mod ppo_atari;
mod ppo_atari_envpool;
mod ppo_lstm;
mod ppo_masked;
mod ppo_pettingzoo_ma_atari;
mod ppo_rnd_envpool;
mod ppo_self_play;
mod ppo_trxl;
mod pqn;
mod pqn_atari_envpool;
mod pqn_atari_envpool_lstm;
mod qdagger_dqn_atari;
mod qrdqn;
mod rainbow_atari;
mod recurrent_cells;
mod replay;
mod resume;
mod resume_ppo;
mod rl;
mod sac_atari;
mod trained_policy;
mod trajectory;
mod truncation;

use std::collections::BTreeMap;

use podracer::rl::Summary;
use podracer::rl::logging::tensorboard::{Value, read_events};

/// Every logged scalar but those that tell the time, by tag and step.
fn scalars(run_dir: &str) -> BTreeMap<(String, u64), Vec<f32>> {
    let file = std::fs::read_dir(run_dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_str().unwrap().contains("tfevents"))
        .unwrap();
    let mut scalars = BTreeMap::<_, Vec<f32>>::new();
    for event in read_events(file).unwrap() {
        if let Value::Scalar { tag, value } = event.value
            && !tag.contains("SPS")
        {
            scalars.entry((tag, event.step)).or_default().push(value);
        }
    }
    scalars
}

/// Flags that, with a learning rate of 1e15, make a NaN in the rollout after the first gradient
/// step.
const DIVERGING: [&str; 4] =
    ["--vf-coef=1e15", "--update-epochs=1", "--num-minibatches=1", "--check-nans"];

/// Fails unless the NaN of a run was found by the program that made it, and not by a later one.
fn expect_traced_nan(result: podracer::Result<Summary>) {
    let error = result.unwrap_err();
    assert!(matches!(error, podracer::Error::Nan(_)), "{error}");
    assert!(!error.to_string().contains("it was not made here"), "{error}");
}

/// What is said of settings that cannot be.
fn message(result: podracer::Result<Summary>) -> String {
    match result {
        Err(podracer::Error::Config(message) | podracer::Error::Env(message)) => message,
        other => panic!("{other:?}"),
    }
}
