//! Scaling by running moments of the gradients: Adam and its relatives.

use super::adam::power;
use super::leaves::{full_like, map_leaves, scalars};
use super::{increment, zeros_like};
use crate::optim::adam::AdamState;
use crate::optim::transformation::GradientTransformation;
use crate::trace::Tensor;
use crate::trace::ops::{self, where_};
use crate::trace::tensor::op;
use crate::tree::{self, Tree};

/// Names of gradients and moments in messages.
const MOMENTS: [&str; 3] = ["updates", "m", "v"];

/// Returns `moment / (1 - decay^count)`.
#[track_caller]
fn bias_corrected(moment: Tensor, decay: f64, count: Tensor) -> Tensor {
    moment / (1.0 - power(decay, count, moment.dtype())).to(moment.dtype())
}

/// Returns the corrected first moment after `count` updates, with Nesterov's look-ahead if asked.
#[track_caller]
fn first_moment(nesterov: bool, b1: f64, count: Tensor, m: Tensor, g: Tensor) -> Tensor {
    if nesterov {
        let ahead = bias_corrected(m, b1, increment(count));
        b1 * ahead + (1.0 - b1) * bias_corrected(g, b1, count)
    } else {
        bias_corrected(m, b1, count)
    }
}

#[track_caller]
fn zero_state<P: Tree<Tensor>>(params: &P) -> AdamState<Tensor, P> {
    AdamState { count: ops::constant(0i32), m: zeros_like(params), v: zeros_like(params) }
}

/// Implements a transformation whose state is an [`AdamState`], by a function from the count after
/// the update and one leaf of the gradients and both moments to the update and the new moments.
macro_rules! by_two_moments {
    ($($name:ident $op:literal $init:expr, |$this:ident, $count:ident, $g:ident, $m:ident, $v:ident|
       $body:expr;)*) => {$(
        impl<P: Tree<Tensor>> GradientTransformation<P> for $name {
            type State = AdamState<Tensor, P>;

            #[track_caller]
            fn init(&self, params: &P) -> Self::State {
                $init(self, params)
            }

            #[op($op)]
            fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
                let ($this, $count) = (self, increment(state.count));
                let trees = [grads, &state.m, &state.v];
                let [updates, m, v] = map_leaves($op, MOMENTS, trees, |[$g, $m, $v]| $body);
                (updates, AdamState { count: $count, m, v })
            }
        }
    )*};
}

/// Transformation built by [`scale_by_adam`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByAdam {
    /// Decay rate of the running mean of gradients.
    pub b1: f64,
    /// Decay rate of the running mean of squared gradients.
    pub b2: f64,
    /// Epsilon added to the root.
    pub eps: f64,
    /// Epsilon added under the root.
    pub eps_root: f64,
    /// If true, Nesterov momentum is used, as by [`nadam`](super::nadam).
    pub nesterov: bool,
}

/// Divides the running mean of gradients by the root of that of their squares:
/// `optax.scale_by_adam` (Kingma & Ba 2015). [`Adam`](super::Adam) is the optimizer.
///
/// Defaults: .9, .999, 1e-8, 0, false. Other hyperparameters:
/// `ScaleByAdam { eps: 1e-5, ..scale_by_adam() }`.
pub fn scale_by_adam() -> ScaleByAdam {
    ScaleByAdam { b1: 0.9, b2: 0.999, eps: 1e-8, eps_root: 0.0, nesterov: false }
}

impl ScaleByAdam {
    fn leaf(&self, count: Tensor, [g, m, v]: [Tensor; 3]) -> [Tensor; 3] {
        let m = (1.0 - self.b1) * g + self.b1 * m;
        let v = (1.0 - self.b2) * g.square() + self.b2 * v;
        let first = first_moment(self.nesterov, self.b1, count, m, g);
        let second = bias_corrected(v, self.b2, count);
        [first / ((second + self.eps_root).sqrt() + self.eps), m, v]
    }
}

