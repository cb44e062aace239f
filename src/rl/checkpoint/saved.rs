//! Files that a run saves: its model, and checkpoints from which it is resumed as if it had never
//! stopped.
//!
//! `{exp_name}.safetensors` is the model; `checkpoint.safetensors` also holds the replay buffer,
//! the environments, PRNG keys, the returns of the last episodes and the length of the event file.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::array::Array;
use crate::envs::{Camera, EnvPool, EnvSpec, XlaPool};
use crate::error::{Error, Result};
use crate::jit::{Mode, effects_barrier, jit};
use crate::random::Key;
use crate::rl::checkpoint::saved_spec::SavedSpec;
use crate::rl::checkpoint::{self, Checkpoint};
use crate::rl::files::{plain_name, shown};
use crate::rl::returns::{MAX_STEPS, Returns, null_is_nan};
use crate::rl::settings::shared_flags;
use crate::trace::literal::AlignedBytes;
use crate::trace::{DType, Literal, Tensor, TensorType};
use crate::tree::{self, Tree};

/// Name of a run's last checkpoint in the run's folder.
pub const CHECKPOINT: &str = "checkpoint.safetensors";
/// Maximum length of a setting as a flag, in bytes: the maximum path length of Linux.
const MAX_SETTING: usize = 4096;
/// Suffix of the names of models and checkpoints.
pub(in crate::rl) const MODEL: &str = ".safetensors";
/// Prefix of the names of event files, as in TensorBoard.
const EVENT_FILE: &str = "events.out.tfevents.";
/// Maximum duration of a run, in seconds: 31 years.
const MAX_SECONDS: f64 = 1e9;
/// Version of the file format.
const FORMAT: u32 = 1;
/// Metadata of a saved model or run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedMetadata {
    format: u32,
    /// Version of this crate that saved it.
    pub version: String,
    /// Name of the algorithm.
    pub algorithm: String,
    /// All settings.
    pub settings: Map<String, Value>,
    /// Progress of the run, which older files call `place`; `None` for a model.
    #[serde(default, alias = "place")]
    pub run_state: Option<RunState>,
    /// Specification of the environment; `None` for a checkpoint, and for models of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_spec: Option<SavedSpec>,
    /// True if the user permits the Python code that the settings name; no file sets it.
    #[serde(skip)]
    is_trusted: bool,
}

/// Progress of a run between two calls of its program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Number of timesteps so far.
    pub global_step: u64,
    /// Seconds so far.
    pub wall_s: f64,
    /// Returns of the last episodes.
    #[serde(deserialize_with = "null_is_nan")]
    pub returns: VecDeque<f64>,
    /// Number of episodes that ended.
    pub episodes: u64,
    /// Name of the event file.
    pub events: String,
    /// Number of its bytes that were written.
    pub events_length: u64,
    /// Additional host state of the training loop, which older files call `notes`.
    #[serde(default, alias = "notes")]
    pub extra_state: Value,
}

impl SavedMetadata {
    /// Creates the metadata of a model or run with these settings.
    ///
    /// # Errors
    /// [`Error::Config`] if they are not a struct of plain values.
    pub fn of(
        algorithm: &str,
        args: &impl Serialize,
        run_state: Option<RunState>,
    ) -> Result<SavedMetadata> {
        Ok(SavedMetadata {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_string(),
            algorithm: algorithm.to_string(),
            settings: settings(args)?,
            run_state,
            env_spec: None,
            is_trusted: false,
        })
    }

    /// Returns the metadata with the specification of the environment, if it has a form in JSON.
    pub(in crate::rl) fn with_spec(self, spec: Option<&EnvSpec>) -> SavedMetadata {
        SavedMetadata { env_spec: spec.and_then(SavedSpec::new), ..self }
    }

    /// Returns the specification of the environment.
    ///
    /// # Errors
    /// [`Error::File`] for a model that does not record it, or not in the form of a specification.
    pub(in crate::rl) fn spec(&self, path: &Path) -> Result<EnvSpec> {
        let path = path.display();
        let Some(saved) = self.env_spec.clone() else {
            return Err(Error::File(format!(
                "{path} does not record the spaces of its environment: an older version saved it\n  help: \
                 train again"
            )));
        };
        let id = self.settings.get("env_id").and_then(Value::as_str).unwrap_or("?");
        let spec = saved.spec(id);
        spec.map_err(|error| Error::File(format!("{path}: {}", shown(&error.to_string()))))
    }

