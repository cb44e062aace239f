//! Scaling of updates by numbers, schedules, signs and norms of the parameters.

use super::leaves::{map_leaves, map_updates, scalar_type_of};
use super::{Schedule, increment};
use crate::optim::transformation::GradientTransformation;
use crate::trace::ops::{self, Operand, where_};
use crate::trace::tensor::{fail_op, function, op};
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::{self, Tree};

/// Implements [`GradientTransformation`] without state, by a function of one leaf of the updates.
macro_rules! stateless_by_leaf {
    ($($name:ident $op:literal: |$this:ident, $update:ident| $body:expr;)*) => {$(
        impl<P: Tree<Tensor>> GradientTransformation<P> for $name {
            type State = ();

            fn init(&self, _: &P) {}

            #[op($op)]
            fn update(&self, grads: &P, (): (), _: &P) -> (P, ()) {
                #[allow(unused_variables)]
                let $this = self;
                (map_updates($op, grads, |$update| $body), ())
            }
        }
    )*};
}
pub(super) use stateless_by_leaf;

/// Implements [`GradientTransformation`] without state, by a function of one leaf of the updates
/// and its parameter.
macro_rules! stateless_by_param {
    ($($name:ident $op:literal: |$this:ident, $update:ident, $param:ident| $body:expr;)*) => {$(
        impl<P: Tree<Tensor>> GradientTransformation<P> for $name {
            type State = ();

            fn init(&self, _: &P) {}

            #[op($op)]
            fn update(&self, grads: &P, (): (), params: &P) -> (P, ()) {
                let $this = self;
                let trees = [grads, params];
                let names = ["updates", "params"];
                let [updates] = map_leaves($op, names, trees, |[$update, $param]| [$body]);
                (updates, ())
            }
        }
    )*};
}
pub(super) use stateless_by_param;

/// Returns the operand as a scalar of the float type `dtype`; other shapes and types end the trace.
#[track_caller]
pub(super) fn scalar(name: &str, value: impl Operand, dtype: DType) -> Tensor {
    let value = value.to_tensor(&TensorType::scalar(dtype));
    if value.rank() != 0 || !value.dtype().is_float() {
        fail_op(name, format!("must be a float scalar, and is {}", value.ty()));
    }
    value.to(dtype)
}

/// Transformation built by [`scale`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale<S = f64>(S);

/// Multiplies updates by `step_size`, a number or a traced scalar: `optax.scale`.
///
/// The last element of a chain is often `scale(-learning_rate)`.
pub fn scale<S: Operand>(step_size: S) -> Scale<S> {
    Scale(step_size)
}

impl<S: Operand, P: Tree<Tensor>> GradientTransformation<P> for Scale<S> {
    type State = ();

    fn init(&self, _: &P) {}

    #[op("scale")]
    fn update(&self, grads: &P, (): (), _: &P) -> (P, ()) {
        let step_size = self.0;
        (map_updates("scale", grads, |u| scalar("step_size", step_size, u.dtype()) * u), ())
    }
}

/// State of [`scale_by_schedule`].
#[derive(Debug, Clone, Tree)]
pub struct ScaleByScheduleState<T> {
    /// Number of updates made, `i32`.
    pub count: T,
}

impl ScaleByScheduleState<Tensor> {
    /// Returns the state before the first update.
    #[track_caller]
    pub(super) fn zero() -> ScaleByScheduleState<Tensor> {
        ScaleByScheduleState { count: ops::constant(0i32) }
    }
}

/// Scalar that depends on the count of updates: a [`Schedule`], or a function of the count.
pub trait ScheduleFn {
    /// Returns the value, a float scalar, after `count` updates, an `i32` scalar.
    fn at_count(&self, count: Tensor) -> Tensor;

    /// Returns the value for updates of which these are the leaves: a [`Schedule`] computes it in f64 if
    /// one of them is f64.
    #[track_caller]
    fn at_count_for(&self, count: Tensor, leaves: &[Tensor]) -> Tensor {
        let _ = leaves;
        self.at_count(count)
    }
}

impl ScheduleFn for Schedule {
    #[track_caller]
    fn at_count(&self, count: Tensor) -> Tensor {
        self.at(count)
    }

    #[track_caller]
    fn at_count_for(&self, count: Tensor, leaves: &[Tensor]) -> Tensor {
        self.at_as(count, scalar_type_of(leaves))
    }
}

impl<F: Fn(Tensor) -> Tensor> ScheduleFn for F {
    fn at_count(&self, count: Tensor) -> Tensor {
        self(count)
    }
}

