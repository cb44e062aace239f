//! Maximum a posteriori policy optimization.

use super::super::{ensure_floats, ensure_same_shape};
use crate::trace::Tensor;
use crate::trace::tensor::{fail_op, op};
use crate::tree::Tree;

/// Added to sums of weights, and least value of multipliers.
const EPSILON: f64 = 1e-10;

/// Bound that a Lagrange multiplier enforces: `rlax.LagrangePenalty`.
#[derive(Debug, Clone, Copy)]
pub struct LagrangePenalty {
    /// Multiplier; values below 1e-10 count as that.
    pub alpha: Tensor,
    /// Bound.
    pub epsilon: f64,
    /// If true, divergences have a last axis of dimensions, over which losses are added.
    pub per_dimension: bool,
}

/// Parts of [`mpo_loss`] and [`vmpo_loss`]: `rlax.MpoOutputs`.
#[derive(Debug, Clone, Tree)]
pub struct MpoOutputs<T> {
    /// Loss of the temperature.
    pub temperature_loss: T,
    /// Loss of the policy.
    pub policy_loss: T,
    /// Divergences times their multipliers.
    pub kl_loss: T,
    /// Loss of the multipliers.
    pub alpha_loss: T,
    /// Weights of the samples.
    pub normalized_weights: T,
}

/// Returns the losses of divergences and of multipliers, added over the constraints. Ends the trace
/// with an error unless they have the shape of the loss of the policy.
#[track_caller]
fn kl_losses(
    op: &str,
    constraints: &[(Tensor, LagrangePenalty)],
    policy_loss: Tensor,
) -> (Tensor, Tensor) {
    let mut total: Option<(Tensor, Tensor)> = None;
    for (kl, penalty) in constraints {
        let alpha = penalty.alpha.maximum(EPSILON);
        let mut alpha_loss = alpha * (penalty.epsilon - kl.stop_gradient());
        let mut kl_loss = alpha.stop_gradient() * *kl;
        if penalty.per_dimension {
            (kl_loss, alpha_loss) = (kl_loss.sum(-1), alpha_loss.sum(-1));
        }
        let names = ["the loss of the policy", "that of a constraint"];
        ensure_same_shape(op, names, [policy_loss, kl_loss]);
        total = Some(match total {
            Some((kl, alpha)) => (kl + kl_loss, alpha + alpha_loss),
            None => (kl_loss, alpha_loss),
        });
    }
    total.unwrap_or_else(|| fail_op(op, "needs at least one constraint"))
}

/// Computes the loss of MPO: `rlax.mpo_loss` (Abdolmaleki et al. 2018), and its parts.
///
/// `sample_log_probs: [samples, ..]` and `sample_q_values: [samples, ..]` are of actions sampled
/// from the target policy; divergences and the loss are `[..]`. All weights of the parts are 1.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, if the shapes do not fit, or if there are
/// no constraints.
#[op]
pub fn mpo_loss(
    sample_log_probs: Tensor,
    sample_q_values: Tensor,
    temperature_constraint: LagrangePenalty,
    kl_constraints: &[(Tensor, LagrangePenalty)],
) -> (Tensor, MpoOutputs<Tensor>) {
    let names = ["sample_log_probs", "sample_q_values"];
    ensure_floats("mpo_loss", names, [sample_log_probs, sample_q_values]);
    ensure_same_shape("mpo_loss", names, [sample_log_probs, sample_q_values]);
    let temperature = temperature_constraint.alpha.maximum(EPSILON);
    let scaled = sample_q_values / temperature;
    let total = scaled.logsumexp(0);
    let samples = sample_q_values.dim(0) as f64;
    let temperature_loss =
        temperature * temperature_constraint.epsilon + temperature * (total - samples.ln());
    let normalized_weights = scaled.softmax(0).stop_gradient();
    let policy_loss = -(normalized_weights * sample_log_probs).sum(0);
    let (kl_loss, alpha_loss) = kl_losses("mpo_loss", kl_constraints, policy_loss);
    let loss = policy_loss + temperature_loss + kl_loss + alpha_loss;
    let parts =
        MpoOutputs { temperature_loss, policy_loss, kl_loss, alpha_loss, normalized_weights };
    (loss, parts)
}

/// Computes the loss of V-MPO for each sample: `rlax.vmpo_loss` (Song et al. 2020), and its parts.
///
/// Only samples of the largest advantages count, a fraction of `top_k_fraction`, which is .5 in
/// rlax. All weights of the parts are 1; there are neither restarting nor importance weights.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, if the shapes do not fit, if there are no
/// constraints, or if the fraction selects no sample.
#[op]
pub fn vmpo_loss(
    sample_log_probs: Tensor,
    advantages: Tensor,
    temperature_constraint: LagrangePenalty,
    kl_constraints: &[(Tensor, LagrangePenalty)],
    top_k_fraction: f64,
) -> (Tensor, MpoOutputs<Tensor>) {
    let names = ["sample_log_probs", "advantages"];
    ensure_floats("vmpo_loss", names, [sample_log_probs, advantages]);
    ensure_same_shape("vmpo_loss", names, [sample_log_probs, advantages]);
    let count = advantages.shape().numel();
    let top_k = (top_k_fraction * count as f64) as usize;
    if top_k == 0 || top_k > count {
        let problem = format!(
            "top_k_fraction must select 1 to {count} samples, and {top_k_fraction} selects {top_k}"
        );
        fail_op("vmpo_loss", problem);
    }
    let temperature = temperature_constraint.alpha.maximum(EPSILON);
    let scaled = advantages / temperature;
    let largest = scaled.max(..).stop_gradient();
    let threshold = scaled.ravel().sort(0).index_axis(0, (count - top_k) as isize);
    let selected = scaled.ge(threshold).to(scaled.dtype()).stop_gradient();
    let weights = selected * (scaled - largest).exp();
    let total = weights.sum(..) + EPSILON;
    let num_samples = selected.sum(..) + EPSILON;
    let normalized_weights = (weights / total).stop_gradient();
    let log_mean = total.log() + largest - num_samples.log();
    let temperature_loss = temperature * (temperature_constraint.epsilon + log_mean);
    let policy_loss = -sample_log_probs * normalized_weights * count as f64;
    let (kl_loss, alpha_loss) = kl_losses("vmpo_loss", kl_constraints, policy_loss);
    let loss = policy_loss + temperature_loss + kl_loss + alpha_loss;
    let parts =
        MpoOutputs { temperature_loss, policy_loss, kl_loss, alpha_loss, normalized_weights };
    (loss, parts)
}