/// Transformation built by [`scale_by_adamax`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByAdamax {
    /// Decay rate of the running mean of gradients.
    pub b1: f64,
    /// Decay rate of the running maximum of absolute gradients.
    pub b2: f64,
    /// Epsilon added to absolute gradients.
    pub eps: f64,
}

/// Divides the running mean of gradients by a decaying maximum of their absolute values:
/// `optax.scale_by_adamax` (Kingma & Ba 2015). Defaults: .9, .999, 1e-8.
pub fn scale_by_adamax() -> ScaleByAdamax {
    ScaleByAdamax { b1: 0.9, b2: 0.999, eps: 1e-8 }
}

impl ScaleByAdamax {
    fn leaf(&self, count: Tensor, [g, m, v]: [Tensor; 3]) -> [Tensor; 3] {
        let m = (1.0 - self.b1) * g + self.b1 * m;
        let v = (g.abs() + self.eps).maximum(self.b2 * v);
        [bias_corrected(m, self.b1, count) / v, m, v]
    }
}

/// Transformation built by [`scale_by_belief`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByBelief {
    /// Decay rate of the running mean of gradients.
    pub b1: f64,
    /// Decay rate of the running mean of squared deviations from that mean.
    pub b2: f64,
    /// Epsilon added to the root.
    pub eps: f64,
    /// Epsilon added to the second moment.
    pub eps_root: f64,
    /// If true, Nesterov momentum is used.
    pub nesterov: bool,
}

/// Divides the running mean of gradients by the root of the mean square of their deviations from
/// it: `optax.scale_by_belief` (Zhuang et al. 2020). Defaults: .9, .999, 1e-16, 1e-16, false.
pub fn scale_by_belief() -> ScaleByBelief {
    ScaleByBelief { b1: 0.9, b2: 0.999, eps: 1e-16, eps_root: 1e-16, nesterov: false }
}

impl ScaleByBelief {
    fn leaf(&self, count: Tensor, [g, m, v]: [Tensor; 3]) -> [Tensor; 3] {
        let m = (1.0 - self.b1) * g + self.b1 * m;
        let v = (1.0 - self.b2) * (g - m).square() + self.b2 * v + self.eps_root;
        let first = first_moment(self.nesterov, self.b1, count, m, g);
        [first / (bias_corrected(v, self.b2, count).sqrt() + self.eps), m, v]
    }
}

/// Transformation built by [`scale_by_yogi`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByYogi {
    /// Decay rate of the running mean of gradients.
    pub b1: f64,
    /// Decay rate of the second moment.
    pub b2: f64,
    /// Epsilon added to the root.
    pub eps: f64,
    /// Epsilon added under the root.
    pub eps_root: f64,
    /// Initial value of both moments.
    pub initial_accumulator_value: f64,
}

/// Scales by Adam's moments with additive changes of the second one: `optax.scale_by_yogi`
/// (Zaheer et al. 2018). Defaults: .9, .999, 1e-3, 0, 1e-6.
pub fn scale_by_yogi() -> ScaleByYogi {
    ScaleByYogi { b1: 0.9, b2: 0.999, eps: 1e-3, eps_root: 0.0, initial_accumulator_value: 1e-6 }
}

impl ScaleByYogi {
    #[track_caller]
    fn state<P: Tree<Tensor>>(&self, params: &P) -> AdamState<Tensor, P> {
        let full = || full_like(params, self.initial_accumulator_value);
        AdamState { count: ops::constant(0i32), m: full(), v: full() }
    }

    fn leaf(&self, count: Tensor, [g, m, v]: [Tensor; 3]) -> [Tensor; 3] {
        let m = (1.0 - self.b1) * g + self.b1 * m;
        let square = g.square();
        let v = v - (1.0 - self.b2) * (v - square).sign() * square;
        let second = bias_corrected(v, self.b2, count);
        [bias_corrected(m, self.b1, count) / ((second + self.eps_root).sqrt() + self.eps), m, v]
    }
}

