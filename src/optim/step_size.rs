//! Step sizes from the distance to the start, and from the value of the function.

use super::apply_updates;
use super::leaves::{map_leaves, map_updates, scalars};
use crate::optim::transformation::GradientTransformation;
use crate::trace::ops::{self, where_};
use crate::trace::tensor::op;
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

/// Transformation built by [`scale_by_distance_over_gradients`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByDistanceOverGradients {
    /// First distance, relative to 1 plus the norm of the parameters.
    pub reps_rel: f64,
    /// Epsilon added under the root.
    pub eps: f64,
    /// Factor of all step sizes.
    pub global_scale: f64,
}

/// State of [`scale_by_distance_over_gradients`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByDistanceOverGradientsState<M> {
    /// Largest distance of each leaf from its start, a scalar.
    pub max_dist: M,
    /// Sum of the squared gradients of each leaf, a scalar.
    pub grad_sum_of_squares: M,
    /// Parameters before the first update.
    pub init_params: M,
}

/// Scales gradients by the largest distance from the start, divided by the root of the sum of their
/// squares, leaf by leaf: `optax.scale_by_distance_over_gradients` (DoG, Ivgi et al. 2023). It needs
/// no learning rate; `scale(-1.0)` follows it in a chain. Defaults: 1e-6, 1e-8, 1.
pub fn scale_by_distance_over_gradients() -> ScaleByDistanceOverGradients {
    ScaleByDistanceOverGradients { reps_rel: 1e-6, eps: 1e-8, global_scale: 1.0 }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByDistanceOverGradients {
    type State = ScaleByDistanceOverGradientsState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let first = |p: Tensor| self.reps_rel * (1.0 + p.square().sum(..).sqrt());
        ScaleByDistanceOverGradientsState {
            max_dist: scalars(params, first),
            grad_sum_of_squares: scalars(params, |p| ops::zeros([], p.dtype())),
            init_params: tree::replace(params, tree::leaves(params)),
        }
    }

    #[op("scale_by_distance_over_gradients")]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let op = "scale_by_distance_over_gradients";
        let names = ["updates", "params", "init_params"];
        let trees = [grads, params, &state.init_params];
        let [distances, squares] = map_leaves(op, names, trees, |[g, p, start]| {
            [(p - start).square().sum(..).sqrt(), g.square().sum(..)]
        });
        let largest = tree::leaves(&state.max_dist).into_iter().zip(tree::leaves(&distances));
        let largest: Vec<Tensor> = largest.map(|(old, new)| old.maximum(new)).collect();
        let sums = tree::leaves(&state.grad_sum_of_squares).into_iter();
        let sums: Vec<Tensor> =
            sums.zip(tree::leaves(&squares)).map(|(old, new)| old + new).collect();
        let mut updates = Vec::new();
        for ((g, distance), sum) in tree::leaves(grads).into_iter().zip(&largest).zip(&sums) {
            updates.push(self.global_scale * (*distance / (*sum + self.eps).sqrt()) * g);
        }
        let state = ScaleByDistanceOverGradientsState {
            max_dist: tree::replace(grads, largest),
            grad_sum_of_squares: tree::replace(grads, sums),
            init_params: state.init_params,
        };
        (tree::replace(grads, updates), state)
    }
}

/// Form of the Polyak step size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolyakVariant {
    /// The step size may be negative, where the value is below `f_min`.
    Sps,
    /// The step size is 0 there.
    SpsPlus,
}

/// Scaling of updates by the Polyak step size; built by [`scale_by_polyak`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByPolyak {
    /// Lower bound of the function.
    pub f_min: f64,
    /// Largest step size.
    pub max_learning_rate: f64,
    /// Epsilon added to the squared norm of the updates.
    pub eps: f64,
    /// Form of the step size.
    pub variant: PolyakVariant,
}

/// Scales updates by `(value - f_min) / (norm^2 + eps)`, at most `max_learning_rate`:
/// `optax.scale_by_polyak` (Loizou et al. 2021). Defaults: 0, 1, 0, `Sps`.
///
/// It needs the value of the function, so that it is called after a transformation and is not part of
/// a chain.
pub fn scale_by_polyak() -> ScaleByPolyak {
    ScaleByPolyak { f_min: 0.0, max_learning_rate: 1.0, eps: 0.0, variant: PolyakVariant::Sps }
}

impl ScaleByPolyak {
    /// Returns the scaled updates. `value` is that of the function at the parameters.
    #[op("scale_by_polyak")]
    pub fn update<P: Tree<Tensor>>(&self, updates: &P, value: Tensor) -> P {
        let square = super::global_norm(updates).square();
        let gap = value.to(square.dtype()) - self.f_min;
        let gap = match self.variant {
            PolyakVariant::Sps => gap,
            PolyakVariant::SpsPlus => gap.maximum(0.0),
        };
        let tiny = if square.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() };
        let zero = (square + self.eps).le(tiny);
        let divisor = where_(zero, 1.0, square + self.eps);
        let step = where_(zero, 0.0, (gap / divisor).minimum(self.max_learning_rate));
        map_updates("scale_by_polyak", updates, |u| step.to(u.dtype()) * u)
    }
}

/// Stochastic gradient descent with the Polyak step size; built by [`polyak_sgd`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolyakSgd {
    /// Factor of the gradients.
    pub scaling: f64,
    /// Scaling by the step size.
    pub polyak: ScaleByPolyak,
}

/// Returns SGD with the Polyak step size, at most `max_learning_rate`: `optax.polyak_sgd`.
///
/// ```
/// use podracer::optim::polyak_sgd;
/// use podracer::{Array, Tensor, interpret, value_and_grad};
///
/// let minimize = interpret(|mut x: Tensor| {
///     for _ in 0..4 {
///         let (value, grads) = value_and_grad(|x: Tensor| x.square().sum(..))(x);
///         x = polyak_sgd(1.0).step(x, &grads, value);
///     }
///     x
/// });
/// assert_eq!(minimize.call(Array::from([8.0f32, -4.0]))?.to_vec::<f32>()?, [0.5, -0.25]);
/// # Ok::<(), podracer::Error>(())
/// ```
pub fn polyak_sgd(max_learning_rate: f64) -> PolyakSgd {
    PolyakSgd { scaling: 1.0, polyak: ScaleByPolyak { max_learning_rate, ..scale_by_polyak() } }
}

impl PolyakSgd {
    /// Returns the updates to add to the parameters. `value` is that of the function there.
    #[track_caller]
    pub fn update<P: Tree<Tensor>>(&self, grads: &P, value: Tensor) -> P {
        let scaled = map_updates("polyak_sgd", grads, |g| -self.scaling * g);
        self.polyak.update(&scaled, value)
    }

    /// Returns the parameters after one update.
    #[track_caller]
    pub fn step<P: Tree<Tensor>>(&self, params: P, grads: &P, value: Tensor) -> P {
        apply_updates(params, self.update(grads, value))
    }
}
