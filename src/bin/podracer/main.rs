//! The `podracer` command: trains, evaluates and compares agents, installs native parts, reports
//! what is installed, and lists the environments.

mod benchmark;
mod compare;
mod completions;
mod envs;
mod eval;
mod export;
mod picture;
mod plot;
mod run_sets;
mod runs;
mod tune;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use podracer::algos::registry::{self, ALGORITHMS, Entry};
use podracer::distributed::process_prefix;
use podracer::error::{Error, Result};
use podracer::native::{Lock, Origin, Part, Settings};
use podracer::output::{self, print};
use podracer::rl::commands::export::ExportOptions;
use podracer::rl::settings::flags;
use podracer::rl::settings::help::wrapped;
use podracer::rl::settings::ranges::ranged;
use podracer::rl::{RunOptions, interrupt};

/// Trains, evaluates and compares agents; fetches native parts; lists environments.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train an agent; `podracer train --help` lists the algorithms
    #[command(disable_help_flag = true)]
    Train {
        /// Name of the algorithm; without it, the algorithms are listed
        #[arg(allow_hyphen_values = true)]
        algo: Option<String>,
        /// Flags of the algorithm
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
    /// Evaluate a saved model
    Eval(eval::EvalFlags),
    /// Write the policy of a saved model for other programs: jax.export, StableHLO text, ONNX
    Export(ExportOptions),
    /// Train several algorithms on several environments with several seeds, and print the table
    Benchmark(benchmark::Settings),
    /// Measure steps per second: eager, jit, all in one call; with --peers also other libraries
    Compare(compare::Settings),
    /// Search hyperparameters of an algorithm by TPE, with trials kept on disk
    Tune(tune::Settings),
    /// Draw the learning curves of runs, over seeds, with a panel for each environment
    Plot(plot::Settings),
    /// Download native parts now instead of at their first use
    Fetch {
        /// Names of the parts; without names, all parts
        parts: Vec<String>,
    },
    /// Start processes of a distributed run by the fetched MPI's mpiexec; `-help` lists its flags
    #[command(disable_help_flag = true)]
    Mpiexec {
        /// Arguments of mpiexec, as in `podracer mpiexec -n 2 podracer train cleanba_ppo
        /// --distributed`
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Show which parts are installed, where, in which version, and how to fix what is missing
    Doctor,
    /// List the environments, or show one
    Envs(envs::Settings),
    /// Print the script that completes this command in a shell: source <(podracer completions bash)
    Completions(completions::Settings),
}

fn main() -> ExitCode {
    interrupt::ignore_file_size_signal();
    interrupt::handle_until_exit();
    completions::answer::<Arguments>();
    let command = ranged(Arguments::command());
    let words = flags::normalized_subcommand(&command, std::env::args_os());
    let matches = command.get_matches_from(words);
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = match arguments.command {
        Command::Train { algo, flags } => train(algo.as_deref(), flags),
        Command::Eval(settings) => eval::eval(&settings).and_then(printed),
        Command::Export(settings) => export::export(&settings).and_then(printed),
        Command::Benchmark(settings) => benchmark::benchmark(&settings).and_then(printed),
        Command::Compare(settings) => compare::compare(&settings).and_then(printed),
        Command::Tune(settings) => tune::tune(&settings).and_then(printed),
        Command::Plot(settings) => plot::plot(&settings).and_then(printed),
        Command::Fetch { parts } => fetch(&parts),
        Command::Mpiexec { arguments } => mpiexec(&arguments),
        Command::Doctor => doctor(),
        Command::Envs(settings) => envs::envs(&settings).and_then(printed),
        Command::Completions(settings) => completions::script(&settings).and_then(printed),
    };
    outcome.unwrap_or_else(|error| {
        output::stderr_line(format_args!("error: {}{error}", process_prefix()));
        ExitCode::FAILURE
    })
}

/// Trains an agent, or lists the algorithms.
fn train(algo: Option<&str>, flags: Vec<OsString>) -> Result<ExitCode> {
    let algo = match algo {
        None => return printed(algorithms(0)),
        Some("-h" | "--help" | "help") => return printed(train_help()),
        Some(flag) if flag.starts_with('-') => {
            return Err(Error::Argument(format!(
                "{flag}: the algorithm comes first, as in `podracer train ppo {flag}`; \
                 `podracer train` lists them"
            )));
        }
        Some(algo) => algo,
    };
    let entry = registry::find(algo)?;
    entry.ensure_own_flags(&flags)?;
    let mut words: Vec<OsString> = vec![format!("podracer train {}", entry.name).into()];
    // A script of CleanRL is the name of its experiment. A resumed run has its own.
    let script = registry::script(algo);
    let resumes = flags.iter().any(|flag| flag.as_encoded_bytes().starts_with(b"--resume"));
    if script != entry.name && !resumes {
        words.push(format!("--exp-name={script}").into());
    }
    Ok((entry.train)(words.into_iter().chain(flags).collect()))
}

/// Returns the list of algorithms, one per line.
fn algorithms(indent: usize) -> String {
    let row = |entry: &Entry| [format!("{:indent$}{}", "", entry.name), (entry.about)()];
    let rows: Vec<[String; 2]> = ALGORITHMS.iter().map(row).collect();
    let width = rows.iter().map(|[name, _]| name.len()).max().unwrap_or(0);
    wrapped(&table(&rows), width + 2)
}

/// Flags shared by all algorithms.
#[derive(Debug, Parser)]
struct SharedFlags {
    #[command(flatten)]
    _run: RunOptions,
}

fn train_help() -> String {
    let about = "Train an agent\n\n\
                 Usage: podracer train ALGO [FLAGS]\n\n\
                 `podracer train ALGO --help` shows all flags of an algorithm, CleanRL's among them.\n";
    let (about, flags) = (wrapped(about, 0), flags::options_help::<SharedFlags>());
    format!("{about}\nAlgorithms:\n{}\n{flags}", algorithms(2))
}

fn printed(text: String) -> Result<ExitCode> {
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Mean and population standard deviation.
fn mean_and_std(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// Fetches the parts of these names, or all that are published for this machine but those that are used in
/// place of others. An error is printed when it occurs, and the next part is fetched.
fn fetch(names: &[String]) -> Result<ExitCode> {
    let lock = Lock::get();
    let parts: Vec<&Part> = if names.is_empty() {
        let first = lock.parts.iter().filter(|part| part.in_place_of.is_none());
        first.map(Part::published).filter(|part| part.is_published()).collect()
    } else {
        names.iter().map(|name| Ok(lock.part(name)?.published())).collect::<Result<_>>()?
    };
    let settings = Settings::from_env()?;
    let mut outcome = ExitCode::SUCCESS;
    for part in parts {
        match fetch_part(&settings, part) {
            Ok(line) => print(&line)?,
            Err(error) => {
                output::stderr_line(format_args!("error: {error}"));
                outcome = ExitCode::FAILURE;
            }
        }
    }
    Ok(outcome)
}

fn fetch_part(settings: &Settings, part: &Part) -> Result<String> {
    let bar = working(&part.name);
    // Lines printed by the library would interfere with the bar.
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

/// Spinner that is shown while pip works, without a percentage. Hidden without a terminal.
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

/// Runs the launcher of the fetched MPI in place of this process. The processes that it starts use
/// the library that it belongs to, unless the user names another.
fn mpiexec(arguments: &[OsString]) -> Result<ExitCode> {
    let settings = Settings::from_env()?;
    let program = settings.locate_mpiexec()?;
    let mut command = std::process::Command::new(&program);
    command.args(arguments);
    if settings.mpi.is_none() {
        command.env("PODRACER_MPI", settings.locate_mpi()?);
    }
    #[cfg(unix)]
    let error = std::os::unix::process::CommandExt::exec(&mut command);
    #[cfg(not(unix))]
    let error = match command.status() {
        Ok(status) if status.success() => return Ok(ExitCode::SUCCESS),
        Ok(_) => return Ok(ExitCode::FAILURE),
        Err(error) => error,
    };
    Err(Error::io("cannot run", &program)(error))
}

fn doctor() -> Result<ExitCode> {
    let report = podracer::doctor::doctor();
    // Below the name of the part.
    print(&wrapped(&report.to_string(), 9))?;
    Ok(if report.is_ready() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Formats rows in aligned columns.
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

#[cfg(test)]
mod tests {
    use podracer::rl::settings::ranges::{is_numeric, range_of};

    use super::*;

    /// Checks the flags of a command and of its subcommands; returns their number.
    fn numeric_flags(command: &clap::Command) -> usize {
        let own = command.get_arguments().filter(|arg| is_numeric(arg));
        let own = own.inspect(|arg| {
            let name = arg.get_long().unwrap_or_default();
            let range = range_of(name);
            let range = range.unwrap_or_else(|| panic!("--{name} has no range in rl/ranges.rs"));
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("[range: {range}]")), "--{name}: {help}");
        });
        own.count() + command.get_subcommands().map(numeric_flags).sum::<usize>()
    }

    #[test]
    fn every_numeric_flag_of_a_command_has_a_range() {
        assert!(numeric_flags(&ranged(Arguments::command())) >= 7);
    }

    #[test]
    fn absurd_numbers_are_refused_while_parsing() {
        for line in [
            "compare --seconds nan",
            "compare --seconds 1e300",
            "compare --burnin -1",
            "compare --rounds 18446744073709551615",
            "benchmark --algos ppo --env-ids CartPole-v1 --num-seeds 18446744073709551615",
            "benchmark --algos ppo --env-ids CartPole-v1 --workers 1000000000000",
            "eval --run x --episodes 18446744073709551615",
            "tune ppo --env-id CartPole-v1 --search gamma=0,1 --trials 0",
            "plot x --points 0",
            "plot x --width 5",
            "plot x --smooth -1",
            "plot x --points 1000000000000",
        ] {
            let words = std::iter::once("podracer").chain(line.split(' '));
            let error = ranged(Arguments::command()).try_get_matches_from(words).unwrap_err();
            assert!(error.to_string().contains("must be"), "{line}: {error}");
        }
    }
}
