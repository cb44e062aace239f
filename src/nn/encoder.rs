//! Encoders from observations to features: the first layers of agents, chosen by the kind of
//! observation.

use crate::nn::init::Init;
use crate::nn::layers::{Conv2d, Dense};
use crate::random::Key;
use crate::spaces::ObsKind;
use crate::trace::ops::{ConvOptions, Padding};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Shape, Tensor};
use crate::tree::{self, Tree};

/// Encoder: the layers that all heads of an agent share.
///
/// | kind | layers |
/// |---|---|
/// | image | the Nature network (Mnih et al. 2015): convolutions of 32, 64, 64; 512 units |
/// | board | MinAtar's (Young and Tian 2019): a convolution of 16, 3 by 3; 128 units |
/// | vector | two layers of 64 units, tanh |
///
/// Biases are 0 at first; the caller chooses the initializer of the kernels, such as
/// `orthogonal(2f64.sqrt())` for PPO and flax's `lecun_normal()` for DQN.
#[derive(Debug, Clone, Tree)]
pub struct Encoder<T> {
    /// Convolutional layers.
    pub convs: Vec<Conv2d<T>>,
    /// Dense layers from the flattened input to features; [`Encoder::init_convs`] makes none.
    pub dense: Vec<Dense<T>>,
    /// Kind of observation.
    pub obs_kind: ObsKind,
    /// Shape of an observation.
    pub shape: Shape,
    /// Element type in which the layers compute: flax's `dtype`. Parameters and features are f32.
    pub compute_dtype: DType,
}

/// Sizes of the layers for one kind and shape of observations.
struct LayerSizes {
    /// Kernel shapes and strides of the convolutions.
    convs: Vec<([usize; 4], usize)>,
    /// Number of elements of the output of each convolution.
    conv_outputs: Vec<usize>,
    /// Number of dense layers.
    num_dense: usize,
}

impl LayerSizes {
    #[track_caller]
    fn new(obs_kind: ObsKind, shape: &Shape) -> LayerSizes {
        let (mut image, convs) = match (obs_kind, &shape[..]) {
            (ObsKind::Image, &[channels, height, width]) => {
                let convs =
                    vec![([8, 8, channels, 32], 4), ([4, 4, 32, 64], 2), ([3, 3, 64, 64], 1)];
                ([height, width], convs)
            }
            (ObsKind::Board, &[height, width, channels]) => {
                ([height, width], vec![([3, 3, channels, 16], 1)])
            }
            (ObsKind::Vector, &[_]) => {
                return LayerSizes { convs: Vec::new(), conv_outputs: Vec::new(), num_dense: 2 };
            }
            _ => fail_op("Encoder", format!("observations of shape {shape} are not {obs_kind}")),
        };
        let least = if obs_kind == ObsKind::Board { 3 } else { 36 };
        if image.iter().any(|&size| size < least) {
            let input = if obs_kind == ObsKind::Board { "a board" } else { "an image" };
            let problem = format!("{input} needs at least {least} rows and columns, got {shape}");
            fail_op("Encoder", problem);
        }
        let mut conv_outputs = Vec::new();
        for &([window, .., features], stride) in &convs {
            image = image.map(|size| (size - window) / stride + 1);
            conv_outputs.push(image[0] * image[1] * features);
        }
        LayerSizes { convs, conv_outputs, num_dense: 1 }
    }
}

impl Encoder<Tensor> {
    /// Initializes an encoder for observations of this kind and shape, with kernels sampled from
    /// `kernel`; `shape` excludes the batch axis.
    #[op("Encoder::init")]
    pub fn init(
        key: Key<Tensor>,
        obs_kind: ObsKind,
        shape: &Shape,
        kernel: Init,
    ) -> Encoder<Tensor> {
        let LayerSizes { convs, num_dense, .. } = LayerSizes::new(obs_kind, shape);
        let keys = key.split_vec(convs.len() + num_dense);
        Encoder::init_with_keys(keys, obs_kind, shape, kernel)
    }

    /// Like [`init`](Encoder::init), with one key for each layer.
    #[op("Encoder::init_with_keys")]
    pub fn init_with_keys(
        mut keys: Vec<Key<Tensor>>,
        obs_kind: ObsKind,
        shape: &Shape,
        kernel: Init,
    ) -> Encoder<Tensor> {
        let LayerSizes { convs, num_dense, .. } = LayerSizes::new(obs_kind, shape);
        let (given, needed) = (keys.len(), convs.len() + num_dense);
        if given != needed {
            let problem = format!("takes a key for each of {needed} layers, got {given}");
            fail_op("Encoder::init_with_keys", problem);
        }
        let dense_keys = keys.split_off(convs.len());
        let encoder = Encoder::of_convs(keys, obs_kind, shape, kernel, None);
        dense_keys.into_iter().fold(encoder, |encoder, key| encoder.with_hidden(key, kernel))
    }

    /// Initializes the convolutions alone. A vector has none; its elements are the features.
    #[op("Encoder::init_convs")]
    pub fn init_convs(
        key: Key<Tensor>,
        obs_kind: ObsKind,
        shape: &Shape,
        kernel: Init,
    ) -> Encoder<Tensor> {
        Encoder::init_convs_with(key, obs_kind, shape, kernel, None)
    }

