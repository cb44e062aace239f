//! A tuner of learning rates.

use std::panic::Location;

use super::super::lbfgs::tree_vdot;
use super::super::{global_norm, increment, leaves_of};
use super::scalar_type;
use crate::optim::transformation::GradientTransformation;
use crate::trace::tensor::{at_line, fail_op, op};
use crate::trace::{DType, Literal, Tensor, ops};
use crate::tree::{self, Tree};

/// Optimizer whose learning rate is tuned; built by [`mechanize`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mechanic<O> {
    /// Optimizer whose updates are scaled.
    pub base_optimizer: O,
    /// Weight decay, relative to the norms of gradients and parameters.
    pub weight_decay: f64,
    /// Epsilon of divisions.
    pub eps: f64,
    /// First scale.
    pub s_init: f64,
    /// Number of tuners, of which the i-th forgets at a rate of `0.1^i`, from 1.
    pub num_betas: usize,
}

/// State of [`mechanize`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M, nested = S)]
pub struct MechanicState<T, M, S> {
    /// State of the base optimizer.
    pub base_optimizer_state: S,
    /// Number of updates made, `i32`.
    pub count: T,
    /// Decaying rewards, `[num_betas]`.
    pub r: T,
    /// Largest products so far, `[num_betas]`.
    pub m: T,
    /// Decaying sums of squared products, `[num_betas]`.
    pub v: T,
    /// Scales, whose sum multiplies the updates, `[num_betas]`.
    pub s: T,
    /// Parameters before the first update.
    pub x0: M,
}

/// Scales the updates of `base_optimizer` by a tuned factor, which replaces a choice of its learning rate:
/// `optax.contrib.mechanize` (Cutkosky et al. 2023). Defaults: 1e-2, 1e-8, 1e-6, 6.
///
/// # Errors
/// The initialization ends the trace if `num_betas` is 0.
pub fn mechanize<O>(base_optimizer: O) -> Mechanic<O> {
    Mechanic { base_optimizer, weight_decay: 1e-2, eps: 1e-8, s_init: 1e-6, num_betas: 6 }
}

impl<O: GradientTransformation<P>, P: Tree<Tensor>> GradientTransformation<P> for Mechanic<O> {
    type State = MechanicState<Tensor, P, O::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        if self.num_betas == 0 {
            fail_op("mechanize", "num_betas must be at least 1");
        }
        let zeros = || ops::zeros([self.num_betas], scalar_type(params));
        MechanicState {
            base_optimizer_state: self.base_optimizer.init(params),
            count: ops::constant(0i32),
            r: zeros(),
            m: zeros(),
            v: zeros(),
            s: zeros() + self.s_init,
            x0: tree::replace(params, tree::leaves(params)),
        }
    }

    #[op("mechanize")]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let names = ["updates", "params", "x0"];
        let [g, p, x0] = leaves_of("mechanize", names, [grads, params, &state.x0]);
        let (base, base_optimizer_state) =
            self.base_optimizer.update(grads, state.base_optimizer_state, params);
        at_line(Location::caller(), || {
            let (m, r, v, s) = (state.m, state.r, state.v, state.s);
            let dtype = s.dtype();
            let scale = s.sum(..);
            let ratio = global_norm(grads).to(dtype) / (global_norm(params).to(dtype) + self.eps);
            let decay = self.weight_decay * scale * ratio;
            let decayed: Vec<Tensor> =
                g.iter().zip(&p).map(|(g, p)| *g + decay.to(g.dtype()) * *p).collect();
            let previous =
                x0.iter().zip(&p).map(|(x0, p)| (*x0 - *p) / (scale + self.eps).to(p.dtype()));
            let previous: Vec<Tensor> = previous.collect();
            let product = tree_vdot(&decayed, &previous).to(dtype);
            let clipped = product.broadcast_to(m.shape()).clamp(-m, m);
            let betas = self.betas(dtype);
            let m = (betas * m).maximum(product.abs() + self.eps);
            let v = betas.square() * v + product.square();
            let r = betas * r + clipped * s;
            let wealth = self.s_init / self.num_betas as f64 * m + r.maximum(0.0);
            let s = wealth / (v.sqrt() + self.eps);
            let scale = s.sum(..);
            let moves = tree::leaves(&base);
            let updates = x0
                .iter()
                .zip(&previous)
                .zip(&moves)
                .zip(&p)
                .map(|(((x0, d), u), p)| *x0 - scale.to(p.dtype()) * (*d - *u) - *p);
            let updates: Vec<Tensor> = updates.collect();
            let count = increment(state.count);
            let state = MechanicState { base_optimizer_state, count, r, m, v, s, x0: state.x0 };
            (tree::replace(grads, updates), state)
        })
    }
}

impl<O> Mechanic<O> {
    /// Returns the decay rates of the tuners.
    #[track_caller]
    fn betas(&self, dtype: DType) -> Tensor {
        let betas: Vec<f64> = (1..=self.num_betas).map(|i| 1.0 - 0.1f64.powi(i as i32)).collect();
        ops::constant(Literal::from(betas)).to(dtype)
    }
}
