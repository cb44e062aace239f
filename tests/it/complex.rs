//! Functions of complex numbers, and discrete Fourier transforms, against JAX: values and gradients,
//! compiled and interpreted, and in batches. The numbers are JAX's own
//! (`tests/fixtures/complex/make.py`).

mod errors;
mod factorizations;

use podracer::trace::numpy::{self, FftNorm, einsum, kron, vecdot, vecmat};
use podracer::trace::op::{FftKind, TriangularSolveOp};
use podracer::trace::ops::{self, complex, concatenate, constant, where_};
use podracer::{
    Array, Complex, DType, Tensor, checkpoint, cond, grad, grad_holomorphic, interpret, jvp,
    linearize, scan, vmap, while_loop,
};

use crate::names::{Function, Suite};

fn suite() -> Suite {
    let of_arrays = [PARTS, ELEMENTWISE, ARRAYS, DERIVATIVES, TRANSFORMS].concat();
    let functions = [&of_arrays[..], factorizations::FUNCTIONS].concat();
    Suite { functions, fixture: "tests/fixtures/complex/complex.safetensors" }
}

const I: Complex<f64> = Complex::new(0.0, 1.0);
const NORMS: [FftNorm; 3] = [FftNorm::Backward, FftNorm::Ortho, FftNorm::Forward];
const BACKWARD: FftNorm = FftNorm::Backward;

/// A bool that is known at trace time.
fn known(value: bool) -> Tensor {
    constant(value)
}

const PARTS: &[Function] = &[
    ("complex", |x| vec![complex(x[0], x[1])]),
    ("parts", |x| vec![x[0].real(), x[0].imag(), x[0].conj(), x[0].abs(), x[0].angle()]),
    ("parts_of_real", |x| vec![x[0].real(), x[0].imag(), x[0].conj(), x[0].angle()]),
    ("abs_at_zero", |x| vec![x[0].abs(), x[0].sign()]),
    ("predicates", |x| {
        let x = x[0];
        let tests = [x.iscomplex(), x.isreal(), x.is_finite(), x.is_nan(), x.is_inf()];
        [&tests[..], &[x.eq(x), x.ne(x)]].concat()
    }),
    ("kinds", |x| {
        let kinds = |x: Tensor| [known(x.dtype().is_complex()), known(!x.dtype().is_complex())];
        [kinds(x[0]), kinds(x[1])].concat()
    }),
    ("sort_complex", |x| vec![x[0].sort_complex(), x[0].real().sort_complex()]),
    ("convert", |x| vec![x[0].to(DType::C64), x[1].real().to(DType::I32), x[1].to(DType::Bool)]),
];

const ELEMENTWISE: &[Function] = &[
    ("arithmetic", |x| {
        let (x, y) = (x[0], x[1]);
        vec![x + y, x - y, x * y, x / y, -x, x * Complex::new(2.0, -1.0) + 0.5]
    }),
    ("exp", |x| vec![x[0].exp()]),
    ("expm1", |x| vec![x[0].expm1()]),
    ("log", |x| vec![x[0].log()]),
    ("log1p", |x| vec![x[0].log1p()]),
    ("sqrt", |x| vec![x[0].sqrt()]),
    ("rsqrt", |x| vec![x[0].rsqrt()]),
    ("sin", |x| vec![x[0].sin()]),
    ("cos", |x| vec![x[0].cos()]),
    ("tan", |x| vec![x[0].tan()]),
    ("tanh", |x| vec![x[0].tanh()]),
    ("sinh", |x| vec![x[0].sinh()]),
    ("cosh", |x| vec![x[0].cosh()]),
    ("asin", |x| vec![x[0].asin()]),
    ("acos", |x| vec![x[0].acos()]),
    ("asinh", |x| vec![x[0].asinh()]),
    ("acosh", |x| vec![x[0].acosh()]),
    ("atanh", |x| vec![x[0].atanh()]),
    ("sigmoid", |x| vec![x[0].sigmoid()]),
    ("sign", |x| vec![x[0].sign()]),
    ("square", |x| vec![x[0].square()]),
    ("reciprocal", |x| vec![x[0].reciprocal()]),
    ("pow", |x| vec![x[0].pow(x[1]), x[0].powi(3), x[0].powi(-2)]),
    ("where", |x| {
        let mask = constant([true, false, true, true, false]);
        vec![where_(mask, x[0], x[1])]
    }),
];