/// Transformation built by [`scale_by_schedule`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleBySchedule<F = Schedule>(F);

/// Multiplies updates by a schedule at the number of updates made: `optax.scale_by_schedule`.
///
/// `step_size` is a [`Schedule`] or a function from the count, an `i32` scalar, to a float scalar.
pub fn scale_by_schedule<F: ScheduleFn>(step_size: F) -> ScaleBySchedule<F> {
    ScaleBySchedule(step_size)
}

impl<F: ScheduleFn, P: Tree<Tensor>> GradientTransformation<P> for ScaleBySchedule<F> {
    type State = ScaleByScheduleState<Tensor>;

    #[track_caller]
    fn init(&self, _: &P) -> Self::State {
        ScaleByScheduleState::zero()
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let step_size = self.0.at_count_for(state.count, &tree::leaves(grads));
        let _scope = function("scale_by_schedule");
        let updates = map_updates("scale_by_schedule", grads, |u| {
            scalar("step_size", step_size, u.dtype()) * u
        });
        (updates, ScaleByScheduleState { count: increment(state.count) })
    }
}

/// Learning rate of an optimizer: a number, a traced scalar, a [`Schedule`] or a function of the
/// count of updates.
pub trait LearningRate {
    /// State: [`ScaleByScheduleState`] of a schedule, `()` of a number or a traced scalar.
    type State: Tree<Tensor>;

    /// Returns the state before the first update.
    fn init(&self) -> Self::State;

    /// Multiplies updates by the rate times `sign`; returns them and the next state.
    fn scale<P: Tree<Tensor>>(
        &self,
        sign: f64,
        updates: &P,
        state: Self::State,
    ) -> (P, Self::State);
}

macro_rules! constant_learning_rates {
    ($($t:ty)*) => {$(
        impl LearningRate for $t {
            type State = ();

            fn init(&self) {}

            #[track_caller]
            fn scale<P: Tree<Tensor>>(&self, sign: f64, updates: &P, (): ()) -> (P, ()) {
                let rate = *self;
                let updates = map_updates("scale_by_learning_rate", updates, |u| {
                    let rate = scalar("learning_rate", rate, u.dtype());
                    (if sign < 0.0 { -rate } else { rate }) * u
                });
                (updates, ())
            }
        }
    )*};
}
constant_learning_rates!(f64 f32 Tensor);

impl<F: ScheduleFn> LearningRate for F {
    type State = ScaleByScheduleState<Tensor>;

    #[track_caller]
    fn init(&self) -> Self::State {
        ScaleByScheduleState::zero()
    }

    #[track_caller]
    fn scale<P: Tree<Tensor>>(
        &self,
        sign: f64,
        updates: &P,
        state: Self::State,
    ) -> (P, Self::State) {
        let rate = self.at_count_for(state.count, &tree::leaves(updates));
        let (updates, ()) = rate.scale(sign, updates, ());
        (updates, ScaleByScheduleState { count: increment(state.count) })
    }
}

/// Transformation built by [`scale_by_learning_rate`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByLearningRate<L = f64> {
    /// Learning rate: a number, a traced scalar, a [`Schedule`] or a function of the count.
    pub learning_rate: L,
    /// If true, updates are multiplied by `-learning_rate`, to descend.
    pub flip_sign: bool,
}

/// Multiplies updates by `-learning_rate`: `optax.scale_by_learning_rate`.
pub fn scale_by_learning_rate<L: LearningRate>(learning_rate: L) -> ScaleByLearningRate<L> {
    ScaleByLearningRate { learning_rate, flip_sign: true }
}

impl<L: LearningRate, P: Tree<Tensor>> GradientTransformation<P> for ScaleByLearningRate<L> {
    type State = L::State;

    #[track_caller]
    fn init(&self, _: &P) -> Self::State {
        self.learning_rate.init()
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let sign = if self.flip_sign { -1.0 } else { 1.0 };
        self.learning_rate.scale(sign, grads, state)
    }
}

/// Transformation built by [`scale_by_sign`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleBySign;

/// Replaces updates by their signs: `optax.scale_by_sign`.
pub fn scale_by_sign() -> ScaleBySign {
    ScaleBySign
}

/// Transformation built by [`scale_by_trust_ratio`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByTrustRatio {
    /// Least norm of parameters and of updates.
    pub min_norm: f64,
    /// Factor of the ratio.
    pub trust_coefficient: f64,
    /// Epsilon added to the norm of the update.
    pub eps: f64,
}

