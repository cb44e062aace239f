//! Line search for the strong Wolfe conditions.

use std::panic::Location;

use super::lbfgs::{add_scaled, tree_vdot};
use super::leaves_of;
use crate::trace::control::{cond, while_loop};
use crate::trace::ops::{self, where_};
use crate::trace::tensor::{at_line, fail_op};
use crate::trace::transpose::value_and_grad;
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

/// First step size that a [`ZoomLinesearch`] tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialGuess {
    /// The step size of the last update.
    Keep,
    /// The number 1, as for Newton's method.
    One,
}

/// Line search by zooming into an interval; built by [`zoom_linesearch`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ZoomLinesearch {
    /// Number of step sizes that are tried at most.
    pub max_linesearch_steps: i32,
    /// Largest step size, if there is one.
    pub max_learning_rate: Option<f64>,
    /// Tolerance of both conditions.
    pub tol: f64,
    /// Factor between step sizes while an interval is searched.
    pub increase_factor: f64,
    /// Fraction of the slope that counts as sufficient decrease.
    pub slope_rtol: f64,
    /// Fraction of the slope that counts as small curvature.
    pub curv_rtol: f64,
    /// Tolerance of an increase, relative to the value, for the approximate decrease; `None` leaves that
    /// condition out.
    pub approx_dec_rtol: Option<f64>,
    /// Length of an interval that is not divided further.
    pub stepsize_precision: f64,
    /// First step size.
    pub initial_guess_strategy: InitialGuess,
}

/// State of [`ZoomLinesearch`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ZoomLinesearchState<T, M> {
    /// Step size of the last update.
    pub learning_rate: T,
    /// Value of the function after the last update.
    pub value: T,
    /// Gradients after the last update.
    pub grad: M,
    /// Number of step sizes tried in the last update, `i32`.
    pub num_linesearch_steps: T,
    /// Violation of sufficient decrease by the last step size that was tried.
    pub decrease_error: T,
    /// Violation of small curvature by it.
    pub curvature_error: T,
}

/// Line search that ensures sufficient decrease and small curvature (the strong Wolfe conditions):
/// `optax.scale_by_zoom_linesearch` (Nocedal & Wright 1999, algorithms 3.5 and 3.6). `optax.lbfgs` has it by
/// default, with 20 steps and [`InitialGuess::One`].
///
/// It needs the function that is minimized, so that it is called after an optimizer and is not part
/// of a chain. Its state has value and gradients after the update, for the next one:
///
/// ```
/// use podracer::optim::{InitialGuess, Optimizer, ZoomLinesearch, lbfgs, zoom_linesearch};
/// use podracer::{Array, Tensor, interpret, value_and_grad};
///
/// fn loss(x: Tensor) -> Tensor {
///     let (a, b) = (x.index_axis(0, 0), x.index_axis(0, 1));
///     (a - 1.0).square() + 10.0 * (b - a).square()
/// }
///
/// let minimize = interpret(|mut x: Tensor| {
///     let initial_guess_strategy = InitialGuess::One;
///     let search = ZoomLinesearch { initial_guess_strategy, ..zoom_linesearch(20) };
///     let optimizer = lbfgs(1.0);
///     let (mut state, mut searched) = (optimizer.init(&x), search.init(&x));
///     for _ in 0..8 {
///         let (value, grads) = searched.value_and_grad(loss, &x);
///         let (updates, next) = optimizer.update(&grads, state, &x);
///         let (updates, next_searched) = search.update(&updates, searched, &x, value, &grads, loss);
///         (x, state, searched) = (x + updates, next, next_searched);
///     }
///     loss(x)
/// });
/// assert!(minimize.call(Array::from([-1.0f32, 2.0]))?.item::<f32>()? < 1e-6);
/// # Ok::<(), podracer::Error>(())
/// ```
///
/// Defaults: no largest step size, no tolerance, 2, 1e-4, 0.9, 1e-6, 1e-5, `Keep`.
pub fn zoom_linesearch(max_linesearch_steps: i32) -> ZoomLinesearch {
    ZoomLinesearch {
        max_linesearch_steps,
        max_learning_rate: None,
        tol: 0.0,
        increase_factor: 2.0,
        slope_rtol: 1e-4,
        curv_rtol: 0.9,
        approx_dec_rtol: Some(1e-6),
        stepsize_precision: 1e-5,
        initial_guess_strategy: InitialGuess::Keep,
    }
}

