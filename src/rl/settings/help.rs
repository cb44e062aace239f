//! Help of algorithms: one line a flag, in groups like those of CleanRL's `Args`. Lines are wrapped at
//! the width of the terminal, as Python's `argparse` does.

use std::any::TypeId;
use std::path::PathBuf;

use clap::{Arg, Command};
use console::Term;

use crate::rl::settings::ranges::{Range, is_numeric, is_switch, range_of};
use crate::rl::settings::shared_flags::{self, EXPERIMENT, RUN};

/// Heading of the flags of one algorithm.
const ALGORITHM: &str = "Algorithm";

/// Maximum upper limit of a number that is shown.
const MAX_SHOWN: u64 = 100_000;
/// Maximum width of the first column.
const MAX_COLUMN: usize = 33;
/// Minimum width of a description beside its flag; a narrower one is below.
const MIN_DESCRIPTION: usize = 40;
/// Indentation of a description below its flag.
const INDENT: usize = 8;

/// Returns the help of a command without positional arguments; `name` is how it is called.
pub(in crate::rl) fn page(command: &Command, name: &str) -> String {
    let about = command.get_about().map(|about| format!("{about}\n\n")).unwrap_or_default();
    let flags = flags(command);
    let after = command.get_after_help().map(|after| wrapped(&after.to_string(), INDENT));
    let after = after.map(|lines| format!("\n{lines}")).unwrap_or_default();
    format!("{about}Usage: {name} [FLAGS]\n\n{flags}\n  -h, --help  Print this help\n{after}")
}

/// Returns the flags of a command, a group after the other.
pub(in crate::rl) fn flags(command: &Command) -> String {
    flags_in(command, width())
}

/// Returns the number of columns: `COLUMNS`, otherwise those of the terminal. A pipe has no end.
fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let stdout = Term::stdout();
    let terminal = || stdout.is_term().then(|| stdout.size().1.into());
    columns.filter(|&columns| columns > 0).or_else(terminal).unwrap_or(usize::MAX)
}

fn flags_in(command: &Command, width: usize) -> String {
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
        let line = |arg: &&Arg| line(&flag(arg), &description(arg), column, width);
        let lines: String = own.map(line).collect();
        if !lines.is_empty() {
            groups.push(format!("{name}:\n{lines}"));
        }
    }
    groups.join("\n")
}

/// Returns a flag and its description beside it in lines of at most `width` characters, or below it
/// where the terminal is narrow.
fn line(flag: &str, description: &str, column: usize, width: usize) -> String {
    let mut text = format!("  {flag:column$}");
    let mut indent = column + 4;
    if width < indent.saturating_add(MIN_DESCRIPTION) {
        indent = INDENT;
        text = format!("{}\n{:indent$}", text.trim_end(), "");
    } else {
        text.push_str("  ");
    }
    append(&mut text, description, indent, width);
    text + "\n"
}

/// Appends words in lines of at most `width` characters, which begin with `indent` spaces. A longer word has
/// a line of its own.
fn append(text: &mut String, words: &str, indent: usize, width: usize) {
    let mut end = text.lines().last().map_or(0, str::len);
    for (i, word) in words.split(' ').enumerate() {
        if i > 0 && end + 1 + word.len() > width {
            text.push_str(&format!("\n{:indent$}", ""));
            end = indent;
        } else if i > 0 {
            text.push(' ');
            end += 1;
        }
        text.push_str(word);
        end += word.len();
    }
}

/// Wraps lines at the width of the terminal. A continued line begins with `indent` spaces.
pub fn wrapped(lines: &str, indent: usize) -> String {
    wrapped_at(lines, indent, width())
}

fn wrapped_at(lines: &str, indent: usize, width: usize) -> String {
    let mut text = String::new();
    for line in lines.lines() {
        let mut wrapped = String::new();
        append(&mut wrapped, line, indent, width);
        text.push_str(&wrapped);
        text.push('\n');
    }
    text
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
    let is = |types: &[TypeId]| types.iter().any(|id| parser.type_id() == *id);
    let value = match () {
        () if !values.is_empty() => format!("{{{}}}", values.join(",")),
        () if is(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) => "FLOAT".into(),
        () if is_numeric(arg) => "INT".into(),
        () if is(&[TypeId::of::<PathBuf>()]) => "PATH".into(),
        () => "STR".into(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_table_stay_where_they_are() {
        let table = "ok       ale  ale-py 0.12.1 in /parts\nmissing  mpi  none\n";
        assert_eq!(wrapped_at(table, 9, usize::MAX), table);
        let narrow = "ok       ale  ale-py\n         0.12.1 in /parts\nmissing  mpi  none\n";
        assert_eq!(wrapped_at(table, 9, 26), narrow);
    }

    #[test]
    fn descriptions_are_wrapped_at_the_width() {
        let description = "Film episodes of training and of the evaluation [default true]";
        assert_eq!(
            line("--seed INT", description, 12, usize::MAX),
            "  --seed INT    Film episodes of training and of the evaluation [default true]\n"
        );
        assert_eq!(
            line("--seed INT", description, 12, 60),
            "  --seed INT    Film episodes of training and of the\n                \
             evaluation [default true]\n"
        );
        assert_eq!(
            line("--seed INT", description, 12, 50),
            "  --seed INT\n        Film episodes of training and of the\n        \
             evaluation [default true]\n"
        );
        // A flag that is wider than the column.
        assert_eq!(
            line("--mode {jit,eager}", "How to run", 12, usize::MAX),
            "  --mode {jit,eager}  How to run\n"
        );
    }
}
