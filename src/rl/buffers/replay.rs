//! Replay buffer on the device: transitions are stored, sampled and learned from inside one
//! compiled program, and never transferred to the host.
//!
//! ```
//! use podracer::random::Key;
//! use podracer::rl::buffers::replay::ReplayBuffer;
//! use podracer::{Array, DType, Tensor, TensorType, Tree, jit};
//!
//! #[derive(Debug, Clone, Tree)]
//! struct Transition<T> {
//!     obs: T,
//!     reward: T,
//! }
//!
//! // Made once; the type of one transition says what is kept.
//! let new = jit(|()| {
//!     let obs = TensorType::new(DType::F32, [2]);
//!     ReplayBuffer::new(100, Transition { obs, reward: TensorType::scalar(DType::F32) })
//! });
//! let replay = new.call(())?;
//! // Two transitions in, three draws out. The buffer is moved into the call and written in place.
//! let step = jit(|(replay, new, key): (ReplayBuffer<Tensor, Transition<Tensor>>, _, Key<Tensor>)| {
//!     let replay = replay.add(new);
//!     let drawn = replay.sample(key, 3);
//!     (replay, drawn)
//! });
//! let new = Transition {
//!     obs: Array::new([2, 2], &[1.0f32, 1.0, 2.0, 2.0])?,
//!     reward: Array::from([1.0f32, 2.0]),
//! };
//! let key = Key::new(1);
//! let (_replay, drawn) = step.call((replay, new, key))?;
//! assert_eq!(drawn.obs.shape().to_string(), "[3,2]");
//! assert!(drawn.reward.to_vec::<f32>()?.iter().all(|reward| [1.0, 2.0].contains(reward)));
//! # Ok::<(), podracer::Error>(())
//! ```

use crate::random::{self, Key};
use crate::rl::buffers::memory;
use crate::trace::ops::{self, IndexMode};
use crate::trace::tensor::fail_op;
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::{self, Path, Tree};

/// One step of one environment with vector observations.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Transition<T> {
    /// `f32[obs_size]`: observation.
    pub obs: T,
    /// `i32[]` or `f32[A]`: action.
    pub action: T,
    /// `f32[]`: reward.
    pub reward: T,
    /// `f32[obs_size]`: next observation; the final one where an episode ended.
    pub next_obs: T,
    /// `f32[]`: 1 where the episode terminated.
    pub terminated: T,
}

impl Transition<TensorType> {
    /// Returns the types of a transition with observations of `obs_size` elements, for a
    /// [`ReplayBuffer`].
    pub fn types(obs_size: usize, action: TensorType) -> Transition<TensorType> {
        let obs = TensorType::new(DType::F32, [obs_size]);
        let number = TensorType::scalar(DType::F32);
        Transition {
            obs: obs.clone(),
            action,
            reward: number.clone(),
            next_obs: obs,
            terminated: number,
        }
    }
}

/// One step of an episode, for returns of several steps: a transition, and whether a time limit ended
/// the episode after it.
#[derive(Debug, Clone, Copy, Tree)]
pub struct EpisodeStep<T> {
    /// Transition of the step.
    pub transition: Transition<T>,
    /// `f32[]`: 1 where the episode was truncated.
    pub truncated: T,
}

impl EpisodeStep<TensorType> {
    /// Returns the types of a step with observations of `obs_size` elements, for a [`ReplayBuffer`].
    pub fn types(obs_size: usize, action: TensorType) -> EpisodeStep<TensorType> {
        let transition = Transition::types(obs_size, action);
        EpisodeStep { transition, truncated: TensorType::scalar(DType::F32) }
    }
}

/// Concatenates several steps along the first axis of their leaves, in order.
///
/// # Errors
/// Ends the trace if there are no steps, or if they differ in structure or types.
#[track_caller]
pub fn concatenate_steps<X: Tree<Tensor>>(steps: &[X]) -> X {
    let Some(first) = steps.first() else {
        fail_op("concatenate_steps", "there are no steps to join")
    };
    let columns: Vec<Vec<Tensor>> = steps.iter().map(tree::leaves).collect();
    let mut leaves = Vec::with_capacity(columns[0].len());
    for leaf in 0..columns[0].len() {
        let column: Vec<Tensor> =
            columns.iter().filter_map(|step| step.get(leaf)).copied().collect();
        if column.len() != steps.len() {
            fail_op("concatenate_steps", "the steps differ in the number of their leaves");
        }
        leaves.push(ops::concatenate(&column, 0));
    }
    tree::replace(first, leaves)
}

