//! Operations on each element by itself, and the sources of elements.

use std::cmp::Ordering;

use half::{bf16, f16};
use num_complex::{Complex, Complex64};

use super::number::{Number, with_number};
use super::{complex, shapes, special};
use crate::trace::literal::{Element, F8E4M3FN, F8E5M2, I4, Literal, U4};
use crate::trace::op::{BinaryOp, CompareOp, UnaryOp};
use crate::trace::types::{DType, TensorType};

/// A number between two element types.
#[derive(Clone, Copy)]
enum Wide {
    Int(i128),
    Float(f64),
    Complex(f64, f64),
}

fn widen(x: &Literal) -> Vec<Wide> {
    fn ints<T: Element + Into<i128>>(x: &Literal) -> Vec<Wide> {
        let elements: Vec<T> = x.to_vec().expect("dispatched on the element type");
        elements.into_iter().map(|x| Wide::Int(x.into())).collect()
    }
    match x.ty().dtype {
        DType::Bool => ints::<bool>(x),
        DType::I4 => ints::<I4>(x),
        DType::I8 => ints::<i8>(x),
        DType::I16 => ints::<i16>(x),
        DType::I32 => ints::<i32>(x),
        DType::I64 => ints::<i64>(x),
        DType::U4 => ints::<U4>(x),
        DType::U8 => ints::<u8>(x),
        DType::U16 => ints::<u16>(x),
        DType::U32 => ints::<u32>(x),
        DType::U64 => ints::<u64>(x),
        DType::F8E4M3FN | DType::F8E5M2 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {
            x.to_f64_vec().into_iter().map(Wide::Float).collect()
        }
        DType::C64 | DType::C128 => {
            x.to_f64_vec().chunks_exact(2).map(|z| Wide::Complex(z[0], z[1])).collect()
        }
    }
}

fn narrow(ty: &TensorType, numbers: &[Wide]) -> Literal {
    fn build<T: Element>(ty: &TensorType, numbers: &[Wide], f: impl Fn(Wide) -> T) -> Literal {
        Literal::new(&ty.shape, &numbers.iter().map(|&x| f(x)).collect::<Vec<T>>())
    }
    // `as` has the required semantics: integers wrap, floats are truncated and saturate, NaN gives
    // 0.
    macro_rules! cast {
        ($t:ty) => {
            build(ty, numbers, |x| match x {
                Wide::Int(x) => x as $t,
                Wide::Float(x) | Wide::Complex(x, _) => x as $t,
            })
        };
    }
    macro_rules! four_bits {
        ($t:ty) => {
            build(ty, numbers, |x| match x {
                Wide::Int(x) => <$t>::wrapping(x as i64),
                Wide::Float(x) | Wide::Complex(x, _) => <$t>::saturating(x),
            })
        };
    }
    macro_rules! rounded {
        ($t:ty) => {
            build(ty, numbers, |x| match x {
                Wide::Int(x) => <$t>::from_f64(x as f64),
                Wide::Float(x) | Wide::Complex(x, _) => <$t>::from_f64(x),
            })
        };
    }
    match ty.dtype {
        DType::Bool => build(ty, numbers, |x| match x {
            Wide::Int(x) => x != 0,
            Wide::Float(x) => x != 0.0,
            Wide::Complex(re, im) => re != 0.0 || im != 0.0,
        }),
        DType::I4 => four_bits!(I4),
        DType::I8 => cast!(i8),
        DType::I16 => cast!(i16),
        DType::I32 => cast!(i32),
        DType::I64 => cast!(i64),
        DType::U4 => four_bits!(U4),
        DType::U8 => cast!(u8),
        DType::U16 => cast!(u16),
        DType::U32 => cast!(u32),
        DType::U64 => cast!(u64),
        DType::F8E4M3FN => rounded!(F8E4M3FN),
        DType::F8E5M2 => rounded!(F8E5M2),
        DType::F16 => rounded!(f16),
        DType::BF16 => rounded!(bf16),
        DType::F32 => cast!(f32),
        DType::F64 => cast!(f64),
        DType::C64 => build(ty, numbers, |x| match x {
            Wide::Int(x) => Complex::new(x as f32, 0.0),
            Wide::Float(x) => Complex::new(x as f32, 0.0),
            Wide::Complex(re, im) => Complex::new(re as f32, im as f32),
        }),
        DType::C128 => build(ty, numbers, |x| match x {
            Wide::Int(x) => Complex::new(x as f64, 0.0),
            Wide::Float(x) => Complex::new(x, 0.0),
            Wide::Complex(re, im) => Complex::new(re, im),
        }),
    }
}

