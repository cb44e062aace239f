//! Replay buffer of images on the device, in which every frame is stored once.
//!
//! Observations are stacks of the last frames, so four of the five frames in a transition of two
//! observations also occur in others. The buffer stores only the newest frame of each step and
//! rebuilds the stacks when it samples: a million Atari transitions take 7.1 GB, against 28 or 56
//! GB for whole observations. Frames before an episode's start are copies of its first one, as
//! [`AtariStart::Gymnasium`](crate::envs::AtariStart::Gymnasium) fills its stacks.
//!
//! The next observation of a step is the observation of the following step. After a truncation that
//! is an observation of another episode, and the final observation is not stored. Such a step is
//! therefore never the first of a sampled transition, and n-step returns end before it and
//! bootstrap from the value of the observation in which it was taken.

use crate::random::{self, Key};
use crate::spaces::ObsKind;
use crate::trace::control::while_loop;
use crate::trace::ops::IndexMode;
use crate::trace::ops::{constant, div, full, stack, where_, zeros};
use crate::trace::tensor::fail_op;
use crate::trace::{DType, Shape, Tensor, TensorType};
use crate::tree::Tree;

use crate::rl::buffers::replay::ReplayBuffer;

/// Maximum number of attempts to resample truncated steps.
const MAX_TRIES: i32 = 100;

/// Returns the number of frames of an observation of this kind and shape, and the type of one.
/// Boards and vectors are one frame.
pub fn stack_and_frame(obs_kind: ObsKind, shape: &Shape) -> (usize, TensorType) {
    match obs_kind {
        ObsKind::Image => (shape[0], TensorType::new(DType::U8, shape.without_axis(0))),
        ObsKind::Board => (1, TensorType::new(DType::Bool, shape.clone())),
        ObsKind::Vector => (1, TensorType::new(DType::F32, shape.clone())),
    }
}

/// Returns the newest frame of observations `[N, ..]`: `[N, ..frame]`.
#[track_caller]
pub fn newest_frame(obs_kind: ObsKind, obs: Tensor) -> Tensor {
    match obs_kind {
        ObsKind::Image => obs.index_axis(1, obs.dim(1) as isize - 1),
        ObsKind::Board | ObsKind::Vector => obs,
    }
}

/// Returns the minimum capacity, in transitions, of a [`FrameBuffer`] with stacks of up to 4 frames
/// that receives `train_frequency` transitions of `num_envs` environments at once. Besides these it
/// has room for 8 steps of each environment: a stack, the step after it, and 3 to spare.
pub fn min_buffer_size(train_frequency: usize, num_envs: usize) -> usize {
    train_frequency + 8 * num_envs
}

/// Data that one step of N environments stores in the buffer.
#[derive(Debug, Clone, Copy, Tree)]
pub struct FrameTransition<T> {
    /// `[N, ..frame]`: newest frame of the observation.
    pub frame: T,
    /// `i32[N]`: steps since the episode began; it may be clipped to the height of the stack.
    pub age: T,
    /// `i32[N]`: actions.
    pub action: T,
    /// `f32[N]`: rewards.
    pub reward: T,
    /// `bool[N]`: true where the episode terminated at this step.
    pub terminated: T,
    /// `bool[N]`: true where the episode was truncated at this step.
    pub truncated: T,
}

/// Batch of B sampled transitions.
#[derive(Debug, Clone, Copy, Tree)]
pub struct SampledBatch<T> {
    /// `[B, stack, ..frame]`: observations; without the stack axis if its size is 1.
    pub obs: T,
    /// `i32[B]`: actions.
    pub action: T,
    /// `f32[B]`: discounted sums of the rewards of up to n steps.
    pub reward: T,
    /// `[B, ..]`: observations after these steps.
    pub next_obs: T,
    /// `f32[B]`: factor of the value of `next_obs`: gamma to the power of the number of steps, 0 if
    /// the episode terminated.
    pub discount: T,
}

/// Ring buffer of the last steps of N environments.
#[derive(Debug, Clone, Tree)]
pub struct FrameBuffer<T> {
    steps: ReplayBuffer<T, FrameTransition<T>>,
    stack: usize,
    num_envs: usize,
}

