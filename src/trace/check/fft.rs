//! The type of a discrete Fourier transform.

use super::problem::{Problem, ensure};
use crate::trace::op::{FftKind, FftOp};
use crate::trace::types::{DType, Shape, TensorType};

pub(super) fn infer(op: &FftOp, x: &TensorType) -> Result<TensorType, Problem> {
    let FftOp { kind, lengths } = op;
    match kind {
        FftKind::Rfft => ensure!(
            matches!(x.dtype, DType::F32 | DType::F64),
            [0],
            "takes f32 or f64, got {x}; convert it with .to(dtype)"
        ),
        FftKind::Fft | FftKind::Ifft | FftKind::Irfft => ensure!(
            x.dtype.is_complex(),
            [0],
            "takes complex numbers, got {x}; convert it with .to(DType::C64)"
        ),
    }
    ensure!(
        (1..=3).contains(&lengths.len()) && lengths.len() <= x.rank(),
        [0],
        "transforms one to three axes, got {} lengths for {x}",
        lengths.len()
    );
    let (batch, transformed) = x.shape.split_at(x.rank() - lengths.len());
    let half = |shape: &[usize]| -> Shape {
        let mut shape = shape.to_vec();
        shape.last_mut().into_iter().for_each(|n| *n = *n / 2 + 1);
        shape.into()
    };
    let all = Shape::from(&lengths[..]);
    let (expected, result) = match kind {
        FftKind::Fft | FftKind::Ifft => (all.clone(), all),
        FftKind::Rfft => (all.clone(), half(&all)),
        FftKind::Irfft => (half(&all), all),
    };
    ensure!(
        *transformed == *expected,
        [0],
        "the last axes of {x} must have sizes {expected} for lengths {lengths:?}"
    );
    ensure!(lengths.iter().all(|&n| n > 0), [0], "transforms at least one element, got {x}");
    let dtype = match kind {
        FftKind::Fft | FftKind::Ifft => x.dtype,
        FftKind::Rfft => x.dtype.complex(),
        FftKind::Irfft => x.dtype.real(),
    };
    let shape: Shape = batch.iter().chain(result.iter()).copied().collect();
    Ok(TensorType::new(dtype, shape))
}
