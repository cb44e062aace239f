//! Statistics that leave NaN out, percentiles and covariances.

use crate::trace::op::Axes;
use crate::trace::ops::{AxisList, IndexMode, axis_of, full_like, where_, zeros_like};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

/// Type of the result, and the tensor in the type that sums of it are computed in.
#[track_caller]
fn to_sum(x: Tensor) -> (DType, Tensor) {
    let x = x.to_inexact();
    let wide = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    (x.dtype(), x.to(wide))
}

impl Tensor {
    /// This tensor with `value` for each NaN.
    #[track_caller]
    fn without_nan(self, value: f64) -> Tensor {
        match self.dtype().is_float() {
            true => where_(self.is_nan(), full_like(self, value), self),
            false => self,
        }
    }

    /// `jnp.nanprod`: the product over `axes` of the elements that are not NaN. Types as
    /// [`Tensor::prod`].
    #[op]
    pub fn nanprod(self, axes: impl AxisList) -> Tensor {
        self.without_nan(1.0).prod(axes)
    }

    /// `jnp.nancumsum`: running sums along `axis` that count NaN as 0.
    #[op]
    pub fn nancumsum(self, axis: isize) -> Tensor {
        self.without_nan(0.0).cumsum(axis)
    }

    /// `jnp.nancumprod`: running products along `axis` that count NaN as 1.
    #[op]
    pub fn nancumprod(self, axis: isize) -> Tensor {
        self.without_nan(1.0).cumprod(axis)
    }

    /// `jnp.nanvar` with `ddof`: the variance over `axes` of the elements that are not NaN; NaN where
    /// there are not more than `ddof`. Types as [`Tensor::mean`].
    #[op(at_line)]
    pub fn nanvar(self, axes: impl AxisList, ddof: usize) -> Tensor {
        let axes = axes.axes("nanvar", self.rank());
        let (dtype, x) = to_sum(self);
        let there = !x.is_nan();
        let counted = there.to(x.dtype());
        let list = |axes: &Axes| axes.iter().map(|&axis| axis as isize).collect::<Vec<_>>();
        let list = list(&axes);
        let count = counted.sum_keepdims(&list[..]);
        let mean = x.without_nan(0.0).sum_keepdims(&list[..]) / count;
        let centered = where_(there, x - mean, zeros_like(x));
        let left = counted.sum(&list[..]) - ddof as f64;
        let variance = centered.square().sum(&list[..]) / left;
        where_(left.gt(0.0), variance, full_like(variance, f64::NAN)).to(dtype)
    }

    /// `jnp.nanstd` with `ddof`: the root of [`Tensor::nanvar`].
    #[op]
    pub fn nanstd(self, axes: impl AxisList, ddof: usize) -> Tensor {
        self.nanvar(axes, ddof).sqrt()
    }

    /// `jnp.nanargmax`: the index (i32) along `axis` of the first largest element that is not NaN; -1
    /// if all are NaN.
    #[op]
    pub fn nanargmax(self, axis: isize) -> Tensor {
        let index = self.without_nan(f64::NEG_INFINITY).argmax(axis);
        self.unless_all_are_nan(index, axis)
    }

    /// `jnp.nanargmin`: the index (i32) along `axis` of the first smallest element that is not NaN; -1
    /// if all are NaN.
    #[op]
    pub fn nanargmin(self, axis: isize) -> Tensor {
        let index = self.without_nan(f64::INFINITY).argmin(axis);
        self.unless_all_are_nan(index, axis)
    }

    /// `index`, and -1 where all elements along `axis` are NaN.
    #[track_caller]
    fn unless_all_are_nan(self, index: Tensor, axis: isize) -> Tensor {
        match self.dtype().is_float() {
            true => where_(self.is_nan().all(axis), -1, index),
            false => index,
        }
    }