    /// Reads the metadata of a saved model or run, without the arrays.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read; [`Error::File`] if it was not saved by a run,
    /// or by another version of this crate.
    pub fn read(path: &Path) -> Result<SavedMetadata> {
        let metadata: SavedMetadata = checkpoint::load_metadata(path)?;
        if metadata.format != FORMAT {
            return Err(Error::File(format!(
                "{} is of format {}, and this version reads format {FORMAT}: use podracer {}, \
                 which saved it",
                path.display(),
                metadata.format,
                shown(&metadata.version)
            )));
        }
        // Settings become flags, which error messages repeat.
        let long = |(name, value): &(&String, &Value)| {
            flag(name, value).is_some_and(|flag| flag.len() > MAX_SETTING)
        };
        if let Some((name, _)) = metadata.settings.iter().find(long) {
            return Err(Error::File(format!(
                "{}: the setting `{}` is longer than {MAX_SETTING} bytes",
                path.display(),
                shown(name)
            )));
        }
        Ok(metadata)
    }

    /// Returns the metadata with the user's decision on the Python code that the settings name.
    pub(in crate::rl) fn with_trust(self, is_trusted: bool) -> SavedMetadata {
        SavedMetadata { is_trusted, ..self }
    }

    /// Returns true if the user permits the Python code that the settings name.
    pub(in crate::rl) fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// Checks that `algorithm` saved the file.
    ///
    /// # Errors
    /// [`Error::File`] that names both algorithms.
    pub fn ensure_algorithm(&self, algorithm: &str, path: &Path) -> Result<()> {
        if self.algorithm == algorithm {
            return Ok(());
        }
        Err(Error::File(format!(
            "{} was saved by {}, and this is {algorithm}",
            path.display(),
            shown(&self.algorithm)
        )))
    }

    /// Returns the progress of the run.
    ///
    /// # Errors
    /// [`Error::File`] for a model.
    pub fn run_state(self, path: &Path) -> Result<RunState> {
        self.run_state.ok_or_else(|| {
            Error::File(format!(
                "{} is a model, from which a run cannot go on; --checkpoint-frequency writes \
                 checkpoints",
                path.display()
            ))
        })
    }

    /// Like [`run_state`](SavedMetadata::run_state), and checks that a run can have written every field.
    ///
    /// # Errors
    /// [`Error::File`] that names the field.
    pub(in crate::rl) fn checked_run_state(self, path: &Path) -> Result<RunState> {
        let total = self.settings.get("total_timesteps").and_then(Value::as_u64);
        let run_state = self.run_state(path)?;
        run_state.ensure_possible(total.unwrap_or(MAX_STEPS)).map_err(|problem| {
            let path = path.display();
            Error::File(format!("{path} is damaged, or no run of this library wrote it: {problem}"))
        })?;
        Ok(run_state)
    }

    /// Checks that all saved settings are among the settings `known`. Settings become flags, and a file
    /// from outside could otherwise set flags that no run saves, such as the file of a secret.
    ///
    /// # Errors
    /// [`Error::File`] that names the first that is not.
    pub(crate) fn ensure_known(&self, known: &Map<String, Value>, path: &Path) -> Result<()> {
        match self.settings.keys().find(|name| !known.contains_key(*name)) {
            None => Ok(()),
            Some(name) => Err(Error::File(format!(
                "{}: {} has no setting `{}`",
                path.display(),
                self.algorithm,
                shown(name)
            ))),
        }
    }

    /// Returns the settings as a command line, except those that only affect output. A file from
    /// somebody else must not choose an account to which a run is sent.
    pub fn flags(&self) -> Vec<OsString> {
        let given = self.settings.iter().filter(|(name, _)| shared_flags::is_restored(name));
        given.filter_map(|(name, value)| flag(name, value)).collect()
    }
}

/// Checks that the settings `now` of a resumed run are those with which it `began`, except those that do
/// not affect what is learned, and `total_timesteps`. `path` is the file of its checkpoint.
///
/// # Errors
/// [`Error::Config`] that names the first flag that differs.
pub(in crate::rl) fn ensure_same_settings(
    now: &Map<String, Value>,
    began: &Map<String, Value>,
    path: &Path,
) -> Result<()> {
    for (name, value) in now {
        let free = shared_flags::is_overridable(name) || name == "total_timesteps";
        if !free && began.get(name) != Some(value) {
            let before = began.get(name).unwrap_or(&Value::Null);
            return Err(Error::Config(format!(
                "--{} {value}: the run of {} began with {before}; leave the flag out to resume the run",
                name.replace('_', "-"),
                path.display()
            )));
        }
    }
    Ok(())
}

