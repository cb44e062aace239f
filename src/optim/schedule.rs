//! Schedules: hyperparameters that depend on the number of updates.

use crate::trace::ops::{full_like, where_};
use crate::trace::tensor::fail_op;
use crate::trace::{DType, Tensor};

/// Schedule of a number over the count of updates.
///
/// As in optax, the first update uses the value at count 0: pass the state's count before the
/// update. The functions with optax's names, such as [`linear_schedule`], build schedules.
///
/// ```
/// use podracer::optim::{Schedule, warmup_cosine_decay_schedule};
///
/// let schedule: Schedule = warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100, 1e-5);
/// assert_eq!((schedule.value(0), schedule.value(5), schedule.value(10)), (0.0, 5e-4, 1e-3));
/// assert!((schedule.value(100) - 1e-5).abs() < 1e-12);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Schedule {
    /// Constant value.
    Constant(f64),
    /// `optax.linear_schedule`: from `init` to `end` in `steps` updates, then `end`.
    Linear {
        /// Initial value.
        init: f64,
        /// Final value.
        end: f64,
        /// Number of updates between them; if 0, the value is always `init`.
        steps: u32,
    },
    /// `optax.polynomial_schedule`: from `init` to `end` in `steps` updates after `begin`, by
    /// `(init - end) (1 - part)^power + end`.
    Polynomial {
        /// Initial value.
        init: f64,
        /// Final value.
        end: f64,
        /// Exponent.
        power: f64,
        /// Number of updates of the transition; if 0, the value is always `init`.
        steps: u32,
        /// Number of updates before the transition.
        begin: u32,
    },
    /// `optax.cosine_decay_schedule`: half a cosine from `init` to `alpha * init` in `steps`
    /// updates, then constant.
    Cosine {
        /// Initial value.
        init: f64,
        /// Number of updates; at least 1.
        steps: u32,
        /// Final value as a fraction of the initial one.
        alpha: f64,
        /// Exponent of the cosine; 1 in optax.
        exponent: f64,
    },
    /// `optax.exponential_decay`: `init * rate^((count - begin) / steps)` from `begin` on.
    Exponential {
        /// Initial value.
        init: f64,
        /// Number of updates in which the value is multiplied by `rate`; if 0, the value is always
        /// `init`.
        steps: u32,
        /// Factor; if 0, the value is always `init`.
        rate: f64,
        /// Number of updates before the decay.
        begin: u32,
        /// If true, the value changes only every `steps` updates.
        staircase: bool,
        /// Bound: the least value if `rate < 1`, else the largest.
        end: Option<f64>,
    },
    /// `optax.piecewise_constant_schedule`: the value is multiplied by a scale from each boundary
    /// on.
    PiecewiseConstant {
        /// Initial value.
        init: f64,
        /// Counts and the scales, not negative, that apply from them on.
        boundaries_and_scales: Vec<(u32, f64)>,
    },
    /// `optax.piecewise_interpolate_schedule`: interpolates between the values at boundaries, each
    /// of which is the value at the one before times a scale.
    PiecewiseInterpolate {
        /// Interpolation between boundaries.
        interpolation: Interpolation,
        /// Initial value.
        init: f64,
        /// Counts and the scales, not negative, that are reached there.
        boundaries_and_scales: Vec<(u32, f64)>,
    },
    /// `optax.join_schedules`: each schedule counts from its boundary on.
    Joined {
        /// Schedules, one more than there are boundaries.
        schedules: Vec<Schedule>,
        /// Counts at which the next schedule begins, ascending.
        boundaries: Vec<u32>,
    },
}

/// Interpolation of [`piecewise_interpolate_schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interpolation {
    /// Straight lines.
    Linear,
    /// Half cosines.
    Cosine,
}

/// Ends the trace with an error if a scale is negative.
#[track_caller]
fn ensure_scales(op: &str, boundaries_and_scales: &[(u32, f64)]) {
    for (boundary, scale) in boundaries_and_scales {
        if *scale < 0.0 || scale.is_nan() {
            fail_op(op, format!("scales must not be negative; that at {boundary} is {scale}"));
        }
    }
}

