//! Convolutions by Winograd's minimal filtering, with fewer multiplications than by definition.
//!
//! The source is cut into overlapping [tiles](Tiling) of 4 by 4 blocks. The transforms of a tile and
//! of the kernel are multiplied element by element, and the products are summed over the channels: for
//! each of the 16 elements a product of matrices, with a row for each tile. A transform of these sums
//! gives 3 by 3 places of the destination for a window of two strides, or 2 by 2 for one of three:
//! 16 multiplications in place of 36. Both gradients have the transposed transforms around the same
//! products.
//!
//! The transforms add, subtract and halve, so convolutions of small integers stay exact. An infinite
//! value or NaN makes other places of its tile NaN.

mod filter;
mod images;
#[cfg(test)]
mod tests;
mod tiling;
mod vector;

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use bytemuck::Pod;

use self::filter::{filter, filter_transposed};
use self::images::{OutputEpilogue, Pixel, Transforms};
use self::tiling::Tiling;
use self::vector::Level;
use super::library::{Handle, Library, Primitive, Tensor, role};
use super::plan::{Parallel, Shared};
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
    Level::of_processor()?;
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

/// A convolution by tiles, ready to run.
pub(super) struct Plan {
    /// The transforms of a block of images.
    transforms: Transforms,
    /// Images of a part, except the last.
    images: usize,
    /// Images of a block of a part, except the last.
    block: usize,
    /// 16 products of matrices, with the descriptors of their tensors.
    product: Primitive,
    lhs: Handle,
    rhs: Handle,
    result: Handle,
    fast: bool,
}

/// Transforms of the source and of the destination of a block.
struct Memory([Scratch; 2]);

