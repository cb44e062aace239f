//! Reductions, sorting, and the functions made of them.

use std::panic::Location;

use crate::trace::op::{ArgOp, Axes, Op, ReduceOp};
use crate::trace::ops::elementwise::where_;
use crate::trace::ops::{AxisList, axis_of};
use crate::trace::tensor::{Tensor, bind, bind1, op};
use crate::trace::types::DType;

macro_rules! reductions {
    ($($(#[$doc:meta])* $method:ident $by:ident $op:ident),* $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            #[op]
            pub fn $method(self, axes: impl AxisList) -> Tensor {
                let axes = axes.axes(ReduceOp::$op.name(), self.rank());
                self.$by(ReduceOp::$op, axes)
            }
        )*}
    };
}
reductions!(
    /// `jnp.sum`: the sum over `axes`, which vanish. An empty sum is 0. Narrow floats accumulate in
    /// f32; bools and integers narrower than 32 bits give i32, unsigned ones u32.
    sum accumulate Sum,
    /// `jnp.prod`: the product over `axes`, which vanish. An empty product is 1. Types as
    /// [`Tensor::sum`].
    prod accumulate Prod,
    /// The largest element over `axes`, which vanish; NaN wins. Equal largest elements share the
    /// derivative. An empty axis gives the type's least value, as `lax.reduce_max`.
    max extreme Max,
    /// The smallest element over `axes`, which vanish; NaN wins. Equal smallest elements share the
    /// derivative. An empty axis gives the type's greatest value, as `lax.reduce_min`.
    min extreme Min,
    /// `lax.reduce_and` over `axes`, which vanish: bitwise on integers, logical and on bools. An
    /// empty axis gives all ones. Floats are an error; [`Tensor::all`] takes them.
    reduce_and reduce And,
    /// `lax.reduce_or` over `axes`, which vanish: bitwise on integers, logical or on bools. An
    /// empty axis gives zeros. Floats are an error; [`Tensor::any`] takes them.
    reduce_or reduce Or,
);

macro_rules! keepdims {
    ($($method:ident $with_keepdims:ident),* $(,)?) => {
        impl Tensor {$(
            #[doc = concat!("[`Tensor::", stringify!($method), "`] with `keepdims=True`: `axes` ")]
            #[doc = "stay, with size 1."]
            #[op]
            pub fn $with_keepdims(self, axes: impl AxisList) -> Tensor {
                let shape = self.shape();
                let axes = axes.axes(stringify!($method), shape.rank());
                let list: Vec<isize> = axes.iter().map(|&axis| axis as isize).collect();
                self.$method(&list[..]).keep_axes(&shape, &axes)
            }
        )*}
    };
}
keepdims!(
    sum sum_keepdims,
    prod prod_keepdims,
    max max_keepdims,
    min min_keepdims,
    all all_keepdims,
    any any_keepdims,
    mean mean_keepdims,
    var var_keepdims,
    std std_keepdims,
    logsumexp logsumexp_keepdims,
);

/// The element types that a sum or product of `dtype` accumulates in and results in, as in jnp with
/// 32-bit defaults.
fn accumulation(dtype: DType) -> (DType, DType) {
    match dtype {
        DType::F16 | DType::BF16 => (DType::F32, dtype),
        DType::Bool | DType::I8 | DType::I16 => (DType::I32, DType::I32),
        DType::U8 | DType::U16 => (DType::U32, DType::U32),
        DType::I32 | DType::I64 | DType::U32 | DType::U64 | DType::F32 | DType::F64 => {
            (dtype, dtype)
        }
        DType::C64 | DType::C128 => (dtype, dtype),
        // Refused there.
        DType::F8E4M3FN | DType::F8E5M2 | DType::I4 | DType::U4 => (dtype, dtype),
    }
}

impl Tensor {
    /// True where no element over `axes`, which vanish, is zero or false: a bool. NaN is not zero;
    /// over no elements the result is true. `jnp.all`.
    #[op]
    pub fn all(self, axes: impl AxisList) -> Tensor {
        let axes = axes.axes("all", self.rank());
        self.holds().reduce(ReduceOp::And, axes)
    }

    /// True where any element over `axes`, which vanish, is neither zero nor false: a bool. NaN is
    /// not zero; over no elements the result is false. `jnp.any`.
    #[op]
    pub fn any(self, axes: impl AxisList) -> Tensor {
        let axes = axes.axes("any", self.rank());
        self.holds().reduce(ReduceOp::Or, axes)
    }

