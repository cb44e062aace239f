//! Feed-forward layers.

use std::hash::Hasher;

use super::init::{self, Init};
use super::norms::{moments, wide, widened};
use crate::random::Key;
use crate::trace::ops::{self, ConvOptions, ConvTranspose};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Shape, Tensor};
use crate::tree::{self, Leaf, Path, Tree};

/// A fully connected layer, `x w + b`: flax's `Dense`, PyTorch's `Linear`.
#[derive(Debug, Clone, Tree)]
pub struct Dense<T> {
    /// Kernel, `[inputs, outputs]`.
    pub w: T,
    /// Bias, `[outputs]`.
    pub b: Option<T>,
}

impl Dense<Tensor> {
    /// Initializes a layer in f32 with a kernel sampled from `kernel` and a zero bias.
    #[op("Dense::init")]
    pub fn init(key: Key<Tensor>, inputs: usize, outputs: usize, kernel: Init) -> Dense<Tensor> {
        let w = kernel.draw(key, [inputs, outputs], DType::F32);
        Dense { w, b: Some(ops::zeros([outputs], DType::F32)) }
    }

    /// Initializes a layer in f32 with kernel and bias sampled from the given distributions; `None`
    /// means no bias.
    #[op("Dense::init_with")]
    pub fn init_with(
        key: Key<Tensor>,
        inputs: usize,
        outputs: usize,
        kernel: Init,
        bias: Option<Init>,
    ) -> Dense<Tensor> {
        let (w, b) = kernel_and_bias(key, [inputs, outputs].into(), kernel, bias);
        Dense { w, b }
    }

    /// Initializes a layer as PyTorch's `Linear`: kernel and bias `U(+-1 / sqrt(inputs))`.
    #[op("Dense::init_torch")]
    pub fn init_torch(key: Key<Tensor>, inputs: usize, outputs: usize) -> Dense<Tensor> {
        let start = init::torch_default();
        Dense::init_with(key, inputs, outputs, start, Some(start))
    }

    /// Maps `x: [.., inputs]` to `[.., outputs]`.
    #[op("Dense::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let y = x.matmul(self.w);
        match self.b {
            Some(b) => y + b,
            None => y,
        }
    }

    /// Maps a batch `x: [B, inputs]` to `[B, outputs]`, as [`Dense::apply`]. The bias is added as a product
    /// with a column of ones, so that its gradient, a sum over the batch, is a product too: on CPUs XLA's
    /// sums over rows are several times slower.
    #[op("Dense::apply_batch")]
    pub fn apply_batch(&self, x: Tensor) -> Tensor {
        let y = x.matmul(self.w);
        match self.b {
            Some(b) => y + ops::ones([x.dim(0), 1], b.dtype()).matmul(b.expand_dims(0)),
            None => y,
        }
    }
}

/// Samples the parameters of a layer whose kernel has the given shape.
#[track_caller]
fn kernel_and_bias(
    key: Key<Tensor>,
    shape: Shape,
    kernel: Init,
    bias: Option<Init>,
) -> (Tensor, Option<Tensor>) {
    let rank = shape.rank();
    let fan_in = Shape::from(&shape[..rank - 1]).numel();
    let outputs: Shape = [shape[rank - 1]].into();
    let (kernel_key, bias_key) = key.split();
    let w = kernel.draw(kernel_key, shape, DType::F32);
    let Some(bias) = bias else { return (w, None) };
    if matches!(bias, Init::Orthogonal(_)) {
        fail_op("init", "a bias has one axis, and cannot be orthogonal");
    }
    (w, Some(bias.draw_fans(bias_key, &outputs, DType::F32, (fan_in, outputs[0]))))
}

/// A convolution of images `[batch, height, width, features]`: flax's `Conv` with two axes.
#[derive(Debug, Clone, Tree)]
pub struct Conv2d<T> {
    /// Kernel, `[height, width, inputs, outputs]`.
    pub w: T,
    /// Bias, `[outputs]`.
    pub b: Option<T>,
    /// Stride and padding.
    pub options: ConvOptions,
}

impl Conv2d<Tensor> {
    /// Initializes a layer in f32 with a kernel of shape `[height, width, inputs, outputs]` sampled
    /// from `kernel` and a zero bias.
    #[op("Conv2d::init")]
    pub fn init(
        key: Key<Tensor>,
        shape: [usize; 4],
        options: ConvOptions,
        kernel: Init,
    ) -> Conv2d<Tensor> {
        let w = kernel.draw(key, shape, DType::F32);
        Conv2d { w, b: Some(ops::zeros([shape[3]], DType::F32)), options }
    }

