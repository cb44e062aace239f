//! Ranges and choices of hyperparameters, and the values that TPE suggests for the next trial.

use std::fmt;
use std::str::FromStr;

use podracer::rl::settings::ranges::{Range, range_of};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use tpe::TpeOptimizer;

use super::Values;
use super::study::TrialRecord;

const FORMS: &str = "NAME=log:LOW:HIGH, NAME=linear:LOW:HIGH or NAME=VALUE,VALUE,..";

/// Hyperparameter to search: `learning-rate=log:1e-5:1e-2`, `gamma=linear:0.9:0.999`,
/// `num-steps=32,128`.
#[derive(Debug, Clone, PartialEq)]
pub struct Search {
    text: String,
    /// Name of the flag.
    pub name: String,
    domain: Domain,
}

#[derive(Debug, Clone, PartialEq)]
enum Domain {
    Interval { log: bool, low: f64, high: f64, integer: bool },
    Choices(Vec<String>),
}

impl FromStr for Search {
    type Err = String;

    fn from_str(text: &str) -> Result<Search, String> {
        let (name, values) = text.split_once('=').ok_or_else(|| format!("expected {FORMS}"))?;
        let name = name.trim_start_matches('-').replace('_', "-");
        let domain = match values.split(':').collect::<Vec<_>>()[..] {
            [scale @ ("log" | "linear"), low, high] => interval(&name, scale == "log", low, high)?,
            [list] if list.split(',').all(|value| !value.is_empty()) => {
                Domain::Choices(list.split(',').map(String::from).collect())
            }
            _ => return Err(format!("{name}={values}: expected {FORMS}")),
        };
        Ok(Search { text: text.to_string(), name, domain })
    }
}

fn interval(name: &str, log: bool, low: &str, high: &str) -> Result<Domain, String> {
    let Some(range) = range_of(name) else {
        return Err(format!(
            "no algorithm has a number --{name} (`podracer train ALGO --help` lists the flags); choices \
             are {name}=VALUE,VALUE,.."
        ));
    };
    let number = |text: &str| {
        let value = text.parse().ok().filter(|value: &f64| value.is_finite());
        value.ok_or_else(|| format!("{name}: {text} is not a number; expected {FORMS}"))
    };
    let (low, high) = (number(low)?, number(high)?);
    if low >= high {
        return Err(format!("{name}: {low} must be less than {high}"));
    }
    if log && low <= 0.0 {
        return Err(format!("{name}: {low} must be more than 0 on a logarithmic scale"));
    }
    Ok(Domain::Interval { log, low, high, integer: matches!(range, Range::Int(..)) })
}

impl fmt::Display for Search {
    /// Writes the text that was parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Search {
    /// Returns both limits, or all choices.
    pub fn limits(&self) -> Vec<String> {
        match &self.domain {
            Domain::Interval { .. } => vec![self.value(0.0), self.value(1.0)],
            Domain::Choices(choices) => choices.clone(),
        }
    }

    /// Returns the value of a trial, as a word of a command line.
    pub fn value_in(&self, values: &Values) -> String {
        match values.get(&self.setting()) {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        }
    }

    /// Returns the name of the setting.
    pub fn setting(&self) -> String {
        self.name.replace('-', "_")
    }

    /// Returns the word for a position: from 0 to 1 in an interval, or the index of a choice.
    fn value(&self, position: f64) -> String {
        match &self.domain {
            Domain::Choices(choices) => choices[(position as usize).min(choices.len() - 1)].clone(),
            Domain::Interval { log, low, high, integer } => {
                let x = match log {
                    true => low * (high / low).powf(position),
                    false => low + (high - low) * position,
                };
                let x = x.clamp(*low, *high);
                match integer {
                    true => format!("{}", x.round()),
                    // Six significant digits.
                    false => format!("{}", format!("{x:.5e}").parse::<f64>().unwrap_or(x)),
                }
            }
        }
    }

    /// Returns the position of a word; NaN if it has none.
    fn position(&self, word: &str) -> f64 {
        match &self.domain {
            Domain::Choices(choices) => {
                let index = choices.iter().position(|choice| choice == word);
                index.map_or(f64::NAN, |index| index as f64)
            }
            Domain::Interval { log, low, high, .. } => {
                let Ok(x) = word.parse::<f64>() else { return f64::NAN };
                let position = match log {
                    true => (x / low).ln() / (high / low).ln(),
                    false => (x - low) / (high - low),
                };
                // The end of TPE's range is not part of it.
                position.clamp(0.0, 1.0 - f64::EPSILON)
            }
        }
    }
}

