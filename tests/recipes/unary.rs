//! The unary operations as the tests need them, one row each. The laws, the random Programs, and the
//! tests of lowering, of messages and of JAX's numbers ask the rows; so does
//! `tests/fixtures/jax/elementary.py`, which reads the first line of each.

#![allow(dead_code)] // The tests of devices ask the steps only.

use podracer::trace::op::UnaryOp;
use podracer::{DType, Tensor};

use super::cook::Info;

/// Inputs at which a finite difference approximates the derivatives.
#[derive(Clone, Copy)]
pub enum Inputs {
    /// Floats in -2..2.
    Any,
    /// Floats in -2..2, no two of them close together: away from jumps.
    Distinct,
    /// Floats in this range.
    Within(f64, f64),
    /// Whole numbers from 0, by which there is no derivative.
    Order,
}

/// Operand of a step of a random Program, to which another number is brought first.
#[derive(Clone, Copy)]
pub enum Operand {
    /// A number of at most this size.
    Small(f64),
    /// A number of at least a quarter.
    Positive,
    /// A number of at least 1 and a quarter.
    AboveOne,
}

/// A step of a random Program.
#[derive(Clone, Copy)]
pub struct Step {
    pub operand: Operand,
    /// An interval of results, and the largest slope, for operands in an interval.
    pub bounds: fn(Info) -> (f64, f64, f64),
    /// Rounding of the result in units of the last place, for operands of a type in an interval.
    pub rounding: fn(DType, Info) -> f64,
}

/// A row.
#[derive(Clone, Copy)]
pub struct Row {
    /// Name of the method of `Tensor`.
    pub name: &'static str,
    /// The function.
    pub f: fn(Tensor) -> Tensor,
    pub inputs: Inputs,
    /// The function in the standard library of Rust, if it has it.
    pub value: Option<fn(f64) -> f64>,
    /// The step of random Programs; `None` if `Cook::unary` has its own.
    pub step: Option<Step>,
}

/// The beginning of a row; the third argument is the function of JAX, for the fixtures, and empty if
/// the operation takes no floats.
fn row(name: &'static str, f: fn(Tensor) -> Tensor, _jax: &'static str) -> Row {
    Row { name, f, inputs: Inputs::Any, value: None, step: None }
}

impl Row {
    fn inputs(self, inputs: Inputs) -> Row {
        Row { inputs, ..self }
    }

    fn within(self, low: f64, high: f64) -> Row {
        self.inputs(Inputs::Within(low, high))
    }

    fn value(self, value: fn(f64) -> f64) -> Row {
        Row { value: Some(value), ..self }
    }

    fn step(self, operand: Operand, bounds: fn(Info) -> (f64, f64, f64)) -> Row {
        Row { step: Some(Step { operand, bounds, rounding: |_, _| 8.0 }), ..self }
    }

    fn rounding(self, rounding: fn(DType, Info) -> f64) -> Row {
        Row { step: self.step.map(|step| Step { rounding, ..step }), ..self }
    }
}

