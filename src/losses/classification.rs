//! Losses of classifiers.

use super::{chosen, ensure_floats, ensure_same_shape};
use crate::trace::custom::custom_jvp;
use crate::trace::ops::{arange, one_hot, where_};
use crate::trace::tensor::op;
use crate::trace::{DType, Tensor};

/// Computes the cross-entropy between a distribution of labels and the softmax of logits, over the
/// last axis: `optax.softmax_cross_entropy`.
///
/// A label of 0 beside a logit of minus infinity gives NaN; [`safe_softmax_cross_entropy`] gives 0.
///
/// # Errors
/// Ends the trace if logits or labels are not floats.
#[op]
pub fn softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor {
    ensure_floats("softmax_cross_entropy", ["logits", "labels"], [logits, labels]);
    -(labels * logits.log_softmax(-1)).sum(-1)
}

/// Computes the softmax cross-entropy where labels of 0 count as 0, even if the logit is minus
/// infinity: `optax.safe_softmax_cross_entropy`. Its derivative by a label of 0 is 0.
///
/// # Errors
/// Ends the trace if logits or labels are not floats.
#[op]
pub fn safe_softmax_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor {
    ensure_floats("safe_softmax_cross_entropy", ["logits", "labels"], [logits, labels]);
    let value = |(logits, labels): (Tensor, Tensor)| {
        where_(labels.ne(0.0), labels * logits.log_softmax(-1), 0.0)
    };
    // Of the product: a label of 0 has the derivative of a label nearby.
    let rule = move |(logits, labels): (Tensor, Tensor), (t, t_labels): (Tensor, Tensor)| {
        let centered = t - (t * logits.softmax(-1)).sum_keepdims(-1);
        (value((logits, labels)), labels * centered + t_labels * logits.log_softmax(-1))
    };
    -custom_jvp(value, rule)((logits, labels)).sum(-1)
}

/// Computes the cross-entropy between integer labels and the softmax of logits, over the last axis:
/// `optax.softmax_cross_entropy_with_integer_labels`.
///
/// `logits: [.., classes]`, `labels: [..]`, result `[..]`.
///
/// # Errors
/// Ends the trace if the logits are not floats, or if the labels have another shape or type.
#[op]
pub fn softmax_cross_entropy_with_integer_labels(logits: Tensor, labels: Tensor) -> Tensor {
    let op = "softmax_cross_entropy_with_integer_labels";
    ensure_floats(op, ["logits"], [logits]);
    logits.logsumexp(-1) - chosen(op, ["logits", "labels"], logits, labels)
}

/// Computes the cross-entropy between labels and the sigmoid of logits for each element:
/// `optax.sigmoid_binary_cross_entropy`. Labels are probabilities of class 1, or integers.
///
/// # Errors
/// Ends the trace if the logits are not floats.
#[op]
pub fn sigmoid_binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor {
    ensure_floats("sigmoid_binary_cross_entropy", ["logits"], [logits]);
    let labels = labels.to(logits.dtype());
    -labels * logits.log_sigmoid() - (1.0 - labels) * (-logits).log_sigmoid()
}

/// Computes the focal loss for each element (Lin et al. 2017), `optax.sigmoid_focal_loss`: the
/// sigmoid cross-entropy times `(1 - p)^gamma`, where `p` is the probability of the label.
///
/// `gamma` is 2 in optax. With `alpha`, class 1 has the weight `alpha` and class 0 `1 - alpha`.
///
/// # Errors
/// Ends the trace if the logits are not floats.
#[op]
pub fn sigmoid_focal_loss(
    logits: Tensor,
    labels: Tensor,
    alpha: Option<f64>,
    gamma: f64,
) -> Tensor {
    let cross_entropy = sigmoid_binary_cross_entropy(logits, labels);
    let labels = labels.to(logits.dtype());
    let weight = |(logits, labels): (Tensor, Tensor)| (gamma * log_of_error(logits, labels)).exp();
    // By the label, also where it is 0 or 1 and one side of the sum does not count.
    let rule = move |(logits, labels): (Tensor, Tensor), (t, t_labels): (Tensor, Tensor)| {
        let (log_error, weight) = (log_of_error(logits, labels), weight((logits, labels)));
        let (log_p, log_q) = (logits.log_sigmoid(), (-logits).log_sigmoid());
        let by_logit = weight * (1.0 - 2.0 * labels) * (log_p + log_q - log_error).exp();
        let by_label = ((gamma - 1.0) * log_error).exp() * (log_q.exp() - log_p.exp());
        (weight, gamma * (by_logit * t + by_label * t_labels))
    };
    let loss = cross_entropy * custom_jvp(weight, rule)((logits, labels));
    match alpha {
        Some(alpha) => (alpha * labels + (1.0 - alpha) * (1.0 - labels)) * loss,
        None => loss,
    }
}

