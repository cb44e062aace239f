//! A training run: its name, folder, event file, episodes and result; the trainer, which runs it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::array::Array;
use crate::error::{Error, Result};
use crate::rl::checkpoint::saved::RunState;
use crate::rl::files;
use crate::rl::logging::tensorboard::{EventWriter, unix_seconds};
use crate::rl::returns::Returns;
use crate::rl::run::lock::{RunLock, remove_unfinished};
use crate::rl::summary::Summary;
use crate::tree::{self, Tree};

pub mod episodes;
pub(in crate::rl) mod lock;
pub mod pools;
pub mod progress;
mod screen;
pub mod trainer;

/// Reads the values of a tree of scalars `f32[]`, such as the losses of a program.
///
/// # Errors
/// Returns errors of the computation that made them; [`Error::Argument`] for other arrays.
pub fn scalars<M: Tree<Array>>(metrics: &M) -> Result<M::With<f32>> {
    let mut failed = None;
    let values = metrics.map_leaves_ref(&tree::Path::ROOT, &mut |_, x: &Array| {
        x.item::<f32>().unwrap_or_else(|error| {
            failed = Some(error);
            f32::NAN
        })
    });
    failed.map_or(Ok(values), Err)
}

/// Returns the name of a run in CleanRL's format: `{env_id}__{exp_name}__{seed}__{unix seconds}`. Of a
/// path in the id only the last name is there.
pub fn run_name(env_id: &str, exp_name: &str, seed: u64, unix: u64) -> String {
    let env_id = files::env_in_run_name(env_id);
    format!("{env_id}__{exp_name}__{seed}__{unix}")
}

/// A training run with its folder `runs/{name}` and the event file in it.
#[derive(Debug)]
pub struct Run {
    /// Name of the run; see [`run_name`].
    pub name: String,
    /// Folder of the event file and the saved models.
    pub dir: PathBuf,
    /// Event file.
    pub events: EventWriter,
    /// Returns of the finished episodes.
    pub returns: Returns,
    exp_name: String,
    env_id: String,
    seed: u64,
    started: Instant,
    /// Dropped after the event file.
    lock: RunLock,
}

impl Run {
    /// Starts a run: creates its folder in `root` (by convention `runs`) and logs `args`, a struct
    /// of settings, as the text `hyperparameters`.
    ///
    /// If another run has taken the name within this second, the name of the next second is used.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder or the event file cannot be written; [`Error::Config`] if `args`
    /// is not a struct or map.
    pub fn create(
        root: impl AsRef<Path>,
        exp_name: &str,
        env_id: &str,
        seed: u64,
        args: &impl Serialize,
    ) -> Result<Run> {
        let table = hyperparameter_table(args)?;
        let (name, dir) = create_dir(root.as_ref(), exp_name, env_id, seed)?;
        let lock = RunLock::acquire(&dir)?;
        let mut events = EventWriter::create(&dir)?;
        events.text("hyperparameters", &table, 0)?;
        // The settings should be readable even if the run is killed early.
        events.flush()?;
        Ok(Run {
            name,
            dir,
            events,
            returns: Returns::default(),
            exp_name: exp_name.to_string(),
            env_id: env_id.to_string(),
            seed,
            started: Instant::now(),
            lock,
        })
    }

    /// Resumes the run of the checkpoint at `path` in its folder and its event file. Events logged
    /// after the checkpoint are removed.
    ///
    /// # Errors
    /// [`Error::Io`] if the event file does not exist or cannot be written.
    pub(in crate::rl) fn reopen(
        path: &Path,
        exp_name: &str,
        env_id: &str,
        seed: u64,
        (run_state, lock): (&RunState, RunLock),
    ) -> Result<Run> {
        let dir = dir_of(path);
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let before = Duration::try_from_secs_f64(run_state.wall_s).unwrap_or_default();
        Ok(Run {
            name,
            // A checked state names one file in this folder.
            events: EventWriter::reopen(dir.join(&run_state.events), run_state.events_length)?,
            dir,
            returns: Returns::of(run_state.returns.clone(), run_state.episodes),
            exp_name: exp_name.to_string(),
            env_id: env_id.to_string(),
            seed,
            started: Instant::now().checked_sub(before).unwrap_or_else(Instant::now),
            lock,
        })
    }

