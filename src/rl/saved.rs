//! What a run leaves behind: its model, and checkpoints from which it goes on as if it had never
//! stopped.
//!
//! `{exp_name}.safetensors` is the model, `checkpoint.safetensors` all the rest too: replay buffer,
//! environments, random keys, the returns of the last episodes and the length of the event file.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Returns;
use super::checkpoint::{self, Checkpoint};
use super::run::{MAX_STEPS, null_is_nan};
use crate::array::Array;
use crate::envs::{EnvPool, XlaPool};
use crate::error::{Error, Result};
use crate::files::{plain_name, shown};
use crate::jit::{effects_barrier, eval_shape};
use crate::random::Key;
use crate::trace::literal::AlignedBytes;
use crate::trace::{DType, Literal, Tensor, TensorType};
use crate::tree::{self, Tree};

/// The file of a run's last checkpoint, in the run's folder.
pub const CHECKPOINT: &str = "checkpoint.safetensors";
/// Longest setting accepted, as a flag, in bytes: the longest path of Linux.
const MAX_SETTING: usize = 4096;
/// End of the names of models and checkpoints.
pub(super) const MODEL: &str = ".safetensors";
/// Beginning of the names of event files, as TensorBoard has them.
const EVENT_FILE: &str = "events.out.tfevents.";
/// Longest time of a run accepted, in seconds: 31 years.
const MAX_SECONDS: f64 = 1e9;
/// Changes when what is saved changes.
const FORMAT: u32 = 1;
/// Settings that may differ when a run goes on: they do not change what is learned until then.
const FREE: [&str; 13] = [
    "on_write_error",
    "capture_video",
    "json",
    "live_view",
    "join_timeout",
    "save_model",
    "eval_episodes",
    "check_nans",
    "timeline",
    "runs_dir",
    "num_threads",
    "checkpoint_frequency",
    "resume",
];

/// What is known of a saved model or run beside its arrays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    format: u32,
    /// The version of this crate that saved it.
    pub version: String,
    /// The algorithm's name.
    pub algorithm: String,
    /// All settings.
    pub settings: Map<String, Value>,
    /// Where the run was; `None` for a model.
    #[serde(default)]
    pub place: Option<Place>,
}

/// Where a run is between two calls of its program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Timesteps so far.
    pub global_step: u64,
    /// Seconds so far.
    pub wall_s: f64,
    /// The returns of the last episodes.
    #[serde(deserialize_with = "null_is_nan")]
    pub returns: VecDeque<f64>,
    /// How many episodes ended.
    pub episodes: u64,
    /// The name of the event file.
    pub events: String,
    /// How many bytes of it were written.
    pub events_length: u64,
    /// What else the loop keeps on the host.
    #[serde(default)]
    pub notes: Value,
}

impl Origin {
    /// That of a model or run with these settings.
    ///
    /// # Errors
    /// [`Error::Config`] if they are not a struct of plain values.
    pub fn of(algorithm: &str, args: &impl Serialize, place: Option<Place>) -> Result<Origin> {
        Ok(Origin {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_string(),
            algorithm: algorithm.to_string(),
            settings: settings(args)?,
            place,
        })
    }

    /// That of a saved model or run; the arrays are not read.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read; [`Error::Argument`] if it was not saved by a run, or
    /// by another version of this crate.
    pub fn read(path: &Path) -> Result<Origin> {
        let origin: Origin = checkpoint::load_metadata(path)?;
        if origin.format != FORMAT {
            return Err(Error::Argument(format!(
                "{} is of format {}, and this version reads format {FORMAT}: use podracer {}, \
                 which saved it",
                path.display(),
                origin.format,
                shown(&origin.version)
            )));
        }
        // Settings become flags, which messages repeat.
        let long = |(name, value): &(&String, &Value)| {
            flag(name, value).is_some_and(|flag| flag.len() > MAX_SETTING)
        };
        if let Some((name, _)) = origin.settings.iter().find(long) {
            return Err(Error::Argument(format!(
                "{}: the setting `{}` is longer than {MAX_SETTING} bytes",
                path.display(),
                shown(name)
            )));
        }
        Ok(origin)
    }

