//! Reshaping of rollouts into training samples, minibatches of these, the explained variance of
//! their returns, and the values of the actions taken.

use crate::trace::ops::{IndexMode, full_like, one_hot, ones_like, where_, zeros_like};
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

/// Reshapes the leaves of a rollout, `[T, N, ..]`, to samples `[T N, ..]`.
#[track_caller]
pub fn merge_time_and_env<S: Tree<Tensor, With<Tensor> = S>>(rollout: S) -> S {
    tree::map(rollout, |x: Tensor| {
        let shape = x.shape();
        x.reshape([&[shape[0] * shape[1]], &shape[2..]].concat())
    })
}

/// Gathers the samples of these indices, `i32[B]`, from a tree whose leaves have the samples as
/// their first axis.
#[track_caller]
pub fn gather_minibatch<S: Tree<Tensor, With<Tensor> = S>>(samples: S, indices: Tensor) -> S {
    tree::map(samples, |x: Tensor| x.take_mode(indices, 0, IndexMode::Clip))
}

/// Returns the explained variance of `returns` by `values`, both of one shape: `1 - Var(returns - values) /
/// Var(returns)`, `f32[]`. It is 1 for a perfect prediction, at most 0 for one that is no better than a
/// constant, and NaN if all returns are equal, as in CleanRL.
#[track_caller]
pub fn explained_variance(values: Tensor, returns: Tensor) -> Tensor {
    let variance = returns.var(..);
    let equal = variance.eq(0.0);
    // `--check-nans` would report 0 / 0 as an error; it accepts the constant NaN below.
    let divisor = where_(equal, ones_like(variance), variance);
    let explained = 1.0 - (returns - values).var(..) / divisor;
    where_(equal, full_like(variance, f64::NAN), explained)
}

/// Returns the values `[B, ..]` of `action: i32[B]` in `q: [B, actions, ..]`: action values, or the
/// distributions of returns of distributional algorithms.
#[track_caller]
pub fn q_at_action(q: Tensor, action: Tensor) -> Tensor {
    let mut taken = one_hot(action, q.dim(1), DType::Bool);
    for _ in 2..q.rank() {
        taken = taken.expand_dims(-1);
    }
    where_(taken, q, zeros_like(q)).sum(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Array, Mode, jit};

    #[test]
    fn the_explained_variance_of_equal_returns_is_a_nan_that_check_nans_accepts() {
        let explained = |returns: [f32; 3]| {
            let run =
                jit(|(values, returns): (Tensor, Tensor)| explained_variance(values, returns))
                    .with_mode(Mode::Interpret)
                    .check_nans(true);
            let args = (Array::from([0.0f32, 1.0, 2.0]), Array::from(returns));
            run.call(args).unwrap().item::<f32>().unwrap()
        };
        assert_eq!(explained([1.0, 2.0, 3.0]), 1.0);
        assert_eq!(explained([2.0, 1.0, 0.0]), -3.0);
        assert!(explained([2.0; 3]).is_nan());
    }

    #[test]
    fn values_and_distributions_of_the_actions_taken() {
        let run = jit(|(q, action): (Tensor, Tensor)| {
            (
                q_at_action(q.reshape([3, 2]), action),
                q_at_action(q.reshape([3, 1, 2]), zeros_like(action)),
            )
        })
        .with_mode(Mode::Interpret);
        let q = Array::from([0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let (values, rows) = run.call((q, Array::from([1i32, 0, 1]))).unwrap();
        assert_eq!(values.to_vec::<f32>().unwrap(), [1.0, 2.0, 5.0]);
        assert_eq!(rows.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}
