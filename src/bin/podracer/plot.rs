//! `podracer plot`: learning curves, by steps and by time, and performance profiles.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use plotters::coord::Shift;
use plotters::prelude::*;
use podracer::error::{Error, Result};
use podracer::rl::run::MAX_STEPS;
use podracer::rl::statistics::{Bootstrap, Scores, aggregate_iqm, score_distributions};
use podracer::rl::tensorboard::{Event, Value};

use super::canvas::{self, Chart, Problem};
use super::run_sets::{self, env_and_experiment, final_score};

#[derive(Debug, Args)]
pub struct Settings {
    /// Folders of runs
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Image to write, an .svg or a .png file
    #[arg(long, default_value = "curves.svg")]
    out: PathBuf,
    /// Tag of the scalar to draw
    #[arg(long, default_value = "charts/episodic_return")]
    tag: String,
    /// Number of points of each curve; each is the mean of the values logged since the one before
    #[arg(long, default_value_t = 100)]
    points: usize,
    /// Statistic over the runs: line and band of each curve
    #[arg(long, value_enum, default_value_t = Statistic::Mean)]
    statistic: Statistic,
    /// Draw performance profiles in place of curves: the fraction of the runs of each algorithm whose
    /// score, the mean of the last 100 values of the tag, is above a threshold; of Atari games, the
    /// human-normalized score
    #[arg(long, default_value_t = false)]
    profile: bool,
}

/// Statistic over runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Statistic {
    /// Mean and standard deviation
    Mean,
    /// Interquartile mean and its 95% bootstrap interval
    Iqm,
}

/// Resamples of each interval that is drawn; rliable's number for profiles.
const RESAMPLES: Bootstrap = Bootstrap { reps: 2000, confidence_interval_size: 0.95, seed: 1 };

/// Longest run that is drawn, in hours: a century.
const MAX_HOURS: f64 = 876_600.0;

/// Line with a band around it.
pub type Band = Vec<Point>;

/// Point of a [`Band`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    /// Lower limit of the band.
    pub low: f64,
    /// Upper limit of the band.
    pub high: f64,
}

impl Point {
    /// Returns the mean and standard deviation of values.
    pub fn of_mean(x: f64, values: &[f64]) -> Point {
        let (y, std) = super::mean_and_std(values);
        Point { x, y, low: y - std, high: y + std }
    }

    /// Returns the interquartile mean and its interval; none for values that are not finite.
    fn of_iqm(x: f64, values: &[f64]) -> Option<Point> {
        let scores = Scores::new(vec![values.to_vec()]).ok()?;
        let interval = RESAMPLES.interval(&scores, aggregate_iqm);
        Some(Point { x, y: aggregate_iqm(&scores), low: interval.low, high: interval.high })
    }
}

/// Values that one run logged under the tag: step, hours since its start, value.
type Curve = Vec<(f64, f64, f64)>;

pub fn plot(settings: &Settings) -> Result<String> {
    if !canvas::known(&settings.out) {
        return Err(Error::Argument(format!(
            "--out {}: pictures are written as .svg or .png",
            settings.out.display()
        )));
    }
    if settings.points == 0 {
        return Err(Error::Argument("--points 0: must be at least 1".into()));
    }
    if settings.profile {
        return plot_profiles(settings);
    }
    // One color for each algorithm and environment, shared by all seeds.
    let mut groups: BTreeMap<String, Vec<Curve>> = BTreeMap::new();
    for run in &settings.runs {
        let curve = read(run, &settings.tag)?;
        groups.entry(group_of(run)).or_default().push(curve);
    }
    let groups: Vec<(String, Vec<Curve>)> =
        groups.into_iter().map(|(name, runs)| (format!("{name} ({})", runs.len()), runs)).collect();
    let curves = Curves { settings, groups: &groups };
    draw(&settings.out, (1100, 420), &curves)
}

/// Writes the picture and returns its path as a line.
fn draw(out: &Path, size: (u32, u32), chart: &impl Chart) -> Result<String> {
    canvas::write(out, size, chart)
        .map_err(|problem| Error::Argument(format!("cannot draw {}: {problem}", out.display())))?;
    Ok(format!("{}\n", out.display()))
}

/// Returns `{env_id}__{exp_name}` of `{env_id}__{exp_name}__{seed}__{seconds}`, with spaces for
/// `__`.
fn group_of(run: &Path) -> String {
    let name = run.file_name().unwrap_or(run.as_os_str()).to_string_lossy();
    name.rsplitn(3, "__").nth(2).map_or(name.to_string(), |group| group.replace("__", " "))
}

fn read(run: &Path, tag: &str) -> Result<Curve> {
    let events = run_sets::events_of(run)?;
    let curve = curve_of(&events, tag);
    if curve.is_empty() {
        let problem = format!("{} has no {tag}: nothing was logged of it", run.display());
        return Err(Error::Argument(problem));
    }
    Ok(curve)
}

