//! Coin betting.

use super::super::leaves::{full_like, map_leaves};
use super::super::{
    AddDecayedWeights, Chain, LearningRate, add_decayed_weights, chain, zeros_like,
};
use crate::optim::transformation::GradientTransformation;
use crate::trace::Tensor;
use crate::trace::tensor::op;
use crate::tree::{self, Tree};

/// Transformation built by [`scale_by_cocob`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByCocob {
    /// Bound of the first bets: the fraction of the wealth is at most 1 divided by it.
    pub alpha: f64,
    /// First scale of the gradients.
    pub eps: f64,
}

/// State of [`scale_by_cocob`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByCocobState<M> {
    /// Parameters before the first update.
    pub init_particles: M,
    /// Sum of the negative gradients.
    pub cumulative_gradients: M,
    /// Largest absolute gradient.
    pub scale: M,
    /// Sum of the absolute gradients.
    pub subgradients: M,
    /// Reward of the bets, at least 0.
    pub reward: M,
}

/// Bets on the signs of gradients, element by element, without a learning rate:
/// `optax.contrib.scale_by_cocob` (Orabona & Tommasi 2017). Defaults: 100, 1e-8.
pub fn scale_by_cocob() -> ScaleByCocob {
    ScaleByCocob { alpha: 100.0, eps: 1e-8 }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByCocob {
    type State = ScaleByCocobState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        ScaleByCocobState {
            init_particles: tree::replace(params, tree::leaves(params)),
            cumulative_gradients: zeros_like(params),
            scale: full_like(params, self.eps),
            subgradients: zeros_like(params),
            reward: zeros_like(params),
        }
    }

    #[op("scale_by_cocob")]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let names = [
            "updates",
            "params",
            "init_particles",
            "cumulative_gradients",
            "scale",
            "subgradients",
            "reward",
        ];
        let trees = [
            grads,
            params,
            &state.init_particles,
            &state.cumulative_gradients,
            &state.scale,
            &state.subgradients,
            &state.reward,
        ];
        let results =
            map_leaves("scale_by_cocob", names, trees, |[g, p, p0, sum, scale, abs, reward]| {
                let (scale, abs) = (scale.maximum(g.abs()), abs + g.abs());
                let reward = (reward - g * (p - p0)).maximum(0.0);
                let sum = sum - g;
                let bet = sum / (scale * (abs + scale).maximum(self.alpha * scale));
                [p0 + bet * (scale + reward) - p, sum, scale, abs, reward]
            });
        let [updates, cumulative_gradients, scale, subgradients, reward] = results;
        let state = ScaleByCocobState {
            init_particles: state.init_particles,
            cumulative_gradients,
            scale,
            subgradients,
            reward,
        };
        (updates, state)
    }
}

/// Multiplication by a learning rate without a change of sign, a part of [`cocob`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleWithoutFlip<L = f64> {
    learning_rate: L,
}

impl<L: LearningRate, P: Tree<Tensor>> GradientTransformation<P> for ScaleWithoutFlip<L> {
    type State = L::State;

    #[track_caller]
    fn init(&self, _: &P) -> Self::State {
        self.learning_rate.init()
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        self.learning_rate.scale(1.0, grads, state)
    }
}

/// Returns COCOB, which needs no learning rate: `optax.contrib.cocob` with optax's other defaults.
/// Gradients are multiplied by `learning_rate`, usually 1, and have `weight_decay` times the parameters
/// added before.
pub fn cocob<L: LearningRate>(
    learning_rate: L,
    weight_decay: f64,
) -> Chain<(AddDecayedWeights, ScaleWithoutFlip<L>, ScaleByCocob)> {
    chain((add_decayed_weights(weight_decay), ScaleWithoutFlip { learning_rate }, scale_by_cocob()))
}
