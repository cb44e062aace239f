//! Functions of sampled signals: interpolation, histograms, convolution, differences, integrals.

use crate::trace::op::{ConvDims, Precision};
use crate::trace::ops::{
    IndexMode, Operand, arange, axis_of, concatenate, conv_general, full_like, ones_like, where_,
    zeros,
};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::{DType, TensorType};

/// Part of a convolution that is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConvolveMode {
    /// Every overlap: NumPy's default of `convolve`.
    #[default]
    Full,
    /// As many elements as the longer operand, from the middle.
    Same,
    /// Complete overlaps: NumPy's default of `correlate`.
    Valid,
}

#[track_caller]
fn ensure_vectors(op: &str, vectors: &[Tensor]) {
    if let Some(other) = vectors.iter().map(|x| x.ty()).find(|ty| ty.rank() != 1 || ty.numel() == 0)
    {
        fail_op(op, format!("takes vectors with at least one element, and was given {other}"));
    }
}

/// `jnp.interp`: linear interpolation at `x` between the points (`xp`, `fp`), with `xp` ascending;
/// the first and the last value outside of them.
///
/// ```
/// use podracer::trace::numpy::interp;
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|(x, xp, fp): (Tensor, Tensor, Tensor)| interp(x, xp, fp));
/// let (xp, fp) = (Array::from([0.0f32, 1.0, 2.0]), Array::from([0.0f32, 10.0, 0.0]));
/// let y = f.call((Array::from([0.5f32, 3.0]), xp, fp))?;
/// assert_eq!(y.to_vec::<f32>()?, [5.0, 0.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn interp(x: Tensor, xp: Tensor, fp: Tensor) -> Tensor {
    ensure_vectors("interp", &[xp, fp]);
    if xp.shape() != fp.shape() {
        let problem = format!("takes as many values as points: {} and {}", fp.ty(), xp.ty());
        fail_op("interp", problem);
    }
    let last = xp.numel() - 1;
    if last == 0 {
        return fp.reshape([]).broadcast_to(x.shape());
    }
    let i = xp.searchsorted(x, true).clip(1, last);
    let at = |v: Tensor, i: Tensor| v.take_mode(i, 0, IndexMode::Clip);
    let (x0, y0) = (at(xp, i - 1), at(fp, i - 1));
    let (dx, dy) = (at(xp, i) - x0, at(fp, i) - y0);
    let flat = dx.eq(0.0);
    let slope = dy / where_(flat, ones_like(dx), dx);
    let inside = where_(flat, y0, y0 + (x - x0) * slope);
    let above = where_(x.gt(xp.index_axis(0, -1)), fp.index_axis(0, -1), inside);
    where_(x.lt(xp.index_axis(0, 0)), fp.index_axis(0, 0), above)
}

/// `jnp.histogram_bin_edges` with a number of `bins`: `bins + 1` edges equally far apart, from the
/// least to the greatest element, or over `range`.
#[op(at_line)]
pub fn histogram_bin_edges(x: Tensor, bins: usize, range: Option<(f64, f64)>) -> Tensor {
    if bins == 0 {
        fail_op("histogram_bin_edges", "takes at least one bin");
    }
    let x = x.to_inexact();
    let like = TensorType::scalar(x.dtype());
    let (low, high) = match range {
        Some((low, high)) => (low.to_tensor(&like), high.to_tensor(&like)),
        None => (x.min(..), x.max(..)),
    };
    let equal = low.eq(high);
    let (low, high) = (where_(equal, low - 0.5, low), where_(equal, high + 0.5, high));
    let t = arange(bins + 1, x.dtype()) / bins as f64;
    let edges = low * (1.0 - t) + high * t;
    let last = arange(bins + 1, DType::I32).eq(bins);
    where_(last, high, edges)
}

/// `jnp.histogram` with given `edges`, ascending: the sum of the `weights` (of the shape of `x`) of
/// the elements in each bin, the last of which includes its upper edge.
#[op]
pub fn histogram(x: Tensor, edges: Tensor, weights: Tensor) -> Tensor {
    histogramdd(x.ravel().expand_dims(1), &[edges], weights.ravel())
}

/// `jnp.histogram2d` with given edges of both axes; see [`histogram`].
#[op]
pub fn histogram2d(x: Tensor, y: Tensor, edges: [Tensor; 2], weights: Tensor) -> Tensor {
    let sample = concatenate(&[x.ravel().expand_dims(1), y.ravel().expand_dims(1)], 1);
    histogramdd(sample, &edges, weights.ravel())
}

/// `jnp.histogramdd` with given edges of every axis, of a sample with one point a row: the sum of the
/// `weights`, one a row, of the points in each cell. See [`histogram`].
#[op(at_line)]
pub fn histogramdd(sample: Tensor, edges: &[Tensor], weights: Tensor) -> Tensor {
    ensure_vectors("histogramdd", edges);
    let ty = sample.ty();
    if ty.rank() != 2 || ty.shape[1] != edges.len() || weights.shape()[..] != [ty.shape[0]] {
        let problem = format!(
            "takes points [n, {}] and weights [n], and was given {ty} and {}",
            edges.len(),
            weights.ty()
        );
        fail_op("histogramdd", problem);
    }
    let mut at = Vec::with_capacity(edges.len());
    let mut cells = Vec::with_capacity(edges.len());
    for (axis, &edges) in edges.iter().enumerate() {
        let x = sample.index_axis(1, axis as isize);
        let last = edges.numel() - 1;
        let bin = edges.searchsorted(x, true);
        // Bin 0 is below the first edge; what is above the last one is dropped.
        at.push(where_(x.eq(edges.index_axis(0, -1)), last as i32, bin));
        cells.push(last + 1);
    }
    let counts = zeros(&cells[..], weights.dtype()).at(&at).add(weights);
    let mut inner = counts;
    for (axis, &cell) in cells.iter().enumerate() {
        inner = inner.slice_axis(axis as isize, 1, cell);
    }
    inner
}

