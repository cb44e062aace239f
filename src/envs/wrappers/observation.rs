//! Wrappers that change the shape of observations.

use super::wrapped::{Wrapper, wrap};
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Env, ObsMut};
use crate::error::{Error, Result};
use crate::spaces::{Bound, Space};
use crate::trace::types::DType;

/// Wrapper that stacks the last observations, as gymnasium's `FrameStack`.
#[derive(Debug)]
pub struct FrameStack {
    num_stack: usize,
    frame: usize,
    /// The frames, oldest first.
    frames: Vec<u8>,
}

impl FrameStack {
    /// Wraps `env` and stacks its last `num_stack` observations, oldest first, along a new first
    /// axis. At the start of an episode all of them are its first observation. Returns an error for
    /// 0.
    pub fn wrap(env: Box<dyn Env>, num_stack: usize) -> Result<Box<dyn Env>> {
        let spec = env.spec();
        if num_stack == 0 {
            let problem = "FrameStack: num_stack must be at least 1";
            return Err(Error::Config(format!("{}: {problem}", spec.id)));
        }
        let frame = spec.observation.bytes();
        Ok(wrap(env, FrameStack { num_stack, frame, frames: vec![0; num_stack * frame] }))
    }
}

/// Returns the bounds of `count` arrays with bounds `bound`.
fn repeat(bound: Bound, count: usize) -> Bound {
    match bound {
        Bound::All(bound) => Bound::All(bound),
        Bound::Each(bounds) => Bound::Each(bounds.repeat(count)),
    }
}

impl Wrapper for FrameStack {
    fn spec(&self, mut spec: EnvSpec) -> EnvSpec {
        let shape = spec.observation.shape().with_axis(0, self.num_stack);
        let dtype = spec.observation.dtype();
        let (low, high) = match spec.observation {
            Space::Discrete { n } => (Bound::All(0.0), Bound::All(n as f64 - 1.0)),
            Space::MultiDiscrete { nvec, .. } => {
                let high = nvec.iter().map(|&n| n as f64 - 1.0).collect::<Vec<_>>();
                (Bound::All(0.0), repeat(high.into(), self.num_stack))
            }
            Space::Box { low, high, .. } => {
                (repeat(low, self.num_stack), repeat(high, self.num_stack))
            }
        };
        spec.observation = Space::Box { low, high, shape, dtype };
        spec
    }

    fn place(&mut self) -> Option<&mut [u8]> {
        // Drops the oldest frame; the new one is written to the end.
        self.frames.copy_within(self.frame.., 0);
        let last = self.frames.len() - self.frame;
        Some(&mut self.frames[last..])
    }

    fn observe(&mut self, first: bool, obs: ObsMut<'_>) {
        if first {
            let last = self.frames.len() - self.frame;
            let (before, newest) = self.frames.split_at_mut(last);
            before.chunks_mut(self.frame).for_each(|frame| frame.copy_from_slice(newest));
        }
        obs.0.copy_from_slice(&self.frames);
    }

    fn save(&self) -> Vec<u8> {
        self.frames.clone()
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        let fits = state.len() == self.frames.len();
        if fits {
            self.frames.copy_from_slice(state);
        }
        fits
    }
}

/// Wrapper that flattens observations to one axis, as gymnasium's `FlattenObservation`.
#[derive(Debug)]
pub struct FlattenObservation {
    /// Observation of the wrapped environment, if that is a number.
    number: Option<[i32; 1]>,
}

impl FlattenObservation {
    /// Wraps `env` and flattens its observations: an array becomes its elements in row-major order,
    /// a number becomes a one-hot `i32` array.
    pub fn wrap(env: Box<dyn Env>) -> Box<dyn Env> {
        let number = matches!(env.spec().observation, Space::Discrete { .. }).then_some([0]);
        wrap(env, FlattenObservation { number })
    }
}

impl Wrapper for FlattenObservation {
    fn spec(&self, mut spec: EnvSpec) -> EnvSpec {
        spec.observation = match spec.observation {
            Space::Discrete { n } => {
                let (low, high) = (Bound::All(0.0), Bound::All(1.0));
                Space::Box { low, high, shape: [n].into(), dtype: DType::I32 }
            }
            flat @ Space::MultiDiscrete { .. } => flat,
            Space::Box { low, high, shape, dtype } => {
                Space::Box { low, high, shape: [shape.numel()].into(), dtype }
            }
        };
        spec
    }

    fn place(&mut self) -> Option<&mut [u8]> {
        self.number.as_mut().map(|number| bytemuck::cast_slice_mut(number))
    }

    fn observe(&mut self, _first: bool, mut obs: ObsMut<'_>) {
        if let Some([number]) = self.number {
            let elements = obs.elements::<i32>();
            elements.fill(0);
            elements[number as usize] = 1;
        }
    }
}
