//! Flags that every algorithm has, in addition to its own.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::error::Result;
use crate::jit::Mode;
use crate::rl::training::env_options::EnvOptions;

/// Default of `--env-timeout`, in seconds.
pub(in crate::rl) const ENV_TIMEOUT: u64 = 300;

/// Effect of a write error on a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnWriteError {
    /// The run ends with the error. Files written so far are complete.
    Stop,
    /// The run continues; data that cannot be written is lost.
    Continue,
}

/// Network that encodes image observations: the variant of
/// [`ImageEncoder`](crate::nn::ImageEncoder) that `--network` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageNetwork {
    /// The Nature network (Mnih et al. 2015); MinAtar's network for boards (Young and Tian 2019).
    Nature,
    /// IMPALA's residual network (Espeholt et al. 2018).
    Impala,
}

// clap uses the documentation of a flattened struct as the description of the whole command, in
// place of the algorithm's own.
#[cfg_attr(
    doc,
    doc = "Flags that every algorithm has; of these only `seed` changes what is learned.

An algorithm's settings hold it flattened, for clap and for serde."
)]
#[allow(missing_docs)]
#[derive(Debug, Clone, Args, Serialize)]
pub struct RunOptions {
    /// Seed of the experiment: the same seed gives the same run, bit for bit
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run compiled (jit), operation by operation (eager), or on the host (interpret)
    #[arg(long, value_enum, default_value_t = Mode::Jit)]
    pub mode: Mode,
    /// Print the result as one line of JSON, and no lines of progress
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub json: bool,
    /// Save the model into the run's folder, and evaluate it for --eval-episodes
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub save_model: bool,
    /// Episodes of the evaluation of a saved model, after training
    #[arg(long, default_value_t = 10)]
    pub eval_episodes: usize,
    /// Write videos of the evaluation's episodes into the run's folder
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub capture_video: bool,
    /// Stop at the first NaN, and report the operation that produced it and its source line
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub check_nans: bool,
    /// Record a timeline of the run into this file, for Perfetto or chrome://tracing
    #[arg(long)]
    pub timeline: Option<PathBuf>,
    /// Folder in which the run's folder is created
    #[arg(long, default_value = "runs")]
    pub runs_dir: PathBuf,
    /// Keyword arguments of gymnasium.make as a JSON object, for ids that begin with gymnasium:
    #[arg(long)]
    pub env_kwargs: Option<String>,
    /// Wrappers of such an environment, innermost first: import paths separated by commas, or a
    /// JSON array of [path, {keyword arguments}]
    #[arg(long)]
    pub env_wrappers: Option<String>,
    /// Seconds without an answer after which a process of such environments counts as hanging; 0
    /// waits for ever
    #[arg(long, default_value_t = ENV_TIMEOUT)]
    pub env_timeout: u64,
    /// Threads that step environments, or processes of Gymnasium's; 0 measures and chooses
    #[arg(long, default_value_t = 0)]
    pub num_threads: usize,
    /// Timesteps between checkpoints, from which --resume continues; 0 writes none
    #[arg(long, default_value_t = 0)]
    pub checkpoint_frequency: u64,
    /// Policy for events or checkpoints that cannot be written, as on a full disk: stop, or
    /// continue training and report it once
    #[arg(long, value_enum, default_value_t = OnWriteError::Stop)]
    pub on_write_error: OnWriteError,
    /// Resume the run in this folder from its last checkpoint, with its settings
    #[arg(long)]
    pub resume: Option<PathBuf>,
}

impl RunOptions {
    /// Returns the seed of evaluation episodes, which differ from those of training.
    pub fn eval_seed(&self) -> u64 {
        self.seed.wrapping_add(1 << 32)
    }

    /// Sets the options with which the environment `env_id` of Gymnasium is made.
    ///
    /// # Errors
    /// [`Error::Config`] for text that is not JSON, and for options of other environments.
    pub(in crate::rl) fn set_env_options(&self, env_id: &str) -> Result<()> {
        let (kwargs, wrappers) = (self.env_kwargs.as_deref(), self.env_wrappers.as_deref());
        EnvOptions { kwargs, wrappers, timeout: self.env_timeout }.set(env_id)
    }
}
