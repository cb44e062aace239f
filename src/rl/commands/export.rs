//! Command `export`: writes the policy of a run for other programs. `podracer export` supports the
//! algorithms of this crate, `PROGRAM export` the algorithm of a program.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, ValueEnum};

use crate::error::{Error, Result};
use crate::rl::checkpoint::saved::SavedMetadata;
use crate::rl::commands::eval::saved_model;
use crate::rl::policy::Policy;

/// Format of an exported policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Artifact of `jax.export`: `policy.jaxexport`
    Jax,
    /// Text of a StableHLO module: `policy.mlir`
    Stablehlo,
    /// ONNX file, for batches of any size: `policy.onnx`
    Onnx,
}

impl ExportFormat {
    /// Returns the name of the file, the bytes of a policy of `algorithm` in this format, and the number
    /// of observations per call, unless the file has it open.
    fn encode(
        self,
        policy: &Policy,
        algorithm: &str,
        batch_size: usize,
    ) -> Result<(&'static str, Vec<u8>, Option<usize>)> {
        let name = &format!("{algorithm}_policy");
        Ok(match self {
            ExportFormat::Jax => {
                let bytes = policy.exported(name, batch_size)?.to_bytes();
                ("policy.jaxexport", bytes, Some(batch_size))
            }
            ExportFormat::Stablehlo => {
                let module = policy.stablehlo(name, batch_size)?;
                ("policy.mlir", module.into_bytes(), Some(batch_size))
            }
            ExportFormat::Onnx => {
                let algorithm = [("algorithm", algorithm.to_string())];
                ("policy.onnx", policy.onnx(name, &algorithm)?, None)
            }
        })
    }
}

/// Flags of `export`.
#[derive(Debug, Clone, Args)]
pub struct ExportOptions {
    /// Folder of the run, or file of a model
    #[arg(long)]
    pub run: PathBuf,
    /// Folder for the files; without it, the folder of the model
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Formats to write; without it, all
    #[arg(long, value_enum, value_delimiter = ',')]
    pub format: Vec<ExportFormat>,
    /// Number of observations per call, for `jax` and `stablehlo`
    #[arg(long, default_value = "1")]
    pub batch_size: usize,
}

/// Writes the policy of a run as an artifact of `jax.export`, as StableHLO text and as ONNX
#[derive(Debug, Parser)]
pub(in crate::rl) struct ExportCommand {
    #[command(flatten)]
    pub(in crate::rl) options: ExportOptions,
}

impl ExportOptions {
    /// Writes the files of the policy that `policy` returns for the model, and returns the text of
    /// the result.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no model, or if the policy cannot be written in a format;
    /// [`Error::Io`], and the errors of `policy`.
    pub fn export(
        &self,
        policy: impl FnOnce(&Path, &SavedMetadata) -> Result<Policy>,
    ) -> Result<String> {
        let (model, metadata) = saved_model(&self.run, false)?;
        let policy = policy(&model, &metadata)?;
        self.write(&policy, &model, &metadata)
    }

    /// Writes the files of the policy of a model, and returns the text of the result.
    fn write(&self, policy: &Policy, model: &Path, metadata: &SavedMetadata) -> Result<String> {
        let folder = match &self.out {
            Some(out) => out.as_path(),
            None => model.parent().unwrap_or(Path::new("")),
        };
        fs::create_dir_all(folder).map_err(Error::io("cannot create", folder))?;
        let all = ExportFormat::value_variants();
        let formats = if self.format.is_empty() { all } else { &self.format };
        let env_id = metadata.settings.get("env_id").and_then(|id| id.as_str()).unwrap_or("?");
        let mut text = format!("{} on {env_id}\n", metadata.algorithm);
        let _ = writeln!(text, "  takes {}", policy.inputs().join(", "));
        let _ = writeln!(text, "  gives {}", policy.outputs()?.join(", "));
        for &format in formats {
            let (file_name, bytes, batch) =
                format.encode(policy, &metadata.algorithm, self.batch_size)?;
            let file = folder.join(file_name);
            fs::write(&file, bytes).map_err(Error::io("cannot write", &file))?;
            let batch = batch.map_or("B is any size".into(), |batch| format!("B is {batch}"));
            let _ = writeln!(text, "{}: {batch}", file.display());
        }
        Ok(text)
    }
}
