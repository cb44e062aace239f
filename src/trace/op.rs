//! Programs, and the closed set of operations that they are made of.
//!
//! The two are one file because they hold each other: an equation of a [`Program`] has an [`Op`],
//! and the `Op` of a loop has a `Program`. Parameters that hold no Program are in files of their
//! own.
//!
//! No behavior here: each transformation has its own file with an exhaustive `match` over [`Op`],
//! so that the compiler lists the cases that a new operation still lacks. Operands are not part of
//! an `Op`; they are in the [`Equation`].

mod callback;
mod collective;
mod dims;
mod elementwise;
mod facts;
mod fft;
mod precision;
mod sharding;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

pub use self::callback::{CallbackKind, CallbackOp, VmapMethod};
pub use self::collective::{AllReduceOp, Collective, CollectiveOp};
pub use self::dims::{
    Amounts, Axes, ConvDims, DotDims, GatherDims, ScatterDims, ScatterKind, TriangularSolveOp,
};
pub(crate) use self::elementwise::unary_ops;
pub use self::elementwise::{
    ArgOp, BinaryOp, CompareOp, Domain, Fact, Linearity, ReduceOp, UnaryOp,
};
pub(crate) use self::facts::{Structure, StructureMut, TangentFlow};
pub use self::fft::{FftKind, FftOp};
pub use self::precision::Precision;
pub use self::sharding::{ShardingKind, ShardingOp};
use super::literal::Literal;
use super::types::{DType, Shape, TensorType};
use crate::error::Loc;

/// A variable of a [`Program`]: an index into [`Program::types`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub u32);

impl Var {
    /// The index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The operands or results of an equation.
pub type Vars = SmallVec<[Var; 4]>;

/// `outputs = op(inputs)`, with the user's line that made it.
#[derive(Debug, Clone)]
pub struct Equation {
    /// The operation.
    pub op: Op,
    /// Its operands.
    pub inputs: Vars,
    /// The variables that it defines.
    pub outputs: Vars,
    /// The user's line.
    pub at: Loc,
}

// Two equations are the same computation wherever they were written.
impl PartialEq for Equation {
    fn eq(&self, other: &Equation) -> bool {
        self.inputs == other.inputs && self.outputs == other.outputs && self.op == other.op
    }
}

impl Eq for Equation {}

impl Hash for Equation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.op.hash(state);
        self.inputs.hash(state);
        self.outputs.hash(state);
    }
}

/// A typed function: each variable is defined once, by the inputs or by an equation, before it is
/// used. Prints like a jaxpr.
///
/// Two Programs are equal if they have the same equations between the same variables, of the same
/// types. The type of a variable that is never defined does not matter.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// The parameters.
    pub inputs: Vec<Var>,
    /// The equations, in the order of execution.
    pub equations: Vec<Equation>,
    /// The results.
    pub outputs: Vec<Var>,
    /// The type of each variable.
    pub types: Vec<TensorType>,
}

impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        let defined = || self.inputs.iter().chain(self.equations.iter().flat_map(|e| &e.outputs));
        self.inputs == other.inputs
            && self.equations == other.equations
            && self.outputs == other.outputs
            && defined().all(|var| self.types.get(var.index()) == other.types.get(var.index()))
    }
}

impl Eq for Program {}

impl Hash for Program {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inputs.hash(state);
        self.equations.hash(state);
        self.outputs.hash(state);
        self.inputs.iter().for_each(|var| self.types.get(var.index()).hash(state));
    }
}

