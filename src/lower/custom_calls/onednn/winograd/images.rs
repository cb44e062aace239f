//! The transforms of images, and the transposed ones of their gradients.
//!
//! Equations: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015), section 4.1.

use super::tiling::Tiling;
use super::vector::{
    CACHE_LINE, LANES, Simd, Vector, both_axes, for_each, load_square, prefetch, square,
    store_square, with_vectors,
};

/// Transforms between images and the rows of 16 matrices: `[16, rows, depth]` of a source, and
/// `[16, rows, features]` of a destination. An image has the rows from `first` on, one for each tile.
#[derive(Debug, Clone, Copy)]
pub struct Transforms {
    pub tiling: Tiling,
    pub simd: Simd,
    pub rows: usize,
    /// The number that each byte of a source of bytes is multiplied with.
    pub byte_scale: f32,
}

/// Element of a source.
pub trait Pixel: Copy + Sync + 'static {
    /// Zeros for the blocks outside of the image.
    const ZEROS: &'static [Self; LANES];

    /// # Safety
    /// As [`Vector::load`].
    unsafe fn load<V: Vector>(from: *const Self, byte_scale: f32) -> V;
}

impl Pixel for f32 {
    const ZEROS: &'static [f32; LANES] = &[0.0; LANES];

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const f32, _: f32) -> V {
        // SAFETY: the caller's.
        unsafe { V::load(from) }
    }
}

impl Pixel for u8 {
    const ZEROS: &'static [u8; LANES] = &[0; LANES];

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u8, byte_scale: f32) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_bytes(from).mul(V::splat(byte_scale)) }
    }
}

/// Bias and ReLU after the output transform.
#[derive(Clone, Copy)]
pub struct OutputEpilogue<'a> {
    pub bias: Option<&'a [f32]>,
    pub relu: bool,
}

impl Transforms {
    fn check(&self, first: usize, [image, image_len]: [usize; 2], [rows, width]: [usize; 2]) {
        assert_eq!(image, image_len);
        assert_eq!(rows, 16 * self.rows * width);
        assert!(first + self.tiling.tile_count() <= self.rows);
    }

    /// The input transform of an image `[height, width, channels]`; the `next` image is prefetched.
    pub fn input<P: Pixel>(&self, image: &[P], next: &[P], to: &mut [f32], first: usize) {
        self.check(first, [image.len(), self.tiling.source_len()], [to.len(), self.tiling.depth()]);
        // SAFETY: the lengths were checked, and the processor has the instructions.
        unsafe { with_vectors!(self.simd, input(self, image, next, to, first), P) }
    }

    /// The transposed input transform: the gradient of an image, from that of its transform.
    pub fn input_transposed(&self, from: &[f32], image: &mut [f32], first: usize) {
        let sizes = [from.len(), self.tiling.depth()];
        self.check(first, [image.len(), self.tiling.source_len()], sizes);
        // SAFETY: as above.
        unsafe { with_vectors!(self.simd, input_transposed(self, from, image, first)) }
    }

    /// The output transform to an image `[height, width, features]`.
    pub fn output(
        &self,
        from: &[f32],
        epilogue: OutputEpilogue<'_>,
        image: &mut [f32],
        first: usize,
    ) {
        let sizes = [from.len(), self.tiling.features];
        self.check(first, [image.len(), self.tiling.destination_len()], sizes);
        assert!(epilogue.bias.is_none_or(|bias| bias.len() == self.tiling.features));
        // SAFETY: as above.
        unsafe {
            match self.tiling.outputs {
                2 => with_vectors!(self.simd, output(self, from, epilogue, image, first), 2),
                _ => with_vectors!(self.simd, output(self, from, epilogue, image, first), 3),
            }
        }
    }

    /// The transposed output transform of the gradient of an image; the `next` one is prefetched.
    pub fn output_transposed(&self, image: &[f32], next: &[f32], to: &mut [f32], first: usize) {
        let sizes = [to.len(), self.tiling.features];
        self.check(first, [image.len(), self.tiling.destination_len()], sizes);
        // SAFETY: as above.
        unsafe {
            match self.tiling.outputs {
                2 => with_vectors!(self.simd, output_transposed(self, image, next, to, first), 2),
                _ => with_vectors!(self.simd, output_transposed(self, image, next, to, first), 3),
            }
        }
    }

    /// The matrix row and the position of each tile, and a part of the `next` image.
    fn tiles<'a, T>(
        &self,
        next: &'a [T],
        first: usize,
    ) -> impl Iterator<Item = (usize, [usize; 2], &'a [T])> {
        let [height, width] = self.tiling.tiles();
        let line = CACHE_LINE / size_of::<T>();
        let share = next.len().div_ceil(height * width).next_multiple_of(line).max(line);
        let mut shares = next.chunks(share);
        (0..height * width)
            .map(move |i| (first + i, [i / width, i % width], shares.next().unwrap_or_default()))
    }
}

