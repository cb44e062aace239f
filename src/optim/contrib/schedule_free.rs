//! Schedule-free learning.

use std::panic::Location;

use super::super::{
    AddDecayedWeights, Chain, ScaleByLearningRate, ScaleByRms, Schedule, add_decayed_weights,
    chain, increment, leaves_of, scale_by_learning_rate, scale_by_rms, sgd,
    warmup_constant_schedule,
};
use super::scalar_type;
use crate::optim::sgd::Sgd;
use crate::optim::transformation::GradientTransformation;
use crate::trace::ops::where_;
use crate::trace::tensor::{at_line, op};
use crate::trace::{Tensor, ops};
use crate::tree::{self, Tree};

/// Optimizer without a schedule; built by [`schedule_free`].
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleFree<O> {
    /// Optimizer of the points `z`.
    pub base_optimizer: O,
    /// Learning rate of the base optimizer, which weighs the average.
    pub learning_rate: Schedule,
    /// Interpolation between the average, at 1, and `z`, at 0, where gradients are taken.
    pub b1: f64,
    /// Power of the largest learning rate so far in the weights of the average.
    pub weight_lr_power: f64,
}

/// State of [`schedule_free`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M, nested = S)]
pub struct ScheduleFreeState<T, M, S> {
    /// Interpolation of the parameters.
    pub b1: T,
    /// Sum of the weights of the average.
    pub weight_sum: T,
    /// Number of updates made plus 1, `i32`.
    pub step_count: T,
    /// Largest learning rate so far.
    pub max_lr: T,
    /// State of the base optimizer.
    pub base_optimizer_state: S,
    /// Points that the base optimizer moves.
    pub z: M,
}

/// Wraps an optimizer so that it needs no decreasing schedule: `optax.contrib.schedule_free`
/// (Defazio et al. 2024). `learning_rate` is that of `base_optimizer`. Defaults: 0.9, 2.
///
/// The parameters are those at which gradients are taken; [`schedule_free_eval_params`] gives those to
/// evaluate.
///
/// ```
/// use podracer::optim::contrib::{schedule_free_eval_params, schedule_free_sgd};
/// use podracer::optim::Optimizer;
/// use podracer::{Array, Tensor, grad, interpret};
///
/// let minimize = interpret(|mut x: Tensor| {
///     let optimizer = schedule_free_sgd(0.3, 2, 0.0);
///     let mut state = optimizer.init(&x);
///     for _ in 0..30 {
///         let grads = grad(|x: Tensor| (x - 3.0).square().sum(..))(x);
///         (x, state) = optimizer.step(x, grads, state);
///     }
///     schedule_free_eval_params(&state, &x)
/// });
/// assert!((minimize.call(Array::from(0.0f32))?.item::<f32>()? - 3.0).abs() < 0.1);
/// # Ok::<(), podracer::Error>(())
/// ```
pub fn schedule_free<O>(base_optimizer: O, learning_rate: impl Into<Schedule>) -> ScheduleFree<O> {
    let learning_rate = learning_rate.into();
    ScheduleFree { base_optimizer, learning_rate, b1: 0.9, weight_lr_power: 2.0 }
}

/// Returns the learning rate that grows to `learning_rate` over `warmup_steps` updates.
fn warmed_up(learning_rate: f64, warmup_steps: u32) -> Schedule {
    match warmup_steps {
        0 => Schedule::Constant(learning_rate),
        steps => warmup_constant_schedule(0.0, learning_rate, steps),
    }
}

/// Returns schedule-free SGD: `optax.contrib.schedule_free_sgd`. The learning rate grows from 0 over
/// `warmup_steps` updates.
pub fn schedule_free_sgd(
    learning_rate: f64,
    warmup_steps: u32,
    weight_decay: f64,
) -> ScheduleFree<Chain<(AddDecayedWeights, Sgd<Schedule>)>> {
    let rate = warmed_up(learning_rate, warmup_steps);
    schedule_free(chain((add_decayed_weights(weight_decay), sgd(rate.clone()))), rate)
}

