//! Small images of lines and dots in world coordinates, with which the environments are rendered.

use crate::envs::env::Frame;

const WIDTH: usize = 304;
const HEIGHT: usize = 208;

/// Image centered on a point of the world, y upward.
pub(super) struct Canvas {
    frame: Frame,
    middle: (f64, f64),
    /// Number of pixels per unit of the world.
    scale: f64,
}

impl Canvas {
    /// Makes a white image that is `width` units of the world wide and centered on `middle`.
    pub(super) fn new(middle: (f64, f64), width: f64, fps: u32) -> Canvas {
        let rgb = vec![255; WIDTH * HEIGHT * 3];
        let scale = WIDTH as f64 / width;
        Canvas { frame: Frame { height: HEIGHT, width: WIDTH, fps, rgb }, middle, scale }
    }

    /// Draws a line from `a` to `b` with round ends, `thick` units wide.
    pub(super) fn line(&mut self, a: (f64, f64), b: (f64, f64), thick: f64, color: [u8; 3]) {
        let along = (b.0 - a.0, b.1 - a.1);
        let length = along.0 * along.0 + along.1 * along.1;
        self.fill(color, |x, y| {
            let part = ((x - a.0) * along.0 + (y - a.1) * along.1) / length.max(1e-12);
            let part = part.clamp(0.0, 1.0);
            let (dx, dy) = (x - a.0 - part * along.0, y - a.1 - part * along.1);
            dx * dx + dy * dy <= thick * thick / 4.0
        });
    }

    /// Draws a filled circle.
    pub(super) fn dot(&mut self, middle: (f64, f64), radius: f64, color: [u8; 3]) {
        self.line(middle, middle, 2.0 * radius, color);
    }

    /// Draws a filled box with sides along the axes.
    pub(super) fn block(&mut self, from: (f64, f64), to: (f64, f64), color: [u8; 3]) {
        self.fill(color, |x, y| x >= from.0 && x <= to.0 && y >= from.1 && y <= to.1);
    }

    /// Fills everything on or under the curve `y(x)`.
    pub(super) fn under(&mut self, curve: impl Fn(f64) -> f64, color: [u8; 3]) {
        self.fill(color, |x, y| y <= curve(x));
    }

    pub(super) fn frame(self) -> Frame {
        self.frame
    }

    fn fill(&mut self, color: [u8; 3], inside: impl Fn(f64, f64) -> bool) {
        for (i, pixel) in self.frame.rgb.chunks_exact_mut(3).enumerate() {
            let (column, row) = ((i % WIDTH) as f64 + 0.5, (i / WIDTH) as f64 + 0.5);
            let x = self.middle.0 + (column - WIDTH as f64 / 2.0) / self.scale;
            let y = self.middle.1 - (row - HEIGHT as f64 / 2.0) / self.scale;
            if inside(x, y) {
                pixel.copy_from_slice(&color);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_lie_where_they_belong() {
        let mut canvas = Canvas::new((1.0, 2.0), 4.0, 30);
        canvas.dot((1.0, 2.0), 0.2, [1, 2, 3]);
        canvas.block((2.5, 2.0), (3.0, 3.0), [9, 9, 9]);
        let frame = canvas.frame();
        let at = |column: usize, row: usize| frame.rgb[3 * (row * WIDTH + column)];
        assert_eq!(at(WIDTH / 2, HEIGHT / 2), 1);
        assert_eq!(at(WIDTH / 2 + 20, HEIGHT / 2), 255);
        assert_eq!(at(WIDTH - 1, HEIGHT / 2 - 1), 9);
        assert_eq!(at(WIDTH - 1, HEIGHT / 2 + 1), 255);
    }

    #[test]
    fn every_task_draws_itself() {
        for (id, make) in super::super::ENVS {
            let mut env = make(id).unwrap();
            let frame = env.render().unwrap();
            assert_eq!(frame.rgb.len(), frame.width * frame.height * 3, "{id}");
            let drawn = frame.rgb.chunks_exact(3).filter(|pixel| *pixel != [255; 3]).count();
            assert!(drawn > 500, "{id} drew {drawn} pixels");
        }
    }
}
