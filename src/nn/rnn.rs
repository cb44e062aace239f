//! Recurrent cells over sequences, and layers one after another.

use std::panic::Location;

use crate::nn::cells::RNNCellBase;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops;
use crate::trace::tensor::{at_line, fail_op, op};
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

/// Recurrent cell over a sequence: flax's `RNN`.
///
/// ```
/// use podracer::nn::{GRUCell, RNN};
/// use podracer::{Array, DType, Key, Tensor, interpret};
/// let f = interpret(|(key, x): (Key<Tensor>, Tensor)| {
///     let (_carry, y) = RNN::new(GRUCell::init(key, 3, 8)).apply(x, None, None);
///     y
/// });
/// let y = f.call((Key::new(0), Array::zeros([2, 5, 3], DType::F32)))?; // batch, time, features
/// assert_eq!(y.shape().to_vec(), [2, 5, 8]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[derive(Debug, Clone, Tree)]
#[tree(nested = C)]
pub struct RNN<C> {
    /// Cell.
    pub cell: C,
    /// The time axis is the first one; else it follows the batch axes.
    pub time_major: bool,
    /// Runs from the last step to the first.
    pub reverse: bool,
    /// With `reverse`, outputs keep the order of the inputs.
    pub keep_order: bool,
    /// Number of steps in one iteration of the compiled loop.
    pub unroll: usize,
}

impl<C> RNN<C> {
    /// Returns a layer with flax's defaults: batch axes first, forwards.
    pub fn new(cell: C) -> RNN<C> {
        RNN { cell, time_major: false, reverse: false, keep_order: false, unroll: 1 }
    }
}

impl<C: RNNCellBase> RNN<C> {
    /// Runs the cell over `inputs: [*batch, time, *features]` and returns the last carry and the
    /// outputs `[*batch, time, *outputs]`.
    ///
    /// Without an `initial_carry` it begins with the cell's. `seq_lengths: [*batch]`, `i32`, are the
    /// numbers of steps of each sequence that count: the carry is that after the last of them, and
    /// with `reverse` only these are reversed. Outputs after them are of padding.
    #[op("RNN::apply")]
    pub fn apply(
        &self,
        inputs: Tensor,
        initial_carry: Option<C::Carry>,
        seq_lengths: Option<Tensor>,
    ) -> (C::Carry, Tensor) {
        self.run(inputs, initial_carry, seq_lengths, [self.reverse, self.keep_order])
    }

    #[track_caller]
    fn run(
        &self,
        inputs: Tensor,
        initial_carry: Option<C::Carry>,
        seq_lengths: Option<Tensor>,
        [reverse, keep_order]: [bool; 2],
    ) -> (C::Carry, Tensor) {
        let at = Location::caller();
        let features = self.cell.num_feature_axes();
        if inputs.rank() < features + 1 {
            fail_op(
                "RNN",
                format!("takes [*batch, time, *features], and was given {}", inputs.ty()),
            );
        }
        let time = if self.time_major { 0 } else { inputs.rank() - features - 1 };
        let xs = inputs.moveaxis(time as isize, 0);
        let shape = xs.shape();
        expect_lengths(seq_lengths, &shape[1..shape.rank() - features]);
        let xs = if reverse { flip_sequences(xs, seq_lengths) } else { xs };
        let start = initial_carry.unwrap_or_else(|| self.cell.initialize_carry(&shape[1..]));
        let options = ScanOptions { unroll: self.unroll, ..ScanOptions::length(shape[0]) };
        let step = |(carry, last): (C::Carry, Option<C::Carry>), (t, x): (Tensor, Tensor)| {
            at_line(at, || {
                let (carry, y) = self.cell.step(carry, x);
                let last = match (seq_lengths, last) {
                    (Some(lengths), Some(last)) => Some(chosen(lengths.gt(t), &carry, &last)),
                    _ => None,
                };
                ((carry, last), y)
            })
        };
        let steps = ops::arange(shape[0], DType::I32);
        let carries = (start.clone(), seq_lengths.map(|_| start));
        let ((carry, last), ys) = scan_with(step, carries, (steps, xs), options);
        let ys = if reverse && keep_order { flip_sequences(ys, seq_lengths) } else { ys };
        (last.unwrap_or(carry), ys.moveaxis(0, time as isize))
    }
}

