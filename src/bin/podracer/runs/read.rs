//! Runs of run folders, results files and .csv files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use podracer::algos::registry;
use podracer::error::{Error, Result};
use podracer::rl::checkpoint::saved::affects_training;
use podracer::rl::logging::tensorboard::{Event, Value, read_events};
use podracer::rl::returns::{MAX_STEPS, RETURN_WINDOW};

use super::clock::Clock;
use super::{Run, Sample, csv};
use crate::benchmark::results::{self, Record, RunRecord, SummaryRecord, flag_words};
use crate::mean_and_std;

/// Tag of the returns, of which results files have the curves.
pub const RETURNS: &str = "charts/episodic_return";

/// Reads the runs of a path: a run folder, a folder of them at any of four levels, a results file or a
/// .csv file. Runs that logged nothing under the tag are left out.
///
/// # Errors
/// Returns the errors of the files, and [`Error::Argument`] without a run.
pub fn read(path: &Path, tag: &str) -> Result<Vec<Run>> {
    let mut tags = BTreeSet::new();
    let runs = if path.is_dir() {
        let mut runs = Vec::new();
        for folder in run_folders(path)? {
            let events = events_of(&folder)?;
            runs.extend(of_events(&folder, &events, tag));
            tags.extend(events.into_iter().filter_map(|event| match event.value {
                Value::Scalar { tag, .. } => Some(tag),
                _ => None,
            }));
        }
        runs
    } else if path.extension().is_some_and(|x| x == "csv") {
        csv::read(path, tag)?
    } else {
        of_results(path, tag)?
    };
    match runs.is_empty() {
        false => Ok(runs),
        true if !tags.is_empty() => Err(Error::Argument(format!(
            "{}: no run has {tag}; they have {}",
            path.display(),
            tags.into_iter().collect::<Vec<_>>().join(", ")
        ))),
        true => Err(Error::Argument(format!(
            "{}: no run has {tag}: nothing was logged of it; expected a run folder, a folder of run \
             folders, a results file of `podracer benchmark --results`, or a .csv file",
            path.display()
        ))),
    }
}

/// Returns the folders with event files in `folder`, and in its folders, three levels deep.
pub fn run_folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut runs = Vec::new();
    let mut pending = vec![(folder.to_path_buf(), 0)];
    while let Some((folder, depth)) = pending.pop() {
        let mut is_run = false;
        for entry in fs::read_dir(&folder).map_err(Error::io("cannot read", &folder))? {
            let entry = entry.map_err(Error::io("cannot read", &folder))?;
            is_run |= is_event_file(&entry.path());
            if depth < 3 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push((entry.path(), depth + 1));
            }
        }
        if is_run {
            runs.push(folder);
        }
    }
    runs.sort();
    Ok(runs)
}

fn is_event_file(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("events."))
}

/// Returns the events of a run folder.
///
/// # Errors
/// [`Error::Io`] if the folder or a file cannot be read.
pub fn events_of(folder: &Path) -> Result<Vec<Event>> {
    let mut files = Vec::new();
    for file in fs::read_dir(folder).map_err(Error::io("cannot read", folder))? {
        files.push(file.map_err(Error::io("cannot read", folder))?.path());
    }
    files.retain(|path| is_event_file(path));
    files.sort();
    let mut events = Vec::new();
    for file in files {
        events.extend(read_events(&file)?);
    }
    Ok(events)
}

/// Returns the run of these events; `None` if nothing was logged under the tag.
pub fn of_events(folder: &Path, events: &[Event], tag: &str) -> Option<Run> {
    let clock = Clock::new(events);
    let samples = events.iter().filter_map(|event| match &event.value {
        Value::Scalar { tag: own, value } if own == tag && event.step <= MAX_STEPS => {
            let step = event.step as f64;
            let value = f64::from(*value);
            Some(Sample { step, hours: Some(clock.hours(step)), value })
        }
        _ => None,
    });
    // Axes cannot be drawn to other values.
    let mut curve: Vec<Sample> = samples.filter(|sample| sample.value.is_finite()).collect();
    curve.sort_by(|a, b| a.step.total_cmp(&b.step));
    if curve.is_empty() {
        return None;
    }
    let mut settings = logged_settings(events);
    let named = RunName::of(folder);
    let env_id = settings.get("env_id").cloned();
    let algorithm = settings.get("exp_name").cloned();
    let seed = settings.get("seed").cloned();
    let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
    let named = named.unwrap_or(RunName { env_id: String::new(), algorithm: name, seed: None });
    let env_id = env_id.unwrap_or(named.env_id);
    if settings.contains_key("runs_dir") {
        add_defaults(&mut settings, algorithm.as_deref(), &env_id);
    }
    let times = events.iter().map(|event| event.wall_time).filter(|time| time.is_finite());
    let run = Run {
        source: folder.display().to_string(),
        env_id,
        algorithm: algorithm.unwrap_or(named.algorithm),
        flags: Vec::new(),
        seed: seed.or(named.seed),
        total_timesteps: settings.get("total_timesteps").and_then(|x| x.parse().ok()),
        settings: training_settings(settings),
        steps: events.iter().map(|event| event.step).filter(|x| *x <= MAX_STEPS).max()?,
        started: times.fold(f64::INFINITY, f64::min),
        score: final_score(&curve),
        curve,
    };
    Some(run)
}

