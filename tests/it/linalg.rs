//! Linear algebra where an algorithm divides or iterates: singular matrices, NaN and infinities.

use podracer::trace::numpy::{self, det};
use podracer::trace::ops::concatenate;
use podracer::{Array, Complex, DType, Literal, Tensor, grad, interpret, jit, jvp, vmap};

use crate::quickly;

/// A polynomial in `x` up to the third power, of whole numbers: a matrix element and its change.
type Polynomial = [i64; 4];

/// The determinant by definition: expansion along the first row.
fn determinant(a: &[Vec<Polynomial>]) -> Polynomial {
    let Some(row) = a.first() else { return [1, 0, 0, 0] };
    let mut sum = [0; 4];
    for (j, element) in row.iter().enumerate() {
        let minor = determinant(&without(a, 0, j));
        let sign = if j % 2 == 0 { 1 } else { -1 };
        for (p, x) in element.iter().enumerate() {
            for (q, y) in minor.iter().enumerate().take(4 - p) {
                sum[p + q] += sign * x * y;
            }
        }
    }
    sum
}

fn without(a: &[Vec<Polynomial>], row: usize, column: usize) -> Vec<Vec<Polynomial>> {
    let kept = |k: &usize, left_out: usize| *k != left_out;
    let of_row =
        |r: usize| (0..a.len()).filter(|k| kept(k, column)).map(|k| a[r][k]).collect::<Vec<_>>();
    (0..a.len()).filter(|k| kept(k, row)).map(of_row).collect()
}

/// The cofactors of `a + x t` as polynomials, row by row.
fn cofactors(n: usize, a: &[i64], t: &[i64]) -> Vec<Polynomial> {
    let element = |k: usize| [a[k], t[k], 0, 0];
    let matrix: Vec<Vec<Polynomial>> =
        (0..n).map(|i| (0..n).map(|j| element(i * n + j)).collect()).collect();
    let cofactor = |k: usize| {
        let (i, j) = (k / n, k % n);
        let sign = if (i + j) % 2 == 0 { 1 } else { -1 };
        determinant(&without(&matrix, i, j)).map(|x| sign * x)
    };
    (0..n * n).map(cofactor).collect()
}

/// Small whole numbers that repeat from run to run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> i64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as i64 % 4 - 1
    }

    fn vector(&mut self, count: usize) -> Vec<i64> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// Singular matrices of every rank: zeros at every place of a diagonal, rows and columns of zeros, equal
/// rows, and products of thin matrices.
fn singular_matrices(n: usize, numbers: &mut Numbers) -> Vec<Vec<i64>> {
    let mut all = Vec::new();
    for zeros in 1..1usize << n {
        let element = |k: usize| match k / n == k % n && zeros >> (k / n) & 1 == 0 {
            true => (k / n) as i64 + 1,
            false => 0,
        };
        all.push((0..n * n).map(element).collect::<Vec<_>>());
        // The same numbers, none of which is on the diagonal.
        let turned: Vec<i64> =
            (0..n * n).map(|k| all[all.len() - 1][k / n * n + (k + 1) % n]).collect();
        all.push(turned);
    }
    for place in 0..n {
        let full = numbers.vector(n * n);
        let keep = |cleared: &dyn Fn(usize) -> bool| -> Vec<i64> {
            (0..n * n).map(|k| if cleared(k) { 0 } else { full[k] }).collect()
        };
        all.push(keep(&|k| k / n == place));
        all.push(keep(&|k| k % n == place));
        all.push(keep(&|k| k / n == place || k % n == (place + 1) % n));
        let repeated =
            |k: usize| full[if k / n == place { (place + 1) % n * n + k % n } else { k }];
        all.push((0..n * n).map(repeated).collect());
    }
    for rank in 0..n {
        for _ in 0..3 {
            let (b, c) = (numbers.vector(n * rank), numbers.vector(rank * n));
            let element =
                |k: usize| (0..rank).map(|r| b[k / n * rank + r] * c[r * n + k % n]).sum();
            all.push((0..n * n).map(element).collect());
        }
    }
    all
}

fn array(shape: &[usize], numbers: &[i64], dtype: DType) -> Array {
    match dtype {
        DType::F32 => {
            let floats: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
            Array::from(Literal::new(shape, &floats))
        }
        _ => {
            let floats: Vec<f64> = numbers.iter().map(|&x| x as f64).collect();
            Array::from(Literal::new(shape, &floats))
        }
    }
}

/// Value `k` is the derivative of order `k + 1` by `a`, `k` times along `t`.
fn derivatives((a, t): (Tensor, Tensor)) -> (Tensor, Tensor, Tensor) {
    let first = |a: Tensor| grad(|a: Tensor| det(a).sum(..))(a);
    let second = move |a: Tensor| jvp(first, a, t).1;
    (first(a), second(a), jvp(second, a, t).1)
}

