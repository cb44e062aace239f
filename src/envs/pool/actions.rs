//! Batches of actions, and their checks before any environment is stepped.

use crate::envs::env::spec::EnvSpec;
use crate::envs::pool::slot::Slot;
use crate::error::{Error, Result};
use crate::spaces::Space;

/// Actions of several environments, one after the other. Slices and vectors convert into it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Actions<'a> {
    /// Choices of discrete spaces.
    I32(&'a [i32]),
    /// Choices of discrete spaces.
    I64(&'a [i64]),
    /// Elements of boxes: all of the first environment's, then all of the second's.
    F32(&'a [f32]),
}

macro_rules! actions_from {
    ($($variant:ident $element:ty),*) => {$(
        impl<'a> From<&'a [$element]> for Actions<'a> {
            fn from(values: &'a [$element]) -> Self {
                Actions::$variant(values)
            }
        }
        impl<'a> From<&'a Vec<$element>> for Actions<'a> {
            fn from(values: &'a Vec<$element>) -> Self {
                Actions::$variant(values)
            }
        }
        impl<'a, const N: usize> From<&'a [$element; N]> for Actions<'a> {
            fn from(values: &'a [$element; N]) -> Self {
                Actions::$variant(values)
            }
        }
    )*};
}
actions_from!(I32 i32, I64 i64, F32 f32);

impl Actions<'_> {
    fn len(&self) -> usize {
        match self {
            Actions::I32(values) => values.len(),
            Actions::I64(values) => values.len(),
            Actions::F32(values) => values.len(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Actions::I32(_) => "i32",
            Actions::I64(_) => "i64",
            Actions::F32(_) => "f32",
        }
    }
}

/// Rule that the actions of one kind of environment must satisfy.
#[derive(Debug)]
pub(in crate::envs) enum ActionRule {
    /// Less than `n`.
    Discrete { n: usize },
    /// Each less than its entry.
    MultiDiscrete { nvec: Vec<usize> },
    /// Between the bounds, element by element, or outside by no more than `slack`.
    Box { low: Vec<f32>, high: Vec<f32>, slack: Vec<f64> },
}

impl ActionRule {
    pub(in crate::envs) fn new(spec: &EnvSpec, clip: bool) -> ActionRule {
        match &spec.action {
            Space::Discrete { n } => ActionRule::Discrete { n: *n },
            Space::MultiDiscrete { nvec, .. } => ActionRule::MultiDiscrete { nvec: nvec.clone() },
            Space::Box { low, high, shape, .. } => ActionRule::Box {
                low: (0..shape.numel()).map(|i| low.at(i) as f32).collect(),
                high: (0..shape.numel()).map(|i| high.at(i) as f32).collect(),
                slack: (0..shape.numel())
                    .map(|i| if clip { f64::INFINITY } else { rounding(low.at(i), high.at(i)) })
                    .collect(),
            },
        }
    }

    /// Returns an error unless `actions` are valid for the environments `envs`, in this order.
    pub(in crate::envs) fn check(
        &self,
        id: &str,
        actions: Actions<'_>,
        envs: impl ExactSizeIterator<Item = usize>,
    ) -> Result<()> {
        let (width, what) = match self {
            ActionRule::Discrete { .. } => (1, "i32 or i64"),
            ActionRule::MultiDiscrete { nvec } => (nvec.len(), "i32 or i64"),
            ActionRule::Box { low, .. } => (low.len(), "f32"),
        };
        let count = envs.len();
        if actions.len() != count * width {
            return Err(Error::Env(format!(
                "{id}: {count} environments with {width} {what} each need {} values, {} {} were given",
                count * width,
                actions.len(),
                actions.kind(),
            )));
        }
        match (self, actions) {
            (ActionRule::Box { low, high, slack }, Actions::F32(values)) => {
                for (k, env) in envs.enumerate() {
                    for (i, &value) in values[k * width..][..width].iter().enumerate() {
                        let inside = (low[i]..=high[i]).contains(&value);
                        let nearest = f64::from(value.clamp(low[i], high[i]));
                        // False for NaN.
                        let near = (f64::from(value) - nearest).abs() <= slack[i];
                        if !inside && !near {
                            return Err(Error::Env(format!(
                                "{id}: env {env}: element {i} of its action is {value}, expected \
                                 {} to {}",
                                low[i], high[i],
                            )));
                        }
                    }
                }
                Ok(())
            }
            (ActionRule::Box { .. }, _) | (_, Actions::F32(_)) => {
                Err(Error::Env(format!("{id}: actions are {}, expected {what}", actions.kind())))
            }
            (_, Actions::I32(values)) => self.check_choices(id, values, envs),
            (_, Actions::I64(values)) => self.check_choices(id, values, envs),
        }
    }

