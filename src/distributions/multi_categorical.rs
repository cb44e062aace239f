//! Distribution of MultiDiscrete actions: independent categorical components, with optional action masks.

use super::Categorical;
use crate::random::Key;
use crate::trace::Tensor;
use crate::trace::ops::stack;
use crate::trace::tensor::fail_op;
use crate::tree::Tree;

/// Distribution of MultiDiscrete actions: independent components with their own logits. Masked
/// actions have probability 0 (Huang and Ontanon 2022).
#[derive(Debug, Clone, Tree)]
pub struct MultiCategorical<T> {
    /// One distribution for each component.
    pub components: Vec<Categorical<T>>,
}

/// Splits `[B, sum(nvec)]` into one part for each component, `[B, n]`.
#[track_caller]
fn split_components(x: Tensor, nvec: &[usize]) -> Vec<Tensor> {
    if nvec.is_empty() || x.dim(-1) != nvec.iter().sum::<usize>() {
        let expected = format!("takes [B, n] where n is the sum of nvec {nvec:?}");
        fail_op("MultiCategorical", format!("{expected}, and was given {}", x.ty()));
    }
    let (mut parts, mut from) = (Vec::new(), 0);
    for &n in nvec {
        parts.push(x.slice_axis(-1, from, from + n));
        from += n;
    }
    parts
}

impl MultiCategorical<Tensor> {
    /// Creates the distribution from `logits: f32[B, sum(nvec)]`.
    ///
    /// # Errors
    /// Ends the trace if the last axis of `logits` is not the sum of `nvec`, or `nvec` is empty.
    #[track_caller]
    pub fn new(logits: Tensor, nvec: &[usize]) -> MultiCategorical<Tensor> {
        let logits = split_components(logits, nvec);
        MultiCategorical { components: logits.into_iter().map(Categorical::new).collect() }
    }

    /// Creates the distribution from `logits: f32[B, sum(nvec)]`. Actions where `action_mask`,
    /// `bool[B, sum(nvec)]`, is false have probability 0.
    ///
    /// # Errors
    /// Ends the trace if the last axis of an argument is not the sum of `nvec`, or `nvec` is empty.
    #[track_caller]
    pub fn masked(logits: Tensor, action_mask: Tensor, nvec: &[usize]) -> MultiCategorical<Tensor> {
        let masks = split_components(action_mask, nvec);
        let parts = split_components(logits, nvec).into_iter().zip(masks);
        let components = parts.map(|(logits, mask)| Categorical::masked(logits, mask));
        MultiCategorical { components: components.collect() }
    }

    /// Samples each component independently: `i32[B, components]`.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        let mut draws = Vec::new();
        for (component, key) in self.components.iter().zip(key.split_vec(self.components.len())) {
            draws.push(component.sample(key));
        }
        stack(&draws, -1)
    }

    /// Returns the log probability of each component of `actions: i32[B, components]`, of the same shape.
    #[track_caller]
    pub fn component_log_probs(&self, actions: Tensor) -> Tensor {
        let mut log_probs = Vec::new();
        for (k, component) in self.components.iter().enumerate() {
            log_probs.push(component.log_prob(actions.index_axis(-1, k as isize)));
        }
        stack(&log_probs, -1)
    }

    /// Returns the log probabilities `f32[B]` of `actions: i32[B, components]`: sums over the components.
    #[track_caller]
    pub fn log_prob(&self, actions: Tensor) -> Tensor {
        self.component_log_probs(actions).sum(-1)
    }

    /// Returns the entropies `f32[B]`: sums over the components. Masked actions add nothing.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        let entropies: Vec<Tensor> = self.components.iter().map(Categorical::entropy).collect();
        stack(&entropies, -1).sum(-1)
    }
}
