//! Convolutions with JAX's own arguments: layouts as strings, padding by name, dilation, groups;
//! and transposed convolutions.

use std::panic::Location;

use smallvec::SmallVec;

use crate::trace::check::dilated;
use crate::trace::op::{Axes, ConvDims, Op, Precision};
use crate::trace::ops::linalg::{Padding, conv_general};
use crate::trace::tensor::{Tensor, bind1, fail_op, op};

/// Layouts of the input, the kernel and the result, a letter an axis, as
/// [`ConvGeneralDilated::dimension_numbers`] explains.
pub type DimensionNumbers = [&'static str; 3];

/// The arguments of [`conv_general_dilated`] besides its operands, with JAX's names and defaults.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvGeneralDilated {
    /// Steps of the window, per spatial axis; all 1 if empty.
    pub window_strides: Vec<usize>,
    /// Padding of the input. Named padding is allowed only if `lhs_dilation` is 1.
    pub padding: Padding,
    /// Distance between neighbors of the input, per spatial axis; all 1 if empty.
    pub lhs_dilation: Vec<usize>,
    /// Distance between neighbors of the kernel, per spatial axis; all 1 if empty.
    pub rhs_dilation: Vec<usize>,
    /// Layouts of the input, the kernel and the result, such as `["NHWC", "HWIO", "NHWC"]`: `N`
    /// is the batch, `C` the features; `O` and `I` are the kernel's output and input features; all
    /// other letters are spatial axes, in the order in which the kernel's layout names them.
    /// `None` is `["NCHW", "OIHW", "NCHW"]`, with as many spatial axes as there are.
    pub dimension_numbers: Option<DimensionNumbers>,
    /// Number of groups of features.
    pub feature_group_count: usize,
    /// Number of groups of the batch.
    pub batch_group_count: usize,
    /// Precision of float multiplication.
    pub precision: Precision,
}

impl Default for ConvGeneralDilated {
    fn default() -> ConvGeneralDilated {
        ConvGeneralDilated {
            window_strides: vec![],
            padding: Padding::Valid,
            lhs_dilation: vec![],
            rhs_dilation: vec![],
            dimension_numbers: None,
            feature_group_count: 1,
            batch_group_count: 1,
            precision: Precision::Default,
        }
    }
}

/// `lax.conv_general_dilated`: a convolution (a correlation, as in all of machine learning) of
/// `lhs` by the kernel `rhs`, which have as many axes: batch and features, and the spatial ones.
///
/// ```
/// use podracer::trace::ops::{ConvGeneralDilated, Padding, conv_general_dilated};
/// use podracer::{Array, DType, Tensor, interpret};
/// let args = ConvGeneralDilated {
///     window_strides: vec![2, 1],
///     padding: Padding::Same,
///     rhs_dilation: vec![1, 2],
///     dimension_numbers: Some(["NHWC", "HWIO", "NHWC"]),
///     ..ConvGeneralDilated::default()
/// };
/// let f = interpret(move |(x, w): (Tensor, Tensor)| conv_general_dilated(x, w, &args));
/// let (x, w) = (Array::zeros([8, 10, 12, 3], DType::F32), Array::zeros([3, 3, 3, 5], DType::F32));
/// assert_eq!(f.call((x, w))?.shape().to_vec(), [8, 5, 12, 5]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn conv_general_dilated(lhs: Tensor, rhs: Tensor, args: &ConvGeneralDilated) -> Tensor {
    let name = "conv_general_dilated";
    let specs = layouts(name, lhs, rhs, args.dimension_numbers);
    let spatial = specs[0].len() - 2;
    let per_axis = |what: &str, given: &[usize]| per_axis(name, what, given, spatial);
    let strides = per_axis("window_strides", &args.window_strides);
    let lhs_dilation = per_axis("lhs_dilation", &args.lhs_dilation);
    let rhs_dilation = per_axis("rhs_dilation", &args.rhs_dilation);
    if !matches!(args.padding, Padding::Explicit(_)) && lhs_dilation.iter().any(|&d| d != 1) {
        let problem = "padding has no name where the input is dilated; give it as numbers, or \
                       use conv_transpose";
        fail_op(name, problem);
    }
    expect_padding(name, &args.padding, spatial);
    let (image, window) = (lhs.shape(), rhs.shape());
    let padding = (0..spatial)
        .map(|i| {
            let window = dilated(window[specs[1][2 + i]], rhs_dilation[i]);
            args.padding.amounts(i, image[specs[0][2 + i]], window, strides[i])
        })
        .collect();
    let [lhs_spec, rhs_spec, out_spec] = specs;
    let dims = ConvDims {
        lhs_spec,
        rhs_spec,
        out_spec,
        strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        feature_groups: args.feature_group_count,
        batch_groups: args.batch_group_count,
        precision: args.precision,
    };
    conv_general(lhs, rhs, dims)
}

