//! Adafactor: second moments of matrices as the product of a row and a column.

use super::leaves::{map_leaves, scalar_type_of};
use super::{
    AddDecayedWeights, Chain, ClipByBlockRms, Ema, LearningRate, Scale, ScaleByLearningRate,
    ScaleByParamBlockRms, add_decayed_weights, chain, clip_by_block_rms, ema, increment, scale,
    scale_by_param_block_rms,
};
use crate::optim::transformation::{GradientTransformation, OptState};
use crate::trace::ops;
use crate::trace::tensor::op;
use crate::trace::{Shape, Tensor};
use crate::tree::{self, Tree};

/// Transformation built by [`scale_by_factored_rms`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByFactoredRms {
    /// If true, moments of leaves with two large axes are factored.
    pub factored: bool,
    /// Exponent of the decay: the mean at step `t` decays by `1 - t^-decay_rate`.
    pub decay_rate: f64,
    /// Number of steps that are subtracted from the count, for fine-tuning.
    pub step_offset: i32,
    /// Least size of the second largest axis of a leaf whose moments are factored.
    pub min_dim_size_to_factor: usize,
    /// Epsilon added to squared gradients.
    pub epsilon: f64,
}

/// State of [`scale_by_factored_rms`]. Where there is nothing to keep, a leaf is a 0 of shape `[1]`.
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct FactoredState<T, M> {
    /// Number of updates made, `i32`.
    pub count: T,
    /// Means of squared gradients along the largest axis, of factored leaves.
    pub v_row: M,
    /// Means of squared gradients along the second largest axis, of factored leaves.
    pub v_col: M,
    /// Means of squared gradients of other leaves.
    pub v: M,
}

/// Divides gradients by a factored root mean square: `optax.scale_by_factored_rms` (Shazeer & Stern
/// 2018). Defaults: true, .8, 0, 128, 1e-30.
pub fn scale_by_factored_rms() -> ScaleByFactoredRms {
    ScaleByFactoredRms {
        factored: true,
        decay_rate: 0.8,
        step_offset: 0,
        min_dim_size_to_factor: 128,
        epsilon: 1e-30,
    }
}

/// Moments of one leaf: row, column and whole, of which some are placeholders.
type Moments = [Tensor; 3];

impl ScaleByFactoredRms {
    /// Returns the second largest and the largest axis, if moments of this shape are factored.
    fn factored_axes(&self, shape: &Shape) -> Option<(usize, usize)> {
        if !self.factored || shape.rank() < 2 {
            return None;
        }
        let mut axes: Vec<usize> = (0..shape.rank()).collect();
        axes.sort_by_key(|&axis| shape[axis]);
        let (second, largest) = (axes[axes.len() - 2], axes[axes.len() - 1]);
        (shape[second] >= self.min_dim_size_to_factor).then_some((second, largest))
    }

    #[track_caller]
    fn initial_moments(&self, param: Tensor) -> Moments {
        let (shape, dtype) = (param.shape(), param.dtype());
        let nothing = ops::zeros([1], dtype);
        match self.factored_axes(&shape) {
            Some((second, largest)) => [
                ops::zeros(shape.without_axis(largest), dtype),
                ops::zeros(shape.without_axis(second), dtype),
                nothing,
            ],
            None => [nothing, nothing, ops::zeros_like(param)],
        }
    }

    /// Returns the update of one leaf and its new moments. `decay` is the decay rate of the step.
    #[track_caller]
    fn leaf(&self, decay: Tensor, g: Tensor, [row, column, v]: Moments) -> (Tensor, Moments) {
        let decay = decay.to(g.dtype());
        let square = g.square() + self.epsilon;
        let Some((second, largest)) = self.factored_axes(&g.shape()) else {
            let v = decay * v + (1.0 - decay) * square;
            return (g * v.pow(-0.5), [row, column, v]);
        };
        let (d1, d0) = (second as isize, largest as isize);
        let row = decay * row + (1.0 - decay) * square.mean(d0);
        let column = decay * column + (1.0 - decay) * square.mean(d1);
        let d1_in_row = if d1 > d0 { d1 - 1 } else { d1 };
        let row_mean = row.mean(d1_in_row).expand_dims(d1_in_row);
        let row_factor = (row / row_mean).pow(-0.5).expand_dims(d0);
        let column_factor = column.pow(-0.5).expand_dims(d1);
        (g * row_factor * column_factor, [row, column, v])
    }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByFactoredRms {
    type State = FactoredState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let mut moments: [Vec<Tensor>; 3] = Default::default();
        for leaf in tree::leaves(params) {
            for (list, moment) in moments.iter_mut().zip(self.initial_moments(leaf)) {
                list.push(moment);
            }
        }
        let [v_row, v_col, v] = moments.map(|leaves| tree::replace(params, leaves));
        FactoredState { count: ops::constant(0i32), v_row, v_col, v }
    }

