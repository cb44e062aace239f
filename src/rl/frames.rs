//! A replay buffer of images on the device, in which every frame is kept once.
//!
//! Observations are stacks of the last frames, so four of five frames in a transition of two
//! observations are in others too. Here a step keeps its newest frame, and drawing puts the stacks
//! together again: a million transitions of Atari are 7.1 GB, where whole observations are 28 or
//! 56. Frames before an episode's start are its first one, as
//! [`AtariStart::Gymnasium`](crate::envs::AtariStart::Gymnasium) fills its stacks.
//!
//! What follows a step is the next one's observation. Where a time limit cut an episode that is
//! another episode's, and the true one is not kept: such a step is never the first of a draw,
//! and sums of rewards end before it, with the value of the observation that it began from.

use crate::random::{self, Key};
use crate::trace::control::while_loop;
use crate::trace::ops::IndexMode;
use crate::trace::ops::{constant, div, full, stack, where_, zeros};
use crate::trace::tensor::fail_op;
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::Tree;

use super::images::stacked;
use super::replay::Replay;

/// How often steps are drawn again that an episode was cut at.
const TRIES: i32 = 100;

/// What one step of N environments leaves in the buffer.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Seen<T> {
    /// `[N, ..frame]`: the newest frame of the observation.
    pub frame: T,
    /// `i32[N]`: how many steps ago the episode began, which may be cut at the stack's height.
    pub age: T,
    /// `i32[N]`: the action that was taken.
    pub action: T,
    /// `f32[N]`: what it gave.
    pub reward: T,
    /// `bool[N]`: whether the episode ended there by the rules of the task.
    pub terminated: T,
    /// `bool[N]`: whether it was cut there from outside.
    pub truncated: T,
}

/// Transitions that were drawn, B of them.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Drawn<T> {
    /// `[B, stack, ..frame]`; without the axis of the stack where that is 1.
    pub obs: T,
    /// `i32[B]`
    pub action: T,
    /// `f32[B]`: the discounted sum of the rewards of up to n steps.
    pub reward: T,
    /// `[B, ..]`: the observation after these steps.
    pub next_obs: T,
    /// `f32[B]`: what the value of `next_obs` counts: gamma to the number of steps, 0 if the episode
    /// ended by the rules of the task.
    pub discount: T,
}

/// The last steps of N environments, the oldest overwritten first.
#[derive(Debug, Clone, Tree)]
pub struct Frames<T> {
    steps: Replay<T, Seen<T>>,
    stack: usize,
    num_envs: usize,
}

impl Frames<Tensor> {
    /// An empty buffer for `capacity` transitions of `num_envs` environments, whose observations are
    /// `stack` frames of the type `frame`.
    ///
    /// # Errors
    /// Ends the trace if there is no room for `stack + 1` steps of each environment, and as
    /// [`Replay::new`].
    #[track_caller]
    pub fn new(
        capacity: usize,
        num_envs: usize,
        stack: usize,
        frame: &TensorType,
    ) -> Frames<Tensor> {
        let length = capacity / num_envs.max(1);
        if stack == 0 || num_envs == 0 || length <= stack {
            let problem = format!(
                "a capacity of {capacity} for {num_envs} environments and stacks of {stack}; it \
                 must be more than the stack for each environment"
            );
            fail_op("frames", problem);
        }
        let column = |dtype| TensorType::new(dtype, [num_envs]);
        let item = Seen {
            frame: TensorType::new(frame.dtype, frame.shape.with_axis(0, num_envs)),
            age: column(DType::U8),
            action: column(DType::I32),
            reward: column(DType::F32),
            terminated: column(DType::Bool),
            truncated: column(DType::Bool),
        };
        Frames { steps: Replay::new(length, item), stack, num_envs }
    }

    /// How many steps of each environment there is room for.
    pub(super) fn length(&self) -> i32 {
        self.steps.capacity() as i32
    }

    /// How many frames an observation is made of.
    pub(super) fn stack(&self) -> usize {
        self.stack
    }

    /// How many environments there are.
    pub(super) fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// Where the next step goes, and how many there are: `i32[]` each.
    pub(super) fn place(&self) -> (Tensor, Tensor) {
        (self.steps.next, self.steps.count)
    }

    /// Whether an episode was cut at the steps `rows: i32[n]`, as [`transitions`](Frames::transitions)
    /// counts them.
    #[track_caller]
    pub(super) fn cut(&self, rows: Tensor) -> Tensor {
        self.steps.items.truncated.ravel().take_mode(rows, 0, IndexMode::Clip)
    }

    /// The buffer with `n` more steps, whose leaves are `[n, N, ..]`.
    ///
    /// # Errors
    /// As [`Replay::add`].
    #[track_caller]
    #[expect(clippy::should_implement_trait, reason = "what replay buffers call it everywhere")]
    pub fn add(self, steps: Seen<Tensor>) -> Frames<Tensor> {
        let highest = (self.stack - 1) as f64;
        let age = steps.age.to(DType::F32).minimum(highest).to(DType::U8);
        // A step at which an episode ends both ways ended by the rules: nothing follows it.
        let truncated = steps.truncated & !steps.terminated;
        let steps = Seen { age, truncated, ..steps };
        Frames { steps: self.steps.add(steps), ..self }
    }