impl RunState {
    /// Checks that a run of `total` timesteps can have reached this state.
    fn ensure_possible(&self, total: u64) -> std::result::Result<(), String> {
        if self.global_step > total.min(MAX_STEPS) {
            let step = self.global_step;
            return Err(format!("global_step is {step}, and the run has {total} timesteps"));
        }
        if !(0.0..=MAX_SECONDS).contains(&self.wall_s) {
            return Err(format!("wall_s is {}; expected 0 to {MAX_SECONDS:e}", self.wall_s));
        }
        let returns = Returns::of(self.returns.clone(), self.episodes);
        returns.ensure_possible().map_err(|problem| format!("there are {problem}"))?;
        let named = self.events.starts_with(EVENT_FILE) && plain_name(&self.events);
        if !named {
            return Err(format!(
                "the event file is called \"{}\"; expected one name that begins with {EVENT_FILE}",
                shown(&self.events)
            ));
        }
        Ok(())
    }
}

/// Returns true for a setting that can change what a run learns; names of settings have underscores.
pub fn affects_training(setting: &str) -> bool {
    setting != "exp_name" && !shared_flags::is_overridable(setting)
}

/// Returns the settings as JSON.
pub(in crate::rl) fn settings(args: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(args) {
        Ok(Value::Object(settings)) => Ok(settings),
        Ok(other) => Err(Error::Config(format!("the settings of a run must be a struct: {other}"))),
        Err(error) => Err(Error::Config(format!("the settings of a run: {error}"))),
    }
}

