//! Factorizations of complex matrices, eigenvalues of general ones, and what is made of them. Vectors
//! are unique up to phases, so the functions here do not depend on those, or fix them.

use podracer::trace::numpy::{self, MatrixNorm};
use podracer::trace::ops::{IndexMode, cholesky, eye, stack};
use podracer::{Array, Complex, DType, Literal, Tensor, interpret, jit, jvp};

use crate::names::Function;

fn adjoint(x: Tensor) -> Tensor {
    x.swapaxes(-1, -2).conj()
}

fn definite(x: Tensor) -> Tensor {
    x.matmul(adjoint(x)) + eye(x.dim(-1), x.dtype()) * 2.0
}

/// The products of columns by their conjugates: `[.., k, n, n]`.
fn projectors(v: Tensor) -> Tensor {
    let rows = v.swapaxes(-1, -2);
    rows.expand_dims(-1) * rows.conj().expand_dims(-2)
}

/// The last axis of `x` in an order of the eigenvalues `w` in which no two here are close.
fn in_order(x: Tensor, w: Tensor) -> Tensor {
    let order = (w.real() + w.imag() / 2.0).argsort(-1);
    let order = if x.rank() > w.rank() { order.expand_dims(-2) } else { order };
    let shape = x.shape();
    x.take_along_axis_mode(order.broadcast_to(&shape), -1, IndexMode::Clip)
}

fn ordered(w: Tensor) -> Tensor {
    in_order(w, w)
}

fn parts_of_svd(a: Tensor) -> Vec<Tensor> {
    let (u, s, vt) = numpy::svd(a, false);
    vec![u.abs(), s, vt.abs(), u.matmul(vt)]
}

fn parts_of_eig(a: Tensor) -> Vec<Tensor> {
    let (w, v) = numpy::eig(a);
    let v = in_order(v, w);
    vec![ordered(w), v, v.abs()]
}

/// The derivatives of all factorizations along `t`.
fn tangents(a: Tensor, t: Tensor) -> Vec<Tensor> {
    let all = |a: Tensor| {
        let (q, r) = numpy::qr(a);
        let (w, v) = numpy::eigh(a);
        let first = [vec![cholesky(definite(a)), q, r, w, projectors(v)], parts_of_svd(a)];
        [first.concat(), vec![numpy::pinv(a, None), ordered(numpy::eigvals(a))]].concat()
    };
    jvp(all, a, t).1
}

