//! Composition of gradient transformations.

use super::GradientTransformation;
use super::leaves::map_updates;
use crate::trace::{Tensor, ops};
use crate::tree::Tree;

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
