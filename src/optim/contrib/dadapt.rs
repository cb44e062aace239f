//! Optimizers that estimate the distance to the solution: D-Adaptation and Prodigy.

use super::super::adam::power;
use super::super::lbfgs::tree_vdot;
use super::super::{LearningRate, increment, leaves_of, zeros_like};
use super::{rate_of, scalar_type, sum_of_absolutes};
use crate::optim::transformation::GradientTransformation;
use crate::trace::tensor::op;
use crate::trace::{DType, Tensor, ops};
use crate::tree::{self, Tree};

/// Returns `sqrt(1 - b2^t) / (1 - b1^t)`, the bias correction of Adam as a factor of the step size.
#[track_caller]
fn correction((b1, b2): (f64, f64), count: Tensor, dtype: DType) -> Tensor {
    (1.0 - power(b2, count, dtype)).sqrt() / (1.0 - power(b1, count, dtype))
}

/// AdamW with an estimated step size; built by [`dadapt_adamw`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DadaptAdamw<L = f64> {
    /// Factor of the estimated step size: a number, a traced scalar, a
    /// [`Schedule`](crate::optim::Schedule) or a function of the count of updates.
    pub learning_rate: L,
    /// Decay rates of the running means of gradients and of squared gradients.
    pub betas: (f64, f64),
    /// Epsilon added to the root.
    pub eps: f64,
    /// First estimate of the step size.
    pub estim_lr0: f64,
    /// Weight decay, decoupled.
    pub weight_decay: f64,
}

/// State of [`dadapt_adamw`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M, nested = S)]
pub struct DadaptAdamwState<T, M, S> {
    /// Running mean of scaled gradients.
    pub exp_avg: M,
    /// Running mean of squared gradients.
    pub exp_avg_sq: M,
    /// Decaying sum of scaled gradients.
    pub grad_sum: M,
    /// Estimate of the step size.
    pub estim_lr: T,
    /// Numerator of the estimate.
    pub numerator_weighted: T,
    /// Number of updates made, `i32`.
    pub count: T,
    /// State of the learning rate.
    pub schedule: S,
}

/// Returns AdamW with D-Adaptation, which estimates the step size: `optax.contrib.dadapt_adamw`
/// (Defazio & Mishchenko 2023). The learning rate is a factor of the estimate, usually 1.
///
/// Defaults: 0.9 and 0.999, an epsilon of 1e-8, a first estimate of 1e-6, no weight decay.
pub fn dadapt_adamw<L: LearningRate>(learning_rate: L) -> DadaptAdamw<L> {
    let betas = (0.9, 0.999);
    DadaptAdamw { learning_rate, betas, eps: 1e-8, estim_lr0: 1e-6, weight_decay: 0.0 }
}

impl<L: LearningRate, P: Tree<Tensor>> GradientTransformation<P> for DadaptAdamw<L> {
    type State = DadaptAdamwState<Tensor, P, L::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let dtype = scalar_type(params);
        DadaptAdamwState {
            exp_avg: zeros_like(params),
            exp_avg_sq: zeros_like(params),
            grad_sum: zeros_like(params),
            estim_lr: ops::full([], self.estim_lr0, dtype),
            numerator_weighted: ops::zeros([], dtype),
            count: ops::constant(0i32),
            schedule: self.learning_rate.init(),
        }
    }

    #[op("dadapt_adamw", at_line)]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let names = ["updates", "params", "exp_avg", "exp_avg_sq", "grad_sum"];
        let trees = [grads, params, &state.exp_avg, &state.exp_avg_sq, &state.grad_sum];
        let [g, p, averages, squares, sums] = leaves_of("dadapt_adamw", names, trees);
        let dtype = state.estim_lr.dtype();
        let (b1, b2) = self.betas;
        let root = b2.sqrt();
        let count = increment(state.count);
        let (rate, schedule) = rate_of(&self.learning_rate, state.schedule, dtype);
        let step = state.estim_lr * rate * correction(self.betas, count, dtype);
        let weighted: Vec<Tensor> =
            sums.iter().zip(&squares).map(|(s, v)| *s / (v.sqrt() + self.eps)).collect();
        let product = tree_vdot(&g, &weighted).to(dtype);
        let mean = |old: &[Tensor], decay: f64, new: &dyn Fn(Tensor) -> Tensor| -> Vec<Tensor> {
            old.iter().zip(&g).map(|(old, g)| decay * *old + (1.0 - decay) * new(*g)).collect()
        };
        let scaled = |g: Tensor| step.to(g.dtype()) * g;
        let averages = mean(&averages, b1, &scaled);
        let squares = mean(&squares, b2, &|g| g * g);
        let sums = mean(&sums, root, &scaled);
        let numerator_weighted = root * state.numerator_weighted + (1.0 - root) * step * product;
        let estimate = numerator_weighted / ((1.0 - root) * sum_of_absolutes(&sums, dtype));
        let parts = averages.iter().zip(&squares).zip(&p);
        let updates = parts.map(|((m, v), p)| {
            -self.weight_decay * step.to(p.dtype()) * *p - *m / (v.sqrt() + self.eps)
        });
        let updates: Vec<Tensor> = updates.collect();
        let state = DadaptAdamwState {
            exp_avg: tree::replace(grads, averages),
            exp_avg_sq: tree::replace(grads, squares),
            grad_sum: tree::replace(grads, sums),
            estim_lr: state.estim_lr.maximum(estimate),
            numerator_weighted,
            count,
            schedule,
        };
        (tree::replace(grads, updates), state)
    }
}

