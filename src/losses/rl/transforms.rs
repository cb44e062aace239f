//! Transformations of values: pairs of a function and its inverse, and two-hot encodings.

use std::fmt;
use std::sync::Arc;

use crate::trace::ops::{constant, linspace, one_hot, where_};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Tensor};

/// Computes `sign(x) log(1 + |x|)`: `rlax.signed_logp1`.
#[op]
pub fn signed_logp1(x: Tensor) -> Tensor {
    x.sign() * x.abs().log1p()
}

/// Computes `sign(x) (e^|x| - 1)`, the inverse of [`signed_logp1`]: `rlax.signed_expm1`.
#[op]
pub fn signed_expm1(x: Tensor) -> Tensor {
    x.sign() * x.abs().expm1()
}

/// Computes `sign(x) (sqrt(|x| + 1) - 1) + eps x`: `rlax.signed_hyperbolic` (Pohlen et al. 2018).
/// `eps` is 1e-3 in rlax.
#[op]
pub fn signed_hyperbolic(x: Tensor, eps: f64) -> Tensor {
    x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + eps * x
}

/// Computes the inverse of [`signed_hyperbolic`]: `rlax.signed_parabolic`.
#[op]
pub fn signed_parabolic(x: Tensor, eps: f64) -> Tensor {
    let root = (1.0 + 4.0 * eps * (eps + 1.0 + x.abs())).sqrt();
    let z = root / 2.0 / eps - 1.0 / 2.0 / eps;
    x.sign() * (z.square() - 1.0)
}

/// Computes the Box-Cox-like power transformation: `rlax.power`.
#[op]
pub fn power(x: Tensor, p: f64) -> Tensor {
    let q = p.sqrt();
    x.sign() * ((x.abs() / q + 1.0).pow(p) - 1.0) / q
}

/// Ends the trace with an error unless the support is one.
#[track_caller]
fn ensure_support(op: &str, min_value: f64, max_value: f64, num_bins: usize) {
    if num_bins < 2 || min_value >= max_value || min_value.is_nan() || max_value.is_nan() {
        let problem = format!(
            "needs at least 2 bins from a smaller to a larger value, and got {num_bins} bins from \
             {min_value} to {max_value}"
        );
        fail_op(op, problem);
    }
}

/// Computes the two-hot encoding of numbers, along a new last axis: `rlax.transform_to_2hot`.
///
/// The support has `num_bins` values from `min_value` to `max_value`; numbers outside are clipped.
///
/// # Errors
/// Ends the trace if there are fewer than 2 bins, or if the values do not ascend.
#[op]
pub fn transform_to_2hot(
    scalar: Tensor,
    min_value: f64,
    max_value: f64,
    num_bins: usize,
) -> Tensor {
    ensure_support("transform_to_2hot", min_value, max_value, num_bins);
    let (last, range) = (num_bins as f64 - 1.0, max_value - min_value);
    let scalar = scalar.clip(min_value, max_value);
    let bin = (scalar - min_value) / range * last;
    let (lower, upper) = (bin.floor(), bin.ceil());
    let value_of = |bin: Tensor| bin / last * range + min_value;
    let p_lower = (value_of(upper) - scalar) / (value_of(upper) - value_of(lower) + 1e-5);
    let hot = |bin: Tensor, p: Tensor| {
        one_hot(bin.to(DType::I32), num_bins, scalar.dtype()) * p.expand_dims(-1)
    };
    hot(lower, p_lower) + hot(upper, 1.0 - p_lower)
}

/// Computes numbers from distributions over a support, the last axis: `rlax.transform_from_2hot`.
///
/// # Errors
/// Ends the trace in the cases of [`transform_to_2hot`].
#[op]
pub fn transform_from_2hot(
    probs: Tensor,
    min_value: f64,
    max_value: f64,
    num_bins: usize,
) -> Tensor {
    ensure_support("transform_from_2hot", min_value, max_value, num_bins);
    (probs * linspace(min_value, max_value, num_bins, probs.dtype())).sum(-1)
}

/// Function on tensors that a [`TxPair`] holds.
type TensorFn = Arc<dyn Fn(Tensor) -> Tensor + Send + Sync>;

/// Transformation of values and its inverse: `rlax.TxPair`.
#[derive(Clone)]
pub struct TxPair {
    apply: TensorFn,
    apply_inv: TensorFn,
}

impl fmt::Debug for TxPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TxPair")
    }
}

