//! Convolutions by Winograd's minimal filtering, with fewer multiplications than direct ones.
//!
//! The source is cut into overlapping [tiles](Tiling) of 4 by 4 blocks of pixels. The transforms of a
//! tile and of the kernel are multiplied element by element, and the products are summed over the
//! channels: for each of the 16 elements a product of matrices, with a row for each tile. A transform of
//! these sums gives 3 by 3 pixels of the destination for a kernel of twice the stride, or 2 by 2 for
//! one of three times the stride: 16 multiplications in place of 36. Both gradients have the transposed
//! transforms around the same products.
//!
//! The transforms add, subtract and halve, so convolutions of small integers stay exact. An infinite
//! value or NaN makes other pixels of its tile NaN.

mod images;
mod kernel;
#[cfg(test)]
mod tests;
mod tiling;
mod vector;

use std::sync::{Mutex, PoisonError};

use bytemuck::Pod;

use self::images::{OutputEpilogue, Pixel, Transforms};
use self::kernel::{kernel_gradient, transform_kernel};
use self::tiling::Tiling;
use self::vector::Simd;
use super::library::{Handle, Library, Primitive, Tensor, role};
use super::plan::Parallel;
use super::problem::{Epilogue, Kind, Problem};
use super::scratch::Scratch;
use crate::trace::types::DType;

/// Fewest tiles of a batch, since the transform of the kernel takes as long for few of them. The number
/// is a choice; 8 images of the smallest layer of the Nature network have 72.
const MIN_TILES: usize = 64;

/// Number of parts of the batch, each for one thread, if the convolution has this form and enough
/// tiles.
pub(super) fn parts(problem: &Problem, threads: usize) -> Option<usize> {
    let tiling = Tiling::of(problem)?;
    Simd::widest()?;
    if problem.batch.saturating_mul(tiling.tile_count()) < MIN_TILES {
        return None;
    }
    let most = match tiling.kind {
        // They balance the load if a thread has other work as well.
        Kind::Forward | Kind::BackwardData => 2 * threads,
        // Each part needs memory for its own gradient.
        Kind::BackwardWeights => threads,
    };
    let parts = (problem.batch / tiling.images_in_cache()).clamp(1, most);
    Some(parts.next_multiple_of(threads).min(problem.batch))
}

/// A convolution, ready to run.
pub(super) struct Plan {
    /// The transforms of a chunk of images.
    transforms: Transforms,
    /// Images of a part, except the last.
    images_per_part: usize,
    /// Images of a chunk of a part, which are computed together, except the last chunk's.
    images_per_chunk: usize,
    /// 16 products of matrices, with the descriptors of their tensors.
    product: Primitive,
    lhs: Handle,
    rhs: Handle,
    result: Handle,
    fast: bool,
}

impl Plan {
    pub fn new(library: &'static Library, problem: &Problem) -> Result<Plan, String> {
        let _guard = library.one_thread();
        let unsuited = || format!("Winograd's algorithm is not supported for {problem:?}");
        let tiling = Tiling::of(problem).ok_or_else(unsuited)?;
        let simd = Simd::widest().ok_or_else(unsuited)?;
        let images_per_part = problem.batch.div_ceil(problem.parts);
        // As equal as possible, since a smaller last chunk takes as long as the others.
        let chunks = images_per_part.div_ceil(tiling.images_in_cache());
        let images_per_chunk = images_per_part.div_ceil(chunks);
        let transforms = Transforms {
            tiling,
            simd,
            rows: images_per_chunk * tiling.tile_count(),
            byte_scale: problem.byte_scale.map_or(1.0, f32::from_bits),
        };
        let [rows, depth, features] =
            [transforms.rows, tiling.depth(), tiling.features].map(|size| size as i64);
        let matrices = |[height, width]: [i64; 2], strides: [i64; 2]| {
            let sizes = [16, height, width];
            library.strided(DType::F32, &sizes, &[height * width, strides[0], strides[1]])
        };
        let by_rows = |sizes: [i64; 2]| matrices(sizes, [sizes[1], 1]);
        let (lhs, rhs, result) = match tiling.kind {
            Kind::Forward => ([rows, depth], [depth, features], [rows, features]),
            Kind::BackwardData => ([rows, features], [features, depth], [rows, depth]),
            Kind::BackwardWeights => ([depth, rows], [rows, features], [depth, features]),
        };
        let lhs = match tiling.kind {
            Kind::BackwardWeights => matrices(lhs, [1, depth])?,
            Kind::Forward | Kind::BackwardData => by_rows(lhs)?,
        };
        let (rhs, result) = (by_rows(rhs)?, by_rows(result)?);
        // The gradient of the kernel is a sum over the chunks.
        let add = tiling.kind == Kind::BackwardWeights;
        let description = library.matmul([&lhs, &rhs, &result], add)?;
        let fast = !library.implementation(&description)?.starts_with("ref");
        let product = library.primitive(description)?;
        Ok(Plan { transforms, images_per_part, images_per_chunk, product, lhs, rhs, result, fast })
    }

