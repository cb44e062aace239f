//! Ranges of numeric flags: one row per name, for every algorithm and command that has the flag.
//!
//! [`ranged`] adds them to a clap command: a value is compared with its range while it is parsed,
//! before anything is allocated or started, and `--help` displays the range. `ensure` checks
//! settings that were created without a command line.

use std::any::TypeId;
use std::fmt;

use clap::builder::ValueParser;
use clap::{Arg, Command};
use serde_json::{Map, Value};

use crate::envs::{self, MAX_THREADS};
use crate::error::{Error, Result};
use crate::rl::returns::MAX_STEPS;

/// Range of the numbers that a flag accepts; both limits are included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// Integers.
    Int(u64, u64),
    /// Finite floats.
    Float(f64, f64),
}

use Range::{Float, Int};

/// Maximum of counts that a program indexes with `i32`.
const MAX_INDEX: u64 = i32::MAX as u64;
const MAX_ENVS: u64 = envs::MAX_ENVS as u64;
const MAX_DEVICES: u64 = 256;
/// Minimum of positive floats: programs compute in `f32`, whose smallest normal number is 1.2e-38.
const POSITIVE: f64 = 1e-37;
/// Maximum of a coefficient: its square is finite in `f32`.
const MAX_FLOAT: f64 = 1e15;
const COEFFICIENT: Range = Float(0.0, MAX_FLOAT);
const UNIT: Range = Float(0.0, 1.0);
/// A day, in seconds.
const DAY: f64 = 86_400.0;