impl<P: Tree<Tensor>> ZoomLinesearchState<Tensor, P> {
    /// Returns value and gradients of `value_fn` at the parameters after the last update: those of the
    /// state, or computed anew before the first update, `optax.value_and_grad_from_state`.
    #[track_caller]
    pub fn value_and_grad(&self, value_fn: impl Fn(P) -> Tensor, params: &P) -> (Tensor, P) {
        let dtype = self.value.dtype();
        let known = (self.value, tree::leaves(&self.grad));
        let (value, grads) = cond(
            self.value.is_finite(),
            |_: Vec<Tensor>| (known.0, known.1.clone()),
            |leaves| {
                let (value, grads) = value_and_grad(&value_fn)(tree::replace(params, leaves));
                (value.to(dtype), tree::leaves(&grads))
            },
            tree::leaves(params),
        );
        (value, tree::replace(params, grads))
    }
}

/// A step size, and value and slope of the function there.
#[derive(Debug, Clone, Copy, Tree)]
struct Point<T> {
    step: T,
    value: T,
    slope: T,
}

/// Returns `a` if the scalar bool holds, else `b`.
#[track_caller]
fn choose<X: Tree<Tensor>>(condition: Tensor, a: &X, b: &X) -> X {
    let pairs = tree::leaves(a).into_iter().zip(tree::leaves(b));
    let chosen: Vec<Tensor> = pairs.map(|(a, b)| where_(condition, a, b)).collect();
    tree::replace(a, chosen)
}

/// State of the search.
#[derive(Debug, Clone, Tree)]
struct Search<T> {
    count: T,
    /// Last point that was tried, and the gradients there.
    last: Point<T>,
    grads: Vec<T>,
    decrease_error: T,
    curvature_error: T,
    interval_found: T,
    done: T,
    failed: T,
    low: Point<T>,
    high: Point<T>,
    /// Point outside of the interval, for the cubic interpolation.
    cubic_ref: Point<T>,
    /// Best point with sufficient decrease, and the gradients there.
    safe: Point<T>,
    safe_grads: Vec<T>,
}

/// Function along a line, and its value and slope at 0.
struct Line<'a> {
    options: &'a ZoomLinesearch,
    evaluate: &'a dyn Fn(Tensor) -> (Point<Tensor>, Vec<Tensor>),
    value: Tensor,
    slope: Tensor,
}

/// Returns `x` where it is positive, infinity where it is NaN, else 0.
#[track_caller]
fn violation(x: Tensor) -> Tensor {
    where_(x.is_nan(), f64::INFINITY, x.maximum(0.0))
}

/// Returns the minimizer of the cubic polynomial through three points, with the slope of the first.
#[track_caller]
fn cubic_minimum(a: Point<Tensor>, b: Point<Tensor>, c: Point<Tensor>) -> Tensor {
    let (db, dc) = (b.step - a.step, c.step - a.step);
    let denominator = (db * dc).square() * (db - dc);
    let (rb, rc) = (b.value - a.value - a.slope * db, c.value - a.value - a.slope * dc);
    let third = (dc.square() * rb - db.square() * rc) / denominator;
    let second = (-(dc * dc * dc) * rb + db * db * db * rc) / denominator;
    let radical = second.square() - 3.0 * third * a.slope;
    a.step + (-second + radical.sqrt()) / (3.0 * third)
}

/// Returns the minimizer of the quadratic polynomial through two points, with the slope of the first.
#[track_caller]
fn quadratic_minimum(a: Point<Tensor>, b: Point<Tensor>) -> Tensor {
    let db = b.step - a.step;
    let second = (b.value - a.value - a.slope * db) / db.square();
    a.step - a.slope / (2.0 * second)
}