/// The arguments of [`conv_transpose`] besides its operands, with JAX's names and defaults.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ConvTranspose {
    /// Distance between the input's neighbors after spreading, per spatial axis; all 1 if empty.
    pub strides: Vec<usize>,
    /// [`Padding::Same`] and [`Padding::Valid`] are those of the forward convolution; explicit
    /// amounts are those of this one, unless `use_consistent_padding`.
    pub padding: Padding,
    /// Distance between neighbors of the kernel, per spatial axis; all 1 if empty.
    pub rhs_dilation: Vec<usize>,
    /// As [`ConvGeneralDilated::dimension_numbers`]; `None` is `["NHWC", "HWIO", "NHWC"]`, with as
    /// many spatial axes as there are.
    pub dimension_numbers: Option<DimensionNumbers>,
    /// If true, the kernel is flipped and its input and output features are exchanged, so that this
    /// is the gradient of a convolution by it (Keras's `Conv2DTranspose`).
    pub transpose_kernel: bool,
    /// If true, explicit padding is that of the forward convolution, as in PyTorch.
    pub use_consistent_padding: bool,
    /// Precision of float multiplication.
    pub precision: Precision,
}

/// `lax.conv_transpose`: a convolution whose input is spread by the strides, which makes images
/// larger.
#[op(at_line)]
pub fn conv_transpose(lhs: Tensor, rhs: Tensor, args: &ConvTranspose) -> Tensor {
    let name = "conv_transpose";
    let defaults = match lhs.rank() {
        2 => Some(["NC", "IO", "NC"]),
        3 => Some(["NHC", "HIO", "NHC"]),
        4 => Some(["NHWC", "HWIO", "NHWC"]),
        5 => Some(["NHWDC", "HWDIO", "NHWDC"]),
        _ => None,
    };
    let Some(numbers) = args.dimension_numbers.or(defaults) else {
        let problem = format!("{} has too many or too few axes for default layouts", lhs.ty());
        fail_op(name, problem);
    };
    let [_, rhs_spec, _] = layouts(name, lhs, rhs, Some(numbers));
    let spatial = rhs_spec.len() - 2;
    let strides = per_axis(name, "strides", &args.strides, spatial);
    let rhs_dilation = per_axis(name, "rhs_dilation", &args.rhs_dilation, spatial);
    expect_padding(name, &args.padding, spatial);
    let kernel = rhs.shape();
    let padding = (0..spatial)
        .map(|i| {
            let signed =
                |size: usize| i64::try_from(size).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
            let k = signed(dilated(kernel[rhs_spec[2 + i]], rhs_dilation[i]));
            let s = signed(strides[i]);
            match &args.padding {
                Padding::Same => {
                    let all = k + s - 2;
                    let before = if s > k - 1 { k - 1 } else { (all + 1) / 2 };
                    (before, all - before)
                }
                Padding::Valid => (k - 1, s - 1 + (k - s).max(0)),
                Padding::SameLower => {
                    fail_op(name, "padding can be Same, Valid or Explicit, not SameLower")
                }
                Padding::Explicit(amounts) if args.use_consistent_padding => {
                    let (low, high) = amounts[i];
                    ((k - 1).saturating_sub(low), (k - 1).saturating_sub(high))
                }
                Padding::Explicit(amounts) => amounts[i],
            }
        })
        .collect();
    let mut rhs = rhs;
    if args.transpose_kernel {
        rhs = bind1(Op::Reverse { axes: rhs_spec[2..].into() }, &[rhs], Location::caller());
        rhs = rhs.swapaxes(rhs_spec[0] as isize, rhs_spec[1] as isize);
    }
    let forward = ConvGeneralDilated {
        padding: Padding::Explicit(padding),
        lhs_dilation: strides.to_vec(),
        rhs_dilation: rhs_dilation.to_vec(),
        dimension_numbers: Some(numbers),
        precision: args.precision,
        ..ConvGeneralDilated::default()
    };
    conv_general_dilated(lhs, rhs, &forward)
}

