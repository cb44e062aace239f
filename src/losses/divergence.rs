//! Divergences between distributions.

use super::ensure_floats;
use crate::trace::Tensor;
use crate::trace::ops::where_;
use crate::trace::tensor::op;

/// Computes the Kullback-Leibler divergence of `targets`, probabilities, from `log_predictions`,
/// over the last axis: `optax.kl_divergence`.
///
/// Targets of 0 count as 0; the derivative by them is `-log_predictions`, and NaN in optax.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats.
#[op]
pub fn kl_divergence(log_predictions: Tensor, targets: Tensor) -> Tensor {
    let names = ["log_predictions", "targets"];
    ensure_floats("kl_divergence", names, [log_predictions, targets]);
    let log_targets = where_(targets.eq(0.0), 1.0, targets).log();
    (targets * (log_targets - log_predictions)).sum(-1)
}

/// Computes the Kullback-Leibler divergence between log probabilities, over the last axis:
/// `optax.kl_divergence_with_log_targets`.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats.
#[op]
pub fn kl_divergence_with_log_targets(log_predictions: Tensor, log_targets: Tensor) -> Tensor {
    let names = ["log_predictions", "log_targets"];
    ensure_floats("kl_divergence_with_log_targets", names, [log_predictions, log_targets]);
    (log_targets.exp() * (log_targets - log_predictions)).sum(-1)
}

/// Computes the divergence that is convex in both arguments, also where they do not sum to 1:
/// `optax.generalized_kl_divergence`, `kl_divergence + sum(exp(log_predictions) - targets)`.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats.
#[op]
pub fn generalized_kl_divergence(log_predictions: Tensor, targets: Tensor) -> Tensor {
    kl_divergence(log_predictions, targets) + (log_predictions.exp() - targets).sum(-1)
}

/// The same as [`generalized_kl_divergence`]: `optax.convex_kl_divergence`.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats.
#[track_caller]
pub fn convex_kl_divergence(log_predictions: Tensor, targets: Tensor) -> Tensor {
    generalized_kl_divergence(log_predictions, targets)
}