    /// Returns true if the library has code made for this processor.
    pub fn is_fast(&self) -> bool {
        self.fast
    }

    /// Computes `result` from the operands in the order of the forward pass: source, weights,
    /// destination, without the one that is the result. A forward pass may have a bias. Only a source
    /// may have bytes.
    pub fn run<P: Pixel + Pod>(
        &self,
        problem: &Problem,
        first: &[P],
        second: &[f32],
        bias: Option<&[f32]>,
        result: &mut [f32],
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        match self.transforms.tiling.kind {
            Kind::Forward => {
                let epilogue =
                    OutputEpilogue { bias, relu: problem.epilogue == Epilogue::BiasRelu };
                self.forward(first, second, epilogue, result, parallel)
            }
            Kind::BackwardData => {
                if size_of::<P>() != size_of::<f32>() {
                    return Err(format!("a gradient of bytes in {problem:?}"));
                }
                let destination = bytemuck::cast_slice(first);
                self.backward_data(destination, second, result, parallel)
            }
            Kind::BackwardWeights => self.backward_weights(first, second, result, parallel),
        }
    }

    /// Elements of the matrices of a chunk's source.
    fn source_tiles_len(&self) -> usize {
        16 * self.transforms.rows * self.transforms.tiling.depth()
    }

    /// Elements of the matrices of a chunk's destination.
    fn destination_tiles_len(&self) -> usize {
        16 * self.transforms.rows * self.transforms.tiling.features
    }

    /// The kernel's transform.
    fn transformed_kernel(&self, kernel: &[f32], transposed: bool) -> Scratch {
        let tiling = &self.transforms.tiling;
        let mut memory = Scratch::floats(tiling.kernel_transform_len());
        let to = memory.as_floats(tiling.kernel_transform_len());
        transform_kernel(tiling, self.transforms.simd, kernel, transposed, to);
        memory
    }

    /// The 16 products of matrices. Panics for slices of other lengths.
    fn multiply(&self, lhs: &[f32], rhs: &[f32], result: &mut [f32]) -> Result<(), String> {
        let tiling = &self.transforms.tiling;
        let source = self.source_tiles_len();
        let kernel = tiling.kernel_transform_len();
        let destination = self.destination_tiles_len();
        let expected = match tiling.kind {
            Kind::Forward => [source, kernel, destination],
            Kind::BackwardData => [destination, kernel, source],
            Kind::BackwardWeights => [source, destination, kernel],
        };
        assert_eq!([lhs.len(), rhs.len(), result.len()], expected);
        let tensor = |role, desc, memory| Tensor { role, desc, memory };
        let tensors = [
            tensor(role::SOURCE, &self.lhs, lhs.as_ptr().cast_mut().cast()),
            tensor(role::WEIGHTS, &self.rhs, rhs.as_ptr().cast_mut().cast()),
            tensor(role::DESTINATION, &self.result, result.as_mut_ptr().cast()),
        ];
        // SAFETY: the slices have the elements of the matrices, as was checked.
        unsafe { self.product.run_with_scratchpad(&tensors) }
    }

    fn forward<P: Pixel>(
        &self,
        source: &[P],
        kernel: &[f32],
        epilogue: OutputEpilogue<'_>,
        result: &mut [f32],
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        let (transforms, tiling) = (&self.transforms, &self.transforms.tiling);
        let mut kernel = self.transformed_kernel(kernel, false);
        let pass = Pass {
            plan: self,
            kernel: kernel.as_floats(tiling.kernel_transform_len()),
            lens: [tiling.source_len(), tiling.destination_len()],
            tiles_lens: [self.source_tiles_len(), self.destination_tiles_len()],
            before: |image: &[P], next: &[P], to: &mut [f32], first| {
                transforms.input(image, next, to, first);
            },
            after: |from: &[f32], image: &mut [f32], first| {
                transforms.output(from, epilogue, image, first);
            },
        };
        pass.run(source, result, parallel)
    }

    fn backward_data(
        &self,
        destination: &[f32],
        kernel: &[f32],
        result: &mut [f32],
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        let (transforms, tiling) = (&self.transforms, &self.transforms.tiling);
        let mut kernel = self.transformed_kernel(kernel, true);
        let pass = Pass {
            plan: self,
            kernel: kernel.as_floats(tiling.kernel_transform_len()),
            lens: [tiling.destination_len(), tiling.source_len()],
            tiles_lens: [self.destination_tiles_len(), self.source_tiles_len()],
            before: |image: &[f32], next: &[f32], to: &mut [f32], first| {
                transforms.output_transposed(image, next, to, first);
            },
            after: |from: &[f32], image: &mut [f32], first| {
                transforms.input_transposed(from, image, first);
            },
        };
        pass.run(destination, result, parallel)
    }

