//! Command lines as CleanRL's: kebab-case flags, and `--no-x` for every switch `--x`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::error::{Error, Result};

/// The arguments with `--no-x` written as `--x=false`, and `--x` as `--x=true`, for every flag of
/// `A` that takes true or false.
fn with_switches<A: CommandFactory>(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let command = A::command();
    let switch = |name: &str| {
        command.get_arguments().any(|arg| {
            let values = arg.get_value_parser().possible_values();
            let values: Vec<String> =
                values.into_iter().flatten().map(|v| v.get_name().to_string()).collect();
            arg.get_long() == Some(name) && values == ["true", "false"]
        })
    };
    args.into_iter()
        .map(|arg| match arg.to_str().and_then(|text| text.strip_prefix("--")) {
            Some(name) if switch(name) => format!("--{name}=true").into(),
            Some(name) => match name.strip_prefix("no-").filter(|name| switch(name)) {
                Some(name) => format!("--{name}=false").into(),
                None => arg,
            },
            None => arg,
        })
        .collect()
}

/// Parses a command line; the first argument is the program's name.
///
/// # Errors
/// What clap says, as it says it: also the texts of `--help` and `--version`.
pub fn parse_from<A: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<A, clap::Error> {
    // The last one of a flag that is given twice counts.
    let mut command = A::command().args_override_self(true);
    let matches = command.try_get_matches_from_mut(with_switches::<A>(args))?;
    A::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// What a command line gives for `--name`, before it is parsed; the last one, as clap takes it.
pub fn peek_in(args: impl IntoIterator<Item = String>, name: &str) -> Option<String> {
    let mut args = args.into_iter();
    let mut found = None;
    while let Some(arg) = args.next() {
        let Some(rest) = arg.strip_prefix("--").and_then(|arg| arg.strip_prefix(name)) else {
            continue;
        };
        match rest.strip_prefix('=') {
            Some(value) => found = Some(value.to_string()),
            None if rest.is_empty() => found = args.next().or(found),
            None => {}
        }
    }
    found
}

/// The `main` of an example: parses the command line, trains, and tells the result or the error.
pub fn main<A: Parser>(train: impl FnOnce(&A) -> Result<()>) -> ExitCode {
    let args = match parse_from::<A>(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    match train(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Fails unless `holds`, naming the flag, what it was given, and what it takes.
///
/// # Errors
/// [`Error::Config`].
pub fn expect(
    holds: bool,
    flag: &str,
    given: impl std::fmt::Display,
    expected: &str,
) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::Config(format!("--{flag} {given}: must be {expected}")))
}

/// Fails unless all of these counts are at least 1.
///
/// # Errors
/// [`Error::Config`] that names the first that is not.
pub fn positive(counts: &[(&str, usize)]) -> Result<()> {
    counts.iter().try_for_each(|(flag, count)| expect(*count > 0, flag, count, "at least 1"))
}

/// Fails unless all of these are between 0 and 1.
///
/// # Errors
/// [`Error::Config`] that names the first that is not.
pub fn unit(numbers: &[(&str, f64)]) -> Result<()> {
    let holds = |x: f64| (0.0..=1.0).contains(&x);
    numbers.iter().try_for_each(|&(flag, x)| expect(holds(x), flag, x, "between 0 and 1"))
}

/// Fails unless all of these are finite and not below 0.
///
/// # Errors
/// [`Error::Config`] that names the first that is not.
pub fn not_negative(numbers: &[(&str, f64)]) -> Result<()> {
    let holds = |x: f64| x.is_finite() && x >= 0.0;
    numbers.iter().try_for_each(|&(flag, x)| expect(holds(x), flag, x, "a number not below 0"))
}

/// Fails unless the number is between these, both included.
///
/// # Errors
/// [`Error::Config`] that names the flag.
pub fn within(flag: &str, given: usize, least: usize, most: usize) -> Result<()> {
    expect((least..=most).contains(&given), flag, given, &format!("{least} to {most}"))
}

/// Fails unless rollouts of `num_steps` steps of `num_envs` environments divide into minibatches,
/// and at least one fits into the timesteps.
///
/// # Errors
/// [`Error::Config`] that names the first flag that is out of range.
pub fn batches(
    num_envs: usize,
    num_steps: usize,
    num_minibatches: usize,
    total_timesteps: u64,
) -> Result<()> {
    positive(&[
        ("num-envs", num_envs),
        ("num-steps", num_steps),
        ("num-minibatches", num_minibatches),
    ])?;
    let batch = num_envs * num_steps;
    expect(
        batch.is_multiple_of(num_minibatches),
        "num-minibatches",
        num_minibatches,
        &format!("a divisor of the batch, num-envs * num-steps = {batch}"),
    )?;
    expect(
        total_timesteps >= batch as u64,
        "total-timesteps",
        total_timesteps,
        &format!("at least one batch, num-envs * num-steps = {batch}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
        anneal_lr: bool,
        #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
        save_model: bool,
        #[arg(long, default_value = "x")]
        exp_name: String,
    }

    fn parse(args: &[&str]) -> Args {
        let args = ["test"].iter().chain(args).map(OsString::from);
        parse_from(args).unwrap()
    }

    #[test]
    fn switches_are_turned_on_and_off() {
        assert!(parse(&[]).anneal_lr && !parse(&[]).save_model);
        let args = parse(&["--no-anneal-lr", "--save-model", "--exp-name", "no"]);
        assert!(!args.anneal_lr && args.save_model);
        assert_eq!(args.exp_name, "no");
        assert!(!parse(&["--save-model", "--no-save-model"].as_slice()[1..]).save_model);
        assert!(parse(&["--anneal-lr=true"]).anneal_lr);
    }

    #[test]
    fn a_flag_is_seen_before_parsing() {
        let peek = |args: &str| peek_in(args.split(' ').map(String::from), "env-id");
        assert_eq!(peek("x --seed 1"), None);
        assert_eq!(peek("x --env-id Pong-v5 --seed 1").as_deref(), Some("Pong-v5"));
        assert_eq!(peek("x --env-id=A --env-id B").as_deref(), Some("B"));
        assert_eq!(peek("x --env-ids A --env-id"), None);
    }

    #[test]
    fn an_unknown_flag_is_an_error() {
        let args = ["test", "--no-such"].map(OsString::from);
        assert!(parse_from::<Args>(args).is_err());
    }
}