/// A number for each spatial axis; ones if none were given.
fn per_axis(name: &str, what: &str, given: &[usize], spatial: usize) -> Axes {
    if given.is_empty() {
        return Axes::from_elem(1, spatial);
    }
    if given.len() != spatial {
        fail_op(name, format!("{what} is {given:?}, and there are {spatial} spatial axes"));
    }
    given.into()
}

fn expect_padding(name: &str, padding: &Padding, spatial: usize) {
    if let Padding::Explicit(amounts) = padding
        && amounts.len() != spatial
    {
        let given = amounts.len();
        fail_op(name, format!("padding is for {given} axes, and there are {spatial} spatial axes"));
    }
}

/// The layouts as lists of axes: batch (or output features), features, then the spatial ones.
fn layouts(name: &str, lhs: Tensor, rhs: Tensor, numbers: Option<DimensionNumbers>) -> [Axes; 3] {
    let rank = lhs.rank();
    if rank < 2 || rhs.rank() != rank {
        let problem = format!(
            "takes an input and a kernel of as many axes, at least 2; was given {} and {}",
            lhs.ty(),
            rhs.ty()
        );
        fail_op(name, problem);
    }
    let Some(numbers) = numbers else {
        let axes: Axes = (0..rank).collect();
        return [axes.clone(), axes.clone(), axes];
    };
    let refuse = |problem: String| -> ! {
        fail_op(name, format!("dimension_numbers {numbers:?}: {problem}"));
    };
    let own = [['N', 'C'], ['O', 'I'], ['N', 'C']];
    let letters: Vec<Vec<char>> = numbers.iter().map(|layout| layout.chars().collect()).collect();
    let spatial = |i: usize| letters[i].iter().copied().filter(move |c| !own[i].contains(c));
    for (i, layout) in letters.iter().enumerate() {
        if layout.len() != rank {
            let text = numbers[i];
            refuse(format!("\"{text}\" names {} axes, and {} has {rank}", layout.len(), lhs.ty()));
        }
        if own[i].iter().any(|letter| !layout.contains(letter)) {
            refuse(format!("\"{}\" lacks {} or {}", numbers[i], own[i][0], own[i][1]));
        }
        if let Some(k) = (1..rank).find(|&k| layout[..k].contains(&layout[k])) {
            refuse(format!("\"{}\" names {} twice", numbers[i], layout[k]));
        }
        if let Some(letter) = spatial(i).find(|letter| !letters[1].contains(letter)) {
            refuse(format!("the kernel's layout lacks the spatial axis {letter}"));
        }
    }
    let place = |i: usize, letter: char| -> usize {
        letters[i].iter().position(|l| *l == letter).expect("looked for above")
    };
    let axes = |i: usize| -> Axes {
        let order: SmallVec<[char; 4]> = own[i].into_iter().chain(spatial(1)).collect();
        order.into_iter().map(|letter| place(i, letter)).collect()
    };
    [axes(0), axes(1), axes(2)]
}