    /// Fails unless `algorithm` saved it.
    ///
    /// # Errors
    /// [`Error::Argument`] that names both.
    pub fn expect(&self, algorithm: &str, path: &Path) -> Result<()> {
        if self.algorithm == algorithm {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "{} was saved by {}, and this is {algorithm}",
            path.display(),
            shown(&self.algorithm)
        )))
    }

    /// Where the run was.
    ///
    /// # Errors
    /// [`Error::Argument`] for a model.
    pub fn place(self, path: &Path) -> Result<Place> {
        self.place.ok_or_else(|| {
            Error::Argument(format!(
                "{} is a model, from which a run cannot go on; --checkpoint-frequency writes \
                 checkpoints",
                path.display()
            ))
        })
    }

    /// [`place`](Origin::place), of which every field is one that a run can have written.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the field.
    pub(super) fn checked_place(self, path: &Path) -> Result<Place> {
        let total = self.settings.get("total_timesteps").and_then(Value::as_u64);
        let place = self.place(path)?;
        place.ensure_possible(total.unwrap_or(MAX_STEPS)).map_err(|problem| {
            let path = path.display();
            Error::Argument(format!(
                "{path} is damaged, or no run of this library wrote it: {problem}"
            ))
        })?;
        Ok(place)
    }

    /// Fails unless all of the settings are settings of `args`. Others would become flags that no
    /// run saves, such as the file of a secret.
    ///
    /// # Errors
    /// [`Error::Argument`] that names the first that is not.
    pub fn expect_settings_of(&self, args: &impl Serialize, path: &Path) -> Result<()> {
        let known = settings(args)?;
        match self.settings.keys().find(|name| !known.contains_key(*name)) {
            None => Ok(()),
            Some(name) => Err(Error::Argument(format!(
                "{}: {} has no setting `{}`",
                path.display(),
                self.algorithm,
                shown(name)
            ))),
        }
    }

    /// The settings as a command line, but for those of how a run is watched.
    pub fn flags(&self) -> Vec<OsString> {
        let watched = ["json", "timeline", "runs_dir", "resume"];
        let given = self.settings.iter().filter(|(name, _)| !watched.contains(&name.as_str()));
        given.filter_map(|(name, value)| flag(name, value)).collect()
    }

    /// Fails unless `args` are the saved settings, but for those that change nothing that is
    /// learned, and `total_timesteps`.
    fn expect_settings(&self, args: &impl Serialize, path: &Path) -> Result<()> {
        let now = settings(args)?;
        for (name, value) in &now {
            let free = FREE.contains(&name.as_str()) || name == "total_timesteps";
            if !free && self.settings.get(name) != Some(value) {
                let before = self.settings.get(name).unwrap_or(&Value::Null);
                return Err(Error::Config(format!(
                    "--{} {value}: the run of {} began with {before}; leave the flag out to go on \
                     with it",
                    name.replace('_', "-"),
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

impl Place {
    /// Fails unless a run of `total` timesteps can have been there.
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

/// The settings as JSON.
pub(super) fn settings(args: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(args) {
        Ok(Value::Object(settings)) => Ok(settings),
        Ok(other) => Err(Error::Config(format!("the settings of a run must be a struct: {other}"))),
        Err(error) => Err(Error::Config(format!("the settings of a run: {error}"))),
    }
}

/// `--name=value`; nothing for what is not set.
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

/// Where the checkpoint of a run is: `run` is its folder, or the file itself.
pub fn checkpoint_in(run: &Path) -> PathBuf {
    if run.is_dir() { run.join(CHECKPOINT) } else { run.to_path_buf() }
}

/// The environments of a run, as a checkpoint keeps them: a pool, of several the first, or `()` for
/// traced environments, whose states are in the program's.
pub trait Envs {
    /// The states of all environments.
    ///
    /// # Errors
    /// What an environment says that cannot save itself.
    fn states(self) -> Result<Vec<Vec<u8>>>;

    /// Puts them back.
    ///
    /// # Errors
    /// What an environment says of a state that is not its own.
    fn put_back(self, states: &[&[u8]]) -> Result<()>;
}

impl Envs for &mut EnvPool {
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
}

impl Envs for &XlaPool {
    fn states(self) -> Result<Vec<Vec<u8>>> {
        effects_barrier()?;
        (&mut *self.pool(0)).states()
    }

    fn put_back(self, states: &[&[u8]]) -> Result<()> {
        effects_barrier()?;
        (&mut *self.pool(0)).put_back(states)
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
/// As [`checkpoint::save`], and what the environments say.
pub(super) fn write<S: Tree<Array>>(
    path: &Path,
    state: &S,
    envs: impl Envs,
    origin: &Origin,
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
    checkpoint::save(path, &arrays, origin)
}

fn env_name(k: usize) -> String {
    format!("envs[{k}]")
}

/// Reads a checkpoint back, for `args` and a state like `fresh`, which is dropped.
///
/// # Errors
/// [`Error::Argument`] or [`Error::Config`] that says in what they differ.
pub(super) fn read<S: Tree<Array>>(
    path: &Path,
    algorithm: &str,
    args: &impl Serialize,
    fresh: S,
    envs: impl Envs,
) -> Result<(S, Place)> {
    let origin = Origin::read(path)?;
    origin.expect(algorithm, path)?;
    origin.expect_settings(args, path)?;
    let place = origin.checked_place(path)?;
    let saved = checkpoint::load(path)?;
    let mut expected: Vec<(String, TensorType)> = tree::paths(&fresh)
        .into_iter()
        .zip(tree::leaves(&fresh).iter().map(|x| x.ty().clone()))
        .collect();
    let leaves = expected.len();
    let mut k = 0;
    while let Some(entry) = saved.entries().find(|entry| entry.name == env_name(k)) {
        if entry.ty.dtype != DType::U8 || entry.ty.shape.len() != 1 {
            let problem =
                format!("{}: {} is {}, expected u8[N]", path.display(), entry.name, entry.ty);
            return Err(Error::Argument(problem));
        }
        expected.push((entry.name.to_string(), entry.ty.clone()));
        k += 1;
    }
    let bytes = saved.expect(&expected)?;
    envs.put_back(&bytes[leaves..])?;
    let arrays = expected.iter().zip(&bytes).take(leaves);
    let arrays = arrays.map(|((_, ty), bytes)| array(ty, bytes));
    Ok((tree::replace(&fresh, arrays), place))
}

fn array(ty: &TensorType, bytes: &[u8]) -> Array {
    Array::from(Literal::from_bytes(ty.clone(), AlignedBytes::copy_of(bytes)))
}

/// The saved arrays as a tree of these types, which [`eval_shape`] gives for a fresh model without making
/// one.
///
/// # Errors
/// As [`Checkpoint::expect`].
pub fn load_typed<M: Tree<TensorType>>(saved: &Checkpoint, types: &M) -> Result<M::With<Array>> {
    let expected: Vec<_> = tree::paths(types).into_iter().zip(tree::leaves(types)).collect();
    let bytes = saved.expect(&expected)?;
    let mut arrays = expected.iter().zip(bytes).map(|((_, ty), bytes)| array(ty, bytes));
    Ok(types.map_leaves_ref(&tree::Path::ROOT, &mut |_, _| arrays.next().expect("one a leaf")))
}

/// A saved model of the structure and the sizes of what `new` makes, which is not run.
///
/// # Errors
/// As [`Checkpoint::expect`], and what is wrong with the Program of `new`.
pub fn load_model<M: Tree<Tensor>>(
    saved: &Checkpoint,
    new: impl Fn(Key<Tensor>) -> M,
) -> Result<M::With<Array>>
where
    M::With<TensorType>: Tree<TensorType, With<Array> = M::With<Array>>,
{
    let key = Key::new(0);
    load_typed(saved, &eval_shape(new, &key)?)
}
