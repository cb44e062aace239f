//! Axes: scales, ticks with their labels, and the panel that they frame.

use clap::ValueEnum;

use crate::picture::{Anchor, BLACK, Color, LIGHT, Picture, Pixel, Rect, Stroke, Text, text_width};

use super::bands::Band;

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scale {
    Linear,
    Log,
}

/// Axis from one value to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    /// Creates an axis of the values from `low` to `high`; a logarithmic one starts at a positive value.
    pub fn new(scale: Scale, low: f64, high: f64) -> Axis {
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        match scale {
            Scale::Linear => {
                // Wide enough to be seen with labels of many digits.
                let least = (high.abs().max(low.abs()) * 1e-6).max(1e-9);
                Axis { scale, low, high: high.max(low + least) }
            }
            Scale::Log => {
                let low = low.max(1e-300);
                Axis { scale, low, high: high.max(low * 1.01) }
            }
        }
    }

    /// Returns the axis with room for a part of its length at both ends.
    pub fn with_margin(self, part: f64) -> Axis {
        let (a, b) = (self.place(self.low), self.place(self.high));
        let margin = (b - a) * part;
        let value = |place: f64| match self.scale {
            Scale::Linear => place,
            Scale::Log => 10f64.powf(place),
        };
        Axis { low: value(a - margin), high: value(b + margin), ..self }
    }

    pub fn low(&self) -> f64 {
        self.low
    }

    pub fn high(&self) -> f64 {
        self.high
    }

    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(1e-300).log10(),
        }
    }

    /// Returns the place of a value: 0 at the start of the axis, and 1 at its end.
    pub fn part(&self, value: f64) -> f64 {
        let (a, b) = (self.place(self.low), self.place(self.high));
        (self.place(value) - a) / (b - a)
    }

    /// Returns at most `count` ticks with their labels.
    pub fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        let count = count.max(2);
        match self.scale {
            Scale::Linear => linear_ticks(self.low, self.high, count),
            Scale::Log => {
                let (low, high) = (self.low.log10(), self.high.log10());
                let decades = ((low - 1e-9).ceil() as i32..=(high + 1e-9).floor() as i32)
                    .map(|power| 10f64.powi(power));
                let decades: Vec<f64> = decades.collect();
                if decades.len() < 2 {
                    return linear_ticks(self.low, self.high, count);
                }
                let every = decades.len().div_ceil(count);
                let shown = decades.into_iter().step_by(every);
                shown.map(|value| (value, label(value, value, value))).collect()
            }
        }
    }
}

fn linear_ticks(low: f64, high: f64, count: usize) -> Vec<(f64, String)> {
    let least = (high - low) / count as f64;
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|part| part * power);
    let step = steps.into_iter().find(|step| *step >= least * 0.999).unwrap_or(steps[4]);
    let first = (low / step - 1e-6).ceil();
    let values = (0..=count).map(|k| (first + k as f64) * step);
    let values: Vec<f64> = values.filter(|x| *x <= high + step * 1e-6).collect();
    let largest = values.iter().map(|x| x.abs()).fold(0.0, f64::max);
    values.into_iter().map(|x| (x, label(x, largest, step))).collect()
}

/// Formats a tick with the unit of the largest, and the decimals of the step between ticks.
fn label(value: f64, largest: f64, step: f64) -> String {
    let (unit, suffix) = match largest {
        x if x >= 1e15 => return format!("{value:.0e}"),
        x if x >= 1e9 => (1e9, "B"),
        x if x >= 1e6 => (1e6, "M"),
        x if x >= 1e4 => (1e3, "k"),
        x if x > 0.0 && x < 1e-4 => return format!("{value:.1e}"),
        _ => (1.0, ""),
    };
    if value.abs() < step * 1e-6 {
        return "0".into();
    }
    let decimals = (0..9).find(|k| {
        let digits = step / unit * 10f64.powi(*k);
        (digits - digits.round()).abs() < 1e-6 * digits
    });
    let text = format!("{:.*}", decimals.unwrap_or(9) as usize, value / unit);
    // A minus sign is as wide as a plus sign.
    format!("{}{suffix}", text.replace('-', "\u{2212}"))
}

/// Curve of a panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    pub style: Style,
    pub band: Band,
}

/// Look of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Style {
    pub color: Color,
    pub dash: Option<[f64; 2]>,
}

/// Colors that people with any kind of color vision tell apart (Okabe and Ito 2008), without their
/// yellow, which is too light for a line.
const COLORS: [[u8; 3]; 7] = [
    [0, 114, 178],
    [230, 159, 0],
    [0, 158, 115],
    [213, 94, 0],
    [204, 121, 167],
    [86, 180, 233],
    [0, 0, 0],
];

impl Style {
    /// Returns the look of the curve of this number. After seven the lines are dashed.
    pub fn of(k: usize) -> Style {
        let dash = match k / COLORS.len() {
            0 => None,
            1 => Some([7.0, 3.0]),
            cycle => Some([2.0, 1.0 + cycle as f64]),
        };
        Style { color: Color::opaque(COLORS[k % COLORS.len()]), dash }
    }

    pub fn stroke(&self) -> Stroke {
        Stroke { color: self.color, width: 1.8, dash: self.dash }
    }
}

/// Panel with its axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    pub title: Option<String>,
    pub x: Axis,
    pub y: Axis,
    pub curves: Vec<Curve>,
}

impl Panel {
    /// Returns the ticks of y in a frame of this height.
    pub fn y_ticks(&self, height: f64, font_size: f64) -> Vec<(f64, String)> {
        self.y.ticks((height / (font_size * 1.8)) as usize)
    }