/// Sorts boundaries, and of equal ones keeps the last.
fn sorted(boundaries_and_scales: &[(u32, f64)]) -> Vec<(u32, f64)> {
    let by_boundary: std::collections::BTreeMap<u32, f64> =
        boundaries_and_scales.iter().copied().collect();
    by_boundary.into_iter().collect()
}

/// Returns the ends of the intervals of an interpolation: counts and values, from `(0, init)` on.
fn knots(init: f64, boundaries_and_scales: &[(u32, f64)]) -> Vec<(u32, f64)> {
    let mut knots = vec![(0, init)];
    let mut value = init;
    for (boundary, scale) in sorted(boundaries_and_scales) {
        value *= scale;
        knots.push((boundary, value));
    }
    knots
}

impl Schedule {
    /// Returns the value (f32) after `count` updates, an integer scalar.
    ///
    /// # Errors
    /// Ends the trace if a scale is negative, if a cosine has no steps, or if joined schedules are not
    /// one more than their boundaries.
    #[track_caller]
    pub fn at(&self, count: Tensor) -> Tensor {
        self.at_as(count, DType::F32)
    }

    /// [`at`](Schedule::at) computed in `dtype`, f32 or f64. Optimizers take the rate of f64 parameters
    /// in f64.
    ///
    /// # Errors
    /// Ends the trace in the cases of [`at`](Schedule::at).
    #[track_caller]
    pub fn at_as(&self, count: Tensor, dtype: DType) -> Tensor {
        let as_float = count.to(dtype);
        let constant = |value: f64| full_like(as_float, value);
        match *self {
            Schedule::Constant(value) => constant(value),
            Schedule::Linear { init, steps: 0, .. } => constant(init),
            Schedule::Linear { init, end, steps } => {
                let left = 1.0 - as_float.clip(0.0, steps as f64) / steps as f64;
                (init - end) * left + end
            }
            Schedule::Polynomial { init, steps: 0, .. } => constant(init),
            Schedule::Polynomial { init, end, power, steps, begin } => {
                let part = (count - begin).to(dtype).clip(0.0, steps as f64) / steps as f64;
                (init - end) * (1.0 - part).pow(power) + end
            }
            Schedule::Cosine { steps: 0, .. } => fail_op(
                "cosine_decay_schedule",
                "needs at least 1 step; with a warm-up, decay_steps must exceed warmup_steps",
            ),
            Schedule::Cosine { init, steps, alpha, exponent } => {
                let steps = steps as f64;
                let angle = as_float.minimum(steps) * std::f64::consts::PI / steps;
                let cosine = 0.5 * (angle.cos() + 1.0);
                let cosine = if exponent == 1.0 { cosine } else { cosine.pow(exponent) };
                init * ((1.0 - alpha) * cosine + alpha)
            }
            Schedule::Exponential { init, steps: 0, .. } => constant(init),
            Schedule::Exponential { init, rate: 0.0, .. } => constant(init),
            Schedule::Exponential { init, steps, rate, begin, staircase, end } => {
                let elapsed = (count - begin).to(dtype);
                let power = elapsed / steps as f64;
                let power = if staircase { power.floor() } else { power };
                let decayed = init * full_like(as_float, rate).pow(power);
                let value = where_(elapsed.le(0.0), init, decayed);
                match end {
                    Some(end) if rate < 1.0 => value.maximum(end),
                    Some(end) => value.minimum(end),
                    None => value,
                }
            }
            Schedule::PiecewiseConstant { init, ref boundaries_and_scales } => {
                ensure_scales("piecewise_constant_schedule", boundaries_and_scales);
                let mut value = constant(init);
                for (boundary, scale) in sorted(boundaries_and_scales) {
                    value = where_(count.ge(boundary), scale * value, value);
                }
                value
            }
            Schedule::PiecewiseInterpolate { interpolation, init, ref boundaries_and_scales } => {
                ensure_scales("piecewise_interpolate_schedule", boundaries_and_scales);
                interpolated(interpolation, &knots(init, boundaries_and_scales), count, dtype)
            }
            Schedule::Joined { ref schedules, ref boundaries } => {
                joined(schedules, boundaries, count, dtype)
            }
        }
    }

