//! Host tools of training programs, without algorithms: runs and their event files, progress,
//! interruption, checkpoints.

pub mod checkpoint;
pub mod flags;
pub mod interrupt;
pub mod progress;
pub mod replay;
pub mod run;
pub mod tensorboard;

pub use progress::Progress;
pub use run::{Returns, Run, Summary, scalars};
