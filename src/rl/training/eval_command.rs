//! Command `eval`: evaluates the model of a run. `podracer eval` supports the algorithms of this
//! crate, `PROGRAM eval` the algorithm of a program.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Parser};

use crate::error::{Error, Result};
use crate::rl::algorithm::{self, Algorithm};
use crate::rl::evaluation::Evaluation;
use crate::rl::saved::{CHECKPOINT, Origin};
use crate::rl::{checkpoint, flags};

/// Flags of `eval`.
#[derive(Debug, Clone, Args)]
pub struct EvalOptions {
    /// Folder of the run, or file of a model
    #[arg(long)]
    pub run: PathBuf,
    /// Number of episodes
    #[arg(long, default_value_t = 10)]
    pub episodes: usize,
    /// Write a video of each episode into this folder
    #[arg(long)]
    pub capture_video: Option<PathBuf>,
}

/// Evaluates a saved model
#[derive(Debug, Parser)]
struct EvalCommand {
    #[command(flatten)]
    options: EvalOptions,
}

impl EvalOptions {
    /// Evaluates the model with `play` and returns the text of the result.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no model to evaluate, and the errors of `play`.
    pub fn evaluate(
        &self,
        play: impl FnOnce(&Path, &Origin, &mut Evaluation) -> Result<()>,
    ) -> Result<String> {
        let model = model_in(&self.run)?;
        let origin = Origin::read(&model)?;
        if origin.place.is_some() {
            return Err(Error::Argument(format!(
                "{} is a checkpoint, from which --resume continues; --save-model saves a model",
                model.display()
            )));
        }
        let mut evaluation = Evaluation::new(self.episodes);
        if let Some(folder) = &self.capture_video {
            evaluation = evaluation.filmed(folder)?;
        }
        play(&model, &origin, &mut evaluation)?;
        let env_id = origin.settings.get("env_id").and_then(|id| id.as_str()).unwrap_or("?");
        let Some((mean, std)) = evaluation.mean_and_std() else {
            return Ok(format!("{} on {env_id}: no episode\n", origin.algorithm));
        };
        let returns: Vec<String> = evaluation.returns.iter().map(|x| format!("{x:.1}")).collect();
        Ok(format!(
            "{} on {env_id}, {} episodes: {mean:.2} +- {std:.2}\n{}\n",
            origin.algorithm,
            evaluation.returns.len(),
            returns.join(" ")
        ))
    }
}

/// Evaluates a model that `A` saved, with the settings of its run.
///
/// # Errors
/// [`Error::Argument`] for the model of another algorithm, and the errors of [`Algorithm::play`].
pub fn play_saved<A: Algorithm>(
    path: &Path,
    origin: &Origin,
    evaluation: &mut Evaluation,
) -> Result<()> {
    origin.expect(A::NAME, path)?;
    let words = [A::NAME.into()].into_iter().chain(origin.flags());
    let args: A = flags::parse_from(words)
        .map_err(|error| Error::Argument(format!("the settings in {}: {error}", path.display())))?;
    origin.expect_settings_of(&args, path)?;
    algorithm::check(&args)?;
    args.play(&checkpoint::load(path)?, evaluation)
}

/// Runs `eval` of a program that has the one algorithm `A`; `args` follow the word `eval`.
///
/// # Errors
/// Returns clap's errors as the outer result, those of the evaluation as the inner one.
pub(in crate::rl) fn eval_own<A: Algorithm>(
    program: OsString,
    args: impl IntoIterator<Item = OsString>,
) -> std::result::Result<Result<String>, clap::Error> {
    let name = format!("{} eval", Path::new(&program).file_name().unwrap_or(&program).display());
    let command = flags::parse_from::<EvalCommand>([name.into()].into_iter().chain(args))?;
    Ok(command.options.evaluate(play_saved::<A>))
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
        (None, _) => Err(Error::Argument(format!(
            "{} has no model; --save-model saves one at the end of training",
            run.display()
        ))),
        (Some(_), false) => Err(Error::Argument(format!(
            "{} has several models; name the file with --run",
            run.display()
        ))),
    }
}
