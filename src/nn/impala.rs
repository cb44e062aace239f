//! IMPALA's residual convolutional network.

use super::init::{Init, lecun_normal};
use crate::nn::conv::max_pool;
use crate::nn::layers::{Conv2d, Dense};
use crate::random::Key;
use crate::trace::Tensor;
use crate::trace::ops::{ConvOptions, Padding};
use crate::trace::tensor::op;
use crate::tree::Tree;

/// Residual block of two convolutions with a skip connection (He et al. 2016).
#[derive(Debug, Clone, Tree)]
pub struct Residual<T> {
    /// The convolutions.
    pub convs: [Conv2d<T>; 2],
}

/// Convolution, 3 by 3 max pooling with stride 2, which halves rows and columns, and two
/// [`Residual`] blocks.
#[derive(Debug, Clone, Tree)]
pub struct Sequence<T> {
    /// First convolution.
    pub conv: Conv2d<T>,
    /// Padding of the max pooling: `Same` is flax's, `SameLower` is PyTorch's padding of 1.
    pub pool_padding: Padding,
    /// Residual blocks after the pooling.
    pub residuals: [Residual<T>; 2],
}

impl Sequence<Tensor> {
    #[track_caller]
    fn init(key: Key<Tensor>, inputs: usize, outputs: usize) -> Sequence<Tensor> {
        let keys: [Key<Tensor>; 5] = key.split_n();
        let conv = |key, inputs| {
            let options = ConvOptions { stride: 1, padding: Padding::Same };
            Conv2d::init(key, [3, 3, inputs, outputs], options, lecun_normal())
        };
        let [first, a, b, c, d] = keys;
        let residual = |a, b| Residual { convs: [conv(a, outputs), conv(b, outputs)] };
        Sequence {
            conv: conv(first, inputs),
            pool_padding: Padding::Same,
            residuals: [residual(a, b), residual(c, d)],
        }
    }

    #[track_caller]
    fn apply(&self, x: Tensor) -> Tensor {
        let x = max_pool(self.conv.apply(x), [3, 3], [2, 2], &self.pool_padding);
        let residual = |x: Tensor, residual: &Residual<Tensor>| {
            let [a, b] = &residual.convs;
            x + b.apply(a.apply(x.relu()).relu())
        };
        self.residuals.iter().fold(x, residual)
    }
}

/// Encoder from images to features, IMPALA's larger network (Espeholt et al. 2018): [`Sequence`]s
/// and dense layers with ReLU. Convolutions have flax's default initialization.
#[derive(Debug, Clone, Tree)]
pub struct ImpalaCnn<T> {
    /// Convolutional sequences; IMPALA's have 16, 32 and 32 features.
    pub sequences: Vec<Sequence<T>>,
    /// Dense layers from the convolutional features; IMPALA has one of 256 units.
    pub hidden: Vec<Dense<T>>,
}

impl ImpalaCnn<Tensor> {
    /// Initializes the network for images `[.., height, width, features]`. `channels` are the
    /// features of the sequences and `hiddens` the units of the dense layers, whose kernels
    /// `kernel` initializes.
    #[op("ImpalaCnn::init")]
    pub fn init(
        key: Key<Tensor>,
        [height, width, features]: [usize; 3],
        channels: &[usize],
        hiddens: &[usize],
        kernel: Init,
    ) -> ImpalaCnn<Tensor> {
        let mut keys = key.split_vec(channels.len() + hiddens.len()).into_iter();
        let mut next = || keys.next().expect("a key for each layer");
        let (mut size, mut inputs) = ([height, width], features);
        let mut sequences = Vec::new();
        for &outputs in channels {
            sequences.push(Sequence::init(next(), inputs, outputs));
            (size, inputs) = (size.map(|n| n.div_ceil(2)), outputs);
        }
        let mut inputs = size[0] * size[1] * inputs;
        let mut hidden = Vec::new();
        for &units in hiddens {
            hidden.push(Dense::init(next(), inputs, units, kernel));
            inputs = units;
        }
        ImpalaCnn { sequences, hidden }
    }

    /// Returns the number of features.
    #[op("ImpalaCnn::size")]
    pub fn size(&self) -> usize {
        self.hidden.last().expect("at least one dense layer").w.dim(-1)
    }

    /// Maps `f32[B, height, width, features]` to `f32[B, size]`.
    #[op("ImpalaCnn::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let x = self.sequences.iter().fold(x, |x, sequence| sequence.apply(x));
        self.hidden.iter().fold(x.relu().flatten_from(1), |x, dense| dense.apply(x).relu())
    }
}
