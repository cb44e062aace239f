//! The `podracer` command: training, playing and comparing agents; native parts, a look at what is
//! installed, and the environments.

mod benchmark;
mod canvas;
mod compare;
mod eval;
mod plot;
mod sebulba;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use podracer::algos::registry::{self, ALGORITHMS};
use podracer::envs;
use podracer::error::{Error, Result};
use podracer::lower::native::{self, Lock, Origin, Part, Settings};

/// Trains, plays and compares agents; fetches native parts; lists environments.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train an agent; `podracer train ALGO --help` tells the flags
    #[command(disable_help_flag = true)]
    Train {
        /// The algorithm; none lists them
        algo: Option<String>,
        /// Its flags
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
    /// Let a saved model play
    Eval(eval::Settings),
    /// Train several algorithms on several environments with several seeds, and print the table
    Benchmark(benchmark::Settings),
    /// Measure steps per second: eager, jit, all in one call; with --peers also other libraries
    Compare(compare::Settings),
    /// Draw the learning curves of runs, one for each algorithm and environment over its seeds
    Plot(plot::Settings),
    /// Actors and learners on many devices
    Sebulba(sebulba::Settings),
    /// Fetch native parts now instead of at their first use
    Fetch {
        /// The parts; all of them if none is named
        parts: Vec<String>,
    },
    /// Show what is found, where, in which version, and what mends what is missing
    Doctor,
    /// List the environments
    Envs,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Train { algo, flags } => train(algo.as_deref(), flags),
        Command::Eval(settings) => eval::eval(&settings).and_then(told),
        Command::Benchmark(settings) => benchmark::benchmark(&settings).and_then(told),
        Command::Compare(settings) => compare::compare(&settings).and_then(told),
        Command::Plot(settings) => plot::plot(&settings).and_then(told),
        Command::Sebulba(settings) => sebulba::sebulba(&settings).and_then(told),
        Command::Fetch { parts } => fetch(&parts),
        Command::Doctor => doctor(),
        Command::Envs => list_envs(),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

/// Trains, or lists what there is to train.
fn train(algo: Option<&str>, flags: Vec<OsString>) -> Result<ExitCode> {
    let Some(algo) = algo.filter(|algo| !algo.starts_with('-')) else {
        let rows: Vec<[String; 2]> =
            ALGORITHMS.iter().map(|entry| [entry.name.to_string(), (entry.about)()]).collect();
        return told(table(&rows));
    };
    let entry = registry::find(algo)?;
    let name = format!("podracer train {algo}").into();
    Ok((entry.train)([name].into_iter().chain(flags).collect()))
}

fn told(text: String) -> Result<ExitCode> {
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The mean, and how far from it things are: the root of the mean square, by the number of things.
fn mean_and_std(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// Every part is tried; the first error is the outcome, the others are told as they come.
fn fetch(names: &[String]) -> Result<ExitCode> {
    let lock = Lock::get();
    let parts: Vec<&Part> = if names.is_empty() {
        lock.parts.iter().collect()
    } else {
        names.iter().map(|name| lock.part(name)).collect::<Result<_>>()?
    };
    let settings = Settings::from_env()?;
    let mut outcome = ExitCode::SUCCESS;
    for part in parts {
        match fetch_part(&settings, part) {
            Ok(line) => print(&line)?,
            Err(error) => {
                eprintln!("error: {error}");
                outcome = ExitCode::FAILURE;
            }
        }
    }
    Ok(outcome)
}

fn fetch_part(settings: &Settings, part: &Part) -> Result<String> {
    let bar = working(&part.name);
    // A bar and lines of the library would write over each other.
    let settings = Settings { quiet: settings.quiet || !bar.is_hidden(), ..settings.clone() };
    let found = settings.install(part);
    bar.finish_and_clear();
    let found = found?;
    let origin = match found.origin {
        Origin::Python => "is there, as an installed Python package",
        Origin::Home => "is there",
        Origin::Fetched => "fetched",
    };
    Ok(format!("{} {} {origin}: {}\n", part.package, part.version, found.root.display()))
}

/// A sign of life while pip works; it does not say how far it is. Hidden without a terminal.
fn working(name: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {msg}  {elapsed}")
        .expect("the template is constant and well-formed");
    let bar = ProgressBar::new_spinner().with_style(style).with_message(format!("fetching {name}"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn doctor() -> Result<ExitCode> {
    let report = native::doctor();
    print(&report.to_string())?;
    Ok(if report.is_ready() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn list_envs() -> Result<ExitCode> {
    let mut rows = vec![["id", "observation", "action", "limit", "solved at"].map(String::from)];
    for id in envs::list_envs() {
        let spec = match envs::spec(id) {
            Ok(spec) => spec,
            // It needs a native part that is not here: still listed.
            Err(Error::Native { problem, .. }) => {
                rows.push([id.into(), problem, "-".into(), "-".into(), "-".into()]);
                continue;
            }
            Err(error) => return Err(error),
        };
        rows.push([
            spec.id,
            spec.observation.to_string(),
            spec.action.to_string(),
            spec.max_episode_steps.map_or("-".into(), |steps| steps.to_string()),
            spec.reward_threshold.map_or("-".into(), |threshold| threshold.to_string()),
        ]);
    }
    print(&table(&rows))?;
    Ok(ExitCode::SUCCESS)
}

/// Rows in columns of equal width.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let widths: [usize; N] =
        std::array::from_fn(|i| rows.iter().map(|row| row[i].len()).max().unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Writes to the standard output. A reader who leaves, as `head` does, is no error.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write to", "the standard output")(error))
        }
        _ => Ok(()),
    }
}
