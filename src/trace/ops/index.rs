//! Indexing: reads and writes of elements at computed indices.

use std::panic::Location;

use crate::trace::literal::{I4, U4};
use crate::trace::op::{Axes, GatherDims, Op, ScatterDims, ScatterKind};
use crate::trace::ops::axis_of;
use crate::trace::ops::elementwise::{Operand, where_};
use crate::trace::ops::shape::{broadcast_shapes, stack};
use crate::trace::tensor::{Tensor, bind, bind1, fail_op, op};
use crate::trace::types::{DType, Shape, TensorType};

/// Treatment of an index outside its axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IndexMode {
    /// Negative indices count from the end; an index still outside reads as NaN (integers: the
    /// smallest value if signed, the largest if not; bool: true). JAX's default.
    #[default]
    Fill,
    /// Clamped to the axis. The cheapest: use it where indices are known to be inside.
    Clip,
}

/// `lax.gather`: windows of `x` at the index vectors along the last axis of `indices`. Starts are
/// clamped.
#[op]
pub fn gather(x: Tensor, indices: Tensor, dims: GatherDims) -> Tensor {
    bind1(Op::Gather(dims), &[x, indices], Location::caller())
}

/// `lax.scatter`: `updates` written into `x` at the index vectors along the last axis of `indices`.
/// A window that does not fit is dropped.
#[op]
pub fn scatter(x: Tensor, indices: Tensor, updates: Tensor, dims: ScatterDims) -> Tensor {
    bind1(Op::Scatter(dims), &[x, indices, updates], Location::caller())
}

/// Sorts `key` along `axis`, ascending and stable, and gives the `others` in the same order.
#[op]
pub fn sort_by(key: Tensor, others: &[Tensor], axis: isize) -> (Tensor, Vec<Tensor>) {
    let axis = axis_of("sort_by", axis, key.rank());
    let operands: Vec<Tensor> = std::iter::once(key).chain(others.iter().copied()).collect();
    let sorted = bind(Op::Sort { axis }, &operands, Location::caller());
    (sorted[0], sorted[1..].to_vec())
}

/// Start indices of a `window` in a tensor of `shape` as `lax.dynamic_slice` reads them: negative
/// ones count from the end of their axis. An index that cannot be negative costs no equation:
/// literals, and starts along axes that the window covers, which are clamped to 0 anyway.
#[track_caller]
fn starts_of<I: Operand>(shape: &[usize], window: &[usize], starts: &[I]) -> Vec<Tensor> {
    let like = TensorType::scalar(DType::I32);
    let mut tensors = Vec::with_capacity(starts.len());
    for (axis, start) in starts.iter().enumerate() {
        let free = axis < shape.len() && window.get(axis) != Some(&shape[axis]);
        tensors.push(match start.integer() {
            Some(value) if value < 0 && free => {
                (value as i64 + shape[axis] as i64).to_tensor(&like)
            }
            Some(_) => start.to_tensor(&like),
            None => {
                let start = start.to_tensor(&like);
                let may_be_negative = !start.dtype().is_unsigned();
                let start = start.to_i32_index();
                let wraps = free && may_be_negative && start.ty() == like;
                if wraps { from_start(start, shape[axis]) } else { start }
            }
        });
    }
    tensors
}

/// Starts of a window that moves along one axis.
#[track_caller]
fn starts_along(axis: usize, start: Tensor, rank: usize) -> Vec<Tensor> {
    let mut starts = vec![super::constant(0i32); rank];
    starts[axis] = start;
    starts
}

/// Indices as a type wide enough to count any axis in.
#[track_caller]
pub(crate) fn wide(op: &str, indices: Tensor) -> Tensor {
    match indices.dtype() {
        DType::I32 | DType::U32 | DType::I64 => indices,
        DType::I4 | DType::I8 | DType::I16 | DType::U4 | DType::U8 | DType::U16 => {
            indices.to(DType::I32)
        }
        // An index past the end stays past the end.
        DType::U64 => indices.minimum(i64::MAX).to(DType::I64),
        DType::Bool
        | DType::F8E4M3FN
        | DType::F8E5M2
        | DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64
        | DType::C64
        | DType::C128 => fail_op(op, format!("indices must be integers, and are {}", indices.ty())),
    }
}

/// Negative indices moved to count from the start.
#[track_caller]
fn from_start(indices: Tensor, size: usize) -> Tensor {
    if indices.dtype().is_unsigned() {
        return indices;
    }
    where_(indices.lt(0), indices + size, indices)
}

impl Tensor {
    /// An integer of any type as `i32`: one beyond its range becomes the nearest, which is beyond every
    /// axis too. Other types are left for the checks of operations.
    #[track_caller]
    pub(crate) fn to_i32_index(self) -> Tensor {
        match self.dtype() {
            DType::I32 => self,
            DType::I64 => self.maximum(i32::MIN).minimum(i32::MAX).to(DType::I32),
            DType::U32 | DType::U64 => self.minimum(i32::MAX).to(DType::I32),
            dtype if dtype.is_int() => self.to(DType::I32),
            _ => self,
        }
    }

