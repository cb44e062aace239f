//! Functions of complex numbers.

use super::sorting::lexsort;
use crate::trace::ops::IndexMode;
use crate::trace::tensor::{Tensor, fail_op, op};

impl Tensor {
    /// `jnp.iscomplex`: true for each element that has an imaginary part.
    #[op]
    pub fn iscomplex(self) -> Tensor {
        self.imag().ne(0)
    }

    /// `jnp.isreal`: true for each element without an imaginary part.
    #[op]
    pub fn isreal(self) -> Tensor {
        self.imag().eq(0)
    }

    /// `jnp.sort_complex`: sorted along the last axis by real parts, and by imaginary parts where
    /// those are equal; the result is complex.
    #[op]
    pub fn sort_complex(self) -> Tensor {
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
