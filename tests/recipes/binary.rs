//! The binary operations as the tests need them, one row each. The laws, the random Programs, and the
//! tests of lowering, of messages and of JAX's numbers ask the rows; so does
//! `tests/fixtures/jax/elementary.py`, which reads the first line of each.

#![allow(dead_code)] // The tests of devices ask the steps only.

use podracer::Tensor;
use podracer::trace::Var;
use podracer::trace::op::{BinaryOp, Op};
use podracer::trace::ops::{complex, div, polygamma};

use super::cook::{Cook, Info};
use super::unary::Inputs::{self, Any, Order, Within};

/// A step of a random Program: the operation on two floats, or `None` if they do not fit.
pub type Step = fn(&mut Cook, Var, Var) -> Option<Var>;

/// A row.
#[derive(Clone, Copy)]
pub struct Row {
    /// Name of the method of `Tensor`, or of the operation if an operator of Rust stands for it.
    pub name: &'static str,
    /// The function.
    pub f: fn(Tensor, Tensor) -> Tensor,
    /// True if `tests/fixtures/jax/elementary.safetensors` has JAX's numbers of this row.
    pub recorded: bool,
    /// The function on the host.
    pub value: fn(f64, f64) -> f64,
    pub inputs: [Inputs; 2],
    /// Factor by which compiled results may differ more than by rounding.
    pub loose: f64,
    /// Step of the random Programs on floats.
    pub step: Step,
    /// True if the step takes NaN and infinities as well.
    pub takes_special: bool,
}

/// The beginning of a row; the third argument is the function of JAX, for the fixtures, and empty if
/// the operation takes no floats or stands elsewhere in them.
fn row(
    name: &'static str,
    f: fn(Tensor, Tensor) -> Tensor,
    jax: &'static str,
    value: fn(f64, f64) -> f64,
) -> Row {
    Row {
        name,
        f,
        recorded: !jax.is_empty(),
        value,
        inputs: [Any, Any],
        loose: 4.0,
        step: |_, _, _| None,
        takes_special: false,
    }
}

impl Row {
    fn inputs(self, x: Inputs, y: Inputs) -> Row {
        Row { inputs: [x, y], ..self }
    }

    fn step(self, step: Step) -> Row {
        Row { step, ..self }
    }

    /// The step of an operation that gives one of its operands, whichever they are.
    fn choice(self, step: Step) -> Row {
        Row { step, takes_special: true, ..self }
    }
}

/// The row of `op`.
pub fn binary(op: BinaryOp) -> Row {
    match op {
        BinaryOp::Add => row("add", |x, y| x + y, "jnp.add", |x, y| x + y)
            .step(|cook, x, y| cook.binary(BinaryOp::Add, x, y)),
        BinaryOp::Sub => row("sub", |x, y| x - y, "jnp.subtract", |x, y| x - y)
            .step(|cook, x, y| cook.binary(BinaryOp::Sub, x, y)),
        BinaryOp::Mul => row("mul", |x, y| x * y, "jnp.multiply", |x, y| x * y)
            .step(|cook, x, y| cook.binary(BinaryOp::Mul, x, y)),
        BinaryOp::Div => row("div", |x, y| div(x, y), "jnp.divide", |x, y| x / y)
            .inputs(Any, Within(0.5, 2.0))
            .step(quotient),
        BinaryOp::Rem => row("rem", |x, y| x % y, "lax.rem", |x, y| x % y)
            .inputs(Within(1.1, 1.9), Within(0.6, 0.9))
            .step(remainder),
        BinaryOp::Pow => row("pow", |x, y| x.pow(y), "jnp.power", f64::powf)
            .inputs(Within(0.3, 2.0), Any)
            .step(power),
        BinaryOp::Max => row("maximum", |x, y| x.maximum(y), "jnp.maximum", f64::max)
            .choice(|cook, x, y| extreme(cook, BinaryOp::Max, x, y)),
        BinaryOp::Min => row("minimum", |x, y| x.minimum(y), "jnp.minimum", f64::min)
            .choice(|cook, x, y| extreme(cook, BinaryOp::Min, x, y)),
        BinaryOp::Atan2 => {
            row("atan2", |x, y| x.atan2(y), "jnp.arctan2", f64::atan2).step(|cook, x, y| {
                let y = cook.positive(y)?;
                let error = (cook.info(x).error + cook.info(y).error) / cook.info(y).low;
                cook.rounding(Op::Binary(BinaryOp::Atan2), &[x, y], (-1.6, 1.6), error, 8.0)
            })
        }
        // JAX has no derivative by the order; its numbers of order 1 are `polygamma_1`.
        BinaryOp::Polygamma => {
            let row = row("polygamma", |n, x| polygamma(n.to(x.dtype()), x), "", polygamma_series)
                .inputs(Order, Within(0.5, 4.0))
                .step(trigamma);
            Row { loose: 32.0, ..row }
        }
        BinaryOp::And => row("and", |x, y| x & y, "", |x, y| (x as i64 & y as i64) as f64),
        BinaryOp::Or => row("or", |x, y| x | y, "", |x, y| (x as i64 | y as i64) as f64),
        BinaryOp::Xor => row("xor", |x, y| x ^ y, "", |x, y| (x as i64 ^ y as i64) as f64),
        BinaryOp::ShiftLeft => row("shift_left", |x, y| x << y, "", |x, y| x * y.exp2()),
        BinaryOp::ShiftRightLogical => {
            row("shift_right_logical", |x, y| x.shift_right_logical(y), "", shifted_right)
        }
        BinaryOp::ShiftRightArithmetic => {
            row("shift_right_arithmetic", |x, y| x >> y, "", shifted_right)
        }
        // A value of two parts has no value here; `Cook::fourier` makes its steps.
        BinaryOp::Complex => row("complex", |x, y| complex(x, y), "", |_, _| f64::NAN),
    }
}

