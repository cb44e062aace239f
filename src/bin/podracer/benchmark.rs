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
use podracer::output;
use podracer::rl::Summary;

#[derive(Debug, Args)]
pub struct Settings {
    /// Algorithms, separated by commas
    #[arg(long, value_delimiter = ',', required = true)]
    algos: Vec<String>,
    /// Environment ids, separated by commas
    #[arg(long, value_delimiter = ',', required = true)]
    env_ids: Vec<String>,
    /// Runs of each algorithm on each environment
    #[arg(long, default_value_t = 3)]
    num_seeds: u64,
    /// First seed; the others follow it
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

/// One run of the benchmark.
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
                    let ended = (job, outcome);
                    match (&ended.1, failure(&ended)) {
                        (Ok(summary), _) => output::stderr_line(summary.in_words()),
                        (Err(_), line) => output::stderr_line(line.unwrap_or_default()),
                    }
                    done.lock().expect("no worker panics").push(ended);
                }
            });
        }
    });
    let done = done.into_inner().expect("no worker panics");
    let text = table(settings, &done);
    let failed: Vec<String> = done.iter().filter_map(failure).collect();
    if failed.is_empty() {
        let command: Vec<String> = std::env::args().skip(1).collect();
        return Ok(format!("{text}\ncommand: podracer {}\n", quoted(&command)));
    }
    // The results of the runs that succeeded are printed too.
    output::print(&text)?;
    Err(Error::Argument(format!(
        "{} of {} runs failed:\n  {}",
        failed.len(),
        done.len(),
        failed.join("\n  ")
    )))
}

/// Returns the line about a run that failed.
fn failure((job, outcome): &(Job, Result<Summary>)) -> Option<String> {
    let error = outcome.as_ref().err()?;
    Some(format!("{} on {}, seed {}: {error}", job.algo, job.env_id, job.seed))
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
    if output.status.success()
        && let Ok(summary) = serde_json::from_str(last)
    {
        return Ok(summary);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let complaint = first_error(&complaint).map_or_else(
        || format!("the process ended without a message ({})", output.status),
        str::to_string,
    );
    Err(Error::Argument(complaint))
}

/// Returns the first line of a process's standard error that begins with `error: `, without that
/// prefix; otherwise the message of a panic, or else the last line.
fn first_error(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_panic = |line: &str| line.starts_with("thread '") && line.contains("panicked");
    let error = text.lines().find_map(|line| line.strip_prefix("error: "));
    // The message of a panic is on the line after it.
    let panic = || lines.clone().skip_while(|line| !is_panic(line)).nth(1);
    error.or_else(panic).or_else(|| lines.next_back())
}

/// Returns the table of means and standard deviations over the seeds of each algorithm on each
/// environment: the return of the last episodes, the steps per second without compilation, and the
/// seconds of compilation. Environments without a successful run have no row.
fn table(settings: &Settings, done: &[(Job, Result<Summary>)]) -> String {
    let mut text = format!(
        "| environment | {} |\n|---|{}\n",
        settings.algos.join(" | "),
        "---|".repeat(settings.algos.len())
    );
    for env_id in &settings.env_ids {
        let cells = settings.algos.iter().map(|algo| {
            let of_both = |job: &Job| job.env_id == *env_id && job.algo == *algo;
            let own = done.iter().filter(|(job, _)| of_both(job));
            cell(&own.filter_map(|(_, x)| x.as_ref().ok()).collect::<Vec<_>>())
        });
        let cells: Vec<Option<String>> = cells.collect();
        if cells.iter().any(Option::is_some) {
            let cells: Vec<String> =
                cells.into_iter().map(|cell| cell.unwrap_or("failed".into())).collect();
            let _ = writeln!(text, "| {env_id} | {} |", cells.join(" | "));
        }
    }
    text
}

/// Returns the table cell of one algorithm's runs on one environment; `None` without a run.
fn cell(runs: &[&Summary]) -> Option<String> {
    if runs.is_empty() {
        return None;
    }
    let returns: Vec<f64> = runs.iter().filter_map(|run| run.avg_episodic_return).collect();
    let returns = match returns[..] {
        [] => "no episode ended".to_string(),
        _ => {
            let (mean, std) = super::mean_and_std(&returns);
            format!("{mean:.2} +- {std:.2}")
        }
    };
    // Compilation in parallel with training can take longer than the whole run.
    let training_sps = |run: &&Summary| match run.wall_s - run.compile_s {
        seconds if seconds > 0.0 => run.global_step as f64 / seconds,
        _ => run.sps,
    };
    let speeds: Vec<f64> = runs.iter().map(training_sps).collect();
    let compile: Vec<f64> = runs.iter().map(|run| run.compile_s).collect();
    let (sps, compile) = (super::mean_and_std(&speeds).0, super::mean_and_std(&compile).0);
    Some(format!("{returns} ({sps:.0} SPS; {compile:.1} s compiling)"))
}

/// Returns a Slurm script in which each job of the array is one run.
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

/// Quotes words for a shell.
fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+".contains(c);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_of_a_process_is_found() {
        let text = "compiling ppo_init ...\nerror: first\n  help: this\nerror: second\n";
        assert_eq!(first_error(text), Some("first"));
        let text =
            "step 1\n\nthread 'main' (7) panicked at src/x.rs:1:2:\nno luck\nnote: run with\n";
        assert_eq!(first_error(text), Some("no luck"));
        assert_eq!(first_error("Killed\n\n"), Some("Killed"));
        assert_eq!(first_error("\n"), None);
    }
}
