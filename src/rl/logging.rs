//! Logs of runs: TensorBoard event files, and videos of evaluations.

pub mod tensorboard;
pub mod video;
