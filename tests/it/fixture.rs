//! Files of JAX's numbers: `function/kind0`, `function/kind1`, .. are arrays.

use std::collections::BTreeMap;

use podracer::trace::literal::AlignedBytes;
use podracer::{DType, Literal, TensorType};
use safetensors::SafeTensors;

/// The arrays of one function, by kind.
pub type Kinds = BTreeMap<String, Vec<Literal>>;

/// Every function of a file.
pub fn read(path: &str) -> BTreeMap<String, Kinds> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: BTreeMap<String, BTreeMap<String, BTreeMap<usize, Literal>>> = BTreeMap::new();
    for (name, view) in file.tensors() {
        let (function, what) = name.split_once('/').unwrap();
        let digit = what.find(|c: char| c.is_ascii_digit()).unwrap();
        let dtype = match view.dtype() {
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::F64 => DType::F64,
            safetensors::Dtype::F16 => DType::F16,
            safetensors::Dtype::BF16 => DType::BF16,
            safetensors::Dtype::I8 => DType::I8,
            safetensors::Dtype::I16 => DType::I16,
            safetensors::Dtype::I32 => DType::I32,
            safetensors::Dtype::I64 => DType::I64,
            safetensors::Dtype::U8 => DType::U8,
            safetensors::Dtype::U16 => DType::U16,
            safetensors::Dtype::U32 => DType::U32,
            safetensors::Dtype::U64 => DType::U64,
            safetensors::Dtype::BOOL => DType::Bool,
            other => panic!("{name} is {other:?}"),
        };
        let ty = TensorType::new(dtype, view.shape());
        let array = Literal::from_bytes(ty, AlignedBytes::copy_of(view.data()));
        let kinds = all.entry(function.into()).or_default();
        kinds
            .entry(what[..digit].into())
            .or_default()
            .insert(what[digit..].parse().unwrap(), array);
    }
    let list = |(kind, arrays): (String, BTreeMap<usize, Literal>)| {
        assert!(arrays.keys().copied().eq(0..arrays.len()), "{kind}: {:?}", arrays.keys());
        (kind, arrays.into_values().collect())
    };
    all.into_iter().map(|(name, kinds)| (name, kinds.into_iter().map(list).collect())).collect()
}

/// Each array within 1e-5 of its largest element (narrow floats: a unit in the last place), or 1e-7
/// of small ones, which are differences of larger numbers; NaN and infinities in the same places.
pub fn compare(found: &[Literal], expected: &[Literal]) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{} arrays, not {}", found.len(), expected.len()));
    }
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        if a.ty() != b.ty() {
            return Err(format!("array {i} is {}, not {}", a.ty(), b.ty()));
        }
        let (x, y) = (a.to_f64_vec(), b.to_f64_vec());
        let scale = y.iter().filter(|y| y.is_finite()).fold(0.0f64, |m, y| m.max(y.abs()));
        let tolerance = match a.ty().dtype {
            DType::F16 => 1e-3,
            DType::BF16 => 8e-3,
            _ => 1e-5,
        };
        let near = |x: f64, y: f64| {
            x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * scale.max(1e-2)
        };
        if let Some(j) = x.iter().zip(&y).position(|(&x, &y)| !near(x, y)) {
            return Err(format!(
                "array {i} at {j}: {} instead of {}\n  {a:?}\n  {b:?}",
                x[j], y[j]
            ));
        }
    }
    Ok(())
}
