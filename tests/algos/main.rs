//! The algorithms and what they train with: one binary, one module each.

mod c51;
mod c51_atari;
mod cases;
mod continuous;
mod dqn;
mod dqn_atari;
mod ppo;
mod ppo_anakin;
mod ppo_atari_envpool;
mod pqn;
mod qdagger_dqn_atari;
mod rainbow_atari;
mod replay;
mod resume;
mod rl;

use std::collections::BTreeMap;

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
