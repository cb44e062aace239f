//! Everything one can do with tensors: NumPy's and JAX's functions over the operations of
//! [`Op`](super::op::Op).
//!
//! Shapes broadcast as in NumPy. Element types never mix: only literals take the type of the
//! tensor they meet. Axes are `isize`; negative ones count from the end.

use std::panic::Location;

use super::tensor::fail_op;

/// The axis meant by `axis` in a tensor of rank `rank`.
#[track_caller]
pub(crate) fn axis_of(op: &str, axis: isize, rank: usize) -> usize {
    let index = if axis < 0 { axis + rank as isize } else { axis };
    if index < 0 || index >= rank as isize {
        let _ = Location::caller();
        fail_op(op, format!("axis {axis} is outside a tensor of {rank} axes"));
    }
    index as usize
}
