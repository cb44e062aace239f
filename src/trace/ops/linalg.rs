//! Products: matrices, general contractions, convolutions.

use std::panic::Location;

use smallvec::SmallVec;

use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::op::{Axes, ConvDims, DotDims, Op, Precision};
use crate::trace::ops::broadcast_shapes;
use crate::trace::tensor::{Tensor, bind1, fail_op, function};
use crate::trace::types::{DType, Shape};

/// `lax.dot_general`: contracts and pairs the axes that `dims` names, in its precision. Result
/// axes: batch, free axes of `lhs`, free axes of `rhs`.
#[track_caller]
pub fn dot_general(lhs: Tensor, rhs: Tensor, dims: DotDims) -> Tensor {
    let _scope = function("dot_general");
    let precision = dims.precision.in_scope();
    bind1(Op::Dot(DotDims { precision, ..dims }), &[lhs, rhs], Location::caller())
}

/// `np.matmul`: contracts the last axis of `lhs` with the last but one of `rhs` (or its only one);
/// axes before them broadcast.
#[track_caller]
pub fn matmul(lhs: Tensor, rhs: Tensor) -> Tensor {
    let _scope = function("matmul");
    matmul_with(lhs, rhs, Precision::Default)
}

/// [`matmul`] with its `precision` argument.
///
/// ```
/// use podracer::trace::op::Precision;
/// use podracer::{Array, Tensor, make_program};
/// let f = |x: Tensor| x.matmul_with(x, Precision::Highest);
/// let program = make_program(f, &Array::from([[1.0f32, 2.0], [3.0, 4.0]]))?;
/// assert!(program.to_string().contains("dot[contract=(1)/(0) precision=highest] a a"));
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn matmul_with(lhs: Tensor, rhs: Tensor, precision: Precision) -> Tensor {
    let _scope = function("matmul_with");
    let (left, right) = (lhs.shape(), rhs.shape());
    if left.rank() == 0 || right.rank() == 0 {
        fail_op("matmul", format!("takes no scalars, and was given {} and {}", lhs.ty(), rhs.ty()));
    }
    let contract = |lhs_axis: usize, rhs_axis: usize| DotDims {
        lhs_contract: [lhs_axis].as_slice().into(),
        rhs_contract: [rhs_axis].as_slice().into(),
        precision,
        ..DotDims::default()
    };
    if right.rank() == 1 {
        return dot_general(lhs, rhs, contract(left.rank() - 1, 0));
    }
    if right.rank() == 2 {
        return dot_general(lhs, rhs, contract(left.rank() - 1, 0));
    }
    if left.rank() == 1 {
        let rhs_axis = right.rank() - 2;
        // Free axes of the right operand keep their order, so nothing is left to move.
        return dot_general(lhs, rhs, contract(0, rhs_axis));
    }
    let (l, r) = (left.rank() - 2, right.rank() - 2);
    let batch = broadcast_shapes("matmul", &[Shape::from(&left[..l]), Shape::from(&right[..r])]);
    let n = batch.rank();
    let full = |shape: &Shape, from: usize| -> Shape {
        batch.iter().chain(&shape[from..]).copied().collect()
    };
    let (lhs, rhs) = (lhs.broadcast_to(full(&left, l)), rhs.broadcast_to(full(&right, r)));
    let dims =
        DotDims { lhs_batch: (0..n).collect(), rhs_batch: (0..n).collect(), ..contract(n + 1, n) };
    dot_general(lhs, rhs, dims)
}

/// Padding of a convolution's input.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Padding {
    /// Not at all.
    #[default]
    Valid,
    /// So that the result has `ceil(size / stride)` elements; the odd one goes to the end.
    Same,
    /// So that the result has `ceil(size / stride)` elements; the odd one goes to the start.
    SameLower,
    /// Before and after, per spatial axis.
    Explicit(Vec<(i64, i64)>),
}

impl Padding {
    /// Returns the padding before and after spatial axis `i` of `size` elements.
    pub(crate) fn amounts(
        &self,
        i: usize,
        size: usize,
        window: usize,
        stride: usize,
    ) -> (i64, i64) {
        match self {
            Padding::Valid => (0, 0),
            Padding::Explicit(amounts) => amounts[i],
            Padding::Same | Padding::SameLower => {
                let strides = (size.div_ceil(stride.max(1)).max(1) - 1).saturating_mul(stride);
                let covered = strides.saturating_add(window);
                let total = i64::try_from(covered.saturating_sub(size)).unwrap_or(i64::MAX);
                let (less, more) = (total / 2, total - total / 2);
                if *self == Padding::Same { (less, more) } else { (more, less) }
            }
        }
    }
}

/// The window of [`conv2d`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ConvOptions {
    /// The window's step along both axes; 0 is read as 1.
    pub stride: usize,
    /// Padding of the input.
    pub padding: Padding,
}

/// `lax.conv_general_dilated`: a convolution of `lhs` by the kernel `rhs`, in any layout.
#[track_caller]
pub fn conv_general(lhs: Tensor, rhs: Tensor, dims: ConvDims) -> Tensor {
    let _scope = function("conv_general");
    let precision = dims.precision.in_scope();
    bind1(Op::Conv(ConvDims { precision, ..dims }), &[lhs, rhs], Location::caller())
}

