//! File of a study: its settings, and a line of JSON for each trial that ended.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use podracer::error::{Error, Result};
use podracer::rl::{is_at, open_locked, read_regular};
use serde::{Deserialize, Serialize};

use super::Values;
use super::search::Search;
use crate::benchmark::results::{line_error, read_lines};

/// Name of the file in the folder of a study.
const TRIALS: &str = "trials.jsonl";
/// Complete trials before the first one is pruned.
const MIN_COMPLETE: usize = 5;

/// Line of the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line {
    Study(StudyRecord),
    Trial(TrialRecord),
}

/// Settings of a study; the first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyRecord {
    pub algorithm: String,
    pub env_id: String,
    pub search: Vec<String>,
    pub num_seeds: u64,
    pub start_seed: u64,
    pub flags: Vec<String>,
}

/// End of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All runs reached their end.
    Complete,
    /// Ended early by the median rule.
    Pruned,
    /// A run ended with an error.
    Failed,
}

/// Trial that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialRecord {
    pub number: usize,
    /// Values by the name of the setting.
    pub values: Values,
    pub state: State,
    /// Mean return of the last episodes of each run that reached its end.
    pub returns: Vec<f64>,
    /// Mean return at each tenth of each run.
    pub reports: Vec<Vec<Option<f64>>>,
    /// Error of a failed trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl TrialRecord {
    /// Creates a trial without returns.
    pub fn new(number: usize, searches: &[Search], values: &[String]) -> TrialRecord {
        let json =
            |word: &String| serde_json::from_str(word).unwrap_or_else(|_| word.clone().into());
        let values = searches.iter().zip(values).map(|(x, word)| (x.setting(), json(word)));
        TrialRecord {
            number,
            values: values.collect(),
            state: State::Complete,
            returns: Vec::new(),
            reports: Vec::new(),
            message: None,
        }
    }

    /// Returns the mean over the runs of a complete trial.
    pub fn score(&self) -> Option<f64> {
        let complete = self.state == State::Complete && !self.returns.is_empty();
        complete.then(|| crate::mean_and_std(&self.returns).0)
    }

    /// Returns the score, or of a pruned trial its last report.
    pub fn value(&self) -> Option<f64> {
        match self.state {
            State::Complete => self.score(),
            State::Pruned => self.reports.iter().flatten().flatten().next_back().copied(),
            State::Failed => None,
        }
    }

    /// Returns a short description for people.
    pub fn in_words(&self) -> String {
        let values: Vec<String> =
            self.values.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let end = match (self.state, self.score()) {
            (State::Complete, Some(score)) => format!("mean return {score:.1}"),
            (State::Pruned, _) => "pruned".to_string(),
            _ => format!("failed: {}", self.message.as_deref().unwrap_or("no return")),
        };
        format!("trial {}: {}: {end}", self.number, values.join(", "))
    }
}

/// Returns true if the best report of the trial's last run is below the median of the reports of the
/// complete trials at the same point of the same run: Optuna's `MedianPruner`.
pub fn is_below_median(trial: &TrialRecord, trials: &[TrialRecord]) -> bool {
    let Some(reports) = trial.reports.last() else { return false };
    let (run, Some(point)) = (trial.reports.len() - 1, reports.len().checked_sub(1)) else {
        return false;
    };
    let Some(best) = reports.iter().flatten().copied().reduce(f64::max) else { return false };
    let complete = trials.iter().filter(|trial| trial.state == State::Complete);
    let mut others: Vec<f64> =
        complete.filter_map(|trial| *trial.reports.get(run)?.get(point)?).collect();
    others.sort_by(f64::total_cmp);
    let middle = others.len() / 2;
    let median = match others.len() {
        count if count < MIN_COMPLETE => return false,
        count if count % 2 == 1 => others[middle],
        _ => (others[middle - 1] + others[middle]) / 2.0,
    };
    best < median
}

/// File of a study that this process alone writes.
#[derive(Debug)]
pub struct StudyFile {
    pub path: PathBuf,
    pub trials: Vec<TrialRecord>,
    file: File,
}

impl StudyFile {
    /// Creates the file in the folder, or with `resume` reads and locks the one that is there.
    ///
    /// # Errors
    /// [`Error::Config`] for a study that is there and not resumed, has other settings, or is in use;
    /// [`Error::Argument`] for a damaged line; [`Error::Io`].
    pub fn open(folder: &Path, study: &StudyRecord, resume: bool) -> Result<StudyFile> {
        let path = folder.join(TRIALS);
        fs::create_dir_all(folder).map_err(Error::io("cannot create", folder))?;
        let Some(file) = open_locked(&path).map_err(Error::io("cannot write", &path))? else {
            return Err(Error::Config(format!(
                "{} is in use by another `podracer tune`; wait until it ends, stop it, or give \
                 another --out",
                path.display()
            )));
        };
        // With the lock: another process may have begun the study just now.
        let present = file.metadata().is_ok_and(|file| file.len() > 0);
        if present && !resume {
            return Err(Error::Config(format!(
                "{} is a study already: --resume continues it; give another --out to start a new \
                 one",
                path.display()
            )));
        }
        let mut study_file = StudyFile { trials: Vec::new(), file, path };
        match present {
            true => study_file.read(study)?,
            false => study_file.write(&Line::Study(study.clone()))?,
        }
        Ok(study_file)
    }

