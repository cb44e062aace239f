//! Sharpness-aware minimization.

use super::super::leaves::{map_updates, select};
use super::super::{apply_updates, global_norm, leaves_of};
use crate::optim::transformation::GradientTransformation;
use crate::trace::tensor::{fail_op, op};
use crate::trace::{Tensor, ops};
use crate::tree::{self, Tree};

/// Transformation built by [`normalize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Normalize;

/// Divides gradients by their global norm: `optax.contrib.normalize`.
pub fn normalize() -> Normalize {
    Normalize
}

impl<P: Tree<Tensor>> GradientTransformation<P> for Normalize {
    type State = ();

    #[track_caller]
    fn init(&self, _: &P) {}

    #[track_caller]
    fn update(&self, grads: &P, (): (), _: &P) -> (P, ()) {
        let norm = global_norm(grads);
        (map_updates("normalize", grads, |g| g / norm.to(g.dtype())), ())
    }
}

/// Sharpness-aware minimization; built by [`sam`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sam<O, A> {
    /// Optimizer of the parameters.
    pub optimizer: O,
    /// Optimizer whose updates, with the opposite sign, move to where gradients are taken.
    pub adv_optimizer: A,
    /// Number of gradients for each update, of which the last one is that of `optimizer`.
    pub sync_period: usize,
    /// If true, the state of `adv_optimizer` begins anew after each update.
    pub reset_state: bool,
}

/// State of [`sam`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M, nested = S, nested = A)]
pub struct SamState<T, M, S, A> {
    /// Number of gradients since the last update, `i32`.
    pub steps_since_sync: T,
    /// State of the optimizer of the parameters.
    pub opt_state: S,
    /// State of the other optimizer.
    pub adv_state: A,
    /// Parameters after the last update.
    pub cache: M,
}

/// Takes gradients where the loss is greater than at the parameters: `optax.contrib.sam` (Foret et al.
/// 2021). `adv_optimizer` is usually a chain of [`normalize`] and [`sgd`](crate::optim::sgd()). Defaults: a
/// period of 2, true.
///
/// As a transformation, every `sync_period` gradients make one update, and the parameters between are those
/// of the search, as with `opaque_mode=False`. [`Sam::update_with`] makes an update of each gradient.
///
/// # Errors
/// The update ends the trace if `sync_period` is 0.
pub fn sam<O, A>(optimizer: O, adv_optimizer: A) -> Sam<O, A> {
    Sam { optimizer, adv_optimizer, sync_period: 2, reset_state: true }
}

impl<O, A> Sam<O, A> {
    #[track_caller]
    fn period(&self) -> i32 {
        match i32::try_from(self.sync_period) {
            Ok(period @ 1..) => period,
            _ => fail_op("sam", format!("sync_period must be from 1 to {}", i32::MAX)),
        }
    }

    /// Returns the updates of `adv_optimizer` with the opposite sign.
    #[track_caller]
    fn ascend<P: Tree<Tensor>>(&self, grads: &P, state: A::State, params: &P) -> (P, A::State)
    where
        A: GradientTransformation<P>,
    {
        let (updates, state) = self.adv_optimizer.update(grads, state, params);
        (map_updates("sam", &updates, |u| -u), state)
    }

    /// Returns the updates of `optimizer` with the gradients where the search ends, and the next state:
    /// `opaque_mode=True` of `optax.contrib.sam`. `grads` are gradients at `params`, and `grad_fn` gives
    /// those at other parameters, by the number of the step.
    ///
    /// ```
    /// use podracer::optim::contrib::{normalize, sam};
    /// use podracer::optim::{GradientTransformation, chain, sgd};
    /// use podracer::{Array, Tensor, grad, interpret};
    ///
    /// let step = interpret(|x: Tensor| {
    ///     let loss = |x: Tensor| x.square().sum(..);
    ///     let optimizer = sam(sgd(0.1), chain((normalize(), sgd(0.5))));
    ///     let (grads, state) = (grad(loss)(x), optimizer.init(&x));
    ///     x + optimizer.update_with(&grads, state, &x, |x, _| grad(loss)(x)).0
    /// });
    /// // The gradient is taken at 2.5.
    /// assert_eq!(step.call(Array::from(2.0f32))?.item::<f32>()?, 1.5);
    /// # Ok::<(), podracer::Error>(())
    /// ```
    #[track_caller]
    pub fn update_with<P: Tree<Tensor>>(
        &self,
        grads: &P,
        state: SamState<Tensor, P, O::State, A::State>,
        params: &P,
        grad_fn: impl Fn(P, usize) -> P,
    ) -> (P, SamState<Tensor, P, O::State, A::State>)
    where
        O: GradientTransformation<P>,
        A: GradientTransformation<P>,
    {
        self.period();
        let copy = |tree: &P| tree::replace(tree, tree::leaves(tree));
        let (mut moved, mut grads, mut adv_state) = (copy(params), copy(grads), state.adv_state);
        for i in 0..self.sync_period - 1 {
            let (updates, next) = self.ascend(&grads, adv_state, &moved);
            moved = apply_updates(moved, updates);
            (grads, adv_state) = (grad_fn(copy(&moved), i), next);
        }
        if self.reset_state {
            adv_state = self.adv_optimizer.init(params);
        }
        let (updates, opt_state) = self.optimizer.update(&grads, state.opt_state, params);
        let steps_since_sync = state.steps_since_sync;
        (updates, SamState { steps_since_sync, opt_state, adv_state, cache: state.cache })
    }
}

/// Returns another handle of the same tensors.
fn copied<S: Tree<Tensor>>(state: &S) -> S {
    tree::replace(state, tree::leaves(state))
}

impl<O, A, P> GradientTransformation<P> for Sam<O, A>
where
    O: GradientTransformation<P>,
    A: GradientTransformation<P>,
    P: Tree<Tensor>,
{
    type State = SamState<Tensor, P, O::State, A::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        SamState {
            steps_since_sync: ops::constant(0i32),
            opt_state: self.optimizer.init(params),
            adv_state: self.adv_optimizer.init(params),
            cache: copied(params),
        }
    }

    #[op("sam")]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let period = self.period();
        let first = state.steps_since_sync.eq(0);
        let last = state.steps_since_sync.eq(period - 1);
        let (adv_updates, adv_state) = self.ascend(grads, copied(&state.adv_state), params);
        let (opt_updates, opt_state) =
            self.optimizer.update(grads, copied(&state.opt_state), &state.cache);
        let names = ["updates", "params", "cache"];
        let [u, p, cache] = leaves_of("sam", names, [&opt_updates, params, &state.cache]);
        let back = u.iter().zip(&p).zip(&cache).map(|((u, p), cache)| *cache - *p + *u);
        let back = tree::replace(grads, back.collect::<Vec<_>>());
        let restarted = match self.reset_state {
            true => self.adv_optimizer.init(params),
            false => copied(&state.adv_state),
        };
        let next = SamState {
            steps_since_sync: (state.steps_since_sync + 1) % period,
            opt_state: select(last, &opt_state, state.opt_state),
            adv_state: select(last, &restarted, adv_state),
            cache: select(first, params, state.cache),
        };
        (select(last, &back, adv_updates), next)
    }
}
