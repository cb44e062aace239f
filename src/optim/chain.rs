//! Composition of gradient transformations.

use super::leaves::{map_leaves, map_updates};
use crate::optim::transformation::GradientTransformation;
use crate::trace::tensor::{fail_op, op};
use crate::trace::{Tensor, ops};
use crate::tree::{self, Tree};

/// Gradient transformations applied one after the other, built by [`chain`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chain<C>(
    /// Tuple of the transformations, first applied first.
    pub C,
);

/// Applies the transformations of a tuple one after the other: `optax.chain`.
///
/// The state is the tuple of their states. A tuple has 1 to 8 elements; chains may be nested.
///
/// ```
/// use podracer::optim::{
///     GradientTransformation, chain, clip_by_global_norm, scale, scale_by_adam,
/// };
/// use podracer::{Array, Tensor, grad, interpret};
///
/// let step = interpret(|params: Tensor| {
///     let optimizer = chain((clip_by_global_norm(0.5), scale_by_adam(), scale(-0.1)));
///     let grads = grad(|x: Tensor| x.square().sum(..))(params);
///     let opt_state = optimizer.init(&params);
///     let (params, _) = optimizer.step(params, grads, opt_state);
///     params
/// });
/// let params = step.call(Array::from([1.0f32, -2.0]))?.to_vec::<f32>()?;
/// assert!((params[0] - 0.9).abs() < 1e-5 && (params[1] + 1.9).abs() < 1e-5);
/// # Ok::<(), podracer::Error>(())
/// ```
pub fn chain<C>(transformations: C) -> Chain<C> {
    Chain(transformations)
}

macro_rules! chain_of_tuple {
    ($($name:ident $state:ident $index:tt),*) => {
        impl<P: Tree<Tensor>, $($name: GradientTransformation<P>),*> GradientTransformation<P>
            for Chain<($($name,)*)>
        {
            type State = ($($name::State,)*);

            #[track_caller]
            fn init(&self, params: &P) -> Self::State {
                ($(self.0.$index.init(params),)*)
            }

            #[track_caller]
            fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
                let updates = grads;
                chain_of_tuple!(@step self, updates, state, params, [] $($state $index),*)
            }
        }
    };
    // Each step borrows the updates of the one before.
    (@step $self:ident, $updates:ident, $states:ident, $params:ident, [$($done:ident)*]
     $state:ident $index:tt) => {{
        let (updates, $state) = $self.0.$index.update($updates, $states.$index, $params);
        (updates, ($($done,)* $state,))
    }};
    (@step $self:ident, $updates:ident, $states:ident, $params:ident, [$($done:ident)*]
     $state:ident $index:tt, $($rest:tt)*) => {{
        let (updates, $state) = $self.0.$index.update($updates, $states.$index, $params);
        let updates = &updates;
        chain_of_tuple!(@step $self, updates, $states, $params, [$($done)* $state] $($rest)*)
    }};
}
chain_of_tuple!(A a 0);
chain_of_tuple!(A a 0, B b 1);
chain_of_tuple!(A a 0, B b 1, C c 2);
chain_of_tuple!(A a 0, B b 1, C c 2, D d 3);
chain_of_tuple!(A a 0, B b 1, C c 2, D d 3, E e 4);
chain_of_tuple!(A a 0, B b 1, C c 2, D d 3, E e 4, F f 5);
chain_of_tuple!(A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6);
chain_of_tuple!(A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7);

/// Transformation that returns its argument; built by [`identity`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Identity;

/// Returns gradients unchanged: `optax.identity`.
pub fn identity() -> Identity {
    Identity
}

impl<P: Tree<Tensor>> GradientTransformation<P> for Identity {
    type State = ();

    fn init(&self, _: &P) {}

    #[track_caller]
    fn update(&self, grads: &P, (): (), _: &P) -> (P, ()) {
        (map_updates("identity", grads, |g| g), ())
    }
}

/// Transformation whose updates are zeros; built by [`set_to_zero`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SetToZero;

/// Returns zeros, which freezes parameters: `optax.set_to_zero`.
pub fn set_to_zero() -> SetToZero {
    SetToZero
}

impl<P: Tree<Tensor>> GradientTransformation<P> for SetToZero {
    type State = ();

    fn init(&self, _: &P) {}

    #[track_caller]
    fn update(&self, grads: &P, (): (), _: &P) -> (P, ()) {
        (map_updates("set_to_zero", grads, ops::zeros_like), ())
    }
}

/// Transformation by a function of updates and parameters; built by [`stateless`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stateless<F>(F);

/// Applies `f(updates, params)`, a function without state: `optax.stateless`.
#[track_caller]
pub fn stateless<P: Tree<Tensor>, F: Fn(&P, &P) -> P>(f: F) -> Stateless<F> {
    Stateless(f)
}

impl<P: Tree<Tensor>, F: Fn(&P, &P) -> P> GradientTransformation<P> for Stateless<F> {
    type State = ();

    fn init(&self, _: &P) {}

    fn update(&self, grads: &P, (): (), params: &P) -> (P, ()) {
        ((self.0)(grads, params), ())
    }
}

/// Transformation by a function of each leaf; built by [`stateless_with_tree_map`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StatelessWithTreeMap<F>(F);

