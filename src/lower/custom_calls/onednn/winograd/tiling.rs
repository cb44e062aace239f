//! The tiles of a convolution.

use super::super::problem::{Epilogue, Kind, Problem, Window};
use super::vector::LANES;
use crate::trace::types::DType;

/// Bytes of the transformed images of a chunk that fit the cache of a core.
const CACHE_BYTES: usize = 1 << 20;
/// The most bytes of the transformed tensors of one image, and of the transformed kernel: larger ones
/// were not measured.
const MAX_TRANSFORM_BYTES: usize = 4 << 20;

/// A convolution in two dimensions for Winograd's algorithm.
///
/// The source is cut into blocks of `stride` by `stride` pixels, whose elements are the channels of a
/// convolution with stride 1. A tile is 4 by 4 blocks, from which `outputs` by `outputs` pixels of
/// the destination are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    pub kind: Kind,
    /// Height and width.
    source: [usize; 2],
    destination: [usize; 2],
    /// Padding before the source, with stride 1.
    low: [usize; 2],
    pub stride: usize,
    channels: usize,
    pub features: usize,
    /// Outputs of a tile along an axis: 2 or 3.
    pub outputs: usize,
    /// Strides of the kernel in memory: of features, channels, rows and columns.
    pub kernel_strides: [usize; 4],
    /// True if the last row and column of the kernel come first.
    flipped: bool,
}

impl Tiling {
    /// The tiling of a convolution, if its form has one: in `f32`, along two axes, without groups and
    /// dilations, with a square kernel of 2 or 3 times the stride, and padding only with stride 1.
    pub fn of(problem: &Problem) -> Option<Tiling> {
        let &[y, x] = &problem.windows[..] else { return None };
        let &[_, features, channels, rows, columns] = &problem.weights_strides[..] else {
            return None;
        };
        let (stride, kernel) = (y.stride, y.kernel);
        let square = [y, x].iter().all(|w| {
            let padded = w.low > 0 || w.high > 0;
            w.stride == stride && w.kernel == kernel && w.dilation == 1 && !(padded && stride > 1)
        });
        // As in `Problem::of`: the windows end within the padded source, less than a stride before its
        // end.
        let fits = [y, x].iter().all(|w| {
            let padded = w.low + w.source + w.high;
            let end = (w.destination - 1) * w.stride + w.kernel;
            end <= padded && padded < end + w.stride
        });
        let taps = kernel / stride;
        let supported = square && fits && kernel.is_multiple_of(stride) && (2..=3).contains(&taps);
        if !supported || problem.dtype != DType::F32 || problem.groups != 1 {
            return None;
        }
        let tiling = Tiling {
            kind: problem.kind,
            source: [y.source, x.source],
            destination: [y.destination, x.destination],
            low: [y.low, x.low],
            stride,
            channels: problem.channels,
            features: problem.features,
            outputs: 5 - taps,
            kernel_strides: [features, channels, rows, columns],
            flipped: false,
        };
        // Of this form, whatever the epilogue is, since that of a layer is not known in the beginning.
        let vectors = [tiling.row_len(), tiling.features];
        let whole = vectors.into_iter().all(|len| len.is_multiple_of(LANES));
        let bytes = tiling.image_bytes().max(tiling.kernel_transform_bytes());
        if !whole || bytes > MAX_TRANSFORM_BYTES {
            return None;
        }
        let all = |w: &Window| [w.low, w.high] == [w.kernel - 1; 2];
        let padded = stride == 1 && all(&y) && all(&x);
        Some(match (problem.kind, problem.epilogue) {
            (Kind::Forward, Epilogue::None) if padded && problem.byte_scale.is_none() => {
                tiling.as_gradient()
            }
            _ => tiling,
        })
    }

    /// A fully padded convolution (by the kernel's size less 1 on all sides) as the gradient of the
    /// input of an unpadded one with the kernel flipped, which has fewer tiles. The gradients of the
    /// input of unpadded convolutions with stride 1 are written in this form.
    fn as_gradient(self) -> Tiling {
        let [features, channels, rows, columns] = self.kernel_strides;
        Tiling {
            kind: Kind::BackwardData,
            source: self.destination,
            destination: self.source,
            low: [0; 2],
            channels: self.features,
            features: self.channels,
            kernel_strides: [channels, features, rows, columns],
            flipped: true,
            ..self
        }
    }

