//! Help of algorithms: one line a flag, in groups like those of CleanRL's `Args`.

use std::any::TypeId;
use std::path::PathBuf;

use clap::{Arg, Command};

use crate::rl::settings::ranges::{Range, is_numeric, is_switch, range_of};
use crate::rl::settings::shared_flags::{self, EXPERIMENT, RUN};

/// Heading of the flags of one algorithm.
const ALGORITHM: &str = "Algorithm";

/// Maximum upper limit of a number that is shown.
const MAX_SHOWN: u64 = 100_000;
/// Maximum width of the first column.
const MAX_COLUMN: usize = 33;

/// Returns the help of a command without positional arguments; `name` is how it is called.
pub(in crate::rl) fn page(command: &Command, name: &str) -> String {
    let about = command.get_about().map(|about| format!("{about}\n\n")).unwrap_or_default();
    format!("{about}Usage: {name} [FLAGS]\n\n{}\n  -h, --help  Print this help\n", flags(command))
}

/// Returns the flags of a command, a group after the other.
pub(in crate::rl) fn flags(command: &Command) -> String {
    let args: Vec<&Arg> = command.get_arguments().filter(|arg| is_listed(arg)).collect();
    let column = args.iter().map(|arg| flag(arg).len()).filter(|width| *width <= MAX_COLUMN);
    let column = column.max().unwrap_or(0);
    let mut headings = vec![EXPERIMENT, ALGORITHM];
    headings.extend(args.iter().map(|arg| heading(arg)).filter(|name| *name != RUN));
    headings.push(RUN);
    let mut groups = Vec::new();
    for (k, name) in headings.iter().enumerate() {
        if headings[..k].contains(name) {
            continue;
        }
        let own = args.iter().filter(|arg| heading(arg) == *name);
        let line = |arg: &&Arg| format!("  {:column$}  {}\n", flag(arg), description(arg));
        let lines: String = own.map(line).collect();
        if !lines.is_empty() {
            groups.push(format!("{name}:\n{lines}"));
        }
    }
    groups.join("\n")
}

fn is_listed(arg: &Arg) -> bool {
    arg.get_long().is_some() && arg.get_action().takes_values() && !arg.is_hide_set()
}

fn heading(arg: &Arg) -> &str {
    let shared = shared_flags::heading(arg.get_id().as_str());
    shared.or(arg.get_help_heading()).unwrap_or(ALGORITHM)
}

/// Returns the flag with its value, as in `--gamma FLOAT` and `--[no-]track`.
fn flag(arg: &Arg) -> String {
    let name = arg.get_long().unwrap_or_default();
    if is_switch(arg) {
        return format!("--[no-]{name}");
    }
    let parser = arg.get_value_parser();
    let values = parser.possible_values().into_iter().flatten();
    let values: Vec<String> = values.map(|value| value.get_name().into()).collect();
    let value = match range_of(name).filter(|_| is_numeric(arg)) {
        _ if !values.is_empty() => format!("{{{}}}", values.join(",")),
        Some(Range::Int(..)) => "INT".into(),
        Some(Range::Float(..)) => "FLOAT".into(),
        None if parser.type_id() == TypeId::of::<PathBuf>() => "PATH".into(),
        None => "STR".into(),
    };
    let many = arg.get_num_args().is_some_and(|count| count.max_values() > 1);
    let more = if many { format!(" [{value} ..]") } else { String::new() };
    format!("--{name} {value}{more}")
}

/// Returns the description with range and default, as in `[0 to 1, default 0.99]`. Limits that nobody
/// reaches, and defaults that are false or empty, are left out.
fn description(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let help = help.split(" [range: ").next().unwrap_or_default();
    let help = help.split(" [negation: ").next().unwrap_or_default();
    let name = arg.get_long().unwrap_or_default();
    let range = range_of(name).filter(|_| is_numeric(arg)).map(|range| match range {
        Range::Int(least, most) if most > MAX_SHOWN => format!("from {least}"),
        Range::Float(least, most) if most > MAX_SHOWN as f64 => {
            format!("from {least:?}").trim_end_matches(".0").to_string()
        }
        range => range.to_string(),
    });
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = defaults.join(" ");
    let default = match default.as_str() {
        "" | "false" => None,
        default => Some(format!("default {default}")),
    };
    let notes: Vec<String> = [range, default].into_iter().flatten().collect();
    match notes.as_slice() {
        [] => help.to_string(),
        notes => format!("{help} [{}]", notes.join(", ")),
    }
}