    /// `n` transitions of up to `n_steps` steps, each drawn uniformly from those there are, with
    /// replacement.
    ///
    /// While there are fewer than `n_steps + 1` steps, what is drawn means nothing. Draw after the
    /// one `add`, as from [`Replay::sample`].
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>, n: usize, n_steps: usize, gamma: f64) -> Drawn<Tensor> {
        let (first, count) = self.playable(n_steps);
        let high = count * self.num_envs as i32;
        let draw = |key: Key<Tensor>| {
            let drawn = random::randint(key, [n], 0, high, DType::I32);
            let envs = self.num_envs as i32;
            self.flat(first + div(drawn, envs), drawn % envs)
        };
        let (key, now) = key.split();
        let start = (draw(now), key, constant(0i32));
        type Drawing = (Tensor, Key<Tensor>, Tensor);
        let again = |(rows, _, tries): Drawing| self.cut(rows).any(..) & tries.lt(TRIES);
        let redraw = |(rows, key, tries): Drawing| {
            let (key, now) = key.split();
            (where_(self.cut(rows), draw(now), rows), key, tries + 1)
        };
        let (rows, ..) = while_loop(again, redraw, start);
        self.transitions(rows, n_steps, gamma)
    }

    /// The first step that can be drawn, `i32[]` as a place in the buffer, and how many can: those
    /// whose older frames are still there and whose `n_steps` are over. At least 1.
    #[track_caller]
    fn playable(&self, n_steps: usize) -> (Tensor, Tensor) {
        let (length, count) = (self.length(), self.steps.count);
        let lost = count.eq(length).to(DType::I32) * (self.stack as i32 - 1);
        let first = (self.steps.next + (length - count) + lost) % length;
        (first, (count - lost - n_steps as i32).maximum(1))
    }

    /// The row of a step of an environment in leaves of `[length * N, ..]`. Steps may be counted
    /// beyond the end, up to twice.
    #[track_caller]
    fn flat(&self, step: Tensor, env: Tensor) -> Tensor {
        step % self.length() * self.num_envs as i32 + env
    }

    /// The transitions that begin at `rows`, `i32[B]`: step times N plus environment.
    #[track_caller]
    pub(super) fn transitions(&self, rows: Tensor, n_steps: usize, gamma: f64) -> Drawn<Tensor> {
        let of = |leaf: Tensor, rows| leaf.ravel().take_mode(rows, 0, IndexMode::Clip);
        let items = &self.steps.items;
        let envs = self.num_envs as i32;
        let (step, env) = (div(rows, envs), rows % envs);
        let batch = rows.shape();
        let mut reward = zeros(batch.clone(), DType::F32);
        let mut discount = full(batch.clone(), 1.0, DType::F32);
        let mut after = step;
        let mut going = full(batch.clone(), 1.0, DType::F32).gt(0.0);
        let mut ended = !going;
        for k in 0..n_steps {
            let row = self.flat(step + k as i32, env);
            let mut counts = going;
            if k > 0 {
                counts = counts & !of(items.truncated, row);
            }
            let terminated = counts & of(items.terminated, row);
            reward = reward + where_(counts, discount * of(items.reward, row), 0.0);
            discount = where_(counts, discount * gamma, discount);
            after = after + counts.to(DType::I32);
            ended = ended | terminated;
            going = counts & !terminated;
        }
        Drawn {
            obs: self.stacks(step, env),
            action: of(items.action, rows),
            reward,
            next_obs: self.stacks(after, env),
            discount: where_(ended, 0.0, discount),
        }
    }

    /// The observations at steps of environments, `[B, stack, ..frame]`.
    #[track_caller]
    fn stacks(&self, step: Tensor, env: Tensor) -> Tensor {
        let frames = self.steps.items.frame;
        let shape = frames.shape().without_axis(0).without_axis(0);
        let all = frames.shape()[0] * frames.shape()[1];
        let frames = frames.reshape(shape.with_axis(0, all));
        if self.stack == 1 {
            return frames.take_mode(self.flat(step, env), 0, IndexMode::Clip);
        }
        let age = self.steps.items.age.ravel();
        let age = age.take_mode(self.flat(step, env), 0, IndexMode::Clip).to(DType::I32);
        let length = self.length();
        let rows = (0..self.stack as i32).rev();
        let rows: Vec<Tensor> =
            rows.map(|k| self.flat(step + length - age.minimum(k), env)).collect();
        let rows = stack(&rows, 1); // [B, stack]
        let (batch, height) = (rows.dim(0), self.stack);
        let drawn = frames.take_mode(rows.ravel(), 0, IndexMode::Clip);
        drawn.reshape(stacked(&shape, height).with_axis(0, batch))
    }
}