impl FrameBuffer<Tensor> {
    /// Creates an empty buffer for `capacity` transitions of `num_envs` environments, whose
    /// observations are `stack` frames of the type `frame`.
    ///
    /// # Errors
    /// Ends the trace if fewer than `stack + 1` steps of each environment fit, and in the cases of
    /// [`ReplayBuffer::new`].
    #[track_caller]
    pub fn new(
        capacity: usize,
        num_envs: usize,
        stack: usize,
        frame: &TensorType,
    ) -> FrameBuffer<Tensor> {
        let length = capacity / num_envs.max(1);
        if stack == 0 || num_envs == 0 || length <= stack {
            let problem = format!(
                "a capacity of {capacity} for {num_envs} environments and stacks of {stack}; it \
                 must be more than the stack for each environment"
            );
            fail_op("frames", problem);
        }
        let column = |dtype| TensorType::new(dtype, [num_envs]);
        let item = FrameTransition {
            frame: TensorType::new(frame.dtype, frame.shape.with_axis(0, num_envs)),
            age: column(DType::U8),
            action: column(DType::I32),
            reward: column(DType::F32),
            terminated: column(DType::Bool),
            truncated: column(DType::Bool),
        };
        FrameBuffer { steps: ReplayBuffer::new(length, item), stack, num_envs }
    }

    /// Returns the capacity in steps of each environment.
    pub(in crate::rl) fn length(&self) -> i32 {
        self.steps.capacity() as i32
    }

    /// Returns the number of frames of an observation.
    pub(in crate::rl) fn stack(&self) -> usize {
        self.stack
    }

    /// Returns the number of environments.
    pub(in crate::rl) fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// Returns the index of the next step to write and the number of stored steps: `i32[]` each.
    pub(in crate::rl) fn next_and_count(&self) -> (Tensor, Tensor) {
        (self.steps.next, self.steps.count)
    }

    /// Returns true where an episode was truncated at the steps `indices: i32[n]`, which are
    /// those of [`transitions`](FrameBuffer::transitions).
    #[track_caller]
    pub(in crate::rl) fn truncated_at(&self, indices: Tensor) -> Tensor {
        self.steps.items.truncated.ravel().take_mode(indices, 0, IndexMode::Clip)
    }

    /// Adds `n` steps, whose leaves are `[n, N, ..]`.
    ///
    /// # Errors
    /// Ends the trace in the cases of [`ReplayBuffer::add`].
    #[track_caller]
    #[expect(clippy::should_implement_trait, reason = "the name that every replay buffer uses")]
    pub fn add(self, steps: FrameTransition<Tensor>) -> FrameBuffer<Tensor> {
        let highest = (self.stack - 1) as f64;
        let age = steps.age.to(DType::F32).minimum(highest).to(DType::U8);
        // A step that both terminates and truncates counts as terminated: its value target ignores
        // the next observation.
        let truncated = steps.truncated & !steps.terminated;
        let steps = FrameTransition { age, truncated, ..steps };
        FrameBuffer { steps: self.steps.add(steps), ..self }
    }

    /// Samples `n` transitions of up to `n_steps` steps uniformly, with replacement.
    ///
    /// With fewer than `n_steps + 1` stored steps, the result is meaningless. In the body of a
    /// loop, sample after the only `add`, as with [`ReplayBuffer::sample`].
    #[track_caller]
    pub fn sample(
        &self,
        key: Key<Tensor>,
        n: usize,
        n_steps: usize,
        gamma: f64,
    ) -> SampledBatch<Tensor> {
        let (first, count) = self.first_and_count(n_steps);
        let high = count * self.num_envs as i32;
        let sample = |key: Key<Tensor>| {
            let numbers = random::randint(key, [n], 0, high, DType::I32);
            let num_envs = self.num_envs as i32;
            self.index(first + div(numbers, num_envs), numbers % num_envs)
        };
        let (key, sample_key) = key.split();
        let init = (sample(sample_key), key, constant(0i32));
        type Sampled = (Tensor, Key<Tensor>, Tensor);
        let any_truncated =
            |(indices, _, tries): Sampled| self.truncated_at(indices).any(..) & tries.lt(MAX_TRIES);
        let resample = |(indices, key, tries): Sampled| {
            let (key, sample_key) = key.split();
            let truncated = self.truncated_at(indices);
            (where_(truncated, sample(sample_key), indices), key, tries + 1)
        };
        let (indices, ..) = while_loop(any_truncated, resample, init);
        self.transitions(indices, n_steps, gamma)
    }

