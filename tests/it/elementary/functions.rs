//! The functions of `tests/fixtures/jax/elementary.py`, stated once more.

use podracer::trace::numpy::betaln;
use podracer::trace::op::{BinaryOp, UnaryOp};
use podracer::trace::ops::{logaddexp, polygamma, where_};
use podracer::{DType, Tensor};

use self::Function::{Binary, Unary};
use crate::recipes;

type OfOne = fn(Tensor) -> Tensor;
type OfTwo = fn(Tensor, Tensor) -> Tensor;

/// A function of one or two operands.
#[derive(Clone, Copy)]
pub enum Function {
    Unary(OfOne),
    Binary(OfTwo),
}

impl Function {
    pub fn call(self, x: &[Tensor]) -> Tensor {
        match self {
            Unary(f) => f(x[0]),
            Binary(f) => f(x[0], x[1]),
        }
    }
}

/// Functions of one operand: the operations on floats, and compositions.
pub fn unary() -> Vec<(&'static str, Function)> {
    let operations = UnaryOp::ALL.into_iter().filter(|op| op.domain().contains(DType::F32));
    let operations = operations.map(recipes::unary::unary).map(|row| (row.name, Unary(row.f)));
    operations.chain(COMPOSITIONS.iter().map(|&(name, f)| (name, Unary(f)))).collect()
}

/// Functions of two operands: the operations on floats, compositions and comparisons.
pub fn binary() -> Vec<(&'static str, Function)> {
    let operations = BinaryOp::ALL.map(recipes::binary::binary).into_iter();
    let operations = operations.filter(|row| row.recorded).map(|row| (row.name, Binary(row.f)));
    operations.chain(BINARY.iter().map(|&(name, f)| (name, Binary(f)))).collect()
}

const COMPOSITIONS: &[(&str, OfOne)] = &[
    ("atan", |x| x.atan()),
    ("exp2", |x| x.exp2()),
    ("log2", |x| x.log2()),
    ("log10", |x| x.log10()),
    ("trunc", |x| x.trunc()),
    ("polygamma_1", |x| polygamma(1, x)),
    ("is_nan", |x| x.is_nan()),
    ("is_inf", |x| x.is_inf()),
    ("stop_gradient", |x| x.stop_gradient()),
    ("square", |x| x.square()),
    ("reciprocal", |x| x.reciprocal()),
    ("powi_-3", |x| x.powi(-3)),
    ("powi_-2", |x| x.powi(-2)),
    ("powi_-1", |x| x.powi(-1)),
    ("powi_0", |x| x.powi(0)),
    ("powi_1", |x| x.powi(1)),
    ("powi_2", |x| x.powi(2)),
    ("powi_3", |x| x.powi(3)),
    ("powi_4", |x| x.powi(4)),
    ("clip", |x| x.clip(-1.0, 1.0)),
    ("clamp", |x| x.clamp(-1.0, 1.0)),
    ("relu", |x| x.relu()),
    ("leaky_relu", |x| x.leaky_relu(0.125)),
    ("elu", |x| x.elu()),
    ("silu", |x| x.silu()),
    ("gelu", |x| x.gelu()),
    ("softplus", |x| x.softplus()),
    ("log_sigmoid", |x| x.log_sigmoid()),
];

const BINARY: &[(&str, OfTwo)] = &[
    ("modulo", |x, y| x.modulo(y)),
    ("floor_div", |x, y| x.floor_div(y)),
    ("hypot", |x, y| x.hypot(y)),
    ("logaddexp", |x, y| logaddexp(x, y)),
    ("betaln", |x, y| betaln(x, y)),
    ("where", |x, y| where_(x.lt(y), x, y)),
    ("equal", |x, y| x.eq(y)),
    ("not_equal", |x, y| x.ne(y)),
    ("lt", |x, y| x.lt(y)),
    ("le", |x, y| x.le(y)),
    ("gt", |x, y| x.gt(y)),
    ("ge", |x, y| x.ge(y)),
];

/// Elementwise functions without a case here. Those that give no floats are held to the interpreter by
/// `tests/it/laws.rs`, and to JAX by `tests/it/eval.rs` and `tests/it/complex.rs`. From `beta` on they are
/// compared with JAX in `f32` by `tests/it/names.rs`.
pub const ELSEWHERE: &[&str] = &[
    "complex",
    "to",
    "bitcast",
    "beta",
    "comb",
    "factorial",
    "gamma",
    "gammasgn",
    "i0",
    "i1",
    "multigammaln",
    "poch",
];
