//! Discrete Fourier transforms: `jnp.fft`.

use std::slice::from_ref;

use crate::trace::op::{Amounts, Axes, FftKind};
use crate::trace::ops::{self, AxisList};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

/// Direction whose transform is divided by the number of elements: `norm` of `jnp.fft`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FftNorm {
    /// The inverse one.
    #[default]
    Backward,
    /// Both, by the square root.
    Ortho,
    /// The forward one.
    Forward,
}

impl FftNorm {
    /// Factor of a transform of `count` elements, beside that of [`ops::fft`].
    fn factor(self, inverse: bool, count: f64) -> f64 {
        match (self, inverse) {
            (FftNorm::Backward, _) => 1.0,
            (FftNorm::Ortho, false) => count.sqrt().recip(),
            (FftNorm::Ortho, true) => count.sqrt(),
            (FftNorm::Forward, false) => count.recip(),
            (FftNorm::Forward, true) => count,
        }
    }

    fn swapped(self) -> FftNorm {
        match self {
            FftNorm::Backward => FftNorm::Forward,
            FftNorm::Ortho => FftNorm::Ortho,
            FftNorm::Forward => FftNorm::Backward,
        }
    }
}

/// Most axes that one operation transforms.
const MAX_AXES: usize = 3;

/// A transform over `axes` at the sizes `s`.
#[track_caller]
fn transform(
    name: &'static str,
    kind: FftKind,
    x: Tensor,
    s: Option<&[usize]>,
    axes: &[usize],
    norm: FftNorm,
) -> Tensor {
    let real = kind == FftKind::Rfft;
    if real && x.dtype().is_complex() {
        fail_op(name, format!("takes real numbers, and was given {}", x.ty()));
    }
    let repeated = axes.iter().enumerate().any(|(i, axis)| axes[..i].contains(axis));
    if axes.is_empty() || repeated || s.is_some_and(|s| s.len() != axes.len()) {
        let problem = format!(
            "takes one or more different axes, and no sizes or one for each; was given axes {axes:?} \
             and sizes {s:?}"
        );
        fail_op(name, problem);
    }
    let x = match x.to_inexact() {
        x if real && x.dtype() != DType::F64 => x.to(DType::F32),
        x if real => x,
        x => x.to(x.dtype().complex()),
    };
    // The axes last, in the order given.
    let rank = x.rank();
    let order: Axes = (0..rank).filter(|a| !axes.contains(a)).chain(axes.iter().copied()).collect();
    let first = rank - axes.len();
    let shape = x.shape();
    let mut lengths: Axes = match s {
        Some(s) => s.into(),
        None => axes.iter().map(|&axis| shape[axis]).collect(),
    };
    let last = axes.len() - 1;
    if kind == FftKind::Irfft && s.is_none() {
        lengths[last] = 2 * lengths[last].saturating_sub(1);
    }
    if lengths.contains(&0) {
        fail_op(name, format!("transforms at least one element of each axis of {}", x.ty()));
    }
    let mut x = x.transpose(&order);
    let mut sizes = lengths.clone();
    if kind == FftKind::Irfft {
        sizes[last] = sizes[last] / 2 + 1;
    }
    x = cut_or_padded(x, first, &sizes);
    let inverse = matches!(kind, FftKind::Ifft | FftKind::Irfft);
    let plain = if inverse { FftKind::Ifft } else { FftKind::Fft };
    // One operation transforms the last axes; the others are moved to the end for theirs.
    let split = lengths.len().saturating_sub(MAX_AXES);
    let rest = |x: Tensor| (0..split).fold(x, |x, i| along(x, plain, first + i, lengths[i]));
    if kind == FftKind::Irfft {
        x = rest(x);
    }
    x = ops::fft(x, kind, &lengths[split..]);
    if kind != FftKind::Irfft {
        x = rest(x);
    }
    let count: f64 = lengths.iter().map(|&n| n as f64).product();
    let factor = norm.factor(inverse, count);
    let x = if factor == 1.0 { x } else { x * factor };
    let mut back = Axes::from_elem(0, rank);
    for (to, &from) in order.iter().enumerate() {
        back[from] = to;
    }
    x.transpose(&back)
}

/// A complex transform of one axis.
#[track_caller]
fn along(x: Tensor, kind: FftKind, axis: usize, n: usize) -> Tensor {
    let axis = axis as isize;
    ops::fft(x.moveaxis(axis, -1), kind, &[n]).moveaxis(-1, axis)
}