/// Checks that the lengths of sequences are i32 of the batch.
#[track_caller]
fn expect_lengths(seq_lengths: Option<Tensor>, batch: &[usize]) {
    if let Some(lengths) = seq_lengths
        && (lengths.shape()[..] != *batch || lengths.dtype() != DType::I32)
    {
        let problem =
            format!("seq_lengths is i32 of the batch {batch:?}, and {} was given", lengths.ty());
        fail_op("RNN", problem);
    }
}

/// Chooses between two carries for each element of the batch.
fn chosen<C: Tree<Tensor>>(first: Tensor, on_true: &C, on_false: &C) -> C {
    let mut others = tree::leaves(on_false).into_iter();
    let leaves: Vec<Tensor> = tree::leaves(on_true)
        .into_iter()
        .map(|new| {
            let old = others.next().expect("carries of one structure");
            let ones = vec![1; new.rank().saturating_sub(first.rank())];
            let first = first.reshape([&first.shape()[..], &ones].concat());
            ops::where_(first, new, old)
        })
        .collect();
    tree::replace(on_true, leaves)
}

/// Reverses the first axis, of time, up to the length of each sequence of the batch: flax's
/// `flip_sequences`.
#[track_caller]
fn flip_sequences(x: Tensor, seq_lengths: Option<Tensor>) -> Tensor {
    let Some(lengths) = seq_lengths else { return x.flip(0) };
    let shape = x.shape();
    let length = shape[0];
    // Step t takes step (lengths - 1 - t) modulo the length, so that padding follows.
    let batch = lengths.shape();
    let steps =
        ops::arange(length, DType::I32).reshape([&[length][..], &vec![1; batch.rank()]].concat());
    let from = (lengths - 1 - steps).modulo(length as i32);
    let rank = shape.rank() - 1 - batch.rank();
    let from = from.reshape([&[length], &batch[..], &vec![1; rank]].concat());
    x.take_along_axis(from.broadcast_to(&shape), 0)
}

/// Two layers over a sequence, one forwards and one backwards: flax's `Bidirectional`, whose outputs
/// are concatenated.
#[derive(Debug, Clone, Tree)]
#[tree(nested = F, nested = B)]
pub struct Bidirectional<F, B> {
    /// Layer from the first step to the last.
    pub forward_rnn: RNN<F>,
    /// Layer from the last step to the first.
    pub backward_rnn: RNN<B>,
}

impl<F: RNNCellBase, B: RNNCellBase> Bidirectional<F, B> {
    /// Returns both last carries, and the outputs of both layers concatenated along the last axis;
    /// the arguments are those of [`RNN::apply`].
    #[op("Bidirectional::apply")]
    pub fn apply(
        &self,
        inputs: Tensor,
        initial_carry: Option<(F::Carry, B::Carry)>,
        seq_lengths: Option<Tensor>,
    ) -> ((F::Carry, B::Carry), Tensor) {
        let (forward, backward) = self.apply_both(inputs, initial_carry, seq_lengths);
        ((forward.0, backward.0), ops::concatenate(&[forward.1, backward.1], -1))
    }

    /// [`Bidirectional::apply`] with another function of both outputs: flax's `merge_fn`.
    #[op("Bidirectional::apply_with")]
    pub fn apply_with(
        &self,
        inputs: Tensor,
        initial_carry: Option<(F::Carry, B::Carry)>,
        seq_lengths: Option<Tensor>,
        merge_fn: impl FnOnce(Tensor, Tensor) -> Tensor,
    ) -> ((F::Carry, B::Carry), Tensor) {
        let (forward, backward) = self.apply_both(inputs, initial_carry, seq_lengths);
        ((forward.0, backward.0), merge_fn(forward.1, backward.1))
    }

