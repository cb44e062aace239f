//! Gradient steps, and epochs of them over a rollout: in one compiled loop, or with one call each.

use super::{Metrics, Ratios, mean, rows};
use crate::array::Array;
use crate::error::Result;
use crate::optim::{Adam, AdamState};
use crate::trace::control::{cond, scan};
use crate::trace::ops::{IndexMode, constant, zeros};
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};
use crate::value_and_grad;

/// Train state: the parameters and the optimizer's state.
#[derive(Debug, Clone, Tree)]
#[tree(nested = P)]
pub struct Learner<T, P> {
    /// Parameters.
    pub agent: P,
    /// Adam's state.
    pub optimizer: AdamState<T, P>,
}

impl<P: Tree<Tensor> + Clone> Learner<Tensor, P> {
    /// Creates the train state of these parameters before the first step.
    #[track_caller]
    pub fn new(agent: P) -> Learner<Tensor, P> {
        Learner { optimizer: Adam::default().init(&agent), agent }
    }

    /// Takes one gradient step of Adam. Returns the new state and the auxiliary output of `loss`.
    /// `clip` bounds the gradient: [`clip_by_global_norm`](crate::optim::clip_by_global_norm), or
    /// PyTorch's [`clip_grad_norm`](crate::optim::clip_grad_norm).
    #[track_caller]
    pub fn descend<M: Tree<Tensor>>(
        self,
        loss: impl Fn(&P) -> (Tensor, M),
        clip: impl FnOnce(P) -> P,
        adam: Adam<Tensor>,
    ) -> (Learner<Tensor, P>, M) {
        let Learner { agent, optimizer } = self;
        let ((_, metrics), grads) = value_and_grad(|agent: P| loss(&agent))(agent.clone());
        let (agent, optimizer) = adam.step(agent, clip(grads), optimizer);
        (Learner { agent, optimizer }, metrics)
    }
}

/// Runs the gradient steps of all epochs in one compiled loop: `step` with each of `batches`, along
/// the first axis of its leaves, such as the minibatches of [`orders`](super::orders).
///
/// If an epoch, which is `minibatches` steps, ends with an `approx_kl` above `target_kl`, the
/// remaining epochs are skipped. Returns the metrics of the last step, with the mean `clipfrac` of
/// all steps.
#[track_caller]
pub fn epochs<S, X>(
    state: S,
    batches: X,
    (minibatches, target_kl): (usize, Option<f64>),
    step: impl Fn(S, X) -> (S, Metrics<Tensor>),
) -> (S, Metrics<Tensor>)
where
    S: Tree<Tensor> + Clone,
    X: Tree<Tensor, With<Tensor> = X> + Clone,
{
    let last = |all: Metrics<Tensor>, clipfrac: Tensor| {
        let last = tree::map(all, |x: Tensor| x.index_axis(0, -1));
        Metrics { ratios: Ratios { clipfrac, ..last.ratios }, ..last }
    };
    let Some(target) = target_kl else {
        let (state, all) = scan(step, state, batches);
        return (state, last(all, all.ratios.clipfrac.mean(..)));
    };
    // Train state, last metrics, sum of clip fractions, number of epochs run, and the stop flag.
    type Progress<S> = (S, Metrics<Tensor>, Tensor, Tensor, Tensor);
    let run = |((state, _, fractions, epochs, _), batches): (Progress<S>, X)| {
        let (state, all) = scan(&step, state, batches);
        let metrics = last(all, all.ratios.clipfrac.sum(..));
        let Ratios { approx_kl, clipfrac, .. } = metrics.ratios;
        (state, metrics, fractions + clipfrac, epochs + 1.0, approx_kl.gt(target))
    };
    let skip = |(progress, _): (Progress<S>, X)| progress;
    let turn = |progress: Progress<S>, batches: X| {
        let stop = progress.4;
        (cond(stop, skip, run, (progress, batches)), ())
    };
    let zero = zeros([], DType::F32);
    let ratios = Ratios { old_approx_kl: zero, approx_kl: zero, clipfrac: zero };
    let none = Metrics { loss: zero, value_loss: zero, policy_loss: zero, entropy: zero, ratios };
    let by_epoch = tree::map(batches, |x: Tensor| {
        let epochs = x.dim(0) / minibatches;
        x.reshape([&[epochs, minibatches], &x.shape()[1..]].concat())
    });
    let start = (state, none, zero, zero, constant(false));
    let ((state, last, fractions, epochs, _), ()) = scan(turn, start, by_epoch);
    let clipfrac = fractions / (epochs * minibatches as f64);
    (state, Metrics { ratios: Ratios { clipfrac, ..last.ratios }, ..last })
}

/// Arguments of a gradient step besides the state, where each step is a call of its own. On a CPU
/// the cost of a call is negligible beside convolutions, which run a few percent faster than in a
/// compiled loop.
#[derive(Debug, Clone, Copy, Tree)]
#[tree(nested = S)]
pub struct Minibatch<T, S> {
    /// All samples.
    pub samples: S,
    /// Sample indices of each minibatch, as returned by [`orders`](super::orders).
    pub orders: T,
    /// Index of this minibatch: `i32[]`.
    pub turn: T,
    /// Learning rate: `f32[]`.
    pub learning_rate: T,
}