const ARRAYS: &[Function] = &[
    ("shapes", |x| {
        let x = x[0];
        vec![
            x.reshape([4, 3]),
            x.transpose(&[1, 0]),
            x.flip(0).slice_axis(1, 1, 3),
            x.pad(&[1, 1], &[1, 1], 0.0),
            concatenate(&[x, x], 1),
        ]
    }),
    ("indices", |x| {
        let (x, at) = (x[0], x[1]);
        let taken = x.take(at, 0);
        let i = complex(ops::zeros([2], DType::F32), 1.0);
        vec![taken, x.at(&[at]).set(i), x.at(&[at]).add(taken * taken)]
    }),
    ("reductions", |x| {
        let x = x[0];
        vec![x.sum([1]), x.prod([0]), x.cumsum(1), x.cumprod(0), x.mean([0])]
    }),
    ("spread", |x| {
        let x = x[0];
        vec![
            x.var([1]),
            x.std([0]),
            x.norm(),
            x.norm_along(1.0, 1),
            x.norm_along(2.0, 0),
            x.norm_along(f64::INFINITY, 1),
        ]
    }),
    ("products", |x| {
        let (x, y) = (x[0], x[1]);
        vec![
            x.matmul(y),
            x.vdot(x),
            x.inner(x),
            einsum("ij,jk->ki", &[x, y]),
            vecdot(x, x),
            vecmat(x.index_axis(0, 0), y),
            kron(x, y),
        ]
    }),
    ("linear_systems", |x| {
        vec![numpy::solve(x[0], x[1]), numpy::inv(x[0]), numpy::matrix_power(x[0], 3)]
    }),
    ("determinants", |x| {
        let (sign, log) = numpy::slogdet(x[0]);
        vec![numpy::det(x[0]), numpy::det(x[1]), sign, log]
    }),
    ("triangular_systems", |x| {
        let lower = TriangularSolveOp { left_side: true, lower: true, ..Default::default() };
        let turned = TriangularSolveOp { left_side: true, transpose_a: true, ..Default::default() };
        [lower, turned].map(|op| ops::triangular_solve(x[0], x[1], op)).into()
    }),
    ("spherical", |x| {
        let (n, m) = (constant([0, 1, 1, 2, 3, 3]), constant([0, 0, -1, 2, -3, 1]));
        vec![numpy::sph_harm_y(n, m, x[0], x[1], 3)]
    }),
    ("scan", |x| {
        let (last, sizes) = scan(|c: Tensor, x: Tensor| (c * x + I, c.abs()), x[0], x[1]);
        vec![last, sizes]
    }),
    ("cond", |x| {
        let first = x[0].index_axis(0, 0).real();
        let choose = |which| cond(which, |x: Tensor| x.exp(), |x| x.conj(), x[0]);
        vec![choose(first.gt(0.0)), choose(first.lt(0.0))]
    }),
    ("while", |x| {
        let body = |(n, x): (Tensor, Tensor)| (n + 1, x * x + I * 0.1);
        vec![while_loop(|(n, _): (Tensor, Tensor)| n.lt(4), body, (constant(0), x[0])).1]
    }),
    ("checkpoint", |x| vec![checkpoint(|x: Tensor| (x.sin() * x).exp())(x[0])]),
];

const DERIVATIVES: &[Function] = &[
    ("grad", |x| {
        let x = x[0];
        vec![
            grad(|x: Tensor| x.abs().square().sum(..))(x),
            grad(|x: Tensor| x.exp().real().sum(..))(x),
            grad(|x: Tensor| (x * x).imag().sum(..))(x),
            grad(|x: Tensor| x.angle().sum(..))(x),
        ]
    }),
    ("grad_of_real", |x| {
        let f = |x: Tensor| {
            let z = x.to(DType::C64);
            ((z * I).exp() + z).abs().sum(..)
        };
        vec![grad(f)(x[0])]
    }),
    ("grad_holomorphic", |x| {
        vec![grad_holomorphic(|x: Tensor| x.powi(3).sum(..) + x.index_axis(0, 0).exp())(x[0])]
    }),
    ("jvp", |x| {
        let f = |x: Tensor| (x.abs(), x.sin() * x.conj());
        let ((size, product), (size_t, product_t)) = jvp(f, x[0], x[1]);
        vec![size, product, size_t, product_t]
    }),
    ("linearize", |x| {
        let (y, g) = linearize(|x: Tensor| x * x.conj() / (x + 1.0), x[0]);
        vec![y, g(x[1])]
    }),
    ("vmap", |x| vec![vmap(grad(|x: Tensor| x.prod(..).abs()))(x[0])]),
];

