//! The closed set of operations. No behaviour here: each transformation has its own file with an
//! exhaustive `match` over [`Op`], so that the compiler lists what a new operation still lacks.
//!
//! Operands are not part of an `Op`; they stand in the [`Equation`](super::program::Equation).

mod names;
mod precision;

use std::sync::Arc;

use smallvec::SmallVec;

use super::axis::Axis;
use super::callback::HostFn;
use super::literal::Literal;
use super::program::Program;
use super::types::{DType, Shape, TensorType};

pub use self::precision::Precision;

/// A list of axes.
pub type Axes = SmallVec<[usize; 4]>;
/// A list of signed amounts, one for each axis.
pub type Amounts = SmallVec<[i64; 4]>;

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
    /// The same bits read as another element type. Narrower elements stand along a last axis of
    /// the result, in the place of a wider one, the lowest bits first.
    Bitcast {
        /// The type of the result's elements.
        dtype: DType,
    },
    /// Repeats along new or size-1 axes: axis `i` of the operand becomes axis `axes[i]` of the
    /// result.
    Broadcast {
        /// The shape of the result.
        shape: Shape,
        /// Where the operand's axes go, in increasing order.
        axes: Axes,
    },
    /// The same elements in row-major order under another shape.
    Reshape {
        /// The shape of the result.
        shape: Shape,
    },
    /// Axis `i` of the result is axis `permutation[i]` of the operand.
    Transpose {
        /// Which axis of the operand stands where.
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
        /// Elements put between neighbours, per axis.
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
    /// Windows at computed places; operands: the tensor, indices `[.., k]`. Starts are clamped.
    Gather(GatherDims),
    /// Updates at computed places; operands: the tensor, indices `[.., k]`, updates. A window that
    /// does not fit is dropped.
    Scatter(ScatterDims),
    /// A general product: contracts axes and pairs batch axes. Result axes: batch, free axes of
    /// the left operand, free axes of the right operand.
    Dot(DotDims),
    /// A general convolution of `lhs` by the kernel `rhs` (a correlation, as in all of machine
    /// learning).
    Conv(ConvDims),
    /// The lower triangular L with `L L^T = x`, of symmetric matrices in the last two axes; NaN
    /// in the triangle where there is none. Only the lower triangle of `x` is read.
    Cholesky,
    /// The solution of a system with a triangular matrix; operands: the matrices `[.., n, n]`, the
    /// right sides `[.., n, m]` (or `[.., m, n]`).
    TriangularSolve(TriangularSolveOp),
    /// Reduction over `axes`.
    Reduce {
        /// How elements are combined.
        op: ReduceOp,
        /// The axes that vanish.
        axes: Axes,
    },
    /// Index (i32) of the first extreme element along `axis`; NaN counts as the extreme.
    ArgReduce {
        /// Which extreme.
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
    /// A function whose derivative computes again what it needs.
    Remat(RematOp),
    /// A call of a function on the host.
    Callback(CallbackOp),
    /// A loop with a fixed number of turns.
    Scan(ScanOp),
    /// A loop until a condition fails.
    While(WhileOp),
    /// One of several Programs, chosen by an index.
    Cond(CondOp),
}

/// Elementwise operations of one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the functions'.
pub enum UnaryOp {
    Neg,
    Abs,
    Sign,
    Exp,
    Expm1,
    Log,
    Log1p,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Tan,
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Logistic,
    Floor,
    Ceil,
    /// To the nearest integer, halves to the even one.
    Round,
    Erf,
    /// `1 - erf(x)`, exact where that is small.
    Erfc,
    ErfInv,
    /// The logarithm of the absolute value of the gamma function.
    Lgamma,
    /// The derivative of [`UnaryOp::Lgamma`].
    Digamma,
    /// Gives bool.
    IsFinite,
    /// Logical on bool, bitwise on integers.
    Not,
}

/// Elementwise operations of two operands of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the functions'.
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    /// Integers: towards zero; `x / 0` is all ones.
    Div,
    /// The sign of the dividend.
    Rem,
    Pow,
    /// NaN wins.
    Max,
    /// NaN wins.
    Min,
    Atan2,
    /// The derivative of order `lhs`, a whole number from 0, of [`UnaryOp::Digamma`] at `rhs`.
    Polygamma,
    And,
    Or,
    Xor,
    /// Gives 0 when the amount is not less than the width.
    ShiftLeft,
    /// Gives 0 when the amount is not less than the width.
    ShiftRightLogical,
    /// Gives the sign in every bit when the amount is not less than the width.
    ShiftRightArithmetic,
}