    /// Initializes a layer in f32 with kernel and bias sampled from the given distributions; `None`
    /// means no bias.
    #[op("Conv2d::init_with")]
    pub fn init_with(
        key: Key<Tensor>,
        shape: [usize; 4],
        options: ConvOptions,
        kernel: Init,
        bias: Option<Init>,
    ) -> Conv2d<Tensor> {
        let (w, b) = kernel_and_bias(key, shape.into(), kernel, bias);
        Conv2d { w, b, options }
    }

    /// Initializes a layer as PyTorch's `Conv2d`: kernel and bias `U(+-1 / sqrt(fan_in))`.
    #[op("Conv2d::init_torch")]
    pub fn init_torch(key: Key<Tensor>, shape: [usize; 4], options: ConvOptions) -> Conv2d<Tensor> {
        let start = init::torch_default();
        Conv2d::init_with(key, shape, options, start, Some(start))
    }

    /// Maps `x: [batch, height, width, inputs]` to `[batch, height', width', outputs]`.
    #[op("Conv2d::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let y = ops::conv2d(x, self.w, &self.options);
        match self.b {
            Some(b) => y + b,
            None => y,
        }
    }
}

/// A transposed convolution of images `[batch, height, width, features]`, which upsamples them:
/// flax's `ConvTranspose` with two axes.
#[derive(Debug, Clone, Tree)]
pub struct ConvTranspose2d<T> {
    /// Kernel, `[height, width, inputs, outputs]`.
    pub w: T,
    /// Bias, `[outputs]`.
    pub b: Option<T>,
    /// Upsampling factor (the stride), and the padding of the convolution whose shape change this
    /// layer inverts.
    pub options: ConvOptions,
}

impl ConvTranspose2d<Tensor> {
    /// Initializes a layer in f32 with a kernel of shape `[height, width, inputs, outputs]` sampled
    /// from `kernel` and a zero bias.
    #[op("ConvTranspose2d::init")]
    pub fn init(
        key: Key<Tensor>,
        shape: [usize; 4],
        options: ConvOptions,
        kernel: Init,
    ) -> ConvTranspose2d<Tensor> {
        let w = kernel.draw(key, shape, DType::F32);
        ConvTranspose2d { w, b: Some(ops::zeros([shape[3]], DType::F32)), options }
    }

    /// Maps `x: [batch, height, width, inputs]` to `[batch, height', width', outputs]`, where
    /// `height'` is `stride * height` with [`Padding::Same`](ops::Padding::Same).
    #[op("ConvTranspose2d::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let args = ConvTranspose {
            strides: vec![self.options.stride.max(1); 2],
            padding: self.options.padding.clone(),
            ..ConvTranspose::default()
        };
        let y = ops::conv_transpose(x, self.w, &args);
        match self.b {
            Some(b) => y + b,
            None => y,
        }
    }
}

/// Layer normalization over the last axis (Ba et al. 2016), with a trainable scale and bias.
#[derive(Debug, Clone, Tree)]
pub struct LayerNorm<T> {
    /// Scale, `[features]`.
    pub scale: T,
    /// Bias, `[features]`.
    pub bias: T,
    /// Epsilon added to the variance: 1e-6 in flax, 1e-5 in PyTorch.
    pub eps: f64,
}

impl LayerNorm<Tensor> {
    /// Initializes a layer in f32 with scale 1, bias 0 and eps 1e-6.
    #[op("LayerNorm::init")]
    pub fn init(features: usize) -> LayerNorm<Tensor> {
        let scale = ops::ones([features], DType::F32);
        LayerNorm { scale, bias: ops::zeros([features], DType::F32), eps: 1e-6 }
    }

    /// Maps `x: [.., features]` to the same shape and element type. `f16` and `bf16` are normalized in
    /// f32, as in flax.
    #[op("LayerNorm::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let x_wide = widened("LayerNorm", x);
        let centered = x_wide - x_wide.mean(-1).expand_dims(-1);
        let variance = centered.square().mean(-1).expand_dims(-1);
        self.scaled(centered, variance).to(x.dtype())
    }

    /// [`LayerNorm::apply`] with the statistics of the elements for which `mask`, bool of a shape that
    /// broadcasts to that of `x`, holds: flax's `mask`.
    #[op("LayerNorm::apply_masked")]
    pub fn apply_masked(&self, x: Tensor, mask: Tensor) -> Tensor {
        let x_wide = widened("LayerNorm", x);
        let (mean, variance) = moments("LayerNorm", x_wide, Some(mask), &[-1]);
        self.scaled(x_wide - mean, variance).to(x.dtype())
    }

    #[track_caller]
    fn scaled(&self, centered: Tensor, variance: Tensor) -> Tensor {
        centered * ((variance + self.eps).rsqrt() * wide(self.scale)) + wide(self.bias)
    }
}

