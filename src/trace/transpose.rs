//! Transposition of linear Programs, and reverse-mode derivatives: [`vjp`], [`grad`],
//! [`value_and_grad`].
//!
//! Reverse mode is linearization followed by transposition, as in JAX.

#![deny(clippy::wildcard_enum_match_arm)]

mod collective;
mod control;
mod conv;
mod custom;
mod dot;
mod fft;
mod gather;

pub(crate) use self::conv::move_groups;
use std::panic::Location;

use smallvec::SmallVec;

use super::control::types_of;
use super::jvp::{Linear, add_tangents, expect_inexact, linearize_program, summed};
use super::op::{
    Amounts, Axes, Fact, Linearity, Op, ReduceOp, ScatterKind, TriangularSolveOp, UnaryOp,
};
use super::ops::{complex, ones_like, where_, zeros, zeros_like};
use super::program::{Equation, Program, Var};
use super::tensor::{Tensor, at_line, bind, bind1, fail_op, trace_tree, within};
use super::types::TensorType;
use crate::error::Loc;
use crate::tree::{self, Path, Tree};

/// An input of a linear Program.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Input {
    /// The Program is linear in it; its cotangent is computed.
    Linear,
    /// A value.
    Known(Tensor),
}

/// The cotangents of a linear Program's linear inputs, given those of its results (`None`: zero).
/// Known inputs get `None`.
pub(crate) fn transpose_program(
    program: &Program,
    inputs: &[Input],
    cotangents: &[Option<Tensor>],
) -> Vec<Option<Tensor>> {
    let mut values: Vec<Option<Tensor>> = vec![None; program.types.len()];
    for (&var, input) in program.inputs.iter().zip(inputs) {
        if let Input::Known(value) = input {
            values[var.index()] = Some(*value);
        }
    }
    let mut linear: Vec<bool> = vec![false; program.types.len()];
    for (&var, input) in program.inputs.iter().zip(inputs) {
        linear[var.index()] = matches!(input, Input::Linear);
    }
    // Forwards: the equations that do not depend on linear inputs.
    for equation in &program.equations {
        if equation.inputs.iter().any(|var| linear[var.index()]) {
            equation.outputs.iter().for_each(|var| linear[var.index()] = true);
            continue;
        }
        let operands: SmallVec<[Tensor; 4]> =
            equation.inputs.iter().map(|var| values[var.index()].expect("known")).collect();
        let outputs = at_line(equation.at, || bind(equation.op.clone(), &operands, equation.at));
        for (&var, output) in equation.outputs.iter().zip(outputs) {
            values[var.index()] = Some(output);
        }
    }
    // Backwards, cotangents.
    let stopped = stopped(program);
    let mut cts: Vec<Option<Tensor>> = vec![None; program.types.len()];
    for (&var, ct) in program.outputs.iter().zip(cotangents) {
        if linear[var.index()] {
            cts[var.index()] = add_tangents(cts[var.index()], *ct);
        }
    }
    for equation in program.equations.iter().rev() {
        let out: SmallVec<[Option<Tensor>; 2]> =
            equation.outputs.iter().map(|var| cts[var.index()].take()).collect();
        if out.iter().all(Option::is_none) {
            // Otherwise its gradient would silently be zero.
            if let Op::Callback(callback) = &equation.op
                && equation.inputs.iter().any(|var| linear[var.index()])
            {
                at_line(equation.at, || fail_op(callback.kind.name(), TANGENT));
            }
            continue;
        }
        let operands: SmallVec<[Operand<'_>; 4]> = equation
            .inputs
            .iter()
            .map(|var| Operand { value: values[var.index()], ty: program.ty(*var) })
            .collect();
        at_line(equation.at, || {
            let parts = transpose_equation(equation, &operands, &out);
            for (&var, part) in equation.inputs.iter().zip(parts) {
                let is_guard = matches!(equation.op, Op::Select)
                    && stopped[var.index()].is_some_and(|x| equation.inputs.contains(&x));
                if linear[var.index()] && !is_guard {
                    cts[var.index()] = add_tangents(cts[var.index()], part);
                }
            }
        });
    }
    program.inputs.iter().map(|var| cts[var.index()]).collect()
}

/// For each variable that is another one behind `stop_gradient`, that one.
///
/// A branch that only some examples of a batch take gets `select(taken, x, stop_gradient(x))`, also
/// where it is in a custom_jvp rule and `x` is a tangent: nothing flows back to the other examples.
fn stopped(program: &Program) -> Vec<Option<Var>> {
    let mut stopped: Vec<Option<Var>> = vec![None; program.types.len()];
    for equation in &program.equations {
        let (&[x], &[y]) = (&equation.inputs[..], &equation.outputs[..]) else { continue };
        stopped[y.index()] = match stopped[x.index()] {
            behind if matches!(equation.op, Op::StopGradient) => Some(behind.unwrap_or(x)),
            // Another batch around has broadcast both.
            Some(behind) => {
                let other = |e: &&Equation| e.op == equation.op && e.inputs[..] == [behind];
                program.equations.iter().find(other).map(|other| other.outputs[0])
            }
            None => None,
        };
    }
    stopped
}

const TANGENT: &str = "the argument is a tangent, which reverse-mode differentiation never \
                       computes; pass primal values, or use forward-mode differentiation (jvp)";

/// The problem, for example, of a custom derivative rule that multiplies two tangents.
const NOT_LINEAR: &str = "the operands depend on a tangent in a way that is not linear, so that \
                          reverse-mode differentiation cannot transpose it; a custom_jvp rule must \
                          be linear in its tangents";

/// The problem of a custom derivative rule with `at(..).set(tangent)`.
const SET_OF_TANGENTS: &str = "reverse-mode differentiation cannot transpose a scatter that sets \
                               elements to tangents, because several of them may meet at one \
                               element; write zeros there, and add the tangents with at(..).add";

/// An operand of an equation being transposed.
pub(crate) struct Operand<'a> {
    /// Its value; `None` if the equation is linear in it.
    pub value: Option<Tensor>,
    /// Its type.
    pub ty: &'a TensorType,
}

