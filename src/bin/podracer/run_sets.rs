//! Scores of finished runs by algorithm and environment, from a results file or from run folders, and
//! the comparison of two sets of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use podracer::error::{Error, Result};
use podracer::rl::statistics::{
    Bootstrap, Interval, Scores, aggregate_iqm, aggregate_mean, aggregate_median,
    aggregate_optimality_gap, human_normalized_score, probability_of_improvement,
};

use super::mean_and_std;
use super::runs::{self, Pooling};

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

/// Reads the sets of a results file, or of all run folders in a folder.
///
/// # Errors
/// Returns the errors of [`runs::read`] and [`runs::grouped`], and [`Error::Argument`] without a run
/// that has a score.
pub fn read(path: &Path, pooling: Pooling) -> Result<RunSets> {
    let mut sets = RunSets::new();
    let mut all = runs::read(path, runs::RETURNS)?;
    all.retain(|run| run.score.is_some());
    all.iter_mut().for_each(|run| run.algorithm = run.with_flags());
    for group in runs::grouped(all, pooling)? {
        let set = sets.entry(group.name).or_default();
        let steps = group.runs.iter().map(|run| run.total_timesteps.unwrap_or(run.steps));
        set.steps.insert(group.env_id.clone(), steps.collect());
        set.scores.insert(group.env_id, group.runs.iter().filter_map(|run| run.score).collect());
    }
    match sets.is_empty() {
        false => Ok(sets),
        true => Err(Error::Argument(format!(
            "{}: no run with the return of an episode",
            path.display()
        ))),
    }
}

/// Returns mean and standard deviation, and with two runs or more the IQM with its interval.
pub fn measures(scores: &[f64], digits: usize) -> String {
    let (mean, std) = mean_and_std(scores);
    if scores.len() == 1 {
        return format!("{mean:.digits$}");
    }
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
pub fn compare(paths: &[PathBuf], algorithms: &[String], pooling: Pooling) -> Result<String> {
    let mut text = String::new();
    for (x, y) in pairs(paths, algorithms, pooling)? {
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
fn pairs(
    paths: &[PathBuf],
    algorithms: &[String],
    pooling: Pooling,
) -> Result<Vec<(Named, Named)>> {
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
                "--compare {}: expected two paths, or one path and --algos A,B, \
                 as in 'dqn --tau 0.5,dqn --tau 1'",
                path.display()
            )));
        };
        let sets = read(path, pooling)?;
        let named = |name: &String| take(path, &sets, name).map(|set| (name.clone(), set));
        return Ok(vec![(named(x)?, named(y)?)]);
    };
    let (x, y) = (read(first, pooling)?, read(second, pooling)?);
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
    let value = measure(x, y);
    if [x, y].iter().all(|scores| scores.tasks().iter().all(|runs| runs.len() == 1)) {
        return format!("{value:.2}"); // a bootstrap needs several runs
    }
    let interval =
        Bootstrap { reps: 10_000, ..Bootstrap::default() }.interval_of_two(x, y, measure);
    format!("{value:.2} {interval:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
