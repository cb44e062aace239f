//! Losses of policies.

use super::super::{ensure_floats, ensure_same_shape, ensure_without_last_axis};
use super::chosen;
use crate::distributions::Categorical;
use crate::trace::Tensor;
use crate::trace::ops::where_;
use crate::trace::tensor::op;

/// Computes the deterministic policy gradient loss for each element: `rlax.dpg_loss` (Silver et al.
/// 2014). Its gradient by the action `a_t` is `-dqda_t`.
///
/// With `dqda_clipping`, gradients are clipped to that norm along the last axis.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes differ.
#[op]
pub fn dpg_loss(a_t: Tensor, dqda_t: Tensor, dqda_clipping: Option<f64>) -> Tensor {
    ensure_floats("dpg_loss", ["a_t", "dqda_t"], [a_t, dqda_t]);
    ensure_same_shape("dpg_loss", ["a_t", "dqda_t"], [a_t, dqda_t]);
    let dqda_t = match dqda_clipping {
        Some(max_norm) => {
            let square = dqda_t.square().sum_keepdims(-1);
            let zero = square.eq(0.0);
            let norm = where_(zero, 0.0, where_(zero, 1.0, square).sqrt());
            dqda_t * max_norm / norm.maximum(max_norm)
        }
        None => dqda_t,
    };
    0.5 * ((dqda_t + a_t).stop_gradient() - a_t).square()
}

/// Computes the policy gradient loss, a scalar: `rlax.policy_gradient_loss`,
/// `mean(-log pi(a_t) adv_t w_t)`. Logits are `[.., actions]`.
///
/// # Errors
/// Ends the trace if logits are not floats, or if actions (integers), advantages and weights do not
/// have the shape of the logits without the last axis.
#[op]
pub fn policy_gradient_loss(logits_t: Tensor, a_t: Tensor, adv_t: Tensor, w_t: Tensor) -> Tensor {
    ensure_floats("policy_gradient_loss", ["logits_t", "adv_t"], [logits_t, adv_t]);
    let log_pi = chosen("policy_gradient_loss", logits_t.log_softmax(-1), a_t);
    ensure_same_shape("policy_gradient_loss", ["a_t", "adv_t", "w_t"], [a_t, adv_t, w_t]);
    (-log_pi * adv_t.stop_gradient() * w_t).mean(..)
}

/// Computes the entropy loss, a scalar: `rlax.entropy_loss`, `-mean(entropy w_t)`. Logits are
/// `[.., actions]`.
///
/// # Errors
/// Ends the trace if logits are not floats, or if weights do not have their shape without the last axis.
#[op]
pub fn entropy_loss(logits_t: Tensor, w_t: Tensor) -> Tensor {
    ensure_floats("entropy_loss", ["logits_t"], [logits_t]);
    ensure_without_last_axis("entropy_loss", ["logits_t", "w_t"], logits_t, w_t);
    -(Categorical::new(logits_t).entropy() * w_t).mean(..)
}

/// Returns the policy, and advantages of all actions.
#[track_caller]
fn advantages(op: &str, logits_t: Tensor, q_t: Tensor) -> (Tensor, Tensor) {
    ensure_floats(op, ["logits_t", "q_t"], [logits_t, q_t]);
    ensure_same_shape(op, ["logits_t", "q_t"], [logits_t, q_t]);
    let policy = logits_t.softmax(-1);
    let q_t = q_t.stop_gradient();
    (policy, q_t - (policy * q_t).sum_keepdims(-1))
}

/// Computes the policy gradient loss of all actions, a scalar: `rlax.qpg_loss` (Srinivasan et al.
/// 2018). Logits and values are `[.., actions]`.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes differ.
#[op]
pub fn qpg_loss(logits_t: Tensor, q_t: Tensor) -> Tensor {
    let (policy, advantage) = advantages("qpg_loss", logits_t, q_t);
    (-policy * advantage.stop_gradient()).sum(-1).mean(..)
}

/// Computes the regret matching loss, a scalar: `rlax.rm_loss` (Srinivasan et al. 2018).
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes differ.
#[op]
pub fn rm_loss(logits_t: Tensor, q_t: Tensor) -> Tensor {
    let (policy, advantage) = advantages("rm_loss", logits_t, q_t);
    (-policy * advantage.relu().stop_gradient()).sum(-1).mean(..)
}

/// Computes the regret policy gradient loss, a scalar: `rlax.rpg_loss` (Srinivasan et al. 2018).
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes differ.
#[op]
pub fn rpg_loss(logits_t: Tensor, q_t: Tensor) -> Tensor {
    let (_, advantage) = advantages("rpg_loss", logits_t, q_t);
    advantage.relu().sum(-1).mean(..)
}

/// Computes the clipped surrogate loss of PPO, a scalar: `rlax.clipped_surrogate_pg_loss` (Schulman
/// et al. 2017).
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes differ.
#[op]
pub fn clipped_surrogate_pg_loss(prob_ratios_t: Tensor, adv_t: Tensor, epsilon: f64) -> Tensor {
    let names = ["prob_ratios_t", "adv_t"];
    ensure_floats("clipped_surrogate_pg_loss", names, [prob_ratios_t, adv_t]);
    ensure_same_shape("clipped_surrogate_pg_loss", names, [prob_ratios_t, adv_t]);
    let adv_t = adv_t.stop_gradient();
    let clipped = prob_ratios_t.clip(1.0 - epsilon, 1.0 + epsilon);
    -(prob_ratios_t * adv_t).minimum(clipped * adv_t).mean(..)
}
