//! Communication between the members of a named axis.

use crate::trace::axis::{Axis, AxisVec};

/// Communication along named axes, in groups of `n` members.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CollectiveOp {
    /// The axes, major first: the members have numbers in row-major order.
    pub axes: AxisVec,
    /// The groups of members that exchange values, all of one size; one group of all if `None`.
    pub groups: Option<Vec<Vec<usize>>>,
    /// Kind of the exchange.
    pub kind: Collective,
}

impl CollectiveOp {
    /// Number of members along the axes.
    pub fn num_members(&self) -> usize {
        self.axes.iter().map(|axis| axis.size()).product()
    }

    /// Number of members that exchange values: those of a group, or all.
    pub fn size(&self) -> usize {
        let groups = self.groups.as_ref();
        groups.and_then(|groups| groups.first()).map_or_else(|| self.num_members(), Vec::len)
    }

    /// Returns true if it goes along `axis`, alone or among others.
    pub fn is_along(&self, axis: Axis) -> bool {
        self.axes.contains(&axis)
    }
}

/// Exchange between the members of an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Each operand reduced over the members; all members get the results. Any number of operands,
    /// of any types, each with its result.
    AllReduce(AllReduceOp),
    /// The members' operands stacked along a new axis `at`; all members get the result.
    AllGather {
        /// Position of the new axis in the result.
        at: usize,
    },
    /// The members' operands summed, and of the sum each member gets its slice along axis `at`, of
    /// size `n`, which vanishes.
    ReduceScatter {
        /// The axis that is divided.
        at: usize,
    },
    /// Slice `i` along axis `split`, of size `n`, goes to member `i`, which stacks the slices it
    /// receives along a new axis `concat`.
    AllToAll {
        /// The axis that is divided, and vanishes.
        split: usize,
        /// Position of the new axis in the result.
        concat: usize,
    },
    /// The operand of member `source` becomes the result of member `target`, for each pair; members
    /// that are not a target get zeros.
    Permute {
        /// `(source, target)`: no source twice, no target twice.
        pairs: Vec<(usize, usize)>,
    },
    /// The member's own number, a scalar i32. No operands.
    Index,
}

/// Operation by which [`Collective::AllReduce`] combines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the functions'.
pub enum AllReduceOp {
    Sum,
    /// NaN wins.
    Max,
    /// NaN wins.
    Min,
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