/// The row of `op`.
pub fn unary(op: UnaryOp) -> Row {
    use Inputs::Distinct;
    use Operand::{AboveOne, Positive, Small};
    match op {
        UnaryOp::Neg => row("neg", |x| -x, "jnp.negative").value(|x| -x),
        UnaryOp::Abs => row("abs", Tensor::abs, "jnp.abs").inputs(Distinct).value(f64::abs),
        UnaryOp::Sign => row("sign", Tensor::sign, "jnp.sign")
            .inputs(Distinct)
            .value(|x| if x == 0.0 { 0.0 } else { x.signum() }),
        UnaryOp::Exp => row("exp", Tensor::exp, "jnp.exp")
            .value(f64::exp)
            .step(Small(3.0), |i| (i.low.exp(), i.high.exp(), i.high.exp())),
        UnaryOp::Expm1 => row("expm1", Tensor::expm1, "jnp.expm1")
            .value(f64::exp_m1)
            .step(Small(3.0), |i| (i.low.exp_m1(), i.high.exp_m1(), i.high.exp())),
        UnaryOp::Log => row("log", Tensor::log, "jnp.log")
            .within(0.3, 3.0)
            .value(f64::ln)
            .step(Positive, |i| (i.low.ln(), i.high.ln(), 1.0 / i.low)),
        UnaryOp::Log1p => row("log1p", Tensor::log1p, "jnp.log1p")
            .within(-0.6, 3.0)
            .value(f64::ln_1p)
            .step(Positive, |i| (i.low.ln_1p(), i.high.ln_1p(), 1.0 / (1.0 + i.low))),
        UnaryOp::Sqrt => row("sqrt", Tensor::sqrt, "jnp.sqrt")
            .within(0.3, 3.0)
            .value(f64::sqrt)
            .step(Positive, |i| (i.low.sqrt(), i.high.sqrt(), 0.5 / i.low.sqrt())),
        UnaryOp::Rsqrt => row("rsqrt", Tensor::rsqrt, "lax.rsqrt")
            .within(0.3, 3.0)
            .value(|x| 1.0 / x.sqrt())
            .step(Positive, |i| (i.high.powf(-0.5), i.low.powf(-0.5), 0.5 * i.low.powf(-1.5))),
        // Sine and cosine of large numbers lose what their argument has lost.
        UnaryOp::Sin => row("sin", Tensor::sin, "jnp.sin")
            .value(f64::sin)
            .step(Small(64.0), |_| (-1.0, 1.0, 1.13))
            .rounding(|_, i| 8.0 + i.size()),
        UnaryOp::Cos => row("cos", Tensor::cos, "jnp.cos")
            .value(f64::cos)
            .step(Small(64.0), |_| (-1.0, 1.0, 1.13))
            .rounding(|_, i| 8.0 + i.size()),
        UnaryOp::Tan => row("tan", Tensor::tan, "jnp.tan")
            .within(-1.1, 1.1)
            .value(f64::tan)
            .step(Small(1.0), |i| (i.low.tan(), i.high.tan(), 1.0 + i.size().tan().powi(2))),
        UnaryOp::Tanh => row("tanh", Tensor::tanh, "jnp.tanh")
            .value(f64::tanh)
            .step(Small(64.0), |_| (-1.0, 1.0, 1.13)),
        UnaryOp::Asin => row("asin", Tensor::asin, "jnp.arcsin")
            .within(-0.9, 0.9)
            .value(f64::asin)
            .step(Small(0.875), |_| (-1.4, 1.4, 4.5)),
        UnaryOp::Acos => row("acos", Tensor::acos, "jnp.arccos")
            .within(-0.9, 0.9)
            .value(f64::acos)
            .step(Small(0.875), |_| (0.0, 2.7, 2.1)),
        UnaryOp::Sinh => row("sinh", Tensor::sinh, "jnp.sinh")
            .value(f64::sinh)
            .step(Small(3.0), |i| (i.low.sinh(), i.high.sinh(), i.size().cosh())),
        UnaryOp::Cosh => row("cosh", Tensor::cosh, "jnp.cosh")
            .value(f64::cosh)
            .step(Small(3.0), |i| (1.0, i.size().cosh(), i.size().cosh())),
        UnaryOp::Asinh => row("asinh", Tensor::asinh, "jnp.arcsinh")
            .value(f64::asinh)
            .step(Small(64.0), |i| (i.low.asinh(), i.high.asinh(), 1.0)),
        UnaryOp::Acosh => row("acosh", Tensor::acosh, "jnp.arccosh")
            .within(1.2, 3.0)
            .value(f64::acosh)
            .step(AboveOne, |i| (i.low.acosh(), i.high.acosh(), (i.low * i.low - 1.0).powf(-0.5))),
        UnaryOp::Atanh => row("atanh", Tensor::atanh, "jnp.arctanh")
            .within(-0.9, 0.9)
            .value(f64::atanh)
            .step(Small(0.875), |_| (-1.4, 1.4, 4.5)),
        UnaryOp::Cbrt => row("cbrt", Tensor::cbrt, "jnp.cbrt")
            .within(0.3, 3.0)
            .value(f64::cbrt)
            .step(Positive, |i| (i.low.cbrt(), i.high.cbrt(), i.low.powf(-2.0 / 3.0) / 3.0)),
        UnaryOp::Logistic => row("sigmoid", Tensor::sigmoid, "jax.nn.sigmoid")
            .value(|x| 1.0 / (1.0 + (-x).exp()))
            .step(Small(64.0), |_| (0.0, 1.0, 0.25)),
        UnaryOp::Floor => {
            row("floor", Tensor::floor, "jnp.floor").inputs(Distinct).value(f64::floor)
        }
        UnaryOp::Ceil => row("ceil", Tensor::ceil, "jnp.ceil").inputs(Distinct).value(f64::ceil),
        UnaryOp::Round => {
            row("round", Tensor::round, "jnp.round").inputs(Distinct).value(f64::round_ties_even)
        }
        UnaryOp::Erf => row("erf", Tensor::erf, "lax.erf").step(Small(64.0), |_| (-1.0, 1.0, 1.13)),
        UnaryOp::Erfc => {
            row("erfc", Tensor::erfc, "lax.erfc").step(Small(3.0), |_| (0.0, 2.0, 1.13))
        }
        // The interpreter's inverse of erf is that of f32.
        UnaryOp::ErfInv => row("erf_inv", Tensor::erf_inv, "lax.erf_inv")
            .within(-0.9, 0.9)
            .step(Small(0.875), |_| (-1.1, 1.1, 3.0))
            .rounding(|dtype, _| if dtype == DType::F64 { 1e10 } else { 8.0 }),
        // Between the least value and a bound of either end: |log gamma(x)| < x^2 + 1 / x, and
        // |digamma(x)| < x + 1 / x, from a quarter on. Both are differences of larger logarithms.
        UnaryOp::Lgamma => row("lgamma", Tensor::lgamma, "lax.lgamma")
            .within(0.4, 4.0)
            .step(Positive, |i| (-0.122, i.high.powi(2) + 1.0 / i.low, i.high + 1.0 / i.low))
            .rounding(|_, _| 64.0),
        UnaryOp::Digamma => row("digamma", Tensor::digamma, "lax.digamma")
            .within(0.4, 4.0)
            .step(Positive, |i| (-1.0 / i.low - 1.0, i.high, 1.0 / i.low.powi(2) + 1.0 / i.low))
            .rounding(|_, _| 64.0),
        UnaryOp::BesselI0e => row("bessel_i0e", Tensor::bessel_i0e, "special.i0e")
            .within(0.3, 3.0)
            .step(Positive, |_| (0.0, 1.0, 1.0)),
        UnaryOp::BesselI1e => row("bessel_i1e", Tensor::bessel_i1e, "special.i1e")
            .within(0.3, 3.0)
            .step(Positive, |_| (0.0, 0.22, 0.5)),
        UnaryOp::IsFinite => row("is_finite", Tensor::is_finite, "jnp.isfinite")
            .value(|x| x.is_finite() as u8 as f64),
        UnaryOp::Not => row("not", |x| !x, ""),
        UnaryOp::PopulationCount => row("population_count", Tensor::population_count, ""),
        UnaryOp::Clz => row("clz", Tensor::clz, ""),
        UnaryOp::Real => row("real", Tensor::real, ""),
        UnaryOp::Imag => row("imag", Tensor::imag, ""),
        UnaryOp::Conj => row("conj", Tensor::conj, ""),
    }
}