    #[op("scale_by_factored_rms")]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let names = ["params", "updates"];
        let [_] = map_leaves("scale_by_factored_rms", names, [params, grads], |[_, g]| [g]);
        let dtype = scalar_type_of(&tree::leaves(grads));
        let step = (state.count - self.step_offset).to(dtype) + 1.0;
        let decay: Tensor = 1.0 - step.pow(-self.decay_rate);
        let old = [&state.v_row, &state.v_col, &state.v].map(tree::leaves);
        let mut updates = Vec::new();
        let mut moments: [Vec<Tensor>; 3] = Default::default();
        for (i, g) in tree::leaves(grads).into_iter().enumerate() {
            let (update, new) = self.leaf(decay, g, [old[0][i], old[1][i], old[2][i]]);
            updates.push(update);
            for (list, moment) in moments.iter_mut().zip(new) {
                list.push(moment);
            }
        }
        let [v_row, v_col, v] = moments.map(|leaves| tree::replace(grads, leaves));
        let state = FactoredState { count: increment(state.count), v_row, v_col, v };
        (tree::replace(grads, updates), state)
    }
}

/// Transformation that may be absent: `None` is the identity.
impl<O: GradientTransformation<P>, P: Tree<Tensor>> GradientTransformation<P> for Option<O> {
    type State = Option<O::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        self.as_ref().map(|inner| inner.init(params))
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        match (self, state) {
            (Some(inner), Some(state)) => {
                let (updates, state) = inner.update(grads, state, params);
                (updates, Some(state))
            }
            (_, state) => (tree::replace(grads, tree::leaves(grads)), state),
        }
    }
}

/// Adafactor (Shazeer & Stern 2018), `optax.adafactor`: [`scale_by_factored_rms`], clipped, times
/// the size of the parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Adafactor<L = f64> {
    /// Learning rate; `None` leaves updates at the size of the parameters.
    pub learning_rate: Option<L>,
    /// Second moments.
    pub factored_rms: ScaleByFactoredRms,
    /// If true, updates are multiplied by the root mean square of the parameters.
    pub multiply_by_parameter_scale: bool,
    /// Largest root mean square of the updates of a leaf, before the learning rate.
    pub clipping_threshold: Option<f64>,
    /// Decay rate of a running mean of updates.
    pub momentum: Option<f64>,
    /// Fraction of the parameters that is subtracted from them at each step.
    pub weight_decay_rate: Option<f64>,
}

/// Returns Adafactor with optax's defaults: factored from 128 on, clipped to 1, scaled by the
/// parameters, no momentum, no weight decay.
pub fn adafactor<L: LearningRate>(learning_rate: L) -> Adafactor<L> {
    Adafactor {
        learning_rate: Some(learning_rate),
        factored_rms: scale_by_factored_rms(),
        multiply_by_parameter_scale: true,
        clipping_threshold: Some(1.0),
        momentum: None,
        weight_decay_rate: None,
    }
}

/// Transformations of [`Adafactor`], in order.
type AdafactorChain<L> = Chain<(
    ScaleByFactoredRms,
    Option<ClipByBlockRms>,
    Option<ScaleByLearningRate<L>>,
    Option<ScaleByParamBlockRms>,
    Option<Ema>,
    Option<AddDecayedWeights>,
    Scale,
)>;

impl<L: LearningRate + Clone> Adafactor<L> {
    fn transformation(&self) -> AdafactorChain<L> {
        let rate = self.learning_rate.clone();
        chain((
            self.factored_rms,
            self.clipping_threshold.map(clip_by_block_rms),
            rate.map(|learning_rate| ScaleByLearningRate { learning_rate, flip_sign: false }),
            self.multiply_by_parameter_scale.then(|| scale_by_param_block_rms(1e-3)),
            self.momentum.map(|decay| Ema { debias: false, ..ema(decay) }),
            self.weight_decay_rate.map(add_decayed_weights),
            scale(-1.0),
        ))
    }
}

impl<L: LearningRate + Clone, P: Tree<Tensor>> GradientTransformation<P> for Adafactor<L> {
    type State = OptState<AdafactorChain<L>, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        self.transformation().init(params)
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        self.transformation().update(grads, state, params)
    }
}
