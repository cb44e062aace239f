//! Operations that refuse complex numbers; complex arrays and constants, and their text.

use ndarray::array;
use podracer::lower::stablehlo::{LowerOptions, Platform, stablehlo};
use podracer::trace::numpy::{self, FftNorm, fft, rfft};
use podracer::trace::op::FftKind;
use podracer::trace::ops::{self, cholesky, complex};
use podracer::{
    Array, Complex, DType, Literal, Program, Tensor, grad, grad_holomorphic, interpret, jacfwd,
    jacrev, jit, make_program,
};

const Z: Complex<f32> = Complex::new(1.5, -2.0);

/// The first line of the error of a function of three complex numbers.
fn message(f: impl Fn(Tensor) -> Tensor) -> String {
    let error = make_program(f, &Array::from([Z, Z, Z])).expect_err("complex numbers are refused");
    error.to_string().lines().next().unwrap_or_default().to_string()
}

#[test]
fn operations_on_ordered_numbers_refuse_complex_ones() {
    let order = "complex numbers have no order, got c64[3]; compare .abs(), .real() or .imag()";
    assert_eq!(message(|z| z.lt(z)), format!("lt: {order}"));
    assert_eq!(message(|z| z.argmax(0)), format!("argmax: {order}"));
    assert_eq!(message(|z| z.sort(0)), format!("sort: {order}"));
    let text = message(|z| z.maximum(z));
    assert!(text.starts_with("maximum: is not defined for c64"), "{text}");
    let text = message(|z| z.max(..));
    assert!(text.starts_with("max: is not defined for c64[3]"), "{text}");
    let text = message(|z| z.floor());
    assert!(text.starts_with("floor: takes floats, got c64[3]"), "{text}");
    let text = message(|z| z.bitcast(DType::U64));
    assert!(text.contains("take .real() and .imag()"), "{text}");
    let text = message(|z| complex(z, z));
    assert!(text.starts_with("complex: is not defined for c64"), "{text}");
    let text = message(|z| z.real() + z);
    assert!(text.contains("element types differ: lhs f32[3], rhs c64[3]"), "{text}");
    let text = message(|z| z.real() * Complex::new(0.0, 1.0));
    assert!(text.contains("convert the tensor with .to(DType::C64)"), "{text}");
}

#[test]
fn gradients_name_what_they_want_of_complex_functions() {
    let text = message(|z| grad(|z: Tensor| z.sum(..))(z));
    assert_eq!(
        text,
        "grad: the function must return a scalar float, and returns c64[]; take its .real() or \
         .abs(), or use grad_holomorphic for a holomorphic function"
    );
    let text = message(|z| grad_holomorphic(|z: Tensor| z.abs().sum(..))(z));
    assert!(text.contains("must return a scalar complex number, and returns f32[]"), "{text}");
    let text = message(|z| grad_holomorphic(|x: Tensor| x.sum(..))(z.real()));
    assert!(text.contains("argument is f32[3], and holomorphic functions take complex"), "{text}");
}

#[test]
fn jacobians_refuse_complex_sides() {
    let text = message(|z| jacfwd(|z: Tensor| z.abs())(z));
    assert!(
        text.starts_with("jacfwd: the argument is c64[3], and Jacobians are of floats"),
        "{text}"
    );
    let text = message(|z| jacrev(|z: Tensor| z * z)(z));
    assert!(
        text.starts_with("jacrev: the result is c64[3], and Jacobians are of floats"),
        "{text}"
    );
}

#[test]
fn factorizations_name_what_they_want() {
    let square = "takes square matrices of f32, f64, c64 or c128, and was given";
    let text = message(|z| cholesky(z.reshape([1, 3])));
    assert_eq!(text, format!("cholesky: {square} c64[1,3]"));
    let text = message(|z| numpy::eig(z).0);
    assert_eq!(text, format!("eig: {square} c64[3]"));
    let text = message(|z| numpy::eigvals((z.expand_dims(1) * z).real().to(DType::I32)));
    assert_eq!(text, format!("eigvals: {square} i32[3,3]"));
    let text = message(|z| numpy::qr(z).0);
    assert_eq!(text, "qr: takes matrices of f32, f64, c64 or c128, and was given c64[3]");
    let text = message(|z| numpy::svd(z.reshape([3, 1]).slice_axis(1, 0, 0), true).0);
    assert!(text.contains("c64 or c128 that are not empty, and was given c64[3,0]"), "{text}");
    let text = message(|z| numpy::lstsq(z.reshape([3, 1]), z.real(), None).0);
    assert!(text.contains("takes a [m, n] and b [m] or [m, k]"), "{text}");
    let text = message(|z| numpy::wofz(z.real().to(DType::I32)));
    assert_eq!(text, "wofz: takes f32, f64, c64 or c128, and was given i32[3]");
}

