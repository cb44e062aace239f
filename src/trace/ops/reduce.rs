//! Reductions, sorting, and the functions made of them.

use std::panic::Location;

use crate::trace::op::{ArgOp, Axes, Op, ReduceOp};
use crate::trace::ops::{AxisList, axis_of, where_};
use crate::trace::tensor::{Tensor, bind, bind1, function};
use crate::trace::types::DType;

macro_rules! reductions {
    ($($(#[$doc:meta])* $method:ident $op:ident),* $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(self, axes: impl AxisList) -> Tensor {
                let _scope = function(stringify!($method));
                let axes = axes.axes(ReduceOp::$op.name(), self.rank());
                self.reduce(ReduceOp::$op, axes)
            }
        )*}
    };
}
reductions!(
    /// The sum over `axes`, which vanish. An empty sum is 0.
    sum Sum,
    /// The product over `axes`, which vanish. An empty product is 1.
    prod Prod,
    /// The largest element over `axes`, which vanish; NaN wins. Equal largest elements share the
    /// derivative.
    max Max,
    /// The smallest element over `axes`, which vanish; NaN wins. Equal smallest elements share the
    /// derivative.
    min Min,
    /// `lax.reduce_and` over `axes`, which vanish: bitwise on integers, and whether all hold on
    /// bools. Nothing gives all ones. Floats are an error; [`Tensor::all`] takes them.
    reduce_and And,
    /// `lax.reduce_or` over `axes`, which vanish: bitwise on integers, and whether any holds on
    /// bools. Nothing gives zeros. Floats are an error; [`Tensor::any`] takes them.
    reduce_or Or,
);

impl Tensor {
    /// Whether no element over `axes`, which vanish, is zero or false: a bool. NaN is not zero, and
    /// of nothing all hold. `jnp.all`.
    #[track_caller]
    pub fn all(self, axes: impl AxisList) -> Tensor {
        let _scope = function("all");
        let axes = axes.axes("all", self.rank());
        self.holds().reduce(ReduceOp::And, axes)
    }

    /// Whether any element over `axes`, which vanish, is neither zero nor false: a bool. NaN is not
    /// zero, and of nothing none holds. `jnp.any`.
    #[track_caller]
    pub fn any(self, axes: impl AxisList) -> Tensor {
        let _scope = function("any");
        let axes = axes.axes("any", self.rank());
        self.holds().reduce(ReduceOp::Or, axes)
    }

    /// Bools as they are, and which numbers are not zero.
    #[track_caller]
    fn holds(self) -> Tensor {
        if self.dtype() == DType::Bool { self } else { self.not_equal(0) }
    }

    #[track_caller]
    pub(crate) fn reduce(self, op: ReduceOp, axes: Axes) -> Tensor {
        if axes.is_empty() {
            return self;
        }
        bind1(Op::Reduce { op, axes }, &[self], Location::caller())
    }

    /// The mean over `axes`, which vanish. NaN of an empty range.
    #[track_caller]
    pub fn mean(self, axes: impl AxisList) -> Tensor {
        let _scope = function("mean");
        let axes = axes.axes("mean", self.rank());
        let shape = self.shape();
        let count: usize = axes.iter().map(|&axis| shape[axis]).product();
        self.reduce(ReduceOp::Sum, axes) / count as f64
    }

    /// The variance over `axes`, which vanish: the mean squared distance from the mean.
    #[track_caller]
    pub fn var(self, axes: impl AxisList) -> Tensor {
        let _scope = function("var");
        let axes = axes.axes("var", self.rank());
        let shape = self.shape();
        let count: usize = axes.iter().map(|&axis| shape[axis]).product();
        let mean = self.reduce(ReduceOp::Sum, axes.clone()) / count as f64;
        let centred = self - mean.keep_axes(&shape, &axes);
        centred.square().reduce(ReduceOp::Sum, axes) / count as f64
    }

    /// The standard deviation over `axes`, which vanish; the root of [`Tensor::var`].
    #[track_caller]
    pub fn std(self, axes: impl AxisList) -> Tensor {
        let _scope = function("std");
        self.var(axes).sqrt()
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
    #[track_caller]
    pub fn argmax(self, axis: isize) -> Tensor {
        let axis = axis_of("argmax", axis, self.rank());
        bind1(Op::ArgReduce { op: ArgOp::Max, axis }, &[self], Location::caller())
    }

    /// The index (i32) of the first smallest element along `axis`, which vanishes; NaN is
    /// smallest.
    #[track_caller]
    pub fn argmin(self, axis: isize) -> Tensor {
        let axis = axis_of("argmin", axis, self.rank());
        bind1(Op::ArgReduce { op: ArgOp::Min, axis }, &[self], Location::caller())
    }

    /// The elements in ascending order along `axis`; NaN comes last.
    #[track_caller]
    pub fn sort(self, axis: isize) -> Tensor {
        let axis = axis_of("sort", axis, self.rank());
        bind1(Op::Sort { axis }, &[self], Location::caller())
    }

    /// The indices (i32) that sort along `axis`; equal elements keep their order.
    #[track_caller]
    pub fn argsort(self, axis: isize) -> Tensor {
        let _scope = function("argsort");
        let axis = axis_of("argsort", axis, self.rank());
        let numbers = super::iota(self.shape(), axis as isize, DType::I32);
        bind(Op::Sort { axis }, &[self, numbers], Location::caller())[1]
    }

    /// `log(sum(exp(x)))` over `axes`, which vanish; without overflow. All `-inf` gives `-inf`.
    #[track_caller]
    pub fn logsumexp(self, axes: impl AxisList) -> Tensor {
        let _scope = function("logsumexp");
        let axes = axes.axes("logsumexp", self.rank());
        let shape = self.shape();
        let largest = self.reduce(ReduceOp::Max, axes.clone()).stop_gradient();
        // An infinite maximum would give inf - inf.
        let largest = where_(largest.is_finite(), largest, super::zeros_like(largest));
        let shifted = self - largest.keep_axes(&shape, &axes);
        shifted.exp().reduce(ReduceOp::Sum, axes).log() + largest
    }

    /// `x - logsumexp(x)` along `axis`.
    #[track_caller]
    pub fn log_softmax(self, axis: isize) -> Tensor {
        let _scope = function("log_softmax");
        let axes: Axes = [axis_of("log_softmax", axis, self.rank())].as_slice().into();
        let shape = self.shape();
        let largest = self.reduce(ReduceOp::Max, axes.clone()).stop_gradient();
        let shifted = self - largest.keep_axes(&shape, &axes);
        let total = shifted.exp().reduce(ReduceOp::Sum, axes.clone()).log();
        shifted - total.keep_axes(&shape, &axes)
    }

    /// `exp(x) / sum(exp(x))` along `axis`.
    #[track_caller]
    pub fn softmax(self, axis: isize) -> Tensor {
        let _scope = function("softmax");
        let axes: Axes = [axis_of("softmax", axis, self.rank())].as_slice().into();
        let shape = self.shape();
        let largest = self.reduce(ReduceOp::Max, axes.clone()).stop_gradient();
        let numerator = (self - largest.keep_axes(&shape, &axes)).exp();
        let total = numerator.reduce(ReduceOp::Sum, axes.clone());
        numerator / total.keep_axes(&shape, &axes)
    }

    /// The Euclidean norm over all elements. Its derivative at zero is NaN, as in JAX.
    #[track_caller]
    pub fn norm(self) -> Tensor {
        let _scope = function("norm");
        self.square().sum(..).sqrt()
    }
}