/// Returns the points of a tag. Points that no run can have logged are left out: axes cannot be
/// drawn to them.
fn curve_of(events: &[Event], tag: &str) -> Curve {
    let start = events.iter().map(|event| event.wall_time).filter(|time| time.is_finite());
    let start = start.fold(f64::INFINITY, f64::min);
    events
        .iter()
        .filter_map(|event| match &event.value {
            Value::Scalar { tag: own, value } if own == tag && value.is_finite() => {
                Some((event.step as f64, (event.wall_time - start) / 3600.0, f64::from(*value)))
            }
            _ => None,
        })
        .filter(|(step, hours, _)| *step <= MAX_STEPS as f64 && (0.0..=MAX_HOURS).contains(hours))
        .collect()
}

/// Returns a statistic over runs at `points` positions from 0 to `end`.
fn band(runs: &[Vec<(f64, f64)>], end: f64, points: usize, statistic: Statistic) -> Band {
    let mut band = Vec::new();
    for k in 0..points {
        let (from, to) = (end * k as f64 / points as f64, end * (k + 1) as f64 / points as f64);
        let of_run = |run: &Vec<(f64, f64)>| {
            let inside = |x: f64| (x > from || k == 0) && x <= to;
            let own = run.iter().filter(|(x, _)| inside(*x)).map(|(_, y)| *y);
            let values: Vec<f64> = own.collect();
            (!values.is_empty()).then(|| super::mean_and_std(&values).0)
        };
        let means: Vec<f64> = runs.iter().filter_map(of_run).collect();
        match statistic {
            _ if means.is_empty() => {}
            Statistic::Mean => band.push(Point::of_mean(to, &means)),
            Statistic::Iqm => band.extend(Point::of_iqm(to, &means)),
        }
    }
    band
}

/// Draws the performance profile of each algorithm over its environments.
fn plot_profiles(settings: &Settings) -> Result<String> {
    let mut sets: BTreeMap<String, BTreeMap<String, Vec<f64>>> = BTreeMap::new();
    for run in &settings.runs {
        let Some((env_id, algorithm)) = env_and_experiment(run) else {
            return Err(Error::Argument(format!(
                "{}: expected the folder of a run, named ENV_ID__EXP_NAME__SEED__TIME",
                run.display()
            )));
        };
        let values: Vec<f64> = read(run, &settings.tag)?.iter().map(|point| point.2).collect();
        let scores = sets.entry(algorithm).or_default().entry(env_id).or_default();
        scores.extend(final_score(&values));
    }
    let mut env_ids: Vec<&String> = sets.values().flat_map(BTreeMap::keys).collect();
    env_ids.sort();
    env_ids.dedup();
    let normalized: Option<BTreeMap<&String, Scores>> = sets
        .iter()
        .map(|(name, scores)| Some((name, run_sets::human_normalized(scores)?)))
        .collect();
    let (label, sets) = match (normalized, &env_ids[..]) {
        (Some(normalized), _) => ("human-normalized score", normalized),
        (None, [_]) => {
            let of_set = |(name, scores): (_, &BTreeMap<String, Vec<f64>>)| {
                Ok((name, Scores::new(scores.values().cloned().collect())?))
            };
            ("score", sets.iter().map(of_set).collect::<Result<_>>()?)
        }
        (None, _) => {
            let names: Vec<&str> = env_ids.iter().map(|env_id| env_id.as_str()).collect();
            return Err(Error::Argument(format!(
                "--profile: scores of {} have no common scale; expected the runs of one \
                 environment, or of Atari games with human scores",
                names.join(", ")
            )));
        }
    };
    let profiles = Profiles { label, bands: profiles(&sets, settings.points) };
    draw(&settings.out, (640, 420), &profiles)
}

/// Returns the profile of each set at `points` thresholds from the lowest to the highest score.
fn profiles(sets: &BTreeMap<&String, Scores>, points: usize) -> Vec<(String, Band)> {
    let all = || sets.values().flat_map(|scores| scores.tasks().iter().flatten().copied());
    let low = all().fold(f64::INFINITY, f64::min);
    let high = all().fold(f64::NEG_INFINITY, f64::max);
    let count = points.max(2) - 1;
    let taus: Vec<f64> =
        (0..=count).map(|k| low + (high - low) * k as f64 / count as f64).collect();
    let band =
        |(name, scores): (&&String, &Scores)| {
            let profile = |scores: &Scores| score_distributions(scores, &taus);
            let intervals = RESAMPLES.intervals(scores, profile);
            let point = |((x, y), interval): ((&f64, f64), podracer::rl::statistics::Interval)| {
                Point { x: *x, y, low: interval.low, high: interval.high }
            };
            let band = taus.iter().zip(profile(scores)).zip(intervals).map(point).collect();
            let runs: usize = scores.tasks().iter().map(Vec::len).sum();
            (format!("{name} ({runs})"), band)
        };
    sets.iter().map(band).collect()
}

