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
mod fitting;
mod fixture;
mod iqn;
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
mod replay;
mod resume;
mod resume_ppo;
mod rl;
mod sac_atari;
mod trajectory;
mod truncation;

use std::collections::BTreeMap;

use podracer::rl::Summary;
use podracer::rl::tensorboard::{Value, read_events};

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

/// Runs twice, and fails unless both leave the same events and the same model behind.
fn same_twice(run: impl Fn() -> Summary) -> Summary {
    let (one, other) = (run(), run());
    let bits = |summary: &Summary| -> Vec<_> {
        let logged = scalars(&summary.run_dir).into_iter();
        logged.map(|(k, v)| (k, v.iter().map(|x| x.to_bits()).collect::<Vec<_>>())).collect()
    };
    let model = |summary: &Summary| {
        let name = format!("{}.safetensors", summary.exp_name);
        let path = std::path::Path::new(&summary.run_dir).join(name);
        let saved = podracer::rl::checkpoint::load(path).unwrap();
        let arrays = saved.entries().map(|entry| (entry.name.to_string(), entry.data.to_vec()));
        arrays.collect::<Vec<_>>()
    };
    assert_eq!(bits(&one), bits(&other));
    assert!(model(&one) == model(&other), "the models differ");
    one
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
