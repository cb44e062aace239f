//! More recurrent cells, and the trait that [`RNN`](super::RNN) runs.

use super::init;
use super::recurrent::recurrent_kernels;
use crate::nn::conv::Conv;
use crate::nn::init::Init;
use crate::nn::recurrent::{GruCell, LstmCell};
use crate::random::Key;
use crate::trace::ops;
use crate::trace::tensor::op;
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// A recurrent cell: flax's `RNNCellBase`. Implement it for cells of your own.
pub trait RNNCellBase {
    /// State between steps.
    type Carry: Tree<Tensor> + Clone;

    /// Takes one step: returns the next carry and the output for `inputs: [*batch, ..]`. Flax's
    /// `cell(carry, inputs)`.
    fn step(&self, carry: Self::Carry, inputs: Tensor) -> (Self::Carry, Tensor);

    /// Returns the carry before the first step for inputs of this shape, batch axes included.
    fn initialize_carry(&self, input_shape: &[usize]) -> Self::Carry;

    /// Number of axes of an input of one example: 1 for vectors.
    fn num_feature_axes(&self) -> usize {
        1
    }
}

/// Returns zeros with the last axis of `input_shape` replaced by `size`.
#[track_caller]
pub(super) fn zeros_like_input(input_shape: &[usize], size: usize, dtype: DType) -> Tensor {
    let batch = &input_shape[..input_shape.len().saturating_sub(1)];
    ops::zeros([batch, &[size]].concat(), dtype)
}

impl RNNCellBase for LstmCell<Tensor> {
    type Carry = (Tensor, Tensor);

    #[track_caller]
    fn step(&self, carry: (Tensor, Tensor), inputs: Tensor) -> ((Tensor, Tensor), Tensor) {
        let (c, h) = self.apply(inputs, carry);
        ((c, h), h)
    }

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> (Tensor, Tensor) {
        let zeros = zeros_like_input(input_shape, self.w_h.dim(0), self.w_h.dtype());
        (zeros, zeros)
    }
}

impl RNNCellBase for GruCell<Tensor> {
    type Carry = Tensor;

    #[track_caller]
    fn step(&self, carry: Tensor, inputs: Tensor) -> (Tensor, Tensor) {
        let h = self.apply(inputs, carry);
        (h, h)
    }

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> Tensor {
        zeros_like_input(input_shape, self.w_h.dim(0), self.w_h.dtype())
    }
}

/// A recurrent layer of one tanh (Elman 1990): flax's `SimpleCell`.
///
/// ```text
/// h' = tanh(x w_i + b + h w_h)      with residual, tanh(x w_i + b + h w_h + h)
/// ```
#[derive(Debug, Clone, Tree)]
pub struct SimpleCell<T> {
    /// Kernel of the input, `[inputs, size]`.
    pub w_i: T,
    /// Kernel of the hidden state, `[size, size]`.
    pub w_h: T,
    /// Bias, `[size]`.
    pub b: T,
    /// Adds the state before the activation: flax's `residual`.
    pub residual: bool,
}

impl SimpleCell<Tensor> {
    /// Initializes a cell in f32 as flax does: LeCun normal input kernel, orthogonal recurrent
    /// kernel, zero bias.
    #[op("SimpleCell::init")]
    pub fn init(key: Key<Tensor>, inputs: usize, size: usize) -> SimpleCell<Tensor> {
        let (input, recurrent) = key.split();
        SimpleCell {
            w_i: init::lecun_normal().draw(input, [inputs, size], DType::F32),
            w_h: recurrent_kernels(recurrent, size, 1),
            b: ops::zeros([size], DType::F32),
            residual: false,
        }
    }

    /// Takes one step: returns the next state, which is also the output, for `x: [.., inputs]` and
    /// the state `h: [.., size]`.
    #[op("SimpleCell::apply")]
    pub fn apply(&self, x: Tensor, h: Tensor) -> Tensor {
        let sum = x.matmul(self.w_i) + self.b + h.matmul(self.w_h);
        if self.residual { (sum + h).tanh() } else { sum.tanh() }
    }
}

impl RNNCellBase for SimpleCell<Tensor> {
    type Carry = Tensor;

    #[track_caller]
    fn step(&self, carry: Tensor, inputs: Tensor) -> (Tensor, Tensor) {
        let h = self.apply(inputs, carry);
        (h, h)
    }

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> Tensor {
        zeros_like_input(input_shape, self.w_h.dim(0), self.w_h.dtype())
    }
}

/// A minimal gated unit (Zhou et al. 2016): flax's `MGUCell`. The order of the parts is f, n.
///
/// ```text
/// f = sigmoid(x w_i + b + h w_h)
/// n = tanh(x w_i + b + f (h w_h + b_n))     without a reset gate, tanh(x w_i + b + h w_h)
/// h' = (1 - f) n + f h
/// ```
#[derive(Debug, Clone, Tree)]
pub struct MGUCell<T> {
    /// Kernels of the input, `[inputs, 2 size]`.
    pub w_i: T,
    /// Kernels of the hidden state, `[size, 2 size]`.
    pub w_h: T,
    /// Biases, `[2 size]`.
    pub b: T,
    /// Bias inside the reset gate, `[size]`; `None` is flax's `reset_gate=False`.
    pub b_n: Option<T>,
}

