//! Convolutions with any number of spatial axes, and pooling.

use std::panic::Location;

use super::norms::scaled;
use crate::nn::init::Init;
use crate::random::Key;
use crate::trace::numpy::{einsum, reduce_windows};
use crate::trace::op::ReduceOp;
use crate::trace::ops::{
    self, ConvGeneralDilated, ConvTranspose as Arguments, Padding, concatenate,
};
use crate::trace::tensor::{at_line, fail_op, op};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Padding of a [`Conv`] or [`ConvLocal`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ConvPadding {
    /// Zeros: flax's `"SAME"`, `"VALID"` or pairs of numbers.
    Zeros(Padding),
    /// Elements of the other end: flax's `"CIRCULAR"`.
    Circular,
    /// Elements mirrored at the ends: flax's `"REFLECT"`.
    Reflect,
    /// Zeros before the first element, so that no result depends on later elements: flax's
    /// `"CAUSAL"`, for one spatial axis.
    Causal,
}

/// A convolution of `[.., *spatial, features]`: flax's `Conv`. Updates of the struct set the rest:
/// `Conv { strides: vec![2, 2], ..Conv::init(key, &[3, 3], 16, 32, kernel) }`.
#[derive(Debug, Clone, Tree)]
pub struct Conv<T> {
    /// Kernel, `[*window, inputs / feature_group_count, outputs]`.
    pub kernel: T,
    /// Bias, `[outputs]`.
    pub bias: Option<T>,
    /// Steps of the window, per spatial axis; all 1 if empty.
    pub strides: Vec<usize>,
    /// Padding; flax's default is `SAME`.
    pub padding: ConvPadding,
    /// Distance between neighbors of the input, per spatial axis; all 1 if empty.
    pub input_dilation: Vec<usize>,
    /// Distance between neighbors of the kernel, per spatial axis; all 1 if empty.
    pub kernel_dilation: Vec<usize>,
    /// Number of groups of features; as many as inputs make a depthwise convolution.
    pub feature_group_count: usize,
}

impl Conv<Tensor> {
    /// Initializes a layer in f32 for windows of sizes `kernel_size`, with a kernel sampled from
    /// `kernel`, a zero bias, strides of 1 and padding `SAME`.
    #[op("Conv::init")]
    pub fn init(
        key: Key<Tensor>,
        kernel_size: &[usize],
        inputs: usize,
        outputs: usize,
        kernel: Init,
    ) -> Conv<Tensor> {
        Conv::init_grouped(key, kernel_size, [inputs, outputs], 1, kernel)
    }

    /// [`Conv::init`] with groups of features.
    #[op("Conv::init_grouped")]
    pub fn init_grouped(
        key: Key<Tensor>,
        kernel_size: &[usize],
        [inputs, outputs]: [usize; 2],
        feature_group_count: usize,
        kernel: Init,
    ) -> Conv<Tensor> {
        let groups = feature_group_count;
        if groups == 0 || !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
            let problem = format!(
                "the number of groups must divide the features; was given {groups} groups, \
                 {inputs} inputs and {outputs} outputs"
            );
            fail_op("Conv", problem);
        }
        let shape = [kernel_size, &[inputs / groups, outputs]].concat();
        Conv {
            kernel: kernel.draw(key, shape, DType::F32),
            bias: Some(ops::zeros([outputs], DType::F32)),
            strides: vec![],
            padding: ConvPadding::Zeros(Padding::Same),
            input_dilation: vec![],
            kernel_dilation: vec![],
            feature_group_count,
        }
    }

    /// Maps `x: [.., *spatial, inputs]` to `[.., *spatial', outputs]`.
    #[op("Conv::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let spatial = self.kernel.rank().saturating_sub(2);
        let numbers = dimension_numbers("Conv", spatial);
        over_batch("Conv", x, spatial, |x| {
            let window = self.kernel.shape();
            let (x, padding) =
                padded("Conv", x, &self.padding, &window[..spatial], &self.kernel_dilation);
            let args = ConvGeneralDilated {
                window_strides: self.strides.clone(),
                padding,
                lhs_dilation: self.input_dilation.clone(),
                rhs_dilation: self.kernel_dilation.clone(),
                dimension_numbers: Some(numbers),
                feature_group_count: self.feature_group_count,
                ..ConvGeneralDilated::default()
            };
            let y = ops::conv_general_dilated(x, self.kernel, &args);
            scaled(y, None, self.bias)
        })
    }
}

