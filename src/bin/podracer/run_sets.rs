//! Scores of finished runs by algorithm and environment, from a results file or from run folders, and
//! the comparison of two sets of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use podracer::error::{Error, Result};
use podracer::rl::run::RETURN_WINDOW;
use podracer::rl::statistics::{
    Bootstrap, Interval, Scores, aggregate_iqm, aggregate_mean, aggregate_median,
    aggregate_optimality_gap, human_normalized_score, probability_of_improvement,
};
use podracer::rl::tensorboard::{Event, Value, read_events};
use serde_json::Map;

use super::benchmark::results::{self, Record};
use super::mean_and_std;

/// Tag of the returns in event files.
const RETURNS: &str = "charts/episodic_return";

/// Scores of the runs of one algorithm with the same flags.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunSet {
    /// Scores of the runs on each environment.
    pub scores: BTreeMap<String, Vec<f64>>,
    /// Timesteps of the runs on each environment, where they are known.
    steps: BTreeMap<String, BTreeSet<u64>>,
}

/// Sets of runs by name: the algorithm with its flags.
pub type RunSets = BTreeMap<String, RunSet>;

/// Returns the score of a run: the mean of the last values, as many as a run's mean return has.
pub fn final_score(values: &[f64]) -> Option<f64> {
    let last = &values[values.len().saturating_sub(RETURN_WINDOW)..];
    (!last.is_empty()).then(|| mean_and_std(last).0)
}

/// Returns the events of a run folder.
///
/// # Errors
/// [`Error::Io`] if the folder or a file cannot be read.
pub fn events_of(run: &Path) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for file in fs::read_dir(run).map_err(Error::io("cannot read", run))? {
        let file = file.map_err(Error::io("cannot read", run))?.path();
        if file.file_name().is_some_and(|x| x.to_string_lossy().starts_with("events.")) {
            events.extend(read_events(&file)?);
        }
    }
    Ok(events)
}

/// Splits the name of a run folder, `{env_id}__{exp_name}__{seed}__{seconds}`, into the environment
/// and the experiment.
pub fn env_and_experiment(run: &Path) -> Option<(String, String)> {
    let name = run.file_name()?.to_string_lossy();
    let mut parts = name.rsplitn(4, "__").skip(2);
    let (experiment, env_id) = (parts.next()?, parts.next()?);
    // An id such as MinAtar/Breakout-v1 has a folder of its own.
    let family = run.parent().and_then(Path::file_name).map(|x| x.to_string_lossy());
    let family = family.filter(|family| {
        podracer::envs::list_envs().iter().any(|id| *id == format!("{family}/{env_id}"))
    });
    let env_id = family.map_or(env_id.to_string(), |family| format!("{family}/{env_id}"));
    Some((env_id, experiment.to_string()))
}

/// Reads a results file, or all run folders in a folder.
///
/// # Errors
/// Returns the errors of the files, and [`Error::Argument`] without a run that has a score.
pub fn read(path: &Path) -> Result<RunSets> {
    let sets = if path.is_dir() { of_folder(path)? } else { of_results(path)? };
    match sets.is_empty() {
        false => Ok(sets),
        true => Err(Error::Argument(format!(
            "{}: no run with the return of an episode; expected a results file of `podracer \
             benchmark --results`, or a folder of run folders",
            path.display()
        ))),
    }
}

fn of_results(path: &Path) -> Result<RunSets> {
    let mut sets = RunSets::new();
    for record in results::read(path)? {
        let (algorithm, env_id, flags, steps, scores) = match record {
            Record::Run(run) => {
                let (steps, score) = (run.total_timesteps(), run.mean_return);
                (run.algorithm, run.env_id, run.flags, steps, score.into_iter().collect())
            }
            Record::Summary(own) if own.program.is_none() && own.metric.is_none() => {
                (own.algorithm, own.env_id, own.flags, own.total_timesteps, own.returns)
            }
            Record::Summary(_) => continue,
        };
        add(&mut sets, set_name(&algorithm, &flags), env_id, Some(steps), scores);
    }
    Ok(sets)
}