impl TxPair {
    /// Makes a pair of a function and its inverse.
    pub fn new(
        apply: impl Fn(Tensor) -> Tensor + Send + Sync + 'static,
        apply_inv: impl Fn(Tensor) -> Tensor + Send + Sync + 'static,
    ) -> TxPair {
        TxPair { apply: Arc::new(apply), apply_inv: Arc::new(apply_inv) }
    }

    /// Returns the transformed values.
    #[track_caller]
    pub fn apply(&self, x: Tensor) -> Tensor {
        (self.apply)(x)
    }

    /// Returns the values whose transformation is `x`.
    #[track_caller]
    pub fn apply_inv(&self, x: Tensor) -> Tensor {
        (self.apply_inv)(x)
    }

    /// Returns the pair of the identity: `rlax.IDENTITY_PAIR`.
    pub fn identity() -> TxPair {
        TxPair::new(|x| x, |x| x)
    }

    /// Returns the pair of logarithms: `rlax.SIGNED_LOGP1_PAIR`.
    pub fn signed_logp1() -> TxPair {
        TxPair::new(signed_logp1, signed_expm1)
    }

    /// Returns the pair of [`signed_hyperbolic`] with an `eps` of 1e-3:
    /// `rlax.SIGNED_HYPERBOLIC_PAIR`.
    pub fn signed_hyperbolic() -> TxPair {
        TxPair::new(|x| signed_hyperbolic(x, 1e-3), |x| signed_parabolic(x, 1e-3))
    }

    /// Returns the pair of hyperbolic sines: `rlax.HYPERBOLIC_SIN_PAIR`.
    pub fn hyperbolic_sin() -> TxPair {
        TxPair::new(|x| x.asinh(), |x| x.sinh())
    }

    /// Returns the pair of two-hot encodings: `rlax.twohot_pair`.
    pub fn twohot(min_value: f64, max_value: f64, num_bins: usize) -> TxPair {
        TxPair::new(
            move |x| transform_to_2hot(x, min_value, max_value, num_bins),
            move |x| transform_from_2hot(x, min_value, max_value, num_bins),
        )
    }

    /// Returns the pair that applies this one, then `next`: `rlax.compose_tx`.
    pub fn then(self, next: TxPair) -> TxPair {
        let (apply, apply_inv) = (self.apply, self.apply_inv);
        let (next_apply, next_apply_inv) = (next.apply, next.apply_inv);
        TxPair::new(move |x| next_apply(apply(x)), move |x| apply_inv(next_apply_inv(x)))
    }

    /// Returns a two-hot encoding of transformed values: `rlax.muzero_pair` (Schrittwieser et al.
    /// 2020).
    pub fn muzero(min_value: f64, max_value: f64, num_bins: usize, tx: TxPair) -> TxPair {
        tx.then(TxPair::twohot(min_value, max_value, num_bins))
    }

    /// Returns a two-hot encoding whose bins are even in transformed values:
    /// `rlax.unbiased_transform_pair` (Hafner et al. 2023). Numbers are mixtures of bins, so that
    /// their mean is kept.
    pub fn unbiased(min_value: f64, max_value: f64, num_bins: usize, tx: TxPair) -> TxPair {
        let inverse = tx.clone();
        let bins = move |dtype| inverse.apply_inv(linspace(min_value, max_value, num_bins, dtype));
        let bins_of_apply = bins.clone();
        TxPair::new(
            move |x: Tensor| {
                ensure_support("unbiased", min_value, max_value, num_bins);
                two_hot_of_bins(x, bins_of_apply(x.dtype()))
            },
            move |probs: Tensor| (probs * bins(probs.dtype())).sum(-1),
        )
    }
}

/// Computes the two-hot encoding of numbers over ascending bins: `rlax.transform_to_2hot_nonlinear`.
#[track_caller]
fn two_hot_of_bins(scalar: Tensor, bins: Tensor) -> Tensor {
    let count = bins.dim(0);
    let scalar = scalar.maximum(bins.index_axis(0, 0)).minimum(bins.index_axis(0, -1));
    let reached = scalar.expand_dims(-1).le(bins);
    let upper = reached.to(DType::I32).argmax(-1);
    // A number at the first bin has no lower one, and all of the weight is on the first.
    let lower = (upper - 1).maximum(0);
    let (value_above, value_below) = (bins.take(upper, 0), bins.take(lower, 0));
    let width = value_above - value_below;
    let single = width.eq(0.0);
    let p_lower = where_(single, 0.0, (value_above - scalar) / where_(single, 1.0, width));
    let hot = |index: Tensor, p: Tensor| one_hot(index, count, p.dtype()) * p.expand_dims(-1);
    hot(lower, p_lower) + hot(upper, constant(1.0f32).to(p_lower.dtype()) - p_lower)
}