/// Comparisons. Every comparison with NaN is false, but `Ne`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the functions'.
pub enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// How a reduction combines elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the functions'.
pub enum ReduceOp {
    Sum,
    Prod,
    /// NaN wins.
    Max,
    /// NaN wins.
    Min,
    /// All, on bool; bitwise on integers.
    And,
    /// Any, on bool; bitwise on integers.
    Or,
}

/// Which extreme an index is taken of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the functions'.
pub enum ArgOp {
    Max,
    Min,
}

/// Which axes a [`Op::Dot`] contracts and pairs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct DotDims {
    /// Contracted axes of the left operand.
    pub lhs_contract: Axes,
    /// Contracted axes of the right operand, in the same order.
    pub rhs_contract: Axes,
    /// Batch axes of the left operand; the result's first axes, in this order.
    pub lhs_batch: Axes,
    /// Batch axes of the right operand, in the same order.
    pub rhs_batch: Axes,
    /// How exactly floats are multiplied.
    pub precision: Precision,
}

/// The layout and window of an [`Op::Conv`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvDims {
    /// Axes of `lhs`: batch, features, then the spatial ones.
    pub lhs_spec: Axes,
    /// Axes of `rhs`: output features, input features, then the spatial ones.
    pub rhs_spec: Axes,
    /// Axes of the result: batch, features, then the spatial ones.
    pub out_spec: Axes,
    /// Steps of the window, per spatial axis.
    pub strides: Axes,
    /// Zeros put before and after (negative: cut off), per spatial axis.
    pub padding: SmallVec<[(i64, i64); 2]>,
    /// Distance between neighbours of `lhs` (1: dense), per spatial axis.
    pub lhs_dilation: Axes,
    /// Distance between neighbours of the kernel (1: dense), per spatial axis.
    pub rhs_dilation: Axes,
    /// Number of groups of features.
    pub feature_groups: usize,
    /// Number of groups of the batch.
    pub batch_groups: usize,
    /// How exactly floats are multiplied.
    pub precision: Precision,
}

/// Which triangular system an [`Op::TriangularSolve`] solves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TriangularSolveOp {
    /// `op(A) X = B` rather than `X op(A) = B`.
    pub left_side: bool,
    /// Whether A is lower rather than upper triangular; the other triangle is not read.
    pub lower: bool,
    /// Whether `op(A)` is the transpose of A.
    pub transpose_a: bool,
    /// Whether the diagonal of A is taken to be ones, and not read.
    pub unit_diagonal: bool,
}

/// Which windows a [`Op::Gather`] takes and where they go. The last axis of the indices holds the
/// index vectors.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct GatherDims {
    /// Axes of the result that run inside a window, increasing.
    pub offset_dims: Axes,
    /// Axes of the operand, of window size 1, that vanish.
    pub collapsed_slice_dims: Axes,
    /// Axes of the operand paired with axes of the indices; window size 1, they vanish.
    pub operand_batching_dims: Axes,
    /// Axes of the indices paired with them.
    pub start_indices_batching_dims: Axes,
    /// Which axis of the operand each component of an index vector addresses.
    pub start_index_map: Axes,
    /// The size of a window, per axis of the operand.
    pub slice_sizes: Shape,
}

/// Which windows a [`Op::Scatter`] writes and how. The last axis of the indices holds the index
/// vectors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScatterDims {
    /// How an update meets what is there.
    pub kind: ScatterKind,
    /// Axes of the updates that run inside a window, increasing.
    pub update_window_dims: Axes,
    /// Axes of the operand, of window size 1, that the updates lack.
    pub inserted_window_dims: Axes,
    /// Axes of the operand paired with axes of the indices.
    pub operand_batching_dims: Axes,
    /// Axes of the indices paired with them.
    pub scatter_indices_batching_dims: Axes,
    /// Which axis of the operand each component of an index vector addresses.
    pub scatter_dims_to_operand_dims: Axes,
}