/// Returns an algorithm with its flags as words of a command line.
fn set_name(algorithm: &str, flags: &Map<String, serde_json::Value>) -> String {
    let words = results::flag_words(flags);
    std::iter::once(algorithm.to_string()).chain(words).collect::<Vec<_>>().join(" ")
}

fn of_folder(folder: &Path) -> Result<RunSets> {
    let mut sets = RunSets::new();
    for run in run_folders(folder)? {
        let Some((env_id, experiment)) = env_and_experiment(&run) else { continue };
        let values = events_of(&run)?.into_iter().filter_map(|event| match event.value {
            Value::Scalar { tag, value } if tag == RETURNS && value.is_finite() => {
                Some(f64::from(value))
            }
            _ => None,
        });
        let values: Vec<f64> = values.collect();
        add(&mut sets, experiment, env_id, None, final_score(&values).into_iter().collect());
    }
    Ok(sets)
}

fn add(sets: &mut RunSets, name: String, env_id: String, steps: Option<u64>, scores: Vec<f64>) {
    if scores.is_empty() {
        return;
    }
    let set = sets.entry(name).or_default();
    set.steps.entry(env_id.clone()).or_default().extend(steps);
    set.scores.entry(env_id).or_default().extend(scores);
}

/// Returns the folders with event files in `folder`, and in its folders, two levels deep.
pub fn run_folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut runs = Vec::new();
    let mut pending = vec![(folder.to_path_buf(), 0)];
    while let Some((folder, depth)) = pending.pop() {
        let mut is_run = false;
        for entry in fs::read_dir(&folder).map_err(Error::io("cannot read", &folder))? {
            let entry = entry.map_err(Error::io("cannot read", &folder))?;
            is_run |= entry.file_name().to_string_lossy().starts_with("events.");
            if depth < 3 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push((entry.path(), depth + 1));
            }
        }
        if is_run {
            runs.push(folder);
        }
    }
    runs.sort();
    Ok(runs)
}

/// Returns mean and standard deviation, and with two runs or more the IQM with its interval.
pub fn measures(scores: &[f64], digits: usize) -> String {
    let (mean, std) = mean_and_std(scores);
    let mut text = format!("{mean:.digits$} +- {std:.digits$}");
    if let Some((iqm, interval)) = iqm_of(scores) {
        let _ = write!(text, ", IQM {iqm:.digits$} {interval:.digits$}");
    }
    text
}

fn iqm_of(scores: &[f64]) -> Option<(f64, Interval)> {
    let scores = Scores::new(vec![scores.to_vec()]).ok()?;
    let interval = Bootstrap::default().interval(&scores, aggregate_iqm);
    (scores.tasks()[0].len() > 1).then(|| (aggregate_iqm(&scores), interval))
}

/// Returns the human-normalized scores; `None` if an environment has no published scores.
pub fn human_normalized(scores: &BTreeMap<String, Vec<f64>>) -> Option<Scores> {
    let of_env = |(env_id, scores): (&String, &Vec<f64>)| {
        scores.iter().map(|score| human_normalized_score(env_id, *score)).collect::<Option<_>>()
    };
    let tasks: Option<Vec<Vec<f64>>> = scores.iter().map(of_env).collect();
    Scores::new(tasks?).ok()
}

type Measure = fn(&Scores) -> f64;

/// Aggregate measures of normalized scores.
const AGGREGATES: [(&str, Measure); 4] = [
    ("IQM", aggregate_iqm),
    ("median", aggregate_median),
    ("mean", aggregate_mean),
    ("optimality gap", |scores| aggregate_optimality_gap(scores, 1.0)),
];

