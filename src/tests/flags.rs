//! Tests of the numeric flags of all algorithms: each flag has a range, and values at its limits
//! and beyond are either rejected or valid for training. Nothing is trained here;
//! `tests/it/limits.rs` does that.

use std::ffi::OsString;
use std::panic::catch_unwind;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::algos::ppo;
use crate::algos::registry::{ALGORITHMS, Entry};
use crate::rl::algorithm::{ranged_command, with_default_env};
use crate::rl::settings::ranges::{Range, is_numeric, range_of};

/// Unusual numbers, and text that is not a number.
const HOSTILE: [&str; 12] = [
    "0",
    "1",
    "-1",
    "-0",
    "5000",
    "1e12",
    "1e300",
    "nan",
    "inf",
    "-inf",
    "18446744073709551615",
    "",
];

/// Returns the limits of a range and the values just beyond them.
fn limits(range: Range) -> Vec<String> {
    match range {
        Range::Int(least, most) => vec![
            least.to_string(),
            most.to_string(),
            (u128::from(most) + 1).to_string(),
            (i128::from(least) - 1).to_string(),
        ],
        Range::Float(least, most) => {
            let beyond = [least.next_down(), most.next_up()];
            [least, most].iter().chain(&beyond).map(|x| format!("{x:e}")).collect()
        }
    }
}

fn numeric_flags(entry: &Entry) -> Vec<(String, Range)> {
    let command = (entry.command)();
    let numeric = command.get_arguments().filter(|arg| is_numeric(arg));
    numeric
        .map(|arg| {
            let name = arg.get_long().unwrap_or_else(|| panic!("{}: {arg} is no flag", entry.name));
            let range = range_of(name);
            let range = range.unwrap_or_else(|| {
                panic!("{}: --{name} has no range; give it a row in rl/ranges.rs", entry.name)
            });
            let help = arg.get_help().unwrap_or_else(|| panic!("{}: --{name}", entry.name));
            assert!(help.to_string().ends_with(&format!("[range: {range}]")), "{name}: {help}");
            (name.to_string(), range)
        })
        .collect()
}

/// Checks a command line; fails if the check panics.
fn check(entry: &Entry, flags: &[(&str, &str)]) -> Result<(), String> {
    let mut words = vec![entry.name.to_string(), "--env-id=CartPole-v1".to_string()];
    words.extend(flags.iter().map(|(name, value)| format!("--{name}={value}")));
    let args: Vec<OsString> = words.iter().map(OsString::from).collect();
    let check = entry.check;
    match catch_unwind(move || check(args)) {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => panic!("{}: a panic", words.join(" ")),
    }
}

fn is_in(range: Range, value: &str) -> bool {
    match range {
        Range::Int(least, most) => {
            // As in Python, `1e12` and `-0` are whole numbers.
            let whole = value.parse().ok().filter(|x: &f64| x.fract() == 0.0 && *x >= 0.0);
            let number = value.parse().ok().or(whole.map(|x| x as u64));
            number.is_some_and(|n: u64| (least..=most).contains(&n))
        }
        Range::Float(least, most) => value.parse().is_ok_and(|x: f64| (least..=most).contains(&x)),
    }
}

#[test]
fn every_numeric_flag_has_a_range_and_its_help_shows_it() {
    let flags: usize = ALGORITHMS.iter().map(|entry| numeric_flags(entry).len()).sum();
    assert!(flags > 25 * 10, "{flags}");
}

#[test]
fn defaults_can_be_trained_with() {
    for entry in ALGORITHMS {
        check(entry, &[]).unwrap_or_else(|error| panic!("{}: {error}", entry.name));
    }
}

#[test]
fn naming_the_default_environment_changes_no_setting() {
    for entry in ALGORITHMS {
        let command = (entry.command)();
        let env_id = command.get_arguments().find(|arg| arg.get_id() == "env_id");
        let default = &env_id.expect("every algorithm has --env-id").get_default_values()[0];
        let settings = |words: &[&str]| {
            let words = std::iter::once(&entry.name).chain(words);
            (entry.settings)(words.map(OsString::from).collect())
                .unwrap_or_else(|e| panic!("{}: {e}", entry.name))
        };
        let named = settings(&["--env-id", default.to_str().expect("ids are text")]);
        assert_eq!(settings(&[]), named, "{}", entry.name);
    }
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    let mut refused = 0;
    for entry in ALGORITHMS {
        for (name, range) in numeric_flags(entry) {
            let limits = limits(range);
            for value in HOSTILE.into_iter().chain(limits.iter().map(String::as_str)) {
                let outcome = check(entry, &[(&name, value)]);
                if is_in(range, value) {
                    continue;
                }
                let error = outcome.unwrap_err();
                let named = error.contains(&format!("--{name}")) && error.contains("must be");
                assert!(named || value.is_empty(), "{} --{name} {value}: {error}", entry.name);
                refused += 1;
            }
        }
    }
    assert!(refused > 2000, "{refused}");
}

#[test]
fn pairs_of_numbers_are_refused_or_fit() {
    let mut rng = Pcg64::seed_from_u64(1);
    let mut below = |n: usize| (rng.next_u64() % n as u64) as usize;
    let all: Vec<_> = ALGORITHMS.iter().map(|entry| (entry, numeric_flags(entry))).collect();
    for _ in 0..600 {
        let (entry, flags) = &all[below(all.len())];
        let mut draw = || {
            let (name, range) = &flags[below(flags.len())];
            let mut values = limits(*range);
            values.extend(HOSTILE.map(String::from));
            let value = values.swap_remove(below(values.len()));
            (name.as_str(), value)
        };
        let ((first, a), (second, b)) = (draw(), draw());
        let _ = check(entry, &[(first, &a), (second, &b)]);
    }
}

#[test]
fn the_environment_of_a_program_is_the_default_of_its_flag() {
    let env_id = |own: Option<&'static str>, words: &[&str]| {
        let command = with_default_env(ranged_command::<ppo::Args>(), own);
        let matches = command.try_get_matches_from([&["ppo"], words].concat()).unwrap();
        matches.get_one::<String>("env_id").unwrap().clone()
    };
    assert_eq!(env_id(None, &[]), "CartPole-v1");
    assert_eq!(env_id(Some("Mine-v0"), &[]), "Mine-v0");
    assert_eq!(env_id(Some("Mine-v0"), &["--env-id", "Acrobot-v1"]), "Acrobot-v1");
}