#[test]
fn derivatives_of_determinants_are_cofactors() {
    let mut numbers = Numbers(1);
    for n in 4..7 {
        let matrices = singular_matrices(n, &mut numbers);
        let count = matrices.len();
        let changes: Vec<Vec<i64>> = matrices.iter().map(|_| numbers.vector(n * n)).collect();
        let exact: Vec<Polynomial> =
            matrices.iter().zip(&changes).flat_map(|(a, t)| cofactors(n, a, t)).collect();
        for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 2e-3)] {
            let shape = [count, n, n];
            let a = array(&shape, &matrices.concat(), dtype);
            let t = array(&shape, &changes.concat(), dtype);
            let found = quickly(jit(derivatives)).call((a, t)).unwrap();
            let factorials = [1.0, 1.0, 2.0];
            for (order, found) in [found.0, found.1, found.2].into_iter().enumerate() {
                let found = found.to_literal().unwrap().to_f64_vec();
                for (k, (x, exact)) in found.iter().zip(&exact).enumerate() {
                    let exact = exact[order] as f64 * factorials[order];
                    let near = (x - exact).abs() <= tolerance * exact.abs().max(100.0);
                    let (a, place) = (&matrices[k / (n * n)], k % (n * n));
                    assert!(near, "{dtype} {order} {a:?} at {place}: {x} for {exact}");
                }
            }
        }
    }
}

/// The rank is at most three less than the number of rows.
#[test]
fn fourth_derivatives_of_determinants_are_those_of_cofactors() {
    let mut numbers = Numbers(3);
    for n in 4..6 {
        let zeros = |k: usize, count: usize| if k / n == k % n && k / n >= count { 3 } else { 0 };
        let diagonals = (0..4).map(|count| (0..n * n).map(|k| zeros(k, count)).collect());
        let regular = (0..6).map(|_| {
            let random = numbers.vector(n * n);
            (0..n * n).map(|k| random[k] + 2 * zeros(k, 0)).collect()
        });
        let matrices: Vec<Vec<i64>> = diagonals.chain(regular.collect::<Vec<_>>()).collect();
        let changes: Vec<Vec<i64>> = matrices.iter().map(|_| numbers.vector(n * n)).collect();
        let fourth = |(a, t): (Tensor, Tensor)| {
            let second = move |a: Tensor| jvp(|a: Tensor| derivatives((a, t)).1, a, t).1;
            jvp(second, a, t).1
        };
        let shape = [matrices.len(), n, n];
        let array = |x: &[Vec<i64>]| array(&shape, &x.concat(), DType::F64);
        let found = interpret(fourth).call((array(&matrices), array(&changes))).unwrap();
        let found = found.to_vec::<f64>().unwrap();
        let exact = matrices.iter().zip(&changes).flat_map(|(a, t)| cofactors(n, a, t));
        for (k, (x, exact)) in found.iter().zip(exact).enumerate() {
            let (a, exact) = (&matrices[k / (n * n)], 6.0 * exact[3] as f64);
            assert!(
                (x - exact).abs() <= 1e-9 * exact.abs().max(100.0),
                "{a:?} {k}: {x} for {exact}"
            );
        }
    }
}

#[test]
fn one_matrix_and_complex_matrices_have_cofactors_too() {
    let diagonal = |x: Tensor| x.diag();
    let slopes = grad(move |x: Tensor| det(diagonal(x)));
    let found = interpret(slopes).call(Array::from([0.0f64, 1.0, 2.0, 3.0])).unwrap();
    assert_eq!(found.to_vec::<f64>().unwrap(), [6.0, 0.0, 0.0, 0.0]);

    let (n, mut numbers) = (4, Numbers(2));
    let factor = Complex::new(1.0, 2.0);
    let tangent = |(a, t): (Tensor, Tensor)| jvp(det, a, t).1;
    for a in singular_matrices(n, &mut numbers) {
        let t = numbers.vector(n * n);
        let exact: i64 = cofactors(n, &a, &t).iter().zip(&t).map(|(c, t)| c[0] * t).sum();
        let array = |x: &[i64], factor: Complex<f64>| {
            let x: Vec<Complex<f64>> = x.iter().map(|&x| factor * x as f64).collect();
            Array::from(Literal::new([n, n], &x))
        };
        let found = interpret(tangent).call((array(&a, factor), array(&t, 1.0.into()))).unwrap();
        let found = found.item::<Complex<f64>>().unwrap();
        let exact = factor.powu(3) * exact as f64;
        assert!((found - exact).norm() <= 1e-10 * exact.norm().max(10.0), "{a:?}: {found} {exact}");
    }
}

/// A matrix whose pivots leave the range of the type: derivatives are finite.
#[test]
fn determinants_of_large_matrices_of_low_rank_have_no_derivative() {
    let n = 24;
    let row: Vec<f64> = (0..n).map(|k| (k as f64 * 0.7).sin() + 2.0).collect();
    let of_rank_one = |x: Tensor| x.expand_dims(0) * (x * 1.7 + 0.3).cos().expand_dims(1);
    for dtype in [DType::F32, DType::F64] {
        let slopes = |x: Tensor| grad(|a: Tensor| det(a))(of_rank_one(x.to(dtype)));
        let found = quickly(jit(slopes)).call(Array::from(&row[..])).unwrap();
        let found = found.to_literal().unwrap().to_f64_vec();
        assert!(found.iter().all(|x| x.abs() < 1e-20), "{dtype} {found:?}");
    }
}

