//! `vmap`: a function of one example becomes a function of a batch. The batching rule of every
//! operation is here; those longer than an arm are in `vmap/`.
//!
//! A Program is read equation by equation, and each is bound again with one more axis. That axis
//! always comes first, so a rule knows its position; a value that is the same for the whole batch
//! has no such axis, and values computed only from such values are computed once. Nothing loops
//! over the batch.
//!
//! ```text
//! { lambda a:f32[3] b:f32[3]. let        a is mapped, b is not:
//!     c:f32[3] = mul a b                   { lambda a:f32[8,3] b:f32[3]. let
//!   in (c) }                                   c:f32[8,3] = broadcast[..] b
//!                                              d:f32[8,3] = mul a c
//!                                            in (d) }
//! ```

#![deny(clippy::wildcard_enum_match_arm)]

use std::panic::Location;

mod axes;
mod callback;
mod collective;
mod control;
mod conv;
mod custom;
mod dot;
mod gather;
mod guard;
mod linalg;
mod sharding;
#[cfg(test)]
mod tests;
pub(crate) mod varying;

use smallvec::{SmallVec, smallvec};

pub use self::axes::{LeafAxes, VmapOptions};
pub(crate) use self::sharding::on_one_device;
use super::axis::Axis;
use super::check;
use super::jvp::derivative_flow;
use super::op::{Amounts, Axes, Op};
use super::ops;
use super::program::Program;
use super::tensor::{
    FrameKind, Tensor, Traced, at_line, bind, fail_op, trace_frame, trace_tree, within, within_axis,
};
use super::types::{DType, TensorType};
use crate::error::Loc;
use crate::trace::literal::Literal;
use crate::tree::{self, Path, Tree};

/// `jax.vmap`: `f` applied to each slice of the argument along the first axis of every leaf, all at
/// once; results are stacked along their first axis. Captures of `f` are the same for the whole
/// batch.
///
/// A `while_loop` runs until no element of the batch continues; a `cond` whose predicate differs
/// within the batch computes both branches, and derivatives come from the branch that each takes.
#[track_caller]
pub fn vmap<A: Tree<Tensor>, B: Tree<Tensor>>(f: impl Fn(A) -> B) -> impl Fn(A) -> B {
    let at = Location::caller();
    move |args| apply(&VmapOptions::default(), "batch", at, &|_, args| f(args), args)
}

/// [`vmap`] with [`VmapOptions`].
#[track_caller]
pub fn vmap_with<A: Tree<Tensor>, B: Tree<Tensor>>(
    options: VmapOptions,
    f: impl Fn(A) -> B,
) -> impl Fn(A) -> B {
    let at = Location::caller();
    move |args| apply(&options, "batch", at, &|_, args| f(args), args)
}

/// [`vmap`] with a named axis, as `jax.vmap(f, axis_name=name)`: `f` gets the axis's token, with
/// which [`psum`](super::ops::psum) and the other collectives work along the batch.
///
/// ```
/// use podracer::{Array, Tensor, interpret, pmean, vmap_axis};
/// // Each row less the mean of all.
/// let f = interpret(|x: Tensor| vmap_axis("rows", |rows, x: Tensor| x - pmean(x, rows))(x));
/// let x = Array::new([2, 2], &[1.0f32, 2.0, 3.0, 6.0])?;
/// assert_eq!(f.call(x)?.to_vec::<f32>()?, [-1.0, -2.0, 1.0, 2.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn vmap_axis<A: Tree<Tensor>, B: Tree<Tensor>>(
    name: &'static str,
    f: impl Fn(Axis, A) -> B,
) -> impl Fn(A) -> B {
    vmap_axis_with(VmapOptions::default(), name, f)
}

/// [`vmap_axis`] with [`VmapOptions`].
#[track_caller]
pub fn vmap_axis_with<A: Tree<Tensor>, B: Tree<Tensor>>(
    options: VmapOptions,
    name: &'static str,
    f: impl Fn(Axis, A) -> B,
) -> impl Fn(A) -> B {
    let at = Location::caller();
    move |args| apply(&options, name, at, &f, args)
}

