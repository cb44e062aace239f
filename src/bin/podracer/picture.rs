//! Pictures of lines, areas and letters, written as .svg, .pdf or .png. The three look the same:
//! letters are outlines of a font that is part of the program, so that no font of the reader's
//! machine takes part, and a .pdf has no font that a publisher would have to find in it.

mod font;
mod pdf;
mod png;
mod svg;

use std::fs;
use std::path::Path;

use podracer::error::{Error, Result};

pub use font::width as text_width;

/// Point in pixels of 1/96 inch from the upper left corner.
pub type Pixel = (f64, f64);

/// Color with its opacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Color {
    pub rgb: [u8; 3],
    pub alpha: f64,
}

impl Color {
    pub const fn opaque(rgb: [u8; 3]) -> Color {
        Color { rgb, alpha: 1.0 }
    }

    pub fn with_alpha(self, alpha: f64) -> Color {
        Color { alpha, ..self }
    }
}

pub const BLACK: Color = Color::opaque([38, 38, 38]);
pub const LIGHT: Color = Color::opaque([226, 226, 226]);
pub const WHITE: Color = Color::opaque([255, 255, 255]);

/// Rectangle with its limits in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rect {
    pub left: f64,
    pub top: f64,
    pub right: f64,
    pub bottom: f64,
}

impl Rect {
    pub fn width(&self) -> f64 {
        self.right - self.left
    }

    pub fn height(&self) -> f64 {
        self.bottom - self.top
    }

    fn corners(&self) -> Vec<Pixel> {
        let Rect { left, top, right, bottom } = *self;
        vec![(left, top), (right, top), (right, bottom), (left, bottom)]
    }
}

/// Part of a text that is at its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Text on a baseline that starts, ends or has its middle at a point.
#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    pub text: String,
    pub at: Pixel,
    pub size: f64,
    pub anchor: Anchor,
    /// True for text that is read from below to above.
    pub upward: bool,
}

impl Text {
    pub fn new(text: impl Into<String>, at: Pixel, size: f64, anchor: Anchor) -> Text {
        Text { text: text.into(), at, size, anchor, upward: false }
    }

    /// Returns the point at which the first letter starts.
    fn start(&self) -> Pixel {
        let width = text_width(&self.text, self.size);
        let before = match self.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => width / 2.0,
            Anchor::End => width,
        };
        match self.upward {
            true => (self.at.0, self.at.1 + before),
            false => (self.at.0 - before, self.at.1),
        }
    }
}

/// Line with its width; dashes and gaps alternate if there are any.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stroke {
    pub color: Color,
    pub width: f64,
    pub dash: Option<[f64; 2]>,
}

impl Stroke {
    pub fn solid(color: Color, width: f64) -> Stroke {
        Stroke { color, width, dash: None }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Mark {
    Line(Vec<Pixel>, Stroke),
    Area(Vec<Pixel>, Color),
    Text(Text, Color),
}

/// Marks in the order in which they are drawn, on white.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    width: f64,
    height: f64,
    marks: Vec<Mark>,
}

impl Picture {
    pub fn new(width: f64, height: f64) -> Picture {
        Picture { width: width.round(), height: height.round(), marks: Vec::new() }
    }

    /// Draws a line through points.
    pub fn line(&mut self, points: Vec<Pixel>, stroke: Stroke) {
        self.marks.push(Mark::Line(points, stroke));
    }

    /// Draws the parts of a line that are within a rectangle.
    pub fn line_within(&mut self, rect: &Rect, points: &[Pixel], stroke: Stroke) {
        for part in clipped_line(points, rect) {
            self.line(part, stroke);
        }
    }

    /// Fills the part of a polygon that is within a rectangle.
    pub fn area_within(&mut self, rect: &Rect, points: &[Pixel], color: Color) {
        let points = clipped_polygon(points, rect);
        if points.len() > 2 {
            self.marks.push(Mark::Area(points, color));
        }
    }

    pub fn rectangle(&mut self, rect: &Rect, color: Color) {
        self.marks.push(Mark::Area(rect.corners(), color));
    }

    pub fn text(&mut self, text: Text, color: Color) {
        self.marks.push(Mark::Text(text, color));
    }

