//! Convolutions: choice of the fastest formula.
//!
//! On CPU [`rewrite`] replaces the convolutions of a Program by ordinary operations around
//! convolutions of the one form that the compiler has a kernel for; [`conv_formula`] decides how.
//! The measurements are in `docs/decisions/0002-convolutions-on-cpu.md`.

use smallvec::SmallVec;

use super::custom_calls::onednn::{Problem, by_onednn};
use crate::error::Loc;
use crate::trace::check::{dilated, infer_conv};
use crate::trace::graph::{eliminate_common_subexpressions, map_subprograms};
use crate::trace::op::{Axes, ConvDims, Op};
use crate::trace::ops::conv_general;
use crate::trace::program::{Program, Var};
use crate::trace::tensor::{FrameKind, Tensor, at_line, bind, trace_frame};
use crate::trace::transpose::move_groups;
use crate::trace::types::TensorType;

/// The ways to compute a convolution on CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvFormula {
    /// The convolution unchanged.
    Plain,
    /// Operands transposed to `[b, 0, 1, f]` and `[0, 1, i, o]`, and the result from
    /// `[b, 0, 1, f]`.
    Canonical,
    /// The dilation of the input (`lhs_dilation`) folded into the output
    /// features of a dense convolution, and those laid out in space afterwards.
    DepthToSpace,
}

/// The fastest way to compute a convolution on CPU.
///
/// Only the canonical form reaches the compiler's vectorized kernel everywhere. The compiler
/// brings others to that form itself, but not inside a `while`, where they become scalar loops:
/// the kernel's gradient of conv2 of the Nature network, 64 images, takes 22 ms outside a loop,
/// 3.3 s inside, and 21 ms in the canonical form.
///
/// Both gradients of a convolution are convolutions (`trace/transpose/conv.rs`). The input's has a
/// dilated input: the forward convolution's strides. Most products of it are by the zeros in between
/// (conv2 12 to 7.5 ms, conv1 62 to 11).
pub fn conv_formula(dims: &ConvDims, lhs: &TensorType, rhs: &TensorType) -> ConvFormula {
    let spatial = dims.strides.len();
    let out = infer_conv(dims, lhs, rhs).expect("a verified Program");
    // No kernel exists beyond three spatial axes or for integers, nor work without elements.
    if !(1..=3).contains(&spatial)
        || !lhs.dtype.is_float()
        || [lhs, rhs, &out].iter().any(|ty| ty.numel() == 0)
    {
        return ConvFormula::Plain;
    }
    if dims.feature_groups > 1 || dims.batch_groups > 1 {
        return ConvFormula::Canonical;
    }
    let spread = |i: &usize| dims.lhs_dilation[*i] > 1;
    if (0..spatial).any(|i| spread(&i)) {
        let dense = (0..spatial).filter(spread).all(|i| dims.rhs_dilation[i] == 1);
        let fits = dense && dims.strides.iter().all(|&stride| stride == 1);
        return if fits { ConvFormula::DepthToSpace } else { ConvFormula::Canonical };
    }
    ConvFormula::Canonical
}

/// The Program with its convolutions, also those in control flow, written as they are fast on
/// CPU. `None` if it has none. With `threads` above 0, convolutions that oneDNN implements remain.
pub fn rewrite(program: &Program, threads: usize) -> Option<Program> {
    contains_conv(program).then(|| {
        let at: Loc = program.equations[0].at;
        eliminate_common_subexpressions(rewritten(program, at, threads))
    })
}

/// Returns true if oneDNN implements a convolution of the Program, also one in control flow.
pub fn suits_onednn(program: &Program) -> bool {
    let ty = |var: Var| &program.types[var.index()];
    program.equations.iter().any(|e| match &e.op {
        Op::Conv(dims) => Problem::of(dims, ty(e.inputs[0]), ty(e.inputs[1]), 1).is_some(),
        op => op.subprograms().any(suits_onednn),
    })
}

fn contains_conv(program: &Program) -> bool {
    let mut equations = program.equations.iter();
    equations.any(|e| matches!(e.op, Op::Conv(_)) || e.op.subprograms().any(contains_conv))
}