/// Returns the score of a run: the mean of the last values, as many as a run's mean return has.
pub fn final_score(curve: &[Sample]) -> Option<f64> {
    let last = &curve[curve.len().saturating_sub(RETURN_WINDOW)..];
    let last: Vec<f64> = last.iter().map(|sample| sample.value).collect();
    (!last.is_empty()).then(|| mean_and_std(&last).0)
}

/// Name of a run folder: `{env_id}__{exp_name}__{seed}__{seconds}`.
#[derive(Debug, PartialEq)]
pub struct RunName {
    pub env_id: String,
    pub algorithm: String,
    pub seed: Option<String>,
}

impl RunName {
    /// Returns the parts of a name. An id such as MinAtar/Breakout-v1 has a folder of its own.
    pub fn of(run: &Path) -> Option<RunName> {
        let name = run.file_name()?.to_string_lossy();
        let mut parts = name.rsplitn(4, "__").skip(1);
        let (seed, algorithm, env_id) = (parts.next()?, parts.next()?, parts.next()?);
        let family = run.parent().and_then(Path::file_name).map(|x| x.to_string_lossy());
        let family = family.filter(|family| {
            podracer::envs::list_envs().iter().any(|id| *id == format!("{family}/{env_id}"))
        });
        let env_id = family.map_or(env_id.to_string(), |family| format!("{family}/{env_id}"));
        Some(RunName { env_id, algorithm: algorithm.into(), seed: Some(seed.into()) })
    }
}

/// Returns the settings that a run logged last: the table of names and values that CleanRL's runs have
/// too. A run that was resumed for more timesteps has a second table.
fn logged_settings(events: &[Event]) -> BTreeMap<String, String> {
    let table = events.iter().rev().find_map(|event| match &event.value {
        Value::Text { tag, text } if tag == "hyperparameters/text_summary" => Some(text),
        _ => None,
    });
    let rows = table.into_iter().flat_map(|text| text.lines().skip(2));
    let row = |row: &str| {
        let (name, value) = row.strip_prefix('|')?.strip_suffix('|')?.split_once('|')?;
        let value = match value {
            "None" => "null".to_string(),
            "True" => "true".to_string(),
            "False" => "false".to_string(),
            value => value.replace("\\|", "|"),
        };
        Some((name.to_string(), value))
    };
    rows.filter_map(row).collect()
}

/// Adds the defaults of flags that a run lacks because they did not exist yet.
fn add_defaults(settings: &mut BTreeMap<String, String>, algorithm: Option<&str>, env_id: &str) {
    let Some(entry) = algorithm.and_then(|name| registry::find(name).ok()) else { return };
    let words = [entry.name, "--env-id", env_id].map(OsString::from).to_vec();
    for (name, value) in (entry.settings)(words).unwrap_or_default() {
        settings.entry(name).or_insert_with(|| as_text(&value));
    }
}

