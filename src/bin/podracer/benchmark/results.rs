//! Results file: JSON lines, one for each finished run and one for each aggregate of runs whose own
//! data are not kept.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use podracer::error::{Error, Result};
use podracer::rl::checkpoint::saved::affects_training;
use podracer::rl::{open_locked, read_regular};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum number of points of a learning curve.
pub const MAX_POINTS: usize = 100;
/// Maximum length of a line, in bytes.
pub const MAX_LINE: usize = 8192;

/// Line of the results file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// Finished run.
    Run(Box<RunRecord>),
    /// Aggregate over seeds, as a page reported it.
    Summary(Box<SummaryRecord>),
}

/// Finished run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    pub algorithm: String,
    pub env_id: String,
    pub seed: u64,
    /// Settings that differ from the defaults of the algorithm for this environment at this commit,
    /// except seed, number of timesteps and those that do not affect training.
    pub flags: Map<String, Value>,
    /// All settings.
    pub settings: Map<String, Value>,
    /// Version of this crate.
    pub version: String,
    /// Commit of the program that started the run; null outside of a repository.
    pub commit: Option<String>,
    /// True if the sources were those of the commit.
    pub clean: bool,
    /// Commits of the programs that resumed the run, where they differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resumed_at_commits: Vec<String>,
    pub machine: Machine,
    pub platform: String,
    pub wall_s: f64,
    pub compile_s: f64,
    pub steps: u64,
    pub sps: f64,
    pub episodes: u64,
    /// Mean return of the last 100 episodes; null if none ended.
    pub mean_return: Option<f64>,
    /// Mean return of the evaluation of the saved model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_return: Option<f64>,
    /// Timestep, and mean return of the 100 episodes that ended last.
    pub curve: Vec<(u64, f64)>,
}

/// Processor and number of usable cores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
}

/// Aggregate over seeds, as a page reported it: `returns`, or `num_seeds`, `mean_return` and
/// `std_return`. With both, these are the page's, which are more exact than rounded returns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SummaryRecord {
    /// Program that was measured, if it is not this one: `cleanrl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    pub algorithm: String,
    pub env_id: String,
    /// As [`RunRecord::flags`].
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub flags: Map<String, Value>,
    /// Number that is reported, if it is not the mean return of the last 100 episodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    pub total_timesteps: u64,
    /// Timestep at which the runs were stopped, if that was earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<u64>,
    /// Seeds, as in "1 to 10".
    pub seeds: String,
    /// Return of each seed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub returns: Vec<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_seeds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_return: Option<f64>,
    /// Population standard deviation over seeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub std_return: Option<f64>,
    /// Commits that were measured; empty if the page does not name them.
    pub commits: Vec<String>,
    pub command: String,
    /// Page that reports the numbers.
    pub page: String,
    /// Commit of that page.
    pub page_commit: String,
}

/// Returns flags as words of a command line.
pub fn flag_words(flags: &Map<String, Value>) -> Vec<String> {
    flags
        .iter()
        .map(|(name, value)| {
            let name = name.replace('_', "-");
            match value {
                Value::Bool(true) => format!("--{name}"),
                Value::Bool(false) => format!("--no-{name}"),
                Value::String(text) => format!("--{name} {text}"),
                Value::Array(values) => {
                    let words: Vec<String> = values.iter().map(Value::to_string).collect();
                    format!("--{name} {}", words.join(","))
                }
                other => format!("--{name} {other}"),
            }
        })
        .collect()
}

/// Returns the settings that affect training, as text that can be compared.
pub fn training_settings(algorithm: &str, settings: &Map<String, Value>) -> String {
    let own: BTreeMap<&String, &Value> =
        settings.iter().filter(|(name, _)| affects_training(name)).collect();
    format!("{algorithm} {}", serde_json::to_string(&own).expect("a map of JSON values"))
}

impl RunRecord {
    /// Returns a short description for people.
    pub fn in_words(&self) -> String {
        let mean = self.mean_return.map_or("no episode ended".into(), |mean| format!("{mean:.1}"));
        format!(
            "{} on {}, seed {}: {} steps in {:.1} s, mean return {mean}",
            self.algorithm, self.env_id, self.seed, self.steps, self.wall_s
        )
    }