/// Layouts with the features last.
#[track_caller]
fn dimension_numbers(op: &str, spatial: usize) -> ops::DimensionNumbers {
    match spatial {
        1 => ["NHC", "HIO", "NHC"],
        2 => ["NHWC", "HWIO", "NHWC"],
        3 => ["NHWDC", "HWDIO", "NHWDC"],
        _ => fail_op(op, format!("takes 1 to 3 spatial axes, and the kernel has {spatial}")),
    }
}

/// Applies `f` to `[batch, *spatial, features]` with all batch axes of `x` merged.
#[track_caller]
fn over_batch(op: &str, x: Tensor, spatial: usize, f: impl FnOnce(Tensor) -> Tensor) -> Tensor {
    let at = Location::caller();
    let shape = x.shape();
    if shape.rank() < spatial + 1 || !x.dtype().is_float() {
        let problem = format!(
            "takes floats of {spatial} spatial axes and features, and was given {}",
            x.ty()
        );
        fail_op(op, problem);
    }
    let (batch, rest) = shape.split_at(shape.rank() - spatial - 1);
    if batch.len() == 1 {
        return at_line(at, || f(x));
    }
    let merged = [&[batch.iter().product::<usize>()], rest].concat();
    let x = x.reshape(merged);
    let y = at_line(at, || f(x));
    let shape = [batch, &y.shape()[1..]].concat();
    y.reshape(shape)
}

/// Pads `x: [batch, *spatial, features]` where zeros do not do, and returns the padding that is left.
#[track_caller]
fn padded(
    op: &str,
    x: Tensor,
    padding: &ConvPadding,
    window: &[usize],
    dilation: &[usize],
) -> (Tensor, Padding) {
    let covered = |i: usize| {
        let dilation = dilation.get(i).copied().unwrap_or(1);
        window[i].saturating_sub(1).saturating_mul(dilation) + 1
    };
    let circular = match padding {
        ConvPadding::Zeros(padding) => return (x, padding.clone()),
        ConvPadding::Causal if window.len() == 1 => {
            return (x, Padding::Explicit(vec![(covered(0) as i64 - 1, 0)]));
        }
        ConvPadding::Causal => fail_op(op, "causal padding is for one spatial axis"),
        ConvPadding::Circular => true,
        ConvPadding::Reflect => false,
    };
    let mut x = x;
    for i in 0..window.len() {
        let (low, high) = ((covered(i) - 1) / 2, covered(i) / 2);
        let (axis, size) = (1 + i as isize, x.dim(1 + i as isize));
        let most = if circular { size } else { size.saturating_sub(1) };
        if low > most || high > most {
            let problem = format!("padding of {low} and {high} is larger than {}", x.ty());
            fail_op(op, problem);
        }
        let (before, after) = match circular {
            true => (x.slice_axis(axis, size - low, size), x.slice_axis(axis, 0, high)),
            false => (
                x.slice_axis(axis, 1, low + 1).flip(axis),
                x.slice_axis(axis, size - 1 - high, size - 1).flip(axis),
            ),
        };
        x = concatenate(&[before, x, after], axis);
    }
    (x, Padding::Valid)
}

