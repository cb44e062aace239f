//! Determinants of square matrices.

use super::linalg::{
    UNIT_LOWER, UPPER, batch_of, eliminate_column, exchange, for_each, lu_of_matrix, lu_solve, rows,
};
use crate::trace::control::scan;
use crate::trace::custom::custom_jvp;
use crate::trace::jvp::jvp;
use crate::trace::op::{Precision, TriangularSolveOp};
use crate::trace::ops::{
    IndexMode, arange, complex, expect_square, eye, ones, triangular_solve, where_, zeros_like,
};
use crate::trace::tensor::{Tensor, op};
use crate::trace::types::DType;

/// Size up to which a determinant is written out as a polynomial, which has all derivatives.
const WRITTEN_OUT: usize = 3;

/// -1 or 1 by the number of rows exchanged, of the type of `like`.
fn parity(pivots: Tensor, like: Tensor) -> Tensor {
    let exchanged = pivots.ne(arange(pivots.dim(0), DType::I32)).to(DType::I32).sum(..);
    (1 - (exchanged & 1) * 2).to(like.dtype())
}

/// `jnp.linalg.slogdet`: the sign (-1, 0 or 1) of the determinant, and the logarithm of its
/// absolute value (`-inf` of singular matrices), of square matrices `a: [.., n, n]` of f32, f64, c64 or
/// c128. The sign is a number on the unit circle for complex matrices; for real ones it has no
/// derivative.
#[op(at_line)]
pub fn slogdet(a: Tensor) -> (Tensor, Tensor) {
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
}

/// `jnp.linalg.det`: the determinants of square matrices `a: [.., n, n]` of f32, f64, c64 or c128.
/// The derivative is that of the cofactors. It and the derivatives up to the third are right for
/// singular matrices of every rank too, higher ones for ranks of `n - 3` and more.
#[op(at_line)]
pub fn det(a: Tensor) -> Tensor {
    expect_square("det", a);
    for_each(&batch_of(a), |x| vec![det_of_matrix(x[0])], &[a])[0]
}

fn det_of_matrix(a: Tensor) -> Tensor {
    if a.dim(0) <= WRITTEN_OUT {
        return polynomial(a);
    }
    let value = |a: Tensor| {
        let (lu, pivots, _) = lu_of_matrix(a);
        parity(pivots, a) * lu.diagonal().prod(..)
    };
    custom_jvp(value, derivative)(a)
}

/// The determinant of a matrix of at most [`WRITTEN_OUT`] rows.
fn polynomial(a: Tensor) -> Tensor {
    let at = |i: usize, j: usize| a.index_axis(0, i as isize).index_axis(0, j as isize);
    // The minor of the first row's element `j`: of the other two columns, in cyclic order.
    let minor =
        |j: usize, k: usize, l: usize| at(0, j) * (at(1, k) * at(2, l) - at(1, l) * at(2, k));
    match a.dim(0) {
        0 => ones([], a.dtype()),
        1 => at(0, 0),
        2 => at(0, 0) * at(1, 1) - at(0, 1) * at(1, 0),
        _ => minor(0, 1, 2) + minor(1, 2, 0) + minor(2, 0, 1),
    }
}

/// The determinant of `a` and its derivative along `t`.
///
/// Elimination with the largest pivot of the whole matrix leaves a block of [`WRITTEN_OUT`] rows, whose
/// pivots would be the smallest: the determinant is that of the block times the other pivots. The
/// polynomial of the block needs no division, so that zero pivots in it do no harm. If one of the
/// others is zero, the rank is less by more than the block has rows, and the derivative is zero.
fn derivative(a: Tensor, t: Tensor) -> (Tensor, Tensor) {
    let (factors, row_order, column_order, sign) = eliminated(a);
    let n = a.dim(0);
    let size = n - WRITTEN_OUT;
    let change = relative_change(factors, ordered(t, row_order, column_order));
    let pivots = factors.diagonal().slice_axis(0, 0, size);
    let pivots = where_(vanishes(pivots), 0.0, pivots);
    let block = |x: Tensor| x.slice_axis(0, size, n).slice_axis(1, size, n);
    let (inner, inner_change) = jvp(polynomial, block(factors), block(change));
    let growth = change.diagonal().slice_axis(0, 0, size).sum(..);
    // The pivots descend: large ones are multiplied by small ones first.
    let half = size / 2;
    let pairs = pivots.slice_axis(0, 0, half) * pivots.slice_axis(0, size - half, size).flip(0);
    let outer = sign * pairs.prod(..) * pivots.slice_axis(0, half, size - half).prod(..);
    (outer * inner, outer * (inner * growth + inner_change))
}

