//! Weight decay and gradient noise.

use std::any::Any;

use super::increment;
use super::leaves::{map_leaves, scalar_type_of};
use super::scale::scalar;
use crate::optim::transformation::GradientTransformation;
use crate::random::{Key, normal};
use crate::trace::Tensor;
use crate::trace::ops::{self, Operand};
use crate::trace::tensor::op;
use crate::tree::{self, Tree};

/// Transformation built by [`add_decayed_weights`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddDecayedWeights<S = f64>(S);

/// Adds `weight_decay * params`, a number or a traced scalar times the parameters, to the updates:
/// `optax.add_decayed_weights`.
///
/// To decay only some parameters, as by optax's `mask`, see [`masked`](super::masked()).
pub fn add_decayed_weights<S: Operand>(weight_decay: S) -> AddDecayedWeights<S> {
    AddDecayedWeights(weight_decay)
}

impl<S: Operand, P: Tree<Tensor>> GradientTransformation<P> for AddDecayedWeights<S> {
    type State = ();

    fn init(&self, _: &P) {}

    #[op("add_decayed_weights")]
    fn update(&self, grads: &P, (): (), params: &P) -> (P, ()) {
        let names = ["updates", "params"];
        // Without decay infinite parameters leave updates finite.
        let none = (&self.0 as &dyn Any).downcast_ref::<f64>() == Some(&0.0);
        let [updates] = map_leaves("add_decayed_weights", names, [grads, params], |[u, p]| {
            [if none { u } else { u + scalar("weight_decay", self.0, p.dtype()) * p }]
        });
        (updates, ())
    }
}

/// Transformation built by [`add_noise`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddNoise {
    eta: f64,
    gamma: f64,
    seed: u64,
}

/// State of [`add_noise`].
#[derive(Debug, Tree)]
pub struct AddNoiseState<T> {
    /// Number of updates made, `i32`.
    pub count: T,
    /// PRNG key.
    pub key: Key<T>,
}

/// Adds normal noise of variance `eta / count^gamma` to updates: `optax.add_noise` (Neelakantan et
/// al. 2014). The noise is that of `optax.add_noise(eta, gamma, key=seed)`.
pub fn add_noise(eta: f64, gamma: f64, seed: u64) -> AddNoise {
    AddNoise { eta, gamma, seed }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for AddNoise {
    type State = AddNoiseState<Tensor>;

    #[track_caller]
    fn init(&self, _: &P) -> Self::State {
        AddNoiseState { count: ops::constant(0i32), key: Key::constant(self.seed) }
    }

    #[op("add_noise")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let count = increment(state.count);
        let leaves = tree::leaves(grads);
        let dtype = scalar_type_of(&leaves);
        let variance: Tensor = self.eta / count.to(dtype).pow(self.gamma);
        let (next, sample) = state.key.split();
        let mut noisy = Vec::with_capacity(leaves.len());
        for (g, key) in leaves.iter().zip(sample.split_vec(leaves.len())) {
            let noise = normal(key, g.shape(), g.dtype());
            noisy.push(*g + variance.sqrt().to(g.dtype()) * noise);
        }
        (tree::replace(grads, noisy), AddNoiseState { count, key: next })
    }
}
