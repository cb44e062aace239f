//! Distribution of MultiDiscrete actions, some of which may be masked.

use super::Categorical;
use crate::random::Key;
use crate::trace::Tensor;
use crate::trace::ops::stack;
use crate::tree::Tree;

/// Distribution of MultiDiscrete actions: independent components with their own logits. Masked
/// choices have probability 0 (Huang and Ontanon 2022).
#[derive(Debug, Clone, Tree)]
pub struct MultiCategorical<T> {
    /// One distribution for each component.
    pub components: Vec<Categorical<T>>,
}

/// Splits `[B, sum(nvec)]` into one part for each component, `[B, n]`.
#[track_caller]
fn split(x: Tensor, nvec: &[usize]) -> Vec<Tensor> {
    let (mut parts, mut from) = (Vec::new(), 0);
    for &n in nvec {
        parts.push(x.slice_axis(-1, from, from + n));
        from += n;
    }
    parts
}

impl MultiCategorical<Tensor> {
    /// Creates the distribution from `logits: f32[B, sum(nvec)]`. Where `allowed: bool[B,
    /// sum(nvec)]` is false, the choice cannot be sampled.
    #[track_caller]
    pub fn new(logits: Tensor, allowed: Tensor, nvec: &[usize]) -> MultiCategorical<Tensor> {
        let mut components = Vec::new();
        for (logits, allowed) in split(logits, nvec).into_iter().zip(split(allowed, nvec)) {
            components.push(Categorical::masked(logits, allowed));
        }
        MultiCategorical { components }
    }

    /// Creates the distribution from `logits: f32[B, sum(nvec)]`; every choice is allowed.
    #[track_caller]
    pub fn from_logits(logits: Tensor, nvec: &[usize]) -> MultiCategorical<Tensor> {
        let mut components = Vec::new();
        for logits in split(logits, nvec) {
            components.push(Categorical::new(logits));
        }
        MultiCategorical { components }
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

    /// Returns the sum over the components, `f32[B]`, of the log probabilities of `choices: i32[B,
    /// components]`.
    #[track_caller]
    pub fn log_prob(&self, choices: Tensor) -> Tensor {
        let mut sum: Option<Tensor> = None;
        for (k, component) in self.components.iter().enumerate() {
            let one = component.log_prob(choices.index_axis(-1, k as isize));
            sum = Some(sum.map_or(one, |sum| sum + one));
        }
        sum.expect("at least one component")
    }

    /// Returns the sum of the components' entropies, `f32[B]`. Masked choices add nothing.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        let mut sum: Option<Tensor> = None;
        for component in &self.components {
            let one = component.entropy();
            sum = Some(sum.map_or(one, |sum| sum + one));
        }
        sum.expect("at least one component")
    }
}
