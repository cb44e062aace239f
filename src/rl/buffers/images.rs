//! Image observations: Atari games with CleanRL's wrappers and MinAtar's boards, the part of an
//! observation that replay buffers store, and convolutions for each kind.

use crate::envs::{self, AtariOptions, EnvPool, EnvSpec, PoolOptions};
use crate::error::Result;
use crate::nn::init::Init;
use crate::nn::{Conv2d, Dense};
use crate::random::Key;
use crate::trace::ops::{ConvOptions, Padding};
use crate::trace::{DType, Shape, Tensor, TensorType};
use crate::tree::Tree;

use crate::rl::spaces;

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
    /// Creates environments with the wrappers of CleanRL's `dqn_atari.py`: stacks of four frames,
    /// lives as episodes, rewards clipped to their signs, up to 30 no-ops, fire after a reset.
    /// MinAtar environments get no wrappers.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for environments of another kind; `algorithm` is the
    /// algorithm's name in the message. Also returns errors of the environments.
    pub fn pool(algorithm: &str, id: &str, options: PoolOptions) -> Result<(EnvPool, Images)> {
        if id.starts_with("MinAtar/") {
            let pool = EnvPool::make(id, options)?;
            let images = Images::of(algorithm, pool.spec())?;
            return Ok((pool, images));
        }
        match EnvPool::atari(id, AtariOptions::gymnasium(), options) {
            Ok(pool) => Ok((pool, Images::Atari)),
            Err(error) => {
                // The environment is no Atari game: report the algorithms that support it.
                let known = envs::list_envs().contains(&id);
                if let (true, Ok(spec)) = (known, envs::spec(id)) {
                    Images::of(algorithm, &spec)?;
                }
                Err(error)
            }
        }
    }

    fn of(algorithm: &str, spec: &EnvSpec) -> Result<Images> {
        let observation = &spec.observation;
        match observation.shape()[..] {
            [10, 10, channels] if observation.dtype() == DType::Bool => {
                Ok(Images::MinAtar { channels })
            }
            _ => spaces::images(algorithm, spec, [4, 84, 84]).map(|()| Images::Atari),
        }
    }

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
        match self {
            Images::Atari => obs.index_axis(1, 3),
            Images::MinAtar { .. } => obs,
        }
    }

    /// Converts observations `[N, ..]` to `f32[N, rows, columns, channels]` between 0 and 1.
    #[track_caller]
    pub fn scaled(self, obs: Tensor) -> Tensor {
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
    pub fn init(key: Key<Tensor>, images: Images, kernel: Init) -> Convs<Tensor> {
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
    pub fn init(key: Key<Tensor>, images: Images, kernel: Init) -> Trunk<Tensor> {
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
        self.hidden.apply(self.convs.apply(self.images.scaled(obs))).relu()
    }
}

/// Returns the shape of an observation of `stack` frames.
pub(in crate::rl) fn stacked(frame: &Shape, stack: usize) -> Shape {
    if stack == 1 { frame.clone() } else { frame.with_axis(0, stack) }
}
