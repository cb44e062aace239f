//! Infrastructure of training programs. Each module answers one question:
//!
//! - [`algorithm`]: what is an algorithm?
//! - [`settings`]: which flags and ranges does it have?
//! - [`environments`]: which environments does it support, and of which sizes?
//! - [`run`]: what happens in a training run? The trainer, the run's folder, pools, progress.
//! - [`rollouts`], [`buffers`]: where do minibatches come from?
//! - [`checkpoint`]: what is saved, and read again?
//! - [`policy`], [`program_policy`]: how does a trained agent act?
//! - [`commands`]: what does a training program do beside training?
//! - [`logging`]: where do metrics go? TensorBoard, Weights & Biases, videos.
//! - [`anakin`], [`sebulba`]: agents in one compiled program; actors and learners.
//! - [`sweep`], [`statistics`]: several values of hyperparameters; measures over runs, as rliable has them.
//! - [`interrupt`], [`returns`], `files`, `summary`: what several of these use. [`prelude`] is for algorithms.

pub mod algorithm;
pub mod anakin;
pub mod buffers;
pub mod checkpoint;
pub mod commands;
pub mod environments;
pub(crate) mod files;
#[cfg(test)]
mod hostile;
pub mod interrupt;
pub mod logging;
pub mod policy;
pub mod prelude;
pub mod program_policy;
pub mod returns;
pub mod rollouts;
pub mod run;
pub mod sebulba;
pub mod settings;
pub mod statistics;
mod summary;
pub mod sweep;

pub use crate::files::read as read_regular;
pub use algorithm::Algorithm;
pub use checkpoint::saved::Envs;
pub use environments::support::{ActionSupport, EnvSupport};
pub use files::{is_at, open_locked};
pub use policy::evaluation::{Evaluation, PolicyOutput};
pub use policy::trained::TrainedPolicy;
pub use policy::{Policy, PolicyResults};
pub use returns::Returns;
pub use rollouts::minibatch::{
    explained_variance, gather_minibatch, merge_time_and_env, q_at_action,
};
pub use rollouts::truncation::{bootstrap_truncated, bootstrap_truncated_batch};
pub use run::episodes::{EpisodeRecord, EpisodeStats};
pub use run::progress::Progress;
pub use run::trainer::Trainer;
pub use run::{Run, scalars};
pub use settings::options::{ComputeDtype, ImageNetwork, OnWriteError, RunOptions};
pub use summary::Summary;
