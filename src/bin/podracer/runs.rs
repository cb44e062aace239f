//! Runs with their settings, scores and curves, and their groups: runs that differ in more than the
//! seed are in one group only if the user asks for it.

mod clock;
mod csv;
mod read;

use std::collections::{BTreeMap, BTreeSet};

use podracer::error::{Error, Result};
use podracer::output;
use serde_json::Value;

#[cfg(test)]
pub use read::of_events;
pub use read::{RETURNS, events_of, read, run_folders};

use super::benchmark::results::flag_words;
use super::benchmark::thousands;

/// Part of its timesteps by which a run may end early: the last iteration is not begun.
const MISSING_PART: f64 = 0.02;

/// Value that a run logged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub step: f64,
    /// Hours of training until then, where they are known.
    pub hours: Option<f64>,
    pub value: f64,
}

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Folder of the run, or line of a file.
    pub source: String,
    pub env_id: String,
    /// Name of the algorithm or of the experiment.
    pub algorithm: String,
    /// Flags that a results file names, as words of a command line.
    pub flags: Vec<String>,
    pub seed: Option<String>,
    /// Settings that affect training, except environment and seed.
    pub settings: BTreeMap<String, String>,
    /// Timestep that the run reached, and the one at which it was to end.
    pub steps: u64,
    pub total_timesteps: Option<u64>,
    /// Later runs have higher numbers.
    pub started: f64,
    pub curve: Vec<Sample>,
    pub score: Option<f64>,
}

impl Run {
    /// Returns the algorithm with the flags that a results file names.
    pub fn with_flags(&self) -> String {
        let words = std::iter::once(&self.algorithm).chain(&self.flags);
        words.map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    /// Returns true if the run did not reach its end.
    pub fn is_stopped(&self) -> bool {
        let number = |name: &str| self.settings.get(name).and_then(|x| x.parse::<u64>().ok());
        let iteration = number("num_envs").unwrap_or(1) * number("num_steps").unwrap_or(1);
        self.total_timesteps.is_some_and(|total| {
            let missing = total.saturating_sub(self.steps);
            missing > iteration.max((total as f64 * MISSING_PART) as u64)
        })
    }

    /// Returns the hours of training until a timestep, where they are known.
    pub fn hours(&self, step: f64) -> Option<f64> {
        let after = self.curve.partition_point(|sample| sample.step < step);
        match (after.checked_sub(1).map(|k| self.curve[k]), self.curve.get(after)) {
            (Some(before), Some(next)) => {
                let part = (step - before.step) / (next.step - before.step);
                Some(before.hours? + part * (next.hours? - before.hours?))
            }
            (None, Some(first)) => first.hours,
            (last, None) => last?.hours,
        }
    }

    /// Returns the number of updates until a timestep: iterations of algorithms with rollouts,
    /// gradient steps of those with a replay buffer. `None` if the settings do not say it.
    pub fn updates(&self, step: f64) -> Option<f64> {
        let number = |name: &str| self.settings.get(name).and_then(|x| x.parse::<f64>().ok());
        if let (Some(num_envs), Some(num_steps)) = (number("num_envs"), number("num_steps")) {
            return Some(step / (num_envs * num_steps).max(1.0));
        }
        let since = step - number("learning_starts")?;
        Some(since.max(0.0) / number("train_frequency").unwrap_or(1.0).max(1.0))
    }
}

/// Permissions of the user to pool runs that differ in more than the seed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pooling {
    /// Runs of one name are one group.
    pub pool: bool,
    /// The newest of the runs with the same settings and seed counts.
    pub newest: bool,
}

/// Runs that differ only in the seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub env_id: String,
    /// Algorithm, with the settings in which it differs from other groups of its environment.
    pub name: String,
    pub runs: Vec<Run>,
}

/// Settings of a group's runs, and whether they were stopped.
type Key = (String, String, BTreeMap<String, String>, bool);