/// Returns the values of trial `number`: random for the first `startup` trials, then those that TPE
/// expects to be best. The same trials and seed give the same values.
pub fn suggest(
    searches: &[Search],
    trials: &[TrialRecord],
    startup: usize,
    (seed, number): (u64, usize),
) -> Vec<String> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&(number as u64).to_le_bytes());
    let mut rng = Pcg64::from_seed(bytes);
    // The first numbers of seeds that differ in few bits are alike.
    for _ in 0..8 {
        let _ = rng.next_u64();
    }
    let random = number < startup || trials.is_empty();
    let suggest = |search: &Search| {
        let (size, estimator) = match &search.domain {
            Domain::Interval { .. } => (1.0, tpe::parzen_estimator()),
            Domain::Choices(choices) => (choices.len() as f64, tpe::histogram_estimator()),
        };
        if random {
            let unit = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            return search.value(unit * size);
        }
        let range = tpe::range(0.0, size).expect("the range is not empty");
        let mut optimizer = TpeOptimizer::new(estimator, range);
        for trial in trials {
            // TPE minimises, and takes infinity for the worst.
            let loss = trial.value().map_or(f64::INFINITY, |value| -value);
            let position = search.position(&search.value_in(&trial.values));
            optimizer.tell(position, loss).expect("the position is in the range");
        }
        let position = optimizer.ask(&mut rng).expect("the estimator can be built");
        search.value(position)
    };
    searches.iter().map(suggest).collect()
}

#[cfg(test)]
mod tests {
    use super::super::study::State;
    use super::*;

    fn search(text: &str) -> Search {
        text.parse().unwrap()
    }

    #[test]
    fn words_and_positions_are_inverse() {
        let rate = search("learning_rate=log:1e-4:1e-2");
        assert_eq!(
            (rate.name.as_str(), rate.limits()),
            ("learning-rate", vec!["0.0001".into(), "0.01".into()])
        );
        assert_eq!(rate.value(0.5), "0.001");
        assert!((rate.position("0.001") - 0.5).abs() < 1e-6);
        let steps = search("num-steps=linear:16:32");
        assert_eq!((steps.value(0.5), steps.value(0.51)), ("24".into(), "24".into()));
        let choices = search("norm-adv=true,false");
        assert_eq!((choices.value(1.7), choices.position("false")), ("false".into(), 1.0));
        assert!(choices.position("maybe").is_nan());
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, part) in [
            ("gamma", "expected NAME=log:LOW:HIGH"),
            ("gamma=", "gamma=: expected NAME="),
            ("gamma=log:0:1", "gamma: 0 must be more than 0"),
            ("gamma=linear:1:0.5", "gamma: 1 must be less than 0.5"),
            ("gamma=linear:a:0.5", "gamma: a is not a number"),
            ("gamma=linear:0:0.5:9", "expected NAME="),
            ("norm-adv=linear:0:1", "no algorithm has a number --norm-adv"),
        ] {
            let error = text.parse::<Search>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// TPE finds the maximum of a function of a rate and a choice, near 1e-3 and at b.
    #[test]
    fn suggestions_gather_at_the_maximum() {
        let searches = [search("learning-rate=log:1e-5:1e-1"), search("network=a,b,c")];
        let mut trials: Vec<TrialRecord> = Vec::new();
        for number in 0..60 {
            let values = suggest(&searches, &trials, 10, (3, number));
            assert_eq!(values, suggest(&searches, &trials, 10, (3, number)));
            let rate: f64 = values[0].parse().unwrap();
            assert!((1e-5..=1e-1).contains(&rate));
            let mut trial = TrialRecord::new(number, &searches, &values);
            let score = -(rate.log10() + 3.0).powi(2) + if values[1] == "b" { 1.0 } else { 0.0 };
            match number % 7 {
                5 => trial.state = State::Failed,
                _ => trial.returns = vec![score],
            }
            trials.push(trial);
        }
        let near = |trial: &&TrialRecord| {
            let rate: f64 = trial.values["learning_rate"].as_f64().unwrap();
            (rate.log10() + 3.0).abs() < 0.5 && trial.values["network"] == "b"
        };
        let (first, last) = (&trials[..20], &trials[40..]);
        let counts = [first, last].map(|trials| trials.iter().filter(near).count());
        assert!(counts[1] >= 12 && counts[1] > counts[0], "{counts:?}");
    }
}
