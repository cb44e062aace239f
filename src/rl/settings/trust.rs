//! Trust in saved settings: a file from somebody else must not choose Python code that runs.
//!
//! Code that the user has trained with may run again: [`EnvSettings::remember`] writes an empty file
//! into `PODRACER_HOME/trusted`, whose name is a hash of the working folder, the settings and the
//! modules' files in that folder. A run folder has no part in it.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::envs::{self, is_pettingzoo, is_python};
use crate::error::{Error, Result};
use crate::files::private::{PrivateDir, open_regular};
use crate::native::Settings;
use crate::rl::files::shown;
use crate::rl::settings::env_options::EnvOptions;
use crate::rl::settings::options::RunOptions;

/// Flag that permits it.
pub(in crate::rl) const FLAG: &str = "--trust-remote-code";

/// Wrappers of Gymnasium itself, which import no module of somebody else.
const GYMNASIUM_WRAPPERS: &str = "gymnasium.wrappers.";

/// Keyword arguments whose texts are no code: the kind of images, and entries of a Dict.
const PLAIN_KWARGS: [&str; 2] = ["render_mode", "filter_keys"];

/// Most bytes of a module's file; with a larger one, the flag is always needed.
const MAX_MODULE_BYTES: u64 = 1 << 24;

/// Settings from which an environment is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::rl) struct EnvSettings<'a> {
    id: &'a str,
    kwargs: Option<&'a str>,
    wrappers: Option<&'a str>,
}

