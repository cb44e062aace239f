//! Running results along an axis: NumPy's and JAX's `cum...`.

use crate::trace::associative::associative_scan;
use crate::trace::ops::{axis_of, logaddexp};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

impl Tensor {
    #[track_caller]
    fn running(
        self,
        op: &str,
        axis: isize,
        reverse: bool,
        combine: impl Fn(Tensor, Tensor) -> Tensor,
    ) -> Tensor {
        axis_of(op, axis, self.rank());
        if self.dtype() == DType::Bool {
            fail_op(op, format!("takes numbers, and was given {}; convert it first", self.ty()));
        }
        associative_scan(combine, self, axis, reverse)
    }

    /// `jnp.cumsum`: running sums along `axis`. Bools are counted in i32; other types stay.
    #[op]
    pub fn cumsum(self, axis: isize) -> Tensor {
        self.bool_as_i32().running("cumsum", axis, false, |a, b| a + b)
    }

    /// `lax.cumsum` with `reverse=True`: sums from each element to the last.
    #[op]
    pub fn cumsum_reverse(self, axis: isize) -> Tensor {
        self.bool_as_i32().running("cumsum", axis, true, |a, b| a + b)
    }

    /// `jnp.cumprod`: running products along `axis`. Types as [`Tensor::cumsum`].
    #[op]
    pub fn cumprod(self, axis: isize) -> Tensor {
        self.bool_as_i32().running("cumprod", axis, false, |a, b| a * b)
    }

    /// `lax.cumprod` with `reverse=True`: products of each element to the last.
    #[op]
    pub fn cumprod_reverse(self, axis: isize) -> Tensor {
        self.bool_as_i32().running("cumprod", axis, true, |a, b| a * b)
    }

    /// `lax.cummax`: the greatest element so far along `axis`; NaN wins.
    #[op]
    pub fn cummax(self, axis: isize) -> Tensor {
        self.running("cummax", axis, false, |a, b| a.maximum(b))
    }

    /// `lax.cummax` with `reverse=True`: the greatest from each element to the last; NaN wins.
    #[op]
    pub fn cummax_reverse(self, axis: isize) -> Tensor {
        self.running("cummax", axis, true, |a, b| a.maximum(b))
    }

    /// `lax.cummin`: the least element so far along `axis`; NaN wins.
    #[op]
    pub fn cummin(self, axis: isize) -> Tensor {
        self.running("cummin", axis, false, |a, b| a.minimum(b))
    }

    /// `lax.cummin` with `reverse=True`: the least from each element to the last; NaN wins.
    #[op]
    pub fn cummin_reverse(self, axis: isize) -> Tensor {
        self.running("cummin", axis, true, |a, b| a.minimum(b))
    }

    /// `lax.cumlogsumexp`: the logarithm of running sums of `exp`, without overflow.
    #[op]
    pub fn cumlogsumexp(self, axis: isize) -> Tensor {
        self.running("cumlogsumexp", axis, false, |a, b| logaddexp(a, b))
    }

    /// `lax.cumlogsumexp` with `reverse=True`: from each element to the last.
    #[op]
    pub fn cumlogsumexp_reverse(self, axis: isize) -> Tensor {
        self.running("cumlogsumexp", axis, true, |a, b| logaddexp(a, b))
    }

    #[track_caller]
    fn bool_as_i32(self) -> Tensor {
        if self.dtype() == DType::Bool { self.to(DType::I32) } else { self }
    }

    /// `jnp.diff`: each element less the one before it along `axis`, which becomes one shorter.
    #[op]
    pub fn diff(self, axis: isize) -> Tensor {
        let size = self.dim(axis);
        if size == 0 {
            return self;
        }
        self.slice_axis(axis, 1, size) - self.slice_axis(axis, 0, size - 1)
    }
}
