//! Recurrent layers whose state is a linear function of the state before it, so that all steps of a
//! sequence are computed in parallel, by [`associative_scan`]: [`MinGru`] and [`Lru`].

use std::f64::consts::TAU;

use super::init;
use crate::nn::cells::{RNNCellBase, zeros_like_input};
use crate::random::{self, Key};
use crate::trace::associative::associative_scan;
use crate::trace::ops::{concatenate, ones, where_, zeros};
use crate::trace::tensor::op;
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// A minimal gated recurrent unit (minGRU, Feng et al. 2024). The gate and the candidate depend on
/// the input only. The order of the parts is z, h~.
///
/// ```text
/// z = sigmoid(x w_z + b_z)     h~ = x w_h + b_h
/// h' = (1 - z) h + z h~
/// ```
///
/// ```
/// use podracer::nn::MinGru;
/// use podracer::{Array, DType, Key, Tensor, interpret};
/// let f = interpret(|(key, x): (Key<Tensor>, Tensor)| {
///     let cell = MinGru::init(key, 3, 8);
///     let (_last, outputs) = cell.scan(cell.project(x), None, cell.start(2));
///     outputs
/// });
/// let y = f.call((Key::new(0), Array::zeros([5, 2, 3], DType::F32)))?; // time, batch, features
/// assert_eq!(y.shape().to_vec(), [5, 2, 8]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[derive(Debug, Clone, Tree)]
pub struct MinGru<T> {
    /// Kernels of the input, `[inputs, 2 size]`.
    pub w: T,
    /// Biases, `[2 size]`.
    pub b: T,
}

impl MinGru<Tensor> {
    /// Initializes a cell in f32: LeCun normal kernels, biases of the candidate 0, and biases of the gate
    /// uniform in -4 to 4, so that units forget at different rates, after 1 to 55 steps (as in chrono
    /// initialization, Tallec & Ollivier 2018).
    #[op("MinGru::init")]
    pub fn init(key: Key<Tensor>, inputs: usize, size: usize) -> MinGru<Tensor> {
        let outputs = size.saturating_mul(2);
        let (key, gate_key) = key.split();
        let gates = random::uniform(gate_key, [size], DType::F32, -4.0, 4.0);
        MinGru {
            w: init::lecun_normal().draw(key, [inputs, outputs], DType::F32),
            b: concatenate(&[gates, zeros([size], DType::F32)], 0),
        }
    }

    /// Takes one step: returns the next state, which is also the output, for `x: [.., inputs]` and
    /// the state `h: [.., size]`.
    #[op("MinGru::apply")]
    pub fn apply(&self, x: Tensor, h: Tensor) -> Tensor {
        self.advance(self.project(x), h)
    }

    /// Computes the part of a step that does not depend on the state, `x w + b`. Maps
    /// `x: [.., inputs]` to `[.., 2 size]`.
    #[op("MinGru::project")]
    pub fn project(&self, x: Tensor) -> Tensor {
        x.matmul(self.w) + self.b
    }

    /// Computes the rest of a step: returns the next state for `projected: [.., 2 size]`, the result
    /// of [`project`](MinGru::project), and the state `h: [.., size]`.
    #[op("MinGru::advance")]
    pub fn advance(&self, projected: Tensor, h: Tensor) -> Tensor {
        let (keep, new) = self.recurrence(projected);
        keep * h + new
    }

    /// Takes T steps in parallel: returns the last state `[*batch, size]` and all states
    /// `[T, *batch, size]` for `projected: [T, *batch, 2 size]` and the state `h: [*batch, size]`
    /// before them. The state is reset to zero before each step where
    /// `episode_starts: [T, *batch]` is true or not 0, as [`reset_carry`](super::reset_carry) does.
    #[op("MinGru::scan")]
    pub fn scan(
        &self,
        projected: Tensor,
        episode_starts: Option<Tensor>,
        h: Tensor,
    ) -> (Tensor, Tensor) {
        let (mut keep, new) = self.recurrence(projected);
        if let Some(starts) = episode_starts {
            keep = where_(starts.to(DType::Bool).expand_dims(-1), 0.0, keep);
        }
        // Compositions of h -> a h + b.
        let compose = |(a1, b1): (Tensor, Tensor), (a2, b2)| (a1 * a2, a2 * b1 + b2);
        let (a, b) = associative_scan(compose, (keep, new), 0, false);
        let states = a * h + b;
        (states.index_axis(0, -1), states)
    }

    /// Returns `1 - z` and `z h~`.
    #[track_caller]
    fn recurrence(&self, projected: Tensor) -> (Tensor, Tensor) {
        let size = self.b.dim(-1) / 2;
        let z = projected.slice_axis(-1, 0, size).sigmoid();
        (1.0 - z, z * projected.slice_axis(-1, size, 2 * size))
    }

