//! Shapes: broadcasting, reshaping, moving axes, joining and cutting.

use std::panic::Location;

use crate::trace::literal::Literal;
use crate::trace::op::{Amounts, Axes, Op};
use crate::trace::ops::axis_of;
use crate::trace::tensor::{Tensor, bind1, fail_op, fail_operands, op};
use crate::trace::types::{Shape, TensorType};

/// The shape that all of `shapes` broadcast to, by NumPy's rules: axes are aligned at the end, and
/// sizes must be equal or 1.
#[track_caller]
pub fn broadcast_shapes(op: &str, shapes: &[Shape]) -> Shape {
    let Some(shape) = try_broadcast_shapes(shapes) else {
        let list: Vec<String> = shapes.iter().map(Shape::to_string).collect();
        fail_op(op, format!("shapes do not broadcast: {}", list.join(" and ")))
    };
    shape
}

fn try_broadcast_shapes(shapes: &[Shape]) -> Option<Shape> {
    let rank = shapes.iter().map(Shape::rank).max().unwrap_or(0);
    let mut result = vec![1; rank];
    for shape in shapes {
        let offset = rank - shape.rank();
        for (axis, &size) in shape.iter().enumerate() {
            let there = &mut result[offset + axis];
            if *there == 1 {
                *there = size;
            } else if size != 1 && size != *there {
                return None;
            }
        }
    }
    Some(result.into())
}

/// Two operands of one element type at the shape that they broadcast to.
#[track_caller]
pub(crate) fn broadcast_pair(op: &str, lhs: Tensor, rhs: Tensor) -> (Tensor, Tensor) {
    let (left, right) = (lhs.ty(), rhs.ty());
    if left.shape == right.shape {
        return (lhs, rhs);
    }
    // The types in the message are those that the user gave, and not of the broadcast operands.
    let operands = [("lhs", lhs), ("rhs", rhs)];
    if left.dtype != right.dtype {
        let problem =
            format!("element types differ: lhs {left}, rhs {right}; convert one with .to(dtype)");
        fail_operands(op, problem, &operands);
    }
    let Some(shape) = try_broadcast_shapes(&[left.shape.clone(), right.shape.clone()]) else {
        fail_operands(op, format!("shapes do not broadcast: lhs {left}, rhs {right}"), &operands)
    };
    (broadcast_to(lhs, &shape), broadcast_to(rhs, &shape))
}

/// `x` repeated to `shape`, its axes aligned at the end.
#[track_caller]
pub(crate) fn broadcast_to(x: Tensor, shape: &Shape) -> Tensor {
    let from = x.shape();
    if from == *shape {
        return x;
    }
    if from.rank() > shape.rank() {
        let problem = format!("{} has more axes than the shape {shape}", x.ty());
        fail_operands("broadcast_to", problem, &[("the operand", x)]);
    }
    let offset = shape.rank() - from.rank();
    let axes = (offset..shape.rank()).collect();
    bind1(Op::Broadcast { shape: shape.clone(), axes }, &[x], Location::caller())
}

/// Most parts that a tensor is split into: each is an operation of the Program.
const MAX_PARTS: usize = 1 << 16;

/// Refuses to split into more parts than a Program can hold.
#[track_caller]
pub(crate) fn ensure_parts(op: &str, parts: usize) {
    if parts > MAX_PARTS {
        fail_op(op, format!("{parts} parts are too many, at most {MAX_PARTS} can be made"));
    }
}

/// Joins tensors along an existing axis.
#[op]
pub fn concatenate(tensors: &[Tensor], axis: isize) -> Tensor {
    let Some(first) = tensors.first() else { fail_op("concatenate", "no tensors were given") };
    let axis = axis_of("concatenate", axis, first.rank());
    if tensors.len() == 1 {
        return *first;
    }
    bind1(Op::Concat { axis }, tensors, Location::caller())
}

/// Joins tensors of one type along a new axis.
#[op]
pub fn stack(tensors: &[Tensor], axis: isize) -> Tensor {
    let Some(first) = tensors.first() else { fail_op("stack", "no tensors were given") };
    let position = axis_of("stack", axis, first.rank() + 1);
    let ty = first.ty();
    if let Some(other) = tensors.iter().map(|tensor| tensor.ty()).find(|other| *other != ty) {
        fail_op("stack", format!("operands must have equal types, got {ty} and {other}"));
    }
    let mut expanded = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        expanded.push(tensor.expand_dims(position as isize));
    }
    concatenate(&expanded, position as isize)
}