/// A transposed convolution of `[.., *spatial, features]`: flax's `ConvTranspose`.
#[derive(Debug, Clone, Tree)]
pub struct ConvTranspose<T> {
    /// Kernel, `[*window, inputs, outputs]`; with `transpose_kernel`, `[*window, outputs, inputs]`.
    pub kernel: T,
    /// Bias, `[outputs]`.
    pub bias: Option<T>,
    /// Upsampling factors, per spatial axis; all 1 if empty.
    pub strides: Vec<usize>,
    /// Padding of the convolution whose change of shape this layer inverts: zeros, or `Circular`, with which
    /// results past an end are added at the other one. Flax's default is `SAME`.
    pub padding: ConvPadding,
    /// Distance between neighbors of the kernel, per spatial axis; all 1 if empty.
    pub kernel_dilation: Vec<usize>,
    /// If true, the layer is the gradient of a convolution by its kernel.
    pub transpose_kernel: bool,
}

impl ConvTranspose<Tensor> {
    /// Initializes a layer in f32 for windows of sizes `kernel_size`, with a kernel sampled from
    /// `kernel`, a zero bias, strides of 1 and padding `SAME`.
    #[op("ConvTranspose::init")]
    pub fn init(
        key: Key<Tensor>,
        kernel_size: &[usize],
        inputs: usize,
        outputs: usize,
        kernel: Init,
    ) -> ConvTranspose<Tensor> {
        let shape = [kernel_size, &[inputs, outputs]].concat();
        ConvTranspose {
            kernel: kernel.draw(key, shape, DType::F32),
            bias: Some(ops::zeros([outputs], DType::F32)),
            strides: vec![],
            padding: ConvPadding::Zeros(Padding::Same),
            kernel_dilation: vec![],
            transpose_kernel: false,
        }
    }

    /// Maps `x: [.., *spatial, inputs]` to `[.., *spatial', outputs]`.
    #[op("ConvTranspose::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let spatial = self.kernel.rank().saturating_sub(2);
        let numbers = dimension_numbers("ConvTranspose", spatial);
        let padding = match &self.padding {
            ConvPadding::Zeros(padding) => padding.clone(),
            ConvPadding::Circular => Padding::Valid,
            other => {
                let problem =
                    format!("takes padding by zeros or Circular, and was given {other:?}");
                fail_op("ConvTranspose", problem)
            }
        };
        over_batch("ConvTranspose", x, spatial, |x| {
            let args = Arguments {
                strides: self.strides.clone(),
                padding: padding.clone(),
                rhs_dilation: self.kernel_dilation.clone(),
                dimension_numbers: Some(numbers),
                transpose_kernel: self.transpose_kernel,
                ..Arguments::default()
            };
            let mut y = ops::conv_transpose(x, self.kernel, &args);
            if self.padding == ConvPadding::Circular {
                for i in 0..spatial {
                    let stride = self.strides.get(i).copied().unwrap_or(1);
                    y = self.wrapped(y, 1 + i as isize, x.dim(1 + i as isize) * stride);
                }
            }
            scaled(y, None, self.bias)
        })
    }

    /// Adds up the elements of `axis` whose distance is a multiple of `period`, after zeros on both sides
    /// make them an odd number of periods, so that the middle one stays in its place.
    #[track_caller]
    fn wrapped(&self, y: Tensor, axis: isize, period: usize) -> Tensor {
        if period == 0 {
            return y;
        }
        let added =
            (period as isize - y.dim(axis) as isize).rem_euclid(2 * period as isize) as usize;
        let (small, large) = (added / 2, added.div_ceil(2));
        let (low, high) = if self.transpose_kernel { (small, large) } else { (large, small) };
        let mut amounts = [vec![0i64; y.rank()], vec![0i64; y.rank()]];
        amounts[0][axis as usize] = low as i64;
        amounts[1][axis as usize] = high as i64;
        let y = y.pad(&amounts[0], &amounts[1], 0.0);
        let shape = y.shape();
        let (before, after) = shape.split_at(axis as usize);
        let parts = after[0] / period;
        y.reshape([before, &[parts, period], &after[1..]].concat()).sum(axis)
    }
}