/// The axes from `first` on cut to `sizes`, or filled up with zeros.
#[track_caller]
fn cut_or_padded(x: Tensor, first: usize, sizes: &[usize]) -> Tensor {
    let none = Axes::from_elem(0, x.rank());
    let mut high = Amounts::from_elem(0, x.rank());
    for (i, &size) in sizes.iter().enumerate() {
        high[first + i] = size as i64 - x.dim((first + i) as isize) as i64;
    }
    if high.iter().all(|&amount| amount == 0) {
        return x;
    }
    x.pad_interior(&Amounts::from_elem(0, x.rank()), &high, &none, 0.0)
}

macro_rules! transforms {
    ($(
        $(#[$one:meta])* $name:ident,
        $(#[$two:meta])* $name2:ident,
        $(#[$many:meta])* $namen:ident: $kind:ident;
    )*) => {$(
        $(#[$one])*
        #[op]
        pub fn $name(x: Tensor, n: Option<usize>, axis: isize, norm: FftNorm) -> Tensor {
            let axes = axis.axes(stringify!($name), x.rank());
            transform(stringify!($name), FftKind::$kind, x, n.as_ref().map(from_ref), &axes, norm)
        }

        $(#[$two])*
        #[op]
        pub fn $name2(x: Tensor, s: Option<[usize; 2]>, axes: [isize; 2], norm: FftNorm) -> Tensor {
            let axes = axes.axes(stringify!($name2), x.rank());
            transform(stringify!($name2), FftKind::$kind, x, s.as_ref().map(|s| &s[..]), &axes, norm)
        }

        $(#[$many])*
        #[op]
        pub fn $namen(
            x: Tensor,
            s: Option<&[usize]>,
            axes: impl AxisList,
            norm: FftNorm,
        ) -> Tensor {
            let axes = axes.axes(stringify!($namen), x.rank());
            transform(stringify!($namen), FftKind::$kind, x, s, &axes, norm)
        }
    )*};
}

transforms! {
    /// `jnp.fft.fft`: the discrete Fourier transform along `axis`, cut or filled up with zeros to
    /// `n` elements first. Real numbers count as complex ones; the result is complex.
    ///
    /// ```
    /// use podracer::trace::numpy::{FftNorm, fft};
    /// use podracer::{Array, Tensor, interpret};
    /// let f = interpret(|x: Tensor| fft(x, None, -1, FftNorm::Backward).real());
    /// let x = Array::from([1.0f32, 0.0, 1.0, 0.0]);
    /// assert_eq!(f.call(x)?.to_vec::<f32>()?, [2.0, 0.0, 2.0, 0.0]);
    /// # Ok::<(), podracer::Error>(())
    /// ```
    fft,
    /// `jnp.fft.fft2`: [`fft`] over two axes, of the sizes `s`.
    fft2,
    /// `jnp.fft.fftn`: [`fft`] over `axes`, of the sizes `s`.
    fftn: Fft;

    /// `jnp.fft.ifft`: the inverse of [`fft`].
    ifft,
    /// `jnp.fft.ifft2`: the inverse of [`fft2`].
    ifft2,
    /// `jnp.fft.ifftn`: the inverse of [`fftn`].
    ifftn: Ifft;

    /// `jnp.fft.rfft`: the first `n / 2 + 1` elements of the [`fft`] of real numbers; the others are
    /// conjugates of these.
    rfft,
    /// `jnp.fft.rfft2`: [`rfft`] along the second of two axes, then [`fft`] along the first.
    rfft2,
    /// `jnp.fft.rfftn`: [`rfft`] along the last of `axes`, then [`fft`] along the others.
    rfftn: Rfft;

    /// `jnp.fft.irfft`: the inverse of [`rfft`], of `n` real numbers; without `n` of an even number
    /// of them.
    irfft,
    /// `jnp.fft.irfft2`: the inverse of [`rfft2`].
    irfft2,
    /// `jnp.fft.irfftn`: the inverse of [`rfftn`].
    irfftn: Irfft;
}

/// `jnp.fft.hfft`: the [`fft`] of `n` numbers whose second half are conjugates of the first one,
/// from the first half. The result is real.
#[op]
pub fn hfft(x: Tensor, n: Option<usize>, axis: isize, norm: FftNorm) -> Tensor {
    irfft(x.conj(), n, axis, norm.swapped())
}

/// `jnp.fft.ihfft`: the inverse of [`hfft`]; the first half of the result.
#[op]
pub fn ihfft(x: Tensor, n: Option<usize>, axis: isize, norm: FftNorm) -> Tensor {
    rfft(x, n, axis, norm.swapped()).conj()
}
