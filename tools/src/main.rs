//! Instruments for those who develop podracer or plan large runs.
//!
//! ```sh
//! cargo run --release -p podracer-tools -- plan --env-id MinAtar/Breakout-v1 --envs 48 --devices 4
//! ```

mod plan;
mod simulate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use podracer::output;

/// Instruments for those who develop podracer or plan large runs.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure one device for some seconds, and predict the speed of layouts of actors and learners
    Plan(plan::Plan),
}

fn main() -> ExitCode {
    let Command::Plan(settings) = Arguments::parse().command;
    match plan::plan(&settings).and_then(|text| output::print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::stderr_line(format_args!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_numbers_are_refused_while_parsing() {
        for flags in ["--devices 257", "--devices 0", "--envs 3", "--processes 0", "--envs -1"] {
            let words = ["podracer-tools", "plan"].into_iter().chain(flags.split(' '));
            let error = Arguments::try_parse_from(words).unwrap_err();
            assert!(error.to_string().contains(" is not in "), "{flags}: {error}");
        }
    }
}