/// The logarithm of `(1 - labels) p + labels (1 - p)`, where `p` is the sigmoid of the logits.
fn log_of_error(logits: Tensor, labels: Tensor) -> Tensor {
    let (log_p, log_q) = (logits.log_sigmoid(), (-logits).log_sigmoid());
    // Of a label of 0 or 1 only one side counts, which must not underflow beside the other.
    let (wrong_as_1, wrong_as_0) =
        (where_(labels.eq(1.0), log_q, log_p), where_(labels.eq(0.0), log_p, log_q));
    let largest = wrong_as_1.maximum(wrong_as_0);
    let total =
        (1.0 - labels) * (wrong_as_1 - largest).exp() + labels * (wrong_as_0 - largest).exp();
    total.log() + largest
}

/// Computes `max(0, 1 - predictions * targets)` for each element, `optax.hinge_loss`; targets are
/// -1 and 1.
#[op]
pub fn hinge_loss(predictions: Tensor, targets: Tensor) -> Tensor {
    ensure_floats("hinge_loss", ["predictions"], [predictions]);
    (1.0 - predictions * targets.to(predictions.dtype())).maximum(0.0)
}

/// Computes `max(0, -predictions * targets)` for each element, `optax.perceptron_loss`; targets are
/// -1 and 1.
///
/// # Errors
/// Ends the trace if the shapes differ, or if the predictions are not floats.
#[op]
pub fn perceptron_loss(predictions: Tensor, targets: Tensor) -> Tensor {
    ensure_floats("perceptron_loss", ["predictions"], [predictions]);
    ensure_same_shape("perceptron_loss", ["predictions", "targets"], [predictions, targets]);
    (-predictions * targets.to(predictions.dtype())).maximum(0.0)
}

/// Computes the sparsemax loss of binary labels for each element (Martins & Astudillo 2016):
/// `optax.losses.sparsemax_loss`.
#[op]
pub fn sparsemax_loss(logits: Tensor, labels: Tensor) -> Tensor {
    ensure_floats("sparsemax_loss", ["logits"], [logits]);
    let x = where_(labels.to(DType::Bool), -logits, logits);
    let middle = (x + 1.0).square() / 4.0;
    where_(x.le(-1.0), 0.0, where_(x.ge(1.0), x, middle))
}

/// Computes the hinge loss over classes, the last axis: `optax.losses.multiclass_hinge_loss`.
///
/// `scores: [.., classes]`, `labels: [..]` of integers, result `[..]`.
///
/// # Errors
/// Ends the trace if the scores are not floats, or if the labels have another shape or type.
#[op]
pub fn multiclass_hinge_loss(scores: Tensor, labels: Tensor) -> Tensor {
    let op = "multiclass_hinge_loss";
    ensure_floats(op, ["scores"], [scores]);
    let score = chosen(op, ["scores", "labels"], scores, labels);
    (scores + 1.0 - one_hot(labels, scores.dim(-1), scores.dtype())).max(-1) - score
}

/// Computes the perceptron loss over classes, the last axis:
/// `optax.losses.multiclass_perceptron_loss`.
///
/// # Errors
/// Ends the trace in the cases of [`multiclass_hinge_loss`].
#[op]
pub fn multiclass_perceptron_loss(scores: Tensor, labels: Tensor) -> Tensor {
    let op = "multiclass_perceptron_loss";
    ensure_floats(op, ["scores"], [scores]);
    scores.max(-1) - chosen(op, ["scores", "labels"], scores, labels)
}

