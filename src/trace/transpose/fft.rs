//! Transposition of discrete Fourier transforms.

use crate::trace::literal::Literal;
use crate::trace::op::{Amounts, Axes, FftKind, FftOp};
use crate::trace::ops::{complex, constant, fft, zeros_like};
use crate::trace::tensor::Tensor;

/// The cotangent of the operand. The matrices of a transform and of its inverse are symmetric.
pub(crate) fn transpose(op: &FftOp, ct: Tensor) -> Tensor {
    match op.kind {
        FftKind::Fft | FftKind::Ifft => fft(ct, op.kind, &op.lengths),
        FftKind::Rfft => transpose_rfft(&op.lengths, ct),
        FftKind::Irfft => transpose_irfft(&op.lengths, ct),
    }
}

/// A real transform is a complex one of which half of the last axis is kept.
fn transpose_rfft(lengths: &[usize], ct: Tensor) -> Tensor {
    let rank = ct.rank();
    let none = Axes::from_elem(0, rank);
    let low = Amounts::from_elem(0, rank);
    let mut high = low.clone();
    let n = lengths[lengths.len() - 1];
    high[rank - 1] = (n - ct.dim(-1)) as i64;
    fft(ct.pad_interior(&low, &high, &none, 0.0), FftKind::Fft, lengths).real()
}

/// The inverse counts each element of the half twice, but those that are their own partners.
fn transpose_irfft(lengths: &[usize], ct: Tensor) -> Tensor {
    let half = fft(ct, FftKind::Rfft, lengths);
    let n = lengths[lengths.len() - 1];
    let count: usize = lengths.iter().product();
    let weight = |k: usize| if k == 0 || 2 * k == n { 1.0 } else { 2.0 } / count as f64;
    let weights: Vec<f64> = (0..n / 2 + 1).map(weight).collect();
    let weights = constant(Literal::from(weights)).to(ct.dtype());
    (half * complex(weights, zeros_like(weights))).conj()
}
