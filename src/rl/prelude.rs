//! Re-exports what nearly every algorithm uses: `use podracer::rl::prelude::*;`.

pub use clap::Parser;
pub use serde::Serialize;

pub use crate::array::Array;
pub use crate::envs::{Handle, XlaPool};
pub use crate::error::{Error, Result};
pub use crate::jit::jit;
pub use crate::optim::{Adam, AdamState, clip_grad_norm};
pub use crate::random::Key;
pub use crate::rl::checkpoint::Checkpoint;
pub use crate::rl::flags::{batches, ensure, within};
pub use crate::rl::saved::load_model;
pub use crate::rl::spaces::Sizes;
pub use crate::rl::{
    Algorithm, ComputeDtype, EpisodeStats, Policy, PolicyResults, RunOptions, Summary, Trainer,
    bootstrap_truncated, explained_variance, gather_minibatch, merge_time_and_env, pools,
    q_at_action,
};
pub use crate::trace::control::{ScanOptions, cond, scan, scan_with, while_loop};
pub use crate::trace::ops::{constant, ones, stack, where_, zeros, zeros_like};
pub use crate::trace::transpose::value_and_grad;
pub use crate::trace::{DType, Tensor, TensorType, vmap};
pub use crate::tree::{self, Tree};