/// A convolution of images `x: [batch, height, width, features]` by `kernel: [height, width, input
/// features, output features]` (NHWC by HWIO), as flax's `Conv` without its bias.
#[track_caller]
pub fn conv2d(x: Tensor, kernel: Tensor, options: &ConvOptions) -> Tensor {
    let _scope = function("conv2d");
    let (image, window) = (x.shape(), kernel.shape());
    if image.rank() != 4 || window.rank() != 4 {
        let problem = format!(
            "takes images [batch, height, width, features] and a kernel [height, width, in, out], \
             and was given {} and {}",
            x.ty(),
            kernel.ty()
        );
        fail_op("conv2d", problem);
    }
    let stride = options.stride.max(1);
    if let Padding::Explicit(amounts) = &options.padding
        && amounts.len() != 2
    {
        fail_op("conv2d", format!("padding is for 2 axes, and {} were given", amounts.len()));
    }
    let padding: SmallVec<[(i64, i64); 2]> =
        (0..2).map(|i| options.padding.amounts(i, image[1 + i], window[i], stride)).collect();
    let dims = ConvDims {
        lhs_spec: Axes::from_slice(&[0, 3, 1, 2]),
        rhs_spec: Axes::from_slice(&[3, 2, 0, 1]),
        out_spec: Axes::from_slice(&[0, 3, 1, 2]),
        strides: Axes::from_elem(stride, 2),
        padding,
        lhs_dilation: Axes::from_elem(1, 2),
        rhs_dilation: Axes::from_elem(1, 2),
        feature_groups: 1,
        batch_groups: 1,
        precision: Precision::Default,
    };
    conv_general(x, kernel, dims)
}

impl Tensor {
    /// [`matmul`].
    #[track_caller]
    pub fn matmul(self, rhs: Tensor) -> Tensor {
        let _scope = function("matmul");
        matmul(self, rhs)
    }

    /// [`matmul_with`].
    #[track_caller]
    pub fn matmul_with(self, rhs: Tensor, precision: Precision) -> Tensor {
        let _scope = function("matmul_with");
        matmul_with(self, rhs, precision)
    }

    /// The outer product of two vectors.
    #[track_caller]
    pub fn outer(self, rhs: Tensor) -> Tensor {
        let _scope = function("outer");
        dot_general(self.ravel(), rhs.ravel(), DotDims::default())
    }
}

/// Many columns are orthonormalised in blocks of this many, so that most of the work is in products
/// of matrices.
const BLOCK: usize = 32;

/// Up to this many columns are one block: one loop, which compiles fastest.
const FEW: usize = 128;

/// The matrix Q of `a = Q R` with R upper triangular and its diagonal positive: orthonormal
/// columns that span those of `a: f[m, n]`, `m >= n`. Equals LAPACK's QR after its sign
/// correction. Columns that depend on those before give NaN.
///
/// Block Gram-Schmidt, each projection done twice (Giraud, Langou & Rozloznik 2005: twice is
/// enough for orthogonality to rounding).
#[track_caller]
pub fn orthonormal_columns(a: Tensor) -> Tensor {
    let _scope = function("orthonormal_columns");
    let ty = a.ty();
    if ty.rank() != 2 || ty.shape[0] < ty.shape[1] || !ty.dtype.is_float() {
        fail_op(
            "orthonormal_columns",
            format!("takes a tall matrix of floats, and was given {ty}"),
        );
    }
    let (m, n) = (ty.shape[0], ty.shape[1]);
    if n == 0 {
        return a;
    }
    // From here on the columns are rows, which are contiguous.
    let rows = a.t();
    if n <= FEW {
        return orthonormal_rows(rows).t();
    }
    // The first block takes the remainder.
    let first = (n - 1) % BLOCK + 1;
    let head = orthonormal_rows(rows.slice_axis(0, 0, first));
    // One loop over the others, whose body is compiled once. Rows that are not computed yet are
    // zeros, along which a projection takes nothing away.
    let blocks = rows.slice_axis(0, first, n).reshape([(n - first) / BLOCK, BLOCK, m]);
    let starts = super::arange(blocks.dim(0), DType::I32) * BLOCK as i32 + first as i32;
    let done = head.pad(&[0, 0], &[(n - first) as i64, 0], 0.0);
    let step = |done: Tensor, (mut block, start): (Tensor, Tensor)| {
        for _ in 0..2 {
            block = orthonormal_rows(block - block.matmul(done.t()).matmul(done));
        }
        (done.dynamic_update_slice_clamped(block, &[start, super::zeros_like(start)]), ())
    };
    let (done, ()) = scan_with(step, done, (blocks, starts), ScanOptions::default());
    done.t()
}

/// Gram-Schmidt over rows, one row an iteration.
#[track_caller]
fn orthonormal_rows(rows: Tensor) -> Tensor {
    let numbers = super::arange(rows.dim(0), DType::I32);
    let step = |done: Tensor, (row, i): (Tensor, Tensor)| {
        let mut v = row;
        for _ in 0..2 {
            v = v - done.matmul(v).matmul(done);
        }
        let v = v / v.norm();
        (done.dynamic_update_index_clamped(0, i, v), ())
    };
    scan_with(step, super::zeros_like(rows), (rows, numbers), ScanOptions::default()).0
}
