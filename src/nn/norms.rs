//! Normalization layers with a trainable scale and bias.
//!
//! Statistics of `f16` and `bf16` are computed in f32; the result has the element type of the input. The
//! parameters of a layer for such inputs are in f32 or narrow themselves.

use crate::trace::ops;
use crate::trace::tensor::{fail_op, op};
use crate::trace::{Axis, DType, Tensor};
use crate::tree::Tree;

/// Converts narrow floats to f32, in which statistics are computed, and refuses other types.
#[track_caller]
pub(super) fn widened(op: &str, x: Tensor) -> Tensor {
    if !x.dtype().is_float() {
        fail_op(op, format!("takes floats, and was given {}", x.ty()));
    }
    wide(x)
}

/// Converts narrow floats to f32.
#[track_caller]
pub(super) fn wide(x: Tensor) -> Tensor {
    if matches!(x.dtype(), DType::F16 | DType::BF16) { x.to(DType::F32) } else { x }
}

/// Checks that the last axis of `x` has the size of the parameters or statistics `of`.
#[track_caller]
pub(super) fn expect_features(op: &str, x: Tensor, of: &[Option<Tensor>]) {
    for parameter in of.iter().flatten() {
        if x.rank() == 0 || parameter.rank() != 1 || x.dim(-1) != parameter.dim(0) {
            let problem = format!(
                "takes features on the last axis, as many as the layer was made for; was given {}, \
                 and a parameter is {}",
                x.ty(),
                parameter.ty()
            );
            fail_op(op, problem);
        }
    }
}

/// Computes the mean over `axes`, which keep size 1, of the elements for which `mask` holds.
#[track_caller]
pub(super) fn mean_of(op: &str, x: Tensor, mask: Option<Tensor>, axes: &[isize]) -> Tensor {
    let Some(mask) = mask else { return x.mean_keepdims(axes) };
    let shapes = [x.shape(), mask.shape()];
    if mask.dtype() != DType::Bool || ops::broadcast_shapes(op, &shapes) != shapes[0] {
        let problem = format!("takes a bool mask that broadcasts to {}; got {}", x.ty(), mask.ty());
        fail_op(op, problem);
    }
    let mask = mask.broadcast_to(&shapes[0]);
    let count = mask.to(x.dtype()).sum_keepdims(axes);
    ops::where_(mask, x, 0.0).sum_keepdims(axes) / count
}

/// Computes mean and variance over `axes`, which keep size 1, of the elements for which `mask` holds.
#[track_caller]
pub(super) fn moments(
    op: &str,
    x: Tensor,
    mask: Option<Tensor>,
    axes: &[isize],
) -> (Tensor, Tensor) {
    let mean = mean_of(op, x, mask, axes);
    (mean, mean_of(op, (x - mean).square(), mask, axes))
}

/// Computes `x * scale + bias` with the parameters that there are. Narrow parameters are widened.
#[track_caller]
pub(super) fn scaled(x: Tensor, scale: Option<Tensor>, bias: Option<Tensor>) -> Tensor {
    let x = match scale {
        Some(scale) => x * wide(scale),
        None => x,
    };
    match bias {
        Some(bias) => x + wide(bias),
        None => x,
    }
}

#[track_caller]
fn parameters(features: usize) -> (Option<Tensor>, Option<Tensor>) {
    (Some(ops::ones([features], DType::F32)), Some(ops::zeros([features], DType::F32)))
}

/// Axes from 1 to the last but one: the spatial axes of `[batch, .., features]`.
#[track_caller]
fn spatial_axes(op: &str, x: Tensor) -> Vec<isize> {
    if x.rank() < 2 {
        fail_op(op, format!("takes [batch, .., features], and was given {}", x.ty()));
    }
    (1..x.rank() as isize - 1).collect()
}

/// Running statistics of a [`BatchNorm`]: flax's collection `batch_stats`.
#[derive(Debug, Clone, Tree)]
pub struct BatchStats<T> {
    /// Running mean, `[features]`.
    pub mean: T,
    /// Running variance, `[features]`.
    pub var: T,
}

