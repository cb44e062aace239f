//! Encoders from observations to features: the first layers of agents, chosen by the kind of
//! observation.

use super::init::{Init, orthogonal};
use super::{Conv2d, Dense};
use crate::random::Key;
use crate::spaces::ObsKind;
use crate::trace::ops::{ConvOptions, Padding};
use crate::trace::tensor::{fail_op, function};
use crate::trace::{DType, Shape, Tensor};
use crate::tree::Tree;

/// Encoder: the layers that all heads of an agent share.
///
/// | kind | layers |
/// |---|---|
/// | frames | the Nature network (Mnih et al. 2015): convolutions of 32, 64, 64; 512 units |
/// | board | MinAtar's (Young and Tian 2019): a convolution of 16, 3 by 3; 128 units |
/// | vector | two layers of 64 units, tanh |
///
/// Kernels are orthogonal with gain sqrt(2) and biases are 0, as in CleanRL.
#[derive(Debug, Clone, Tree)]
pub struct Encoder<T> {
    /// Convolutional layers.
    pub convs: Vec<Conv2d<T>>,
    /// Dense layers from the flattened input to features.
    pub dense: Vec<Dense<T>>,
    /// Kind of observation.
    pub obs_kind: ObsKind,
}

/// Returns CleanRL's initialiser of hidden layers.
fn gain() -> Init {
    orthogonal(2.0f64.sqrt())
}

fn conv(key: Key<Tensor>, shape: [usize; 4], stride: usize) -> Conv2d<Tensor> {
    Conv2d::init(key, shape, ConvOptions { stride, padding: Padding::Valid }, gain())
}

impl Encoder<Tensor> {
    /// Initialises an encoder for observations of this kind and shape; `shape` excludes the batch
    /// axis.
    #[track_caller]
    pub fn init(key: Key<Tensor>, obs_kind: ObsKind, shape: &Shape) -> Encoder<Tensor> {
        let _scope = function("Encoder::init");
        match obs_kind {
            ObsKind::Frames => Encoder::nature(key.split_n(), shape[0]),
            ObsKind::Board => {
                if shape[0] < 3 || shape[1] < 3 {
                    let problem = format!("a board needs at least 3 rows and columns, got {shape}");
                    fail_op("Encoder::init", problem);
                }
                let (first, hidden) = key.split();
                let cells = (shape[0] - 2) * (shape[1] - 2);
                Encoder {
                    convs: vec![conv(first, [3, 3, shape[2], 16], 1)],
                    dense: vec![Dense::init(hidden, cells * 16, 128, gain())],
                    obs_kind,
                }
            }
            ObsKind::Vector => {
                let (first, second) = key.split();
                let dense = vec![
                    Dense::init(first, shape[0], 64, gain()),
                    Dense::init(second, 64, 64, gain()),
                ];
                Encoder { convs: Vec::new(), dense, obs_kind }
            }
        }
    }

    /// Initialises the Nature network for `frames` stacked frames of 84 by 84, with one key per
    /// layer.
    #[track_caller]
    pub fn nature([a, b, c, hidden]: [Key<Tensor>; 4], frames: usize) -> Encoder<Tensor> {
        let _scope = function("Encoder::nature");
        Encoder {
            convs: vec![
                conv(a, [8, 8, frames, 32], 4),
                conv(b, [4, 4, 32, 64], 2),
                conv(c, [3, 3, 64, 64], 1),
            ],
            dense: vec![Dense::init(hidden, 3136, 512, gain())],
            obs_kind: ObsKind::Frames,
        }
    }

    /// Returns the number of features.
    #[track_caller]
    pub fn size(&self) -> usize {
        let _scope = function("Encoder::size");
        self.dense.last().expect("each kind has a dense layer").w.dim(-1)
    }

    /// Maps observations `[B, ..]` in the environment's dtype to features `f32[B, size]`.
    #[track_caller]
    pub fn apply(&self, obs: Tensor) -> Tensor {
        let _scope = function("Encoder::apply");
        self.layers(match self.obs_kind {
            ObsKind::Frames => obs.transpose(&[0, 2, 3, 1]).to(DType::F32) / 255.0,
            ObsKind::Board | ObsKind::Vector => obs.to(DType::F32),
        })
    }

    /// Maps observations `f32[B, ..]` that need no scaling, such as normalised ones, to features
    /// `f32[B, size]`.
    #[track_caller]
    pub fn apply_scaled(&self, obs: Tensor) -> Tensor {
        let _scope = function("Encoder::apply_scaled");
        self.layers(match self.obs_kind {
            ObsKind::Frames => obs.transpose(&[0, 2, 3, 1]),
            ObsKind::Board | ObsKind::Vector => obs,
        })
    }

    #[track_caller]
    fn layers(&self, mut x: Tensor) -> Tensor {
        for conv in &self.convs {
            x = conv.apply(x).relu();
        }
        x = x.flatten_from(1);
        for dense in &self.dense {
            let y = dense.apply(x);
            x = if self.obs_kind == ObsKind::Vector { y.tanh() } else { y.relu() };
        }
        x
    }
}
