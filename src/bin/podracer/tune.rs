//! `podracer tune`: searches hyperparameters of an algorithm by the tree-structured Parzen estimator
//! (TPE, Bergstra et al. 2011), with the median rule of Google Vizier (Golovin et al. 2017) to end
//! trials early. Trials are kept on disk.

mod search;
mod study;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Arg, Args, ValueEnum};
use podracer::algos::registry;
use podracer::error::{Error, Result};
use podracer::output;
use podracer::rl::interrupt::{self, Interruptible};
use podracer::rl::logging::tensorboard::Value;
use podracer::rl::returns::RETURN_WINDOW;
use serde_json::Map;
use strsim::levenshtein;

use super::benchmark::job::Job;
use super::benchmark::{quoted, runner};
use super::{mean_and_std, runs};
use search::Search;
use study::{State, StudyFile, StudyRecord, TrialRecord, is_below_median};

/// Points of a run at which its returns are compared with those of other trials.
const REPORTS: u64 = 10;
/// Time between two looks at the events of a run.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Trials in the table at the end.
const MAX_SHOWN_TRIALS: usize = 10;

#[derive(Debug, Args)]
pub struct Settings {
    /// Name of the algorithm
    algo: String,
    /// The id of the environment
    #[arg(long)]
    env_id: String,
    /// Flag to search: NAME=log:LOW:HIGH, NAME=linear:LOW:HIGH, or NAME=VALUE,VALUE,..; once for each
    /// flag
    #[arg(long, required = true)]
    search: Vec<Search>,
    /// Number of trials, with those that the study has already
    #[arg(long, default_value = "50")]
    trials: usize,
    /// Trials with random values at the start
    #[arg(long, default_value = "10")]
    startup_trials: usize,
    /// Runs of each trial, whose mean return is the trial's
    #[arg(long, default_value = "1")]
    num_seeds: u64,
    /// First seed of the runs; also the seed of the search
    #[arg(long, default_value = "1")]
    start_seed: u64,
    /// Rule that ends trials early
    #[arg(long, value_enum, default_value_t = Pruner::Median)]
    pruner: Pruner,
    /// Folder of the study, with trials.jsonl and the runs [default: runs/tune/ENV_ID__ALGO]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Continue the study in that folder
    #[arg(long, default_value = "false")]
    resume: bool,
    /// Trials at the same time
    #[arg(long, default_value = "1")]
    workers: usize,
    /// Flags for every run, after `--`
    #[arg(last = true)]
    flags: Vec<String>,
}

/// Rule that ends trials early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Pruner {
    /// At each tenth of a run, a best return so far that is below the median of five complete
    /// trials or more
    Median,
    /// Every run reaches its end
    None,
}

/// Study in progress.
struct Tuner<'a> {
    settings: &'a Settings,
    folder: PathBuf,
    total_timesteps: u64,
    file: Mutex<StudyFile>,
}

pub fn tune(settings: &Settings) -> Result<String> {
    let algo = registry::find(&settings.algo)?.name;
    if settings.workers == 0 {
        return Err(Error::Argument("--workers 0: must be at least 1".into()));
    }
    let total_timesteps = check(settings)?;
    let folder = settings.out.clone().unwrap_or_else(|| {
        let env_id = settings.env_id.replace(['/', ':'], "-");
        Path::new("runs/tune").join(format!("{env_id}__{algo}"))
    });
    let record = StudyRecord {
        algorithm: algo.to_string(),
        env_id: settings.env_id.clone(),
        search: settings.search.iter().map(Search::to_string).collect(),
        num_seeds: settings.num_seeds,
        start_seed: settings.start_seed,
        flags: settings.flags.clone(),
    };
    let file = Mutex::new(StudyFile::open(&folder, &record, settings.resume)?);
    let tuner = Tuner { settings, folder, total_timesteps, file };
    let _interruptible = Interruptible::start()?;
    tuner.run()?;
    tuner.report()
}

/// Returns the flag whose words begin with the letters of `name`, as `learning-rate` for `lr`, or else
/// the one that differs in the fewest letters, if these are few.
fn similar_flag<'a>(name: &str, flags: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let initials =
        |flag: &str| flag.split('-').filter_map(|word| word.chars().next()).eq(name.chars());
    let distance = |flag| if initials(flag) { 0 } else { levenshtein(name, flag) };
    let nearest = flags.filter(|flag| *flag != name).map(|flag| (distance(flag), flag)).min()?;
    (nearest.0 <= 1 + name.len() / 3).then_some(nearest.1)
}

