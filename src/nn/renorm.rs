//! Batch renormalization.

use super::norms::{BatchStats, batch_moments, expect_features, scaled, widened};
use crate::trace::ops;
use crate::trace::tensor::op;
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// State of a [`BatchRenorm`].
#[derive(Debug, Clone, Tree)]
pub struct BatchRenormStats<T> {
    /// Running mean and variance.
    pub stats: BatchStats<T>,
    /// Number of training batches so far, `i32`.
    pub steps: T,
}

/// Batch renormalization (Ioffe 2017), as CrossQ uses it (Bhatt et al. 2024): in training, outputs
/// follow the running statistics up to limits `r_max` and `d_max`, so that training and evaluation
/// differ little. Flax has no such layer.
///
/// ```text
/// r = clip(std / running_std, 1 / r_max, r_max)          no gradient
/// d = clip((mean - running_mean) / running_std, -d_max, d_max)   no gradient
/// y = ((x - mean) / std * r + d) * scale + bias
/// ```
///
/// During the first `warmup_steps` batches it is [`BatchNorm`](super::BatchNorm): r is 1 and d is 0.
#[derive(Debug, Clone, Tree)]
pub struct BatchRenorm<T> {
    /// Scale, `[features]`; `None` means no scale.
    pub scale: Option<T>,
    /// Bias, `[features]`; `None` means no bias.
    pub bias: Option<T>,
    /// Part of the running statistics that stays in an update.
    pub momentum: f64,
    /// Epsilon added to the variance.
    pub epsilon: f64,
    /// Limit of r.
    pub r_max: f64,
    /// Limit of d.
    pub d_max: f64,
    /// Number of batches before r and d are used.
    pub warmup_steps: usize,
}

impl BatchRenorm<Tensor> {
    /// Initializes a layer in f32 with CrossQ's values: scale 1, bias 0, momentum 0.99, epsilon
    /// 1e-3, `r_max` 3, `d_max` 5 and 100,000 warm-up steps.
    #[op("BatchRenorm::init")]
    pub fn init(features: usize) -> (BatchRenorm<Tensor>, BatchRenormStats<Tensor>) {
        let layer = BatchRenorm {
            scale: Some(ops::ones([features], DType::F32)),
            bias: Some(ops::zeros([features], DType::F32)),
            momentum: 0.99,
            epsilon: 1e-3,
            r_max: 3.0,
            d_max: 5.0,
            warmup_steps: 100_000,
        };
        let stats = BatchStats::init(features);
        (layer, BatchRenormStats { stats, steps: ops::constant(0i32) })
    }

    /// Normalizes `x: [.., features]`. With `train`, it returns the updated state; otherwise it uses
    /// the running statistics and returns the state unchanged.
    #[op("BatchRenorm::apply")]
    pub fn apply(
        &self,
        x: Tensor,
        state: BatchRenormStats<Tensor>,
        train: bool,
    ) -> (Tensor, BatchRenormStats<Tensor>) {
        let BatchStats { mean: running_mean, var: running_var } = state.stats.clone();
        let of = [Some(running_mean), Some(running_var), self.scale, self.bias];
        expect_features("BatchRenorm", x, &of);
        let wide = widened("BatchRenorm", x);
        let running_std = (running_var + self.epsilon).sqrt();
        if !train {
            return (self.scaled((wide - running_mean) / running_std, x.dtype()), state);
        }
        let (mean, var) = batch_moments(wide);
        let std = (var + self.epsilon).sqrt();
        let warm = state.steps.ge(i32::try_from(self.warmup_steps).unwrap_or(i32::MAX));
        let r = (std / running_std).stop_gradient().clip(1.0 / self.r_max, self.r_max);
        let d = ((mean - running_mean) / running_std).stop_gradient();
        let d = d.clip(-self.d_max, self.d_max);
        let r = ops::where_(warm, r, ops::ones_like(r));
        let d = ops::where_(warm, d, ops::zeros_like(d));
        let y = self.scaled((wide - mean) / std * r + d, x.dtype());
        let steps = ops::where_(state.steps.lt(i32::MAX), state.steps + 1, state.steps);
        (y, BatchRenormStats { stats: state.stats.updated(mean, var, self.momentum), steps })
    }

    #[track_caller]
    fn scaled(&self, y: Tensor, dtype: DType) -> Tensor {
        scaled(y, self.scale, self.bias).to(dtype)
    }
}