/// Optimizer inside of [`schedule_free_adamw`].
pub type ScheduleFreeAdamwBase =
    Chain<(ScaleByRms, AddDecayedWeights, ScaleByLearningRate<Schedule>)>;

/// Returns schedule-free AdamW: `optax.contrib.schedule_free_adamw` with optax's other defaults. The
/// learning rate grows from 0 over `warmup_steps` updates.
pub fn schedule_free_adamw(
    learning_rate: f64,
    warmup_steps: u32,
    weight_decay: f64,
) -> ScheduleFree<ScheduleFreeAdamwBase> {
    let rate = warmed_up(learning_rate, warmup_steps);
    let rms = ScaleByRms {
        decay: 0.999,
        eps: 1e-8,
        eps_in_sqrt: false,
        bias_correction: true,
        ..scale_by_rms()
    };
    let base =
        chain((rms, add_decayed_weights(weight_decay), scale_by_learning_rate(rate.clone())));
    schedule_free(base, rate)
}

/// Returns the average of the points, the parameters to evaluate:
/// `optax.contrib.schedule_free_eval_params`.
#[track_caller]
pub fn schedule_free_eval_params<P: Tree<Tensor>, S>(
    state: &ScheduleFreeState<Tensor, P, S>,
    params: &P,
) -> P {
    let [y, z] = leaves_of("schedule_free_eval_params", ["params", "z"], [params, &state.z]);
    tree::replace(params, averages(state.b1, &y, &z))
}

/// Returns `(y - (1 - b1) z) / b1` for every leaf.
#[track_caller]
fn averages(b1: Tensor, y: &[Tensor], z: &[Tensor]) -> Vec<Tensor> {
    let average = |y: Tensor, z: Tensor| {
        let b1 = b1.to(y.dtype());
        (y - (1.0 - b1) * z) / b1
    };
    y.iter().zip(z).map(|(y, z)| average(*y, *z)).collect()
}

impl<O: GradientTransformation<P>, P: Tree<Tensor>> GradientTransformation<P> for ScheduleFree<O> {
    type State = ScheduleFreeState<Tensor, P, O::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let dtype = scalar_type(params);
        ScheduleFreeState {
            b1: ops::full([], self.b1, dtype),
            weight_sum: ops::zeros([], dtype),
            step_count: ops::constant(1i32),
            max_lr: ops::zeros([], dtype),
            base_optimizer_state: self.base_optimizer.init(params),
            z: tree::replace(params, tree::leaves(params)),
        }
    }

    #[op("schedule_free")]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let names = ["updates", "params", "z"];
        let [_, y, old_z] = leaves_of("schedule_free", names, [grads, params, &state.z]);
        let (moves, base_optimizer_state) =
            self.base_optimizer.update(grads, state.base_optimizer_state, params);
        at_line(Location::caller(), || {
            let rate = self.learning_rate.at_as(state.step_count, state.max_lr.dtype());
            let max_lr = state.max_lr.maximum(rate);
            let weight = max_lr.pow(self.weight_lr_power);
            let weight_sum = state.weight_sum + weight;
            // While the learning rate is 0 the average stays.
            let none = weight_sum.eq(0.0);
            let part = where_(none, 0.0, weight / where_(none, 1.0, weight_sum));
            let moves = tree::leaves(&moves);
            let z: Vec<Tensor> = old_z.iter().zip(&moves).map(|(z, u)| *z + *u).collect();
            let old_x = averages(ops::full([], self.b1, part.dtype()), &y, &old_z);
            let updates = old_x.iter().zip(&z).zip(&y).map(|((x, z), y)| {
                let part = part.to(x.dtype());
                let x = (1.0 - part) * *x + part * *z;
                self.b1 * x + (1.0 - self.b1) * *z - *y
            });
            let updates: Vec<Tensor> = updates.collect();
            let state = ScheduleFreeState {
                b1: state.b1,
                weight_sum,
                step_count: increment(state.step_count),
                max_lr,
                base_optimizer_state,
                z: tree::replace(grads, z),
            };
            (tree::replace(grads, updates), state)
        })
    }
}