/// Range of each numeric flag, in alphabetical order.
const RANGES: &[(&str, Range)] = &[
    ("actor-device-ids", Int(0, MAX_DEVICES - 1)),
    ("actor-hidden-dim", Int(1, 16_384)),
    ("actor-learning-rate", COEFFICIENT),
    ("actor-num-blocks", Int(1, 100)),
    ("adam-b1", Float(0.0, 0.9999)),
    ("alpha", Float(POSITIVE, MAX_FLOAT)),
    ("alpha-init", Float(POSITIVE, MAX_FLOAT)),
    ("alpha-learning-rate", COEFFICIENT),
    ("anneal-steps", Int(0, MAX_STEPS)),
    ("batch-size", Int(1, 1 << 20)),
    ("beta-clone", COEFFICIENT),
    ("buffer-size", Int(1, MAX_INDEX)),
    ("burnin", Float(0.0, DAY)),
    ("channels", Int(1, 4096)),
    ("checkpoint-frequency", Int(0, MAX_STEPS)),
    ("clip-coef", COEFFICIENT),
    ("columns", Int(1, 100)),
    ("critic-hidden-dim", Int(1, 16_384)),
    ("critic-learning-rate", COEFFICIENT),
    ("critic-num-blocks", Int(1, 100)),
    ("device-ids", Int(0, MAX_DEVICES - 1)),
    ("dpo-alpha", Float(POSITIVE, MAX_FLOAT)),
    ("dpo-beta", Float(POSITIVE, MAX_FLOAT)),
    ("e-auxiliary", Int(1, 1000)),
    ("e-policy", Int(1, 1000)),
    ("end-e", UNIT),
    ("ent-coef", COEFFICIENT),
    ("env-timeout", Int(0, 7 * 86_400)),
    ("episodes", Int(1, 1_000_000)),
    ("eval-episodes", Int(0, 1_000_000)),
    ("eval-frequency", Int(0, MAX_STEPS)),
    ("exploration-fraction", UNIT),
    ("exploration-noise", COEFFICIENT),
    ("ext-coef", COEFFICIENT),
    ("final-ent-coef", COEFFICIENT),
    ("final-lr", COEFFICIENT),
    ("font-size", Float(4.0, 100.0)),
    ("gae-lambda", UNIT),
    ("gamma", UNIT),
    ("gradient-accumulation-steps", Int(1, MAX_ENVS)),
    ("gradient-steps", Int(1, 100_000)),
    ("hiddens", Int(1, 16_384)),
    ("init-ent-coef", COEFFICIENT),
    ("init-lr", COEFFICIENT),
    ("init-scale", COEFFICIENT),
    ("int-coef", COEFFICIENT),
    ("int-gamma", UNIT),
    ("join-timeout", Int(1, 7 * 86_400)),
    ("learner-device-ids", Int(0, MAX_DEVICES - 1)),
    ("learning-rate", COEFFICIENT),
    ("learning-starts", Int(0, MAX_STEPS)),
    ("local-num-envs", Int(1, MAX_ENVS)),
    ("log-frequency", Int(1, MAX_STEPS)),
    ("max-grad-norm", COEFFICIENT),
    ("n-atoms", Int(2, 1024)),
    ("n-iteration", Int(1, 10_000)),
    ("n-neurons", Int(1, 16_384)),
    ("n-quantiles", Int(1, 1024)),
    ("n-step", Int(1, 64)),
    ("noise-clip", COEFFICIENT),
    ("num-actor-threads", Int(1, 256)),
    ("num-atoms", Int(2, 1024)),
    ("num-aux-rollouts", Int(1, MAX_ENVS)),
    ("num-devices", Int(0, MAX_DEVICES)),
    ("num-envs", Int(1, MAX_ENVS)),
    ("num-iterations-obs-norm-init", Int(0, 1_000_000)),
    ("num-minibatches", Int(1, MAX_ENVS)),
    ("num-opponents", Int(0, MAX_ENVS)),
    ("num-quantile-samples", Int(1, 1024)),
    ("num-seeds", Int(1, 65_536)),
    ("num-steps", Int(1, MAX_ENVS)),
    ("num-tau-prime-samples", Int(1, 1024)),
    ("num-tau-samples", Int(1, 1024)),
    ("num-threads", Int(0, MAX_THREADS as u64)),
    ("num-updates", Int(1, 100_000)),
    ("offline-steps", Int(1, MAX_INDEX)),
    ("points", Int(1, 100_000)),
    ("policy-frequency", Int(1, 1000)),
    ("policy-lr", COEFFICIENT),
    ("policy-noise", COEFFICIENT),
    ("prioritized-replay-alpha", UNIT),
    ("prioritized-replay-beta", UNIT),
    ("prioritized-replay-eps", Float(POSITIVE, MAX_FLOAT)),
    ("q-lambda", UNIT),
    ("q-lr", COEFFICIENT),
    ("quantile-embedding-dim", Int(1, 4096)),
    ("reconstruction-coef", COEFFICIENT),
    ("rms-prop-alpha", UNIT),
    ("rms-prop-eps", COEFFICIENT),
    ("rounds", Int(1, 10_000)),
    ("rpo-alpha", COEFFICIENT),
    ("seconds", Float(0.1, DAY)),
    ("seed", Int(0, i64::MAX as u64)),
    ("smooth", Float(0.0, 1e6)),
    ("snapshot-frequency", Int(1, MAX_STEPS)),
    ("start-e", UNIT),
    ("start-seed", Int(0, i64::MAX as u64)),
    ("startup-trials", Int(0, 1_000_000)),
    ("std-max", COEFFICIENT),
    ("std-min", COEFFICIENT),
    ("target-entropy-ratio", COEFFICIENT),
    ("target-entropy-scale", UNIT),
    ("target-kl", COEFFICIENT),
    ("target-network-frequency", Int(1, 1_000_000_000)),
    ("tau", UNIT),
    ("teacher-eval-episodes", Int(1, 1_000_000)),
    ("teacher-steps", Int(1, MAX_INDEX)),
    ("temperature", Float(POSITIVE, MAX_FLOAT)),
    ("total-timesteps", Int(1, MAX_STEPS)),
    ("train-frequency", Int(1, MAX_ENVS)),
    ("trials", Int(1, 1_000_000)),
    ("trxl-dim", Int(1, 4096)),
    ("trxl-memory-length", Int(1, 65_536)),
    ("trxl-num-heads", Int(1, 256)),
    ("trxl-num-layers", Int(1, 64)),
    ("update-epochs", Int(1, 1000)),
    ("update-frequency", Int(1, MAX_ENVS)),
    ("update-proportion", UNIT),
    ("updates-per-call", Int(0, 1_000_000)),
    ("v-max", Float(-MAX_FLOAT, MAX_FLOAT)),
    ("v-min", Float(-MAX_FLOAT, MAX_FLOAT)),
    ("vf-coef", COEFFICIENT),
    ("weight-decay", COEFFICIENT),
    ("width", Int(100, 10_000)),
    ("workers", Int(0, 1024)),
];

/// Returns the range of the flag `--name`, if it has a row.
pub fn range_of(name: &str) -> Option<Range> {
    RANGES.iter().find(|(known, _)| *known == name).map(|(_, range)| *range)
}

impl Range {
    /// Returns true if the number is within the range. NaN is not.
    pub(in crate::rl) fn has_float(self, x: f64) -> bool {
        match self {
            Int(least, most) => x.fract() == 0.0 && x >= least as f64 && x <= most as f64,
            Float(least, most) => (least..=most).contains(&x),
        }
    }

    /// Describes the values of this range, for messages.
    fn expected(self) -> String {
        match self {
            Int(..) => format!("must be a whole number from {self}"),
            Float(..) => format!("must be a number from {self}"),
        }
    }

