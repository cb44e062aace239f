//! `podracer plot`: learning curves with a panel for each environment, and performance profiles.

pub mod axes;
pub mod bands;
pub mod figure;
mod profile;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use podracer::error::{Error, Result};

use super::picture;
use super::runs::{self, Group, Pooling, Run};
use axes::{Axis, Curve, Panel, Scale, Style};
use bands::{Band, Measure, Spread, Statistic, band, smoothed};
use figure::{Figure, Place};

#[derive(Debug, Args)]
pub struct Settings {
    /// Run folders, folders of run folders, results files (.jsonl), or tables of runs (.csv)
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Figure to write: .svg, .pdf or .png
    #[arg(long, default_value = "curves.svg")]
    out: PathBuf,
    /// Tag of the scalar to draw
    #[arg(long, default_value = runs::RETURNS)]
    tag: String,
    /// Algorithms to draw, separated by commas; all if none is named
    #[arg(long, value_delimiter = ',')]
    algos: Vec<String>,
    /// Environments to draw, separated by commas; all if none is named
    #[arg(long, value_delimiter = ',')]
    env_ids: Vec<String>,
    /// Horizontal axis
    #[arg(long, value_enum, default_value_t = X::Steps)]
    x: X,
    /// A panel for each of these
    #[arg(long, value_enum, default_value_t = Facet::Env)]
    facet: Facet,
    /// Line of each curve, over its runs
    #[arg(long, value_enum, default_value_t = Statistic::Mean)]
    statistic: Statistic,
    /// Band around the line [default: std of a mean, ci95 of an IQM]
    #[arg(long, value_enum)]
    band: Option<Spread>,
    /// Mean of this many logged values; below 1, TensorBoard's smoothing weight
    #[arg(long, default_value = "0.0")]
    smooth: f64,
    /// Points of each curve; each is the mean of the values logged since the one before
    #[arg(long, default_value = "100")]
    points: usize,
    /// Pool runs of different settings and lengths, stopped runs, and runs of one seed
    #[arg(long, default_value = "false")]
    pool: bool,
    /// Take the newest of the runs with the same settings and seed
    #[arg(long, default_value = "false", conflicts_with = "pool")]
    newest: bool,
    /// Draw a curve for each seed
    #[arg(long, default_value = "false", conflicts_with_all = ["pool", "profile"])]
    per_seed: bool,
    /// Draw performance profiles: the fraction of runs with a score above each threshold
    #[arg(long, default_value = "false")]
    profile: bool,
    #[command(flatten)]
    look: Look,
}

/// Flags of the figure's look.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Figure")]
pub struct Look {
    /// Title above the panels
    #[arg(long)]
    title: Option<String>,
    /// Label of the horizontal axis
    #[arg(long)]
    xlabel: Option<String>,
    /// Label of the vertical axis
    #[arg(long)]
    ylabel: Option<String>,
    /// Limits of the horizontal axis; one of them may be left out, as in `0,`
    #[arg(long, value_name = "LOW,HIGH", allow_hyphen_values = true)]
    xlim: Option<Limits>,
    /// Limits of the vertical axis
    #[arg(long, value_name = "LOW,HIGH", allow_hyphen_values = true)]
    ylim: Option<Limits>,
    /// Scale of the horizontal axis
    #[arg(long, value_enum, default_value_t = Scale::Linear)]
    xscale: Scale,
    /// Scale of the vertical axis
    #[arg(long, value_enum, default_value_t = Scale::Linear)]
    yscale: Scale,
    /// Place of the legend
    #[arg(long, value_enum, default_value_t = Place::Auto)]
    legend: Place,
    /// Width in pixels of 1/96 inch [default: 480 with one panel, 960 with more]
    #[arg(long)]
    width: Option<u32>,
    /// Panels in a row [default: as many as fit]
    #[arg(long)]
    columns: Option<usize>,
    /// Size of letters in pixels
    #[arg(long, default_value = "14.0")]
    font_size: f64,
}

impl Default for Look {
    fn default() -> Look {
        Look {
            title: None,
            xlabel: None,
            ylabel: None,
            xlim: None,
            ylim: None,
            xscale: Scale::Linear,
            yscale: Scale::Linear,
            legend: Place::Auto,
            width: None,
            columns: None,
            font_size: 14.0,
        }
    }
}

/// Quantity of the horizontal axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum X {
    /// Timesteps
    Steps,
    /// Hours of training, without compilation
    Hours,
    /// Iterations of algorithms with rollouts, gradient steps of others
    Updates,
}