impl Plan {
    pub fn new(library: &'static Library, problem: &Problem) -> Result<Plan, String> {
        let _guard = library.one_thread();
        let unsuited = || format!("this processor has no convolution by tiles for {problem:?}");
        let tiling = Tiling::of(problem).ok_or_else(unsuited)?;
        let level = Level::of_processor().ok_or_else(unsuited)?;
        let images = problem.batch.div_ceil(problem.parts);
        // As equal as possible, since a smaller last block takes as long as the others.
        let block = images.div_ceil(images.div_ceil(tiling.images_in_cache()));
        let transforms = Transforms {
            tiling,
            level,
            rows: block * tiling.tile_count(),
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
        // The gradient of the kernel is a sum over the blocks.
        let add = tiling.kind == Kind::BackwardWeights;
        let description = library.matmul([&lhs, &rhs, &result], add)?;
        let fast = !library.implementation(&description)?.starts_with("ref");
        let product = library.primitive(description)?;
        Ok(Plan { transforms, images, block, product, lhs, rhs, result, fast })
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

    fn memory(&self) -> Memory {
        let tiling = &self.transforms.tiling;
        Memory([tiling.depth(), tiling.features].map(|width| Scratch::floats(self.len(width))))
    }

    /// Elements of the matrices of a block that have this width.
    fn len(&self, width: usize) -> usize {
        16 * self.transforms.rows * width
    }

    /// The kernel's transform.
    fn filter(&self, kernel: &[f32], transposed: bool) -> Scratch {
        let tiling = &self.transforms.tiling;
        let mut transform = Scratch::floats(tiling.filter_len());
        let to = transform.as_floats(tiling.filter_len());
        filter(tiling, self.transforms.level, kernel, transposed, to);
        transform
    }

    fn multiply(&self, lhs: &[f32], rhs: *mut c_void, result: &mut [f32]) -> Result<(), String> {
        let tensor = |role, desc, memory| Tensor { role, desc, memory };
        self.product.run_with_scratchpad(&[
            tensor(role::SOURCE, &self.lhs, lhs.as_ptr().cast_mut().cast()),
            tensor(role::WEIGHTS, &self.rhs, rhs),
            tensor(role::DESTINATION, &self.result, result.as_mut_ptr().cast()),
        ])
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
        let filter = self.filter(kernel, false);
        let filter = Shared::new(filter.as_ptr());
        let [source_len, result_len] = [tiling.source_len(), tiling.destination_len()];
        let parts = self.parts(result, result_len);
        parallel(parts.len(), &|part| {
            let mut result = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            let mut memory = self.memory();
            let [inputs, products] = memory.matrices(self);
            for (block, result) in result.chunks_mut(self.block * result_len).enumerate() {
                let images =
                    Images::new(source, source_len, part * self.images + block * self.block);
                for (image, first) in self.firsts(result.len() / result_len) {
                    let (image, next) = images.get(image);
                    transforms.input(image, next, inputs, first);
                }
                self.multiply(inputs, filter.get(), products)?;
                for (image, (_, first)) in
                    result.chunks_mut(result_len).zip(self.firsts(self.block))
                {
                    transforms.output(products, epilogue, image, first);
                }
            }
            Ok(())
        })
    }

    fn backward_data(
        &self,
        destination: &[f32],
        kernel: &[f32],
        result: &mut [f32],
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        let (transforms, tiling) = (&self.transforms, &self.transforms.tiling);
        let filter = self.filter(kernel, true);
        let filter = Shared::new(filter.as_ptr());
        let [result_len, destination_len] = [tiling.source_len(), tiling.destination_len()];
        let parts = self.parts(result, result_len);
        parallel(parts.len(), &|part| {
            let mut result = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            let mut memory = self.memory();
            let [inputs, products] = memory.matrices(self);
            for (block, result) in result.chunks_mut(self.block * result_len).enumerate() {
                let first_image = part * self.images + block * self.block;
                let images = Images::new(destination, destination_len, first_image);
                for (image, first) in self.firsts(result.len() / result_len) {
                    let (image, next) = images.get(image);
                    transforms.output_transposed(image, next, products, first);
                }
                self.multiply(products, filter.get(), inputs)?;
                for (image, (_, first)) in
                    result.chunks_mut(result_len).zip(self.firsts(self.block))
                {
                    transforms.input_transposed(inputs, image, first);
                }
            }
            Ok(())
        })
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
        let new = || Mutex::new(Scratch::floats(tiling.filter_len()));
        let sums: Vec<Mutex<Scratch>> = (0..batch.div_ceil(self.images)).map(|_| new()).collect();
        parallel(sums.len(), &|part| {
            let mut sum = sums[part].lock().unwrap_or_else(PoisonError::into_inner);
            let sum = sum.as_floats(tiling.filter_len());
            sum.fill(0.0);
            let mut memory = self.memory();
            let [inputs, products] = memory.matrices(self);
            let end = batch.min((part + 1) * self.images);
            for start in (part * self.images..end).step_by(self.block) {
                let count = self.block.min(end - start);
                if count < self.block {
                    // The product also sums the rows that have no image.
                    inputs.fill(0.0);
                    products.fill(0.0);
                }
                let sources = Images::new(source, source_len, start);
                let destinations = Images::new(destination, destination_len, start);
                for (image, first) in self.firsts(count) {
                    let ((source, next), (gradient, next_gradient)) =
                        (sources.get(image), destinations.get(image));
                    transforms.input(source, next, inputs, first);
                    transforms.output_transposed(gradient, next_gradient, products, first);
                }
                self.multiply(inputs, products.as_mut_ptr().cast(), sum)?;
            }
            Ok(())
        })?;
        let mut sums: Vec<Scratch> = (sums.into_iter())
            .map(|sum| sum.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect();
        let sums: Vec<&[f32]> =
            sums.iter_mut().map(|sum| &*sum.as_floats(tiling.filter_len())).collect();
        filter_transposed(tiling, transforms.level, &sums, result);
        Ok(())
    }

    /// The parts of a result that has this many elements per image, each for one thread.
    fn parts<'t>(&self, result: &'t mut [f32], image: usize) -> Vec<Mutex<&'t mut [f32]>> {
        result.chunks_mut(self.images * image).map(Mutex::new).collect()
    }

    /// The numbers of a block's images, each with the first row of its tiles.
    fn firsts(&self, count: usize) -> impl Iterator<Item = (usize, usize)> {
        let tiles = self.transforms.tiling.tile_count();
        (0..count).map(move |image| (image, image * tiles))
    }
}

impl Memory {
    /// The matrices of the source and of the destination.
    fn matrices(&mut self, plan: &Plan) -> [&mut [f32]; 2] {
        let tiling = &plan.transforms.tiling;
        let [source, destination] = &mut self.0;
        let lens = [tiling.depth(), tiling.features].map(|width| plan.len(width));
        [source.as_floats(lens[0]), destination.as_floats(lens[1])]
    }
}

/// The images of a block.
struct Images<'a, T> {
    tensor: &'a [T],
    len: usize,
}

impl<'a, T> Images<'a, T> {
    fn new(tensor: &'a [T], len: usize, first: usize) -> Images<'a, T> {
        Images { tensor: &tensor[first * len..], len }
    }

    /// An image, and the one after it, which is empty after the last.
    fn get(&self, image: usize) -> (&'a [T], &'a [T]) {
        let (image, rest) = self.tensor[image * self.len..].split_at(self.len);
        (image, &rest[..self.len.min(rest.len())])
    }
}
