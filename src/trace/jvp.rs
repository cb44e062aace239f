//! Forward-mode derivatives: the rule of every operation, and [`jvp`].
//!
//! A tangent is an `Option<Tensor>`: `None` is a zero that is never written out. Values without
//! derivative (integers, comparisons, random bits) have the tangent `None`.

#![deny(clippy::wildcard_enum_match_arm)]

mod callback;
mod collective;
mod control;
mod custom;
mod gather;
mod linalg;
mod partial;
mod reduce;
mod remat;
mod residuals;
mod split;
mod tangent;

use std::f64::consts::{FRAC_2_SQRT_PI, PI};
use std::panic::Location;

use smallvec::SmallVec;

pub(crate) use self::control::derivative_flow;
pub(crate) use self::custom::forwards;
pub(crate) use self::split::{Linear, linearize_program};
use self::tangent::{Mode, Tangents};
pub(crate) use self::tangent::{add, add_tangents, instantiate, summed};
use super::control::types_of;
use super::op::{BinaryOp, Op, ReduceOp, ScatterKind, UnaryOp};
use super::ops::{complex, polygamma, where_, zeros_like};
use super::program::{Equation, Program, Var};
use super::tensor::{Tensor, Tensors, at_line, bind, bind1, fail_op, trace_tree};
use super::types::DType;
use crate::error::Loc;
use crate::tree::{self, Path, Tree};

/// Runs `program` on values and tangents in the current trace. Gives results and their tangents.
pub(crate) fn jvp_program(
    program: &Program,
    primals: &[Tensor],
    tangents: &[Option<Tensor>],
    mode: Mode,
) -> (Vec<Tensor>, Vec<Option<Tensor>>) {
    let mut env: Vec<Option<(Tensor, Option<Tensor>)>> = vec![None; program.types.len()];
    for ((&input, &primal), &tangent) in program.inputs.iter().zip(primals).zip(tangents) {
        env[input.index()] = Some((primal, tangent));
    }
    let get = |env: &[Option<(Tensor, Option<Tensor>)>], var: Var| {
        env[var.index()].expect("a verified Program defines before use")
    };
    for equation in &program.equations {
        let (inputs, tangents): (SmallVec<[Tensor; 4]>, SmallVec<[Option<Tensor>; 4]>) =
            equation.inputs.iter().map(|&var| get(&env, var)).unzip();
        let (outputs, tangents) = at_line(equation.at, || {
            if tangents.iter().all(Option::is_none) {
                let outputs = bind(equation.op.clone(), &inputs, equation.at);
                let zeros = Tangents::from_elem(None, outputs.len());
                return (outputs, zeros);
            }
            jvp_equation(equation, &inputs, &tangents, mode)
        });
        for ((&var, output), tangent) in equation.outputs.iter().zip(outputs).zip(tangents) {
            env[var.index()] = Some((output, tangent));
        }
    }
    program.outputs.iter().map(|&var| get(&env, var)).unzip()
}

