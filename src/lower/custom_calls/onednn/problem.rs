//! Convolutions in the terms of a neural network's forward pass, as oneDNN has them.

use smallvec::{SmallVec, smallvec};

use crate::trace::check::infer_conv;
use crate::trace::op::{Axes, ConvDims};
use crate::trace::types::{DType, TensorType};

/// The tensor that a convolution computes from the other two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lower) enum Kind {
    /// The destination, from source and weights.
    Forward,
    /// The gradient of the source, from the gradient of the destination and the weights.
    BackwardData,
    /// The gradient of the weights, from the source and the gradient of the destination.
    BackwardWeights,
}

/// The way to compute a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lower) enum Algorithm {
    /// oneDNN's primitive of convolutions.
    Direct,
    /// Winograd's minimal filtering, around oneDNN's products of matrices.
    Winograd,
}

/// Computation on the destination of a forward pass, while a part of it is in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lower) enum Epilogue {
    None,
    /// Adds a vector over the channels.
    Bias,
    /// Adds a vector over the channels, then replaces values at most zero by zero.
    BiasRelu,
}

/// One spatial axis of a convolution. As in XLA, a dilation of 1 leaves no gaps in the
/// kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::lower) struct Window {
    pub source: usize,
    pub kernel: usize,
    pub destination: usize,
    pub stride: usize,
    pub dilation: usize,
    /// Padding before the source.
    pub low: usize,
    /// Padding after the source.
    pub high: usize,
}

/// A convolution in the terms of the forward pass: sizes of source, weights and destination, and
/// the tensor that is computed. Source and destination have the batch first and the channels last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::lower) struct Problem {
    pub kind: Kind,
    pub epilogue: Epilogue,
    pub algorithm: Algorithm,
    /// Element type of all tensors: f32 or bf16.
    pub dtype: DType,
    /// If the source has bytes in place of such elements: the number that each is multiplied with, as
    /// the bits of an f32.
    pub byte_scale: Option<u32>,
    /// Number of parts of the batch that are computed apart.
    pub parts: usize,
    pub batch: usize,
    pub groups: usize,
    /// Channels of the source, per group.
    pub channels: usize,
    /// Channels of the destination, per group.
    pub features: usize,
    pub windows: SmallVec<[Window; 3]>,
    /// Strides of the weights in memory: between groups, features and channels, and along the
    /// spatial axes.
    pub weights_strides: SmallVec<[usize; 6]>,
}

/// Least number of arithmetic operations for which another thread is used.
const PART: usize = 1 << 21;
/// Largest number of bytes of a part's source and destination together that fit the cache.
const MAX_PART_BYTES: usize = 5 << 20;
/// Number of arithmetic operations below which XLA computes the convolution.
const MIN_OPERATIONS: usize = 1 << 18;

impl Problem {
    /// Finds the convolution in an operation. `None` if it has a form that oneDNN lacks, or too
    /// little to compute. At most `threads` threads will compute it.
    pub fn of(
        dims: &ConvDims,
        lhs: &TensorType,
        rhs: &TensorType,
        threads: usize,
    ) -> Option<Problem> {
        let spatial = dims.strides.len();
        let out = infer_conv(dims, lhs, rhs).expect("a verified Program");
        let tensors = [lhs, rhs, &out];
        if threads == 0
            || !(1..=3).contains(&spatial)
            || !matches!(lhs.dtype, DType::F32 | DType::BF16)
            || tensors.iter().any(|ty| ty.dtype != lhs.dtype || ty.numel() == 0)
        {
            return None;
        }
        let sizes = |ty: &TensorType, spec: &Axes| -> SmallVec<[usize; 5]> {
            spec.iter().map(|&axis| ty.shape[axis]).collect()
        };
        let (l, r) = (sizes(lhs, &dims.lhs_spec), sizes(rhs, &dims.rhs_spec));
        let o = sizes(&out, &dims.out_spec);
        let places = |sizes: &[usize]| sizes[2..].iter().product::<usize>();
        let ones = |steps: &Axes| steps.iter().all(|&step| step == 1);
        let kind = if !ones(&dims.lhs_dilation) {
            Kind::BackwardData
        } else if places(&r) > places(&o) {
            Kind::BackwardWeights
        } else {
            Kind::Forward
        };
        let (weights, spec) = match kind {
            Kind::BackwardWeights => (&out, &dims.out_spec),
            Kind::Forward | Kind::BackwardData => (rhs, &dims.rhs_spec),
        };
        // Strides along the first two axes of the weights' spec, and the sizes of the problem.
        let strides = weights.shape.strides();
        let [first, second] = [0, 1].map(|axis| strides[spec[axis]]);
        let (groups, batch_channels_features, weights_strides) = match kind {
            Kind::Forward if dims.batch_groups == 1 => {
                let (groups, features) = (dims.feature_groups, r[0] / dims.feature_groups);
                (groups, [l[0], r[1], features], [first * features, first, second])
            }
            Kind::BackwardData if dims.batch_groups == 1 && ones(&dims.strides) => {
                let (groups, channels) = (dims.feature_groups, r[0] / dims.feature_groups);
                (groups, [l[0], channels, r[1]], [first * channels, second, first])
            }
            Kind::BackwardWeights if dims.feature_groups == 1 => {
                let (groups, features) = (dims.batch_groups, r[0] / dims.batch_groups);
                (groups, [l[1], l[0] / groups, features], [second * features, second, first])
            }
            Kind::Forward | Kind::BackwardData | Kind::BackwardWeights => return None,
        };
        let [batch, channels, features] = batch_channels_features;
        let mut problem = Problem {
            kind,
            epilogue: Epilogue::None,
            algorithm: Algorithm::Direct,
            dtype: lhs.dtype,
            byte_scale: None,
            parts: 1,
            batch,
            groups,
            channels,
            features,
            windows: SmallVec::new(),
            weights_strides: SmallVec::from_slice(&weights_strides),
        };
        problem.weights_strides.extend(spec[2..].iter().map(|&axis| strides[axis]));
        for i in 0..spatial {
            problem.windows.push(window(kind, dims, i, [l[2 + i], r[2 + i], o[2 + i]])?);
        }
        if problem.operations() < MIN_OPERATIONS {
            return None;
        }
        problem.parts = problem.number_of_parts(threads);
        Some(problem)
    }

