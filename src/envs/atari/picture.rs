//! Conversion of the console's screens to one frame of an observation.
//!
//! A pixel's color is looked up, the brighter of two screens is taken, and the result is resized.
//! The plain code is here; `fast` does the same in fewer instructions on processors that support
//! it.

use super::colors::{Colors, Look};
use super::fast::Fast;
use super::games::Game;
use super::options::AtariOptions;
use super::resize::Resize;

/// Converter of screens to frames of one size, gray or in three planes.
pub(super) struct Picture {
    planes: Vec<(Look, Option<Fast>)>,
    resize: Resize,
    /// One plane of the screen, before it is resized.
    plane: Vec<u8>,
    scratch: Vec<u32>,
}

impl Picture {
    pub(super) fn new(game: &Game, options: &AtariOptions, colors: &Colors) -> Picture {
        let from = (game.height, game.width());
        let to = (options.img_height, options.img_width);
        let looks = if options.gray_scale {
            vec![colors.gray]
        } else {
            (0..3).map(|channel| colors.rgb.map(|rgb| rgb[channel])).collect()
        };
        Picture::of(looks, Resize::new(from, to, options.use_inter_area_resize))
    }

    fn of(looks: Vec<Look>, resize: Resize) -> Picture {
        let plane = |look| (look, Fast::new(&resize, &look));
        Picture {
            planes: looks.into_iter().map(plane).collect(),
            resize,
            plane: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Returns the number of bytes of one frame.
    pub(super) fn bytes(&self) -> usize {
        self.planes.len() * self.resize.to.0 * self.resize.to.1
    }

    /// Draws the maximum of the screens `before` and `last`, or `last` alone.
    pub(super) fn draw(&mut self, before: Option<&[u8]>, last: &[u8], frame: &mut [u8]) {
        let before = before.unwrap_or(last);
        let size = self.resize.to.0 * self.resize.to.1;
        for ((look, fast), frame) in self.planes.iter_mut().zip(frame.chunks_exact_mut(size)) {
            if let Some(fast) = fast {
                fast.draw(before, last, frame);
                continue;
            }
            let brighter = |(&a, &b): (&u8, &u8)| look[usize::from(a)].max(look[usize::from(b)]);
            self.plane.clear();
            self.plane.extend(before.iter().zip(last).map(brighter));
            self.resize.plane(&self.plane, frame, &mut self.scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The AVX2 code returns the same bytes as the plain code.
    #[test]
    fn avx2_code_returns_the_bytes_of_plain_code() {
        let mut state = 1u64;
        let mut byte = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        #[cfg(target_arch = "x86_64")]
        let avx2 = std::is_x86_feature_detected!("avx2");
        #[cfg(not(target_arch = "x86_64"))]
        let avx2 = false;
        // Sizes whose sums fit 16 bits, and sizes whose sums do not.
        let sizes = [
            ((210, (84, 84)), true),
            ((210, (105, 80)), true),
            ((250, (84, 84)), false),
            ((214, (84, 96)), false),
        ];
        for ((height, to), fits) in sizes {
            let resize = Resize::new((height, 160), to, true);
            let look: Look = std::array::from_fn(|_| byte());
            let mut picture = Picture::of(vec![look], resize.clone());
            let mut plain = Picture::of(vec![look], resize);
            plain.planes[0].1 = None;
            assert_eq!(picture.planes[0].1.is_some(), fits && avx2, "{height} {to:?}");
            let mut last: Vec<u8> = (0..height * 160).map(|_| byte()).collect();
            let (mut ours, mut theirs) = (vec![0; to.0 * to.1], vec![1; to.0 * to.1]);
            for round in 0..20 {
                // Most pixels stay unchanged, between the two screens of a frame and between
                // frames.
                let before = last.clone();
                let from = usize::from(byte()) * 100;
                last[from..from + 50 * round].iter_mut().for_each(|pixel| *pixel = byte());
                for before in [None, Some(&before[..])] {
                    picture.draw(before, &last, &mut ours);
                    plain.draw(before, &last, &mut theirs);
                    assert_eq!(ours, theirs, "{height} {to:?}");
                }
            }
        }
    }
}
