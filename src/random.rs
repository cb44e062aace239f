//! Random numbers with JAX's generator: a counter-based PRNG (Threefry-2x32, 20 rounds; Salmon et
//! al. 2011, "Parallel random numbers: as easy as 1, 2, 3") with an explicit [`Key`].
//!
//! Draws equal those of JAX 0.10 bit for bit, with `jax_threefry_partitionable` on, its default since
//! 0.5.0. The page `docs/jax-parity.md` lists the exceptions.
//!
//! A [`Key`] is neither `Copy` nor `Clone`, and every sampling function takes it by value: code
//! that uses a key twice does not compile. Split the key first.
//!
//! ```compile_fail,E0382
//! use podracer::random::{self, Key};
//! use podracer::{DType, Tensor};
//!
//! fn draw_twice(key: Key<Tensor>) -> (Tensor, Tensor) {
//!     (random::normal(key, [3], DType::F32), random::normal(key, [3], DType::F32))
//! }
//! ```
//!
//! ```
//! use podracer::random::{self, Key};
//! use podracer::{DType, Tensor};
//!
//! fn draw_two(key: Key<Tensor>) -> (Tensor, Tensor) {
//!     let (a, b) = key.split();
//!     (random::normal(a, [3], DType::F32), random::normal(b, [3], DType::F32))
//! }
//! ```
//!
//! A struct that holds a key derives `Tree`, and `Debug` if its other fields do. It cannot derive
//! `Clone`: keep the parts that are copied, such as parameters, in a struct of their own.
//!
//! ```
//! use podracer::nn::Mlp;
//! use podracer::random::Key;
//! use podracer::tree::Tree;
//!
//! #[derive(Debug, Clone, Tree)]
//! struct Params<T> {
//!     policy: Mlp<T>,
//! }
//!
//! #[derive(Debug, Tree)] // with `Clone` it does not compile
//! struct TrainState<T> {
//!     params: Params<T>,
//!     key: Key<T>,
//! }
//! ```
//!
//! ```compile_fail,E0277
//! # use podracer::random::Key;
//! # use podracer::tree::Tree;
//! #[derive(Clone, Tree)]
//! struct TrainState<T> {
//!     key: Key<T>,
//! }
//! ```

mod continuous;
mod counts;
mod discrete;
mod gamma;
mod real;
#[cfg(test)]
mod tests;

use std::panic::Location;

use crate::array::Array;
use crate::trace::op::Op;
use crate::trace::ops::{self, Operand};
use crate::trace::tensor::{bind, fail_op};
use crate::trace::{DType, Literal, Shape, Tensor, TensorType};
use crate::tree::Tree;

pub use continuous::{
    cauchy, double_sided_maxwell, laplace, logistic, lognormal, maxwell, multivariate_normal,
    orthogonal, pareto, rademacher, rayleigh, triangular, wald, weibull_min,
};
pub use counts::{binomial, geometric, multinomial, poisson};
pub use discrete::{
    bernoulli, categorical, categorical_shaped, choice, choice_weighted, permutation,
    permutation_of, randint,
};
pub use gamma::{ball, beta, chisquare, dirichlet, f, gamma, generalized_normal, loggamma, t};
pub use real::{exponential, gumbel, normal, truncated_normal, uniform};

/// PRNG key: two words, `u32[2]`, consumed by the function that takes it.
///
/// A key is a tree of one leaf, and can be passed to compiled functions, carried by loops and kept
/// in training states like any tensor.
#[derive(Debug, Tree)]
pub struct Key<T> {
    data: T,
}

/// Returns the two words of a seed, high word first.
fn words(seed: u64) -> Literal {
    Literal::from([(seed >> 32) as u32, seed as u32])
}

impl Key<Array> {
    /// Creates the key of a seed as an array, for calls of compiled functions:
    /// `jax.random.key(seed)` for seeds below 2^32.
    ///
    /// JAX truncates larger seeds to 32 bits unless `jax_enable_x64` is set; here all 64 bits are
    /// used. A negative seed of JAX corresponds to its 32-bit pattern: -1 is `0xffff_ffff`.
    ///
    /// ```
    /// use podracer::random::{self, Key};
    /// use podracer::{DType, Tensor, jit};
    /// let draw = jit(|key: Key<Tensor>| random::normal(key, [3], DType::F32));
    /// assert_eq!(draw.call(Key::new(0))?.shape()[..], [3]);
    /// # Ok::<(), podracer::Error>(())
    /// ```
    pub fn new(seed: u64) -> Key<Array> {
        Key { data: Array::from(words(seed)) }
    }
}

impl Key<Literal> {
    /// Creates the key of a seed as a [`Literal`]; see [`Key::new`].
    pub fn literal(seed: u64) -> Key<Literal> {
        Key { data: words(seed) }
    }
}

impl<T> Key<T> {
    /// Makes a key from its two words, `data`, `u32[2]`: the inverse of [`Key::into_data`].
    ///
    /// It can make a second key of the same words. Where that is not intended, split the key.
    pub fn from_data(data: T) -> Key<T> {
        Key { data }
    }

    /// Consumes the key and returns its words, `u32[2]`.
    pub fn into_data(self) -> T {
        self.data
    }
}