/// `jnp.digitize` with ascending `edges`: the index (i32) of the bin of each element, 0 below the
/// first edge. A bin includes its lower edge, or its upper one if `right`.
#[op]
pub fn digitize(x: Tensor, edges: Tensor, right: bool) -> Tensor {
    edges.searchsorted(x, !right)
}

/// `jnp.convolve` of two vectors.
#[op(at_line)]
pub fn convolve(x: Tensor, kernel: Tensor, mode: ConvolveMode) -> Tensor {
    ensure_vectors("convolve", &[x, kernel]);
    let (long, short) = if x.numel() < kernel.numel() { (kernel, x) } else { (x, kernel) };
    slide(long, short.flip(0), mode)
}

/// `jnp.correlate` of two vectors.
#[op(at_line)]
pub fn correlate(x: Tensor, y: Tensor, mode: ConvolveMode) -> Tensor {
    ensure_vectors("correlate", &[x, y]);
    match x.numel() < y.numel() {
        // The other way round, and read in reverse.
        true => slide(y, x, mode).flip(0),
        false => slide(x, y, mode),
    }
}

/// The products of `window` with the parts of `x`, which is not shorter.
#[track_caller]
fn slide(x: Tensor, window: Tensor, mode: ConvolveMode) -> Tensor {
    let size = window.numel() as i64;
    let padding = match mode {
        ConvolveMode::Full => (size - 1, size - 1),
        ConvolveMode::Same => (size / 2, (size - 1) - size / 2),
        ConvolveMode::Valid => (0, 0),
    };
    let axes = |list: &[usize]| list.into();
    let dims = ConvDims {
        lhs_spec: axes(&[0, 1, 2]),
        rhs_spec: axes(&[0, 1, 2]),
        out_spec: axes(&[0, 1, 2]),
        strides: axes(&[1]),
        padding: [padding].as_slice().into(),
        lhs_dilation: axes(&[1]),
        rhs_dilation: axes(&[1]),
        feature_groups: 1,
        batch_groups: 1,
        precision: Precision::Default,
    };
    let (x, window) = (x.reshape([1, 1, x.numel()]), window.reshape([1, 1, window.numel()]));
    conv_general(x, window, dims).ravel()
}

impl Tensor {
    /// `jnp.gradient` along `axis`, of at least two samples that are `spacing` apart: central
    /// differences, one-sided ones at both ends.
    #[op(at_line)]
    pub fn gradient(self, spacing: f64, axis: isize) -> Tensor {
        let size = self.dim(axis);
        if size < 2 {
            let problem = format!("takes two elements along axis {axis}; was given {}", self.ty());
            fail_op("gradient", problem);
        }
        let x = self.to_inexact();
        let part = |from: usize, to: usize| x.slice_axis(axis, from, to);
        let first = (part(1, 2) - part(0, 1)) / spacing;
        let last = (part(size - 1, size) - part(size - 2, size - 1)) / spacing;
        let inner = (part(2, size) - part(0, size - 2)) * 0.5 / spacing;
        concatenate(&[first, inner, last], axis)
    }

    /// `jnp.ediff1d`: the differences of neighbors in row-major order.
    #[op]
    pub fn ediff1d(self) -> Tensor {
        self.ravel().diff(0)
    }

    /// `jnp.trapezoid`: the integral along `axis` of samples that are `spacing` apart, by the
    /// trapezoidal rule.
    #[op]
    pub fn trapezoid(self, spacing: f64, axis: isize) -> Tensor {
        let size = self.dim(axis);
        let x = self.to_inexact();
        if size < 2 {
            return x.sum(axis) * 0.0;
        }
        let pairs = x.slice_axis(axis, 1, size) + x.slice_axis(axis, 0, size - 1);
        pairs.sum(axis) * (0.5 * spacing)
    }

    /// `jnp.unwrap` with period 2 pi: phases along `axis` without jumps by more than pi.
    #[op(at_line)]
    pub fn unwrap(self, axis: isize) -> Tensor {
        let size = self.dim(axis);
        if size < 2 {
            return self;
        }
        let pi = std::f64::consts::PI;
        let step = self.diff(axis);
        let wrapped = (step + pi).modulo(2.0 * pi) - pi;
        let wrapped = where_(wrapped.eq(-pi) & step.gt(0.0), full_like(step, pi), wrapped);
        let jump = where_(step.abs().lt(pi), full_like(step, 0.0), wrapped - step);
        let first = self.slice_axis(axis, 0, 1);
        let rest = self.slice_axis(axis, 1, size) + jump.cumsum(axis);
        concatenate(&[first, rest], axis)
    }

    /// `jnp.partition`: elements along `axis` with the one at `kth` where sorting puts it, smaller ones
    /// before it. All of them are sorted here.
    #[op]
    pub fn partition(self, kth: usize, axis: isize) -> Tensor {
        self.ensure_within("partition", kth, axis);
        self.sort(axis)
    }

    /// `jnp.argpartition`: the indices (i32) of [`Tensor::partition`].
    #[op]
    pub fn argpartition(self, kth: usize, axis: isize) -> Tensor {
        self.ensure_within("argpartition", kth, axis);
        self.argsort(axis)
    }

    #[track_caller]
    fn ensure_within(self, op: &str, kth: usize, axis: isize) {
        let place = axis_of(op, axis, self.rank());
        if kth >= self.shape()[place] {
            fail_op(
                op,
                format!("position {kth} is out of bounds for axis {axis} of {}", self.ty()),
            );
        }
    }
}
