//! Tensors from nothing.

use std::panic::Location;

use crate::trace::literal::Literal;
use crate::trace::op::Op;
use crate::trace::tensor::{Tensor, bind1, fail_op, op};
use crate::trace::types::{DType, Shape, TensorType};

/// A value known at trace time, as a tensor: a number, a nested array, or a [`Literal`].
///
/// It is compiled into the Program; pass values that change as an argument instead.
#[op]
pub fn constant(value: impl Into<Literal>) -> Tensor {
    bind1(Op::Constant(value.into()), &[], Location::caller())
}

/// Every element is `value`, converted to `dtype`.
#[op]
pub fn full(shape: impl Into<Shape>, value: f64, dtype: DType) -> Tensor {
    let literal = Literal::filled(TensorType::new(dtype, shape), value);
    bind1(Op::Constant(literal), &[], Location::caller())
}

/// Zeros.
#[op]
pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Tensor {
    full(shape, 0.0, dtype)
}

/// Ones.
#[op]
pub fn ones(shape: impl Into<Shape>, dtype: DType) -> Tensor {
    full(shape, 1.0, dtype)
}

/// Zeros of the type of `x`.
#[op]
pub fn zeros_like(x: Tensor) -> Tensor {
    full_like(x, 0.0)
}

/// Ones of the type of `x`.
#[op]
pub fn ones_like(x: Tensor) -> Tensor {
    full_like(x, 1.0)
}

/// Every element is `value`, in the type of `x`.
#[op]
pub fn full_like(x: Tensor, value: f64) -> Tensor {
    let ty = x.ty();
    full(ty.shape, value, ty.dtype)
}

/// 0, 1, 2, ... along `axis` of a tensor of the given shape.
#[op]
pub fn iota(shape: impl Into<Shape>, axis: isize, dtype: DType) -> Tensor {
    let shape = shape.into();
    let axis = super::axis_of("iota", axis, shape.rank());
    bind1(Op::Iota { ty: TensorType::new(dtype, shape), axis }, &[], Location::caller())
}

/// `0, 1, ..., n - 1`.
#[op]
pub fn arange(n: usize, dtype: DType) -> Tensor {
    iota([n], 0, dtype)
}

/// `n` numbers from `start` to `stop`, both included, equally far apart.
#[op]
pub fn linspace(start: f64, stop: f64, n: usize, dtype: DType) -> Tensor {
    if !dtype.is_float() {
        fail_op("linspace", format!("takes a float type, and was given {dtype}"));
    }
    let steps = (n.max(2) - 1) as f64;
    let t = arange(n, dtype) / steps;
    // Weighted from both ends, so that the last element is `stop` to the bit.
    t * stop + (1.0 - t) * start
}

/// The identity matrix of size `n`.
#[op]
pub fn eye(n: usize, dtype: DType) -> Tensor {
    iota([n, n], 0, DType::I32).eq(iota([n, n], 1, DType::I32)).to(dtype)
}

/// 1 at the class that each element of `x` (integers) names, along a new last axis of `classes`
/// elements. A class out of range gives zeros.
#[op]
pub fn one_hot(x: Tensor, classes: usize, dtype: DType) -> Tensor {
    // Wide enough to count the classes.
    let x = match x.dtype() {
        DType::I8 | DType::I16 | DType::U8 | DType::U16 => x.to(DType::I32),
        _ => x,
    };
    let shape = x.shape();
    let axis = shape.rank();
    let numbers = iota(shape.with_axis(axis, classes), -1, x.dtype());
    x.expand_dims(-1).eq(numbers).to(dtype)
}
