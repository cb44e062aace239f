//! Muon.

use super::super::leaves::{map_leaves, map_updates};
use super::super::{
    AddDecayedWeights, Chain, LearningRate, MultiTransform, ScaleByAdam, ScaleByLearningRate,
    add_decayed_weights, bias_correction, chain, increment, multi_transform,
    scale_by_learning_rate, zeros_like,
};
use crate::optim::transformation::{GradientTransformation, OptState};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{Tensor, TensorType, ops};
use crate::tree::Tree;

/// Transformation built by [`scale_by_muon`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByMuon {
    /// Coefficients of the iteration of Newton and Schulz: of `x`, `(x x^T) x` and `(x x^T)^2 x`.
    pub ns_coeffs: [f64; 3],
    /// Number of iterations.
    pub ns_steps: usize,
    /// Decay rate of the running mean of gradients.
    pub beta: f64,
    /// Epsilon added to the norm.
    pub eps: f64,
    /// If true, the mean looks ahead by one update (Nesterov).
    pub nesterov: bool,
    /// If true, updates are multiplied by their inner product with the mean.
    pub adaptive: bool,
}

/// State of [`scale_by_muon`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByMuonState<T, M> {
    /// Number of updates made, `i32`.
    pub count: T,
    /// Running mean of gradients.
    pub mu: M,
}

/// Replaces the running mean of the gradients of matrices by an orthogonal matrix near it:
/// `optax.contrib.scale_by_muon` (Jordan et al. 2024). Defaults: 5 iterations, 0.95, 1e-8, true, false.
///
/// # Errors
/// Ends the trace if a leaf is not a matrix; see [`muon`].
pub fn scale_by_muon() -> ScaleByMuon {
    ScaleByMuon {
        ns_coeffs: [3.4445, -4.7750, 2.0315],
        ns_steps: 5,
        beta: 0.95,
        eps: 1e-8,
        nesterov: true,
        adaptive: false,
    }
}

impl ScaleByMuon {
    /// Returns a matrix with the singular vectors of `x` and singular values near 1.
    #[track_caller]
    fn orthogonalize(&self, x: Tensor) -> Tensor {
        if x.rank() != 2 {
            fail_op("scale_by_muon", format!("takes matrices, and a leaf is {}", x.ty()));
        }
        let tall = x.dim(0) > x.dim(1);
        let x = if tall { x.t() } else { x };
        let mut x = x / (x.square().sum(..).sqrt() + self.eps);
        let [first, third, fifth] = self.ns_coeffs;
        for _ in 0..self.ns_steps {
            let square = x.matmul(x.t());
            let polynomial = third * square + (fifth * square).matmul(square);
            x = first * x + polynomial.matmul(x);
        }
        if tall { x.t() } else { x }
    }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByMuon {
    type State = ScaleByMuonState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        ScaleByMuonState { count: ops::constant(0i32), mu: zeros_like(params) }
    }

    #[op("scale_by_muon")]
    fn update(&self, grads: &P, state: Self::State, _: &P) -> (P, Self::State) {
        let (op, beta) = ("scale_by_muon", self.beta);
        let [mu] = map_leaves(op, ["updates", "mu"], [grads, &state.mu], |[g, m]| {
            [(1.0 - beta) * g + beta * m]
        });
        let count = increment(state.count);
        let mean = if self.nesterov {
            let ahead = bias_correction(&mu, beta, increment(count));
            let now = bias_correction(grads, beta, count);
            let [mean] = map_leaves(op, ["mu", "updates"], [&ahead, &now], |[m, g]| {
                [beta * m + (1.0 - beta) * g]
            });
            mean
        } else {
            bias_correction(&mu, beta, count)
        };
        let updates = map_updates(op, &mean, |m| {
            let update = self.orthogonalize(m);
            if self.adaptive { (m * update).sum(..) * update } else { update }
        });
        (updates, ScaleByMuonState { count, mu })
    }
}

