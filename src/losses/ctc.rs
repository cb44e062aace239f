//! Connectionist temporal classification (CTC).

use super::{ensure_floats, ensure_same_shape};
use crate::trace::control::scan;
use crate::trace::numpy::einsum;
use crate::trace::ops::{concatenate, full, logaddexp, one_hot, zeros};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Options of [`ctc_loss`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CtcLoss {
    /// Class of the blank.
    pub blank_id: usize,
    /// Logarithm that stands for that of 0.
    pub log_epsilon: f64,
}

impl Default for CtcLoss {
    /// Returns optax's defaults: 0, -1e5.
    fn default() -> CtcLoss {
        CtcLoss { blank_id: 0, log_epsilon: -1e5 }
    }
}

/// Log probabilities of prefixes of the labels: `phi` ends in a blank, `emit` in a label.
#[derive(Clone, Tree)]
struct Prefixes<T> {
    phi: T,
    emit: T,
}

/// Computes the CTC loss (Graves et al. 2006) of each sequence of a batch: `optax.ctc_loss`.
///
/// Shapes: `logits: [batch, time, classes]`, `logit_paddings: [batch, time]`,
/// `labels: [batch, length]` of integers, `label_paddings: [batch, length]`, result `[batch]`.
/// Paddings are floats: 1 where an element is padding, else 0. The paddings of labels are at their
/// end.
///
/// # Errors
/// Ends the trace if shapes or types do not fit, or if the blank is not a class.
#[track_caller]
pub fn ctc_loss(
    logits: Tensor,
    logit_paddings: Tensor,
    labels: Tensor,
    label_paddings: Tensor,
    options: CtcLoss,
) -> Tensor {
    ctc_loss_with_forward_probs(logits, logit_paddings, labels, label_paddings, options).0
}

/// Computes [`ctc_loss`] and the log probabilities of the forward pass, after each time step: those
/// of prefixes that end in a blank, `[time, batch, length + 1]`, and in a label,
/// `[time, batch, length]`: `optax.ctc_loss_with_forward_probs`.
///
/// # Errors
/// Ends the trace in the cases of [`ctc_loss`].
#[op("ctc_loss")]
pub fn ctc_loss_with_forward_probs(
    logits: Tensor,
    logit_paddings: Tensor,
    labels: Tensor,
    label_paddings: Tensor,
    options: CtcLoss,
) -> (Tensor, Tensor, Tensor) {
    ensure_arguments(logits, logit_paddings, labels, label_paddings, options);
    let CtcLoss { blank_id, log_epsilon } = options;
    let (shape, dtype) = (logits.shape(), logits.dtype());
    let (batch, classes, length) = (shape[0], shape[2], labels.dim(1));
    let log_probs = logits.log_softmax(-1);
    let label_lengths = length as i32 - label_paddings.sum(1).to(DType::I32);
    let repeats = match length {
        0 => zeros([batch, 0], dtype),
        _ => {
            let next = labels.slice_axis(1, 1, length);
            let repeats = labels.slice_axis(1, 0, length - 1).eq(next).to(dtype);
            concatenate(&[repeats, zeros([batch, 1], dtype)], 1)
        }
    };
    let blanks = log_probs.slice_axis(2, blank_id, blank_id + 1).transpose(&[1, 0, 2]);
    let emissions = einsum("btk,bnk->tbn", &[log_probs, one_hot(labels, classes, dtype)]);
    let paddings = logit_paddings.to(dtype).t().expand_dims(-1);

    // Adds the score of a move from the label before to the prefixes that end in a blank.
    let with_score = |phi: Tensor, score: Tensor| {
        let rest = logaddexp(phi.slice_axis(1, 1, length + 1), score);
        concatenate(&[phi.slice_axis(1, 0, 1), rest], 1)
    };
    let step = |before: Prefixes<Tensor>, (emission, blank, padding): (Tensor, Tensor, Tensor)| {
        let Prefixes { phi, emit } = before;
        let phi_or_repeat = with_score(phi, emit + log_epsilon * repeats);
        let next_emit =
            logaddexp(phi_or_repeat.slice_axis(1, 0, length) + emission, emit + emission);
        let next_phi =
            with_score(phi_or_repeat + blank, emit + blank + log_epsilon * (1.0 - repeats));
        let next = Prefixes {
            phi: padding * phi + (1.0 - padding) * next_phi,
            emit: padding * emit + (1.0 - padding) * next_emit,
        };
        (next.clone(), next)
    };
    let start = zeros([batch, 1], dtype);
    let rest = full([batch, length], log_epsilon, dtype);
    let init = Prefixes { phi: concatenate(&[start, rest], 1), emit: rest };
    let (last, all) = scan(step, init, (emissions, blanks, paddings));
    let last_phi = with_score(last.phi, last.emit);
    let time = shape[1];
    let earlier = all.phi.slice_axis(0, 0, time.saturating_sub(1));
    let phis = concatenate(&[earlier, last_phi.expand_dims(0)], 0);
    let loss = -(last_phi * one_hot(label_lengths, length + 1, dtype)).sum(-1);
    (loss, phis, all.emit)
}

/// Ends the trace with an error unless shapes and types fit.
#[track_caller]
fn ensure_arguments(
    logits: Tensor,
    logit_paddings: Tensor,
    labels: Tensor,
    label_paddings: Tensor,
    options: CtcLoss,
) {
    ensure_floats("ctc_loss", ["logits", "logit_paddings"], [logits, logit_paddings]);
    ensure_floats("ctc_loss", ["label_paddings"], [label_paddings]);
    let shape = logits.shape();
    if shape.rank() != 3 || labels.rank() != 2 || !labels.dtype().is_int() {
        let problem = format!(
            "takes logits [batch, time, classes] and integer labels [batch, length], and got {} \
             and {}",
            logits.ty(),
            labels.ty()
        );
        fail_op("ctc_loss", problem);
    }
    if shape[1] == 0 || labels.dim(0) != shape[0] || logit_paddings.shape()[..] != shape[..2] {
        let problem = format!(
            "logits {}, their paddings {} and labels {} must have one batch size and at least one \
             time step",
            logits.ty(),
            logit_paddings.ty(),
            labels.ty()
        );
        fail_op("ctc_loss", problem);
    }
    ensure_same_shape("ctc_loss", ["labels", "label_paddings"], [labels, label_paddings]);
    if options.blank_id >= shape[2] {
        let problem = format!("the blank is class {} of {}", options.blank_id, shape[2]);
        fail_op("ctc_loss", problem);
    }
}
