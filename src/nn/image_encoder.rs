//! Choice between two encoders.

use super::init::lecun_normal;
use crate::nn::encoder::Encoder;
use crate::nn::impala::ImpalaCnn;
use crate::nn::init::Init;
use crate::random::Key;
use crate::spaces::ObsKind;
use crate::trace::ops::Padding;
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Shape, Tensor};
use crate::tree::Tree;

/// Encoder from observations to features, with a choice of the network for images.
#[derive(Debug, Clone, Tree)]
pub enum ImageEncoder<T> {
    /// The Nature network for images, and the layers of [`Encoder`] for other observations.
    Nature(Encoder<T>),
    /// IMPALA's residual network.
    Impala(ImpalaCnn<T>),
}

/// Rescales a kernel so that each column, the weights of one output, has the norm `norm`.
#[op]
pub fn normed(w: Tensor, norm: f64) -> Tensor {
    let axes: Vec<isize> = (0..w.rank() as isize - 1).collect();
    let norms = w.square().sum(&axes[..]).sqrt();
    w * (norm / norms)
}

#[track_caller]
fn impala_cnn(
    key: Key<Tensor>,
    obs_kind: ObsKind,
    shape: &Shape,
    (channels, hiddens): (&[usize], &[usize]),
    kernel: Init,
) -> ImpalaCnn<Tensor> {
    let shape = match (obs_kind, &shape[..]) {
        (ObsKind::Image, &[channels, height, width]) => [height, width, channels],
        (ObsKind::Board, &[height, width, kinds]) => [height, width, kinds],
        _ => fail_op("ImageEncoder", format!("{obs_kind} {shape} are not images")),
    };
    ImpalaCnn::init(key, shape, channels, hiddens, kernel)
}

impl ImageEncoder<Tensor> {
    /// Initializes IMPALA's network for images of this kind and shape; the other arguments are those
    /// of [`ImpalaCnn::init`].
    #[op("ImageEncoder::impala")]
    pub fn impala(
        key: Key<Tensor>,
        obs_kind: ObsKind,
        shape: &Shape,
        (channels, hiddens): (&[usize], &[usize]),
        kernel: Init,
    ) -> ImageEncoder<Tensor> {
        ImageEncoder::Impala(impala_cnn(key, obs_kind, shape, (channels, hiddens), kernel))
    }

    /// Initializes IMPALA's network as PPG does, for images of this kind and shape: 16, 32 and 32
    /// features, 256 units. Kernel columns have the norm 1 in the sequences' first convolutions, the
    /// root of `1 / sqrt(3) / sqrt(2)` in their residual blocks, and 1.4 in the dense layer. Max
    /// pooling pads as PyTorch does.
    #[op("ImageEncoder::impala_normed")]
    pub fn impala_normed(
        key: Key<Tensor>,
        obs_kind: ObsKind,
        shape: &Shape,
    ) -> ImageEncoder<Tensor> {
        let sizes: (&[usize], &[usize]) = (&[16, 32, 32], &[256]);
        let mut net = impala_cnn(key, obs_kind, shape, sizes, lecun_normal());
        let residual = (1.0 / 3.0f64.sqrt() / 2.0f64.sqrt()).sqrt();
        for sequence in &mut net.sequences {
            sequence.conv.w = normed(sequence.conv.w, 1.0);
            sequence.pool_padding = Padding::SameLower;
            for conv in sequence.residuals.iter_mut().flat_map(|residual| &mut residual.convs) {
                conv.w = normed(conv.w, residual);
            }
        }
        net.hidden[0].w = normed(net.hidden[0].w, 1.4);
        ImageEncoder::Impala(net)
    }

    /// Returns the number of features.
    #[op("ImageEncoder::size")]
    pub fn size(&self) -> usize {
        match self {
            ImageEncoder::Nature(net) => net.size(),
            ImageEncoder::Impala(net) => net.size(),
        }
    }

    /// Maps observations `[B, ..]` in the environment's dtype to features `f32[B, size]`.
    #[op("ImageEncoder::apply")]
    pub fn apply(&self, obs: Tensor) -> Tensor {
        match self {
            ImageEncoder::Nature(net) => net.apply(obs),
            ImageEncoder::Impala(net) if obs.dtype() == DType::U8 => {
                net.apply(obs.transpose(&[0, 2, 3, 1]).to(DType::F32) / 255.0)
            }
            ImageEncoder::Impala(net) => net.apply(obs.to(DType::F32)),
        }
    }
}
