//! Deliberate differences from JAX, each with its line of `docs/jax-parity.md`.

use podracer::{DType, Mode};

use super::smallest_normal;

/// One result of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    Value,
    /// A derivative by reverse mode.
    First,
    /// A derivative of a derivative.
    Second,
    /// A derivative by forward mode.
    Tangent,
}

/// A place where a number is not JAX's.
pub struct Point<'a> {
    pub name: &'a str,
    pub dtype: DType,
    pub mode: Mode,
    pub which: Which,
    pub x: Vec<f64>,
    pub found: f64,
    pub expected: f64,
}

pub struct Difference {
    /// The functions that differ; empty for all.
    pub functions: &'static [&'static str],
    /// Arguments at which they differ, and both values.
    pub at: fn(&Point<'_>) -> bool,
    /// The line of the page.
    pub line: &'static str,
}

impl Difference {
    pub fn covers(&self, point: &Point<'_>) -> bool {
        (self.functions.is_empty() || self.functions.contains(&point.name)) && (self.at)(point)
    }
}

impl Point<'_> {
    fn derivative(&self) -> bool {
        self.which != Which::Value
    }

    fn nan_in_jax(&self) -> bool {
        self.expected.is_nan() && !self.found.is_nan()
    }

    /// True if an operand is a denormal number, which compiled code takes for zero.
    fn denormal(&self) -> bool {
        self.x.iter().any(|x| *x != 0.0 && x.abs() < smallest_normal(self.dtype))
    }
}

/// The differences. Each is met by some point, or the test fails, unless it is one of some processors.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        functions: &[],
        at: |p| p.mode == Mode::Interpret && p.dtype != DType::F16 && p.denormal(),
        line: "Denormal numbers count as zero in compiled code, as in JAX on a CPU; `interpret` \
               keeps them.",
    },
    Difference {
        functions: &["div", "atan", "atan2", "acosh", "asinh", "erf", "erfc", "hypot", "gelu"],
        at: |p| p.derivative() && p.nan_in_jax(),
        line: "Derivatives that overflow to NaN in JAX can stay finite: that of `x / y` by `y` is \
               `-(x / y) / y` (JAX: `-x * y^-2`), and that of `x * x` is `x + x` (JAX: `2 * x`).",
    },
    Difference {
        functions: &["maximum"],
        at: |p| {
            p.mode == Mode::Jit && p.dtype == DType::BF16 && p.denormal() && p.found == p.expected
        },
        line: "The maximum of -0 and a positive denormal bf16 number is -0 in code that is compiled for some \
               processors; with JAX 0.10.2 it is 0.",
    },
    Difference {
        functions: &["hypot"],
        at: |p| p.derivative() && p.x[0].abs().min(p.x[1].abs()) > 1e3,
        line: "Derivatives of `hypot` at two numbers near the end of the range are inexact in compiled code, \
               here and in JAX, by other amounts.",
    },
    Difference {
        functions: &["lgamma", "digamma", "polygamma_1"],
        at: |p| p.mode == Mode::Interpret && p.x[0] < 0.0,
        line: "`polygamma` of negative numbers, and with it derivatives of `digamma` and `lgamma` there, is \
               wrong in compiled code as it is in JAX; `interpret` gives the true values.",
    },
    Difference {
        functions: &["bessel_i1e"],
        at: |p| match p.which {
            Which::First | Which::Tangent => p.x[0].is_nan(),
            Which::Second => p.x[0].is_nan() || p.x[0].abs() < 0.01,
            Which::Value => false,
        },
        line: "The derivative of `bessel_i1e` at NaN is NaN; in JAX it is 1/2. The second one near 0 is inexact, \
               here and in JAX, by other amounts.",
    },
    Difference {
        functions: &["pow"],
        at: |p| p.derivative() && p.nan_in_jax() && p.x[0].abs() < smallest_normal(p.dtype),
        line: "The derivatives of `x.pow(y)` by `x` are 0 at `0^0`, and so is the second one at `0^1`; \
               in JAX they are NaN.",
    },
    Difference {
        functions: &["relu"],
        at: |p| p.derivative() && p.x[0].is_nan(),
        line: "The derivative of `relu` at NaN is 1; in JAX it is 0.",
    },
    Difference {
        functions: &["logaddexp", "softplus", "log_sigmoid"],
        at: |p| {
            let infinite = p.x.iter().any(|x| x.is_infinite());
            let equal = p.x.len() == 2 && p.x[0] == p.x[1] && p.x[0].abs() > 1e3;
            p.derivative() && (infinite || equal || p.found == 0.0 && p.expected == 0.0)
        },
        line: "Derivatives of `logaddexp`, `softplus` and `log_sigmoid` are limits where an operand is \
               infinite or both are equal and huge; JAX gives `exp(x - logaddexp(x, y))` there. Zeros may \
               have another sign.",
    },
    Difference {
        functions: &["betaln"],
        at: |p| p.derivative() && (p.x[0] == p.x[1] || p.nan_in_jax()),
        line: "Derivatives of `betaln` are exact at equal operands, where JAX halves them, and finite at some \
               operands not above 0, where JAX gives NaN.",
    },
];
