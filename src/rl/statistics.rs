//! Statistics of scores over runs and environments, with the names and definitions of rliable
//! (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"):
//! aggregate measures, performance profiles, the probability of improvement, and stratified
//! bootstrap confidence intervals.

mod bootstrap;
mod human;

pub use bootstrap::{Bootstrap, Interval, percentile_interval};
pub use human::human_normalized_score;

use crate::error::{Error, Result};

/// Scores of the runs of one algorithm: for each task (environment) one score of each run. rliable
/// has a matrix of runs and tasks; here tasks may have different numbers of runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    tasks: Vec<Vec<f64>>,
}

impl Scores {
    /// Creates the scores of `tasks`, a list of runs for each.
    ///
    /// # Errors
    /// Returns [`Error::Argument`] if there are no tasks, a task has no runs, or a score is not
    /// finite.
    pub fn new(tasks: Vec<Vec<f64>>) -> Result<Scores> {
        let problem = |problem: String| Err(Error::Argument(format!("Scores::new: {problem}")));
        if tasks.is_empty() {
            return problem("no tasks; expected at least one".into());
        }
        for (task, runs) in tasks.iter().enumerate() {
            if runs.is_empty() {
                return problem(format!("task {task} has no runs; expected at least one"));
            }
            if let Some(run) = runs.iter().position(|score| !score.is_finite()) {
                let score = runs[run];
                return problem(format!(
                    "the score of run {run} on task {task} is {score}; expected a finite number"
                ));
            }
        }
        Ok(Scores { tasks })
    }

    /// Returns the scores of the runs of each task.
    pub fn tasks(&self) -> &[Vec<f64>] {
        &self.tasks
    }

    /// Returns new scores: run `r` of task `t` is run `index(t, r)` of task `t` of these.
    ///
    /// # Panics
    /// Panics if an index is not below the number of runs of its task.
    pub fn resample(&self, mut index: impl FnMut(usize, usize) -> usize) -> Scores {
        let tasks = self.tasks.iter().enumerate().map(|(task, runs)| {
            let resampled = (0..runs.len()).map(|run| runs[index(task, run)]);
            resampled.collect()
        });
        Scores { tasks: tasks.collect() }
    }

    fn all(&self) -> impl Iterator<Item = f64> + '_ {
        self.tasks.iter().flatten().copied()
    }

    fn task_means(&self) -> Vec<f64> {
        self.tasks.iter().map(|runs| mean(runs.iter().copied())).collect()
    }
}

/// Mean of a sequence that is not empty.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count)
}

/// Returns the mean over the tasks of the mean over the runs.
pub fn aggregate_mean(scores: &Scores) -> f64 {
    mean(scores.task_means().into_iter())
}

/// Returns the median over the tasks of the mean over the runs.
pub fn aggregate_median(scores: &Scores) -> f64 {
    let mut means = scores.task_means();
    means.sort_by(f64::total_cmp);
    let middle = means.len() / 2;
    match means.len() % 2 {
        1 => means[middle],
        _ => (means[middle - 1] + means[middle]) / 2.0,
    }
}

/// Returns the interquartile mean (IQM): the mean of all scores of all tasks without the lowest and
/// the highest quarter. Of `n` scores `n / 4`, rounded down, are left out at each end.
pub fn aggregate_iqm(scores: &Scores) -> f64 {
    let mut all: Vec<f64> = scores.all().collect();
    let cut = all.len() / 4;
    let kept = all.len() - 2 * cut;
    if cut > 0 {
        all.select_nth_unstable_by(cut, f64::total_cmp);
        all[cut..].select_nth_unstable_by(kept - 1, f64::total_cmp);
    }
    mean(all[cut..cut + kept].iter().copied())
}

/// Returns the optimality gap: the mean amount by which scores fall short of `gamma`. Scores above
/// `gamma` count as `gamma`; rliable's default is 1.
pub fn aggregate_optimality_gap(scores: &Scores, gamma: f64) -> f64 {
    gamma - mean(scores.all().map(|score| score.min(gamma)))
}