    fn read(&mut self, study: &StudyRecord) -> Result<()> {
        self.remove_half_a_line()?;
        let expected = "a trial in JSON, as `podracer tune` writes it";
        for (number, line) in read_lines::<Line>(&self.path, expected)? {
            match line {
                Line::Study(own) if number == 1 && own == *study => {}
                Line::Study(own) if number == 1 => {
                    let text = |study: &StudyRecord| {
                        serde_json::to_string(study).expect("a record is JSON")
                    };
                    return Err(Error::Config(format!(
                        "{} is another study: {}, and this command has {}; give the same flags or \
                         another --out",
                        self.path.display(),
                        text(&own),
                        text(study)
                    )));
                }
                Line::Trial(trial) if number > 1 => self.trials.push(trial),
                _ => {
                    let problem = "expected the study in the first line, and trials after it";
                    return Err(line_error(&self.path, number, problem));
                }
            }
        }
        Ok(())
    }

    /// Removes the part of a line that a killed process left at the end.
    fn remove_half_a_line(&mut self) -> Result<()> {
        let bytes = read_regular(&self.path)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole == bytes.len() || whole == 0 {
            return Ok(());
        }
        self.file.set_len(whole as u64).map_err(Error::io("cannot write", &self.path))
    }

    /// Adds a trial and waits until it is on the disk.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn append(&mut self, trial: TrialRecord) -> Result<()> {
        self.write(&Line::Trial(trial.clone()))?;
        self.trials.push(trial);
        Ok(())
    }

    fn write(&mut self, line: &Line) -> Result<()> {
        let line = serde_json::to_string(line).expect("a record is JSON") + "\n";
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(Error::io("cannot write", &self.path))?;
        // An editor or a checkout may have put another file in its place.
        match is_at(&self.file, &self.path) {
            true => Ok(()),
            false => Err(Error::Config(format!(
                "{} was removed or replaced while it was written; it lacks the line\n{line}",
                self.path.display()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_whose_file_was_replaced_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let study = StudyRecord {
            algorithm: "ppo".into(),
            env_id: "CartPole-v1".into(),
            search: Vec::new(),
            num_seeds: 1,
            start_seed: 1,
            flags: Vec::new(),
        };
        let mut file = StudyFile::open(folder.path(), &study, false).unwrap();
        let error = StudyFile::open(folder.path(), &study, true).unwrap_err().to_string();
        assert!(error.contains("is in use by another"), "{error}");
        file.append(trial(State::Complete, &[1.0])).unwrap();
        fs::rename(&file.path, folder.path().join("old")).unwrap();
        let error = file.append(trial(State::Complete, &[2.0])).unwrap_err().to_string();
        assert!(error.contains("was removed or replaced"), "{error}");
    }

    fn trial(state: State, reports: &[f64]) -> TrialRecord {
        let reports = vec![reports.iter().copied().map(Some).collect()];
        TrialRecord { state, reports, ..TrialRecord::new(0, &[], &[]) }
    }

    #[test]
    fn trials_below_the_median_of_five_are_pruned() {
        let mut trials: Vec<TrialRecord> =
            (1..=4).map(|k| trial(State::Complete, &[1.0, f64::from(k)])).collect();
        let low = trial(State::Complete, &[0.0, 2.0]);
        assert!(!is_below_median(&low, &trials), "four are too few");
        trials.push(trial(State::Pruned, &[1.0, 9.0]));
        assert!(!is_below_median(&low, &trials), "pruned trials do not count");
        trials.push(trial(State::Complete, &[1.0, 5.0]));
        assert!(is_below_median(&low, &trials));
        // The best report so far counts, and points that no other trial has do not.
        assert!(!is_below_median(&trial(State::Complete, &[3.0, 2.0]), &trials));
        assert!(!is_below_median(&trial(State::Complete, &[0.0, 0.0, 0.0]), &trials));
        assert!(!is_below_median(&trial(State::Complete, &[]), &trials));
    }

    #[test]
    fn a_study_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let study = StudyRecord {
            algorithm: "ppo".into(),
            env_id: "CartPole-v1".into(),
            search: vec!["gamma=0.9,0.99".into()],
            num_seeds: 1,
            start_seed: 1,
            flags: vec![],
        };
        let mut file = StudyFile::open(folder.path(), &study, false).unwrap();
        let trial = trial(State::Complete, &[1.0, 2.0]);
        file.append(trial.clone()).unwrap();
        let error = StudyFile::open(folder.path(), &study, true).unwrap_err().to_string();
        assert!(error.contains("is in use by another"), "{error}");
        let path = file.path.clone();
        drop(file);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}{{\"kind\":\"tri")).unwrap();
        let file = StudyFile::open(folder.path(), &study, true).unwrap();
        assert_eq!(file.trials, [trial]);
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "half a line is removed");
        let other = StudyRecord { num_seeds: 2, ..study.clone() };
        let error = StudyFile::open(folder.path(), &other, true).unwrap_err().to_string();
        assert!(error.contains("is another study"), "{error}");
        let error = StudyFile::open(folder.path(), &study, false).unwrap_err().to_string();
        assert!(error.contains("--resume continues it"), "{error}");
        fs::write(&path, format!("{text}{text}")).unwrap();
        let error = StudyFile::open(folder.path(), &study, true).unwrap_err().to_string();
        assert!(error.contains("trials.jsonl:3: expected the study in the first line"), "{error}");
    }
}
