//! Infrastructure of training programs: settings, runs and their event files, the host side of
//! training loops, checkpoints, replay buffers.

pub mod algorithm;
mod bounds;
pub mod checkpoint;
pub mod episodes;
pub mod eval_command;
pub mod evaluation;
pub mod fitting;
pub mod flags;
pub mod frames;
#[cfg(test)]
mod hostile;
pub mod images;
pub mod interrupt;
mod lock;
mod memory;
pub mod minibatch;
pub mod options;
pub mod pools;
pub mod prioritized;
pub mod progress;
pub mod ranges;
pub mod replay;
pub mod run;
pub mod saved;
mod screen;
pub mod sebulba;
pub mod spaces;
pub mod sum_tree;
pub mod tensorboard;
pub mod trainer;
pub mod truncation;
pub mod video;

pub use algorithm::Algorithm;
pub use episodes::{EpisodeRecord, EpisodeStats};
pub use evaluation::{Evaluation, PolicyOutput};
pub use minibatch::{gather_minibatch, merge_time_and_env};
pub use options::{OnWriteError, RunOptions};
pub use progress::Progress;
pub use run::{Returns, Run, Summary, scalars};
pub use saved::Envs;
pub use trainer::Trainer;
pub use truncation::{bootstrap_truncated, bootstrap_truncated_batch};