/// Groups runs by environment, algorithm and settings; runs that were stopped are apart.
///
/// # Errors
/// [`Error::Argument`] if a seed is there twice with the same settings and `pooling` does not say
/// what to do.
pub fn grouped(runs: Vec<Run>, pooling: Pooling) -> Result<Vec<Group>> {
    let mut groups: BTreeMap<Key, Vec<Run>> = BTreeMap::new();
    for run in runs {
        let apart = match pooling.pool {
            true => (BTreeMap::new(), false),
            false => (run.settings.clone(), run.is_stopped()),
        };
        let key = (run.env_id.clone(), run.algorithm.clone(), apart.0, apart.1);
        groups.entry(key).or_default().push(run);
    }
    let names = distinctive(groups.keys());
    let mut named: Vec<Group> = Vec::new();
    for ((env_id, algorithm, settings, stopped), mut runs) in groups {
        if !pooling.pool {
            runs = one_run_a_seed(runs, pooling.newest)?;
        }
        let mut name = name_of(&algorithm, &settings, &names[&algorithm]);
        if stopped {
            name.push_str(&stopped_at(&runs));
            for run in &runs {
                let total = run.total_timesteps.unwrap_or(0);
                output::stderr_line(format_args!(
                    "{} stopped at step {} of {}: it is not pooled with runs that reached their end",
                    run.source,
                    thousands(run.steps),
                    thousands(total)
                ));
            }
        }
        let is_taken =
            |name: &String| named.iter().any(|other| other.env_id == env_id && other.name == *name);
        // Settings that one program has and another lacks have no words.
        if is_taken(&name) {
            let more = (2..).map(|k| format!("{name} #{k}")).find(|name| !is_taken(name));
            name = more.expect("numbers do not end");
        }
        named.push(Group { env_id, name, runs });
    }
    Ok(named)
}

/// Returns the settings of each algorithm in which groups of one environment differ.
fn distinctive<'a>(keys: impl Iterator<Item = &'a Key>) -> BTreeMap<String, BTreeSet<String>> {
    let mut of_both: BTreeMap<(&String, &String), Vec<&BTreeMap<String, String>>> = BTreeMap::new();
    for (env_id, algorithm, settings, _) in keys {
        of_both.entry((algorithm, env_id)).or_default().push(settings);
    }
    let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for ((algorithm, _), groups) in of_both {
        let own = names.entry(algorithm.clone()).or_default();
        for name in groups.iter().flat_map(|settings| settings.keys()) {
            if groups.iter().any(|settings| settings.get(name) != groups[0].get(name)) {
                own.insert(name.clone());
            }
        }
    }
    names
}

fn name_of(
    algorithm: &str,
    settings: &BTreeMap<String, String>,
    distinctive: &BTreeSet<String>,
) -> String {
    let flags = distinctive.iter().filter_map(|name| {
        let text = settings.get(name)?;
        let value: Value = serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into());
        Some((name.clone(), value)).filter(|(_, value)| !value.is_null())
    });
    let mut name = algorithm.to_string();
    for word in flag_words(&flags.collect()) {
        // The flags of a line of a results file are in its name.
        if !format!("{name} ").contains(&format!(" {word} ")) {
            name = format!("{name} {word}");
        }
    }
    name
}

fn stopped_at(runs: &[Run]) -> String {
    let steps = || runs.iter().map(|run| run.steps);
    let (low, high) = (steps().min().unwrap_or(0), steps().max().unwrap_or(0));
    match low == high {
        true => format!(", stopped at {}", thousands(high)),
        false => format!(", stopped at {} to {}", thousands(low), thousands(high)),
    }
}