/// Multiplies the updates of each leaf by `|params| / |updates|`: `optax.scale_by_trust_ratio`, the
/// layer-wise rate of LARS (You et al. 2017) and LAMB. A leaf with a norm of 0 is unchanged.
///
/// Defaults: minimal norm 0, coefficient 1, `eps` 0.
pub fn scale_by_trust_ratio() -> ScaleByTrustRatio {
    ScaleByTrustRatio { min_norm: 0.0, trust_coefficient: 1.0, eps: 0.0 }
}

/// Computes the Euclidean norm of a leaf, at least `min_norm`, with derivative 0 below it:
/// `optax.safe_norm`.
#[track_caller]
pub fn safe_norm(x: Tensor, min_norm: f64) -> Tensor {
    let small = x.norm().le(min_norm);
    where_(small, min_norm, where_(small, 1.0, x).norm())
}

/// Computes the root of the mean square of a leaf, at least `min_rms`, with derivative 0 below it:
/// `optax.safe_root_mean_squares`.
#[track_caller]
pub fn safe_root_mean_squares(x: Tensor, min_rms: f64) -> Tensor {
    let small = x.square().mean(..).sqrt().le(min_rms);
    where_(small, min_rms, where_(small, 1.0, x).square().mean(..).sqrt())
}

impl ScaleByTrustRatio {
    fn leaf(&self, update: Tensor, param: Tensor) -> Tensor {
        let param_norm = safe_norm(param, self.min_norm);
        let update_norm = safe_norm(update, self.min_norm);
        let ratio = self.trust_coefficient * param_norm / (update_norm + self.eps);
        let zero = param_norm.eq(0.0) | update_norm.eq(0.0);
        update * where_(zero, 1.0, ratio)
    }
}

/// Transformation built by [`scale_by_param_block_norm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByParamBlockNorm {
    min_scale: f64,
}

/// Multiplies the updates of each leaf by the norm of its parameters, at least `min_scale` (1e-3 in
/// optax): `optax.scale_by_param_block_norm`.
pub fn scale_by_param_block_norm(min_scale: f64) -> ScaleByParamBlockNorm {
    ScaleByParamBlockNorm { min_scale }
}

/// Transformation built by [`scale_by_param_block_rms`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByParamBlockRms {
    min_scale: f64,
}

/// Multiplies the updates of each leaf by the root mean square of its parameters, at least
/// `min_scale` (1e-3 in optax): `optax.scale_by_param_block_rms`.
pub fn scale_by_param_block_rms(min_scale: f64) -> ScaleByParamBlockRms {
    ScaleByParamBlockRms { min_scale }
}

/// Transformation built by [`normalize_by_update_norm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormalizeByUpdateNorm {
    scale_factor: f64,
    eps: f64,
}

/// Divides updates by their global norm: `scale_factor u / (norm + eps)`,
/// `optax.normalize_by_update_norm`. Defaults in optax: 1, 1e-6.
pub fn normalize_by_update_norm(scale_factor: f64, eps: f64) -> NormalizeByUpdateNorm {
    NormalizeByUpdateNorm { scale_factor, eps }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for NormalizeByUpdateNorm {
    type State = ();

    fn init(&self, _: &P) {}

    #[op("normalize_by_update_norm")]
    fn update(&self, grads: &P, (): (), _: &P) -> (P, ()) {
        let norm = (super::global_norm(grads) + self.eps) / self.scale_factor;
        (map_updates("normalize_by_update_norm", grads, |u| u / norm.to(u.dtype())), ())
    }
}

/// Transformation built by [`centralize`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Centralize;

/// Subtracts the mean over all axes but the first from updates of two or more axes:
/// `optax.centralize` (Yong et al. 2020).
pub fn centralize() -> Centralize {
    Centralize
}

fn centralized(update: Tensor) -> Tensor {
    if update.rank() < 2 {
        return update;
    }
    let axes: Vec<isize> = (1..update.rank() as isize).collect();
    let mut shape = vec![1; update.rank()];
    shape[0] = update.shape()[0];
    update - update.mean(&axes[..]).reshape(shape)
}

stateless_by_leaf! {
    ScaleBySign "scale_by_sign": |this, u| u.sign();
    Centralize "centralize": |this, u| centralized(u);
}

stateless_by_param! {
    ScaleByTrustRatio "scale_by_trust_ratio": |this, u, p| this.leaf(u, p);
    ScaleByParamBlockNorm "scale_by_param_block_norm": |this, u, p| {
        u * safe_norm(p, this.min_scale)
    };
    ScaleByParamBlockRms "scale_by_param_block_rms": |this, u, p| {
        u * safe_root_mean_squares(p, this.min_scale)
    };
}
