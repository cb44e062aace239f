//! Derivatives of the digamma function.

use std::panic::Location;

use super::elementwise::Operand;
use super::shape::broadcast_pair;
use crate::trace::op::{BinaryOp, Op};
use crate::trace::tensor::{Tensor, bind1, op};

/// `jax.scipy.special.polygamma`: the derivative of order `n` of [`Tensor::digamma`] at `x`; `n` is
/// a whole number from 0, or a tensor of such numbers of the type of `x`. It has all derivatives
/// by `x`, none by `n`.
///
/// ```
/// use podracer::trace::ops::polygamma;
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|x: Tensor| polygamma(1, x));
/// let y = f.call(Array::from(1.0f32))?.item::<f32>()?;
/// assert!((y - std::f32::consts::PI.powi(2) / 6.0).abs() < 1e-6);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op]
pub fn polygamma(n: impl Operand, x: Tensor) -> Tensor {
    let (n, x) = broadcast_pair("polygamma", n.to_tensor(&x.ty()), x);
    bind1(Op::Binary(BinaryOp::Polygamma), &[n, x], Location::caller())
}
