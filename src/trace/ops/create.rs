//! Tensors from nothing.

use std::panic::Location;

use crate::trace::literal::Literal;
use crate::trace::op::Op;
use crate::trace::tensor::{Tensor, bind1, fail_op, function};
use crate::trace::types::{DType, Shape, TensorType};

/// A value known at trace time, as a tensor: a number, a nested array, or a [`Literal`].
///
/// It is compiled into the Program; pass values that change as an argument instead.
#[track_caller]
pub fn constant(value: impl Into<Literal>) -> Tensor {
    let _scope = function("constant");
    bind1(Op::Constant(value.into()), &[], Location::caller())
}

/// Every element is `value`, converted to `dtype`.
#[track_caller]
pub fn full(shape: impl Into<Shape>, value: f64, dtype: DType) -> Tensor {
    let _scope = function("full");
    let literal = Literal::filled(TensorType::new(dtype, shape), value);
    bind1(Op::Constant(literal), &[], Location::caller())
}

/// Zeros.
#[track_caller]
pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let _scope = function("zeros");
    full(shape, 0.0, dtype)
}

/// Ones.
#[track_caller]
pub fn ones(shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let _scope = function("ones");
    full(shape, 1.0, dtype)
}

/// Zeros of the type of `x`.
#[track_caller]
pub fn zeros_like(x: Tensor) -> Tensor {
    let _scope = function("zeros_like");
    full_like(x, 0.0)
}

/// Ones of the type of `x`.
#[track_caller]
pub fn ones_like(x: Tensor) -> Tensor {
    let _scope = function("ones_like");
    full_like(x, 1.0)
}

/// Every element is `value`, in the type of `x`.
#[track_caller]
pub fn full_like(x: Tensor, value: f64) -> Tensor {
    let _scope = function("full_like");
    let ty = x.ty();
    full(ty.shape, value, ty.dtype)
}

/// 0, 1, 2, ... along `axis` of a tensor of the given shape.
#[track_caller]
pub fn iota(shape: impl Into<Shape>, axis: isize, dtype: DType) -> Tensor {
    let _scope = function("iota");
    let shape = shape.into();
    let axis = super::axis_of("iota", axis, shape.rank());
    bind1(Op::Iota { ty: TensorType::new(dtype, shape), axis }, &[], Location::caller())
}

/// `0, 1, ..., n - 1`.
#[track_caller]
pub fn arange(n: usize, dtype: DType) -> Tensor {
    let _scope = function("arange");
    iota([n], 0, dtype)
}

/// `n` numbers from `start` to `stop`, both included, equally far apart.
#[track_caller]
pub fn linspace(start: f64, stop: f64, n: usize, dtype: DType) -> Tensor {
    let _scope = function("linspace");
    if !dtype.is_float() {
        fail_op("linspace", format!("takes a float type, and was given {dtype}"));
    }
    let steps = (n.max(2) - 1) as f64;
    let t = arange(n, dtype) / steps;
    // Weighted from both ends, so that the last element is `stop` to the bit.
    t * stop + (1.0 - t) * start
}

/// The identity matrix of size `n`.
#[track_caller]
pub fn eye(n: usize, dtype: DType) -> Tensor {
    let _scope = function("eye");
    iota([n, n], 0, DType::I32).eq(iota([n, n], 1, DType::I32)).to(dtype)
}

/// 1 at the class that each element of `x` (integers) names, along a new last axis of `classes`
/// elements. A class out of range gives zeros.
#[track_caller]
pub fn one_hot(x: Tensor, classes: usize, dtype: DType) -> Tensor {
    let _scope = function("one_hot");
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