/// Property of runs that have a panel of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Facet {
    /// Environments
    Env,
    /// Algorithms with their settings
    #[value(alias = "algorithm")]
    Algo,
    /// One panel for all
    None,
}

/// Limits of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Limits {
    low: Option<f64>,
    high: Option<f64>,
}

impl FromStr for Limits {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Limits, String> {
        let number = |text: &str| match text.trim() {
            "" => Some(None),
            text => text.parse().ok().filter(|x: &f64| x.is_finite()).map(Some),
        };
        let limits = text
            .split_once(',')
            .and_then(|(low, high)| Some(Limits { low: number(low)?, high: number(high)? }));
        let ordered = |limits: &Limits| limits.low.zip(limits.high).is_none_or(|(a, b)| a < b);
        limits.filter(ordered).ok_or("expected LOW,HIGH, as in `-200,0` or `0,`".to_string())
    }
}

impl Limits {
    fn of(limits: Option<Limits>, low: f64, high: f64) -> (f64, f64) {
        limits.map_or((low, high), |own| (own.low.unwrap_or(low), own.high.unwrap_or(high)))
    }
}

pub fn plot(settings: &Settings) -> Result<String> {
    picture::ensure_known(&settings.out)?;
    let measure = measure(settings)?;
    let groups = groups(settings)?;
    let figure = match settings.profile {
        true => profile::figure(&groups, settings)?,
        false => curves(&groups, settings, measure)?,
    };
    figure.picture().write(&settings.out)?;
    Ok(format!("{}\n", settings.out.display()))
}

fn measure(settings: &Settings) -> Result<Measure> {
    let statistic = settings.statistic;
    let usual = match statistic {
        Statistic::Mean => Spread::Std,
        Statistic::Iqm => Spread::Ci95,
    };
    let spread = settings.band.unwrap_or(usual);
    match (statistic, spread) {
        (Statistic::Iqm, Spread::Std) => Err(Error::Argument(
            "--band std: a standard deviation is around a mean; expected ci95, range or none with \
             --statistic iqm"
                .into(),
        )),
        _ => Ok(Measure { statistic, spread }),
    }
}

/// Reads the runs that the flags choose.
fn groups(settings: &Settings) -> Result<Vec<Group>> {
    let mut all: Vec<Run> = Vec::new();
    for path in &settings.runs {
        for run in runs::read(path, &settings.tag)? {
            // A folder and a run in it may both be named.
            let is_known = |other: &Run| other.source == run.source && other.curve == run.curve;
            if !all.iter().any(is_known) {
                all.push(run);
            }
        }
    }
    let names = |name: fn(&Run) -> &String| -> BTreeSet<String> {
        all.iter().map(|run| name(run).clone()).collect()
    };
    let (algos, env_ids) = (names(|run| &run.algorithm), names(|run| &run.env_id));
    for (flag, chosen, known) in
        [("--algos", &settings.algos, &algos), ("--env-ids", &settings.env_ids, &env_ids)]
    {
        if let Some(other) = chosen.iter().find(|name| !known.contains(*name)) {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let problem = format!("{flag} {other}: the runs are of {}", known.join(", "));
            return Err(Error::Argument(problem));
        }
    }
    let is_chosen = |chosen: &[String], name: &String| chosen.is_empty() || chosen.contains(name);
    all.retain(|run| {
        is_chosen(&settings.algos, &run.algorithm) && is_chosen(&settings.env_ids, &run.env_id)
    });
    if !settings.profile {
        all.retain(|run| !run.curve.is_empty());
    }
    if all.is_empty() {
        return Err(Error::Argument("none of the runs has a curve".into()));
    }
    let groups = runs::grouped(all, Pooling { pool: settings.pool, newest: settings.newest })?;
    Ok(if settings.per_seed { groups.into_iter().flat_map(of_each_seed).collect() } else { groups })
}

/// Divides a group into one for each run, whose name ends with the seed.
fn of_each_seed(group: Group) -> impl Iterator<Item = Group> {
    group.runs.into_iter().map(move |run| {
        let name = match &run.seed {
            Some(seed) => format!("{} seed {seed}", group.name),
            None => format!("{} {}", group.name, run.source),
        };
        Group { env_id: group.env_id.clone(), name, runs: vec![run] }
    })
}