fn apply<A: Tree<Tensor>, B: Tree<Tensor>>(
    options: &VmapOptions,
    name: &'static str,
    at: Loc,
    f: &impl Fn(Axis, A) -> B,
    args: A,
) -> B {
    let (inputs, size) = at_line(at, || mapped_leaves(options, &args));
    let mut types = inputs.iter().map(|input| input.example_type());
    let example = args.map_leaves_ref(&Path::ROOT, &mut |_, _| types.next().expect("a leaf each"));
    let axis = Axis::new(name, size);
    let call = |args| within_axis(axis, || f(axis, args));
    let (traced, result) = trace_tree::<A, B>("vmap", at, &example, call);
    let outputs = within("vmap", at, || apply_traced(traced, inputs, axis));
    let leaves = at_line(at, || placed_leaves(options, &outputs, &result, size));
    tree::replace(&result, leaves)
}

/// The leaves of the argument, batch axis first, and the size of the batch.
fn mapped_leaves<A: Tree<Tensor>>(options: &VmapOptions, args: &A) -> (Vec<Batched>, usize) {
    let mut size = options.size.map(|size| (size, "the size given".to_string()));
    let mut leaves = Vec::new();
    check_axes(&options.in_axes, "in_axes", "argument", args);
    args.visit_leaves(&Path::ROOT, &mut |path, &tensor| {
        let Some(axis) = options.in_axes.of(path) else {
            return leaves.push(Batched::same(tensor));
        };
        let ty = tensor.ty();
        let from_start = if axis < 0 { axis + ty.rank() as isize } else { axis };
        if from_start < 0 || from_start >= ty.rank() as isize {
            let path = tree::path_of("argument", path);
            fail_op("vmap", format!("{path} is {ty}, which has no axis {axis} to map over"));
        }
        let here = ty.shape[from_start as usize];
        let place = format!("{} {ty} axis {axis}", tree::path_of("argument", path));
        match &size {
            None => size = Some((here, place)),
            Some((there, first)) if *there != here => {
                let problem = format!(
                    "mapped axes must have equal sizes: {first} ({there}), {place} ({here})"
                );
                fail_op("vmap", problem);
            }
            Some(_) => {}
        }
        leaves.push(Batched::mapped(tensor.moveaxis(from_start, 0)));
    });
    match size {
        Some((size, _)) => (leaves, size),
        None => {
            fail_op("vmap", "no argument is mapped; give the size of the batch, VmapOptions::size")
        }
    }
}

/// Interprets the traced function; its captures are unmapped.
fn apply_traced(traced: Traced, mut inputs: Vec<Batched>, axis: Axis) -> Vec<Batched> {
    inputs.extend(traced.captures.iter().map(|&capture| Batched::same(capture)));
    vmap_program(&traced.program, &inputs, axis)
}

/// The leaves of the result with the batch axis where the options want it.
fn placed_leaves<B: Tree<Tensor>>(
    options: &VmapOptions,
    outputs: &[Batched],
    result: &B,
    size: usize,
) -> Vec<Tensor> {
    let mut placed = Vec::with_capacity(outputs.len());
    let mut outputs = outputs.iter();
    check_axes(&options.out_axes, "out_axes", "output", result);
    result.visit_leaves(&Path::ROOT, &mut |path, _| {
        let output = outputs.next().expect("one a leaf");
        placed.push(match options.out_axes.of(path) {
            Some(axis) => {
                let axis = ops::axis_of("vmap", axis, output.rank() + 1);
                output.full(size).moveaxis(0, axis as isize)
            }
            None if output.mapped => fail_op(
                "vmap",
                format!(
                    "{} is batched, and its out_axes is None; give it an axis",
                    tree::path_of("output", path)
                ),
            ),
            None => output.tensor,
        });
    });
    placed
}

fn check_axes<A: Tree<Tensor>>(axes: &LeafAxes, name: &str, root: &str, tree: &A) {
    if let Err(problem) = axes.check(root, tree) {
        fail_op("vmap", format!("{name}: {problem}"));
    }
}