/// How a scattered update meets what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the functions'.
pub enum ScatterKind {
    Set,
    Add,
    Mul,
    /// NaN wins.
    Max,
    /// NaN wins.
    Min,
}

/// Communication along a named axis of `n` members.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CollectiveOp {
    /// The axis.
    pub axis: Axis,
    /// What is exchanged.
    pub kind: Collective,
}

/// What the members of an axis exchange.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Each operand reduced over the members; all members get the results. Any number of operands,
    /// of any types, each with its result.
    AllReduce(AllReduceOp),
    /// The members' operands stacked along a new axis `at`; all members get the result.
    AllGather {
        /// Where the new axis stands in the result.
        at: usize,
    },
    /// The members' operands summed, and of the sum each member gets its slice along axis `at`, of
    /// size `n`, which vanishes.
    ReduceScatter {
        /// The axis that is divided.
        at: usize,
    },
    /// Slice `i` along axis `split`, of size `n`, goes to member `i`, which stacks what it gets
    /// along a new axis `concat`.
    AllToAll {
        /// The axis that is divided, and vanishes.
        split: usize,
        /// Where the new axis stands in the result.
        concat: usize,
    },
    /// The operand of member `source` becomes the result of member `target`, for each pair; members
    /// that are nobody's target get zeros.
    Permute {
        /// `(source, target)`: no source twice, no target twice.
        pairs: Vec<(usize, usize)>,
    },
    /// The member's own number, a scalar i32. No operands.
    Index,
}

/// How [`Collective::AllReduce`] combines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the functions'.
pub enum AllReduceOp {
    Sum,
    /// NaN wins.
    Max,
    /// NaN wins.
    Min,
}

/// A function and its derivative. `jvp` takes constants, arguments and a tangent for each argument,
/// and gives results and a tangent for each result. Tangents of what is not a float are zeros on
/// the way in and dropped on the way out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CustomJvpOp {
    /// The function, of constants and arguments.
    pub call: Arc<Program>,
    /// Its derivative.
    pub jvp: Rule,
    /// How many operands are constants.
    pub num_consts: usize,
}

/// Where the derivative of a [`CustomJvpOp`] is written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Here.
    Own(Arc<Program>),
    /// Around it: the operation stands in the derivative of the very function that it calls, and has
    /// the same constants. Of the functions in whose derivatives it stands, counted from the
    /// innermost, which is 0.
    Enclosing(usize),
}

/// A function and its pullback. `fwd` takes constants and arguments, and gives results, then
/// residuals; `bwd` takes constants, residuals and a cotangent for each result, and gives one for
/// each argument. Those of what is not a float are zeros on the way in and dropped on the way out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CustomVjpOp {
    /// The function, of constants and arguments.
    pub call: Arc<Program>,
    /// The function once more, also giving residuals.
    pub fwd: Arc<Program>,
    /// The pullback.
    pub bwd: Arc<Program>,
    /// How many operands are constants.
    pub num_consts: usize,
}

/// What is left of a [`CustomVjpOp`] when it is linearized.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CustomLinOp {
    /// The transpose, as in [`CustomVjpOp`].
    pub bwd: Arc<Program>,
    /// How many operands are constants or residuals.
    pub num_known: usize,
}

/// A function that is computed again in its derivative.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RematOp {
    /// The function.
    pub body: Arc<Program>,
    /// What is kept all the same.
    pub policy: RematPolicy,
    /// Whether it is such a derivative: then the compiler must not merge what it computes with
    /// what was computed before.
    pub barrier: bool,
}

/// What a checkpointed function keeps for its derivative besides its arguments:
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
    /// What [`checkpoint_name`](crate::trace::remat::checkpoint_name) gave one of these names.
    SaveOnlyTheseNames(Vec<&'static str>),
    /// Everything but what was given one of these names.
    SaveAnythingExceptTheseNames(Vec<&'static str>),
}

/// A call of a function on the host. Operands: whatever the function takes; results: what it gives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallbackOp {
    /// The function.
    pub f: HostFn,
    /// The types of what it gives.
    pub results: Vec<TensorType>,
    /// What may happen to the call.
    pub kind: CallbackKind,
    /// Whether the first operand and the first result are a token that puts calls in order; the
    /// function knows nothing of it. Only what is lowered has tokens.
    pub token: bool,
}