/// An operation with its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    /// A value known at trace time. No operands.
    Constant(Literal),
    /// 0, 1, 2, ... along `axis`. No operands.
    Iota {
        /// The type of the result.
        ty: TensorType,
        /// The axis along which the numbers grow.
        axis: usize,
    },
    /// Elementwise, one operand.
    Unary(UnaryOp),
    /// Elementwise, two operands of one type.
    Binary(BinaryOp),
    /// Elementwise comparison of two operands of one type; gives bool.
    Compare(CompareOp),
    /// Elementwise choice: operands `predicate: bool`, `on_true`, `on_false`, all of one shape.
    Select,
    /// Elementwise `min(max(x, low), high)`: operands `low`, `x`, `high`, all of one type.
    Clamp,
    /// Conversion to another element type. Floats become integers by truncation, saturating; NaN
    /// becomes 0.
    Convert {
        /// The type of the result's elements.
        dtype: DType,
    },
    /// The same bits read as another element type. Narrower elements are a last axis of the result
    /// that replaces a wider one, the lowest bits first.
    Bitcast {
        /// The type of the result's elements.
        dtype: DType,
    },
    /// Repeats along new or size-1 axes: axis `i` of the operand becomes axis `axes[i]` of the
    /// result.
    Broadcast {
        /// The shape of the result.
        shape: Shape,
        /// Axes of the result that the operand's axes become, in increasing order.
        axes: Axes,
    },
    /// The same elements in row-major order under another shape.
    Reshape {
        /// The shape of the result.
        shape: Shape,
    },
    /// Axis `i` of the result is axis `permutation[i]` of the operand.
    Transpose {
        /// Axis of the operand for each axis of the result.
        permutation: Axes,
    },
    /// Elements in the opposite order along `axes`.
    Reverse {
        /// The axes turned around.
        axes: Axes,
    },
    /// Operands of equal shapes but for `axis`, one after another along it.
    Concat {
        /// The axis along which they are joined.
        axis: usize,
    },
    /// Padding with the second operand, a scalar: before (`low`), after (`high`), and between
    /// elements (`interior`). Negative `low` and `high` cut off.
    Pad {
        /// Elements put before, per axis.
        low: Amounts,
        /// Elements put after, per axis.
        high: Amounts,
        /// Elements put between neighbors, per axis.
        interior: Axes,
    },
    /// Elements from `start` to before `limit` by `stride`, per axis.
    Slice {
        /// The first index, per axis.
        start: Axes,
        /// The index before which the slice ends, per axis.
        limit: Axes,
        /// The step, at least 1, per axis.
        stride: Axes,
    },
    /// A window of the given sizes; operands: the tensor, then one scalar i32 start per axis.
    /// Starts are clamped so that the window fits.
    DynamicSlice {
        /// The sizes of the window.
        sizes: Shape,
    },
    /// Replaces a window; operands: the tensor, the window's new content, one scalar i32 start per
    /// axis. Starts are clamped so that the window fits.
    DynamicUpdateSlice,
    /// Windows at computed indices; operands: the tensor, indices `[.., k]`. Starts are clamped.
    Gather(GatherDims),
    /// Updates at computed indices; operands: the tensor, indices `[.., k]`, updates. A window that
    /// does not fit is dropped.
    Scatter(ScatterDims),
    /// A general product: contracts axes and pairs batch axes. Result axes: batch, free axes of
    /// the left operand, free axes of the right operand.
    Dot(DotDims),
    /// A general convolution of `lhs` by the kernel `rhs` (a correlation, as in all of machine
    /// learning).
    Conv(ConvDims),
    /// A discrete Fourier transform of the last axes.
    Fft(FftOp),
    /// The lower triangular L with `L L^H = x`, of Hermitian matrices in the last two axes; NaN
    /// in the triangle where there is none. Only the lower triangle of `x` is read.
    Cholesky,
    /// The solution of a system with a triangular matrix; operands: the matrices `[.., n, n]`, the
    /// right sides `[.., n, m]` (or `[.., m, n]`).
    TriangularSolve(TriangularSolveOp),
    /// Reduction over `axes`.
    Reduce {
        /// Operation that combines the elements.
        op: ReduceOp,
        /// The axes that vanish.
        axes: Axes,
    },
    /// Index (i32) of the first extreme element along `axis`; NaN counts as the extreme.
    ArgReduce {
        /// The extreme: the greatest or the least element.
        op: ArgOp,
        /// The axis that vanishes.
        axis: usize,
    },
    /// Sorts along `axis`, ascending and stable. The first operand is the key, the others follow
    /// it. NaN comes last, -0 equals +0.
    Sort {
        /// The axis sorted along.
        axis: usize,
    },
    /// Threefry-2x32, 20 rounds, elementwise: operands key0, key1, counter0, counter1, all u32 of
    /// one shape; two results of that shape.
    Threefry,
    /// Communication along a named axis: between the devices of a `pmap`, or the examples of a
    /// `vmap` with a name.
    Collective(CollectiveOp),
    /// Division of a value over a mesh of devices.
    Sharding(ShardingOp),
    /// The operand, without derivative.
    StopGradient,
    /// The operand, under a name that policies of [`checkpoint`](crate::trace::remat::checkpoint)
    /// know.
    Name(&'static str),
    /// A function with a derivative of its own: operands are constants, then arguments.
    CustomJvp(CustomJvpOp),
    /// A function with a pullback of its own: operands are constants, then arguments.
    CustomVjp(CustomVjpOp),
    /// The derivative of an [`Op::CustomVjp`], linear in its last operands, of which only the
    /// transpose is known. Operands: constants, residuals, then a tangent for each float argument;
    /// results: a tangent for each float result.
    CustomLin(CustomLinOp),
    /// A function whose derivative recomputes the values that it needs.
    Remat(RematOp),
    /// A call of a function on the host.
    Callback(CallbackOp),
    /// A loop with a fixed number of iterations.
    Scan(ScanOp),
    /// A loop until a condition fails.
    While(WhileOp),
    /// One of several Programs, chosen by an index.
    Cond(CondOp),
}

