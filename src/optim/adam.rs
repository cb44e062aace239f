//! Adam, AdamW and RAdam.

use super::leaves::{scalar_type, scalar_type_of};
use super::{apply_updates, leaves_of, scaled, zeros_like};
use crate::trace::ops::{self, Operand, constant, where_};
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

/// Adam (Kingma & Ba 2015), `optax.adam`; with a `weight_decay`, AdamW (Loshchilov & Hutter 2019),
/// `optax.adamw`.
///
/// ```text
/// m  = b1 m + (1 - b1) g            m^ = m / (1 - b1^t)
/// v  = b2 v + (1 - b2) g^2          v^ = v / (1 - b2^t)
/// update = -learning_rate (m^ / (sqrt(v^ + eps_root) + eps) + weight_decay params)
/// ```
///
/// `eps` is added outside the root, after the bias correction, as in PyTorch.
#[doc(alias = "AdamW")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam<L = f64> {
    /// Learning rate: a number, a traced scalar or a [`Schedule`](super::Schedule).
    pub learning_rate: L,
    /// Decay rate of the running mean of gradients.
    pub b1: f64,
    /// Decay rate of the running mean of squared gradients.
    pub b2: f64,
    /// Epsilon added to the root, to avoid division by 0. PPO uses 1e-5.
    pub eps: f64,
    /// Epsilon added under the root.
    pub eps_root: f64,
    /// Weight decay: the fraction of the parameters that is added to the update before it is scaled
    /// by the learning rate; it does not enter the moments.
    pub weight_decay: f64,
}

impl Default for Adam {
    /// Returns optax's defaults: 1e-3, .9, .999, 1e-8, 0, 0.
    fn default() -> Adam {
        Adam {
            learning_rate: 1e-3,
            b1: 0.9,
            b2: 0.999,
            eps: 1e-8,
            eps_root: 0.0,
            weight_decay: 0.0,
        }
    }
}

/// State of [`Adam`] and [`RAdam`] over parameters `M`.
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct AdamState<T, M> {
    /// Number of updates made, `i32`.
    pub count: T,
    /// Running mean of gradients.
    pub m: M,
    /// Running mean of squared gradients.
    pub v: M,
}

/// Returns the state before the first update.
#[track_caller]
fn init<M: Tree<Tensor>>(params: &M) -> AdamState<Tensor, M> {
    AdamState { count: ops::constant(0i32), m: zeros_like(params), v: zeros_like(params) }
}

/// Updates the moments of every leaf with one gradient.
#[track_caller]
fn moments((b1, b2): (f64, f64), [grads, ms, vs]: [Vec<Tensor>; 3]) -> (Vec<Tensor>, Vec<Tensor>) {
    let (mut new_ms, mut new_vs) = (Vec::new(), Vec::new());
    for ((g, m), v) in grads.into_iter().zip(ms).zip(vs) {
        new_ms.push((1.0 - b1) * g + b1 * m);
        new_vs.push((1.0 - b2) * g.square() + b2 * v);
    }
    (new_ms, new_vs)
}

/// Returns `count + 1`, saturating at the largest i32: `optax.safe_increment`.
#[track_caller]
pub(super) fn increment(count: Tensor) -> Tensor {
    where_(count.lt(i32::MAX), count + 1, count)
}

/// Computes `decay^count` for leaves of `dtype`, in its [`scalar_type`].
#[track_caller]
pub(super) fn power(decay: f64, count: Tensor, dtype: DType) -> Tensor {
    let dtype = scalar_type(dtype);
    let decay = if dtype == DType::F64 { constant(decay) } else { constant(decay as f32) };
    decay.pow(count.to(dtype))
}

impl<L> Adam<L> {
    /// Returns the same optimizer with another learning rate, such as a traced scalar or a
    /// [`Schedule`](super::Schedule).
    pub fn with_learning_rate<R>(self, learning_rate: R) -> Adam<R> {
        let Adam { b1, b2, eps, eps_root, weight_decay, .. } = self;
        Adam { learning_rate, b1, b2, eps, eps_root, weight_decay }
    }
}

impl<L: Operand> Adam<L> {
    /// Returns the state before the first update.
    #[track_caller]
    pub fn init<M: Tree<Tensor>>(&self, params: &M) -> AdamState<Tensor, M> {
        init(params)
    }

    /// Returns the updates to add to the parameters, and the next state.
    #[track_caller]
    pub fn update<M: Tree<Tensor>>(
        &self,
        grads: &M,
        state: AdamState<Tensor, M>,
        params: &M,
    ) -> (M, AdamState<Tensor, M>) {
        let names = ["params", "grads", "m", "v"];
        let [values, grads, ms, vs] = leaves_of("adam", names, [params, grads, &state.m, &state.v]);
        let (ms, vs) = moments((self.b1, self.b2), [grads, ms, vs]);
        let (count, dtype) = (increment(state.count), scalar_type_of(&values));
        let m_scale: Tensor = 1.0 - power(self.b1, count, dtype);
        let v_scale: Tensor = 1.0 - power(self.b2, count, dtype);
        let mut directions = Vec::with_capacity(values.len());
        for ((param, m), v) in values.into_iter().zip(&ms).zip(&vs) {
            let (m_scale, v_scale) = (m_scale.to(m.dtype()), v_scale.to(v.dtype()));
            let mut direction = *m / m_scale / self.denominator(*v / v_scale);
            if self.weight_decay != 0.0 {
                direction = direction + param * self.weight_decay;
            }
            directions.push(direction);
        }
        let updates = tree::replace(params, scaled(directions, self.learning_rate));
        let m = tree::replace(params, ms);
        let v = tree::replace(params, vs);
        (updates, AdamState { count, m, v })
    }