/// GPU libraries take all axes of an inverse real transform to be symmetric.
#[test]
fn inverse_real_transforms_are_divided_on_gpus() {
    let f = |z: Tensor| ops::fft(z.reshape([2, 3, 1]), FftKind::Irfft, &[3, 1]);
    let z = Array::from([Z, Z, Z, Z, Z, Z]);
    let program = make_program(f, &z).unwrap();
    let text =
        |platform| stablehlo(&program, &LowerOptions { platform, ..LowerOptions::default() });
    let transforms = |text: &str| text.matches("stablehlo.fft").count();
    assert_eq!(transforms(&text(Platform::Cpu)), 1);
    let text = text(Platform::Cuda);
    assert_eq!(transforms(&text), 2, "{text}");
    let complex = text.find("type = IFFT, length = [3]").unwrap();
    assert!(complex < text.find("type = IRFFT, length = [1]").unwrap(), "{text}");
}

#[test]
fn transforms_name_what_they_want() {
    let text = message(|z| ops::fft(z.real(), FftKind::Fft, &[3]));
    assert!(text.starts_with("fft: takes complex numbers, got f32[3]"), "{text}");
    let text = message(|z| ops::fft(z, FftKind::Fft, &[4]));
    assert!(text.contains("the last axes of c64[3] must have sizes [4]"), "{text}");
    let text = message(|z| ops::fft(z, FftKind::Fft, &[3, 3]));
    assert!(text.contains("transforms one to three axes, got 2 lengths for c64[3]"), "{text}");
    let text = message(|z| rfft(z, None, -1, FftNorm::Backward));
    assert_eq!(text, "rfft: takes real numbers, and was given c64[3]");
    let text = message(|z| fft(z, Some(0), -1, FftNorm::Backward));
    assert!(text.contains("transforms at least one element of each axis"), "{text}");
}

#[test]
fn complex_arrays_convert_from_and_to_ndarray() {
    let z = array![[Complex::new(1.0f64, 2.0), Complex::new(-0.5, 0.0)]];
    let literal = Literal::from(z.clone());
    assert_eq!(literal.ty().to_string(), "c128[1,2]");
    assert_eq!(literal.to_ndarray::<Complex<f64>>().unwrap(), z.clone().into_dyn());
    let product = jit(|z: Tensor| z * z.conj()).call(Array::from(literal)).unwrap();
    let sizes = product.to_vec::<Complex<f64>>().unwrap();
    assert_eq!(sizes, [Complex::new(5.0, 0.0), Complex::new(0.25, 0.0)]);
    let error = product.to_vec::<f64>().unwrap_err().to_string();
    assert!(error.contains("c128[1,2]"), "{error}");
}

#[test]
fn complex_numbers_print_and_read_back() {
    let nan = f32::from_bits(0x7fc0_0001);
    let numbers = [Z, Complex::new(-0.0, 1e-20), Complex::new(nan, f32::INFINITY)];
    let table = Literal::from(numbers);
    assert_eq!(format!("{table}"), "c64[3] [1.5-2j, -0+1e-20j, NaN(0x7fc00001)+infj]");
    let wave: Vec<Complex<f64>> = (0..100).map(|i| Complex::cis(f64::from(i))).collect();
    let f = |z: Tensor| {
        let sum = z.to(DType::C128) * ops::constant(Literal::from(wave.clone())).sum(..);
        sum.sum(..) + ops::constant(table.clone()).to(DType::C128).sum(..)
    };
    let program = make_program(f, &Array::from([Z, Z])).unwrap();
    let again = Program::parse(&program.to_text()).unwrap();
    assert_eq!(again, program);
    assert!(Program::parse("{ lambda ; . let a:c64[] = constant c64[] 1-2 in (a) }").is_err());
}

/// JAX's short names.
#[test]
fn arrays_show_complex_elements() {
    assert_eq!(format!("{}", Array::from([Z])), "[1.5-2i]");
    let f = interpret(|z: Tensor| z * 2.0);
    assert_eq!(f.call(Array::from(Z)).unwrap().item::<Complex<f32>>().unwrap(), Z * 2.0);
}