pub(super) fn convert(x: &Literal, ty: &TensorType) -> Literal {
    narrow(ty, &widen(x))
}

pub(super) fn iota(ty: &TensorType, axis: usize) -> Literal {
    let along = TensorType::new(ty.dtype, [ty.shape[axis]]);
    let numbers: Vec<Wide> = (0..ty.shape[axis]).map(|i| Wide::Int(i as i128)).collect();
    shapes::broadcast(&narrow(&along, &numbers), &ty.shape, &[axis])
}

pub(super) fn unary(op: UnaryOp, x: &Literal) -> Literal {
    let ty = x.ty();
    if op == UnaryOp::IsFinite {
        let finite: Vec<bool> = x.to_f64_vec().iter().map(|x| x.is_finite()).collect();
        return Literal::new(&ty.shape, &finite);
    }
    if ty.dtype.is_complex()
        && let Some(part) = complex::part(op)
    {
        let numbers: Vec<f64> = Complex64::lift(x).into_iter().map(part).collect();
        return f64::lower(&TensorType::new(ty.dtype.real(), &ty.shape), &numbers);
    }
    with_number!(ty.dtype, N => {
        let f = N::unary(op, ty.dtype);
        let numbers: Vec<N> = N::lift(x).into_iter().map(f).collect();
        N::lower(ty, &numbers)
    })
}

pub(super) fn binary(op: BinaryOp, lhs: &Literal, rhs: &Literal) -> Literal {
    let ty = lhs.ty();
    if op == BinaryOp::Complex {
        let parts = f64::lift(lhs).into_iter().zip(f64::lift(rhs));
        let numbers: Vec<Complex64> = parts.map(|(re, im)| Complex::new(re, im)).collect();
        return Complex64::lower(&TensorType::new(ty.dtype.complex(), &ty.shape), &numbers);
    }
    with_number!(ty.dtype, N => {
        let f = N::binary(op);
        let numbers: Vec<N> =
            N::lift(lhs).into_iter().zip(N::lift(rhs)).map(|(x, y)| f(x, y)).collect();
        N::lower(ty, &numbers)
    })
}

pub(super) fn compare(op: CompareOp, lhs: &Literal, rhs: &Literal) -> Literal {
    // `None` is a comparison with NaN.
    let holds = |order: Option<Ordering>| match op {
        CompareOp::Eq => order == Some(Ordering::Equal),
        CompareOp::Ne => order != Some(Ordering::Equal),
        CompareOp::Lt => order == Some(Ordering::Less),
        CompareOp::Le => order.is_some_and(Ordering::is_le),
        CompareOp::Gt => order == Some(Ordering::Greater),
        CompareOp::Ge => order.is_some_and(Ordering::is_ge),
    };
    let truths: Vec<bool> = with_number!(lhs.ty().dtype, N => {
        N::lift(lhs).iter().zip(&N::lift(rhs)).map(|(x, y)| holds(x.compare(y))).collect()
    });
    Literal::new(&lhs.ty().shape, &truths)
}

pub(super) fn select(predicate: &Literal, on_true: &Literal, on_false: &Literal) -> Literal {
    let predicate: Vec<bool> = predicate.to_vec().expect("a bool predicate");
    let (on_true, on_false, ty) = (on_true.bytes(), on_false.bytes(), on_true.ty());
    shapes::with_bits!(ty, B => {
        let (yes, no) = (shapes::bits::<B>(&on_true), shapes::bits::<B>(&on_false));
        shapes::build::<B>(ty.clone(), |chosen| {
            for (i, &choice) in predicate.iter().enumerate() {
                chosen[i] = if choice { yes[i] } else { no[i] };
            }
        })
    })
}

pub(super) fn clamp(low: &Literal, x: &Literal, high: &Literal) -> Literal {
    binary(BinaryOp::Min, &binary(BinaryOp::Max, x, low), high)
}