impl Tensor {
    /// The size of `axis`; negative axes count from the end.
    #[op]
    pub fn dim(self, axis: isize) -> usize {
        let shape = self.shape();
        shape[axis_of("dim", axis, shape.rank())]
    }

    /// Repeats to `shape`; axes are aligned at the end, and grow where they have size 1.
    #[op]
    pub fn broadcast_to(self, shape: impl Into<Shape>) -> Tensor {
        broadcast_to(self, &shape.into())
    }

    /// `lax.broadcast_in_dim`: axis `i` becomes axis `axes[i]` of a tensor of shape `shape`.
    #[op]
    pub fn broadcast_in_dim(self, shape: impl Into<Shape>, axes: &[usize]) -> Tensor {
        let op = Op::Broadcast { shape: shape.into(), axes: axes.into() };
        bind1(op, &[self], Location::caller())
    }

    /// The same elements in row-major order under another shape.
    #[op]
    pub fn reshape(self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        if shape == self.shape() {
            return self;
        }
        bind1(Op::Reshape { shape }, &[self], Location::caller())
    }

    /// All elements along one axis, in row-major order.
    #[op]
    pub fn ravel(self) -> Tensor {
        self.reshape([self.numel()])
    }

    /// Merges the axes from `first` on into one.
    #[op]
    pub fn flatten_from(self, first: isize) -> Tensor {
        let shape = self.shape();
        let first = axis_of("flatten_from", first, shape.rank());
        let merged = Shape::from(&shape[first..]).numel();
        let shape: Shape = shape[..first].iter().copied().chain([merged]).collect();
        self.reshape(shape)
    }

    /// Axis `i` of the result is axis `permutation[i]` of this tensor.
    #[op]
    pub fn transpose(self, permutation: &[usize]) -> Tensor {
        if permutation.len() == self.rank() && permutation.iter().enumerate().all(|(i, &p)| i == p)
        {
            return self;
        }
        let op = Op::Transpose { permutation: permutation.into() };
        bind1(op, &[self], Location::caller())
    }

    /// The axes in opposite order; a matrix is transposed.
    #[op]
    pub fn t(self) -> Tensor {
        let permutation: Axes = (0..self.rank()).rev().collect();
        self.transpose(&permutation)
    }

    /// Exchanges two axes.
    #[op]
    pub fn swapaxes(self, a: isize, b: isize) -> Tensor {
        let rank = self.rank();
        let (a, b) = (axis_of("swapaxes", a, rank), axis_of("swapaxes", b, rank));
        let mut permutation: Axes = (0..rank).collect();
        permutation.swap(a, b);
        self.transpose(&permutation)
    }

    /// Moves an axis to another position; the others keep their order.
    #[op]
    pub fn moveaxis(self, from: isize, to: isize) -> Tensor {
        let rank = self.rank();
        let (from, to) = (axis_of("moveaxis", from, rank), axis_of("moveaxis", to, rank));
        let mut permutation: Axes = (0..rank).filter(|&axis| axis != from).collect();
        permutation.insert(to, from);
        self.transpose(&permutation)
    }

    /// A new axis of size 1 at position `axis` of the result.
    #[op]
    pub fn expand_dims(self, axis: isize) -> Tensor {
        let shape = self.shape();
        let axis = axis_of("expand_dims", axis, shape.rank() + 1);
        self.reshape(shape.with_axis(axis, 1))
    }

    /// Drops `axis`, which must have size 1.
    #[op]
    pub fn squeeze(self, axis: isize) -> Tensor {
        let shape = self.shape();
        let axis = axis_of("squeeze", axis, shape.rank());
        if shape[axis] != 1 {
            let (ty, size) = (self.ty(), shape[axis]);
            fail_op(
                "squeeze",
                format!("axis {axis} of {ty} has size {size}, and must have size 1"),
            );
        }
        self.reshape(shape.without_axis(axis))
    }

    /// The elements in opposite order along `axis`.
    #[op]
    pub fn flip(self, axis: isize) -> Tensor {
        let axis = axis_of("flip", axis, self.rank());
        bind1(Op::Reverse { axes: [axis].as_slice().into() }, &[self], Location::caller())
    }

    /// Elements shifted along `axis` by `shift`, those that leave coming in at the other end.
    #[op]
    pub fn roll(self, shift: isize, axis: isize) -> Tensor {
        let size = self.dim(axis);
        if size == 0 {
            return self;
        }
        let cut = size - shift.rem_euclid(size as isize) as usize;
        if cut == size {
            return self;
        }
        concatenate(&[self.slice_axis(axis, cut, size), self.slice_axis(axis, 0, cut)], axis)
    }