/// True for pivots that count as zero: the elements of the matrix divided by them may overflow.
fn vanishes(pivots: Tensor) -> Tensor {
    let least = if pivots.dtype().real() == DType::F64 {
        f64::MIN_POSITIVE
    } else {
        f64::from(f32::MIN_POSITIVE)
    };
    pivots.abs().lt(least.sqrt())
}

fn ordered(x: Tensor, row_order: Tensor, column_order: Tensor) -> Tensor {
    rows(x, row_order).take_mode(column_order, 1, IndexMode::Clip)
}

/// Elimination with complete pivoting that leaves a last block of [`WRITTEN_OUT`] rows: the factors and
/// the block in one matrix, the orders of rows and columns, and the sign of both.
fn eliminated(a: Tensor) -> (Tensor, Tensor, Tensor, Tensor) {
    let n = a.dim(0);
    let value = move |a: Tensor| {
        let numbers = arange(n, DType::I32);
        let step = |(a, row_order, column_order, sign): (Tensor, Tensor, Tensor, Tensor),
                    k: Tensor| {
            let left = numbers.ge(k);
            let left = left.expand_dims(1) & left.expand_dims(0);
            let sizes = where_(left, a.abs(), f64::NEG_INFINITY);
            let row = sizes.max(1).argmax(0);
            let column = sizes.dynamic_index_clamped(0, row).argmax(0);
            let (by_row, by_column) = (exchange(numbers, k, row), exchange(numbers, k, column));
            let sign = where_(row.eq(k).eq(column.eq(k)), sign, -sign);
            let (row_order, column_order) =
                (rows(row_order, by_row), rows(column_order, by_column));
            (eliminate_column(ordered(a, by_row, by_column), k), row_order, column_order, sign)
        };
        let step = |carry: (Tensor, Tensor, Tensor, Tensor), k: Tensor| (step(carry, k), ());
        let start = (a, numbers, numbers, ones([], a.dtype()));
        scan(step, start, arange(n - WRITTEN_OUT, DType::I32)).0
    };
    // `L tril(M, -1) + triu(M) U`, as for the factors of `lu`, and the change of the block.
    let rule = move |a: Tensor, t: Tensor| {
        let (factors, row_order, column_order, sign) = eliminated(a);
        let m = relative_change(factors, ordered(t, row_order, column_order));
        let closed = where_(in_block(n), 0.0, m);
        let regular = regular(factors);
        let unit = regular.tril(-1) + eye(n, a.dtype());
        let l = unit.matmul_with(closed.tril(-1), Precision::Highest);
        let u = closed.triu(0).matmul_with(regular.triu(0), Precision::Highest);
        let none = (zeros_like(row_order), zeros_like(column_order), zeros_like(sign));
        let tangent = l + u + (m - closed);
        ((factors, row_order, column_order, sign), (tangent, none.0, none.1, none.2))
    };
    custom_jvp(value, rule)(a)
}

/// True in the block that [`eliminated`] leaves of `n` rows and columns.
fn in_block(n: usize) -> Tensor {
    let last = arange(n, DType::I32).ge((n - WRITTEN_OUT) as i32);
    last.expand_dims(1) & last.expand_dims(0)
}

/// The factors with the identity for the block, and with 1 for pivots that vanish.
fn regular(factors: Tensor) -> Tensor {
    let n = factors.dim(0);
    let identity = eye(n, factors.dtype());
    let zero = identity.ne(0.0) & vanishes(factors);
    where_(in_block(n) | zero, identity, factors)
}

/// `M = L^-1 t U^-1` for a change `t` of the matrix of these factors. Its last block is the change of
/// the block.
fn relative_change(factors: Tensor, t: Tensor) -> Tensor {
    let regular = regular(factors);
    let right = TriangularSolveOp { left_side: false, ..UPPER };
    triangular_solve(regular, triangular_solve(regular, t, UNIT_LOWER), right)
}
