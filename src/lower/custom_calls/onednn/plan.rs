//! The primitives of a convolution, ready to run, and the runs.

use std::ffi::c_void;
use std::slice;
use std::sync::{Mutex, PoisonError};

use bytemuck::Pod;
use half::bf16;
use smallvec::{SmallVec, smallvec};

use super::library::{
    Handle, Library, Primitive, QUERY_WEIGHTS, QUERY_WEIGHTS_GRADIENT, Tensor, Windows, role,
};
use super::problem::{Epilogue, Kind, Problem};
use super::scratch::Scratch;
use crate::trace::literal::Element;
use crate::trace::types::DType;

/// Work of the parts of a run, by their number.
pub(super) type Task<'a> = &'a (dyn Fn(usize) -> Result<(), String> + Sync);
/// A way to run several parts at once, if possible on several threads.
pub(super) type Parallel<'a> = &'a dyn Fn(usize, Task<'_>) -> Result<(), String>;

/// Element of the tensors of a convolution.
pub(super) trait Value: Element + Pod + Send + Sync {
    /// Zero if this is at most zero; a value that is no number stays.
    fn relu(self) -> Self;

    /// Writes a gradient that is summed in f32.
    fn round(from: &[f32], to: &mut [Self]);
}

impl Value for f32 {
    #[inline]
    fn relu(self) -> f32 {
        if self <= 0.0 { 0.0 } else { self }
    }

    fn round(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Value for bf16 {
    #[inline]
    fn relu(self) -> bf16 {
        bf16::from_bits(if self.to_f32() <= 0.0 { 0 } else { self.to_bits() })
    }

    fn round(from: &[f32], to: &mut [bf16]) {
        from.iter().zip(to).for_each(|(&from, to)| *to = bf16::from_f32(from));
    }
}

/// The primitives of a convolution.
pub(super) struct Plan {
    /// Images of a part, except the last.
    images: usize,
    /// Primitives for a whole part and, if the last is smaller, for that one.
    whole: Step,
    last: Option<Step>,
    /// Descriptor of the weights in the program's memory; a gradient is of f32.
    weights: Handle,
    fast: bool,
}

/// The primitive for some images, and the format of its weights.
struct Step {
    convolution: Primitive,
    bias: Option<Handle>,
    source: Handle,
    destination: Handle,
    weights: Handle,
    weights_bytes: usize,
    /// Changes the program's weights to that format. Of a weights' gradient: changes it to the
    /// program's format, replacing and adding.
    reorder: Primitive,
    add: Option<Primitive>,
}

fn signed(sizes: impl IntoIterator<Item = usize>) -> SmallVec<[i64; 6]> {
    sizes.into_iter().map(|size| size as i64).collect()
}

impl Plan {
    pub fn new(library: &'static Library, problem: &Problem) -> Result<Plan, String> {
        let _guard = library.one_thread();
        let images = problem.batch.div_ceil(problem.parts);
        let rest = problem.batch % images;
        // One group has no axis of its own.
        let from = usize::from(problem.groups == 1);
        let sizes = signed(problem.weights_sizes());
        let strides = signed(problem.weights_strides.iter().copied());
        let dtype = match problem.kind {
            Kind::Forward | Kind::BackwardData => problem.dtype,
            Kind::BackwardWeights => DType::F32,
        };
        let weights = library.strided(dtype, &sizes[from..], &strides[from..])?;
        let (whole, fast) = Step::new(library, problem, images, &sizes[from..], &weights)?;
        let (last, last_fast) = match rest {
            0 => (None, true),
            rest => {
                let (step, fast) = Step::new(library, problem, rest, &sizes[from..], &weights)?;
                (Some(step), fast)
            }
        };
        Ok(Plan { images, whole, last, weights, fast: fast && last_fast })
    }

    /// Returns true if the library has code made for this processor.
    pub fn is_fast(&self) -> bool {
        self.fast
    }

    /// Computes `result` from the operands in the order of the forward pass: source, weights,
    /// destination, without the one that is the result. A forward pass may have a bias.
    pub fn run<T: Value>(
        &self,
        problem: &Problem,
        [first, second]: [&[T]; 2],
        bias: Option<&[T]>,
        result: &mut [T],
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        let parts = problem.batch.div_ceil(self.images);
        let run = Run {
            plan: self,
            parts,
            source_image: problem.source_len() / problem.batch,
            destination_image: problem.destination_len() / problem.batch,
        };
        match problem.kind {
            Kind::Forward => {
                let relu = problem.epilogue == Epilogue::BiasRelu;
                run.forward(first, second, bias, relu, result, parallel)
            }
            Kind::BackwardData => run.backward_data(first, second, result, parallel),
            Kind::BackwardWeights => run.backward_weights(first, second, result, parallel),
        }
    }
}

/// Memory that several threads write, each its own part.
pub(super) struct Shared<T>(*mut T);

// SAFETY: who uses the pointer says why it is right.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub fn new(start: *mut T) -> Shared<T> {
        Shared(start)
    }

    pub fn get(&self) -> *mut T {
        self.0
    }
}

/// One run.
struct Run<'a> {
    plan: &'a Plan,
    parts: usize,
    /// Elements of one image of the source.
    source_image: usize,
    /// Elements of one image of the destination.
    destination_image: usize,
}

