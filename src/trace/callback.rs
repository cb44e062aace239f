//! Callbacks: compiled code calls functions on the host. [`pure_callback`], [`io_callback`],
//! [`debug_callback`], [`debug_print`].
//!
//! The function gets the values of a tree of tensors, and returns those of another. The kind of the
//! call determines the transformations that are allowed:
//!
//! | | results | may be left out, moved, run twice | under `vmap` | under `grad` |
//! |---|---|---|---|---|
//! | pure | yes | yes | by [`VmapMethod`] | an error: use `custom_jvp` |
//! | io | yes | no | once for each example | runs once; its results count as constants |
//! | debug | none | no | once for each example | runs once, with the values |
//!
//! Io and debug callbacks of one run happen in the order of the program, those in loops iteration
//! by iteration. Ordered ones also happen in order between runs: a run with ordered callbacks
//! begins when the one before it has ended.
//!
//! A compiled program may call from another thread, and while the calling thread continues. The
//! function must not run compiled programs or wait for arrays itself: that is an error. `interpret`
//! works there.

mod format;

use std::panic::Location;

use self::format::Format;
pub use super::host::{HostFn, HostView, HostViewMut};
use super::literal::Literal;
pub use super::op::{CallbackKind, VmapMethod};
use super::op::{CallbackOp, Op};
use super::tensor::{Tensor, Tensors, at_line, bind, fail_op};
use super::types::TensorType;
use crate::error::{Error, Loc, Result};
use crate::output;
use crate::tree::{self, Path, Tree};

/// A failed callback unwinds with this to where its Program was run.
pub(crate) struct Failed(pub(crate) Error);

/// `jax.pure_callback`: calls `f` on the host with the values of `args`. Its results are of the
/// types `results`.
///
/// `f` must return the same results for the same arguments and do nothing else: a call whose
/// results are not used is left out, and equal calls may be merged. Its derivative is an error; wrap it
/// with [`custom_jvp`](crate::custom_jvp()). Under `vmap` it is called for each example, one after
/// another; see [`pure_callback_with`].
///
/// ```
/// use podracer::{Array, Literal, Tensor, jit, pure_callback};
/// // Sorted by the host.
/// let f = jit(|x: Tensor| {
///     let sorted = |x: Literal| {
///         let mut x = x.to_vec::<f32>()?;
///         x.sort_by(f32::total_cmp);
///         Ok(Literal::from(x))
///     };
///     pure_callback(sorted, x.ty(), x)
/// });
/// assert_eq!(f.call(Array::from([3.0f32, 1.0, 2.0]))?.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
///
/// # Errors
/// A run fails with [`Error::Callback`] or, compiled, [`Error::Pjrt`], that names the line of this
/// call: if `f` returns an error or panics, or if its results have another structure or other types
/// than `results`.
#[track_caller]
pub fn pure_callback<A, R>(
    f: impl Fn(A::With<Literal>) -> Result<R::With<Literal>> + Send + Sync + 'static,
    results: R,
    args: A,
) -> R::With<Tensor>
where
    A: Tree<Tensor> + Send + Sync + 'static,
    R: Tree<TensorType> + Send + Sync + 'static,
{
    pure_callback_with(VmapMethod::Sequential, f, results, args)
}

/// [`pure_callback`] with an explicit batching rule under `vmap`. JAX has no default for it.
///
/// ```
/// use podracer::trace::callback::{VmapMethod, pure_callback_with};
/// use podracer::{Array, Literal, Tensor, jit, vmap};
/// // One call for the batch: `f` gets and gives [3] where one example is a scalar.
/// let double = |x: Literal| {
///     let twice: Vec<f32> = x.to_vec::<f32>()?.iter().map(|x| 2.0 * x).collect();
///     Ok(Literal::new(&x.ty().shape, &twice))
/// };
/// let f = jit(move |xs: Tensor| {
///     vmap(move |x: Tensor| pure_callback_with(VmapMethod::BroadcastAll, double, x.ty(), x))(xs)
/// });
/// assert_eq!(f.call(Array::from([1.0f32, 2.0, 3.0]))?.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn pure_callback_with<A, R>(
    method: VmapMethod,
    f: impl Fn(A::With<Literal>) -> Result<R::With<Literal>> + Send + Sync + 'static,
    results: R,
    args: A,
) -> R::With<Tensor>
where
    A: Tree<Tensor> + Send + Sync + 'static,
    R: Tree<TensorType> + Send + Sync + 'static,
{
    call("pure_callback", CallbackKind::Pure(method), f, results, args, Location::caller())
}