/// Ring buffer of transitions: the oldest are overwritten first. `X` is the tree of a transition.
#[derive(Debug, Clone, Tree)]
#[tree(nested = X)]
pub struct ReplayBuffer<T, X> {
    /// Every leaf of a transition, with the capacity as a new first axis.
    pub items: X,
    /// Index of the next transition to write: `i32[]`.
    pub next: T,
    /// Number of stored transitions: `i32[]`, at most the capacity.
    pub count: T,
}

impl<X: Tree<Tensor>> ReplayBuffer<Tensor, X> {
    /// Creates an empty buffer for `capacity` transitions of the types `item`.
    ///
    /// # Errors
    /// Ends the trace if `capacity` is 0 or does not fit `i32`, or if the buffer would be larger
    /// than the machine's free memory.
    #[track_caller]
    pub fn new<I>(capacity: usize, item: I) -> ReplayBuffer<Tensor, X>
    where
        I: Tree<TensorType, With<Tensor> = X>,
    {
        if capacity == 0 || i32::try_from(capacity).is_err() {
            fail_op("replay", format!("a capacity of {capacity}; it must be 1 to {}", i32::MAX));
        }
        let bytes: usize = tree::leaves(&item).iter().map(TensorType::bytes).sum();
        let what = format!("{capacity} transitions of {bytes} bytes");
        memory::expect_room("replay", &what, bytes as u128 * capacity as u128);
        let items = item.map_leaves_ref(&Path::ROOT, &mut |_, ty: &TensorType| {
            ops::zeros(ty.shape.with_axis(0, capacity), ty.dtype)
        });
        let zero = ops::constant(0i32);
        ReplayBuffer { items, next: zero, count: zero }
    }

    /// Returns the maximum number of transitions.
    #[track_caller]
    pub fn capacity(&self) -> usize {
        match tree::leaves(&self.items).first() {
            Some(leaf) => leaf.dim(0),
            None => fail_op("replay", "its transitions have no leaves"),
        }
    }

    /// Adds `n` transitions in order; `n` is the first axis of the leaves.
    ///
    /// A buffer that is moved through a compiled function is written in place.
    ///
    /// # Errors
    /// Ends the trace if the types of the leaves differ from those of the buffer, or if there are
    /// more rows than the capacity.
    #[track_caller]
    #[expect(clippy::should_implement_trait, reason = "what replay buffers call it everywhere")]
    pub fn add(self, rows: X) -> ReplayBuffer<Tensor, X> {
        let capacity = self.capacity();
        let kept = tree::leaves(&self.items);
        let new = tree::leaves(&rows);
        let paths = tree::paths(&rows);
        let n = new.first().map_or(0, |row| row.shape().first().copied().unwrap_or(0));
        if new.len() != kept.len() || n == 0 || n > capacity {
            fail_op(
                "replay",
                format!(
                    "{n} transitions of {} leaves for a buffer of {capacity} of {}",
                    new.len(),
                    kept.len()
                ),
            );
        }
        let places = (self.next + ops::arange(n, DType::I32)) % capacity as i32;
        let mut written = Vec::with_capacity(kept.len());
        for ((kept, new), path) in kept.into_iter().zip(new).zip(paths) {
            let ty = kept.ty();
            let expected = TensorType::new(ty.dtype, ty.shape.without_axis(0).with_axis(0, n));
            if new.ty() != expected {
                let found = new.ty();
                fail_op("replay", format!("{path} of the rows is {found}, expected {expected}"));
            }
            // Not an update by slices: the compiler may fuse one into the following sample, which then
            // reads the buffer before the write, so that the whole buffer is copied.
            written.push(kept.at(&[places]).set(new));
        }
        let next = (self.next + n as i32) % (capacity as i32);
        let count = (self.count + n as i32).minimum(capacity as i32);
        ReplayBuffer { items: tree::replace(&rows, written), next, count }
    }