    /// Returns the state before the first step: zeros for `batch` sequences.
    #[op("MinGru::start")]
    pub fn start(&self, batch: usize) -> Tensor {
        zeros([batch, self.b.dim(-1) / 2], self.b.dtype())
    }
}

impl RNNCellBase for MinGru<Tensor> {
    type Carry = Tensor;

    #[track_caller]
    fn step(&self, carry: Tensor, inputs: Tensor) -> (Tensor, Tensor) {
        let h = self.apply(inputs, carry);
        (h, h)
    }

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> Tensor {
        zeros_like_input(input_shape, self.b.dim(-1) / 2, self.b.dtype())
    }
}

/// Initial eigenvalues of an [`Lru`]: uniform in a ring of the complex plane.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LruOptions {
    /// Smallest absolute value.
    pub r_min: f64,
    /// Largest absolute value, below or equal to 1.
    pub r_max: f64,
    /// Largest phase.
    pub max_phase: f64,
}

impl Default for LruOptions {
    /// The paper's unit disk.
    fn default() -> LruOptions {
        LruOptions { r_min: 0.0, r_max: 1.0, max_phase: TAU }
    }
}

/// A linear recurrent unit (LRU, Orvieto et al. 2023): a diagonal recurrence of complex numbers, of
/// which real and imaginary part are tensors of their own.
///
/// ```text
/// lambda = exp(-exp(nu_log) + i exp(theta_log))
/// h' = lambda h + exp(gamma_log) (x B)          complex
/// y = Re(h' C) + x D
/// ```
#[derive(Debug, Clone, Tree)]
pub struct Lru<T> {
    /// `[size]`: log of the decay rate, so that eigenvalues stay within the unit circle.
    pub nu_log: T,
    /// `[size]`: log of the phase.
    pub theta_log: T,
    /// `[size]`: log of the factor of inputs, `sqrt(1 - |lambda|^2)` at first.
    pub gamma_log: T,
    /// Kernels of the input, `[inputs, 2 size]`: the real part of B, then the imaginary part.
    pub b: T,
    /// Kernels of the state, `[2 size, outputs]`: the real part of C, then the imaginary part.
    pub c: T,
    /// Kernel from inputs to outputs, `[inputs, outputs]`.
    pub d: T,
}

/// Real and imaginary part.
type Parts = (Tensor, Tensor);

/// Multiplies complex numbers.
#[track_caller]
fn times((a, b): Parts, (c, d): Parts) -> Parts {
    (a * c - b * d, a * d + b * c)
}

impl Lru<Tensor> {
    /// Initializes a layer in f32 with the paper's distributions: eigenvalues uniform in the unit
    /// disk, normal kernels. It has `size` complex numbers of state and as many outputs.
    #[op("Lru::init")]
    pub fn init(key: Key<Tensor>, inputs: usize, size: usize) -> Lru<Tensor> {
        Lru::init_with(key, inputs, size, size, LruOptions::default())
    }

    /// Initializes a layer as [`init`](Lru::init) does, with this number of outputs, and eigenvalues
    /// in the ring of `options`.
    #[op("Lru::init_with")]
    pub fn init_with(
        key: Key<Tensor>,
        inputs: usize,
        size: usize,
        outputs: usize,
        options: LruOptions,
    ) -> Lru<Tensor> {
        let LruOptions { r_min, r_max, max_phase } = options;
        let [radius, phase, b, c, d] = key.split_n();
        // Numbers above 0, whose logarithms are finite.
        let uniform = |key| random::uniform(key, [size], DType::F32, f64::from(f32::EPSILON), 1.0);
        let square = uniform(radius) * (r_max * r_max - r_min * r_min) + r_min * r_min;
        let normal = |key, rows: usize, columns: usize, variance: f64| {
            random::normal(key, [rows, columns], DType::F32) * variance.sqrt()
        };
        let parts = size.saturating_mul(2);
        Lru {
            nu_log: (square.log() * -0.5).log(),
            theta_log: (uniform(phase) * max_phase).log(),
            gamma_log: (1.0 - square).log() * 0.5,
            b: normal(b, inputs, parts, 0.5 / inputs.max(1) as f64),
            c: normal(c, parts, outputs, 1.0 / size.max(1) as f64),
            d: normal(d, inputs, outputs, 1.0 / inputs.max(1) as f64),
        }
    }

    /// Takes one step: returns the next state and the output `[.., outputs]` for `x: [.., inputs]`
    /// and the state `(real, imaginary)`, `[.., size]` each.
    #[op("Lru::apply")]
    pub fn apply(&self, x: Tensor, state: (Tensor, Tensor)) -> ((Tensor, Tensor), Tensor) {
        self.advance(self.project(x), state)
    }