/// The rule of one equation, at least one of whose tangents is not zero.
fn jvp_equation(
    equation: &Equation,
    x: &[Tensor],
    t: &[Option<Tensor>],
    mode: Mode,
) -> (Tensors, Tangents) {
    let (op, at) = (&equation.op, equation.at);
    // The operation itself on other operands.
    let same = |operands: &[Tensor]| Some(bind1(op.clone(), operands, at));
    let tangent: &dyn Fn(Tensor) -> Option<Tensor> = match op {
        // Several results, or Programs inside: a rule for the whole equation.
        Op::Scan(scan) => return control::jvp_scan(scan, x, t, mode, at),
        Op::While(while_op) => return control::jvp_while(while_op, x, t, mode, at),
        Op::Cond(cond) => return control::jvp_cond(cond, x, t, mode, at),
        Op::Sort { axis } => return reduce::jvp_sort(*axis, x, t, at),
        Op::CustomJvp(custom) => return custom::jvp_custom_jvp(custom, x, t, mode),
        Op::CustomVjp(custom) => return custom::jvp_custom_vjp(custom, x, t, mode, at),
        Op::CustomLin(_) => custom::forwards(),
        Op::Remat(remat) => return remat::jvp_remat(remat, x, t, mode, at),
        Op::Collective(c) => return collective::jvp_collective(c, x, t, at),
        Op::Callback(callback) => return callback::jvp_callback(callback, x, at),

        // One result `y`: a rule for its tangent.
        // Without operands that could have tangents, or without derivative.
        Op::Constant(_) | Op::Iota { .. } | Op::Compare(_) | Op::Bitcast { .. } => &|_| None,
        Op::ArgReduce { .. } | Op::Threefry | Op::StopGradient => &|_| None,

        Op::Unary(unary) => &|y| t[0].and_then(|t| jvp_unary(*unary, x[0], y, t)),
        Op::Binary(binary) => &|y| jvp_binary(*binary, [x[0], x[1]], y, [t[0], t[1]]),
        Op::Select => &|_| {
            let on_true = instantiate(t[1], x[1]);
            let on_false = instantiate(t[2], x[2]);
            (t[1].is_some() || t[2].is_some()).then(|| where_(x[0], on_true, on_false))
        },
        Op::Clamp => &|_| {
            let [low, x, high] = [x[0], x[1], x[2]];
            let zero = zeros_like(x);
            let part = |mask: Tensor, t: Option<Tensor>| t.map(|t| where_(mask, t, zero));
            let inner = part(x.gt(low) & x.lt(high), t[1]);
            // A lower bound that is not below the upper one has no slope, as in lax.clamp.
            let below = part(low.gt(x) & low.lt(high), t[0]);
            add_tangents(inner, add_tangents(below, part(high.lt(x), t[2])))
        },
        Op::Convert { dtype } => &|_| t[0].map(|t| t.to(*dtype)),

        // Linear in the first operand.
        Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Reverse { .. }
        | Op::Name(_)
        | Op::Sharding(_)
        | Op::Slice { .. } => &|_| t[0].and_then(|t| same(&[t])),
        Op::DynamicSlice { .. } => &|_| {
            let t = t[0]?;
            let operands: Vec<Tensor> = [t].into_iter().chain(x[1..].iter().copied()).collect();
            same(&operands)
        },
        Op::Fft(_) => &|_| t[0].and_then(|t| same(&[t])),
        Op::Gather(_) => &|_| t[0].and_then(|t| same(&[t, x[1]])),

        // Linear in several operands at once.
        Op::Concat { .. } => &|_| {
            let operands: Vec<Tensor> = t.iter().zip(x).map(|(t, x)| instantiate(*t, *x)).collect();
            same(&operands)
        },
        Op::Pad { .. } => &|_| same(&[instantiate(t[0], x[0]), instantiate(t[1], x[1])]),
        Op::DynamicUpdateSlice => &|_| {
            let window = [instantiate(t[0], x[0]), instantiate(t[1], x[1])];
            let operands: Vec<Tensor> = window.into_iter().chain(x[2..].iter().copied()).collect();
            same(&operands)
        },
        Op::Scatter(dims) => &|y| match dims.kind {
            ScatterKind::Add => same(&[instantiate(t[0], x[0]), x[1], instantiate(t[2], x[2])]),
            ScatterKind::Set => gather::jvp_scatter_set(dims, [x[0], x[1], x[2]], [t[0], t[2]], at),
            ScatterKind::Mul => gather::jvp_scatter_mul(dims, [x[0], x[1], x[2]], [t[0], t[2]], at),
            ScatterKind::Max | ScatterKind::Min => {
                gather::jvp_scatter_extreme(dims, [x[0], x[1], x[2]], y, [t[0], t[2]])
            }
        },

        // Linear in each operand.
        Op::Dot(_) | Op::Conv(_) => &|_| {
            add_tangents(t[0].and_then(|t| same(&[t, x[1]])), t[1].and_then(|t| same(&[x[0], t])))
        },

        Op::Cholesky => &|y| t[0].map(|t| linalg::jvp_cholesky(y, t)),
        Op::TriangularSolve(op) => &|y| {
            add_tangents(
                t[0].map(|t| linalg::jvp_triangular_solve(op, x[0], y, t)),
                t[1].and_then(|t| same(&[x[0], t])),
            )
        },

        Op::Reduce { op: reduce_op, axes } => &|y| {
            t[0].and_then(|t| match reduce_op {
                ReduceOp::Sum => same(&[t]),
                ReduceOp::Max | ReduceOp::Min => Some(reduce::jvp_extreme(x[0], y, t, axes)),
                ReduceOp::Prod => Some(reduce::jvp_product(x[0], t, axes)),
                ReduceOp::And | ReduceOp::Or => None,
            })
        },
    };
    let outputs = bind(op.clone(), x, at);
    let y = outputs[0];
    let tangent = if y.dtype().is_inexact() { tangent(y) } else { None };
    let tangents = Tangents::from_elem(tangent, outputs.len());
    (outputs, tangents)
}