#[inline(always)]
unsafe fn input<V: Vector, P: Pixel>(
    transforms: &Transforms,
    image: &[P],
    next: &[P],
    to: &mut [f32],
    first: usize,
) {
    let tiling = &transforms.tiling;
    let (row_len, depth) = (tiling.row_len(), tiling.depth());
    for (row, tile, ahead) in transforms.tiles(next, first) {
        prefetch(ahead);
        for block_row in 0..tiling.stride {
            // A block outside of the image has one vector of zeros for all its elements.
            let offsets = tiling.block_row_offsets(tile, block_row);
            let from = square((P::ZEROS.as_ptr(), 0), |i, j| match offsets[i][j] {
                Some(offset) => (image[offset..offset + row_len].as_ptr(), 1),
                None => (P::ZEROS.as_ptr(), 0),
            });
            let start = row * depth + block_row * row_len;
            for at in (0..row_len).step_by(V::LEN) {
                // SAFETY: a row of a block has whole vectors, by the tiling, and within the image; the
                // caller checked the matrices.
                unsafe {
                    let x = square(V::splat(0.0), |i, j| {
                        let (start, step) = from[i][j];
                        P::load::<V>(start.add(at * step), transforms.byte_scale)
                    });
                    let x = both_axes(x, |d| {
                        [d[0].sub(d[2]), d[1].add(d[2]), d[2].sub(d[1]), d[1].sub(d[3])]
                    });
                    store_square(x, to.as_mut_ptr().add(start + at), transforms.rows * depth);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn input_transposed<V: Vector>(
    transforms: &Transforms,
    from: &[f32],
    image: &mut [f32],
    first: usize,
) {
    let tiling = &transforms.tiling;
    let (row_len, depth) = (tiling.row_len(), tiling.depth());
    image.fill(0.0);
    for (row, tile, _) in transforms.tiles::<f32>(&[], first) {
        for block_row in 0..tiling.stride {
            let offsets = tiling.block_row_offsets(tile, block_row);
            let start = row * depth + block_row * row_len;
            for at in (0..row_len).step_by(V::LEN) {
                // SAFETY: as in the input transform.
                unsafe {
                    let from = from.as_ptr().add(start + at);
                    let x = load_square::<V>(from, transforms.rows * depth);
                    let x = both_axes(x, |v| {
                        let second = v[1].sub(v[2]).add(v[3]);
                        let third = v[1].add(v[2]).sub(v[0]);
                        [v[0], second, third, V::splat(0.0).sub(v[3])]
                    });
                    for_each(x, |i, j, x| {
                        if let Some(offset) = offsets[i][j] {
                            let to = image.as_mut_ptr().add(offset + at);
                            V::load(to).add(x).store(to);
                        }
                    });
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn output<V: Vector, const OUTPUTS: usize>(
    transforms: &Transforms,
    from: &[f32],
    epilogue: OutputEpilogue<'_>,
    image: &mut [f32],
    first: usize,
) {
    let tiling = &transforms.tiling;
    let features = tiling.features;
    for (row, tile, _) in transforms.tiles::<f32>(&[], first) {
        let offsets = tiling.output_offsets::<OUTPUTS>(tile);
        for at in (0..features).step_by(V::LEN) {
            // SAFETY: features are whole vectors, by the tiling; the caller checked the lengths.
            unsafe {
                let from = from.as_ptr().add(row * features + at);
                let x = load_square::<V>(from, transforms.rows * features);
                // Of each result only the first `OUTPUTS` elements are used.
                let y = both_axes(x, |m| {
                    let (sum, difference) = (m[1].add(m[2]), m[1].sub(m[2]));
                    match OUTPUTS {
                        2 => [m[0].add(sum), difference.sub(m[3]), m[0], m[0]],
                        _ => [m[0].add(sum), difference, sum.sub(m[3]), m[0]],
                    }
                });
                let bias = match epilogue.bias {
                    Some(bias) => V::load(bias.as_ptr().add(at)),
                    None => V::splat(0.0),
                };
                for_each(y, |i, j, y| {
                    if i < OUTPUTS
                        && j < OUTPUTS
                        && let Some(offset) = offsets[i][j]
                    {
                        let sum = y.add(bias);
                        let sum = if epilogue.relu { sum.relu() } else { sum };
                        sum.store(image.as_mut_ptr().add(offset + at));
                    }
                });
            }
        }
    }
}

#[inline(always)]
unsafe fn output_transposed<V: Vector, const OUTPUTS: usize>(
    transforms: &Transforms,
    image: &[f32],
    next: &[f32],
    to: &mut [f32],
    first: usize,
) {
    let tiling = &transforms.tiling;
    let features = tiling.features;
    for (row, tile, ahead) in transforms.tiles(next, first) {
        prefetch(ahead);
        let offsets = tiling.output_offsets::<OUTPUTS>(tile);
        for at in (0..features).step_by(V::LEN) {
            // SAFETY: as in the output transform.
            unsafe {
                let y = square(V::splat(0.0), |i, j| {
                    let is_output = i < OUTPUTS && j < OUTPUTS;
                    match if is_output { offsets[i][j] } else { None } {
                        Some(offset) => V::load(image.as_ptr().add(offset + at)),
                        None => V::splat(0.0),
                    }
                });
                let x = both_axes(y, |y| match OUTPUTS {
                    2 => [y[0], y[0].add(y[1]), y[0].sub(y[1]), V::splat(0.0).sub(y[1])],
                    _ => {
                        let even = y[0].add(y[2]);
                        [y[0], even.add(y[1]), even.sub(y[1]), V::splat(0.0).sub(y[2])]
                    }
                });
                let to = to.as_mut_ptr().add(row * features + at);
                store_square(x, to, transforms.rows * features);
            }
        }
    }
}