/// A function and its derivative. `jvp` takes constants, arguments and a tangent for each argument,
/// and gives results and a tangent for each result. Tangents of values that are neither floats nor
/// complex are zeros on the way in and dropped on the way out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CustomJvpOp {
    /// The function, of constants and arguments.
    pub call: Arc<Program>,
    /// Its derivative.
    pub jvp: Rule,
    /// Number of operands that are constants.
    pub num_consts: usize,
}

/// Location of the derivative of a [`CustomJvpOp`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Here.
    Own(Arc<Program>),
    /// In an enclosing operation: the operation is inside the derivative of the very function that
    /// it calls, and has the same constants. The number counts the functions whose derivatives
    /// enclose it, from the innermost, which is 0.
    Enclosing(usize),
}

/// A function and its pullback. `fwd` takes constants and arguments, and gives results, then
/// residuals; `bwd` takes constants, residuals and a cotangent for each result, and gives one for
/// each argument. Cotangents of values that are not floats are zeros on the way in and dropped on
/// the way out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CustomVjpOp {
    /// The function, of constants and arguments.
    pub call: Arc<Program>,
    /// The function again, also giving residuals.
    pub fwd: Arc<Program>,
    /// The pullback.
    pub bwd: Arc<Program>,
    /// Number of operands that are constants.
    pub num_consts: usize,
}

/// The linear part that remains of a [`CustomVjpOp`] when it is linearized.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CustomLinOp {
    /// The transpose, as in [`CustomVjpOp`].
    pub bwd: Arc<Program>,
    /// Number of operands that are constants or residuals.
    pub num_known: usize,
}

/// A function that is computed again in its derivative.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RematOp {
    /// The function.
    pub body: Arc<Program>,
    /// Values that are kept nevertheless.
    pub policy: RematPolicy,
    /// True if this is such a derivative: then the compiler must not merge its values with those
    /// computed before.
    pub barrier: bool,
}

