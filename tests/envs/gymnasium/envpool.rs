//! Environments of EnvPool: equality with EnvPool itself step by step, and errors.

use podracer::envs::{Autoreset, EnvPool, GymnasiumOptions, PoolOptions};
use pretty_assertions::assert_eq;
use serde_json::{Value, json};

use super::{compare_with, kwargs, python, row};

fn options(with: Value) -> GymnasiumOptions {
    GymnasiumOptions { python: python(), kwargs: kwargs(with), ..Default::default() }
}

#[test]
fn environments_are_envpools() {
    let Some(python) = python() else { return };
    let short = json!({ "max_episode_steps": 7 });
    let state = json!({ "max_episode_steps": 7, "filter_keys": ["state"] });
    for (id, steps, with) in [
        ("CartPole-v1", 150, json!({})),
        ("Pong-v5", 40, json!({ "max_episode_steps": 30, "frame_skip": 4 })),
        // Dicts: of boxes, one entry, two entries in another order.
        ("WalkerWalk-v1", 20, short),
        ("Go1JoystickFlatTerrain-v1", 20, state),
        ("MiniGrid-Empty-5x5-v0", 60, json!({ "filter_keys": ["image", "direction"] })),
    ] {
        compare_with(&python, &format!("envpool:{id}"), steps, options(with));
    }
}

#[test]
fn other_times_of_resets_give_the_same_episodes_of_envpool() {
    if python().is_none() {
        return;
    }
    let of = |autoreset| {
        let pool = PoolOptions { num_envs: 3, autoreset, seed: 4, ..Default::default() };
        let mut pool = EnvPool::gymnasium("envpool:CartPole-v1", options(json!({})), pool).unwrap();
        // The first observations of episodes.
        let mut starts = vec![row(&pool.reset().unwrap(), 0)];
        for _ in 0..120 {
            let batch = pool.step(&[1i32, 0, 1]).unwrap();
            let starting = match autoreset {
                Autoreset::SameStep => batch.terminated()[0],
                _ => batch.first()[0],
            };
            if starting {
                starts.push(row(&batch, 0));
            }
        }
        starts
    };
    // The step after an episode is the reset alone.
    let (same, next) = (of(Autoreset::SameStep), of(Autoreset::NextStep));
    let count = same.len().min(next.len());
    assert!(count > 5, "{count}");
    assert_eq!(same[..count], next[..count]);
}

#[test]
fn environments_that_envpool_does_not_have_are_refused() {
    if python().is_none() {
        return;
    }
    let error = |id: &str, options: GymnasiumOptions| {
        let pool = PoolOptions { num_envs: 2, ..Default::default() };
        EnvPool::gymnasium(id, options, pool).unwrap_err().to_string()
    };
    let text = error("envpool:CartPolo-v1", options(json!({})));
    assert!(text.starts_with("envpool:CartPolo-v1: EnvPool "), "{text}");
    assert!(text.ends_with(" has no environment CartPolo-v1"), "{text}");
    let text = error("envpool:CartPole-v1", options(json!({ "filter_keys": ["state"] })));
    assert_eq!(text, "envpool:CartPole-v1: filter_keys has 'state', expected some of []");
    let text = error("envpool:WalkerWalk-v1", options(json!({ "filter_keys": ["state"] })));
    let known = "['orientations', 'height', 'velocity']";
    assert_eq!(
        text,
        format!("envpool:WalkerWalk-v1: filter_keys has 'state', expected some of {known}")
    );
    let wrappers = vec![("gymnasium.wrappers.ClipReward".to_string(), serde_json::Map::new())];
    let text = error("envpool:CartPole-v1", GymnasiumOptions { wrappers, ..options(json!({})) });
    assert_eq!(
        text,
        "envpool:CartPole-v1: environments of EnvPool take no wrappers: they are stepped in C++"
    );
}