    /// Returns the value after `count` updates, computed on the host, for logs. It is NaN where
    /// [`at`](Schedule::at) ends the trace for a cosine or for joined schedules.
    pub fn value(&self, count: u64) -> f64 {
        match *self {
            Schedule::Constant(value) => value,
            Schedule::Linear { init, end, steps } => {
                Schedule::Polynomial { init, end, power: 1.0, steps, begin: 0 }.value(count)
            }
            Schedule::Polynomial { init, steps: 0, .. } => init,
            Schedule::Polynomial { init, end, power, steps, begin } => {
                let elapsed = count.saturating_sub(begin as u64).min(steps as u64);
                (init - end) * (1.0 - elapsed as f64 / steps as f64).powf(power) + end
            }
            Schedule::Cosine { steps: 0, .. } => f64::NAN,
            Schedule::Cosine { init, steps, alpha, exponent } => {
                let steps = steps as u64;
                let part = count.min(steps) as f64 / steps as f64;
                let cosine = 0.5 * (1.0 + (std::f64::consts::PI * part).cos());
                init * ((1.0 - alpha) * cosine.powf(exponent) + alpha)
            }
            Schedule::Exponential { init, steps: 0, .. } => init,
            Schedule::Exponential { init, rate: 0.0, .. } => init,
            Schedule::Exponential { init, steps, rate, begin, staircase, end } => {
                let power = count.saturating_sub(begin as u64) as f64 / steps as f64;
                let value = init * rate.powf(if staircase { power.floor() } else { power });
                match end {
                    Some(end) if rate < 1.0 => value.max(end),
                    Some(end) => value.min(end),
                    None => value,
                }
            }
            Schedule::PiecewiseConstant { init, ref boundaries_and_scales } => {
                let reached = sorted(boundaries_and_scales);
                let reached = reached.iter().filter(|(boundary, _)| count >= *boundary as u64);
                reached.fold(init, |value, (_, scale)| value * scale)
            }
            Schedule::PiecewiseInterpolate { interpolation, init, ref boundaries_and_scales } => {
                interpolated_value(interpolation, &knots(init, boundaries_and_scales), count)
            }
            Schedule::Joined { ref schedules, ref boundaries } => {
                if schedules.len() != boundaries.len() + 1 {
                    return f64::NAN;
                }
                let mut value = schedules[0].value(count);
                for (boundary, schedule) in boundaries.iter().zip(&schedules[1..]) {
                    if let Some(count) = count.checked_sub(*boundary as u64) {
                        value = schedule.value(count);
                    }
                }
                value
            }
        }
    }
}

#[track_caller]
fn interpolated(
    interpolation: Interpolation,
    knots: &[(u32, f64)],
    count: Tensor,
    dtype: DType,
) -> Tensor {
    let (_, last) = knots[knots.len() - 1];
    let mut value = full_like(count.to(dtype), last);
    for pair in knots.windows(2).rev() {
        let ((start, from), (stop, to)) = (pair[0], pair[1]);
        let part = (count - start).to(dtype) / (stop - start).max(1) as f64;
        let within = match interpolation {
            Interpolation::Linear => (to - from) * part + from,
            Interpolation::Cosine => {
                let angle = part * std::f64::consts::PI;
                to + (from - to) / 2.0 * (angle.cos() + 1.0)
            }
        };
        value = where_(count.lt(stop), within, value);
    }
    value
}

fn interpolated_value(interpolation: Interpolation, knots: &[(u32, f64)], count: u64) -> f64 {
    for pair in knots.windows(2) {
        let ((start, from), (stop, to)) = (pair[0], pair[1]);
        if count < stop as u64 {
            let part = (count - start as u64) as f64 / (stop - start).max(1) as f64;
            return match interpolation {
                Interpolation::Linear => (to - from) * part + from,
                Interpolation::Cosine => {
                    to + (from - to) / 2.0 * ((std::f64::consts::PI * part).cos() + 1.0)
                }
            };
        }
    }
    knots[knots.len() - 1].1
}

#[track_caller]
fn joined(schedules: &[Schedule], boundaries: &[u32], count: Tensor, dtype: DType) -> Tensor {
    if schedules.len() != boundaries.len() + 1 {
        let problem = format!(
            "takes one schedule more than boundaries, and got {} schedules and {} boundaries",
            schedules.len(),
            boundaries.len()
        );
        fail_op("join_schedules", problem);
    }
    let mut value = schedules[0].at_as(count, dtype);
    for (boundary, schedule) in boundaries.iter().zip(&schedules[1..]) {
        value = where_(count.lt(*boundary), value, schedule.at_as(count - *boundary, dtype));
    }
    value
}

