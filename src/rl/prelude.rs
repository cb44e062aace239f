//! Re-exports what nearly every algorithm uses: `use podracer::rl::prelude::*;`.

pub use clap::Parser;
pub use serde::Serialize;

pub use crate::array::Array;
pub use crate::envs::{Handle, XlaPool};
pub use crate::error::{Error, Result};
pub use crate::jit::jit;
pub use crate::optim::{Adam, AdamState, clip_grad_norm};
pub use crate::random::Key;
pub use crate::rl::algorithm::Algorithm;
pub use crate::rl::checkpoint::Checkpoint;
pub use crate::rl::checkpoint::saved::load_model;
pub use crate::rl::environments::spaces::Sizes;
pub use crate::rl::policy::{Policy, PolicyResults};
pub use crate::rl::rollouts::minibatch::{
    explained_variance, gather_minibatch, merge_time_and_env, q_at_action,
};
pub use crate::rl::rollouts::truncation::bootstrap_truncated;
pub use crate::rl::run::episodes::EpisodeStats;
pub use crate::rl::run::pools;
pub use crate::rl::run::trainer::Trainer;
pub use crate::rl::settings::flags::{batches, ensure, within};
pub use crate::rl::settings::options::{ComputeDtype, RunOptions};
pub use crate::rl::summary::Summary;
pub use crate::trace::control::{ScanOptions, cond, scan, scan_with, while_loop};
pub use crate::trace::ops::{constant, ones, stack, where_, zeros, zeros_like};
pub use crate::trace::transpose::value_and_grad;
pub use crate::trace::{DType, Tensor, TensorType, vmap};
pub use crate::tree::{self, Tree};