    /// The elements from `start` to before `limit` by `stride`, per axis.
    #[op]
    pub fn strided_slice(self, start: &[usize], limit: &[usize], stride: &[usize]) -> Tensor {
        let op = Op::Slice { start: start.into(), limit: limit.into(), stride: stride.into() };
        bind1(op, &[self], Location::caller())
    }

    /// The elements from `start` to before `limit` along `axis`.
    #[op]
    pub fn slice_axis(self, axis: isize, start: usize, limit: usize) -> Tensor {
        let shape = self.shape();
        let axis = axis_of("slice", axis, shape.rank());
        if start == 0 && limit == shape[axis] {
            return self;
        }
        let mut starts: Axes = Axes::from_elem(0, shape.rank());
        let mut limits: Axes = shape.iter().copied().collect();
        (starts[axis], limits[axis]) = (start, limit);
        let strides = Axes::from_elem(1, shape.rank());
        self.strided_slice(&starts, &limits, &strides)
    }

    /// The slice at `index` along `axis`, without that axis; negative indices count from the end.
    #[op]
    pub fn index_axis(self, axis: isize, index: isize) -> Tensor {
        let size = self.dim(axis);
        let at = if index < 0 { index + size as isize } else { index };
        if at < 0 || at >= size as isize {
            fail_op(
                "index",
                format!("index {index} is out of bounds for axis {axis} of {}", self.ty()),
            );
        }
        self.slice_axis(axis, at as usize, at as usize + 1).squeeze(axis)
    }

    /// Cuts into `parts` equal parts along `axis`.
    #[op]
    pub fn split(self, parts: usize, axis: isize) -> Vec<Tensor> {
        let size = self.dim(axis);
        if parts == 0 || !size.is_multiple_of(parts) {
            let ty = self.ty();
            fail_op(
                "split",
                format!("axis {axis} of {ty} cannot be split into {parts} equal parts"),
            );
        }
        ensure_parts("split", parts);
        let part = size / parts;
        let mut pieces = Vec::with_capacity(parts);
        for i in 0..parts {
            pieces.push(self.slice_axis(axis, i * part, (i + 1) * part));
        }
        pieces
    }

    /// Pads with `value`: `low` elements before and `high` after, per axis; negative amounts cut.
    #[op]
    pub fn pad(self, low: &[i64], high: &[i64], value: f64) -> Tensor {
        let interior = Axes::from_elem(0, self.rank());
        self.pad_interior(low, high, &interior, value)
    }

    /// [`Tensor::pad`], with `interior` elements between neighbors as well, per axis.
    #[op]
    pub fn pad_interior(self, low: &[i64], high: &[i64], interior: &[usize], value: f64) -> Tensor {
        let scalar = Literal::filled(TensorType::scalar(self.dtype()), value);
        let value = bind1(Op::Constant(scalar), &[], Location::caller());
        self.pad_with(low, high, interior, value)
    }

    /// [`Tensor::pad_interior`] with a scalar tensor as the padding.
    #[op]
    pub fn pad_with(self, low: &[i64], high: &[i64], interior: &[usize], value: Tensor) -> Tensor {
        let op = Op::Pad {
            low: Amounts::from_slice(low),
            high: Amounts::from_slice(high),
            interior: interior.into(),
        };
        bind1(op, &[self, value], Location::caller())
    }

    /// Repeats the whole tensor `count` times along `axis`.
    #[op]
    pub fn tile(self, count: usize, axis: isize) -> Tensor {
        let shape = self.shape();
        let axis = axis_of("tile", axis, shape.rank());
        let expanded = shape.with_axis(axis, count);
        let axes: Axes = (0..expanded.rank()).filter(|&a| a != axis).collect();
        let mut merged = shape.clone().to_vec();
        merged[axis] = merged[axis].saturating_mul(count);
        self.broadcast_in_dim(expanded, &axes).reshape(merged)
    }

    /// Repeats each element `count` times along `axis`.
    #[op]
    pub fn repeat(self, count: usize, axis: isize) -> Tensor {
        let shape = self.shape();
        let axis = axis_of("repeat", axis, shape.rank());
        let expanded = shape.with_axis(axis + 1, count);
        let axes: Axes = (0..expanded.rank()).filter(|&a| a != axis + 1).collect();
        let mut merged = shape.to_vec();
        merged[axis] = merged[axis].saturating_mul(count);
        self.broadcast_in_dim(expanded, &axes).reshape(merged)
    }
}