/// Adam with an estimated step size; built by [`prodigy`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prodigy<L = f64> {
    /// Factor of the estimated step size: a number, a traced scalar, a
    /// [`Schedule`](crate::optim::Schedule) or a function of the count of updates.
    pub learning_rate: L,
    /// Decay rates of the running means of gradients and of squared gradients.
    pub betas: (f64, f64),
    /// Decay rate of the sums of the estimate; `None` is the root of the second of `betas`.
    pub beta3: Option<f64>,
    /// Epsilon added to the root, relative to the estimate.
    pub eps: f64,
    /// First estimate of the step size.
    pub estim_lr0: f64,
    /// Factor of the estimate.
    pub estim_lr_coef: f64,
    /// Weight decay, decoupled.
    pub weight_decay: f64,
    /// If true, the learning rate and the bias correction leave the denominator of the estimate, for
    /// schedules that begin near 0.
    pub safeguard_warmup: bool,
}

/// State of [`prodigy`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M, nested = S)]
pub struct ProdigyState<T, M, S> {
    /// Running mean of scaled gradients.
    pub exp_avg: M,
    /// Running mean of their squares.
    pub exp_avg_sq: M,
    /// Decaying sum of scaled gradients.
    pub grad_sum: M,
    /// Parameters before the first update.
    pub params0: M,
    /// Estimate of the step size.
    pub estim_lr: T,
    /// Numerator of the estimate.
    pub numerator_weighted: T,
    /// Number of updates made, `i32`.
    pub count: T,
    /// State of the learning rate.
    pub schedule: S,
}

/// Returns Prodigy, which is Adam with an estimated step size: `optax.contrib.prodigy`
/// (Mishchenko & Defazio 2023). The learning rate is a factor of the estimate, usually 1.
///
/// Defaults: 0.9 and 0.999, an epsilon of 1e-8, a first estimate of 1e-6, its factor 1, no weight decay.
pub fn prodigy<L: LearningRate>(learning_rate: L) -> Prodigy<L> {
    Prodigy {
        learning_rate,
        betas: (0.9, 0.999),
        beta3: None,
        eps: 1e-8,
        estim_lr0: 1e-6,
        estim_lr_coef: 1.0,
        weight_decay: 0.0,
        safeguard_warmup: false,
    }
}

impl<L: LearningRate, P: Tree<Tensor>> GradientTransformation<P> for Prodigy<L> {
    type State = ProdigyState<Tensor, P, L::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let dtype = scalar_type(params);
        ProdigyState {
            exp_avg: zeros_like(params),
            exp_avg_sq: zeros_like(params),
            grad_sum: zeros_like(params),
            params0: tree::replace(params, tree::leaves(params)),
            estim_lr: ops::full([], self.estim_lr0, dtype),
            numerator_weighted: ops::zeros([], dtype),
            count: ops::constant(0i32),
            schedule: self.learning_rate.init(),
        }
    }

    #[op("prodigy", at_line)]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let names = ["updates", "params", "exp_avg", "exp_avg_sq", "grad_sum", "params0"];
        let trees =
            [grads, params, &state.exp_avg, &state.exp_avg_sq, &state.grad_sum, &state.params0];
        let leaves = leaves_of("prodigy", names, trees);
        self.update_leaves(grads, leaves, state)
    }
}

impl<L: LearningRate> Prodigy<L> {
    fn update_leaves<P: Tree<Tensor>>(
        &self,
        grads: &P,
        [g, p, averages, squares, sums, start]: [Vec<Tensor>; 6],
        state: ProdigyState<Tensor, P, L::State>,
    ) -> (P, ProdigyState<Tensor, P, L::State>) {
        let (dtype, old) = (state.estim_lr.dtype(), state.estim_lr);
        let (b1, b2) = self.betas;
        let b3 = self.beta3.unwrap_or(b2.sqrt());
        let count = increment(state.count);
        let (rate, schedule) = rate_of(&self.learning_rate, state.schedule, dtype);
        let step = old * rate * correction(self.betas, count, dtype);
        let scaled: Vec<Tensor> = g.iter().map(|g| old.to(g.dtype()) * *g).collect();
        let distance: Vec<Tensor> = start.iter().zip(&p).map(|(p0, p)| *p0 - *p).collect();
        let product = tree_vdot(&g, &distance).to(dtype);
        let pairs = |old: &[Tensor], f: &dyn Fn(Tensor, Tensor) -> Tensor| -> Vec<Tensor> {
            old.iter().zip(&scaled).map(|(old, d)| f(*old, *d)).collect()
        };
        let averages = pairs(&averages, &|m, d| b1 * m + (1.0 - b1) * d);
        let squares = pairs(&squares, &|v, d| b2 * v + (1.0 - b2) * d * d);
        let weight = if self.safeguard_warmup { old } else { step };
        let sums = pairs(&sums, &|s, d| b3 * s + weight.to(d.dtype()) * d / self.estim_lr0);
        let numerator_weighted =
            b3 * state.numerator_weighted + old / self.estim_lr0 * step * product;
        let estimate = self.estim_lr_coef * numerator_weighted / sum_of_absolutes(&sums, dtype);
        let estim_lr = old.maximum(estimate);
        let parts = averages.iter().zip(&squares).zip(&p);
        let updates = parts.map(|((m, v), p)| {
            let (step, eps) = (step.to(p.dtype()), estim_lr.to(p.dtype()) * self.eps);
            -self.weight_decay * step * *p - step * *m / (v.sqrt() + eps)
        });
        let updates: Vec<Tensor> = updates.collect();
        let state = ProdigyState {
            exp_avg: tree::replace(grads, averages),
            exp_avg_sq: tree::replace(grads, squares),
            grad_sum: tree::replace(grads, sums),
            params0: state.params0,
            estim_lr,
            numerator_weighted,
            count,
            schedule,
        };
        (tree::replace(grads, updates), state)
    }
}
