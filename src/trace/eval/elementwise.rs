//! Operations on each element by itself, and the sources of elements.

use std::cmp::Ordering;

use half::{bf16, f16};

use super::number::{Number, with_number};
use super::{shapes, special};
use crate::trace::literal::{Element, Literal};
use crate::trace::op::{BinaryOp, CompareOp, UnaryOp};
use crate::trace::types::{DType, TensorType};

/// A number between two element types.
#[derive(Clone, Copy)]
enum Wide {
    Int(i128),
    Float(f64),
}

fn widen(x: &Literal) -> Vec<Wide> {
    fn ints<T: Element + Into<i128>>(x: &Literal) -> Vec<Wide> {
        let elements: Vec<T> = x.to_vec().expect("dispatched on the element type");
        elements.into_iter().map(|x| Wide::Int(x.into())).collect()
    }
    match x.ty().dtype {
        DType::Bool => ints::<bool>(x),
        DType::I8 => ints::<i8>(x),
        DType::I16 => ints::<i16>(x),
        DType::I32 => ints::<i32>(x),
        DType::I64 => ints::<i64>(x),
        DType::U8 => ints::<u8>(x),
        DType::U16 => ints::<u16>(x),
        DType::U32 => ints::<u32>(x),
        DType::U64 => ints::<u64>(x),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {
            x.to_f64_vec().into_iter().map(Wide::Float).collect()
        }
    }
}

fn narrow(ty: &TensorType, numbers: &[Wide]) -> Literal {
    fn build<T: Element>(ty: &TensorType, numbers: &[Wide], f: impl Fn(Wide) -> T) -> Literal {
        Literal::new(&ty.shape, &numbers.iter().map(|&x| f(x)).collect::<Vec<T>>())
    }
    // `as` is what is wanted: integers wrap, floats are truncated and saturate, NaN gives 0.
    macro_rules! cast {
        ($t:ty) => {
            build(ty, numbers, |x| match x {
                Wide::Int(x) => x as $t,
                Wide::Float(x) => x as $t,
            })
        };
    }
    match ty.dtype {
        DType::Bool => build(ty, numbers, |x| match x {
            Wide::Int(x) => x != 0,
            Wide::Float(x) => x != 0.0,
        }),
        DType::I8 => cast!(i8),
        DType::I16 => cast!(i16),
        DType::I32 => cast!(i32),
        DType::I64 => cast!(i64),
        DType::U8 => cast!(u8),
        DType::U16 => cast!(u16),
        DType::U32 => cast!(u32),
        DType::U64 => cast!(u64),
        DType::F16 => build(ty, numbers, |x| match x {
            Wide::Int(x) => f16::from_f64(x as f64),
            Wide::Float(x) => f16::from_f64(x),
        }),
        DType::BF16 => build(ty, numbers, |x| match x {
            Wide::Int(x) => bf16::from_f64(x as f64),
            Wide::Float(x) => bf16::from_f64(x),
        }),
        DType::F32 => cast!(f32),
        DType::F64 => cast!(f64),
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
    with_number!(ty.dtype, N => {
        let f = N::unary(op, ty.dtype);
        let numbers: Vec<N> = N::lift(x).into_iter().map(f).collect();
        N::lower(ty, &numbers)
    })
}

pub(super) fn binary(op: BinaryOp, lhs: &Literal, rhs: &Literal) -> Literal {
    let ty = lhs.ty();
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
        N::lift(lhs).iter().zip(&N::lift(rhs)).map(|(x, y)| holds(x.partial_cmp(y))).collect()
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
