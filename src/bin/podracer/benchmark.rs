//! `podracer benchmark`: algorithms on environments with several seeds, the results file, and the
//! tables and figures of the documentation made from it.

mod docs;
pub mod job;
mod progress;
mod provenance;
pub mod results;
pub mod runner;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;

use clap::{ArgGroup, Args};
use podracer::algos::registry;
use podracer::error::{Error, Result};
use podracer::output;
use podracer::rl::Summary;
use podracer::rl::interrupt::{self, Interruptible};

pub use docs::thousands;
use job::{Job, RunSettings};
use progress::{Progress, RunProgress};
use provenance::Commit;
pub use provenance::machine;
use results::{Record, ResultsFile, RunRecord};

use super::run_sets;
use super::runs::Pooling;

// A Slurm job trains and prints its result; it adds no line to a results file.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("record").args(["results", "slurm"]))]
pub struct Settings {
    /// Algorithms, separated by commas or spaces
    #[arg(long, value_delimiter = ',', num_args = 1..,
          required_unless_present_any = ["queue", "write_docs", "compare"])]
    algos: Vec<String>,
    /// Environment ids, separated by commas or spaces
    #[arg(long, value_delimiter = ',', num_args = 1..,
          required_unless_present_any = ["queue", "write_docs", "compare"])]
    env_ids: Vec<String>,
    /// Runs of each algorithm on each environment
    #[arg(long, default_value = "3")]
    num_seeds: u64,
    /// First seed; the others follow it
    #[arg(long, default_value = "1")]
    start_seed: u64,
    /// File of the runs to do, in order, in place of algorithms and environments: JSON lines of
    /// algorithm, env_id, seeds, flags and hours
    #[arg(long, requires = "record",
          conflicts_with_all = ["algos", "env_ids", "num_seeds", "start_seed"])]
    queue: Option<PathBuf>,
    /// File to which each finished run is added as a line of JSON; runs then write checkpoints
    #[arg(long)]
    results: Option<PathBuf>,
    /// Leave out the runs that the results file has, and resume runs that were interrupted
    #[arg(long, default_value = "false", requires = "results")]
    resume: bool,
    /// Runs at the same time; 0 only prints what would be run
    #[arg(long, default_value = "1")]
    workers: usize,
    /// Run at the lowest priority, when processors are idle (Linux)
    #[arg(long, default_value = "false", conflicts_with_all = ["slurm", "write_docs", "compare"])]
    idle: bool,
    /// Write a script that runs them as an array of Slurm jobs, and run nothing here; the jobs print
    /// their results and write no results file
    #[arg(long)]
    slurm: Option<PathBuf>,
    /// Write the tables of DOCS/results.md and the figures in DOCS/figures/results from the files in
    /// DOCS/results, and run nothing [default of DOCS: docs]
    #[arg(long, value_name = "DOCS", num_args = 0..=1, default_missing_value = "docs",
          conflicts_with_all = ["algos", "env_ids", "queue", "results", "resume", "slurm", "flags"])]
    write_docs: Option<PathBuf>,
    /// Compare the returns of two sets of runs, and run nothing: two results files or folders of
    /// runs, or one of them and two names in --algos
    #[arg(long, value_name = "PATH", num_args = 1..=2,
          conflicts_with_all = ["env_ids", "queue", "results", "resume", "slurm", "write_docs", "flags"])]
    compare: Vec<PathBuf>,
    /// Compare sets in which settings, lengths or seeds of the runs are mixed, and stopped runs
    #[arg(long, default_value = "false", requires = "compare",
          conflicts_with_all = ["env_ids", "queue", "write_docs"])]
    pool: bool,
    /// Compare the newest of the runs with the same settings and seed
    #[arg(long, default_value = "false", requires = "compare",
          conflicts_with_all = ["pool", "env_ids", "queue", "write_docs"])]
    newest: bool,
    /// Flags for every run, after `--`
    #[arg(last = true)]
    flags: Vec<String>,
}

