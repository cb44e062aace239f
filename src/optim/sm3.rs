//! SM3: second moments of rows and columns in place of elements.

use super::leaves::map_leaves;
use super::{Chain, Scale, chain, scale, zeros_like};
use crate::optim::transformation::GradientTransformation;
use crate::trace::Tensor;
use crate::trace::ops::{self, where_};
use crate::trace::tensor::op;
use crate::tree::{self, Tree};

/// Transformation built by [`scale_by_sm3`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleBySm3 {
    /// Decay rate of the running mean of scaled gradients.
    pub b1: f64,
    /// Decay rate of the sums of squares; 1 adds them up.
    pub b2: f64,
    /// Epsilon added under the root.
    pub eps: f64,
}

/// State of [`scale_by_sm3`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleBySm3State<T, M> {
    /// Sums of squares, one vector for each axis of each leaf. A scalar has one of one element.
    pub mu: Vec<Vec<T>>,
    /// Running mean of scaled gradients.
    pub nu: M,
}

/// Scales by the root of sums of squares that are kept for each index of each axis, not for each
/// element: `optax.scale_by_sm3` (Anil et al. 2019). Defaults: .9, 1, 1e-8.
///
/// Scalars, which optax refuses, are vectors of one element.
pub fn scale_by_sm3() -> ScaleBySm3 {
    ScaleBySm3 { b1: 0.9, b2: 1.0, eps: 1e-8 }
}

/// Returns SM3 with a momentum of 0.9: `optax.sm3`. The learning rate is a number.
pub fn sm3(learning_rate: f64) -> Chain<(ScaleBySm3, Scale)> {
    chain((scale_by_sm3(), scale(-learning_rate)))
}

/// The shape of a leaf with one axis at least.
fn shape_of(leaf: Tensor) -> Vec<usize> {
    if leaf.rank() == 0 { vec![1] } else { leaf.shape().to_vec() }
}

impl ScaleBySm3 {
    /// Returns the sums of squares of each element after the gradient `g`, and those of each axis.
    fn accumulated(&self, g: Tensor, old: &[Tensor]) -> (Tensor, Vec<Tensor>) {
        let shape = shape_of(g);
        let g = g.reshape(&shape[..]);
        let along = |(axis, sums): (usize, &Tensor)| {
            let mut ones = vec![1; shape.len()];
            ones[axis] = shape[axis];
            sums.reshape(ones)
        };
        let mut before: Option<Tensor> = None;
        for sums in old.iter().enumerate().map(along) {
            before = Some(before.map_or(sums, |least| least.minimum(sums)));
        }
        let before = before.unwrap_or(g);
        let weight = if self.b2 == 1.0 { 1.0 } else { 1.0 - self.b2 };
        let sums = weight * g.square() + self.b2 * before;
        let largest = |axis: usize| {
            let others: Vec<isize> = (0..shape.len())
                .filter(|&other| other != axis)
                .map(|other| other as isize)
                .collect();
            if others.is_empty() { sums } else { sums.max(&others[..]) }
        };
        (sums, (0..shape.len()).map(largest).collect())
    }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleBySm3 {
    type State = ScaleBySm3State<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        let mut mu = Vec::new();
        for leaf in tree::leaves(params) {
            let mut vectors = Vec::new();
            for size in shape_of(leaf) {
                vectors.push(ops::zeros([size], leaf.dtype()));
            }
            mu.push(vectors);
        }
        ScaleBySm3State { mu, nu: zeros_like(params) }
    }

    #[op("scale_by_sm3")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let (mut mu, mut scaled) = (Vec::new(), Vec::new());
        for (g, old) in tree::leaves(grads).into_iter().zip(&state.mu) {
            let (sums, new) = self.accumulated(g, old);
            let factor = where_(sums.gt(0.0), (sums + self.eps).rsqrt(), 0.0);
            scaled.push(g * factor.reshape(g.shape()));
            mu.push(new);
        }
        let scaled = tree::replace(grads, scaled);
        let trees = [grads, &scaled, &state.nu];
        let names = ["updates", "scaled updates", "nu"];
        let [updates, nu] = map_leaves("scale_by_sm3", names, trees, |[_, scaled, nu]| {
            let nu = (1.0 - self.b1) * scaled + self.b1 * nu;
            [nu, nu]
        });
        (updates, ScaleBySm3State { mu, nu })
    }
}