impl Operand<'_> {
    fn is_linear(&self) -> bool {
        self.value.is_none()
    }

    /// The value of an operand in which `op` is not linear. Ends the trace if it depends on a
    /// tangent.
    pub(crate) fn known(&self, op: &str) -> Tensor {
        self.value.unwrap_or_else(|| fail_op(op, NOT_LINEAR))
    }
}

type Parts = SmallVec<[Option<Tensor>; 4]>;

/// One operation's cotangents for each operand. The cotangents of known operands may be anything:
/// they are dropped.
fn transpose_equation(equation: &Equation, x: &[Operand<'_>], cts: &[Option<Tensor>]) -> Parts {
    let op = &equation.op;
    // The one cotangent, of operations with one result.
    let Some(ct) = cts.iter().copied().flatten().next() else { return Parts::new() };
    let first = |part: Tensor| Parts::from_slice(&[Some(part)]);
    let pair = |a: Option<Tensor>, b: Option<Tensor>| Parts::from_slice(&[a, b]);
    let not_linear = || -> ! { fail_op(op.name(), NOT_LINEAR) };
    match op {
        // Several results, or Programs inside.
        Op::Scan(scan) => control::transpose_scan(scan, x, cts, equation.at),
        Op::Cond(cond) => control::transpose_cond(cond, x, cts, equation.at),
        Op::CustomLin(op) => custom::transpose_custom_lin(op, x, cts),
        Op::Remat(remat) => custom::transpose_remat(remat, x, cts, equation.at),
        Op::Collective(c) => collective::transpose_collective(c, cts, equation.at),
        Op::Sharding(op) => first(collective::transpose_sharding(op, ct, equation.at)),
        Op::Callback(callback) => fail_op(callback.kind.name(), TANGENT),
        Op::While(_) => fail_op(
            "while_loop",
            "reverse-mode differentiation does not work for while_loop: the number of iterations, \
             and so the memory for the residuals, is not known. Use scan or fori_loop, or \
             forward-mode differentiation with jvp",
        ),

        Op::Unary(unary) if unary.is(Fact::Linear) => first(bind1(op.clone(), &[ct], equation.at)),
        Op::Unary(UnaryOp::Real) => first(complex(ct, zeros_like(ct))),
        Op::Unary(UnaryOp::Imag) => first(complex(zeros_like(ct), -ct)),
        Op::Unary(_) => not_linear(),
        Op::Binary(binary) => match (binary.linearity(), x[0].value, x[1].value) {
            (Linearity::Sum, ..) => pair(Some(ct), Some(ct)),
            (Linearity::Difference, ..) => pair(Some(ct), x[1].is_linear().then(|| -ct)),
            (Linearity::Product, None, Some(factor)) => pair(Some(ct * factor), None),
            (Linearity::Product, Some(factor), None) => pair(None, Some(ct * factor)),
            (Linearity::Quotient, _, Some(divisor)) => pair(Some(ct / divisor), None),
            (Linearity::Parts, ..) => pair(Some(ct.real()), Some(-ct.imag())),
            (Linearity::Product | Linearity::Quotient | Linearity::Nonlinear, ..) => not_linear(),
        },
        Op::Select => {
            let (predicate, zero) = (x[0].known(op.name()), zeros_like(ct));
            let on_true = x[1].is_linear().then(|| where_(predicate, ct, zero));
            let on_false = x[2].is_linear().then(|| where_(predicate, zero, ct));
            Parts::from_slice(&[None, on_true, on_false])
        }
        Op::Name(_) => first(ct),
        Op::Convert { .. } => first(ct.to(x[0].ty.dtype)),
        Op::Broadcast { shape, axes } => first(transpose_broadcast(x[0].ty, shape, axes, ct)),
        Op::Reshape { .. } => first(ct.reshape(&x[0].ty.shape)),
        Op::Transpose { permutation } => {
            let mut inverse: Axes = Axes::from_elem(0, permutation.len());
            for (to, &from) in permutation.iter().enumerate() {
                inverse[from] = to;
            }
            first(ct.transpose(&inverse))
        }
        Op::Reverse { .. } => first(bind(op.clone(), &[ct], equation.at)[0]),
        Op::Concat { axis } => {
            let mut from = 0;
            x.iter()
                .map(|operand| {
                    let to = from + operand.ty.shape[*axis];
                    let start = std::mem::replace(&mut from, to);
                    operand.is_linear().then(|| ct.slice_axis(*axis as isize, start, to))
                })
                .collect()
        }
        Op::Pad { low, high, interior } => transpose_pad(x, low, high, interior, ct),
        Op::Slice { start, limit, stride } => {
            let shape = &x[0].ty.shape;
            let low: Amounts = start.iter().map(|&s| s as i64).collect();
            let high: Amounts = (0..shape.rank())
                .map(|axis| {
                    let taken = (limit[axis] - start[axis]).div_ceil(stride[axis]);
                    let covered = if taken == 0 { 0 } else { (taken - 1) * stride[axis] + 1 };
                    shape[axis] as i64 - start[axis] as i64 - covered as i64
                })
                .collect();
            let interior: Axes = stride.iter().map(|&s| s - 1).collect();
            first(ct.pad_interior(&low, &high, &interior, 0.0))
        }
        Op::DynamicSlice { .. } => {
            let zero = zeros(&x[0].ty.shape, x[0].ty.dtype);
            let starts: Vec<Tensor> = x[1..].iter().map(|start| start.known(op.name())).collect();
            first(zero.dynamic_update_slice_clamped(ct, &starts))
        }
        Op::DynamicUpdateSlice => {
            let starts: Vec<Tensor> = x[2..].iter().map(|start| start.known(op.name())).collect();
            let hole = zeros(&x[1].ty.shape, x[1].ty.dtype);
            let operand = x[0].is_linear().then(|| ct.dynamic_update_slice_clamped(hole, &starts));
            let update =
                x[1].is_linear().then(|| ct.dynamic_slice_clamped(&starts, &x[1].ty.shape));
            pair(operand, update)
        }
        Op::Gather(dims) => {
            first(gather::transpose_gather(dims, x[0].ty, x[1].known(op.name()), ct))
        }
        Op::Scatter(dims) => {
            let indices = x[1].known(op.name());
            let (operand_shape, update_shape) = (&x[0].ty.shape, &x[2].ty.shape);
            let operand = match dims.kind {
                ScatterKind::Add => ct,
                ScatterKind::Set => {
                    let erased = zeros(update_shape, x[2].ty.dtype);
                    super::ops::scatter(ct, indices, erased, dims.clone())
                }
                ScatterKind::Mul if !x[2].is_linear() => {
                    super::ops::scatter(ct, indices, x[2].known(op.name()), dims.clone())
                }
                ScatterKind::Mul | ScatterKind::Max | ScatterKind::Min => not_linear(),
            };
            let updates = x[2].is_linear().then(|| match dims.kind {
                ScatterKind::Set if !gather::writes_once(dims, &x[1].ty.shape) => {
                    fail_op(op.name(), SET_OF_TANGENTS)
                }
                ScatterKind::Add | ScatterKind::Set => gather::transpose_scatter_updates(
                    dims,
                    operand_shape,
                    indices,
                    update_shape,
                    ct,
                ),
                ScatterKind::Mul | ScatterKind::Max | ScatterKind::Min => not_linear(),
            });
            Parts::from_slice(&[Some(operand), None, updates])
        }
        Op::Dot(dims) => match (x[0].value, x[1].value) {
            (None, Some(rhs)) => pair(Some(dot::transpose_lhs(dims, x[0].ty, rhs, ct)), None),
            (Some(lhs), None) => pair(None, Some(dot::transpose_rhs(dims, lhs, x[1].ty, ct))),
            _ => not_linear(),
        },
        Op::Conv(dims) => match (x[0].value, x[1].value) {
            (None, Some(rhs)) => pair(Some(conv::transpose_lhs(dims, x[0].ty, rhs, ct)), None),
            (Some(lhs), None) => pair(None, Some(conv::transpose_rhs(dims, lhs, x[1].ty, ct))),
            _ => not_linear(),
        },
        Op::Fft(op) => first(fft::transpose(op, ct)),
        // Linear in the right sides.
        Op::TriangularSolve(op) => match x[0].value {
            Some(a) => {
                let other = TriangularSolveOp { transpose_a: !op.transpose_a, ..*op };
                pair(None, Some(bind1(Op::TriangularSolve(other), &[a, ct], equation.at)))
            }
            None => not_linear(),
        },
        Op::Reduce { op: ReduceOp::Sum, axes } => {
            let shape = &x[0].ty.shape;
            let kept: Axes = (0..shape.rank()).filter(|axis| !axes.contains(axis)).collect();
            first(ct.broadcast_in_dim(shape, &kept))
        }
        Op::Reduce {
            op: ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min | ReduceOp::And | ReduceOp::Or,
            ..
        } => not_linear(),
        Op::Constant(_)
        | Op::Iota { .. }
        | Op::Compare(_)
        | Op::Clamp
        | Op::Bitcast { .. }
        | Op::Cholesky
        | Op::ArgReduce { .. }
        | Op::Sort { .. }
        | Op::Threefry
        | Op::StopGradient
        | Op::CustomJvp(_)
        | Op::CustomVjp(_) => not_linear(),
    }
}

/// Sums over the repeated axes.
fn transpose_broadcast(ty: &TensorType, shape: &[usize], axes: &[usize], ct: Tensor) -> Tensor {
    let repeated: Axes = (0..shape.len())
        .filter(|to| match axes.iter().position(|axis| axis == to) {
            Some(from) => ty.shape[from] != shape[*to],
            None => true,
        })
        .collect();
    summed(ty.dtype, |within| ct.to(within).reduce(ReduceOp::Sum, repeated)).reshape(&ty.shape)
}

fn transpose_pad(
    x: &[Operand<'_>],
    low: &Amounts,
    high: &Amounts,
    interior: &Axes,
    ct: Tensor,
) -> Parts {
    let rank = low.len();
    // The inverse of the padding: elements that were added are cut off, elements that were cut off
    // come back as zeros.
    let negated = |amounts: &Amounts| -> Amounts { amounts.iter().map(|a| -a).collect() };
    let none = Axes::from_elem(0, rank);
    let unpadded = ct.pad_interior(&negated(low), &negated(high), &none, 0.0);
    let shape = unpadded.shape();
    let stride: Axes = interior.iter().map(|&i| i + 1).collect();
    let inner = unpadded.strided_slice(&none, &shape, &stride);
    let value = x[1]
        .is_linear()
        .then(|| summed(ct.dtype(), |within| ct.to(within).sum(..) - inner.to(within).sum(..)));
    Parts::from_slice(&[x[0].is_linear().then_some(inner), value])
}

/// The cotangent written out.
pub(crate) fn written(ct: Option<Tensor>, ty: &TensorType) -> Tensor {
    ct.unwrap_or_else(|| zeros(&ty.shape, ty.dtype))
}

/// Pulls cotangents of a linearized function's results back to its arguments.
fn pull_back(linear: &Linear, cotangents: &[Tensor], num_args: usize) -> Vec<Option<Tensor>> {
    let known = linear.residuals.iter().map(|residual| Input::Known(*residual));
    let inputs: Vec<Input> = (0..num_args).map(|_| Input::Linear).chain(known).collect();
    let cts: Vec<Option<Tensor>> = cotangents
        .iter()
        .zip(&linear.nonzero)
        .filter(|(_, nonzero)| **nonzero)
        .map(|(ct, _)| Some(*ct))
        .collect();
    let mut cts = transpose_program(&linear.program, &inputs, &cts);
    cts.truncate(num_args);
    cts
}

struct Linearized<A, B> {
    primals: A,
    outputs: Vec<Tensor>,
    template: B,
    linear: Linear,
}

/// Runs `f` and linearizes it at `primals`, which must be floats.
fn linearize_tree<A: Tree<Tensor>, B: Tree<Tensor>>(
    name: &'static str,
    at: Loc,
    f: impl FnOnce(A) -> B,
    primals: A,
) -> Linearized<A, B> {
    at_line(at, || {
        primals.visit_leaves(&Path::ROOT, &mut |path, x| expect_inexact(name, path, x.dtype()));
    });
    let (traced, template) = trace_tree::<A, B>(name, at, &types_of(&primals), f);
    let mut values = tree::leaves(&primals);
    let num_args = values.len();
    values.extend(&traced.captures);
    let active: Vec<bool> = (0..values.len()).map(|i| i < num_args).collect();
    let (outputs, linear) = linearize_program(&traced.program, &values, &active, at);
    Linearized { primals, outputs, template, linear }
}

/// `jax.vjp`: the value of `f` at `primals`, and a function from a cotangent of the result to the
/// cotangents of `primals`. It may be called several times.
#[track_caller]
pub fn vjp<A: Tree<Tensor>, B: Tree<Tensor>>(
    f: impl FnOnce(A) -> B,
    primals: A,
) -> (B, impl Fn(B) -> A) {
    let at = Location::caller();
    let Linearized { primals, outputs, template, linear } = linearize_tree("vjp", at, f, primals);
    let value = tree::replace(&template, outputs.iter().copied());
    let pullback = move |cotangents: B| {
        at_line(at, || {
            let difference = tree::structure_difference::<Tensor, Tensor, B, B>(
                &template,
                &cotangents,
                "output",
                ["the output", "the cotangent"],
            );
            if let Some(difference) = difference {
                let problem = format!("output and cotangent must have one structure: {difference}");
                fail_op("vjp", problem);
            }
            let mut results = outputs.iter();
            cotangents.visit_leaves(&Path::ROOT, &mut |path, ct| {
                let (y, ct) = (results.next().expect("equal structures").ty(), ct.ty());
                if y != ct {
                    let path = tree::path_of("output", path);
                    let problem = format!(
                        "output and cotangent must have equal types: {path} is {y}, its cotangent \
                         is {ct}"
                    );
                    fail_op("vjp", problem);
                }
            });
            let args = tree::leaves(&primals);
            let cotangents = tree::leaves(&cotangents);
            let cts = within("vjp", at, || pull_back(&linear, &cotangents, args.len()));
            let written = cts.into_iter().zip(&args).map(|(ct, x)| written(ct, &x.ty()));
            tree::replace(&primals, written)
        })
    };
    (value, pullback)
}

/// Result of a function to be differentiated: a scalar loss, or a loss and auxiliary values.
///
/// A struct of results can be one. Its loss may be any of its tensors, or computed from them:
///
/// ```
/// use podracer::trace::transpose::Loss;
/// use podracer::{Array, Tensor, Tree, interpret, value_and_grad};
/// #[derive(Tree)]
/// struct Losses<T> {
///     policy: T,
///     value: T,
/// }
/// impl Loss for Losses<Tensor> {
///     fn loss(&self) -> Tensor {
///         self.policy + 0.5 * self.value
///     }
/// }
/// let losses = |x: Tensor| Losses { policy: 3.0 * x, value: x * x };
/// let (losses, slope) = interpret(value_and_grad(losses)).call(Array::from(2.0f32))?;
/// assert_eq!((losses.value.item::<f32>()?, slope.item::<f32>()?), (4.0, 5.0));
/// # Ok::<(), podracer::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the result of a loss function",
    label = "neither a Tensor nor a pair of a Tensor and a tree",
    note = "a loss function returns a scalar Tensor, or `(loss, aux)`, where `aux` is a tree of Tensors: \
            `(loss, (a, b))` for several"
)]
pub trait Loss: Tree<Tensor> {
    /// The scalar that is differentiated.
    fn loss(&self) -> Tensor;
}