impl Run<'_> {
    fn step(&self, part: usize) -> &Step {
        match &self.plan.last {
            Some(last) if part + 1 == self.parts => last,
            _ => &self.plan.whole,
        }
    }

    /// The elements of a part, of a tensor that has this many per image.
    fn part<'t, T>(&self, tensor: &'t [T], part: usize, image: usize) -> &'t [T] {
        let part_len = self.plan.images * image;
        &tensor[part * part_len..][..part_len.min(tensor.len() - part * part_len)]
    }

    /// The parts of a result that has this many elements per image, each for one thread.
    fn parts<'t, T>(&self, result: &'t mut [T], image: usize) -> Vec<Mutex<&'t mut [T]>> {
        result.chunks_mut(self.plan.images * image).map(Mutex::new).collect()
    }

    fn forward<T: Value>(
        &self,
        source: &[T],
        weights: &[T],
        bias: Option<&[T]>,
        relu: bool,
        result: &mut [T],
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        let results = self.parts(result, self.destination_image);
        let task = |part: usize, weights| {
            let step = self.step(part);
            let mut result = results[part].lock().unwrap_or_else(PoisonError::into_inner);
            let source = self.part(source, part, self.source_image).as_ptr().cast_mut().cast();
            let tensor = |role, desc, memory| Tensor { role, desc, memory };
            let mut tensors: SmallVec<[Tensor<'_>; 4]> = smallvec![
                tensor(role::SOURCE, &step.source, source),
                tensor(role::WEIGHTS, &step.weights, weights),
                tensor(role::DESTINATION, &step.destination, result.as_mut_ptr().cast()),
            ];
            if let (Some(desc), Some(bias)) = (&step.bias, bias) {
                tensors.push(tensor(role::BIAS, desc, bias.as_ptr().cast_mut().cast()));
            }
            // SAFETY: the tensors are a part's of operands and results whose lengths were checked, the
            // bias's, and memory of the weights' bytes. This part alone writes its images.
            unsafe { step.convolution.run_with_scratchpad(&tensors)? };
            if relu {
                result.iter_mut().for_each(|value| *value = value.relu());
            }
            Ok(())
        };
        self.with_weights(weights, task, parallel)
    }

    fn backward_data<T: Value>(
        &self,
        destination: &[T],
        weights: &[T],
        result: &mut [T],
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        let results = self.parts(result, self.source_image);
        let task = |part: usize, weights| {
            let step = self.step(part);
            let mut result = results[part].lock().unwrap_or_else(PoisonError::into_inner);
            let destination = self.part(destination, part, self.destination_image);
            let tensor = |role, desc, memory| Tensor { role, desc, memory };
            let destination = destination.as_ptr().cast_mut().cast();
            let tensors = [
                tensor(role::SOURCE_GRADIENT, &step.source, result.as_mut_ptr().cast()),
                tensor(role::WEIGHTS, &step.weights, weights),
                tensor(role::DESTINATION_GRADIENT, &step.destination, destination),
            ];
            // SAFETY: as in `forward`.
            unsafe { step.convolution.run_with_scratchpad(&tensors) }
        };
        self.with_weights(weights, task, parallel)
    }

    /// Runs `task` for each part, with the weights in the part's format.
    fn with_weights<T>(
        &self,
        weights: &[T],
        task: impl Fn(usize, *mut c_void) -> Result<(), String> + Sync,
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        let reordered = |step: &Step| -> Result<Scratch, String> {
            let own = Scratch::take(step.weights_bytes);
            let from = Tensor {
                role: role::SOURCE,
                desc: &self.plan.weights,
                memory: weights.as_ptr().cast_mut().cast(),
            };
            let to = Tensor { role: role::DESTINATION, desc: &step.weights, memory: own.as_ptr() };
            // SAFETY: the length of the weights was checked, and the other memory was taken for them.
            unsafe { step.reorder.run_with_scratchpad(&[from, to])? };
            Ok(own)
        };
        let whole = reordered(&self.plan.whole)?;
        let last = self.plan.last.as_ref().map(reordered).transpose()?;
        let whole_start = Shared::new(whole.as_ptr());
        let last_start = Shared::new(last.as_ref().unwrap_or(&whole).as_ptr());
        parallel(self.parts, &|part| {
            let start = if part + 1 == self.parts { &last_start } else { &whole_start };
            task(part, start.get())
        })
    }

    /// The gradient of the weights: that of each part, then their sum in order.
    fn backward_weights<T: Value>(
        &self,
        source: &[T],
        destination: &[T],
        result: &mut [T],
        parallel: Parallel<'_>,
    ) -> Result<(), String> {
        let own: Vec<Scratch> =
            (0..self.parts).map(|part| Scratch::take(self.step(part).weights_bytes)).collect();
        let starts: Vec<Shared<c_void>> = own.iter().map(|own| Shared::new(own.as_ptr())).collect();
        parallel(self.parts, &|part| {
            let step = self.step(part);
            let source = self.part(source, part, self.source_image);
            let destination = self.part(destination, part, self.destination_image);
            let tensor = |role, desc, memory| Tensor { role, desc, memory };
            let (source, destination) = (source.as_ptr(), destination.as_ptr());
            let (source, destination) = (source.cast_mut().cast(), destination.cast_mut().cast());
            let tensors = [
                tensor(role::SOURCE, &step.source, source),
                tensor(role::WEIGHTS_GRADIENT, &step.weights, starts[part].get()),
                tensor(role::DESTINATION_GRADIENT, &step.destination, destination),
            ];
            // SAFETY: as in `forward`; this part alone has its memory for a gradient.
            unsafe { step.convolution.run_with_scratchpad(&tensors) }
        })?;
        // Of other elements than f32 the sum is made elsewhere, and rounded once.
        let sum = (T::DTYPE != DType::F32).then(|| Scratch::take(size_of::<f32>() * result.len()));
        let memory = sum.as_ref().map_or(result.as_mut_ptr().cast(), Scratch::as_ptr);
        for (part, own) in own.iter().enumerate() {
            let step = self.step(part);
            let change = match (part, &step.add) {
                (0, _) | (_, None) => &step.reorder,
                (_, Some(add)) => add,
            };
            let from = Tensor { role: role::SOURCE, desc: &step.weights, memory: own.as_ptr() };
            let to = Tensor { role: role::DESTINATION, desc: &self.plan.weights, memory };
            // SAFETY: both have the bytes of the weights in their format and element type, and only
            // this thread uses them.
            unsafe { change.run_with_scratchpad(&[from, to])? };
        }
        if sum.is_some() {
            // SAFETY: the memory has as many elements as the result, all written: those of the
            // weights by the reorder, the others when it was allocated.
            T::round(unsafe { slice::from_raw_parts(memory.cast(), result.len()) }, result);
        }
        Ok(())
    }
}