    fn has_int(self, n: u64) -> bool {
        match self {
            Int(least, most) => (least..=most).contains(&n),
            Float(..) => self.has_float(n as f64),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Int(least, most) => write!(f, "{least} to {most}"),
            Float(least, most) => write!(f, "{} to {}", Short(least), Short(most)),
        }
    }
}

/// Formats a float in its usual short form.
struct Short(f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            x if x != 0.0 && !(1e-3..1e6).contains(&x.abs()) => write!(f, "{x:e}"),
            x => write!(f, "{x}"),
        }
    }
}

/// Number type of a flag.
trait Number: Copy + Send + Sync + 'static {
    fn parse(text: &str) -> Option<Self>;
    fn is_in(self, range: Range) -> bool;
}

/// Returns the text of a number without the underscores that Python allows between digits.
fn without_underscores(text: &str) -> Option<String> {
    let digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let allowed = text.match_indices('_').all(|(at, _)| at > 0 && digit(at - 1) && digit(at + 1));
    allowed.then(|| text.replace('_', ""))
}

/// Parses a whole number, which may be written as a float: `1_000`, `1e6`.
fn whole(text: &str) -> Option<u64> {
    let text = without_underscores(text)?;
    let float = || text.parse().ok().filter(|x: &f64| x.fract() == 0.0 && (0.0..1e15).contains(x));
    text.parse().ok().or_else(|| float().map(|x| x as u64))
}

macro_rules! numbers {
    ($($int:ty),*; $($float:ty),*) => {
        $(impl Number for $int {
            fn parse(text: &str) -> Option<$int> {
                whole(text)?.try_into().ok()
            }

            fn is_in(self, range: Range) -> bool {
                range.has_int(self as u64)
            }
        })*
        $(impl Number for $float {
            fn parse(text: &str) -> Option<$float> {
                // Negative zero becomes zero.
                without_underscores(text)?.parse().ok().map(|x: $float| x + 0.0)
            }

            fn is_in(self, range: Range) -> bool {
                range.has_float(self.into())
            }
        })*

        /// Returns the parser of numbers of this type in the range; `None` for other types.
        fn parser_of(type_id: &impl PartialEq<TypeId>, range: Range) -> Option<ValueParser> {
            $(if *type_id == TypeId::of::<$int>() {
                return Some(parser::<$int>(range));
            })*
            $(if *type_id == TypeId::of::<$float>() {
                return Some(parser::<$float>(range));
            })*
            None
        }
    };
}

numbers!(u8, u16, u32, u64, usize; f32, f64);

/// Error message of a number that is out of its range.
#[derive(Debug)]
pub(in crate::rl) struct OutOfRange(String);

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OutOfRange {}

/// Returns the parser of one number in the range.
fn parser<N: Number>(range: Range) -> ValueParser {
    let parse = move |text: &str| -> std::result::Result<N, OutOfRange> {
        let found = N::parse(text).filter(|number| number.is_in(range));
        found.ok_or_else(|| OutOfRange(range.expected()))
    };
    ValueParser::new(parse)
}

/// Returns true if the values of a flag are numbers.
pub fn is_numeric(arg: &Arg) -> bool {
    let type_id = arg.get_value_parser().type_id();
    parser_of(&type_id, UNIT).is_some()
        || type_id == TypeId::of::<i32>()
        || type_id == TypeId::of::<i64>()
}

/// Returns the command, including its subcommands, with the range of each numeric flag added to its
/// parser and its help.
pub fn ranged(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let Some(range) = arg.get_long().and_then(range_of) else { return arg };
        let Some(parser) = parser_of(&arg.get_value_parser().type_id(), range) else { return arg };
        let shown = |help: &clap::builder::StyledStr| format!("{help} [range: {range}]");
        let (help, long_help) = (arg.get_help().map(shown), arg.get_long_help().map(shown));
        let arg = arg.value_parser(parser).allow_negative_numbers(true);
        let arg = if let Some(help) = help { arg.help(help) } else { arg };
        if let Some(help) = long_help { arg.long_help(help) } else { arg }
    });
    command.mut_subcommands(ranged)
}

