//! Prioritized replay (Schaul et al. 2016) of images with n-step returns, on the device.

use crate::random::{self, Key};
use crate::trace::ops::{arange, constant, full, where_, zeros};
use crate::trace::tensor::fail_op;
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::Tree;

use crate::rl::buffers::frames::{FrameBuffer, FrameTransition, SampledBatch};
use crate::rl::buffers::sum_tree::SumTree;

/// Configuration of prioritized sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PriorityOptions {
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

/// [`FrameBuffer`] with a priority for each transition. New transitions get the highest priority so
/// far.
#[derive(Debug, Clone, Tree)]
pub struct PrioritizedFrameBuffer<T> {
    frames: FrameBuffer<T>,
    tree: SumTree<T>,
    /// `f32[]`: highest error so far, including eps.
    highest: T,
    /// Indices of the last batch, `i32[B]`, and their new priorities, `f32[B]`. They are written by
    /// the next `add`, so that every iteration of a loop first writes the tree and then reads it.
    pending: (T, T),
}

/// Batch of transitions, with the indices that
/// [`update_priorities`](PrioritizedFrameBuffer::update_priorities) needs.
#[derive(Debug, Clone, Copy, Tree)]
pub struct PrioritizedBatch<T> {
    /// Transitions.
    pub transitions: SampledBatch<T>,
    /// `i32[B]`: indices of the transitions.
    pub indices: T,
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
        options: &PriorityOptions,
    ) -> PrioritizedFrameBuffer<Tensor> {
        let frames = FrameBuffer::new(capacity, num_envs, stack, frame);
        if options.n_steps == 0 || options.batch_size == 0 {
            let problem = format!(
                "{} steps and batches of {}; both must be at least 1",
                options.n_steps, options.batch_size
            );
            fail_op("prioritized frames", problem);
        }
        let size = capacity / num_envs * num_envs;
        // One more index, to which the initial pending priorities are written.
        let spare = spare_index(size, options.batch_size);
        PrioritizedFrameBuffer {
            frames,
            tree: SumTree::new(size + 1),
            highest: constant(1.0f32),
            pending: (spare, zeros([options.batch_size], DType::F32)),
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
        options: &PriorityOptions,
    ) -> PrioritizedFrameBuffer<Tensor> {
        let PrioritizedFrameBuffer { frames, tree, highest, pending } = self;
        let (num_envs, length, stack) = (frames.num_envs(), frames.length(), frames.stack());
        let num_steps = steps.reward.dim(0);
        // From the first step that can now be sampled to the last whose older frames are
        // overwritten.
        let span = num_steps + options.n_steps + stack - 1;
        if span > length as usize {
            let problem = format!("{length} steps of each environment; it must have {span}");
            fail_op("prioritized frames", problem);
        }
        let (next, count) = frames.next_and_count();
        let frames = frames.add(steps);
        let offset = arange(span, DType::I32);
        let step = (next - options.n_steps as i32 + length + offset) % length;
        let stored = offset.lt(num_steps as i32) & (offset + count).ge(options.n_steps as i32);
        let index = step.expand_dims(-1) * num_envs as i32 + arange(num_envs, DType::I32);
        let index = index.ravel();
        let stored = stored.expand_dims(-1).broadcast_to([span, num_envs]).ravel();
        let can_be_sampled = stored & !frames.truncated_at(index);
        let start = highest.pow(options.alpha).broadcast_to(can_be_sampled.shape());
        let priority = where_(can_be_sampled, start, 0.0);
        let tree = tree.set(pending.0, pending.1).set(index, priority);
        // The pending priorities are written now: writing them again would undo later changes.
        let spare = spare_index(num_envs * length as usize, options.batch_size);
        let pending = (spare, zeros([options.batch_size], DType::F32));
        PrioritizedFrameBuffer { frames, tree, highest, pending }
    }

    /// Samples a batch in proportion to the priorities: one transition from each of `batch_size`
    /// equal parts of their sum. `beta`, `f32[]`, is the exponent of the importance-sampling
    /// weights.
    ///
    /// Without a transition that can be sampled, the result is meaningless.
    #[track_caller]
    pub fn sample(
        &self,
        key: Key<Tensor>,
        beta: Tensor,
        options: &PriorityOptions,
    ) -> PrioritizedBatch<Tensor> {
        let n = options.batch_size;
        let part = arange(n, DType::F32) + random::uniform(key, [n], DType::F32, 0.0, 1.0);
        let total = self.tree.total();
        let indices = self.tree.find(part / n as f64 * total);
        let (_, count) = self.frames.next_and_count();
        let count = (count * self.frames.num_envs() as i32).to(DType::F32);
        let probability = self.tree.get(indices) / total;
        let weights = (count * probability).pow(-beta);
        let weights = weights / weights.max(..);
        let transitions = self.frames.transitions(indices, options.n_steps, options.gamma);
        PrioritizedBatch { transitions, indices, weights }
    }

    /// Sets the errors of the transitions `indices` of the last batch to `errors`, `f32[B]`, not
    /// below 0. They take effect with the next `add`.
    #[track_caller]
    pub fn update_priorities(
        self,
        indices: Tensor,
        errors: Tensor,
        options: &PriorityOptions,
    ) -> Self {
        let errors = errors + options.eps;
        let highest = self.highest.maximum(errors.max(..));
        PrioritizedFrameBuffer { highest, pending: (indices, errors.pow(options.alpha)), ..self }
    }
}

/// Returns the index after the last one of a buffer of this size, once for each element of a batch.
fn spare_index(size: usize, batch_size: usize) -> Tensor {
    full([batch_size], size as f64, DType::I32)
}