    /// Threads of which each has enough to compute.
    pub fn busy_threads(&self, threads: usize) -> usize {
        (self.operations() / PART).clamp(1, threads)
    }

    /// The number of parts for this many threads: each part's images fit the cache, and each thread
    /// has a part if there is enough to compute.
    fn number_of_parts(&self, threads: usize) -> usize {
        let elements = self.source_len() + self.destination_len();
        let mut parts = (elements * self.dtype.size()).div_ceil(MAX_PART_BYTES);
        if self.kind == Kind::BackwardWeights {
            // Each part has its own partial gradient: no more parts than keep it smaller than the
            // part's source and destination.
            let weights: usize = self.weights_sizes().iter().product();
            parts = parts.min(elements.div_ceil(weights));
        }
        let busy = self.busy_threads(threads);
        // A multiple of the threads, so that all of them end at about the same time.
        parts.next_multiple_of(busy).min(self.batch)
    }

    /// Arithmetic operations of one run.
    fn operations(&self) -> usize {
        let places: usize =
            self.windows.iter().map(|window| window.kernel * window.destination).product();
        let channels = self.groups * self.channels * self.features;
        2 * self.batch * channels * places
    }

    /// Elements of the source.
    pub fn source_len(&self) -> usize {
        let places: usize = self.windows.iter().map(|window| window.source).product();
        self.batch * self.groups * self.channels * places
    }

    /// Elements of the destination.
    pub fn destination_len(&self) -> usize {
        let places: usize = self.windows.iter().map(|window| window.destination).product();
        self.batch * self.groups * self.features * places
    }

    /// Sizes of the weights: groups, features, channels, then the spatial ones.
    pub fn weights_sizes(&self) -> SmallVec<[usize; 6]> {
        let mut sizes = smallvec![self.groups, self.features, self.channels];
        sizes.extend(self.windows.iter().map(|window| window.kernel));
        sizes
    }

    /// Elements of the memory that the weights reach.
    pub fn weights_span(&self) -> usize {
        let last: usize = self
            .weights_sizes()
            .iter()
            .zip(&self.weights_strides)
            .map(|(&size, &stride)| (size - 1).saturating_mul(stride))
            .fold(0, usize::saturating_add);
        last.saturating_add(1)
    }

    /// The numbers of the call's attribute.
    pub fn encode(&self) -> Vec<i64> {
        let kind = match self.kind {
            Kind::Forward => 0,
            Kind::BackwardData => 1,
            Kind::BackwardWeights => 2,
        };
        let epilogue = match self.epilogue {
            Epilogue::None => 0,
            Epilogue::Bias => 1,
            Epilogue::BiasRelu => 2,
        };
        let algorithm = usize::from(self.algorithm == Algorithm::Winograd);
        let dtype = usize::from(self.dtype == DType::BF16);
        let sizes = [self.parts, self.batch, self.groups, self.channels, self.features];
        let scale = self.byte_scale.map_or(0, |bits| bits as usize);
        let mut numbers = vec![kind, epilogue, algorithm, dtype, scale];
        numbers.extend(sizes);
        numbers.push(self.windows.len());
        for w in &self.windows {
            numbers.extend([w.source, w.kernel, w.destination, w.stride]);
            numbers.extend([w.dilation, w.low, w.high]);
        }
        numbers.extend(&self.weights_strides);
        numbers.into_iter().map(|number| number as i64).collect()
    }

