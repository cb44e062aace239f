//! What training programs share, without algorithms: settings, runs and their event files, the loop's
//! host side, checkpoints, replay.

pub mod algorithm;
pub mod checkpoint;
pub mod evaluation;
pub mod flags;
pub mod games;
pub mod interrupt;
pub mod on_policy;
pub mod options;
pub mod progress;
pub mod replay;
pub mod run;
pub mod saved;
pub mod spaces;
pub mod tensorboard;
pub mod trainer;

pub use algorithm::Algorithm;
pub use evaluation::Evaluation;
pub use games::{Game, Games};
pub use options::RunOptions;
pub use progress::Progress;
pub use run::{Returns, Run, Summary, scalars};
pub use saved::Envs;
pub use trainer::Trainer;
