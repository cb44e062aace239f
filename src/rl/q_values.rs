//! Values of discrete actions: epsilon-greedy selection, and the values of taken actions.

use crate::random::{self, Key};
use crate::trace::ops::{one_hot, where_, zeros_like};
use crate::trace::{DType, Tensor};

/// Interpolates linearly from `start` to `end` over `duration` timesteps, then stays at `end`:
/// `f32[]` at `step: i32[]`. CleanRL's `linear_schedule`.
#[track_caller]
pub fn linear_schedule(start: f64, end: f64, duration: f64, step: Tensor) -> Tensor {
    let progress = step.to(DType::F32) / duration;
    (start + (end - start) * progress.minimum(1.0)).to(DType::F32)
}

/// Returns the action with the highest of `values: f32[N, actions]`, or with probability `epsilon:
/// f32[]` a uniformly random one: `i32[N]`.
#[track_caller]
pub fn epsilon_greedy(values: Tensor, epsilon: Tensor, key: Key<Tensor>) -> Tensor {
    let (which, draw) = key.split();
    let (envs, actions) = (values.dim(0), values.dim(-1));
    let random = random::randint(draw, [envs], 0, actions as i32, DType::I32);
    let explore = random::uniform(which, [envs], DType::F32, 0.0, 1.0).lt(epsilon);
    where_(explore, random, values.argmax(-1))
}

/// Returns the entries of `values: f32[B, actions, ..]` at `action: i32[B]`: `f32[B, ..]`.
///
/// For few actions a masked sum is faster than a gather, whose derivative is a scatter.
#[track_caller]
pub fn of_action(values: Tensor, action: Tensor) -> Tensor {
    let mut taken = one_hot(action, values.dim(1), DType::Bool);
    for _ in 2..values.rank() {
        taken = taken.expand_dims(-1);
    }
    where_(taken.broadcast_to(values.shape()), values, zeros_like(values)).sum(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Array, interpret};

    #[test]
    fn exploration_falls_and_stays() {
        let run = interpret(|step: Tensor| linear_schedule(1.0, 0.2, 80.0, step));
        let at = |step: i32| run.call(Array::from(step)).unwrap().item::<f32>().unwrap();
        assert_eq!(at(0), 1.0);
        assert!((at(40) - 0.6).abs() < 1e-6 && (at(90) - 0.2).abs() < 1e-6);
    }

    #[test]
    fn the_best_action_or_any() {
        let run = interpret(|(values, epsilon): (Tensor, Tensor)| {
            let greedy = epsilon_greedy(values, epsilon, Key::constant(3));
            (greedy, of_action(values, greedy), of_action(values.expand_dims(-1), greedy))
        });
        let values: Vec<f32> =
            (0..1200).map(|i| if i % 3 == 1 { 5.0 } else { i as f32 / 1e4 }).collect();
        let values = Array::new([400, 3], &values).unwrap();
        let (actions, best, rows) = run.call((values.clone(), Array::from(0.0f32))).unwrap();
        assert!(actions.to_vec::<i32>().unwrap().iter().all(|&a| a == 1));
        assert_eq!(best.to_vec::<f32>().unwrap(), [5.0; 400]);
        assert_eq!(rows.shape()[..], [400, 1]);
        let (actions, ..) = run.call((values, Array::from(0.5f32))).unwrap();
        let actions = actions.to_vec::<i32>().unwrap();
        let others = actions.iter().filter(|&&a| a != 1).count();
        assert!((90..180).contains(&others), "{others} of 400, expected a third");
    }
}
