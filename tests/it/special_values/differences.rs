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
    fn derivative(&self) -> bool {
        self.which > 0
    }

    /// True if the number is finite or infinite where JAX's is NaN.
    fn nan_in_jax(&self) -> bool {
        self.expected.is_nan() && !self.found.is_nan()
    }

    /// True if both numbers are zero or denormal.
    fn tiny(&self) -> bool {
        let least = smallest_normal(self.dtype);
        self.found.abs() < least && self.expected.abs() < least
    }

    /// True if an operand is a denormal number, which compiled code takes for zero.
    fn denormal(&self) -> bool {
        self.x.iter().any(|x| *x != 0.0 && x.abs() < smallest_normal(self.dtype))
    }
}

/// The differences. Each is met by some point, or the test fails.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        functions: &[],
        at: |p| p.mode == Mode::Interpret && p.dtype != DType::F16 && (p.denormal() || p.tiny()),
        line: "Denormal numbers count as zero in compiled code, as in JAX on a CPU; `interpret` \
               keeps them.",
    },
    Difference {
        functions: &[],
        at: |p| p.mode == Mode::Jit && (p.denormal() || p.tiny()),
        line: "Reductions, sorts, cumulative functions, `top_k`, `frexp` and `nextafter` keep denormal \
               numbers in some compiled code where JAX's counts them as zero, and the reverse. A zero that \
               they give may have another sign.",
    },
    Difference {
        functions: &[],
        at: |p| p.derivative() && p.nan_in_jax(),
        line: "Derivatives that are NaN in JAX because a step of its formula overflows or divides 0 by 0 may be \
               their limits here.",
    },
    Difference {
        functions: &[
            "expn_1",
            "expn_3",
            "exp1",
            "expi",
            "spence",
            "zeta",
            "gammainc",
            "gammaincc",
            "trapezoid",
            "standardize",
            "rel_entr",
            "nanquantile",
            "sici_1",
            "clip_to_0",
        ],
        at: |p| p.nan_in_jax(),
        line: "Limits that JAX or optax gives as NaN: `exp1`, `expn`, `expi`, `spence`, `sici` of infinities, \
               `expi(0)`, `zeta` of huge numbers, `gammainc(0, x)`, `trapezoid`, `rel_entr` and `nanquantile` \
               of infinities, `standardize` of numbers whose squares overflow, `clip_by_global_norm(0)`.",
    },
    Difference {
        functions: &["expn_3", "spence", "ndtri", "ldexp_3", "ldexp_down", "log1mexp"],
        at: |p| p.derivative() || p.name == "expn_3" && p.x[0] == 0.0,
        line: "`expn(n, 0)` is `1 / (n - 1)`, the derivatives of `spence` at 1, of `ndtri` at 0 and 1, of `ldexp` \
               everywhere, are the true ones; JAX has others. That of `log1mexp` below 0 is NaN.",
    },
    Difference {
        functions: &["zeta"],
        at: |p| p.derivative() || p.found.is_nan(),
        line: "`zeta(x, q)` is NaN, its derivatives 0, for `x` below 1 and `q` below 0, where JAX has numbers of its \
               series.",
    },
    Difference {
        functions: &["relu6", "hard_sigmoid"],
        at: |p| p.derivative() && p.x[0].is_nan(),
        line: "The derivatives of `relu6` and `hard_sigmoid` at NaN are those of `relu`: not 0, as in JAX.",
    },
    Difference {
        functions: &["logaddexp2", "cumlogsumexp", "beta"],
        at: |p| p.derivative(),
        line: "Derivatives of `logaddexp2` and `beta` differ where those of `logaddexp` and `betaln` do.",
    },
    Difference {
        functions: &["gammainc", "gammaincc"],
        at: |p| p.derivative() || p.x[0].abs() < 1e-6,
        line: "`gammainc` and `gammaincc` of `a` near 0, and derivatives by `a`, have errors of 1e-4, here and in \
               JAX other ones.",
    },
    Difference {
        functions: &[
            "xlogy",
            "xlog1py",
            "rel_entr",
            "kl_div",
            "i0",
            "boxcox",
            "boxcox1p",
            "l2_loss",
            "var",
            "var_ddof",
            "owens_t",
            "sigmoid_cross_entropy",
            "sigmoid_focal_loss",
            "expi",
        ],
        at: |p| p.derivative(),
        line: "Derivatives near the end of the range and at infinities can overflow or underflow in one of both: \
               `xlogy`, `xlog1py`, `rel_entr`, `kl_div`, `i0`, `boxcox`, `l2_loss`, `var`, `owens_t`, \
               `sigmoid_binary_cross_entropy`, `sigmoid_focal_loss`.",
    },
    Difference {
        functions: &["top_k", "top_k_indices"],
        at: |p| p.x.iter().any(|x| x.is_nan()),
        line: "`top_k` takes NaN of either sign for the greatest number, as `sort` does; JAX takes NaN with a minus \
               sign for the least.",
    },
    Difference {
        functions: &["norm_max", "safe_softmax_cross_entropy"],
        at: |p| p.derivative(),
        line: "The derivatives of the maximum norm at 0 are halves; JAX has quarters. The derivative of \
               `safe_softmax_cross_entropy` by a label of 0 is 0.",
    },
    Difference {
        functions: &["empty_nonzero"],
        at: |p| p.found == -1.0,
        line: "`nonzero` of nothing is filled with the given value; JAX fills it with 0.",
    },
];