/// Transformation built by [`scale_by_radam`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByRAdam {
    /// Decay rate of the running mean of gradients.
    pub b1: f64,
    /// Decay rate of the running mean of squared gradients.
    pub b2: f64,
    /// Epsilon added to the root.
    pub eps: f64,
    /// Epsilon added under the root.
    pub eps_root: f64,
    /// Length of the approximated simple moving average from which on the second moment is used.
    pub threshold: f64,
    /// If true, Nesterov momentum is used.
    pub nesterov: bool,
}

/// Scales by Adam's moments with a rectified variance: `optax.scale_by_radam` (Liu et al. 2020).
/// [`RAdam`](super::RAdam) is the optimizer. Defaults: .9, .999, 1e-8, 0, 5, false.
pub fn scale_by_radam() -> ScaleByRAdam {
    ScaleByRAdam { b1: 0.9, b2: 0.999, eps: 1e-8, eps_root: 0.0, threshold: 5.0, nesterov: false }
}

impl ScaleByRAdam {
    fn leaf(&self, count: Tensor, [g, m, v]: [Tensor; 3]) -> [Tensor; 3] {
        let m = (1.0 - self.b1) * g + self.b1 * m;
        let v = (1.0 - self.b2) * g.square() + self.b2 * v;
        let decayed = power(self.b2, count, v.dtype());
        let limit = 2.0 / (1.0 - self.b2) - 1.0;
        let length: Tensor = limit - 2.0 * count.to(decayed.dtype()) * decayed / (1.0 - decayed);
        // The argument of the root can be negative where the root is not selected.
        let numerator = (length - 4.0) * (length - 2.0) * limit;
        let factor = (numerator / ((limit - 4.0) * (limit - 2.0) * length)).sqrt();
        let first = first_moment(self.nesterov, self.b1, count, m, g);
        let second = bias_corrected(v, self.b2, count);
        let root = (second + self.eps_root).sqrt() + self.eps;
        let rectified = factor.to(m.dtype()) * first / root;
        [where_(length.ge(self.threshold), rectified, first), m, v]
    }
}

by_two_moments! {
    ScaleByAdam "scale_by_adam" |_: &ScaleByAdam, params: &P| zero_state(params),
        |this, count, g, m, v| this.leaf(count, [g, m, v]);
    ScaleByAdamax "scale_by_adamax" |_: &ScaleByAdamax, params: &P| zero_state(params),
        |this, count, g, m, v| this.leaf(count, [g, m, v]);
    ScaleByBelief "scale_by_belief" |_: &ScaleByBelief, params: &P| zero_state(params),
        |this, count, g, m, v| this.leaf(count, [g, m, v]);
    ScaleByYogi "scale_by_yogi" ScaleByYogi::state,
        |this, count, g, m, v| this.leaf(count, [g, m, v]);
    ScaleByRAdam "scale_by_radam" |_: &ScaleByRAdam, params: &P| zero_state(params),
        |this, count, g, m, v| this.leaf(count, [g, m, v]);
}

/// Transformation built by [`scale_by_amsgrad`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByAmsgrad {
    /// Decay rate of the running mean of gradients.
    pub b1: f64,
    /// Decay rate of the running mean of squared gradients.
    pub b2: f64,
    /// Epsilon added to the root.
    pub eps: f64,
    /// Epsilon added under the root.
    pub eps_root: f64,
    /// If true, the bias of the first moment is corrected.
    pub bias_correction_mu: bool,
    /// If true, the bias of the second moment is corrected before the maximum is taken.
    pub bias_correction_nu: bool,
}

/// State of [`scale_by_amsgrad`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByAmsgradState<T, M> {
    /// Number of updates made, `i32`.
    pub count: T,
    /// Running mean of gradients.
    pub m: M,
    /// Running mean of squared gradients.
    pub v: M,
    /// Largest second moment so far.
    pub v_max: M,
}

