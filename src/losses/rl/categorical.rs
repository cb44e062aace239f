//! Distributional reinforcement learning: categorical and quantile distributions of returns.

use super::super::{
    ensure_floats, ensure_same_shape, ensure_without_last_axis, huber_loss, softmax_cross_entropy,
};
use super::chosen;
use crate::trace::Tensor;
use crate::trace::ops::{concatenate, stack, where_};
use crate::trace::tensor::{fail_op, op};

/// Projects distributions onto other atoms: `rlax.categorical_l2_project` (Bellemare et al. 2017).
///
/// `z_p: [.., atoms]` and `probs: [.., atoms]` are the atoms and their probabilities, `z_q: [atoms']`
/// the new atoms, ascending; the result is `[.., atoms']`.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if `z_q` is no vector.
#[op]
pub fn categorical_l2_project(z_p: Tensor, probs: Tensor, z_q: Tensor) -> Tensor {
    let op = "categorical_l2_project";
    ensure_floats(op, ["z_p", "probs", "z_q"], [z_p, probs, z_q]);
    if z_q.rank() != 1 || z_q.dim(0) == 0 || z_p.rank() == 0 {
        fail_op(op, format!("z_p is {} and must be [.., atoms], z_q is {}", z_p.ty(), z_q.ty()));
    }
    let count = z_q.dim(0);
    let (first, last) = (z_q.index_axis(0, 0), z_q.index_axis(0, -1));
    let gaps = z_q.slice_axis(0, 1, count) - z_q.slice_axis(0, 0, count - 1);
    let none = z_q.slice_axis(0, 0, 1) * 0.0;
    let inverse = |gaps: Tensor| {
        let positive = gaps.gt(0.0);
        where_(positive, 1.0 / where_(positive, gaps, 1.0), 0.0).expand_dims(-1)
    };
    let (above, below) =
        (inverse(concatenate(&[gaps, none], 0)), inverse(concatenate(&[none, gaps], 0)));
    let distance = z_p.maximum(first).minimum(last).expand_dims(-2) - z_q.expand_dims(-1);
    let scaled = where_(distance.ge(0.0), distance * above, -distance * below);
    ((1.0 - scaled).clip(0.0, 1.0) * probs.expand_dims(-2)).sum(-1)
}

/// Computes the cross-entropy of categorical values of states: `rlax.categorical_td_learning`
/// (Bellemare et al. 2017). Atoms are `[atoms]`, logits `[.., atoms]`.
///
/// # Errors
/// Ends the trace in the cases of [`categorical_l2_project`], or if the shapes do not fit.
#[op]
pub fn categorical_td_learning(
    v_atoms_tm1: Tensor,
    v_logits_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    v_atoms_t: Tensor,
    v_logits_t: Tensor,
) -> Tensor {
    let op = "categorical_td_learning";
    ensure_same_shape(op, ["r_t", "discount_t"], [r_t, discount_t]);
    ensure_without_last_axis(op, ["v_logits_tm1", "r_t"], v_logits_tm1, r_t);
    ensure_without_last_axis(op, ["v_logits_t", "r_t"], v_logits_t, r_t);
    let z = r_t.expand_dims(-1) + discount_t.expand_dims(-1) * v_atoms_t;
    let target = categorical_l2_project(z, v_logits_t.softmax(-1), v_atoms_tm1);
    softmax_cross_entropy(v_logits_tm1, target.stop_gradient())
}

/// Returns the rows `[.., atoms]` that actions choose of `[.., actions, atoms]`.
#[track_caller]
fn row_of(values: Tensor, actions: Tensor, op: &str) -> Tensor {
    if values.rank() < 2 {
        fail_op(op, format!("logits must be [.., actions, atoms], and are {}", values.ty()));
    }
    let atoms = values.dim(-1) as isize;
    let mut shape = actions.shape().to_vec();
    shape.push(atoms as usize);
    let actions = actions.expand_dims(-1).broadcast_to(shape.as_slice());
    chosen(op, values.swapaxes(-1, -2), actions)
}

/// Computes the cross-entropy of categorical values of actions: `rlax.categorical_q_learning`
/// (Bellemare et al. 2017). Atoms are `[atoms]`, logits `[.., actions, atoms]`.
///
/// # Errors
/// Ends the trace in the cases of [`categorical_l2_project`], or if actions are not integers.
#[op]
pub fn categorical_q_learning(
    q_atoms_tm1: Tensor,
    q_logits_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    q_atoms_t: Tensor,
    q_logits_t: Tensor,
) -> Tensor {
    let mean = (q_logits_t.softmax(-1) * q_atoms_t).sum(-1);
    categorical_double_q_learning(
        q_atoms_tm1,
        q_logits_tm1,
        a_tm1,
        r_t,
        discount_t,
        q_atoms_t,
        q_logits_t,
        mean,
    )
}

