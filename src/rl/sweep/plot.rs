//! Figure of a sweep: mean return by the value of a hyperparameter.

use std::path::Path;

use plotters::prelude::*;

use super::{PointResult, Sweep};
use crate::error::{Error, Result};

type Problem = Box<dyn std::error::Error>;

/// Line of a figure: name, and value, mean and deviation of its points.
type Line = (String, Vec<(f64, f64, f64)>);

/// Draws the results of one or two sweeps as an .svg file. With two sweeps there is a line for each
/// value of the one with fewer values.
///
/// # Errors
/// [`Error::Argument`] if the file cannot be written.
pub(super) fn draw(path: &Path, sweeps: &[Sweep], results: &[PointResult]) -> Result<()> {
    let axis = match sweeps {
        [a, b] if b.values.len() > a.values.len() => 1,
        _ => 0,
    };
    let Some(sweep) = sweeps.get(axis) else { return Ok(()) };
    chart(path, sweep, &lines(axis, sweeps, results))
        .map_err(|problem| Error::Argument(format!("cannot draw {}: {problem}", path.display())))
}

fn lines(axis: usize, sweeps: &[Sweep], results: &[PointResult]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for result in results {
        let other = sweeps.iter().zip(&result.values).enumerate().find(|(k, _)| *k != axis);
        let name =
            other.map_or(String::new(), |(_, (sweep, value))| format!("{} {value}", sweep.name));
        let at = lines.iter().position(|line| line.0 == name).unwrap_or_else(|| {
            lines.push((name, Vec::new()));
            lines.len() - 1
        });
        if let (Some(mean), Some(std)) = (result.mean_return, result.std_return) {
            lines[at].1.push((result.values[axis], mean, std));
        }
    }
    for (_, points) in &mut lines {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

fn chart(path: &Path, sweep: &Sweep, lines: &[Line]) -> std::result::Result<(), Problem> {
    let place = |x: f64| if sweep.log { x.log10() } else { x };
    let all = || lines.iter().flat_map(|(_, points)| points);
    let fold = |values: &mut dyn Iterator<Item = f64>| {
        let limits = (f64::INFINITY, f64::NEG_INFINITY);
        let (low, high) = values.fold(limits, |(a, b), x| (a.min(x), b.max(x)));
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let margin = ((high - low) * 0.05).max(high.abs().max(low.abs()) * 1e-6).max(1e-9);
        low - margin..high + margin
    };
    let x = fold(&mut sweep.values.iter().map(|x| place(*x)));
    let y = fold(&mut all().flat_map(|(_, mean, std)| [mean - std, mean + std]));
    let area = SVGBackend::new(path, (640, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(x, y)?;
    let label = |x: &f64| match sweep.log {
        true => format!("{:.1e}", 10f64.powf(*x)),
        false => format!("{}", (x * 1e6).round() / 1e6),
    };
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(sweep.name.as_str())
        .y_desc("mean return of the last episodes")
        .x_label_formatter(&label)
        .draw()?;
    for (k, (name, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(k).to_rgba();
        let upper = points.iter().map(|(x, mean, std)| (place(*x), mean + std));
        let lower = points.iter().rev().map(|(x, mean, std)| (place(*x), mean - std));
        let outline: Vec<(f64, f64)> = upper.chain(lower).collect();
        chart.draw_series([Polygon::new(outline, color.mix(0.2).filled())])?;
        let line = || points.iter().map(|(x, mean, _)| (place(*x), *mean));
        chart.draw_series(line().map(|point| Circle::new(point, 3, color.filled())))?;
        let series = chart.draw_series(LineSeries::new(line(), color.stroke_width(2)))?;
        if !name.is_empty() {
            series.label(name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2))
            });
        }
    }
    if lines.len() > 1 {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .label_font(("sans-serif", 16))
            .background_style(WHITE.mix(0.8))
            .draw()?;
    }
    area.present()?;
    Ok(())
}