    /// The gradient of the kernel: that of its transform for each part, then the transposed transform
    /// of their sum.
    fn backward_weights<P: Pixel>(
        &self,
        source: &[P],
        destination: &[f32],
        result: &mut [f32],
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        let (transforms, tiling) = (&self.transforms, &self.transforms.tiling);
        let [source_len, destination_len] = [tiling.source_len(), tiling.destination_len()];
        let batch = source.len() / source_len;
        let kernel_len = tiling.kernel_transform_len();
        let parts = batch.div_ceil(self.images_per_part);
        let sums: Vec<Mutex<Scratch>> =
            (0..parts).map(|_| Mutex::new(Scratch::floats(kernel_len))).collect();
        parallel(parts, &|part| {
            let mut sum = sums[part].lock().unwrap_or_else(PoisonError::into_inner);
            let sum = sum.as_floats(kernel_len);
            sum.fill(0.0);
            let lens = [self.source_tiles_len(), self.destination_tiles_len()];
            let [mut source_memory, mut destination_memory] = lens.map(Scratch::floats);
            let source_tiles = source_memory.as_floats(lens[0]);
            let destination_tiles = destination_memory.as_floats(lens[1]);
            let end = batch.min((part + 1) * self.images_per_part);
            for start in (part * self.images_per_part..end).step_by(self.images_per_chunk) {
                let count = self.images_per_chunk.min(end - start);
                if count < self.images_per_chunk {
                    // The product also sums the rows that have no image.
                    source_tiles.fill(0.0);
                    destination_tiles.fill(0.0);
                }
                for image in 0..count {
                    let first = image * tiling.tile_count();
                    let (pixels, next) = image_and_next(source, source_len, start + image);
                    transforms.input(pixels, next, source_tiles, first);
                    let (gradient, next) =
                        image_and_next(destination, destination_len, start + image);
                    transforms.output_transposed(gradient, next, destination_tiles, first);
                }
                self.multiply(source_tiles, destination_tiles, sum)?;
            }
            Ok(())
        })?;
        let mut sums: Vec<Scratch> = (sums.into_iter())
            .map(|sum| sum.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect();
        let sums: Vec<&[f32]> = sums.iter_mut().map(|sum| &*sum.as_floats(kernel_len)).collect();
        kernel_gradient(tiling, transforms.simd, &sums, result);
        Ok(())
    }
}

/// A pass from images to images, with the transformed kernel between a transform `before` and one
/// `after`.
struct Pass<'a, B, A> {
    plan: &'a Plan,
    kernel: &'a [f32],
    /// Elements of an image that is read, and of one that is written.
    lens: [usize; 2],
    /// Elements of the matrices of a chunk of such images.
    tiles_lens: [usize; 2],
    before: B,
    after: A,
}

impl<B, A> Pass<'_, B, A> {
    fn run<P>(&self, images: &[P], result: &mut [f32], parallel: Parallel<'_>) -> Result<(), String>
    where
        P: Pixel,
        B: Fn(&[P], &[P], &mut [f32], usize) + Sync,
        A: Fn(&[f32], &mut [f32], usize) + Sync,
    {
        let &Plan { transforms, images_per_part, images_per_chunk, .. } = self.plan;
        let ([image_len, result_len], tiles) = (self.lens, transforms.tiling.tile_count());
        let parts: Vec<_> =
            result.chunks_mut(images_per_part * result_len).map(Mutex::new).collect();
        parallel(parts.len(), &|part| {
            let mut result = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            let [mut lhs_memory, mut product_memory] = self.tiles_lens.map(Scratch::floats);
            let lhs = lhs_memory.as_floats(self.tiles_lens[0]);
            let product = product_memory.as_floats(self.tiles_lens[1]);
            for (chunk, result) in result.chunks_mut(images_per_chunk * result_len).enumerate() {
                let start = part * images_per_part + chunk * images_per_chunk;
                for image in 0..result.len() / result_len {
                    let (pixels, next) = image_and_next(images, image_len, start + image);
                    (self.before)(pixels, next, lhs, image * tiles);
                }
                self.plan.multiply(lhs, self.kernel, product)?;
                for (image, result) in result.chunks_mut(result_len).enumerate() {
                    (self.after)(product, result, image * tiles);
                }
            }
            Ok(())
        })
    }
}

/// An image of a batch, and the one after it, which is empty after the last.
fn image_and_next<T>(batch: &[T], len: usize, image: usize) -> (&[T], &[T]) {
    let (image, rest) = batch[image * len..].split_at(len);
    (image, &rest[..len.min(rest.len())])
}
