//! Search of the step size along updates.

use std::panic::Location;

use super::lbfgs::{add_scaled, tree_vdot};
use super::leaves_of;
use crate::trace::Tensor;
use crate::trace::control::while_loop;
use crate::trace::ops::{self, where_};
use crate::trace::tensor::{at_line, fail_op};
use crate::tree::{self, Tree};

/// Line search by backtracking; built by [`backtracking_linesearch`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BacktrackingLinesearch {
    /// Number of times that the step size is decreased at most.
    pub max_backtracking_steps: i32,
    /// Fraction of the slope that counts as sufficient decrease.
    pub slope_rtol: f64,
    /// Factor by which the step size is decreased.
    pub decrease_factor: f64,
    /// Factor from the last step size to the first one that is tried.
    pub increase_factor: f64,
    /// Largest step size.
    pub max_learning_rate: f64,
    /// Tolerance of the decrease, absolute.
    pub atol: f64,
    /// Tolerance of the decrease, relative to the value.
    pub rtol: f64,
}

/// State of [`BacktrackingLinesearch`].
#[derive(Debug, Clone, Tree)]
pub struct BacktrackingLinesearchState<T> {
    /// Step size of the last update.
    pub learning_rate: T,
    /// Value of the function after the last update.
    pub value: T,
    /// Number of step sizes tried in the last update, `i32`.
    pub num_linesearch_steps: T,
    /// Violation of sufficient decrease by the last update.
    pub decrease_error: T,
}

/// Backtracking line search that ensures sufficient decrease (Armijo):
/// `optax.scale_by_backtracking_linesearch`.
///
/// It needs the function that is minimized, so that it is called after an optimizer and is not part
/// of a chain:
///
/// ```
/// use podracer::optim::{Optimizer, backtracking_linesearch, lbfgs};
/// use podracer::{Array, Tensor, interpret, value_and_grad};
///
/// fn loss(x: Tensor) -> Tensor {
///     let (a, b) = (x.index_axis(0, 0), x.index_axis(0, 1));
///     (a - 1.0).square() + 10.0 * (b - a).square()
/// }
///
/// let minimize = interpret(|mut x: Tensor| {
///     let (optimizer, search) = (lbfgs(1.0), backtracking_linesearch(15));
///     let (mut state, mut search_state) = (optimizer.init(&x), search.init(&x));
///     for _ in 0..15 {
///         let (value, grads) = value_and_grad(loss)(x);
///         let (updates, next) = optimizer.update(&grads, state, &x);
///         let (updates, searched) =
///             search.update(&updates, search_state, &x, value, &grads, loss);
///         (x, state, search_state) = (x + updates, next, searched);
///     }
///     loss(x)
/// });
/// assert!(minimize.call(Array::from([-1.0f32, 2.0]))?.item::<f32>()? < 1e-6);
/// # Ok::<(), podracer::Error>(())
/// ```
pub fn backtracking_linesearch(max_backtracking_steps: i32) -> BacktrackingLinesearch {
    BacktrackingLinesearch {
        max_backtracking_steps,
        slope_rtol: 1e-4,
        decrease_factor: 0.8,
        increase_factor: 1.5,
        max_learning_rate: 1.0,
        atol: 0.0,
        rtol: 0.0,
    }
}

/// One step size that was tried.
#[derive(Clone, Tree)]
struct Trial<T> {
    learning_rate: T,
    value: T,
    decrease_error: T,
    count: T,
}

impl BacktrackingLinesearch {
    /// Returns the state before the first update.
    #[track_caller]
    pub fn init<P: Tree<Tensor>>(&self, params: &P) -> BacktrackingLinesearchState<Tensor> {
        let dtype = tree_vdot(&tree::leaves(params), &[]).dtype();
        BacktrackingLinesearchState {
            learning_rate: ops::ones([], dtype),
            value: ops::full([], f64::INFINITY, dtype),
            num_linesearch_steps: ops::constant(0i32),
            decrease_error: ops::full([], f64::INFINITY, dtype),
        }
    }

    /// Returns the updates times a step size, and the next state.
    ///
    /// `value` and `grads` are those of `value_fn` at `params`. If no step size gives a number, the
    /// updates are zeros.
    ///
    /// # Errors
    /// Ends the trace if updates, gradients and parameters differ in structure or types, or if a
    /// value is not a float scalar.
    #[track_caller]
    pub fn update<P: Tree<Tensor>>(
        &self,
        updates: &P,
        state: BacktrackingLinesearchState<Tensor>,
        params: &P,
        value: Tensor,
        grads: &P,
        value_fn: impl Fn(P) -> Tensor,
    ) -> (P, BacktrackingLinesearchState<Tensor>) {
        let op = "backtracking_linesearch";
        let at = Location::caller();
        let names = ["params", "updates", "grads"];
        let [p, u, g] = leaves_of(op, names, [params, updates, grads]);
        let dtype = state.learning_rate.dtype();
        let scalar = |value: Tensor| {
            if value.rank() != 0 || !value.dtype().is_float() {
                let problem = format!("values must be float scalars, and one is {}", value.ty());
                fail_op(op, problem);
            }
            value.to(dtype)
        };
        let (value, slope) = at_line(at, || (scalar(value), tree_vdot(&u, &g).to(dtype)));
        let unfinished = |trial: Trial<Tensor>| {
            !trial.decrease_error.le(self.atol) & trial.count.le(self.max_backtracking_steps)
        };
        let next_trial = |trial: Trial<Tensor>| {
            let smaller = self.decrease_factor * trial.learning_rate;
            let rate = where_(trial.count.gt(0), smaller, trial.learning_rate);
            let moved = tree::replace(params, add_scaled(&p, rate, &u));
            let new_value = scalar(value_fn(moved));
            let sufficient = rate * self.slope_rtol * slope;
            let error = new_value - (1.0 + self.rtol) * value - sufficient;
            let error = where_(error.is_nan(), f64::INFINITY, error).maximum(0.0);
            Trial {
                learning_rate: rate,
                value: new_value,
                decrease_error: error,
                count: trial.count + 1,
            }
        };
        let first = at_line(at, || Trial {
            learning_rate: (self.increase_factor * state.learning_rate)
                .minimum(self.max_learning_rate),
            value,
            decrease_error: ops::full([], f64::INFINITY, dtype),
            count: ops::constant(0i32),
        });
        let last = while_loop(unfinished, next_trial, first);
        let infinite = last.decrease_error.is_inf();
        let learning_rate = where_(infinite, 0.0, last.learning_rate);
        let scaled = u.into_iter().map(|u| learning_rate.to(u.dtype()) * u);
        let state = BacktrackingLinesearchState {
            learning_rate,
            value: last.value,
            num_linesearch_steps: last.count,
            decrease_error: last.decrease_error,
        };
        (tree::replace(updates, scaled.collect::<Vec<_>>()), state)
    }
}
