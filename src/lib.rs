//! Podracer: a JAX-like functional tracing compiler frontend in Rust, with reinforcement learning
//! on top.
//!
//! A closure over [`Tensor`]s is run once on names; what it does becomes a [`Program`], which can
//! be differentiated, batched, printed, interpreted, and compiled by XLA. This page shows each in a
//! few lines. `docs/from-scratch.md` in the repository explains how it works.
//!
//! For reinforcement learning, [`envs::Env`] is the trait of an environment of your own,
//! [`envs::register`] gives it an id, [`rl::algorithm::main`] makes a program that trains on it, and
//! [`rl::TrainedPolicy`] acts in a service. [`algos`] lists the algorithms.
//!
//! # Run a function
//!
//! [`jit()`] compiles a function once for each signature and launches it at each call. Outside are
//! [`Array`]s, which have values and no arithmetic; inside are [`Tensor`]s, which have arithmetic
//! and no values.
//!
//! ```
//! use podracer::{Array, Tensor, eager, interpret, jit};
//!
//! let f = |x: Tensor| (x * x).sum(..).sqrt();
//! let x = Array::from([3.0f32, 4.0]);
//! assert_eq!(jit(f).call(x.clone())?.item::<f32>()?, 5.0);
//! // Operation by operation on the device; and on the host, without a compiler.
//! assert_eq!(eager(f).call(x.clone())?.item::<f32>()?, 5.0);
//! assert_eq!(interpret(f).call(x)?.item::<f32>()?, 5.0);
//! # Ok::<(), podracer::Error>(())
//! ```
//!
//! Results are computed asynchronously: a call returns when the work is queued, and reading waits.
//! An array that is moved into a call is donated: the results reuse its memory (JAX's `donate_argnums`).
//!
//! # Look at it
//!
//! ```
//! use podracer::{Array, Tensor, make_program};
//!
//! let program = make_program(|x: Tensor| x.exp() + 1.0, &Array::from([1.0f32, 2.0]))?;
//! assert_eq!(
//!     program.to_string(),
//!     "{ lambda a:f32[2]. let\n    b:f32[2] = exp a\n    d:f32[2] = add b 1:f32[2]\n  in (d) }",
//! );
//! # Ok::<(), podracer::Error>(())
//! ```
//!
//! # Derivatives
//!
//! [`grad`] differentiates the closure's argument; what the closure captures is constant. There is
//! [`value_and_grad`], and [`jvp()`], [`vjp`] and [`linearize()`] below them.
//!
//! ```
//! use podracer::{Array, Tensor, grad, interpret};
//!
//! // The derivative of a * x^3 with respect to x, and its derivative.
//! let f = interpret(|(a, x): (Tensor, Tensor)| {
//!     let first = grad(|x: Tensor| a * x * x * x);
//!     (first(x), grad(first)(x))
//! });
//! let (first, second) = f.call((Array::from(2.0f32), Array::from(3.0f32)))?;
//! assert_eq!((first.item::<f32>()?, second.item::<f32>()?), (54.0, 36.0));
//! # Ok::<(), podracer::Error>(())
//! ```
//!
//! # Batches
//!
//! [`vmap()`] makes a function of one example a function of a batch. Write for one, map over many.
//!
//! ```
//! use podracer::{Array, Tensor, grad, interpret, vmap};
//!
//! // A gradient for each example of a batch.
//! let f = interpret(|xs: Tensor| vmap(grad(|x: Tensor| (x * x).sum(..)))(xs));
//! let grads = f.call(Array::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0])?)?;
//! assert_eq!(grads.to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0]);
//! # Ok::<(), podracer::Error>(())
//! ```
//!
//! # Loops
//!
//! A Rust loop is unrolled while tracing. [`scan`], [`fori_loop`] and [`while_loop`] are loops of the
//! compiled program.
//!
//! ```
//! use podracer::trace::ops::constant;
//! use podracer::{Array, Tensor, interpret, scan};
//!
//! // Running sums: the carry is the sum so far, which is also the output of each step.
//! let f = interpret(|xs: Tensor| {
//!     scan(|sum, x| (sum + x, sum + x), constant(0.0f32), xs).1
//! });
//! let sums = f.call(Array::from([1.0f32, 2.0, 3.0]))?;
//! assert_eq!(sums.to_vec::<f32>()?, [1.0, 3.0, 6.0]);
//! # Ok::<(), podracer::Error>(())
//! ```
//!
//! # Structures
//!
//! Everything that takes or gives tensors takes or gives a [`Tree`](trait@Tree) of them. Derive it
//! for a struct over its leaf type: the same struct holds tensors inside and arrays outside.
//!
//! ```
//! use podracer::{Array, Tensor, Tree, grad, interpret};
//!
//! #[derive(Tree, Clone)]
//! struct Line<T> {
//!     slope: T,
//!     offset: T,
//! }
//!
//! let f = interpret(|(line, x): (Line<Tensor>, Tensor)| {
//!     grad(|line: Line<Tensor>| (line.slope * x + line.offset).sum(..))(line)
//! });
//! let line = Line { slope: Array::from(1.0f32), offset: Array::from(0.0f32) };
//! let grads: Line<Array> = f.call((line, Array::from([2.0f32, 3.0])))?;
//! assert_eq!((grads.slope.item::<f32>()?, grads.offset.item::<f32>()?), (5.0, 2.0));
//! # Ok::<(), podracer::Error>(())
//! ```
//!
//! # Random numbers
//!
//! A [`Key`] is spent by the draw that takes it: using it twice does not compile. The numbers are
//! JAX's, bit for bit, but for draws made of factors of matrices ([`random`] says why).
//!
//! ```
//! use podracer::{DType, Key, Tensor, interpret, random};
//!
//! let f = interpret(|key: Key<Tensor>| {
//!     let (a, b) = key.split();
//!     let coins = random::uniform(a, [3], DType::F32, 0.0, 1.0);
//!     (coins, random::normal(b, [3], DType::F32))
//! });
//! let (first, second) = (f.call(Key::new(7))?, f.call(Key::new(7))?);
//! assert_eq!(first.0.to_vec::<f32>()?, second.0.to_vec::<f32>()?);
//! # Ok::<(), podracer::Error>(())
//! ```
//!
//! # Index, beside JAX
//!
//! | Transformations | JAX | |
//! |---|---|---|
//! | [`grad`], [`value_and_grad`] | `jax.grad`, `value_and_grad` | derivatives of a function with a scalar result |
//! | [`vjp`], [`jvp()`], [`linearize()`] | `jax.vjp`, `jvp`, `linearize` | products with the Jacobian |
//! | [`jacfwd`], [`jacrev`], [`hessian`], [`hvp`] | `jax.jacfwd`, `jacrev`, `hessian` | whole Jacobians; Hessian-vector products |
//! | [`vmap()`], [`vmap_axis`], [`vmap_axis_with`] | `jax.vmap` | a batch dimension for each operand |
//! | [`checkpoint()`], [`checkpoint_with`] | `jax.checkpoint` | recomputes in the backward pass instead of keeping |
//! | [`custom_jvp`], [`custom_vjp`] | `jax.custom_jvp`, `custom_vjp` | derivatives given by hand |
//!
//! | Control flow | JAX | |
//! |---|---|---|
//! | [`scan`], [`scan_with`], [`associative_scan`] | `lax.scan`, `associative_scan` | a loop with stacked inputs and outputs |
//! | [`fori_loop`], [`while_loop`] | `lax.fori_loop`, `while_loop` | loops over a carry |
//! | [`cond`], [`switch`], [`where_`] | `lax.cond`, `switch`, `jnp.where` | a branch; a choice for each element |
//!
//! | Running | JAX | |
//! |---|---|---|
//! | [`jit()`], [`eager`], [`interpret`] | `jax.jit`, no `jit` | compiled; operation by operation; on the host without XLA |
//! | [`make_program`], [`eval_shape`] | `jax.make_jaxpr`, `eval_shape` | the traced program; the types of its results |
//! | [`pure_callback`], [`io_callback`], [`debug_callback`], [`debug_print`] | the same | Rust code called by compiled programs |
//!
//! | Devices | JAX | |
//! |---|---|---|
//! | [`shard_map`] | `jax.shard_map` | a function of shards, with collectives along mesh axes |
//! | [`psum`], [`pmean`], [`pmax`], [`pmin`], [`all_gather`], [`ppermute`], [`axis_index`] | `lax.psum` and so on | sums and exchanges over a mapped axis |
//! | [`Mesh`], [`make_mesh`], [`P`], [`NamedSharding`] | `jax.sharding` | devices in a grid with named axes |
//! | [`device_put`], [`device_get`] | the same | a value divided over a mesh, and back |
//! | [`sharded_jit`], [`with_sharding_constraint`] | `jax.jit` with shardings | whole values, divided by the compiler |
//! | [`pmap()`], [`replicate`], [`shard`], [`unreplicate`], [`unshard`] | `jax.pmap`, `flax.jax_utils` | JAX's older way: one program for each device |
//!
//! | Values | JAX | |
//! |---|---|---|
//! | [`Array`], [`Literal`] | `jax.Array`, `numpy.ndarray` | data on a device, data on the host |
//! | [`Tensor`], [`TensorType`], [`Shape`], [`DType`] | tracers, `ShapeDtypeStruct` | values while tracing |
//! | [`Key`] | `jax.random.key` | PRNG key |
//! | [`Tree`](trait@Tree), [`ravel`] | pytrees, `ravel_pytree` | structs of tensors |
//!
//! [`trace::ops`] has the operations of `jax.numpy` and `jax.lax`, and [`trace::numpy`] the functions
//! composed of them, most of both as methods of [`Tensor`].
//! [`nn`], [`optim`], [`losses`] and [`distributions`] are pure functions over tensors.
//! [`trace`] does not depend on XLA; [`lower`] does.
//!
//! # Features
//!
//! All are on by default. Modules that are not in this table need none.
//!
//! | Feature | Adds |
//! |---|---|
//! | `envs` | [`envs`]: pools of environments, which step in batches |
//! | `rl` | [`algos`]: the algorithms; [`rl`]: run folders, logs, buffers, checkpoints, [`rl::TrainedPolicy`]; [`distributed`]; enables `envs` |
//! | `cli` | the program `podracer`; enables `rl` |
//! | `malloc-hook` | reuse of the blocks of memory that XLA for CPUs frees |
//!
//! # Panics
//!
//! A mistake in traced code panics, and the function that began the trace catches the panic and returns an
//! [`Error`]. This needs `panic = "unwind"`, Cargo's default: with `panic = "abort"` the mistake prints its
//! message and ends the process.

