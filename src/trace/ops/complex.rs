//! Complex numbers from their parts, and their parts.

use std::panic::Location;

use num_complex::Complex;

use super::elementwise::{Operand, binary};
use crate::trace::literal::Literal;
use crate::trace::op::{BinaryOp, Op, UnaryOp};
use crate::trace::tensor::{Tensor, bind1, fail_op, op};
use crate::trace::types::{DType, TensorType};

macro_rules! complex_operands {
    ($($t:ty),*) => {$(
        impl Operand for Complex<$t> {
            #[track_caller]
            fn to_tensor(self, like: &TensorType) -> Tensor {
                complex_filled(like, Complex::new(self.re.into(), self.im.into()))
            }
        }
    )*};
}
complex_operands!(f32, f64);

#[track_caller]
fn complex_filled(like: &TensorType, z: Complex<f64>) -> Tensor {
    let literal = match like.dtype {
        DType::C64 => Literal::splat(&like.shape, Complex::new(z.re as f32, z.im as f32)),
        DType::C128 => Literal::splat(&like.shape, z),
        _ => {
            let problem = format!(
                "the complex number {z} cannot be combined with {like}; convert the tensor with \
                 .to(DType::C64)"
            );
            fail_op("literal", problem)
        }
    };
    bind1(Op::Constant(literal), &[], Location::caller())
}

/// `lax.complex`: the complex numbers with real parts `re` and imaginary parts `im`, both f32 or
/// f64.
///
/// ```
/// use podracer::trace::ops::complex;
/// use podracer::{Array, Complex, Tensor, interpret};
/// let f = interpret(|(re, im): (Tensor, Tensor)| complex(re, im).exp().abs());
/// let sizes = f.call((Array::from([0.0f32]), Array::from([3.0f32])))?;
/// assert_eq!(sizes.to_vec::<f32>()?, [1.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op]
pub fn complex(re: Tensor, im: impl Operand) -> Tensor {
    binary(BinaryOp::Complex, re, im)
}

impl Tensor {
    /// The real part; real numbers as they are: `jnp.real`.
    #[op]
    pub fn real(self) -> Tensor {
        match self.dtype().is_complex() {
            true => bind1(Op::Unary(UnaryOp::Real), &[self], Location::caller()),
            false => self,
        }
    }

    /// The imaginary part, of real numbers 0: `jnp.imag`.
    #[op]
    pub fn imag(self) -> Tensor {
        match self.dtype().is_complex() {
            true => bind1(Op::Unary(UnaryOp::Imag), &[self], Location::caller()),
            false => super::zeros_like(self),
        }
    }

    /// The complex conjugate; real numbers as they are: `jnp.conj`.
    #[op]
    pub fn conj(self) -> Tensor {
        match self.dtype().is_complex() {
            true => bind1(Op::Unary(UnaryOp::Conj), &[self], Location::caller()),
            false => self,
        }
    }

    /// `|x|^2`.
    #[track_caller]
    pub(crate) fn squared_size(self) -> Tensor {
        match self.dtype().is_complex() {
            true => (self * self.conj()).real(),
            false => self.square(),
        }
    }

    /// The angle in the complex plane, in radians: `jnp.angle`.
    #[op]
    pub fn angle(self) -> Tensor {
        let x = self.to_inexact();
        x.imag().atan2(x.real())
    }
}
