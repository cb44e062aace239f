//! Image observations of value-based algorithms: Atari's stacks of frames and MinAtar's boards, the
//! part of an observation that replay buffers store, and convolutions for each kind.

use super::{Conv2d, Dense, Init};
use crate::random::Key;
use crate::trace::ops::{ConvOptions, Padding};
use crate::trace::tensor::function;
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::Tree;

/// Kind of image observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Images {
    /// `u8[4, 84, 84]`: the last four greyscale frames, the oldest first.
    Atari,
    /// `bool[10, 10, channels]`: one board, with a channel for each kind of object.
    MinAtar {
        /// Number of channels.
        channels: usize,
    },
}

impl Images {
    /// Returns the number of frames of an observation.
    pub fn stack(self) -> usize {
        match self {
            Images::Atari => 4,
            Images::MinAtar { .. } => 1,
        }
    }

    /// Returns the type of one frame.
    pub fn frame(self) -> TensorType {
        match self {
            Images::Atari => TensorType::new(DType::U8, [84, 84]),
            Images::MinAtar { channels } => TensorType::new(DType::Bool, [10, 10, channels]),
        }
    }

    /// Returns the newest frame of observations `[N, ..]`: `[N, ..frame]`.
    #[track_caller]
    pub fn newest(self, obs: Tensor) -> Tensor {
        let _scope = function("Images::newest");
        match self {
            Images::Atari => obs.index_axis(1, 3),
            Images::MinAtar { .. } => obs,
        }
    }

    /// Converts observations `[N, ..]` to `f32[N, rows, columns, channels]` between 0 and 1.
    #[track_caller]
    pub fn scaled(self, obs: Tensor) -> Tensor {
        let _scope = function("Images::scaled");
        match self {
            Images::Atari => obs.transpose(&[0, 2, 3, 1]).to(DType::F32) / 255.0,
            Images::MinAtar { .. } => obs.to(DType::F32),
        }
    }

    /// Returns the shapes and strides of the convolutions, the number of their output features, and
    /// the width of the layer after them.
    fn sizes(self) -> (Vec<([usize; 4], usize)>, usize, usize) {
        match self {
            Images::Atari => {
                let convs = vec![([8, 8, 4, 32], 4), ([4, 4, 32, 64], 2), ([3, 3, 64, 64], 1)];
                (convs, 7 * 7 * 64, 512)
            }
            Images::MinAtar { channels } => (vec![([3, 3, channels, 16], 1)], 8 * 8 * 16, 128),
        }
    }

    /// Returns the number of output features of [`Convs`].
    pub fn features(self) -> usize {
        self.sizes().1
    }

    /// Returns the width of the layer after the convolutions: 512 for Atari (Mnih et al. 2015), 128
    /// for MinAtar (Young and Tian 2019).
    pub fn width(self) -> usize {
        self.sizes().2
    }
}

/// Convolutions, each followed by a ReLU.
#[derive(Debug, Clone, Tree)]
pub struct Convs<T> {
    /// Layers.
    pub layers: Vec<Conv2d<T>>,
}

impl Convs<Tensor> {
    /// Initializes the convolutions for `images`: those of the Nature network (Mnih et al. 2015)
    /// for Atari, those of MinAtar's paper (Young and Tian 2019) for its boards.
    #[track_caller]
    pub fn init(key: Key<Tensor>, images: Images, kernel: Init) -> Convs<Tensor> {
        let _scope = function("Convs::init");
        let (convs, ..) = images.sizes();
        let keys = key.split_vec(convs.len());
        let layer = |(key, (shape, stride))| {
            Conv2d::init(key, shape, ConvOptions { stride, padding: Padding::Valid }, kernel)
        };
        Convs { layers: keys.into_iter().zip(convs).map(layer).collect() }
    }

    /// Returns the features `f32[N, features]` of `x: f32[N, rows, columns, channels]`.
    #[track_caller]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let _scope = function("Convs::apply");
        let relu = |x: Tensor, layer: &Conv2d<Tensor>| layer.apply(x).relu();
        self.layers.iter().fold(x, relu).flatten_from(1)
    }
}

/// [`Convs`] followed by a dense layer with a ReLU: maps images to features.
#[derive(Debug, Clone, Tree)]
pub struct Trunk<T> {
    /// Convolutions.
    pub convs: Convs<T>,
    /// Dense layer from their features to [`Images::width`] units.
    pub hidden: Dense<T>,
    /// Kind of images.
    pub images: Images,
}

impl Trunk<Tensor> {
    /// Initializes the layers for `images`.
    #[track_caller]
    pub fn init(key: Key<Tensor>, images: Images, kernel: Init) -> Trunk<Tensor> {
        let _scope = function("Trunk::init");
        let (convs, hidden) = key.split();
        Trunk {
            convs: Convs::init(convs, images, kernel),
            hidden: Dense::init(hidden, images.features(), images.width(), kernel),
            images,
        }
    }

    /// Returns the features `f32[N, width]` of observations `[N, ..]`.
    #[track_caller]
    pub fn apply(&self, obs: Tensor) -> Tensor {
        let _scope = function("Trunk::apply");
        self.hidden.apply(self.convs.apply(self.images.scaled(obs))).relu()
    }
}
