//! Linear algebra: factorizations, systems of equations, determinants. Matrices are the last two
//! axes; axes before them are batches.

use std::panic::Location;

use crate::trace::control::scan;
use crate::trace::custom::custom_jvp;
use crate::trace::op::{Precision, TriangularSolveOp};
use crate::trace::ops::{
    IndexMode, arange, broadcast_shapes, complex, concatenate, expect_square, eye, ones,
    triangular_solve, where_, zeros_like,
};
use crate::trace::tensor::{Tensor, at_line, fail_op, function};
use crate::trace::types::{DType, Shape};
use crate::trace::vmap::vmap;

const LOWER: TriangularSolveOp =
    TriangularSolveOp { left_side: true, lower: true, transpose_a: false, unit_diagonal: false };
const UNIT_LOWER: TriangularSolveOp = TriangularSolveOp { unit_diagonal: true, ..LOWER };
const UPPER: TriangularSolveOp = TriangularSolveOp { lower: false, ..LOWER };

/// `jax.scipy.linalg.cho_solve`: the `X` of `L L^H X = B`, for the lower triangular
/// `l = cholesky(a)`. `b` is `[.., n, m]`, or has one axis less.
#[track_caller]
pub fn cho_solve(l: Tensor, b: Tensor) -> Tensor {
    let _scope = function("cho_solve");
    at_line(Location::caller(), || {
        let half = triangular_solve(l, b, LOWER);
        triangular_solve(l.conj(), half, TriangularSolveOp { transpose_a: true, ..LOWER })
    })
}

/// `f` of each matrix of a batch; `batch` is the axes before the last two of all arguments.
pub(super) fn for_each(
    batch: &[usize],
    f: impl Fn(&[Tensor]) -> Vec<Tensor>,
    args: &[Tensor],
) -> Vec<Tensor> {
    if batch.is_empty() {
        return f(args);
    }
    let count = Shape::from(batch).numel();
    let merged = |x: &Tensor| {
        let shape = x.shape();
        x.reshape([&[count], &shape[batch.len()..]].concat())
    };
    let apart = |x: Tensor| {
        let shape = x.shape();
        x.reshape([batch, &shape[1..]].concat())
    };
    let args: Vec<Tensor> = args.iter().map(merged).collect();
    let results = vmap(|args: Vec<Tensor>| f(&args))(args);
    results.into_iter().map(apart).collect()
}

/// The axes of `a` before the last two.
pub(super) fn batch_of(a: Tensor) -> Shape {
    let shape = a.shape();
    Shape::from(&shape[..shape.rank() - 2])
}

/// `lax.linalg.lu`: `P a = L U` by elimination with the largest pivot of each column, for square
/// matrices `a: [.., n, n]` of f32, f64, c64 or c128. Gives L (below the diagonal, which is ones and not there)
/// and U together; the pivots, `i32[.., n]`: the row exchanged with row `i`; and the permutation,
/// `i32[.., n]`: which row of `a` is row `i` of `L U`.
#[track_caller]
pub fn lu(a: Tensor) -> (Tensor, Tensor, Tensor) {
    let _scope = function("lu");
    at_line(Location::caller(), || {
        expect_square("lu", a);
        let all = for_each(
            &batch_of(a),
            |args| {
                let (lu, pivots, permutation) = lu_of_matrix(args[0]);
                vec![lu, pivots, permutation]
            },
            &[a],
        );
        (all[0], all[1], all[2])
    })
}

/// [`lu`] of one matrix, with its derivative in closed form: `L' = L tril(M, -1)` and `U' = triu(M)
/// U` with `M = L^-1 P a' U^-1` (de Hoog, Anderssen & Lukas 2011).
pub(super) fn lu_of_matrix(a: Tensor) -> (Tensor, Tensor, Tensor) {
    let rule = |a: Tensor, t: Tensor| {
        let (lu, pivots, permutation) = eliminate(a);
        let solved = triangular_solve(lu, rows(t, permutation), UNIT_LOWER);
        let right = TriangularSolveOp { left_side: false, ..UPPER };
        let m = triangular_solve(lu, solved, right);
        let unit = lu.tril(-1) + eye(lu.dim(0), lu.dtype());
        let l = unit.matmul_with(m.tril(-1), Precision::Highest);
        let u = m.triu(0).matmul_with(lu.triu(0), Precision::Highest);
        let none = (zeros_like(pivots), zeros_like(permutation));
        ((lu, pivots, permutation), (l + u, none.0, none.1))
    };
    custom_jvp(eliminate, rule)(a)
}

fn rows(x: Tensor, order: Tensor) -> Tensor {
    x.take_mode(order, 0, IndexMode::Clip)
}