    /// Bools as they are, and which numbers are not zero.
    #[track_caller]
    fn holds(self) -> Tensor {
        if self.dtype() == DType::Bool { self } else { self.ne(0) }
    }

    /// The plain reduction: in the tensor's own element type.
    #[track_caller]
    pub(crate) fn reduce(self, op: ReduceOp, axes: Axes) -> Tensor {
        if axes.is_empty() {
            return self;
        }
        bind1(Op::Reduce { op, axes }, &[self], Location::caller())
    }

    /// A sum or product in the element types of [`accumulation`].
    #[track_caller]
    pub(crate) fn accumulate(self, op: ReduceOp, axes: Axes) -> Tensor {
        let (within, result) = accumulation(self.dtype());
        self.to(within).reduce(op, axes).to(result)
    }

    /// A maximum or minimum; on bools, logical or and logical and.
    #[track_caller]
    fn extreme(self, op: ReduceOp, axes: Axes) -> Tensor {
        match (op, self.dtype()) {
            (ReduceOp::Max, DType::Bool) => self.reduce(ReduceOp::Or, axes),
            (ReduceOp::Min, DType::Bool) => self.reduce(ReduceOp::And, axes),
            _ => self.reduce(op, axes),
        }
    }

    /// Floats and complex numbers as they are; integers and bools as `f32`, integers of 64 bits as `f64`.
    #[track_caller]
    pub(crate) fn to_inexact(self) -> Tensor {
        match self.dtype() {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => self,
            DType::C64 | DType::C128 | DType::F8E4M3FN | DType::F8E5M2 => self,
            DType::I64 | DType::U64 => self.to(DType::F64),
            DType::Bool
            | DType::I4
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::U4
            | DType::U8
            | DType::U16
            | DType::U32 => self.to(DType::F32),
        }
    }

    /// `jnp.mean`: the mean over `axes`, which vanish. NaN of an empty range. Narrow floats
    /// accumulate in f32; integers and bools give f32, integers of 64 bits f64.
    #[op]
    pub fn mean(self, axes: impl AxisList) -> Tensor {
        let axes = axes.axes("mean", self.rank());
        let (x, dtype, count) = self.to_average(&axes);
        (x.reduce(ReduceOp::Sum, axes) / count as f64).to(dtype)
    }

    /// `jnp.var`: the mean squared distance over `axes`, which vanish, from the mean. Types as
    /// [`Tensor::mean`], and floats for complex numbers.
    #[op]
    pub fn var(self, axes: impl AxisList) -> Tensor {
        self.var_ddof(axes, 0)
    }

    /// [`Tensor::var`] with `ddof`, the degrees of freedom that the divisor loses: `n - ddof`. NaN
    /// if none are left.
    #[op]
    pub fn var_ddof(self, axes: impl AxisList, ddof: usize) -> Tensor {
        let axes = axes.axes("var", self.rank());
        let shape = self.shape();
        let (x, dtype, count) = self.to_average(&axes);
        let mean = x.reduce(ReduceOp::Sum, axes.clone()) / count as f64;
        let centered = x - mean.keep_axes(&shape, &axes);
        let sum = centered.squared_size().reduce(ReduceOp::Sum, axes);
        let variance = (sum / (count as f64 - ddof as f64)).to(dtype.real());
        if ddof < count {
            return variance;
        }
        // A choice, as in JAX: its derivative is that of the quotient, and not 0.
        where_(super::constant(false), variance, super::full_like(variance, f64::NAN))
    }

    /// `jnp.std`: the standard deviation over `axes`, which vanish; the root of [`Tensor::var`].
    #[op]
    pub fn std(self, axes: impl AxisList) -> Tensor {
        self.var(axes).sqrt()
    }

    /// [`Tensor::std`] with `ddof`, as [`Tensor::var_ddof`].
    #[op]
    pub fn std_ddof(self, axes: impl AxisList, ddof: usize) -> Tensor {
        self.var_ddof(axes, ddof).sqrt()
    }

