//! Products: matrices, general contractions, convolutions.

use std::panic::Location;

use smallvec::SmallVec;

use crate::trace::op::{Axes, ConvDims, DotDims, Op, Precision};
use crate::trace::ops::shape::broadcast_shapes;
use crate::trace::tensor::{Tensor, bind1, fail_op, op};
use crate::trace::types::{DType, Shape};

/// `lax.dot_general`: contracts and pairs the axes that `dims` names, in its precision. Result
/// axes: batch, free axes of `lhs`, free axes of `rhs`. Of bools it is true where a pair of both is.
#[op]
pub fn dot_general(lhs: Tensor, rhs: Tensor, dims: DotDims) -> Tensor {
    let precision = dims.precision.in_scope();
    let at = Location::caller();
    let op = Op::Dot(DotDims { precision, ..dims });
    if lhs.dtype() == DType::Bool && rhs.dtype() == DType::Bool {
        let [lhs, rhs] = [lhs, rhs].map(|x| x.to(DType::F32));
        return bind1(op, &[lhs, rhs], at).ne(0.0);
    }
    bind1(op, &[lhs, rhs], at)
}

/// `np.matmul`: contracts the last axis of `lhs` with the last but one of `rhs` (or its only one);
/// axes before them broadcast.
#[op]
pub fn matmul(lhs: Tensor, rhs: Tensor) -> Tensor {
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
#[op]
pub fn matmul_with(lhs: Tensor, rhs: Tensor, precision: Precision) -> Tensor {
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
#[op]
pub fn conv_general(lhs: Tensor, rhs: Tensor, dims: ConvDims) -> Tensor {
    let precision = dims.precision.in_scope();
    bind1(Op::Conv(ConvDims { precision, ..dims }), &[lhs, rhs], Location::caller())
}

/// A convolution of images `x: [batch, height, width, features]` by `kernel: [height, width, input
/// features, output features]` (NHWC by HWIO), as flax's `Conv` without its bias.
#[op]
pub fn conv2d(x: Tensor, kernel: Tensor, options: &ConvOptions) -> Tensor {
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
    #[op]
    pub fn matmul(self, rhs: Tensor) -> Tensor {
        matmul(self, rhs)
    }

    /// [`matmul_with`].
    #[op]
    pub fn matmul_with(self, rhs: Tensor, precision: Precision) -> Tensor {
        matmul_with(self, rhs, precision)
    }

    /// The outer product of two vectors.
    #[op]
    pub fn outer(self, rhs: Tensor) -> Tensor {
        dot_general(self.ravel(), rhs.ravel(), DotDims::default())
    }
}