    /// Samples `n` transitions uniformly, with replacement; leaves have `n` as first axis. An empty
    /// buffer returns zeros.
    ///
    /// In the body of a loop, sample after the only `add`: sampling from the buffer before a write
    /// makes the compiler copy the whole buffer in each iteration.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>, n: usize) -> X {
        self.gather(self.sample_rows(key, n))
    }

    /// Returns the transitions of these indices, `i32[n]`; leaves have `n` as first axis.
    #[track_caller]
    pub fn gather(&self, rows: Tensor) -> X {
        let leaves = tree::leaves(&self.items);
        let drawn = leaves.into_iter().map(|leaf| leaf.take_mode(rows, 0, IndexMode::Clip));
        let drawn: Vec<Tensor> = drawn.collect();
        tree::replace(&self.items, drawn)
    }

    /// Samples the rows of `n` transitions uniformly, with replacement: `i32[n]`.
    #[track_caller]
    fn sample_rows(&self, key: Key<Tensor>, n: usize) -> Tensor {
        random::randint(key, [n], 0, self.count.maximum(1), DType::I32)
    }
}

impl ReplayBuffer<Tensor, EpisodeStep<Tensor>> {
    /// Samples `n` transitions over up to `num_steps` steps, uniformly, with replacement. Returns them
    /// and their discounts `f32[n]`. With one step the transitions are those of
    /// [`sample`](ReplayBuffer::sample).
    ///
    /// A transition of k steps has the reward `r_0 + gamma r_1 + .. + gamma^(k-1) r_(k-1)`, the next
    /// observation and the termination of its last step, and the discount `gamma^k`. It ends at the step
    /// whose episode terminated or was truncated, and at the newest step in the buffer.
    ///
    /// The steps are those of `num_envs` environments: every call of [`add`](ReplayBuffer::add) had a
    /// multiple of `num_envs` rows, one for each environment, in the same order.
    #[track_caller]
    pub fn sample_n_steps(
        &self,
        key: Key<Tensor>,
        n: usize,
        num_envs: usize,
        num_steps: usize,
        gamma: f64,
    ) -> (Transition<Tensor>, Tensor) {
        let capacity = self.capacity();
        if num_envs == 0 || num_envs > capacity || num_steps == 0 {
            let found = format!("{num_steps} steps of {num_envs} environments");
            fail_op("replay", format!("{found} from a buffer of {capacity} transitions"));
        }
        let EpisodeStep { transition: stored, truncated } = &self.items;
        let take = |leaf: &Tensor, rows: Tensor| leaf.take_mode(rows, 0, IndexMode::Clip);
        let first = self.sample_rows(key, n);
        // Number of newer rows; an environment's next step is `num_envs` rows later in the ring.
        let newer = self.next - 1 - first;
        let newer = ops::where_(newer.lt(0), newer + capacity as i32, newer);
        let wrap = (capacity - num_envs) as i32;
        let next_step = |row: Tensor| ops::where_(row.ge(wrap), row - wrap, row + num_envs as i32);
        let (mut row, mut last) = (first, first);
        let mut reward = take(&stored.reward, first);
        let mut discount = ops::full([n], gamma, DType::F32);
        let mut nonterminal = newer.ge(0);
        for k in 1..num_steps {
            let ended = take(&stored.terminated, row) + take(truncated, row);
            let steps = i32::try_from(k * num_envs).unwrap_or(i32::MAX);
            nonterminal = nonterminal & ended.eq(0.0) & newer.ge(steps);
            row = next_step(row);
            let discounted = take(&stored.reward, row) * gamma.powi(k as i32);
            reward = reward + ops::where_(nonterminal, discounted, 0.0);
            discount = ops::where_(nonterminal, gamma.powi(k as i32 + 1), discount);
            last = ops::where_(nonterminal, row, last);
        }
        let transition = Transition {
            obs: take(&stored.obs, first),
            action: take(&stored.action, first),
            reward,
            next_obs: take(&stored.next_obs, last),
            terminated: take(&stored.terminated, last),
        };
        (transition, discount)
    }
}