/// Gaussian elimination, one column an iteration.
fn eliminate(a: Tensor) -> (Tensor, Tensor, Tensor) {
    let numbers = arange(a.dim(0), DType::I32);
    let step = |(a, permutation): (Tensor, Tensor), k: Tensor| {
        let column = a.dynamic_index_clamped(1, k).abs();
        let pivot = where_(numbers.ge(k), column, f64::NEG_INFINITY).argmax(0);
        let order = where_(numbers.eq(k), pivot, numbers);
        let order = where_(numbers.eq(pivot), k, order);
        let (a, permutation) = (rows(a, order), rows(permutation, order));
        let (row, column) = (a.dynamic_index_clamped(0, k), a.dynamic_index_clamped(1, k));
        let head = row.dynamic_index_clamped(0, k);
        // A column of zeros is left unchanged.
        let divisor = where_(head.eq(0.0), 1.0, head);
        let below = numbers.gt(k);
        let factors = where_(below, column / divisor, column);
        let kept = below.expand_dims(1) & below.expand_dims(0);
        let outer = factors.expand_dims(1) * row.expand_dims(0);
        let a = a.dynamic_update_index_clamped(1, k, factors);
        ((where_(kept, a - outer, a), permutation), pivot)
    };
    let ((lu, permutation), pivots) = scan(step, (a, numbers), numbers);
    (lu, pivots, permutation)
}

/// The solution for the matrix of which these are the factors.
pub(super) fn lu_solve(lu: Tensor, permutation: Tensor, b: Tensor) -> Tensor {
    triangular_solve(lu, triangular_solve(lu, rows(b, permutation), UNIT_LOWER), UPPER)
}

/// The solution of `a x = b` for one matrix. Its derivative is a solution with the same factors.
fn solve_matrix(a: Tensor, b: Tensor) -> Tensor {
    let solution = |(a, b): (Tensor, Tensor)| {
        let (lu, _, permutation) = lu_of_matrix(a);
        lu_solve(lu, permutation, b)
    };
    let rule = |(a, b): (Tensor, Tensor), (ta, tb): (Tensor, Tensor)| {
        let (lu, _, permutation) = lu_of_matrix(a);
        let x = lu_solve(lu, permutation, b);
        let rest = tb - ta.matmul_with(x, Precision::Highest);
        (x, lu_solve(lu, permutation, rest))
    };
    custom_jvp(solution, rule)((a, b))
}

/// `jnp.linalg.solve`: the x of `a x = b`, for square matrices `a: [.., n, n]` of f32, f64, c64 or
/// c128, and `b` a vector `[n]` or matrices `[.., n, m]`, whose axes before the last two broadcast. NaN or
/// infinite where `a` is singular.
///
/// ```
/// use podracer::trace::numpy::solve;
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|(a, b): (Tensor, Tensor)| solve(a, b));
/// let (a, b) = (Array::from([[1.0f32, 2.0], [3.0, 4.0]]), Array::from([5.0f32, 11.0]));
/// assert_eq!(f.call((a, b))?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn solve(a: Tensor, b: Tensor) -> Tensor {
    let _scope = function("solve");
    at_line(Location::caller(), || {
        expect_square("solve", a);
        let (left, right) = (a.ty(), b.ty());
        let n = left.shape[left.rank() - 1];
        let vector = right.rank() == 1;
        let size = if vector { right.shape.first() } else { right.shape.iter().rev().nth(1) };
        if right.dtype != left.dtype || size != Some(&n) {
            let problem = format!(
                "takes right sides [{n}] or [.., {n}, m] of {} for {left}, and was given {right}",
                left.dtype
            );
            fail_op("solve", problem);
        }
        let b = if vector { b.expand_dims(1) } else { b };
        let batch = broadcast_shapes("solve", &[batch_of(a), batch_of(b)]);
        let full = |x: Tensor| -> Tensor {
            let shape = x.shape();
            let matrix = &shape[shape.rank() - 2..];
            x.broadcast_to([&batch[..], matrix].concat())
        };
        let x = for_each(&batch, |x| vec![solve_matrix(x[0], x[1])], &[full(a), full(b)])[0];
        if vector { x.squeeze(-1) } else { x }
    })
}

/// `jnp.linalg.inv`: the inverses of square matrices `a: [.., n, n]` of f32, f64, c64 or c128. To solve a
/// system, [`solve`] is faster and more exact.
#[track_caller]
pub fn inv(a: Tensor) -> Tensor {
    let _scope = function("inv");
    at_line(Location::caller(), || {
        expect_square("inv", a);
        solve(a, eye(a.dim(-1), a.dtype()))
    })
}

/// -1 or 1 by the number of rows exchanged, of the type of `like`.
fn parity(pivots: Tensor, like: Tensor) -> Tensor {
    let exchanged = pivots.ne(arange(pivots.dim(0), DType::I32)).to(DType::I32).sum(..);
    (1 - (exchanged & 1) * 2).to(like.dtype())
}

