//! Environments that show images, as algorithms for them meet them: Atari games with CleanRL's
//! wrappers and the boards of MinAtar, what of an observation is worth keeping, and convolutions for
//! each.

use crate::envs::{self, AtariOptions, EnvPool, EnvSpec, PoolOptions};
use crate::error::Result;
use crate::nn::init::Init;
use crate::nn::{Conv2d, Dense};
use crate::random::Key;
use crate::trace::ops::{ConvOptions, Padding};
use crate::trace::{DType, Shape, Tensor, TensorType};
use crate::tree::Tree;

use super::spaces;

/// The images of a kind of environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Images {
    /// `u8[4, 84, 84]`: the last four frames in grey, the oldest first.
    Atari,
    /// `bool[10, 10, channels]`: one board, with a channel for each kind of thing.
    MinAtar {
        /// How many kinds there are.
        channels: usize,
    },
}

impl Images {
    /// Environments with the wrappers of CleanRL's `dqn_atari.py`: four frames, lives as episodes,
    /// rewards as signs, up to 30 no-ops, fire after a reset. MinAtar's are as they come.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for environments of another kind; `algorithm` is the
    /// name of who asks. Also what the environments say.
    pub fn pool(algorithm: &str, id: &str, options: PoolOptions) -> Result<(EnvPool, Images)> {
        if id.starts_with("MinAtar/") {
            let pool = EnvPool::make(id, options)?;
            let images = Images::of(algorithm, pool.spec())?;
            return Ok((pool, images));
        }
        match EnvPool::atari(id, AtariOptions::gymnasium(), options) {
            Ok(pool) => Ok((pool, Images::Atari)),
            Err(error) => {
                // An environment that is no Atari game: say what would fit.
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

    /// How many frames an observation is made of.
    pub fn stack(self) -> usize {
        match self {
            Images::Atari => 4,
            Images::MinAtar { .. } => 1,
        }
    }

    /// One frame.
    pub fn frame(self) -> TensorType {
        match self {
            Images::Atari => TensorType::new(DType::U8, [84, 84]),
            Images::MinAtar { channels } => TensorType::new(DType::Bool, [10, 10, channels]),
        }
    }

    /// The newest frame of observations `[N, ..]`: `[N, ..frame]`.
    #[track_caller]
    pub fn newest(self, obs: Tensor) -> Tensor {
        match self {
            Images::Atari => obs.index_axis(1, 3),
            Images::MinAtar { .. } => obs,
        }
    }

    /// Observations `[N, ..]` as `f32[N, rows, columns, channels]` between 0 and 1.
    #[track_caller]
    pub fn scaled(self, obs: Tensor) -> Tensor {
        match self {
            Images::Atari => obs.transpose(&[0, 2, 3, 1]).to(DType::F32) / 255.0,
            Images::MinAtar { .. } => obs.to(DType::F32),
        }
    }

    /// The shapes and strides of the convolutions, the features that come out, and the width of
    /// the layer after them.
    fn sizes(self) -> (Vec<([usize; 4], usize)>, usize, usize) {
        match self {
            Images::Atari => {
                let convs = vec![([8, 8, 4, 32], 4), ([4, 4, 32, 64], 2), ([3, 3, 64, 64], 1)];
                (convs, 7 * 7 * 64, 512)
            }
            Images::MinAtar { channels } => (vec![([3, 3, channels, 16], 1)], 8 * 8 * 16, 128),
        }
    }

    /// How many features [`Convs`] give.
    pub fn features(self) -> usize {
        self.sizes().1
    }

    /// The width of the layer after the convolutions: 512 for Atari (Mnih et al. 2015), 128 for
    /// MinAtar (Young and Tian 2019).
    pub fn width(self) -> usize {
        self.sizes().2
    }
}

/// Convolutions, each with a rectifier after it.
#[derive(Debug, Clone, Tree)]
pub struct Convs<T> {
    /// The layers.
    pub layers: Vec<Conv2d<T>>,
}

impl Convs<Tensor> {
    /// Those for `images`: of the Nature network (Mnih et al. 2015) for Atari, of MinAtar's own
    /// (Young and Tian 2019) for its boards.
    pub fn init(key: Key<Tensor>, images: Images, kernel: Init) -> Convs<Tensor> {
        let (convs, ..) = images.sizes();
        let keys = key.split_vec(convs.len());
        let layer = |(key, (shape, stride))| {
            Conv2d::init(key, shape, ConvOptions { stride, padding: Padding::Valid }, kernel)
        };
        Convs { layers: keys.into_iter().zip(convs).map(layer).collect() }
    }

    /// Features `f32[N, features]` of `x: f32[N, rows, columns, channels]`.
    #[track_caller]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let relu = |x: Tensor, layer: &Conv2d<Tensor>| layer.apply(x).relu();
        self.layers.iter().fold(x, relu).flatten_from(1)
    }
}

/// [`Convs`] and the layer after them, with a rectifier too: images to features.
#[derive(Debug, Clone, Tree)]
pub struct Trunk<T> {
    /// The convolutions.
    pub convs: Convs<T>,
    /// Their features to [`Images::width`] units.
    pub hidden: Dense<T>,
    /// What the images are.
    pub images: Images,
}

impl Trunk<Tensor> {
    /// That of `images`.
    pub fn init(key: Key<Tensor>, images: Images, kernel: Init) -> Trunk<Tensor> {
        let (convs, hidden) = key.split();
        Trunk {
            convs: Convs::init(convs, images, kernel),
            hidden: Dense::init(hidden, images.features(), images.width(), kernel),
            images,
        }
    }

    /// `f32[N, width]` of observations `[N, ..]`.
    #[track_caller]
    pub fn apply(&self, obs: Tensor) -> Tensor {
        self.hidden.apply(self.convs.apply(self.images.scaled(obs))).relu()
    }
}

/// The shape of an observation of `stack` frames.
pub(super) fn stacked(frame: &Shape, stack: usize) -> Shape {
    if stack == 1 { frame.clone() } else { frame.with_axis(0, stack) }
}