/// Computes the Euclidean projection of each vector of the last axis onto the probability simplex, the
/// sparsemax. Its derivative is that of the solution: the mean of the support is taken away.
fn sparsemax(scores: Tensor) -> Tensor {
    let classes = scores.dim(-1);
    let sorted = scores.sort_descending(-1);
    let numbers = arange(classes, DType::I32).to(scores.dtype()) + 1.0;
    let sums = sorted.cumsum(-1) - 1.0;
    let support = (numbers * sorted).gt(sums);
    let size = support.to(DType::I32).sum_keepdims(-1);
    let chosen = (arange(classes, DType::I32) + 1).eq(size);
    let threshold = where_(chosen, sums, 0.0).sum_keepdims(-1) / size.to(scores.dtype());
    (scores - threshold).maximum(0.0)
}

/// Computes the sparsemax loss over classes, the last axis (Martins & Astudillo 2016):
/// `optax.losses.multiclass_sparsemax_loss`.
///
/// `scores: [.., classes]`, `labels: [..]` of integers, result `[..]`.
///
/// # Errors
/// Ends the trace in the cases of [`multiclass_hinge_loss`].
#[op]
pub fn multiclass_sparsemax_loss(scores: Tensor, labels: Tensor) -> Tensor {
    let op = "multiclass_sparsemax_loss";
    ensure_floats(op, ["scores"], [scores]);
    let score = chosen(op, ["scores", "labels"], scores, labels);
    // Distances to the greatest score: sums of huge scores would be rounded.
    let greatest = scores.max(-1).stop_gradient();
    let distances = scores - greatest.expand_dims(-1);
    let probs = sparsemax(distances);
    let gains = where_(probs.gt(0.0), distances, 0.0);
    (probs * gains).sum(-1) + 0.5 * (1.0 - probs.square().sum(-1)) + (greatest - score)
}

/// Returns the Fenchel-Young loss of a maximum function, `max_fun(scores) - targets . scores` (Blondel
/// et al. 2020): `optax.losses.make_fenchel_young_loss`.
///
/// `max_fun` takes scores `[.., classes]` and reduces the last axis, as `logsumexp` does, whose loss is
/// the softmax cross-entropy.
///
/// ```
/// use podracer::losses::make_fenchel_young_loss;
/// use podracer::{Array, Tensor, interpret};
///
/// let loss = make_fenchel_young_loss(|scores: Tensor| scores.logsumexp(-1));
/// let f = interpret(move |(scores, targets): (Tensor, Tensor)| loss(scores, targets));
/// let (scores, targets) = (Array::from([0.0f32, 0.0]), Array::from([1.0f32, 0.0]));
/// assert!((f.call((scores, targets))?.item::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn make_fenchel_young_loss(
    max_fun: impl Fn(Tensor) -> Tensor,
) -> impl Fn(Tensor, Tensor) -> Tensor {
    #[track_caller]
    fn difference(max: Tensor, scores: Tensor, targets: Tensor) -> Tensor {
        let op = "fenchel_young_loss";
        ensure_same_shape(op, ["scores", "targets"], [scores, targets]);
        max - (targets * scores).sum(-1)
    }
    move |scores, targets| difference(max_fun(scores), scores, targets)
}

/// Computes the softmax cross-entropy plus `epsilon` times the probability of other classes (Leng
/// et al. 2022), over the last axis: `optax.poly_loss_cross_entropy`. `epsilon` is 2 in optax.
///
/// # Errors
/// Ends the trace if logits or labels are not floats.
#[op]
pub fn poly_loss_cross_entropy(logits: Tensor, labels: Tensor, epsilon: f64) -> Tensor {
    let cross_entropy = softmax_cross_entropy(logits, labels);
    cross_entropy + epsilon * (labels * (1.0 - logits.softmax(-1))).sum(-1)
}

/// Mixes labels with the uniform distribution over the last axis: `optax.smooth_labels` (Szegedy et
/// al. 2016).
///
/// # Errors
/// Ends the trace if the labels are not floats.
#[op]
pub fn smooth_labels(labels: Tensor, alpha: f64) -> Tensor {
    ensure_floats("smooth_labels", ["labels"], [labels]);
    (1.0 - alpha) * labels + alpha / labels.dim(-1) as f64
}

/// Computes the mean softmax cross-entropy of lists, along the last axis:
/// `optax.losses.ranking_softmax_loss`.
///
/// # Errors
/// Ends the trace if the logits are not floats.
#[op]
pub fn ranking_softmax_loss(logits: Tensor, labels: Tensor) -> Tensor {
    ensure_floats("ranking_softmax_loss", ["logits"], [logits]);
    softmax_cross_entropy(logits, labels.to(logits.dtype())).mean(..)
}