/// The tangent of `y = op(x)`. Factors are computed from values alone, so that the tangent is one
/// product.
fn jvp_unary(op: UnaryOp, x: Tensor, y: Tensor, t: Tensor) -> Option<Tensor> {
    Some(match op {
        UnaryOp::Neg => -t,
        UnaryOp::Abs if x.dtype().is_complex() => slope_of_size(x, y, t),
        UnaryOp::Abs => where_(x.ge(0.0), t, -t),
        UnaryOp::Real => t.real(),
        UnaryOp::Imag => t.imag(),
        UnaryOp::Conj => t.conj(),
        UnaryOp::Exp => t * y,
        UnaryOp::Expm1 => t * (y + 1.0),
        UnaryOp::Log => t / x,
        UnaryOp::Log1p => t / (x + 1.0),
        UnaryOp::Sqrt => t * (0.5 / y),
        UnaryOp::Rsqrt => t * (-0.5 * y / x),
        UnaryOp::Sin => t * x.cos(),
        UnaryOp::Cos => t * -x.sin(),
        UnaryOp::Tan => t * (1.0 + y * y),
        UnaryOp::Tanh => t * ((1.0 + y) * (1.0 - y)),
        UnaryOp::Asin => t * (1.0 - x * x).rsqrt(),
        UnaryOp::Acos => t * -(1.0 - x * x).rsqrt(),
        UnaryOp::Sinh => t * x.cosh(),
        UnaryOp::Cosh => t * x.sinh(),
        UnaryOp::Asinh => t * (x * x + 1.0).rsqrt(),
        UnaryOp::Acosh => t * derivative_of_acosh(x),
        UnaryOp::Atanh => t * ((1.0 / (1.0 + x)) * (1.0 / (1.0 - x))),
        UnaryOp::Cbrt => t * (y.powi(-2) * (1.0 / 3.0)),
        UnaryOp::Logistic => t * (y * (1.0 - y)),
        UnaryOp::Erf => t * ((-(x * x)).exp() * FRAC_2_SQRT_PI),
        UnaryOp::Erfc => t * ((-(x * x)).exp() * -FRAC_2_SQRT_PI),
        UnaryOp::Lgamma => t * x.digamma(),
        UnaryOp::Digamma => t * polygamma(1, x),
        UnaryOp::ErfInv => t * ((y * y).exp() * (PI.sqrt() / 2.0)),
        UnaryOp::BesselI0e => t * (x.bessel_i1e() - x.sign() * y),
        UnaryOp::BesselI1e => t * slope_of_bessel_i1e(x, y),
        // Flat, or not differentiable.
        UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => return None,
        UnaryOp::IsFinite | UnaryOp::Not => return None,
        UnaryOp::PopulationCount | UnaryOp::Clz => return None,
    })
}

/// The tangent of `y = |x|` of complex numbers: the part of `t` in the direction of `x`, and 0 at 0.
fn slope_of_size(x: Tensor, y: Tensor, t: Tensor) -> Tensor {
    let size = where_(y.eq(0.0), 1.0, y).to(x.dtype());
    (t * (x.conj() / size)).real()
}