impl<'a> EnvSettings<'a> {
    /// Returns the settings of the environment `id` of a run with `options`.
    pub(in crate::rl) fn new(id: &'a str, options: &'a RunOptions) -> EnvSettings<'a> {
        EnvSettings {
            id,
            kwargs: options.env_kwargs.as_deref(),
            wrappers: options.env_wrappers.as_deref(),
        }
    }

    /// Checks that these settings, of the file `path`, make an environment without Python code of the
    /// file's choice, unless the user trusts the file or has trained with the same code.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the file, the environment and the flag.
    pub(in crate::rl) fn ensure_trusted(self, path: &Path, is_trusted: bool) -> Result<()> {
        let Some(code) = self.named_code().filter(|_| !is_trusted) else { return Ok(()) };
        if self.is_remembered() {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "{} names the environment {}, {code}\n  help: with {FLAG} that code runs with your \
             permissions; give the flag only if you trust the file's author",
            path.display(),
            shown(self.id)
        )))
    }

    /// Remembers that the user trains with the code that these settings name. Where that cannot be
    /// written, the flag stays needed.
    pub(in crate::rl) fn remember(self) {
        if self.named_code().is_none() {
            return;
        }
        if let (Some(folder), Some(name)) = (records(), self.record()) {
            let _ = PrivateDir::create(&folder).map(|folder| folder.write(&name, &[]));
        }
    }

    fn is_remembered(self) -> bool {
        let (Some(folder), Some(name)) = (records(), self.record()) else { return false };
        match PrivateDir::open(&folder) {
            Ok(Some(folder)) => matches!(folder.file(&name, 0), Ok(Some(_))),
            _ => false,
        }
    }

    /// Returns the name of the record of these settings in this working folder; `None` if its modules
    /// cannot be read.
    fn record(self) -> Option<String> {
        let EnvSettings { id, kwargs, wrappers } = self;
        let folder = std::env::current_dir().and_then(|folder| folder.canonicalize()).ok()?;
        let python = std::env::var("PODRACER_PYTHON").ok();
        let folder_name = folder.to_str()?;
        let mut hash = Sha256::new();
        hash.update(json!([folder_name, python, id, kwargs, wrappers]).to_string());
        for file in self.module_files(&folder) {
            let mut bytes = Vec::new();
            let module = open_regular(&folder.join(&file)).ok()?;
            module.take(MAX_MODULE_BYTES + 1).read_to_end(&mut bytes).ok()?;
            if bytes.len() as u64 > MAX_MODULE_BYTES {
                return None;
            }
            hash.update(json!([file.to_str()?, bytes.len()]).to_string());
            hash.update(bytes);
        }
        Some(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the files below `folder` of modules that these settings name.
    fn module_files(self, folder: &Path) -> BTreeSet<PathBuf> {
        let options =
            EnvOptions { kwargs: self.kwargs, wrappers: self.wrappers, timeout: 0 }.parse();
        let wrappers = options.map(|options| options.wrappers).unwrap_or_default();
        let names = self.id.split(':').chain(wrappers.iter().map(|(name, _)| name.as_str()));
        let mut files = BTreeSet::new();
        for name in names {
            let mut module = PathBuf::new();
            for part in name.split(['.', ':']) {
                module.push(part);
                files.extend([module.with_added_extension("py"), module.join("__init__.py")]);
            }
        }
        files.retain(|file| folder.join(file).exists());
        files
    }

    /// Describes the Python code that these settings name; `None` if they name none.
    fn named_code(self) -> Option<String> {
        let EnvSettings { id, kwargs, wrappers } = self;
        if envs::is_registered(id) || !is_python(id) {
            return None;
        }
        let (_, own_id) = id.split_once(':').unwrap_or_default();
        let module = own_id.split_once(':').map(|(module, _)| module);
        if let Some(module) = module.or_else(|| is_pettingzoo(id).then_some(own_id)) {
            return Some(format!("for which Python imports the module {}", shown(module)));
        }
        let Ok(options) = (EnvOptions { kwargs, wrappers, timeout: 0 }).parse() else {
            return Some("with arguments or wrappers that are not JSON".into());
        };
        for (wrapper, kwargs) in &options.wrappers {
            let known = wrapper.strip_prefix(GYMNASIUM_WRAPPERS);
            if known.is_none_or(|name| name.contains(['.', ':'])) || kwargs.values().any(has_text) {
                return Some(format!("for which Python calls the wrapper {}", shown(wrapper)));
            }
        }
        let mut kwargs = options.kwargs.iter();
        let (name, value) = kwargs
            .find(|(name, value)| !PLAIN_KWARGS.contains(&name.as_str()) && has_text(value))?;
        let value = shown(&value.to_string());
        Some(format!("whose argument {}={value} may name a file or a module", shown(name)))
    }
}

/// Returns the folder of the records.
fn records() -> Option<PathBuf> {
    Settings::from_env().ok().map(|settings| settings.home.join("trusted"))
}

/// Returns true for a text, or a value that contains one; the names in an object are texts.
fn has_text(value: &Value) -> bool {
    match value {
        Value::String(_) => true,
        Value::Array(values) => values.iter().any(has_text),
        Value::Object(values) => !values.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: &str, kwargs: Option<&str>, wrappers: Option<&str>) -> Option<String> {
        EnvSettings { id, kwargs, wrappers }.named_code()
    }

    #[test]
    fn environments_of_known_registries_name_no_code() {
        for id in ["CartPole-v1", "ALE/Pong-v5", "MinAtar/Breakout-v1", "jax:folder"] {
            assert_eq!(named(id, None, None), None, "{id}");
        }
        for (kwargs, wrappers) in [
            (None, None),
            (Some(r#"{"gravity": -5.0, "sizes": [1, 2], "render_mode": "rgb_array"}"#), None),
            (None, Some("gymnasium.wrappers.FlattenObservation")),
            (None, Some(r#"[["gymnasium.wrappers.FrameStackObservation", {"stack_size": 4}]]"#)),
        ] {
            assert_eq!(named("gymnasium:LunarLander-v3", kwargs, wrappers), None, "{wrappers:?}");
        }
    }

    #[test]
    fn code_that_settings_name_is_found() {
        for (id, kwargs, wrappers) in [
            ("pettingzoo:subprocess:Popen", None, None),
            ("pettingzoo:mpe2.simple_spread_v3", None, None),
            ("gymnasium:my_envs:Corridor-v0", None, None),
            ("gymnasium:CartPole-v1", None, Some("os.system")),
            ("gymnasium:CartPole-v1", None, Some("gymnasium.wrappers.A,os:system")),
            ("gymnasium:CartPole-v1", None, Some("gymnasium.wrappers.common.os.system")),
            (
                "gymnasium:CartPole-v1",
                None,
                Some(r#"[["gymnasium.wrappers.RecordVideo", {"video_folder": "/x"}]]"#),
            ),
            ("gymnasium:CartPole-v1", None, Some("[")),
            ("gymnasium:CartPole-v1", Some("["), None),
            ("gymnasium:GymV26Environment-v0", Some(r#"{"env_id": "os:x"}"#), None),
            ("gymnasium:A-v0", Some(r#"{"a": 1, "a": [[0, "os:x"]]}"#), None),
        ] {
            assert!(named(id, kwargs, wrappers).is_some(), "{id} {kwargs:?} {wrappers:?}");
        }
    }

    #[test]
    fn the_error_names_file_environment_and_flag() {
        let env = EnvSettings { id: "pettingzoo:subprocess:Popen", kwargs: None, wrappers: None };
        let error = env.ensure_trusted(Path::new("a.safetensors"), false).unwrap_err().to_string();
        for part in ["a.safetensors", "pettingzoo:subprocess:Popen", FLAG] {
            assert!(error.contains(part), "{error}");
        }
        env.ensure_trusted(Path::new("a.safetensors"), true).unwrap();
    }
}