impl MGUCell<Tensor> {
    /// Initializes a cell in f32 as flax does: LeCun normal input kernels, orthogonal recurrent
    /// kernels, a bias of 1 for the gate and zeros else.
    #[op("MGUCell::init")]
    pub fn init(key: Key<Tensor>, inputs: usize, size: usize) -> MGUCell<Tensor> {
        let (input, recurrent) = key.split();
        let (ones, zeros) = (ops::ones([size], DType::F32), ops::zeros([size], DType::F32));
        MGUCell {
            w_i: init::lecun_normal().draw(input, [inputs, size.saturating_mul(2)], DType::F32),
            w_h: recurrent_kernels(recurrent, size, 2),
            b: ops::concatenate(&[ones, zeros], 0),
            b_n: Some(zeros),
        }
    }

    /// Takes one step: returns the next state, which is also the output, for `x: [.., inputs]` and
    /// the state `h: [.., size]`.
    #[op("MGUCell::apply")]
    pub fn apply(&self, x: Tensor, h: Tensor) -> Tensor {
        let (from_x, from_h) = (x.matmul(self.w_i) + self.b, h.matmul(self.w_h));
        let size = h.dim(-1);
        let gate = from_x.slice_axis(-1, 0, size) + from_h.slice_axis(-1, 0, size);
        let forget = gate.sigmoid();
        let inner = from_h.slice_axis(-1, size, 2 * size);
        let inner = match self.b_n {
            Some(b_n) => forget * (inner + b_n),
            None => inner,
        };
        let new = (from_x.slice_axis(-1, size, 2 * size) + inner).tanh();
        (1.0 - forget) * new + forget * h
    }
}

impl RNNCellBase for MGUCell<Tensor> {
    type Carry = Tensor;

    #[track_caller]
    fn step(&self, carry: Tensor, inputs: Tensor) -> (Tensor, Tensor) {
        let h = self.apply(inputs, carry);
        (h, h)
    }

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> Tensor {
        zeros_like_input(input_shape, self.w_h.dim(0), self.w_h.dtype())
    }
}

/// A convolutional LSTM (Shi et al. 2015): flax's `ConvLSTMCell`. The order of the gates is i, g, f,
/// o.
#[derive(Debug, Clone, Tree)]
pub struct ConvLSTMCell<T> {
    /// Convolution of the input, to `4 size` features.
    pub ih: Conv<T>,
    /// Convolution of the hidden state, to `4 size` features.
    pub hh: Conv<T>,
}

impl ConvLSTMCell<Tensor> {
    /// Initializes a cell in f32 for windows of sizes `kernel_size`, with padding `SAME`, kernels
    /// sampled from `kernel` and zero biases.
    #[op("ConvLSTMCell::init")]
    pub fn init(
        key: Key<Tensor>,
        kernel_size: &[usize],
        inputs: usize,
        size: usize,
        kernel: Init,
    ) -> ConvLSTMCell<Tensor> {
        let (input, recurrent) = key.split();
        let outputs = size.saturating_mul(4);
        ConvLSTMCell {
            ih: Conv::init(input, kernel_size, inputs, outputs, kernel),
            hh: Conv::init(recurrent, kernel_size, size, outputs, kernel),
        }
    }

    /// Takes one step: returns the next state for `x: [.., *spatial, inputs]` and the state
    /// `(c, h)`, `[.., *spatial, size]` each. The `h` of the next state is the output.
    #[op("ConvLSTMCell::apply")]
    pub fn apply(&self, x: Tensor, (c, h): (Tensor, Tensor)) -> (Tensor, Tensor) {
        let gates = (self.ih.apply(x) + self.hh.apply(h)).split(4, -1);
        let [input, new, forget, output] = [gates[0], gates[1], gates[2], gates[3]];
        let c = (forget + 1.0).sigmoid() * c + input.sigmoid() * new.tanh();
        (c, output.sigmoid() * c.tanh())
    }
}

impl RNNCellBase for ConvLSTMCell<Tensor> {
    type Carry = (Tensor, Tensor);

    #[track_caller]
    fn step(&self, carry: (Tensor, Tensor), inputs: Tensor) -> ((Tensor, Tensor), Tensor) {
        let (c, h) = self.apply(inputs, carry);
        ((c, h), h)
    }

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> (Tensor, Tensor) {
        let kernel = self.hh.kernel;
        let zeros = zeros_like_input(input_shape, kernel.dim(-2), kernel.dtype());
        (zeros, zeros)
    }

    fn num_feature_axes(&self) -> usize {
        self.hh.kernel.rank() - 1
    }
}