/// `jax.experimental.io_callback`: calls `f` on the host with the values of `args`, once for each
/// execution of the call, even if its results are unused. `ordered`: calls happen in order between
/// runs, too.
///
/// Under `grad` its results count as constants, as with `stop_gradient`; in JAX that is an error.
/// Under `vmap` it is called for each example if an argument
/// differs between them; an ordered one is then an error.
///
/// ```
/// use std::sync::atomic::{AtomicI32, Ordering};
/// use podracer::{Array, Literal, Tensor, TensorType, DType, io_callback, jit};
/// // Numbers in order.
/// static NEXT: AtomicI32 = AtomicI32::new(0);
/// let f = jit(|()| {
///     let number = |()| Ok(Literal::from(NEXT.fetch_add(1, Ordering::SeqCst)));
///     let ty = TensorType::scalar(DType::I32);
///     let draw = || io_callback(number, ty.clone(), true, ());
///     let (first, second): (Tensor, Tensor) = (draw(), draw());
///     second * 10 + first
/// });
/// assert_eq!(f.call(())?.item::<i32>()?, 10);
/// assert_eq!(f.call(())?.item::<i32>()?, 32);
/// # Ok::<(), podracer::Error>(())
/// ```
///
/// # Errors
/// As [`pure_callback`].
#[track_caller]
pub fn io_callback<A, R>(
    f: impl Fn(A::With<Literal>) -> Result<R::With<Literal>> + Send + Sync + 'static,
    results: R,
    ordered: bool,
    args: A,
) -> R::With<Tensor>
where
    A: Tree<Tensor> + Send + Sync + 'static,
    R: Tree<TensorType> + Send + Sync + 'static,
{
    call("io_callback", CallbackKind::io(ordered), f, results, args, Location::caller())
}

/// `jax.debug.callback`: calls `f` on the host with the values of `args`. For inspecting values
/// that a program computes: derivatives leave it as it is and run it once, with the values.
///
/// The call may still be running when the program's results are available, or when the process
/// ends; [`effects_barrier`](crate::jit::effects_barrier) waits for it.
#[track_caller]
pub fn debug_callback<A: Tree<Tensor> + Send + Sync + 'static>(
    f: impl Fn(A::With<Literal>) + Send + Sync + 'static,
    args: A,
) {
    debug_call(false, f, args, Location::caller());
}

/// [`debug_callback`] whose calls happen in order between runs, too.
#[track_caller]
pub fn debug_callback_ordered<A: Tree<Tensor> + Send + Sync + 'static>(
    f: impl Fn(A::With<Literal>) + Send + Sync + 'static,
    args: A,
) {
    debug_call(true, f, args, Location::caller());
}

/// `jax.debug.print`: prints the values of `args` on standard output, each leaf at a `{}` of
/// `format`, tensors as `ndarray` writes them. `{:.3}` prints three digits after the point; `{{`
/// and `}}` are braces.
///
/// ```
/// use podracer::{Array, Tensor, debug_print, jit};
/// let f = jit(|x: Tensor| {
///     debug_print("x = {}, of which the mean is {:.2}", (x, x.mean(..)));
///     x * 2.0
/// });
/// f.call(Array::from([1.0f32, 2.0]))?;
/// podracer::jit::effects_barrier()?;
/// # Ok::<(), podracer::Error>(())
/// ```
///
/// # Errors
/// Ends the trace unless `format` has one placeholder for each leaf.
#[track_caller]
pub fn debug_print<A: Tree<Tensor>>(format: &str, args: A) {
    print(false, format, &tree::leaves(&args), Location::caller());
}

/// [`debug_print`] whose lines are in order between runs, too.
#[track_caller]
pub fn debug_print_ordered<A: Tree<Tensor>>(format: &str, args: A) {
    print(true, format, &tree::leaves(&args), Location::caller());
}

fn print(ordered: bool, format: &str, leaves: &[Tensor], at: Loc) {
    let format = at_line(at, || {
        let format = Format::parse(format).unwrap_or_else(|fault| fail_op("debug_print", fault));
        if format.places() != leaves.len() {
            let problem = format!(
                "the format has {} placeholders, and {} values are given",
                format.places(),
                leaves.len()
            );
            fail_op("debug_print", problem);
        }
        format
    });
    let f = move |values: Vec<Literal>| {
        output::stdout_line(format.write(&values));
    };
    debug_call(ordered, f, leaves.to_vec(), at);
}