/// Returns the probability that a run of `x` has a higher score than a run of `y`, averaged over the
/// tasks: the Mann-Whitney U statistic divided by the number of pairs. Equal scores count half.
///
/// # Errors
/// Returns [`Error::Argument`] if the numbers of tasks differ.
pub fn probability_of_improvement(x: &Scores, y: &Scores) -> Result<f64> {
    if x.tasks.len() != y.tasks.len() {
        return Err(Error::Argument(format!(
            "probability_of_improvement: x has {} tasks and y has {}; expected the same tasks",
            x.tasks.len(),
            y.tasks.len()
        )));
    }
    let of_task = |(x, y): (&Vec<f64>, &Vec<f64>)| {
        let pairs = x.iter().flat_map(|a| y.iter().map(move |b| (a, b)));
        mean(pairs.map(|(a, b)| match a.total_cmp(b) {
            std::cmp::Ordering::Greater => 1.0,
            std::cmp::Ordering::Equal => 0.5,
            std::cmp::Ordering::Less => 0.0,
        }))
    };
    Ok(mean(x.tasks.iter().zip(&y.tasks).map(of_task)))
}

/// Returns the performance profile (score distribution): for each threshold `tau` the fraction of
/// runs, over all tasks, whose score is above it.
pub fn score_distributions(scores: &Scores, taus: &[f64]) -> Vec<f64> {
    fractions_above(scores.all().collect(), taus)
}

/// Returns the average-score distribution: for each threshold `tau` the fraction of tasks whose mean
/// score is above it.
pub fn average_score_distributions(scores: &Scores, taus: &[f64]) -> Vec<f64> {
    fractions_above(scores.task_means(), taus)
}

fn fractions_above(mut scores: Vec<f64>, taus: &[f64]) -> Vec<f64> {
    scores.sort_by(f64::total_cmp);
    let above = |tau: &f64| scores.len() - scores.partition_point(|score| score <= tau);
    taus.iter().map(|tau| above(tau) as f64 / scores.len() as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_scores_are_refused() {
        for (tasks, part) in [
            (vec![], "no tasks"),
            (vec![vec![1.0], vec![]], "task 1 has no runs"),
            (vec![vec![1.0, f64::NAN]], "the score of run 1 on task 0 is NaN"),
        ] {
            let error = Scores::new(tasks).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let [x, y] = [1, 2].map(|tasks| Scores::new(vec![vec![1.0]; tasks]).unwrap());
        let error = probability_of_improvement(&x, &y).unwrap_err().to_string();
        assert!(error.contains("x has 1 tasks and y has 2"), "{error}");
    }

    #[test]
    fn the_interquartile_mean_leaves_out_a_quarter_at_each_end() {
        let iqm = |runs: &[f64]| aggregate_iqm(&Scores::new(vec![runs.to_vec()]).unwrap());
        assert_eq!(iqm(&[7.0]), 7.0);
        assert_eq!(iqm(&[1.0, 2.0, 9.0]), 4.0);
        assert_eq!(iqm(&[100.0, 1.0, 2.0, -100.0]), 1.5);
        assert_eq!(iqm(&[5.0, -50.0, 3.0, 4.0, 60.0, 2.0, 1.0]), 3.0);
    }

    #[test]
    fn profiles_count_scores_above_the_threshold() {
        let scores = Scores::new(vec![vec![1.0, 2.0], vec![3.0, 5.0]]).unwrap();
        let taus = [0.0, 1.0, 2.5, 5.0];
        assert_eq!(score_distributions(&scores, &taus), [1.0, 0.75, 0.5, 0.0]);
        assert_eq!(average_score_distributions(&scores, &taus), [1.0, 1.0, 0.5, 0.0]);
    }
}
