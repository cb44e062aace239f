//! Axes that an operation contracts, pairs, slides along or gathers from.

use smallvec::SmallVec;

use super::precision::Precision;
use crate::trace::types::Shape;

/// A list of axes.
pub type Axes = SmallVec<[usize; 4]>;
/// A list of signed amounts, one for each axis.
pub type Amounts = SmallVec<[i64; 4]>;

/// Contracted and paired axes of a [`Op::Dot`](super::Op::Dot).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct DotDims {
    /// Contracted axes of the left operand.
    pub lhs_contract: Axes,
    /// Contracted axes of the right operand, in the same order.
    pub rhs_contract: Axes,
    /// Batch axes of the left operand; the result's first axes, in this order.
    pub lhs_batch: Axes,
    /// Batch axes of the right operand, in the same order.
    pub rhs_batch: Axes,
    /// Precision of float multiplication.
    pub precision: Precision,
}

/// The layout and window of an [`Op::Conv`](super::Op::Conv).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvDims {
    /// Axes of `lhs`: batch, features, then the spatial ones.
    pub lhs_spec: Axes,
    /// Axes of `rhs`: output features, input features, then the spatial ones.
    pub rhs_spec: Axes,
    /// Axes of the result: batch, features, then the spatial ones.
    pub out_spec: Axes,
    /// Steps of the window, per spatial axis.
    pub strides: Axes,
    /// Zeros put before and after (negative: cut off), per spatial axis.
    pub padding: SmallVec<[(i64, i64); 2]>,
    /// Distance between neighbors of `lhs` (1: dense), per spatial axis.
    pub lhs_dilation: Axes,
    /// Distance between neighbors of the kernel (1: dense), per spatial axis.
    pub rhs_dilation: Axes,
    /// Number of groups of features.
    pub feature_groups: usize,
    /// Number of groups of the batch.
    pub batch_groups: usize,
    /// Precision of float multiplication.
    pub precision: Precision,
}

/// Form of the triangular system that an [`Op::TriangularSolve`](super::Op::TriangularSolve)
/// solves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TriangularSolveOp {
    /// `op(A) X = B` rather than `X op(A) = B`.
    pub left_side: bool,
    /// If true, A is lower rather than upper triangular; the other triangle is not read.
    pub lower: bool,
    /// If true, `op(A)` is the transpose of A.
    pub transpose_a: bool,
    /// If true, the diagonal of A is taken to be ones, and not read.
    pub unit_diagonal: bool,
}

/// Windows that an [`Op::Gather`](super::Op::Gather) takes, and their axes in the result. The last
/// axis of the indices holds the index vectors.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct GatherDims {
    /// Axes of the result that run inside a window, increasing.
    pub offset_dims: Axes,
    /// Axes of the operand, of window size 1, that vanish.
    pub collapsed_slice_dims: Axes,
    /// Axes of the operand paired with axes of the indices; window size 1, they vanish.
    pub operand_batching_dims: Axes,
    /// Axes of the indices paired with them.
    pub start_indices_batching_dims: Axes,
    /// Axis of the operand that each component of an index vector addresses.
    pub start_index_map: Axes,
    /// The size of a window, per axis of the operand.
    pub slice_sizes: Shape,
}

/// Windows that an [`Op::Scatter`](super::Op::Scatter) writes, and the way it combines them. The
/// last axis of the indices holds the index vectors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScatterDims {
    /// Combination of an update with the element already there.
    pub kind: ScatterKind,
    /// Axes of the updates that run inside a window, increasing.
    pub update_window_dims: Axes,
    /// Axes of the operand, of window size 1, that the updates lack.
    pub inserted_window_dims: Axes,
    /// Axes of the operand paired with axes of the indices.
    pub operand_batching_dims: Axes,
    /// Axes of the indices paired with them.
    pub scatter_indices_batching_dims: Axes,
    /// Axis of the operand that each component of an index vector addresses.
    pub scatter_dims_to_operand_dims: Axes,
}

/// Combination of a scattered update with the element already there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the functions'.
pub enum ScatterKind {
    Set,
    Add,
    Mul,
    /// NaN wins.
    Max,
    /// NaN wins.
    Min,
}

impl ScatterKind {
    /// Every one of them.
    pub const ALL: [ScatterKind; 5] =
        [ScatterKind::Set, ScatterKind::Add, ScatterKind::Mul, ScatterKind::Max, ScatterKind::Min];

    /// The name, as printed in Programs and messages.
    pub fn name(self) -> &'static str {
        match self {
            ScatterKind::Set => "scatter",
            ScatterKind::Add => "scatter_add",
            ScatterKind::Mul => "scatter_mul",
            ScatterKind::Max => "scatter_max",
            ScatterKind::Min => "scatter_min",
        }
    }
}
