//! Reductions over windows.

use smallvec::SmallVec;

use crate::trace::check::dilated;
use crate::trace::custom::custom_jvp;
use crate::trace::literal::Literal;
use crate::trace::op::{Axes, ReduceOp};
use crate::trace::ops::{constant, where_};
use crate::trace::tensor::{Tensor, fail_op, op};
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

/// Most elements of a window of [`Tensor::reduce_window`].
const MAX_WINDOW: usize = 1 << 16;

impl Tensor {
    /// `lax.reduce_window`, for `Sum`, `Prod`, `Max` and `Min`: every window reduced to one
    /// element. Padding is the reduction's neutral element. If several elements of a window are the
    /// greatest (least), the first one, in row-major order, takes the derivative.
    ///
    /// One axis is reduced after another, each by one slice for each position in a window, which the
    /// compiler fuses into one loop: right for the windows of pooling, wasteful for windows of hundreds of
    /// elements along an axis.
    #[op(at_line)]
    pub fn reduce_window(self, op: ReduceOp, options: &WindowOptions) -> Tensor {
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
        let places = Shape::from(&window[..]).numel();
        if places > MAX_WINDOW {
            let problem =
                format!("a window of {window:?} has {places} elements, and may have {MAX_WINDOW}");
            fail_op("reduce_window", problem);
        }
        reduce_windows(op, x, window, strides, window_dilation)
    }
}

/// Reduces every window of a padded tensor to one element, one axis after another: the windows of an axis
/// are as many slices as a window has elements there. The last axis is first, so that of equal elements the
/// first one in row-major order takes the derivative.
pub(crate) fn reduce_windows(
    op: ReduceOp,
    x: Tensor,
    window: &[usize],
    strides: &[usize],
    dilation: &[usize],
) -> Tensor {
    (0..window.len()).rev().filter(|&axis| window[axis] > 1 || strides[axis] > 1).fold(
        x,
        |x, axis| {
            let along = WindowsOfAxis {
                axis,
                window: window[axis],
                stride: strides[axis],
                dilation: dilation[axis],
            };
            along.reduce(op, x)
        },
    )
}

/// Windows along one axis.
#[derive(Clone, Copy)]
struct WindowsOfAxis {
    axis: usize,
    window: usize,
    stride: usize,
    dilation: usize,
}

impl WindowsOfAxis {
    /// Returns a slice for each position in a window: that element of every window.
    fn slices(self, x: Tensor) -> Vec<Tensor> {
        let size = x.shape();
        let last =
            (size[self.axis] - dilated(self.window, self.dilation)) / self.stride * self.stride;
        let slice = |position: usize| {
            let (mut start, mut limit) = (vec![0; size.rank()], size.to_vec());
            let mut strides = vec![1; size.rank()];
            start[self.axis] = position * self.dilation;
            limit[self.axis] = start[self.axis] + last + 1;
            strides[self.axis] = self.stride;
            x.strided_slice(&start, &limit, &strides)
        };
        (0..self.window).map(slice).collect()
    }

    fn reduce(self, op: ReduceOp, x: Tensor) -> Tensor {
        let fold = move |slices: &[Tensor]| {
            let combine = |a: Tensor, b: &Tensor| match op {
                ReduceOp::Sum => a + *b,
                ReduceOp::Prod => a * *b,
                ReduceOp::Max => a.maximum(*b),
                _ => a.minimum(*b),
            };
            slices[1..].iter().fold(slices[0], combine)
        };
        if !matches!(op, ReduceOp::Max | ReduceOp::Min) || !x.dtype().is_float() {
            return fold(&self.slices(x));
        }
        // The derivatives of a chain of maxima are long: one select for each element and for each maximum
        // that it passes. This rule has one for each element.
        custom_jvp(
            move |x: Tensor| fold(&self.slices(x)),
            move |x: Tensor, t: Tensor| {
                let (elements, tangents) = (self.slices(x), self.slices(t));
                let y = fold(&elements);
                let mut pairs = elements.into_iter().zip(tangents).rev();
                let (_, last) = pairs.next().expect("a window has an element");
                let tangent = pairs.fold(last, |rest, (x, t)| where_(x.eq(y) | x.ne(x), t, rest));
                (y, tangent)
            },
        )(x)
    }
}
