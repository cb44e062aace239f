//! V-trace (Espeholt et al. 2018).

use super::returns::accumulate;
use super::{broadcast_like, ensure_sequences};
use crate::trace::Tensor;
use crate::trace::ops::{Operand, concatenate, zeros_like};
use crate::trace::tensor::op;

/// Thresholds of [`vtrace`] and [`vtrace_td_error_and_advantage`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VTrace {
    /// Largest importance ratio of temporal-difference errors.
    pub clip_rho_threshold: f64,
    /// Largest importance ratio of advantages.
    pub clip_pg_rho_threshold: f64,
    /// Weight of clipped ratios beside unclipped ones: less than 1 is leaky V-trace (Zahavy et al.
    /// 2020).
    pub alpha: f64,
}

impl Default for VTrace {
    /// Returns rlax's defaults: 1, 1, 1.
    fn default() -> VTrace {
        VTrace { clip_rho_threshold: 1.0, clip_pg_rho_threshold: 1.0, alpha: 1.0 }
    }
}

/// Result of [`vtrace_td_error_and_advantage`].
#[derive(Debug, Clone, crate::Tree)]
pub struct VTraceOutput<T> {
    /// Errors of the values, `target - v_tm1`.
    pub errors: T,
    /// Advantages of the actions, for the policy gradient.
    pub pg_advantage: T,
    /// Estimates of the values of the actions.
    pub q_estimate: T,
}

impl VTrace {
    /// Returns ratios limited to `threshold`, mixed with unlimited ones.
    #[track_caller]
    fn clipped(&self, rho: Tensor, threshold: f64) -> Tensor {
        let clipped = rho.minimum(threshold);
        if self.alpha == 1.0 {
            return clipped;
        }
        (1.0 - self.alpha) * rho + self.alpha * clipped
    }
}

/// Computes the errors of values by V-trace, `target - v_tm1`: `rlax.vtrace`, and with an `alpha`
/// below 1 `rlax.leaky_vtrace`.
///
/// `rho_tm1` are ratios of the probabilities of actions under the target and the behavior policy.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes differ.
#[op]
pub fn vtrace(
    v_tm1: Tensor,
    v_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    rho_tm1: Tensor,
    lambda: impl Operand,
    options: VTrace,
) -> Tensor {
    let names = ["v_tm1", "v_t", "r_t", "discount_t", "rho_tm1"];
    ensure_sequences("vtrace", names, [v_tm1, v_t, r_t, discount_t, rho_tm1]);
    let c_tm1 = options.clipped(rho_tm1, 1.0) * broadcast_like(lambda, r_t);
    let rho = options.clipped(rho_tm1, options.clip_rho_threshold);
    let td_errors = rho * (r_t + discount_t * v_t - v_tm1);
    let errors = accumulate(td_errors, discount_t * c_tm1, zeros_like(r_t.index_axis(0, 0)));
    (errors + v_tm1).stop_gradient() - v_tm1
}

/// Computes errors of values, advantages and values of actions by V-trace:
/// `rlax.vtrace_td_error_and_advantage`, and with an `alpha` below 1
/// `rlax.leaky_vtrace_td_error_and_advantage`.
///
/// # Errors
/// Ends the trace in the cases of [`vtrace`].
#[op]
pub fn vtrace_td_error_and_advantage(
    v_tm1: Tensor,
    v_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    rho_tm1: Tensor,
    lambda: impl Operand,
    options: VTrace,
) -> VTraceOutput<Tensor> {
    let errors = vtrace(v_tm1, v_t, r_t, discount_t, rho_tm1, lambda, options);
    let length = r_t.dim(0);
    let lambda = broadcast_like(lambda, r_t).slice_axis(0, 0, length - 1);
    let next = |x: Tensor| x.slice_axis(0, 1, length);
    let mixed = lambda * next(errors + v_tm1) + (1.0 - lambda) * next(v_tm1);
    let bootstrap = concatenate(&[mixed, v_t.slice_axis(0, length - 1, length)], 0);
    let q_estimate = r_t + discount_t * bootstrap;
    let rho = options.clipped(rho_tm1, options.clip_pg_rho_threshold);
    VTraceOutput { errors, pg_advantage: rho * (q_estimate - v_tm1), q_estimate }
}
