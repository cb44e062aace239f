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

    /// True if an operand is a denormal number.
    fn denormal(&self) -> bool {
        self.x.iter().any(|x| *x != 0.0 && x.abs() < smallest_normal(self.dtype))
    }

    /// The operands as JAX takes them: its compiled code counts denormal numbers as zero.
    fn operands(&self) -> Vec<f64> {
        let zero = |x: f64| self.dtype != DType::F16 && x.abs() < smallest_normal(self.dtype);
        self.x.iter().map(|&x| if zero(x) { 0.0 } else { x }).collect()
    }

    fn any(&self, f: fn(f64) -> bool) -> bool {
        self.operands().into_iter().any(f)
    }
}

fn half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// A number near the end of the range, or infinity.
fn far(x: f64) -> bool {
    x.abs() > 1e4
}

fn zero(x: f64) -> bool {
    x == 0.0
}

/// Zero, or a number near it.
fn near(x: f64) -> bool {
    x.abs() < 1e-4
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
        functions: &[
            "angle",
            "average",
            "boxcox1p",
            "corrcoef",
            "cosine_similarity",
            "matrix_norm",
            "nanstd",
            "norm",
            "norm_2",
            "norm_3",
            "perceptron_loss",
            "scale_by_sm3",
            "sigmoid_focal_loss",
            "std",
            "std_ddof",
            "vector_norm",
        ],
        at: |p| {
            let close = p.any(|x| x != 0.0 && near(x));
            p.mode == Mode::Interpret && (close || p.name == "average" && p.any(far))
        },
        line: "`interpret` keeps denormal numbers between steps too: norms, deviations, averages and correlations \
               of numbers whose squares or inverses are denormal are exact there, where compiled code and JAX \
               have 0, infinity or NaN.",
    },
    Difference {
        functions: &[
            "argpartition",
            "clip_by_global_norm",
            "cumlogsumexp",
            "cumlogsumexp_reverse",
            "cummax",
            "cummax_reverse",
            "cummin",
            "cummin_reverse",
            "cumprod",
            "cumprod_reverse",
            "cumsum",
            "cumsum_reverse",
            "cumulative_prod",
            "cumulative_sum",
            "einsum",
            "frexp_0",
            "frexp_1",
            "ihfft",
            "l2_loss",
            "ldexp_3",
            "ldexp_down",
            "max",
            "min",
            "nancumprod",
            "nancumsum",
            "multiclass_perceptron_loss",
            "nanmedian",
            "nanpercentile",
            "nanprod",
            "nanquantile",
            "nextafter",
            "owens_t",
            "partition",
            "poly",
            "polyadd",
            "polyint",
            "polysub",
            "prod",
            "reduce",
            "reduce_window",
            "top_k",
            "top_k_indices",
            "trapezoid",
            "vdot",
            "vecdot",
        ],
        at: |p| p.mode == Mode::Jit && (p.denormal() || p.tiny()),
        line: "Reductions, sorts, cumulative functions, sums of polynomials, `top_k`, `frexp`, `ldexp`, `nextafter` and `l2_loss` keep denormal \
               numbers in some compiled code where JAX's counts them as zero, and the reverse. A zero that \
               they give may have another sign.",
    },
    Difference {
        functions: &[
            "boxcox",
            "boxcox1p",
            "dawsn",
            "erfcx",
            "exp1",
            "expi",
            "expn_1",
            "expn_3",
            "fresnel_0",
            "fresnel_1",
            "gammainc",
            "gammaincc",
            "i0",
            "kl_div",
            "ldexp_3",
            "log_ndtr",
            "owens_t",
            "rel_entr",
            "sigmoid_focal_loss",
            "sparse_plus",
            "sparsemax_loss",
            "spence",
            "squareplus",
            "standardize",
            "xlog1py",
            "xlogy",
        ],
        at: |p| p.derivative() && p.nan_in_jax() && p.any(far),
        line: "Derivatives at infinities and at numbers whose squares or powers overflow, NaN in JAX, are limits: of \
               `boxcox`, `dawsn`, `erfcx`, `exp1`, `expn`, `fresnel`, `gammainc`, `i0`, `kl_div`, `ldexp`, `log_ndtr`, \
               `owens_t`, `rel_entr`, `sigmoid_focal_loss`, `sparse_plus`, `sparsemax_loss`, `spence`, \
               `standardize`, `xlogy`, `xlog1py`. That of `squareplus` is 1/2 there.",
    },
    Difference {
        functions: &[
            "vander",
            "kl_divergence",
            "kl_divergence_targets",
            "generalized_kl_divergence",
            "convex_kl_divergence",
        ],
        at: |p| p.derivative() && p.nan_in_jax() && p.any(zero),
        line: "Derivatives at 0 of `vander` and of the Kullback-Leibler divergences of optax by a target are \
               finite; JAX gives NaN.",
    },
    Difference {
        functions: &["boxcox", "boxcox1p", "boxcox_near_0"],
        at: |p| p.which == 2 && (p.any(near) || p.name == "boxcox_near_0" && p.dtype == DType::F16),
        line: "The derivative of `boxcox` by a lambda of 0 is `log(x)^2 / 2`, and close to it near 0; JAX has 0, rounding \
               errors, or NaN.",
    },
    Difference {
        functions: &["beta"],
        at: |p| {
            let rounding = (p.found - p.expected).abs() < 1e-5;
            p.derivative() && (p.any(near) || p.any(far) || rounding)
                || p.mode == Mode::Interpret && p.any(far)
        },
        line: "Derivatives of `beta` near 0 and by huge numbers are rounding errors, zeros, infinities or NaN, here and in \
               JAX other ones. `beta` of huge numbers is exact in `interpret` only.",
    },
    Difference {
        functions: &["spence"],
        at: |p| p.which == 1 && p.x[0] == 2.0,
        line: "The derivative of `spence` at 2 is `-log(2)`; JAX gives NaN.",
    },
    Difference {
        functions: &[
            "exp1",
            "expi",
            "expn_1",
            "expn_3",
            "igamma_grad_a",
            "nanpercentile",
            "nanquantile",
            "random_gamma_grad",
            "rel_entr",
            "sici_1",
            "spence",
            "standardize",
            "trapezoid",
            "zeta",
        ],
        at: |p| p.which == 0 && p.nan_in_jax() && (p.any(far) || p.name == "expi" && p.any(zero)),
        line: "Limits that JAX gives as NaN: `exp1`, `expn`, `expi`, `sici`, `trapezoid`, `rel_entr`, `nanquantile`, `igamma_grad_a` and `random_gamma_grad` \
               of infinities, `expi(0)`, `spence` and `zeta` of huge numbers, `standardize` of numbers whose \
               squares overflow.",
    },
    Difference {
        functions: &["gammainc", "gammaincc"],
        at: |p| p.which == 0 && p.nan_in_jax() && (p.operands()[0] == 0.0 || p.x[0].is_infinite()),
        line: "`gammainc(0, x)` is 1 for every `x` above 0, and `gammainc(inf, x)` is 0; JAX gives NaN of some.",
    },
    Difference {
        functions: &["clip_to_0"],
        at: |p| p.nan_in_jax() && p.x.iter().all(|x| near(*x)),
        line: "`clip_by_global_norm(0)` of updates without a norm leaves them; optax divides 0 by 0.",
    },
    Difference {
        functions: &["expn_3"],
        at: |p| p.operands()[0] == 0.0,
        line: "`expn(n, 0)` is `1 / (n - 1)`, with its derivative; JAX has other numbers.",
    },
    Difference {
        functions: &["spence"],
        at: |p| p.which == 1 && (p.x[0] < 1e-3 || p.x[0] == 1.0),
        line: "The derivatives of `spence` at 1, at 0 and near it are the true ones, and NaN below 0; JAX has 0, \
               or numbers that are off by 1.",
    },
    Difference {
        functions: &["ndtri"],
        at: |p| p.which == 1 && [0.0, 1.0].contains(&p.operands()[0]),
        line: "The derivative of `ndtri` at 0 and 1 is infinite; in JAX it is 0.",
    },
    Difference {
        functions: &["ldexp_3", "ldexp_down"],
        at: |p| {
            let factor = if p.name == "ldexp_3" { 8.0 } else { 2f64.powi(-130) };
            p.which == 1 && (p.found == factor || p.found == 0.0)
        },
        line: "The derivative of `ldexp` is the power of 2 everywhere; in JAX it is 1 at 0 and infinities, and 0 where \
               the power is denormal.",
    },
    Difference {
        functions: &["log1mexp"],
        at: |p| p.which == 1 && p.x[0] < 0.0 && p.found.is_nan(),
        line: "The derivative of `log1mexp` below 0, where it is not defined, is NaN; in JAX it is not.",
    },
    Difference {
        functions: &["i0"],
        at: |p| p.which == 1 && near(p.x[0]) && p.found.abs() <= p.x[0].abs(),
        line: "The derivative of `i0` at 0 is 0; in JAX it is 1.",
    },
    Difference {
        functions: &["zeta"],
        at: |p| p.found.is_nan() && (p.operands()[0] < 1.0 || p.operands()[1] <= 0.0),
        line: "`zeta(x, q)` and its derivatives are NaN for `x` below 1, as in SciPy, and for `q` below 0; JAX has \
               infinities there, and derivatives of its series.",
    },
    Difference {
        functions: &["zeta"],
        at: |p| {
            let pole = p.x[0] == 1.0 || p.operands()[1] <= 0.0;
            p.derivative() && (p.nan_in_jax() && pole || p.x[1].is_infinite())
        },
        line: "The derivatives of `zeta` at its poles are minus infinity or 0, where JAX gives NaN of some; \
               that by an infinite `q` is NaN, not 0.",
    },
    Difference {
        functions: &["relu6", "hard_sigmoid"],
        at: |p| p.which == 1 && p.x[0].is_nan(),
        line: "The derivatives of `relu6` and `hard_sigmoid` at NaN are those of `relu`: not 0, as in JAX.",
    },
    Difference {
        functions: &["logaddexp2", "cumlogsumexp", "cumlogsumexp_reverse"],
        at: |p| {
            let equal = p.x[0] == p.x[1] && p.any(far);
            p.derivative() && (p.any(f64::is_infinite) || equal)
        },
        line: "Derivatives of `logaddexp2` and `cumlogsumexp` differ where those of `logaddexp` do.",
    },
    Difference {
        functions: &["gammaincc"],
        at: |p| p.which == 0 && near(p.x[0]) && (p.found - p.expected).abs() < 1e-5,
        line: "`gammaincc` of `a` near 0 has absolute errors of 1e-6, here and in JAX other ones.",
    },
    Difference {
        functions: &["xlogy", "xlog1py", "rel_entr", "kl_div"],
        at: |p| {
            let inverse = p.x[0].abs() == p.x[1].abs() && p.any(far) || p.nan_in_jax();
            p.which == 2 && inverse
        },
        line: "Derivatives of `xlogy`, `xlog1py`, `rel_entr` and `kl_div` by the second operand hold `x / y`; JAX's \
               `x * (1 / y)` is 0 where the inverse is denormal, and NaN where it is infinite.",
    },
    Difference {
        functions: &["kl_div", "rel_entr"],
        at: |p| p.which == 0 && p.x[0] == p.x[1] && p.found == 0.0,
        line: "`rel_entr(x, x)` and `kl_div(x, x)` are 0; JAX leaves a rounding error for tiny `x`, and NaN for huge `bf16`.",
    },
    Difference {
        functions: &["boxcox", "boxcox1p"],
        at: |p| p.which == 1 && far(p.x[1]) && (p.found - 1.0).abs() < 1e-2,
        line: "The derivative of `boxcox(1, lambda)` is 1 also for huge lambda; in JAX it is 0.",
    },
    Difference {
        functions: &["sigmoid_cross_entropy", "sigmoid_focal_loss"],
        at: |p| p.which < 2 && (p.x[1].is_infinite() && p.found.is_nan() || far(p.x[1])),
        line: "`sigmoid_binary_cross_entropy` and `sigmoid_focal_loss` of huge labels are differences of huge numbers, \
               and derivatives by logits are NaN for infinite ones; labels are from 0 to 1.",
    },
    Difference {
        functions: &["sigmoid_focal_loss"],
        at: |p| p.which == 2 && (near(p.x[1]) || p.x[1] == 1.0),
        line: "The derivative of `sigmoid_focal_loss` by a label of 0 or 1 counts both classes; optax leaves one out.",
    },
    Difference {
        functions: &["top_k", "top_k_indices", "partition", "argpartition"],
        at: |p| p.any(f64::is_nan) || p.operands().iter().all(|x| *x == 0.0),
        line: "`top_k` and `partition` compare as `sort` does: NaN of either sign is the greatest number, and -0 equals \
               0. JAX takes NaN with a minus sign for the least, and -0 for less than 0.",
    },
    Difference {
        functions: &["norm_max", "matrix_norm_1"],
        at: |p| {
            p.which == 1 && p.found == 2.0 * p.expected && p.operands().iter().all(|x| *x == 0.0)
        },
        line: "The derivatives of the maximum norm at 0, and of such norms of matrices, are twice those of JAX, which counts \
               another 0 among the maxima.",
    },
    Difference {
        functions: &[
            "kl_divergence_with_log_targets",
            "kl_divergence",
            "generalized_kl_divergence",
            "convex_kl_divergence",
        ],
        at: |p| {
            let undefined = p.mode == Mode::Interpret && p.found.is_nan();
            (undefined || p.dtype == DType::BF16 && p.nan_in_jax()) && p.any(far)
        },
        line: "Kullback-Leibler divergences of huge numbers are the difference of infinities in `interpret`, and of `bf16` in \
               JAX.",
    },
    Difference {
        functions: &["hyp1f1"],
        at: |p| p.x[1] == -1.0 || p.x[0].is_infinite() || p.any(f64::is_nan),
        line: "`hyp1f1` of a negative whole second operand, or of an infinite first one, is NaN or infinite; JAX has the \
               other of them. Of NaN it is NaN; JAX's series ends with 1.",
    },
    Difference {
        functions: &["hyp2f1", "hyp2f1_of_x"],
        at: |p| p.any(f64::is_nan),
        line: "`hyp2f1` of NaN is NaN; JAX's series ends with 1 or infinity.",
    },
    Difference {
        functions: &["hyp2f1_of_x"],
        at: |p| p.x[2] > 1.0 && p.found.is_nan() || p.x == [1.0, f64::INFINITY, -1.0],
        line: "`hyp2f1` above 1, where it is complex, is NaN; JAX has infinity. JAX's number at (1, 1.5, 2, -1) is off by \
               6 %.",
    },
    Difference {
        functions: &["bessel_jn"],
        at: |p| p.nan_in_jax() && (p.any(near) || p.any(far)) || p.x[0].is_infinite(),
        line: "`bessel_jn` near 0 has the values of the power series; JAX has NaN. Beyond its number of iterations \
               neither has a meaning.",
    },
    Difference {
        functions: &["igamma_grad_a", "random_gamma_grad"],
        at: |p| {
            let no_sample = p.name == "random_gamma_grad" && (near(p.x[1]) || far(p.x[1]));
            p.found == 0.0 && (no_sample || far(p.x[0]) && p.expected.abs() < 1e-30)
        },
        line: "`igamma_grad_a` and `random_gamma_grad` of a huge `a` are 0; JAX has -0 or a rounding error. Where the \
               distribution has no sample, its density being 0, `random_gamma_grad` is 0, and a limit in JAX.",
    },
    Difference {
        functions: &[
            "multiclass_hinge_loss",
            "multiclass_perceptron_loss",
            "multiclass_sparsemax_loss",
        ],
        at: |p| p.nan_in_jax() && p.any(f64::is_infinite),
        line: "Losses of several classes of which one has an infinite score are limits; optax multiplies infinity by 0.",
    },
    Difference {
        functions: &["multiclass_sparsemax_loss"],
        at: |p| p.x[0].abs() == p.x[1].abs() && p.any(far),
        line: "`multiclass_sparsemax_loss` takes the differences of scores first; in optax 1 is lost beside equal huge ones, \
               and opposite ones give NaN.",
    },
    Difference {
        functions: &["poly"],
        at: |p| p.nan_in_jax() && p.found == 1.0,
        line: "The first coefficient of `poly` is 1, as in NumPy, whatever the roots; JAX has NaN beside NaN.",
    },
    Difference {
        functions: &["polydiv"],
        at: |p| far(p.x[0]) || near(p.x[0]) && (p.derivative() || p.nan_in_jax()),
        line: "`polydiv` divides; JAX multiplies by an inverse, which vanishes or overflows for a huge or a tiny divisor. Derivatives by a divisor \
               whose square vanishes differ.",
    },
    Difference {
        functions: &["fft", "rfft", "ihfft", "hfft"],
        at: |p| {
            let rounding = p.any(far) || (p.found - p.expected).abs() < 1e-15;
            p.mode == Mode::Interpret && (rounding || p.any(|x| !x.is_finite()))
        },
        line: "`interpret` multiplies by rounded sines in Fourier transforms: 0 is a rounding error, and infinity times it \
               infinity or NaN.",
    },
    Difference {
        functions: &["reduce_window_max"],
        at: |p| p.which == 1 && p.x[0].is_nan(),
        line: "The derivative of a maximum over a window with NaN belongs to the first NaN; JAX's to an element after it.",
    },
    Difference {
        functions: &["empty_nonzero"],
        at: |p| p.found == -1.0,
        line: "`nonzero` of nothing is filled with the given value; JAX fills it with 0.",
    },
];