    /// Returns the parameters after one update, and the next state.
    #[track_caller]
    pub fn step<M: Tree<Tensor>>(
        &self,
        params: M,
        grads: M,
        state: AdamState<Tensor, M>,
    ) -> (M, AdamState<Tensor, M>) {
        let (updates, state) = self.update(&grads, state, &params);
        (apply_updates(params, updates), state)
    }

    #[track_caller]
    fn denominator(&self, v: Tensor) -> Tensor {
        let v = if self.eps_root == 0.0 { v } else { v + self.eps_root };
        v.sqrt() + self.eps
    }
}

/// Rectified Adam (Liu et al. 2020), `optax.radam`: momentum without the second moment until the
/// estimate of the second moment has low variance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RAdam<L = f64> {
    /// Learning rate: a number, a traced scalar or a [`Schedule`](super::Schedule).
    pub learning_rate: L,
    /// Decay rate of the running mean of gradients.
    pub b1: f64,
    /// Decay rate of the running mean of squared gradients.
    pub b2: f64,
    /// Epsilon added to the root, to avoid division by 0.
    pub eps: f64,
    /// Length of the approximated simple moving average from which on the second moment is used.
    pub threshold: f64,
}

impl Default for RAdam {
    /// Returns optax's defaults: 1e-3, .9, .999, 1e-8, 5.
    fn default() -> RAdam {
        RAdam { learning_rate: 1e-3, b1: 0.9, b2: 0.999, eps: 1e-8, threshold: 5.0 }
    }
}

impl<L> RAdam<L> {
    /// Returns the same optimizer with another learning rate, such as a traced scalar or a
    /// [`Schedule`](super::Schedule).
    pub fn with_learning_rate<R>(self, learning_rate: R) -> RAdam<R> {
        let RAdam { b1, b2, eps, threshold, .. } = self;
        RAdam { learning_rate, b1, b2, eps, threshold }
    }
}

impl<L: Operand> RAdam<L> {
    /// Returns the state before the first update.
    #[track_caller]
    pub fn init<M: Tree<Tensor>>(&self, params: &M) -> AdamState<Tensor, M> {
        init(params)
    }

    /// Returns the updates to add to the parameters, and the next state.
    #[track_caller]
    pub fn update<M: Tree<Tensor>>(
        &self,
        grads: &M,
        state: AdamState<Tensor, M>,
        _: &M,
    ) -> (M, AdamState<Tensor, M>) {
        let [grad_leaves, ms, vs] =
            leaves_of("radam", ["grads", "m", "v"], [grads, &state.m, &state.v]);
        let (ms, vs) = moments((self.b1, self.b2), [grad_leaves, ms, vs]);
        let (count, dtype) = (increment(state.count), scalar_type_of(&ms));
        let decayed = power(self.b2, count, dtype);
        let m_scale: Tensor = 1.0 - power(self.b1, count, dtype);
        let v_scale: Tensor = 1.0 - decayed;
        let limit = 2.0 / (1.0 - self.b2) - 1.0;
        let length: Tensor = limit - 2.0 * count.to(dtype) * decayed / v_scale;
        let rectified = length.ge(self.threshold);
        // The argument of the root can be negative where the root is not selected.
        let numerator = (length - 4.0) * (length - 2.0) * limit;
        let factor = (numerator / ((limit - 4.0) * (limit - 2.0) * length)).sqrt();
        let mut directions = Vec::with_capacity(ms.len());
        for (m, v) in ms.iter().zip(&vs) {
            let dtype = m.dtype();
            let plain = *m / m_scale.to(dtype);
            let root = (*v / v_scale.to(dtype)).sqrt() + self.eps;
            directions.push(where_(rectified, factor.to(dtype) * plain / root, plain));
        }
        let updates = tree::replace(grads, scaled(directions, self.learning_rate));
        let m = tree::replace(grads, ms);
        let v = tree::replace(grads, vs);
        (updates, AdamState { count, m, v })
    }

    /// Returns the parameters after one update, and the next state.
    #[track_caller]
    pub fn step<M: Tree<Tensor>>(
        &self,
        params: M,
        grads: M,
        state: AdamState<Tensor, M>,
    ) -> (M, AdamState<Tensor, M>) {
        let (updates, state) = self.update(&grads, state, &params);
        (apply_updates(params, updates), state)
    }
}