/// Scales by Adam's moments, the second one never smaller than before: `optax.scale_by_amsgrad`
/// (Reddi et al. 2018). Defaults: .9, .999, 1e-8, 0, true, true.
pub fn scale_by_amsgrad() -> ScaleByAmsgrad {
    ScaleByAmsgrad {
        b1: 0.9,
        b2: 0.999,
        eps: 1e-8,
        eps_root: 0.0,
        bias_correction_mu: true,
        bias_correction_nu: true,
    }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByAmsgrad {
    type State = ScaleByAmsgradState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let AdamState { count, m, v } = zero_state(params);
        ScaleByAmsgradState { count, m, v, v_max: zeros_like(params) }
    }

    #[op("scale_by_amsgrad")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let count = increment(state.count);
        let names = ["updates", "m", "v", "v_max"];
        let trees = [grads, &state.m, &state.v, &state.v_max];
        let [updates, m, v, v_max] =
            map_leaves("scale_by_amsgrad", names, trees, |[g, m, v, v_max]| {
                let m = (1.0 - self.b1) * g + self.b1 * m;
                let v = (1.0 - self.b2) * g.square() + self.b2 * v;
                let corrected = |on, moment, decay| {
                    if on { bias_corrected(moment, decay, count) } else { moment }
                };
                let first = corrected(self.bias_correction_mu, m, self.b1);
                let v_max = v_max.maximum(corrected(self.bias_correction_nu, v, self.b2));
                [first / ((v_max + self.eps_root).sqrt() + self.eps), m, v, v_max]
            });
        (updates, ScaleByAmsgradState { count, m, v, v_max })
    }
}

/// Transformation built by [`scale_by_lion`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByLion {
    /// Weight of the running mean of gradients in the update.
    pub b1: f64,
    /// Decay rate of the running mean of gradients.
    pub b2: f64,
}

/// State of [`scale_by_lion`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByLionState<T, M> {
    /// Number of updates made, `i32`.
    pub count: T,
    /// Running mean of gradients.
    pub m: M,
}

/// Takes the sign of a mean of the gradient and its running mean: `optax.scale_by_lion` (Chen et
/// al. 2023). Defaults: .9, .99.
pub fn scale_by_lion() -> ScaleByLion {
    ScaleByLion { b1: 0.9, b2: 0.99 }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByLion {
    type State = ScaleByLionState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        ScaleByLionState { count: ops::constant(0i32), m: zeros_like(params) }
    }

    #[op("scale_by_lion")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let trees = [grads, &state.m];
        let [updates, m] = map_leaves("scale_by_lion", ["updates", "m"], trees, |[g, m]| {
            let mixed = (1.0 - self.b1) * g + self.b1 * m;
            [mixed.sign(), (1.0 - self.b2) * g + self.b2 * m]
        });
        (updates, ScaleByLionState { count: increment(state.count), m })
    }
}

/// Transformation built by [`scale_by_novograd`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByNovograd {
    /// Decay rate of the running sum of normalized gradients.
    pub b1: f64,
    /// Decay rate of the running mean of the squared norm of each leaf.
    pub b2: f64,
    /// Epsilon added to the root.
    pub eps: f64,
    /// Epsilon added under the root.
    pub eps_root: f64,
    /// Weight decay: fraction of the parameters that is added to normalized gradients.
    pub weight_decay: f64,
}

