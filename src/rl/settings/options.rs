//! Flags that every algorithm has, in addition to its own. `shared_flags` has their rules.

use std::path::PathBuf;
use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::envs::EnvSpec;
use crate::error::Result;
use crate::jit::Mode;
use crate::output;
use crate::rl::settings::env_options::EnvOptions;
use crate::runtime::RuntimeOptions;
use crate::trace::DType;

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

/// Element type in which the encoder of an image network computes: flax's `dtype`. Parameters,
/// losses and the optimizer are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeDtype {
    /// 32-bit floats.
    Float32,
    /// 16-bit brain floats: faster on processors that multiply them, such as AMD's since Zen 4 and
    /// Intel's since Sapphire Rapids.
    Bfloat16,
}

impl ComputeDtype {
    /// Returns the element type.
    pub fn dtype(self) -> DType {
        match self {
            ComputeDtype::Float32 => DType::F32,
            ComputeDtype::Bfloat16 => DType::BF16,
        }
    }
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
    /// Name of the experiment
    #[arg(long, default_value = "")]
    pub exp_name: String,
    /// Seed of the experiment: the same seed gives the same run, bit for bit
    #[arg(long, default_value = "1")]
    pub seed: u64,
    /// No effect: a run repeats bit for bit
    #[arg(long)]
    pub torch_deterministic: Option<bool>,
    /// Device of a CleanRL script; here PODRACER_PLATFORM=cuda chooses a GPU
    #[arg(long)]
    pub cuda: Option<bool>,
    /// Track the run with Weights & Biases, by the Python package wandb
    #[arg(long, default_value = "false")]
    pub track: bool,
    /// Project in Weights & Biases
    #[arg(long, default_value = "cleanRL")]
    pub wandb_project_name: String,
    /// Entity (team) in Weights & Biases
    #[arg(long)]
    pub wandb_entity: Option<String>,
    /// Group of the run in Weights & Biases
    #[arg(long)]
    pub wandb_group: Option<String>,
    /// Film episodes of training (0, 1, 8, 27, .. 1000, 2000, ..) and of the evaluation
    #[arg(long, default_value = "false")]
    pub capture_video: bool,
    /// Save the model into the run's folder, and evaluate it for --eval-episodes
    #[arg(long, default_value = "false")]
    pub save_model: bool,
    /// Upload the saved model to the Hugging Face Hub, by the package huggingface_hub
    #[arg(long, default_value = "false")]
    pub upload_model: bool,
    /// User or organization on the Hugging Face Hub
    #[arg(long, default_value = "")]
    pub hf_entity: String,

    /// Compile (jit), run operation by operation (eager), or on the host (interpret)
    #[arg(long, value_enum, default_value_t = Mode::Jit)]
    pub mode: Mode,
    /// Print the result as one line of JSON, and no lines of progress
    #[arg(long, default_value = "false")]
    pub json: bool,
    /// Episodes of the evaluation of a saved model
    #[arg(long, default_value = "10")]
    pub eval_episodes: usize,
    /// Stop at the first NaN, and report its operation and source line
    #[arg(long, default_value = "false")]
    pub check_nans: bool,
    /// Record a timeline into this file, for Perfetto or chrome://tracing
    #[arg(long)]
    pub timeline: Option<PathBuf>,
    /// Folder in which the run's folder is created
    #[arg(long, default_value = "runs")]
    pub runs_dir: PathBuf,
    /// Keyword arguments as a JSON object: for ids gymnasium:, pettingzoo:, envpool:, and some of your own
    #[arg(long)]
    pub env_kwargs: Option<String>,
    /// Wrappers of such an environment, innermost first: import paths, or JSON of [path, {..}]
    #[arg(long)]
    pub env_wrappers: Option<String>,
    /// Seconds after which such a process counts as hanging; 0 waits for ever
    #[arg(long, default_value_t = ENV_TIMEOUT)]
    pub env_timeout: u64,
    /// Threads or processes that step environments; 0 measures and chooses
    #[arg(long, default_value = "0")]
    pub num_threads: usize,
    /// Timesteps between checkpoints, from which --resume continues; 0 writes none
    #[arg(long, default_value = "0")]
    pub checkpoint_frequency: u64,
    /// Stop or continue where events or checkpoints cannot be written
    #[arg(long, value_enum, default_value_t = OnWriteError::Stop)]
    pub on_write_error: OnWriteError,
    /// Resume the run in this folder from its last checkpoint, with its settings
    #[arg(long)]
    pub resume: Option<PathBuf>,
    /// Import the Python modules that the settings of the resumed run name
    #[arg(long, default_value = "false")]
    #[serde(skip)]
    pub trust_remote_code: bool,
    /// Specification of the environment, if it is read from a model: then no environment is made.
    #[arg(skip)]
    #[serde(skip)]
    pub(in crate::rl) recorded_spec: OnceLock<EnvSpec>,
}

impl RunOptions {
    /// Prints a line for each given flag of CleanRL that changes nothing here.
    pub(in crate::rl) fn report_flags_without_effect(&self) {
        if self.torch_deterministic.is_some() {
            output::stderr_line("--torch-deterministic: no effect; a run repeats bit for bit");
        }
        if self.cuda == Some(true) && !RuntimeOptions::default().uses_gpus() {
            output::stderr_line("--cuda: no effect; PODRACER_PLATFORM=cuda chooses a GPU");
        }
    }

    /// Returns the seed of evaluation episodes, which differ from those of training.
    pub fn eval_seed(&self) -> u64 {
        self.seed.wrapping_add(1 << 32)
    }

    /// Sets the options with which the environment `env_id` of Gymnasium is made.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for text that is not JSON, and for options of other
    /// environments.
    pub(in crate::rl) fn set_env_options(&self, env_id: &str) -> Result<()> {
        let (kwargs, wrappers) = (self.env_kwargs.as_deref(), self.env_wrappers.as_deref());
        EnvOptions { kwargs, wrappers, timeout: self.env_timeout }.set(env_id)
    }
}
