//! The type rule of every operation, and the checker of whole Programs.

#![deny(clippy::wildcard_enum_match_arm)]

mod collective;
mod control;
mod conv;
mod custom;
mod dot;
mod fft;
mod gather;
mod linalg;
mod narrow;
pub(crate) mod problem;

use smallvec::{SmallVec, smallvec};

pub(crate) use self::conv::{dilated, infer as infer_conv};
pub(crate) use self::dot::free_axes;
pub(crate) use self::gather::gather_of_scatter;
use self::problem::ensure;
pub(crate) use self::problem::is_permutation;
pub use self::problem::{Problem, Types};
use super::op::{BinaryOp, CompareOp, CustomJvpOp, Domain, Op, Rule, UnaryOp};
use super::program::Program;
use super::types::{DType, Shape, TensorType};

/// The types of the results of `op` over operands of the given types.
///
/// # Errors
/// A [`Problem`] if the operands do not fit.
pub fn infer(op: &Op, inputs: &[&TensorType]) -> Result<Types, Problem> {
    let types = infer_types(op, inputs)?;
    for ty in &types {
        ty.ensure_addressable().map_err(|text| Problem::of(&[], text))?;
    }
    Ok(types)
}

fn infer_types(op: &Op, inputs: &[&TensorType]) -> Result<Types, Problem> {
    if let Some(arity) = arity(op) {
        ensure!(inputs.len() == arity, [], "takes {arity} operand(s), got {}", inputs.len());
    }
    narrow::ensure_no_arithmetic(op, inputs)?;
    let one = |ty: TensorType| -> Result<Types, Problem> { Ok(smallvec![ty]) };
    match op {
        Op::Constant(literal) => one(literal.ty().clone()),
        Op::Iota { ty, axis } => {
            ensure!(*axis < ty.rank(), [], "axis {axis} is out of bounds for {ty}");
            ensure!(ty.dtype != DType::Bool, [], "is not defined for bool; use an integer type");
            one(ty.clone())
        }
        Op::Unary(unary) => one(infer_unary(*unary, inputs[0])?),
        Op::Binary(binary) => one(infer_binary(*binary, inputs[0], inputs[1])?),
        Op::Compare(op) => {
            same_types(inputs[0], inputs[1])?;
            if !matches!(op, CompareOp::Eq | CompareOp::Ne) {
                ordered(inputs[0])?;
            }
            one(TensorType::new(DType::Bool, &inputs[0].shape))
        }
        Op::Select => {
            let [predicate, on_true, on_false] = [inputs[0], inputs[1], inputs[2]];
            ensure!(
                predicate.dtype == DType::Bool,
                [0],
                "the predicate must be bool, got {predicate}"
            );
            ensure!(
                on_true == on_false,
                [1, 2],
                "on_true and on_false must have equal types, got {on_true} and {on_false}"
            );
            ensure!(
                predicate.shape == on_true.shape,
                [0, 1],
                "predicate, on_true and on_false must have equal shapes, got {predicate} and {on_true}"
            );
            one(on_true.clone())
        }
        Op::Clamp => {
            let [low, x, high] = [inputs[0], inputs[1], inputs[2]];
            ensure!(
                low == x && high == x,
                [0, 1, 2],
                "the bounds {low} and {high} must have the type of the operand {x}"
            );
            ensure!(x.dtype != DType::Bool, [1], "is not defined for bool");
            ordered(x)?;
            one(x.clone())
        }
        Op::Convert { dtype } => one(TensorType::new(*dtype, &inputs[0].shape)),
        Op::Bitcast { dtype } => one(infer_bitcast(inputs[0], *dtype)?),
        Op::Broadcast { shape, axes } => one(infer_broadcast(inputs[0], shape, axes)?),
        Op::Reshape { shape } => {
            ensure!(
                shape.numel() == inputs[0].numel(),
                [0],
                "{} has {} elements, shape {shape} has {}",
                inputs[0],
                inputs[0].numel(),
                shape.numel()
            );
            one(TensorType::new(inputs[0].dtype, shape))
        }
        Op::Transpose { permutation } => {
            let x = inputs[0];
            ensure!(
                is_permutation(permutation, x.rank()),
                [0],
                "{permutation:?} is not a permutation of the axes of {x}"
            );
            let shape: Shape = permutation.iter().map(|&axis| x.shape[axis]).collect();
            one(TensorType::new(x.dtype, shape))
        }
        Op::Reverse { axes } => {
            distinct_axes(axes, inputs[0])?;
            one(inputs[0].clone())
        }
        Op::Concat { axis } => one(infer_concat(*axis, inputs)?),
        Op::Pad { low, high, interior } => {
            let (x, value) = (inputs[0], inputs[1]);
            ensure!(
                *value == TensorType::scalar(x.dtype),
                [0, 1],
                "the padding of {x} must be a scalar {}, and is {value}",
                x.dtype
            );
            let rank = x.rank();
            ensure!(
                low.len() == rank && high.len() == rank && interior.len() == rank,
                [0],
                "{} amounts of padding for {x}",
                low.len()
            );
            let mut shape = SmallVec::<[usize; 4]>::new();
            for axis in 0..rank {
                let size = x.shape[axis] as i128;
                let padded = low[axis] as i128
                    + high[axis] as i128
                    + size
                    + (size - 1).max(0) * interior[axis] as i128;
                ensure!(
                    padded >= 0,
                    [0],
                    "negative padding removes more elements than axis {axis} of {x} has"
                );
                ensure!(
                    padded <= i64::MAX as i128,
                    [0],
                    "padding of axis {axis} of {x} gives a size above 2^63"
                );
                shape.push(padded as usize);
            }
            one(TensorType::new(x.dtype, &shape[..]))
        }
        Op::Slice { start, limit, stride } => {
            let x = inputs[0];
            ensure!(
                start.len() == x.rank() && limit.len() == x.rank() && stride.len() == x.rank(),
                [0],
                "{} bounds for {x}",
                start.len()
            );
            let mut shape = SmallVec::<[usize; 4]>::new();
            for axis in 0..x.rank() {
                let (from, to, by) = (start[axis], limit[axis], stride[axis]);
                ensure!(
                    from <= to && to <= x.shape[axis] && by > 0,
                    [0],
                    "slice {from}..{to} with stride {by} is out of bounds for axis {axis} of {x}"
                );
                shape.push((to - from).div_ceil(by));
            }
            one(TensorType::new(x.dtype, &shape[..]))
        }
        Op::DynamicSlice { sizes } => {
            ensure!(!inputs.is_empty(), [], "no operand");
            window_fits(inputs[0], sizes)?;
            starts_fit(inputs[0], &inputs[1..], 1)?;
            one(TensorType::new(inputs[0].dtype, sizes))
        }
        Op::DynamicUpdateSlice => {
            ensure!(inputs.len() >= 2, [], "takes a tensor and an update");
            let (x, update) = (inputs[0], inputs[1]);
            ensure!(
                x.dtype == update.dtype,
                [0, 1],
                "an update {update} of another element type than {x}; convert it with .to(dtype)"
            );
            window_fits(x, &update.shape)?;
            starts_fit(x, &inputs[2..], 2)?;
            one(x.clone())
        }
        Op::Gather(dims) => one(gather::infer_gather(dims, inputs[0], inputs[1])?),
        Op::Scatter(dims) => one(gather::infer_scatter(dims, inputs[0], inputs[1], inputs[2])?),
        Op::Dot(dims) => one(dot::infer(dims, inputs[0], inputs[1])?),
        Op::Conv(dims) => one(conv::infer(dims, inputs[0], inputs[1])?),
        Op::Fft(op) => one(fft::infer(op, inputs[0])?),
        Op::Cholesky => one(linalg::infer_cholesky(inputs[0])?),
        Op::TriangularSolve(op) => one(linalg::infer_triangular_solve(op, inputs[0], inputs[1])?),
        Op::Reduce { op, axes } => {
            let x = inputs[0];
            distinct_axes(axes, x)?;
            ensure!(
                op.domain().contains(x.dtype),
                [0],
                "is not defined for {x}; convert it with .to(dtype) first"
            );
            one(TensorType::new(x.dtype, x.shape.without_axes(axes)))
        }
        Op::ArgReduce { axis, .. } => {
            let x = inputs[0];
            ensure!(*axis < x.rank(), [0], "axis {axis} is out of bounds for {x}");
            ensure!(x.shape[*axis] > 0, [0], "axis {axis} of {x} is empty");
            ensure!(x.dtype != DType::Bool, [0], "is not defined for bool");
            ordered(x)?;
            one(TensorType::new(DType::I32, x.shape.without_axis(*axis)))
        }
        Op::Sort { axis } => {
            ensure!(!inputs.is_empty(), [], "no operand");
            ensure!(
                *axis < inputs[0].rank(),
                [0],
                "axis {axis} is out of bounds for {}",
                inputs[0]
            );
            ordered(inputs[0])?;
            for (i, other) in inputs.iter().enumerate() {
                ensure!(
                    other.shape == inputs[0].shape,
                    [0, i],
                    "operands must have equal shapes, got {} and {other}",
                    inputs[0]
                );
            }
            Ok(inputs.iter().map(|&ty| ty.clone()).collect())
        }
        Op::Threefry => {
            for (i, ty) in inputs.iter().enumerate() {
                ensure!(ty.dtype == DType::U32, [i], "takes u32, and was given {ty}");
                ensure!(
                    ty.shape == inputs[0].shape,
                    [0, i],
                    "operands must have equal shapes, got {} and {ty}",
                    inputs[0]
                );
            }
            Ok(smallvec![inputs[0].clone(), inputs[0].clone()])
        }
        Op::Collective(collective) => collective::infer_collective(collective, inputs),
        Op::Sharding(op) => collective::infer_sharding(op, inputs[0]),
        Op::StopGradient | Op::Name(_) => one(inputs[0].clone()),
        Op::CustomJvp(op) => custom::infer_custom_jvp(op, inputs),
        Op::CustomVjp(op) => custom::infer_custom_vjp(op, inputs),
        Op::CustomLin(op) => custom::infer_custom_lin(op, inputs),
        Op::Remat(remat) => custom::infer_remat(remat, inputs),
        Op::Callback(op) => control::infer_callback(op, inputs),
        Op::Scan(scan) => control::infer_scan(scan, inputs),
        Op::While(while_op) => control::infer_while(while_op, inputs),
        Op::Cond(cond) => control::infer_cond(cond, inputs),
    }
}