    /// Logs the settings of a resumed run that differ from those it began with.
    ///
    /// # Errors
    /// As [`Run::create`].
    pub(in crate::rl) fn log_settings(
        &mut self,
        args: &impl Serialize,
        global_step: u64,
    ) -> Result<()> {
        self.events.text("hyperparameters", &hyperparameter_table(args)?, global_step)
    }

    /// Locks the folder of the checkpoint at `path` and removes temporary files that a killed
    /// process left in it.
    ///
    /// # Errors
    /// Returns the errors of [`RunLock::acquire`] and [`remove_unfinished`].
    pub(in crate::rl) fn lock(path: &Path) -> Result<RunLock> {
        let dir = dir_of(path);
        let lock = RunLock::acquire(&dir)?;
        remove_unfinished(&dir)?;
        Ok(lock)
    }

    /// Returns the progress of the run, for a checkpoint. Writes the buffered events.
    ///
    /// # Errors
    /// [`Error::Io`] if they cannot be written; [`Error::Config`] if another process writes the run.
    pub(in crate::rl) fn run_state(
        &mut self,
        global_step: u64,
        extra_state: Value,
    ) -> Result<RunState> {
        let events_length = self.events.written()?;
        self.lock.renew()?;
        let events = self.events.path().file_name().unwrap_or_default().to_string_lossy();
        Ok(RunState {
            global_step,
            wall_s: self.wall_s(),
            returns: self.returns.last().clone(),
            episodes: self.returns.episodes(),
            events: events.into_owned(),
            events_length,
            extra_state,
        })
    }

    /// Returns the seconds since the run started.
    pub fn wall_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Returns the steps per second from the start to `global_step`: CleanRL's `charts/SPS`, which
    /// includes compilation.
    pub fn sps(&self, global_step: u64) -> f64 {
        // The clock may not have advanced yet.
        global_step as f64 / self.wall_s().max(1e-9)
    }

    /// Logs an episode that ended at `global_step`, under CleanRL's tags
    /// `charts/episodic_return` and `charts/episodic_length`.
    ///
    /// # Errors
    /// [`Error::Io`] if the event file cannot be written.
    pub fn episode(&mut self, episodic_return: f64, length: u64, global_step: u64) -> Result<()> {
        self.returns.push(episodic_return);
        self.events.scalar("charts/episodic_return", episodic_return, global_step)?;
        self.events.scalar("charts/episodic_length", length as f64, global_step)
    }

    /// Returns the result of the run so far.
    pub fn summary(
        &self,
        mode: &str,
        platform: &str,
        num_devices: usize,
        global_step: u64,
        compile_s: f64,
    ) -> Summary {
        Summary {
            exp_name: self.exp_name.clone(),
            env_id: self.env_id.clone(),
            seed: self.seed,
            mode: mode.to_string(),
            platform: platform.to_string(),
            num_devices,
            global_step,
            wall_s: self.wall_s(),
            compile_s,
            sps: self.sps(global_step),
            episodes: self.returns.episodes(),
            avg_episodic_return: self.returns.mean(),
            run_dir: self.dir.to_string_lossy().into_owned(),
            model_path: None,
            eval_episodic_return: None,
            eval_spread: None,
            interrupted: false,
            details: String::new(),
            rank: 0,
        }
    }
}

/// Returns the folder of the checkpoint at `path`.
fn dir_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// Creates the folder of a new run; an existing folder is not used.
fn create_dir(root: &Path, exp_name: &str, env_id: &str, seed: u64) -> Result<(String, PathBuf)> {
    files::ensure_plain_name("exp-name", exp_name)?;
    files::ensure_env_id(env_id)?;
    for unix in unix_seconds() as u64.. {
        let name = run_name(env_id, exp_name, seed, unix);
        let dir = root.join(&name);
        // An id such as `ALE/Pong-v5` contains a folder name, as in CleanRL.
        let parent = dir.parent().unwrap_or(root);
        fs::create_dir_all(parent).map_err(Error::io("cannot create", parent))?;
        match fs::create_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => {
                created.map_err(Error::io("cannot create", &dir))?;
                return Ok((name, dir));
            }
        }
    }
    unreachable!("some second is free")
}

