//! Interface of gradient transformations and optimizers.

use super::leaves::scalar_type_of;
use super::{ScaleByScheduleState, Schedule, apply_updates, increment};
use crate::optim::adam::{Adam, AdamState, RAdam};
use crate::optim::sgd::{RmsProp, RmsPropState, Sgd, SgdState};
use crate::trace::Tensor;
use crate::trace::ops::Operand;
use crate::tree::{self, Tree};

/// Gradient transformation over parameters `P`: `optax.GradientTransformation`.
///
/// It maps gradients (or the updates of the transformation before it in a [`chain`](super::chain()))
/// to updates, and its state to the next state. An optimizer is one whose updates are ready to be
/// added to the parameters; [`Optimizer`] is the same trait under that name.
///
/// ```
/// use podracer::optim::{Adam, OptState, Optimizer, Sgd};
/// use podracer::{Array, Tensor, jit, value_and_grad};
///
/// /// Moves `x` towards 3 by 20 gradient steps of any optimizer.
/// fn minimize<O: Optimizer<Tensor>>(optimizer: &O, x: Tensor) -> Tensor {
///     let mut state: (Tensor, OptState<O, Tensor>) = (x, optimizer.init(&x));
///     for _ in 0..20 {
///         let (_, grads) = value_and_grad(|x: Tensor| (x - 3.0).square())(state.0);
///         state = optimizer.step(state.0, grads, state.1);
///     }
///     state.0
/// }
///
/// let sgd = Sgd { learning_rate: 0.5, ..Sgd::default() };
/// let adam = Adam { learning_rate: 0.5, ..Adam::default() };
/// let run = jit(|x: Tensor| (minimize(&sgd, x), minimize(&adam, x)));
/// let (with_sgd, with_adam) = run.call(Array::from(0.0f32))?;
/// assert_eq!(with_sgd.item::<f32>()?, 3.0);
/// assert!((with_adam.item::<f32>()? - 3.0).abs() < 1.0);
/// # Ok::<(), podracer::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a gradient transformation of `{P}`",
    note = "`chain` takes a tuple of transformations: `chain((clip_by_global_norm(0.5), adam(1e-3)))`"
)]
pub trait GradientTransformation<P: Tree<Tensor>> {
    /// State, such as the moments of Adam; `()` if there is none.
    type State: Tree<Tensor>;

    /// Returns the state before the first update.
    fn init(&self, params: &P) -> Self::State;

    /// Returns the transformed gradients, and the next state.
    ///
    /// # Errors
    /// Ends the trace if gradients, state and parameters differ in structure or types.
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State);

    /// Returns the parameters after one update, and the next state.
    ///
    /// # Errors
    /// Ends the trace in the cases of [`update`](GradientTransformation::update).
    #[track_caller]
    fn step(&self, params: P, grads: P, state: Self::State) -> (P, Self::State) {
        let (updates, state) = self.update(&grads, state, &params);
        (apply_updates(params, updates), state)
    }
}

pub use GradientTransformation as Optimizer;

/// State of the optimizer or transformation `O` for parameters `P`.
pub type OptState<O, P> = <O as GradientTransformation<P>>::State;

impl<L: Operand, P: Tree<Tensor>> GradientTransformation<P> for Adam<L> {
    type State = AdamState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        Adam::init(self, params)
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        Adam::update(self, grads, state, params)
    }
}

impl<L: Operand, P: Tree<Tensor>> GradientTransformation<P> for RAdam<L> {
    type State = AdamState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        RAdam::init(self, params)
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        RAdam::update(self, grads, state, params)
    }
}

impl<L: Operand, P: Tree<Tensor>> GradientTransformation<P> for Sgd<L> {
    type State = SgdState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        Sgd::init(self, params)
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        Sgd::update(self, grads, state, params)
    }
}

impl<L: Operand, P: Tree<Tensor>> GradientTransformation<P> for RmsProp<L> {
    type State = RmsPropState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        RmsProp::init(self, params)
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        RmsProp::update(self, grads, state, params)
    }
}

/// Implements an optimizer whose learning rate is a [`Schedule`] at the count in its own state.
macro_rules! scheduled_by_own_count {
    ($($name:ident)*) => {$(
        impl<P: Tree<Tensor>> GradientTransformation<P> for $name<Schedule> {
            type State = AdamState<Tensor, P>;

            #[track_caller]
            fn init(&self, params: &P) -> Self::State {
                self.clone().with_learning_rate(0.0).init(params)
            }

            #[track_caller]
            fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
                let dtype = scalar_type_of(&tree::leaves(params));
                let learning_rate = self.learning_rate.at_as(state.count, dtype);
                let optimizer = self.clone().with_learning_rate(learning_rate);
                GradientTransformation::update(&optimizer, grads, state, params)
            }
        }
    )*};
}
scheduled_by_own_count!(Adam RAdam);

/// Implements an optimizer whose learning rate is a [`Schedule`] with a count beside its state.
macro_rules! scheduled {
    ($($name:ident $state:ident)*) => {$(
        impl<P: Tree<Tensor>> GradientTransformation<P> for $name<Schedule> {
            type State = ($state<P>, ScaleByScheduleState<Tensor>);

            #[track_caller]
            fn init(&self, params: &P) -> Self::State {
                let state = self.clone().with_learning_rate(0.0).init(params);
                (state, ScaleByScheduleState::zero())
            }

            #[track_caller]
            fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
                let (state, schedule) = state;
                let dtype = scalar_type_of(&tree::leaves(params));
                let learning_rate = self.learning_rate.at_as(schedule.count, dtype);
                let optimizer = self.clone().with_learning_rate(learning_rate);
                let (updates, state) =
                    GradientTransformation::update(&optimizer, grads, state, params);
                (updates, (state, ScaleByScheduleState { count: increment(schedule.count) }))
            }
        }
    )*};
}
scheduled!(Sgd SgdState RmsProp RmsPropState);