const TRANSFORMS: &[Function] = &[
    ("fft", |x| of_one_axis(numpy::fft, x, [3, 6])),
    ("ifft", |x| of_one_axis(numpy::ifft, x, [3, 6])),
    ("rfft", |x| of_one_axis(numpy::rfft, x, [3, 7])),
    ("irfft", |x| of_one_axis(numpy::irfft, x, [5, 9])),
    ("hfft", |x| hermitian(numpy::hfft, x[0])),
    ("ihfft", |x| hermitian(numpy::ihfft, x[0])),
    ("fft_norms", |x| {
        let mut results = Vec::new();
        for f in [numpy::fft, numpy::ifft, numpy::irfft] {
            results.extend(NORMS.map(|norm| f(x[0], None, -1, norm)));
        }
        results.extend(NORMS.map(|norm| numpy::rfft(x[1], None, -1, norm)));
        results
    }),
    ("fft2", |x| {
        let (x, y, last) = (x[0], x[1], [-2, -1]);
        vec![
            numpy::fft2(x, None, last, BACKWARD),
            numpy::ifft2(x, None, last, BACKWARD),
            numpy::fft2(x, Some([2, 5]), last, BACKWARD),
            numpy::ifft2(x, None, [0, 2], FftNorm::Ortho),
            numpy::rfft2(y, None, last, BACKWARD),
            numpy::rfft2(y, Some([4, 3]), last, FftNorm::Forward),
            numpy::irfft2(x, None, last, BACKWARD),
            numpy::irfft2(x, Some([2, 5]), [1, 0], BACKWARD),
        ]
    }),
    ("fftn", |x| {
        let (x, y) = (x[0], x[1]);
        vec![
            numpy::fftn(x, None, .., BACKWARD),
            numpy::ifftn(x, None, .., BACKWARD),
            numpy::fftn(x, None, [0, 1], BACKWARD),
            numpy::fftn(x, Some(&[3, 2]), [2, 0], BACKWARD),
            numpy::rfftn(y, None, .., BACKWARD),
            numpy::rfftn(y, None, [1, 0], FftNorm::Ortho),
            numpy::irfftn(x, None, .., BACKWARD),
            numpy::irfftn(x, Some(&[2, 2, 5]), [0, 1, 2], BACKWARD),
        ]
    }),
    ("fftn_of_four_axes", |x| {
        vec![
            numpy::fftn(x[0], None, .., BACKWARD),
            numpy::ifftn(x[0], None, [3, 1, 0, 2], BACKWARD),
            numpy::rfftn(x[1], None, .., BACKWARD),
            numpy::irfftn(x[0], None, .., BACKWARD),
        ]
    }),
    ("fft_of_integers", |x| {
        vec![numpy::fft(x[0], None, -1, BACKWARD), numpy::rfft(x[0], None, -1, BACKWARD)]
    }),
    ("lax_fft", |x| {
        vec![
            ops::fft(x[0], FftKind::Fft, &[3, 4]),
            ops::fft(x[0], FftKind::Ifft, &[4]),
            ops::fft(x[1], FftKind::Rfft, &[4]),
            ops::fft(x[0], FftKind::Irfft, &[3, 6]),
        ]
    }),
    ("grad_of_fft", |x| {
        let power = |x: Tensor| numpy::fft(x, None, -1, BACKWARD).abs().square().sum(..);
        let size = |x: Tensor| numpy::rfft(x, None, -1, BACKWARD).abs().sum(..);
        vec![grad(power)(x[0]), grad(size)(x[0])]
    }),
];

type OfOneAxis = fn(Tensor, Option<usize>, isize, FftNorm) -> Tensor;

fn of_one_axis(f: OfOneAxis, x: &[Tensor], sizes: [usize; 2]) -> Vec<Tensor> {
    let y = x[0];
    let mut results = vec![f(y, None, -1, BACKWARD), f(y, None, 0, BACKWARD)];
    results.extend(sizes.map(|n| f(y, Some(n), -1, BACKWARD)));
    results.extend(x.get(1).map(|&real| f(real, None, -1, BACKWARD)));
    results
}

fn hermitian(f: OfOneAxis, x: Tensor) -> Vec<Tensor> {
    vec![
        f(x, None, -1, BACKWARD),
        f(x, Some(5), -1, BACKWARD),
        f(x, None, 0, FftNorm::Ortho),
        f(x, None, -1, FftNorm::Forward),
    ]
}

#[test]
fn functions_are_those_of_the_fixture() {
    suite().is_complete();
}

#[test]
fn interpreted_values_and_gradients_are_those_of_jax() {
    suite().agrees(false);
}

#[test]
fn compiled_values_and_gradients_are_those_of_jax() {
    suite().agrees(true);
}

#[test]
fn vmap_is_the_function_of_each_example() {
    suite().batches();
}

/// JAX 0.10.2 has the opposite sign where the real part is negative.
#[test]
fn the_derivative_of_acosh_is_its_difference_quotient() {
    let values = |x: Complex<f64>| {
        let f = interpret(|x: Tensor| (x.acosh(), grad_holomorphic(|x: Tensor| x.acosh())(x)));
        let (y, slope) = f.call(Array::from(x)).unwrap();
        (y.item::<Complex<f64>>().unwrap(), slope.item::<Complex<f64>>().unwrap())
    };
    for (re, im) in [(-2.0, 0.5), (2.0, 0.5), (-0.5, 0.1), (-0.5, -3.0), (0.5, -0.1)] {
        let (x, step) = (Complex::new(re, im), Complex::new(1e-6, 0.0));
        let expected = (values(x + step).0 - values(x - step).0) / (step + step);
        let found = values(x).1;
        assert!((found - expected).norm() < 1e-8, "{x}: {found} instead of {expected}");
    }
}