/// Result of a job: of a recorded run, the line of the results file too.
struct Outcome {
    job: Job,
    result: Result<Summarized>,
}

/// Numbers of a run that the table shows.
struct Summarized {
    mean_return: Option<f64>,
    steps: u64,
    sps: f64,
    wall_s: f64,
    compile_s: f64,
}

impl Settings {
    fn pooling(&self) -> Pooling {
        Pooling { pool: self.pool, newest: self.newest }
    }
}

pub fn benchmark(settings: &Settings) -> Result<String> {
    if let Some(folder) = &settings.write_docs {
        return docs::write(folder);
    }
    if !settings.compare.is_empty() {
        return run_sets::compare(&settings.compare, &settings.algos, settings.pooling());
    }
    let mut jobs = match &settings.queue {
        Some(path) => job::read_queue(path, &settings.flags)?,
        None => grid(settings)?,
    };
    let mut file = None;
    if let Some(path) = &settings.results {
        file = Some(ResultsFile::open(path)?);
        let done = results::read(path)?;
        let count = jobs.len();
        jobs = missing(jobs, &done)?;
        let present = count - jobs.len();
        if present > 0 && !settings.resume {
            return Err(Error::Argument(format!(
                "{} has {present} of these {count} runs already: --resume leaves them out; give \
                 another --results to run them again",
                path.display()
            )));
        }
        output::stderr_line(format_args!("{present} of {count} runs are in {}", path.display()));
    }
    if let Some(path) = &settings.slurm {
        let script = slurm_script(&jobs, settings.workers);
        fs::write(path, script).map_err(Error::io("cannot write", path))?;
        return Ok(format!("{} runs: sbatch {}\n", jobs.len(), path.display()));
    }
    if settings.workers == 0 {
        return Ok(jobs.iter().map(planned).collect());
    }
    let _interruptible = Interruptible::start()?;
    if settings.idle {
        runner::use_idle_priority()?;
    }
    let done = run_all(jobs, settings, file)?;
    reported(settings, &done)
}

/// Returns the jobs of every algorithm on every environment.
fn grid(settings: &Settings) -> Result<Vec<Job>> {
    for algo in &settings.algos {
        registry::find(algo)?;
    }
    let mut jobs = Vec::new();
    for seed in (settings.start_seed..).take(settings.num_seeds as usize) {
        for env_id in &settings.env_ids {
            for algo in &settings.algos {
                let (algo, env_id) = (algo.clone(), env_id.clone());
                let flags = settings.flags.clone();
                jobs.push(Job { algo, env_id, seed, flags, hours: None });
            }
        }
    }
    Ok(jobs)
}

/// Returns the jobs that no line of the results file has with the same settings.
fn missing(jobs: Vec<Job>, done: &[Record]) -> Result<Vec<Job>> {
    let runs = done.iter().filter_map(|record| match record {
        Record::Run(run) => Some(&**run),
        Record::Summary(_) => None,
    });
    let mut missing = Vec::new();
    for job in jobs {
        let settings = job.settings()?;
        if !runs.clone().any(|run| settings.trained(&job, run)) {
            missing.push(job);
        }
    }
    Ok(missing)
}

/// Returns the command of a job, with its estimated time.
fn planned(job: &Job) -> String {
    let hours = job.hours.map_or(String::new(), |hours| format!("  # {hours} h"));
    format!("podracer {}{hours}\n", quoted(&job.arguments()))
}