impl BatchStats<Tensor> {
    /// Returns the statistics before the first update, in f32: mean 0 and variance 1.
    #[op("BatchStats::init")]
    pub fn init(features: usize) -> BatchStats<Tensor> {
        let mean = ops::zeros([features], DType::F32);
        BatchStats { mean, var: ops::ones([features], DType::F32) }
    }

    /// Returns the statistics after a batch with this mean and variance.
    #[track_caller]
    pub(super) fn updated(self, mean: Tensor, var: Tensor, momentum: f64) -> BatchStats<Tensor> {
        let added = 1.0 - momentum;
        BatchStats {
            mean: momentum * self.mean + added * mean.to(self.mean.dtype()),
            var: momentum * self.var + added * var.to(self.var.dtype()),
        }
    }
}

/// Batch normalization (Ioffe & Szegedy 2015): flax's `BatchNorm`. The running statistics are not
/// parameters: [`BatchNorm::apply`] takes them and returns the next ones.
///
/// ```
/// use podracer::nn::{BatchNorm, BatchStats};
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|x: Tensor| {
///     let (norm, stats) = BatchNorm::init(1);
///     norm.apply(x, stats, true) // flax: use_running_average=False
/// });
/// let (y, stats): (Array, BatchStats<Array>) = f.call(Array::new([2, 1], &[1.0f32, 3.0])?)?;
/// assert!((y.to_vec::<f32>()?[1] - 1.0).abs() < 1e-4);
/// assert!((stats.mean.to_vec::<f32>()?[0] - 0.02).abs() < 1e-6); // 0.99 * 0 + 0.01 * 2
/// # Ok::<(), podracer::Error>(())
/// ```
#[derive(Debug, Clone, Tree)]
pub struct BatchNorm<T> {
    /// Scale, `[features]`; `None` is flax's `use_scale=False`.
    pub scale: Option<T>,
    /// Bias, `[features]`; `None` is flax's `use_bias=False`.
    pub bias: Option<T>,
    /// Part of the running statistics that stays in an update: 0.99 in flax, 0.9 in PyTorch.
    pub momentum: f64,
    /// Epsilon added to the variance.
    pub epsilon: f64,
}

impl BatchNorm<Tensor> {
    /// Initializes a layer in f32 with scale 1, bias 0, momentum 0.99 and epsilon 1e-5, and running
    /// statistics of mean 0 and variance 1.
    #[op("BatchNorm::init")]
    pub fn init(features: usize) -> (BatchNorm<Tensor>, BatchStats<Tensor>) {
        let (scale, bias) = parameters(features);
        (BatchNorm { scale, bias, momentum: 0.99, epsilon: 1e-5 }, BatchStats::init(features))
    }

    /// Normalizes `x: [.., features]`. With `train`, it uses the statistics of all axes but the last
    /// and returns updated running statistics; otherwise it uses the running statistics and returns
    /// them unchanged.
    #[op("BatchNorm::apply")]
    pub fn apply(
        &self,
        x: Tensor,
        stats: BatchStats<Tensor>,
        train: bool,
    ) -> (Tensor, BatchStats<Tensor>) {
        self.expect(x, &stats);
        if !train {
            return (self.normalize(x, stats.mean, stats.var), stats);
        }
        let (mean, var) = batch_moments(widened("BatchNorm", x));
        (self.normalize(x, mean, var), stats.updated(mean, var, self.momentum))
    }

    /// [`BatchNorm::apply`] with `train`, with the statistics of the elements for which `mask`, bool of a
    /// shape that broadcasts to that of `x`, holds: flax's `mask`. Features of which it holds for none have
    /// NaN.
    #[op("BatchNorm::apply_masked")]
    pub fn apply_masked(
        &self,
        x: Tensor,
        stats: BatchStats<Tensor>,
        mask: Tensor,
    ) -> (Tensor, BatchStats<Tensor>) {
        self.expect(x, &stats);
        let axes: Vec<isize> = (0..x.rank() as isize - 1).collect();
        let (mean, var) = moments("BatchNorm", widened("BatchNorm", x), Some(mask), &axes);
        let (mean, var) = (mean.ravel(), var.ravel());
        (self.normalize(x, mean, var), stats.updated(mean, var, self.momentum))
    }

    /// [`BatchNorm::apply`] with `train`, over the statistics of all members of `axis`, the axis of a
    /// [`pmap`](crate::pmap()) or [`vmap_axis`](crate::vmap_axis): flax's `axis_name`.
    #[op("BatchNorm::apply_over")]
    pub fn apply_over(
        &self,
        x: Tensor,
        stats: BatchStats<Tensor>,
        axis: Axis,
    ) -> (Tensor, BatchStats<Tensor>) {
        self.expect(x, &stats);
        let wide = widened("BatchNorm", x);
        let axes: Vec<isize> = (0..x.rank() as isize - 1).collect();
        let mean = ops::pmean(wide.mean(&axes[..]), axis);
        let var = ops::pmean((wide - mean).square().mean(&axes[..]), axis);
        (self.normalize(x, mean, var), stats.updated(mean, var, self.momentum))
    }

    #[track_caller]
    fn expect(&self, x: Tensor, stats: &BatchStats<Tensor>) {
        let of = [Some(stats.mean), Some(stats.var), self.scale, self.bias];
        expect_features("BatchNorm", x, &of);
    }

    #[track_caller]
    fn normalize(&self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor {
        let y = (widened("BatchNorm", x) - mean) * (var + self.epsilon).rsqrt();
        scaled(y, self.scale, self.bias).to(x.dtype())
    }
}

/// Computes mean and variance over all axes but the last, `[features]` each.
#[track_caller]
pub(super) fn batch_moments(x: Tensor) -> (Tensor, Tensor) {
    let axes: Vec<isize> = (0..x.rank() as isize - 1).collect();
    let mean = x.mean(&axes[..]);
    (mean, (x - mean).square().mean(&axes[..]))
}

/// Group normalization (Wu & He 2018): flax's `GroupNorm`. Each example is normalized in groups of
/// features, over all axes but the first.
#[derive(Debug, Clone, Tree)]
pub struct GroupNorm<T> {
    /// Scale, `[features]`; `None` is flax's `use_scale=False`.
    pub scale: Option<T>,
    /// Bias, `[features]`; `None` is flax's `use_bias=False`.
    pub bias: Option<T>,
    /// Number of groups: 32 by default in flax. It divides the number of features.
    pub num_groups: usize,
    /// Epsilon added to the variance.
    pub epsilon: f64,
}

impl GroupNorm<Tensor> {
    /// Initializes a layer in f32 with scale 1, bias 0 and epsilon 1e-6.
    #[op("GroupNorm::init")]
    pub fn init(features: usize, num_groups: usize) -> GroupNorm<Tensor> {
        if num_groups == 0 || !features.is_multiple_of(num_groups) {
            let problem = format!(
                "the number of groups must divide the number of features; was given {num_groups} \
                 groups and {features} features"
            );
            fail_op("GroupNorm", problem);
        }
        let (scale, bias) = parameters(features);
        GroupNorm { scale, bias, num_groups, epsilon: 1e-6 }
    }

    /// Normalizes `x: [batch, .., features]`, which keeps its shape.
    #[op("GroupNorm::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        self.normalize(x, None)
    }

    /// [`GroupNorm::apply`] with the statistics of the elements for which `mask`, bool, holds: flax's
    /// `mask`. Its last axis is that of all features, and the others broadcast.
    #[op("GroupNorm::apply_masked")]
    pub fn apply_masked(&self, x: Tensor, mask: Tensor) -> Tensor {
        self.normalize(x, Some(mask))
    }

    #[track_caller]
    fn normalize(&self, x: Tensor, mask: Option<Tensor>) -> Tensor {
        expect_features("GroupNorm", x, &[self.scale, self.bias]);
        let mut axes = spatial_axes("GroupNorm", x);
        axes.push(x.rank() as isize);
        let shape = x.shape();
        let features = shape[shape.rank() - 1];
        if self.num_groups == 0 || !features.is_multiple_of(self.num_groups) {
            let problem =
                format!("{} groups do not divide the features of {}", self.num_groups, x.ty());
            fail_op("GroupNorm", problem);
        }
        let groups = [self.num_groups, features / self.num_groups];
        let grouped = |x: Tensor| {
            let shape = x.shape();
            if shape.last() != Some(&features) {
                let problem = format!("takes a mask with {features} features; got {}", x.ty());
                fail_op("GroupNorm", problem);
            }
            x.reshape([&shape[..shape.rank() - 1], &groups[..]].concat())
        };
        let (mask, groups) = (mask.map(grouped), grouped(widened("GroupNorm", x)));
        let (mean, var) = moments("GroupNorm", groups, mask, &axes);
        let y = ((groups - mean) * (var + self.epsilon).rsqrt()).reshape(&shape);
        scaled(y, self.scale, self.bias).to(x.dtype())
    }
}

/// Instance normalization (Ulyanov et al. 2016): flax's `InstanceNorm`. Each feature of each example
/// is normalized over the spatial axes.
#[derive(Debug, Clone, Tree)]
pub struct InstanceNorm<T> {
    /// Scale, `[features]`; `None` is flax's `use_scale=False`.
    pub scale: Option<T>,
    /// Bias, `[features]`; `None` is flax's `use_bias=False`.
    pub bias: Option<T>,
    /// Epsilon added to the variance.
    pub epsilon: f64,
}

impl InstanceNorm<Tensor> {
    /// Initializes a layer in f32 with scale 1, bias 0 and epsilon 1e-6.
    #[op("InstanceNorm::init")]
    pub fn init(features: usize) -> InstanceNorm<Tensor> {
        let (scale, bias) = parameters(features);
        InstanceNorm { scale, bias, epsilon: 1e-6 }
    }

    /// Normalizes `x: [batch, .., features]`, which keeps its shape.
    #[op("InstanceNorm::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        self.normalize(x, None)
    }

    /// [`InstanceNorm::apply`] with the statistics of the elements for which `mask`, bool of a shape that
    /// broadcasts to that of `x`, holds: flax's `mask`.
    #[op("InstanceNorm::apply_masked")]
    pub fn apply_masked(&self, x: Tensor, mask: Tensor) -> Tensor {
        self.normalize(x, Some(mask))
    }

    #[track_caller]
    fn normalize(&self, x: Tensor, mask: Option<Tensor>) -> Tensor {
        expect_features("InstanceNorm", x, &[self.scale, self.bias]);
        let axes = spatial_axes("InstanceNorm", x);
        let wide = widened("InstanceNorm", x);
        let (mean, var) = moments("InstanceNorm", wide, mask, &axes);
        let y = (wide - mean) * (var + self.epsilon).rsqrt();
        scaled(y, self.scale, self.bias).to(x.dtype())
    }
}

