//! Accumulation of gradients over updates: traces, moving averages and steps of several batches.

use super::adam::power;
use super::condition::update_if;
use super::leaves::{map_leaves, scalar_type_of, select};
use super::{increment, leaves_of, zeros_like};
use crate::optim::transformation::GradientTransformation;
use crate::trace::ops::{self, where_};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

/// Transformation built by [`trace`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trace {
    /// Decay rate.
    pub decay: f64,
    /// If true, Nesterov momentum is used.
    pub nesterov: bool,
}

/// State of [`trace`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct TraceState<M> {
    /// Decaying sum of gradients.
    pub trace: M,
}

/// Adds up gradients with decay, `t = g + decay t`: `optax.trace`, the momentum of
/// [`Sgd`](super::Sgd).
pub fn trace(decay: f64) -> Trace {
    Trace { decay, nesterov: false }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for Trace {
    type State = TraceState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        TraceState { trace: zeros_like(params) }
    }

    #[op("trace")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let trees = [grads, &state.trace];
        let [updates, trace] = map_leaves("trace", ["updates", "trace"], trees, |[g, t]| {
            let t = g + self.decay * t;
            [if self.nesterov { g + self.decay * t } else { t }, t]
        });
        (updates, TraceState { trace })
    }
}

/// Transformation built by [`ema`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ema {
    /// Decay rate.
    pub decay: f64,
    /// If true, the bias of the mean towards 0 is corrected.
    pub debias: bool,
}

/// State of [`ema`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct EmaState<T, M> {
    /// Number of updates made, `i32`.
    pub count: T,
    /// Running mean.
    pub ema: M,
}

/// Replaces updates by their exponential moving average: `optax.ema`, corrected for bias unless
/// `debias` is false.
pub fn ema(decay: f64) -> Ema {
    Ema { decay, debias: true }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for Ema {
    type State = EmaState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        EmaState { count: ops::constant(0i32), ema: zeros_like(params) }
    }

    #[op("ema")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let count = increment(state.count);
        let scale: Tensor = 1.0 - power(self.decay, count, scalar_type_of(&tree::leaves(grads)));
        let trees = [grads, &state.ema];
        let [updates, ema] = map_leaves("ema", ["updates", "ema"], trees, |[g, mean]| {
            let mean = (1.0 - self.decay) * g + self.decay * mean;
            [if self.debias { mean / scale.to(mean.dtype()) } else { mean }, mean]
        });
        (updates, EmaState { count, ema })
    }
}

/// Transformation built by [`apply_every`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApplyEvery {
    k: usize,
}

/// State of [`apply_every`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ApplyEveryState<T, M> {
    /// Number of updates since the last one that was applied, `i32`.
    pub count: T,
    /// Sum of gradients.
    pub grad_acc: M,
}

/// Adds up gradients and returns their sum every `k` updates, else zeros: `optax.apply_every`.
///
/// [`multi_steps`] keeps the state of the optimizer unchanged between.
///
/// # Errors
/// The update ends the trace if `k` is 0.
pub fn apply_every(k: usize) -> ApplyEvery {
    ApplyEvery { k }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ApplyEvery {
    type State = ApplyEveryState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        ApplyEveryState { count: ops::constant(0i32), grad_acc: zeros_like(params) }
    }

    #[op("apply_every")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let k = period("apply_every", "k", self.k);
        let count = state.count % k;
        let (continues, emit) = (count.ne(0), count.eq(k - 1));
        let trees = [grads, &state.grad_acc];
        let [updates, grad_acc] =
            map_leaves("apply_every", ["updates", "grad_acc"], trees, |[g, sum]| {
                let sum = where_(continues, sum, 0.0) + g;
                [where_(emit, sum, 0.0), sum]
            });
        (updates, ApplyEveryState { count: increment(state.count) % k, grad_acc })
    }
}

/// Returns the period as an i32 of at least 1; others end the trace.
#[track_caller]
pub(super) fn period(op: &str, name: &str, value: usize) -> i32 {
    match i32::try_from(value) {
        Ok(value) if value > 0 => value,
        _ => fail_op(op, format!("{name} must be from 1 to {}, and is {value}", i32::MAX)),
    }
}

/// Optimizer that makes a step of several batches; built by [`multi_steps`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MultiSteps<O> {
    /// Transformation of the accumulated gradients.
    pub inner: O,
    /// Number of updates for each step of the inner transformation.
    pub every_k: usize,
    /// If true, gradients are averaged over the updates; if false, added.
    pub use_grad_mean: bool,
}

/// State of [`multi_steps`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M, nested = S)]
pub struct MultiStepsState<T, M, S> {
    /// Number of updates since the last step, `i32`.
    pub mini_step: T,
    /// Number of steps made, `i32`.
    pub gradient_step: T,
    /// State of the inner transformation.
    pub inner_state: S,
    /// Accumulated gradients.
    pub acc_grads: M,
}