    /// Returns an error unless `values` are choices of the environments `envs`, as many as they need.
    fn check_choices<T: Copy + Into<i64>>(
        &self,
        id: &str,
        values: &[T],
        envs: impl Iterator<Item = usize>,
    ) -> Result<()> {
        match self {
            ActionRule::Discrete { n } => {
                discrete(id, *n, values.iter().map(|&value| value.into()), envs)
            }
            ActionRule::MultiDiscrete { nvec } => {
                values.chunks_exact(nvec.len()).zip(envs).try_for_each(|(row, env)| {
                    multi_discrete(id, nvec, row.iter().map(|&value| value.into()), env)
                })
            }
            ActionRule::Box { .. } => unreachable!("boxes have no choices"),
        }
    }

    /// Copies the `k`-th of the checked `actions` to `slot`.
    pub(super) fn give(&self, actions: Actions<'_>, k: usize, slot: &mut Slot) {
        match (self, actions) {
            (ActionRule::Box { low, high, .. }, Actions::F32(values)) => {
                let values = &values[k * low.len()..][..low.len()];
                let bounds = low.iter().zip(high);
                let clipped =
                    values.iter().zip(bounds).map(|(x, (&low, &high))| x.clamp(low, high));
                slot.values.clear();
                slot.values.extend(clipped);
            }
            (_, Actions::F32(_)) => unreachable!("checked"),
            (_, Actions::I32(values)) => self.give_choices(values, k, slot),
            (_, Actions::I64(values)) => self.give_choices(values, k, slot),
        }
    }

    /// Copies the `k`-th choice, or row of choices, to `slot`.
    fn give_choices<T: Copy + Into<i64>>(&self, values: &[T], k: usize, slot: &mut Slot) {
        let ActionRule::MultiDiscrete { nvec } = self else {
            slot.choice = values[k].into() as usize;
            return;
        };
        let row = &values[k * nvec.len()..][..nvec.len()];
        slot.choices.clear();
        slot.choices.extend(row.iter().map(|&value| value.into() as usize));
    }
}

/// Returns the distance to a bound that rounding makes up where an action in `f32` is computed from the
/// bounds: a few units in the last place of the greater one.
fn rounding(low: f64, high: f64) -> f64 {
    let largest = [low, high].map(f64::abs).into_iter().filter(|bound| bound.is_finite());
    8.0 * f64::from(f32::EPSILON) * largest.fold(0.0, f64::max)
}

fn multi_discrete(
    id: &str,
    nvec: &[usize],
    row: impl Iterator<Item = i64>,
    env: usize,
) -> Result<()> {
    for (i, (value, &n)) in row.zip(nvec).enumerate() {
        // A negative number becomes a huge one here.
        if value as u64 >= n as u64 {
            return Err(Error::Env(format!(
                "{id}: env {env}: component {i} of its action is {value}, expected 0 to {}",
                n - 1
            )));
        }
    }
    Ok(())
}

fn discrete(
    id: &str,
    n: usize,
    values: impl Iterator<Item = i64>,
    envs: impl Iterator<Item = usize>,
) -> Result<()> {
    for (value, env) in values.zip(envs) {
        // A negative number becomes a huge one here.
        if value as u64 >= n as u64 {
            return Err(Error::Env(format!(
                "{id}: env {env}: its action is {value}, expected 0 to {}",
                n - 1
            )));
        }
    }
    Ok(())
}