/// Checks flags and searches without starting a run; returns the timesteps of a run.
fn check(settings: &Settings) -> Result<u64> {
    let entry = registry::find(&settings.algo)?;
    let command = (entry.command)();
    for (k, search) in settings.search.iter().enumerate() {
        let flag = search.name.as_str();
        if ["seed", "env-id", "resume", "runs-dir", "json", "total-timesteps"].contains(&flag)
            || !command.get_arguments().any(|arg| arg.get_long() == Some(flag))
        {
            let flags = command.get_arguments().filter_map(Arg::get_long);
            let hint = similar_flag(flag, flags).map(|flag| format!("; did you mean {flag}?"));
            return Err(Error::Argument(format!(
                "--search {search}: {0} has no hyperparameter --{flag}{1} `podracer train {0} \
                 --help` lists its flags",
                entry.name,
                hint.as_deref().unwrap_or(";")
            )));
        }
        if settings.search[..k].iter().any(|other| other.name == search.name) {
            return Err(Error::Argument(format!("--search {search}: --{flag} is given twice")));
        }
    }
    // Each limit and each choice, with the first of the others.
    let first: Vec<String> =
        settings.search.iter().map(|search| search.limits()[0].clone()).collect();
    let mut total = 0;
    for (k, search) in settings.search.iter().enumerate() {
        for value in search.limits() {
            let mut values = first.clone();
            values[k] = value;
            let all = job(settings, settings.start_seed, &values)
                .settings()
                .map_err(|error| Error::Argument(format!("--search {search}: {error}")))?;
            total = all.all.get("total_timesteps").and_then(serde_json::Value::as_u64).unwrap_or(0);
        }
    }
    Ok(total)
}

/// Returns the run of a seed with these values of the searched flags.
fn job(settings: &Settings, seed: u64, values: &[String]) -> Job {
    let mut flags = settings.flags.clone();
    for (search, value) in settings.search.iter().zip(values) {
        flags.push(format!("--{}={value}", search.name));
    }
    Job { algo: settings.algo.clone(), env_id: settings.env_id.clone(), seed, flags, hours: None }
}