    /// Writes the picture in the format of the file's extension.
    ///
    /// # Errors
    /// Returns the errors of [`ensure_known`], and [`Error::Io`] if the file cannot be written.
    pub fn write(&self, out: &Path) -> Result<()> {
        ensure_known(out)?;
        let bytes = match out.extension().and_then(|x| x.to_str()) {
            Some("png") => png::bytes(self),
            Some("pdf") => pdf::bytes(self),
            _ => svg::text(self).into_bytes(),
        };
        fs::write(out, bytes).map_err(Error::io("cannot write", out))
    }
}

/// Checks that the extension of a file name is that of a format.
///
/// # Errors
/// [`Error::Argument`] for others.
pub fn ensure_known(out: &Path) -> Result<()> {
    match out.extension().and_then(|x| x.to_str()) {
        Some("svg" | "pdf" | "png") => Ok(()),
        _ => Err(Error::Argument(format!(
            "--out {}: figures are written as .svg, .pdf or .png",
            out.display()
        ))),
    }
}

/// Returns the parts of a line that are within a rectangle (Liang and Barsky 1984).
fn clipped_line(points: &[Pixel], rect: &Rect) -> Vec<Vec<Pixel>> {
    let mut parts: Vec<Vec<Pixel>> = Vec::new();
    for pair in points.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let (mut enter, mut leave) = (0.0f64, 1.0f64);
        for (p, q) in [
            (-dx, from.0 - rect.left),
            (dx, rect.right - from.0),
            (-dy, from.1 - rect.top),
            (dy, rect.bottom - from.1),
        ] {
            match p {
                0.0 if q < 0.0 => leave = -1.0,
                0.0 => {}
                p if p < 0.0 => enter = enter.max(q / p),
                p => leave = leave.min(q / p),
            }
        }
        if enter > leave {
            continue;
        }
        let at = |t: f64| (from.0 + t * dx, from.1 + t * dy);
        match parts.last_mut() {
            Some(part) if enter == 0.0 && part.last() == Some(&from) => part.push(at(leave)),
            _ => parts.push(vec![at(enter), at(leave)]),
        }
    }
    parts
}

/// Returns the part of a polygon within a rectangle (Sutherland and Hodgman 1974).
fn clipped_polygon(points: &[Pixel], rect: &Rect) -> Vec<Pixel> {
    // Each edge as the distance of a point from it, positive on its inner side.
    let edges: [&dyn Fn(Pixel) -> f64; 4] =
        [&|p| p.0 - rect.left, &|p| rect.right - p.0, &|p| p.1 - rect.top, &|p| rect.bottom - p.1];
    let mut points = points.to_vec();
    for inside in edges {
        let mut kept = Vec::new();
        for (k, &to) in points.iter().enumerate() {
            let from = points[(k + points.len() - 1) % points.len()];
            let (before, after) = (inside(from), inside(to));
            if (before < 0.0) != (after < 0.0) {
                let t = before / (before - after);
                kept.push((from.0 + t * (to.0 - from.0), from.1 + t * (to.1 - from.1)));
            }
            if after >= 0.0 {
                kept.push(to);
            }
        }
        points = kept;
    }
    points
}

/// Returns true if a rectangle has a part of an area or of a line.
pub fn overlaps(rect: &Rect, area: &[Pixel], line: &[Pixel]) -> bool {
    clipped_polygon(area, rect).len() > 2 || !clipped_line(line, rect).is_empty()
}