/// `1 / sqrt(x^2 - 1)`, of complex numbers in factors: JAX has the wrong sign where the real part of
/// `x` is negative.
fn derivative_of_acosh(x: Tensor) -> Tensor {
    match x.dtype().is_complex() {
        true => (x - 1.0).rsqrt() * (x + 1.0).rsqrt(),
        false => (x * x - 1.0).rsqrt(),
    }
}

/// True for 0 and for numbers so small that their inverse is infinite.
fn inverse_overflows(x: Tensor) -> Tensor {
    match x.dtype().is_complex() {
        true => x.eq(0.0),
        false => (1.0 / x).abs().eq(f64::INFINITY),
    }
}

/// The slope of `y = bessel_i1e(x)`: 1/2 at 0, where `y / x` has no value.
fn slope_of_bessel_i1e(x: Tensor, y: Tensor) -> Tensor {
    let epsilon = [(DType::F64, -52), (DType::F32, -23), (DType::F16, -10), (DType::BF16, -7)]
        .into_iter()
        .find_map(|(dtype, power)| (dtype == x.dtype()).then_some(2f64.powi(power)));
    let near = x.abs().le(epsilon.expect("a float"));
    let away = where_(near, 1.0, x);
    where_(near, 0.5, away.bessel_i0e() - y * (away.sign() + 1.0 / away))
}

fn jvp_binary(
    op: BinaryOp,
    [a, b]: [Tensor; 2],
    y: Tensor,
    [ta, tb]: [Option<Tensor>; 2],
) -> Option<Tensor> {
    let both = |da: &dyn Fn(Tensor) -> Tensor, db: &dyn Fn(Tensor) -> Tensor| {
        add_tangents(ta.map(da), tb.map(db))
    };
    match op {
        BinaryOp::Add => add_tangents(ta, tb),
        BinaryOp::Sub => match (ta, tb) {
            (Some(ta), Some(tb)) => Some(ta - tb),
            (ta, tb) => ta.or(tb.map(|tb| -tb)),
        },
        BinaryOp::Mul => both(&|t| t * b, &|t| t * a),
        BinaryOp::Div => both(&|t| t / b, &|t| t * -(y / b)),
        BinaryOp::Rem => both(&|t| t, &|t| {
            let quotient = a / b;
            t * -(quotient.sign() * quotient.abs().floor())
        }),
        BinaryOp::Pow => both(
            &|t| {
                // The derivative of a^0 by the base is 0, also where a^-1 overflows. Nothing else is
                // masked: at an exponent of 0 the slope is 0, and its derivative by the exponent is
                // not.
                let flat = b.eq(0.0) & inverse_overflows(a);
                let exponent = where_(flat, 1.0, b) - 1.0;
                t * where_(flat, zeros_like(a), b * a.pow(exponent))
            },
            &|t| t * (where_(a.eq(0.0), 1.0, a).log() * y),
        ),
        BinaryOp::Max => both(&|t| t * share(a, b), &|t| t * share(b, a)),
        BinaryOp::Min => both(&|t| t * share(b, a), &|t| t * share(a, b)),
        BinaryOp::Atan2 => {
            let square = a * a + b * b;
            both(&|t| t * (b / square), &|t| t * -(a / square))
        }
        BinaryOp::Polygamma => {
            if ta.is_some() {
                let problem = "the derivative with respect to the order n is not defined; pass the \
                               order through .stop_gradient()";
                fail_op(op.name(), problem);
            }
            tb.map(|t| t * polygamma(a + 1.0, b))
        }
        BinaryOp::Complex => {
            let parts = [instantiate(ta, a), instantiate(tb, b)];
            (ta.is_some() || tb.is_some()).then(|| complex(parts[0], parts[1]))
        }
        BinaryOp::And
        | BinaryOp::Or
        | BinaryOp::Xor
        | BinaryOp::ShiftLeft
        | BinaryOp::ShiftRightLogical
        | BinaryOp::ShiftRightArithmetic => None,
    }
}

