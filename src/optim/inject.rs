//! Hyperparameters as part of the state.

use super::leaves::scalar_type_of;
use super::{Schedule, increment};
use crate::optim::transformation::GradientTransformation;
use crate::trace::{DType, Tensor, ops};
use crate::tree::{self, Leaf, Tree};

/// Hyperparameter of [`inject_hyperparams`].
#[derive(Debug, Clone, PartialEq)]
pub enum Hyperparam {
    /// Initial value. The value in the state counts, which a program may change.
    Number(f64),
    /// Schedule over the count of updates.
    Schedule(Schedule),
}

impl Leaf for Hyperparam {}

impl From<f64> for Hyperparam {
    fn from(number: f64) -> Hyperparam {
        Hyperparam::Number(number)
    }
}

impl From<Schedule> for Hyperparam {
    fn from(schedule: Schedule) -> Hyperparam {
        Hyperparam::Schedule(schedule)
    }
}

/// Transformation built by [`inject_hyperparams`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InjectHyperparams<H, F> {
    factory: F,
    hyperparams: H,
}

/// State of [`inject_hyperparams`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = H, nested = S)]
pub struct InjectHyperparamsState<T, H, S> {
    /// Number of updates made, `i32`.
    pub count: T,
    /// Hyperparameters of the last update, scalars of f64 if a parameter is f64, else of f32. A number that is replaced here is used by
    /// the next update.
    pub hyperparams: H,
    /// State of the inner transformation.
    pub inner_state: S,
}

/// Keeps hyperparameters in the state, where a program can read and change them without compiling
/// anew: `optax.inject_hyperparams`.
///
/// `hyperparams` is a [`Hyperparam`] or a tree of them, and `factory` builds the transformation from
/// the same tree of traced scalars. These fit where a hyperparameter may be a traced scalar: learning
/// rates, and the arguments of [`scale`](super::scale()), [`clip`](super::clip()),
/// [`clip_by_global_norm`](super::clip_by_global_norm) and
/// [`add_decayed_weights`](super::add_decayed_weights).
///
/// ```
/// use podracer::optim::{GradientTransformation, Hyperparam, adam, inject_hyperparams};
/// use podracer::{Array, Tensor, interpret};
///
/// let rates = interpret(|params: Tensor| {
///     let optimizer = inject_hyperparams(|lr: Tensor| adam(lr), Hyperparam::from(0.1));
///     let mut state = optimizer.init(&params);
///     let first = state.hyperparams;
///     state.hyperparams = state.hyperparams * 0.5;
///     let (updates, state) = optimizer.update(&params, state, &params);
///     (first, state.hyperparams, updates)
/// });
/// let (first, second, update) = rates.call(Array::from(1.0f32))?;
/// assert_eq!((first.item::<f32>()?, second.item::<f32>()?), (0.1, 0.05));
/// assert!((update.item::<f32>()? + 0.05).abs() < 1e-6);
/// # Ok::<(), podracer::Error>(())
/// ```
pub fn inject_hyperparams<H, F, O>(factory: F, hyperparams: H) -> InjectHyperparams<H, F>
where
    H: Tree<Hyperparam>,
    F: Fn(H::With<Tensor>) -> O,
{
    InjectHyperparams { factory, hyperparams }
}

/// Returns the hyperparameters at `count`. Numbers are those of `state`, if there is one.
#[track_caller]
fn values<H: Tree<Hyperparam>>(
    hyperparams: &H,
    count: Tensor,
    state: Option<Vec<Tensor>>,
    dtype: DType,
) -> H::With<Tensor> {
    let mut values = Vec::new();
    let mut definitions = Vec::new();
    hyperparams.visit_leaves(&tree::Path::ROOT, &mut |_, leaf| definitions.push(leaf));
    for (i, definition) in definitions.into_iter().enumerate() {
        values.push(match (definition, &state) {
            (Hyperparam::Schedule(schedule), _) => schedule.at_as(count, dtype),
            (Hyperparam::Number(_), Some(state)) => state[i],
            (Hyperparam::Number(number), None) => ops::full([], *number, dtype),
        });
    }
    tree::rebuild(hyperparams, values)
}

impl<P, H, F, O> GradientTransformation<P> for InjectHyperparams<H, F>
where
    P: Tree<Tensor>,
    H: Tree<Hyperparam>,
    F: Fn(H::With<Tensor>) -> O,
    O: GradientTransformation<P>,
{
    type State = InjectHyperparamsState<Tensor, H::With<Tensor>, O::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let count = ops::constant(0i32);
        let dtype = scalar_type_of(&tree::leaves(params));
        let hyperparams = values(&self.hyperparams, count, None, dtype);
        let inner = (self.factory)(values(&self.hyperparams, count, None, dtype));
        InjectHyperparamsState { count, hyperparams, inner_state: inner.init(params) }
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let old = tree::leaves(&state.hyperparams);
        let dtype = scalar_type_of(&tree::leaves(params));
        let hyperparams = values(&self.hyperparams, state.count, Some(old), dtype);
        let used = tree::leaves(&hyperparams);
        let inner = (self.factory)(tree::rebuild(&self.hyperparams, used));
        let (updates, inner_state) = inner.update(grads, state.inner_state, params);
        let count = increment(state.count);
        (updates, InjectHyperparamsState { count, hyperparams, inner_state })
    }
}
