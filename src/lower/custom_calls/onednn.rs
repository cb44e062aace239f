//! Convolutions on CPU by oneDNN, as native functions that compiled programs call.
//!
//! [`Problem::of`] finds the convolution of a neural network in the operation: the forward pass, or
//! one of its two gradients, which the transposition of a convolution writes as convolutions of
//! other forms. The emitter then writes a call of [`Convolution`], which runs oneDNN's primitive for
//! it or, with fewer multiplications, oneDNN's products of matrices between Winograd's transforms
//! (`docs/decisions/0023-winograd-convolutions.md`). [`Matmul`] is the product of large matrices, of the dense layers of such networks. All else
//! stays the compiler's. The measurements are in
//! `docs/decisions/0016-convolutions-by-onednn.md`.
//!
//! A primitive runs on one thread; the batch is cut into [parts](Problem::parts), which the
//! compiler's own threads compute. So no second set of threads competes for the cores, and results
//! have the same bits in every run.

mod library;
mod matmul;
mod plan;
mod problem;
mod scratch;
mod winograd;

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use half::bf16;

use self::library::Library;
pub(crate) use self::matmul::Matmul;
pub(in crate::lower) use self::matmul::product_by_onednn;
use self::plan::Value;
pub(in crate::lower) use self::problem::{Algorithm, Epilogue, Kind, Problem};
use super::{Kernel, KernelError};
use crate::error::Result;
use crate::lower::custom_calls::call::Call;
use crate::native::{Lock, Part, Settings};
use crate::trace::op::{ConvDims, Precision};
use crate::trace::types::{DType, TensorType};

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// True if the library is published for this machine.
pub(crate) fn is_published() -> bool {
    Lock::get().part("onednn").is_ok_and(Part::is_published)
}

/// Loads the library, which is fetched if it is nowhere.
///
/// # Errors
/// [`Error::Native`](crate::Error::Native) if the library cannot be found, fetched or loaded.
pub(crate) fn load() -> Result<()> {
    if LIBRARY.get().is_none() {
        let part = Lock::get().part("onednn")?;
        let member = part.wheel()?.member("library").expect("the lock file has it");
        let root = Settings::from_env()?.locate(part)?.root;
        let library = Library::load(&root.join(&member.path))?;
        // Another thread may have been faster.
        let _ = LIBRARY.set(library);
    }
    Ok(())
}

/// The convolution that oneDNN computes, if it has a fast implementation of the operation and may
/// use `threads` of them, of which there may be none. It is then ready to run.
pub(in crate::lower) fn by_onednn(
    dims: &ConvDims,
    lhs: &TensorType,
    rhs: &TensorType,
    threads: usize,
) -> Option<Problem> {
    let direct = Problem::of(dims, lhs, rhs, threads)?;
    let is_fast = |problem: &Problem| plan(problem).is_ok_and(|plan| plan.is_fast());
    let parts = match dims.precision {
        Precision::Highest => None,
        Precision::Default | Precision::High => {
            winograd::parts(&direct, direct.busy_threads(threads))
        }
    };
    if let Some(parts) = parts {
        let tiled = Problem { algorithm: Algorithm::Winograd, parts, ..direct.clone() };
        if is_fast(&tiled) {
            return Some(tiled);
        }
    }
    is_fast(&direct).then_some(direct)
}

fn library() -> Result<&'static Library, String> {
    LIBRARY.get().ok_or_else(|| "oneDNN is not loaded".into())
}

/// A convolution, ready to run.
enum Plan {
    Direct(Box<plan::Plan>),
    Winograd(Box<winograd::Plan>),
}

impl Plan {
    /// Returns true if the library has code made for this processor.
    fn is_fast(&self) -> bool {
        match self {
            Plan::Direct(plan) => plan.is_fast(),
            Plan::Winograd(plan) => plan.is_fast(),
        }
    }
}

fn plan(problem: &Problem) -> Result<Arc<Plan>, String> {
    static PLANS: Plans<Problem, Plan> = Plans::new();
    PLANS.get_or_make(problem, || {
        let library = library()?;
        Ok(match problem.algorithm {
            Algorithm::Direct => Plan::Direct(Box::new(plan::Plan::new(library, problem)?)),
            Algorithm::Winograd => Plan::Winograd(Box::new(winograd::Plan::new(library, problem)?)),
        })
    })
}