    /// `lax.dynamic_slice`: a window of shape `sizes` that starts at `starts`, one integer scalar
    /// (tensor or number) per axis. Negative starts count from the end of their axis; then starts
    /// are clamped so that the window fits.
    #[op]
    pub fn dynamic_slice<I: Operand>(self, starts: &[I], sizes: impl Into<Shape>) -> Tensor {
        let sizes = sizes.into();
        let starts = starts_of(&self.shape(), &sizes, starts);
        self.dynamic_slice_clamped(&starts, sizes)
    }

    /// [`Tensor::dynamic_slice`] of starts that are not negative, or negative ones clamped to 0:
    /// the primitive.
    #[track_caller]
    pub(crate) fn dynamic_slice_clamped(
        self,
        starts: &[Tensor],
        sizes: impl Into<Shape>,
    ) -> Tensor {
        let operands: Vec<Tensor> = std::iter::once(self).chain(starts.iter().copied()).collect();
        bind1(Op::DynamicSlice { sizes: sizes.into() }, &operands, Location::caller())
    }

    /// `lax.dynamic_update_slice`: this tensor with the window at `starts` replaced by `update`.
    /// Negative starts count from the end of their axis; then starts are clamped so that the window
    /// fits.
    #[op]
    pub fn dynamic_update_slice<I: Operand>(self, update: Tensor, starts: &[I]) -> Tensor {
        let starts = starts_of(&self.shape(), &update.shape(), starts);
        self.dynamic_update_slice_clamped(update, &starts)
    }

    /// [`Tensor::dynamic_update_slice`] of starts that are not negative, or negative ones clamped
    /// to 0: the primitive.
    #[track_caller]
    pub(crate) fn dynamic_update_slice_clamped(self, update: Tensor, starts: &[Tensor]) -> Tensor {
        let operands: Vec<Tensor> = [self, update].iter().chain(starts).copied().collect();
        bind1(Op::DynamicUpdateSlice, &operands, Location::caller())
    }

    /// `lax.dynamic_index_in_dim` with `keepdims=False`: the slice at `index`, an integer scalar, along
    /// `axis`, which vanishes. A negative index counts from the end; then it is clamped.
    #[op]
    pub fn dynamic_index(self, axis: isize, index: Tensor) -> Tensor {
        self.dynamic_slice_axis(axis, index, 1).squeeze(axis)
    }

    /// `lax.dynamic_slice_in_dim`: `size` elements from `start`, an integer scalar, along `axis`. A
    /// negative start counts from the end; then it is clamped so that the window fits.
    #[op]
    pub fn dynamic_slice_axis(self, axis: isize, start: Tensor, size: usize) -> Tensor {
        let shape = self.shape();
        let axis = axis_of("dynamic_slice", axis, shape.rank());
        let starts = starts_along(axis, start, shape.rank());
        self.dynamic_slice(&starts, shape.without_axis(axis).with_axis(axis, size))
    }

    /// `lax.dynamic_update_index_in_dim`: this tensor with the slice at `index`, an integer scalar,
    /// along `axis` replaced by `update`, which has one axis less. A negative index counts from the
    /// end; then it is clamped.
    #[op]
    pub fn dynamic_update_index(self, axis: isize, index: Tensor, update: Tensor) -> Tensor {
        let axis = axis_of("dynamic_update_index", axis, self.rank());
        let starts = starts_along(axis, index, self.rank());
        self.dynamic_update_slice(update.expand_dims(axis as isize), &starts)
    }

    /// [`Tensor::dynamic_index`] of an index that is not negative.
    #[track_caller]
    pub(crate) fn dynamic_index_clamped(self, axis: usize, index: Tensor) -> Tensor {
        let shape = self.shape();
        let starts = starts_along(axis, index, shape.rank());
        self.dynamic_slice_clamped(&starts, shape.without_axis(axis).with_axis(axis, 1))
            .squeeze(axis as isize)
    }

    /// [`Tensor::dynamic_update_index`] of an index that is not negative.
    #[track_caller]
    pub(crate) fn dynamic_update_index_clamped(
        self,
        axis: usize,
        index: Tensor,
        update: Tensor,
    ) -> Tensor {
        let starts = starts_along(axis, index, self.rank());
        self.dynamic_update_slice_clamped(update.expand_dims(axis as isize), &starts)
    }

    /// The slices along `axis` that `indices` (integers, any shape) name; the axes of `indices`
    /// replace that axis. Indices outside: [`IndexMode::Fill`].
    #[op]
    pub fn take(self, indices: Tensor, axis: isize) -> Tensor {
        self.take_mode(indices, axis, IndexMode::Fill)
    }

