//! Storage of the rollouts of a phase.

use crate::trace::ops::{zeros, zeros_like};
use crate::tree::Tree;
use crate::{DType, Tensor};

/// Observations and returns of all rollouts of a phase.
#[derive(Debug, Clone, Tree)]
pub struct AuxStorage<T> {
    pub obs: T,     // [n_iteration, T, N, ..]: observations, in the environment's dtype
    pub returns: T, // f32[n_iteration, T, N]
}

impl AuxStorage<Tensor> {
    /// Creates empty storage of `rollouts` rollouts of T steps of N environments, for observations
    /// like `obs: [N, ..]`.
    pub(super) fn zeros(rollouts: usize, num_steps: usize, obs: Tensor) -> AuxStorage<Tensor> {
        let steps = [rollouts, num_steps];
        AuxStorage {
            obs: zeros([&steps, &obs.shape()[..]].concat(), obs.dtype()),
            returns: zeros([rollouts, num_steps, obs.dim(0)], DType::F32),
        }
    }

    /// Writes the flattened observations and returns, `[T N, ..]`, of rollout `index: i32[]`.
    pub(super) fn store(self, obs: Tensor, returns: Tensor, index: Tensor) -> AuxStorage<Tensor> {
        let write = |all: Tensor, one: Tensor| {
            let one = one.reshape([&[1], &all.shape()[1..]].concat());
            let mut starts = vec![index];
            starts.resize(all.rank(), zeros_like(index));
            all.dynamic_update_slice_clamped(one, &starts)
        };
        AuxStorage { obs: write(self.obs, obs), returns: write(self.returns, returns) }
    }
}