pub(super) fn threefry(inputs: &[Literal]) -> Vec<Literal> {
    let words: Vec<Vec<u32>> =
        inputs.iter().map(|x| x.to_vec().expect("checked to be u32")).collect();
    let (first, second): (Vec<u32>, Vec<u32>) = (0..words[0].len())
        .map(|i| special::threefry([words[0][i], words[1][i]], [words[2][i], words[3][i]]).into())
        .unzip();
    [first, second].iter().map(|x| Literal::new(&inputs[0].ty().shape, x)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::check::infer;
    use crate::trace::eval::eval_op;
    use crate::trace::op::Op;

    fn f(op: UnaryOp, x: f32) -> f32 {
        unary(op, &Literal::from([x])).as_slice::<f32>()[0]
    }

    fn g<T: Element, const N: usize>(op: BinaryOp, pairs: [(T, T); N]) -> Vec<T>
    where
        [T; N]: Into<Literal>,
    {
        let lhs: Literal = pairs.map(|(x, _)| x).into();
        let rhs: Literal = pairs.map(|(_, y)| y).into();
        binary(op, &lhs, &rhs).to_vec().unwrap()
    }

    #[test]
    fn signs_zeros_and_nan_follow_ieee() {
        assert_eq!(f(UnaryOp::Sign, -0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(f(UnaryOp::Sign, -7.0), -1.0);
        assert!(f(UnaryOp::Sign, f32::NAN).is_nan());
        assert_eq!(f(UnaryOp::Abs, -0.0).to_bits(), 0);
        assert_eq!(f(UnaryOp::Rsqrt, -0.0), f32::NEG_INFINITY);
        assert_eq!([0.5, 1.5, 2.5, -0.5].map(|x| f(UnaryOp::Round, x)), [0.0, 2.0, 2.0, -0.0]);
        assert_eq!(f(UnaryOp::Logistic, -1e4), 0.0);
        assert_eq!(f(UnaryOp::Logistic, 1e4), 1.0);
        let finite = unary(UnaryOp::IsFinite, &[1.0f32, f32::NAN, f32::INFINITY].into());
        assert_eq!(finite, [true, false, false].into());
    }

    #[test]
    fn nan_wins_and_zeros_are_ordered() {
        let nan = f32::NAN;
        let max = g(BinaryOp::Max, [(nan, 1.0), (1.0, nan), (-0.0, 0.0), (0.0f32, -0.0)]);
        assert!(max[0].is_nan() && max[1].is_nan());
        assert!(max[2].is_sign_positive() && max[3].is_sign_positive());
        let min = g(BinaryOp::Min, [(nan, 1.0), (-0.0f32, 0.0), (2.0, 3.0)]);
        assert!(min[0].is_nan() && min[1].is_sign_negative() && min[2] == 2.0);
        let less = compare(CompareOp::Lt, &[nan, 1.0].into(), &[1.0, nan].into());
        assert_eq!(less, [false, false].into());
        assert_eq!(compare(CompareOp::Ne, &[nan].into(), &[nan].into()), [true].into());
        assert_eq!(compare(CompareOp::Eq, &[0.0f32].into(), &[-0.0f32].into()), [true].into());
        assert_eq!(g(BinaryOp::Pow, [(0.0f32, 0.0), (nan, 0.0), (2.0, -1.0)]), [1.0, 1.0, 0.5]);
        let clamped = clamp(&[0.0f32; 3].into(), &[-1.0, nan, 9.0].into(), &[1.0f32; 3].into());
        let clamped: Vec<f32> = clamped.to_vec().unwrap();
        assert!(clamped[0] == 0.0 && clamped[1].is_nan() && clamped[2] == 1.0);
    }

    #[test]
    fn integers_wrap_and_never_panic() {
        let min = i32::MIN;
        assert_eq!(g(BinaryOp::Div, [(7, 0), (min, -1), (-7, 2)]), [-1, min, -3]);
        assert_eq!(g(BinaryOp::Rem, [(7, 0), (min, -1), (-7, 2)]), [7, 0, -1]);
        assert_eq!(g(BinaryOp::Div, [(7u8, 0)]), [255]);
        assert_eq!(g(BinaryOp::Add, [(250u8, 10)]), [4]);
        assert_eq!(g(BinaryOp::Sub, [(1u64, 2)]), [u64::MAX]);
        assert_eq!(g(BinaryOp::ShiftLeft, [(1, 31), (1, 32), (1, -1)]), [min, 0, 0]);
        assert_eq!(g(BinaryOp::ShiftRightLogical, [(-1, 28), (-1, 32)]), [15, 0]);
        assert_eq!(g(BinaryOp::ShiftRightArithmetic, [(-8, 1), (-8, 99), (8, 99)]), [-4, -1, 0]);
        assert_eq!(unary(UnaryOp::Abs, &[min].into()), [min].into());
        assert_eq!(unary(UnaryOp::Sign, &[0u8, 9].into()), [0u8, 1].into());
        assert_eq!(unary(UnaryOp::Not, &[true].into()), [false].into());
    }

    #[test]
    fn narrow_floats_round_once() {
        // 1 + 2^-11 is halfway between 1 and the next f16; the sum rounds to the even one.
        let sum = g(BinaryOp::Add, [(f16::ONE, f16::from_f32(0.000_488_281_25))]);
        assert_eq!(sum, [f16::ONE]);
        assert_eq!(g(BinaryOp::Mul, [(bf16::MAX, bf16::MAX)]), [bf16::INFINITY]);
    }

    #[test]
    fn every_function_on_every_type_that_has_it() {
        let functions = UnaryOp::ALL
            .map(Op::Unary)
            .into_iter()
            .chain(BinaryOp::ALL.map(Op::Binary))
            .chain(CompareOp::ALL.map(Op::Compare))
            .chain([Op::Clamp, Op::Select])
            .chain(DType::ALL.map(|dtype| Op::Convert { dtype }));
        for op in functions {
            let mut types = 0;
            for dtype in DType::ALL {
                let x = Literal::filled(TensorType::new(dtype, [3]), 1.0);
                let yes = Literal::splat([3], true);
                for inputs in [
                    vec![x.clone()],
                    vec![x.clone(), x.clone()],
                    vec![x.clone(), x.clone(), x.clone()],
                    vec![yes, x.clone(), x],
                ] {
                    let operands: Vec<&TensorType> = inputs.iter().map(Literal::ty).collect();
                    if let Ok(expected) = infer(&op, &operands) {
                        assert_eq!(eval_op(&op, &inputs)[0].ty(), &expected[0], "{op:?}");
                        types += 1;
                    }
                }
            }
            assert!(types > 0, "{op:?} fits no type");
        }
    }

    #[test]
    fn conversions_saturate_floats_and_wrap_integers() {
        let to = |dtype, x: Literal| convert(&x, &TensorType::new(dtype, &x.ty().shape));
        let floats = || Literal::from([f32::NAN, 3e9, -5.0, 2.9, -2.9, f32::INFINITY]);
        assert_eq!(to(DType::I32, floats()), [0, i32::MAX, -5, 2, -2, i32::MAX].into());
        assert_eq!(to(DType::U8, floats()), [0u8, 255, 0, 2, 0, 255].into());
        assert_eq!(to(DType::Bool, floats()), [true; 6].into());
        assert_eq!(to(DType::Bool, [0.0f32, -0.0].into()), [false; 2].into());
        assert_eq!(to(DType::U8, [-1, 256, 300].into()), [255u8, 0, 44].into());
        assert_eq!(to(DType::F32, [u64::MAX].into()), [18_446_744_073_709_551_615.0f32].into());
        assert_eq!(to(DType::I64, [u32::MAX].into()), [u32::MAX as i64].into());
        assert_eq!(to(DType::F16, [70_000].into()), [f16::INFINITY].into());
    }

    #[test]
    fn sources_selections_and_bits_have_known_values() {
        let iota = eval_op(&Op::Iota { ty: TensorType::new(DType::U8, [2, 3]), axis: 1 }, &[]);
        assert_eq!(iota, [[[0u8, 1, 2]; 2].into()]);
        let bits = eval_op(&Op::Bitcast { dtype: DType::U32 }, &[Literal::from([1.0f32, -0.0])]);
        assert_eq!(bits, [[0x3F80_0000u32, 0x8000_0000].into()]);
        let chosen = select(&[true, false].into(), &[1, 2].into(), &[3, 4].into());
        assert_eq!(chosen, [1, 4].into());
        let words = threefry(&[[0u32; 1].into(), [42u32].into(), [0u32].into(), [1u32].into()]);
        // split(key(42))[1] of JAX.
        assert_eq!(words, [[64_467_757u32].into(), [2_916_123_636u32].into()]);
    }
}