fn rewritten(program: &Program, at: Loc, threads: usize) -> Program {
    if !contains_conv(program) {
        return program.clone();
    }
    let types: Vec<TensorType> = program.input_types().cloned().collect();
    let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let mut env: Vec<Option<Tensor>> = vec![None; program.types.len()];
        for (&input, &arg) in program.inputs.iter().zip(args) {
            env[input.index()] = Some(arg);
        }
        let get = |env: &[Option<Tensor>], var: Var| env[var.index()].expect("defined before use");
        for equation in &program.equations {
            let inputs: SmallVec<[Tensor; 4]> =
                equation.inputs.iter().map(|&var| get(&env, var)).collect();
            let outputs = at_line(equation.at, || match &equation.op {
                Op::Conv(dims) => {
                    let (lhs, rhs) = (inputs[0], inputs[1]);
                    let result = match by_onednn(dims, &lhs.ty(), &rhs.ty(), threads) {
                        Some(_) => conv_general(lhs, rhs, dims.clone()),
                        None => convolve(dims, lhs, rhs),
                    };
                    SmallVec::from_iter([result])
                }
                op => {
                    let mut op = op.clone();
                    map_subprograms(&mut op, &|body| rewritten(&body, equation.at, threads));
                    bind(op, &inputs, equation.at)
                }
            });
            for (&var, output) in equation.outputs.iter().zip(outputs) {
                env[var.index()] = Some(output);
            }
        }
        (program.outputs.iter().map(|&var| get(&env, var)).collect(), ())
    });
    traced.program
}

/// A convolution by the formula chosen for it.
fn convolve(dims: &ConvDims, lhs: Tensor, rhs: Tensor) -> Tensor {
    let formula = conv_formula(dims, &lhs.ty(), &rhs.ty());
    if formula == ConvFormula::Plain {
        return conv_general(lhs, rhs, dims.clone());
    }
    let (dims, lhs) = without_batch_groups(dims, lhs);
    let (dims, lhs) = without_crops(dims, lhs, formula);
    let result = match formula {
        ConvFormula::Plain | ConvFormula::Canonical => canonical(&dims, lhs, rhs),
        ConvFormula::DepthToSpace => depth_to_space(&dims, lhs, rhs),
    };
    // From [b, 0, 1, f] to the requested layout.
    let rank = dims.out_spec.len();
    let mut order = vec![0; rank];
    order[dims.out_spec[1]] = rank - 1;
    for (i, &axis) in dims.out_spec[2..].iter().enumerate() {
        order[axis] = 1 + i;
    }
    transposed(result, &order)
}

/// Groups of the batch as groups of features, which the kernel knows.
fn without_batch_groups(dims: &ConvDims, lhs: Tensor) -> (ConvDims, Tensor) {
    let mut dims = dims.clone();
    let groups = std::mem::replace(&mut dims.batch_groups, 1);
    if groups == 1 {
        return (dims, lhs);
    }
    dims.feature_groups = groups;
    let lhs = move_groups(lhs, dims.lhs_spec[0], dims.lhs_spec[1], groups);
    (dims, lhs)
}

/// Negative padding as a cut of the input: the kernel takes none.
fn without_crops(mut dims: ConvDims, mut lhs: Tensor, formula: ConvFormula) -> (ConvDims, Tensor) {
    let rank = dims.lhs_spec.len();
    let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
    let mut interior = vec![0; rank];
    let mut shape = lhs.shape().to_vec();
    for i in 0..rank - 2 {
        let axis = dims.lhs_spec[2 + i];
        let (before, after) = dims.padding[i];
        // The depth to space cuts its own axes.
        let own = formula == ConvFormula::DepthToSpace && dims.lhs_dilation[i] > 1;
        if own || (before >= 0 && after >= 0) {
            continue;
        }
        (low[axis], high[axis]) = (before.min(0), after.min(0));
        // A cut may fall between two neighbors: they must be spread before.
        interior[axis] = dims.lhs_dilation[i] - 1;
        shape[axis] = dilated(shape[axis], dims.lhs_dilation[i]);
        dims.lhs_dilation[i] = 1;
        dims.padding[i] = (before.max(0), after.max(0));
    }
    if low.iter().chain(&high).any(|&cut| cut != 0) {
        lhs = lhs.pad_interior(&low, &high, &interior, 0.0);
    }
    (dims, lhs)
}

/// The convolution as `[b, 0, 1, f] x [0, 1, i, o] -> [b, 0, 1, f]`.
fn canonical(dims: &ConvDims, lhs: Tensor, rhs: Tensor) -> Tensor {
    let (lhs, rhs) = (channels_last(dims, lhs), kernel_last(dims, rhs));
    conv_general(lhs, rhs, canonical_dims(dims))
}

/// The input as `[b, 0, 1, f]`.
fn channels_last(dims: &ConvDims, lhs: Tensor) -> Tensor {
    let spec = &dims.lhs_spec;
    let order: Axes =
        [spec[0]].into_iter().chain(spec[2..].iter().copied()).chain([spec[1]]).collect();
    transposed(lhs, &order)
}

