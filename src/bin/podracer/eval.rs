//! `podracer eval`: a saved model plays.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use podracer::algos::registry;
use podracer::error::{Error, Result};
use podracer::rl::Evaluation;
use podracer::rl::saved::CHECKPOINT;

#[derive(Debug, Args)]
pub struct Settings {
    /// The run's folder, or a model's file
    #[arg(long)]
    run: PathBuf,
    /// Episodes to play
    #[arg(long, default_value_t = 10)]
    episodes: usize,
    /// Write a film of each episode into this folder
    #[arg(long)]
    capture_video: Option<PathBuf>,
}

pub fn eval(settings: &Settings) -> Result<String> {
    let model = model_in(&settings.run)?;
    let mut evaluation = Evaluation::new(settings.episodes);
    if let Some(folder) = &settings.capture_video {
        evaluation = evaluation.filmed(folder)?;
    }
    let origin = registry::play(&model, &mut evaluation)?;
    let env_id = origin.settings.get("env_id").and_then(|id| id.as_str()).unwrap_or("?");
    let (mean, std) = super::mean_and_std(&evaluation.returns);
    let returns: Vec<String> = evaluation.returns.iter().map(|x| format!("{x:.1}")).collect();
    Ok(format!(
        "{} on {env_id}, {} episodes: {mean:.2} +- {std:.2}\n{}\n",
        origin.algorithm,
        evaluation.returns.len(),
        returns.join(" ")
    ))
}

/// The model in a run's folder.
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
            "{} has no model; --save-model saves one at the end of the training",
            run.display()
        ))),
        (Some(_), false) => Err(Error::Argument(format!(
            "{} has several models; name the file with --run",
            run.display()
        ))),
    }
}
