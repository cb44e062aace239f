//! Command `eval`: evaluates the model of a run. `podracer eval` supports the algorithms of this
//! crate, `PROGRAM eval` the algorithm of a program.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Parser};

use crate::error::{Error, Result};
use crate::rl::checkpoint::saved::{CHECKPOINT, SavedMetadata};
use crate::rl::policy::evaluation::Evaluation;

/// Flags of `eval`.
#[derive(Debug, Clone, Args)]
pub struct EvalOptions {
    /// Folder of the run, or file of a model
    #[arg(long)]
    pub run: Option<PathBuf>,
    /// Number of episodes
    #[arg(long, default_value = "10")]
    pub episodes: usize,
    /// Write a video of each episode into this folder
    #[arg(long)]
    pub capture_video: Option<PathBuf>,
    /// Import the Python modules that the settings of the model name
    #[arg(long, default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub trust_remote_code: bool,
}

/// Evaluates a saved model
#[derive(Debug, Parser)]
pub(in crate::rl) struct EvalCommand {
    #[command(flatten)]
    pub(in crate::rl) options: EvalOptions,
}

impl EvalOptions {
    /// Evaluates the model with `play` and returns the text of the result.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no model to evaluate, and the errors of `play`.
    pub fn evaluate(
        &self,
        play: impl FnOnce(&Path, &SavedMetadata, &mut Evaluation) -> Result<()>,
    ) -> Result<String> {
        let Some(run) = &self.run else {
            return Err(Error::Argument("eval needs --run, the folder of a run".into()));
        };
        let (model, metadata) = saved_model(run, self.trust_remote_code)?;
        let mut evaluation = self.evaluation()?;
        play(&model, &metadata, &mut evaluation)?;
        let env_id = metadata.settings.get("env_id").and_then(|id| id.as_str()).unwrap_or("?");
        Ok(report(&metadata.algorithm, env_id, &evaluation))
    }

    /// Returns an evaluation without episodes, of as many as these options ask for.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder for videos cannot be created.
    pub fn evaluation(&self) -> Result<Evaluation> {
        let evaluation = Evaluation::new(self.episodes);
        match &self.capture_video {
            None => Ok(evaluation),
            Some(folder) => evaluation.filmed(folder),
        }
    }
}

/// Returns the text of the result of an evaluation of `policy`.
pub fn report(policy: &str, env_id: &str, evaluation: &Evaluation) -> String {
    let Some((mean, std)) = evaluation.mean_and_std() else {
        return format!("{policy} on {env_id}: no episode\n");
    };
    let returns: Vec<String> = evaluation.returns.iter().map(|x| format!("{x:.1}")).collect();
    let result = match returns.len() {
        1 => format!("1 episode: {mean:.2}"),
        count => format!("{count} episodes: {mean:.2} +- {std:.2}"),
    };
    format!("{policy} on {env_id}, {result}\n{}\n", returns.join(" "))
}

/// Returns the path of the model in a run's folder, or of the file itself, and its metadata;
/// `is_trusted` permits the Python code that its settings name.
///
/// # Errors
/// [`Error::File`] if there is no model, and errors of reading it.
pub(crate) fn saved_model(run: &Path, is_trusted: bool) -> Result<(PathBuf, SavedMetadata)> {
    let model = model_in(run)?;
    let metadata = SavedMetadata::read(&model)?;
    if metadata.run_state.is_some() {
        return Err(Error::File(format!(
            "{} is a checkpoint, from which --resume continues; --save-model saves a model",
            model.display()
        )));
    }
    Ok((model, metadata.with_trust(is_trusted)))
}

/// Returns the path of the model in a run's folder.
fn model_in(run: &Path) -> Result<PathBuf> {
    if !run.is_dir() {
        return Ok(run.to_path_buf());
    }
    let files = fs::read_dir(run).map_err(Error::io("cannot read", run))?;
    let mut models: Vec<PathBuf> = files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|x| x == "safetensors"))
        .filter(|path| path.file_name().is_some_and(|name| name != CHECKPOINT))
        .collect();
    match (models.pop(), models.is_empty()) {
        (Some(model), true) => Ok(model),
        (None, _) => Err(Error::File(format!(
            "{} has no model; --save-model saves one at the end of training",
            run.display()
        ))),
        (Some(_), false) => Err(Error::File(format!(
            "{} has several models; name the file with --run",
            run.display()
        ))),
    }
}