/// Returns line and band of a group by the quantity of the horizontal axis. Hours are those in which
/// the runs reached a timestep on average, so that all runs are in each point.
fn band_of(group: &Group, settings: &Settings, measure: Measure) -> Result<Band> {
    let lacking = |what: &str, run: &Run| {
        Error::Argument(format!("--x {what}: {} does not have {what}", run.source))
    };
    let mut all = Vec::new();
    for run in &group.runs {
        let mut values = Vec::new();
        for sample in &run.curve {
            let x = match settings.x {
                X::Steps | X::Hours => sample.step,
                X::Updates => run.updates(sample.step).ok_or_else(|| lacking("updates", run))?,
            };
            values.push((x, sample.value));
        }
        smoothed(&mut values, settings.smooth);
        all.push(values);
    }
    let mut band = band(&all, settings.points, measure);
    if settings.x == X::Hours {
        for point in &mut band {
            let hours = |run: &Run| run.hours(point.x).ok_or_else(|| lacking("hours", run));
            let hours: Vec<f64> = group.runs.iter().map(hours).collect::<Result<_>>()?;
            point.x = super::mean_and_std(&hours).0;
        }
    }
    Ok(band)
}

fn curves(groups: &[Group], settings: &Settings, measure: Measure) -> Result<Figure> {
    let mut panels: BTreeMap<String, Vec<NamedBand>> = BTreeMap::new();
    for group in groups {
        let (title, name) = match settings.facet {
            Facet::Env => (group.env_id.clone(), group.name.clone()),
            Facet::Algo => (group.name.clone(), group.env_id.clone()),
            Facet::None => (String::new(), format!("{} {}", group.env_id, group.name)),
        };
        let band = band_of(group, settings, measure)?;
        let runs = group.runs.len();
        panels.entry(title).or_default().push(NamedBand { name, runs, band });
    }
    let quantity = settings.tag.rsplit('/').next().unwrap_or_default().replace('_', " ");
    let x_label = match settings.x {
        X::Steps => "timesteps",
        X::Hours => "hours of training",
        X::Updates => "updates",
    };
    let noun = match (settings.per_seed, settings.pool) {
        (true, _) => None,
        (false, true) => Some("run"),
        (false, false) => Some("seed"),
    };
    Ok(figure(panels, (x_label, &quantity), &measure.in_words(), noun, &settings.look))
}

/// Curve of a panel with its name in the legend and its number of runs.
#[derive(Debug, Clone)]
pub struct NamedBand {
    pub name: String,
    pub runs: usize,
    pub band: Band,
}

/// Makes the figure of panels by their titles, with labels of the axes. Curves of one name have one
/// look in all panels; `noun` is what a curve is made of, which the legend counts, and `measure`
/// names the line and band of curves of several.
pub fn figure(
    panels: BTreeMap<String, Vec<NamedBand>>,
    labels: (&str, &str),
    measure: &str,
    noun: Option<&str>,
    look: &Look,
) -> Figure {
    let mut counts: BTreeMap<&String, Vec<usize>> = BTreeMap::new();
    for curve in panels.values().flatten() {
        counts.entry(&curve.name).or_default().push(curve.runs);
    }
    let mut names: Vec<&String> = counts.keys().copied().collect();
    names.sort_by_key(|name| with_number(name));
    let style = |name: &String| Style::of(names.iter().position(|own| *own == name).unwrap_or(0));
    let entry = |name: &&String| match noun {
        Some(noun) => format!("{name} ({})", counted(&counts[*name], noun)),
        None => name.to_string(),
    };
    let mut legend: Vec<figure::Entry> =
        names.iter().map(|name| (Some(style(name)), entry(name))).collect();
    if panels.values().flatten().any(|curve| curve.runs > 1) {
        legend.push((None, measure.to_string()));
    }
    let panel = |(title, curves): (&String, &Vec<NamedBand>)| {
        let points = || curves.iter().flat_map(|curve| &curve.band);
        let lowest = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
        let highest =
            |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NEG_INFINITY, f64::max);
        let start = lowest(&mut points().map(|point| point.x));
        let start = if look.xscale == Scale::Log || start < 0.0 { start } else { 0.0 };
        let (left, right) =
            Limits::of(look.xlim, start, highest(&mut points().map(|point| point.x)));
        let positive = |y: &f64| look.yscale == Scale::Linear || *y > 0.0;
        let low = lowest(&mut points().flat_map(|point| [point.low, point.y]).filter(positive));
        let high = highest(&mut points().map(|point| point.high));
        let y = Axis::new(look.yscale, low, high).with_margin(0.05);
        let (bottom, top) = Limits::of(look.ylim, y.low(), y.high());
        let curve =
            |curve: &NamedBand| Curve { style: style(&curve.name), band: curve.band.clone() };
        Panel {
            title: Some(title.clone()).filter(|title| !title.is_empty()),
            x: Axis::new(look.xscale, left, right),
            y: Axis::new(look.yscale, bottom, top),
            curves: curves.iter().map(curve).collect(),
        }
    };
    Figure {
        panels: panels.iter().map(panel).collect(),
        title: look.title.clone(),
        x_label: look.xlabel.clone().unwrap_or(labels.0.to_string()),
        y_label: look.ylabel.clone().unwrap_or(labels.1.to_string()),
        legend,
        place: look.legend,
        width: look.width.map(f64::from),
        columns: look.columns,
        font_size: look.font_size,
    }
}