/// Formats a coordinate with two decimals at most.
fn short(x: f64) -> String {
    let text = format!("{x:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOX: Rect = Rect { left: 0.0, top: 0.0, right: 10.0, bottom: 10.0 };

    /// A half transparent square, a dashed line and texts of both directions.
    fn sketch() -> Picture {
        let mut picture = Picture::new(120.0, 100.0);
        let square = Rect { left: 10.0, top: 10.0, right: 30.0, bottom: 30.0 };
        picture.rectangle(&square, Color::opaque([255, 0, 0]).with_alpha(0.5));
        picture.text(Text::new("Level", (40.0, 20.0), 16.0, Anchor::Start), BLACK);
        let up = Text::new("Up", (26.0, 90.0), 16.0, Anchor::Start);
        picture.text(Text { upward: true, ..up }, BLACK);
        let stroke = Stroke { dash: Some([6.0, 4.0]), ..Stroke::solid(BLACK, 2.0) };
        picture.line(vec![(40.0, 60.0), (100.0, 60.0)], stroke);
        picture
    }

    #[test]
    fn pixels_hold_what_was_drawn() {
        let bytes = png::bytes(&sketch());
        let mut reader = ::png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height, info.color_type), (120, 100, ::png::ColorType::Rgb));
        let at = |x: usize, y: usize| [0, 1, 2].map(|k| pixels[3 * (120 * y + x) + k]);
        assert_eq!(at(20, 20), [255, 128, 128]);
        assert_eq!(at(110, 50), [255; 3]);
        let ink = |from: (usize, usize), to: (usize, usize)| {
            let places = (from.1..to.1).flat_map(|y| (from.0..to.0).map(move |x| (x, y)));
            places.filter(|(x, y)| at(*x, *y)[1] < 128).count()
        };
        let width = text_width("Level", 16.0).ceil() as usize;
        let (level, upright) = (ink((40, 6), (41 + width, 22)), ink((10, 60), (30, 91)));
        assert!((40..300).contains(&level) && (15..150).contains(&upright), "{level} {upright}");
        // Six dashes of six by two pixels, and nothing right of the text or below it.
        assert_eq!(ink((40, 55), (120, 65)), 72);
        assert_eq!(ink((42 + width, 0), (120, 55)) + ink((40, 66), (120, 100)), 0);
    }

    #[test]
    fn the_name_says_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        for (name, start) in [("a.svg", &b"<svg"[..]), ("a.pdf", b"%PDF-1."), ("a.png", b"\x89PNG")]
        {
            let out = folder.path().join(name);
            sketch().write(&out).unwrap();
            assert!(fs::read(&out).unwrap().starts_with(start), "{name}");
        }
        let error = sketch().write(Path::new("a.jpg")).unwrap_err().to_string();
        assert!(error.contains(".svg, .pdf or .png"), "{error}");
        let nowhere = sketch().write(&folder.path().join("none/a.png")).unwrap_err();
        assert!(nowhere.to_string().contains("No such file"), "{nowhere}");
    }

    #[test]
    fn lines_and_areas_end_at_the_rectangle() {
        let line = [(-10.0, 5.0), (5.0, 5.0), (5.0, 20.0), (8.0, 20.0), (8.0, 0.0)];
        let parts = clipped_line(&line, &BOX);
        let expected = [vec![(0.0, 5.0), (5.0, 5.0), (5.0, 10.0)], vec![(8.0, 10.0), (8.0, 0.0)]];
        assert_eq!(parts, expected);
        assert!(clipped_line(&[(-5.0, -5.0), (-1.0, 50.0)], &BOX).is_empty());
        let half = clipped_polygon(&[(5.0, -1e6), (20.0, -1e6), (20.0, 1e6), (5.0, 1e6)], &BOX);
        let area = |points: &[Pixel]| -> f64 {
            let next = points.iter().cycle().skip(1);
            points.iter().zip(next).map(|(a, b)| a.0 * b.1 - b.0 * a.1).sum::<f64>() / 2.0
        };
        assert!((area(&half) - 50.0).abs() < 1e-6, "{half:?}");
    }

    /// The cross references of a .pdf are the places of its objects, and its streams have the lengths
    /// that they state.
    #[test]
    fn references_of_a_pdf_point_to_its_objects() {
        let bytes = pdf::bytes(&sketch());
        let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        let start: usize = text.lines().rev().nth(1).unwrap().parse().unwrap();
        assert!(text[start..].starts_with("xref\n0 "));
        let rows = text[start..].lines().filter(|line| line.ends_with(" 00000 n "));
        let places: Vec<usize> = rows.map(|row| row[..10].parse().unwrap()).collect();
        assert!(places.len() > 5);
        for (k, place) in places.iter().enumerate() {
            let object = &text[*place..];
            assert!(object.starts_with(&format!("{} 0 obj\n", k + 1)), "{k}");
            if let Some((head, stream)) =
                object[..object.find("endobj").unwrap()].split_once("stream\n")
            {
                let (_, length) = head.split_once("/Length ").unwrap();
                let length: usize = length.split(' ').next().unwrap().parse().unwrap();
                assert_eq!(&stream[length..], "\nendstream\n");
            }
        }
        // 120 by 100 pixels are 90 by 75 points.
        assert!(text.contains("/MediaBox [0 0 90 75]"), "{text}");
    }
}