/// Returns the markdown table of a run's settings, in the order of the fields, with Python's words
/// for true, false and None: the format that CleanRL logs and its dashboards read.
///
/// # Errors
/// [`Error::Config`] if `args` is not a struct or map.
pub(crate) fn hyperparameter_table(args: &impl Serialize) -> Result<String> {
    // Serialized to text, because a JSON value keeps neither the order nor the digits of an f32.
    let rows = serde_json::to_string(args).and_then(|text| serde_json::from_str::<Rows>(&text));
    let Rows(rows) = rows.map_err(|error| {
        Error::Config(format!("the settings of a run must be a struct of plain values: {error}"))
    })?;
    let rows: Vec<String> =
        rows.iter().map(|(name, value)| format!("|{name}|{}|", cell(value))).collect();
    Ok(format!("|param|value|\n|-|-|\n{}", rows.join("\n")))
}

fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => "None".to_string(),
        Value::Bool(true) => "True".to_string(),
        Value::Bool(false) => "False".to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.replace('|', "\\|").replace('\n', " ")
}

/// Entries of a JSON object, in order.
struct Rows(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Rows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rows, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Rows;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a struct")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Rows, A::Error> {
                let mut rows = Vec::new();
                while let Some(row) = map.next_entry()? {
                    rows.push(row);
                }
                Ok(Rows(rows))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Args {
        exp_name: &'static str,
        learning_rate: f32,
        total_timesteps: u64,
        anneal_lr: bool,
        target_kl: Option<f64>,
        devices: Vec<usize>,
    }

    const ARGS: Args = Args {
        exp_name: "p|po",
        learning_rate: 2.5e-4,
        total_timesteps: 500_000,
        anneal_lr: true,
        target_kl: None,
        devices: Vec::new(),
    };

    #[test]
    fn the_table_is_cleanrls() {
        assert_eq!(
            hyperparameter_table(&ARGS).unwrap(),
            "|param|value|\n|-|-|\n|exp_name|p\\|po|\n|learning_rate|0.00025|\n\
             |total_timesteps|500000|\n|anneal_lr|True|\n|target_kl|None|\n|devices|[]|"
        );
        let error = hyperparameter_table(&3).unwrap_err().to_string();
        assert!(error.contains("expected a struct"), "{error}");
    }

    #[test]
    fn runs_of_one_second_have_folders_of_their_own() {
        let root = tempfile::tempdir().unwrap();
        let runs: Vec<Run> = (0..3)
            .map(|_| Run::create(root.path().join("runs"), "ppo", "ALE/Pong-v5", 1, &ARGS).unwrap())
            .collect();
        let mut names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        names.dedup();
        assert_eq!(names.len(), 3);
        assert!(names[0].starts_with("ALE/Pong-v5__ppo__1__"), "{}", names[0]);
        assert_eq!(runs[2].dir, root.path().join("runs").join(names[2]));
        assert!(runs[2].events.path().starts_with(&runs[2].dir));
    }

    #[test]
    fn the_summary_is_one_line_of_the_agreed_names() {
        let root = tempfile::tempdir().unwrap();
        let mut run = Run::create(root.path(), "ppo", "CartPole-v1", 1, &ARGS).unwrap();
        run.episode(20.0, 20, 100).unwrap();
        let summary = run.summary("jit", "cpu", 1, 128, 0.5);
        let line = summary.to_string();
        let Rows(rows) = serde_json::from_str(&line).unwrap();
        let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names.join(", "),
            "exp_name, env_id, seed, mode, platform, num_devices, global_step, wall_s, compile_s, \
             sps, episodes, avg_episodic_return, run_dir, model_path, eval_episodic_return, interrupted"
        );
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Summary>(&line).unwrap(), summary);
        assert_eq!((summary.episodes, summary.avg_episodic_return), (1, Some(20.0)));
    }
}
