//! Recurrent cells: one time step each, for use in a scan over time.

use super::init;
use crate::random::Key;
use crate::trace::ops;
use crate::trace::tensor::op;
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

/// Samples `count` orthogonal matrices `[size, size]`, concatenated along the last axis.
#[track_caller]
pub(super) fn recurrent_kernels(key: Key<Tensor>, size: usize, count: usize) -> Tensor {
    let mut kernels = Vec::with_capacity(count);
    for key in key.split_vec(count) {
        kernels.push(init::orthogonal(1.0).draw(key, [size, size], DType::F32));
    }
    ops::concatenate(&kernels, -1)
}

/// A long short-term memory (LSTM, Hochreiter & Schmidhuber 1997): flax's `LSTMCell`. The order of
/// the gates is i, f, g, o, as in PyTorch.
///
/// ```text
/// i, f, o = sigmoid(x w_i + h w_h + b)     g = tanh(x w_i + h w_h + b)
/// c' = f c + i g                           h' = o tanh(c')
/// ```
#[derive(Debug, Clone, Tree)]
pub struct LstmCell<T> {
    /// Kernels of the input, `[inputs, 4 size]`.
    pub w_i: T,
    /// Kernels of the hidden state, `[size, 4 size]`.
    pub w_h: T,
    /// Biases, `[4 size]`.
    pub b: T,
}

impl LstmCell<Tensor> {
    /// Initializes a cell in f32 as flax does: LeCun normal input kernels, orthogonal recurrent
    /// kernels, zero biases.
    #[op("LstmCell::init")]
    pub fn init(key: Key<Tensor>, inputs: usize, size: usize) -> LstmCell<Tensor> {
        let (input, recurrent) = key.split();
        LstmCell {
            w_i: init::lecun_normal().draw(input, [inputs, size.saturating_mul(4)], DType::F32),
            w_h: recurrent_kernels(recurrent, size, 4),
            b: ops::zeros([size.saturating_mul(4)], DType::F32),
        }
    }

    /// Initializes a cell in f32 as CleanRL's recurrent scripts do: orthogonal kernels, zero biases.
    #[op("LstmCell::init_orthogonal")]
    pub fn init_orthogonal(
        [input, recurrent]: [Key<Tensor>; 2],
        inputs: usize,
        size: usize,
    ) -> LstmCell<Tensor> {
        let gates = size.saturating_mul(4);
        let kernel = |key, rows| init::orthogonal(1.0).draw(key, [rows, gates], DType::F32);
        LstmCell {
            w_i: kernel(input, inputs),
            w_h: kernel(recurrent, size),
            b: ops::zeros([gates], DType::F32),
        }
    }

    /// Takes one step: returns the next state for `x: [batch, inputs]` and the state `(c, h)`,
    /// `[batch, size]` each. The `h` of the next state is the output.
    #[op("LstmCell::apply")]
    pub fn apply(&self, x: Tensor, state: (Tensor, Tensor)) -> (Tensor, Tensor) {
        self.advance(self.project(x), state)
    }

    /// Computes the part of a step that does not depend on the state, `x w_i`, for many steps at
    /// once before the loop over them. Maps `x: [.., inputs]` to `[.., 4 size]`.
    #[op("LstmCell::project")]
    pub fn project(&self, x: Tensor) -> Tensor {
        x.matmul(self.w_i)
    }

    /// Computes the rest of a step: returns the next state for `projected: [batch, 4 size]`, the
    /// result of [`project`](LstmCell::project), and the state.
    #[op("LstmCell::advance")]
    pub fn advance(&self, projected: Tensor, (c, h): (Tensor, Tensor)) -> (Tensor, Tensor) {
        let gates = projected + (h.matmul(self.w_h) + self.b);
        let size = c.dim(-1);
        let input = gates.slice_axis(-1, 0, size).sigmoid();
        let forget = gates.slice_axis(-1, size, 2 * size).sigmoid();
        let new = gates.slice_axis(-1, 2 * size, 3 * size).tanh();
        let output = gates.slice_axis(-1, 3 * size, 4 * size).sigmoid();
        let c = forget * c + input * new;
        (c, output * c.tanh())
    }

