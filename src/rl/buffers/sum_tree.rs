//! Sampling of rows in proportion to their priorities, on the device: the sum tree of prioritized
//! replay (Schaul et al. 2016).

use crate::trace::DType;
use crate::trace::Tensor;
use crate::trace::ops::{IndexMode, div, where_, zeros};
use crate::trace::tensor::fail_op;
use crate::tree::Tree;

/// Binary tree of priorities, in which each node is the sum of its two children, up to the total.
///
/// Each level is an array of its own, which an update writes once and reads only afterwards, so
/// that a compiled loop that carries a tree updates it in place.
#[derive(Debug, Clone, Tree)]
pub struct SumTree<T> {
    /// `f32[2^k]` for k from the height down to 0.
    levels: Vec<T>,
}

impl SumTree<Tensor> {
    /// Creates a tree of zeros for at least `rows` rows.
    ///
    /// # Errors
    /// Ends the trace if there are none, or more than 2^30.
    #[track_caller]
    pub fn new(rows: usize) -> SumTree<Tensor> {
        if rows == 0 || rows > 1 << 30 {
            fail_op("sum tree", format!("{rows} rows; it must be 1 to {}", 1 << 30));
        }
        let mut width = rows.next_power_of_two();
        let mut levels = vec![zeros([width], DType::F32)];
        while width > 1 {
            width /= 2;
            levels.push(zeros([width], DType::F32));
        }
        SumTree { levels }
    }

    /// Returns the sum of all priorities, `f32[]`.
    #[track_caller]
    pub fn total(&self) -> Tensor {
        self.levels[self.levels.len() - 1].index_axis(0, 0)
    }

    /// Returns the priorities of `rows`: `i32[n]` to `f32[n]`.
    #[track_caller]
    pub fn get(&self, rows: Tensor) -> Tensor {
        self.levels[0].take_mode(rows, 0, IndexMode::Clip)
    }

    /// Sets the priorities of `rows`: `i32[n]` and `f32[n]`, not below 0. For a duplicate row
    /// either of its priorities may be stored.
    #[track_caller]
    pub fn set(self, rows: Tensor, priorities: Tensor) -> SumTree<Tensor> {
        let mut levels = self.levels;
        levels[0] = levels[0].at(&[rows]).set(priorities);
        let mut nodes = rows;
        for k in 1..levels.len() {
            nodes = div(nodes, 2);
            let below = |child: Tensor| levels[k - 1].take_mode(child, 0, IndexMode::Clip);
            let sums = below(nodes * 2) + below(nodes * 2 + 1);
            levels[k] = levels[k].at(&[nodes]).set(sums);
        }
        SumTree { levels }
    }

    /// Returns the rows at which the running sum of priorities exceeds `sums`, `f32[n]` from 0 to
    /// the total: `i32[n]`. A row of priority 0 is returned only from a tree of zeros.
    #[track_caller]
    pub fn find(&self, sums: Tensor) -> Tensor {
        let mut rows = zeros(sums.shape(), DType::I32);
        let mut left_over = sums;
        for level in self.levels.iter().rev().skip(1) {
            let at = |node: Tensor| level.take_mode(node, 0, IndexMode::Clip);
            let (left, right) = (at(rows * 2), at(rows * 2 + 1));
            // Rounding may leave a remainder larger than the sum of the right subtree.
            let goes_right = left_over.ge(left) & right.gt(0.0);
            left_over = where_(goes_right, left_over - left, left_over);
            rows = rows * 2 + goes_right.to(DType::I32);
        }
        rows
    }
}