    /// Blocks of the kernel along an axis: 2 or 3.
    pub fn taps(&self) -> usize {
        5 - self.outputs
    }

    /// Tiles along each axis.
    pub fn tiles(&self) -> [usize; 2] {
        self.destination.map(|size| size.div_ceil(self.outputs))
    }

    /// Tiles of an image.
    pub fn tile_count(&self) -> usize {
        self.tiles().iter().product()
    }

    /// Elements of a row of a block.
    pub fn row_len(&self) -> usize {
        self.stride * self.channels
    }

    /// Elements of a block.
    pub fn depth(&self) -> usize {
        self.stride * self.row_len()
    }

    /// Elements of an image of the source.
    pub fn source_len(&self) -> usize {
        self.source[0] * self.source[1] * self.channels
    }

    /// Elements of an image of the destination.
    pub fn destination_len(&self) -> usize {
        self.destination[0] * self.destination[1] * self.features
    }

    /// Images whose transformed tensors fit the cache together.
    pub fn images_in_cache(&self) -> usize {
        (CACHE_BYTES / self.image_bytes()).max(1)
    }

    /// Bytes of the transformed tensors of an image.
    fn image_bytes(&self) -> usize {
        let row = (self.depth() + self.features).saturating_mul(16 * size_of::<f32>());
        self.tile_count().saturating_mul(row)
    }

    /// Bytes of the kernel's transform.
    fn kernel_transform_bytes(&self) -> usize {
        self.depth().saturating_mul(self.features).saturating_mul(16 * size_of::<f32>())
    }

    /// First row or column of a block, if the source has it.
    fn block(&self, axis: usize, index: usize) -> Option<usize> {
        let start = (index * self.stride).checked_sub(self.low[axis])?;
        (start + self.stride <= self.source[axis]).then_some(start)
    }

    /// Offsets in an image of this row of each of a tile's 4 by 4 blocks; `None` outside of the image.
    #[inline]
    pub fn block_row_offsets(&self, tile: [usize; 2], block_row: usize) -> [[Option<usize>; 4]; 4] {
        let mut offsets = [[None; 4]; 4];
        for (i, row) in offsets.iter_mut().enumerate() {
            let Some(y) = self.block(0, tile[0] * self.outputs + i) else { continue };
            for (j, offset) in row.iter_mut().enumerate() {
                let x = self.block(1, tile[1] * self.outputs + j);
                *offset = x.map(|x| ((y + block_row) * self.source[1] + x) * self.channels);
            }
        }
        offsets
    }

    /// Offsets in an output image of the outputs of a tile; `None` outside of the image.
    #[inline(always)]
    pub fn output_offsets<const OUTPUTS: usize>(
        &self,
        tile: [usize; 2],
    ) -> [[Option<usize>; OUTPUTS]; OUTPUTS] {
        let mut offsets = [[None; OUTPUTS]; OUTPUTS];
        for (i, row) in offsets.iter_mut().enumerate() {
            for (j, offset) in row.iter_mut().enumerate() {
                let (y, x) = (tile[0] * OUTPUTS + i, tile[1] * OUTPUTS + j);
                let inside = y < self.destination[0] && x < self.destination[1];
                *offset = inside.then_some((y * self.destination[1] + x) * self.features);
            }
        }
        offsets
    }

    /// Elements of the kernel's transform.
    pub fn kernel_transform_len(&self) -> usize {
        16 * self.depth() * self.features
    }

    /// Offset in the kernel of the first feature of a block's element, in the first block.
    pub fn kernel_offset(&self, depth: usize) -> usize {
        let [_, channels, rows, columns] = self.kernel_strides;
        let (row, rest) = (depth / self.row_len(), depth % self.row_len());
        let (column, channel) = (rest / self.channels, rest % self.channels);
        channel * channels + row * rows + column * columns
    }

    /// Offset in the kernel of this block from the first one in memory.
    pub fn tap_offset(&self, [i, j]: [usize; 2]) -> usize {
        let last = self.taps() - 1;
        let [i, j] = if self.flipped { [last - i, last - j] } else { [i, j] };
        self.stride * (i * self.kernel_strides[2] + j * self.kernel_strides[3])
    }

    /// Elements of the memory that the kernel reaches.
    pub fn kernel_span(&self) -> usize {
        let side = self.taps() * self.stride;
        let sizes = [self.features, self.channels, side, side];
        let strides = self.kernel_strides;
        sizes.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum::<usize>() + 1
    }
}