/// Runs the jobs, `--workers` at a time, until the end or an interruption. Recorded runs are added
/// to the results file as they end.
fn run_all(jobs: Vec<Job>, settings: &Settings, file: Option<ResultsFile>) -> Result<Vec<Outcome>> {
    let commit = file.as_ref().map(|_| Commit::of_program());
    let recorder = file.zip(commit);
    if let Some((_, commit)) = &recorder
        && !commit.clean
    {
        output::stderr_line(
            "warning: the sources have changes that are not committed, or are newer than this \
             program; the lines will have \"clean\": false",
        );
    }
    let commit = recorder.as_ref().map(|(_, commit)| commit.clone());
    let file = recorder.map(|(file, _)| Mutex::new(file));
    let progress = Progress::new(jobs.len());
    let (jobs, done) = (Mutex::new(VecDeque::from(jobs)), Mutex::new(Vec::new()));
    let next = || match interrupt::requested() {
        true => None,
        // Runs are counted in the order in which they are taken.
        false => {
            let mut jobs = jobs.lock().expect("no worker panics");
            jobs.pop_front().map(|job| (progress.start(&job), job))
        }
    };
    let work = || {
        while let Some((own, job)) = next() {
            let result = match (&file, &commit) {
                (Some(file), Some(commit)) => recorded(&job, commit, file, own),
                _ => runner::run(&job, own)
                    .map(|summary| (summary.in_words(), Summarized::from(&summary))),
            };
            let result = result.map(|(line, summarized)| {
                progress.print(&line);
                summarized
            });
            let outcome = Outcome { job, result };
            if let Some(line) = outcome.failure() {
                progress.print(&line);
            }
            done.lock().expect("no worker panics").push(outcome);
        }
    };
    thread::scope(|scope| {
        for _ in 0..settings.workers {
            scope.spawn(work);
        }
    });
    // Jobs that an interruption left are reported with the others.
    let mut done = done.into_inner().expect("no worker panics");
    for job in jobs.into_inner().expect("no worker panics") {
        done.push(Outcome { job, result: Err(Error::Argument("not started".into())) });
    }
    Ok(done)
}

/// Runs a job and adds its line to the results file. Returns the result in words too.
fn recorded(
    job: &Job,
    commit: &Commit,
    file: &Mutex<ResultsFile>,
    progress: RunProgress,
) -> Result<(String, Summarized)> {
    let settings: RunSettings = job.settings()?;
    let record = runner::run_recorded(job, &settings, commit, progress)?;
    let summarized = (record.in_words(), Summarized::from(&record));
    file.lock().expect("no worker panics").append(record)?;
    runner::remove_checkpoint(job, &settings)?;
    Ok(summarized)
}

/// Returns the table of the runs, or with a run that failed, prints the table and returns an error.
fn reported(settings: &Settings, done: &[Outcome]) -> Result<String> {
    let text = table(done);
    let failed: Vec<String> = done.iter().filter_map(Outcome::failure).collect();
    let command: Vec<String> = std::env::args().skip(1).collect();
    if failed.is_empty() {
        return Ok(format!("{text}\ncommand: podracer {}\n", quoted(&command)));
    }
    // The results of the runs that succeeded are printed too.
    output::print(&text)?;
    let advice = match &settings.results {
        Some(_) if settings.resume => "\nthe same command runs them again, from their checkpoints",
        Some(_) => "\nthe same command with --resume runs them again, from their checkpoints",
        None => "",
    };
    let verb = if interrupt::requested() { "did not end" } else { "failed" };
    Err(Error::Argument(format!(
        "{} of {} runs {verb}:\n  {}{advice}",
        failed.len(),
        done.len(),
        failed.join("\n  ")
    )))
}

impl Outcome {
    /// Returns the line about a run that failed.
    fn failure(&self) -> Option<String> {
        let error = self.result.as_ref().err()?;
        Some(format!("{}: {error}", self.job.name()))
    }
}

impl From<&Summary> for Summarized {
    fn from(summary: &Summary) -> Summarized {
        Summarized {
            mean_return: summary.avg_episodic_return,
            steps: summary.global_step,
            sps: summary.sps,
            wall_s: summary.wall_s,
            compile_s: summary.compile_s,
        }
    }
}

impl From<&RunRecord> for Summarized {
    fn from(run: &RunRecord) -> Summarized {
        Summarized {
            mean_return: run.mean_return,
            steps: run.steps,
            sps: run.sps,
            wall_s: run.wall_s,
            compile_s: run.compile_s,
        }
    }
}

