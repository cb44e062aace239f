//! Losses of embeddings.

use super::regression::cosine_similarity;
use super::{ensure_floats, ensure_same_shape};
use crate::trace::ops::{concatenate, eye, where_};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Tensor};

/// Computes the normalized temperature-scaled cross-entropy (Chen et al. 2020), a scalar:
/// `optax.losses.ntxent`.
///
/// `embeddings: [n, features]`, `labels: [n]` of integers; embeddings of one label attract each
/// other. `temperature` is .07 in optax.
///
/// # Errors
/// Ends the trace if the embeddings are not floats, or if the shapes do not fit.
#[op]
pub fn ntxent(embeddings: Tensor, labels: Tensor, temperature: f64) -> Tensor {
    ensure_floats("ntxent", ["embeddings"], [embeddings]);
    let (shape, dtype) = (embeddings.shape(), embeddings.dtype());
    if shape.rank() != 2 || labels.shape()[..] != shape[..1] {
        let problem = format!(
            "takes embeddings [n, features] and labels [n], and got {} and {}",
            embeddings.ty(),
            labels.ty()
        );
        fail_op("ntxent", problem);
    }
    let (rows, columns) = (embeddings.expand_dims(0), embeddings.expand_dims(1));
    let epsilon = if dtype == DType::F64 { f64::EPSILON } else { f32::EPSILON as f64 };
    let similarity = cosine_similarity(rows, columns, epsilon) / temperature;
    let same = labels.expand_dims(1).eq(labels.expand_dims(0));
    let matches = same & !eye(shape[0], DType::Bool);
    let others = where_(same, f64::NEG_INFINITY, similarity);
    let matching = where_(matches, similarity, f64::NEG_INFINITY);
    let largest = concatenate(&[others, matching], -1).max(-1).expand_dims(1).stop_gradient();
    let negatives = (others - largest).exp().sum_keepdims(1);
    // Pairs that do not match must be finite, for their derivatives are multiplied by 0.
    let shifted = where_(matches, similarity - largest, 0.0);
    let log_softmax = shifted - (negatives + shifted.exp()).log();
    let count = matches.to(dtype).sum(..);
    -where_(matches, log_softmax, 0.0).sum(..) / count
}

/// Computes the triplet margin loss along the last axis (Chechik et al. 2010):
/// `optax.losses.triplet_margin_loss`, `max(0, d(anchor, positive) - d(anchor, negative) + margin)`.
///
/// Distances are `(sum((x - y)^norm_degree) + eps)^(1 / norm_degree)`. Defaults in optax:
/// `norm_degree` 2, `margin` 1, `eps` 1e-6.
///
/// # Errors
/// Ends the trace if an argument does not consist of floats, if the shapes differ, or if
/// `norm_degree` is below 1.
#[op]
pub fn triplet_margin_loss(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    norm_degree: i32,
    margin: f64,
    eps: f64,
) -> Tensor {
    let op = "triplet_margin_loss";
    let names = ["anchors", "positives", "negatives"];
    ensure_floats(op, names, [anchors, positives, negatives]);
    ensure_same_shape(op, names, [anchors, positives, negatives]);
    if norm_degree < 1 {
        fail_op(op, format!("norm_degree must be at least 1, and is {norm_degree}"));
    }
    let distance = |other: Tensor| {
        let total = (anchors - other).powi(norm_degree).sum(-1) + eps;
        total.pow(1.0 / norm_degree as f64)
    };
    (distance(positives) - distance(negatives) + margin).maximum(0.0)
}