/// Scaling of updates of matrices by their sizes, a part of [`muon`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByShape {
    /// Root of the mean square of the updates of all matrices. If `None`, a matrix `[m, n]` is scaled by the
    /// root of `n / m`, at least 1.
    pub consistent_rms: Option<f64>,
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByShape {
    type State = ();

    #[track_caller]
    fn init(&self, _: &P) {}

    #[track_caller]
    fn update(&self, grads: &P, (): (), _: &P) -> (P, ()) {
        let scaled = |u: Tensor| {
            let (rows, columns) = (u.dim(0) as f64, u.dim(1) as f64);
            let scale = match self.consistent_rms {
                Some(rms) => rows.max(columns).sqrt() * rms,
                None => (columns / rows).max(1.0).sqrt(),
            };
            scale * u
        };
        (map_updates("scale_by_shape", grads, scaled), ())
    }
}

/// Muon for matrices and Adam for the other parameters; built by [`muon`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Muon<L = f64> {
    /// Learning rate: a number, a traced scalar, a [`Schedule`](crate::optim::Schedule) or a function of the
    /// count of updates.
    pub learning_rate: L,
    /// Transformation of the gradients of matrices.
    pub scale_by_muon: ScaleByMuon,
    /// Weight decay of matrices, decoupled.
    pub weight_decay: f64,
    /// See [`ScaleByShape`].
    pub consistent_rms: Option<f64>,
    /// Decay rate of Adam's running mean of gradients.
    pub adam_b1: f64,
    /// Decay rate of Adam's running mean of squared gradients.
    pub adam_b2: f64,
    /// Epsilon that Adam adds under the root.
    pub adam_eps_root: f64,
    /// Weight decay of the other parameters, decoupled.
    pub adam_weight_decay: f64,
}

/// Returns Muon for parameters of two axes and Adam with Nesterov momentum for all others:
/// `optax.contrib.muon` with its default of dimensions.
///
/// Defaults: those of [`scale_by_muon`] and of Adam, no weight decay. `nesterov` and `eps` are those of both.
pub fn muon<L: LearningRate>(learning_rate: L) -> Muon<L> {
    Muon {
        learning_rate,
        scale_by_muon: scale_by_muon(),
        weight_decay: 0.0,
        consistent_rms: None,
        adam_b1: 0.9,
        adam_b2: 0.999,
        adam_eps_root: 0.0,
        adam_weight_decay: 0.0,
    }
}

type OfMatrices<L> = Chain<(ScaleByMuon, ScaleByShape, AddDecayedWeights, ScaleByLearningRate<L>)>;
type OfOthers<L> = Chain<(ScaleByAdam, AddDecayedWeights, ScaleByLearningRate<L>)>;
type Label = fn(&str, &TensorType) -> usize;

impl<L: LearningRate + Clone> Muon<L> {
    fn transformation(&self) -> MultiTransform<(OfMatrices<L>, OfOthers<L>), Label> {
        let rate = || scale_by_learning_rate(self.learning_rate.clone());
        let of_matrices = chain((
            self.scale_by_muon,
            ScaleByShape { consistent_rms: self.consistent_rms },
            add_decayed_weights(self.weight_decay),
            rate(),
        ));
        let adam = ScaleByAdam {
            b1: self.adam_b1,
            b2: self.adam_b2,
            eps: self.scale_by_muon.eps,
            eps_root: self.adam_eps_root,
            nesterov: self.scale_by_muon.nesterov,
        };
        let of_others = chain((adam, add_decayed_weights(self.adam_weight_decay), rate()));
        let label: Label = |_, ty| usize::from(ty.rank() != 2);
        multi_transform((of_matrices, of_others), label)
    }
}

impl<L: LearningRate + Clone, P: Tree<Tensor>> GradientTransformation<P> for Muon<L> {
    type State = (OptState<OfMatrices<L>, Vec<Tensor>>, OptState<OfOthers<L>, Vec<Tensor>>);

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        self.transformation().init(params)
    }

    #[track_caller]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        self.transformation().update(grads, state, params)
    }
}
