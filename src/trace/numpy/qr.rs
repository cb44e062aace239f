//! QR factorization by block Gram-Schmidt.

use super::eigen::scaled;
use super::linalg::{batch_of, for_each};
use crate::trace::control::{ScanOptions, fori_loop, scan_with};
use crate::trace::ops::{arange, is_wide_inexact, zeros_like};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

/// `jnp.linalg.qr(a)` of matrices `[.., m, n]` of f32, f64, c64 or c128: `Q: [.., m, k]` with orthonormal
/// columns and `R: [.., k, n]` upper triangular, where `k` is the smaller of `m` and `n`. The diagonal of
/// R is positive; LAPACK's has either sign. Where the first `k` columns are linearly dependent the factors
/// have NaN. Of wide matrices JAX has no derivative; here it is that of the first `m` columns.
///
/// ```
/// use podracer::trace::numpy::qr;
/// use podracer::{Array, Tensor, interpret};
/// let (q, r) = interpret(qr).call(Array::from([[3.0f32, 1.0, 2.0], [4.0, 2.0, 1.0]]))?;
/// assert_eq!([q.shape().to_vec(), r.shape().to_vec()], [vec![2, 2], vec![2, 3]]);
/// assert!((r.to_vec::<f32>()?[0] - 5.0).abs() < 1e-5);
/// # Ok::<(), podracer::Error>(())
/// ```
///
/// # Errors
/// Ends the trace if `a` has another element type or fewer than two axes.
#[op(at_line)]
pub fn qr(a: Tensor) -> (Tensor, Tensor) {
    let ty = a.ty();
    if ty.rank() < 2 || !is_wide_inexact(ty.dtype) {
        let expected = "takes matrices of f32, f64, c64 or c128";
        fail_op("qr", format!("{expected}, and was given {ty}"));
    }
    let of_matrix = |args: &[Tensor]| {
        let a = args[0];
        let columns = a.dim(0).min(a.dim(1));
        let q = orthonormal_columns(a.slice_axis(1, 0, columns));
        vec![q, q.t().conj().matmul(a).triu(0)]
    };
    let all = for_each(&batch_of(a), of_matrix, &[a]);
    (all[0], all[1])
}

/// Many columns are orthonormalized in blocks of this many, so that most of the work is in products
/// of matrices.
const BLOCK: usize = 32;

/// Up to this many columns are one block: one loop, which compiles fastest.
const MAX_BLOCK_COLUMNS: usize = 128;

/// The matrix Q of `a = Q R` with R upper triangular and its diagonal positive: orthonormal
/// columns that span those of the real or complex `a: [m, n]`, `m >= n`. Equals LAPACK's QR after its sign
/// correction. Columns that depend on those before give NaN.
///
/// Block Gram-Schmidt, each projection done twice (Giraud, Langou & Rozloznik 2005: twice is
/// enough for orthogonality to rounding).
#[op]
pub fn orthonormal_columns(a: Tensor) -> Tensor {
    let ty = a.ty();
    if ty.rank() != 2 || ty.shape[0] < ty.shape[1] || !ty.dtype.is_inexact() {
        fail_op(
            "orthonormal_columns",
            format!("takes a tall matrix of floats or complex numbers, and was given {ty}"),
        );
    }
    let a = if ty.shape[1] == 0 { a } else { scaled(a).0 };
    orthonormal_columns_unscaled(a)
}

/// [`orthonormal_columns`] of a matrix of floats whose squares neither overflow nor vanish, such as
/// draws of the normal distribution. It compiles in less time: XLA would compute a draw once more
/// where the largest element is taken, and once more where it is divided.
#[track_caller]
pub(crate) fn orthonormal_columns_unscaled(a: Tensor) -> Tensor {
    let (m, n) = (a.dim(0), a.dim(1));
    if n == 0 {
        return a;
    }
    // From here on the columns are rows, which are contiguous.
    let rows = a.t();
    if n <= MAX_BLOCK_COLUMNS {
        return orthonormal_rows(rows).t();
    }
    // The first block takes the remainder.
    let first = (n - 1) % BLOCK + 1;
    let head = orthonormal_rows(rows.slice_axis(0, 0, first));
    // One loop over the others, whose body is compiled once. Rows that are not computed yet are
    // zeros, along which a projection takes nothing away.
    let blocks = rows.slice_axis(0, first, n).reshape([(n - first) / BLOCK, BLOCK, m]);
    let starts = arange(blocks.dim(0), DType::I32) * BLOCK as i32 + first as i32;
    let done = head.pad(&[0, 0], &[(n - first) as i64, 0], 0.0);
    let step = |done: Tensor, (mut block, start): (Tensor, Tensor)| {
        block = twice(block, |block| {
            orthonormal_rows(block - block.matmul(done.t().conj()).matmul(done))
        });
        (done.dynamic_update_slice_clamped(block, &[start, zeros_like(start)]), ())
    };
    let (done, ()) = scan_with(step, done, (blocks, starts), ScanOptions::default());
    done.t()
}

/// Gram-Schmidt over rows, one row an iteration.
#[track_caller]
fn orthonormal_rows(rows: Tensor) -> Tensor {
    let numbers = arange(rows.dim(0), DType::I32);
    let step = |done: Tensor, (row, i): (Tensor, Tensor)| {
        let v = twice(row, |v| v - done.conj().matmul(v).matmul(done));
        let v = v / v.norm().to(v.dtype());
        (done.dynamic_update_index_clamped(0, i, v), ())
    };
    scan_with(step, zeros_like(rows), (rows, numbers), ScanOptions::default()).0
}

/// A loop of two iterations, whose body is compiled once.
#[track_caller]
fn twice(start: Tensor, body: impl Fn(Tensor) -> Tensor) -> Tensor {
    fori_loop(0, 2, |_, x| body(x), start)
}