impl<M, S> MultiStepsState<Tensor, M, S> {
    /// Returns true, a scalar, if the last update made a step: `optax.MultiSteps.has_updated`.
    #[track_caller]
    pub fn has_updated(&self) -> Tensor {
        self.mini_step.eq(0) & self.gradient_step.gt(0)
    }
}

/// Accumulates the gradients of `every_k` updates for each step of `inner`: `optax.MultiSteps`.
///
/// Updates between steps are zeros and leave the state of `inner` unchanged. As in optax, `inner`
/// is computed at every update.
///
/// # Errors
/// The update ends the trace if `every_k` is 0.
pub fn multi_steps<O>(inner: O, every_k: usize) -> MultiSteps<O> {
    MultiSteps { inner, every_k, use_grad_mean: true }
}

impl<O: GradientTransformation<P>, P: Tree<Tensor>> GradientTransformation<P> for MultiSteps<O> {
    type State = MultiStepsState<Tensor, P, O::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        MultiStepsState {
            mini_step: ops::constant(0i32),
            gradient_step: ops::constant(0i32),
            inner_state: self.inner.init(params),
            acc_grads: zeros_like(params),
        }
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let k = period("multi_steps", "every_k", self.every_k);
        let trees = [grads, &state.acc_grads];
        let [sums] = map_leaves("multi_steps", ["updates", "acc_grads"], trees, |[g, sum]| {
            if !self.use_grad_mean {
                return [g + sum];
            }
            [sum + (g - sum) / (state.mini_step + 1).to(g.dtype())]
        });
        let old_state = tree::leaves(&state.inner_state);
        let (updates, new_state) = self.inner.update(&sums, state.inner_state, params);
        let emit = state.mini_step.eq(k - 1);
        let old_state = tree::replace(&new_state, old_state);
        let inner_state = select(emit, &new_state, old_state);
        let [updates] =
            map_leaves("multi_steps", ["updates"], [&updates], |[u]| [where_(emit, u, 0.0)]);
        let [acc_grads] =
            map_leaves("multi_steps", ["acc_grads"], [&sums], |[sum]| [where_(emit, 0.0, sum)]);
        let steps = increment(state.gradient_step);
        let state = MultiStepsState {
            mini_step: increment(state.mini_step) % k,
            gradient_step: where_(emit, steps, state.gradient_step),
            inner_state,
            acc_grads,
        };
        (updates, state)
    }
}

/// Returns true, a scalar, if the updates have NaN or infinities, and the number of such elements,
/// `i32`: `optax.skip_not_finite`, for [`MultiSteps::should_skip_update`].
#[op]
pub fn skip_not_finite<P: Tree<Tensor>>(updates: &P) -> (Tensor, Tensor) {
    let mut count = ops::constant(0i32);
    for leaf in tree::leaves(updates) {
        count = count + (!leaf.is_finite()).to(DType::I32).sum(..);
    }
    (count.gt(0), count)
}

/// Returns true, a scalar, unless the squared global norm of the updates is below
/// `max_squared_norm`, and the squared norm: `optax.skip_large_updates`, for
/// [`MultiSteps::should_skip_update`].
#[op]
pub fn skip_large_updates<P: Tree<Tensor>>(updates: &P, max_squared_norm: f64) -> (Tensor, Tensor) {
    let leaves = tree::leaves(updates);
    let dtype = scalar_type_of(&leaves);
    let mut total = ops::zeros([], dtype);
    for leaf in leaves {
        total = total + leaf.square().sum(..).to(dtype);
    }
    (!total.lt(max_squared_norm), total)
}

impl<O> MultiSteps<O> {
    /// Skips the updates for which `should_skip` returns true: `should_skip_update_fn` of
    /// `optax.MultiSteps`. They count for nothing, as if they were never made.
    ///
    /// `should_skip` returns a bool scalar and a measurement that the state keeps, as
    /// [`skip_not_finite`] and [`skip_large_updates`] do.
    ///
    /// ```
    /// use podracer::optim::{adam, multi_steps, skip_large_updates};
    /// use podracer::Tensor;
    ///
    /// let optimizer =
    ///     multi_steps(adam(1e-3), 4).should_skip_update(|g: &Tensor| skip_large_updates(g, 100.0));
    /// # fn check<O: podracer::optim::Optimizer<podracer::Tensor>>(_: O) {}
    /// # check(optimizer);
    /// ```
    pub fn should_skip_update<F>(self, should_skip: F) -> SkipUpdates<O, F> {
        SkipUpdates { steps: self, should_skip }
    }
}

/// [`MultiSteps`] without some updates; built by [`MultiSteps::should_skip_update`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SkipUpdates<O, F> {
    steps: MultiSteps<O>,
    should_skip: F,
}

