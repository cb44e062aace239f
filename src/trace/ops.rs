//! Functions that add operations of [`Op`](super::op::Op) to a trace, and the compositions of a few
//! of them that the rules of transformations need. [`numpy`](super::numpy) has the functions
//! composed of them.
//!
//! Shapes broadcast as in NumPy. Element types never mix: only literals take the type of the tensor
//! they are combined with. Axes are `isize`; negative ones count from the end.

mod collective;
mod complex;
mod convolution;
mod create;
mod elementwise;
mod fourier;
mod index;
mod linalg;
mod precision;
mod reduce;
mod shape;
mod special;
mod triangular;

pub use collective::{
    all_gather, all_gather_tiled, all_to_all, all_to_all_tiled, axis_index, axis_size, pmax, pmean,
    pmin, ppermute, psum, psum_scatter, psum_scatter_tiled,
};
pub use complex::complex;
pub use convolution::{
    ConvGeneralDilated, ConvTranspose, DimensionNumbers, conv_general_dilated, conv_transpose,
};
pub use create::*;
pub(crate) use elementwise::log_of_sum;
pub use elementwise::{Operand, div, logaddexp, where_};
pub use fourier::fft;
pub(crate) use index::wide;
pub use index::{IndexMode, IndexUpdate, gather, scatter, sort_by};
pub use linalg::{ConvOptions, Padding, conv_general, conv2d, dot_general, matmul, matmul_with};
pub use precision::default_matmul_precision;
pub(crate) use precision::structure_in_scope;
pub(crate) use shape::{broadcast_pair, ensure_parts};
pub use shape::{broadcast_shapes, concatenate, stack};
pub use special::polygamma;
pub use triangular::{cholesky, triangular_solve};
pub(crate) use triangular::{expect_square, hermitian_part, is_wide_inexact};

use super::op::Axes;
use super::tensor::fail_op;

/// The axis meant by `axis` in a tensor of rank `rank`.
#[track_caller]
pub(crate) fn axis_of(op: &str, axis: isize, rank: usize) -> usize {
    let index = if axis < 0 { axis + rank as isize } else { axis };
    if index < 0 || index >= rank as isize {
        fail_op(op, format!("axis {axis} is out of bounds for a tensor of rank {rank}"));
    }
    index as usize
}

/// The axes that a function runs over: one, several, or all.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name axes",
    note = "axes are one number (`x.sum(0)`), an array (`x.sum([0, -1])`) or all (`x.sum(..)`)",
    note = "the numbers are isize, and negative ones count from the end: convert a usize with `as isize`"
)]
pub trait AxisList {
    /// The axes as positions in a tensor of rank `rank`.
    fn axes(&self, op: &str, rank: usize) -> Axes;
}

impl AxisList for isize {
    #[track_caller]
    fn axes(&self, op: &str, rank: usize) -> Axes {
        [axis_of(op, *self, rank)].as_slice().into()
    }
}

impl AxisList for i32 {
    #[track_caller]
    fn axes(&self, op: &str, rank: usize) -> Axes {
        [axis_of(op, *self as isize, rank)].as_slice().into()
    }
}

impl<const N: usize> AxisList for [isize; N] {
    #[track_caller]
    fn axes(&self, op: &str, rank: usize) -> Axes {
        self[..].axes(op, rank)
    }
}

impl AxisList for [isize] {
    #[track_caller]
    fn axes(&self, op: &str, rank: usize) -> Axes {
        let mut axes = Axes::new();
        for &axis in self {
            axes.push(axis_of(op, axis, rank));
        }
        axes
    }
}

impl AxisList for &[isize] {
    #[track_caller]
    fn axes(&self, op: &str, rank: usize) -> Axes {
        (**self).axes(op, rank)
    }
}

/// All axes: `x.sum(..)`.
impl AxisList for std::ops::RangeFull {
    fn axes(&self, _: &str, rank: usize) -> Axes {
        (0..rank).collect()
    }
}
