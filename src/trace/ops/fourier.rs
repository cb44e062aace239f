//! Discrete Fourier transforms.

use std::panic::Location;

use crate::trace::op::{Axes, FftKind, FftOp, Op};
use crate::trace::tensor::{Tensor, bind1, op};

/// `jax.lax.fft`: a discrete Fourier transform of the last axes, as many as `lengths` has, one to
/// three. `lengths` are their sizes on the side that has all elements: of the operand, and for
/// [`FftKind::Irfft`] of the result.
///
/// ```
/// use podracer::trace::op::FftKind;
/// use podracer::trace::ops::fft;
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|x: Tensor| fft(x, FftKind::Rfft, &[4]).abs());
/// let sizes = f.call(Array::from([1.0f32, 0.0, 0.0, 0.0]))?;
/// assert_eq!(sizes.to_vec::<f32>()?, [1.0, 1.0, 1.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op]
pub fn fft(x: Tensor, kind: FftKind, lengths: &[usize]) -> Tensor {
    let op = Op::Fft(FftOp { kind, lengths: Axes::from(lengths) });
    bind1(op, &[x], Location::caller())
}