    /// `jnp.nanquantile` with linear interpolation, along `axis`, which vanishes: the value below
    /// which the fraction `q` (0 to 1) of the elements that are not NaN lies. NaN if all are NaN.
    #[op(at_line)]
    pub fn nanquantile(self, q: f64, axis: isize) -> Tensor {
        let ty = self.ty();
        let place = axis_of("nanquantile", axis, ty.rank());
        let size = ty.shape[place];
        if size == 0 || !(0.0..=1.0).contains(&q) {
            let problem =
                format!("takes at least one element and a part of 0 to 1; was given {ty} and {q}");
            fail_op("nanquantile", problem);
        }
        let sorted = self.to_inexact().sort(axis);
        let dtype = sorted.dtype();
        let count = (!sorted.is_nan()).to(DType::I32).sum_keepdims(axis);
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let exact = (count - 1).maximum(0).to(wide) * q;
        let (low, high) = (exact.floor(), exact.ceil());
        let weight = (exact - low).to(dtype);
        let at = |place: Tensor| {
            sorted.take_along_axis_mode(place.to(DType::I32), axis, IndexMode::Clip)
        };
        let between = at(low) * (1.0 - weight) + at(high) * weight;
        // An infinite element of weight 0 adds nothing.
        let value = where_(weight.eq(0.0), at(low), between);
        where_(count.eq(0), full_like(value, f64::NAN), value).squeeze(axis)
    }

    /// `jnp.nanmedian` along `axis`, which vanishes, of the elements that are not NaN.
    #[op]
    pub fn nanmedian(self, axis: isize) -> Tensor {
        self.nanquantile(0.5, axis)
    }

    /// `jnp.nanpercentile`: [`Tensor::nanquantile`] of `q / 100`.
    #[op]
    pub fn nanpercentile(self, q: f64, axis: isize) -> Tensor {
        self.nanquantile(q / 100.0, axis)
    }

    /// `jnp.percentile`: [`Tensor::quantile`] of `q / 100`.
    #[op]
    pub fn percentile(self, q: f64, axis: isize) -> Tensor {
        self.quantile(q / 100.0, axis)
    }

    /// `jnp.cov` with `ddof` (1 by default in NumPy): the covariances of the rows of a matrix, whose
    /// columns are observations. A vector is one row.
    #[op(at_line)]
    pub fn cov(self, ddof: usize) -> Tensor {
        if self.rank() > 2 {
            fail_op("cov", format!("takes a matrix, and was given {}", self.ty()));
        }
        let rows = self.to_inexact().atleast_2d();
        let count = (rows.dim(1) as f64 - ddof as f64).max(0.0);
        let centered = rows - rows.mean_keepdims(1);
        let products = centered.matmul(centered.t()) / count;
        if self.rank() == 2 && rows.dim(0) > 1 { products } else { products.reshape([]) }
    }

    /// `jnp.corrcoef`: the correlations of the rows of a matrix, whose columns are observations. A
    /// vector is one row.
    #[op(at_line)]
    pub fn corrcoef(self) -> Tensor {
        let covariance = self.cov(1);
        if covariance.rank() == 0 {
            // 1, and NaN of a constant row.
            return covariance * covariance.reciprocal();
        }
        let deviation = covariance.diagonal().sqrt();
        let scaled = covariance / deviation.expand_dims(1) / deviation.expand_dims(0);
        scaled.clip(-1.0, 1.0)
    }

    /// `jnp.cumulative_sum` with `include_initial=True`: running sums along `axis` after a 0.
    #[op]
    pub fn cumulative_sum(self, axis: isize) -> Tensor {
        self.cumsum(axis).behind(0.0, axis)
    }

    /// `jnp.cumulative_prod` with `include_initial=True`: running products along `axis` after a 1.
    #[op]
    pub fn cumulative_prod(self, axis: isize) -> Tensor {
        self.cumprod(axis).behind(1.0, axis)
    }

    /// This tensor with one more slice of `value` before the others along `axis`.
    #[track_caller]
    fn behind(self, value: f64, axis: isize) -> Tensor {
        let rank = self.rank();
        let mut low = vec![0; rank];
        low[axis_of("cumulative", axis, rank)] = 1;
        self.pad(&low, &vec![0; rank], value)
    }
}
