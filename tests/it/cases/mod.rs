//! Cases for the laws: functions, one operation in the middle of each, and what they are given.
//!
//! A case is named after the operation that it is about, then by what is special: `scan/reverse`.

pub mod callbacks;
pub mod complex;
pub mod control;
pub mod custom;
pub mod elementwise;
pub mod index;
pub mod linalg;
pub mod products;
pub mod reduce;
pub mod shape;

use std::rc::Rc;

use podracer::{DType, Literal, Tensor};

pub use crate::recipes::values::{floats, ints};

/// A function of tensors.
pub type Func = Rc<dyn Fn(&[Tensor]) -> Vec<Tensor>>;

/// How often a function can be differentiated where it is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Smooth {
    /// Not at all, or there is nothing to differentiate.
    No,
    /// Once, forwards only.
    Forward,
    /// Once.
    Once,
    /// Twice.
    Twice,
}

/// An argument of a case.
#[derive(Debug, Clone)]
pub enum In {
    /// Floats in this range; of complex numbers both parts.
    Float(Vec<usize>, f64, f64),
    /// Floats in -2..2, no two of them close together.
    Distinct(Vec<usize>),
    /// Integers in this range, the last included.
    Int(DType, Vec<usize>, i64, i64),
    /// Bools.
    Bool(Vec<usize>),
    /// Floats of the dtype tried, always these.
    Floats(Vec<usize>, Vec<f64>),
    /// Always this.
    Value(Literal),
}

/// See the module.
pub struct Case {
    pub name: String,
    pub f: Func,
    pub args: Vec<In>,
    pub smooth: Smooth,
    /// What `In::Float` stands for. With `f64` first all laws are held to; the others are compared
    /// compiled with interpreted.
    pub dtypes: Vec<DType>,
    /// How much more than rounding compiled results may differ, as a factor.
    pub tolerance: f64,
    /// Whether it is batched.
    pub vmap: bool,
}

/// A twice differentiable function of several results.
pub fn cases_of(
    name: impl Into<String>,
    args: &[In],
    f: impl Fn(&[Tensor]) -> Vec<Tensor> + 'static,
) -> Case {
    Case {
        name: name.into(),
        f: Rc::new(f),
        args: args.to_vec(),
        smooth: Smooth::Twice,
        dtypes: vec![DType::F64, DType::F32],
        tolerance: 1.0,
        vmap: true,
    }
}

/// A twice differentiable function of one result.
pub fn case(
    name: impl Into<String>,
    args: &[In],
    f: impl Fn(&[Tensor]) -> Tensor + 'static,
) -> Case {
    cases_of(name, args, move |x| vec![f(x)])
}

impl Case {
    /// Without derivatives.
    pub fn flat(mut self) -> Case {
        self.smooth = Smooth::No;
        self
    }

    /// Differentiated once.
    pub fn once(mut self) -> Case {
        self.smooth = Smooth::Once;
        self
    }

    /// Differentiated forwards only.
    pub fn forward(mut self) -> Case {
        self.smooth = Smooth::Forward;
        self
    }

    /// Tried with these float types.
    pub fn dtypes(mut self, dtypes: &[DType]) -> Case {
        self.dtypes = dtypes.to_vec();
        self
    }

    /// Compiled results may differ by so many times more than rounding.
    pub fn loose(mut self, factor: f64) -> Case {
        self.tolerance = factor;
        self
    }

    /// The arguments with floats of type `dtype`; others for another seed.
    pub fn inputs(&self, dtype: DType, seed: u64) -> Vec<Literal> {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9) ^ self.name.len() as u64);
        self.args.iter().map(|arg| arg.value(dtype, &mut random)).collect()
    }
}

impl In {
    fn value(&self, dtype: DType, random: &mut Random) -> Literal {
        match self {
            In::Float(shape, low, high) => {
                let n: usize = shape.iter().product();
                let n = if dtype.is_complex() { 2 * n } else { n };
                let values: Vec<f64> = (0..n).map(|_| low + (high - low) * random.unit()).collect();
                floats(dtype, &shape.into(), &values)
            }
            In::Distinct(shape) => {
                let n: usize = shape.iter().product();
                let mut values: Vec<f64> =
                    (0..n).map(|i| (i as f64 + 0.37) / n as f64 * 4.0 - 2.0).collect();
                for i in (1..n).rev() {
                    values.swap(i, (random.unit() * (i + 1) as f64) as usize);
                }
                floats(dtype, &shape.into(), &values)
            }
            In::Int(dtype, shape, low, high) => {
                let n: usize = shape.iter().product();
                let span = (high - low + 1) as f64;
                let values: Vec<i64> =
                    (0..n).map(|_| low + (random.unit() * span) as i64).collect();
                ints(*dtype, &shape.into(), &values)
            }
            In::Bool(shape) => {
                let n: usize = shape.iter().product();
                let values: Vec<bool> = (0..n).map(|_| random.unit() < 0.5).collect();
                Literal::new(shape, &values)
            }
            In::Floats(shape, values) => floats(dtype, &shape.into(), values),
            In::Value(literal) => literal.clone(),
        }
    }
}

struct Random(u64);

impl Random {
    /// In 0..1 (SplitMix64).
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Floats in -2..2.
pub fn x(shape: &[usize]) -> In {
    In::Float(shape.to_vec(), -2.0, 2.0)
}

/// Floats in a range.
pub fn within(shape: &[usize], low: f64, high: f64) -> In {
    In::Float(shape.to_vec(), low, high)
}

/// Floats no two of which are close together.
pub fn distinct(shape: &[usize]) -> In {
    In::Distinct(shape.to_vec())
}

/// `i32` in a range, the last included.
pub fn int(shape: &[usize], low: i64, high: i64) -> In {
    In::Int(DType::I32, shape.to_vec(), low, high)
}