impl Step {
    /// The primitives for this number of images; also returns true if they are fast.
    fn new(
        library: &'static Library,
        problem: &Problem,
        images: usize,
        weights_sizes: &[i64],
        program_weights: &Handle,
    ) -> Result<(Step, bool), String> {
        let of =
            |get: fn(&super::problem::Window) -> usize| signed(problem.windows.iter().map(get));
        let tensor = |channels: usize, places: SmallVec<[i64; 6]>| {
            let mut sizes = signed([images, problem.groups * channels]);
            sizes.extend(places);
            library.images(problem.dtype, &sizes)
        };
        let source = tensor(problem.channels, of(|window| window.source))?;
        let destination = tensor(problem.features, of(|window| window.destination))?;
        let is_gradient = problem.kind == Kind::BackwardWeights;
        let any = library.any_weights(problem.dtype, weights_sizes)?;
        let windows = Windows {
            strides: &of(|window| window.stride),
            dilations: &of(|window| window.dilation),
            low: &of(|window| window.low),
            high: &of(|window| window.high),
        };
        let tensors = [&source, &any, &destination];
        let bias = match problem.epilogue {
            Epilogue::None => None,
            Epilogue::Bias | Epilogue::BiasRelu => {
                Some(library.vector(problem.dtype, (problem.groups * problem.features) as i64)?)
            }
        };
        let forward = library.forward(tensors, bias.as_ref(), &windows)?;
        let description = match problem.kind {
            Kind::Forward => forward,
            Kind::BackwardData => library.backward_data(tensors, &windows, &forward)?,
            Kind::BackwardWeights => {
                let any = library.any_weights(DType::F32, weights_sizes)?;
                library.backward_weights([&source, &any, &destination], &windows, &forward)?
            }
        };
        let query = if is_gradient { QUERY_WEIGHTS_GRADIENT } else { QUERY_WEIGHTS };
        let weights = library.preferred(&description, query)?;
        let fast = !library.implementation(&description)?.starts_with("ref");
        let convolution = library.primitive(description)?;
        let (from, to) = match is_gradient {
            true => (&weights, program_weights),
            false => (program_weights, &weights),
        };
        let change = |add| library.primitive(library.reorder(from, to, add)?);
        let reorder = change(false)?;
        let add = (is_gradient && problem.parts > 1).then(|| change(true)).transpose()?;
        let weights_bytes = library.bytes(&weights);
        let step =
            Step { convolution, bias, source, destination, weights, weights_bytes, reorder, add };
        Ok((step, fast))
    }
}

impl Primitive {
    /// [`Primitive::run`] with a scratchpad that is taken for the run.
    ///
    /// # Safety
    /// The tensors are as [`Primitive::run`] needs them.
    pub(super) unsafe fn run_with_scratchpad(&self, tensors: &[Tensor<'_>]) -> Result<(), String> {
        let working = Scratch::take(self.scratchpad_bytes());
        // SAFETY: the caller vouches for the tensors; the scratchpad has its bytes.
        unsafe { self.run(tensors, working.as_ptr()) }
    }
}