    /// Computes the part of a step that does not depend on the state. Maps `x: [.., inputs]` to
    /// `[.., 2 size + outputs]`: real and imaginary part of `exp(gamma_log) (x B)`, and `x D`.
    #[op("Lru::project")]
    pub fn project(&self, x: Tensor) -> Tensor {
        let gamma = self.gamma_log.exp();
        let gammas = concatenate(&[gamma, gamma], 0);
        x.matmul(concatenate(&[self.b * gammas, self.d], 1))
    }

    /// Computes the rest of a step: returns the next state and the output for
    /// `projected: [.., 2 size + outputs]`, the result of [`project`](Lru::project), and the state.
    #[op("Lru::advance")]
    pub fn advance(
        &self,
        projected: Tensor,
        state: (Tensor, Tensor),
    ) -> ((Tensor, Tensor), Tensor) {
        let (new, direct) = self.split(projected);
        let kept = times(self.eigenvalues(), state);
        let state = (kept.0 + new.0, kept.1 + new.1);
        (state, self.output(state, direct))
    }

    /// Takes T steps in parallel: returns the last state and the outputs `[T, *batch, outputs]` for
    /// `projected: [T, *batch, 2 size + outputs]` and the state `[*batch, size]` before them. The
    /// state is reset to zero before each step where `episode_starts: [T, *batch]` is true or not 0,
    /// as [`reset_carry`](super::reset_carry) does.
    #[op("Lru::scan")]
    pub fn scan(
        &self,
        projected: Tensor,
        episode_starts: Option<Tensor>,
        state: (Tensor, Tensor),
    ) -> ((Tensor, Tensor), Tensor) {
        let (new, direct) = self.split(projected);
        // Powers of the eigenvalues are the same for the whole batch, [T, 1, .., size].
        let (steps, rank, size) = (projected.dim(0), projected.rank(), self.nu_log.dim(0));
        let per_step = [&[steps][..], &vec![1; rank - 2], &[size]].concat();
        let (re, im) = self.eigenvalues();
        let powers = (re.broadcast_to(&per_step[..]), im.broadcast_to(&per_step[..]));
        // 0 where a state is reset, [T, *batch, 1].
        let keep = match episode_starts {
            Some(starts) => 1.0 - starts.to(DType::Bool).to(re.dtype()).expand_dims(-1),
            None => ones([&[steps][..], &vec![1; rank - 1]].concat(), re.dtype()),
        };
        // Compositions of h -> keep power h + new.
        type Affine = (Parts, Tensor, Parts);
        let compose = |(power1, keep1, new1): Affine, (power2, keep2, new2): Affine| {
            let kept = times(power2, new1);
            let new = (keep2 * kept.0 + new2.0, keep2 * kept.1 + new2.1);
            (times(power1, power2), keep1 * keep2, new)
        };
        let (powers, keep, new) = associative_scan(compose, (powers, keep, new), 0, false);
        let kept = times(powers, state);
        let states = (keep * kept.0 + new.0, keep * kept.1 + new.1);
        let last = (states.0.index_axis(0, -1), states.1.index_axis(0, -1));
        (last, self.output(states, direct))
    }

    /// Returns the eigenvalues of the recurrence, `[size]`.
    #[track_caller]
    fn eigenvalues(&self) -> Parts {
        let radius = (-self.nu_log.exp()).exp();
        let phase = self.theta_log.exp();
        (radius * phase.cos(), radius * phase.sin())
    }

    /// Splits the result of [`Lru::project`] into the inputs of the state, and `x D`.
    #[track_caller]
    fn split(&self, projected: Tensor) -> (Parts, Tensor) {
        let (size, end) = (self.nu_log.dim(0), projected.dim(-1));
        let part = |start, end| projected.slice_axis(-1, start, end);
        ((part(0, size), part(size, 2 * size)), part(2 * size, end))
    }

    #[track_caller]
    fn output(&self, (re, im): Parts, direct: Tensor) -> Tensor {
        concatenate(&[re, -im], -1).matmul(self.c) + direct
    }

    /// Returns the state before the first step: zeros for `batch` sequences.
    #[op("Lru::start")]
    pub fn start(&self, batch: usize) -> (Tensor, Tensor) {
        let zeros = zeros([batch, self.nu_log.dim(0)], self.nu_log.dtype());
        (zeros, zeros)
    }
}

impl RNNCellBase for Lru<Tensor> {
    type Carry = (Tensor, Tensor);

    #[track_caller]
    fn step(&self, carry: (Tensor, Tensor), inputs: Tensor) -> ((Tensor, Tensor), Tensor) {
        self.apply(inputs, carry)
    }

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> (Tensor, Tensor) {
        let zeros = zeros_like_input(input_shape, self.nu_log.dim(0), self.nu_log.dtype());
        (zeros, zeros)
    }
}
