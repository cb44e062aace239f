//! Scaling by root mean squares of the gradients: RMSProp, Adagrad, Adadelta and Rprop.

use super::adam::power;
use super::leaves::{full_like, map_leaves};
use super::{increment, zeros_like};
use crate::optim::transformation::GradientTransformation;
use crate::trace::Tensor;
use crate::trace::ops::{self, where_};
use crate::trace::tensor::op;
use crate::tree::Tree;

/// Transformation built by [`scale_by_rms`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByRms {
    /// Decay rate of the running mean of squared gradients.
    pub decay: f64,
    /// Epsilon added to avoid division by 0.
    pub eps: f64,
    /// Initial value of the mean of squared gradients.
    pub initial_scale: f64,
    /// If true, `eps` is added under the root; if false, to the root.
    pub eps_in_sqrt: bool,
    /// If true, the bias of the mean towards its initial value of 0 is corrected.
    pub bias_correction: bool,
}

/// State of [`scale_by_rms`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByRmsState<T, M> {
    /// Number of updates made, `i32`, if the bias is corrected.
    pub count: Option<T>,
    /// Running mean of squared gradients.
    pub v: M,
}

/// Divides gradients by the root of a running mean of their squares: `optax.scale_by_rms` (Hinton
/// 2012). [`RmsProp`](super::RmsProp) is the optimizer. Defaults: .9, 1e-8, 0, true, false.
pub fn scale_by_rms() -> ScaleByRms {
    ScaleByRms {
        decay: 0.9,
        eps: 1e-8,
        initial_scale: 0.0,
        eps_in_sqrt: true,
        bias_correction: false,
    }
}

/// Returns `1 / sqrt(square + eps)`, or `1 / (sqrt(square) + eps)`.
#[track_caller]
fn inverse_root(square: Tensor, eps: f64, eps_in_sqrt: bool) -> Tensor {
    if eps_in_sqrt { (square + eps).rsqrt() } else { 1.0 / (square.sqrt() + eps) }
}

/// Returns the count before the first update, if the bias is corrected.
#[track_caller]
fn zero_count(bias_correction: bool) -> Option<Tensor> {
    bias_correction.then(|| ops::constant(0i32))
}

/// Returns the moment, corrected for bias if there is a count.
#[track_caller]
fn corrected(moment: Tensor, decay: f64, count: Option<Tensor>) -> Tensor {
    match count {
        Some(count) => moment / (1.0 - power(decay, count, moment.dtype())).to(moment.dtype()),
        None => moment,
    }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByRms {
    type State = ScaleByRmsState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let v = full_like(params, self.initial_scale);
        ScaleByRmsState { count: zero_count(self.bias_correction), v }
    }

    #[op("scale_by_rms")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let count = state.count.map(increment);
        let trees = [grads, &state.v];
        let [updates, v] = map_leaves("scale_by_rms", ["updates", "v"], trees, |[g, v]| {
            let v = (1.0 - self.decay) * g.square() + self.decay * v;
            let square = corrected(v, self.decay, count);
            [inverse_root(square, self.eps, self.eps_in_sqrt) * g, v]
        });
        (updates, ScaleByRmsState { count, v })
    }
}

/// Transformation built by [`scale_by_stddev`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByStddev {
    /// Decay rate of the running means of gradients and of their squares.
    pub decay: f64,
    /// Epsilon added to avoid division by 0.
    pub eps: f64,
    /// Initial value of the mean of squared gradients.
    pub initial_scale: f64,
    /// If true, `eps` is added under the root; if false, to the root.
    pub eps_in_sqrt: bool,
    /// If true, the biases of the means are corrected.
    pub bias_correction: bool,
}

/// State of [`scale_by_stddev`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByStddevState<T, M> {
    /// Number of updates made, `i32`, if the biases are corrected.
    pub count: Option<T>,
    /// Running mean of gradients.
    pub m: M,
    /// Running mean of squared gradients.
    pub v: M,
}