#![deny(clippy::mod_module_files)]

// The derive writes `::podracer`, which must also mean this crate within it.
extern crate self as podracer;

#[cfg(feature = "rl")]
pub mod algos;
pub mod array;
#[cfg(feature = "rl")]
pub mod distributed;
pub mod distributions;
pub mod doctor;
#[cfg(feature = "envs")]
pub mod envs;
pub mod error;
pub mod export;
mod files;
pub mod jit;
pub mod losses;
pub mod lower;
pub mod native;
pub mod nn;
pub mod optim;
pub mod output;
pub mod pmap;
pub mod random;
#[cfg(feature = "rl")]
pub mod rl;
pub mod runtime;
pub mod spaces;
#[cfg(all(test, feature = "rl"))]
mod tests;
pub mod timeline;
pub mod trace;
pub mod tree;
mod watch;

/// The crate ndarray in the version that [`Array`] and [`Literal`] convert from and to.
pub use ndarray;

#[doc(inline)]
pub use array::Array;
#[doc(inline)]
pub use error::{Error, Result};
#[doc(inline)]
pub use jit::{Jit, Mode, eager, effects_barrier, eval_shape, interpret, jit, make_program};
#[doc(inline)]
pub use pmap::{
    Pmap, Sharded, ShardedJit, device_get, device_put, device_put_sharded, devices, make_mesh,
    pmap, pmap_with_mode, replicate, shard, sharded_jit, unreplicate, unshard,
};
#[doc(inline)]
pub use random::Key;
#[doc(inline)]
pub use trace::associative::associative_scan;
#[doc(inline)]
pub use trace::axis::{AxisNames, axis_index_groups};
#[doc(inline)]
pub use trace::callback::{
    VmapMethod, debug_callback, debug_callback_ordered, debug_print, debug_print_ordered,
    io_callback, pure_callback, pure_callback_with, raw_callback,
};
#[doc(inline)]
pub use trace::control::{ScanOptions, cond, fori_loop, scan, scan_with, switch, while_loop};
#[doc(inline)]
pub use trace::custom::{custom_jvp, custom_vjp};
#[doc(inline)]
pub use trace::jacobian::{hessian, hvp, jacfwd, jacrev, ravel};
#[doc(inline)]
pub use trace::jvp::jvp;
#[doc(inline)]
pub use trace::linearize::linearize;
#[doc(inline)]
pub use trace::literal::{Complex, F8E4M3FN, F8E5M2, I4, U4};
#[doc(inline)]
pub use trace::mesh::{Mesh, NamedSharding, P, PartitionSpec, Shardings, Specs};
#[doc(inline)]
pub use trace::ops::{
    all_gather, all_gather_tiled, all_to_all, all_to_all_tiled, axis_index, axis_size, pmax, pmean,
    pmin, ppermute, psum, psum_scatter, psum_scatter_tiled, where_,
};
#[doc(inline)]
pub use trace::remat::{RematPolicy, checkpoint, checkpoint_name, checkpoint_with};
#[doc(inline)]
pub use trace::shard_map::{shard_map, with_sharding_constraint};
#[doc(inline)]
pub use trace::transpose::{grad, grad_holomorphic, value_and_grad, vjp};
#[doc(inline)]
pub use trace::vmap::{vmap_axis, vmap_axis_with};
#[doc(inline)]
pub use trace::{Axis, DType, Literal, LoadedProgram, Program, Shape, Tensor, TensorType, vmap};
#[doc(inline)]
pub use tree::Tree;

