//! Command lines in CleanRL's style: kebab-case flags; every switch is `--x`, `--no-x` or `--x
//! True`.

use std::error::Error as _;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches, Parser};

use crate::error::{Error, Result};
use crate::output;
use crate::rl::settings::help;
use crate::rl::settings::ranges::{OutOfRange, is_switch, ranged};

/// Parses a truth value: the words that Python's `strtobool` accepts, in upper or lower case.
fn truth(word: &str) -> Option<bool> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "off" | "0" => Some(false),
        _ => None,
    }
}

/// Returns true for a negative number with a fraction, an exponent, or infinite.
fn is_negative(word: &OsString) -> bool {
    let number = word.to_str().filter(|word| word.starts_with('-'));
    number.is_some_and(|word| word.parse::<f64>().is_ok() && word.parse::<i64>().is_err())
}

/// Flags of a command as clap describes them.
struct Flags<'a>(&'a Command);

impl Flags<'_> {
    fn find(&self, name: &str) -> Option<&Arg> {
        self.0.get_arguments().find(|arg| arg.get_long() == Some(name))
    }

    fn is_switch(&self, name: &str) -> bool {
        self.find(name).is_some_and(is_switch)
    }

    /// Returns true for a switch that clap knows without a value only.
    fn is_bare(&self, name: &str) -> bool {
        self.find(name).is_some_and(|arg| !arg.get_action().takes_values())
    }

    /// Returns true for a flag without a value by default, which is that of Python's `None`.
    fn is_optional(&self, name: &str) -> bool {
        let optional = |arg: &Arg| {
            let required = arg.is_required_set();
            arg.get_action().takes_values() && arg.get_default_values().is_empty() && !required
        };
        self.find(name).is_some_and(optional)
    }
}

/// Removes the flag `--name` with its values.
fn remove(name: &str, args: &mut Vec<OsString>) {
    let (own, with_value) = (format!("--{name}"), format!("--{name}="));
    let mut removing = false;
    args.retain(|arg| {
        let arg = arg.to_string_lossy();
        removing = arg == own || (removing && !arg.starts_with("--"));
        !removing && !arg.starts_with(&with_value)
    });
}

/// Converts the arguments to clap's spelling. For a switch, `--x`, `--x True` and `--no-x` become
/// `--x=true` and `--x=false`; `--learning_rate` becomes `--learning-rate`; `--target-kl None` is no flag.
fn normalized(command: &Command, args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let flags = Flags(command);
    let positionals = command.get_positionals().any(|arg| !arg.is_last_set());
    let mut args = args.into_iter().peekable();
    let mut normalized = Vec::new();
    while let Some(arg) = args.next() {
        if arg == "--" {
            normalized.push(arg);
            normalized.extend(args);
            break;
        }
        let Some(text) = arg.to_str().and_then(|text| text.strip_prefix("--")) else {
            normalized.push(arg);
            continue;
        };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.replace('_', "-"), Some(value.to_string())),
            None => (text.replace('_', "-"), None),
        };
        let is_none = |value: &OsString| value == "None";
        if flags.is_optional(&name)
            && (value.as_deref() == Some("None")
                || (value.is_none() && args.next_if(is_none).is_some()))
        {
            remove(&name, &mut normalized);
            continue;
        }
        let positive = name.strip_prefix("no-").filter(|name| flags.is_switch(name));
        // Without positional arguments, a word after a switch is its value.
        let is_value = |next: &OsString| match positionals {
            true => next.to_str().and_then(truth).is_some(),
            false => !next.as_encoded_bytes().starts_with(b"-"),
        };
        let (name, value) = match (positive, value) {
            (Some(name), None) => (name.to_string(), Some("false".to_string())),
            (None, None) if flags.is_switch(&name) => {
                let word = args.next_if(is_value);
                let word = word.map_or("true".into(), |word| word.to_string_lossy().into_owned());
                (name, Some(word))
            }
            (None, None) if flags.find(&name).is_some() => {
                // clap accepts `-1` as a number, but not `-1e-3`.
                (name, args.next_if(is_negative).and_then(|word| word.into_string().ok()))
            }
            (None, value) if flags.find(&name).is_some() => (name, value),
            _ => {
                normalized.push(arg);
                continue;
            }
        };
        let value = match value.as_deref().and_then(truth).filter(|_| flags.is_switch(&name)) {
            Some(truth) => Some(truth.to_string()),
            None => value,
        };
        match value.as_deref() {
            Some("true") if flags.is_bare(&name) => normalized.push(format!("--{name}").into()),
            Some("false") if flags.is_bare(&name) => remove(&name, &mut normalized),
            Some(value) => normalized.push(format!("--{name}={value}").into()),
            None => normalized.push(format!("--{name}").into()),
        }
    }
    normalized
}