    /// Returns the first step that can be sampled, `i32[]` as an index into the buffer, and the
    /// number of such steps: those whose older frames are still stored and whose next `n_steps`
    /// steps exist. The number is at least 1.
    #[track_caller]
    fn first_and_count(&self, n_steps: usize) -> (Tensor, Tensor) {
        let (length, count) = (self.length(), self.steps.count);
        let overwritten = count.eq(length).to(DType::I32) * (self.stack as i32 - 1);
        let first = (self.steps.next + (length - count) + overwritten) % length;
        (first, (count - overwritten - n_steps as i32).maximum(1))
    }

    /// Returns the index of a step of an environment in leaves of `[length * N, ..]`. Steps wrap
    /// around.
    #[track_caller]
    fn index(&self, step: Tensor, env: Tensor) -> Tensor {
        step % self.length() * self.num_envs as i32 + env
    }

    /// Returns the transitions that begin at `indices: i32[B]`: step times N plus environment.
    #[track_caller]
    pub(in crate::rl) fn transitions(
        &self,
        indices: Tensor,
        n_steps: usize,
        gamma: f64,
    ) -> SampledBatch<Tensor> {
        let gather = |leaf: Tensor, indices| leaf.ravel().take_mode(indices, 0, IndexMode::Clip);
        let items = &self.steps.items;
        let num_envs = self.num_envs as i32;
        let (step, env) = (div(indices, num_envs), indices % num_envs);
        let batch = indices.shape();
        let mut reward = zeros(batch.clone(), DType::F32);
        let mut discount = full(batch.clone(), 1.0, DType::F32);
        let mut next_step = step;
        let mut nonterminal = full(batch.clone(), 1.0, DType::F32).gt(0.0);
        let mut terminated = !nonterminal;
        for k in 0..n_steps {
            let index = self.index(step + k as i32, env);
            let mut included = nonterminal;
            if k > 0 {
                included = included & !gather(items.truncated, index);
            }
            let terminates = included & gather(items.terminated, index);
            reward = reward + where_(included, discount * gather(items.reward, index), 0.0);
            discount = where_(included, discount * gamma, discount);
            next_step = next_step + included.to(DType::I32);
            terminated = terminated | terminates;
            nonterminal = included & !terminates;
        }
        SampledBatch {
            obs: self.stacked_obs(step, env),
            action: gather(items.action, indices),
            reward,
            next_obs: self.stacked_obs(next_step, env),
            discount: where_(terminated, 0.0, discount),
        }
    }

    /// Returns the observations at steps of environments, `[B, stack, ..frame]`.
    #[track_caller]
    fn stacked_obs(&self, step: Tensor, env: Tensor) -> Tensor {
        let frames = self.steps.items.frame;
        let shape = frames.shape().without_axis(0).without_axis(0);
        let count = frames.shape()[0] * frames.shape()[1];
        let frames = frames.reshape(shape.with_axis(0, count));
        if self.stack == 1 {
            return frames.take_mode(self.index(step, env), 0, IndexMode::Clip);
        }
        let age = self.steps.items.age.ravel();
        let age = age.take_mode(self.index(step, env), 0, IndexMode::Clip).to(DType::I32);
        let length = self.length();
        let offsets = (0..self.stack as i32).rev();
        let indices: Vec<Tensor> =
            offsets.map(|k| self.index(step + length - age.minimum(k), env)).collect();
        let indices = stack(&indices, 1); // i32[B, stack]
        let frames = frames.take_mode(indices.ravel(), 0, IndexMode::Clip);
        frames.reshape(shape.with_axis(0, self.stack).with_axis(0, indices.dim(0)))
    }
}