impl Loss for Tensor {
    fn loss(&self) -> Tensor {
        *self
    }
}

impl<Aux: Tree<Tensor>> Loss for (Tensor, Aux) {
    fn loss(&self) -> Tensor {
        self.0
    }
}

/// The gradient of a function that returns a scalar loss: at a tree of floats, a tree of the same
/// structure. `jax.grad`; captures of the closure are constant.
///
/// By a complex number `x + iy` the gradient is that of JAX, `df/dx - i df/dy`: the direction of
/// steepest ascent is its conjugate.
#[track_caller]
pub fn grad<A: Tree<Tensor>>(f: impl Fn(A) -> Tensor) -> impl Fn(A) -> A {
    let at = Location::caller();
    move |primals: A| gradient("grad", false, at, &f, primals).1
}

/// The derivative of a holomorphic function that returns a complex scalar, by each of its complex
/// arguments: `jax.grad` with `holomorphic=True`. The function must be holomorphic for the result
/// to have a meaning, which nothing checks.
///
/// ```
/// use podracer::{Array, Complex, Tensor, grad_holomorphic, interpret};
/// let slope = interpret(grad_holomorphic(|z: Tensor| z * z));
/// let slope = slope.call(Array::from(Complex::new(1.0f32, 2.0)))?;
/// assert_eq!(slope.item::<Complex<f32>>()?, Complex::new(2.0, 4.0));
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn grad_holomorphic<A: Tree<Tensor>>(f: impl Fn(A) -> Tensor) -> impl Fn(A) -> A {
    let at = Location::caller();
    let name = "grad_holomorphic";
    move |primals: A| {
        at_line(at, || {
            primals.visit_leaves(&Path::ROOT, &mut |path, x| {
                if !x.dtype().is_complex() {
                    let path = tree::path_of("argument", path);
                    let problem = format!(
                        "{path} is {}, and holomorphic functions take complex numbers; use grad, or \
                         convert it with .to(DType::C64)",
                        x.ty()
                    );
                    fail_op(name, problem);
                }
            });
        });
        gradient(name, true, at, &f, primals).1
    }
}

