//! Transposition of discrete Fourier transforms.

use crate::trace::literal::Literal;
use crate::trace::op::{FftKind, FftOp};
use crate::trace::ops::{constant, fft};
use crate::trace::tensor::Tensor;
use crate::trace::types::DType;

/// The cotangent of the operand. The matrices of a transform and of its inverse are symmetric.
pub(crate) fn transpose(op: &FftOp, ct: Tensor) -> Tensor {
    match op.kind {
        FftKind::Fft | FftKind::Ifft => fft(ct, op.kind, &op.lengths),
        FftKind::Rfft => transpose_rfft(&op.lengths, ct),
        FftKind::Irfft => transpose_irfft(&op.lengths, ct),
    }
}

/// Weights of the elements of a half along the last axis in the sum over all: 2, and 1 for those that
/// are their own partners, all times `factor`.
fn weights(n: usize, factor: f64, dtype: DType) -> Tensor {
    let weight = |k: usize| if k == 0 || 2 * k == n { 1.0 } else { 2.0 };
    let weights: Vec<f64> = (0..n / 2 + 1).map(|k| factor * weight(k)).collect();
    constant(Literal::from(weights)).to(dtype)
}

fn transpose_rfft(lengths: &[usize], ct: Tensor) -> Tensor {
    let n = lengths[lengths.len() - 1];
    let count: usize = lengths.iter().product();
    let each = ct.conj() / weights(n, 1.0 / count as f64, ct.dtype());
    fft(each, FftKind::Irfft, lengths)
}

fn transpose_irfft(lengths: &[usize], ct: Tensor) -> Tensor {
    let half = fft(ct, FftKind::Rfft, lengths);
    let n = lengths[lengths.len() - 1];
    let count: usize = lengths.iter().product();
    (half * weights(n, 1.0 / count as f64, half.dtype())).conj()
}
