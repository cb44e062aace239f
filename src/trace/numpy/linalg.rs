//! Linear algebra: factorizations and systems of equations. Matrices are the last two
//! axes; axes before them are batches.

use crate::trace::control::scan;
use crate::trace::custom::custom_jvp;
use crate::trace::op::{Precision, TriangularSolveOp};
use crate::trace::ops::{
    IndexMode, arange, broadcast_shapes, expect_square, eye, triangular_solve, where_, zeros_like,
};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::{DType, Shape};
use crate::trace::vmap::vmap;

const LOWER: TriangularSolveOp =
    TriangularSolveOp { left_side: true, lower: true, transpose_a: false, unit_diagonal: false };
pub(super) const UNIT_LOWER: TriangularSolveOp = TriangularSolveOp { unit_diagonal: true, ..LOWER };
pub(super) const UPPER: TriangularSolveOp = TriangularSolveOp { lower: false, ..LOWER };

/// `jax.scipy.linalg.cho_solve`: the `X` of `L L^H X = B`, for the lower triangular
/// `l = cholesky(a)`. `b` is `[.., n, m]`, or has one axis less.
#[op(at_line)]
pub fn cho_solve(l: Tensor, b: Tensor) -> Tensor {
    let half = triangular_solve(l, b, LOWER);
    triangular_solve(l.conj(), half, TriangularSolveOp { transpose_a: true, ..LOWER })
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
#[op(at_line)]
pub fn lu(a: Tensor) -> (Tensor, Tensor, Tensor) {
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

pub(super) fn rows(x: Tensor, order: Tensor) -> Tensor {
    x.take_mode(order, 0, IndexMode::Clip)
}

/// Gaussian elimination, one column an iteration.
fn eliminate(a: Tensor) -> (Tensor, Tensor, Tensor) {
    let numbers = arange(a.dim(0), DType::I32);
    let step = |(a, permutation): (Tensor, Tensor), k: Tensor| {
        let column = a.dynamic_index_clamped(1, k).abs();
        let pivot = where_(numbers.ge(k), column, f64::NEG_INFINITY).argmax(0);
        let order = exchange(numbers, k, pivot);
        ((eliminate_column(rows(a, order), k), rows(permutation, order)), pivot)
    };
    let ((lu, permutation), pivots) = scan(step, (a, numbers), numbers);
    (lu, pivots, permutation)
}

/// `numbers` with the numbers `i` and `j` in each other's place.
pub(super) fn exchange(numbers: Tensor, i: Tensor, j: Tensor) -> Tensor {
    let order = where_(numbers.eq(i), j, numbers);
    where_(numbers.eq(j), i, order)
}

/// One step of an elimination, with the pivot at row and column `k`.
pub(super) fn eliminate_column(a: Tensor, k: Tensor) -> Tensor {
    let numbers = arange(a.dim(0), DType::I32);
    let (row, column) = (a.dynamic_index_clamped(0, k), a.dynamic_index_clamped(1, k));
    let head = row.dynamic_index_clamped(0, k);
    // A column of zeros is left unchanged.
    let divisor = where_(head.eq(0.0), 1.0, head);
    let below = numbers.gt(k);
    let factors = where_(below, column / divisor, column);
    let kept = below.expand_dims(1) & below.expand_dims(0);
    let outer = factors.expand_dims(1) * row.expand_dims(0);
    let a = a.dynamic_update_index_clamped(1, k, factors);
    where_(kept, a - outer, a)
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
#[op(at_line)]
pub fn solve(a: Tensor, b: Tensor) -> Tensor {
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
}

/// `jnp.linalg.inv`: the inverses of square matrices `a: [.., n, n]` of f32, f64, c64 or c128. To solve a
/// system, [`solve`] is faster and more exact.
#[op(at_line)]
pub fn inv(a: Tensor) -> Tensor {
    expect_square("inv", a);
    solve(a, eye(a.dim(-1), a.dtype()))
}
