//! Logs of runs: TensorBoard event files, Weights & Biases, and videos of episodes.

pub(in crate::rl) mod ffmpeg;
pub(in crate::rl) mod hub;
mod python;
pub mod tensorboard;
pub(in crate::rl) mod track;
pub(in crate::rl) mod training_video;
pub mod video;
