//! Facts about every operation that more than one transformation asks.
//!
//! Each of the matches here is over all of [`Op`]: a new operation does not compile until it has a
//! structure and facts.

#![deny(clippy::wildcard_enum_match_arm)]

use std::ops::Range;

use super::{CondOp, CustomJvpOp, CustomLinOp, CustomVjpOp, Op, RematOp, ScanOp, WhileOp};
use crate::trace::op::callback::CallbackOp;
use crate::trace::op::collective::CollectiveOp;
use crate::trace::op::elementwise::Fact;

/// Defines a view of [`Op`] by structure, by reference or (with `mut`) by mutable reference.
macro_rules! structure {
    ($(#[$doc:meta])* $name:ident $method:ident $($mutable:tt)?) => {
        $(#[$doc])*
        #[allow(dead_code)] // Not every variant is looked into.
        pub(crate) enum $name<'a> {
            /// An operation without Programs inside, of which all members and examples compute
            /// their own results.
            Elementary,
            Collective(&'a $($mutable)? CollectiveOp),
            Callback(&'a $($mutable)? CallbackOp),
            CustomJvp(&'a $($mutable)? CustomJvpOp),
            CustomVjp(&'a $($mutable)? CustomVjpOp),
            CustomLin(&'a $($mutable)? CustomLinOp),
            Remat(&'a $($mutable)? RematOp),
            Scan(&'a $($mutable)? ScanOp),
            While(&'a $($mutable)? WhileOp),
            Cond(&'a $($mutable)? CondOp),
        }

        impl Op {
            $(#[$doc])*
            pub(crate) fn $method(&$($mutable)? self) -> $name<'_> {
                match self {
                    Op::Collective(op) => $name::Collective(op),
                    Op::Callback(op) => $name::Callback(op),
                    Op::CustomJvp(op) => $name::CustomJvp(op),
                    Op::CustomVjp(op) => $name::CustomVjp(op),
                    Op::CustomLin(op) => $name::CustomLin(op),
                    Op::Remat(op) => $name::Remat(op),
                    Op::Scan(op) => $name::Scan(op),
                    Op::While(op) => $name::While(op),
                    Op::Cond(op) => $name::Cond(op),
                    Op::Constant(_)
                    | Op::Iota { .. }
                    | Op::Unary(_)
                    | Op::Binary(_)
                    | Op::Compare(_)
                    | Op::Select
                    | Op::Clamp
                    | Op::Convert { .. }
                    | Op::Bitcast { .. }
                    | Op::Broadcast { .. }
                    | Op::Reshape { .. }
                    | Op::Transpose { .. }
                    | Op::Reverse { .. }
                    | Op::Concat { .. }
                    | Op::Pad { .. }
                    | Op::Slice { .. }
                    | Op::DynamicSlice { .. }
                    | Op::DynamicUpdateSlice
                    | Op::Gather(_)
                    | Op::Scatter(_)
                    | Op::Dot(_)
                    | Op::Conv(_)
                    | Op::Fft(_)
                    | Op::Cholesky
                    | Op::TriangularSolve(_)
                    | Op::Reduce { .. }
                    | Op::ArgReduce { .. }
                    | Op::Sort { .. }
                    | Op::Threefry
                    | Op::Sharding(_)
                    | Op::StopGradient
                    | Op::Name(_) => $name::Elementary,
                }
            }
        }
    };
}
structure! {
    /// The structure of an operation: what it holds besides a rule of its own.
    Structure structure
}
structure! {
    /// The structure of an operation, to be changed.
    StructureMut structure_mut mut
}

/// Results that can have a tangent if an operand has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TangentFlow {
    /// None.
    Blocked,
    /// The result at the index of the operand.
    OwnResult,
    /// All.
    AllResults,
}

/// Facts about an operation.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// The flow of tangents; for operations with Programs inside an upper bound.
    pub(crate) tangents: TangentFlow,
    /// Arithmetic that costs next to nothing beside reading its operands.
    pub(crate) cheap: bool,
    /// A product of tensors: policies of `checkpoint` name them.
    pub(crate) product: bool,
    /// Operands that are scalar i32 indices, whatever the types of the others.
    pub(crate) indices: Range<usize>,
}

impl Op {
    /// The facts.
    pub(crate) fn facts(&self) -> Facts {
        let plain = Facts {
            tangents: TangentFlow::AllResults,
            cheap: false,
            product: false,
            indices: 0..0,
        };
        match self {
            Op::Constant(literal) => Facts { cheap: literal.is_splat(), ..plain },
            Op::Unary(op) => {
                let flat = op.is(Fact::Flat);
                let tangents = if flat { TangentFlow::Blocked } else { TangentFlow::AllResults };
                Facts { tangents, cheap: op.is(Fact::Cheap), ..plain }
            }
            Op::Binary(op) => Facts { cheap: op.is(Fact::Cheap), ..plain },
            Op::Iota { .. } | Op::Compare(_) | Op::Select | Op::Clamp | Op::Convert { .. } => {
                Facts { cheap: true, ..plain }
            }
            Op::Broadcast { .. } | Op::Reshape { .. } | Op::Name(_) => {
                Facts { cheap: true, ..plain }
            }
            Op::StopGradient => Facts { tangents: TangentFlow::Blocked, cheap: true, ..plain },
            Op::Bitcast { .. } => Facts { tangents: TangentFlow::Blocked, ..plain },
            Op::Dot(_) | Op::Conv(_) => Facts { product: true, ..plain },
            Op::DynamicSlice { .. } => Facts { indices: 1..usize::MAX, ..plain },
            Op::DynamicUpdateSlice => Facts { indices: 2..usize::MAX, ..plain },
            Op::Cond(_) => Facts { indices: 0..1, ..plain },
            Op::Sort { .. } | Op::Collective(_) => {
                Facts { tangents: TangentFlow::OwnResult, ..plain }
            }
            Op::Callback(_) => Facts { tangents: TangentFlow::Blocked, ..plain },
            Op::Transpose { .. }
            | Op::Reverse { .. }
            | Op::Concat { .. }
            | Op::Pad { .. }
            | Op::Slice { .. }
            | Op::Gather(_)
            | Op::Scatter(_)
            | Op::Fft(_)
            | Op::Cholesky
            | Op::TriangularSolve(_)
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Threefry
            | Op::Sharding(_)
            | Op::CustomJvp(_)
            | Op::CustomVjp(_)
            | Op::CustomLin(_)
            | Op::Remat(_)
            | Op::Scan(_)
            | Op::While(_) => plain,
        }
    }
}
