//! Functions of complex numbers.

use super::sorting::lexsort;
use crate::trace::ops::IndexMode;
use crate::trace::tensor::{Tensor, fail_op, function};

impl Tensor {
    /// `jnp.iscomplex`: true for each element that has an imaginary part.
    #[track_caller]
    pub fn iscomplex(self) -> Tensor {
        let _scope = function("iscomplex");
        self.imag().ne(0)
    }

    /// `jnp.isreal`: true for each element without an imaginary part.
    #[track_caller]
    pub fn isreal(self) -> Tensor {
        let _scope = function("isreal");
        self.imag().eq(0)
    }

    /// `jnp.sort_complex`: sorted along the last axis by real parts, and by imaginary parts where
    /// those are equal; the result is complex.
    #[track_caller]
    pub fn sort_complex(self) -> Tensor {
        let _scope = function("sort_complex");
        if self.rank() == 0 {
            fail_op(
                "sort_complex",
                format!("takes at least one axis, and was given {}", self.ty()),
            );
        }
        let x = self.to_inexact();
        let x = x.to(x.dtype().complex());
        let order = lexsort(&[x.imag(), x.real()], -1);
        x.take_along_axis_mode(order, -1, IndexMode::Clip)
    }
}
