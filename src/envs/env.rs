//! The trait that an environment implements, and the types of its arguments and results.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::error::{Error, Result};

pub(in crate::envs) mod entry;
pub(in crate::envs) mod seeds;
pub(in crate::envs) mod spec;

/// One environment: physics without threads, buffers, time limits, resets or statistics, which the
/// pool provides.
///
/// An environment writes its observation straight into its row of the pool's batch buffer, so no
/// copy is made on the way to the learner. All randomness comes from the `rng` argument, so one
/// seed gives one trajectory for any number of threads.
///
/// An error of `reset`, `next_episode` or `step`, and any panic, ends the pool with an error that names
/// the environment. Errors of `save`, `restore` and rendering are returned to the caller. With
/// [`OnError::Truncate`](super::OnError::Truncate) an error of `step` ends the episode only, and
/// the following reset must work. Numbers that are not finite in `f32`, in a reward or an observation of
/// floats, count as such an error: a single one in a batch makes all parameters NaN. A `step` or `reset` that takes longer than 30
/// seconds is reported on standard error. The [module](super) has an annotated template.
pub trait Env: Send {
    /// Returns the specification of this environment, which must not change. Called several times.
    fn spec(&self) -> EnvSpec;

    /// Starts an episode and writes its first observation into all of `obs`.
    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()>;

    /// Starts the next episode of a game that is not over, as after a lost life, and writes its
    /// first observation into all of `obs`. The step count of the time limit is not reset.
    ///
    /// The pool calls this instead of [`reset`](Env::reset) after a step with
    /// [`StepOutcome::terminated`] but without [`StepOutcome::game_over`].
    fn next_episode(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.reset(rng, obs)
    }

    /// Takes one step and writes the observation after it into all of `obs`.
    ///
    /// The pool has checked `action` against [`EnvSpec::action`]. The previous content of `obs` is
    /// undefined: it may be the observation of another step.
    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome>;

    /// Returns the length of the current game for the episode statistics if it is not the number of
    /// the agent's steps: gymnasium's Atari counts emulated frames, including those of the reset.
    fn episode_length(&self) -> Option<u32> {
        None
    }

    /// Renders the current state as an image, or returns `None` if the environment cannot be
    /// rendered.
    fn render(&mut self) -> Option<Frame> {
        None
    }

    /// Renders like [`render`](Env::render), or returns the reason why it failed. Pools call this
    /// method; environments whose rendering cannot fail need not implement it.
    fn try_render(&mut self) -> Result<Option<Frame>> {
        Ok(self.render())
    }

    /// Serializes the whole state such that [`restore`](Env::restore) continues the same episode.
    fn save(&self) -> Result<Vec<u8>> {
        Err(Error::Env(format!("{}: saving the state is not supported", self.spec().id)))
    }

    /// Restores the state from bytes that [`save`](Env::save) returned.
    fn restore(&mut self, _state: &[u8]) -> Result<()> {
        Err(Error::Env(format!("{}: restoring a state is not supported", self.spec().id)))
    }
}

/// One action of one environment, inside its action space.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Action<'a> {
    /// Choice of a [`Space::Discrete`](super::Space::Discrete): less than its `n`.
    Discrete(usize),
    /// Choices of a [`Space::MultiDiscrete`](super::Space::MultiDiscrete), each less than its entry
    /// of `nvec`.
    MultiDiscrete(&'a [usize]),
    /// Elements of a [`Space::Box`](super::Space::Box), in row-major order.
    Box(&'a [f32]),
}

impl Action<'_> {
    /// Returns the choice of a discrete action.
    ///
    /// # Panics
    /// If the action is not discrete. The pool never passes such an action to an environment whose
    /// specification has a discrete action space.
    #[track_caller]
    #[inline]
    pub fn discrete(self) -> usize {
        match self {
            Action::Discrete(choice) => choice,
            other => panic!("{other:?} is not a discrete action; {}", other.accessor()),
        }
    }

    /// Returns the choices of a multi-discrete action, one per component.
    ///
    /// # Panics
    /// If the action is not multi-discrete.
    #[track_caller]
    #[inline]
    pub fn choices(&self) -> &[usize] {
        match self {
            Action::MultiDiscrete(choices) => choices,
            other => panic!("{other:?} is not a multi-discrete action; {}", other.accessor()),
        }
    }

    /// Returns element `i` of a continuous action.
    ///
    /// # Panics
    /// If the action is not continuous or has no element `i`.
    #[track_caller]
    #[inline]
    pub fn continuous(self, i: usize) -> f32 {
        match self {
            Action::Box(values) => match values.get(i) {
                Some(value) => *value,
                None => panic!("the action has {} elements, and no element {i}", values.len()),
            },
            other => panic!("{other:?} is not a continuous action; {}", other.accessor()),
        }
    }

    /// Names the method for an action of this kind.
    fn accessor(self) -> &'static str {
        match self {
            Action::Discrete(_) => "`discrete()` returns its choice",
            Action::MultiDiscrete(_) => "`choices()` returns its choices",
            Action::Box(_) => "`continuous(i)` returns its element i",
        }
    }
}

/// Output buffer for one observation: a row of the pool's batch buffer.
#[derive(Debug)]
pub struct ObsMut<'a>(pub &'a mut [u8]);