/// State of [`MultiSteps::should_skip_update`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = S)]
pub struct SkipUpdatesState<T, S> {
    /// State of the accumulation.
    pub multi_steps: S,
    /// True if the last update was skipped.
    pub should_skip: T,
    /// Measurement of the last update.
    pub measurement: T,
}

impl<O, F, P> GradientTransformation<P> for SkipUpdates<O, F>
where
    O: GradientTransformation<P>,
    F: Fn(&P) -> (Tensor, Tensor),
    P: Tree<Tensor>,
{
    type State = SkipUpdatesState<Tensor, MultiStepsState<Tensor, P, O::State>>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let (should_skip, measurement) = (self.should_skip)(&zeros_like(params));
        SkipUpdatesState { multi_steps: self.steps.init(params), should_skip, measurement }
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let (skip, measurement) = (self.should_skip)(grads);
        if skip.rank() != 0 || skip.dtype() != DType::Bool {
            let problem = format!("should_skip must return a bool scalar, and got {}", skip.ty());
            fail_op("multi_steps", problem);
        }
        let (state, skipped) = (state.multi_steps, zeros_like(grads));
        let (updates, multi_steps) = update_if(!skip, &self.steps, grads, state, params, skipped);
        (updates, SkipUpdatesState { multi_steps, should_skip: skip, measurement })
    }
}

/// Parameters of [`lookahead`]: those that follow the gradient, and those that follow them.
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct LookaheadParams<M> {
    /// Parameters that the inner optimizer changes; gradients are taken at these.
    pub fast: M,
    /// Parameters that are moved towards the fast ones at synchronization.
    pub slow: M,
}

/// State of [`lookahead`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = S)]
pub struct LookaheadState<T, S> {
    /// State of the inner optimizer.
    pub fast_state: S,
    /// Number of updates since the last synchronization, `i32`.
    pub steps_since_sync: T,
}

/// Optimizer of [`LookaheadParams`]; built by [`lookahead`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lookahead<O> {
    /// Optimizer of the fast parameters.
    pub fast_optimizer: O,
    /// Number of updates between synchronizations.
    pub sync_period: usize,
    /// Step size of the slow parameters towards the fast ones.
    pub slow_step_size: f64,
}

/// Moves slow parameters towards the fast ones of `fast_optimizer` every `sync_period` updates, and
/// the fast ones to them: `optax.lookahead` (Zhang et al. 2019).
///
/// [`Lookahead::update`] takes gradients of the fast parameters and returns updates of both.
///
/// # Errors
/// The update ends the trace if `sync_period` is 0.
pub fn lookahead<O>(fast_optimizer: O, sync_period: usize, slow_step_size: f64) -> Lookahead<O> {
    Lookahead { fast_optimizer, sync_period, slow_step_size }
}

impl<O> Lookahead<O> {
    /// Returns the state before the first update.
    #[track_caller]
    pub fn init<P: Tree<Tensor>>(
        &self,
        params: &LookaheadParams<P>,
    ) -> LookaheadState<Tensor, O::State>
    where
        O: GradientTransformation<P>,
    {
        let fast_state = self.fast_optimizer.init(&params.fast);
        LookaheadState { fast_state, steps_since_sync: ops::constant(0i32) }
    }

    /// Returns the updates of fast and slow parameters, and the next state. `grads` are gradients
    /// of the fast parameters.
    #[track_caller]
    pub fn update<P: Tree<Tensor>>(
        &self,
        grads: &P,
        state: LookaheadState<Tensor, O::State>,
        params: &LookaheadParams<P>,
    ) -> (LookaheadParams<P>, LookaheadState<Tensor, O::State>)
    where
        O: GradientTransformation<P>,
    {
        let period = period("lookahead", "sync_period", self.sync_period);
        let (updates, fast_state) =
            self.fast_optimizer.update(grads, state.fast_state, &params.fast);
        let sync = state.steps_since_sync.eq(period - 1);
        let names = ["updates", "fast", "slow"];
        let [updates, fasts, slows] =
            leaves_of("lookahead", names, [&updates, &params.fast, &params.slow]);
        let (mut new_fast, mut new_slow) = (Vec::new(), Vec::new());
        for ((u, f), s) in updates.into_iter().zip(fasts).zip(slows) {
            let difference = where_(sync, f + u - s, 0.0);
            new_fast.push(u - (1.0 - self.slow_step_size) * difference);
            new_slow.push(self.slow_step_size * difference);
        }
        let updates = LookaheadParams {
            fast: tree::replace(grads, new_fast),
            slow: tree::replace(grads, new_slow),
        };
        let steps_since_sync = (state.steps_since_sync + 1) % period;
        (updates, LookaheadState { fast_state, steps_since_sync })
    }
}