fn debug_call<A: Tree<Tensor> + Send + Sync + 'static>(
    ordered: bool,
    f: impl Fn(A::With<Literal>) + Send + Sync + 'static,
    args: A,
    at: Loc,
) {
    let f = move |args| {
        f(args);
        Ok(())
    };
    call::<A, ()>("debug_callback", CallbackKind::Debug { ordered }, f, (), args, at);
}

/// Adds the call to the trace.
fn call<A, R>(
    name: &'static str,
    kind: CallbackKind,
    f: impl Fn(A::With<Literal>) -> Result<R::With<Literal>> + Send + Sync + 'static,
    results: R,
    args: A,
    at: Loc,
) -> R::With<Tensor>
where
    A: Tree<Tensor> + Send + Sync + 'static,
    R: Tree<TensorType> + Send + Sync + 'static,
{
    let operands: Vec<Tensor> = tree::leaves(&args);
    let types: Vec<TensorType> = tree::leaves(&results);
    let build = move |operands: &[HostView<'_>]| -> A::With<Literal> {
        let mut operands = operands.iter();
        args.map_leaves_ref(&Path::ROOT, &mut |_, _| {
            operands.next().expect("one a leaf").to_literal()
        })
    };
    let structure = tree::structure::<TensorType, R>(&results);
    let paths = tree::paths::<TensorType, R>(&results);
    let function = HostFn::new(name, at, move |operands, results| {
        let given = f(build(operands))?;
        if tree::structure::<Literal, R::With<Literal>>(&given) != structure {
            let found = tree::paths::<Literal, R::With<Literal>>(&given);
            let names = ["what was declared", "what was returned"];
            let difference = tree::difference_of_paths(&paths, &found, "result", names);
            return Err(Error::Callback(format!(
                "result of the function has the wrong structure: {difference}"
            )));
        }
        let given: Vec<Literal> = tree::leaves(&given);
        if given.len() != results.len() {
            return Err(Error::Callback(format!(
                "the function gave {} results, and must give {}",
                given.len(),
                results.len()
            )));
        }
        for ((path, given), result) in paths.iter().zip(given).zip(results) {
            if *given.ty() != result.ty {
                return Err(Error::Callback(format!(
                    "{} of the function is {}, and must be {}",
                    tree::path_of("result", path),
                    given.ty(),
                    result.ty
                )));
            }
            result.bytes.copy_from_slice((*given.bytes()).as_ref());
        }
        Ok(())
    });
    let outputs = host_call(function, kind, types, &operands, at);
    let mut outputs = outputs.into_iter();
    results.map_leaves_ref(&Path::ROOT, &mut |_, _| outputs.next().expect("one a result"))
}

/// The call of a function that reads operands and writes results in their own memory, without a
/// copy: the other callbacks are made of it.
///
/// The function must write all bytes of all results; those of `bool` as 0 or 1.
///
/// ```
/// use podracer::trace::callback::{CallbackKind, HostFn, raw_callback};
/// use podracer::{Array, Tensor, jit};
/// let f = jit(|x: Tensor| {
///     let at = std::panic::Location::caller();
///     let reverse = HostFn::new("reverse", at, |operands, results| {
///         results[0].bytes.copy_from_slice(operands[0].bytes);
///         results[0].bytes.reverse();
///         Ok(())
///     });
///     raw_callback(reverse, CallbackKind::io(false), vec![x.ty()], &[x])[0]
/// });
/// assert_eq!(f.call(Array::from([1u8, 2, 3]))?.to_vec::<u8>()?, [3, 2, 1]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn raw_callback(
    f: HostFn,
    kind: CallbackKind,
    results: Vec<TensorType>,
    operands: &[Tensor],
) -> Vec<Tensor> {
    host_call(f, kind, results, operands, Location::caller()).to_vec()
}

fn host_call(
    f: HostFn,
    kind: CallbackKind,
    results: Vec<TensorType>,
    operands: &[Tensor],
    at: Loc,
) -> Tensors {
    bind(Op::Callback(CallbackOp { f, results, kind, token: false }), operands, at)
}
