//! Whole derivatives: [`jacfwd`], [`jacrev`], [`hessian`], [`hvp`]; and trees as vectors:
//! [`ravel`].

use std::panic::Location;

use super::jvp::jvp;
use super::ops::{self, concatenate};
use super::tensor::{Tensor, at_line, fail_op};
use super::transpose::{grad, vjp};
use super::types::{Shape, TensorType};
use super::vmap::vmap;
use crate::tree::{self, Tree};

/// The unit vectors of a tensor's space, stacked along a first axis.
fn units(ty: &TensorType) -> Tensor {
    let n = ty.numel();
    ops::eye(n, ty.dtype).reshape(ty.shape.with_axis(0, n))
}

/// Refuses a side from which a Jacobian of complex numbers would be half of the derivative.
fn refuse_complex(name: &str, side: &str, ty: &TensorType) {
    if ty.dtype.is_complex() {
        let problem = format!(
            "{side} is {ty}, and Jacobians are of floats; take its .real() and .imag(), or \
             differentiate a holomorphic function with jvp or grad_holomorphic"
        );
        fail_op(name, problem);
    }
}

fn concatenated(first: &Shape, second: &Shape) -> Shape {
    first.iter().chain(second.iter()).copied().collect()
}

/// `jax.jacfwd`: the Jacobian of `f`, column by column, by one batch of forward derivatives. Each
/// leaf of the result has the shape of `f`'s, followed by that of the argument. Cheap where the
/// argument is small. For arguments that are trees see [`ravel`].
///
/// ```
/// use podracer::{Array, Tensor, interpret, jacfwd};
/// let f = interpret(jacfwd(|x: Tensor| x * x));
/// let j = f.call(Array::from([1.0f32, 2.0]))?;
/// assert_eq!(j.to_vec::<f32>()?, [2.0, 0.0, 0.0, 4.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn jacfwd<B: Tree<Tensor>>(f: impl Fn(Tensor) -> B) -> impl Fn(Tensor) -> B {
    let at = Location::caller();
    move |x: Tensor| {
        at_line(at, || {
            let ty = x.ty();
            refuse_complex("jacfwd", "the argument", &ty);
            let columns = vmap(|v: Tensor| jvp(&f, x, v).1)(units(&ty));
            let placed = tree::leaves(&columns).into_iter().map(|columns: Tensor| {
                let last = columns.moveaxis(0, -1);
                let shape = last.shape();
                last.reshape(concatenated(&shape.without_axis(shape.rank() - 1), &ty.shape))
            });
            tree::replace(&columns, placed.collect::<Vec<Tensor>>())
        })
    }
}

/// `jax.jacrev`: the Jacobian of `f`, row by row, by one batch of pullbacks. Each leaf has the
/// shape of `f`'s result, followed by that of the argument's leaf. Cheap where the result is small.
/// For results that are trees see [`ravel`].
///
/// ```
/// use podracer::{Array, Tensor, interpret, jacrev};
/// let f = interpret(jacrev(|(x, y): (Tensor, Tensor)| x * y));
/// let j = f.call((Array::from([1.0f32, 2.0]), Array::from([3.0f32, 4.0])))?;
/// assert_eq!(j.0.to_vec::<f32>()?, [3.0, 0.0, 0.0, 4.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn jacrev<A: Tree<Tensor>>(f: impl Fn(A) -> Tensor) -> impl Fn(A) -> A {
    let at = Location::caller();
    move |x: A| {
        at_line(at, || {
            let (y, pull) = vjp(&f, x);
            let ty = y.ty();
            refuse_complex("jacrev", "the result", &ty);
            if !ty.dtype.is_float() {
                fail_op("jacrev", format!("the function must return a float, and returns {ty}"));
            }
            let rows = vmap(pull)(units(&ty));
            let placed = tree::leaves(&rows).into_iter().map(|rows: Tensor| {
                rows.reshape(concatenated(&ty.shape, &rows.shape().without_axis(0)))
            });
            tree::replace(&rows, placed.collect::<Vec<Tensor>>())
        })
    }
}

/// `jax.hessian`: the second derivatives of `f`, forwards over backwards; for a scalar `f` of a
/// tensor of shape `S` of shape `S` twice.
///
/// ```
/// use podracer::{Array, Tensor, hessian, interpret};
/// let f = interpret(hessian(|x: Tensor| x.prod(..)));
/// let h = f.call(Array::from([2.0f32, 3.0]))?;
/// assert_eq!(h.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn hessian(f: impl Fn(Tensor) -> Tensor) -> impl Fn(Tensor) -> Tensor {
    jacfwd(jacrev(f))
}

/// The Hessian of a scalar `f` at `x` times `v`, without the Hessian: forwards over backwards.
///
/// ```
/// use podracer::{Array, Tensor, hvp, interpret};
/// let f = interpret(|(x, v): (Tensor, Tensor)| hvp(|x: Tensor| x.prod(..), x, v));
/// let product = f.call((Array::from([2.0f32, 3.0]), Array::from([1.0f32, 10.0])))?;
/// assert_eq!(product.to_vec::<f32>()?, [10.0, 1.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn hvp<A: Tree<Tensor>>(f: impl Fn(A) -> Tensor, x: A, v: A) -> A {
    let at = Location::caller();
    at_line(at, || jvp(grad(f), x, v).1)
}

/// `jax.flatten_util.ravel_pytree`: the leaves of a tree, all of one dtype, as one vector; and the
/// function back.
///
/// ```
/// use podracer::{Array, Tensor, hessian, interpret, ravel};
/// // The Hessian over all parameters.
/// let f = interpret(|tree: (Tensor, Tensor)| {
///     let (x, unravel) = ravel(&tree);
///     hessian(|x: Tensor| { let (a, b) = unravel(x); (a * b).sum(..) })(x)
/// });
/// let h = f.call((Array::from(1.0f32), Array::from([2.0f32])))?;
/// assert_eq!(h.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn ravel<A: Tree<Tensor>>(tree: &A) -> (Tensor, impl Fn(Tensor) -> A) {
    let leaves = tree::leaves(tree);
    let types: Vec<TensorType> = leaves.iter().map(|leaf| leaf.ty()).collect();
    let Some(first) = types.first() else { fail_op("ravel", "the tree has no leaves") };
    for (path, ty) in tree::paths(tree).iter().zip(&types) {
        if ty.dtype != first.dtype {
            let path = tree::path_of("leaf ", path);
            let problem = format!(
                "all leaves must have one element type: the first is {first}, {path} is {ty}"
            );
            fail_op("ravel", problem);
        }
    }
    let flat: Vec<Tensor> = leaves.iter().map(|leaf| leaf.reshape([leaf.numel()])).collect();
    let vector = concatenate(&flat, 0);
    // The tree without its tensors.
    let structure = tree.map_leaves_ref(&tree::Path::ROOT, &mut |_, leaf| leaf.ty());
    let unravel = move |vector: Tensor| {
        let mut from = 0;
        structure.map_leaves_ref(&tree::Path::ROOT, &mut |_, ty: &TensorType| {
            let to = from + ty.numel();
            let part = vector.slice_axis(0, std::mem::replace(&mut from, to), to);
            part.reshape(&ty.shape)
        })
    };
    (vector, unravel)
}
