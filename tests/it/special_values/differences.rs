//! Deliberate differences from JAX at special values, each with its line of `docs/jax-parity.md`.

use std::fmt;

use podracer::{DType, Mode};

use super::smallest_normal;

/// A place where a number is not JAX's.
pub struct Point {
    pub name: &'static str,
    pub dtype: DType,
    pub mode: Mode,
    /// 0 for the value, from 1 derivatives by the operands.
    pub which: usize,
    pub x: Vec<f64>,
    pub found: f64,
    pub expected: f64,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { name, dtype, mode, which, x, found, expected } = self;
        write!(f, "{name}.{dtype}, {mode}, result {which} at {x:?}: {found} instead of {expected}")
    }
}

pub struct Difference {
    /// The functions that differ; empty for all.
    pub functions: &'static [&'static str],
    /// Points at which they differ.
    pub at: fn(&Point) -> bool,
    /// The line of the page.
    pub line: &'static str,
}

impl Difference {
    pub fn covers(&self, point: &Point) -> bool {
        (self.functions.is_empty() || self.functions.contains(&point.name)) && (self.at)(point)
    }
}

impl Point {
    /// True if an operand is a denormal number, which compiled code takes for zero.
    fn denormal(&self) -> bool {
        self.x.iter().any(|x| *x != 0.0 && x.abs() < smallest_normal(self.dtype))
    }
}

/// The differences. Each is met by some point, or the test fails.
pub const DIFFERENCES: &[Difference] = &[Difference {
    functions: &[],
    at: |p| p.mode == Mode::Interpret && p.dtype != DType::F16 && p.denormal(),
    line: "Denormal numbers count as zero in compiled code, as in JAX on a CPU; `interpret` \
           keeps them.",
}];