/// `x` of 0 and more, shifted by fewer bits than it has.
fn shifted_right(x: f64, by: f64) -> f64 {
    (x / by.exp2()).floor()
}

/// The sum of 10,000 terms, and the integral of the rest with its first corrections.
fn polygamma_series(order: f64, x: f64) -> f64 {
    let (n, end) = (order as i32, x + 1e4);
    let sum: f64 = (0..10_000).map(|k| (x + k as f64).powi(-n - 1)).sum();
    if n == 0 {
        return end.ln() - 0.5 / end - 1.0 / (12.0 * end * end) - sum;
    }
    let factorial: f64 = (1..=n).map(f64::from).product();
    let rest = end.powi(-n) / f64::from(n) + 0.5 * end.powi(-n - 1);
    (-1f64).powi(n + 1) * factorial * (sum + rest)
}

fn extreme(cook: &mut Cook, op: BinaryOp, x: Var, y: Var) -> Option<Var> {
    if cook.smooth {
        return None;
    }
    let info = Info { bits: false, ..cook.info(x).or(cook.info(y)) };
    cook.op(Op::Binary(op), &[x, y], info)
}

fn quotient(cook: &mut Cook, x: Var, y: Var) -> Option<Var> {
    let y = cook.positive(y)?;
    let (a, b) = (cook.info(x), cook.info(y));
    let most = a.size() / b.low;
    let error = a.error / b.low + a.size() * b.error / (b.low * b.low);
    cook.rounding(Op::Binary(BinaryOp::Div), &[x, y], (-most, most), error, 1.0)
}

fn power(cook: &mut Cook, x: Var, y: Var) -> Option<Var> {
    let (x, y) = (cook.positive(x)?, cook.small(y, 2.0)?);
    let (a, b) = (cook.info(x), cook.info(y));
    let log = a.low.ln().abs().max(a.high.ln().abs());
    let most = (log * b.size()).exp();
    let slope = most * (b.size() / a.low * a.error + log * b.error);
    let own = 8.0 + 4.0 * log * b.size();
    cook.rounding(Op::Binary(BinaryOp::Pow), &[x, y], (1.0 / most, most), slope, own)
}

/// Order 1 of `y`, which lies between 1 / y and 1 / y + 1 / y^2.
fn trigamma(cook: &mut Cook, _: Var, y: Var) -> Option<Var> {
    let y = cook.positive(y)?;
    let i = cook.info(y);
    let order = cook.filled(cook.ty(y), 1.0);
    let most = 1.0 / i.low + 1.0 / i.low.powi(2);
    let slope = 1.0 / i.low.powi(2) + 2.0 / i.low.powi(3);
    let op = Op::Binary(BinaryOp::Polygamma);
    cook.rounding(op, &[order, y], (0.0, most), slope * i.error, 64.0)
}

/// The remainder of exact numbers, which is exact.
fn remainder(cook: &mut Cook, x: Var, y: Var) -> Option<Var> {
    if !cook.info(x).exact || !cook.info(y).exact || cook.smooth {
        return None;
    }
    let y = match cook.info(y).low >= 0.25 {
        true => y,
        false => cook.filled(cook.ty(y), 0.75),
    };
    let most = cook.info(x).size();
    let info = Info { bits: false, ..Info::exact(-most, most) };
    cook.op(Op::Binary(BinaryOp::Rem), &[x, y], info)
}