/// Applies `f(update, param)` to each leaf: `optax.stateless_with_tree_map`.
#[track_caller]
pub fn stateless_with_tree_map<F: Fn(Tensor, Tensor) -> Tensor>(f: F) -> StatelessWithTreeMap<F> {
    StatelessWithTreeMap(f)
}

impl<P: Tree<Tensor>, F: Fn(Tensor, Tensor) -> Tensor> GradientTransformation<P>
    for StatelessWithTreeMap<F>
{
    type State = ();

    fn init(&self, _: &P) {}

    #[track_caller]
    fn update(&self, grads: &P, (): (), params: &P) -> (P, ()) {
        let op = "stateless_with_tree_map";
        let names = ["updates", "params"];
        let [updates] = map_leaves(op, names, [grads, params], |[u, p]| [(self.0)(u, p)]);
        (updates, ())
    }
}

/// Transformation built by [`flatten`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flatten<O>(O);

/// Applies `inner` to one vector of all elements of all leaves: `optax.flatten`. One large operation
/// can be faster than many small ones.
///
/// The state is a state over a `Tensor`.
///
/// # Errors
/// Ends the trace if the leaves have different types, or if there is none.
pub fn flatten<O>(inner: O) -> Flatten<O> {
    Flatten(inner)
}

/// Returns the elements of all leaves as one vector.
#[track_caller]
fn vector_of<P: Tree<Tensor>>(tree: &P) -> Tensor {
    let mut vectors = Vec::new();
    for leaf in tree::leaves(tree) {
        vectors.push(leaf.ravel());
    }
    ops::concatenate(&vectors, 0)
}

impl<O: GradientTransformation<Tensor>, P: Tree<Tensor>> GradientTransformation<P> for Flatten<O> {
    type State = O::State;

    #[op("flatten")]
    fn init(&self, params: &P) -> Self::State {
        self.0.init(&vector_of(params))
    }

    #[op("flatten")]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let (flat, state) = self.0.update(&vector_of(grads), state, &vector_of(params));
        let (mut updates, mut start) = (Vec::new(), 0);
        for leaf in tree::leaves(grads) {
            let end = start + leaf.numel();
            updates.push(flat.slice_axis(0, start, end).reshape(leaf.shape()));
            start = end;
        }
        (tree::replace(grads, updates), state)
    }
}

/// Named transformations applied one after the other; built by [`named_chain`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NamedChain<C>(C);

/// State of one transformation of a [`named_chain`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = S)]
pub struct NamedState<S> {
    /// Name of the transformation.
    pub name: &'static str,
    /// Its state.
    pub state: S,
}

/// Applies the named transformations of a tuple one after the other: `optax.named_chain`.
///
/// Its state is a tuple of [`NamedState`]. A tuple has 1 to 8 pairs of name and transformation.
///
/// ```
/// use podracer::optim::{GradientTransformation, named_chain, scale_by_adam, scale};
/// use podracer::{Array, Tensor, interpret};
///
/// let names = interpret(|params: Tensor| {
///     let optimizer = named_chain((("moments", scale_by_adam()), ("rate", scale(-0.1))));
///     let (moments, rate) = optimizer.init(&params);
///     assert_eq!((moments.name, rate.name), ("moments", "rate"));
///     moments.state.count
/// });
/// assert_eq!(names.call(Array::from(1.0f32))?.item::<i32>()?, 0);
/// # Ok::<(), podracer::Error>(())
/// ```
///
/// # Errors
/// The initialization ends the trace if two transformations have one name.
pub fn named_chain<C>(transformations: C) -> NamedChain<C> {
    NamedChain(transformations)
}

/// Ends the trace if two names are equal.
#[track_caller]
fn ensure_different(names: &[&str]) {
    for (i, name) in names.iter().enumerate() {
        if names[..i].contains(name) {
            fail_op("named_chain", format!("names must differ, and {name:?} is there twice"));
        }
    }
}

macro_rules! named_chain_of_tuple {
    ($($name:ident $index:tt),*) => {
        impl<P: Tree<Tensor>, $($name: GradientTransformation<P>),*> GradientTransformation<P>
            for NamedChain<($((&'static str, $name),)*)>
        {
            type State = ($(NamedState<$name::State>,)*);

            #[track_caller]
            fn init(&self, params: &P) -> Self::State {
                ensure_different(&[$(self.0.$index.0),*]);
                ($({
                    let (name, transformation) = &self.0.$index;
                    NamedState { name: *name, state: transformation.init(params) }
                },)*)
            }

            #[track_caller]
            fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
                let mut updates: Option<P> = None;
                let state = ($({
                    let (name, transformation) = &self.0.$index;
                    let before = updates.as_ref().unwrap_or(grads);
                    let (after, state) =
                        transformation.update(before, state.$index.state, params);
                    updates = Some(after);
                    NamedState { name: *name, state }
                },)*);
                let Some(updates) = updates else { unreachable!("a tuple has elements") };
                (updates, state)
            }
        }
    };
}
named_chain_of_tuple!(A 0);
named_chain_of_tuple!(A 0, B 1);
named_chain_of_tuple!(A 0, B 1, C 2);
named_chain_of_tuple!(A 0, B 1, C 2, D 3);
named_chain_of_tuple!(A 0, B 1, C 2, D 3, E 4);
named_chain_of_tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
named_chain_of_tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
named_chain_of_tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
