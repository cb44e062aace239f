//! From the console's screens to one frame of an observation.

use super::ale::Colours;
use super::games::Game;
use super::options::AtariOptions;
use super::resize::Resize;

/// Draws frames of one size, grey or in three planes.
pub(super) struct Picture {
    colours: &'static Colours,
    grey: bool,
    resize: Resize,
    /// One plane of the screen, before it is resized.
    plane: Vec<u8>,
    scratch: Vec<u32>,
}

impl Picture {
    pub(super) fn new(game: &Game, options: &AtariOptions, colours: &'static Colours) -> Picture {
        let from = (game.height, game.width());
        let to = (options.img_height, options.img_width);
        Picture {
            colours,
            grey: options.gray_scale,
            resize: Resize::new(from, to, options.use_inter_area_resize),
            plane: vec![0; from.0 * from.1],
            scratch: Vec::new(),
        }
    }

    /// Bytes of one frame.
    pub(super) fn bytes(&self) -> usize {
        let planes = if self.grey { 1 } else { 3 };
        planes * self.resize.to.0 * self.resize.to.1
    }

    /// Draws the maximum of the screens `before` and `last`, or `last` alone.
    pub(super) fn draw(&mut self, before: Option<&Vec<u8>>, last: &[u8], frame: &mut [u8]) {
        if self.grey {
            let grey = &self.colours.grey;
            self.draw_plane(before, last, frame, |pixel| grey[usize::from(pixel)]);
            return;
        }
        let rgb = &self.colours.rgb;
        let size = self.resize.to.0 * self.resize.to.1;
        for (channel, frame) in frame.chunks_exact_mut(size).enumerate() {
            self.draw_plane(before, last, frame, |pixel| rgb[usize::from(pixel)][channel]);
        }
    }

    fn draw_plane(
        &mut self,
        before: Option<&Vec<u8>>,
        last: &[u8],
        frame: &mut [u8],
        look: impl Fn(u8) -> u8,
    ) {
        let before = before.map_or(last, |before| before);
        for ((out, &a), &b) in self.plane.iter_mut().zip(before).zip(last) {
            *out = look(a).max(look(b));
        }
        self.resize.plane(&self.plane, frame, &mut self.scratch);
    }
}
