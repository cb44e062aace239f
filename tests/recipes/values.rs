//! Literals: from numbers, stacked, compared.

use half::{bf16, f16};
use podracer::trace::literal::AlignedBytes;
use podracer::{Complex, DType, F8E4M3FN, F8E5M2, I4, Literal, Shape, TensorType, U4};

/// Numbers as a literal of a float or complex type.
pub fn floats(dtype: DType, shape: &Shape, values: &[f64]) -> Literal {
    match dtype {
        DType::F64 => Literal::new(shape, values),
        DType::F32 => Literal::new(shape, &values.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        DType::F16 => {
            Literal::new(shape, &values.iter().map(|&x| f16::from_f64(x)).collect::<Vec<_>>())
        }
        DType::BF16 => {
            Literal::new(shape, &values.iter().map(|&x| bf16::from_f64(x)).collect::<Vec<_>>())
        }
        DType::F8E4M3FN => {
            let elements = values.iter().map(|&x| F8E4M3FN::from_f64(x));
            Literal::new(shape, &elements.collect::<Vec<_>>())
        }
        DType::F8E5M2 => {
            let elements = values.iter().map(|&x| F8E5M2::from_f64(x));
            Literal::new(shape, &elements.collect::<Vec<_>>())
        }
        // Real and imaginary parts in turn.
        DType::C64 => Literal::new(
            shape,
            &values
                .chunks_exact(2)
                .map(|z| Complex::new(z[0] as f32, z[1] as f32))
                .collect::<Vec<_>>(),
        ),
        DType::C128 => Literal::new(
            shape,
            &values.chunks_exact(2).map(|z| Complex::new(z[0], z[1])).collect::<Vec<_>>(),
        ),
        other => panic!("{other} is no float type"),
    }
}

/// Numbers as a literal of an integer type; they wrap.
pub fn ints(dtype: DType, shape: &Shape, values: &[i64]) -> Literal {
    macro_rules! literal {
        ($t:ty) => {
            Literal::new(shape, &values.iter().map(|&x| x as $t).collect::<Vec<_>>())
        };
    }
    match dtype {
        DType::I4 => {
            Literal::new(shape, &values.iter().map(|&x| I4::wrapping(x)).collect::<Vec<_>>())
        }
        DType::U4 => {
            Literal::new(shape, &values.iter().map(|&x| U4::wrapping(x)).collect::<Vec<_>>())
        }
        DType::I8 => literal!(i8),
        DType::I16 => literal!(i16),
        DType::I32 => literal!(i32),
        DType::I64 => literal!(i64),
        DType::U8 => literal!(u8),
        DType::U16 => literal!(u16),
        DType::U32 => literal!(u32),
        DType::U64 => literal!(u64),
        other => panic!("{other} is no integer type"),
    }
}

/// Below which numbers may be 0 in compiled code, which flushes what is not normal.
fn flushed_below(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::C128 => f64::MIN_POSITIVE,
        DType::C64 => f32::MIN_POSITIVE.into(),
        // f16 is computed in f32, where its numbers are normal.
        DType::F32 | DType::BF16 => f32::MIN_POSITIVE.into(),
        _ => 0.0,
    }
}

/// Whether two lists of values are the same: integers exactly, floats within `tolerance` of the
/// scale of their array.
pub fn same(found: &[Literal], expected: &[Literal], tolerance: f64) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{} results, not {}", found.len(), expected.len()));
    }
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        if a.ty() != b.ty() {
            return Err(format!("result {i} is {}, not {}", a.ty(), b.ty()));
        }
        let (x, y) = (a.to_f64_vec(), b.to_f64_vec());
        let scale = y.iter().filter(|y| y.is_finite()).fold(0.0f64, |m, y| m.max(y.abs()));
        let exact = !a.ty().dtype.is_inexact();
        let tiny = flushed_below(a.ty().dtype);
        for (j, (&x, &y)) in x.iter().zip(&y).enumerate() {
            let both_tiny = x.abs() < tiny && y.abs() < tiny;
            let equal = x == y || (x.is_nan() && y.is_nan()) || both_tiny;
            let near = !exact && (x - y).abs() <= tolerance * scale.max(1.0);
            if !equal && !near {
                return Err(format!(
                    "result {i} differs at {j}: {x} instead of {y}\n    found    {a:?}\n    \
                     expected {b:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Values of one type as one, along a new first axis.
pub fn stacked(parts: &[&Literal]) -> Literal {
    let ty = parts[0].ty();
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice((*part.bytes()).as_ref());
    }
    Literal::from_bytes(
        TensorType::new(ty.dtype, ty.shape.with_axis(0, parts.len())),
        AlignedBytes::copy_of(&bytes),
    )
}
