//! Stochastic gradient descent (SGD) and RMSProp.

use super::{apply_updates, leaves_of, scaled, zeros_like};
use crate::trace::Tensor;
use crate::trace::ops::{self, Operand};
use crate::tree::{self, Tree};

/// Gradient descent with momentum: `optax.sgd`.
///
/// ```text
/// trace  = g + momentum trace
/// update = -learning_rate trace             (nesterov: g + momentum trace once more)
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd<L = f64> {
    /// Learning rate: a number, a traced scalar or a [`Schedule`](super::Schedule).
    pub learning_rate: L,
    /// Decay rate of the trace of gradients; 0 keeps no trace.
    pub momentum: f64,
    /// If true, Nesterov momentum is used.
    pub nesterov: bool,
}

impl Default for Sgd {
    /// Returns a learning rate of 1e-2, without momentum.
    fn default() -> Sgd {
        Sgd { learning_rate: 1e-2, momentum: 0.0, nesterov: false }
    }
}

/// State of [`Sgd`] over parameters `M`.
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct SgdState<M> {
    /// Decaying sum of gradients, if there is momentum.
    pub trace: Option<M>,
}

/// Updates the traces with one gradient; returns the directions of the update, and the traces.
#[track_caller]
fn with_momentum(
    (momentum, nesterov): (f64, bool),
    grads: Vec<Tensor>,
    traces: Vec<Tensor>,
) -> (Vec<Tensor>, Vec<Tensor>) {
    let (mut directions, mut new) = (Vec::new(), Vec::new());
    for (g, trace) in grads.into_iter().zip(traces) {
        let trace = g + momentum * trace;
        directions.push(if nesterov { g + momentum * trace } else { trace });
        new.push(trace);
    }
    (directions, new)
}

impl<L> Sgd<L> {
    /// Returns the same optimizer with another learning rate, such as a traced scalar or a
    /// [`Schedule`](super::Schedule).
    pub fn with_learning_rate<R>(self, learning_rate: R) -> Sgd<R> {
        Sgd { learning_rate, momentum: self.momentum, nesterov: self.nesterov }
    }
}

impl<L: Operand> Sgd<L> {
    /// Returns the state before the first update.
    #[track_caller]
    pub fn init<M: Tree<Tensor>>(&self, params: &M) -> SgdState<M> {
        SgdState { trace: if self.momentum == 0.0 { None } else { Some(zeros_like(params)) } }
    }

    /// Returns the updates to add to the parameters, and the next state.
    #[track_caller]
    pub fn update<M: Tree<Tensor>>(
        &self,
        grads: &M,
        state: SgdState<M>,
        _: &M,
    ) -> (M, SgdState<M>) {
        let Some(trace) = state.trace else {
            let [leaves] = leaves_of("sgd", ["grads"], [grads]);
            let updates = tree::replace(grads, scaled(leaves, self.learning_rate));
            return (updates, SgdState { trace: None });
        };
        let [leaves, traces] = leaves_of("sgd", ["grads", "trace"], [grads, &trace]);
        let (directions, traces) = with_momentum((self.momentum, self.nesterov), leaves, traces);
        let updates = tree::replace(grads, scaled(directions, self.learning_rate));
        (updates, SgdState { trace: Some(tree::replace(grads, traces)) })
    }

    /// Returns the parameters after one update, and the next state.
    #[track_caller]
    pub fn step<M: Tree<Tensor>>(
        &self,
        params: M,
        grads: M,
        state: SgdState<M>,
    ) -> (M, SgdState<M>) {
        let (updates, state) = self.update(&grads, state, &params);
        (apply_updates(params, updates), state)
    }
}

