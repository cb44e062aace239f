//! Prioritised replay (Schaul et al. 2016) of images with n-step returns, on the device.

use crate::random::{self, Key};
use crate::trace::ops::{arange, constant, full, where_, zeros};
use crate::trace::tensor::fail_op;
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::Tree;

use super::frames::{Drawn, Frames, Seen};
use super::sum_tree::SumTree;

/// How transitions are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Priorities {
    /// How many rewards a transition sums.
    pub n_steps: usize,
    /// The discount factor.
    pub gamma: f64,
    /// The exponent of errors in priorities; 0 draws uniformly.
    pub alpha: f64,
    /// Added to every error, so that nothing is never drawn again.
    pub eps: f64,
    /// Transitions of a draw.
    pub batch_size: usize,
}

/// [`Frames`] and a priority of each transition. A new one has the highest there was.
#[derive(Debug, Clone, Tree)]
pub struct PrioritizedFrames<T> {
    frames: Frames<T>,
    tree: SumTree<T>,
    /// `f32[]`: the highest error so far, with eps.
    highest: T,
    /// What was drawn last, `i32[B]`, and its priorities since, `f32[B]`: they are written with the
    /// next steps, so that the tree is written first and read afterwards in every turn.
    waiting: (T, T),
}

/// A batch, and what is needed to tell its errors.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Batch<T> {
    /// The transitions.
    pub drawn: Drawn<T>,
    /// `i32[B]`: which they are.
    pub rows: T,
    /// `f32[B]`: importance weights, at most 1.
    pub weights: T,
}

impl PrioritizedFrames<Tensor> {
    /// An empty buffer; the arguments are those of [`Frames::new`].
    ///
    /// # Errors
    /// As [`Frames::new`].
    #[track_caller]
    pub fn new(
        capacity: usize,
        num_envs: usize,
        stack: usize,
        frame: &TensorType,
        how: &Priorities,
    ) -> PrioritizedFrames<Tensor> {
        let frames = Frames::new(capacity, num_envs, stack, frame);
        if how.n_steps == 0 || how.batch_size == 0 {
            let problem = format!(
                "{} steps and batches of {}; both must be at least 1",
                how.n_steps, how.batch_size
            );
            fail_op("prioritized frames", problem);
        }
        let rows = capacity / num_envs * num_envs;
        // One row more, for what waits at the start.
        let spare = spare_row(rows, how.batch_size);
        PrioritizedFrames {
            frames,
            tree: SumTree::new(rows + 1),
            highest: constant(1.0f32),
            waiting: (spare, zeros([how.batch_size], DType::F32)),
        }
    }

    /// The buffer with more steps, whose leaves are `[n, N, ..]`, and with the priorities that wait.
    ///
    /// # Errors
    /// As [`Frames::add`]; also if the buffer is so small that new steps meet those that become
    /// playable.
    #[track_caller]
    pub fn add(self, steps: Seen<Tensor>, how: &Priorities) -> PrioritizedFrames<Tensor> {
        let PrioritizedFrames { frames, tree, highest, waiting } = self;
        let (num_envs, length, stack) = (frames.num_envs(), frames.length(), frames.stack());
        let new = steps.reward.dim(0);
        // From the first step that can now be drawn to the last whose older frames are overwritten.
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
        // They are written now: a second time they would undo what comes in between.
        let spare = spare_row(num_envs * length as usize, how.batch_size);
        let waiting = (spare, zeros([how.batch_size], DType::F32));
        PrioritizedFrames { frames, tree, highest, waiting }
    }

    /// A batch, drawn in proportion to the priorities: one transition from each of `batch_size`
    /// equal parts of their sum. `beta`, `f32[]`, is the exponent of the importance weights.
    ///
    /// While nothing can be drawn, what is drawn means nothing.
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

    /// The buffer in which the transitions `rows` of the last draw have the errors `errors`,
    /// `f32[B]`, not below 0. They count from the next `add` on.
    #[track_caller]
    pub fn update(self, rows: Tensor, errors: Tensor, how: &Priorities) -> Self {
        let errors = errors + how.eps;
        let highest = self.highest.maximum(errors.max(..));
        PrioritizedFrames { highest, waiting: (rows, errors.pow(how.alpha)), ..self }
    }
}

/// The row behind the last one of a buffer, once for each place of a batch.
fn spare_row(rows: usize, batch_size: usize) -> Tensor {
    full([batch_size], rows as f64, DType::I32)
}
