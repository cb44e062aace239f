//! Performance profiles (Agarwal et al. 2021).

use std::collections::BTreeMap;

use podracer::error::{Error, Result};
use podracer::rl::statistics::{Interval, Scores, score_distributions};

use super::bands::{Band, Point, RESAMPLES};
use super::figure::Figure;
use super::{NamedBand, Settings, figure as figure_of};
use crate::run_sets::human_normalized;
use crate::runs::Group;

/// Returns the figure of the profile of each algorithm over its environments.
pub fn figure(groups: &[Group], settings: &Settings) -> Result<Figure> {
    let mut sets: BTreeMap<&String, BTreeMap<String, Vec<f64>>> = BTreeMap::new();
    for group in groups {
        let scores = sets.entry(&group.name).or_default().entry(group.env_id.clone()).or_default();
        scores.extend(group.runs.iter().filter_map(|run| run.score));
    }
    let mut env_ids: Vec<&String> = groups.iter().map(|group| &group.env_id).collect();
    env_ids.sort();
    env_ids.dedup();
    let normalized: Option<BTreeMap<&String, Scores>> =
        sets.iter().map(|(name, scores)| Some((*name, human_normalized(scores)?))).collect();
    let (label, sets) = match (normalized, &env_ids[..]) {
        (Some(normalized), _) => ("human-normalized score", normalized),
        (None, [_]) => {
            let mut own = BTreeMap::new();
            for (name, scores) in sets {
                own.insert(name, Scores::new(scores.into_values().collect())?);
            }
            ("score", own)
        }
        (None, _) => {
            let names: Vec<&str> = env_ids.iter().map(|env_id| env_id.as_str()).collect();
            return Err(Error::Argument(format!(
                "--profile: scores of {} have no common scale; expected the runs of one \
                 environment, as --env-ids chooses them, or of Atari games with human scores",
                names.join(", ")
            )));
        }
    };
    let title = match env_ids[..] {
        [env_id] => env_id.clone(),
        _ => String::new(),
    };
    let panels = [(title, profiles(&sets, settings.points))].into();
    let labels = (label, "fraction of runs above");
    Ok(figure_of(panels, labels, "95% bootstrap interval", Some("run"), &settings.look))
}

/// Returns the profile of each set at `points` thresholds from the lowest to the highest score.
fn profiles(sets: &BTreeMap<&String, Scores>, points: usize) -> Vec<NamedBand> {
    let all = || sets.values().flat_map(|scores| scores.tasks().iter().flatten().copied());
    let low = all().fold(f64::INFINITY, f64::min);
    let high = all().fold(f64::NEG_INFINITY, f64::max);
    let count = points.max(2) - 1;
    let taus: Vec<f64> =
        (0..=count).map(|k| low + (high - low) * k as f64 / count as f64).collect();
    let of_set = |(name, scores): (&&String, &Scores)| {
        let profile = |scores: &Scores| score_distributions(scores, &taus);
        let intervals = RESAMPLES.intervals(scores, profile);
        let point = |((x, y), interval): ((&f64, f64), Interval)| Point {
            x: *x,
            y,
            low: interval.low,
            high: interval.high,
        };
        let band: Band = taus.iter().zip(profile(scores)).zip(intervals).map(point).collect();
        let runs = scores.tasks().iter().map(Vec::len).sum();
        NamedBand { name: (*name).clone(), runs, band }
    };
    sets.iter().map(of_set).collect()
}