    /// The convolution that [`Problem::encode`] wrote.
    pub fn decode(numbers: &[i64]) -> Result<Problem, String> {
        let wrong = || format!("attribute `problem` describes no convolution: {numbers:?}");
        // Products of a few sizes below this fit an index.
        let fits = |&number: &i64| usize::try_from(number).ok().filter(|&n| n < 1 << 31);
        let all: Option<Vec<usize>> = numbers.iter().map(fits).collect();
        let all = all.ok_or_else(wrong)?;
        let (&[kind, epilogue, algorithm, dtype, scale, ref sizes @ ..], rest) =
            all.split_first_chunk::<11>().ok_or_else(wrong)?;
        let [parts, batch, groups, channels, features, spatial] = *sizes;
        if !(1..=3).contains(&spatial) || rest.len() != 7 * spatial + 3 + spatial {
            return Err(wrong());
        }
        let kind = match kind {
            0 => Kind::Forward,
            1 => Kind::BackwardData,
            2 => Kind::BackwardWeights,
            _ => return Err(wrong()),
        };
        let epilogue = match (epilogue, kind) {
            (0, _) => Epilogue::None,
            (1, Kind::Forward) => Epilogue::Bias,
            (2, Kind::Forward) => Epilogue::BiasRelu,
            _ => return Err(wrong()),
        };
        let algorithm = match algorithm {
            0 => Algorithm::Direct,
            1 => Algorithm::Winograd,
            _ => return Err(wrong()),
        };
        let dtype = match dtype {
            0 => DType::F32,
            1 => DType::BF16,
            _ => return Err(wrong()),
        };
        let byte_scale = match (scale, algorithm, kind) {
            (0, _, _) => None,
            (bits, Algorithm::Winograd, Kind::Forward | Kind::BackwardWeights)
                if f32::from_bits(bits as u32).is_normal() =>
            {
                Some(bits as u32)
            }
            _ => return Err(wrong()),
        };
        let (windows, strides) = rest.split_at(7 * spatial);
        let windows: SmallVec<[Window; 3]> = windows
            .chunks_exact(7)
            .map(|n| Window {
                source: n[0],
                kernel: n[1],
                destination: n[2],
                stride: n[3],
                dilation: n[4],
                low: n[5],
                high: n[6],
            })
            .collect();
        let sizes =
            windows.iter().flat_map(|w| [w.source, w.kernel, w.destination, w.stride, w.dilation]);
        let positive = sizes.chain([parts, batch, groups, channels, features]).all(|n| n > 0);
        let weights_strides = strides.into();
        let problem = Problem {
            kind,
            epilogue,
            algorithm,
            dtype,
            byte_scale,
            parts,
            batch,
            groups,
            channels,
            features,
            windows,
            weights_strides,
        };
        let fits = positive && parts <= batch && problem.lengths().is_some();
        fits.then_some(problem).ok_or_else(wrong)
    }

    /// The lengths of source, destination and weights, if they fit an index.
    fn lengths(&self) -> Option<()> {
        let product = |[a, b, c]: [usize; 3], size: fn(&Window) -> usize| {
            let mut sizes = [a, b, c].into_iter().chain(self.windows.iter().map(size));
            let product = sizes.try_fold(1, usize::checked_mul);
            product.filter(|&product| product <= isize::MAX as usize / 8)
        };
        product([self.batch, self.groups, self.channels], |window| window.source)?;
        product([self.batch, self.groups, self.features], |window| window.destination)?;
        product([self.groups, self.features, self.channels], |window| window.kernel)?;
        Some(())
    }
}

/// Spatial axis `i` of the forward pass, from its sizes in `lhs`, `rhs` and the result. `None` if
/// it needs padding that oneDNN does not support, such as negative padding.
fn window(kind: Kind, dims: &ConvDims, i: usize, [l, r, o]: [usize; 3]) -> Option<Window> {
    let low = dims.padding[i].0;
    let (source, kernel, destination, stride, dilation, low) = match kind {
        Kind::Forward => (l, r, o, dims.strides[i], dims.rhs_dilation[i], low),
        Kind::BackwardData => {
            let dilation = dims.rhs_dilation[i];
            let low = ((r - 1) * dilation) as i64 - low;
            (o, r, l, dims.lhs_dilation[i], dilation, low)
        }
        Kind::BackwardWeights => (l, o, r, dims.rhs_dilation[i], dims.strides[i], low),
    };
    let low = usize::try_from(low).ok()?;
    // End of the last window. `high` pads the source up to it; a source that is longer by a stride
    // or more would have another window.
    let end = (destination - 1) * stride + (kernel - 1) * dilation + 1;
    let high = end.saturating_sub(low + source);
    if low + source + high >= end + stride {
        return None;
    }
    Some(Window { source, kernel, destination, stride, dilation, low, high })
}
