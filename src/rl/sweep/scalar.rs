//! Hyperparameters that are either fixed in a program or inputs of it.

use std::ops::{Add, Mul, Neg, Sub};

use crate::Tensor;
use crate::trace::TensorType;
use crate::trace::ops::{Operand, full_like};

/// Scalar hyperparameter: a number that is part of the program, or a traced scalar `f32[]`, which
/// may differ between the agents of a `vmap`.
#[derive(Debug, Clone, Copy)]
pub enum Scalar {
    /// Number.
    Fixed(f64),
    /// Traced scalar, `f32[]`.
    Traced(Tensor),
}

impl Scalar {
    /// Returns the scalar as a tensor of the type of `like`, which is a scalar.
    #[track_caller]
    pub fn like(self, like: Tensor) -> Tensor {
        match self {
            Scalar::Fixed(value) => full_like(like, value),
            Scalar::Traced(x) => x.to(like.dtype()),
        }
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Scalar {
        Scalar::Fixed(value)
    }
}

impl Operand for Scalar {
    #[track_caller]
    fn to_tensor(self, like: &TensorType) -> Tensor {
        match self {
            Scalar::Fixed(value) => value.to_tensor(like),
            Scalar::Traced(x) => x.to_tensor(like),
        }
    }
}

impl Mul<Tensor> for Scalar {
    type Output = Tensor;
    #[track_caller]
    fn mul(self, x: Tensor) -> Tensor {
        match self {
            Scalar::Fixed(value) => value * x,
            Scalar::Traced(scalar) => scalar * x,
        }
    }
}

impl Mul for Scalar {
    type Output = Scalar;
    #[track_caller]
    fn mul(self, other: Scalar) -> Scalar {
        match (self, other) {
            (Scalar::Fixed(a), Scalar::Fixed(b)) => Scalar::Fixed(a * b),
            (Scalar::Fixed(a), Scalar::Traced(b)) => Scalar::Traced(a * b),
            (Scalar::Traced(a), b) => Scalar::Traced(a * b),
        }
    }
}

impl Neg for Scalar {
    type Output = Scalar;
    #[track_caller]
    fn neg(self) -> Scalar {
        match self {
            Scalar::Fixed(value) => Scalar::Fixed(-value),
            Scalar::Traced(x) => Scalar::Traced(-x),
        }
    }
}

impl Add<Scalar> for f64 {
    type Output = Scalar;
    #[track_caller]
    fn add(self, other: Scalar) -> Scalar {
        match other {
            Scalar::Fixed(value) => Scalar::Fixed(self + value),
            Scalar::Traced(x) => Scalar::Traced(self + x),
        }
    }
}

impl Sub<Scalar> for f64 {
    type Output = Scalar;
    #[track_caller]
    fn sub(self, other: Scalar) -> Scalar {
        match other {
            Scalar::Fixed(value) => Scalar::Fixed(self - value),
            Scalar::Traced(x) => Scalar::Traced(self - x),
        }
    }
}
