//! Temporal-difference errors of values of states and actions.

use super::super::{ensure_floats, ensure_same_shape};
use super::{
    TxPair, chosen, ensure_sequences, general_off_policy_returns_from_action_values,
    general_off_policy_returns_from_q_and_v, lambda_returns, n_step_bootstrapped_returns,
};
use crate::trace::Tensor;
use crate::trace::ops::Operand;
use crate::trace::tensor::op;

/// Returns `target - prediction`, with a constant target. Ends the trace with an error unless both are
/// floats of one shape: arrays that broadcast would give an error for each pair of their elements.
#[track_caller]
fn error_of(op: &str, target: Tensor, prediction: Tensor) -> Tensor {
    let names = ["targets", "predictions"];
    ensure_floats(op, names, [target, prediction]);
    ensure_same_shape(op, names, [target, prediction]);
    target.stop_gradient() - prediction
}

/// Returns `r_t + discount_t v_t - prediction`, with a constant target. Ends the trace with an error
/// unless all are floats of one shape.
#[track_caller]
fn one_step_error(
    op: &str,
    prediction: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
) -> Tensor {
    ensure_same_shape(op, ["r_t", "discount_t", "next values"], [r_t, discount_t, v_t]);
    error_of(op, r_t + discount_t * v_t, prediction)
}

/// Computes `r_t + discount_t v_t - v_tm1`: `rlax.td_learning`.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes differ.
#[op]
pub fn td_learning(v_tm1: Tensor, r_t: Tensor, discount_t: Tensor, v_t: Tensor) -> Tensor {
    one_step_error("td_learning", v_tm1, r_t, discount_t, v_t)
}

/// Computes errors of lambda returns: `rlax.td_lambda`.
///
/// # Errors
/// Ends the trace in the cases of [`lambda_returns`].
#[op]
pub fn td_lambda(
    v_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
    lambda: impl Operand,
) -> Tensor {
    error_of("td_lambda", lambda_returns(r_t, discount_t, v_t, lambda), v_tm1)
}

/// Computes errors with the value of the next action, `rlax.sarsa`. Values are `[.., actions]`.
///
/// # Errors
/// Ends the trace if actions are not integers, if another argument does not consist of floats, or if the
/// shapes do not fit.
#[op]
pub fn sarsa(
    q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    q_t: Tensor,
    a_t: Tensor,
) -> Tensor {
    let (op, value) = ("sarsa", chosen("sarsa", q_t, a_t));
    one_step_error(op, chosen(op, q_tm1, a_tm1), r_t, discount_t, value)
}

/// Computes errors with the mean value of next actions, `rlax.expected_sarsa`.
///
/// # Errors
/// Ends the trace in the cases of [`sarsa`].
#[op]
pub fn expected_sarsa(
    q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    q_t: Tensor,
    probs_a_t: Tensor,
) -> Tensor {
    let op = "expected_sarsa";
    ensure_same_shape(op, ["q_t", "probs_a_t"], [q_t, probs_a_t]);
    let value = (q_t * probs_a_t).sum(-1);
    one_step_error(op, chosen(op, q_tm1, a_tm1), r_t, discount_t, value)
}

/// Computes errors of lambda returns of the actions taken, `rlax.sarsa_lambda`.
///
/// # Errors
/// Ends the trace in the cases of [`sarsa`] and [`lambda_returns`].
#[op]
pub fn sarsa_lambda(
    q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    q_t: Tensor,
    a_t: Tensor,
    lambda: impl Operand,
) -> Tensor {
    let value = chosen("sarsa_lambda", q_t, a_t);
    td_lambda(chosen("sarsa_lambda", q_tm1, a_tm1), r_t, discount_t, value, lambda)
}

/// Computes errors with the largest next value, `rlax.q_learning` (Watkins & Dayan 1992).
///
/// # Errors
/// Ends the trace in the cases of [`sarsa`].
#[op]
pub fn q_learning(
    q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    q_t: Tensor,
) -> Tensor {
    let op = "q_learning";
    one_step_error(op, chosen(op, q_tm1, a_tm1), r_t, discount_t, q_t.max(-1))
}

/// Computes errors with the next value of the action that another network selects,
/// `rlax.double_q_learning` (van Hasselt 2010).
///
/// # Errors
/// Ends the trace in the cases of [`sarsa`].
#[op]
pub fn double_q_learning(
    q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    q_t_value: Tensor,
    q_t_selector: Tensor,
) -> Tensor {
    let op = "double_q_learning";
    let best = chosen(op, q_t_value, q_t_selector.argmax(-1));
    one_step_error(op, chosen(op, q_tm1, a_tm1), r_t, discount_t, best)
}

/// Computes errors that favor to repeat the action, `rlax.persistent_q_learning` (Bellemare et al.
/// 2016).
///
/// # Errors
/// Ends the trace in the cases of [`sarsa`].
#[op]
pub fn persistent_q_learning(
    q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    q_t: Tensor,
    action_gap_scale: f64,
) -> Tensor {
    let op = "persistent_q_learning";
    let corrected =
        (1.0 - action_gap_scale) * q_t.max(-1) + action_gap_scale * chosen(op, q_t, a_tm1);
    one_step_error(op, chosen(op, q_tm1, a_tm1), r_t, discount_t, corrected)
}