/// The Program of all members of `axis` together: `mapped` marks the inputs that have a first axis
/// of the members, and the result marks the outputs that have one. Batching has replaced the
/// collectives along the axis.
pub(crate) fn over_members(
    program: &Program,
    mapped: &[bool],
    axis: Axis,
    at: Loc,
) -> (Program, Vec<bool>) {
    let types: Vec<TensorType> = program
        .input_types()
        .zip(mapped)
        .map(|(ty, &mapped)| match mapped {
            true => TensorType::new(ty.dtype, ty.shape.with_axis(0, axis.size())),
            false => ty.clone(),
        })
        .collect();
    let (traced, mapped) = trace_frame(FrameKind::Body, &types, at, |args| {
        let inputs: Vec<Batched> =
            args.iter().zip(mapped).map(|(&tensor, &mapped)| Batched { tensor, mapped }).collect();
        // The Program is complete: nothing differentiates what this gives.
        let differentiable = false;
        let context = BatchContext { members: true, differentiable, ..BatchContext::new(axis) };
        let outputs = batch_program(program, &inputs, context);
        let mapped = outputs.iter().map(|output| output.mapped).collect();
        (outputs.iter().map(|output| output.tensor).collect(), mapped)
    });
    (traced.program, mapped)
}

/// A value under `vmap`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batched {
    /// The value.
    pub tensor: Tensor,
    /// True if its first axis is the batch. If false, it is the same for the whole batch.
    pub mapped: bool,
}

/// The results of a rule.
pub(crate) type Results = SmallVec<[Batched; 2]>;

impl Batched {
    /// A value whose first axis is the batch.
    pub(crate) fn mapped(tensor: Tensor) -> Batched {
        Batched { tensor, mapped: true }
    }

    /// A value that is the same for the whole batch.
    pub(crate) fn same(tensor: Tensor) -> Batched {
        Batched { tensor, mapped: false }
    }

    /// The type of one example.
    pub(crate) fn example_type(self) -> TensorType {
        let ty = self.tensor.ty();
        if self.mapped { TensorType::new(ty.dtype, ty.shape.without_axis(0)) } else { ty }
    }

    /// Number of axes of one example.
    pub(crate) fn rank(self) -> usize {
        self.tensor.rank() - usize::from(self.mapped)
    }

    /// The value with a batch axis, made by repetition if need be.
    pub(crate) fn full(self, size: usize) -> Tensor {
        if self.mapped {
            return self.tensor;
        }
        let shape = self.tensor.shape();
        let axes: Axes = (1..=shape.rank()).collect();
        self.tensor.broadcast_in_dim(shape.with_axis(0, size), &axes)
    }
}

/// The batch that a rule works for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchContext {
    /// Number of examples.
    pub size: usize,
    /// The axis of the batch, for collectives along it.
    pub axis: Axis,
    /// Mask of the examples that the computation is for (`bool[size]`), if not all: inside a branch
    /// or loop that some do not take, it runs on their values too, and loops must not wait for
    /// those, nor derivatives count them.
    pub active: Option<Tensor>,
    /// False where reverse mode does not come, as inside a `while`: no derivative is guarded there.
    pub differentiable: bool,
    /// True if the examples are the devices of a `pmap`: effects then happen once for each, also
    /// where nothing differs.
    pub members: bool,
    /// Number of batched custom_jvp rules that the computation is nested in.
    pub rules: usize,
}

impl BatchContext {
    /// All examples along `axis`.
    fn new(axis: Axis) -> BatchContext {
        let size = axis.size();
        BatchContext { size, axis, active: None, differentiable: true, members: false, rules: 0 }
    }
}

/// Adds the equations of `program` to the trace, with a batch axis on all that depends on the
/// mapped inputs.
pub(crate) fn vmap_program(program: &Program, inputs: &[Batched], axis: Axis) -> Vec<Batched> {
    batch_program(program, inputs, BatchContext::new(axis))
}