    pub fn total_timesteps(&self) -> u64 {
        self.settings.get("total_timesteps").and_then(Value::as_u64).unwrap_or(self.steps)
    }

    /// Returns the number of agents that the run trained, each with its own seed.
    pub fn num_seeds(&self) -> u64 {
        self.settings.get("num_seeds").and_then(Value::as_u64).unwrap_or(1)
    }

    fn ensure_possible(&self) -> std::result::Result<(), String> {
        let finite = |x: Option<f64>| x.is_none_or(f64::is_finite);
        let setting = |name: &str| self.settings.get(name);
        expected(!self.algorithm.is_empty(), "`algorithm` to be a name")?;
        expected(
            setting("env_id").and_then(Value::as_str) == Some(&self.env_id),
            "`settings` to have the same `env_id`",
        )?;
        expected(
            setting("seed").and_then(Value::as_u64) == Some(self.seed),
            "`settings` to have the same `seed`",
        )?;
        expected(
            setting("total_timesteps").and_then(Value::as_u64).is_some(),
            "`settings` to have `total_timesteps`",
        )?;
        expected(
            self.flags.iter().all(|(name, value)| setting(name) == Some(value)),
            "`flags` to be a part of `settings`",
        )?;
        expected(
            [self.wall_s, self.compile_s, self.sps].iter().all(|x| x.is_finite() && *x >= 0.0),
            "`wall_s`, `compile_s` and `sps` to be numbers not below 0",
        )?;
        expected(self.steps > 0, "`steps` to be at least 1")?;
        expected(finite(self.mean_return) && finite(self.eval_return), "finite returns")?;
        let steps = self.curve.windows(2).all(|pair| pair[0].0 < pair[1].0);
        expected(
            self.curve.len() <= MAX_POINTS && steps,
            &format!("`curve` to have at most {MAX_POINTS} points of increasing timesteps"),
        )
    }
}

impl SummaryRecord {
    /// Returns the number of seeds, the mean, and the standard deviation if it is known.
    pub fn statistics(&self) -> (u64, f64, Option<f64>) {
        let count = self.num_seeds.unwrap_or(self.returns.len() as u64);
        let (mean, std) = crate::mean_and_std(&self.returns);
        let own = if self.returns.is_empty() { None } else { Some(std) };
        let std = if count == 1 { Some(0.0) } else { self.std_return.or(own) };
        (count, self.mean_return.unwrap_or(mean), std)
    }

    fn ensure_possible(&self) -> std::result::Result<(), String> {
        let count = self.returns.len() as u64;
        expected(
            count > 0 || (self.num_seeds.is_some() && self.mean_return.is_some()),
            "`returns`, or `num_seeds` and `mean_return`",
        )?;
        if count > 0 {
            let (mean, std) = crate::mean_and_std(&self.returns);
            // Pages round to a tenth.
            let agrees =
                |given: Option<f64>, own: f64| given.is_none_or(|given| (given - own).abs() < 0.16);
            expected(
                self.num_seeds.is_none_or(|given| given == count)
                    && agrees(self.mean_return, mean)
                    && agrees(self.std_return, std),
                "`num_seeds`, `mean_return` and `std_return` to be those of `returns`",
            )?;
        }
        expected(self.num_seeds != Some(0), "`num_seeds` to be at least 1")?;
        expected(
            self.std_return.is_none_or(|std| std >= 0.0 && self.statistics().0 > 1),
            "`std_return` to be a number not below 0, of two seeds or more",
        )?;
        expected(
            self.stopped_at.is_none_or(|steps| steps < self.total_timesteps),
            "`stopped_at` to be less than `total_timesteps`",
        )?;
        expected(!self.command.is_empty(), "`command` to be the command that was run")
    }
}

fn expected(holds: bool, what: &str) -> std::result::Result<(), String> {
    if holds { Ok(()) } else { Err(format!("expected {what}")) }
}

/// Returns the error of a line of a file; lines count from 1.
pub fn line_error(path: &Path, line: usize, problem: impl std::fmt::Display) -> Error {
    Error::Argument(format!("{}:{line}: {problem}", path.display()))
}

