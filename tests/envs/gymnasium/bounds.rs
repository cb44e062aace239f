//! Actions at the bounds of their space: what leaves for an environment lies in it.

use podracer::envs::wrappers::RescaleAction;
use podracer::envs::{EnvPool, GymnasiumOptions, PoolOptions, Space, make, set_gymnasium_options};
use serde_json::json;

use super::{MODULE, kwargs, python};

/// Bounds of the elements of an action space, as `f32`.
fn bounds(space: &Space) -> Vec<[f32; 2]> {
    match space {
        Space::Box { low, high, shape, .. } => {
            (0..shape.numel()).map(|i| [low.at(i) as f32, high.at(i) as f32]).collect()
        }
        other => panic!("{other}"),
    }
}

/// The environment asserts that its space contains each action. Some of its boxes have no number of
/// `f32` between their bounds, others have the bounds of `i64` and `u64`.
#[test]
fn actions_at_the_bounds_lie_in_the_space() {
    let Some(python) = python() else { return };
    for seed in 0..3 {
        let own = GymnasiumOptions {
            python: Some(python.clone()),
            kwargs: kwargs(json!({ "seed": seed, "boxes": 60 })),
            ..Default::default()
        };
        let id = format!("gymnasium:{MODULE}:Bounded-v0");
        let mut pool = EnvPool::gymnasium(&id, own, PoolOptions::default()).unwrap();
        let bounds = bounds(&pool.spec().action);
        assert_eq!(bounds.len(), 60 * 3 + 2);
        pool.reset().unwrap();
        let mut rewards = Vec::new();
        for share in [0.0, 1.0, 0.5, 1.0 - f32::EPSILON, f32::EPSILON] {
            let between = |[low, high]: &[f32; 2]| {
                let share = f64::from(share);
                (f64::from(*low) * (1.0 - share) + f64::from(*high) * share) as f32
            };
            let action: Vec<f32> = bounds.iter().map(between).collect();
            rewards.push(pool.step(&action).unwrap().reward()[0]);
        }
        // The bounds themselves are the environment's, to the last bit.
        assert_eq!(rewards[..3], [1.0, 1.0, 0.0], "seed {seed}");
        // The two neighbors of a bound in f32 are inside or beyond it by a rounding.
        for [low, high] in [[f32::next_up, f32::next_down], [f32::next_down, f32::next_up]] {
            let low: Vec<f32> = bounds.iter().map(|bound| low(bound[0]).min(bound[1])).collect();
            let high: Vec<f32> = bounds.iter().map(|bound| high(bound[1]).max(bound[0])).collect();
            pool.step(&low).unwrap();
            pool.step(&high).unwrap();
        }
    }
}

#[test]
fn actions_far_outside_of_the_space_are_still_refused() {
    let Some(python) = python() else { return };
    let own = GymnasiumOptions { python: Some(python), ..Default::default() };
    let id = format!("gymnasium:{MODULE}:Narrow-v0");
    let mut pool = EnvPool::gymnasium(&id, own, PoolOptions::default()).unwrap();
    pool.reset().unwrap();
    for action in [[0.3001f32, 0.5], [0.0, 0.0999], [f32::NAN, 0.5], [0.0, f32::INFINITY]] {
        let error = pool.step(&action).unwrap_err().to_string();
        assert!(error.contains("of its action is"), "{error}");
    }
    pool.step(&[0.3f32, 0.1]).unwrap();
}

#[test]
fn rescaled_actions_and_those_of_games_lie_in_the_space() {
    let Some(python) = python() else { return };
    let own = || GymnasiumOptions { python: Some(python.clone()), ..Default::default() };
    let id = format!("gymnasium:{MODULE}:Narrow-v0");
    set_gymnasium_options(&id, own());
    let rescaled = |_| RescaleAction::wrap(make(&id)?, -1.0, 1.0);
    let mut pool = EnvPool::custom(rescaled, PoolOptions::default()).unwrap();
    pool.reset().unwrap();
    for action in [[-1.0f32, -1.0], [1.0, 1.0], [1.0, -1.0]] {
        pool.step(&action).unwrap();
    }
    let options = PoolOptions { num_envs: 3, ..Default::default() };
    let game = "pettingzoo:tests.envs.gymnasium.games:narrow";
    let mut pool = EnvPool::gymnasium(game, own(), options).unwrap();
    pool.reset().unwrap();
    for action in [[-0.1f32, 0.1], [0.3, 0.7]] {
        pool.step(&action.repeat(3)).unwrap();
    }
}
