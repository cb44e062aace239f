//! Reduction of the learning rate on plateaus.

use super::super::leaves::map_updates;
use super::scalar_type;
use crate::trace::ops::where_;
use crate::trace::tensor::{fail_op, op};
use crate::trace::{Tensor, ops};
use crate::tree::Tree;

/// Scaling of updates that shrinks on plateaus; built by [`reduce_on_plateau`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReduceOnPlateau {
    /// Factor by which the scale shrinks, between 0 and 1.
    pub factor: f64,
    /// Number of values in a row without an improvement after which the scale shrinks.
    pub patience: i32,
    /// Least improvement, relative to the best value.
    pub rtol: f64,
    /// Least improvement, absolute.
    pub atol: f64,
    /// Number of values that are not counted after a reduction.
    pub cooldown: i32,
    /// Number of updates whose values are averaged to one.
    pub accumulation_size: i32,
    /// Least scale.
    pub min_scale: f64,
}

/// State of [`reduce_on_plateau`].
#[derive(Debug, Clone, Tree)]
pub struct ReduceOnPlateauState<T> {
    /// Factor of the updates.
    pub scale: T,
    /// Best value so far.
    pub best_value: T,
    /// Number of values in a row without an improvement, `i32`.
    pub plateau_count: T,
    /// Number of values that are still not counted, `i32`.
    pub cooldown_count: T,
    /// Number of updates since the last average, `i32`.
    pub count: T,
    /// Average of the values since then.
    pub avg_value: T,
}

/// Scales updates by a factor that shrinks while the value of the function does not improve:
/// `optax.contrib.reduce_on_plateau`. Defaults: a factor of 0.1 after 10 values, a `rtol` of 1e-4, no
/// `atol`, no cooldown, each value for itself, no least scale.
///
/// It needs the value of the function, so that it is called after an optimizer and is not part of a
/// chain.
pub fn reduce_on_plateau() -> ReduceOnPlateau {
    ReduceOnPlateau {
        factor: 0.1,
        patience: 10,
        rtol: 1e-4,
        atol: 0.0,
        cooldown: 0,
        accumulation_size: 1,
        min_scale: 0.0,
    }
}

impl ReduceOnPlateau {
    /// Returns the state before the first update.
    ///
    /// # Errors
    /// Ends the trace unless the factor is between 0 and 1 and one tolerance is positive.
    #[track_caller]
    pub fn init<P: Tree<Tensor>>(&self, params: &P) -> ReduceOnPlateauState<Tensor> {
        let op = "reduce_on_plateau";
        if !(self.factor > 0.0 && self.factor < 1.0) {
            fail_op(op, format!("the factor must be between 0 and 1, and is {}", self.factor));
        }
        let (rtol, atol) = (self.rtol, self.atol);
        if !((0.0..=1.0).contains(&rtol) && atol >= 0.0 && rtol + atol > 0.0) {
            let problem = format!(
                "one of rtol, at most 1, and atol must be positive, and none negative: they are \
                 {rtol} and {atol}"
            );
            fail_op(op, problem);
        }
        let dtype = scalar_type(params);
        ReduceOnPlateauState {
            scale: ops::ones([], dtype),
            best_value: ops::full([], f64::INFINITY, dtype),
            plateau_count: ops::constant(0i32),
            cooldown_count: ops::constant(0i32),
            count: ops::constant(0i32),
            avg_value: ops::zeros([], dtype),
        }
    }

    /// Returns the scaled updates, and the next state. `value` is that of the function at the parameters,
    /// a scalar.
    #[op("reduce_on_plateau")]
    pub fn update<P: Tree<Tensor>>(
        &self,
        updates: &P,
        state: ReduceOnPlateauState<Tensor>,
        value: Tensor,
    ) -> (P, ReduceOnPlateauState<Tensor>) {
        let dtype = state.avg_value.dtype();
        let count = state.count + 1;
        let sum = state.count.to(dtype) * state.avg_value + value.to(dtype);
        let average = sum / count.to(dtype);
        let due = count.eq(self.accumulation_size);
        let improved = average.lt((1.0 - self.rtol) * state.best_value - self.atol);
        let plateau = where_(improved, 0, state.plateau_count + 1);
        let cooling = state.cooldown_count.gt(0);
        let reduce = !cooling & plateau.eq(self.patience);
        let scale = where_(reduce, state.scale * self.factor, state.scale);
        let scale = where_(cooling, state.scale, scale.maximum(self.min_scale));
        let begun = where_(reduce, ops::constant(self.cooldown), 0);
        let cooldown = where_(cooling, state.cooldown_count - 1, begun);
        let state = ReduceOnPlateauState {
            scale: where_(due, scale, state.scale),
            best_value: where_(due & improved, average, state.best_value),
            plateau_count: where_(due, where_(cooling | reduce, 0, plateau), state.plateau_count),
            cooldown_count: where_(due, cooldown, state.cooldown_count),
            count: where_(due, 0, count),
            avg_value: where_(due, 0.0, average),
        };
        let scale = state.scale;
        (map_updates("reduce_on_plateau", updates, |u| scale.to(u.dtype()) * u), state)
    }
}