impl ObsMut<'_> {
    /// Returns the row as elements of type `T`.
    ///
    /// # Panics
    /// If the row is not a whole number of `T`: then `T` is not the type in the specification.
    #[track_caller]
    #[inline]
    pub fn elements<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        let (bytes, name) = (self.0.len(), std::any::type_name::<T>());
        match bytemuck::try_cast_slice_mut(self.0) {
            Ok(elements) => elements,
            Err(_) => panic!(
                "the observation has {bytes} bytes, which are no row of {name}; write the type of \
                 the observation space, f32 if it is Space::f32"
            ),
        }
    }

    /// Writes `values` into the row.
    ///
    /// # Panics
    /// If the row has another length.
    #[track_caller]
    #[inline]
    pub fn write<T: bytemuck::Pod>(&mut self, values: &[T]) {
        let row = self.elements::<T>();
        let (expected, found, name) = (row.len(), values.len(), std::any::type_name::<T>());
        assert!(
            expected == found,
            "the observation space has {expected} elements of {name}, {found} were written"
        );
        row.copy_from_slice(values);
    }
}

/// Result of one step.
///
/// `terminated` marks an end by the rules of the task (bootstrap with zero); `truncated` marks a
/// cut from outside (bootstrap with the value of the last observation). The pool sets `truncated`
/// at the time limit; an environment sets it only for cuts of its own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// The reward that the agent learns from; the pool's batch rounds it to `f32`.
    pub reward: f64,
    /// True if the episode ended by the rules of the task.
    pub terminated: bool,
    /// True if the environment itself cut the episode.
    pub truncated: bool,
    /// True if a life was lost.
    pub life_lost: bool,
    /// Reward of the full game, before any clipping. Episode statistics add up this reward.
    pub game_reward: f64,
    /// True if the full game is over. An environment that ends an episode at each lost life sets
    /// `terminated` without this flag, and starts the next episode in [`Env::next_episode`].
    pub game_over: bool,
    /// True if no later reward counts for the agent although the episode continues, as after a lost
    /// life that does not end the episode.
    pub zero_discount: bool,
}

impl StepOutcome {
    /// Returns the outcome of a step in an environment in which episode and game are the same.
    #[inline]
    pub fn new(reward: f64, terminated: bool) -> StepOutcome {
        StepOutcome {
            reward,
            terminated,
            truncated: false,
            life_lost: false,
            game_reward: reward,
            game_over: terminated,
            zero_discount: false,
        }
    }

    /// Returns the outcome with this value of [`truncated`](StepOutcome::truncated).
    #[inline]
    pub fn with_truncated(self, truncated: bool) -> StepOutcome {
        StepOutcome { truncated, ..self }
    }
}

/// RGB image: `height * width` pixels of red, green, blue, top row first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Number of rows of pixels.
    pub height: usize,
    /// Number of pixels in a row.
    pub width: usize,
    /// Frames per second of a video of such images: Gymnasium's `render_fps`. The first frame of a
    /// video decides.
    pub fps: u32,
    /// Pixel data: `height * width * 3` bytes.
    pub rgb: Vec<u8>,
}

impl Frame {
    /// Frames per second where an environment has none of its own, as in Gymnasium's `RecordVideo`.
    pub const FPS: u32 = 30;

    /// Draws a grid of square cells, given in row-major order with `columns` cells in a row.
    pub(super) fn of_cells(cells: &[[u8; 3]], columns: usize, fps: u32) -> Frame {
        // A multiple of 16, which video encoders like.
        const SIDE: usize = 16;
        let (height, width) = (cells.len() / columns * SIDE, columns * SIDE);
        let pixel = |i: usize| cells[i / width / SIDE * columns + i % width / SIDE];
        Frame { height, width, fps, rgb: (0..height * width).flat_map(pixel).collect() }
    }
}

/// Serializes `state` as JSON.
pub(super) fn save_json<T: Serialize>(id: &str, state: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(state).map_err(|e| Error::Env(format!("{id}: saving the state failed: {e}")))
}

/// Inverse of [`save_json`]. Returns an error for other bytes and for a state that is not `valid`.
pub(super) fn restore_json<T: DeserializeOwned>(
    id: &str,
    state: &[u8],
    valid: impl FnOnce(&T) -> bool,
) -> Result<T> {
    let problem = match serde_json::from_slice(state) {
        Ok(state) if valid(&state) => return Ok(state),
        Ok(_) => "something lies where the rules cannot put it".into(),
        Err(e) => e.to_string(),
    };
    Err(Error::Env(format!("{id}: this is not a saved state: {problem}")))
}

/// Serializes `values` as little-endian bytes.
pub(super) fn save_f64(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Inverse of [`save_f64`]. Returns an error if `state` does not hold exactly `N` numbers.
pub(super) fn restore_f64<const N: usize>(id: &str, state: &[u8]) -> Result<[f64; N]> {
    if state.len() != 8 * N {
        return Err(Error::Env(format!(
            "{id}: a saved state has {} bytes, this one has {}",
            8 * N,
            state.len()
        )));
    }
    let mut chunks = state.chunks_exact(8);
    Ok(std::array::from_fn(|_| {
        let bytes = chunks.next().expect("the length was checked");
        f64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes"))
    }))
}