impl<S: Tree<Tensor, With<Tensor> = S> + Clone> Minibatch<Tensor, S> {
    /// Returns the sample indices of this minibatch: `i32[B]`.
    #[track_caller]
    pub fn indices(&self) -> Tensor {
        self.orders.take_mode(self.turn, 0, IndexMode::Clip)
    }

    /// Returns the samples of this minibatch.
    #[track_caller]
    pub fn rows(&self) -> S {
        rows(self.samples.clone(), self.indices())
    }
}

impl<S: Clone> Minibatch<Array, S> {
    /// Returns the arguments with another minibatch of the same samples.
    pub fn at(&self, turn: usize) -> Minibatch<Array, S> {
        Minibatch { turn: Array::from(turn as i32), ..self.clone() }
    }
}

/// Like [`epochs`], but calls `step` on the host for each gradient step, with the index of its
/// minibatch.
///
/// # Errors
/// Returns the errors of `step`, and errors of the computation of the metrics.
pub fn steps<S>(
    mut state: S,
    (epochs, minibatches): (usize, usize),
    target_kl: Option<f64>,
    mut step: impl FnMut(S, usize) -> Result<(S, Metrics<Array>)>,
) -> Result<(S, Metrics<Array>)> {
    let mut all: Vec<Metrics<Array>> = Vec::new();
    for turn in 0..epochs * minibatches {
        let (next, metrics) = step(state, turn)?;
        state = next;
        let approx_kl = metrics.ratios.approx_kl.clone();
        all.push(metrics);
        if let Some(target) = target_kl
            && all.len().is_multiple_of(minibatches)
            && f64::from(approx_kl.item::<f32>()?) > target
        {
            break;
        }
    }
    let clipfrac = Array::from(mean(all.iter().map(|metrics| &metrics.ratios.clipfrac))?);
    let last = all.pop().expect("at least one epoch of one minibatch");
    Ok((state, Metrics { ratios: Ratios { clipfrac, ..last.ratios }, ..last }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interpret;
    use crate::trace::ops::arange;

    /// Counts steps; the KL divergence and the clip fraction equal the count.
    fn counted(count: Tensor, batch: Tensor) -> (Tensor, Metrics<Tensor>) {
        let count = count + 1.0;
        let ratios = Ratios { old_approx_kl: count, approx_kl: count, clipfrac: count };
        (
            count,
            Metrics { loss: batch, value_loss: count, policy_loss: count, entropy: count, ratios },
        )
    }

    #[test]
    fn epochs_in_the_program_and_by_calls_stop_alike() {
        // Four epochs of two minibatches, each of which is a number.
        for (target, count, clipfrac) in
            [(None, 8.0, 4.5), (Some(3.5), 4.0, 2.5), (Some(0.5), 2.0, 1.5)]
        {
            let run = interpret(|start: Tensor| {
                epochs(start, arange(8, DType::F32), (2, target), counted)
            });
            let (state, told) = run.call(Array::from(0.0f32)).unwrap();
            let step = interpret(|(state, batch): (Tensor, Tensor)| counted(state, batch));
            let start = Array::from(0.0f32);
            let (other, by_calls) = steps(start, (4, 2), target, |state, turn| {
                step.call((state, Array::from(turn as f32)))
            })
            .unwrap();
            let numbers = |state: &Array, told: &Metrics<Array>| -> Vec<f32> {
                let leaves = tree::leaves(told);
                [state].into_iter().chain(&leaves).map(|x| x.item::<f32>().unwrap()).collect()
            };
            assert_eq!(numbers(&state, &told), numbers(&other, &by_calls), "{target:?}");
            let Ratios { approx_kl, clipfrac: fraction, .. } = &told.ratios;
            assert_eq!(approx_kl.item::<f32>().unwrap(), count);
            assert_eq!(fraction.item::<f32>().unwrap(), clipfrac);
            // The last minibatch that was used.
            assert_eq!(told.loss.item::<f32>().unwrap(), count - 1.0);
        }
    }

    #[test]
    fn a_minibatch_is_the_rows_of_its_turn() {
        let run = interpret(|(samples, orders, turn): (Tensor, Tensor, Tensor)| {
            Minibatch { samples, orders, turn, learning_rate: turn }.rows()
        });
        let samples = Array::from([10.0f32, 11.0, 12.0, 13.0]);
        let orders = Array::new([2, 2], &[3i32, 0, 1, 2]).unwrap();
        let rows =
            |turn: i32| run.call((samples.clone(), orders.clone(), Array::from(turn))).unwrap();
        assert_eq!(rows(0).to_vec::<f32>().unwrap(), [13.0, 10.0]);
        assert_eq!(rows(1).to_vec::<f32>().unwrap(), [11.0, 12.0]);
    }
}
