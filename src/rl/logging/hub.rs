//! Hugging Face Hub: uploads of saved models by the real Python package.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::python::{Purpose, Script};
use crate::rl::settings::options::RunOptions;

const SCRIPT: &str = include_str!("hub.py");
const PURPOSE: Purpose =
    Purpose { flag: "--upload-model", consequence: "the model stays in the run's folder" };

/// A saved model to be uploaded.
pub(in crate::rl) struct SavedModel<'a> {
    /// Name of the algorithm.
    pub(in crate::rl) algorithm: &'a str,
    /// Name of the experiment.
    pub(in crate::rl) exp_name: &'a str,
    /// Id of the environment.
    pub(in crate::rl) env_id: &'a str,
    /// Name of the run.
    pub(in crate::rl) run: &'a str,
    /// File of the model.
    pub(in crate::rl) path: &'a Path,
    /// Returns of the evaluation.
    pub(in crate::rl) returns: &'a [f64],
}

/// Uploads the model with its event file and videos into CleanRL's repository
/// `{env_id}-{exp_name}-seed{seed}` of `--hf-entity`, or of the logged-in user. Waits for the end;
/// a failure is printed.
pub(in crate::rl) fn upload(
    model: &SavedModel<'_>,
    options: &RunOptions,
    settings: Map<String, Value>,
) {
    let Some(script) = Script::start(PURPOSE, SCRIPT, options.json) else { return };
    let folder = model.path.parent().unwrap_or(Path::new("."));
    let name = repo_name(&format!("{}-{}-seed{}", model.env_id, model.exp_name, options.seed));
    let repo_id = match options.hf_entity.as_str() {
        "" => name,
        entity => format!("{entity}/{name}"),
    };
    let message = json!({
        "repo_id": repo_id,
        "folder": folder,
        "files": files(folder, model.path),
        "algorithm": model.algorithm,
        "env_id": model.env_id,
        "name": model.run,
        "returns": model.returns,
        "settings": settings,
    });
    script.send(&message.to_string(), true);
    script.finish();
}

/// Returns `name` in the characters that the Hub accepts: letters, digits, `_`, and single `-` and `.`
/// inside.
fn repo_name(name: &str) -> String {
    let mut valid = String::new();
    for c in name.chars() {
        let c = if c.is_ascii_alphanumeric() || matches!(c, '_' | '.') { c } else { '-' };
        if c.is_ascii_alphanumeric() || c == '_' || !valid.ends_with(['-', '.']) {
            valid.push(c);
        }
    }
    valid.trim_matches(['-', '.']).to_string()
}

/// Returns the paths in `folder` of the model, of its metadata, of event files and of videos; the
/// model comes first.
fn files(folder: &Path, model: &Path) -> Vec<String> {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let mut names: Vec<String> =
            files.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    };
    let model = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let metadata = Path::new(&model).with_extension("json").to_string_lossy().into_owned();
    let own = names(folder)
        .into_iter()
        .filter(|name| *name == metadata || name.starts_with("events.out.tfevents."));
    let own = [model].into_iter().chain(own);
    own.chain(names(&folder.join("videos")).iter().map(|name| format!("videos/{name}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::repo_name;

    #[test]
    fn names_of_repositories_are_valid() {
        for (name, expected) in [
            ("CartPole-v1-ppo-seed1", "CartPole-v1-ppo-seed1"),
            ("ALE/Pong-v5-dqn_atari-seed1", "ALE-Pong-v5-dqn_atari-seed1"),
            ("gymnasium:my_envs:A-v0-ppo-seed1", "gymnasium-my_envs-A-v0-ppo-seed1"),
            ("A--b..c.-d e-seed1", "A-b.c.d-e-seed1"),
        ] {
            assert_eq!(repo_name(name), expected);
        }
    }
}