/// Checks that every number of the settings is in the range of its flag. `command` has the flags.
///
/// # Errors
/// [`Error::Config`] that names the first that is not.
pub(in crate::rl) fn ensure(settings: &Map<String, Value>, command: &Command) -> Result<()> {
    for (name, value) in settings {
        let flag = name.replace('_', "-");
        let Some(range) = range_of(&flag) else { continue };
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(&flag));
        let is_optional = arg.is_none_or(|arg| arg.get_default_values().is_empty());
        // JSON has null for NaN and infinity too.
        if value.is_null() && !is_optional {
            return Err(Error::Config(format!("--{flag} is not finite: {}", range.expected())));
        }
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let outside = values.iter().find(|value| match value.as_u64() {
            Some(number) => !range.has_int(number),
            None => value.as_f64().is_some_and(|number| !range.has_float(number)),
        });
        if let Some(value) = outside {
            let expected = range.expected();
            return Err(match value.as_f64().filter(|_| !value.is_u64()) {
                Some(number) => Error::Config(format!("--{flag} {number}: {expected}")),
                None => Error::Config(format!("--{flag} {value}: {expected}")),
            });
        }
    }
    Ok(())
}

/// Returns true for an argument with the values true and false.
pub(in crate::rl) fn is_switch(arg: &Arg) -> bool {
    let values = arg.get_value_parser().possible_values();
    let values: Vec<String> = values.into_iter().flatten().map(|v| v.get_name().into()).collect();
    values == ["true", "false"]
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, Parser};

    use super::*;

    #[derive(Debug, Parser, PartialEq)]
    struct Args {
        /// The number of parallel environments
        #[arg(long, default_value = "4")]
        num_envs: usize,
        #[arg(long, default_value = "0.5")]
        gamma: f64,
        #[arg(long, value_delimiter = ',', default_value = "0")]
        actor_device_ids: Vec<usize>,
        #[arg(long)]
        target_kl: Option<f64>,
        #[arg(long, default_value = "-1.0")]
        v_min: f64,
    }

    fn parse(flags: &[&str]) -> std::result::Result<Args, String> {
        let words = ["test"].iter().chain(flags);
        let matches = ranged(Args::command()).try_get_matches_from(words);
        let matches = matches.map_err(|error| error.to_string())?;
        Ok(Args::from_arg_matches(&matches).unwrap())
    }

    #[test]
    fn rows_are_sorted_and_ranges_are_not_empty() {
        assert!(RANGES.is_sorted_by(|(a, _), (b, _)| a < b));
        for (name, range) in RANGES {
            match *range {
                Int(least, most) => assert!(least < most, "{name}"),
                Float(least, most) => assert!(least < most && most.is_finite(), "{name}"),
            }
        }
    }

    #[test]
    fn limits_are_taken_and_what_lies_beyond_is_refused() {
        let args = parse(&["--num-envs=1048576", "--gamma=1", "--actor-device-ids=0,255"]).unwrap();
        assert_eq!((args.num_envs, args.gamma), (1 << 20, 1.0));
        assert_eq!(parse(&["--v-min", "-3", "--target-kl=0"]).unwrap().v_min, -3.0);
        assert!(parse(&["--gamma", "-0"]).unwrap().gamma.is_sign_positive());
        for flags in [
            ["--num-envs", "0"],
            ["--num-envs", "1048577"],
            ["--num-envs", "-1"],
            ["--num-envs", "18446744073709551615"],
            ["--num-envs", "1e12"],
            ["--gamma", "1.0000001"],
            ["--gamma", "nan"],
            ["--gamma", "inf"],
            ["--actor-device-ids", "0,256"],
            ["--target-kl", "1e300"],
        ] {
            let error = parse(&flags).unwrap_err();
            assert!(error.contains(flags[0]) && error.contains("must be"), "{error}");
        }
        let error = parse(&["--num-envs=0"]).unwrap_err();
        assert!(
            error.starts_with(
                "error: invalid value '0' for '--num-envs <NUM_ENVS>': must be a whole number from \
                 1 to 1048576"
            ),
            "{error}"
        );
    }

    #[test]
    fn help_shows_the_range() {
        let help = ranged(Args::command()).render_help().to_string();
        assert!(
            help.contains("The number of parallel environments [range: 1 to 1048576]"),
            "{help}"
        );
    }

    #[test]
    fn settings_without_a_command_line_have_ranges_too() {
        let of = |json: &str| ensure(&serde_json::from_str(json).unwrap(), &Args::command());
        of(r#"{"num_envs": 4, "gamma": 1, "actor_device_ids": [1], "target_kl": null}"#).unwrap();
        for json in [
            r#"{"num_envs": 0}"#,
            r#"{"gamma": -0.5}"#,
            r#"{"gamma": null}"#,
            r#"{"actor_device_ids": [1, 256]}"#,
        ] {
            assert!(of(json).is_err(), "{json}");
        }
        let error = of(r#"{"num_envs": 0}"#).unwrap_err().to_string();
        assert_eq!(error, "--num-envs 0: must be a whole number from 1 to 1048576");
    }
}
