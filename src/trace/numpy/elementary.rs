//! Elementary functions that are compositions of others.

use std::f64::consts::{LN_2, LOG10_E};

use crate::trace::ops::{full_like, where_};
use crate::trace::tensor::{Tensor, op};

impl Tensor {
    /// Arc tangent.
    #[op]
    pub fn atan(self) -> Tensor {
        self.atan2(full_like(self, 1.0))
    }

    /// 2 to the power of each element.
    #[op]
    pub fn exp2(self) -> Tensor {
        (self * LN_2).exp()
    }

    /// The logarithm to base 2.
    #[op]
    pub fn log2(self) -> Tensor {
        self.log() / LN_2
    }

    /// The logarithm to base 10.
    #[op]
    pub fn log10(self) -> Tensor {
        self.log() * LOG10_E
    }

    /// `sqrt(x^2 + y^2)` without overflow; infinite where `x` or `y` is, as `jnp.hypot`.
    #[op]
    pub fn hypot(self, y: Tensor) -> Tensor {
        let (x, y) = (self.abs(), y.abs());
        let infinite = x.eq(f64::INFINITY) | y.eq(f64::INFINITY);
        let (large, small) = (x.maximum(y), x.minimum(y));
        let zero = large.eq(0.0);
        let ratio = small / where_(zero, 1.0, large);
        let length = where_(zero, large, large * (1.0 + ratio.square()).sqrt());
        where_(infinite, f64::INFINITY, length)
    }

    /// Towards zero, to a whole number.
    #[op]
    pub fn trunc(self) -> Tensor {
        where_(self.lt(0.0), self.ceil(), self.floor())
    }

    /// True where an element is infinite.
    #[op]
    pub fn is_inf(self) -> Tensor {
        if self.dtype().is_complex() {
            // Beside NaN as well, where the size is NaN.
            return self.real().is_inf() | self.imag().is_inf();
        }
        self.abs().eq(f64::INFINITY)
    }
}