pub const FUNCTIONS: &[Function] = &[
    ("cholesky", |x| {
        let a = definite(x[0]);
        vec![cholesky(a), cholesky(a + x[0] / 8.0)]
    }),
    ("cholesky_solves", |x| vec![numpy::cho_solve(cholesky(definite(x[0])), x[1])]),
    ("cholesky_not_definite", |x| vec![cholesky(x[0]).is_nan()]),
    ("qr", |x| {
        let ((q, r), (q1, r1)) = (numpy::qr(x[0]), numpy::qr(x[1]));
        vec![q, r, q1, r1]
    }),
    ("qr_wide", |x| {
        let ((q, r), (q1, r1)) = (numpy::qr(x[0]), numpy::qr(x[0].slice_axis(0, 0, 0)));
        vec![q, r, q1, r1]
    }),
    ("qr_batch", |x| {
        let (q, r) = numpy::qr(x[0]);
        vec![q, r]
    }),
    ("eigh", |x| {
        let (w, v) = numpy::eigh(x[0]);
        vec![w, projectors(v), numpy::eigvalsh(x[0].matmul(x[0]))]
    }),
    ("eigh_batch", |x| {
        let (w, v) = numpy::eigh(x[0]);
        let squares = w.square().expand_dims(-2).to(v.dtype());
        vec![w, v.abs(), (v * squares).matmul(adjoint(v))]
    }),
    ("svd", |x| {
        let (u, s, vt) = numpy::svd(x[0], true);
        vec![u.abs(), s, vt.abs(), (u * s.square().to(u.dtype())).matmul(vt)]
    }),
    ("svd_tall", |x| parts_of_svd(x[0])),
    ("svd_wide", |x| parts_of_svd(x[0])),
    ("svdvals", |x| vec![numpy::svdvals(x[0]), numpy::svdvals(x[1])]),
    ("pinv", |x| {
        vec![numpy::pinv(x[0], None), numpy::pinv(x[1], None), numpy::pinv(x[2], Some(0.3))]
    }),
    ("matrix_rank", |x| {
        let of_rank_1 = x[0].slice_axis(1, 0, 1) * x[1].slice_axis(0, 0, 1);
        vec![numpy::matrix_rank(x[0], None), numpy::matrix_rank(of_rank_1, None)]
    }),
    ("lstsq", |x| {
        let (solution, residuals, rank, s) = numpy::lstsq(x[0], x[1], None);
        vec![solution, residuals, rank, s]
    }),
    ("lstsq_wide", |x| {
        let (solution, _, rank, _) = numpy::lstsq(x[0], x[1], None);
        vec![solution, rank]
    }),
    ("matrix_norms", |x| {
        let orders = [
            MatrixNorm::Frobenius,
            MatrixNorm::One,
            MatrixNorm::Infinity,
            MatrixNorm::Spectral,
            MatrixNorm::LeastSingular,
            MatrixNorm::Nuclear,
        ];
        orders.map(|order| numpy::matrix_norm(x[0], order)).to_vec()
    }),
    ("condition", |x| {
        vec![
            numpy::cond(x[0], MatrixNorm::Spectral),
            numpy::cond(x[0], MatrixNorm::LeastSingular),
            numpy::cond(x[1], MatrixNorm::One),
            numpy::cond(x[1], MatrixNorm::Frobenius),
        ]
    }),
    ("eig", |x| parts_of_eig(x[0])),
    ("eig_batch", |x| parts_of_eig(x[0])),
    ("eig_of_real", |x| {
        let parts = parts_of_eig(x[0]);
        vec![parts[0], parts[2]]
    }),
    ("eigvals", |x| [x[0], x[1]].map(|a| ordered(numpy::eigvals(a))).to_vec()),
    ("eigvals_of_real", |x| {
        let w = numpy::eigvals(x[0]);
        let powers = [1, 2, 3].map(|k| w.powi(k).sum(..));
        let size = w.abs().sum(..).to(w.dtype());
        vec![stack(&[&powers[..], &[size]].concat(), 0)]
    }),
    ("roots", |x| {
        let (p, q) = (x[0], x[1]);
        let all = [p, q, q.slice_axis(0, 0, 2), q.slice_axis(0, 0, 1)];
        all.map(|p| ordered(numpy::roots(p))).to_vec()
    }),
    ("roots_beside_zeros", |x| {
        let roots = numpy::roots(x[0]);
        let none = numpy::roots(x[0] * 0.0);
        vec![ordered(roots.slice_axis(0, 0, 3)), roots.slice_axis(0, 3, 5), none]
    }),
    ("eig_of_defective", |x| [0, 1].map(|i| numpy::eigvals(x[0].index_axis(0, i))).to_vec()),
    ("factorizations_jvp", |x| tangents(x[0], x[1])),
    ("wofz", |x| vec![numpy::wofz(x[0]), numpy::wofz(x[1]), numpy::erfcx(x[0])]),
];

/// A matrix of any numbers, of which `rank` rows are independent.
fn matrix(rows: usize, columns: usize, rank: usize) -> Literal {
    let wave = |i: usize, j: usize| {
        let (i, j) = (i as f64, j as f64);
        Complex::new((2.3 * i + 1.7 * j * j + 0.4).sin(), (1.1 * i * i - 3.1 * j).cos())
    };
    let element = |i: usize, j: usize| -> Complex<f64> {
        (0..rank).map(|k| wave(i, k) * wave(j + 11, k + 5)).sum()
    };
    let elements = (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j)));
    let elements: Vec<Complex<f64>> = elements.map(|(i, j)| element(i, j)).collect();
    Literal::new([rows, columns], &elements[..])
}

/// The norm of `v^H v - I`: 0 if the columns are orthonormal.
fn defect(v: Tensor) -> Tensor {
    (adjoint(v).matmul(v) - eye(v.dim(-1), v.dtype())).norm()
}

/// The distances of products of factors from the matrix they factor, each relative to it.
fn residuals(a: Tensor) -> Vec<Tensor> {
    let (u, s, vt) = numpy::svd(a, true);
    let k = s.dim(0);
    let (first, last) = (u.slice_axis(1, 0, k), vt.slice_axis(0, 0, k));
    let product = (first * s.to(a.dtype())).matmul(last);
    let inverse = numpy::pinv(a, None);
    let mut all = vec![product - a, a.matmul(inverse).matmul(a) - a];
    if a.dim(0) == a.dim(1) {
        let hermitian = (a + adjoint(a)) * 0.5;
        let (w, v) = numpy::eigh(hermitian);
        all.push((v * w.to(v.dtype())).matmul(adjoint(v)) - hermitian);
        let (w, v) = numpy::eig(a);
        all.push(a.matmul(v) - v * w);
    }
    let size = a.norm();
    let relative = all.into_iter().map(|x| x.norm() / size);
    relative.chain([defect(u), defect(adjoint(vt))]).collect()
}