/// The number of operands, where it is fixed.
fn arity(op: &Op) -> Option<usize> {
    match op {
        Op::Constant(_) | Op::Iota { .. } => Some(0),
        Op::Unary(_)
        | Op::Convert { .. }
        | Op::Bitcast { .. }
        | Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Reverse { .. }
        | Op::Slice { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Sharding(_)
        | Op::StopGradient
        | Op::Name(_) => Some(1),
        Op::Binary(_) | Op::Compare(_) | Op::Pad { .. } | Op::Gather(_) => Some(2),
        Op::Dot(_) | Op::Conv(_) | Op::TriangularSolve(_) => Some(2),
        Op::Cholesky | Op::Fft(_) => Some(1),
        Op::Select | Op::Clamp | Op::Scatter(_) => Some(3),
        Op::Threefry => Some(4),
        Op::Concat { .. }
        | Op::DynamicSlice { .. }
        | Op::DynamicUpdateSlice
        | Op::Sort { .. }
        | Op::Collective(_)
        | Op::CustomJvp(_)
        | Op::CustomVjp(_)
        | Op::CustomLin(_)
        | Op::Remat(_)
        | Op::Callback(_)
        | Op::Scan(_)
        | Op::While(_)
        | Op::Cond(_) => None,
    }
}

fn infer_unary(op: UnaryOp, x: &TensorType) -> Result<TensorType, Problem> {
    let domain = op.domain();
    let wanted = match domain {
        Domain::Floats => "takes floats, got",
        Domain::Inexact => "takes floats and complex numbers, got",
        Domain::Complex => "takes complex numbers, got",
        Domain::Numbers | Domain::Reals | Domain::Parts | Domain::Bits | Domain::Integers => {
            "is not defined for"
        }
    };
    ensure!(domain.contains(x.dtype), [0], "{wanted} {x}; convert it with .to(dtype) first");
    Ok(TensorType::new(op.result(x.dtype), &x.shape))
}

fn infer_binary(op: BinaryOp, lhs: &TensorType, rhs: &TensorType) -> Result<TensorType, Problem> {
    same_types(lhs, rhs)?;
    let dtype = lhs.dtype;
    ensure!(
        op.domain().contains(dtype),
        [0, 1],
        "is not defined for {dtype}: lhs {lhs}, rhs {rhs}; convert with .to(dtype) first"
    );
    Ok(TensorType::new(op.result(dtype), &lhs.shape))
}

/// Refuses complex numbers, which have no order.
fn ordered(x: &TensorType) -> Result<(), Problem> {
    ensure!(
        !x.dtype.is_complex(),
        [0],
        "complex numbers have no order, got {x}; compare .abs(), .real() or .imag()"
    );
    Ok(())
}

fn same_types(lhs: &TensorType, rhs: &TensorType) -> Result<(), Problem> {
    ensure!(
        lhs.dtype == rhs.dtype,
        [0, 1],
        "element types differ: lhs {lhs}, rhs {rhs}; convert one with .to(dtype)"
    );
    ensure!(lhs.shape == rhs.shape, [0, 1], "shapes differ: lhs {lhs}, rhs {rhs}");
    Ok(())
}

/// Narrower elements are parts of a wider one along a last axis.
fn infer_bitcast(x: &TensorType, dtype: DType) -> Result<TensorType, Problem> {
    let (from, to) = (x.dtype.size(), dtype.size());
    ensure!(
        !x.dtype.is_complex() && !dtype.is_complex(),
        [0],
        "not defined between {x} and {dtype}; take .real() and .imag()"
    );
    ensure!(
        !x.dtype.is_int4() && !dtype.is_int4(),
        [0],
        "not defined between {x} and {dtype}; convert with .to(dtype)"
    );
    ensure!(
        dtype != DType::Bool && (x.dtype != DType::Bool || from == to),
        [0],
        "not defined between {x} and {dtype}; convert with .to(dtype)"
    );
    if from >= to {
        let rank = x.rank();
        let parts = (from > to).then_some(from / to);
        let shape = parts.map_or(x.shape.clone(), |parts| x.shape.with_axis(rank, parts));
        return Ok(TensorType::new(dtype, shape));
    }
    let last = x.shape.last().copied();
    ensure!(last == Some(to / from), [0], "{x} as {dtype} needs a last axis of size {}", to / from);
    Ok(TensorType::new(dtype, x.shape.without_axis(x.rank() - 1)))
}

fn infer_broadcast(x: &TensorType, shape: &Shape, axes: &[usize]) -> Result<TensorType, Problem> {
    let increasing = axes.windows(2).all(|pair| pair[0] < pair[1]);
    ensure!(
        axes.len() == x.rank() && increasing && axes.iter().all(|&axis| axis < shape.rank()),
        [0],
        "axes {axes:?} do not place the axes of {x} in shape {shape}"
    );
    for (from, &to) in axes.iter().enumerate() {
        ensure!(
            x.shape[from] == shape[to] || x.shape[from] == 1,
            [0],
            "axis {from} of {x} has size {}, and cannot be broadcast to {}",
            x.shape[from],
            shape[to]
        );
    }
    Ok(TensorType::new(x.dtype, shape))
}

fn infer_concat(axis: usize, inputs: &[&TensorType]) -> Result<TensorType, Problem> {
    ensure!(!inputs.is_empty(), [], "nothing to join");
    let first = inputs[0];
    ensure!(axis < first.rank(), [0], "axis {axis} is out of bounds for {first}");
    let mut size = 0;
    for (i, ty) in inputs.iter().enumerate() {
        let fits = ty.dtype == first.dtype
            && ty.rank() == first.rank()
            && (0..ty.rank()).all(|a| a == axis || ty.shape[a] == first.shape[a]);
        ensure!(
            fits,
            [0, i],
            "operands must agree in element type and in all axes but axis {axis}, got {first} and {ty}"
        );
        size = usize::saturating_add(size, ty.shape[axis]);
    }
    Ok(TensorType::new(first.dtype, first.shape.without_axis(axis).with_axis(axis, size)))
}

fn window_fits(x: &TensorType, sizes: &Shape) -> Result<(), Problem> {
    let fits = sizes.rank() == x.rank() && sizes.iter().zip(x.shape.iter()).all(|(s, d)| s <= d);
    ensure!(fits, [0], "slice sizes {sizes} do not fit into {x}");
    Ok(())
}

fn starts_fit(x: &TensorType, starts: &[&TensorType], first: usize) -> Result<(), Problem> {
    ensure!(starts.len() == x.rank(), [0], "{} start indices for {x}", starts.len());
    for (i, start) in starts.iter().enumerate() {
        ensure!(
            **start == TensorType::scalar(DType::I32),
            [first + i],
            "start index {i} must be a scalar i32, got {start}"
        );
    }
    Ok(())
}

fn distinct_axes(axes: &[usize], x: &TensorType) -> Result<(), Problem> {
    let distinct = axes.iter().enumerate().all(|(i, axis)| !axes[..i].contains(axis));
    ensure!(
        distinct && axes.iter().all(|&axis| axis < x.rank()),
        [0],
        "{axes:?} are not distinct axes of {x}"
    );
    Ok(())
}

/// Checks a whole Program: every variable is defined once and before its use, and every equation
/// has the types that its operation gives.
///
/// # Errors
/// The first fault, with the equation's number.
pub fn verify(program: &Program) -> Result<(), String> {
    verify_inside(program, &[])
}

/// [`verify`] for a Program that is to be computed: it also has no `custom_lin`, which only the
/// transpose of a linear Program has.
///
/// # Errors
/// As [`verify`].
pub(crate) fn verify_computable(program: &Program) -> Result<(), String> {
    fn holds_custom_lin(program: &Program) -> bool {
        let mut equations = program.equations.iter();
        equations
            .any(|e| matches!(e.op, Op::CustomLin(_)) || e.op.subprograms().any(holds_custom_lin))
    }
    verify(program)?;
    match holds_custom_lin(program) {
        true => Err("custom_lin has no value: only its transpose is defined".into()),
        false => Ok(()),
    }
}

/// Checks that the types of all variables are known.
fn verify_variables(program: &Program) -> Result<(), String> {
    let ports = program.inputs.iter().chain(&program.outputs);
    let used = program.equations.iter().flat_map(|e| e.inputs.iter().chain(&e.outputs));
    match ports.chain(used).find(|var| var.index() >= program.types.len()) {
        Some(var) => Err(format!("{var:?} has no type")),
        None => Ok(()),
    }
}

/// [`verify`] for a Program in the derivatives of `around`.
fn verify_inside(program: &Program, around: &[&CustomJvpOp]) -> Result<(), String> {
    verify_variables(program)?;
    let mut defined = vec![false; program.types.len()];
    for &input in &program.inputs {
        if std::mem::replace(&mut defined[input.index()], true) {
            return Err(format!("input {input:?} stands twice"));
        }
        program.ty(input).ensure_addressable()?;
    }
    for (i, equation) in program.equations.iter().enumerate() {
        let fault = |text: String| format!("equation {i} ({}): {text}", equation.op.name());
        if let Some(var) = equation.inputs.iter().find(|var| !defined[var.index()]) {
            return Err(fault(format!("{var:?} is used before it is defined")));
        }
        let types: Vec<&TensorType> = equation.inputs.iter().map(|&v| program.ty(v)).collect();
        let inferred = infer(&equation.op, &types).map_err(|problem| fault(problem.text))?;
        if inferred.len() != equation.outputs.len() {
            return Err(fault(format!("{} results", equation.outputs.len())));
        }
        for (ty, &output) in inferred.iter().zip(&equation.outputs) {
            if std::mem::replace(&mut defined[output.index()], true) {
                return Err(fault(format!("{output:?} is defined twice")));
            }
            if ty != program.ty(output) {
                return Err(fault(format!("{output:?} is {}, not {ty}", program.ty(output))));
            }
        }
        if let Op::CustomJvp(custom) = &equation.op {
            custom::verify_rule(custom, around).map_err(fault)?;
            verify_inside(&custom.call, around).map_err(fault)?;
            if let Rule::Own(rule) = &custom.jvp {
                verify_inside(rule, &[around, &[custom]].concat()).map_err(fault)?;
            }
            continue;
        }
        for sub in equation.op.subprograms() {
            verify_inside(sub, around).map_err(fault)?;
        }
    }
    match program.outputs.iter().find(|var| !defined[var.index()]) {
        Some(var) => Err(format!("output {var:?} is not defined")),
        None => Ok(()),
    }
}
