//! Curves of groups of runs: each run smoothed and interpolated at common points, and a statistic over
//! the runs at each of them.

use clap::ValueEnum;
use podracer::rl::statistics::{Bootstrap, Scores, aggregate_iqm, aggregate_mean};

use crate::mean_and_std;

/// Resamples of each interval that is drawn; rliable's number for profiles.
pub const RESAMPLES: Bootstrap = Bootstrap { reps: 2000, confidence_interval_size: 0.95, seed: 1 };

/// Statistic over runs: the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Statistic {
    /// Mean
    Mean,
    /// Interquartile mean
    Iqm,
}

/// Spread of runs or of the statistic: the band around the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Spread {
    /// Standard deviation over runs, below and above the mean
    #[value(alias = "sd")]
    Std,
    /// 95% bootstrap interval of the statistic
    #[value(alias = "ci")]
    Ci95,
    /// Lowest and highest run
    #[value(alias = "minmax")]
    Range,
    /// No band
    None,
}

/// Line with a band around it.
pub type Band = Vec<Point>;

/// Point of a [`Band`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    /// Limits of the band.
    pub low: f64,
    pub high: f64,
}

/// Line and band of each curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measure {
    pub statistic: Statistic,
    pub spread: Spread,
}

impl Measure {
    /// Mean and standard deviation.
    pub const MEAN: Measure = Measure { statistic: Statistic::Mean, spread: Spread::Std };

    /// Returns the words of a legend.
    pub fn in_words(self) -> String {
        let line = match self.statistic {
            Statistic::Mean => "mean",
            Statistic::Iqm => "IQM",
        };
        match self.spread {
            Spread::Std => format!("{line}, standard deviation"),
            Spread::Ci95 => format!("{line}, 95% bootstrap interval"),
            Spread::Range => format!("{line}, lowest and highest run"),
            Spread::None => line.to_string(),
        }
    }

