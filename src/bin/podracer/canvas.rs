//! Rendering of charts to .svg or .png, chosen by the file name. A .png needs neither system fonts
//! nor a browser: pixels are drawn here, with a rasterized font that is part of the program.

use std::convert::Infallible;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendTextStyle, DrawingErrorKind};

pub type Problem = Box<dyn std::error::Error>;

/// Chart that can be drawn on any backend.
pub trait Chart {
    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Problem>
    where
        B::ErrorType: 'static;
}

/// Returns true if the extension of the file name is supported.
pub fn known(out: &Path) -> bool {
    out.extension().is_some_and(|x| x == "svg" || x == "png")
}

/// Writes an image of the chart with this width and height.
pub fn write(out: &Path, size: (u32, u32), chart: &impl Chart) -> Result<(), Problem> {
    if out.extension().is_some_and(|x| x == "png") {
        let mut pixels = WHITE_PAPER.repeat((size.0 * size.1) as usize);
        let area = Canvas { size, pixels: &mut pixels }.into_drawing_area();
        chart.draw(&area)?;
        drop(area);
        return encode(out, size, &pixels);
    }
    let area = SVGBackend::new(out, size).into_drawing_area();
    area.fill(&WHITE)?;
    chart.draw(&area)?;
    area.present()?;
    Ok(())
}

fn encode(out: &Path, (width, height): (u32, u32), pixels: &[u8]) -> Result<(), Problem> {
    let mut encoder = png::Encoder::new(BufWriter::new(File::create(out)?), width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(())
}

const WHITE_PAPER: [u8; 3] = [255; 3];
/// All letters have the height of axis labels, whatever size is requested.
const HEIGHT: RasterHeight = RasterHeight::Size16;
const WEIGHT: FontWeight = FontWeight::Regular;

/// Pixels in red, green and blue, row by row.
struct Canvas<'p> {
    size: (u32, u32),
    pixels: &'p mut [u8],
}

impl DrawingBackend for Canvas<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    fn present(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    fn draw_pixel(
        &mut self,
        (x, y): BackendCoord,
        color: BackendColor,
    ) -> Result<(), DrawingErrorKind<Infallible>> {
        let (width, height) = (self.size.0 as i32, self.size.1 as i32);
        if (0..width).contains(&x) && (0..height).contains(&y) {
            let at = 3 * (y * width + x) as usize;
            let (r, g, b) = color.rgb;
            for (old, new) in self.pixels[at..at + 3].iter_mut().zip([r, g, b]) {
                let mixed = f64::from(new) * color.alpha + f64::from(*old) * (1.0 - color.alpha);
                *old = mixed.round() as u8;
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        _: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let width = text.chars().count() * get_raster_width(WEIGHT, HEIGHT);
        Ok((width as u32, HEIGHT.val() as u32))
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        at: BackendCoord,
    ) -> Result<(), DrawingErrorKind<Infallible>> {
        let (width, height) = self.estimate_text_size(text, style)?;
        let left = match style.anchor().h_pos {
            HPos::Left => 0,
            HPos::Center => -(width as i32) / 2,
            HPos::Right => -(width as i32),
        };
        let top = match style.anchor().v_pos {
            VPos::Top => 0,
            VPos::Center => -(height as i32) / 2,
            VPos::Bottom => -(height as i32),
        };
        let mut x = left;
        for letter in text.chars() {
            // A letter that the font lacks is drawn as a gap.
            let Some(raster) =
                get_raster(letter, WEIGHT, HEIGHT).or(get_raster(' ', WEIGHT, HEIGHT))
            else {
                continue;
            };
            for (row, line) in raster.rows().enumerate() {
                for (column, ink) in line.iter().enumerate().filter(|(_, ink)| **ink > 0) {
                    let place = (x + column as i32, top + row as i32);
                    // The text is rotated around its anchor.
                    let (dx, dy) = style.transform().transform(place.0, place.1);
                    let alpha = style.color().alpha * f64::from(*ink) / 255.0;
                    let color = BackendColor { alpha, ..style.color() };
                    self.draw_pixel((at.0 + dx, at.1 + dy), color)?;
                }
            }
            x += raster.width() as i32;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use plotters_backend::FontTransform;

    use super::*;

    /// A filled square, with horizontal and vertical text.
    struct Sketch;

    impl Chart for Sketch {
        fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Problem>
        where
            B::ErrorType: 'static,
        {
            area.draw(&Rectangle::new([(10, 10), (29, 29)], RED.mix(0.5).filled()))?;
            let style = ("sans-serif", 13).into_font();
            area.draw(&Text::new("Level", (40, 4), style.clone()))?;
            area.draw(&Text::new("Up", (10, 90), style.transform(FontTransform::Rotate270)))?;
            Ok(())
        }
    }

    #[test]
    fn pixels_hold_what_was_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("sketch.png");
        write(&out, (120, 100), &Sketch).unwrap();
        let file = std::io::BufReader::new(File::open(&out).unwrap());
        let mut reader = png::Decoder::new(file).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height, info.color_type), (120, 100, png::ColorType::Rgb));
        let at = |x: usize, y: usize| [0, 1, 2].map(|k| pixels[3 * (120 * y + x) + k]);
        // Half transparent red on white.
        assert_eq!(at(20, 20), [255, 128, 128]);
        assert_eq!(at(110, 50), WHITE_PAPER);
        let ink = |from: (usize, usize), to: (usize, usize)| {
            let places = (from.1..to.1).flat_map(|y| (from.0..to.0).map(move |x| (x, y)));
            places.filter(|(x, y)| at(*x, *y)[1] < 128).count()
        };
        // Five letters of seven by sixteen pixels, and two vertical ones.
        let (level, upright) = (ink((40, 4), (75, 20)), ink((10, 70), (26, 91)));
        assert!((40..300).contains(&level) && (15..150).contains(&upright), "{level} {upright}");
        assert_eq!(ink((76, 0), (120, 100)), 0);
    }

    #[test]
    fn the_name_says_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("sketch.svg");
        write(&out, (120, 100), &Sketch).unwrap();
        assert!(std::fs::read_to_string(&out).unwrap().contains("<svg"));
        assert!(known(&out) && known(Path::new("a.png")) && !known(Path::new("a.jpg")));
        let nowhere = write(&folder.path().join("none/a.png"), (120, 100), &Sketch).unwrap_err();
        assert!(nowhere.to_string().contains("No such file"), "{nowhere}");
    }
}