impl Tuner<'_> {
    /// Runs the trials that the study lacks.
    fn run(&self) -> Result<()> {
        let missing: Vec<usize> = {
            let file = self.file.lock().expect("no worker panics");
            let has = |number: &usize| file.trials.iter().any(|trial| trial.number == *number);
            (0..self.settings.trials).filter(|number| !has(number)).collect()
        };
        let pending = Mutex::new(missing.into_iter());
        let failure = Mutex::new(None);
        let work = || {
            while !interrupt::requested() {
                let next = pending.lock().expect("no worker panics").next();
                let Some(number) = next else { return };
                if let Err(error) = self.trial(number) {
                    failure.lock().expect("no worker panics").get_or_insert(error);
                    return;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..self.settings.workers {
                scope.spawn(work);
            }
        });
        match failure.into_inner().expect("no worker panics") {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Runs a trial and adds its line; an interrupted trial has none.
    fn trial(&self, number: usize) -> Result<()> {
        let values = {
            let file = self.file.lock().expect("no worker panics");
            search::suggest(
                &self.settings.search,
                &file.trials,
                self.settings.startup_trials,
                (self.settings.start_seed, number),
            )
        };
        let mut trial = TrialRecord::new(number, &self.settings.search, &values);
        for seed in (self.settings.start_seed..).take(self.settings.num_seeds as usize) {
            trial.reports.push(Vec::new());
            match self.train(number, seed, &values, &mut trial) {
                Ok(Some(mean)) => trial.returns.push(mean),
                Ok(None) => {
                    trial.state = State::Pruned;
                    break;
                }
                Err(_) if interrupt::requested() => return Ok(()),
                Err(error) => {
                    trial.state = State::Failed;
                    trial.message = Some(error.to_string());
                    break;
                }
            }
        }
        output::stderr_line(trial.in_words());
        self.file.lock().expect("no worker panics").append(trial)
    }

    /// Runs one seed of a trial; `None` if it was pruned.
    fn train(
        &self,
        number: usize,
        seed: u64,
        values: &[String],
        trial: &mut TrialRecord,
    ) -> Result<Option<f64>> {
        let folder = self.folder.join(format!("runs/trial-{number}-seed-{seed}"));
        // What an interrupted trial left.
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(Error::io("cannot remove", &folder))?;
        }
        let mut words = job(self.settings, seed, values).arguments();
        words.extend(["--runs-dir".into(), folder.to_string_lossy().into_owned()]);
        let mut looked = Instant::now();
        let summary = runner::run_until(words, || {
            if self.settings.pruner == Pruner::None || looked.elapsed() < LOOK_INTERVAL {
                return Ok(false);
            }
            looked = Instant::now();
            self.add_reports(&folder, trial)?;
            let file = self.file.lock().expect("no worker panics");
            Ok(is_below_median(trial, &file.trials))
        })?;
        let Some(summary) = summary else { return Ok(None) };
        self.add_reports(&folder, trial)?;
        match summary.avg_episodic_return.filter(|mean| mean.is_finite()) {
            Some(mean) => Ok(Some(mean)),
            None => Err(Error::Argument("no episode ended".into())),
        }
    }

    /// Adds the mean returns at the points that the last run of a trial has passed since the last
    /// look.
    fn add_reports(&self, folder: &Path, trial: &mut TrialRecord) -> Result<()> {
        let Some(run) = runs::run_folders(folder).unwrap_or_default().pop() else {
            return Ok(());
        };
        let events = runs::events_of(&run)?;
        let returns: Vec<(u64, f64)> = events
            .into_iter()
            .filter_map(|event| match event.value {
                Value::Scalar { tag, value } if tag == "charts/episodic_return" => {
                    Some((event.step, f64::from(value)))
                }
                _ => None,
            })
            .collect();
        let Some(reports) = trial.reports.last_mut() else { return Ok(()) };
        let last = returns.last().map_or(0, |(step, _)| *step);
        for k in reports.len() as u64 + 1..=REPORTS {
            let point =
                (u128::from(self.total_timesteps) * u128::from(k) / u128::from(REPORTS)) as u64;
            if last < point {
                break;
            }
            let until = returns.partition_point(|(step, _)| *step <= point);
            let from = until.saturating_sub(RETURN_WINDOW);
            let values: Vec<f64> = returns[from..until].iter().map(|(_, value)| *value).collect();
            reports.push(Some(mean_and_std(&values).0).filter(|mean| mean.is_finite()));
        }
        Ok(())
    }

    /// Returns the table of the best trials.
    fn report(self) -> Result<String> {
        let file = self.file.into_inner().expect("no worker panics");
        let trials = &file.trials;
        let count = |state| trials.iter().filter(|trial| trial.state == state).count();
        if interrupt::requested() {
            return Err(Error::Argument(format!(
                "interrupted after {} of {} trials; the same command with --resume continues",
                trials.len(),
                self.settings.trials
            )));
        }
        let mut best: Vec<(&TrialRecord, f64)> =
            trials.iter().filter_map(|trial| Some((trial, trial.score()?))).collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1));
        let Some((first, _)) = best.first() else {
            let message = trials.iter().find_map(|trial| trial.message.clone()).unwrap_or_default();
            return Err(Error::Argument(format!(
                "none of {} trials reached its end; the first error: {message}",
                trials.len()
            )));
        };
        let names: Vec<&str> = self.settings.search.iter().map(|x| x.name.as_str()).collect();
        let mut text = format!(
            "| trial | {} | mean return |\n|---:|{}---:|\n",
            names.join(" | "),
            "---:|".repeat(names.len())
        );
        for (trial, _) in best.iter().take(MAX_SHOWN_TRIALS) {
            let values = self.settings.search.iter().map(|search| search.value_in(&trial.values));
            let (mean, std) = mean_and_std(&trial.returns);
            let spread =
                if trial.returns.len() > 1 { format!(" +- {std:.2}") } else { String::new() };
            let _ = writeln!(
                text,
                "| {} | {} | {mean:.2}{spread} |",
                trial.number,
                values.collect::<Vec<_>>().join(" | ")
            );
        }
        let mut words: Vec<String> = ["podracer", "train", &self.settings.algo, "--env-id"]
            .into_iter()
            .map(String::from)
            .collect();
        words.push(self.settings.env_id.clone());
        words.extend(self.settings.flags.iter().cloned());
        for search in &self.settings.search {
            words.extend([format!("--{}", search.name), search.value_in(&first.values)]);
        }
        let _ = write!(
            text,
            "\n{} trials: {} complete, {} pruned, {} failed\nbest: {}\n{}\n",
            trials.len(),
            count(State::Complete),
            count(State::Pruned),
            count(State::Failed),
            quoted(&words),
            file.path.display()
        );
        Ok(text)
    }
}

/// Values of a trial by the name of the setting.
type Values = Map<String, serde_json::Value>;
