//! Transformations of updates that are not finite, and of those that leave a range.

use super::leaves::{all_finite, map_leaves, scalars};
use super::{increment, zeros_like};
use crate::optim::transformation::GradientTransformation;
use crate::trace::control::cond;
use crate::trace::ops::{self, where_};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

/// Transformation built by [`zero_nans`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ZeroNans;

/// State of [`zero_nans`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ZeroNansState<M> {
    /// True, a scalar for each leaf, if the last update had a NaN there.
    pub found_nan: M,
}

/// Replaces NaN in updates by 0: `optax.zero_nans`.
pub fn zero_nans() -> ZeroNans {
    ZeroNans
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ZeroNans {
    type State = ZeroNansState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        ZeroNansState { found_nan: scalars(params, |_| ops::constant(false)) }
    }

    #[op("zero_nans")]
    fn update(&self, grads: &P, _: Self::State, _: &P) -> (P, Self::State) {
        let [updates] =
            map_leaves("zero_nans", ["updates"], [grads], |[u]| [where_(u.is_nan(), 0.0, u)]);
        (updates, ZeroNansState { found_nan: scalars(grads, |u| u.is_nan().any(..)) })
    }
}

/// Transformation built by [`apply_if_finite`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ApplyIfFinite<O> {
    /// Transformation of finite updates.
    pub inner: O,
    /// Number of updates in a row that are rejected at most.
    pub max_consecutive_errors: i32,
}

/// State of [`apply_if_finite`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = S)]
pub struct ApplyIfFiniteState<T, S> {
    /// Number of updates in a row that were not finite, `i32`.
    pub notfinite_count: T,
    /// True if the last update was finite, `bool`.
    pub last_finite: T,
    /// Number of updates that were not finite, `i32`.
    pub total_notfinite: T,
    /// State of the inner transformation.
    pub inner_state: S,
}

/// Rejects updates that have NaN or infinities: `optax.apply_if_finite`.
///
/// A rejected update is zeros and leaves the state of `inner` unchanged. After
/// `max_consecutive_errors` in a row updates are applied as they are.
pub fn apply_if_finite<O>(inner: O, max_consecutive_errors: i32) -> ApplyIfFinite<O> {
    ApplyIfFinite { inner, max_consecutive_errors }
}

impl<O: GradientTransformation<P>, P: Tree<Tensor>> GradientTransformation<P> for ApplyIfFinite<O> {
    type State = ApplyIfFiniteState<Tensor, O::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        ApplyIfFiniteState {
            notfinite_count: ops::constant(0i32),
            last_finite: ops::constant(true),
            total_notfinite: ops::constant(0i32),
            inner_state: self.inner.init(params),
        }
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let finite = all_finite(grads);
        let errors = where_(finite, 0, increment(state.notfinite_count));
        let apply = finite | errors.gt(self.max_consecutive_errors);
        let (updates, inner_state) =
            update_if(apply, &self.inner, grads, state.inner_state, params, zeros_like(grads));
        let total = increment(state.total_notfinite);
        let state = ApplyIfFiniteState {
            notfinite_count: errors,
            last_finite: finite,
            total_notfinite: where_(finite, state.total_notfinite, total),
            inner_state,
        };
        (updates, state)
    }
}

/// The update by `inner` if `apply` holds, else `updates` and the same state. It is a `cond`, since
/// the derivative of what `inner` makes of numbers that are not finite is not finite either.
#[track_caller]
pub(super) fn update_if<P: Tree<Tensor>, O: GradientTransformation<P>>(
    apply: Tensor,
    inner: &O,
    grads: &P,
    state: O::State,
    params: &P,
    updates: P,
) -> (P, O::State) {
    let state_again = || tree::replace(&state, tree::leaves(&state));
    let update = |()| inner.update(grads, state_again(), params);
    let keep = |()| (tree::replace(&updates, tree::leaves(&updates)), state_again());
    cond(apply, update, keep, ())
}

/// Transformation built by [`keep_params_nonnegative`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeepParamsNonnegative;

/// Changes updates so that no parameter becomes negative: `optax.keep_params_nonnegative`. It is
/// the last element of a chain.
pub fn keep_params_nonnegative() -> KeepParamsNonnegative {
    KeepParamsNonnegative
}

super::scale::stateless_by_param! {
    KeepParamsNonnegative "keep_params_nonnegative": |_this, u, p| {
        where_((p + u).lt(0.0), -p, u)
    };
}

/// Transformation built by [`conditionally_transform`] and [`conditionally_mask`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditionally<O, F> {
    inner: O,
    should_transform: F,
    mask: bool,
}

/// State of [`conditionally_transform`] and [`conditionally_mask`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = S)]
pub struct ConditionallyState<T, S> {
    /// Number of updates made, `i32`.
    pub step: T,
    /// State of the inner transformation.
    pub inner_state: S,
}

/// Applies `inner` at the steps for which `should_transform` returns true; other updates are
/// unchanged, and the state with them: `optax.conditionally_transform`.
///
/// `should_transform` takes the number of updates made, an `i32` scalar, and returns a bool scalar.
pub fn conditionally_transform<O, F: Fn(Tensor) -> Tensor>(
    inner: O,
    should_transform: F,
) -> Conditionally<O, F> {
    Conditionally { inner, should_transform, mask: false }
}

/// Applies `inner` at the steps for which `should_transform` returns true; other updates are zeros,
/// and the state is unchanged: `optax.conditionally_mask`.
///
/// `should_transform` is that of [`conditionally_transform`].
pub fn conditionally_mask<O, F: Fn(Tensor) -> Tensor>(
    inner: O,
    should_transform: F,
) -> Conditionally<O, F> {
    Conditionally { inner, should_transform, mask: true }
}

impl<O, F, P> GradientTransformation<P> for Conditionally<O, F>
where
    O: GradientTransformation<P>,
    F: Fn(Tensor) -> Tensor,
    P: Tree<Tensor>,
{
    type State = ConditionallyState<Tensor, O::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        ConditionallyState { step: ops::constant(0i32), inner_state: self.inner.init(params) }
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let op = if self.mask { "conditionally_mask" } else { "conditionally_transform" };
        let apply = (self.should_transform)(state.step);
        if apply.rank() != 0 || apply.dtype() != DType::Bool {
            let problem = format!("the condition must be a bool scalar, and is {}", apply.ty());
            fail_op(op, problem);
        }
        let updates = match self.mask {
            true => zeros_like(grads),
            false => tree::replace(grads, tree::leaves(grads)),
        };
        let (updates, inner_state) =
            update_if(apply, &self.inner, grads, state.inner_state, params, updates);
        (updates, ConditionallyState { step: increment(state.step), inner_state })
    }
}
