//! Gradients of large batches in parts.

use std::panic::Location;

use crate::trace::control::{ScanOptions, scan_with, types_of};
use crate::trace::ops::{arange, zeros};
use crate::trace::tensor::{at_line, fail_op, function, trace_tree};
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::{self, Tree};

/// Combination of the results of [`microbatch`]: `optax.microbatching.AccumulationType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulator {
    /// Sum.
    Sum,
    /// Mean: the sum divided by the number of parts.
    Mean,
    /// Mean, updated with each part, which needs no division of a large sum.
    RunningMean,
    /// Results of examples, joined along their first axis in the order of the examples.
    Concat,
}

/// Returns a function that applies `f` to `microbatch_size` examples at a time, in a loop, and combines the
/// results: `optax.microbatching.microbatch`. Memory is that of one part.
///
/// The argument of `f` has the examples along the first axis of every leaf. As in optax, part `i` of `n` has
/// the examples `i`, `i + n`, `i + 2 n`, ... What `f` captures is the same for all parts.
///
/// ```
/// use podracer::optim::{Accumulator, microbatch};
/// use podracer::{Array, Tensor, grad, interpret};
///
/// let gradient = interpret(|(w, x): (Tensor, Tensor)| {
///     let of_part = move |x: Tensor| grad(|w: Tensor| (x * w).square().sum(..))(w);
///     microbatch(of_part, 2, Accumulator::Sum)(x)
/// });
/// let x = Array::from([1.0f32, 2.0, 3.0, 4.0]);
/// assert_eq!(gradient.call((Array::from(0.5f32), x))?.item::<f32>()?, 30.0);
/// # Ok::<(), podracer::Error>(())
/// ```
///
/// # Errors
/// The function ends the trace if the first axes differ or are no multiple of `microbatch_size`, if it is
/// 0, or if results are not those of the combination: means are of floats, and joined ones have an axis.
#[track_caller]
pub fn microbatch<A: Tree<Tensor>, B: Tree<Tensor>>(
    f: impl Fn(A) -> B,
    microbatch_size: usize,
    accumulator: Accumulator,
) -> impl Fn(A) -> B {
    let at = Location::caller();
    move |batch: A| {
        let _scope = function("microbatch");
        accumulated(&f, microbatch_size, accumulator, &batch, at)
    }
}

fn accumulated<A: Tree<Tensor>, B: Tree<Tensor>>(
    f: &dyn Fn(A) -> B,
    size: usize,
    accumulator: Accumulator,
    batch: &A,
    at: &'static Location<'static>,
) -> B {
    let count = at_line(at, || parts(batch, size));
    let examples = at_line(at, || divided(batch, size, count));
    if accumulator == Accumulator::Concat {
        let results = scan_with(|(), x| ((), f(x)), (), examples, ScanOptions::length(count)).1;
        return at_line(at, || joined(&results));
    }
    let start = at_line(at, || {
        let first = tree::leaves(&examples).into_iter().map(|leaf| leaf.index_axis(0, 0));
        let first: A = tree::replace(batch, first.collect::<Vec<_>>());
        let (trace, result) = trace_tree::<A, B>("microbatch", at, &types_of(&first), f);
        let zeros: Vec<Tensor> =
            trace.program.output_types().map(|ty| zero_of(ty, accumulator)).collect();
        tree::replace(&result, zeros)
    });
    let add = |sum: B, (i, x): (Tensor, A)| {
        let part = f(x);
        (at_line(at, || added(accumulator, i, &sum, &part)), ())
    };
    let indices = at_line(at, || arange(count, DType::I32));
    let (sum, ()) = scan_with(add, start, (indices, examples), ScanOptions::length(count));
    if accumulator != Accumulator::Mean {
        return sum;
    }
    let means = tree::leaves(&sum).into_iter().map(|leaf| leaf / count as f64);
    at_line(at, || tree::replace(&sum, means.collect::<Vec<_>>()))
}

/// Returns the number of parts of a batch.
#[track_caller]
fn parts<A: Tree<Tensor>>(batch: &A, size: usize) -> usize {
    let types: Vec<TensorType> = tree::leaves(batch).into_iter().map(Tensor::ty).collect();
    let examples = types.first().and_then(|ty| ty.shape.first().copied());
    if let Some(other) = types.iter().find(|ty| ty.shape.first().copied() != examples) {
        let problem = format!("first axes must be equal, and are in {} and {other}", types[0]);
        fail_op("microbatch", problem);
    }
    match examples {
        Some(examples) if size > 0 && examples > 0 && examples.is_multiple_of(size) => {
            examples / size
        }
        _ => {
            let there = examples.map_or("no first axis".into(), |n| format!("{n} examples"));
            let problem =
                format!("takes a multiple of {size} examples, at least 1; there is {there}");
            fail_op("microbatch", problem)
        }
    }
}

/// Returns the examples of each part along a new first axis: part `i` has every `count`-th one from `i`.
#[track_caller]
fn divided<A: Tree<Tensor>>(batch: &A, size: usize, count: usize) -> A {
    let divide = |leaf: Tensor| {
        let of_one = leaf.shape();
        leaf.reshape([&[size, count], &of_one[1..]].concat()).swapaxes(0, 1)
    };
    tree::replace(batch, tree::leaves(batch).into_iter().map(divide).collect::<Vec<_>>())
}

/// Returns results `[count, size, ..]` of examples in the order of the batch.
#[track_caller]
fn joined<B: Tree<Tensor>>(results: &B) -> B {
    let join = |leaf: Tensor| {
        let shape = leaf.shape();
        if shape.rank() < 2 {
            fail_op(
                "microbatch",
                "results to join must have an axis of examples, and one is a scalar",
            );
        }
        let full = [&[shape[0] * shape[1]], &shape[2..]].concat();
        leaf.swapaxes(0, 1).reshape(full)
    };
    tree::replace(results, tree::leaves(results).into_iter().map(join).collect::<Vec<_>>())
}

/// Returns the sum or mean of no part.
#[track_caller]
fn zero_of(ty: &TensorType, accumulator: Accumulator) -> Tensor {
    if accumulator != Accumulator::Sum && !ty.dtype.is_float() {
        fail_op("microbatch", format!("means are of floats, and a result is {ty}"));
    }
    zeros(&ty.shape, ty.dtype)
}

/// Returns the combination with one more part, the `i`-th from 0.
#[track_caller]
fn added<B: Tree<Tensor>>(accumulator: Accumulator, i: Tensor, sum: &B, part: &B) -> B {
    let add = |sum: Tensor, part: Tensor| match accumulator {
        Accumulator::RunningMean => {
            let i = i.to(sum.dtype());
            let old = i / (i + 1.0);
            sum * old + part * (1.0 - old)
        }
        _ => sum + part,
    };
    let pairs = tree::leaves(sum).into_iter().zip(tree::leaves(part));
    tree::replace(sum, pairs.map(|(sum, part)| add(sum, part)).collect::<Vec<_>>())
}