/// Activation function between the layers of an [`Mlp`] or of a [`Sequential`](super::Sequential), with
/// Flax's default parameters. It is a tree without leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are those of the functions of Tensor.
pub enum Activation {
    Tanh,
    Relu,
    Elu,
    Silu,
    Gelu,
    Sigmoid,
    Celu,
    HardSigmoid,
    HardSilu,
    HardTanh,
    LeakyRelu,
    LogSigmoid,
    LogSoftmax,
    Relu6,
    Selu,
    SoftSign,
    Softmax,
    Softplus,
}

impl<T: Leaf> Tree<T> for Activation {
    type With<U: Leaf> = Activation;

    fn map_leaves<U: Leaf>(self, _: &Path<'_>, _: &mut dyn FnMut(&Path<'_>, T) -> U) -> Activation {
        self
    }

    fn map_leaves_ref<U: Leaf>(
        &self,
        _: &Path<'_>,
        _: &mut dyn FnMut(&Path<'_>, &T) -> U,
    ) -> Activation {
        *self
    }

    fn visit_leaves<'t>(&'t self, _: &Path<'_>, _: &mut dyn FnMut(&Path<'_>, &'t T)) {}

    fn hash_structure(&self, state: &mut dyn Hasher) {
        tree::hash_static(self, state);
    }
}

impl Activation {
    /// Applies the function.
    #[op("Activation::apply")]
    pub fn apply(self, x: Tensor) -> Tensor {
        match self {
            Activation::Tanh => x.tanh(),
            Activation::Relu => x.relu(),
            Activation::Elu => x.elu(),
            Activation::Silu => x.silu(),
            Activation::Gelu => x.gelu(),
            Activation::Sigmoid => x.sigmoid(),
            Activation::Celu => x.celu(1.0),
            Activation::HardSigmoid => x.hard_sigmoid(),
            Activation::HardSilu => x.hard_silu(),
            Activation::HardTanh => x.hard_tanh(),
            Activation::LeakyRelu => x.leaky_relu(0.01),
            Activation::LogSigmoid => x.log_sigmoid(),
            Activation::LogSoftmax => x.log_softmax(-1),
            Activation::Relu6 => x.relu6(),
            Activation::Selu => x.selu(),
            Activation::SoftSign => x.soft_sign(),
            Activation::Softmax => x.softmax(-1),
            Activation::Softplus => x.softplus(),
        }
    }
}

/// Multilayer perceptron: dense layers with an activation between them and none after the last.
#[derive(Debug, Clone, Tree)]
pub struct Mlp<T> {
    /// Layers, in order.
    pub layers: Vec<Dense<T>>,
    /// Activation between the layers.
    pub activation: Activation,
}

impl Mlp<Tensor> {
    /// Initializes layers of `sizes`: `[inputs, hidden, .., outputs]`, with flax's defaults: kernels
    /// by [`lecun_normal`](super::init::lecun_normal), and biases of zeros.
    #[op("Mlp::init")]
    pub fn init(key: Key<Tensor>, sizes: &[usize], activation: Activation) -> Mlp<Tensor> {
        let kernel = super::init::lecun_normal();
        Mlp::init_with(key, sizes, activation, kernel, kernel)
    }

    /// Like [`init`](Mlp::init), but kernels are sampled from `hidden`, and the last one from `head`.
    #[op("Mlp::init_with")]
    pub fn init_with(
        key: Key<Tensor>,
        sizes: &[usize],
        activation: Activation,
        hidden: Init,
        head: Init,
    ) -> Mlp<Tensor> {
        if sizes.len() < 2 {
            fail_op(
                "Mlp::init_with",
                format!("takes sizes from inputs to outputs, and was given {sizes:?}"),
            );
        }
        let count = sizes.len() - 1;
        let mut layers = Vec::with_capacity(count);
        for (i, key) in key.split_vec(count).into_iter().enumerate() {
            let kernel = if i + 1 == count { head } else { hidden };
            layers.push(Dense::init(key, sizes[i], sizes[i + 1], kernel));
        }
        Mlp { layers, activation }
    }

    /// Maps `x: [.., inputs]` to `[.., outputs]`.
    #[op("Mlp::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        let mut x = x;
        for (i, layer) in self.layers.iter().enumerate() {
            let input = if i == 0 { x } else { self.activation.apply(x) };
            x = layer.apply(input);
        }
        x
    }
}
