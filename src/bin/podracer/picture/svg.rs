//! Pictures as .svg. Each letter's outline is there once; a text has its words as its label.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::font::{self, Step};
use super::{Color, Mark, Picture, Pixel, short};

pub fn text(picture: &Picture) -> String {
    let (width, height) = (short(picture.width), short(picture.height));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\">\n<rect width=\"{width}\" height=\"{height}\" \
         fill=\"#fff\"/>\n<defs>\n"
    );
    let mut seen = BTreeSet::new();
    for mark in &picture.marks {
        let Mark::Text(text, _) = mark else { continue };
        for (letter, _) in font::letters(&text.text) {
            if seen.insert(letter) {
                let _ = writeln!(out, "<path id=\"g{letter}\" d=\"{}\"/>", outline(letter));
            }
        }
    }
    out.push_str("</defs>\n");
    for mark in &picture.marks {
        match mark {
            Mark::Line(points, stroke) => {
                let dash = stroke.dash.map_or(String::new(), |[dash, gap]| {
                    format!(" stroke-dasharray=\"{} {}\"", short(dash), short(gap))
                });
                let _ = writeln!(
                    out,
                    "<path d=\"{}\" fill=\"none\" stroke{} stroke-width=\"{}\" \
                     stroke-linejoin=\"round\"{dash}/>",
                    path(points),
                    color(stroke.color, "stroke"),
                    short(stroke.width)
                );
            }
            Mark::Area(points, fill) => {
                let fill = color(*fill, "fill");
                let _ = writeln!(out, "<path d=\"{}Z\" fill{fill}/>", path(points));
            }
            Mark::Text(text, fill) => {
                let (x, y) = text.start();
                let rotation = if text.upward { " rotate(-90)" } else { "" };
                let scale = text.size / font::units();
                let _ = write!(
                    out,
                    "<g aria-label=\"{}\" fill{} transform=\"translate({} {}){rotation} \
                     scale({scale:.5} -{scale:.5})\">",
                    escaped(&text.text),
                    color(*fill, "fill"),
                    short(x),
                    short(y)
                );
                for (letter, x) in font::letters(&text.text) {
                    let _ = write!(out, "<use href=\"#g{letter}\" x=\"{}\"/>", short(x));
                }
                out.push_str("</g>\n");
            }
        }
    }
    out + "</svg>\n"
}

fn outline(letter: u16) -> String {
    let step = |step: &Step| match step {
        Step::Move(x, y) => format!("M{x} {y}"),
        Step::Line(x, y) => format!("L{x} {y}"),
        Step::Quad(cx, cy, x, y) => format!("Q{cx} {cy} {x} {y}"),
        Step::Close => "Z".to_string(),
    };
    font::outline(letter).iter().map(step).collect()
}

fn path(points: &[Pixel]) -> String {
    let mut text = String::new();
    for (k, (x, y)) in points.iter().enumerate() {
        let _ = write!(text, "{}{} {}", if k == 0 { 'M' } else { 'L' }, short(*x), short(*y));
    }
    text
}

/// Returns the value of a color's attribute, and the attribute of its opacity.
fn color(color: Color, attribute: &str) -> String {
    let [r, g, b] = color.rgb;
    let opacity = match color.alpha {
        1.0 => String::new(),
        alpha => format!(" {attribute}-opacity=\"{}\"", short(alpha)),
    };
    format!("=\"#{r:02x}{g:02x}{b:02x}\"{opacity}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