/// What may happen to a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallbackKind {
    /// It may be left out, moved, and run more than once.
    Pure(VmapMethod),
    /// It runs whenever the program comes by.
    Io {
        /// Whether calls happen in order between runs, too.
        ordered: bool,
        /// What `vmap` makes of it.
        vmap: VmapMethod,
    },
    /// It runs whenever the program comes by, and transformations leave it alone.
    Debug {
        /// Whether calls happen in order between runs, too.
        ordered: bool,
    },
}

/// What `vmap` makes of a callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum VmapMethod {
    /// A call for each example, one after another.
    #[default]
    Sequential,
    /// One call. Operands that differ between the examples have these along a new first axis;
    /// others have a first axis of size 1. Results must have the examples along a first axis.
    ExpandDims,
    /// One call. Every operand, and every result, has the examples along a new first axis.
    BroadcastAll,
}

impl CallbackKind {
    /// An io callback that `vmap` turns into a call for each example.
    pub const fn io(ordered: bool) -> CallbackKind {
        CallbackKind::Io { ordered, vmap: VmapMethod::Sequential }
    }

    /// The name, as printed in Programs and messages.
    pub fn name(self) -> &'static str {
        match self {
            CallbackKind::Pure(_) => "pure_callback",
            CallbackKind::Io { .. } => "io_callback",
            CallbackKind::Debug { .. } => "debug_callback",
        }
    }
}

/// A loop of `length` turns. Operands: constants, initial carry, stacked inputs. The body takes
/// constants, carry, one input of each stack, and gives carry and outputs; results: the last
/// carry, stacked outputs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScanOp {
    /// One turn.
    pub body: Arc<Program>,
    /// How many operands are constants.
    pub num_consts: usize,
    /// How many operands are carried.
    pub num_carry: usize,
    /// Number of turns.
    pub length: usize,
    /// Whether the turns run from the last input to the first.
    pub reverse: bool,
    /// How many turns are written out in one turn of the compiled loop.
    pub unroll: usize,
}

/// A loop while `cond` gives true. Operands: constants of `cond`, constants of `body`, initial
/// carry; results: the last carry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WhileOp {
    /// Takes its constants and the carry; gives one scalar bool.
    pub cond: Arc<Program>,
    /// How many operands are constants of `cond`.
    pub num_cond_consts: usize,
    /// Takes its constants and the carry; gives the next carry.
    pub body: Arc<Program>,
    /// How many operands are constants of `body`.
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
            Op::Cholesky => "cholesky",
            Op::TriangularSolve(_) => "triangular_solve",
            Op::Reduce { op, .. } => op.name(),
            Op::ArgReduce { op: ArgOp::Max, .. } => "argmax",
            Op::ArgReduce { op: ArgOp::Min, .. } => "argmin",
            Op::Sort { .. } => "sort",
            Op::Threefry => "threefry2x32",
            Op::Collective(collective) => collective.kind.name(),
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

impl ScatterKind {
    /// Every one of them.
    pub const ALL: [ScatterKind; 5] =
        [ScatterKind::Set, ScatterKind::Add, ScatterKind::Mul, ScatterKind::Max, ScatterKind::Min];

    /// The name, as printed in Programs and messages.
    pub fn name(self) -> &'static str {
        match self {
            ScatterKind::Set => "scatter",
            ScatterKind::Add => "scatter_add",
            ScatterKind::Mul => "scatter_mul",
            ScatterKind::Max => "scatter_max",
            ScatterKind::Min => "scatter_min",
        }
    }
}

impl Collective {
    /// The name, as printed in Programs and messages.
    pub fn name(&self) -> &'static str {
        match self {
            Collective::AllReduce(AllReduceOp::Sum) => "psum",
            Collective::AllReduce(AllReduceOp::Max) => "pmax",
            Collective::AllReduce(AllReduceOp::Min) => "pmin",
            Collective::AllGather { .. } => "all_gather",
            Collective::ReduceScatter { .. } => "reduce_scatter",
            Collective::AllToAll { .. } => "all_to_all",
            Collective::Permute { .. } => "ppermute",
            Collective::Index => "axis_index",
        }
    }
}