    /// Returns line and band of the values of runs at `x`; none for values that are not finite.
    pub fn point(self, x: f64, values: &[f64]) -> Option<Point> {
        let scores = Scores::new(vec![values.to_vec()]).ok()?;
        let (mean, std) = mean_and_std(values);
        let statistic: fn(&Scores) -> f64 = match self.statistic {
            Statistic::Mean => aggregate_mean,
            Statistic::Iqm => aggregate_iqm,
        };
        let y = statistic(&scores);
        let (low, high) = match self.spread {
            Spread::Std => (mean - std, mean + std),
            Spread::Ci95 => {
                let interval = RESAMPLES.interval(&scores, statistic);
                (interval.low, interval.high)
            }
            Spread::Range => {
                let low = values.iter().copied().fold(f64::INFINITY, f64::min);
                (low, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
            }
            Spread::None => (y, y),
        };
        Some(Point { x, y, low, high })
    }
}

/// Smooths values in their order: the mean of the last `amount` of them, or with an amount below 1
/// the exponential smoothing of TensorBoard with this weight.
pub fn smoothed(values: &mut [(f64, f64)], amount: f64) {
    if amount < 1.0 {
        let (mut mean, mut weight) = (0.0, 1.0);
        for (_, value) in values {
            mean = amount * mean + (1.0 - amount) * *value;
            weight *= amount;
            // The first values have no more weight than the others.
            *value = mean / (1.0 - weight);
        }
        return;
    }
    let window = amount as usize;
    let own: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
    let mut sum = 0.0;
    for (k, (_, value)) in values.iter_mut().enumerate() {
        sum += own[k];
        if k >= window {
            sum -= own[k - window];
        }
        *value = sum / window.min(k + 1) as f64;
    }
}

/// Returns a statistic over runs at `points` positions, of which the last is where the first of the
/// runs ends: each point is of all runs. A run's value there is the mean of its values since the
/// position before; without one, it is interpolated.
pub fn band(runs: &[Vec<(f64, f64)>], points: usize, measure: Measure) -> Band {
    let ends = runs.iter().map(|run| run.last().map_or(0.0, |last| last.0));
    let end = ends.fold(f64::INFINITY, f64::min);
    let runs: Vec<Vec<Option<f64>>> = runs.iter().map(|run| resampled(run, end, points)).collect();
    let point = |k: usize| {
        let values: Option<Vec<f64>> = runs.iter().map(|run| run[k]).collect();
        measure.point(position(k, end, points), &values?)
    };
    (0..points).filter_map(point).collect()
}

fn position(k: usize, end: f64, points: usize) -> f64 {
    end * (k + 1) as f64 / points as f64
}

/// Returns the values of a run at each position; none before its first value.
fn resampled(run: &[(f64, f64)], end: f64, points: usize) -> Vec<Option<f64>> {
    let mut from = 0;
    let value = |k: usize| {
        let x = position(k, end, points);
        let to = run.partition_point(|sample| sample.0 <= x);
        let own = &run[from..to];
        from = to;
        if !own.is_empty() {
            return Some(own.iter().map(|sample| sample.1).sum::<f64>() / own.len() as f64);
        }
        let (before, next) = (run[..to].last()?, run.get(to)?);
        Some(before.1 + (x - before.0) / (next.0 - before.0) * (next.1 - before.1))
    };
    (0..points).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_is_of_all_runs() {
        // The runs log at different places, and the second ends later: nothing zigzags between them.
        let first: Vec<(f64, f64)> = (1..=10).map(|k| (f64::from(k), 0.0)).collect();
        let second: Vec<(f64, f64)> = (1..=8).map(|k| (f64::from(k) * 2.5, 10.0)).collect();
        let points = band(&[first, second], 20, Measure::MEAN);
        assert_eq!(points.last().unwrap().x, 10.0);
        assert_eq!(points[0].x, 2.5);
        assert!(points.iter().all(|point| (point.y, point.low) == (5.0, 0.0)), "{points:?}");
        assert_eq!(points.len(), 16);
        assert_eq!(band(&[vec![], vec![(1.0, 1.0)]], 5, Measure::MEAN), []);
    }

    #[test]
    fn values_of_one_position_are_averaged_and_gaps_interpolated() {
        let run = [(1.0, 2.0), (2.0, 4.0), (8.0, 10.0)];
        assert_eq!(resampled(&run, 8.0, 4), [3.0, 6.0, 8.0, 10.0].map(Some));
        assert_eq!(resampled(&[(6.0, 1.0)], 8.0, 4), [None, None, Some(1.0), None]);
    }

    #[test]
    fn smoothing_is_a_window_or_exponential() {
        let of = |amount: f64| {
            let mut values = [4.0, 0.0, 8.0, 8.0].map(|value| (0.0, value));
            smoothed(&mut values, amount);
            values.map(|(_, value)| value)
        };
        assert_eq!(of(2.0), [4.0, 2.0, 4.0, 8.0]);
        assert_eq!(of(1.0), [4.0, 0.0, 8.0, 8.0]);
        assert_eq!(of(0.0), [4.0, 0.0, 8.0, 8.0]);
        // The values of TensorBoard with this weight: 4, (2 + 0) / 1.5 ...
        let expected = [4.0, 4.0 / 3.0, (0.5 + 4.0) / 0.875, (0.25 + 2.0 + 4.0) / 0.9375];
        assert!(of(0.5).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{:?}", of(0.5));
    }

    #[test]
    fn bands_are_named_and_measured() {
        let values = [1.0, 2.0, 3.0, 10.0];
        let of = |statistic, spread| Measure { statistic, spread }.point(0.0, &values).unwrap();
        let mean = of(Statistic::Mean, Spread::Std);
        assert!(mean.y == 4.0 && (mean.high - 4.0 - 12.5f64.sqrt()).abs() < 1e-12);
        let iqm = of(Statistic::Iqm, Spread::Ci95);
        assert!(iqm.y == 2.5 && 1.0 <= iqm.low && iqm.low < 2.5 && iqm.high <= 10.0, "{iqm:?}");
        let range = of(Statistic::Iqm, Spread::Range);
        assert_eq!((range.low, range.high), (1.0, 10.0));
        let line = of(Statistic::Mean, Spread::None);
        assert_eq!((line.low, line.high), (4.0, 4.0));
        assert_eq!(Measure::MEAN.in_words(), "mean, standard deviation");
    }
}