/// Divides gradients by a running standard deviation of them: `optax.scale_by_stddev`, the centered
/// form of RMSProp (Graves 2013). Defaults: .9, 1e-8, 0, true, false.
pub fn scale_by_stddev() -> ScaleByStddev {
    ScaleByStddev {
        decay: 0.9,
        eps: 1e-8,
        initial_scale: 0.0,
        eps_in_sqrt: true,
        bias_correction: false,
    }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByStddev {
    type State = ScaleByStddevState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let v = full_like(params, self.initial_scale);
        ScaleByStddevState { count: zero_count(self.bias_correction), m: zeros_like(params), v }
    }

    #[op("scale_by_stddev")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let count = state.count.map(increment);
        let names = ["updates", "m", "v"];
        let trees = [grads, &state.m, &state.v];
        let [updates, m, v] = map_leaves("scale_by_stddev", names, trees, |[g, m, v]| {
            let m = (1.0 - self.decay) * g + self.decay * m;
            let v = (1.0 - self.decay) * g.square() + self.decay * v;
            let mean = corrected(m, self.decay, count);
            let square = corrected(v, self.decay, count);
            [inverse_root(square - mean.square(), self.eps, self.eps_in_sqrt) * g, m, v]
        });
        (updates, ScaleByStddevState { count, m, v })
    }
}

/// Transformation built by [`scale_by_rss`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByRss {
    /// Initial value of the sum of squared gradients.
    pub initial_accumulator_value: f64,
    /// Epsilon added under the root.
    pub eps: f64,
}

/// State of [`scale_by_rss`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByRssState<M> {
    /// Sum of squared gradients.
    pub sum_of_squares: M,
}

/// Divides gradients by the root of the sum of their squares so far: `optax.scale_by_rss` (Duchi et
/// al. 2011). Defaults: .1, 1e-7.
pub fn scale_by_rss() -> ScaleByRss {
    ScaleByRss { initial_accumulator_value: 0.1, eps: 1e-7 }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByRss {
    type State = ScaleByRssState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        ScaleByRssState { sum_of_squares: full_like(params, self.initial_accumulator_value) }
    }

    #[op("scale_by_rss")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let names = ["updates", "sum_of_squares"];
        let trees = [grads, &state.sum_of_squares];
        let [updates, sum_of_squares] = map_leaves("scale_by_rss", names, trees, |[g, sum]| {
            let sum = g.square() + sum;
            let scale = where_(sum.gt(0.0), (sum + self.eps).rsqrt(), 0.0);
            [scale * g, sum]
        });
        (updates, ScaleByRssState { sum_of_squares })
    }
}

/// Transformation built by [`scale_by_adadelta`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByAdadelta {
    /// Decay rate of the running means.
    pub rho: f64,
    /// Epsilon added under the roots.
    pub eps: f64,
}

/// State of [`scale_by_adadelta`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByAdadeltaState<M> {
    /// Running mean of squared gradients.
    pub e_g: M,
    /// Running mean of squared updates.
    pub e_x: M,
}

/// Scales gradients by the ratio of root mean squares of updates and gradients:
/// `optax.scale_by_adadelta` (Zeiler 2012). Defaults: .9, 1e-6.
pub fn scale_by_adadelta() -> ScaleByAdadelta {
    ScaleByAdadelta { rho: 0.9, eps: 1e-6 }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByAdadelta {
    type State = ScaleByAdadeltaState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        ScaleByAdadeltaState { e_g: zeros_like(params), e_x: zeros_like(params) }
    }

    #[op("scale_by_adadelta")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let names = ["updates", "e_g", "e_x"];
        let trees = [grads, &state.e_g, &state.e_x];
        let [updates, e_g, e_x] = map_leaves("scale_by_adadelta", names, trees, |[g, e_g, e_x]| {
            let e_g = (1.0 - self.rho) * g.square() + self.rho * e_g;
            let update = (e_x + self.eps).sqrt() / (e_g + self.eps).sqrt() * g;
            [update, e_g, (1.0 - self.rho) * update.square() + self.rho * e_x]
        });
        (updates, ScaleByAdadeltaState { e_g, e_x })
    }
}

