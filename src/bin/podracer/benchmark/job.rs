//! Runs to do: from the flags of the command, or the rows of a queue file.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use podracer::algos::registry;
use podracer::envs;
use podracer::error::{Error, Result};
use podracer::rl::checkpoint::saved::affects_training;
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::results::{RunRecord, line_error, read_lines, training_settings};

/// Checkpoints of a run if its flags name no frequency.
const CHECKPOINTS: u64 = 20;

/// Row of a queue file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueRow {
    pub algorithm: String,
    pub env_id: String,
    pub seeds: Vec<u64>,
    /// Flags of `podracer train`, separated by spaces.
    #[serde(default)]
    pub flags: String,
    /// Estimated hours of one seed.
    #[serde(default)]
    pub hours: Option<f64>,
    /// Purpose of the row.
    #[serde(default)]
    pub note: Option<String>,
}

/// One run of the benchmark.
#[derive(Debug, Clone)]
pub struct Job {
    pub algo: String,
    pub env_id: String,
    pub seed: u64,
    pub flags: Vec<String>,
    /// Estimated hours.
    pub hours: Option<f64>,
}

impl Job {
    /// Returns the words of `podracer` that start the run.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = vec!["train".to_string(), self.algo.clone()];
        words.extend(["--env-id".to_string(), self.env_id.clone()]);
        words.extend(["--seed".to_string(), self.seed.to_string(), "--json".to_string()]);
        words.extend(self.flags.iter().cloned());
        words
    }

    /// Returns algorithm, environment and seed, for messages.
    pub fn name(&self) -> String {
        format!("{} on {}, seed {}", self.algo, self.env_id, self.seed)
    }

    /// Returns all settings of the run, and those that differ from the defaults of the algorithm for
    /// this environment, except seed, timesteps and those that do not affect training.
    ///
    /// # Errors
    /// Returns errors of the flags.
    pub fn settings(&self) -> Result<RunSettings> {
        let entry = registry::find(&self.algo)?;
        if let Err(error) = envs::spec(&self.env_id)
            && !matches!(error, Error::Native { .. })
        {
            return Err(error);
        }
        let parsed = |words: Vec<String>| {
            let words = std::iter::once(self.algo.clone()).chain(words);
            (entry.settings)(words.map(OsString::from).collect())
        };
        let all = parsed(self.arguments().split_off(2))?;
        if let Some(run) = all.get("resume").and_then(Value::as_str) {
            return Err(Error::Config(format!(
                "--resume {run}: a benchmark starts its runs itself; leave the flag out"
            )));
        }
        let defaults = parsed(vec!["--env-id".into(), self.env_id.clone()])?;
        let mut flags = all.clone();
        let named = ["env_id", "seed", "total_timesteps"];
        flags.retain(|name, value| {
            affects_training(name)
                && !named.contains(&name.as_str())
                && defaults.get(name) != Some(value)
        });
        Ok(RunSettings { all, flags, defaults })
    }
}

/// Settings of a [`Job`].
#[derive(Debug, Clone)]
pub struct RunSettings {
    pub all: Map<String, Value>,
    pub flags: Map<String, Value>,
    defaults: Map<String, Value>,
}

impl RunSettings {
    /// Returns true if a recorded run trained with these settings. A setting that the record lacks had
    /// no flag yet, and counts as the default.
    pub fn trained(&self, job: &Job, run: &RunRecord) -> bool {
        if (&run.algorithm, &run.env_id, run.seed) != (&job.algo, &job.env_id, job.seed) {
            return false;
        }
        let mut settings = self.defaults.clone();
        settings.extend(run.settings.clone());
        training_settings(&run.algorithm, &settings) == self.identity(job)
    }

    /// Returns the text that two runs share if they train with the same settings.
    pub fn identity(&self, job: &Job) -> String {
        training_settings(&job.algo, &self.all)
    }

    /// Returns the timesteps between checkpoints: those of the flags, or else a part of the run.
    pub fn checkpoint_frequency(&self) -> u64 {
        let number = |name: &str| self.all.get(name).and_then(Value::as_u64).unwrap_or(0);
        match number("checkpoint_frequency") {
            0 => (number("total_timesteps") / CHECKPOINTS).max(1),
            given => given,
        }
    }

    /// Returns the flags that make the environment. A resumed run gets them too: Python code is that of
    /// the user's flags, not of the settings in the checkpoint.
    pub fn env_flags(&self) -> Vec<String> {
        let flag = |name: &str| {
            let value = self.all.get(name)?.as_str()?;
            Some(format!("--{}={value}", name.replace('_', "-")))
        };
        ["env_id", "env_kwargs", "env_wrappers"].into_iter().filter_map(flag).collect()
    }

    /// Returns true if the flags ask for checkpoints.
    pub fn keeps_checkpoints(&self) -> bool {
        self.all.get("checkpoint_frequency").and_then(Value::as_u64) != Some(0)
    }

    /// Returns the folder of the job's run folders: one for each algorithm, environment, seed and
    /// settings, so that a later process finds the run's checkpoint.
    pub fn folder(&self, job: &Job) -> PathBuf {
        let runs = self.all.get("runs_dir").and_then(Value::as_str).unwrap_or("runs");
        let hash = short_hash(&self.identity(job), 6);
        let env_id = job.env_id.replace('/', "-");
        Path::new(runs).join(format!("benchmark/{env_id}__{}__{}__{hash}", job.algo, job.seed))
    }
}

/// Returns the first bytes of a text's SHA-256 in hexadecimal digits, for names of files.
pub fn short_hash(text: &str, num_bytes: usize) -> String {
    let hash = Sha256::digest(text.as_bytes());
    hash.iter().take(num_bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a queue file: JSON lines, one [`QueueRow`] each. `flags` are added to those of every row.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read; [`Error::Argument`] that names file, line and the
/// expected content.
pub fn read_queue(path: &Path, flags: &[String]) -> Result<Vec<Job>> {
    let expected = "a row in JSON, as in {\"algorithm\": \"ppo\", \"env_id\": \"CartPole-v1\", \
                    \"seeds\": [1, 2, 3], \"flags\": \"--total-timesteps 500000\", \"hours\": 0.1}";
    let rows: Vec<(usize, QueueRow)> = read_lines(path, expected)?;
    let (mut jobs, mut seen) = (Vec::new(), BTreeSet::new());
    for (line, row) in rows {
        let wrong = |problem: String| line_error(path, line, problem);
        if row.seeds.is_empty() {
            return Err(wrong("`seeds` is empty; expected at least one number".into()));
        }
        if row.hours.is_some_and(|hours| !(hours.is_finite() && hours >= 0.0)) {
            return Err(wrong("`hours` must be a number not below 0".into()));
        }
        for seed in row.seeds {
            let words = row.flags.split_whitespace().map(String::from);
            let job = Job {
                algo: row.algorithm.clone(),
                env_id: row.env_id.clone(),
                seed,
                flags: words.chain(flags.iter().cloned()).collect(),
                hours: row.hours,
            };
            let settings = job.settings().map_err(|error| wrong(error.to_string()))?;
            if !seen.insert(settings.identity(&job)) {
                let name = job.name();
                return Err(wrong(format!("{name}: the same run is in the queue twice")));
            }
            jobs.push(job);
        }
    }
    match jobs.is_empty() {
        true => {
            Err(Error::Argument(format!("{}: has no rows; expected {expected}", path.display())))
        }
        false => Ok(jobs),
    }
}
