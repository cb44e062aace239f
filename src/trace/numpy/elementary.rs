//! Elementary functions that are compositions of others.

use std::f64::consts::{LN_2, LOG10_E};

use crate::trace::ops::{full_like, where_};
use crate::trace::tensor::{Tensor, function};

impl Tensor {
    /// Arc tangent.
    #[track_caller]
    pub fn atan(self) -> Tensor {
        let _scope = function("atan");
        self.atan2(full_like(self, 1.0))
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
        self.log() * LOG10_E
    }

    /// `sqrt(x^2 + y^2)` without overflow; infinite where `x` or `y` is, as `jnp.hypot`.
    #[track_caller]
    pub fn hypot(self, y: Tensor) -> Tensor {
        let _scope = function("hypot");
        let (x, y) = (self.abs(), y.abs());
        let infinite = x.eq(f64::INFINITY) | y.eq(f64::INFINITY);
        let (large, small) = (x.maximum(y), x.minimum(y));
        let zero = large.eq(0.0);
        let ratio = small / where_(zero, 1.0, large);
        let length = where_(zero, large, large * (1.0 + ratio.square()).sqrt());
        where_(infinite, f64::INFINITY, length)
    }

    /// Towards zero, to a whole number.
    #[track_caller]
    pub fn trunc(self) -> Tensor {
        let _scope = function("trunc");
        where_(self.lt(0.0), self.ceil(), self.floor())
    }

    /// True where an element is infinite.
    #[track_caller]
    pub fn is_inf(self) -> Tensor {
        let _scope = function("is_inf");
        if self.dtype().is_complex() {
            // Beside NaN as well, where the size is NaN.
            return self.real().is_inf() | self.imag().is_inf();
        }
        self.abs().eq(f64::INFINITY)
    }
}