/// Returns the table of statistics over the seeds of each algorithm on each environment: the return
/// of the last episodes, the steps per second without compilation, and the seconds of compilation.
/// Environments without a successful run have no row. Atari games have a second table, of
/// human-normalized scores.
fn table(done: &[Outcome]) -> String {
    let (mut algos, mut env_ids) = (Vec::new(), Vec::new());
    for Outcome { job, .. } in done {
        if !algos.contains(&&job.algo) {
            algos.push(&job.algo);
        }
        if !env_ids.contains(&&job.env_id) {
            env_ids.push(&job.env_id);
        }
    }
    let names: Vec<&str> = algos.iter().map(|algo| algo.as_str()).collect();
    let mut text =
        format!("| environment | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for env_id in env_ids {
        let own = |algo: &String| -> Vec<&Outcome> {
            let of_both = |job: &Job| job.env_id == *env_id && job.algo == *algo;
            done.iter().filter(|outcome| of_both(&outcome.job)).collect()
        };
        let runs: Vec<Vec<&Outcome>> = algos.iter().map(|algo| own(algo)).collect();
        let cells = runs.iter().map(|runs| {
            cell(&runs.iter().filter_map(|run| run.result.as_ref().ok()).collect::<Vec<_>>())
        });
        let cells: Vec<Option<String>> = cells.collect();
        if cells.iter().any(Option::is_some) {
            let cells = cells.into_iter().zip(&runs).map(|(cell, runs)| match runs[..] {
                [] => String::new(),
                _ => cell.unwrap_or("failed".into()),
            });
            let _ = writeln!(text, "| {env_id} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
    }
    let normalized = algos.iter().filter_map(|algo| {
        let mut scores: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for Outcome { job, result } in done.iter().filter(|outcome| outcome.job.algo == **algo) {
            let score = result.as_ref().ok().and_then(|run| run.mean_return);
            scores.entry(job.env_id.clone()).or_default().extend(score);
        }
        Some(((*algo).clone(), run_sets::human_normalized(&scores)?))
    });
    let normalized: Vec<_> = normalized.collect();
    if !normalized.is_empty() {
        let _ = write!(text, "\n{}", run_sets::aggregate_table(&normalized));
    }
    text
}

/// Returns the table cell of one algorithm's runs on one environment; `None` without a run.
fn cell(runs: &[&Summarized]) -> Option<String> {
    if runs.is_empty() {
        return None;
    }
    let returns: Vec<f64> = runs.iter().filter_map(|run| run.mean_return).collect();
    let returns = match returns[..] {
        [] => "no episode ended".to_string(),
        _ => run_sets::measures(&returns, 2),
    };
    // Compilation in parallel with training can take longer than the whole run.
    let training_sps = |run: &&Summarized| match run.wall_s - run.compile_s {
        seconds if seconds > 0.0 => run.steps as f64 / seconds,
        _ => run.sps,
    };
    let speeds: Vec<f64> = runs.iter().map(training_sps).collect();
    let compile: Vec<f64> = runs.iter().map(|run| run.compile_s).collect();
    let (sps, compile) = (super::mean_and_std(&speeds).0, super::mean_and_std(&compile).0);
    Some(format!("{returns} ({sps:.0} SPS; {compile:.1} s compiling)"))
}

/// Returns a Slurm script in which each job of the array is one run.
fn slurm_script(jobs: &[Job], workers: usize) -> String {
    let mut text = format!(
        "#!/bin/bash\n#SBATCH --job-name=podracer\n#SBATCH --array=0-{}%{}\n\
         #SBATCH --output=slurm/%A_%a.out\n\nruns=(\n",
        jobs.len().saturating_sub(1),
        workers.max(1)
    );
    for job in jobs {
        let _ = writeln!(text, "  {}", quoted(&[quoted(&job.arguments())]));
    }
    text.push_str(")\neval \"podracer ${runs[$SLURM_ARRAY_TASK_ID]}\"\n");
    text
}

/// Quotes words for a shell.
pub fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+".contains(c);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}
