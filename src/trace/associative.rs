//! [`associative_scan`]: running results of an associative operation, in a logarithmic number of
//! steps.

use std::panic::Location;

use super::ops::{self, axis_of};
use super::tensor::{Tensor, at_line, fail_op};
use crate::tree::{self, Path, Tree};

/// `lax.associative_scan`: all running results of `combine` along `axis`, of which every leaf has
/// the same size: `x0`, `combine(x0, x1)`, `combine(combine(x0, x1), x2)`, and so on, or from the
/// last element backwards. `combine` must be associative, and work on slices of any length along
/// the axis; it is called about `2 log2(n)` times while tracing, and the work is that of `2 n`
/// elements (Blelloch 1990).
///
/// ```
/// use podracer::trace::associative::associative_scan;
/// use podracer::{Array, Tensor, interpret};
/// // y_t = a_t y_(t-1) + b_t, as the composition of affine functions.
/// let f = interpret(|ab: (Tensor, Tensor)| {
///     let compose = |(a1, b1): (Tensor, Tensor), (a2, b2)| (a1 * a2, a2 * b1 + b2);
///     associative_scan(compose, ab, 0, false).1
/// });
/// let y = f.call((Array::from([0.5f32; 3]), Array::from([1.0f32; 3])))?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 1.5, 1.75]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn associative_scan<A: Tree<Tensor>>(
    combine: impl Fn(A, A) -> A,
    x: A,
    axis: isize,
    reverse: bool,
) -> A {
    let at = Location::caller();
    at_line(at, || {
        let mut size = None;
        x.visit_leaves(&Path::ROOT, &mut |path, leaf| {
            let here = leaf.shape()[axis_of("associative_scan", axis, leaf.rank())];
            if *size.get_or_insert(here) != here {
                let (first, ty) = (size.expect("set above"), leaf.ty());
                let path = tree::path_of("leaf ", path);
                let problem = format!(
                    "all leaves must have one size along axis {axis}: the first has {first}, \
                     {path} is {ty}"
                );
                fail_op("associative_scan", problem);
            }
        });
        let Some(size) = size else { fail_op("associative_scan", "there are no leaves") };
        let leaves: Vec<Tensor> = tree::leaves(&x);
        let axes: Vec<usize> =
            leaves.iter().map(|leaf| axis_of("associative_scan", axis, leaf.rank())).collect();
        let turned = |leaves: Vec<Tensor>| -> Vec<Tensor> {
            match reverse {
                true => leaves.iter().zip(&axes).map(|(x, &a)| x.flip(a as isize)).collect(),
                false => leaves,
            }
        };
        let both = |a: &[Tensor], b: &[Tensor]| -> Vec<Tensor> {
            let [first, second] = [a, b].map(|x_part| tree::replace(&x, x_part.iter().copied()));
            let combined = combine(first, second);
            check_combined(&x, &combined, a);
            tree::leaves(&combined)
        };
        if size < 2 {
            return tree::replace(&x, leaves);
        }
        tree::replace(&x, turned(scan(&both, turned(leaves.clone()), &axes)))
    })
}

/// Ends the trace unless `combined` has the structure of `x` and the types of `a`.
fn check_combined<A: Tree<Tensor>>(x: &A, combined: &A, a: &[Tensor]) {
    let names = ["the structure of the argument", "the structure of its result"];
    let root = "combine's result";
    if let Some(difference) =
        tree::structure_difference::<Tensor, Tensor, A, A>(x, combined, root, names)
    {
        fail_op("associative_scan", format!("combine changes the structure: {difference}"));
    }
    let mut expected = a.iter().map(|leaf| leaf.ty());
    combined.visit_leaves(&Path::ROOT, &mut |path, leaf| {
        let (expected, ty) = (expected.next().expect("one a leaf"), leaf.ty());
        if ty != expected {
            let path = tree::path_of(root, path);
            fail_op("associative_scan", format!("{path} must be {expected}, and is {ty}"));
        }
    });
}

/// Every `step`th slice of each leaf, from `start` to before `limit`.
fn every(
    leaves: &[Tensor],
    axes: &[usize],
    start: usize,
    limit: usize,
    step: usize,
) -> Vec<Tensor> {
    let one = |(x, &axis): (&Tensor, &usize)| {
        let mut limits = x.shape().to_vec();
        let (mut starts, mut steps) = (vec![0; limits.len()], vec![1; limits.len()]);
        (starts[axis], limits[axis], steps[axis]) = (start, limit, step);
        x.strided_slice(&starts, &limits, &steps)
    };
    leaves.iter().zip(axes).map(one).collect()
}

fn scan(
    combine: &impl Fn(&[Tensor], &[Tensor]) -> Vec<Tensor>,
    x: Vec<Tensor>,
    axes: &[usize],
) -> Vec<Tensor> {
    let size = x[0].shape()[axes[0]];
    if size < 2 {
        return x;
    }
    // Neighbors combined, and the running results of those: the odd indices.
    let even = every(&x, axes, 0, size - 1, 2);
    let pairs = combine(&even, &every(&x, axes, 1, size, 2));
    let odd = scan(combine, pairs, axes);
    // The even indices: the odd index before, and their own.
    let before = match size % 2 {
        0 => every(&odd, axes, 0, size / 2 - 1, 1),
        _ => odd.clone(),
    };
    let first = every(&x, axes, 0, 1, 1);
    let rest = match before[0].shape()[axes[0]] {
        0 => vec![],
        _ => combine(&before, &every(&x, axes, 2, size, 2)),
    };
    first
        .iter()
        .enumerate()
        .map(|(i, &first)| {
            let even = match rest.get(i) {
                Some(&rest) => ops::concatenate(&[first, rest], axes[i] as isize),
                None => first,
            };
            interleave(even, odd[i], axes[i])
        })
        .collect()
}

/// `even[0], odd[0], even[1], ...`; as many of both, or one even more.
fn interleave(even: Tensor, odd: Tensor, axis: usize) -> Tensor {
    let (shape, count) = (even.shape(), odd.shape()[axis]);
    let together = |even: Tensor, odd: Tensor| {
        let pairs = ops::stack(&[even, odd], axis as isize + 1);
        pairs.reshape(shape.without_axis(axis).with_axis(axis, 2 * count))
    };
    if shape[axis] == count {
        return together(even, odd);
    }
    let (start, last) = (
        even.slice_axis(axis as isize, 0, count),
        even.slice_axis(axis as isize, count, count + 1),
    );
    ops::concatenate(&[together(start, odd), last], axis as isize)
}
