//! Figures: panels in rows and columns, their labels, and one legend where it hides nothing.

use clap::ValueEnum;

use super::axes::{Panel, Style};
use crate::picture::{
    Anchor, BLACK, Color, Picture, Rect, Stroke, Text, WHITE, overlaps, text_width,
};

/// Place of the legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// Inside where a corner or a place for a panel is free, outside otherwise
    Auto,
    /// In a corner of a panel
    Inside,
    /// Below the panels
    Outside,
    /// No legend
    None,
}

/// Least width of a panel, in sizes of the font, if `--columns` does not say how many there are.
const PANEL_WIDTH: f64 = 17.0;
/// Width of a figure with one panel, and with more. In a paper of two columns, a figure that is one
/// or two columns wide then has letters of seven points.
const WIDTHS: [f64; 2] = [480.0, 960.0];

/// Entry of a legend: the look of a curve, or the gray of all bands, and its name.
pub type Entry = (Option<Style>, String);

/// Figure of panels.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    pub panels: Vec<Panel>,
    pub title: Option<String>,
    pub x_label: String,
    pub y_label: String,
    pub legend: Vec<Entry>,
    pub place: Place,
    /// Width in pixels, and number of columns, if the user chose them.
    pub width: Option<f64>,
    pub columns: Option<usize>,
    /// Size of letters in pixels.
    pub font_size: f64,
}

/// Legend with its lines of text.
struct Block {
    width: f64,
    height: f64,
    /// Place of each entry in the block, and the lines of its name.
    entries: Vec<((f64, f64), Vec<String>)>,
}

/// Places of a figure's parts.
struct Layout {
    size: (f64, f64),
    frames: Vec<Rect>,
    /// Place for a panel that is not there.
    vacant: Option<Rect>,
    /// Bottom of the panels with their labels.
    bottom: f64,
}

impl Figure {
    pub fn picture(&self) -> Picture {
        let width = self.width.unwrap_or(WIDTHS[usize::from(self.panels.len() > 1)]);
        let font = self.font_size;
        let layout = self.layout(width);
        let shown = self.place != Place::None && !self.legend.is_empty();
        let inside = if shown { self.inside(&layout) } else { None };
        let below = (shown && inside.is_none()).then(|| self.block(width - 2.0 * font, None));
        let more = below.as_ref().map_or(0.0, |block| block.height + font * 0.6);
        let mut picture = Picture::new(width, layout.size.1 + more);
        for (panel, frame) in self.panels.iter().zip(&layout.frames) {
            panel.draw(&mut picture, frame, font);
        }
        self.draw_labels(&mut picture, &layout);
        if let Some((block, (x, y))) = inside {
            let rect = Rect { left: x, top: y, right: x + block.width, bottom: y + block.height };
            picture.rectangle(&rect, WHITE.with_alpha(0.85));
            self.draw_legend(&mut picture, &block, (x, y));
        }
        if let Some(block) = below {
            let x = ((width - block.width) / 2.0).max(font);
            self.draw_legend(&mut picture, &block, (x, layout.bottom + font * 0.6));
        }
        picture
    }

    fn columns(&self, width: f64) -> usize {
        let count = self.panels.len().max(1);
        let most = (width / (PANEL_WIDTH * self.font_size)) as usize;
        match self.columns {
            Some(columns) => columns.clamp(1, count),
            // Rows of about the same length.
            None => count.div_ceil(count.div_ceil(most.clamp(1, count))),
        }
    }

    fn layout(&self, width: f64) -> Layout {
        let (font, columns) = (self.font_size, self.columns(width));
        let count = self.panels.len();
        let rows = count.div_ceil(columns).max(1);
        let in_column = |column: usize| self.panels.iter().skip(column).step_by(columns);
        // Room for labels depends on the frames, and frames on that room.
        let mut frame = (width / columns as f64 * 0.8, width / columns as f64 * 0.5);
        let mut lefts = vec![0.0; columns];
        let mut rights = vec![0.0; columns];
        for _ in 0..3 {
            for column in 0..columns {
                let labels = in_column(column).flat_map(|panel| panel.y_ticks(frame.1, font));
                let widest = labels.map(|(_, label)| text_width(&label, font));
                lefts[column] = widest.fold(font, f64::max) + font * 0.8;
                let beyond = in_column(column).map(|panel| panel.beyond_right(frame.0, font));
                rights[column] = beyond.fold(font * 0.8, f64::max);
            }
            let labels: f64 = lefts.iter().chain(&rights).sum();
            let room = width - font * 1.8 - labels;
            frame.0 = (room / columns as f64).max(font * 2.0);
            frame.1 = (frame.0 * 0.66).max(font * 6.0);
        }
        let has_titles = self.panels.iter().any(|panel| panel.title.is_some());
        let above = if has_titles { font * 1.9 } else { font * 0.9 };
        let row_height = above + frame.1 + font * 1.9;
        let top = if self.title.is_some() { font * 1.9 } else { font * 0.2 };
        let place = |k: usize| {
            let (row, column) = (k / columns, k % columns);
            let before: f64 = (0..column).map(|k| lefts[k] + rights[k] + frame.0).sum();
            let left = font * 1.8 + before + lefts[column];
            let top = top + row as f64 * row_height + above;
            Rect { left, top, right: left + frame.0, bottom: top + frame.1 }
        };
        let bottom = top + rows as f64 * row_height + font * 1.5;
        Layout {
            size: (width, bottom + font * 0.4),
            frames: (0..count).map(place).collect(),
            vacant: (count < rows * columns).then(|| place(count)),
            bottom,
        }
    }

