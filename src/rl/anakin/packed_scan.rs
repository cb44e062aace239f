//! A scan whose carry and outputs are one tensor.

use crate::trace::control::scan;
use crate::trace::ops::{concatenate, zeros};
use crate::tree::{self, Tree};
use crate::{DType, Tensor, TensorType};

/// Several tensors `[N, ..]` packed as the rows of one, `f32[rows, N]`: a loop that carries and
/// stacks one packed tensor compiles to a few operations instead of a few per tensor.
struct PackedRows {
    types: Vec<TensorType>,
}

impl PackedRows {
    fn of(tensors: &[Tensor]) -> PackedRows {
        PackedRows { types: tensors.iter().map(|x| x.ty()).collect() }
    }

    /// Returns the number of rows.
    fn count(&self) -> usize {
        self.types.iter().map(|ty| ty.numel() / ty.shape[0]).sum()
    }

    fn pack(&self, tensors: &[Tensor]) -> Tensor {
        let mut rows = Vec::new();
        for (x, ty) in tensors.iter().zip(&self.types) {
            let columns = ty.numel() / ty.shape[0];
            rows.push(to_f32(*x).reshape([ty.shape[0], columns]).t());
        }
        concatenate(&rows, 0)
    }

    /// Unpacks `f32[.., rows, N]` into tensors `[.., N, ..]`.
    fn unpack(&self, packed: Tensor) -> Vec<Tensor> {
        let lead = packed.shape()[..packed.rank() - 2].to_vec();
        let mut from = 0;
        let mut tensors = Vec::new();
        for ty in &self.types {
            let columns = ty.numel() / ty.shape[0];
            let rows = packed.slice_axis(-2, from, from + columns).swapaxes(-2, -1);
            from += columns;
            tensors.push(from_f32(rows.reshape([&lead[..], &ty.shape[..]].concat()), ty.dtype));
        }
        tensors
    }
}

/// Returns true for the element types that [`scan_packed`] packs.
pub fn is_packable(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I32 | DType::U32 | DType::Bool)
}

/// Returns the elements as `f32`: integers as their bits, since `f32` does not have all of them.
fn to_f32(x: Tensor) -> Tensor {
    match x.dtype() {
        DType::I32 | DType::U32 => x.bitcast(DType::F32),
        _ => x.to(DType::F32),
    }
}

/// Inverse of [`to_f32`].
fn from_f32(x: Tensor, dtype: DType) -> Tensor {
    match dtype {
        DType::I32 | DType::U32 => x.bitcast(dtype),
        _ => x.to(dtype),
    }
}

/// Runs [`scan`] with a carry and outputs that are packed as the rows of one tensor, `f32[rows, N]`. All
/// leaves of the carry are `[N, ..]`, of types that [`is_packable`] accepts; `output_types` are those of
/// the outputs of one step. Returns the last carry, the first leaf of the carry before each step,
/// `[T, N, ..]`, and the outputs of all steps.
pub fn scan_packed<C, X>(
    step: impl Fn(C, X) -> (C, Vec<Tensor>),
    init: C,
    xs: X,
    output_types: Vec<TensorType>,
) -> (C, Tensor, Vec<Tensor>)
where
    C: Tree<Tensor, With<Tensor> = C>,
    X: Tree<Tensor, With<Tensor> = X>,
{
    let carry = PackedRows::of(&tree::leaves(&init));
    let outputs = PackedRows { types: output_types };
    let unpack_carry = |rows: Tensor| -> C { tree::replace(&init, carry.unpack(rows)) };
    let packed_step = |rows: Tensor, x: X| {
        let (next, now) = step(unpack_carry(rows), x);
        let rows = concatenate(&[carry.pack(&tree::leaves(&next)), outputs.pack(&now)], 0);
        (rows, rows)
    };
    let num_envs = carry.types[0].shape[0];
    let no_outputs = zeros([outputs.count(), num_envs], DType::F32);
    let first = concatenate(&[carry.pack(&tree::leaves(&init)), no_outputs], 0);
    let (last, rows) = scan(packed_step, first, xs);
    let stacked = outputs.unpack(rows.slice_axis(1, carry.count(), rows.dim(1)));
    let before = concatenate(&[first.expand_dims(0), rows.slice_axis(0, 0, rows.dim(0) - 1)], 0);
    let first_leaf = PackedRows { types: carry.types[..1].to_vec() }.unpack(before)[0];
    (unpack_carry(last), first_leaf, stacked)
}
