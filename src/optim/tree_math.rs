//! Functions of trees that optimizers are made of.

use super::adam::power;
use super::leaves::{map_leaves, map_updates, scalar_type_of};
use crate::trace::Tensor;
use crate::trace::custom::custom_jvp;
use crate::trace::tensor::{fail_op, op};
use crate::tree::{self, Tree};

/// Names of gradients and their running moment in messages.
const MOMENT: [&str; 2] = ["updates", "moments"];

/// Computes `(1 - decay) updates^order + decay moments` for every leaf: `optax.update_moment`.
#[op]
pub fn update_moment<M: Tree<Tensor>>(updates: &M, moments: &M, decay: f64, order: i32) -> M {
    let [moments] = map_leaves("update_moment", MOMENT, [updates, moments], |[g, t]| {
        [(1.0 - decay) * if order == 1 { g } else { g.powi(order) } + decay * t]
    });
    moments
}

/// Computes `max(|updates| + eps, decay moments)` for every leaf: `optax.update_infinity_moment`.
#[op]
pub fn update_infinity_moment<M: Tree<Tensor>>(
    updates: &M,
    moments: &M,
    decay: f64,
    eps: f64,
) -> M {
    let trees = [updates, moments];
    let [moments] = map_leaves("update_infinity_moment", MOMENT, trees, |[g, t]| {
        [(g.abs() + eps).maximum(decay * t)]
    });
    moments
}

/// Divides every leaf by `1 - decay^count`, `count` an integer scalar: `optax.bias_correction`.
///
/// # Errors
/// Ends the trace if `count` is not an integer scalar.
#[op]
pub fn bias_correction<M: Tree<Tensor>>(moment: &M, decay: f64, count: Tensor) -> M {
    if count.rank() != 0 || !count.dtype().is_int() {
        let problem = format!("count must be an integer scalar, and is {}", count.ty());
        fail_op("bias_correction", problem);
    }
    let scale: Tensor = 1.0 - power(decay, count, scalar_type_of(&tree::leaves(moment)));
    map_updates("bias_correction", moment, |t| t / scale.to(t.dtype()))
}

/// Returns its argument, through which gradients are multiplied by `scale`: `optax.scale_gradient`.
///
/// ```
/// use podracer::optim::scale_gradient;
/// use podracer::{Array, Tensor, grad, interpret};
///
/// let reversed = interpret(grad(|x: Tensor| scale_gradient(x, -1.0).square().sum(..)));
/// assert_eq!(reversed.call(Array::from([1.0f32, 3.0]))?.to_vec::<f32>()?, [-2.0, -6.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op]
pub fn scale_gradient<M: Tree<Tensor>>(inputs: M, scale: f64) -> M {
    let scaled = custom_jvp(|x: Tensor| x * 1.0, move |x, t: Tensor| (x, t * scale));
    let mut leaves = Vec::new();
    for leaf in tree::leaves(&inputs) {
        leaves.push(scaled(leaf));
    }
    tree::replace(&inputs, leaves)
}