/// Differences of types that the fixture does not have.
pub const OF_OTHER_TYPES: &[Difference] = &[
    Difference {
        functions: &[
            "matrix_norm_1",
            "matrix_norm_least",
            "max",
            "min",
            "multiclass_perceptron_loss",
            "norm_max",
            "norm_min",
            "ptp",
        ],
        at: |p| p.dtype == DType::BF16 && p.derivative() && p.any(f64::is_nan),
        line: "Gradients of `max`, `min` and `ptp` of `bf16` at NaN are 0, as those of other floats are; JAX's of \
               `bf16` are NaN.",
    },
    Difference {
        functions: &["correlate", "poly", "polymul"],
        at: |p| p.dtype == DType::F64 && (p.nan_in_jax() || p.which == 1 && p.found.is_nan()),
        line: "Batches of convolutions of `f64` (`correlate`, `polymul`, `poly`) are NaN in JAX in every example if one \
               has NaN or an infinity; so are their derivatives in compiled code here.",
    },
    Difference {
        functions: &["triplet_margin_loss"],
        at: |p| p.dtype == DType::BF16 && p.derivative() && p.nan_in_jax() && p.any(far),
        line: "Derivatives of `triplet_margin_loss` of huge `bf16`, whose squares overflow, are 0; JAX gives NaN.",
    },
    Difference {
        functions: &["bessel_jn"],
        at: |p| half(p.dtype),
        line: "`bessel_jn` of `f16` and `bf16` is computed in `f32`; JAX's recurrence in 16 bits is NaN, or off by a tenth.",
    },
    Difference {
        functions: &["spacing"],
        at: |p| p.dtype == DType::F16 && (p.x[0] < 0.0 || p.x[0] == 0.0 && p.found < 0.0),
        line: "`spacing` of negative `f16` is negative, as of the other types; that of NumPy and JAX is positive.",
    },
    Difference {
        functions: &["clip_by_global_norm", "normalize_by_update_norm"],
        at: |p| p.dtype == DType::F16,
        line: "`clip_by_global_norm` and `normalize_by_update_norm` take the norm in `f32`, also of `f16`. In optax it is \
               infinite from 256 on, where updates become 0, and zeros divided by it are NaN.",
    },
    Difference {
        functions: &[
            "boxcox",
            "boxcox1p",
            "cross",
            "cumlogsumexp",
            "l2_loss",
            "median",
            "multiclass_hinge_loss",
            "multiclass_perceptron_loss",
            "nanmedian",
            "nanpercentile",
            "nanquantile",
            "owens_t",
            "percentile",
            "quantile",
            "scale_by_adam",
            "scale_by_adamax",
            "scale_by_amsgrad",
            "scale_by_belief",
            "scale_by_lion",
            "scale_by_radam",
            "scale_by_sm3",
        ],
        at: |p| {
            let wide = (p.dtype == DType::F64 || p.name == "cross") && p.mode == Mode::Interpret;
            let overflow = p.any(|x| x != 0.0 && (x.abs() < 1e-7 || far(x)) && x.is_finite());
            (p.dtype == DType::F16 || wide) && overflow
        },
        line: "Numbers that overflow or vanish between two steps, such as the squares in `scale_by_adam`: XLA merges \
               constants of products, depending on what else the program computes, and `f16` is rounded less often; \
               `interpret` rounds after each step.",
    },
    Difference {
        functions: &[
            "cumlogsumexp",
            "cumlogsumexp_reverse",
            "cumsum",
            "cumsum_reverse",
            "cumulative_sum",
            "median",
            "multiclass_perceptron_loss",
            "nancumsum",
            "nanmedian",
            "nanpercentile",
            "outer",
            "owens_t",
            "percentile",
            "poly",
            "polyadd",
            "reduce",
            "reduce_window",
            "scale_by_lion",
            "scale_by_radam",
            "scale_by_sm3",
            "vecmat",
        ],
        at: |p| p.mode == Mode::Interpret && p.found == 0.0 && p.expected == 0.0,
        line: "In `interpret` a running sum begins with its first element, -0 too, and the sum of 0 and -0 is 0; XLA begins \
               with 0 and takes `x + 0` to be `x`.",
    },
    Difference {
        functions: &["cosine_similarity", "cosine_distance"],
        at: |p| p.derivative() && (p.nan_in_jax() || p.any(near)),
        line: "Derivatives of `cosine_similarity` are 0 or finite where the inverse of a squared norm overflows or is 0, and \
               NaN in JAX; those at numbers near 0 are rounding errors.",
    },
    Difference {
        functions: &["var", "var_ddof"],
        at: |p| p.which == 1 && p.found.is_nan() && p.x.iter().all(|x| far(*x)),
        line: "Derivatives of `var` at opposite huge numbers, the sums of opposite infinities, are NaN; in JAX they \
               are infinite or huge.",
    },
    Difference {
        functions: &["softmax_cross_entropy_labels"],
        at: |p| p.mode == Mode::Interpret && p.found == 0.0 && p.x[0] == -p.x[1],
        line: "`softmax_cross_entropy` of opposite labels is 0 in `interpret`, and a rounding error in compiled code.",
    },
    Difference {
        functions: &["poch"],
        at: |p| half(p.dtype) && (p.any(near) || p.denormal()),
        line: "`poch` of `f16` and `bf16` near 0 has rounding errors or infinities, here and in JAX other ones.",
    },
    Difference {
        functions: &["expi", "expn_3", "fresnel_1", "gammainc", "gammaincc", "sici_0", "zeta"],
        at: |p| {
            let huge = p.x.iter().all(|x| x.is_finite() && far(*x));
            half(p.dtype) && (p.nan_in_jax() || p.expected == 0.0 || huge || p.which == 2)
        },
        line: "`expi`, `expn`, `fresnel`, `sici`, `zeta` and the derivatives of `gammainc` are computed in `f32` for `f16` and \
               `bf16`; JAX computes some of their steps in 16 bits, with NaN, zeros and large errors.",
    },
    Difference {
        functions: &["average", "boxcox", "boxcox1p", "boxcox_near_0", "divmod_1", "sinc"],
        at: |p| p.dtype == DType::BF16 && p.mode == Mode::Jit && p.denormal(),
        line: "Denormal `bf16` count as zero in some comparisons of compiled code and not in others, here and in JAX.",
    },
    Difference {
        functions: &["average"],
        at: |p| p.dtype == DType::BF16 && p.mode == Mode::Jit && p.derivative() && p.nan_in_jax(),
        line: "Derivatives of `average` of `bf16` are not NaN where the square of the weights overflows or is 0.",
    },
];