fn assert_small(residuals: &[Array], what: &str) {
    for (i, residual) in residuals.iter().enumerate() {
        let residual = residual.item::<f64>().unwrap();
        assert!(residual < 1e-11, "{what}: residual {i} is {residual}");
    }
}

#[test]
fn factors_multiply_to_the_matrix() {
    for (rows, columns, rank) in
        [(1, 1, 1), (2, 2, 1), (3, 3, 3), (6, 6, 6), (6, 6, 2), (5, 3, 2), (2, 4, 2)]
    {
        let of_factors =
            interpret(residuals).call(Array::from(matrix(rows, columns, rank))).unwrap();
        assert_small(&of_factors, &format!("{rows} by {columns} of rank {rank}, interpreted"));
    }
    let compiled = jit(residuals).call(Array::from(matrix(7, 7, 7))).unwrap();
    assert_small(&compiled, "compiled");
}

/// Matrices on which the QR algorithm needs more than Wilkinson's shift, and some that lack eigenvectors.
#[test]
fn eig_takes_cyclic_and_defective_matrices() {
    let residual = |a: Tensor| {
        let (w, v) = numpy::eig(a);
        let unit = v.norm_along(2.0, 0) - 1.0;
        (w, (a.to(w.dtype()).matmul(v) - v * w).abs().max(..), unit.abs().max(..))
    };
    type Matrix = fn(Tensor) -> Tensor;
    let cases: [(&str, Matrix, f64); 4] = [
        ("cyclic", |one| one.roll(1, 0), 4.0),
        ("Jordan block", |one| one + one.roll(1, 1).triu(0), 4.0),
        ("nilpotent", |one| one.roll(1, 1).triu(0), 0.0),
        ("zeros", |one| one * 0.0, 0.0),
    ];
    for (name, matrix, total) in cases {
        let f = move |one: Tensor| residual(matrix(one.diag()));
        let (w, distance, unit) = interpret(f).call(Array::from([1.0f64; 4])).unwrap();
        let sizes: f64 = w.to_vec::<Complex<f64>>().unwrap().iter().map(|w| w.norm()).sum();
        assert!((sizes - total).abs() < 1e-12, "{name}: {w}");
        let (distance, unit) = (distance.item::<f64>().unwrap(), unit.item::<f64>().unwrap());
        assert!(distance < 1e-14 && unit < 1e-14, "{name}: {distance}, {unit}");
    }
}

#[test]
fn eig_of_nan_is_nan() {
    let f = |x: Tensor| numpy::eig(x.expand_dims(1) * x);
    for matrix in [vec![1.0f32, f32::NAN, 2.0], vec![f32::INFINITY]] {
        let (w, v) = interpret(f).call(Array::from(matrix)).unwrap();
        for array in [w, v] {
            let elements = array.to_vec::<Complex<f32>>().unwrap();
            assert!(elements.iter().all(|z| z.re.is_nan() && z.im.is_nan()), "{elements:?}");
        }
    }
}

/// Squares of the elements of these matrices overflow or vanish.
#[test]
fn factorizations_take_large_and_small_matrices() {
    let values = |(a, size): (Tensor, Tensor)| {
        let a = a.to(DType::C64) * size.to(DType::C64);
        let hermitian = (a + adjoint(a)) * 0.5;
        let r = numpy::qr(a).1.diagonal().real();
        (ordered(numpy::eigvals(a)), numpy::eigvalsh(hermitian), numpy::svdvals(a), r)
    };
    let f = interpret(values);
    let call = |size: f32| {
        let arguments = (Array::from(matrix(4, 4, 4)), Array::from(size));
        let (w, h, s, r) = f.call(arguments).unwrap();
        let reals = [h, s, r].map(|x| x.to_vec::<f32>().unwrap()).concat();
        (w.to_vec::<Complex<f32>>().unwrap(), reals)
    };
    let (w_of_1, reals_of_1) = call(1.0);
    for size in [1e-30f32, 1e30] {
        let (w, reals) = call(size);
        for (x, x_of_1) in reals.iter().zip(&reals_of_1) {
            assert!((x / size - x_of_1).abs() < 1e-4, "{size}: {x} and {x_of_1}");
        }
        for (w, w_of_1) in w.iter().zip(&w_of_1) {
            assert!((w / size - w_of_1).norm() < 1e-4, "{size}: {w} and {w_of_1}");
        }
    }
}