/// Returns `--name=value`; `None` for settings without a value.
fn flag(name: &str, value: &Value) -> Option<OsString> {
    let value = match value {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        Value::Array(values) => {
            let words = values.iter().map(|v| v.as_str().map_or(v.to_string(), str::to_string));
            words.collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    };
    Some(format!("--{}={value}", name.replace('_', "-")).into())
}

/// Returns the path of a run's checkpoint; `run` is its folder, or the file itself.
pub(crate) fn checkpoint_in(run: &Path) -> PathBuf {
    if run.is_dir() { run.join(CHECKPOINT) } else { run.to_path_buf() }
}

/// Environments of a run, for saving to and restoring from a checkpoint: one pool or several, or `()`
/// for traced environments, whose states are part of the program's state.
pub trait Envs {
    /// Returns the states of all environments.
    ///
    /// # Errors
    /// Returns errors of environments that cannot be saved.
    fn states(self) -> Result<Vec<Vec<u8>>>;

    /// Restores the states.
    ///
    /// # Errors
    /// Returns errors of environments that do not accept a state.
    fn put_back(self, states: &[&[u8]]) -> Result<()>;

    /// Returns the specification of the environments, which a saved model records; `None` if it is not
    /// known here.
    fn spec(&self) -> Option<EnvSpec> {
        None
    }

    /// Returns false if the first environment cannot be rendered.
    ///
    /// # Errors
    /// Returns errors of the environments.
    fn renders(&mut self) -> Result<bool> {
        Ok(true)
    }

    /// Films the first environment from now on; traced environments are not filmed.
    ///
    /// # Errors
    /// Returns errors of the environments.
    fn film(&mut self, _camera: Box<dyn Camera>) -> Result<()> {
        Ok(())
    }
}

impl Envs for &mut EnvPool {
    fn spec(&self) -> Option<EnvSpec> {
        Some(EnvPool::spec(self).clone())
    }

    fn states(self) -> Result<Vec<Vec<u8>>> {
        (0..self.num_envs()).map(|env| self.save(env)).collect()
    }

    fn put_back(self, states: &[&[u8]]) -> Result<()> {
        if states.len() != self.num_envs() {
            return Err(Error::Argument(format!(
                "{} environments were saved, and there are {}",
                states.len(),
                self.num_envs()
            )));
        }
        states.iter().enumerate().try_for_each(|(env, state)| self.restore(env, state))
    }

    fn renders(&mut self) -> Result<bool> {
        Ok(self.render(0)?.is_some())
    }

    fn film(&mut self, camera: Box<dyn Camera>) -> Result<()> {
        EnvPool::film(self, 0, camera)
    }
}

impl Envs for &XlaPool {
    fn spec(&self) -> Option<EnvSpec> {
        Some(XlaPool::spec(self).clone())
    }

    fn states(self) -> Result<Vec<Vec<u8>>> {
        if self.is_traced() {
            return ().states(); // the handle has them
        }
        effects_barrier()?;
        let states = (0..self.num_pools()).map(|k| (&mut *self.pool(k)).states());
        Ok(states.collect::<Result<Vec<_>>>()?.concat())
    }

    fn put_back(self, states: &[&[u8]]) -> Result<()> {
        if self.is_traced() {
            return ().put_back(states);
        }
        effects_barrier()?;
        let num_envs = self.pool(0).num_envs();
        let all = num_envs * self.num_pools();
        if states.len() != all {
            let saved = states.len();
            return Err(Error::Argument(format!(
                "{saved} environments were saved, and there are {all}"
            )));
        }
        let mut pools = states.chunks(num_envs).enumerate();
        pools.try_for_each(|(k, states)| (&mut *self.pool(k)).put_back(states))
    }

    fn renders(&mut self) -> Result<bool> {
        effects_barrier()?;
        Ok(self.pool(0).render(0)?.is_some())
    }

    fn film(&mut self, camera: Box<dyn Camera>) -> Result<()> {
        effects_barrier()?;
        self.pool(0).film(0, camera)
    }
}

impl Envs for () {
    fn states(self) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn put_back(self, _: &[&[u8]]) -> Result<()> {
        Ok(())
    }
}

/// Writes a checkpoint: the arrays of `state` by their paths, and the environments.
///
/// # Errors
/// Returns the errors of [`checkpoint::save`] and of the environments.
pub(in crate::rl) fn write<S: Tree<Array>>(
    path: &Path,
    state: &S,
    envs: impl Envs,
    metadata: &SavedMetadata,
) -> Result<()> {
    let states = envs.states()?;
    let literals = tree::leaves(state).into_iter().map(|x| Ok(x.to_literal()?.dense()));
    let literals = literals.collect::<Result<Vec<Literal>>>()?;
    let bytes: Vec<_> = literals.iter().map(Literal::bytes).collect();
    let leaves = tree::paths(state).into_iter().zip(literals.iter().zip(&bytes));
    let mut arrays: Vec<(String, TensorType, &[u8])> = leaves
        .map(|(name, (value, bytes))| (name, value.ty().clone(), (**bytes).as_ref()))
        .collect();
    for (k, state) in states.iter().enumerate() {
        arrays.push((env_name(k), TensorType::new(DType::U8, [state.len()]), state));
    }
    checkpoint::save(path, &arrays, metadata)
}

/// Returns the name of the state of environment `k`.
fn env_name(k: usize) -> String {
    format!("envs[{k}]")
}

/// Reads the checkpoint `path`, which has `metadata`, into a state of the structure of `fresh`, which
/// is dropped.
///
/// # Errors
/// [`Error::File`], [`Error::Argument`] or [`Error::Config`] that names the difference.
pub(in crate::rl) fn read<S: Tree<Array>>(
    path: &Path,
    metadata: SavedMetadata,
    fresh: S,
    envs: impl Envs,
) -> Result<(S, RunState)> {
    let run_state = metadata.checked_run_state(path)?;
    let saved = checkpoint::load(path)?;
    let mut expected: Vec<(String, TensorType)> = tree::paths(&fresh)
        .into_iter()
        .zip(tree::leaves(&fresh).iter().map(|x| x.ty().clone()))
        .collect();
    let leaves = expected.len();
    let types: HashMap<&str, &TensorType> =
        saved.entries().map(|entry| (entry.name, entry.ty)).collect();
    for name in (0..).map(env_name) {
        let Some(&ty) = types.get(name.as_str()) else { break };
        if ty.dtype != DType::U8 || ty.shape.len() != 1 {
            let problem = format!("{}: {name} is {ty}, expected u8[N]", path.display());
            return Err(Error::File(problem));
        }
        expected.push((name, ty.clone()));
    }
    let bytes = saved.expect(&expected)?;
    envs.put_back(&bytes[leaves..])?;
    let arrays = expected.iter().zip(&bytes).take(leaves);
    let arrays = arrays.map(|((_, ty), bytes)| array(ty, bytes));
    Ok((tree::replace(&fresh, arrays), run_state))
}

fn array(ty: &TensorType, bytes: &[u8]) -> Array {
    Array::from(Literal::from_bytes(ty.clone(), AlignedBytes::copy_of(bytes)))
}

/// Returns the saved arrays as a result of `new`, which is traced for `args` but not run.
///
/// # Errors
/// Returns the errors of [`Checkpoint::expect`], and errors of tracing `new`.
pub(crate) fn load_result<A: Tree<Tensor>, M: Tree<Tensor>>(
    saved: &Checkpoint,
    new: impl Fn(A) -> M,
    args: &A::With<Array>,
) -> Result<M::With<Array>> {
    let (program, model) = jit(new).with_mode(Mode::Interpret).program(args)?;
    let types = program.output_types().cloned();
    let expected: Vec<_> = tree::paths(&model).into_iter().zip(types).collect();
    let bytes = saved.expect(&expected)?;
    let mut arrays = expected.iter().zip(bytes).map(|((_, ty), bytes)| array(ty, bytes));
    Ok(model.map_leaves_ref(&tree::Path::ROOT, &mut |_, _| arrays.next().expect("one a leaf")))
}

/// Returns a saved model of the structure and the sizes of the result of `new`, which is traced but
/// not run.
///
/// ```
/// use podracer::nn::{Dense, init};
/// use podracer::prelude::*;
/// use podracer::rl::checkpoint::saved::load_model;
/// use podracer::rl::checkpoint::{load, save_tree};
///
/// fn tx() -> impl Optimizer<Dense<Tensor>> {
///     optim::chain((optim::clip_by_global_norm(0.5), optim::adam(1e-2)))
/// }
///
/// # fn main() -> Result<()> {
/// let init = |key: Key<Tensor>| {
///     let params = Dense::init(key, 4, 2, init::lecun_normal());
///     (params.clone(), tx().init(&params))
/// };
/// let train_step = jit(|((params, state), x): ((Dense<Tensor>, _), Tensor)| {
///     let grads = grad(|params: Dense<Tensor>| params.apply(x).square().mean(..))(params.clone());
///     tx().step(params, grads, state)
/// });
/// let x = Array::from([[1.0f32, 2.0, 3.0, 4.0]]);
/// let state = train_step.call((jit(init).call(Key::new(0))?, x.clone()))?;
/// # let folder = std::env::temp_dir().join(format!("podracer-load-model-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).expect("a folder");
/// let path = "state.safetensors";
/// # let path = folder.join(path);
/// save_tree(&path, &state, &())?;
/// let loaded = load_model(&load(&path)?, init)?;
/// # std::fs::remove_dir_all(&folder).expect("the folder is there");
/// let (resumed, _) = train_step.call((loaded, x.clone()))?;
/// let (continued, _) = train_step.call((state, x))?;
/// assert_eq!(resumed.w.to_vec::<f32>()?, continued.w.to_vec::<f32>()?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns the errors of [`Checkpoint::expect`], and errors of tracing `new`.
pub fn load_model<M: Tree<Tensor>>(
    saved: &Checkpoint,
    new: impl Fn(Key<Tensor>) -> M,
) -> Result<M::With<Array>> {
    load_result(saved, new, &Key::new(0))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    #[test]
    fn older_names_of_the_progress_are_read() {
        let state = json!({
            "global_step": 7, "wall_s": 1.5, "returns": [], "episodes": 0,
            "events": "events.out.tfevents.1", "events_length": 3, "notes": [1],
        });
        let older = json!({
            "format": FORMAT, "version": "0.1.0", "algorithm": "ppo", "settings": {}, "place": state,
        });
        let read: SavedMetadata = serde_json::from_value(older).unwrap();
        assert_eq!(read.run_state.as_ref().unwrap().extra_state, json!([1]));
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!(written["run_state"]["extra_state"], json!([1]));
        assert_eq!(serde_json::from_value::<SavedMetadata>(written).unwrap(), read);
    }

    /// As many environments as arrays: a search for each among all of them would take minutes.
    #[test]
    fn a_checkpoint_of_many_arrays_is_read_in_linear_time() {
        struct Count(usize);
        impl Envs for &mut Count {
            fn states(self) -> Result<Vec<Vec<u8>>> {
                Ok((0..self.0).map(|k| vec![k as u8]).collect())
            }

            fn put_back(self, states: &[&[u8]]) -> Result<()> {
                assert!(states.iter().enumerate().all(|(k, state)| *state == [k as u8]));
                self.0 = states.len();
                Ok(())
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CHECKPOINT);
        let run_state = RunState {
            global_step: 1,
            wall_s: 1.0,
            returns: VecDeque::new(),
            episodes: 0,
            events: format!("{EVENT_FILE}1"),
            events_length: 0,
            extra_state: Value::Null,
        };
        let settings = std::collections::BTreeMap::from([("total_timesteps", 1)]);
        let metadata = SavedMetadata::of("count", &settings, Some(run_state)).unwrap();
        let began = Instant::now();
        write(&path, &Array::from(3i32), &mut Count(50_000), &metadata).unwrap();
        let mut envs = Count(0);
        let (state, _) =
            read(&path, SavedMetadata::read(&path).unwrap(), Array::from(0i32), &mut envs).unwrap();
        assert_eq!((state.item::<i32>().unwrap(), envs.0), (3, 50_000));
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }
}