    fn draw_labels(&self, picture: &mut Picture, layout: &Layout) {
        let font = self.font_size;
        let (Some(first), Some(last)) = (layout.frames.first(), layout.frames.last()) else {
            return;
        };
        let right = layout.frames.iter().map(|frame| frame.right).fold(0.0, f64::max);
        let at = ((first.left + right) / 2.0, layout.bottom - font * 0.3);
        picture.text(Text::new(&self.x_label, at, font, Anchor::Middle), BLACK);
        let at = (font * 1.4, (first.top + last.bottom) / 2.0);
        let label = Text::new(&self.y_label, at, font, Anchor::Middle);
        picture.text(Text { upward: true, ..label }, BLACK);
        if let Some(title) = &self.title {
            let at = (layout.size.0 / 2.0, font * 1.6);
            picture.text(Text::new(title, at, font * 1.15, Anchor::Middle), BLACK);
        }
    }

    /// Returns the legend with its place inside the figure, if it is to be there.
    fn inside(&self, layout: &Layout) -> Option<(Block, (f64, f64))> {
        let font = self.font_size;
        if self.place == Place::Outside {
            return None;
        }
        if let Some(vacant) = &layout.vacant {
            let block = self.block(vacant.width(), Some(1));
            if block.height <= vacant.height() {
                let x = vacant.left + (vacant.width() - block.width) / 2.0;
                let y = vacant.top + (vacant.height() - block.height) / 2.0;
                return Some((block, (x, y)));
            }
        }
        if self.panels.len() > 1 && self.place == Place::Auto {
            return None;
        }
        let mut fallback = None;
        for (panel, frame) in self.panels.iter().zip(&layout.frames) {
            let block = self.block(frame.width() * 0.7, Some(1));
            let margin = font * 0.5;
            let (right, left) = (frame.right - margin - block.width, frame.left + margin);
            let (low, high) = (frame.bottom - margin - block.height, frame.top + margin);
            let is_free = |(x, y): (f64, f64)| {
                let corner = Rect {
                    left: x - margin / 2.0,
                    top: y - margin / 2.0,
                    right: x + block.width + margin / 2.0,
                    bottom: y + block.height + margin / 2.0,
                };
                let shapes = panel.shapes(frame);
                low >= high && !shapes.iter().any(|(area, line)| overlaps(&corner, area, line))
            };
            let corners = [(right, low), (left, high), (left, low), (right, high)];
            if let Some(free) = corners.into_iter().find(|at| is_free(*at)) {
                return Some((block, free));
            }
            fallback.get_or_insert((block, (right, low)));
        }
        fallback.filter(|_| self.place == Place::Inside)
    }

    /// Lays the legend out in at most this width, in columns as fit or in this number of them.
    fn block(&self, most: f64, columns: Option<usize>) -> Block {
        let font = self.font_size;
        let (swatch, gap) = (font * 2.3, font * 1.4);
        let natural = self.legend.iter().map(|(_, name)| swatch + text_width(name, font));
        let cell = natural.fold(0.0, f64::max).min(most);
        let fit =
            (((most + gap) / (cell + gap) + 1e-9) as usize).clamp(1, self.legend.len().max(1));
        let columns = columns.unwrap_or(fit);
        let (mut entries, mut y) = (Vec::new(), 0.0);
        for row in self.legend.chunks(columns) {
            let mut lines = 1;
            for (k, (_, name)) in row.iter().enumerate() {
                let text = wrapped(name, cell - swatch, font);
                lines = lines.max(text.len());
                entries.push(((k as f64 * (cell + gap), y), text));
            }
            y += lines as f64 * font * 1.35;
        }
        let count = columns.min(self.legend.len()) as f64;
        Block { width: count * (cell + gap) - gap, height: y, entries }
    }

    fn draw_legend(&self, picture: &mut Picture, block: &Block, (left, top): (f64, f64)) {
        let font = self.font_size;
        for ((style, _), ((x, y), lines)) in self.legend.iter().zip(&block.entries) {
            let (x, y) = (left + x, top + y);
            let middle = y + font * 0.68;
            match style {
                Some(style) => {
                    let line = vec![(x, middle), (x + font * 1.8, middle)];
                    picture.line(line, style.stroke());
                }
                None => {
                    let band = Rect {
                        left: x,
                        top: middle - font * 0.35,
                        right: x + font * 1.8,
                        bottom: middle + font * 0.35,
                    };
                    let gray = Color::opaque([90, 90, 90]);
                    picture.rectangle(&band, gray.with_alpha(0.25));
                    let line = vec![(x, middle), (x + font * 1.8, middle)];
                    picture.line(line, Stroke::solid(gray, 1.8));
                }
            }
            for (k, line) in lines.iter().enumerate() {
                let at = (x + font * 2.3, middle + font * (0.36 + 1.35 * k as f64));
                picture.text(Text::new(line, at, font, Anchor::Start), BLACK);
            }
        }
    }
}