impl Line<'_> {
    #[track_caller]
    fn decrease_error(&self, at: Point<Tensor>) -> Tensor {
        let ZoomLinesearch { slope_rtol, approx_dec_rtol, .. } = *self.options;
        let exact = at.value - self.value - slope_rtol * at.step * self.slope;
        let error = match approx_dec_rtol {
            None => exact,
            Some(rtol) => {
                let slopes = at.slope - (2.0 * slope_rtol - 1.0) * self.slope;
                slopes.maximum(at.value - self.value - rtol * self.value.abs()).minimum(exact)
            }
        };
        violation(error)
    }

    #[track_caller]
    fn curvature_error(&self, at: Point<Tensor>) -> Tensor {
        violation(at.slope.abs() - self.options.curv_rtol * self.slope.abs())
    }

    /// Tries a larger step size, until an interval has an acceptable one.
    #[track_caller]
    fn widen(&self, state: Search<Tensor>, guess: Tensor) -> Search<Tensor> {
        let ZoomLinesearch { max_learning_rate, tol, .. } = *self.options;
        let first = state.count.eq(0);
        let step = where_(first, guess, self.options.increase_factor * state.last.step);
        let at_limit = match max_learning_rate {
            Some(limit) => step.ge(limit),
            None => ops::constant(false),
        };
        let step = max_learning_rate.map_or(step, |limit| step.minimum(limit));
        let (new, grads) = (self.evaluate)(step);
        let (decrease, curvature) = (self.decrease_error(new), self.curvature_error(new));
        let accepted = decrease.maximum(curvature).le(tol);
        let safe = decrease.le(tol);
        let new_high = decrease.gt(0.0) | (new.value.ge(state.last.value) & !first);
        let new_low = new.slope.ge(0.0) & !new_high;
        let interval_found = new_high | new_low | accepted;
        let done = accepted | (at_limit & !interval_found);
        let count = state.count + 1;
        let low = choose(new_low, &new, &state.last);
        Search {
            last: new,
            decrease_error: decrease,
            curvature_error: curvature,
            interval_found,
            done,
            failed: count.ge(self.options.max_linesearch_steps) & !done,
            high: choose(new_low, &state.last, &new),
            low,
            cubic_ref: low,
            safe: choose(safe, &new, &state.safe),
            safe_grads: choose(safe, &grads, &state.safe_grads),
            grads,
            count,
        }
    }

    /// Tries a step size inside of the interval, and replaces one of its ends.
    #[track_caller]
    fn zoom(&self, state: Search<Tensor>) -> Search<Tensor> {
        let ZoomLinesearch { tol, stepsize_precision, max_linesearch_steps, .. } = *self.options;
        let (low, high) = (state.low, state.high);
        let (new, grads) = (self.evaluate)(inside(low, high, state.cubic_ref));
        let (decrease, curvature) = (self.decrease_error(new), self.curvature_error(new));
        let safer = decrease.le(tol) & new.value.lt(state.safe.value);
        let safe = choose(safer, &new, &state.safe);
        let done = decrease.maximum(curvature).le(tol);
        let new_high = decrease.gt(0.0) | new.value.ge(low.value);
        let overshot = (new.slope * (high.step - low.step)).ge(0.0) & !new_high;
        let count = state.count + 1;
        let short = (high.step - low.step).abs().le(stepsize_precision) & safe.step.gt(0.0);
        Search {
            last: new,
            decrease_error: decrease,
            curvature_error: curvature,
            interval_found: state.interval_found,
            done,
            failed: (count.ge(max_linesearch_steps) | short) & !done,
            high: choose(overshot, &low, &choose(new_high, &new, &high)),
            low: choose(new_high, &low, &new),
            cubic_ref: choose(new_high | overshot, &high, &low),
            safe,
            safe_grads: choose(safer, &grads, &state.safe_grads),
            grads,
            count,
        }
    }

    #[track_caller]
    fn step(&self, state: Search<Tensor>, guess: Tensor) -> Search<Tensor> {
        let found = state.interval_found;
        let mut next = cond(found, |s| self.zoom(s), |s| self.widen(s, guess), state);
        // A search that failed falls back on the best point with sufficient decrease.
        let fall_back = next.failed & (next.safe.step.gt(0.0) | next.decrease_error.is_inf());
        next.last.step = where_(fall_back, next.safe.step, next.last.step);
        next.last.value = where_(fall_back, next.safe.value, next.last.value);
        next.grads = choose(fall_back, &next.safe_grads, &next.grads);
        next
    }
}

