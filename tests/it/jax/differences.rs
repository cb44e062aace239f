//! Deliberate differences of reductions from JAX, each with its line of `docs/jax-parity.md`.

use podracer::DType;

/// One element, of a result or of a gradient, that is not JAX's.
pub struct Point<'a> {
    pub name: &'a str,
    /// The inputs' element type.
    pub dtype: DType,
    /// The elements of the inputs.
    pub inputs: &'a [Vec<f64>],
    /// The number of the result; `None` of gradients.
    pub result: Option<usize>,
    /// The number of the input whose gradient this is; `None` of results.
    pub gradient: Option<usize>,
    pub element: usize,
    pub found: f64,
    pub expected: f64,
}

pub struct Difference {
    pub functions: &'static [&'static str],
    /// Element types of the inputs.
    pub dtypes: &'static [DType],
    /// The elements that differ.
    pub at: fn(&Point<'_>) -> bool,
    /// The line of the page.
    pub line: &'static str,
}

impl Difference {
    pub fn covers(&self, point: &Point<'_>) -> bool {
        self.functions.contains(&point.name)
            && self.dtypes.contains(&point.dtype)
            && (self.at)(point)
    }
}

/// Elements of a row of the inputs.
const ROW: usize = 4;

/// The row of the input whose gradient an element belongs to.
fn row_of<'a>(point: &Point<'a>) -> Option<&'a [f64]> {
    let start = point.element / ROW * ROW;
    Some(&point.inputs[point.gradient?][start..start + ROW])
}

/// True in the gradient of a row with an infinity, or with equal elements at the end of the range.
fn beside_the_infinite(point: &Point<'_>) -> bool {
    row_of(point)
        .is_some_and(|row| row.iter().any(|x| x.abs() > 6e4) && !row.iter().any(|x| x.is_nan()))
}

pub const FLOATS: &[DType] = &[DType::F16, DType::BF16, DType::F32, DType::F64];
/// Bools and integers.
pub const INTEGERS: &[DType] = &[
    DType::Bool,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];

/// All types but bools.
pub const NUMBERS: &[DType] = &[
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// The differences. Each is met by some element, or the test fails.
pub const DIFFERENCES: &[Difference] = &[
    Difference {
        functions: &["softmax", "log_softmax"],
        dtypes: INTEGERS,
        at: |_| true,
        line: "`softmax` and `log_softmax` of integers subtract the maximum as floats; JAX subtracts in the \
               integers' type, which wraps.",
    },
    Difference {
        functions: &["bincount"],
        dtypes: &[DType::I64, DType::U64],
        at: |p| p.element == 0 && p.found < p.expected,
        line: "`bincount` does not count numbers past the end that do not fit 32 bits; JAX counts them by \
               their lower 32 bits.",
    },
    Difference {
        functions: &["max", "min", "ptp"],
        dtypes: &[DType::BF16],
        at: |p| row_of(p).is_some_and(|row| row.iter().any(|x| x.is_nan())) && p.found == 0.0,
        line: "Gradients of `max`, `min` and `ptp` of `bf16` at NaN are 0, as those of other floats are; JAX's \
               of `bf16` are NaN.",
    },
    Difference {
        functions: &["cumlogsumexp", "cumlogsumexp_reverse"],
        dtypes: FLOATS,
        at: beside_the_infinite,
        line: "Derivatives of `cumlogsumexp` differ where those of `logaddexp` do, of which it is made.",
    },
];
