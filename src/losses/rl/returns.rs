//! Returns over several steps.

use super::{broadcast_like, chosen, ensure_sequences};
use crate::trace::Tensor;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{Operand, concatenate, ones, where_, zeros, zeros_like};
use crate::trace::tensor::{fail_op, op};

/// Runs `x = addend + factor * x` from the last step to the first, starting at `last`; returns all.
#[track_caller]
pub(super) fn accumulate(addends: Tensor, factors: Tensor, last: Tensor) -> Tensor {
    let step = |sum: Tensor, (addend, factor): (Tensor, Tensor)| {
        let sum = addend + factor * sum;
        (sum, sum)
    };
    scan_with(step, last, (addends, factors), ScanOptions::reversed()).1
}

/// Computes lambda returns: `rlax.lambda_returns` (Sutton & Barto).
///
/// ```text
/// G_t = r_t + discount_t ((1 - lambda_t) v_t + lambda_t G_t+1)        G_T = v_T-1
/// ```
///
/// `lambda` is a number, or a tensor that broadcasts to the shape of the rewards.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes differ.
#[op]
pub fn lambda_returns(
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
    lambda: impl Operand,
) -> Tensor {
    ensure_sequences("lambda_returns", ["r_t", "discount_t", "v_t"], [r_t, discount_t, v_t]);
    let lambda = broadcast_like(lambda, r_t);
    let addends = r_t + discount_t * (1.0 - lambda) * v_t;
    accumulate(addends, discount_t * lambda, v_t.index_axis(0, -1))
}

/// Computes discounted sums of rewards with the value of the last state: `rlax.discounted_returns`.
/// `v_t` is a number, or a tensor that broadcasts to the shape of the rewards.
///
/// # Errors
/// Ends the trace in the cases of [`lambda_returns`].
#[op]
pub fn discounted_returns(r_t: Tensor, discount_t: Tensor, v_t: impl Operand) -> Tensor {
    ensure_sequences("discounted_returns", ["r_t", "discount_t"], [r_t, discount_t]);
    lambda_returns(r_t, discount_t, broadcast_like(v_t, r_t), 1.0)
}

/// Computes returns of `n` steps, fewer at the end, with the value of the state after them:
/// `rlax.n_step_bootstrapped_returns`. `lambda`, 1 in rlax, mixes returns of fewer steps in.
///
/// # Errors
/// Ends the trace if `n` is 0, if an argument does not consist of floats, or if the shapes differ.
#[op]
pub fn n_step_bootstrapped_returns(
    r_t: Tensor,
    discount_t: Tensor,
    v_t: Tensor,
    n: usize,
    lambda: impl Operand,
) -> Tensor {
    let op = "n_step_bootstrapped_returns";
    ensure_sequences(op, ["r_t", "discount_t", "v_t"], [r_t, discount_t, v_t]);
    if n == 0 {
        fail_op(op, "n must be at least 1");
    }
    let lambda = broadcast_like(lambda, r_t);
    let (shape, dtype) = (r_t.shape(), r_t.dtype());
    let length = shape[0];
    // Steps after the end have no reward, no discount, and the value of the last state.
    let more = (n - 1).min(length);
    let mut rest = shape.to_vec();
    rest[0] = more;
    let padded = |x: Tensor, padding: Tensor| concatenate(&[x, padding], 0);
    let last_value = v_t.slice_axis(0, length - 1, length).broadcast_to(rest.as_slice());
    let rewards = padded(r_t, zeros(rest.as_slice(), dtype));
    let discounts = padded(discount_t, ones(rest.as_slice(), dtype));
    let lambdas = padded(lambda, ones(rest.as_slice(), dtype));
    let values = padded(v_t, last_value);
    let mut targets = values.slice_axis(0, more, more + length);
    // Further steps than there are repeat the last value.
    for i in (0..n.min(length + 1)).rev() {
        let at = |x: Tensor| x.slice_axis(0, i, i + length);
        let mixed = (1.0 - at(lambdas)) * at(values) + at(lambdas) * targets;
        targets = at(rewards) + at(discounts) * mixed;
    }
    targets
}

/// Computes temporal-difference errors of several steps, corrected by importance ratios:
/// `rlax.importance_corrected_td_errors` (Sutton et al. 2014). `values` has one step more.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes do not fit.
#[op]
pub fn importance_corrected_td_errors(
    r_t: Tensor,
    discount_t: Tensor,
    rho_tm1: Tensor,
    lambda: impl Operand,
    values: Tensor,
) -> Tensor {
    let op = "importance_corrected_td_errors";
    let (v_tm1, v_t) = before_and_after(op, r_t, values);
    let names = ["r_t", "discount_t", "rho_tm1", "values without the last"];
    ensure_sequences(op, names, [r_t, discount_t, rho_tm1, v_tm1]);
    let length = r_t.dim(0);
    let last = rho_tm1.slice_axis(0, 0, 1) * 0.0 + 1.0;
    let rho_t = concatenate(&[rho_tm1.slice_axis(0, 1, length), last], 0);
    let factors = discount_t * rho_t * broadcast_like(lambda, r_t);
    let deltas = r_t + discount_t * v_t - v_tm1;
    rho_tm1 * accumulate(deltas, factors, zeros_like(r_t.index_axis(0, 0)))
}