/// Constant value: `optax.constant_schedule`.
pub fn constant_schedule(value: f64) -> Schedule {
    Schedule::Constant(value)
}

/// Line from `init` to `end` in `steps` updates, then `end`: `optax.linear_schedule`.
pub fn linear_schedule(init: f64, end: f64, steps: u32) -> Schedule {
    Schedule::Linear { init, end, steps }
}

/// Polynomial from `init` to `end` in `steps` updates, then `end`: `optax.polynomial_schedule`.
/// [`Schedule::Polynomial`] also has `begin`, `transition_begin` of optax.
pub fn polynomial_schedule(init: f64, end: f64, power: f64, steps: u32) -> Schedule {
    Schedule::Polynomial { init, end, power, steps, begin: 0 }
}

/// Half a cosine from `init` to `alpha * init` in `steps` updates, then constant:
/// `optax.cosine_decay_schedule`. [`Schedule::Cosine`] also has `exponent`.
///
/// # Errors
/// [`Schedule::at`] ends the trace if `steps` is 0.
pub fn cosine_decay_schedule(init: f64, steps: u32, alpha: f64) -> Schedule {
    Schedule::Cosine { init, steps, alpha, exponent: 1.0 }
}

/// Exponential decay, `init * rate^(count / steps)`: `optax.exponential_decay`.
/// [`Schedule::Exponential`] also has `begin`, `staircase` and `end`.
pub fn exponential_decay(init: f64, steps: u32, rate: f64) -> Schedule {
    Schedule::Exponential { init, steps, rate, begin: 0, staircase: false, end: None }
}

/// Value that is multiplied by a scale from each boundary on: `optax.piecewise_constant_schedule`.
pub fn piecewise_constant_schedule(init: f64, boundaries_and_scales: &[(u32, f64)]) -> Schedule {
    let boundaries_and_scales = boundaries_and_scales.to_vec();
    Schedule::PiecewiseConstant { init, boundaries_and_scales }
}

/// Interpolation between boundaries, at each of which the value is that at the one before times a
/// scale: `optax.piecewise_interpolate_schedule`.
pub fn piecewise_interpolate_schedule(
    interpolation: Interpolation,
    init: f64,
    boundaries_and_scales: &[(u32, f64)],
) -> Schedule {
    let boundaries_and_scales = boundaries_and_scales.to_vec();
    Schedule::PiecewiseInterpolate { interpolation, init, boundaries_and_scales }
}

/// Parameters of the one-cycle policy (Smith & Topin 2018).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OneCycle {
    /// Number of updates.
    pub transition_steps: u32,
    /// Largest value.
    pub peak_value: f64,
    /// Fraction of the updates in which the value rises.
    pub pct_start: f64,
    /// Fraction of the updates after which a linear schedule falls below its initial value.
    pub pct_final: f64,
    /// Peak value over initial value.
    pub div_factor: f64,
    /// Initial value over final value.
    pub final_div_factor: f64,
}

impl OneCycle {
    /// Returns optax's defaults: .3, .85, 25, 1e4.
    pub fn new(transition_steps: u32, peak_value: f64) -> OneCycle {
        OneCycle {
            transition_steps,
            peak_value,
            pct_start: 0.3,
            pct_final: 0.85,
            div_factor: 25.0,
            final_div_factor: 1e4,
        }
    }

    /// Returns the schedule of straight lines: up, down to the initial value, and further down.
    pub fn linear(self) -> Schedule {
        let steps = self.transition_steps as f64;
        let boundaries_and_scales = [
            ((self.pct_start * steps) as u32, self.div_factor),
            ((self.pct_final * steps) as u32, 1.0 / self.div_factor),
            (self.transition_steps, 1.0 / self.final_div_factor),
        ];
        let init = self.peak_value / self.div_factor;
        piecewise_interpolate_schedule(Interpolation::Linear, init, &boundaries_and_scales)
    }