    #[track_caller]
    #[allow(clippy::type_complexity)]
    fn apply_both(
        &self,
        inputs: Tensor,
        initial_carry: Option<(F::Carry, B::Carry)>,
        seq_lengths: Option<Tensor>,
    ) -> ((F::Carry, Tensor), (B::Carry, Tensor)) {
        let (forward, backward) = initial_carry.unzip();
        let along = |rnn: &RNN<F>| rnn.run(inputs, forward, seq_lengths, [false, false]);
        let against = |rnn: &RNN<B>| rnn.run(inputs, backward, seq_lengths, [true, true]);
        (along(&self.forward_rnn), against(&self.backward_rnn))
    }
}

/// A layer that maps one tensor to one tensor, for [`Sequential`]. Implement it for layers of your
/// own.
pub trait Layer {
    /// Maps `x`.
    fn call(&self, x: Tensor) -> Tensor;
}

macro_rules! layers {
    ($($layer:ident),* $(,)?) => {$(
        impl Layer for super::$layer<Tensor> {
            #[track_caller]
            fn call(&self, x: Tensor) -> Tensor {
                self.apply(x)
            }
        }
    )*};
}
layers!(
    Conv,
    Conv2d,
    ConvLocal,
    ConvTranspose,
    ConvTranspose2d,
    Dense,
    DenseGeneral,
    Einsum,
    Embed,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    Mlp,
    PReLU,
    RMSNorm,
);

impl Layer for super::layers::Activation {
    #[track_caller]
    fn call(&self, x: Tensor) -> Tensor {
        self.apply(x)
    }
}

macro_rules! tuples {
    ($($($layer:ident $at:tt),+;)*) => {$(
        impl<$($layer: Layer),+> Layer for ($($layer,)+) {
            #[track_caller]
            fn call(&self, x: Tensor) -> Tensor {
                $(let x = self.$at.call(x);)+
                x
            }
        }
    )*};
}
tuples!(
    A 0;
    A 0, B 1;
    A 0, B 1, C 2;
    A 0, B 1, C 2, D 3;
    A 0, B 1, C 2, D 3, E 4;
    A 0, B 1, C 2, D 3, E 4, F 5;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6;
    A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
);

impl<L: Layer> Layer for Vec<L> {
    #[track_caller]
    fn call(&self, x: Tensor) -> Tensor {
        let mut x = x;
        for layer in self {
            x = layer.call(x);
        }
        x
    }
}

/// Layers one after another: flax's `Sequential`. The layers are a tuple or a vector.
///
/// ```
/// use podracer::nn::{Activation, Dense, Sequential, init};
/// use podracer::{Array, DType, Key, Tensor, interpret};
/// let f = interpret(|(key, x): (Key<Tensor>, Tensor)| {
///     let [a, b] = key.split_n();
///     let first = Dense::init(a, 3, 8, init::lecun_normal());
///     let second = Dense::init(b, 8, 2, init::lecun_normal());
///     Sequential { layers: (first, Activation::Relu, second) }.apply(x)
/// });
/// let y = f.call((Key::new(0), Array::zeros([5, 3], DType::F32)))?;
/// assert_eq!(y.shape().to_vec(), [5, 2]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[derive(Debug, Clone, Tree)]
#[tree(nested = L)]
pub struct Sequential<L> {
    /// Layers, in order.
    pub layers: L,
}

impl<L: Layer> Sequential<L> {
    /// Applies the layers to `x`.
    #[op("Sequential::apply")]
    pub fn apply(&self, x: Tensor) -> Tensor {
        self.layers.call(x)
    }
}