/// Reads a file of JSON lines, with their numbers from 1. Empty lines are left out.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read; [`Error::Argument`] that names file, line and the
/// expected content.
pub fn read_lines<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<Vec<(usize, T)>> {
    let bytes = read_regular(path)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count();
        line_error(path, line, "the line is not UTF-8 text")
    })?;
    let mut lines = Vec::new();
    for (line, number) in text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()) {
        if line.len() > MAX_LINE {
            let problem = format!("{} bytes; expected a line of at most {MAX_LINE}", line.len());
            return Err(line_error(path, number, problem));
        }
        let value = serde_json::from_str(line)
            .map_err(|error| line_error(path, number, format!("{error}; expected {expected}")))?;
        lines.push((number, value));
    }
    Ok(lines)
}

/// Reads a results file.
///
/// # Errors
/// Returns the errors of [`read_lines`], and [`Error::Argument`] for values that no run has.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let expected = "one finished run in JSON, as `podracer benchmark --results` writes it";
    let lines: Vec<(usize, Record)> = read_lines(path, expected)?;
    let mut seen = BTreeMap::new();
    for (number, record) in &lines {
        let possible = match record {
            Record::Run(run) => run.ensure_possible(),
            Record::Summary(summary) => summary.ensure_possible(),
        };
        possible.map_err(|problem| line_error(path, *number, problem))?;
        if let Record::Run(run) = record {
            let identity = (training_settings(&run.algorithm, &run.settings), run.commit.clone());
            if let Some(before) = seen.insert(identity, number) {
                let problem = format!(
                    "the run of line {before} again: expected one line for a seed, settings and \
                     commit; remove one of them"
                );
                return Err(line_error(path, *number, problem));
            }
        }
    }
    Ok(lines.into_iter().map(|(_, record)| record).collect())
}

/// Results file that this process alone writes.
#[derive(Debug)]
pub struct ResultsFile {
    path: PathBuf,
    file: File,
}

impl ResultsFile {
    /// Opens or creates the file and locks it. The system releases the lock when the process ends,
    /// however it ends.
    ///
    /// # Errors
    /// [`Error::Config`] if another process holds the lock; [`Error::Io`] if the file cannot be
    /// written; [`Error::Argument`] if its last line has no end.
    pub fn open(path: &Path) -> Result<ResultsFile> {
        if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
            fs::create_dir_all(folder).map_err(Error::io("cannot create", folder))?;
        }
        let Some(mut file) = open_locked(path).map_err(Error::io("cannot write", path))? else {
            return Err(Error::Config(format!(
                "{} is in use by another `podracer benchmark`; wait until it ends, stop it, or \
                 give another --results",
                path.display()
            )));
        };
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(Error::io("cannot read", path))?;
        if text.last().is_some_and(|byte| *byte != b'\n') {
            let line = text.split(|byte| *byte == b'\n').count();
            return Err(line_error(
                path,
                line,
                "the last line has no end: expected a whole line; complete it or remove it",
            ));
        }
        Ok(ResultsFile { path: path.to_path_buf(), file })
    }

    /// Appends a line and waits until it is on the disk. A curve that makes the line longer than
    /// [`MAX_LINE`] loses points; a line that cannot be written whole is removed again.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn append(&mut self, mut run: RunRecord) -> Result<()> {
        let line = loop {
            let record = Record::Run(Box::new(run.clone()));
            let line = serde_json::to_string(&record).expect("a record is JSON") + "\n";
            if line.len() <= MAX_LINE || run.curve.is_empty() {
                break line;
            }
            // Every second point, and the last one.
            let mut k = run.curve.len();
            run.curve.retain(|_| {
                k -= 1;
                k.is_multiple_of(2)
            });
            if run.curve.len() == 1 {
                run.curve.clear();
            }
        };
        let written = self.file.metadata().and_then(|before| {
            let written = self.file.write_all(line.as_bytes());
            if written.is_err() {
                let _ = self.file.set_len(before.len());
            }
            written.and_then(|()| self.file.sync_data())
        });
        written.map_err(Error::io("cannot write", &self.path))?;
        // An editor or a checkout may have put another file in its place.
        match read_regular(&self.path) {
            Ok(text) if text.ends_with(line.as_bytes()) => Ok(()),
            Ok(_) | Err(_) => Err(Error::Config(format!(
                "{} was replaced while it was written; it lacks the line\n{line}",
                self.path.display()
            ))),
        }
    }
}