/// The value of a function together with its gradient, `jax.value_and_grad`. The function returns a
/// scalar loss, or a tuple of a scalar loss and any tree, which is returned unchanged (JAX's
/// `has_aux`).
#[track_caller]
pub fn value_and_grad<A: Tree<Tensor>, L: Loss>(f: impl Fn(A) -> L) -> impl Fn(A) -> (L, A) {
    let at = Location::caller();
    move |primals: A| gradient("value_and_grad", false, at, &f, primals)
}

/// The loss and its gradient, for the function `name`. A `holomorphic` function has a complex loss.
fn gradient<A: Tree<Tensor>, L: Loss>(
    name: &'static str,
    holomorphic: bool,
    at: Loc,
    f: impl Fn(A) -> L,
    primals: A,
) -> (L, A) {
    // The loss comes first, whatever its place in the result.
    let loss_first = |primals: A| {
        let result = f(primals);
        (result.loss(), result)
    };
    let linearized = linearize_tree(name, at, loss_first, primals);
    let Linearized { primals, outputs, template, linear } = linearized;
    let (loss, value): (Tensor, L) = tree::replace(&template, outputs.iter().copied());
    at_line(at, || {
        let ty = loss.ty();
        let fits = if holomorphic { ty.dtype.is_complex() } else { ty.dtype.is_float() };
        if ty.rank() != 0 || !fits {
            let wanted = if holomorphic { "scalar complex number" } else { "scalar float" };
            let advice = match (fits, holomorphic, ty.dtype.is_complex()) {
                (true, ..) => "; reduce it with .mean(..) or .sum(..)",
                (_, false, true) => {
                    "; take its .real() or .abs(), or use grad_holomorphic for a holomorphic function"
                }
                _ => "",
            };
            let problem = format!("the function must return a {wanted}, and returns {ty}{advice}");
            fail_op(name, problem);
        }
        // Nothing flows back from the other results.
        let mut cts: Vec<Option<Tensor>> = vec![None; outputs.len()];
        cts[0] = Some(ones_like(loss));
        let known = linear.residuals.iter().map(|residual| Input::Known(*residual));
        let args = tree::leaves(&primals);
        let inputs: Vec<Input> = args.iter().map(|_| Input::Linear).chain(known).collect();
        let cts: Vec<Option<Tensor>> =
            cts.into_iter().zip(&linear.nonzero).filter(|(_, nz)| **nz).map(|(ct, _)| ct).collect();
        let mut grads = within(name, at, || transpose_program(&linear.program, &inputs, &cts));
        grads.truncate(args.len());
        let written = grads.into_iter().zip(&args).map(|(ct, x)| written(ct, &x.ty()));
        (value, tree::replace(&primals, written))
    })
}