    /// [`Tensor::take`] with a mode for indices outside the axis.
    #[op]
    pub fn take_mode(self, indices: Tensor, axis: isize, mode: IndexMode) -> Tensor {
        let indices = wide("take", indices);
        let (shape, places) = (self.shape(), indices.shape());
        let axis = axis_of("take", axis, shape.rank());
        if places.numel() == 0 {
            // Nothing is taken, also from axes that have nothing.
            let shape = [&shape[..axis], &places[..], &shape[axis + 1..]].concat();
            return super::zeros(shape, self.dtype());
        }
        let size = shape[axis];
        let indices = if mode == IndexMode::Fill { from_start(indices, size) } else { indices };
        let window_after = axis + places.rank();
        let dims = GatherDims {
            offset_dims: (0..axis)
                .chain(window_after..window_after + shape.rank() - axis - 1)
                .collect(),
            collapsed_slice_dims: [axis].as_slice().into(),
            start_index_map: [axis].as_slice().into(),
            slice_sizes: shape.without_axis(axis).with_axis(axis, 1),
            ..GatherDims::default()
        };
        let taken = gather(self, indices.expand_dims(-1), dims);
        if mode == IndexMode::Clip {
            return taken;
        }
        let axes: Axes = (axis..window_after).collect();
        let valid = inside(indices, size).broadcast_in_dim(taken.shape(), &axes);
        where_(valid, taken, fill_like(taken))
    }

    /// For each position in `indices`, the element of this tensor at that index along `axis` and
    /// the same position along the others. Shapes agree but along `axis`. Indices outside:
    /// [`IndexMode::Fill`].
    #[op]
    pub fn take_along_axis(self, indices: Tensor, axis: isize) -> Tensor {
        self.take_along_axis_mode(indices, axis, IndexMode::Fill)
    }

    /// [`Tensor::take_along_axis`] with a mode for indices outside the axis.
    #[op]
    pub fn take_along_axis_mode(self, indices: Tensor, axis: isize, mode: IndexMode) -> Tensor {
        let shape = self.shape();
        let axis = axis_of("take_along_axis", axis, shape.rank());
        let indices = wide("take_along_axis", indices);
        let (ty, places) = (self.ty(), indices.ty());
        let agree = places.rank() == shape.rank()
            && (0..shape.rank()).all(|a| a == axis || places.shape[a] == shape[a]);
        if !agree {
            let problem = format!("indices {places} must agree with {ty} but along axis {axis}");
            fail_op("take_along_axis", problem);
        }
        if places.numel() == 0 {
            // Nothing is taken, also from axes that have nothing to pair.
            return super::zeros(&places.shape, ty.dtype);
        }
        let size = shape[axis];
        let indices = if mode == IndexMode::Fill { from_start(indices, size) } else { indices };
        let others: Axes = (0..shape.rank()).filter(|&a| a != axis).collect();
        let dims = GatherDims {
            collapsed_slice_dims: [axis].as_slice().into(),
            operand_batching_dims: others.clone(),
            start_indices_batching_dims: others,
            start_index_map: [axis].as_slice().into(),
            slice_sizes: shape.iter().map(|_| 1).collect(),
            ..GatherDims::default()
        };
        let taken = gather(self, indices.expand_dims(-1), dims);
        match mode {
            IndexMode::Clip => taken,
            IndexMode::Fill => where_(inside(indices, size), taken, fill_like(taken)),
        }
    }

    /// The elements `self[i0, i1, ..]` named by integer tensors for the leading axes, which
    /// broadcast together: `x.at(&[i]).add(v)`.
    #[op]
    pub fn at(self, indices: &[Tensor]) -> IndexUpdate {
        if indices.is_empty() || indices.len() > self.rank() {
            let problem = format!("{} index tensors for {}", indices.len(), self.ty());
            fail_op("at", problem);
        }
        let shapes: Vec<Shape> = indices.iter().map(|index| index.shape()).collect();
        let places = broadcast_shapes("at", &shapes);
        let sizes = self.shape();
        let mut vectors = Vec::with_capacity(indices.len());
        for (axis, index) in indices.iter().enumerate() {
            let index = wide("at", *index);
            vectors.push(from_start(index, sizes[axis]).broadcast_to(&places));
        }
        IndexUpdate { x: self, vectors: stack(&vectors, -1), places }
    }
}

/// Returns true for each index inside an axis of the given size.
#[track_caller]
fn inside(indices: Tensor, size: usize) -> Tensor {
    if indices.dtype().is_unsigned() { indices.lt(size) } else { indices.ge(0) & indices.lt(size) }
}

