//! Reconstruction of images from the output of the transformer.

use crate::envs::ObsKind;
use crate::nn::{
    Conv2d, ConvTranspose2d, Dense, Encoder,
    init::{orthogonal, torch_default},
};
use crate::trace::ops::{ConvOptions, Padding};
use crate::tree::Tree;
use crate::{Key, Tensor};

/// Decoder from hidden units to images, for the reconstruction loss.
#[derive(Debug, Clone, Tree)]
pub struct TransposedCnn<T> {
    /// Layer to 64 features of 7 by 7 pixels.
    pub dense: Dense<T>,
    /// Transposed convolutions to 84 by 84 pixels.
    pub convs: [ConvTranspose2d<T>; 3],
}

impl TransposedCnn<Tensor> {
    pub(super) fn init(key: Key<Tensor>, dim: usize, channels: usize) -> TransposedCnn<Tensor> {
        let [dense, first, second, third] = key.split_n();
        let conv = |key: Key<Tensor>, shape: [usize; 4], stride| {
            let options = ConvOptions { stride, padding: Padding::Valid };
            let init = orthogonal(2.0f64.sqrt());
            // PyTorch's default counts the output features and the window as fan-in.
            let Conv2d { w, b, .. } =
                Conv2d::init_with(key, shape, options.clone(), init, Some(torch_default()));
            ConvTranspose2d { w, b, options }
        };
        TransposedCnn {
            dense: super::layer_init(dense, dim, 7 * 7 * 64, 2.0f64.sqrt()),
            convs: [
                conv(first, [3, 3, 64, 64], 1),
                conv(second, [4, 4, 64, 32], 2),
                conv(third, [8, 8, 32, channels], 4),
            ],
        }
    }

    /// Maps hidden units `f32[B, dim]` to images `f32[B, 84, 84, channels]` from 0 to 1.
    pub fn apply(&self, x: Tensor) -> Tensor {
        let x = self.dense.apply(x).relu();
        let mut x = x.reshape([x.dim(0), 7, 7, 64]);
        for (i, conv) in self.convs.iter().enumerate() {
            x = conv.apply(if i == 0 { x } else { x.relu() });
        }
        x.sigmoid()
    }

    /// Computes the binary cross-entropy of the images of hidden units and observations `u8[B,
    /// channels, 84, 84]`. Logarithms are at least -100, as in PyTorch.
    pub fn loss(&self, hidden: Tensor, obs: Tensor) -> Tensor {
        let (images, target) = (self.apply(hidden), Encoder::scaled(ObsKind::Frames, obs));
        let log = |x: Tensor| x.log().maximum(-100.0);
        let likelihood = target * log(images) + (1.0 - target) * log(1.0 - images);
        -likelihood.mean(..)
    }
}