/// Root mean square normalization over the last axis (Zhang & Sennrich 2019): flax's `RMSNorm`. It
/// has no bias, and subtracts no mean.
#[derive(Debug, Clone, Tree)]
pub struct RMSNorm<T> {
    /// Scale, `[features]`; `None` is flax's `use_scale=False`.
    pub scale: Option<T>,
    /// Epsilon added to the mean square.
    pub epsilon: f64,
}

impl RMSNorm<Tensor> {
    /// Initializes a layer in f32 with scale 1 and epsilon 1e-6.
    #[op("RMSNorm::init")]
    pub fn init(features: usize) -> RMSNorm<Tensor> {
        RMSNorm { scale: parameters(features).0, epsilon: 1e-6 }
    }

    /// Normalizes `x: [.., features]`, which keeps its shape.
    #[op("RMSNorm::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        self.normalize(x, None)
    }

    /// [`RMSNorm::apply`] with the mean square of the elements for which `mask`, bool of a shape that
    /// broadcasts to that of `x`, holds: flax's `mask`.
    #[op("RMSNorm::apply_masked")]
    pub fn apply_masked(&self, x: Tensor, mask: Tensor) -> Tensor {
        self.normalize(x, Some(mask))
    }

    #[track_caller]
    fn normalize(&self, x: Tensor, mask: Option<Tensor>) -> Tensor {
        expect_features("RMSNorm", x, &[self.scale]);
        let wide = widened("RMSNorm", x);
        let y = wide * (mean_of("RMSNorm", wide.square(), mask, &[-1]) + self.epsilon).rsqrt();
        scaled(y, self.scale, None).to(x.dtype())
    }
}