/// A convolution whose kernel differs from place to place: flax's `ConvLocal`.
#[derive(Debug, Clone, Tree)]
pub struct ConvLocal<T> {
    /// Kernels, `[*spatial', inputs * elements of the window, outputs]`; the window's elements
    /// change fastest.
    pub kernel: T,
    /// Biases, `[*spatial', outputs]`.
    pub bias: Option<T>,
    /// Sizes of the window.
    pub kernel_size: Vec<usize>,
    /// Steps of the window, per spatial axis; all 1 if empty.
    pub strides: Vec<usize>,
    /// Padding; flax's default is `SAME`.
    pub padding: ConvPadding,
}

impl ConvLocal<Tensor> {
    /// Initializes a layer in f32 for inputs `[.., *spatial, inputs]`, with kernels sampled from
    /// `kernel`, zero biases, strides of 1 and padding `SAME`, which keeps the spatial sizes.
    #[op("ConvLocal::init")]
    pub fn init(
        key: Key<Tensor>,
        kernel_size: &[usize],
        spatial: &[usize],
        [inputs, outputs]: [usize; 2],
        kernel: Init,
    ) -> ConvLocal<Tensor> {
        let patch: usize = kernel_size.iter().product::<usize>().saturating_mul(inputs);
        ConvLocal {
            kernel: kernel.draw(key, [spatial, &[patch, outputs]].concat(), DType::F32),
            bias: Some(ops::zeros([spatial, &[outputs]].concat(), DType::F32)),
            kernel_size: kernel_size.to_vec(),
            strides: vec![],
            padding: ConvPadding::Zeros(Padding::Same),
        }
    }

    /// Maps `x: [.., *spatial, inputs]` to `[.., *spatial', outputs]`.
    #[op("ConvLocal::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let window = &self.kernel_size[..];
        let ones = vec![1; window.len()];
        let strides = if self.strides.is_empty() { &ones } else { &self.strides };
        over_batch("ConvLocal", x, window.len(), |x| {
            let (x, padding) = padded("ConvLocal", x, &self.padding, window, &[]);
            let places = Windows::new("ConvLocal", x, window, strides, &padding, 0.0);
            let slices: Vec<Tensor> = places.slices().collect();
            // [batch, *spatial', inputs, elements]: the window's elements change fastest.
            let patches = ops::stack(&slices, -1);
            let shape = patches.shape();
            let n = shape.rank();
            let count: usize = shape[1..n - 2].iter().product();
            let columns = shape[n - 2] * shape[n - 1];
            let kernel = self.kernel.shape();
            let fits = kernel.rank() == n - 1
                && kernel[..n - 3] == shape[1..n - 2]
                && kernel[n - 3] == columns;
            if !fits {
                let problem = format!(
                    "kernels for {} are [*spatial', {columns}, outputs], with spatial' {:?}, and \
                     were {}",
                    x.ty(),
                    &shape[1..n - 2],
                    self.kernel.ty()
                );
                fail_op("ConvLocal", problem);
            }
            let outputs = kernel[n - 2];
            let products = einsum(
                "bpc,pco->bpo",
                &[
                    patches.reshape([shape[0], count, columns]),
                    self.kernel.reshape([count, columns, outputs]),
                ],
            );
            let y = products.reshape([&shape[..n - 2], &[outputs]].concat());
            scaled(y, None, self.bias)
        })
    }
}

/// Windows over the axes before the last of a padded tensor.
struct Windows {
    x: Tensor,
    first: usize,
    window: Vec<usize>,
    strides: Vec<usize>,
    counts: Vec<usize>,
}

