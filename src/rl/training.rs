//! Training programs: settings and their command line, the trainer with its run folder and
//! checkpoints, evaluation, and the sizes of the environments.

pub mod algorithm;
mod bounds;
pub mod checkpoint;
mod env_options;
pub mod episodes;
pub mod eval_command;
pub mod evaluation;
pub mod export_command;
pub mod flags;
mod help;
#[cfg(test)]
mod hostile;
pub mod interrupt;
pub(in crate::rl) mod lock;
pub mod minibatch;
pub mod options;
pub mod policy;
pub mod pools;
pub mod program_policy;
pub mod progress;
pub mod ranges;
mod returns;
pub mod run;
pub mod saved;
mod screen;
pub(in crate::rl) mod shared_flags;
pub mod spaces;
pub mod support;
pub mod trainer;
pub mod truncation;
mod trust;

pub use algorithm::Algorithm;
pub use episodes::{EpisodeRecord, EpisodeStats};
pub use evaluation::{Evaluation, PolicyOutput};
pub use lock::{is_at, open_locked};
pub use minibatch::{explained_variance, gather_minibatch, merge_time_and_env, q_at_action};
pub use options::{ComputeDtype, ImageNetwork, OnWriteError, RunOptions};
pub use policy::{Policy, PolicyResults};
pub use progress::Progress;
pub use returns::Returns;
pub use run::{Run, Summary, scalars};
pub use saved::Envs;
pub use support::{ActionSupport, EnvSupport};
pub use trainer::Trainer;
pub use truncation::{bootstrap_truncated, bootstrap_truncated_batch};
