//! Letters as outlines, from the font Noto Sans.

use std::sync::LazyLock;

use ttf_parser::{Face, GlyphId, OutlineBuilder};

static FACE: LazyLock<Face<'static>> = LazyLock::new(|| {
    Face::parse(ttf_noto_sans::REGULAR, 0).expect("the font is part of the program")
});

/// Step of an outline, in units of the font, upwards from the baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    Move(f32, f32),
    Line(f32, f32),
    /// Quadratic curve: control point, end.
    Quad(f32, f32, f32, f32),
    Close,
}

/// Units of the font in the size of a letter.
pub fn units() -> f64 {
    f64::from(FACE.units_per_em())
}

/// Returns the number of a letter's outline; letters that the font lacks have its box.
fn glyph(letter: char) -> GlyphId {
    FACE.glyph_index(letter).unwrap_or(GlyphId(0))
}

fn advance(glyph: GlyphId) -> f64 {
    f64::from(FACE.glyph_hor_advance(glyph).unwrap_or(0))
}

/// Returns the width of a text in pixels.
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().map(|letter| advance(glyph(letter))).sum::<f64>() * size / units()
}

/// Returns the letters of a text: number of the outline, and place in units of the font. Letters
/// without an outline, such as spaces, are left out.
pub fn letters(text: &str) -> Vec<(u16, f64)> {
    let mut x = 0.0;
    let mut letters = Vec::new();
    for letter in text.chars() {
        let glyph = glyph(letter);
        if FACE.glyph_bounding_box(glyph).is_some() {
            letters.push((glyph.0, x));
        }
        x += advance(glyph);
    }
    letters
}

/// Returns the outline of a letter.
pub fn outline(letter: u16) -> Vec<Step> {
    let mut steps = Steps(Vec::new());
    FACE.outline_glyph(GlyphId(letter), &mut steps);
    steps.0
}

struct Steps(Vec<Step>);

impl OutlineBuilder for Steps {
    fn move_to(&mut self, x: f32, y: f32) {
        self.0.push(Step::Move(x, y));
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.0.push(Step::Line(x, y));
    }

    fn quad_to(&mut self, cx: f32, cy: f32, x: f32, y: f32) {
        self.0.push(Step::Quad(cx, cy, x, y));
    }

    fn curve_to(&mut self, _: f32, _: f32, cx: f32, cy: f32, x: f32, y: f32) {
        // A TrueType font has quadratic curves alone.
        self.0.push(Step::Quad(cx, cy, x, y));
    }

    fn close(&mut self) {
        self.0.push(Step::Close);
    }
}