/// Returns the words of a text in lines of at most this width; a longer word has a line of its own,
/// and words in parentheses stay together.
fn wrapped(text: &str, most: f64, font_size: f64) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match words.last_mut().filter(|last| last.starts_with('(') && !last.ends_with(')')) {
            Some(open) => *open = format!("{open} {word}"),
            None => words.push(word.to_string()),
        }
    }
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        let longer = lines.last().map(|line| format!("{line} {word}"));
        match longer.filter(|line| text_width(line, font_size) <= most + 1e-6) {
            Some(longer) => *lines.last_mut().expect("there is a line") = longer,
            None => lines.push(word),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::axes::{Axis, Curve, Scale};
    use super::super::bands::Point;
    use super::*;

    fn figure(curves: &[fn(f64) -> f64], names: &[&str], panels: usize) -> Figure {
        let band = |value: fn(f64) -> f64| {
            let point = |k: i32| {
                let (x, y) = (f64::from(k), value(f64::from(k) / 50.0));
                Point { x, y, low: y - 0.05, high: y + 0.05 }
            };
            Curve { style: Style::of(0), band: (0..=50).map(point).collect() }
        };
        let panel = Panel {
            title: Some("CartPole-v1".into()),
            x: Axis::new(Scale::Linear, 0.0, 50.0),
            y: Axis::new(Scale::Linear, 0.0, 1.0).with_margin(0.1),
            curves: curves.iter().map(|value| band(*value)).collect(),
        };
        Figure {
            panels: vec![panel; panels],
            title: None,
            x_label: "timesteps".into(),
            y_label: "episodic return".into(),
            legend: names.iter().map(|name| (Some(Style::of(0)), (*name).to_string())).collect(),
            place: Place::Auto,
            width: None,
            columns: None,
            font_size: 14.0,
        }
    }

    #[test]
    fn a_legend_is_inside_where_it_hides_no_curve_and_below_otherwise() {
        let inside = |figure: &Figure| {
            let layout = figure.layout(480.0);
            let (_, (x, y)) = figure.inside(&layout)?;
            let frame = layout.frames[0];
            let right = x > (frame.left + frame.right) / 2.0 - 60.0;
            Some((right, y > (frame.top + frame.bottom) / 2.0))
        };
        // Rising curves leave the lower right corner, falling ones the lower left.
        assert_eq!(inside(&figure(&[|x| x], &["ppo"], 1)), Some((true, true)));
        assert_eq!(inside(&figure(&[|x| 1.0 - x], &["ppo"], 1)), Some((false, true)));
        let crossed = figure(&[|x| x, |x| 1.0 - x], &["ppo", "dqn", "sac", "a long name of it"], 1);
        assert_eq!(inside(&crossed), None);
        let below = crossed.picture();
        let none = Figure { place: Place::None, ..crossed.clone() }.picture();
        assert!(below != none && inside(&Figure { place: Place::Inside, ..crossed }).is_some());
    }

    #[test]
    fn panels_fill_the_width_in_even_rows() {
        for (panels, width, expected) in [
            (1, 480.0, 1),
            (2, 960.0, 2),
            (4, 960.0, 4),
            (5, 960.0, 3),
            (8, 600.0, 2),
            (3, 100.0, 1),
        ] {
            let figure = figure(&[|x| x], &["ppo"], panels);
            assert_eq!(figure.columns(width), expected, "{panels} in {width}");
            let layout = figure.layout(width);
            let inside = |frame: &Rect| frame.left > 0.0 && frame.right < width;
            assert!(layout.frames.iter().all(|frame| width < 200.0 || inside(frame)));
            let rows: Vec<&[Rect]> = layout.frames.chunks(expected).collect();
            for pair in rows.windows(2) {
                assert!(pair[1][0].top > pair[0][0].bottom + 2.0 * figure.font_size);
            }
        }
        assert_eq!(Figure { columns: Some(2), ..figure(&[|x| x], &["a"], 4) }.columns(960.0), 2);
    }

    #[test]
    fn long_names_are_in_several_lines() {
        let width = text_width("ppo --gamma 0.9", 14.0);
        let lines = wrapped("ppo --gamma 0.9 --num-envs 4 (3 seeds)", width, 14.0);
        assert_eq!(lines, ["ppo --gamma 0.9", "--num-envs 4", "(3 seeds)"]);
        assert_eq!(wrapped("word", 1.0, 14.0), ["word"]);
    }
}
