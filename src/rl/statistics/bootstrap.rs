//! Stratified bootstrap confidence intervals.

use std::fmt;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::Scores;

/// Confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower limit.
    pub low: f64,
    /// Upper limit.
    pub high: f64,
}

impl fmt::Display for Interval {
    /// Writes `[low, high]` with the precision of the format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "[{:.digits$}, {:.digits$}]", self.low, self.high)
    }
}

/// Stratified bootstrap: draws the runs of each task with replacement, independently of the other
/// tasks. The same seed gives the same intervals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bootstrap {
    /// Number of resamples.
    pub reps: usize,
    /// Coverage of the intervals.
    pub confidence_interval_size: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for Bootstrap {
    /// rliable's numbers: 50,000 resamples, 95 percent.
    fn default() -> Bootstrap {
        Bootstrap { reps: 50_000, confidence_interval_size: 0.95, seed: 1 }
    }
}

impl Bootstrap {
    /// Returns the interval of a measure, such as [`aggregate_iqm`](super::aggregate_iqm).
    pub fn interval(&self, scores: &Scores, measure: impl Fn(&Scores) -> f64) -> Interval {
        self.intervals(scores, |scores| vec![measure(scores)])[0]
    }

    /// Returns the intervals of several measures, computed on the same resamples.
    pub fn intervals(
        &self,
        scores: &Scores,
        measures: impl Fn(&Scores) -> Vec<f64>,
    ) -> Vec<Interval> {
        let mut rng = Pcg64::seed_from_u64(self.seed);
        let mut columns = vec![Vec::new(); measures(scores).len()];
        for _ in 0..self.reps.max(1) {
            let values = measures(&resample(scores, &mut rng));
            columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
        }
        let interval = |column| percentile_interval(column, self.confidence_interval_size);
        columns.into_iter().map(interval).collect()
    }

    /// Returns the interval of a measure of two algorithms, such as
    /// [`probability_of_improvement`](super::probability_of_improvement). Their runs are drawn
    /// independently.
    pub fn interval_of_two(
        &self,
        x: &Scores,
        y: &Scores,
        measure: impl Fn(&Scores, &Scores) -> f64,
    ) -> Interval {
        let mut rng = Pcg64::seed_from_u64(self.seed);
        let mut draw = || measure(&resample(x, &mut rng), &resample(y, &mut rng));
        let values = (0..self.reps.max(1)).map(|_| draw()).collect();
        percentile_interval(values, self.confidence_interval_size)
    }
}

/// Draws the runs of each task with replacement.
fn resample(scores: &Scores, rng: &mut Pcg64) -> Scores {
    scores.resample(|task, _| {
        let count = scores.tasks()[task].len() as u128;
        ((u128::from(rng.next_u64()) * count) >> 64) as usize
    })
}

/// Returns the interval that leaves out equal fractions of the values at both ends, interpolated
/// between values as `numpy.percentile` does. Without values both limits are NaN.
pub fn percentile_interval(mut values: Vec<f64>, size: f64) -> Interval {
    if values.is_empty() {
        return Interval { low: f64::NAN, high: f64::NAN };
    }
    values.sort_by(f64::total_cmp);
    let at = |fraction: f64| {
        let position = fraction.clamp(0.0, 1.0) * (values.len() - 1) as f64;
        let (below, weight) = (position.floor(), position.fract());
        let low = values[below as usize];
        let high = values[(below as usize + 1).min(values.len() - 1)];
        low + (high - low) * weight
    };
    let outside = (1.0 - size) / 2.0;
    Interval { low: at(outside), high: at(1.0 - outside) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rl::statistics::aggregate_mean;

    #[test]
    fn percentiles_are_interpolated() {
        let interval = percentile_interval(vec![4.0, 1.0, 3.0, 2.0], 0.5);
        assert_eq!(interval, Interval { low: 1.75, high: 3.25 });
        assert_eq!(format!("{interval:.1}"), "[1.8, 3.2]");
        assert!(percentile_interval(vec![], 0.5).low.is_nan());
    }

    /// The mean of n draws with replacement has the variance of the scores divided by n.
    #[test]
    fn the_interval_of_a_mean_has_the_width_of_the_normal_distribution() {
        let runs: Vec<f64> = (0..100).map(f64::from).collect();
        let scores = Scores::new(vec![runs]).unwrap();
        let interval = Bootstrap::default().interval(&scores, aggregate_mean);
        let half = 1.96 * ((100.0f64 * 100.0 - 1.0) / 12.0 / 100.0).sqrt();
        assert!((interval.low - (49.5 - half)).abs() < 0.15, "{interval}");
        assert!((interval.high - (49.5 + half)).abs() < 0.15, "{interval}");
        let again = Bootstrap::default().interval(&scores, aggregate_mean);
        assert_eq!(interval, again);
    }
}
