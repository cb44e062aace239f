//! Infrastructure of training programs, in seven modules: [`training`] (settings, the trainer, runs,
//! checkpoints, evaluation), [`logging`] (TensorBoard, videos), [`buffers`] (replay buffers),
//! [`sebulba`] (actors and learners), [`anakin`] (agents in one compiled program), [`statistics`] (measures over runs, as rliable has them) and
//! [`sweep`] (agents with several values of hyperparameters).

pub mod anakin;
pub mod buffers;
pub(crate) mod files;
pub mod logging;
pub mod prelude;
pub mod sebulba;
pub mod statistics;
pub mod sweep;
pub mod training;

pub use crate::files::read as read_regular;
pub(crate) use buffers::memory;
pub use buffers::{frames, prioritized, replay, sum_tree};
pub(in crate::rl) use logging::{hub, track, training_video};
pub use logging::{tensorboard, video};
pub use training::{
    ActionSupport, Algorithm, ComputeDtype, EnvSupport, Envs, EpisodeRecord, EpisodeStats,
    Evaluation, ImageNetwork, OnWriteError, Policy, PolicyOutput, PolicyResults, Progress, Returns,
    Run, RunOptions, Summary, Trainer, bootstrap_truncated, bootstrap_truncated_batch,
    explained_variance, gather_minibatch, is_at, merge_time_and_env, open_locked, q_at_action,
    scalars,
};
pub use training::{
    algorithm, checkpoint, episodes, eval_command, evaluation, export_command, flags, interrupt,
    minibatch, options, policy, pools, program_policy, progress, ranges, run, saved, spaces,
    support, trainer, truncation,
};
