//! Weights & Biases: the real Python package in a process beside the run, which gets the settings,
//! the scalars, the videos and the model.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::python::{Purpose, Script};
use crate::rl::files;
use crate::rl::settings::options::RunOptions;
use crate::runtime::RuntimeOptions;

const SCRIPT: &str = include_str!("wandb.py");
const PURPOSE: Purpose =
    Purpose { flag: "--track", consequence: "training continues without Weights & Biases" };
/// File in the run's folder with the id of the W&B run, which `--resume` continues.
const ID_FILE: &str = "wandb-id";
/// Number of characters of such an id, as in W&B's own.
const ID_LENGTH: usize = 8;

/// A run in Weights & Biases.
#[derive(Debug)]
pub(in crate::rl) struct Tracker(Script);

impl Tracker {
    /// Starts the process for the run `name` in `dir`, with CleanRL's project, group and
    /// configuration. If that fails, prints the reason and returns `None`.
    pub(in crate::rl) fn start(
        (name, dir): (&str, &Path),
        options: &RunOptions,
        settings: Map<String, Value>,
    ) -> Option<Tracker> {
        let script = Script::start(PURPOSE, SCRIPT, options.json)?;
        let (id, resumed) = run_id(name, dir, options.resume.is_some());
        let init = json!({"trainer": std::process::id(), "init": {
            "project": options.wandb_project_name,
            "entity": options.wandb_entity,
            "group": options.wandb_group,
            "name": name,
            "id": id,
            "resume": resumed.then_some("allow"),
            "config": config(settings),
        }});
        script.send(&init.to_string(), true);
        Some(Tracker(script))
    }

    /// Logs numbers of one timestep. Never waits.
    pub(in crate::rl) fn scalars(&self, values: &[(&str, f64)], step: u64) {
        let mut message = format!("{{\"step\":{step},\"scalars\":{{");
        for (k, (tag, value)) in values.iter().enumerate() {
            let separator = if k == 0 { "" } else { "," };
            let _ = match value {
                // Python's reader of JSON takes these words, JSON does not.
                x if x.is_nan() => write!(message, "{separator}{}:NaN", json!(tag)),
                x if x.is_infinite() && *x > 0.0 => {
                    write!(message, "{separator}{}:Infinity", json!(tag))
                }
                x if x.is_infinite() => write!(message, "{separator}{}:-Infinity", json!(tag)),
                x => write!(message, "{separator}{}:{}", json!(tag), json!(x)),
            };
        }
        message.push_str("}}");
        self.0.send(&message, false);
    }

    /// Uploads a video under `key`.
    pub(in crate::rl) fn video(&self, key: &str, path: &Path, step: u64) {
        self.0.send(&json!({"step": step, "key": key, "video": path}).to_string(), true);
    }

    /// Uploads a file of the folder `base`.
    pub(in crate::rl) fn file(&self, path: &Path, base: &Path) {
        self.0.send(&json!({"save": path, "base": base}).to_string(), true);
    }

    /// Ends the W&B run with this exit code, after all data are sent. Without this call the W&B run
    /// ends as a failed one.
    pub(in crate::rl) fn finish(self, exit_code: i32) {
        self.0.send(&json!({"exit_code": exit_code}).to_string(), true);
        self.0.finish();
    }
}

/// Returns the id of the W&B run, and true if it is that of the run that is resumed.
fn run_id(name: &str, dir: &Path, resume: bool) -> (String, bool) {
    let path = dir.join(ID_FILE);
    let is_id = |text: &str| {
        !text.is_empty() && text.len() <= 64 && text.bytes().all(|c| c.is_ascii_alphanumeric())
    };
    let saved = if resume { files::read(&path).ok() } else { None };
    let saved = saved.and_then(|bytes| String::from_utf8(bytes).ok());
    if let Some(id) = saved.filter(|id| is_id(id)) {
        return (id, true);
    }
    let seed = format!("{name} {} {:?}", std::process::id(), std::time::SystemTime::now());
    let digest = Sha256::digest(seed.as_bytes());
    let letter =
        |byte: &u8| char::from(b"abcdefghijklmnopqrstuvwxyz0123456789"[*byte as usize % 36]);
    let id: String = digest.iter().take(ID_LENGTH).map(letter).collect();
    // Without the file, the run can be resumed, as another one in W&B.
    let _ = files::create(&path).and_then(|mut file| file.write_all(id.as_bytes()));
    (id, false)
}

/// Returns the settings, with the ones that CleanRL's scripts compute at their start.
fn config(mut settings: Map<String, Value>) -> Map<String, Value> {
    let count = |settings: &Map<String, Value>, name: &str| settings.get(name)?.as_u64();
    let batch = |settings: &Map<String, Value>| {
        let batch = count(settings, "num_envs")? * count(settings, "num_steps")?;
        let minibatch = batch / count(settings, "num_minibatches")?.max(1);
        Some((batch, minibatch, count(settings, "total_timesteps")? / batch.max(1)))
    };
    if let Some((batch, minibatch, iterations)) = batch(&settings) {
        for (name, value) in
            [("batch_size", batch), ("minibatch_size", minibatch), ("num_iterations", iterations)]
        {
            settings.entry(name).or_insert(value.into());
        }
    }
    // Runs are deterministic without a flag.
    settings.insert("torch_deterministic".into(), true.into());
    settings.insert("cuda".into(), RuntimeOptions::default().uses_gpus().into());
    settings
}
