//! Pictures as .png, a pixel of the picture as one pixel.

use zeno::{Command, Mask, Point, Stroke as Outline, Style};

use super::font::{self, Step};
use super::{Color, Mark, Picture, Pixel};

pub fn bytes(picture: &Picture) -> Vec<u8> {
    let mut canvas = Canvas::new(picture.width as usize, picture.height as usize);
    for mark in &picture.marks {
        match mark {
            Mark::Line(points, stroke) => {
                let dashes = stroke.dash.map(|dash| dash.map(|x| x as f32));
                let mut outline = Outline::new(stroke.width as f32);
                outline.join(zeno::Join::Round).cap(zeno::Cap::Butt);
                if let Some(dashes) = &dashes {
                    outline.dash(dashes, 0.0);
                }
                canvas.fill(&path(points, false), outline, stroke.color);
            }
            Mark::Area(points, color) => {
                canvas.fill(&path(points, true), zeno::Fill::NonZero, *color);
            }
            Mark::Text(text, color) => {
                let scale = (text.size / font::units()) as f32;
                let start = text.start();
                let (x0, y0) = (start.0 as f32, start.1 as f32);
                for (letter, place) in font::letters(&text.text) {
                    let at = |x: f32, y: f32| {
                        let (along, above) = ((x + place as f32) * scale, y * scale);
                        match text.upward {
                            true => Point::new(x0 - above, y0 - along),
                            false => Point::new(x0 + along, y0 - above),
                        }
                    };
                    let step = |step: &Step| match *step {
                        Step::Move(x, y) => Command::MoveTo(at(x, y)),
                        Step::Line(x, y) => Command::LineTo(at(x, y)),
                        Step::Quad(cx, cy, x, y) => Command::QuadTo(at(cx, cy), at(x, y)),
                        Step::Close => Command::Close,
                    };
                    let outline: Vec<Command> = font::outline(letter).iter().map(step).collect();
                    canvas.fill(&outline, zeno::Fill::NonZero, *color);
                }
            }
        }
    }
    canvas.encode()
}

fn path(points: &[Pixel], close: bool) -> Vec<Command> {
    let point = |(x, y): &Pixel| Point::new(*x as f32, *y as f32);
    let mut path: Vec<Command> = points.iter().map(|at| Command::LineTo(point(at))).collect();
    if let (Some(first), Some(at)) = (path.first_mut(), points.first()) {
        *first = Command::MoveTo(point(at));
    }
    path.extend(close.then_some(Command::Close));
    path
}

/// Pixels in red, green and blue, row by row.
struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Canvas {
    fn new(width: usize, height: usize) -> Canvas {
        Canvas { width, height, pixels: vec![255; 3 * width * height] }
    }

    fn fill<'a>(&mut self, path: &[Command], style: impl Into<Style<'a>>, color: Color) {
        let (mask, place) = Mask::new(path).style(style).render();
        for (row, line) in mask.chunks(place.width.max(1) as usize).enumerate() {
            for (column, coverage) in line.iter().enumerate().filter(|(_, x)| **x > 0) {
                let (x, y) = (place.left + column as i32, place.top + row as i32);
                let inside = 0 <= x && (x as usize) < self.width && 0 <= y;
                if !inside || y as usize >= self.height {
                    continue;
                }
                let at = 3 * (y as usize * self.width + x as usize);
                let alpha = color.alpha * f64::from(*coverage) / 255.0;
                for (old, new) in self.pixels[at..at + 3].iter_mut().zip(color.rgb) {
                    let mixed = f64::from(new) * alpha + f64::from(*old) * (1.0 - alpha);
                    *old = mixed.round() as u8;
                }
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let written = encoder.write_header().and_then(|mut writer| {
            writer.write_image_data(&self.pixels)?;
            writer.finish()
        });
        written.expect("memory can be written, and there is a pixel or more");
        bytes
    }
}
