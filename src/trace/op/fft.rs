//! Parameters of the discrete Fourier transform.

use crate::trace::op::dims::Axes;

/// Kind of a discrete Fourier transform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FftKind {
    /// Transform of complex numbers to complex numbers.
    Fft,
    /// The inverse, divided by the number of elements transformed.
    Ifft,
    /// Transform of real numbers; the result has the first half of the last axis, as the other half
    /// is its conjugate.
    Rfft,
    /// The inverse of [`FftKind::Rfft`].
    Irfft,
}

impl FftKind {
    /// Every one of them.
    pub const ALL: [FftKind; 4] = [FftKind::Fft, FftKind::Ifft, FftKind::Rfft, FftKind::Irfft];

    /// The name, as printed in Programs and messages.
    pub fn name(self) -> &'static str {
        match self {
            FftKind::Fft => "fft",
            FftKind::Ifft => "ifft",
            FftKind::Rfft => "rfft",
            FftKind::Irfft => "irfft",
        }
    }
}

/// A discrete Fourier transform over the last axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FftOp {
    /// The kind.
    pub kind: FftKind,
    /// Sizes of the axes transformed, one to three, outermost first: those of the side that has all
    /// elements.
    pub lengths: Axes,
}
