//! Frequencies and orders of discrete Fourier transforms.

use crate::trace::literal::Literal;
use crate::trace::ops::{AxisList, constant};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

#[track_caller]
fn frequencies(numbers: impl Iterator<Item = i64>, n: usize, spacing: f64, dtype: DType) -> Tensor {
    if !dtype.is_float() || n == 0 {
        let problem = format!("takes a float type and at least one sample; was given {dtype}, {n}");
        fail_op("fftfreq", problem);
    }
    let values: Vec<f64> = numbers.map(|k| k as f64 / (n as f64 * spacing)).collect();
    constant(Literal::new([values.len()], &values)).to(dtype)
}

/// `jnp.fft.fftfreq`: the frequencies of a transform of `n` samples that are `spacing` apart: those
/// from 0 up, then the negative ones.
#[op]
pub fn fftfreq(n: usize, spacing: f64, dtype: DType) -> Tensor {
    let (n_signed, half) = (n as i64, n.div_ceil(2) as i64);
    let numbers = (0..n_signed).map(move |k| if k < half { k } else { k - n_signed });
    frequencies(numbers, n, spacing, dtype)
}

/// `jnp.fft.rfftfreq`: the frequencies of a transform of `n` real samples that are `spacing` apart.
#[op]
pub fn rfftfreq(n: usize, spacing: f64, dtype: DType) -> Tensor {
    frequencies(0..=(n / 2) as i64, n, spacing, dtype)
}

impl Tensor {
    /// `jnp.fft.fftshift`: frequency 0 moved to the middle of each of `axes`.
    #[op]
    pub fn fftshift(self, axes: impl AxisList) -> Tensor {
        let axes = axes.axes("fftshift", self.rank());
        axes.iter().fold(self, |x, &axis| {
            let axis = axis as isize;
            x.roll((x.dim(axis) / 2) as isize, axis)
        })
    }

    /// `jnp.fft.ifftshift`: the inverse of [`Tensor::fftshift`].
    #[op]
    pub fn ifftshift(self, axes: impl AxisList) -> Tensor {
        let axes = axes.axes("ifftshift", self.rank());
        axes.iter().fold(self, |x, &axis| {
            let axis = axis as isize;
            x.roll(-((x.dim(axis) / 2) as isize), axis)
        })
    }
}
