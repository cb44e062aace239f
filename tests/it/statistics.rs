//! Statistics of scores against rliable (`tests/fixtures/rliable/make.py`): measures and profiles, and
//! bootstrap intervals of the resamples that rliable drew.

use podracer::rl::statistics::{
    Bootstrap, Interval, Scores, aggregate_iqm, aggregate_mean, aggregate_median,
    aggregate_optimality_gap, average_score_distributions, percentile_interval,
    probability_of_improvement, score_distributions,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    taus: Vec<f64>,
    cases: Vec<Case>,
}

/// Scores are `[runs][tasks]`.
#[derive(Deserialize)]
struct Case {
    x: Vec<Vec<f64>>,
    y: Vec<Vec<f64>>,
    aggregates: Vec<f64>,
    improvement: f64,
    score_distribution: Vec<f64>,
    average_score_distribution: Vec<f64>,
    interval: Resampled<Vec<Vec<usize>>>,
    improvement_interval: Resampled<[Vec<Vec<usize>>; 2]>,
    many: [Vec<f64>; 2],
    many_of_two: [Vec<f64>; 2],
}

/// Limits of each measure, and of each resample the run in place of each run.
#[derive(Deserialize)]
struct Resampled<I> {
    limits: [Vec<f64>; 2],
    indices: Vec<I>,
}

fn scores(runs: &[Vec<f64>]) -> Scores {
    let of_task = |task| runs.iter().map(|run: &Vec<f64>| run[task]).collect();
    Scores::new((0..runs[0].len()).map(of_task).collect()).unwrap()
}

fn aggregates(scores: &Scores) -> Vec<f64> {
    vec![
        aggregate_mean(scores),
        aggregate_median(scores),
        aggregate_iqm(scores),
        aggregate_optimality_gap(scores, 1.0),
        aggregate_optimality_gap(scores, 0.5),
    ]
}

fn improvement(x: &Scores, y: &Scores) -> f64 {
    probability_of_improvement(x, y).unwrap()
}

fn resampled(scores: &Scores, indices: &[Vec<usize>]) -> Scores {
    scores.resample(|task, run| indices[run][task])
}

#[track_caller]
fn close(ours: &[f64], theirs: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), theirs.len());
    let near = ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() <= tolerance);
    assert!(near, "{ours:?}, not {theirs:?}");
}

fn limits(intervals: &[Interval]) -> [Vec<f64>; 2] {
    [intervals.iter().map(|x| x.low).collect(), intervals.iter().map(|x| x.high).collect()]
}

/// Sums are added in another order: the last bits differ.
const ROUNDING: f64 = 1e-12;

#[test]
fn measures_are_those_of_rliable() {
    let text = include_str!("../fixtures/rliable/rliable.json");
    let File { taus, cases } = serde_json::from_str(text).unwrap();
    assert!(cases.len() >= 4);
    for case in &cases {
        let (x, y) = (scores(&case.x), scores(&case.y));
        close(&aggregates(&x), &case.aggregates, ROUNDING);
        close(&[improvement(&x, &y)], &[case.improvement], ROUNDING);
        close(&score_distributions(&x, &taus), &case.score_distribution, 0.0);
        close(&average_score_distributions(&x, &taus), &case.average_score_distribution, 0.0);

        // Of rliable's resamples.
        let draws: Vec<Vec<f64>> =
            case.interval.indices.iter().map(|draw| aggregates(&resampled(&x, draw))).collect();
        let column = |k: usize| draws.iter().map(|draw| draw[k]).collect();
        let own: Vec<_> =
            (0..draws[0].len()).map(|k| percentile_interval(column(k), 0.95)).collect();
        for (own, theirs) in limits(&own).iter().zip(&case.interval.limits) {
            close(own, theirs, ROUNDING);
        }
        let of_two = case.improvement_interval.indices.iter();
        let of_two = of_two.map(|[a, b]| improvement(&resampled(&x, a), &resampled(&y, b)));
        let own = percentile_interval(of_two.collect(), 0.95);
        for (own, theirs) in limits(&[own]).iter().zip(&case.improvement_interval.limits) {
            close(own, theirs, ROUNDING);
        }

        // Of our own resamples, which are random.
        let bootstrap = Bootstrap { reps: 5000, ..Bootstrap::default() };
        let own = bootstrap.intervals(&x, aggregates);
        let of_two = bootstrap.interval_of_two(&x, &y, improvement);
        for (own, theirs) in limits(&own).iter().zip(&case.many) {
            close(own, theirs, 0.02);
        }
        for (own, theirs) in limits(&[of_two]).iter().zip(&case.many_of_two) {
            close(own, theirs, 0.07);
        }
    }
}
