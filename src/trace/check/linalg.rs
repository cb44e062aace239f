//! The types of matrix factorizations and solutions.

use super::problem::{Problem, ensure};
use crate::trace::op::TriangularSolveOp;
use crate::trace::types::{DType, TensorType};

fn ensure_square(x: &TensorType, dtypes: &[DType]) -> Result<(), Problem> {
    let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
    ensure!(
        dtypes.contains(&x.dtype),
        [0],
        "takes {}, got {x}; convert it with .to(dtype)",
        names.join(" or ")
    );
    let rank = x.rank();
    ensure!(
        rank >= 2 && x.shape[rank - 1] == x.shape[rank - 2],
        [0],
        "takes square matrices [.., n, n], got {x}"
    );
    Ok(())
}

pub(super) fn infer_cholesky(x: &TensorType) -> Result<TensorType, Problem> {
    ensure_square(x, &[DType::F32, DType::F64, DType::C64, DType::C128])?;
    Ok(x.clone())
}

pub(super) fn infer_triangular_solve(
    op: &TriangularSolveOp,
    a: &TensorType,
    b: &TensorType,
) -> Result<TensorType, Problem> {
    ensure_square(a, &[DType::F32, DType::F64, DType::C64, DType::C128])?;
    ensure!(a.dtype == b.dtype, [0, 1], "element types differ: a {a}, b {b}");
    let rank = a.rank();
    ensure!(
        b.rank() == rank && b.shape[..rank - 2] == a.shape[..rank - 2],
        [0, 1],
        "batch axes differ: a {a}, b {b}"
    );
    let axis = if op.left_side { rank - 2 } else { rank - 1 };
    ensure!(
        b.shape[axis] == a.shape[rank - 1],
        [0, 1],
        "a {a} does not fit axis {axis} of b {b} ({})",
        b.shape[axis]
    );
    Ok(b.clone())
}