    /// Returns the state before the first step: zeros for `batch` sequences.
    #[op("LstmCell::start")]
    pub fn start(&self, batch: usize) -> (Tensor, Tensor) {
        let zeros = ops::zeros([batch, self.w_h.dim(0)], self.w_h.dtype());
        (zeros, zeros)
    }
}

/// A gated recurrent unit (GRU, Cho et al. 2014): flax's `GRUCell`. The order of the gates is r, z,
/// n.
///
/// ```text
/// r, z = sigmoid(x w_i + b + h w_h)
/// n = tanh(x w_i + b + r (h w_h + b_n))
/// h' = (1 - z) n + z h
/// ```
#[derive(Debug, Clone, Tree)]
pub struct GruCell<T> {
    /// Kernels of the input, `[inputs, 3 size]`.
    pub w_i: T,
    /// Kernels of the hidden state, `[size, 3 size]`.
    pub w_h: T,
    /// Biases, `[3 size]`.
    pub b: T,
    /// Bias inside the reset gate, `[size]`.
    pub b_n: T,
}

impl GruCell<Tensor> {
    /// Initializes a cell in f32 as flax does: LeCun normal input kernels, orthogonal recurrent
    /// kernels, zero biases.
    #[op("GruCell::init")]
    pub fn init(key: Key<Tensor>, inputs: usize, size: usize) -> GruCell<Tensor> {
        let (input, recurrent) = key.split();
        GruCell {
            w_i: init::lecun_normal().draw(input, [inputs, size.saturating_mul(3)], DType::F32),
            w_h: recurrent_kernels(recurrent, size, 3),
            b: ops::zeros([size.saturating_mul(3)], DType::F32),
            b_n: ops::zeros([size], DType::F32),
        }
    }

    /// Takes one step: returns the next state, which is also the output, for `x: [batch, inputs]`
    /// and the state `h: [batch, size]`.
    #[op("GruCell::apply")]
    pub fn apply(&self, x: Tensor, h: Tensor) -> Tensor {
        self.advance(self.project(x), h)
    }

    /// Computes the part of a step that does not depend on the state, `x w_i + b`, for many steps at
    /// once before the loop over them. Maps `x: [.., inputs]` to `[.., 3 size]`.
    #[op("GruCell::project")]
    pub fn project(&self, x: Tensor) -> Tensor {
        x.matmul(self.w_i) + self.b
    }

    /// Computes the rest of a step: returns the next state for `projected: [batch, 3 size]`, the
    /// result of [`project`](GruCell::project), and the state `h: [batch, size]`.
    #[op("GruCell::advance")]
    pub fn advance(&self, projected: Tensor, h: Tensor) -> Tensor {
        let (from_x, from_h) = (projected, h.matmul(self.w_h));
        let size = h.dim(-1);
        let both = from_x.slice_axis(-1, 0, 2 * size) + from_h.slice_axis(-1, 0, 2 * size);
        let gates = both.sigmoid();
        let (reset, keep) = (gates.slice_axis(-1, 0, size), gates.slice_axis(-1, size, 2 * size));
        let inner = from_h.slice_axis(-1, 2 * size, 3 * size) + self.b_n;
        let new = (from_x.slice_axis(-1, 2 * size, 3 * size) + reset * inner).tanh();
        (1.0 - keep) * new + keep * h
    }

    /// Returns the state before the first step: zeros for `batch` sequences.
    #[op("GruCell::start")]
    pub fn start(&self, batch: usize) -> Tensor {
        ops::zeros([batch, self.w_h.dim(0)], self.w_h.dtype())
    }
}

/// Returns the state of a recurrent cell, `[N, ..]` each, with zeros where `episode_start: [N]` is true or
/// not 0: the observation is the first one of an episode.
#[op]
pub fn reset_carry<C: Tree<Tensor, With<Tensor> = C>>(episode_start: Tensor, carry: C) -> C {
    let starts = episode_start.to(DType::Bool);
    tree::map(carry, |x: Tensor| {
        let mut mask = starts;
        for _ in starts.rank()..x.rank() {
            mask = mask.expand_dims(-1);
        }
        ops::where_(mask, ops::zeros_like(x), x)
    })
}