/// The kernel as `[0, 1, i, o]`.
fn kernel_last(dims: &ConvDims, rhs: Tensor) -> Tensor {
    let spec = &dims.rhs_spec;
    let order: Axes = spec[2..].iter().copied().chain([spec[1], spec[0]]).collect();
    transposed(rhs, &order)
}

/// The same window between operands in the canonical layout.
fn canonical_dims(dims: &ConvDims) -> ConvDims {
    let rank = dims.lhs_spec.len();
    let image: Axes = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    let kernel: Axes = [rank - 1, rank - 2].into_iter().chain(0..rank - 2).collect();
    ConvDims { lhs_spec: image.clone(), rhs_spec: kernel, out_spec: image, ..dims.clone() }
}

/// A convolution with stride 1 of an input whose neighbors are s apart, per spatial axis with s >
/// 1 (the kernel dense there).
///
/// With the kernel w of k elements zero-padded in front to q s, q = ceil(k / s), the convolution
/// padded until nothing is lost is `full[s a + r] = sum_c x[a - (q - 1) + c] w[s c + s - 1 - r]`: a
/// dense convolution by q elements with s times the features, r running over them. The result is a
/// part of it, `result[n] = full[n + k - 1 - low]`, zero where full ends.
fn depth_to_space(dims: &ConvDims, lhs: Tensor, rhs: Tensor) -> Tensor {
    let (x, w) = (channels_last(dims, lhs), kernel_last(dims, rhs));
    let mut dims = canonical_dims(dims);
    let spatial = dims.strides.len();
    let (image, kernel) = (x.shape(), w.shape());
    let features = kernel[spatial + 1];
    // Elements cut off the full result at the end, and its sizes.
    let (mut low, mut high) = (vec![0; spatial + 2], vec![0; spatial + 2]);
    let mut spread: SmallVec<[(usize, usize); 3]> = SmallVec::new();
    let mut before = vec![0; spatial + 2];
    for i in 0..spatial {
        let (s, k, size) = (dims.lhs_dilation[i], kernel[i], image[1 + i]);
        if s == 1 {
            spread.push((1, k));
            continue;
        }
        let q = k.div_ceil(s);
        let (start, end) = dims.padding[i];
        let wanted = dilated(size, s) as i64 + start + end - k as i64 + 1;
        before[i] = (q * s - k) as i64;
        low[1 + i] = start - (k as i64 - 1);
        high[1 + i] = wanted - low[1 + i] - ((size + q - 1) * s) as i64;
        dims.padding[i] = (q as i64 - 1, q as i64 - 1);
        dims.lhs_dilation[i] = 1;
        spread.push((s, q));
    }
    let padded =
        if before.iter().any(|&n| n > 0) { w.pad(&before, &vec![0; spatial + 2], 0.0) } else { w };
    // [q, s, .., i, o] -> [q, .., i, s, .., o], each s turned around.
    let mut cut: Vec<usize> = spread.iter().flat_map(|&(s, q)| [q, s]).collect();
    cut.extend(&kernel[spatial..]);
    let turned: Axes = (0..spatial).map(|i| 2 * i + 1).collect();
    let mut order: Vec<usize> = (0..spatial).map(|i| 2 * i).collect();
    order.push(2 * spatial);
    order.extend(&turned);
    order.push(2 * spatial + 1);
    let block: usize = spread.iter().map(|&(s, _)| s).product();
    let mut folded: Vec<usize> = spread.iter().map(|&(_, q)| q).collect();
    folded.extend([kernel[spatial], block * features]);
    let turned_around = bind(Op::Reverse { axes: turned }, &[padded.reshape(&cut)], w.made_at())[0];
    let w = turned_around.transpose(&order).reshape(folded);
    let full = conv_general(x, w, dims);
    // [b, n, .., s, .., o] -> [b, n, s, .., o].
    let sizes = full.shape();
    let mut cut: Vec<usize> = sizes[..=spatial].to_vec();
    cut.extend(spread.iter().map(|&(s, _)| s));
    cut.push(features);
    let mut order = vec![0];
    order.extend((0..spatial).flat_map(|i| [1 + i, 1 + spatial + i]));
    order.push(2 * spatial + 1);
    let mut merged = vec![sizes[0]];
    merged.extend(spread.iter().enumerate().map(|(i, &(s, _))| sizes[1 + i] * s));
    merged.push(features);
    let full = full.reshape(&cut).transpose(&order).reshape(merged);
    if low.iter().chain(&high).all(|&n| n == 0) {
        return full;
    }
    full.pad(&low, &high, 0.0)
}

/// `x` transposed, if that does anything.
fn transposed(x: Tensor, order: &[usize]) -> Tensor {
    if order.iter().enumerate().all(|(i, &axis)| i == axis) { x } else { x.transpose(order) }
}