/// Fill value for an element that does not exist.
#[track_caller]
fn fill_like(x: Tensor) -> Tensor {
    let value = match x.dtype() {
        DType::F8E4M3FN | DType::F8E5M2 => f64::NAN,
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => f64::NAN,
        DType::C64 | DType::C128 => f64::NAN,
        DType::Bool => 1.0,
        DType::I4 => I4::MIN.into(),
        DType::I8 => i8::MIN as f64,
        DType::I16 => i16::MIN as f64,
        DType::I32 => i32::MIN as f64,
        DType::I64 => i64::MIN as f64,
        DType::U4 => U4::MAX.into(),
        DType::U8 => u8::MAX as f64,
        DType::U16 => u16::MAX as f64,
        DType::U32 => u32::MAX as f64,
        DType::U64 => u64::MAX as f64,
    };
    super::full_like(x, value)
}

/// Places of a tensor to be read or written; made by [`Tensor::at`].
#[derive(Debug, Clone)]
pub struct IndexUpdate {
    x: Tensor,
    vectors: Tensor,
    places: Shape,
}

impl IndexUpdate {
    /// `x.at[i].get()`: the elements at the indices. An index outside is clamped, and the element
    /// it reads has no derivative.
    #[op("at().get")]
    pub fn get(self) -> Tensor {
        let shape = self.x.shape();
        let (addressed, at) = (self.vectors.dim(-1), self.places.rank());
        if self.places.numel() == 0 {
            return super::zeros([&self.places[..], &shape[addressed..]].concat(), self.x.dtype());
        }
        let dims = GatherDims {
            offset_dims: (at..at + shape.rank() - addressed).collect(),
            collapsed_slice_dims: (0..addressed).collect(),
            start_index_map: (0..addressed).collect(),
            slice_sizes: (0..shape.rank())
                .map(|a| if a < addressed { 1 } else { shape[a] })
                .collect(),
            ..GatherDims::default()
        };
        let taken = gather(self.x, self.vectors, dims);
        if !taken.dtype().is_inexact() {
            return taken;
        }
        let mut valid = None;
        for (axis, &size) in shape[..addressed].iter().enumerate() {
            let here = inside(self.vectors.index_axis(-1, axis as isize), size);
            valid = Some(valid.map_or(here, |valid: Tensor| valid & here));
        }
        let valid = valid.expect("at() takes at least one index tensor");
        let axes: Axes = (0..at).collect();
        let valid = valid.broadcast_in_dim(taken.shape(), &axes);
        where_(valid, taken, taken.stop_gradient())
    }

    /// The tensor with `values` written at the indices (broadcast to them). If several values go to
    /// one index, any of them may win. An index outside the tensor is dropped.
    #[op("at().set")]
    pub fn set(self, values: impl Operand) -> Tensor {
        self.write(ScatterKind::Set, values)
    }

    /// The tensor with `values` added at the indices (broadcast to them); if several values go to
    /// one index, all are added. An index outside the tensor is dropped.
    #[op("at().add")]
    #[allow(clippy::should_implement_trait)] // JAX's name, and `+` would mean something else.
    pub fn add(self, values: impl Operand) -> Tensor {
        self.write(ScatterKind::Add, values)
    }

    /// The tensor with the elements at the indices multiplied by `values` (broadcast to them). If
    /// several values go to one index, it is multiplied by each. An index outside the tensor is
    /// dropped.
    #[op("at().multiply")]
    pub fn multiply(self, values: impl Operand) -> Tensor {
        self.write(ScatterKind::Mul, values)
    }

    /// The tensor with the greater of the elements at the indices and `values` (broadcast to them);
    /// NaN wins. An index outside the tensor is dropped.
    #[op("at().max")]
    pub fn max(self, values: impl Operand) -> Tensor {
        self.write(ScatterKind::Max, values)
    }

    /// The tensor with the lesser of the elements at the indices and `values` (broadcast to them);
    /// NaN wins. An index outside the tensor is dropped.
    #[op("at().min")]
    pub fn min(self, values: impl Operand) -> Tensor {
        self.write(ScatterKind::Min, values)
    }

    #[track_caller]
    fn write(self, kind: ScatterKind, values: impl Operand) -> Tensor {
        let ty = self.x.ty();
        let (addressed, at) = (self.vectors.dim(-1), self.places.rank());
        let window = &ty.shape[addressed..];
        let updates: Shape = self.places.iter().chain(window).copied().collect();
        let values = values.to_tensor(&TensorType::new(ty.dtype, &updates)).broadcast_to(&updates);
        let dims = ScatterDims {
            kind,
            update_window_dims: (at..at + window.len()).collect(),
            inserted_window_dims: (0..addressed).collect(),
            operand_batching_dims: Axes::new(),
            scatter_indices_batching_dims: Axes::new(),
            scatter_dims_to_operand_dims: (0..addressed).collect(),
        };
        scatter(self.x, self.vectors, values, dims)
    }
}