/// Divides gradients by a running norm of their leaf, then accumulates them:
/// `optax.scale_by_novograd` (Ginsburg et al. 2019). Defaults: .9, .25, 1e-8, 0, 0.
///
/// The second moment in the state has one scalar for each leaf.
pub fn scale_by_novograd() -> ScaleByNovograd {
    ScaleByNovograd { b1: 0.9, b2: 0.25, eps: 1e-8, eps_root: 0.0, weight_decay: 0.0 }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByNovograd {
    type State = AdamState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let v = scalars(params, |p| ops::zeros([], p.dtype()));
        AdamState { count: ops::constant(0i32), m: zeros_like(params), v }
    }

    #[op("scale_by_novograd")]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let count = increment(state.count);
        let first = count.eq(1);
        let old = tree::leaves(&state.v);
        let mut new = Vec::with_capacity(old.len());
        for (g, v) in tree::leaves(grads).into_iter().zip(old) {
            let square = g.norm().square();
            new.push(where_(first, square, (1.0 - self.b2) * square + self.b2 * v));
        }
        let v = tree::replace(&state.v, new.iter().copied());
        let spread = tree::leaves(grads).into_iter().zip(new);
        let spread = spread.map(|(g, v)| v.broadcast_to(g.shape()));
        let v_like_grads = tree::replace(grads, spread.collect::<Vec<_>>());
        let names = ["updates", "params", "m", "v"];
        let trees = [grads, params, &state.m, &v_like_grads];
        let [m] = map_leaves("scale_by_novograd", names, trees, |[g, p, m, v]| {
            let normalized = g / ((v + self.eps_root).sqrt() + self.eps) + self.weight_decay * p;
            [where_(first, normalized, self.b1 * m + normalized)]
        });
        let updates = tree::replace(&m, tree::leaves(&m));
        (updates, AdamState { count, m, v })
    }
}

/// Transformation built by [`scale_by_adan`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByAdan {
    /// Decay rate of the running mean of gradients.
    pub b1: f64,
    /// Decay rate of the running mean of differences of gradients.
    pub b2: f64,
    /// Decay rate of the running mean of squares.
    pub b3: f64,
    /// Epsilon added to the root.
    pub eps: f64,
    /// Epsilon added under the root.
    pub eps_root: f64,
}

/// State of [`scale_by_adan`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByAdanState<T, M> {
    /// Running mean of gradients.
    pub m: M,
    /// Running mean of differences of gradients.
    pub v: M,
    /// Running mean of squares.
    pub n: M,
    /// Gradients of the update before.
    pub g: M,
    /// Number of updates made, `i32`.
    pub count: T,
}

/// Scales by moments of gradients and of their differences: `optax.scale_by_adan` (Xie et al.
/// 2022). Defaults: .98, .92, .99, 1e-8, 0.
pub fn scale_by_adan() -> ScaleByAdan {
    ScaleByAdan { b1: 0.98, b2: 0.92, b3: 0.99, eps: 1e-8, eps_root: 0.0 }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByAdan {
    type State = ScaleByAdanState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let zeros = || zeros_like(params);
        ScaleByAdanState {
            m: zeros(),
            v: zeros(),
            n: zeros(),
            g: zeros(),
            count: ops::constant(0i32),
        }
    }

    #[op("scale_by_adan")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let first = state.count.eq(0);
        let count = increment(state.count);
        let names = ["updates", "m", "v", "n", "g"];
        let trees = [grads, &state.m, &state.v, &state.n, &state.g];
        let [updates, m, v, n, g] =
            map_leaves("scale_by_adan", names, trees, |[g, m, v, n, old]| {
                let difference = where_(first, 0.0, g - old);
                let m = (1.0 - self.b1) * g + self.b1 * m;
                let v = (1.0 - self.b2) * difference + self.b2 * v;
                let square = (g + (1.0 - self.b2) * difference).square();
                let n = (1.0 - self.b3) * square + self.b3 * n;
                let first = bias_corrected(m, self.b1, count)
                    + (1.0 - self.b2) * bias_corrected(v, self.b2, count);
                let second = bias_corrected(n, self.b3, count);
                [first / ((second + self.eps_root).sqrt() + self.eps), m, v, n, g]
            });
        (updates, ScaleByAdanState { m, v, n, g, count })
    }
}
