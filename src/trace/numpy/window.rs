//! Reductions over windows.

use smallvec::SmallVec;

use crate::trace::check::dilated;
use crate::trace::literal::Literal;
use crate::trace::op::{Axes, ReduceOp};
use crate::trace::ops::{constant, where_};
use crate::trace::tensor::{Tensor, fail_op, function};
use crate::trace::types::{Shape, TensorType};

/// The windows of [`Tensor::reduce_window`], per axis of the tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowOptions {
    /// Sizes of a window.
    pub window: Axes,
    /// Steps from window to window.
    pub strides: Axes,
    /// Padding before and after; negative amounts cut off.
    pub padding: SmallVec<[(i64, i64); 4]>,
    /// Distance between neighbors of the tensor (1: dense).
    pub base_dilation: Axes,
    /// Distance between neighbors in a window (1: dense).
    pub window_dilation: Axes,
}

impl WindowOptions {
    /// Windows of these sizes at every position where they fit.
    pub fn new(window: &[usize]) -> WindowOptions {
        let ones = Axes::from_elem(1, window.len());
        WindowOptions {
            window: window.into(),
            strides: ones.clone(),
            padding: SmallVec::from_elem((0, 0), window.len()),
            base_dilation: ones.clone(),
            window_dilation: ones,
        }
    }

    /// With these steps.
    pub fn strides(mut self, strides: &[usize]) -> WindowOptions {
        self.strides = strides.into();
        self
    }

    /// With this padding.
    pub fn padding(mut self, padding: &[(i64, i64)]) -> WindowOptions {
        self.padding = padding.into();
        self
    }
}

/// Most elements of a window of [`Tensor::reduce_window`]: each is a slice of its own.
const MAX_WINDOW: usize = 1 << 16;

impl Tensor {
    /// `lax.reduce_window`, for `Sum`, `Prod`, `Max` and `Min`: every window reduced to one
    /// element. Padding is the reduction's neutral element. If several elements of a window are the
    /// greatest (least), the first one, in row-major order, takes the derivative.
    ///
    /// It is written as one slice for each position in a window, which the compiler fuses into one
    /// loop: right for the windows of pooling, wasteful for windows of hundreds of elements.
    #[track_caller]
    pub fn reduce_window(self, op: ReduceOp, options: &WindowOptions) -> Tensor {
        let _scope = function("reduce_window");
        let ty = self.ty();
        let WindowOptions { window, strides, padding, base_dilation, window_dilation } = options;
        let lists = [window, strides, base_dilation, window_dilation];
        let fits = lists.iter().all(|list| list.len() == ty.rank() && !list.contains(&0));
        if !fits || padding.len() != ty.rank() {
            let problem = format!(
                "takes windows, strides, padding and dilations of at least 1 for each axis; was \
                 given {options:?} for {ty}"
            );
            fail_op("reduce_window", problem);
        }
        let neutral = match op {
            ReduceOp::Sum => 0.0,
            ReduceOp::Prod => 1.0,
            ReduceOp::Max => f64::NEG_INFINITY,
            ReduceOp::Min => f64::INFINITY,
            ReduceOp::And | ReduceOp::Or => {
                fail_op("reduce_window", "takes Sum, Prod, Max or Min; convert bools to numbers")
            }
        };
        let neutral = constant(Literal::saturated(TensorType::scalar(ty.dtype), neutral));
        let low: Vec<i64> = padding.iter().map(|pad| pad.0).collect();
        let high: Vec<i64> = padding.iter().map(|pad| pad.1).collect();
        let between: Vec<usize> = base_dilation.iter().map(|d| d - 1).collect();
        let x = self.pad_with(&low, &high, &between, neutral);
        let size = x.shape();
        let covered: Vec<usize> =
            window.iter().zip(window_dilation).map(|(&w, &d)| dilated(w, d)).collect();
        if let Some(axis) = (0..ty.rank()).find(|&axis| size[axis] < covered[axis]) {
            let problem =
                format!("a window of {window:?} does not fit into {} along axis {axis}", x.ty());
            fail_op("reduce_window", problem);
        }
        let counts: Vec<usize> =
            (0..ty.rank()).map(|axis| (size[axis] - covered[axis]) / strides[axis]).collect();
        let places = Shape::from(&window[..]).numel();
        if places > MAX_WINDOW {
            let problem =
                format!("a window of {window:?} has {places} elements, and may have {MAX_WINDOW}");
            fail_op("reduce_window", problem);
        }
        let mut reduced: Option<Tensor> = None;
        for place in 0..places {
            // The element's position in the window.
            let mut rest = place;
            let mut start = vec![0; ty.rank()];
            for axis in (0..ty.rank()).rev() {
                start[axis] = rest % window[axis] * window_dilation[axis];
                rest /= window[axis];
            }
            let limit: Vec<usize> =
                (0..ty.rank()).map(|a| start[a] + counts[a] * strides[a] + 1).collect();
            let slice = x.strided_slice(&start, &limit, strides);
            reduced = Some(match reduced {
                None => slice,
                Some(before) => match op {
                    ReduceOp::Sum => before + slice,
                    ReduceOp::Prod => before * slice,
                    ReduceOp::Max => where_(takes(slice, before, slice.gt(before)), slice, before),
                    _ => where_(takes(slice, before, slice.lt(before)), slice, before),
                },
            });
        }
        reduced.expect("a window has at least one place")
    }
}

/// Returns true where a new element replaces the one before: if it is better, or the first NaN.
fn takes(slice: Tensor, before: Tensor, better: Tensor) -> Tensor {
    if !slice.dtype().is_float() {
        return better;
    }
    better | (slice.ne(slice) & before.eq(before))
}