/// Checks that each seed is there once, or keeps the newest run of each.
fn one_run_a_seed(runs: Vec<Run>, newest: bool) -> Result<Vec<Run>> {
    let mut kept: Vec<Run> = Vec::new();
    for run in runs {
        let same = |other: &Run| run.seed.is_some() && other.seed == run.seed;
        let Some(at) = kept.iter().position(same) else {
            kept.push(run);
            continue;
        };
        if !newest {
            return Err(Error::Argument(format!(
                "{} and {} are two runs of seed {} of {} on {} with the same settings: remove one \
                 of them; --newest takes the newest run of each seed, --pool takes both",
                kept[at].source,
                run.source,
                run.seed.as_deref().unwrap_or_default(),
                run.algorithm,
                run.env_id
            )));
        }
        if run.started >= kept[at].started {
            kept[at] = run;
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(algorithm: &str, seed: u64, settings: &str, steps: u64) -> Run {
        let words = settings.split_whitespace().filter_map(|word| word.split_once('='));
        let settings: BTreeMap<String, String> =
            words.map(|(name, value)| (name.into(), value.into())).collect();
        Run {
            source: format!("run {algorithm} {seed} {steps}"),
            env_id: "CartPole-v1".into(),
            algorithm: algorithm.into(),
            flags: vec![],
            seed: Some(seed.to_string()),
            total_timesteps: settings.get("total_timesteps").map(|text| text.parse().unwrap()),
            settings,
            steps,
            started: steps as f64,
            curve: vec![],
            score: None,
        }
    }

    fn names(runs: Vec<Run>, pooling: Pooling) -> Vec<(String, usize)> {
        let groups = grouped(runs, pooling).unwrap();
        groups.into_iter().map(|group| (group.name, group.runs.len())).collect()
    }

    #[test]
    fn runs_that_differ_are_groups_with_names() {
        let runs = vec![
            run("ppo", 1, "total_timesteps=1000 gamma=0.9 anneal_lr=true", 1000),
            run("ppo", 2, "total_timesteps=1000 gamma=0.9 anneal_lr=true", 990),
            run("ppo", 1, "total_timesteps=1000 gamma=0.8 anneal_lr=false", 1000),
            run("ppo", 1, "total_timesteps=2000 gamma=0.9 anneal_lr=true", 2000),
            run("ppo", 3, "total_timesteps=1000 gamma=0.9 anneal_lr=true", 500),
            run("ppo", 4, "total_timesteps=1000 gamma=0.9 anneal_lr=true", 600),
            run("dqn", 1, "total_timesteps=1000", 1000),
        ];
        let expected = [
            ("dqn", 1),
            ("ppo --no-anneal-lr --gamma 0.8 --total-timesteps 1000", 1),
            ("ppo --anneal-lr --gamma 0.9 --total-timesteps 1000", 2),
            ("ppo --anneal-lr --gamma 0.9 --total-timesteps 1000, stopped at 500 to 600", 2),
            ("ppo --anneal-lr --gamma 0.9 --total-timesteps 2000", 1),
        ];
        let mut found = names(runs.clone(), Pooling::default());
        found.sort();
        let mut expected = expected.map(|(name, count)| (name.to_string(), count)).to_vec();
        expected.sort();
        assert_eq!(found, expected);
        let pooled = names(runs, Pooling { pool: true, newest: false });
        assert_eq!(pooled, [("dqn".to_string(), 1), ("ppo".to_string(), 6)]);
    }

    #[test]
    fn a_seed_that_is_there_twice_is_an_error_with_the_flags_that_allow_it() {
        let runs = || vec![run("ppo", 1, "gamma=1", 5), run("ppo", 1, "gamma=1", 9)];
        let error = grouped(runs(), Pooling::default()).unwrap_err().to_string();
        for part in ["run ppo 1 5 and run ppo 1 9", "seed 1 of ppo", "--newest", "--pool"] {
            assert!(error.contains(part), "{error}");
        }
        let newest = grouped(runs(), Pooling { newest: true, pool: false }).unwrap();
        assert_eq!(newest[0].runs, [run("ppo", 1, "gamma=1", 9)]);
        assert_eq!(names(runs(), Pooling { pool: true, newest: false }), [("ppo".into(), 2)]);
    }

    #[test]
    fn runs_end_within_their_last_iteration() {
        let stopped = |settings: &str, steps| run("ppo", 1, settings, steps).is_stopped();
        assert!(!stopped("total_timesteps=1000 num_envs=4 num_steps=128", 512));
        assert!(stopped("total_timesteps=1000 num_envs=4 num_steps=100", 512));
        assert!(!stopped("total_timesteps=1000", 981) && stopped("total_timesteps=1000", 979));
        assert!(!stopped("", 5));
    }

    #[test]
    fn hours_are_interpolated() {
        let sample = |step, hours| Sample { step, hours: Some(hours), value: 0.0 };
        let mut run = run("ppo", 1, "", 9);
        run.curve = vec![sample(10.0, 1.0), sample(20.0, 3.0)];
        let hours = [5.0, 10.0, 15.0, 20.0, 99.0].map(|step| run.hours(step).unwrap());
        assert_eq!(hours, [1.0, 1.0, 2.0, 3.0, 3.0]);
        run.curve[1].hours = None;
        assert_eq!(run.hours(15.0), None);
    }

    #[test]
    fn updates_are_iterations_or_gradient_steps() {
        let updates = |settings: &str| run("x", 1, settings, 0).updates(1000.0);
        assert_eq!(updates("num_envs=4 num_steps=25"), Some(10.0));
        assert_eq!(updates("learning_starts=400 train_frequency=10"), Some(60.0));
        assert_eq!(updates("learning_starts=400"), Some(600.0));
        assert_eq!(updates("gamma=1"), None);
    }
}