/// Transformation built by [`scale_by_rprop`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByRprop {
    /// Initial step size.
    pub learning_rate: f64,
    /// Factor of the step size where the sign of the gradient changes.
    pub eta_minus: f64,
    /// Factor of the step size where the sign stays.
    pub eta_plus: f64,
    /// Least step size.
    pub min_step_size: f64,
    /// Largest step size.
    pub max_step_size: f64,
}

/// State of [`scale_by_rprop`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByRpropState<M> {
    /// Step size of each parameter.
    pub step_sizes: M,
    /// Updates of the step before.
    pub prev_updates: M,
}

/// Steps whose sizes grow while the sign of the gradient stays: `optax.scale_by_rprop` (Riedmiller
/// & Braun 1993). Defaults: .5, 1.2, 1e-6, 50.
///
/// As in optax 0.2.8, each update is the step that the gradient before called for, or 0 where the
/// sign of the gradient has changed since.
pub fn scale_by_rprop(learning_rate: f64) -> ScaleByRprop {
    ScaleByRprop {
        learning_rate,
        eta_minus: 0.5,
        eta_plus: 1.2,
        min_step_size: 1e-6,
        max_step_size: 50.0,
    }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByRprop {
    type State = ScaleByRpropState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let step_sizes = full_like(params, self.learning_rate);
        ScaleByRpropState { step_sizes, prev_updates: zeros_like(params) }
    }

    #[op("scale_by_rprop")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let names = ["updates", "step_sizes", "prev_updates"];
        let trees = [grads, &state.step_sizes, &state.prev_updates];
        let [updates, step_sizes, prev_updates] =
            map_leaves("scale_by_rprop", names, trees, |[g, size, prev]| {
                let sign = g * prev;
                let factor = where_(
                    sign.gt(0.0),
                    ops::full_like(g, self.eta_plus),
                    ops::full_like(g, self.eta_minus),
                );
                let changed = (size * factor).clip(self.min_step_size, self.max_step_size);
                let size = where_(sign.eq(0.0), size, changed);
                let reversed = sign.lt(0.0);
                let next = where_(reversed, 0.0, size * g.sign());
                [where_(reversed, 0.0, prev), size, next]
            });
        (updates, ScaleByRpropState { step_sizes, prev_updates })
    }
}

/// Transformation built by [`scale_by_optimistic_gradient`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByOptimisticGradient {
    /// Weight of the gradient.
    pub alpha: f64,
    /// Weight of its change since the step before.
    pub beta: f64,
}

/// State of [`scale_by_optimistic_gradient`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByOptimisticGradientState<T, M> {
    /// True before the first update, `bool`.
    pub is_initial_step: T,
    /// Gradient of the step before.
    pub previous_gradient: M,
}

/// Extrapolates gradients: `(alpha + beta) g - beta g'`, where `g'` is the gradient of the step
/// before: `optax.scale_by_optimistic_gradient` (Mokhtari et al. 2020). Defaults: 1, 1.
pub fn scale_by_optimistic_gradient() -> ScaleByOptimisticGradient {
    ScaleByOptimisticGradient { alpha: 1.0, beta: 1.0 }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByOptimisticGradient {
    type State = ScaleByOptimisticGradientState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        ScaleByOptimisticGradientState {
            is_initial_step: ops::constant(true),
            previous_gradient: zeros_like(params),
        }
    }

    #[op("scale_by_optimistic_gradient")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let names = ["updates", "previous_gradient"];
        let trees = [grads, &state.previous_gradient];
        let [updates, previous_gradient] =
            map_leaves("scale_by_optimistic_gradient", names, trees, |[g, old]| {
                let old = where_(state.is_initial_step, g, old);
                [(self.alpha + self.beta) * g - self.beta * old, g]
            });
        let is_initial_step = ops::constant(false);
        (updates, ScaleByOptimisticGradientState { is_initial_step, previous_gradient })
    }
}
