//! Elementary functions and statistics that are compositions of others.

use std::f64::consts::{LN_2, LN_10};

use super::{AxisList, full_like, where_, zeros_like};
use crate::trace::tensor::{Tensor, fail_op, function};
use crate::trace::types::DType;

impl Tensor {
    /// Arc sine, of -1 to 1.
    #[track_caller]
    pub fn asin(self) -> Tensor {
        let _scope = function("asin");
        self.atan2(((1.0 - self) * (1.0 + self)).sqrt())
    }

    /// Arc cosine, of -1 to 1.
    #[track_caller]
    pub fn acos(self) -> Tensor {
        let _scope = function("acos");
        ((1.0 - self) * (1.0 + self)).sqrt().atan2(self)
    }

    /// Arc tangent.
    #[track_caller]
    pub fn atan(self) -> Tensor {
        let _scope = function("atan");
        self.atan2(full_like(self, 1.0))
    }

    /// Hyperbolic sine.
    #[track_caller]
    pub fn sinh(self) -> Tensor {
        let _scope = function("sinh");
        // Near 0 the difference of two exponentials would cancel; far from it expm1 overflows
        // before the result does.
        let e = self.abs().expm1();
        let near = 0.5 * (e + e / (e + 1.0));
        let far = (self.abs() - LN_2).exp();
        let size = where_(self.abs().lt(1.0), near, far - (-self.abs() - LN_2).exp());
        self.sign() * size
    }

    /// Hyperbolic cosine.
    #[track_caller]
    pub fn cosh(self) -> Tensor {
        let _scope = function("cosh");
        (self.abs() - LN_2).exp() + (-self.abs() - LN_2).exp()
    }

    /// Inverse hyperbolic sine.
    #[track_caller]
    pub fn asinh(self) -> Tensor {
        let _scope = function("asinh");
        let x = self.abs();
        self.sign() * (x + x * x / (1.0 + (x * x + 1.0).sqrt())).log1p()
    }

    /// Inverse hyperbolic cosine, of 1 and more.
    #[track_caller]
    pub fn acosh(self) -> Tensor {
        let _scope = function("acosh");
        let y = self - 1.0;
        (y + (y * (self + 1.0)).sqrt()).log1p()
    }

    /// Inverse hyperbolic tangent, of -1 to 1.
    #[track_caller]
    pub fn atanh(self) -> Tensor {
        let _scope = function("atanh");
        0.5 * (self.log1p() - (-self).log1p())
    }

    /// The cube root.
    #[track_caller]
    pub fn cbrt(self) -> Tensor {
        let _scope = function("cbrt");
        self.sign() * self.abs().pow(full_like(self, 1.0 / 3.0))
    }

    /// 2 to the power of each element.
    #[track_caller]
    pub fn exp2(self) -> Tensor {
        let _scope = function("exp2");
        (self * LN_2).exp()
    }

    /// The logarithm to base 2.
    #[track_caller]
    pub fn log2(self) -> Tensor {
        let _scope = function("log2");
        self.log() / LN_2
    }

    /// The logarithm to base 10.
    #[track_caller]
    pub fn log10(self) -> Tensor {
        let _scope = function("log10");
        self.log() / LN_10
    }

    /// `sqrt(x^2 + y^2)` without overflow.
    #[track_caller]
    pub fn hypot(self, y: Tensor) -> Tensor {
        let _scope = function("hypot");
        let (x, y) = (self.abs(), y.abs());
        let (large, small) = (x.maximum(y), x.minimum(y));
        let none = large.equal(0.0);
        let ratio = small / where_(none, full_like(large, 1.0), large);
        where_(none, zeros_like(large), large * (1.0 + ratio * ratio).sqrt())
    }

    /// Towards zero, to a whole number.
    #[track_caller]
    pub fn trunc(self) -> Tensor {
        let _scope = function("trunc");
        where_(self.lt(0.0), self.ceil(), self.floor())
    }

    /// Whether each element is infinite.
    #[track_caller]
    pub fn is_inf(self) -> Tensor {
        let _scope = function("is_inf");
        self.abs().equal(f64::INFINITY)
    }

    /// `jnp.count_nonzero` over `axes`, which vanish; i32.
    #[track_caller]
    pub fn count_nonzero(self, axes: impl AxisList) -> Tensor {
        let _scope = function("count_nonzero");
        let set = if self.dtype() == DType::Bool { self } else { self.not_equal(zeros_like(self)) };
        set.to(DType::I32).sum(axes)
    }

    /// `jnp.nansum`: the sum over `axes` of what is not NaN.
    #[track_caller]
    pub fn nansum(self, axes: impl AxisList) -> Tensor {
        let _scope = function("nansum");
        where_(self.is_nan(), zeros_like(self), self).sum(axes)
    }

    /// `jnp.nanmean`: the mean over `axes` of what is not NaN; NaN where nothing is left.
    #[track_caller]
    pub fn nanmean(self, axes: impl AxisList + Clone) -> Tensor {
        let _scope = function("nanmean");
        let count = (!self.is_nan()).to(self.dtype()).sum(axes.clone());
        self.nansum(axes) / count
    }

    /// `jnp.nanmax`: the greatest over `axes` of what is not NaN; -inf where nothing is left.
    #[track_caller]
    pub fn nanmax(self, axes: impl AxisList) -> Tensor {
        let _scope = function("nanmax");
        where_(self.is_nan(), full_like(self, f64::NEG_INFINITY), self).max(axes)
    }

    /// `jnp.nanmin`: the least over `axes` of what is not NaN; inf where nothing is left.
    #[track_caller]
    pub fn nanmin(self, axes: impl AxisList) -> Tensor {
        let _scope = function("nanmin");
        where_(self.is_nan(), full_like(self, f64::INFINITY), self).min(axes)
    }

    /// `jnp.average`: the mean over `axes` weighted by `weights`, of the same shape.
    #[track_caller]
    pub fn average(self, weights: Tensor, axes: impl AxisList + Clone) -> Tensor {
        let _scope = function("average");
        (self * weights).sum(axes.clone()) / weights.sum(axes)
    }

    /// `jnp.ptp`: the greatest less the least over `axes`.
    #[track_caller]
    pub fn ptp(self, axes: impl AxisList + Clone) -> Tensor {
        let _scope = function("ptp");
        self.max(axes.clone()) - self.min(axes)
    }

    /// `jnp.rot90`: the plane of axes `first` and `second` turned by `k` quarter turns.
    #[track_caller]
    pub fn rot90(self, k: i32, first: isize, second: isize) -> Tensor {
        let _scope = function("rot90");
        match k.rem_euclid(4) {
            0 => self,
            1 => self.flip(second).swapaxes(first, second),
            2 => self.flip(first).flip(second),
            _ => self.swapaxes(first, second).flip(second),
        }
    }

    /// `jnp.array_split`: `parts` parts along `axis`, the first ones longer by one where they cannot
    /// be equal.
    #[track_caller]
    pub fn array_split(self, parts: usize, axis: isize) -> Vec<Tensor> {
        let _scope = function("array_split");
        let size = self.dim(axis);
        if parts == 0 {
            fail_op("array_split", format!("cannot cut {} into no parts", self.ty()));
        }
        super::shape::ensure_parts("array_split", parts);
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
