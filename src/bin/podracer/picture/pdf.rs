//! Pictures as .pdf, version 1.4: one page of the picture's size. Each letter's outline is there once,
//! as a form that texts draw; there is no font.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::font::{self, Step};
use super::{Color, Mark, Picture, Pixel, short};

/// Points of 1/72 inch in a pixel of 1/96.
const POINTS: f64 = 0.75;

pub fn bytes(picture: &Picture) -> Vec<u8> {
    let mut letters: BTreeMap<u16, String> = BTreeMap::new();
    let mut alphas: BTreeMap<String, String> = BTreeMap::new();
    // The page is measured from below.
    let mut page = format!("{POINTS} 0 0 -{POINTS} 0 {} cm\n", short(picture.height * POINTS));
    page.push_str("1 j\n");
    let mut opacity = |color: Color| {
        let alpha = short(color.alpha);
        let name = format!("A{}", alpha.replace('.', "_"));
        alphas.insert(name.clone(), format!("<< /ca {alpha} /CA {alpha} >>"));
        format!("/{name} gs\n")
    };
    for mark in &picture.marks {
        match mark {
            Mark::Line(points, stroke) => {
                let dash = stroke
                    .dash
                    .map_or(String::new(), |[dash, gap]| format!("{} {}", short(dash), short(gap)));
                page.push_str(&opacity(stroke.color));
                let _ = writeln!(
                    page,
                    "{} RG {} w [{dash}] 0 d {}S",
                    rgb(stroke.color),
                    short(stroke.width),
                    path(points)
                );
            }
            Mark::Area(points, fill) => {
                page.push_str(&opacity(*fill));
                let _ = writeln!(page, "{} rg {}h f", rgb(*fill), path(points));
            }
            Mark::Text(text, fill) => {
                page.push_str(&opacity(*fill));
                let scale = text.size / font::units();
                let (x, y) = text.start();
                let (along, across) = if text.upward { (0.0, -scale) } else { (scale, 0.0) };
                let _ = writeln!(page, "{} rg", rgb(*fill));
                for (letter, place) in font::letters(&text.text) {
                    letters.entry(letter).or_insert_with(|| outline(letter));
                    // Letters are upright on a page whose y points down.
                    let _ = writeln!(
                        page,
                        "q {along:.5} {across:.5} {across:.5} -{along:.5} {} {} cm /G{letter} Do Q",
                        short(x + along * place),
                        short(y + across * place)
                    );
                }
            }
        }
    }
    document(picture, &page, &letters, &alphas)
}

fn document(
    picture: &Picture,
    page: &str,
    letters: &BTreeMap<u16, String>,
    alphas: &BTreeMap<String, String>,
) -> Vec<u8> {
    let stream = |head: &str, text: &str| {
        format!("<< {head}/Length {} >>\nstream\n{text}\nendstream", text.len())
    };
    let forms: String =
        letters.keys().zip(5..).map(|(letter, k)| format!("/G{letter} {k} 0 R ")).collect();
    let states: String = alphas.iter().map(|(name, state)| format!("/{name} {state} ")).collect();
    let size = [picture.width, picture.height].map(|x| short(x * POINTS));
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_string(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_string(),
        format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {} {}] /Contents 4 0 R /Resources << \
             /XObject << {forms}>> /ExtGState << {states}>> >> >>",
            size[0], size[1]
        ),
        stream("", page),
    ];
    // Letters of this font are within two sizes of its origin.
    let reach = 2.0 * font::units();
    let head = format!(
        "/Type /XObject /Subtype /Form /BBox [-{reach} -{reach} {reach} {reach}] /Resources << >> "
    );
    objects.extend(letters.values().map(|outline| stream(&head, outline)));
    let mut text = "%PDF-1.4\n".to_string();
    let mut places = Vec::new();
    for (object, k) in objects.iter().zip(1..) {
        places.push(text.len());
        let _ = write!(text, "{k} 0 obj\n{object}\nendobj\n");
    }
    let start = text.len();
    let count = objects.len() + 1;
    let _ = write!(text, "xref\n0 {count}\n0000000000 65535 f \n");
    for place in places {
        let _ = writeln!(text, "{place:010} 00000 n ");
    }
    let _ = write!(text, "trailer\n<< /Size {count} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n");
    text.into_bytes()
}

fn outline(letter: u16) -> String {
    let mut text = String::new();
    let mut from = (0.0, 0.0);
    for step in font::outline(letter) {
        match step {
            Step::Move(x, y) => {
                let _ = write!(text, "{x} {y} m ");
                from = (x, y);
            }
            Step::Line(x, y) => {
                let _ = write!(text, "{x} {y} l ");
                from = (x, y);
            }
            // The same curve with two control points.
            Step::Quad(cx, cy, x, y) => {
                let control = |end: f32, middle: f32| short(f64::from(end + 2.0 * middle) / 3.0);
                let _ = write!(
                    text,
                    "{} {} {} {} {x} {y} c ",
                    control(from.0, cx),
                    control(from.1, cy),
                    control(x, cx),
                    control(y, cy)
                );
                from = (x, y);
            }
            Step::Close => text.push_str("h "),
        }
    }
    text + "f"
}

fn path(points: &[Pixel]) -> String {
    let mut text = String::new();
    for (k, (x, y)) in points.iter().enumerate() {
        let _ = write!(text, "{} {} {} ", short(*x), short(*y), if k == 0 { 'm' } else { 'l' });
    }
    text
}

fn rgb(color: Color) -> String {
    color.rgb.map(|part| format!("{:.3}", f64::from(part) / 255.0)).join(" ")
}