/// The names of a first program: `use podracer::prelude::*;`.
///
/// ```
/// use podracer::prelude::*;
///
/// fn main() -> Result<()> {
///     let f = jit(vmap(grad(|x: Tensor| x.sin())));
///     let slopes = f.call(Array::from([0.0f32, 1.0]))?;
///     assert_eq!(slopes.to_vec::<f32>()?, [1.0, 1f32.cos()]);
///     Ok(())
/// }
/// ```
pub mod prelude {
    pub use crate::optim::{Adam, AdamState, Optimizer};
    pub use crate::trace::ops::{self, constant, one_hot};
    pub use crate::{
        Array, Axis, DType, Error, Key, P, Result, ScanOptions, Tensor, TensorType, Tree,
        axis_index, checkpoint, cond, custom_jvp, custom_vjp, distributions, eager, fori_loop,
        grad, hessian, hvp, interpret, jacfwd, jacrev, jit, jvp, losses, make_mesh, nn, optim,
        pmap, pmean, psum, random, scan, scan_with, shard_map, sharded_jit, switch, tree,
        value_and_grad, vjp, vmap, where_, while_loop,
    };
}

/// The code blocks of the README and of the guides, compiled and run as doc tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/from-scratch.md")]
    struct FromScratch;
    #[cfg(feature = "envs")]
    #[doc = include_str!("../docs/environments.md")]
    struct Environments;
    #[cfg(feature = "envs")]
    #[doc = include_str!("../docs/gymnasium.md")]
    struct Gymnasium;
    #[doc = include_str!("../docs/export.md")]
    struct Export;
    #[cfg(feature = "rl")]
    #[doc = include_str!("../docs/policy-service.md")]
    struct PolicyService;
    #[doc = include_str!("../docs/language-model.md")]
    struct LanguageModel;
    #[doc = include_str!("../docs/sharding.md")]
    struct Sharding;
    #[doc = include_str!("../docs/recompiles.md")]
    struct Recompiles;
    #[doc = include_str!("../docs/timeline.md")]
    struct Timeline;
    #[doc = include_str!("../docs/callbacks.md")]
    struct Callbacks;
    #[doc = include_str!("../docs/jax-parity.md")]
    struct JaxParity;
    #[cfg(feature = "rl")]
    #[doc = include_str!("../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../docs/jax-users.md")]
    struct JaxUsers;
    #[cfg(feature = "rl")]
    #[doc = include_str!("../docs/cleanrl-users.md")]
    struct CleanrlUsers;
    #[cfg(feature = "rl")]
    #[doc = include_str!("../docs/custom-environment.md")]
    struct CustomEnvironment;
    #[cfg(feature = "envs")]
    #[doc = include_str!("../docs/custom-robot.md")]
    struct CustomRobot;
    #[cfg(feature = "rl")]
    #[doc = include_str!("../docs/custom-algorithm.md")]
    struct CustomAlgorithm;
    #[doc = include_str!("../docs/rustc-errors.md")]
    struct RustcErrors;
    #[doc = include_str!("../docs/faq.md")]
    struct Faq;
}