/// Plans of the problems that programs have, each made at its first use.
struct Plans<K, P>(OnceLock<Mutex<HashMap<K, Arc<P>>>>);

impl<K: Clone + Eq + Hash, P> Plans<K, P> {
    const fn new() -> Plans<K, P> {
        Plans(OnceLock::new())
    }

    fn get_or_make(
        &self,
        problem: &K,
        make: impl FnOnce() -> Result<P, String>,
    ) -> Result<Arc<P>, String> {
        let plans =
            || self.0.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans().get(problem) {
            return Ok(plan.clone());
        }
        // Outside the lock: a plan takes milliseconds.
        let plan = Arc::new(make()?);
        Ok(plans().entry(problem.clone()).or_insert(plan).clone())
    }
}

/// A convolution or one of its gradients, as the attribute `problem` says.
pub(crate) struct Convolution;

impl Kernel for Convolution {
    const TARGET: &'static str = "podracer.onednn.3.2.conv.3";

    fn run(call: &mut Call<'_>) -> Result<(), KernelError> {
        let problem = Problem::decode(&call.array::<i64>("problem")?)?;
        match (problem.dtype, problem.byte_scale) {
            (DType::BF16, _) => convolve::<bf16>(&problem, call),
            (_, None) => convolve::<f32>(&problem, call),
            (_, Some(_)) => convolve_bytes(&problem, call),
        }
    }
}

fn convolve<T: Value>(problem: &Problem, call: &mut Call<'_>) -> Result<(), KernelError> {
    let (first, second) = (call.operand::<T>(0)?.data, call.operand::<T>(1)?.data);
    let result = call.result::<T>(0)?;
    let bias = checked_bias(problem, [first.len(), second.len(), result.len()], call)?;
    let plan = plan(problem)?;
    let parallel = |count, task: plan::Task<'_>| call.parallel(count, task);
    match &*plan {
        Plan::Direct(plan) => plan.run(problem, [first, second], bias, result, &parallel)?,
        Plan::Winograd(plan) => {
            // Its elements are f32, or there would be no plan.
            let bias = bias.map(bytemuck::cast_slice);
            let [first, second] = [first, second].map(bytemuck::cast_slice);
            let result = bytemuck::cast_slice_mut(result);
            plan.run::<f32>(problem, first, second, bias, result, &parallel)?;
        }
    }
    Ok(())
}

/// A convolution of an image of bytes, or its kernel's gradient.
fn convolve_bytes(problem: &Problem, call: &mut Call<'_>) -> Result<(), KernelError> {
    let (image, second) = (call.operand::<u8>(0)?.data, call.operand::<f32>(1)?.data);
    let result = call.result::<f32>(0)?;
    let bias = checked_bias(problem, [image.len(), second.len(), result.len()], call)?;
    let plan = plan(problem)?;
    let parallel = |count, task: plan::Task<'_>| call.parallel(count, task);
    match &*plan {
        Plan::Direct(_) => Err(format!("no plan takes bytes for {problem:?}").into()),
        Plan::Winograd(plan) => Ok(plan.run(problem, image, second, bias, result, &parallel)?),
    }
}

/// Checks the lengths of the operands and the result; gives the bias, if there is one.
fn checked_bias<'c, T: Value>(
    problem: &Problem,
    [first, second, result]: [usize; 3],
    call: &Call<'c>,
) -> Result<Option<&'c [T]>, KernelError> {
    let [source, weights, destination] = match problem.kind {
        Kind::Forward => [first, second, result],
        Kind::BackwardData => [result, second, first],
        Kind::BackwardWeights => [first, result, second],
    };
    if [source, destination] != [problem.source_len(), problem.destination_len()]
        || weights < problem.weights_span()
    {
        return Err(format!("the tensors do not fit {problem:?}").into());
    }
    let bias = match problem.epilogue {
        Epilogue::None => None,
        Epilogue::Bias | Epilogue::BiasRelu => Some(call.operand::<T>(2)?.data),
    };
    if bias.is_some_and(|bias| bias.len() != problem.groups * problem.features) {
        return Err(format!("the bias does not fit {problem:?}").into());
    }
    Ok(bias)
}