/// Converts the arguments of a program with subcommands to clap's spelling, like those of an algorithm:
/// underscores are dashes, and a switch takes a truth value. Those of a subcommand that passes its
/// arguments on are left to it.
pub fn normalized_subcommand(
    command: &Command,
    args: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    let name = args.get(1).and_then(|name| name.to_str()).unwrap_or_default();
    let passes_on = |command: &&Command| command.get_arguments().any(Arg::is_trailing_var_arg_set);
    if let Some(command) = command.find_subcommand(name).filter(|command| !passes_on(command)) {
        let own = args.split_off(2);
        args.extend(normalized(command, own));
    }
    args
}

/// Returns the command of `A`: negative numbers are values, and a `bool` is a switch with a value.
pub(in crate::rl) fn command<A: CommandFactory>() -> Command {
    // If a flag is given twice, the last one counts.
    A::command().args_override_self(true).mut_args(|arg| match arg.get_action() {
        ArgAction::SetTrue | ArgAction::Set if is_switch(&arg) => switch(arg),
        action if action.takes_values() => arg.allow_negative_numbers(true),
        _ => arg,
    })
}

/// Lets a switch take a value, false by default; its help names both spellings.
fn switch(arg: Arg) -> Arg {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let name = arg.get_long().unwrap_or_default();
    let help = format!("{help} [negation: --no-{name}]");
    let is_plain = matches!(arg.get_action(), ArgAction::SetTrue);
    let arg = match is_plain && arg.get_default_values().is_empty() {
        true => arg.default_value("false"),
        false => arg,
    };
    arg.action(ArgAction::Set)
        .num_args(0..=1)
        .value_name("true|false")
        .hide_possible_values(true)
        .help(help)
        .long_help(None)
}

/// Returns the flags of `A` with their descriptions, as in its help.
pub fn options_help<A: CommandFactory>() -> String {
    help::flags(&ranged(command::<A>()))
}

/// Explains the error for numbers that are not integers or are out of the range of any count.
fn explained(error: clap::Error, command: &mut Command) -> clap::Error {
    let Some(source) = error.source() else { return error };
    let expected = match source.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => format!("must be a whole number up to {}", u64::MAX),
        Some(IntErrorKind::NegOverflow) => format!("must be a whole number from {}", i64::MIN),
        Some(_) => "must be a whole number, not negative".to_string(),
        None => match source.downcast_ref::<OutOfRange>() {
            Some(range) => range.to_string(),
            None => return error,
        },
    };
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let flag = word(ContextKind::InvalidArg);
    let flag = flag.split(' ').next().unwrap_or_default();
    let value = word(ContextKind::InvalidValue);
    command.error(ErrorKind::ValueValidation, format!("{flag} {value}: {expected}"))
}

/// Parses a command line; the first argument is the program's name.
///
/// # Errors
/// Returns clap's errors, among them the texts of `--help` and `--version`.
pub(in crate::rl) fn parse_from<A: Parser>(
    args: impl IntoIterator<Item = OsString>,
) -> Result<A, clap::Error> {
    parse_with(ranged(command::<A>()), args)
}