/// Returns the values before and after each step; there must be one more than steps.
#[track_caller]
fn before_and_after(op: &str, r_t: Tensor, values: Tensor) -> (Tensor, Tensor) {
    if values.rank() == 0 || r_t.rank() == 0 || values.dim(0) != r_t.dim(0) + 1 {
        let problem = format!(
            "values must have one step more than rewards; values are {}, rewards {}",
            values.ty(),
            r_t.ty()
        );
        fail_op(op, problem);
    }
    let steps = r_t.dim(0);
    (values.slice_axis(0, 0, steps), values.slice_axis(0, 1, steps + 1))
}

/// Computes generalized advantage estimates (Schulman et al. 2016):
/// `rlax.truncated_generalized_advantage_estimation`. `values` has one step more than the rewards.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes do not fit.
#[op]
pub fn truncated_generalized_advantage_estimation(
    r_t: Tensor,
    discount_t: Tensor,
    lambda: impl Operand,
    values: Tensor,
) -> Tensor {
    let op = "truncated_generalized_advantage_estimation";
    let (v_tm1, v_t) = before_and_after(op, r_t, values);
    let names = ["r_t", "discount_t", "values without the last"];
    ensure_sequences(op, names, [r_t, discount_t, v_tm1]);
    let deltas = r_t + discount_t * v_t - v_tm1;
    let factors = discount_t * broadcast_like(lambda, r_t);
    accumulate(deltas, factors, zeros_like(r_t.index_axis(0, 0)))
}

/// Computes off-policy returns from values of the actions taken and of states:
/// `rlax.general_off_policy_returns_from_q_and_v` (Munos et al. 2016).
///
/// ```text
/// G_t = r_t + discount_t (v_t - c_t q_t + c_t G_t+1)      G_T-1 = r_T-1 + discount_T-1 v_T-1
/// ```
///
/// `q_t` and `c_t` have one step fewer than the others.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes do not fit.
#[op]
pub fn general_off_policy_returns_from_q_and_v(
    q_t: Tensor,
    v_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    c_t: Tensor,
) -> Tensor {
    let op = "general_off_policy_returns_from_q_and_v";
    ensure_sequences(op, ["r_t", "discount_t", "v_t"], [r_t, discount_t, v_t]);
    let length = r_t.dim(0);
    let last = |x: Tensor| x.index_axis(0, -1);
    let bootstrap = last(r_t) + last(discount_t) * last(v_t);
    if length == 1 {
        return bootstrap.expand_dims(0);
    }
    let [r_t, discount_t, v_t] = [r_t, discount_t, v_t].map(|x| x.slice_axis(0, 0, length - 1));
    let names = ["r_t without the last", "q_t", "c_t"];
    ensure_sequences(op, names, [r_t, q_t, c_t]);
    let addends = r_t + discount_t * (v_t - c_t * q_t);
    let returns = accumulate(addends, discount_t * c_t, bootstrap);
    concatenate(&[returns, bootstrap.expand_dims(0)], 0)
}

/// Computes off-policy returns from values of all actions:
/// `rlax.general_off_policy_returns_from_action_values` (Munos et al. 2016).
///
/// `q_t` and `pi_t`, the probabilities of the target policy, have the actions as their last axis.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes do not fit.
#[op]
pub fn general_off_policy_returns_from_action_values(
    q_t: Tensor,
    a_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    c_t: Tensor,
    pi_t: Tensor,
) -> Tensor {
    let op = "general_off_policy_returns_from_action_values";
    ensure_sequences(op, ["q_t", "pi_t"], [q_t, pi_t]);
    let q_a_t = chosen(op, q_t, a_t);
    let names = ["r_t", "discount_t", "c_t", "q_t of the actions"];
    ensure_sequences(op, names, [r_t, discount_t, c_t, q_a_t]);
    let without_last = |x: Tensor| x.slice_axis(0, 0, x.dim(0) - 1);
    let v_t = (pi_t * q_t).sum(-1);
    let (q_a_t, c_t) = (without_last(q_a_t), without_last(c_t));
    general_off_policy_returns_from_q_and_v(q_a_t, v_t, r_t, discount_t, c_t)
}

/// Computes upgoing policy update returns (Vinyals et al. 2019), which follow the trajectory while
/// it does better than expected.
///
/// ```text
/// G_t = r_t + discount_t (G_t+1 if r_t+1 + discount_t+1 v_t+1 >= v_t, else v_t)
/// ```
///
/// `v_t` are values of the states after each step. rlax has no such function.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if the shapes differ.
#[op]
pub fn upgo_returns(r_t: Tensor, discount_t: Tensor, v_t: Tensor) -> Tensor {
    ensure_sequences("upgo_returns", ["r_t", "discount_t", "v_t"], [r_t, discount_t, v_t]);
    let length = r_t.dim(0);
    let next = |x: Tensor| x.slice_axis(0, 1, length);
    let expected = next(r_t) + next(discount_t) * next(v_t);
    let better = expected.ge(v_t.slice_axis(0, 0, length - 1));
    let follows = where_(better, 1.0, zeros_like(expected));
    let last = zeros_like(r_t.slice_axis(0, 0, 1));
    lambda_returns(r_t, discount_t, v_t, concatenate(&[follows, last], 0))
}