    /// Returns the ticks of x in a frame of this width, no closer than their labels are wide.
    pub fn x_ticks(&self, width: f64, font_size: f64) -> Vec<(f64, String)> {
        let mut count = (width / (font_size * 2.5)) as usize;
        loop {
            let ticks = self.x.ticks(count);
            let widest = ticks.iter().map(|(_, label)| text_width(label, font_size));
            let room = widest.fold(0.0, f64::max) + font_size;
            let places: Vec<f64> = ticks.iter().map(|(x, _)| self.x.part(*x) * width).collect();
            if count <= 2 || places.windows(2).all(|pair| pair[1] - pair[0] >= room) {
                return ticks;
            }
            count -= 1;
        }
    }

    /// Returns the width of the part of the last label of x that is right of a frame of this width.
    pub fn beyond_right(&self, width: f64, font_size: f64) -> f64 {
        self.x_ticks(width, font_size).last().map_or(0.0, |(x, label)| {
            text_width(label, font_size) / 2.0 - (1.0 - self.x.part(*x)) * width + font_size * 0.3
        })
    }

    /// Returns the place of a point in a frame.
    fn pixel(&self, frame: &Rect, (x, y): (f64, f64)) -> Pixel {
        let Rect { left, bottom, .. } = *frame;
        (left + self.x.part(x) * frame.width(), bottom - self.y.part(y) * frame.height())
    }

    /// Returns the outline of each band, and each line, in a frame.
    pub fn shapes(&self, frame: &Rect) -> Vec<(Vec<Pixel>, Vec<Pixel>)> {
        let of_curve = |curve: &Curve| {
            let points = || curve.band.iter();
            let upper = points().map(|point| (point.x, point.high));
            let lower = points().rev().map(|point| (point.x, point.low));
            let outline = upper.chain(lower).map(|point| self.pixel(frame, point)).collect();
            let line = points().map(|point| self.pixel(frame, (point.x, point.y))).collect();
            (outline, line)
        };
        self.curves.iter().map(of_curve).collect()
    }

    /// Draws grid, bands, lines, frame and tick labels.
    pub fn draw(&self, picture: &mut Picture, frame: &Rect, font_size: f64) {
        let Rect { left, right, top, bottom } = *frame;
        let gray = Stroke::solid(LIGHT, 1.0);
        for (value, label) in self.y_ticks(frame.height(), font_size) {
            let y = self.pixel(frame, (self.x.low, value)).1;
            picture.line(vec![(left, y), (right, y)], gray);
            let at = (left - font_size * 0.4, y + font_size * 0.36);
            picture.text(Text::new(label, at, font_size, Anchor::End), BLACK);
        }
        for (value, label) in self.x_ticks(frame.width(), font_size) {
            let x = self.pixel(frame, (value, self.y.low)).0;
            picture.line(vec![(x, top), (x, bottom)], gray);
            let at = (x, bottom + font_size * 1.3);
            picture.text(Text::new(label, at, font_size, Anchor::Middle), BLACK);
        }
        let shapes = self.shapes(frame);
        for (curve, (outline, _)) in self.curves.iter().zip(&shapes) {
            if curve.band.iter().all(|point| point.low == point.high) {
                continue;
            }
            picture.area_within(frame, outline, curve.style.color.with_alpha(0.2));
        }
        for (curve, (_, line)) in self.curves.iter().zip(&shapes) {
            picture.line_within(frame, line, curve.style.stroke());
        }
        let corners = vec![(left, top), (left, bottom), (right, bottom)];
        picture.line(corners, Stroke::solid(BLACK, 1.0));
        if let Some(title) = &self.title {
            let at = ((left + right) / 2.0, top - font_size * 0.6);
            picture.text(Text::new(title, at, font_size, Anchor::Middle), BLACK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: Axis, count: usize) -> Vec<String> {
        axis.ticks(count).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers_of_one_unit() {
        let linear = |low, high, count| labels(Axis::new(Scale::Linear, low, high), count);
        assert_eq!(linear(0.0, 1e6, 5), ["0", "0.2M", "0.4M", "0.6M", "0.8M", "1.0M"]);
        assert_eq!(linear(0.0, 500_000.0, 5), ["0", "100k", "200k", "300k", "400k", "500k"]);
        assert_eq!(linear(-21.0, 21.0, 5), ["\u{2212}20", "\u{2212}10", "0", "10", "20"]);
        assert_eq!(linear(0.0, 0.3, 3), ["0", "0.1", "0.2", "0.3"]);
        assert_eq!(linear(0.0, 10_000_000.0, 4), ["0", "2.5M", "5.0M", "7.5M", "10.0M"]);
        let log = |low, high, count| labels(Axis::new(Scale::Log, low, high), count);
        assert_eq!(log(1.0, 1e6, 10), ["1", "10", "100", "1000", "10k", "100k", "1M"]);
    }

    #[test]
    fn ticks_are_within_the_axis_and_few() {
        for exponent in [-30, -8, -3, 0, 2, 7, 12, 37] {
            for (low, high) in [(0.0, 1.0), (-1.0, 3.0), (0.999, 1.0), (5.0, 5.0), (-7.0, -6.0)] {
                let unit = 10f64.powi(exponent);
                for scale in [Scale::Linear, Scale::Log] {
                    let axis = Axis::new(scale, low * unit, high * unit).with_margin(0.05);
                    for count in [2, 5, 10] {
                        let ticks = axis.ticks(count);
                        assert!(ticks.len() <= count + 1, "{axis:?}: {ticks:?}");
                        let parts = ticks.iter().map(|(value, _)| axis.part(*value));
                        assert!(
                            parts.into_iter().all(|x| (-1e-3..=1.001).contains(&x)),
                            "{axis:?}"
                        );
                    }
                }
            }
        }
    }
}