/// `jnp.linalg.slogdet`: the sign (-1, 0 or 1) of the determinant, and the logarithm of its
/// absolute value (`-inf` of singular matrices), of square matrices `a: [.., n, n]` of f32, f64, c64 or
/// c128. The sign is a number on the unit circle for complex matrices; for real ones it has no
/// derivative.
#[track_caller]
pub fn slogdet(a: Tensor) -> (Tensor, Tensor) {
    let _scope = function("slogdet");
    at_line(Location::caller(), || {
        expect_square("slogdet", a);
        let log_of = |a: Tensor, lu: Tensor, pivots: Tensor| {
            let diagonal = lu.diagonal();
            (parity(pivots, a) * diagonal.sign().prod(..), diagonal.abs().log().sum(..))
        };
        let value = |a: Tensor| {
            let (lu, pivots, _) = lu_of_matrix(a);
            log_of(a, lu, pivots)
        };
        // A transposition sees that the factors' solution is linear in `t`; of `solve`, which has a
        // derivative of its own, it does not.
        let rule = |a: Tensor, t: Tensor| {
            let (lu, pivots, permutation) = lu_of_matrix(a);
            let (sign, log) = log_of(a, lu, pivots);
            let slope = lu_solve(lu, permutation, t).trace();
            if !a.dtype().is_complex() {
                return ((sign, log), (zeros_like(sign), slope));
            }
            let rotation = complex(zeros_like(log), slope.imag());
            ((sign, log), (sign * rotation, slope.real()))
        };
        let both = |x: &[Tensor]| {
            let (sign, log) = custom_jvp(value, rule)(x[0]);
            vec![sign, log]
        };
        let all = for_each(&batch_of(a), both, &[a]);
        (all[0], all[1])
    })
}

/// `jnp.linalg.det`: the determinants of square matrices `a: [.., n, n]` of f32, f64, c64 or c128.
/// The derivative is that of the cofactors, and is right for singular matrices too.
#[track_caller]
pub fn det(a: Tensor) -> Tensor {
    let _scope = function("det");
    at_line(Location::caller(), || {
        expect_square("det", a);
        for_each(&batch_of(a), |x| vec![det_of_matrix(x[0])], &[a])[0]
    })
}

fn det_of_matrix(a: Tensor) -> Tensor {
    let n = a.dim(0);
    let at = |i: usize, j: usize| a.index_axis(0, i as isize).index_axis(0, j as isize);
    // The minor of the first row's element `j`: of the other two columns, in cyclic order.
    let minor =
        |j: usize, k: usize, l: usize| at(0, j) * (at(1, k) * at(2, l) - at(1, l) * at(2, k));
    match n {
        0 => ones([], a.dtype()),
        1 => at(0, 0),
        2 => at(0, 0) * at(1, 1) - at(0, 1) * at(1, 0),
        3 => minor(0, 1, 2) + minor(1, 2, 0) + minor(2, 0, 1),
        _ => {
            let value = |a: Tensor| {
                let (lu, pivots, _) = lu_of_matrix(a);
                parity(pivots, a) * lu.diagonal().prod(..)
            };
            custom_jvp(value, cofactors)(a)
        }
    }
}

/// The determinant of `a` and its derivative along `t`, `trace(adj(a) t)`. `adj(a) t = det(a)
/// a^-1 t` is computed from the factors without dividing by the last pivot, which is zero where
/// the rank is one less than full; where it is less still, the derivative is zero. As in JAX.
fn cofactors(a: Tensor, t: Tensor) -> (Tensor, Tensor) {
    let (lu, pivots, permutation) = lu_of_matrix(a);
    let n = a.dim(0) as isize;
    let products = lu.diagonal().cumprod(0) * parity(pivots, a);
    let (det, before) = (products.index_axis(0, n - 1), products.index_axis(0, n - 2));
    let corner = eye(a.dim(0), a.dtype()).index_axis(0, n - 1);
    let last = corner.expand_dims(0) * corner.expand_dims(1);
    let upper = where_(last.eq(1.0), 1.0 / before, lu);
    let probe = triangular_solve(upper, ones([a.dim(0)], a.dtype()), UPPER);
    let lost = (!probe.is_finite()).any(..);
    let x = rows(where_(lost, 0.0, t), permutation);
    let x = triangular_solve(upper, x, UNIT_LOWER);
    let (head, tail) =
        (x.slice_axis(0, 0, n as usize - 1), x.slice_axis(0, n as usize - 1, n as usize));
    let x = triangular_solve(upper, concatenate(&[head * det, tail], 0), UPPER);
    (det, where_(lost, 0.0, x.trace()))
}