impl Windows {
    /// Pads `x: [.., *spatial, features]` with `fill`, and checks that a window fits.
    #[track_caller]
    fn new(
        op: &str,
        x: Tensor,
        window: &[usize],
        strides: &[usize],
        padding: &Padding,
        fill: f64,
    ) -> Windows {
        let ty = x.ty();
        let fits = ty.rank() > window.len()
            && strides.len() == window.len()
            && !window.contains(&0)
            && !strides.contains(&0)
            && !matches!(padding, Padding::Explicit(pairs) if pairs.len() != window.len());
        if !fits || !ty.dtype.is_float() {
            let problem = format!(
                "takes float images [.., *spatial, features], windows and strides of at least 1 and \
                 padding for each spatial axis; was given {ty}, {window:?}, {strides:?} and \
                 {padding:?}"
            );
            fail_op(op, problem);
        }
        let first = ty.rank() - 1 - window.len();
        let (mut low, mut high) = (vec![0; ty.rank()], vec![0; ty.rank()]);
        for i in 0..window.len() {
            (low[first + i], high[first + i]) =
                padding.amounts(i, ty.shape[first + i], window[i], strides[i]);
        }
        let x = x.pad(&low, &high, fill);
        let size = x.shape();
        if (0..window.len()).any(|i| size[first + i] < window[i]) {
            fail_op(op, format!("a window of {window:?} does not fit into {}", x.ty()));
        }
        let counts = (0..window.len()).map(|i| (size[first + i] - window[i]) / strides[i] + 1);
        let counts = counts.collect();
        Windows { x, first, window: window.to_vec(), strides: strides.to_vec(), counts }
    }

    /// One strided slice for each element of the window, in row-major order.
    fn slices(&self) -> impl Iterator<Item = Tensor> + '_ {
        let places: usize = self.window.iter().product();
        (0..places).map(|place| {
            let size = self.x.shape();
            let (mut start, mut limit) = (vec![0; size.rank()], size.to_vec());
            let mut steps = vec![1; size.rank()];
            let mut rest = place;
            for i in (0..self.window.len()).rev() {
                let axis = self.first + i;
                start[axis] = rest % self.window[i];
                rest /= self.window[i];
                limit[axis] = start[axis] + (self.counts[i] - 1) * self.strides[i] + 1;
                steps[axis] = self.strides[i];
            }
            self.x.strided_slice(&start, &limit, &steps)
        })
    }

    /// Reduces every window to one element.
    #[track_caller]
    fn reduce(self, op: ReduceOp) -> Tensor {
        let of_all_axes = |sizes: &[usize]| {
            let mut all = vec![1; self.x.rank()];
            all[self.first..self.first + sizes.len()].copy_from_slice(sizes);
            all
        };
        let (window, strides) = (of_all_axes(&self.window), of_all_axes(&self.strides));
        let dilation = vec![1; self.x.rank()];
        at_line(Location::caller(), || reduce_windows(op, self.x, &window, &strides, &dilation))
    }
}

/// Computes the maximum of each window of `[.., *spatial, features]`: flax's `max_pool`. If several
/// elements of a window are the maximum, the first one in row-major order receives the gradient.
#[op]
pub fn max_pool<const N: usize>(
    x: Tensor,
    window: [usize; N],
    stride: [usize; N],
    padding: &Padding,
) -> Tensor {
    let windows = Windows::new("max_pool", x, &window, &stride, padding, f64::NEG_INFINITY);
    windows.reduce(ReduceOp::Max)
}

/// Computes the minimum of each window of `[.., *spatial, features]`: flax's `min_pool`.
#[op]
pub fn min_pool<const N: usize>(
    x: Tensor,
    window: [usize; N],
    stride: [usize; N],
    padding: &Padding,
) -> Tensor {
    let windows = Windows::new("min_pool", x, &window, &stride, padding, f64::INFINITY);
    windows.reduce(ReduceOp::Min)
}

/// Computes the mean of each window of `[.., *spatial, features]`: flax's `avg_pool`. Padding counts
/// as zeros if `count_include_pad`, flax's default, and else not at all.
#[op]
pub fn avg_pool<const N: usize>(
    x: Tensor,
    window: [usize; N],
    stride: [usize; N],
    padding: &Padding,
    count_include_pad: bool,
) -> Tensor {
    let at = Location::caller();
    let sum = |x: Tensor| {
        at_line(at, || {
            let windows = Windows::new("avg_pool", x, &window, &stride, padding, 0.0);
            windows.reduce(ReduceOp::Sum)
        })
    };
    if count_include_pad {
        return sum(x) / window.iter().product::<usize>() as f64;
    }
    sum(x) / sum(ops::ones_like(x))
}