    /// This tensor in the type that its mean accumulates in, the type of the mean, and the number
    /// of elements along `axes`.
    #[track_caller]
    fn to_average(self, axes: &[usize]) -> (Tensor, DType, usize) {
        let shape = self.shape();
        let x = self.to_inexact();
        let count = axes.iter().map(|&axis| shape[axis]).product();
        (x.to(accumulation(x.dtype()).0), x.dtype(), count)
    }

    /// A reduction's result spread over the axes that vanished, each with size 1, so that it
    /// broadcasts against the tensor of shape `before`.
    #[track_caller]
    pub(crate) fn keep_axes(self, before: &[usize], axes: &[usize]) -> Tensor {
        let shape: Vec<usize> = (0..before.len())
            .map(|axis| if axes.contains(&axis) { 1 } else { before[axis] })
            .collect();
        self.reshape(shape)
    }

    /// The index (i32) of the first largest element along `axis`, which vanishes; NaN is largest.
    #[op]
    pub fn argmax(self, axis: isize) -> Tensor {
        let axis = axis_of("argmax", axis, self.rank());
        self.arg_reduce(ArgOp::Max, axis)
    }

    /// The index (i32) of the first smallest element along `axis`, which vanishes; NaN is
    /// smallest.
    #[op]
    pub fn argmin(self, axis: isize) -> Tensor {
        let axis = axis_of("argmin", axis, self.rank());
        self.arg_reduce(ArgOp::Min, axis)
    }

    #[track_caller]
    fn arg_reduce(self, op: ArgOp, axis: usize) -> Tensor {
        let x = if self.dtype() == DType::Bool { self.to(DType::I32) } else { self };
        bind1(Op::ArgReduce { op, axis }, &[x], Location::caller())
    }

    /// The elements in ascending order along `axis`; NaN comes last.
    #[op]
    pub fn sort(self, axis: isize) -> Tensor {
        let axis = axis_of("sort", axis, self.rank());
        bind1(Op::Sort { axis }, &[self], Location::caller())
    }

    /// The indices (i32) that sort along `axis`; equal elements keep their order.
    #[op]
    pub fn argsort(self, axis: isize) -> Tensor {
        let axis = axis_of("argsort", axis, self.rank());
        let numbers = super::iota(self.shape(), axis as isize, DType::I32);
        bind(Op::Sort { axis }, &[self, numbers], Location::caller())[1]
    }

    /// `log(sum(exp(x)))` over `axes`, which vanish; without overflow. All `-inf` gives `-inf`.
    #[op]
    pub fn logsumexp(self, axes: impl AxisList) -> Tensor {
        let axes = axes.axes("logsumexp", self.rank());
        let (x, shape) = (self.to_inexact(), self.shape());
        let largest = x.reduce(ReduceOp::Max, axes.clone()).stop_gradient();
        // An infinite maximum would give inf - inf.
        let largest = where_(largest.is_finite(), largest, super::zeros_like(largest));
        let shifted = x - largest.keep_axes(&shape, &axes);
        shifted.exp().accumulate(ReduceOp::Sum, axes).log() + largest
    }

    /// `x - logsumexp(x)` along `axis`.
    #[op]
    pub fn log_softmax(self, axis: isize) -> Tensor {
        let axes: Axes = [axis_of("log_softmax", axis, self.rank())].as_slice().into();
        let (x, shape) = (self.to_inexact(), self.shape());
        let largest = x.reduce(ReduceOp::Max, axes.clone()).stop_gradient();
        let shifted = x - largest.keep_axes(&shape, &axes);
        let total = shifted.exp().accumulate(ReduceOp::Sum, axes.clone()).log();
        shifted - total.keep_axes(&shape, &axes)
    }

    /// `exp(x) / sum(exp(x))` along `axis`.
    #[op]
    pub fn softmax(self, axis: isize) -> Tensor {
        let axes: Axes = [axis_of("softmax", axis, self.rank())].as_slice().into();
        let (x, shape) = (self.to_inexact(), self.shape());
        let largest = x.reduce(ReduceOp::Max, axes.clone()).stop_gradient();
        let numerator = (x - largest.keep_axes(&shape, &axes)).exp();
        let total = numerator.accumulate(ReduceOp::Sum, axes.clone());
        numerator / total.keep_axes(&shape, &axes)
    }

    /// The Euclidean norm over all elements. Its derivative at zero is NaN, as in JAX.
    #[op]
    pub fn norm(self) -> Tensor {
        self.to_inexact().squared_size().sum(..).sqrt()
    }
}
