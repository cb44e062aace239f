//! `podracer benchmark`: algorithms on environments with several seeds, and the table of scores.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use clap::Args;
use podracer::algos::registry;
use podracer::error::{Error, Result};
use podracer::rl::Summary;

#[derive(Debug, Args)]
pub struct Settings {
    /// The algorithms, separated by commas
    #[arg(long, value_delimiter = ',', required = true)]
    algos: Vec<String>,
    /// The environments, separated by commas
    #[arg(long, value_delimiter = ',', required = true)]
    env_ids: Vec<String>,
    /// Runs of each algorithm on each environment
    #[arg(long, default_value_t = 3)]
    num_seeds: u64,
    /// The first seed; the others follow it
    #[arg(long, default_value_t = 1)]
    start_seed: u64,
    /// Runs at the same time; 0 only prints what would be run
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Write a script that runs them as an array of Slurm jobs, and run nothing here
    #[arg(long)]
    slurm: Option<PathBuf>,
    /// Flags for every run, after `--`
    #[arg(last = true)]
    flags: Vec<String>,
}

/// One run to come.
#[derive(Debug, Clone)]
struct Job {
    algo: String,
    env_id: String,
    seed: u64,
}

impl Job {
    fn arguments(&self, settings: &Settings) -> Vec<String> {
        let mut words = vec!["train".to_string(), self.algo.clone()];
        words.extend(["--env-id".to_string(), self.env_id.clone()]);
        words.extend(["--seed".to_string(), self.seed.to_string(), "--json".to_string()]);
        words.extend(settings.flags.iter().cloned());
        words
    }
}

pub fn benchmark(settings: &Settings) -> Result<String> {
    for algo in &settings.algos {
        registry::find(algo)?;
    }
    let mut jobs = VecDeque::new();
    for seed in (settings.start_seed..).take(settings.num_seeds as usize) {
        for env_id in &settings.env_ids {
            for algo in &settings.algos {
                let (algo, env_id) = (algo.clone(), env_id.clone());
                jobs.push_back(Job { algo, env_id, seed });
            }
        }
    }
    if let Some(path) = &settings.slurm {
        fs::write(path, slurm_script(&jobs, settings)).map_err(Error::io("cannot write", path))?;
        return Ok(format!("{} runs: sbatch {}\n", jobs.len(), path.display()));
    }
    if settings.workers == 0 {
        let lines =
            jobs.iter().map(|job| format!("podracer {}\n", quoted(&job.arguments(settings))));
        return Ok(lines.collect());
    }
    let (jobs, done) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let next = || jobs.lock().expect("no worker panics").pop_front();
    thread::scope(|scope| {
        for _ in 0..settings.workers {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let outcome = run(&job, settings);
                    match &outcome {
                        Ok(summary) => eprintln!("{}", summary.in_words()),
                        Err(error) => {
                            eprintln!("{} on {}, seed {}: {error}", job.algo, job.env_id, job.seed)
                        }
                    }
                    done.lock().expect("no worker panics").push((job, outcome));
                }
            });
        }
    });
    let done = done.into_inner().expect("no worker panics");
    let text = table(settings, &done);
    if let Some((job, Err(error))) = done.iter().find(|(_, outcome)| outcome.is_err()) {
        // What there is, is told first.
        eprint!("{text}");
        let Job { algo, env_id, seed } = job;
        return Err(Error::Argument(format!("{algo} on {env_id}, seed {seed}: {error}")));
    }
    let command: Vec<String> = std::env::args().skip(1).collect();
    Ok(format!("{text}\ncommand: podracer {}\n", quoted(&command)))
}

fn run(job: &Job, settings: &Settings) -> Result<Summary> {
    let program = std::env::current_exe().map_err(Error::io("cannot find", "this program"))?;
    let output = Command::new(program)
        .args(job.arguments(settings))
        .stdin(Stdio::null())
        .output()
        .map_err(Error::io("cannot run", "this program"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).map_err(|_| {
        let told = String::from_utf8_lossy(&output.stderr);
        Error::Argument(told.trim().lines().last().unwrap_or("it ended without a word").to_string())
    })
}

/// Mean and deviation over the seeds of each algorithm on each environment: the return of the last
/// episodes, and the steps per second.
fn table(settings: &Settings, done: &[(Job, Result<Summary>)]) -> String {
    let mut text = format!(
        "| environment | {} |\n|---|{}\n",
        settings.algos.join(" | "),
        "---|".repeat(settings.algos.len())
    );
    for env_id in &settings.env_ids {
        let _ = write!(text, "| {env_id} |");
        for algo in &settings.algos {
            let own = || {
                let of_both = |job: &Job| job.env_id == *env_id && job.algo == *algo;
                done.iter()
                    .filter(move |(job, _)| of_both(job))
                    .filter_map(|(_, x)| x.as_ref().ok())
            };
            let returns: Vec<f64> = own().filter_map(|x| x.avg_episodic_return).collect();
            let speeds: Vec<f64> = own().map(|x| x.sps).collect();
            let ((mean, std), (sps, _)) =
                (super::mean_and_std(&returns), super::mean_and_std(&speeds));
            let _ = write!(text, " {mean:.2} +- {std:.2} ({sps:.0} SPS) |");
        }
        text.push('\n');
    }
    text
}

/// A script in which each job of the array is one run.
fn slurm_script(jobs: &VecDeque<Job>, settings: &Settings) -> String {
    let mut text = format!(
        "#!/bin/bash\n#SBATCH --job-name=podracer\n#SBATCH --array=0-{}%{}\n\
         #SBATCH --output=slurm/%A_%a.out\n\nruns=(\n",
        jobs.len().saturating_sub(1),
        settings.workers.max(1)
    );
    for job in jobs {
        let _ = writeln!(text, "  {}", quoted(&[quoted(&job.arguments(settings))]));
    }
    text.push_str(")\neval \"podracer ${runs[$SLURM_ARRAY_TASK_ID]}\"\n");
    text
}

/// Words for a shell.
fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+".contains(c);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}
