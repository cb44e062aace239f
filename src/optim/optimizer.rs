//! Interface that all optimisers share.

use super::{Adam, AdamState, RAdam, RmsProp, RmsPropState, Sgd, SgdState, apply_updates};
use crate::trace::Tensor;
use crate::trace::ops::Operand;
use crate::tree::Tree;

/// Optimiser of parameters `P`: optax's `GradientTransformation`.
///
/// ```
/// use podracer::optim::{Adam, OptState, Optimizer, Sgd};
/// use podracer::{Array, Tensor, jit, value_and_grad};
///
/// /// Moves `x` towards 3 by 20 gradient steps of any optimiser.
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
pub trait Optimizer<P: Tree<Tensor>> {
    /// State of the optimiser, such as the moments of Adam.
    type State: Tree<Tensor>;

    /// Returns the state before the first update.
    fn init(&self, params: &P) -> Self::State;

    /// Returns the updates to add to the parameters, and the next state.
    ///
    /// # Errors
    /// Ends the trace if gradients, state and parameters differ in structure or types.
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State);

    /// Returns the parameters after one update, and the next state.
    ///
    /// # Errors
    /// Ends the trace in the cases of [`update`](Optimizer::update).
    #[track_caller]
    fn step(&self, params: P, grads: P, state: Self::State) -> (P, Self::State) {
        let (updates, state) = self.update(&grads, state, &params);
        (apply_updates(params, updates), state)
    }
}

/// State of the optimiser `O` for parameters `P`.
pub type OptState<O, P> = <O as Optimizer<P>>::State;

impl<L: Operand, P: Tree<Tensor>> Optimizer<P> for Adam<L> {
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

impl<L: Operand, P: Tree<Tensor>> Optimizer<P> for RAdam<L> {
    type State = AdamState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        RAdam::init(self, params)
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        RAdam::update(self, grads, state)
    }
}

impl<L: Operand, P: Tree<Tensor>> Optimizer<P> for Sgd<L> {
    type State = SgdState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        Sgd::init(self, params)
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        Sgd::update(self, grads, state)
    }
}

impl<L: Operand, P: Tree<Tensor>> Optimizer<P> for RmsProp<L> {
    type State = RmsPropState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        RmsProp::init(self, params)
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        RmsProp::update(self, grads, state)
    }
}