/// Chart of performance profiles.
struct Profiles {
    label: &'static str,
    bands: Vec<(String, Band)>,
}

impl Chart for Profiles {
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> std::result::Result<(), Problem>
    where
        B::ErrorType: 'static,
    {
        let start = self.bands.iter().flat_map(|(_, band)| band).map(|point| point.x);
        let start = start.fold(f64::INFINITY, f64::min);
        draw_panel(area, (start, self.label), "fraction of runs above", &self.bands)
    }
}

/// Chart of a statistic of each group, by steps and by time.
struct Curves<'a> {
    settings: &'a Settings,
    groups: &'a [(String, Vec<Curve>)],
}

impl Chart for Curves<'_> {
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
    ) -> std::result::Result<(), Problem>
    where
        B::ErrorType: 'static,
    {
        let Curves { settings, groups } = *self;
        let panels = area.split_evenly((1, 2));
        let quantity = settings.tag.rsplit('/').next().unwrap_or_default();
        for (k, (panel, label)) in panels.iter().zip(["timesteps", "hours"]).enumerate() {
            let place = |point: &(f64, f64, f64)| if k == 0 { point.0 } else { point.1 };
            let bands = groups.iter().map(|(name, runs)| {
                let runs: Vec<Vec<(f64, f64)>> =
                    runs.iter().map(|run| run.iter().map(|p| (place(p), p.2)).collect()).collect();
                let end = runs.iter().flatten().map(|(x, _)| *x).fold(0.0, f64::max);
                (name.clone(), band(&runs, end, settings.points, settings.statistic))
            });
            draw_panel(panel, (0.0, label), quantity, &bands.collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

/// Draws the lines and bands of named groups with axes and a legend. `(start, label)` is the axis of x.
pub fn draw_panel<B: DrawingBackend>(
    panel: &DrawingArea<B, Shift>,
    (start, label): (f64, &str),
    quantity: &str,
    bands: &[(String, Band)],
) -> std::result::Result<(), Problem>
where
    B::ErrorType: 'static,
{
    let all = || bands.iter().flat_map(|(_, band)| band);
    let end = all().map(|point| point.x).fold(start, f64::max).max(start + 1e-6);
    let low = all().map(|point| point.low).fold(f64::INFINITY, f64::min);
    let high = all().map(|point| point.high).fold(f64::NEG_INFINITY, f64::max);
    let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
    // The margin is wide enough to be seen with axis labels of many digits.
    let margin = ((high - low) * 0.05).max(high.abs().max(low.abs()) * 1e-6).max(1e-6);
    let mut chart = ChartBuilder::on(panel)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(start..end, low - margin..high + margin)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(label)
        .y_desc(quantity)
        .x_label_formatter(&|x| short(*x))
        .draw()?;
    for (k, (name, band)) in bands.iter().enumerate() {
        let color = Palette99::pick(k).to_rgba();
        let upper = band.iter().map(|point| (point.x, point.high));
        let lower = band.iter().rev().map(|point| (point.x, point.low));
        let outline: Vec<(f64, f64)> = upper.chain(lower).collect();
        chart.draw_series([Polygon::new(outline, color.mix(0.2).filled())])?;
        let line = band.iter().map(|point| (point.x, point.y));
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        // In this size a letter is laid out as wide as those of a .png.
        .label_font(("sans-serif", 16))
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

/// Formats `2000000` as `2M`.
fn short(x: f64) -> String {
    match x {
        x if x >= 1e6 => format!("{}M", x / 1e6),
        x if x >= 1e4 => format!("{}k", x / 1e3),
        // Ticks are sums of steps: 0.1 + 0.2 is shown as 0.3.
        x => format!("{}", (x * 1e6).round() / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Event files may come from other programs: values that cannot be drawn are left out.
    #[test]
    fn events_that_no_run_logs_are_not_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let extremes = [f64::NAN, f64::INFINITY, -1e300, 1e300, 0.0, 1e9, 1e9 + 3600.0];
        let mut events = Vec::new();
        for wall_time in extremes {
            for step in [0, 1, MAX_STEPS, u64::MAX] {
                for value in [0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, f32::NAN, f32::INFINITY] {
                    let value = Value::Scalar { tag: "x".into(), value };
                    events.push(Event { wall_time, step, value });
                }
            }
        }
        for events in [&events[..], &events[24..30], &events[96..120], &events[144..145]] {
            let curve = curve_of(events, "x");
            assert!(curve.iter().all(|(x, y, z)| (x + y + z).is_finite()));
            let out = folder.path().join("curves.svg");
            let settings = Settings {
                runs: vec![],
                out,
                tag: "x".into(),
                points: 100,
                statistic: Statistic::Mean,
                profile: false,
            };
            let groups = [("a".to_string(), vec![curve])];
            let curves = Curves { settings: &settings, groups: &groups };
            canvas::write(&settings.out, (1100, 420), &curves).unwrap();
        }
    }
}