/// [`vmap_program`] for the active part of a batch.
pub(crate) fn batch_program(
    program: &Program,
    inputs: &[Batched],
    context: BatchContext,
) -> Vec<Batched> {
    let mut env: Vec<Option<Batched>> = vec![None; program.types.len()];
    for (&var, &input) in program.inputs.iter().zip(inputs) {
        env[var.index()] = Some(input);
    }
    let guard = context.guard().map(|active| (active, derivative_flow(program)));
    for equation in &program.equations {
        let inputs: SmallVec<[Batched; 4]> = equation
            .inputs
            .iter()
            .map(|var| env[var.index()].expect("defined before use"))
            .collect();
        let (op, at) = (&equation.op, equation.at);
        let results = at_line(at, || match &guard {
            None => batch(op, &inputs, context, at),
            Some((active, flows)) => {
                let flows: SmallVec<[bool; 4]> =
                    equation.inputs.iter().map(|var| flows[var.index()]).collect();
                guard::batch_guarded(op, &inputs, &flows, *active, context, at)
            }
        });
        for (var, result) in equation.outputs.iter().zip(results) {
            env[var.index()] = Some(result);
        }
    }
    program.outputs.iter().map(|var| env[var.index()].expect("defined before use")).collect()
}

/// The axes one further, behind the batch axis.
pub(crate) fn shifted(axes: &[usize]) -> Axes {
    axes.iter().map(|&axis| axis + 1).collect()
}

/// `first`, then `rest`.
pub(crate) fn prefixed(first: usize, rest: &[usize]) -> Axes {
    std::iter::once(first).chain(rest.iter().copied()).collect()
}

/// The equation `op(inputs)` for a batch.
fn batch(op: &Op, inputs: &[Batched], context: BatchContext, at: Loc) -> Results {
    let size = context.size;
    let waits = context.active.is_some() && varying::holds_while(op);
    // A collective along the batch concerns all examples, also where none differs.
    let exchanges = varying::holds_collective(op, context.axis);
    // Each member makes its own call.
    let calls = context.members && op.has_effect();
    if !waits && !exchanges && !calls && inputs.iter().all(|input| !input.mapped) {
        let inputs: SmallVec<[Tensor; 4]> = inputs.iter().map(|input| input.tensor).collect();
        return bind(op.clone(), &inputs, at).into_iter().map(Batched::same).collect();
    }
    // The operation `op`, over operands that all have the batch axis first.
    let over_all = |op: Op| -> Results {
        let inputs: SmallVec<[Tensor; 4]> = inputs.iter().map(|input| input.full(size)).collect();
        bind(op, &inputs, at).into_iter().map(Batched::mapped).collect()
    };
    let one = |tensor: Tensor| -> Results { smallvec![Batched::mapped(tensor)] };
    if size == 0
        && let Some(results) = empty_results(op, inputs)
    {
        return results;
    }
    match op {
        // Without operands, so never mapped.
        Op::Constant(_) | Op::Iota { .. } => over_all(op.clone()),

        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Clamp
        | Op::Convert { .. }
        | Op::Bitcast { .. }
        | Op::Threefry
        | Op::Name(_)
        | Op::StopGradient => over_all(op.clone()),

        Op::Broadcast { shape, axes } => over_all(Op::Broadcast {
            shape: shape.with_axis(0, size),
            axes: prefixed(0, &shifted(axes)),
        }),
        Op::Reshape { shape } => over_all(Op::Reshape { shape: shape.with_axis(0, size) }),
        Op::Transpose { permutation } => {
            over_all(Op::Transpose { permutation: prefixed(0, &shifted(permutation)) })
        }
        Op::Reverse { axes } => over_all(Op::Reverse { axes: shifted(axes) }),
        Op::Concat { axis } => over_all(Op::Concat { axis: axis + 1 }),
        Op::Slice { start, limit, stride } => over_all(Op::Slice {
            start: prefixed(0, start),
            limit: prefixed(size, limit),
            stride: prefixed(1, stride),
        }),
        Op::Pad { low, high, interior } => one(pad(inputs, low, high, interior, size)),

        Op::Reduce { op, axes } => over_all(Op::Reduce { op: *op, axes: shifted(axes) }),
        Op::ArgReduce { op, axis } => over_all(Op::ArgReduce { op: *op, axis: axis + 1 }),
        Op::Sort { axis } => over_all(Op::Sort { axis: axis + 1 }),

        Op::DynamicSlice { sizes } => smallvec![gather::dynamic_slice(sizes, inputs, size)],
        Op::DynamicUpdateSlice => smallvec![gather::dynamic_update_slice(inputs, size)],
        Op::Gather(dims) => one(gather::gather(dims, inputs[0], inputs[1], size)),
        Op::Scatter(dims) => one(gather::scatter(dims, inputs[0], inputs[1], inputs[2], size)),

        Op::Dot(dims) => one(dot::dot(dims, inputs[0], inputs[1])),
        Op::Conv(dims) => one(conv::conv(dims, inputs[0], inputs[1], size)),

        Op::Fft(op) => over_all(Op::Fft(op.clone())),
        Op::Cholesky => over_all(Op::Cholesky),
        Op::TriangularSolve(op) => one(linalg::triangular_solve(op, inputs[0], inputs[1], size)),

        Op::CustomJvp(op) => custom::custom_jvp(op, inputs, context, at),
        Op::CustomVjp(op) => custom::custom_vjp(op, inputs, context, at),
        Op::CustomLin(op) => custom::custom_lin(op, inputs, context, at),
        Op::Remat(op) => custom::remat(op, inputs, context, at),

        Op::Collective(op) => collective::collective(op, inputs, context, at),
        Op::Sharding(op) => smallvec![sharding::sharding(op, inputs[0], context, at)],
        Op::Callback(op) => callback::callback(op, inputs, context, at),

        Op::Scan(scan) => control::scan(scan, inputs, context, at),
        Op::While(while_op) => control::while_loop(while_op, inputs, context, at),
        Op::Cond(cond) => control::cond(cond, inputs, context, at),
    }
}