/// The share of the derivative that `a` gets when the larger of `a` and `b` is taken: all, half if
/// they are equal, or nothing.
fn share(a: Tensor, b: Tensor) -> Tensor {
    let half = super::ops::full_like(a, 0.5);
    let tie = where_(a.eq(b), half, zeros_like(a));
    where_(a.gt(b), super::ops::ones_like(a), tie)
}

/// Ends the trace with an error unless `dtype` is of floats or complex numbers: only they carry
/// derivatives.
pub(crate) fn expect_inexact(name: &str, path: &Path<'_>, dtype: DType) {
    if !dtype.is_inexact() {
        let problem = format!(
            "{} has element type {dtype}, and only floats and complex numbers can be \
             differentiated. Let the closure \
             capture it instead of taking it as an argument, or convert it with .to(DType::F32)",
            tree::path_of("argument", path)
        );
        fail_op(name, problem);
    }
}

/// The tangents that a user gives, checked against the values.
pub(crate) fn check_tangents<A: Tree<Tensor>>(name: &str, primals: &A, tangents: &A, at: Loc) {
    at_line(at, || {
        let names = ["primals", "tangents"];
        let difference = tree::structure_difference::<Tensor, Tensor, A, A>(
            primals, tangents, "argument", names,
        );
        if let Some(difference) = difference {
            fail_op(name, format!("primals and tangents must have one structure: {difference}"));
        }
        let given = tree::leaves(tangents);
        let mut given = given.iter();
        primals.visit_leaves(&Path::ROOT, &mut |path, primal| {
            let (ty, tangent) = (primal.ty(), given.next().expect("equal structures").ty());
            expect_inexact(name, path, ty.dtype);
            if ty != tangent {
                let path = tree::path_of("argument", path);
                let problem = format!(
                    "primals and tangents must have equal types: {path} is {ty}, its tangent is \
                     {tangent}"
                );
                fail_op(name, problem);
            }
        });
    });
}

/// `jax.jvp`: the value of `f` at `primals` and its derivative along `tangents`.
///
/// Results without derivative (integers, bools) have zero tangents of their own type.
#[track_caller]
pub fn jvp<A: Tree<Tensor>, B: Tree<Tensor>>(
    f: impl FnOnce(A) -> B,
    primals: A,
    tangents: A,
) -> (B, B) {
    let at = Location::caller();
    check_tangents("jvp", &primals, &tangents, at);
    let (traced, template) = trace_tree::<A, B>("jvp", at, &types_of(&primals), f);
    let mut values = tree::leaves(&primals);
    let mut moves: Vec<Option<Tensor>> = tree::leaves(&tangents).into_iter().map(Some).collect();
    moves.extend(traced.captures.iter().map(|_| None));
    values.extend(&traced.captures);
    let (outputs, tangents) = jvp_program(&traced.program, &values, &moves, Mode::Forward);
    let tangents = at_line(at, || {
        let written: Vec<Tensor> =
            tangents.into_iter().zip(&outputs).map(|(t, y)| instantiate(t, *y)).collect();
        tree::replace(&template, written)
    });
    (tree::replace(&template, outputs), tangents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::literal::Literal;
    use crate::trace::op::Fact;
    use crate::trace::testing::interpret;
    use crate::trace::types::TensorType;

    /// Loops drop the tangents of operations that their rows call flat.
    #[test]
    fn operations_are_flat_where_they_have_no_tangent() {
        for op in UnaryOp::ALL {
            let flat = |x: Tensor| {
                let y = bind1(Op::Unary(op), &[x], Location::caller());
                assert_eq!(jvp_unary(op, x, y, x).is_none(), op.is(Fact::Flat), "{op:?}");
                y
            };
            let fits = |dtype: &DType| op.domain().contains(*dtype);
            let dtype = [DType::F32, DType::C64, DType::I32].into_iter().find(fits).unwrap();
            let x = Literal::filled(TensorType::new(dtype, [2]), 1.0);
            interpret::<Tensor, Tensor>(x, flat).unwrap();
        }
    }
}