/// Computes [`categorical_q_learning`] with the next action of largest `q_t_selector`:
/// `rlax.categorical_double_q_learning`.
///
/// # Errors
/// Ends the trace in the cases of [`categorical_q_learning`].
#[op]
#[allow(clippy::too_many_arguments)]
pub fn categorical_double_q_learning(
    q_atoms_tm1: Tensor,
    q_logits_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    q_atoms_t: Tensor,
    q_logits_t: Tensor,
    q_t_selector: Tensor,
) -> Tensor {
    let op = "categorical_double_q_learning";
    let logits_t = row_of(q_logits_t, q_t_selector.argmax(-1), op);
    let logits_tm1 = row_of(q_logits_tm1, a_tm1, op);
    categorical_td_learning(q_atoms_tm1, logits_tm1, r_t, discount_t, q_atoms_t, logits_t)
}

/// Computes the quantile regression loss: `rlax.quantile_regression_loss` (Dabney et al. 2018).
///
/// `dist_src: [.., quantiles]` and `tau_src: [.., quantiles]` are quantiles and their
/// probabilities, `dist_target: [.., samples]` samples of the target. With a `huber_param` above 0
/// errors are those of the Huber loss.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, or if quantiles and probabilities have
/// different shapes.
#[op]
pub fn quantile_regression_loss(
    dist_src: Tensor,
    tau_src: Tensor,
    dist_target: Tensor,
    huber_param: f64,
) -> Tensor {
    let names = ["dist_src", "tau_src", "dist_target"];
    let op = "quantile_regression_loss";
    ensure_floats(op, names, [dist_src, tau_src, dist_target]);
    ensure_same_shape(op, ["dist_src", "tau_src"], [dist_src, tau_src]);
    let delta = dist_target.expand_dims(-2) - dist_src.expand_dims(-1);
    let negative = delta.lt(0.0).to(delta.dtype());
    let weight = (tau_src.expand_dims(-1) - negative).abs();
    let loss = if huber_param > 0.0 { huber_loss(delta, 0.0, huber_param) } else { delta.abs() };
    (loss * weight).mean(-1).sum(-1)
}

/// Computes the quantile regression loss of Q-learning: `rlax.quantile_q_learning` (Dabney et al.
/// 2018). Distributions are `[.., quantiles, actions]`, probabilities `[.., quantiles]`.
///
/// # Errors
/// Ends the trace if an argument has another type, or if the shapes do not fit.
#[op]
#[allow(clippy::too_many_arguments)]
pub fn quantile_q_learning(
    dist_q_tm1: Tensor,
    tau_q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    dist_q_t_selector: Tensor,
    dist_q_t: Tensor,
    huber_param: f64,
) -> Tensor {
    let op = "quantile_q_learning";
    let column = |values: Tensor, actions| row_of(values.swapaxes(-1, -2), actions, op);
    let best = column(dist_q_t, dist_q_t_selector.mean(-2).argmax(-1));
    ensure_same_shape(op, ["r_t", "discount_t"], [r_t, discount_t]);
    ensure_without_last_axis(op, ["dist_q_t of the actions", "r_t"], best, r_t);
    let target = r_t.expand_dims(-1) + discount_t.expand_dims(-1) * best;
    let target = target.stop_gradient();
    quantile_regression_loss(column(dist_q_tm1, a_tm1), tau_q_tm1, target, huber_param)
}

/// Computes the quantile regression loss of expected SARSA: `rlax.quantile_expected_sarsa`, the mean of the
/// losses with the targets of all next actions, by their probabilities `probs_a_t: [.., actions]`.
/// Distributions are `[.., quantiles, actions]`, probabilities of quantiles `[.., quantiles]`.
///
/// # Errors
/// Ends the trace if an argument has another type, or if the shapes do not fit.
#[op]
#[allow(clippy::too_many_arguments)]
pub fn quantile_expected_sarsa(
    dist_q_tm1: Tensor,
    tau_q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    dist_q_t: Tensor,
    probs_a_t: Tensor,
    huber_param: f64,
) -> Tensor {
    let op = "quantile_expected_sarsa";
    ensure_same_shape(op, ["r_t", "discount_t"], [r_t, discount_t]);
    ensure_without_last_axis(op, ["probs_a_t", "r_t"], probs_a_t, r_t);
    let source = row_of(dist_q_tm1.swapaxes(-1, -2), a_tm1, op);
    let scale = |x: Tensor| x.expand_dims(-1).expand_dims(-1);
    let targets = (scale(r_t) + scale(discount_t) * dist_q_t).stop_gradient();
    let mut losses = Vec::new();
    for action in 0..probs_a_t.dim(-1) {
        let target = targets.index_axis(-1, action as isize);
        losses.push(quantile_regression_loss(source, tau_q_tm1, target, huber_param));
    }
    if losses.is_empty() {
        fail_op(op, "probs_a_t has no actions");
    }
    (stack(&losses, -1) * probs_a_t.stop_gradient()).sum(-1)
}