    /// Like [`init_convs`](Encoder::init_convs), with biases sampled from `bias`; `None` means
    /// zeros.
    #[track_caller]
    pub(crate) fn init_convs_with(
        key: Key<Tensor>,
        obs_kind: ObsKind,
        shape: &Shape,
        kernel: Init,
        bias: Option<Init>,
    ) -> Encoder<Tensor> {
        let keys = match LayerSizes::new(obs_kind, shape).convs.len() {
            0 => Vec::new(),
            num_convs => key.split_vec(num_convs),
        };
        Encoder::of_convs(keys, obs_kind, shape, kernel, bias)
    }

    #[track_caller]
    fn of_convs(
        keys: Vec<Key<Tensor>>,
        obs_kind: ObsKind,
        shape: &Shape,
        kernel: Init,
        bias: Option<Init>,
    ) -> Encoder<Tensor> {
        let mut convs = Vec::new();
        for (key, (shape, stride)) in keys.into_iter().zip(LayerSizes::new(obs_kind, shape).convs) {
            let options = ConvOptions { stride, padding: Padding::Valid };
            convs.push(match bias {
                Some(_) => Conv2d::init_with(key, shape, options, kernel, bias),
                None => Conv2d::init(key, shape, options, kernel),
            });
        }
        let (dense, shape, compute_dtype) = (Vec::new(), shape.clone(), DType::F32);
        Encoder { convs, dense, obs_kind, shape, compute_dtype }
    }

    /// Adds a dense layer of [`hidden_units`](Encoder::hidden_units), with a kernel sampled from
    /// `kernel`.
    #[op("Encoder::with_hidden")]
    pub fn with_hidden(mut self, key: Key<Tensor>, kernel: Init) -> Encoder<Tensor> {
        let units = Encoder::hidden_units(self.obs_kind);
        self.dense.push(Dense::init(key, self.size(), units, kernel));
        self
    }

    /// Returns the encoder with layers that compute in `dtype`, such as [`DType::BF16`]: they convert
    /// their inputs and parameters to it. Sums are made in f32 and rounded once.
    #[op("Encoder::with_compute_dtype")]
    pub fn with_compute_dtype(self, dtype: DType) -> Encoder<Tensor> {
        if !dtype.is_float() {
            fail_op(
                "Encoder::with_compute_dtype",
                format!("layers compute in floats, got {dtype}"),
            );
        }
        Encoder { compute_dtype: dtype, ..self }
    }

    /// Returns the number of units of a dense layer: 512 for images (Mnih et al. 2015), 128 for
    /// boards (Young and Tian 2019), 64 for vectors.
    pub fn hidden_units(obs_kind: ObsKind) -> usize {
        match obs_kind {
            ObsKind::Image => 512,
            ObsKind::Board => 128,
            ObsKind::Vector => 64,
        }
    }

    /// Returns the number of features.
    #[op("Encoder::size")]
    pub fn size(&self) -> usize {
        match self.dense.last() {
            Some(dense) => dense.w.dim(-1),
            None => self.conv_outputs().last().copied().unwrap_or_else(|| self.shape.numel()),
        }
    }

    /// Returns the number of elements of the output of each convolution, for one observation.
    #[track_caller]
    pub(crate) fn conv_outputs(&self) -> Vec<usize> {
        LayerSizes::new(self.obs_kind, &self.shape).conv_outputs
    }

    /// Converts observations `[B, ..]` in the environment's dtype to the `f32` input of the first
    /// layer: images to `[B, height, width, channels]` between 0 and 1.
    #[op("Encoder::scaled")]
    pub fn scaled(obs_kind: ObsKind, obs: Tensor) -> Tensor {
        match obs_kind {
            ObsKind::Image => obs.transpose(&[0, 2, 3, 1]).to(DType::F32) / 255.0,
            ObsKind::Board | ObsKind::Vector => obs.to(DType::F32),
        }
    }

    /// Maps observations `[B, ..]` in the environment's dtype to features `f32[B, size]`.
    #[op("Encoder::apply")]
    pub fn apply(&self, obs: Tensor) -> Tensor {
        self.forward(Encoder::scaled(self.obs_kind, obs))
    }

    /// Maps observations `f32[B, ..]` that need no scaling, such as normalized ones, to features
    /// `f32[B, size]`.
    #[op("Encoder::apply_scaled")]
    pub fn apply_scaled(&self, obs: Tensor) -> Tensor {
        self.forward(match self.obs_kind {
            ObsKind::Image => obs.transpose(&[0, 2, 3, 1]),
            ObsKind::Board | ObsKind::Vector => obs,
        })
    }

    #[track_caller]
    fn forward(&self, mut x: Tensor) -> Tensor {
        x = x.to(self.compute_dtype);
        for conv in &self.convs {
            x = self.converted(conv).apply(x).relu();
        }
        x = x.flatten_from(1);
        for dense in &self.dense {
            let y = self.converted(dense).apply(x);
            x = if self.obs_kind == ObsKind::Vector { y.tanh() } else { y.relu() };
        }
        x.to(DType::F32)
    }

    /// A layer whose parameters have the element type in which it computes.
    fn converted<L: Tree<Tensor, With<Tensor> = L> + Clone>(&self, layer: &L) -> L {
        tree::map(layer.clone(), |parameter: Tensor| parameter.to(self.compute_dtype))
    }
}
