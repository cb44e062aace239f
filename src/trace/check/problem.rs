//! Errors of type rules: operands that do not fit.

use smallvec::SmallVec;

use crate::trace::types::TensorType;

/// The types of an equation's results.
pub type Types = SmallVec<[TensorType; 2]>;

/// Reason why operands do not fit an operation.
#[derive(Debug, Clone)]
pub struct Problem {
    /// Description of the problem, the types included.
    pub text: String,
    /// Positions of the relevant operands: the message names the lines where they were made.
    pub operands: SmallVec<[usize; 2]>,
}

impl Problem {
    /// A problem of the operands at `operands`.
    pub fn of(operands: &[usize], text: impl Into<String>) -> Problem {
        Problem { text: text.into(), operands: operands.into() }
    }
}

/// Fails with a [`Problem`] unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $operands:expr, $($text:tt)*) => {
        if !$condition {
            return Err($crate::trace::check::problem::Problem::of(&$operands, format!($($text)*)));
        }
    };
}
pub(crate) use ensure;

/// Returns true if `axes` holds each of `0..rank` once.
pub(crate) fn is_permutation(axes: &[usize], rank: usize) -> bool {
    axes.len() == rank && (0..rank).all(|axis| axes.contains(&axis))
}