type Outputs = Vec<Tensor>;
/// A function and its name.
type Named = (&'static str, fn(Tensor) -> Outputs);

/// Functions by iterations, which could end at once on NaN: all of their numbers are NaN then.
const ITERATIONS: &[Named] = &[
    ("eigh", |a| <[Tensor; 2]>::from(numpy::eigh(a)).to_vec()),
    ("eigvalsh", |a| vec![numpy::eigvalsh(a)]),
    ("svd", |a| <[Tensor; 3]>::from(numpy::svd(a, true)).to_vec()),
    ("svd of a wide matrix", |a| {
        <[Tensor; 3]>::from(numpy::svd(tall(a).swapaxes(-1, -2), false)).to_vec()
    }),
    ("svd of a tall matrix", |a| <[Tensor; 3]>::from(numpy::svd(tall(a), true)).to_vec()),
    ("svdvals", |a| vec![numpy::svdvals(a)]),
    ("pinv", |a| vec![numpy::pinv(a, None)]),
    ("lstsq", |a| {
        let solved = |a: Tensor| numpy::lstsq(a, a.index_axis(1, 0), None).0;
        vec![vmap(solved)(a)]
    }),
    ("spectral norm", |a| vec![numpy::matrix_norm(a, numpy::MatrixNorm::Spectral)]),
    ("nuclear norm", |a| vec![numpy::matrix_norm(a, numpy::MatrixNorm::Nuclear)]),
    ("eig", |a| {
        let (w, v) = numpy::eig(a);
        vec![w.real(), w.imag(), v.real(), v.imag()]
    }),
    ("eigvals", |a| vec![numpy::eigvals(a).real(), numpy::eigvals(a).imag()]),
];

/// Functions by elimination: one of their numbers at least is NaN where one of the matrix is.
const ELIMINATIONS: &[Named] = &[
    ("inv", |a| vec![numpy::inv(a)]),
    ("solve", |a| vec![numpy::solve(a, a.slice_axis(-1, 0, 1))]),
    ("det", |a| vec![det(a)]),
    ("slogdet", |a| vec![numpy::slogdet(a).1]),
    ("lu", |a| vec![numpy::lu(a).0]),
    ("qr", |a| vec![numpy::qr(a).1]),
    ("cholesky", |a| vec![podracer::trace::ops::cholesky(a)]),
    ("cond", |a| vec![numpy::cond(a, numpy::MatrixNorm::Spectral)]),
    ("matrix_power", |a| vec![numpy::matrix_power(a, -2)]),
];

/// Four rows: those of the matrix, and the first once more.
fn tall(a: Tensor) -> Tensor {
    concatenate(&[a, a.slice_axis(-2, 0, 1)], -2)
}

#[test]
fn nan_and_infinity_give_nan() {
    let base = [4.0, 1.0, 0.5, 1.0, 3.0, 0.25, 0.5, 0.25, 2.0];
    let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    // The first matrix is regular; every other one has one special number.
    let mut batch = base.to_vec();
    for special in specials {
        for place in 0..9 {
            let mut matrix = base;
            matrix[place] = special;
            batch.extend(matrix);
        }
    }
    let count = batch.len() / 9;
    for dtype in [DType::F64, DType::F32] {
        for (all, (name, f)) in
            ITERATIONS.iter().map(|f| (true, f)).chain(ELIMINATIONS.iter().map(|f| (false, f)))
        {
            let f = |a: Tensor| f(a.to(dtype));
            let run = |count: usize| {
                let matrices = Array::from(Literal::new([count, 3, 3], &batch[..count * 9]));
                let outputs = quickly(jit(f)).call(matrices).unwrap();
                outputs.iter().map(|x| x.to_literal().unwrap().to_f64_vec()).collect::<Vec<_>>()
            };
            let (alone, found) = (run(1), run(count));
            for (alone, found) in alone.iter().zip(&found) {
                let matrices: Vec<&[f64]> = found.chunks(found.len() / count).collect();
                let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5;
                assert!(alone.iter().zip(matrices[0]).all(near), "{name} of the regular matrix");
                for (k, matrix) in matrices.iter().enumerate().skip(1) {
                    let place = (specials[(k - 1) / 9], (k - 1) % 9);
                    let nans = matrix.iter().filter(|x| x.is_nan()).count();
                    if all {
                        assert_eq!(nans, matrix.len(), "{dtype} {name} with {place:?}: {matrix:?}");
                    } else if place.0.is_nan() {
                        assert!(nans > 0, "{dtype} {name} with {place:?}: {matrix:?}");
                    }
                }
            }
        }
    }
}