/// Returns a step size inside of the interval: the minimizer of the cubic polynomial, else that of the
/// quadratic one, else the middle.
#[track_caller]
fn inside(low: Point<Tensor>, high: Point<Tensor>, cubic_ref: Point<Tensor>) -> Tensor {
    let length = (high.step - low.step).abs();
    let (left, right) = (high.step.minimum(low.step), high.step.maximum(low.step));
    let within =
        |x: Tensor, margin: f64| x.gt(left + margin * length) & x.lt(right - margin * length);
    let cubic = cubic_minimum(low, high, cubic_ref);
    let quadratic = quadratic_minimum(low, high);
    let middle = (low.step + high.step) / 2.0;
    where_(within(cubic, 0.2), cubic, where_(within(quadratic, 0.1), quadratic, middle))
}

impl ZoomLinesearch {
    /// Returns the state before the first update.
    #[track_caller]
    pub fn init<P: Tree<Tensor>>(&self, params: &P) -> ZoomLinesearchState<Tensor, P> {
        let dtype = tree_vdot(&tree::leaves(params), &[]).dtype();
        let infinity = || ops::full([], f64::INFINITY, dtype);
        ZoomLinesearchState {
            learning_rate: ops::ones([], dtype),
            value: infinity(),
            grad: super::zeros_like(params),
            num_linesearch_steps: ops::constant(0i32),
            decrease_error: infinity(),
            curvature_error: infinity(),
        }
    }

    /// Returns the updates times a step size, and the next state.
    ///
    /// `value` and `grads` are those of `value_fn` at `params`. If no step size satisfies both conditions,
    /// the best one with sufficient decrease is taken.
    ///
    /// # Errors
    /// Ends the trace if updates, gradients and parameters differ in structure or types, or if a
    /// value is not a float scalar.
    #[track_caller]
    pub fn update<P: Tree<Tensor>>(
        &self,
        updates: &P,
        state: ZoomLinesearchState<Tensor, P>,
        params: &P,
        value: Tensor,
        grads: &P,
        value_fn: impl Fn(P) -> Tensor,
    ) -> (P, ZoomLinesearchState<Tensor, P>) {
        let op = "zoom_linesearch";
        let at = Location::caller();
        let [p, u, g] = leaves_of(op, ["params", "updates", "grads"], [params, updates, grads]);
        let dtype = state.learning_rate.dtype();
        let scalar = |value: Tensor| {
            if value.rank() != 0 || !value.dtype().is_float() {
                let problem = format!("values must be float scalars, and one is {}", value.ty());
                fail_op(op, problem);
            }
            value.to(dtype)
        };
        let evaluate = |step: Tensor| {
            let moved = tree::replace(params, add_scaled(&p, step, &u));
            let (value, grads) = value_and_grad(&value_fn)(moved);
            let grads = tree::leaves(&grads);
            let slope = tree_vdot(&grads, &u).to(dtype);
            (Point { step, value: scalar(value), slope }, grads)
        };
        let found = at_line(at, || {
            let (value, slope) = (scalar(value), tree_vdot(&u, &g).to(dtype));
            let line = Line { options: self, evaluate: &evaluate, value, slope };
            let guess = match self.initial_guess_strategy {
                InitialGuess::Keep => state.learning_rate,
                InitialGuess::One => ops::ones([], dtype),
            };
            let start = Point { step: ops::zeros([], dtype), value, slope };
            let first = Search::start(start, g, dtype);
            while_loop(|s: Search<Tensor>| !(s.done | s.failed), |s| line.step(s, guess), first)
        });
        let rate = found.last.step;
        let scaled: Vec<Tensor> = u.into_iter().map(|u| rate.to(u.dtype()) * u).collect();
        let state = ZoomLinesearchState {
            learning_rate: rate,
            value: found.last.value,
            grad: tree::replace(grads, found.grads),
            num_linesearch_steps: found.count,
            decrease_error: found.decrease_error,
            curvature_error: found.curvature_error,
        };
        (tree::replace(updates, scaled), state)
    }
}

impl Search<Tensor> {
    /// Returns the state before the first step size.
    #[track_caller]
    fn start(at: Point<Tensor>, grads: Vec<Tensor>, dtype: DType) -> Search<Tensor> {
        let infinity = || ops::full([], f64::INFINITY, dtype);
        let no = || ops::constant(false);
        Search {
            count: ops::constant(0i32),
            last: at,
            safe_grads: grads.clone(),
            grads,
            decrease_error: infinity(),
            curvature_error: infinity(),
            interval_found: no(),
            done: no(),
            failed: no(),
            low: at,
            high: at,
            cubic_ref: at,
            safe: at,
        }
    }
}
