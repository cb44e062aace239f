//! Losses of segmentation.

use super::{ensure_floats, ensure_same_shape};
use crate::trace::Tensor;
use crate::trace::tensor::{fail_op, op};

/// Options of [`dice_loss`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiceLoss {
    /// Number added to both parts of the ratio.
    pub smooth: f64,
    /// Weight of false positives.
    pub alpha: f64,
    /// Weight of false negatives.
    pub beta: f64,
    /// If true, predictions are logits: of one class by the sigmoid, of several by the softmax.
    pub apply_softmax: bool,
    /// If true, class 0 does not count, where there are several.
    pub ignore_background: bool,
}

impl Default for DiceLoss {
    /// Returns optax's defaults: 1, .5, .5, true, false.
    fn default() -> DiceLoss {
        DiceLoss {
            smooth: 1.0,
            alpha: 0.5,
            beta: 0.5,
            apply_softmax: true,
            ignore_background: false,
        }
    }
}

/// Returns the loss of each class, `[batch, classes]`.
fn dice_of_classes(op: &str, predictions: Tensor, targets: Tensor, options: DiceLoss) -> Tensor {
    ensure_floats(op, ["predictions", "targets"], [predictions, targets]);
    ensure_same_shape(op, ["predictions", "targets"], [predictions, targets]);
    if predictions.rank() < 2 {
        let problem =
            format!("takes predictions [batch, .., classes], and got {}", predictions.ty());
        fail_op(op, problem);
    }
    let probs = match (options.apply_softmax, predictions.dim(-1)) {
        (false, _) => predictions,
        (true, 1) => predictions.sigmoid(),
        (true, _) => predictions.softmax(-1),
    };
    let inner: Vec<isize> = (1..probs.rank() as isize - 1).collect();
    let sum = |x: Tensor| if inner.is_empty() { x } else { x.sum(&inner[..]) };
    let (both, of_probs, of_targets) = (sum(probs * targets), sum(probs), sum(targets));
    let wrong = options.alpha * (of_probs - both) + options.beta * (of_targets - both);
    1.0 - (both + options.smooth) / (both + wrong + options.smooth)
}

/// Leaves out class 0, if asked and if there are others.
fn without_background(losses: Tensor, options: DiceLoss) -> Tensor {
    let classes = losses.dim(-1);
    let ignored = options.ignore_background && classes > 1;
    if ignored { losses.slice_axis(-1, 1, classes) } else { losses }
}

/// Computes the Dice loss, with other weights the Tversky loss: `optax.losses.dice_loss` (Milletari
/// et al. 2016, Salehi et al. 2017), the mean over the classes.
///
/// `predictions` and `targets` are `[batch, .., classes]`, the targets probabilities or one-hot;
/// `class_weights: [classes]`; the result is `[batch]`.
///
/// # Errors
/// Ends the trace if both are not floats of one shape with at least two axes.
#[op]
pub fn dice_loss(
    predictions: Tensor,
    targets: Tensor,
    class_weights: Option<Tensor>,
    options: DiceLoss,
) -> Tensor {
    let losses = dice_of_classes("dice_loss", predictions, targets, options);
    let losses = class_weights.map_or(losses, |weights| losses * weights);
    without_background(losses, options).mean(-1)
}

/// Computes the Dice loss of one class: `optax.losses.binary_dice_loss`.
///
/// `predictions` and `targets` are `[batch, ..]`, without an axis of classes, or with one of size 1.
/// Predictions are logits unless `apply_sigmoid` is false; `smooth` is 1 in optax. The result is
/// `[batch]`.
///
/// # Errors
/// Ends the trace in the cases of [`dice_loss`].
#[op]
pub fn binary_dice_loss(
    predictions: Tensor,
    targets: Tensor,
    smooth: f64,
    apply_sigmoid: bool,
) -> Tensor {
    let options = DiceLoss { smooth, apply_softmax: apply_sigmoid, ..DiceLoss::default() };
    let has_axis = predictions.rank() > 0 && predictions.dim(-1) == 1;
    let with_axis = |x: Tensor| if has_axis { x } else { x.expand_dims(-1) };
    dice_loss(with_axis(predictions), with_axis(targets), None, options)
}

/// Computes the Dice loss with weights from the squared frequencies of classes in the targets:
/// `optax.losses.multiclass_generalized_dice_loss` (Sudre et al. 2017), a scalar.
///
/// `alpha` and `beta` of the options do not count: both are .5.
///
/// # Errors
/// Ends the trace in the cases of [`dice_loss`].
#[op]
pub fn multiclass_generalized_dice_loss(
    predictions: Tensor,
    targets: Tensor,
    options: DiceLoss,
) -> Tensor {
    let op = "multiclass_generalized_dice_loss";
    let options = DiceLoss { alpha: 0.5, beta: 0.5, ..options };
    let losses = dice_of_classes(op, predictions, targets, options);
    let others: Vec<isize> = (0..targets.rank() as isize - 1).collect();
    let frequencies = targets.sum(&others[..]);
    let weights: Tensor = 1.0 / (frequencies.square() + 1e-7);
    let weights = weights / weights.sum(..) * targets.dim(-1) as f64;
    without_background(losses * weights, options).mean(..)
}