    /// Returns the schedule of half cosines: up and down.
    pub fn cosine(self) -> Schedule {
        let boundaries_and_scales = [
            ((self.pct_start * self.transition_steps as f64) as u32, self.div_factor),
            (self.transition_steps, 1.0 / (self.div_factor * self.final_div_factor)),
        ];
        let init = self.peak_value / self.div_factor;
        piecewise_interpolate_schedule(Interpolation::Cosine, init, &boundaries_and_scales)
    }
}

/// One-cycle policy of straight lines, `optax.linear_onecycle_schedule`, with optax's defaults;
/// [`OneCycle`] has the other parameters.
pub fn linear_onecycle_schedule(transition_steps: u32, peak_value: f64) -> Schedule {
    OneCycle::new(transition_steps, peak_value).linear()
}

/// One-cycle policy of half cosines, `optax.cosine_onecycle_schedule`, with optax's defaults;
/// [`OneCycle`] has the other parameters.
pub fn cosine_onecycle_schedule(transition_steps: u32, peak_value: f64) -> Schedule {
    OneCycle::new(transition_steps, peak_value).cosine()
}

/// Line from `init` to `peak` in `warmup_steps` updates, then constant:
/// `optax.warmup_constant_schedule`.
pub fn warmup_constant_schedule(init: f64, peak: f64, warmup_steps: u32) -> Schedule {
    linear_schedule(init, peak, warmup_steps)
}

/// Line from `init` to `peak` in `warmup_steps` updates, then half a cosine to `end` at
/// `decay_steps`, which includes the warm-up: `optax.warmup_cosine_decay_schedule`.
///
/// # Errors
/// [`Schedule::at`] ends the trace unless `decay_steps` exceeds `warmup_steps`.
pub fn warmup_cosine_decay_schedule(
    init: f64,
    peak: f64,
    warmup_steps: u32,
    decay_steps: u32,
    end: f64,
) -> Schedule {
    let alpha = if peak == 0.0 { 0.0 } else { end / peak };
    let decay = cosine_decay_schedule(peak, decay_steps.saturating_sub(warmup_steps), alpha);
    let warmup = linear_schedule(init, peak, warmup_steps);
    join_schedules(vec![warmup, decay], vec![warmup_steps])
}

/// Line from `init` to `peak` in `warmup_steps` updates, then exponential decay:
/// `optax.warmup_exponential_decay_schedule`.
pub fn warmup_exponential_decay_schedule(
    init: f64,
    peak: f64,
    warmup_steps: u32,
    transition_steps: u32,
    decay_rate: f64,
) -> Schedule {
    let warmup = linear_schedule(init, peak, warmup_steps);
    let decay = exponential_decay(peak, transition_steps, decay_rate);
    join_schedules(vec![warmup, decay], vec![warmup_steps])
}

/// Schedules one after the other, each counting from its boundary on: `optax.join_schedules`.
///
/// # Errors
/// [`Schedule::at`] ends the trace unless there is one schedule more than boundaries.
pub fn join_schedules(schedules: Vec<Schedule>, boundaries: Vec<u32>) -> Schedule {
    Schedule::Joined { schedules, boundaries }
}

/// One cycle of [`sgdr_schedule`]: arguments of [`warmup_cosine_decay_schedule`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CosineCycle {
    /// Initial value.
    pub init: f64,
    /// Largest value.
    pub peak: f64,
    /// Number of updates in which the value rises.
    pub warmup_steps: u32,
    /// Number of updates of the cycle.
    pub decay_steps: u32,
    /// Final value.
    pub end: f64,
}

/// Cycles of warm-up and cosine decay one after the other (Loshchilov & Hutter 2017):
/// `optax.sgdr_schedule`.
///
/// # Errors
/// [`Schedule::at`] ends the trace if there are no cycles.
pub fn sgdr_schedule(cycles: &[CosineCycle]) -> Schedule {
    let (mut schedules, mut boundaries, mut step) = (Vec::new(), Vec::new(), 0u32);
    for cycle in cycles {
        let CosineCycle { init, peak, warmup_steps, decay_steps, end } = *cycle;
        schedules.push(warmup_cosine_decay_schedule(init, peak, warmup_steps, decay_steps, end));
        step = step.saturating_add(decay_steps);
        boundaries.push(step);
    }
    boundaries.pop();
    join_schedules(schedules, boundaries)
}
