//! Reconstruction of images from the output of the transformer.

use crate::envs::ObsKind;
use crate::nn::{
    ConvTranspose2d, Dense, Encoder,
    init::{orthogonal, torch_default},
};
use crate::trace::DType;
use crate::trace::ops::{ConvOptions, Padding};
use crate::tree::Tree;
use crate::{Key, Tensor};

/// Decoder from hidden units to images, for the reconstruction loss.
#[derive(Debug, Clone, Tree)]
pub struct TransposedCnn<T> {
    pub dense: Dense<T>,                // layer to 64 features of 7 by 7 pixels
    pub convs: [ConvTranspose2d<T>; 3], // transposed convolutions to 84 by 84 pixels
}

/// Initializes a transposed convolution as CleanRL does. PyTorch stores the kernel as
/// `[inputs, outputs, window, window]`. Flattened to one row for each input, the rows are orthonormal
/// times sqrt(2). The bias keeps PyTorch's default, whose fan-in is the length of a row.
fn conv_init(
    key: Key<Tensor>,
    window: usize,
    (inputs, outputs): (usize, usize),
    stride: usize,
) -> ConvTranspose2d<Tensor> {
    let (kernel_key, bias_key) = key.split();
    let kernel = orthogonal(2.0f64.sqrt());
    let w = kernel.draw(kernel_key, [window, window, outputs, inputs], DType::F32).swapaxes(2, 3);
    let fans = (window * window * outputs, window * window * inputs);
    let b = torch_default().draw_fans(bias_key, &[outputs].into(), DType::F32, fans);
    ConvTranspose2d { w, b: Some(b), options: ConvOptions { stride, padding: Padding::Valid } }
}

impl TransposedCnn<Tensor> {
    /// Initializes a decoder of `dim` hidden units to images of `channels` channels.
    pub(super) fn init(key: Key<Tensor>, dim: usize, channels: usize) -> TransposedCnn<Tensor> {
        let [dense, first, second, third] = key.split_n();
        TransposedCnn {
            dense: super::layer_init(dense, dim, 7 * 7 * 64, 2.0f64.sqrt()),
            convs: [
                conv_init(first, 3, (64, 64), 1),
                conv_init(second, 4, (64, 32), 2),
                conv_init(third, 8, (32, channels), 4),
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
        let (images, target) = (self.apply(hidden), Encoder::scaled(ObsKind::Image, obs));
        let log = |x: Tensor| x.log().maximum(-100.0);
        let likelihood = target * log(images) + (1.0 - target) * log(1.0 - images);
        -likelihood.mean(..)
    }
}