/// Results for a batch without examples, of the operations whose rules put the batch into an axis of a
/// window or of a group, which cannot be empty.
fn empty_results(op: &Op, inputs: &[Batched]) -> Option<Results> {
    let has_windows = matches!(
        op,
        Op::Gather(_)
            | Op::Scatter(_)
            | Op::DynamicSlice { .. }
            | Op::DynamicUpdateSlice
            | Op::Conv(_)
    );
    if !has_windows {
        return None;
    }
    let types: SmallVec<[TensorType; 4]> = inputs.iter().map(|x| x.example_type()).collect();
    let types: SmallVec<[&TensorType; 4]> = types.iter().collect();
    let results = check::infer(op, &types).ok()?;
    let empty = |ty: &TensorType| Batched::mapped(ops::zeros(ty.shape.with_axis(0, 0), ty.dtype));
    Some(results.iter().map(empty).collect())
}

fn pad(inputs: &[Batched], low: &[i64], high: &[i64], interior: &[usize], size: usize) -> Tensor {
    let (x, value) = (inputs[0], inputs[1]);
    let first = |amounts: &[i64]| -> Amounts {
        std::iter::once(0).chain(amounts.iter().copied()).collect()
    };
    let (batch_low, batch_high, batch_interior) = (first(low), first(high), prefixed(0, interior));
    if !value.mapped {
        return x.tensor.pad_with(&batch_low, &batch_high, &batch_interior, value.tensor);
    }
    // An operation pads with one value only: pad with zeros, then put each example's value where
    // padding came.
    let lane = x.example_type();
    let zero = ops::constant(Literal::filled(TensorType::scalar(lane.dtype), 0.0));
    let padded = x.full(size).pad_with(&batch_low, &batch_high, &batch_interior, zero);
    let kept = ops::full(&lane.shape, 1.0, DType::Bool).pad_interior(low, high, interior, 0.0);
    let value = value.tensor.broadcast_in_dim(padded.shape(), &[0]);
    ops::where_(kept, padded, value)
}

/// Chooses by example: `on_true` where `predicate: bool[size]` holds, else `on_false`.
pub(crate) fn choose(predicate: Tensor, on_true: Tensor, on_false: Tensor) -> Tensor {
    ops::where_(predicate.broadcast_in_dim(on_true.shape(), &[0]), on_true, on_false)
}