/// Returns the table of aggregate measures of human-normalized scores, a column for each set.
pub fn aggregate_table(sets: &[(String, Scores)]) -> String {
    let names: Vec<&str> = sets.iter().map(|(name, _)| name.as_str()).collect();
    let mut text = format!(
        "| human-normalized | {} |\n|---|{}\n",
        names.join(" | "),
        "---:|".repeat(names.len())
    );
    let columns = sets.iter().map(|(_, scores)| {
        let all = |scores: &Scores| AGGREGATES.iter().map(|(_, f)| f(scores)).collect::<Vec<_>>();
        let intervals = Bootstrap::default().intervals(scores, all);
        all(scores).into_iter().zip(intervals).collect::<Vec<_>>()
    });
    let columns: Vec<Vec<(f64, Interval)>> = columns.collect();
    for (k, (measure, _)) in AGGREGATES.iter().enumerate() {
        let cells = columns.iter().map(|column| format!("{:.3} {:.3}", column[k].0, column[k].1));
        let _ = writeln!(text, "| {measure} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    text
}

/// Compares two sets of runs: `paths` are two results files or folders of runs, whose sets of the
/// same name are compared, or one, whose two `algorithms` are.
///
/// # Errors
/// Returns the errors of [`read`], and [`Error::Argument`] if the paths have no set or no
/// environment in common.
pub fn compare(paths: &[PathBuf], algorithms: &[String]) -> Result<String> {
    let mut text = String::new();
    for (x, y) in pairs(paths, algorithms)? {
        let shared: Vec<&String> =
            x.1.scores.keys().filter(|env_id| y.1.scores.contains_key(*env_id)).collect();
        if shared.is_empty() {
            return Err(Error::Argument(format!(
                "{} and {} have no environment in common: {} and {}",
                x.0,
                y.0,
                list(x.1.scores.keys()),
                list(y.1.scores.keys())
            )));
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&comparison(&x, &y, &shared)?);
    }
    Ok(text)
}

fn list<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(String::as_str).collect::<Vec<_>>().join(", ")
}

type Named = (String, RunSet);

/// Returns the pairs of sets to compare, with their names.
fn pairs(paths: &[PathBuf], algorithms: &[String]) -> Result<Vec<(Named, Named)>> {
    let take = |path: &Path, sets: &RunSets, name: &str| match sets.get(name) {
        Some(set) => Ok(set.clone()),
        None => Err(Error::Argument(format!(
            "{} has no runs of `{name}`; there are {}",
            path.display(),
            list(sets.keys())
        ))),
    };
    let [first, second] = paths else {
        let path = &paths[0];
        let [x, y] = algorithms else {
            return Err(Error::Argument(format!(
                "--compare {}: expected two paths, or one path and --algos A,B",
                path.display()
            )));
        };
        let sets = read(path)?;
        let named = |name: &String| take(path, &sets, name).map(|set| (name.clone(), set));
        return Ok(vec![(named(x)?, named(y)?)]);
    };
    let (x, y) = (read(first)?, read(second)?);
    let named =
        |path: &Path, name: &str, set: RunSet| (format!("{name} of {}", path.display()), set);
    // One algorithm against another, whatever their names are.
    if let ([(a, of_a)], [(b, of_b)], []) = (&one(&x)[..], &one(&y)[..], algorithms) {
        return Ok(vec![(named(first, a, (*of_a).clone()), named(second, b, (*of_b).clone()))]);
    }
    let names: Vec<&String> = match algorithms {
        [] => x.keys().filter(|name| y.contains_key(*name)).collect(),
        given => given.iter().collect(),
    };
    if names.is_empty() {
        return Err(Error::Argument(format!(
            "{} has runs of {}, and {} of {}: none is in both; choose runs of one algorithm for \
             each file",
            first.display(),
            list(x.keys()),
            second.display(),
            list(y.keys())
        )));
    }
    let pair = |name: &String| {
        let (of_x, of_y) = (take(first, &x, name)?, take(second, &y, name)?);
        Ok((named(first, name, of_x), named(second, name, of_y)))
    };
    names.into_iter().map(pair).collect()
}

fn one(sets: &RunSets) -> Vec<(&String, &RunSet)> {
    sets.iter().collect()
}

/// Returns the tables of one pair of sets.
fn comparison(x: &Named, y: &Named, shared: &[&String]) -> Result<String> {
    let mut text = format!("A: {}\nB: {}\n\n", x.0, y.0);
    text.push_str("| environment | runs | A | B | P(A > B) |\n|---|---:|---:|---:|---:|\n");
    let mut notes = String::new();
    let only = |set: &RunSet| -> BTreeMap<String, Vec<f64>> {
        shared.iter().map(|env_id| ((*env_id).clone(), set.scores[*env_id].clone())).collect()
    };
    let (own_x, own_y) = (only(&x.1), only(&y.1));
    for env_id in shared {
        let (a, b) = (&own_x[*env_id], &own_y[*env_id]);
        let scores = |runs: &[f64]| Scores::new(vec![runs.to_vec()]);
        let _ = writeln!(
            text,
            "| {env_id} | {}, {} | {} | {} | {} |",
            a.len(),
            b.len(),
            measures(a, 2),
            measures(b, 2),
            improvement(&scores(a)?, &scores(b)?)
        );
        let (steps, other) = (&x.1.steps[*env_id], &y.1.steps[*env_id]);
        let all: BTreeSet<u64> = steps.union(other).copied().collect();
        if all.len() > 1 {
            let steps: Vec<String> = all.iter().map(u64::to_string).collect();
            let _ = writeln!(notes, "{env_id}: runs of different timesteps, {}", steps.join(", "));
        }
    }
    if shared.len() > 1 {
        let all =
            |scores: &BTreeMap<String, Vec<f64>>| Scores::new(scores.values().cloned().collect());
        let mean = improvement(&all(&own_x)?, &all(&own_y)?);
        let _ = writeln!(text, "| mean of {} environments | | | | {mean} |", shared.len());
    }
    if let (Some(a), Some(b)) = (human_normalized(&own_x), human_normalized(&own_y)) {
        let _ = write!(text, "\n{}", aggregate_table(&[("A".into(), a), ("B".into(), b)]));
    }
    let _ = write!(
        text,
        "\nmean +- standard deviation over runs; in brackets 95% stratified bootstrap intervals\n"
    );
    Ok(text + &notes)
}

/// Returns the probability that a run of `x` is better than one of `y`, with its interval.
fn improvement(x: &Scores, y: &Scores) -> String {
    // Both have the same tasks.
    let measure = |x: &Scores, y: &Scores| probability_of_improvement(x, y).unwrap_or(f64::NAN);
    let interval =
        Bootstrap { reps: 10_000, ..Bootstrap::default() }.interval_of_two(x, y, measure);
    format!("{:.2} {interval:.2}", measure(x, y))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_run_folders_have_environment_and_experiment() {
        let names = |path: &str| env_and_experiment(Path::new(path));
        let pair = |a: &str, b: &str| Some((a.to_string(), b.to_string()));
        assert_eq!(names("runs/Pong-v5__ppo__1__17"), pair("Pong-v5", "ppo"));
        assert_eq!(
            names("runs/MinAtar/Breakout-v1__my__exp__2__17"),
            pair("Breakout-v1__my", "exp")
        );
        assert_eq!(
            names("runs/MinAtar/Breakout-v1__ppo__2__17"),
            pair("MinAtar/Breakout-v1", "ppo")
        );
        assert_eq!(names("runs"), None);
    }

    #[test]
    fn a_score_is_the_mean_of_the_last_hundred_values() {
        let values: Vec<f64> = (0..150).map(f64::from).collect();
        assert_eq!(final_score(&values), Some(99.5));
        assert_eq!(final_score(&[]), None);
    }

    #[test]
    fn scores_are_normalized_if_every_environment_has_published_scores() {
        let of = |ids: [&str; 2]| {
            human_normalized(&ids.map(|id| (id.to_string(), vec![14.6, -20.7])).into())
        };
        assert_eq!(of(["Pong-v5", "Pong-v5"]).unwrap().tasks(), [vec![1.0, 0.0]]);
        assert_eq!(of(["Pong-v5", "CartPole-v1"]), None);
        let table = aggregate_table(&[("a".into(), of(["Pong-v5", "Pong-v5"]).unwrap())]);
        assert!(table.contains("| IQM | 0.500 [0.000, 1.000] |"), "{table}");
    }
}