/// Values that a checkpointed function keeps for its derivative besides its arguments:
/// `jax.checkpoint_policies`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum RematPolicy {
    /// Nothing.
    #[default]
    NothingSaveable,
    /// Everything, as if it were not checkpointed.
    EverythingSaveable,
    /// Results of matrix products and convolutions.
    DotsSaveable,
    /// Results of matrix products without batch axes.
    DotsWithNoBatchDimsSaveable,
    /// Values named by [`checkpoint_name`](crate::trace::remat::checkpoint_name) with one of these
    /// names.
    SaveOnlyTheseNames(Vec<&'static str>),
    /// Everything but the values given one of these names.
    SaveAnythingExceptTheseNames(Vec<&'static str>),
}

/// A loop of `length` iterations. Operands: constants, initial carry, stacked inputs. The body
/// takes constants, carry, one input of each stack, and gives carry and outputs; results: the last
/// carry, stacked outputs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScanOp {
    /// One iteration.
    pub body: Arc<Program>,
    /// Number of operands that are constants.
    pub num_consts: usize,
    /// Number of operands that are carried.
    pub num_carry: usize,
    /// Number of iterations.
    pub length: usize,
    /// If true, the iterations run from the last input to the first.
    pub reverse: bool,
    /// Number of iterations unrolled into one iteration of the compiled loop.
    pub unroll: usize,
}

/// A loop while `cond` gives true. Operands: constants of `cond`, constants of `body`, initial
/// carry; results: the last carry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WhileOp {
    /// Takes its constants and the carry; gives one scalar bool.
    pub cond: Arc<Program>,
    /// Number of operands that are constants of `cond`.
    pub num_cond_consts: usize,
    /// Takes its constants and the carry; gives the next carry.
    pub body: Arc<Program>,
    /// Number of operands that are constants of `body`.
    pub num_body_consts: usize,
}

/// One of several Programs. Operands: the scalar i32 index, clamped to the range, then the
/// operands that every branch takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CondOp {
    /// The branches: the same operand types, the same result types.
    pub branches: Vec<Arc<Program>>,
}

impl Op {
    /// The name, as printed in Programs and messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Constant(_) => "constant",
            Op::Iota { .. } => "iota",
            Op::Unary(op) => op.name(),
            Op::Binary(op) => op.name(),
            Op::Compare(op) => op.name(),
            Op::Select => "select",
            Op::Clamp => "clamp",
            Op::Convert { .. } => "convert",
            Op::Bitcast { .. } => "bitcast",
            Op::Broadcast { .. } => "broadcast",
            Op::Reshape { .. } => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Reverse { .. } => "reverse",
            Op::Concat { .. } => "concat",
            Op::Pad { .. } => "pad",
            Op::Slice { .. } => "slice",
            Op::DynamicSlice { .. } => "dynamic_slice",
            Op::DynamicUpdateSlice => "dynamic_update_slice",
            Op::Gather(_) => "gather",
            Op::Scatter(dims) => dims.kind.name(),
            Op::Dot(_) => "dot",
            Op::Conv(_) => "conv",
            Op::Fft(fft) => fft.kind.name(),
            Op::Cholesky => "cholesky",
            Op::TriangularSolve(_) => "triangular_solve",
            Op::Reduce { op, .. } => op.name(),
            Op::ArgReduce { op, .. } => op.name(),
            Op::Sort { .. } => "sort",
            Op::Threefry => "threefry2x32",
            Op::Collective(collective) => collective.kind.name(),
            Op::Sharding(sharding) => sharding.name(),
            Op::StopGradient => "stop_gradient",
            Op::Name(_) => "name",
            Op::CustomJvp(_) => "custom_jvp",
            Op::CustomVjp(_) => "custom_vjp",
            Op::CustomLin(_) => "custom_lin",
            Op::Remat(_) => "checkpoint",
            Op::Callback(callback) => callback.kind.name(),
            Op::Scan(_) => "scan",
            Op::While(_) => "while",
            Op::Cond(_) => "cond",
        }
    }
}