/// Computes errors of values of actions with the next value of the state, `rlax.qv_learning`
/// (Wiering & van Hasselt 2009).
///
/// # Errors
/// Ends the trace in the cases of [`sarsa`].
#[op]
pub fn qv_learning(
    q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
) -> Tensor {
    td_learning(chosen("qv_learning", q_tm1, a_tm1), r_t, discount_t, v_t)
}

/// Computes errors of values of states with the largest next value of actions, `rlax.qv_max`.
///
/// # Errors
/// Ends the trace in the cases of [`td_learning`].
#[op]
pub fn qv_max(v_tm1: Tensor, r_t: Tensor, discount_t: Tensor, q_t: Tensor) -> Tensor {
    td_learning(v_tm1, r_t, discount_t, q_t.max(-1))
}

/// Computes errors of lambda returns of the largest values, `rlax.q_lambda` (Peng's Q(lambda)).
///
/// # Errors
/// Ends the trace in the cases of [`sarsa`] and [`lambda_returns`].
#[op]
pub fn q_lambda(
    q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    q_t: Tensor,
    lambda: impl Operand,
) -> Tensor {
    td_lambda(chosen("q_lambda", q_tm1, a_tm1), r_t, discount_t, q_t.max(-1), lambda)
}

/// Computes errors by Retrace, `rlax.retrace` (Munos et al. 2016).
///
/// `pi_t: [time, .., actions]` are probabilities of the target policy, `mu_t` those of the actions
/// taken under the behavior policy. `eps`, 1e-8 in rlax, is added to the latter.
///
/// # Errors
/// Ends the trace if an argument has another type, or if the shapes do not fit.
#[op]
#[allow(clippy::too_many_arguments)]
pub fn retrace(
    q_tm1: Tensor,
    q_t: Tensor,
    a_tm1: Tensor,
    a_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    pi_t: Tensor,
    mu_t: Tensor,
    lambda: f64,
    eps: f64,
) -> Tensor {
    let identity = TxPair::identity();
    transformed_retrace(&identity, q_tm1, q_t, a_tm1, a_t, r_t, discount_t, pi_t, mu_t, lambda, eps)
}

/// Computes errors by Retrace of continuous actions, `rlax.retrace_continuous` (Munos et al. 2016).
///
/// `q_t` and `log_rhos`, logarithms of importance ratios, have one step fewer than the others.
///
/// # Errors
/// Ends the trace in the cases of [`general_off_policy_returns_from_q_and_v`].
#[op]
pub fn retrace_continuous(
    q_tm1: Tensor,
    q_t: Tensor,
    v_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    log_rhos: Tensor,
    lambda: f64,
) -> Tensor {
    let c_t = log_rhos.exp().minimum(1.0) * lambda;
    let target = general_off_policy_returns_from_q_and_v(q_t, v_t, r_t, discount_t, c_t);
    error_of("retrace_continuous", target, q_tm1)
}

/// Computes [`q_lambda`] of transformed values, `rlax.transformed_q_lambda`.
///
/// # Errors
/// Ends the trace in the cases of [`q_lambda`].
#[op]
pub fn transformed_q_lambda(
    tx: &TxPair,
    q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    q_t: Tensor,
    lambda: impl Operand,
) -> Tensor {
    let returns = lambda_returns(r_t, discount_t, tx.apply_inv(q_t.max(-1)), lambda);
    let op = "transformed_q_lambda";
    error_of(op, tx.apply(returns), chosen(op, q_tm1, a_tm1))
}

/// Computes [`retrace`] of transformed values, `rlax.transformed_retrace`.
///
/// # Errors
/// Ends the trace in the cases of [`retrace`].
#[op("retrace")]
#[allow(clippy::too_many_arguments)]
pub fn transformed_retrace(
    tx: &TxPair,
    q_tm1: Tensor,
    q_t: Tensor,
    a_tm1: Tensor,
    a_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    pi_t: Tensor,
    mu_t: Tensor,
    lambda: f64,
    eps: f64,
) -> Tensor {
    let pi_a_t = chosen("retrace", pi_t, a_t);
    ensure_sequences("retrace", ["mu_t", "pi_t of the actions"], [mu_t, pi_a_t]);
    let c_t = (pi_a_t / (mu_t + eps)).minimum(1.0) * lambda;
    let q_t = tx.apply_inv(q_t);
    let target =
        general_off_policy_returns_from_action_values(q_t, a_t, r_t, discount_t, c_t, pi_t);
    error_of("retrace", tx.apply(target), chosen("retrace", q_tm1, a_tm1))
}

/// Computes errors of returns of `n` steps of transformed values,
/// `rlax.transformed_n_step_q_learning` (Kapturowski et al. 2019).
///
/// # Errors
/// Ends the trace in the cases of [`sarsa`] and [`n_step_bootstrapped_returns`].
#[op]
#[allow(clippy::too_many_arguments)]
pub fn transformed_n_step_q_learning(
    tx: &TxPair,
    q_tm1: Tensor,
    a_tm1: Tensor,
    target_q_t: Tensor,
    a_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    n: usize,
) -> Tensor {
    let op = "transformed_n_step_q_learning";
    let v_t = tx.apply_inv(chosen(op, target_q_t, a_t));
    let returns = n_step_bootstrapped_returns(r_t, discount_t, v_t, n, 1.0);
    error_of(op, tx.apply(returns), chosen(op, q_tm1, a_tm1))
}
