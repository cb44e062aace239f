//! Adaptive normalization of targets that preserves outputs (PopArt).

use super::super::{ensure_floats, ensure_same_shape};
use crate::trace::ops::{self, one_hot};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Statistics of the targets of several outputs: `rlax.PopArtState` (van Hasselt et al. 2016).
#[derive(Debug, Clone, Tree)]
pub struct PopArtState<T> {
    /// Running mean of each output, `[outputs]`.
    pub shift: T,
    /// Running standard deviation of each output.
    pub scale: T,
    /// Running mean of the squared targets of each output.
    pub second_moment: T,
}

/// Ends the trace unless `indices` are integers of the shape of `values`.
#[track_caller]
fn ensure_indices(op: &str, values: Tensor, indices: Tensor) {
    ensure_floats(op, ["values"], [values]);
    if !indices.dtype().is_int() || indices.shape() != values.shape() {
        let problem = format!(
            "indices must be integers of the shape of the values, and are {} for {}",
            indices.ty(),
            values.ty()
        );
        fail_op(op, problem);
    }
}

impl PopArtState<Tensor> {
    /// Returns the state before the first targets, in f32: mean 0, deviation and second moment 1.
    #[track_caller]
    pub fn init(num_outputs: usize) -> PopArtState<Tensor> {
        let ones = || ops::ones([num_outputs], DType::F32);
        let shift = ops::zeros([num_outputs], DType::F32);
        PopArtState { shift, scale: ones(), second_moment: ones() }
    }

    /// Returns the element of `statistic` of each index.
    #[track_caller]
    fn of(&self, statistic: Tensor, indices: Tensor) -> Tensor {
        let chosen = one_hot(indices, statistic.dim(0), statistic.dtype());
        (chosen * statistic).sum(-1)
    }

    /// Returns targets, of the outputs `indices`, normalized: `rlax.normalize`.
    ///
    /// # Errors
    /// Ends the trace unless indices are integers of the shape of the targets.
    #[op]
    pub fn normalize(&self, unnormalized: Tensor, indices: Tensor) -> Tensor {
        ensure_indices("normalize", unnormalized, indices);
        (unnormalized - self.of(self.shift, indices)) / self.of(self.scale, indices)
    }

    /// Returns predictions, of the outputs `indices`, in the scale of the targets: `rlax.unnormalize`.
    ///
    /// # Errors
    /// Ends the trace unless indices are integers of the shape of the predictions.
    #[op]
    pub fn unnormalize(&self, normalized: Tensor, indices: Tensor) -> Tensor {
        ensure_indices("unnormalize", normalized, indices);
        self.of(self.scale, indices) * normalized + self.of(self.shift, indices)
    }

    /// Returns the outputs `indices` of `inputs: [.., outputs]`, and both in the scale of the targets:
    /// `rlax.unnormalize_linear`, normalized first.
    ///
    /// # Errors
    /// Ends the trace unless indices are integers of the shape of the inputs without the last axis.
    #[op]
    pub fn unnormalize_linear(&self, inputs: Tensor, indices: Tensor) -> (Tensor, Tensor) {
        let normalized = super::chosen("unnormalize_linear", inputs, indices);
        (normalized, self.unnormalize(normalized, indices))
    }
}

/// Returns the statistics after targets of the outputs `indices`: `rlax.art`. Deviations are within
/// `scale_lb..=scale_ub`. The result is a constant for derivatives.
///
/// # Errors
/// Ends the trace unless indices are integers of the shape of the targets.
#[op]
pub fn art(
    state: &PopArtState<Tensor>,
    targets: Tensor,
    indices: Tensor,
    step_size: f64,
    scale_lb: f64,
    scale_ub: f64,
) -> PopArtState<Tensor> {
    ensure_indices("art", targets, indices);
    let (flat, indices) = (targets.ravel(), indices.ravel());
    let chosen = one_hot(indices, state.shift.dim(0), flat.dtype());
    let moved = |statistic: Tensor, value: Tensor| {
        let error = step_size * (value - state.of(statistic, indices));
        statistic + (error.expand_dims(-1) * chosen).sum(0)
    };
    let (shift, second_moment) =
        (moved(state.shift, flat), moved(state.second_moment, flat.square()));
    let variance = (second_moment - shift.square()).clip(scale_lb.powi(2), scale_ub.powi(2));
    PopArtState {
        shift: shift.stop_gradient(),
        scale: variance.sqrt().stop_gradient(),
        second_moment: second_moment.stop_gradient(),
    }
}

/// Returns the weights `[.., outputs]` and biases `[outputs]` of a linear layer whose unnormalized outputs
/// with the state `new` are those with `old`: `rlax.pop`.
///
/// # Errors
/// Ends the trace if the biases have another shape than the statistics.
#[op]
pub fn pop(
    (w, b): (Tensor, Tensor),
    old: &PopArtState<Tensor>,
    new: &PopArtState<Tensor>,
) -> (Tensor, Tensor) {
    ensure_same_shape("pop", ["b", "shift"], [b, old.shift]);
    (w * (old.scale / new.scale), (old.scale * b + old.shift - new.shift) / new.scale)
}
