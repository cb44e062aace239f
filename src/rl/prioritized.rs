//! Prioritized replay (Schaul et al. 2016) of images with n-step returns, on the device.

use crate::random::{self, Key};
use crate::trace::ops::{arange, constant, full, where_, zeros};
use crate::trace::tensor::fail_op;
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::Tree;

use super::frames::{FrameBuffer, FrameTransition, SampledBatch};
use super::sum_tree::SumTree;

/// Configuration of prioritized sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Priorities {
    /// Number of rewards that a transition sums.
    pub n_steps: usize,
    /// Discount factor.
    pub gamma: f64,
    /// Exponent of errors in priorities; 0 samples uniformly.
    pub alpha: f64,
    /// Constant added to every error, so that every transition can be sampled again.
    pub eps: f64,
    /// Number of transitions in a batch.
    pub batch_size: usize,
}

/// [`FrameBuffer`] with a priority for each transition. New transitions get the highest priority so far.
#[derive(Debug, Clone, Tree)]
pub struct PrioritizedFrameBuffer<T> {
    frames: FrameBuffer<T>,
    tree: SumTree<T>,
    /// `f32[]`: highest error so far, including eps.
    highest: T,
    /// Rows of the last batch, `i32[B]`, and their new priorities, `f32[B]`. They are written by
    /// the next `add`, so that every iteration of a loop first writes the tree and then reads it.
    waiting: (T, T),
}

/// Batch of transitions, with the rows that [`update`](PrioritizedFrameBuffer::update) needs.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Batch<T> {
    /// Transitions.
    pub drawn: SampledBatch<T>,
    /// `i32[B]`: rows of the transitions.
    pub rows: T,
    /// `f32[B]`: importance-sampling weights, at most 1.
    pub weights: T,
}

impl PrioritizedFrameBuffer<Tensor> {
    /// Creates an empty buffer; the arguments are those of [`FrameBuffer::new`].
    ///
    /// # Errors
    /// Ends the trace in the cases of [`FrameBuffer::new`], and if `n_steps` or `batch_size` is 0.
    #[track_caller]
    pub fn new(
        capacity: usize,
        num_envs: usize,
        stack: usize,
        frame: &TensorType,
        how: &Priorities,
    ) -> PrioritizedFrameBuffer<Tensor> {
        let frames = FrameBuffer::new(capacity, num_envs, stack, frame);
        if how.n_steps == 0 || how.batch_size == 0 {
            let problem = format!(
                "{} steps and batches of {}; both must be at least 1",
                how.n_steps, how.batch_size
            );
            fail_op("prioritized frames", problem);
        }
        let rows = capacity / num_envs * num_envs;
        // One more row, to which the initial pending priorities are written.
        let spare = spare_row(rows, how.batch_size);
        PrioritizedFrameBuffer {
            frames,
            tree: SumTree::new(rows + 1),
            highest: constant(1.0f32),
            waiting: (spare, zeros([how.batch_size], DType::F32)),
        }
    }

    /// Adds steps, whose leaves are `[n, N, ..]`, and writes the pending priorities.
    ///
    /// # Errors
    /// Ends the trace in the cases of [`FrameBuffer::add`]; also if the buffer is so small that new
    /// steps overlap those that become available for sampling.
    #[track_caller]
    pub fn add(
        self,
        steps: FrameTransition<Tensor>,
        how: &Priorities,
    ) -> PrioritizedFrameBuffer<Tensor> {
        let PrioritizedFrameBuffer { frames, tree, highest, waiting } = self;
        let (num_envs, length, stack) = (frames.num_envs(), frames.length(), frames.stack());
        let new = steps.reward.dim(0);
        // From the first step that can now be sampled to the last whose older frames are
        // overwritten.
        let span = new + how.n_steps + stack - 1;
        if span > length as usize {
            let problem = format!("{length} steps of each environment; it must have {span}");
            fail_op("prioritized frames", problem);
        }
        let (next, before) = frames.place();
        let frames = frames.add(steps);
        let place = arange(span, DType::I32);
        let step = (next - how.n_steps as i32 + length + place) % length;
        let there = place.lt(new as i32) & (place + before).ge(how.n_steps as i32);
        let row = step.expand_dims(-1) * num_envs as i32 + arange(num_envs, DType::I32);
        let row = row.ravel();
        let there = there.expand_dims(-1).broadcast_to([span, num_envs]).ravel();
        let playable = there & !frames.cut(row);
        let start = highest.pow(how.alpha).broadcast_to(playable.shape());
        let priority = where_(playable, start, 0.0);
        let tree = tree.set(waiting.0, waiting.1).set(row, priority);
        // The pending priorities are written now: writing them again would undo later changes.
        let spare = spare_row(num_envs * length as usize, how.batch_size);
        let waiting = (spare, zeros([how.batch_size], DType::F32));
        PrioritizedFrameBuffer { frames, tree, highest, waiting }
    }

    /// Samples a batch in proportion to the priorities: one transition from each of `batch_size`
    /// equal parts of their sum. `beta`, `f32[]`, is the exponent of the importance-sampling
    /// weights.
    ///
    /// Without a transition that can be sampled, the result is meaningless.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>, beta: Tensor, how: &Priorities) -> Batch<Tensor> {
        let n = how.batch_size;
        let part = arange(n, DType::F32) + random::uniform(key, [n], DType::F32, 0.0, 1.0);
        let total = self.tree.total();
        let rows = self.tree.find(part / n as f64 * total);
        let stored = (self.frames.place().1 * self.frames.num_envs() as i32).to(DType::F32);
        let chance = self.tree.get(rows) / total;
        let weights = (stored * chance).pow(-beta);
        let weights = weights / weights.max(..);
        Batch { drawn: self.frames.transitions(rows, how.n_steps, how.gamma), rows, weights }
    }

    /// Sets the errors of the transitions `rows` of the last batch to `errors`, `f32[B]`, not below
    /// 0. They take effect with the next `add`.
    #[track_caller]
    pub fn update(self, rows: Tensor, errors: Tensor, how: &Priorities) -> Self {
        let errors = errors + how.eps;
        let highest = self.highest.maximum(errors.max(..));
        PrioritizedFrameBuffer { highest, waiting: (rows, errors.pow(how.alpha)), ..self }
    }
}

/// Returns the index of the row after the last one of a buffer, once for each element of a batch.
fn spare_row(rows: usize, batch_size: usize) -> Tensor {
    full([batch_size], rows as f64, DType::I32)
}