impl Key<Tensor> {
    /// Creates the key of a seed known at trace time; see [`Key::new`].
    #[track_caller]
    pub fn constant(seed: u64) -> Key<Tensor> {
        Key { data: ops::constant(words(seed)) }
    }

    /// Splits the key into two independent keys.
    #[track_caller]
    pub fn split(self) -> (Key<Tensor>, Key<Tensor>) {
        let [first, second] = self.split_n();
        (first, second)
    }

    /// Splits the key into `N` independent keys: `let [a, b, c] = key.split_n();`.
    #[track_caller]
    pub fn split_n<const N: usize>(self) -> [Key<Tensor>; N] {
        let keys = self.split_vec(N);
        keys.try_into().expect("as many keys as were asked for")
    }

    /// Splits the key into `n` independent keys.
    #[track_caller]
    pub fn split_vec(self, n: usize) -> Vec<Key<Tensor>> {
        ops::ensure_parts("split_vec", n);
        let data = self.split_batch(n).data;
        let mut keys = Vec::with_capacity(n);
        for i in 0..n {
            keys.push(Key { data: data.index_axis(0, i as isize) });
        }
        keys
    }

    /// Splits the key into `n` keys in one tensor `u32[n,2]`, for use as the `xs` of a
    /// [`scan`](crate::trace::control::scan) or as the argument of a mapped function. Sampling
    /// functions do not accept such a batch.
    #[track_caller]
    pub fn split_batch(self, n: usize) -> Key<Tensor> {
        let (first, second) = self.hash(counters(n));
        Key { data: ops::stack(&[first, second], -1) }
    }

    /// Derives a key from this key and a number: `jax.random.fold_in`. `data` is an integer scalar,
    /// of which the low 32 bits are used.
    ///
    /// `key.fold_in(i)` equals the i-th key of [`Key::split_vec`]: fold numbers into a key or split
    /// it, but not both.
    #[track_caller]
    pub fn fold_in(self, data: impl Operand) -> Key<Tensor> {
        let data = data.to_tensor(&TensorType::scalar(DType::I64));
        let ty = data.ty();
        if ty.rank() != 0 || !ty.dtype.is_int() {
            fail_op("fold_in", format!("takes an integer scalar, and was given {ty}"));
        }
        let low = data.to(DType::U32).reshape([1]);
        let (first, second) = self.hash((ops::zeros([1], DType::U32), low));
        Key { data: ops::concatenate(&[first, second], 0) }
    }

    /// Computes Threefry-2x32: two words for each counter, given as high and low words `u32[n]`.
    #[track_caller]
    fn hash(self, (high, low): (Tensor, Tensor)) -> (Tensor, Tensor) {
        let ty = self.data.ty();
        if ty != TensorType::new(DType::U32, [2]) {
            let problem = format!(
                "a key is u32[2], and this one is {ty}; keys made by split_batch are drawn from \
                 one by one, inside vmap or scan"
            );
            fail_op("random", problem);
        }
        let shape = low.shape();
        let first = self.data.slice_axis(0, 0, 1).broadcast_to(&shape);
        let second = self.data.slice_axis(0, 1, 2).broadcast_to(&shape);
        let words = bind(Op::Threefry, &[first, second, high, low], Location::caller());
        (words[0], words[1])
    }
}

/// Returns the counters `0..n` as high and low words, `u32[n]` each.
#[track_caller]
fn counters(n: usize) -> (Tensor, Tensor) {
    if n as u64 <= 1 << 32 {
        return (ops::zeros([n], DType::U32), ops::arange(n, DType::U32));
    }
    let numbers = ops::arange(n, DType::U64);
    ((numbers >> 32).to(DType::U32), numbers.to(DType::U32))
}

/// Samples uniformly random bits: `jax.random.bits`. `dtype` is u8, u16, u32 or u64.
#[track_caller]
pub fn bits(key: Key<Tensor>, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let shape = shape.into();
    let (first, second) = key.hash(counters(shape.numel()));
    let bits = match dtype {
        DType::U64 => (first.to(DType::U64) << 32) | second.to(DType::U64),
        DType::U8 | DType::U16 | DType::U32 => (first ^ second).to(dtype),
        _ => fail_op("bits", format!("gives u8, u16, u32 or u64, and was asked for {dtype}")),
    };
    bits.reshape(shape)
}

/// Checks that `parameters` broadcast to exactly `shape`, as JAX does.
#[track_caller]
fn check_shape(name: &str, shape: &Shape, parameters: &[Tensor]) {
    let mut shapes = vec![shape.clone()];
    for parameter in parameters {
        shapes.push(parameter.shape());
    }
    let full = ops::broadcast_shapes(name, &shapes);
    if full != *shape {
        fail_op(name, format!("the parameters have shape {full}, and the draw {shape}"));
    }
}

/// The parameters as tensors of type `dtype` and shape `shape`, to which they must broadcast.
#[track_caller]
fn parameters<const N: usize>(
    op: &str,
    shape: &Shape,
    dtype: DType,
    given: [Tensor; N],
) -> [Tensor; N] {
    if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
        fail_op(op, format!("draws floats, and was asked for {dtype}"));
    }
    check_shape(op, shape, &given);
    given.map(|parameter| parameter.to(dtype).broadcast_to(shape))
}