/// RMSProp (Hinton 2012), `optax.rmsprop`; with `eps_in_sqrt: false`, PyTorch's.
///
/// ```text
/// v      = decay v + (1 - decay) g^2
/// update = -learning_rate g / sqrt(v + eps)         eps_in_sqrt
///          -learning_rate g / (sqrt(v) + eps)       otherwise
/// ```
///
/// Momentum accumulates updates, which include the learning rate. PyTorch multiplies by the
/// learning rate last, so that results differ if the learning rate changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsProp<L = f64> {
    /// Learning rate: a number, a traced scalar or a [`Schedule`](super::Schedule).
    pub learning_rate: L,
    /// Decay rate of the running mean of squared gradients. PyTorch's default is .99.
    pub decay: f64,
    /// Epsilon added to avoid division by 0.
    pub eps: f64,
    /// If true, `eps` is added under the root (optax, TensorFlow); if false, to the root (PyTorch).
    pub eps_in_sqrt: bool,
    /// Initial value of the mean of squared gradients. TensorFlow's is 1.
    pub initial_scale: f64,
    /// Decay rate of the trace of updates; 0 keeps no trace.
    pub momentum: f64,
}

impl Default for RmsProp {
    /// Returns optax's defaults: 1e-2, .9, 1e-8 under the root, an initial scale of 0, no momentum.
    fn default() -> RmsProp {
        RmsProp {
            learning_rate: 1e-2,
            decay: 0.9,
            eps: 1e-8,
            eps_in_sqrt: true,
            initial_scale: 0.0,
            momentum: 0.0,
        }
    }
}

/// State of [`RmsProp`] over parameters `M`.
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct RmsPropState<M> {
    /// Running mean of squared gradients.
    pub v: M,
    /// Decaying sum of updates, if there is momentum.
    pub trace: Option<M>,
}

impl<L> RmsProp<L> {
    /// Returns the same optimizer with another learning rate, such as a traced scalar or a
    /// [`Schedule`](super::Schedule).
    pub fn with_learning_rate<R>(self, learning_rate: R) -> RmsProp<R> {
        let RmsProp { decay, eps, eps_in_sqrt, initial_scale, momentum, .. } = self;
        RmsProp { learning_rate, decay, eps, eps_in_sqrt, initial_scale, momentum }
    }
}

impl<L: Operand> RmsProp<L> {
    /// Returns the state before the first update.
    #[track_caller]
    pub fn init<M: Tree<Tensor>>(&self, params: &M) -> RmsPropState<M> {
        let mut v = Vec::new();
        for leaf in tree::leaves(params) {
            v.push(ops::full_like(leaf, self.initial_scale));
        }
        let trace = if self.momentum == 0.0 { None } else { Some(zeros_like(params)) };
        RmsPropState { v: tree::replace(params, v), trace }
    }

    /// Returns the updates to add to the parameters, and the next state.
    #[track_caller]
    pub fn update<M: Tree<Tensor>>(
        &self,
        grads: &M,
        state: RmsPropState<M>,
        _: &M,
    ) -> (M, RmsPropState<M>) {
        let [leaves, old] = leaves_of("rmsprop", ["grads", "v"], [grads, &state.v]);
        let (mut vs, mut directions) = (Vec::new(), Vec::new());
        for (g, v) in leaves.into_iter().zip(old) {
            let v = (1.0 - self.decay) * g.square() + self.decay * v;
            let scale =
                if self.eps_in_sqrt { (v + self.eps).rsqrt() } else { 1.0 / (v.sqrt() + self.eps) };
            vs.push(v);
            directions.push(scale * g);
        }
        let mut updates = scaled(directions, self.learning_rate);
        let mut trace = None;
        if let Some(old) = state.trace {
            let [_, old] = leaves_of("rmsprop", ["grads", "trace"], [grads, &old]);
            let (directions, new) = with_momentum((self.momentum, false), updates, old);
            updates = directions;
            trace = Some(tree::replace(grads, new));
        }
        let v = tree::replace(grads, vs);
        (tree::replace(grads, updates), RmsPropState { v, trace })
    }

    /// Returns the parameters after one update, and the next state.
    #[track_caller]
    pub fn step<M: Tree<Tensor>>(
        &self,
        params: M,
        grads: M,
        state: RmsPropState<M>,
    ) -> (M, RmsPropState<M>) {
        let (updates, state) = self.update(&grads, state, &params);
        (apply_updates(params, updates), state)
    }
}