/// Like [`parse_from`], for this command of `A`.
pub(in crate::rl) fn parse_with<A: FromArgMatches>(
    command: Command,
    args: impl IntoIterator<Item = OsString>,
) -> Result<A, clap::Error> {
    let (matches, mut command) = matches(command, args.into_iter().collect())?;
    A::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Returns what a command line has of the flags of `command`, and the command with its help.
fn matches(command: Command, args: Vec<OsString>) -> Result<(ArgMatches, Command), clap::Error> {
    let args = normalized(&command, args);
    let program = args.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let page = help::page(&command, &program.to_string_lossy());
    let mut command = command.override_help(page);
    match command.try_get_matches_from_mut(args) {
        Ok(matches) => Ok((matches, command)),
        Err(error) => Err(explained(error, &mut command)),
    }
}

/// Returns the value of `--name` in a command line that is not parsed yet; the last one, like clap.
pub(crate) fn peek_in(args: impl IntoIterator<Item = String>, name: &str) -> Option<String> {
    let mut args = args.into_iter();
    let mut found = None;
    while let Some(arg) = args.next() {
        let Some(text) = arg.strip_prefix("--") else { continue };
        let (given, value) = match text.split_once('=') {
            Some((given, value)) => (given, Some(value.to_string())),
            None => (text, None),
        };
        if given.replace('_', "-") == name {
            found = value.or_else(|| args.next()).or(found);
        }
    }
    found
}

/// Entry point of an example: parses the command line, trains, and prints the result or the error.
pub fn main<A: Parser>(train: impl FnOnce(&A) -> Result<()>) -> ExitCode {
    let args = match parse_from::<A>(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    match train(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::stderr_line(format_args!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns an error unless `holds`; it names the flag, its value, and the accepted values.
///
/// # Errors
/// [`Error::Config`].
pub fn ensure(
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

/// Checks that the least return of a distribution, `--v-min`, is below the greatest one.
///
/// # Errors
/// [`Error::Config`] that names the flag.
pub fn support(v_min: f64, v_max: f64) -> Result<()> {
    ensure(v_min < v_max, "v-max", v_max, &format!("above --v-min {v_min}"))
}

/// Checks that the number is between these limits, both included.
///
/// # Errors
/// [`Error::Config`] that names the flag.
pub fn within(flag: &str, given: usize, least: usize, most: usize) -> Result<()> {
    ensure((least..=most).contains(&given), flag, given, &format!("{least} to {most}"))
}

/// Returns the product of these counts, which a program indexes with `i32`.
///
/// # Errors
/// [`Error::Config`] that names them if the product is 2^31 or more.
pub fn product(counts: &[(&str, usize)]) -> Result<usize> {
    let product = counts.iter().try_fold(1usize, |product, (_, n)| product.checked_mul(*n));
    product.filter(|product| i32::try_from(*product).is_ok()).ok_or_else(|| {
        let given: Vec<String> =
            counts.iter().map(|(flag, count)| format!("--{flag} {count}")).collect();
        Error::Config(format!("{}: their product must be below 2^31", given.join(" ")))
    })
}

/// Checks the schedule of an off-policy algorithm, in timesteps of all environments together: that
/// `train_frequency`, the value of `train_flag`, is a multiple of the number of environments, and
/// that `target_network_frequency` is a multiple of it.
///
/// # Errors
/// [`Error::Config`] that names the first flag that is out of range.
pub fn update_schedule(
    num_envs: usize,
    (train_flag, train_frequency): (&str, usize),
    target_network_frequency: usize,
) -> Result<()> {
    ensure(
        train_frequency.is_multiple_of(num_envs),
        train_flag,
        train_frequency,
        &format!("a multiple of --num-envs {num_envs}, the timesteps of one step of all"),
    )?;
    ensure(
        target_network_frequency.is_multiple_of(train_frequency),
        "target-network-frequency",
        target_network_frequency,
        &format!("a multiple of --{train_flag} {train_frequency}"),
    )
}

/// Checks that the gradient steps of one call of the compiled program, `updates`, divide those between two
/// updates of the target network, `all`.
///
/// # Errors
/// [`Error::Config`] that names `--updates-per-call`.
pub fn updates_in_calls(updates: usize, all: usize) -> Result<()> {
    let expected = format!("a divisor of {all}, the gradient steps between target updates");
    ensure(all.is_multiple_of(updates), "updates-per-call", updates, &expected)
}

/// Checks that the timesteps of one call of the compiled program fit into the total, and the total into
/// the program's counter, which is `i32`.
///
/// # Errors
/// [`Error::Config`] that names `--total-timesteps`.
pub fn at_least_one_call(total_timesteps: u64, steps_per_call: u64) -> Result<()> {
    ensure(
        total_timesteps >= steps_per_call,
        "total-timesteps",
        total_timesteps,
        &format!("at least {steps_per_call}, the timesteps of one call of the training loop"),
    )?;
    counted_in_i32(total_timesteps)
}

/// Checks that a compiled program can count the timesteps in an `i32`.
///
/// # Errors
/// [`Error::Config`] that names `--total-timesteps`.
pub fn counted_in_i32(total_timesteps: u64) -> Result<()> {
    let holds = i32::try_from(total_timesteps).is_ok();
    ensure(holds, "total-timesteps", total_timesteps, "below 2^31: the program counts in i32")
}

/// Returns the largest divisor of `n` that is at most `limit`; 1 if `n` or `limit` is 0.
pub fn largest_divisor(n: usize, limit: usize) -> usize {
    (1..=limit.min(n)).rev().find(|divisor| n.is_multiple_of(*divisor)).unwrap_or(1)
}

/// Checks that rollouts of `num_steps` steps of `num_envs` environments divide into minibatches,
/// and that at least one fits into the timesteps.
///
/// # Errors
/// [`Error::Config`] that names the first flag that is out of range.
pub fn batches(
    num_envs: usize,
    num_steps: usize,
    num_minibatches: usize,
    total_timesteps: u64,
) -> Result<()> {
    let batch = product(&[("num-envs", num_envs), ("num-steps", num_steps)])?;
    ensure(
        batch.is_multiple_of(num_minibatches),
        "num-minibatches",
        num_minibatches,
        &format!("a divisor of the batch, num-envs * num-steps = {batch}"),
    )?;
    ensure(
        total_timesteps >= batch as u64,
        "total-timesteps",
        total_timesteps,
        &format!("at least one batch, num-envs * num-steps = {batch}"),
    )
}

/// Checks that minibatches of whole environments divide `num_envs`, for networks that are unrolled over
/// the rollout.
///
/// # Errors
/// [`Error::Config`] that names `--num-minibatches`.
pub fn minibatches_of_envs(num_envs: usize, num_minibatches: usize) -> Result<()> {
    ensure(
        num_envs.is_multiple_of(num_minibatches),
        "num-minibatches",
        num_minibatches,
        &format!("a divisor of --num-envs {num_envs}: minibatches are whole environments"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long, default_value = "true")]
        anneal_lr: bool,
        #[arg(long, default_value = "false")]
        save_model: bool,
        #[arg(long, default_value = "x")]
        exp_name: String,
        #[arg(long, default_value = "0.1")]
        learning_rate: f64,
        #[arg(long, default_value = "1")]
        num_envs: usize,
        #[arg(long)]
        target_kl: Option<f64>,
    }

    fn parse(args: &[&str]) -> Args {
        let args = ["test"].iter().chain(args).map(OsString::from);
        parse_with(command::<Args>(), args).unwrap()
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
    fn switches_take_words_too() {
        for (words, expected) in [
            (&["--anneal-lr", "False"][..], false),
            (&["--anneal-lr", "false"], false),
            (&["--anneal-lr=0"], false),
            (&["--anneal_lr", "no"], false),
            (&["--no-anneal-lr", "--anneal-lr", "True"], true),
            (&["--no-anneal-lr", "--anneal-lr"], true),
        ] {
            assert_eq!(parse(words).anneal_lr, expected, "{words:?}");
        }
        let args = parse(&["--anneal-lr", "off", "--exp-name", "a_b", "--save_model"]);
        assert!(!args.anneal_lr && args.save_model);
        assert_eq!(args.exp_name, "a_b");
        for words in [&["--anneal-lr", "maybe"][..], &["--anneal-lr=maybe"], &["--no-anneal-lr=x"]]
        {
            let words = ["test"].iter().chain(words).map(OsString::from);
            assert!(parse_from::<Args>(words).is_err());
        }
        let words = ["test", "--anneal-lr", "maybe"].map(OsString::from);
        let error = parse_from::<Args>(words).unwrap_err().to_string();
        assert!(error.contains("invalid value 'maybe' for '--anneal-lr"), "{error}");
    }

    #[test]
    fn none_is_the_absence_of_an_optional_flag() {
        for (words, expected) in [
            (&["--target-kl", "None"][..], None),
            (&["--target_kl=None"], None),
            (&["--target-kl", "0.1", "--target-kl", "None", "--num-envs", "3"], None),
            (&["--target-kl=0.1", "--target-kl", "None"], None),
            (&["--target-kl", "None", "--target-kl", "0.2"], Some(0.2)),
        ] {
            assert_eq!(parse(words).target_kl, expected, "{words:?}");
        }
        assert_eq!(
            parse(&["--target-kl", "1", "--target-kl", "None", "--num-envs", "3"]).num_envs,
            3
        );
        // Not optional: text.
        assert_eq!(parse(&["--exp-name", "None"]).exp_name, "None");
        let words = ["test", "--num-envs", "None"].map(OsString::from);
        assert!(parse_from::<Args>(words).is_err());
    }

    #[test]
    fn numbers_are_written_as_in_python() {
        let num_envs = |value: &str| {
            let words = ["test", "--num-envs", value].map(OsString::from);
            parse_from::<Args>(words).map(|args| args.num_envs)
        };
        for (value, expected) in
            [("1_000", 1000), ("1e3", 1000), ("2.5e5", 250_000), ("1_0e1_0e", 0), ("64.0", 64)]
        {
            assert_eq!(num_envs(value).ok(), Some(expected).filter(|n| *n > 0), "{value}");
        }
        for value in ["_1", "1_", "1__0", "1e-3", "1.5", "1e400", "nan", "inf", "", "1e3_"] {
            assert!(num_envs(value).is_err(), "{value}");
        }
        let words = ["test", "--learning-rate", "1_0.5e-1"].map(OsString::from);
        assert_eq!(parse_from::<Args>(words).unwrap().learning_rate, 1.05);
    }

    #[test]
    fn subcommands_have_the_spellings_of_an_algorithm() {
        #[derive(Debug, clap::Args)]
        struct Own {
            #[arg(long)]
            num_seeds: u64,
            #[arg(long, default_value = "false")]
            dry_run: bool,
            #[arg(last = true)]
            flags: Vec<String>,
        }
        #[derive(Debug, Parser)]
        enum Main {
            Own(Own),
            Pass {
                #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
                flags: Vec<String>,
            },
        }
        let parsed = |line: &str| {
            let words = line.split(' ').map(OsString::from);
            Main::try_parse_from(normalized_subcommand(&Main::command(), words)).unwrap()
        };
        let own = |line: &str| match parsed(line) {
            Main::Own(own) => own,
            other => panic!("{other:?}"),
        };
        let found = own("x own --num_seeds 3 --dry_run -- --num_envs 4");
        assert_eq!((found.num_seeds, found.dry_run), (3, true));
        assert_eq!(found.flags, ["--num_envs", "4"]);
        assert!(own("x own --num-seeds=3 --dry-run True").dry_run);
        assert!(!own("x own --num-seeds=3 --dry-run --no-dry_run").dry_run);
        match parsed("x pass --a_b") {
            Main::Pass { flags } => assert_eq!(flags, ["--a_b"]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn negative_numbers_are_values() {
        assert_eq!(parse(&["--learning-rate", "-1"]).learning_rate, -1.0);
        assert_eq!(parse(&["--learning-rate", "-1e-3"]).learning_rate, -1e-3);
        assert_eq!(parse(&["--learning_rate", "-inf"]).learning_rate, f64::NEG_INFINITY);
        for (value, expected) in [
            ("-1", "error: --num-envs -1: must be a whole number from 1 to 1048576"),
            ("1e12", "error: --num-envs 1e12: must be a whole number from 1 to 1048576"),
            ("1.5", "error: --num-envs 1.5: must be a whole number from 1 to 1048576"),
        ] {
            let words = ["test", "--num-envs", value].map(OsString::from);
            let error = parse_from::<Args>(words).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn help_names_both_spellings_of_a_switch() {
        let help = parse_from::<Args>(["test", "--help"].map(OsString::from)).unwrap_err();
        let help = help.to_string();
        assert!(help.contains("  --[no-]anneal-lr "), "{help}");
    }

    #[test]
    fn a_flag_is_seen_before_parsing() {
        let peek = |args: &str| peek_in(args.split(' ').map(String::from), "env-id");
        assert_eq!(peek("x --seed 1"), None);
        assert_eq!(peek("x --env-id Pong-v5 --seed 1").as_deref(), Some("Pong-v5"));
        assert_eq!(peek("x --env-id=A --env-id B").as_deref(), Some("B"));
        assert_eq!(peek("x --env-ids A --env-id"), None);
        assert_eq!(peek("x --env_id=A --env_id B").as_deref(), Some("B"));
    }

    #[test]
    fn an_unknown_flag_is_an_error() {
        let args = ["test", "--no-such"].map(OsString::from);
        assert!(parse_from::<Args>(args).is_err());
    }

    #[test]
    fn updates_in_one_call_divide_those_between_target_updates() {
        assert_eq!(largest_divisor(250, 250), 250);
        assert_eq!(largest_divisor(2500, 250), 250);
        // The largest divisor of 2000 that is at most 240.
        assert_eq!(largest_divisor(2000, 240), 200);
        assert_eq!((largest_divisor(7, 5), largest_divisor(7, 7)), (1, 7));
        assert_eq!((largest_divisor(0, 5), largest_divisor(5, 0)), (1, 1));
    }

    #[test]
    fn update_schedules_that_do_not_divide_are_refused() {
        let error = |target: usize, num_envs: usize| {
            let checked = update_schedule(num_envs, ("train-frequency", 4), target);
            checked.unwrap_err().to_string()
        };
        assert_eq!(
            error(10, 2),
            "--target-network-frequency 10: must be a multiple of --train-frequency 4"
        );
        assert_eq!(
            error(400, 3),
            "--train-frequency 4: must be a multiple of --num-envs 3, the timesteps of one step of \
             all"
        );
        update_schedule(2, ("train-frequency", 4), 200).unwrap();
        assert_eq!(
            at_least_one_call(100, 200).unwrap_err().to_string(),
            "--total-timesteps 100: must be at least 200, the timesteps of one call of the training loop"
        );
    }
}
