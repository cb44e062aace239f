//! Statistics and rearrangements that are compositions of others.

use crate::trace::ops::{AxisList, ensure_parts, full_like, where_, zeros_like};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

impl Tensor {
    /// `jnp.count_nonzero` over `axes`, which vanish; i32.
    #[op]
    pub fn count_nonzero(self, axes: impl AxisList) -> Tensor {
        let set = if self.dtype() == DType::Bool { self } else { self.ne(zeros_like(self)) };
        set.to(DType::I32).sum(axes)
    }

    /// `jnp.nansum`: the sum over `axes` of the elements that are not NaN. Types as
    /// [`Tensor::sum`].
    #[op]
    pub fn nansum(self, axes: impl AxisList) -> Tensor {
        self.nan_as(0.0).sum(axes)
    }

    /// `jnp.nanmean`: the mean over `axes` of the elements that are not NaN; NaN if all are NaN.
    /// Types as [`Tensor::mean`].
    #[op]
    pub fn nanmean(self, axes: impl AxisList + Clone) -> Tensor {
        let x = self.to_inexact();
        let dtype = x.dtype();
        // Sums and counts of narrow floats are rounded once, at the end.
        let x = if dtype == DType::F64 { x } else { x.to(DType::F32) };
        let count = (!x.is_nan()).to(x.dtype()).sum(axes.clone());
        (x.nansum(axes) / count).to(dtype)
    }

    /// `jnp.nanmax`: the greatest over `axes` of the elements that are not NaN; NaN if all are NaN.
    #[op]
    pub fn nanmax(self, axes: impl AxisList + Clone) -> Tensor {
        let greatest = self.nan_as(f64::NEG_INFINITY).max(axes.clone());
        self.unless_all_nan(greatest, axes)
    }

    /// `jnp.nanmin`: the least over `axes` of the elements that are not NaN; NaN if all are NaN.
    #[op]
    pub fn nanmin(self, axes: impl AxisList + Clone) -> Tensor {
        let least = self.nan_as(f64::INFINITY).min(axes.clone());
        self.unless_all_nan(least, axes)
    }

    /// This tensor with `value` for each NaN.
    #[track_caller]
    fn nan_as(self, value: f64) -> Tensor {
        if !self.dtype().is_float() {
            return self;
        }
        where_(self.is_nan(), full_like(self, value), self)
    }

    /// `reduced`, and NaN where all elements over `axes` are NaN.
    #[track_caller]
    fn unless_all_nan(self, reduced: Tensor, axes: impl AxisList) -> Tensor {
        if !self.dtype().is_float() {
            return reduced;
        }
        where_(self.is_nan().all(axes), full_like(reduced, f64::NAN), reduced)
    }

    /// `jnp.average`: the mean over `axes` weighted by `weights`, of the same shape. Types as
    /// [`Tensor::mean`].
    #[op]
    pub fn average(self, weights: Tensor, axes: impl AxisList + Clone) -> Tensor {
        let (x, weights) = (self.to_inexact(), weights.to_inexact());
        (x * weights).sum(axes.clone()) / weights.sum(axes)
    }

    /// `jnp.ptp`: the greatest less the least over `axes`.
    #[op]
    pub fn ptp(self, axes: impl AxisList + Clone) -> Tensor {
        self.max(axes.clone()) - self.min(axes)
    }

    /// `jnp.rot90`: the plane of axes `first` and `second` rotated by `k` times 90 degrees.
    #[op]
    pub fn rot90(self, k: i32, first: isize, second: isize) -> Tensor {
        match k.rem_euclid(4) {
            0 => self,
            1 => self.flip(second).swapaxes(first, second),
            2 => self.flip(first).flip(second),
            _ => self.swapaxes(first, second).flip(second),
        }
    }

    /// `jnp.array_split`: `parts` parts along `axis`, the first ones longer by one where they
    /// cannot be equal.
    #[op]
    pub fn array_split(self, parts: usize, axis: isize) -> Vec<Tensor> {
        let size = self.dim(axis);
        if parts == 0 {
            fail_op("array_split", format!("cannot cut {} into no parts", self.ty()));
        }
        ensure_parts("array_split", parts);
        let mut pieces = Vec::with_capacity(parts);
        let mut start = 0;
        for i in 0..parts {
            let end = start + size / parts + usize::from(i < size % parts);
            pieces.push(self.slice_axis(axis, start, end));
            start = end;
        }
        pieces
    }
}