/// Divides a name into its text and the number at its end, so that seed 2 is before seed 10.
fn with_number(name: &str) -> (&str, u64) {
    let Some((text, end)) = name.rsplit_once(' ') else { return (name, 0) };
    end.parse().map_or((name, 0), |number| (text, number))
}

/// Returns numbers of runs in words.
fn counted(counts: &[usize], noun: &str) -> String {
    let (low, high) = (counts.iter().min().unwrap_or(&0), counts.iter().max().unwrap_or(&0));
    match (low, high) {
        (1, 1) => format!("1 {noun}"),
        (low, high) if low == high => format!("{high} {noun}s"),
        (low, high) => format!("{low} to {high} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use podracer::rl::logging::tensorboard::{Event, Value};
    use podracer::rl::returns::MAX_STEPS;

    use super::*;

    /// Event files may come from other programs: values that cannot be drawn are left out.
    #[test]
    fn events_that_no_run_logs_are_not_drawn() {
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
        let folder = tempfile::tempdir().unwrap();
        for events in [&events[..], &events[24..30], &events[96..120], &events[144..145]] {
            let run = runs::of_events(folder.path(), events, "x").unwrap();
            for values in [
                run.curve.iter().map(|x| (x.step, x.value)).collect::<Vec<_>>(),
                run.curve.iter().map(|x| (x.hours.unwrap(), x.value)).collect(),
            ] {
                assert!(values.iter().all(|(x, y)| (x + y).is_finite()), "{values:?}");
                let band = band(&[values], 100, Measure::MEAN);
                let curve = NamedBand { name: "a".into(), runs: 1, band };
                let panels = [("x".to_string(), vec![curve])].into();
                let figure = figure(panels, ("x", "y"), "mean", Some("seed"), &Look::default());
                for name in ["a.svg", "a.pdf", "a.png"] {
                    figure.picture().write(&folder.path().join(name)).unwrap();
                }
            }
        }
    }

    #[test]
    fn limits_are_two_numbers_of_which_one_may_be_left_out() {
        let limits = |low, high| Ok(Limits { low, high });
        assert_eq!("-200,0".parse(), limits(Some(-200.0), Some(0.0)));
        assert_eq!("0,".parse(), limits(Some(0.0), None));
        for text in ["1", "2,1", "a,b", "nan,1", "1,inf"] {
            assert!(text.parse::<Limits>().unwrap_err().contains("LOW,HIGH"), "{text}");
        }
    }

    #[test]
    fn curves_of_one_name_have_one_look_in_all_panels() {
        let curve = |name: &str, runs| {
            let band = vec![bands::Point { x: 1.0, y: 1.0, low: 0.0, high: 2.0 }];
            NamedBand { name: name.into(), runs, band }
        };
        let panels = BTreeMap::from([
            ("A".to_string(), vec![curve("dqn", 1), curve("ppo", 3)]),
            ("B".to_string(), vec![curve("ppo", 5)]),
        ]);
        let figure = figure(panels, ("x", "y"), "mean", Some("seed"), &Look::default());
        assert_eq!(figure.panels[0].curves[1].style, figure.panels[1].curves[0].style);
        assert_ne!(figure.panels[0].curves[0].style, figure.panels[0].curves[1].style);
        let names: Vec<&str> = figure.legend.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["dqn (1 seed)", "ppo (3 to 5 seeds)", "mean"]);
        let seeds = ["a seed 10", "a seed 2", "b"].map(|name| curve(name, 1)).to_vec();
        let seeds = BTreeMap::from([("A".to_string(), seeds)]);
        let legend = super::figure(seeds, ("x", "y"), "mean", None, &Look::default()).legend;
        let names: Vec<&str> = legend.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["a seed 2", "a seed 10", "b"]);
        let one = BTreeMap::from([("A".to_string(), vec![curve("dqn", 1)])]);
        let legend = super::figure(one, ("x", "y"), "mean", Some("seed"), &Look::default()).legend;
        let names: Vec<&str> = legend.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["dqn (1 seed)"]);
    }
}
