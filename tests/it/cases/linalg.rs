//! Factorizations of matrices, systems of equations, determinants.

use podracer::trace::numpy::{cho_solve, det, inv, lu, slogdet, solve};
use podracer::trace::op::TriangularSolveOp;
use podracer::trace::ops::{cholesky, constant, eye, triangular_solve};
use podracer::{DType, Tensor};

use super::{Case, In, case, cases_of, distinct, x};

/// A symmetric positive definite matrix made of another one.
fn definite(x: Tensor) -> Tensor {
    let n = x.dim(-1);
    x.matmul(x.swapaxes(-1, -2)) + eye(n, x.dtype()) * 2.0
}

/// A matrix that is far from singular, and so are its triangles.
fn regular(x: Tensor) -> Tensor {
    let n = x.dim(-1);
    x * 0.5 + eye(n, x.dtype()) * 2.0
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("cholesky", &[x(&[3, 3])], |x| cholesky(definite(x[0]))).loose(8.0),
        case("cholesky/batch", &[x(&[2, 2, 3, 3])], |x| cholesky(definite(x[0]))).loose(8.0),
        case("cholesky/of one", &[x(&[1, 1])], |x| cholesky(definite(x[0]))).loose(8.0),
        case("cholesky/large", &[x(&[9, 9])], |x| cholesky(definite(x[0]))).once().loose(64.0),
        case("cholesky/not symmetric", &[x(&[2, 2])], |x| {
            cholesky(definite(x[0]) + x[0].triu(1) * 0.25)
        })
        .loose(8.0),
        case("cholesky/of nothing", &[x(&[0, 3, 3]), x(&[2, 0, 0])], |x| {
            cholesky(x[0]).sum(..) + cholesky(x[1]).sum(..)
        })
        .flat(),
        case("cholesky/solve", &[x(&[3, 3]), x(&[3, 2])], |x| {
            cho_solve(cholesky(definite(x[0])), x[1])
        })
        .loose(16.0),
    ];
    let indefinite = In::Floats(
        vec![3, 2, 2],
        vec![
            4.0, 2.0, 2.0, 3.0, // This one is positive definite.
            1.0, 2.0, 2.0, 1.0, //
            -1.0, 0.0, 0.0, 1.0,
        ],
    );
    cases.push(case("cholesky/not definite", &[indefinite], |x| cholesky(x[0])).flat());

    // The fixtures of JAX have all sixteen.
    for bits in [0, 1, 2, 3, 4, 5, 6, 7, 9, 14] {
        let bit = |i: usize| bits >> i & 1 == 1;
        let (left_side, lower) = (bit(0), bit(1));
        let (transpose_a, unit_diagonal) = (bit(2), bit(3));
        let op = TriangularSolveOp { left_side, lower, transpose_a, unit_diagonal };
        let name = |what: &str| format!("triangular_solve/{what} {op:?}");
        let name = if bits == 0 { "triangular_solve".into() } else { name("matrix") };
        let sides: &[usize] = if left_side { &[3, 2] } else { &[2, 3] };
        cases.push(
            case(name, &[x(&[3, 3]), x(sides)], move |x| triangular_solve(regular(x[0]), x[1], op))
                .loose(8.0),
        );
    }
    let op = TriangularSolveOp { left_side: true, lower: true, ..TriangularSolveOp::default() };
    cases.push(
        case("triangular_solve/batch", &[x(&[2, 3, 3]), x(&[2, 3, 4])], move |x| {
            triangular_solve(regular(x[0]), x[1], op)
        })
        .loose(8.0),
    );
    cases.push(
        case("triangular_solve/vectors", &[x(&[2, 3, 3]), x(&[2, 3])], move |x| {
            let right = TriangularSolveOp { left_side: false, ..op };
            triangular_solve(regular(x[0]), triangular_solve(regular(x[0]), x[1], op), right)
        })
        .loose(16.0),
    );
    cases.push(
        case("triangular_solve/of nothing", &[x(&[3, 3]), x(&[3, 0]), x(&[0, 0])], move |x| {
            triangular_solve(x[0], x[1], op).sum(..) + triangular_solve(x[2], x[2], op).sum(..)
        })
        .flat(),
    );

    cases.push(
        cases_of("custom_jvp/lu", &[distinct(&[3, 3])], |x| {
            let (lu, pivots, permutation) = lu(x[0]);
            vec![lu, pivots, permutation]
        })
        .once()
        .loose(64.0),
    );
    cases.push(case("custom_jvp/solve", &[x(&[3, 3]), x(&[3])], |x| solve(regular(x[0]), x[1])));
    cases.push(
        case("custom_jvp/solve a batch", &[x(&[2, 3, 3]), x(&[3, 2])], |x| {
            solve(regular(x[0]).flip(1), x[1])
        })
        .once()
        .loose(16.0),
    );
    cases.push(case("custom_jvp/inv", &[x(&[2, 2])], |x| inv(regular(x[0]))).loose(16.0));
    cases.push(
        cases_of("custom_jvp/slogdet", &[x(&[3, 3])], |x| {
            let (sign, log) = slogdet(regular(x[0]).flip(0));
            vec![sign, log]
        })
        .loose(16.0),
    );
    for n in 1..4 {
        let name = format!("mul/det {n}");
        cases.push(case(name, &[x(&[n, n])], |x| det(x[0]) * 1.5).loose(16.0));
    }
    cases.push(
        case("custom_jvp/det", &[x(&[4, 4])], |x| det(regular(x[0]).flip(0))).once().loose(64.0),
    );
    cases.push(
        case("custom_jvp/det of a batch", &[x(&[2, 4, 4])], |x| det(regular(x[0])))
            .once()
            .loose(64.0),
    );
    // Of rank n - 1, where the determinant still has a derivative.
    cases.push(
        case("custom_jvp/det of a singular matrix", &[x(&[4])], |x| {
            let zero = constant([1.0f64, 1.0, 1.0, 0.0]).to(x[0].dtype());
            det((x[0] * x[0] + 1.0).diag() * zero.expand_dims(0))
        })
        .flat(),
    );
    // Compiled, each of them is a program of many lines: one element type is enough.
    for case in cases.iter_mut().filter(|case| case.name.contains('/')) {
        case.dtypes = vec![DType::F64];
    }
    cases
}