fn as_text(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

fn training_settings(mut settings: BTreeMap<String, String>) -> BTreeMap<String, String> {
    settings.retain(|name, _| affects_training(name) && name != "seed" && name != "env_id");
    settings
}

fn of_results(path: &Path, tag: &str) -> Result<Vec<Run>> {
    if tag != RETURNS {
        return Err(Error::Argument(format!(
            "--tag {tag}: a results file has {RETURNS} alone: {}",
            path.display()
        )));
    }
    let mut runs = Vec::new();
    for (record, k) in results::read(path)?.into_iter().zip(1..) {
        match record {
            Record::Run(run) => runs.push(of_record(path, k, *run)),
            Record::Summary(own) if own.program.is_none() && own.metric.is_none() => {
                runs.extend(of_summary(path, k, &own));
            }
            Record::Summary(_) => {}
        }
    }
    Ok(runs)
}

fn of_record(path: &Path, k: usize, run: RunRecord) -> Run {
    let training = (run.wall_s - run.compile_s).max(0.0) / 3600.0;
    let sample = |(step, value): &(u64, f64)| {
        let step = *step as f64;
        Sample { step, hours: Some(training * step / run.steps as f64), value: *value }
    };
    let settings = run.settings.iter().map(|(name, value)| (name.clone(), as_text(value)));
    let mut settings: BTreeMap<String, String> = settings.collect();
    add_defaults(&mut settings, Some(&run.algorithm), &run.env_id);
    Run {
        source: format!("run {k} of {}", path.display()),
        flags: flag_words(&run.flags),
        seed: Some(run.seed.to_string()),
        settings: training_settings(settings),
        steps: run.steps,
        started: k as f64,
        curve: run.curve.iter().map(sample).collect(),
        score: run.mean_return,
        total_timesteps: Some(run.total_timesteps()),
        algorithm: run.algorithm,
        env_id: run.env_id,
    }
}

/// Returns the scores of a summary as runs without curves.
fn of_summary(path: &Path, k: usize, summary: &SummaryRecord) -> Vec<Run> {
    let total = ("total_timesteps".to_string(), summary.total_timesteps.to_string());
    let run = |score: &f64| Run {
        source: format!("run {k} of {}", path.display()),
        env_id: summary.env_id.clone(),
        algorithm: summary.algorithm.clone(),
        flags: flag_words(&summary.flags),
        seed: None,
        settings: [total.clone()].into(),
        steps: summary.stopped_at.unwrap_or(summary.total_timesteps),
        total_timesteps: Some(summary.total_timesteps),
        started: k as f64,
        curve: Vec::new(),
        score: Some(*score),
    };
    summary.returns.iter().map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_run_folders_have_environment_experiment_and_seed() {
        let of = |path: &str| RunName::of(Path::new(path));
        let name = |env_id: &str, algorithm: &str, seed: &str| {
            let seed = Some(seed.to_string());
            Some(RunName { env_id: env_id.into(), algorithm: algorithm.into(), seed })
        };
        assert_eq!(of("runs/Pong-v5__ppo__1__17"), name("Pong-v5", "ppo", "1"));
        assert_eq!(
            of("runs/MinAtar/Breakout-v1__my__exp__2__17"),
            name("Breakout-v1__my", "exp", "2")
        );
        assert_eq!(
            of("runs/MinAtar/Breakout-v1__ppo__2__17"),
            name("MinAtar/Breakout-v1", "ppo", "2")
        );
        assert_eq!(of("runs"), None);
    }

    #[test]
    fn a_score_is_the_mean_of_the_last_hundred_values() {
        let sample = |value: i32| Sample { step: 0.0, hours: None, value: value.into() };
        assert_eq!(final_score(&(0..150).map(sample).collect::<Vec<_>>()), Some(99.5));
        assert_eq!(final_score(&[]), None);
    }

    #[test]
    fn settings_are_those_that_were_logged_and_defaults_of_later_flags() {
        let event = |value| Event { wall_time: 5.0, step: 7, value };
        let text = |rows: &str| {
            let text = format!("|param|value|\n|-|-|\n{rows}");
            event(Value::Text { tag: "hyperparameters/text_summary".into(), text })
        };
        let scalar = event(Value::Scalar { tag: "x".into(), value: 3.0 });
        let rows = "|env_id|CartPole-v1|\n|exp_name|dqn|\n|seed|4|\n|runs_dir|r|\n|gamma|0.5|";
        let run = of_events(Path::new("a"), &[text(rows), scalar.clone()], "x").unwrap();
        assert_eq!((&*run.env_id, &*run.algorithm), ("CartPole-v1", "dqn"));
        assert_eq!(run.seed.as_deref(), Some("4"));
        assert_eq!((&*run.settings["gamma"], &*run.settings["tau"]), ("0.5", "1.0"));
        assert!(!run.settings.contains_key("seed") && !run.settings.contains_key("runs_dir"));
        assert_eq!((run.steps, run.score), (7, Some(3.0)));
        // A resumed run has the settings with which it ended.
        let resumed = [text(rows), scalar.clone(), text(&rows.replace("0.5", "0.6"))];
        let run = of_events(Path::new("a"), &resumed, "x").unwrap();
        assert_eq!(run.settings["gamma"], "0.6");
        // Another program's run has its own settings alone.
        let run = of_events(Path::new("a"), &[text("|anneal_lr|True|"), scalar], "x").unwrap();
        assert_eq!(run.settings, [("anneal_lr".to_string(), "true".to_string())].into());
        assert_eq!((&*run.algorithm, run.seed), ("a", None));
    }
}
