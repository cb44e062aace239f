//! The trait that an environment implements, and what passes through it.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

use super::seeds::EnvRng;
use super::spec::EnvSpec;

/// One environment: physics without threads, buffers, time limits, resets or statistics, which are
/// the pool's.
///
/// An environment writes its observation straight into its row of the pool's batch buffer, so
/// nothing is copied on the way to the learner. All randomness comes from the `rng` handed in,
/// so that one seed makes one trajectory however many threads there are.
///
/// An error or a panic in any method ends the pool with an error that says which environment it
/// was; with [`OnError::Truncate`](super::OnError::Truncate) an error of `step` ends the episode only, and a reset must then work.
/// NaN in a reward or an `f32` observation counts as such an error: one of them in a batch makes all
/// parameters NaN. A `step` or `reset` that takes longer than 30 seconds is reported on standard error.
/// The [module](super) has an annotated template.
pub trait Env: Send {
    /// What this environment promises. Asked once, when the pool is made.
    fn spec(&self) -> EnvSpec;

    /// Starts an episode and writes its first observation into all of `obs`.
    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()>;

    /// Starts the next episode of a game that is not over, as after a lost life, and writes its
    /// first observation into all of `obs`. The steps of the time limit go on counting.
    ///
    /// The pool calls this instead of [`reset`](Env::reset) where [`StepOutcome::terminated`] came
    /// without [`StepOutcome::game_over`].
    fn next_episode(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.reset(rng, obs)
    }

    /// Takes one step and writes the observation after it into all of `obs`.
    ///
    /// The pool has checked `action` against [`EnvSpec::action`]. What `obs` holds before is not
    /// defined: it may be of another step.
    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome>;

    /// The length of the running game for the episode statistics, where it is not the number of the
    /// agent's steps: gymnasium's Atari counts emulated frames, those of the reset included.
    fn episode_length(&self) -> Option<u32> {
        None
    }

    /// A picture of the current state, where the environment can draw one.
    fn render(&mut self) -> Option<Frame> {
        None
    }

    /// The whole state as bytes, such that [`restore`](Env::restore) continues the same episode.
    fn save(&self) -> Result<Vec<u8>> {
        Err(Error::Env(format!("{}: saving the state is not supported", self.spec().id)))
    }

    /// Continues from bytes that [`save`](Env::save) made.
    fn restore(&mut self, _state: &[u8]) -> Result<()> {
        Err(Error::Env(format!("{}: restoring a state is not supported", self.spec().id)))
    }
}

/// One action of one environment, inside its action space.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Action<'a> {
    /// A choice of a [`Space::Discrete`](super::Space::Discrete): less than its `n`.
    Discrete(usize),
    /// The choices of a [`Space::MultiDiscrete`](super::Space::MultiDiscrete), each less than its
    /// entry of `nvec`.
    MultiDiscrete(&'a [usize]),
    /// The elements of a [`Space::Box`](super::Space::Box), in row-major order.
    Box(&'a [f32]),
}

impl Action<'_> {
    /// The choice of a discrete action.
    ///
    /// # Panics
    /// If the action is not discrete, which the pool rules out for an environment whose
    /// specification says that it is.
    pub fn discrete(self) -> usize {
        match self {
            Action::Discrete(choice) => choice,
            other => panic!("a discrete action is needed, this is {other:?}"),
        }
    }

    /// The choices of an action of several components.
    ///
    /// # Panics
    /// If it is not one.
    pub fn choices(&self) -> &[usize] {
        match self {
            Action::MultiDiscrete(choices) => choices,
            other => panic!("an action of several choices is needed, this is {other:?}"),
        }
    }

    /// Element `i` of a continuous action.
    ///
    /// # Panics
    /// If the action is not continuous or shorter.
    pub fn continuous(self, i: usize) -> f32 {
        match self {
            Action::Box(values) => values[i],
            other => panic!("a continuous action is needed, this is {other:?}"),
        }
    }
}

/// The place for one observation: a row of the pool's batch buffer.
#[derive(Debug)]
pub struct ObsMut<'a>(pub &'a mut [u8]);

impl ObsMut<'_> {
    /// The row as elements of type `T`.
    ///
    /// # Panics
    /// If the row is not a whole number of `T`: then `T` is not the type in the specification.
    pub fn elements<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.0)
    }

    /// Writes `values` into the row.
    ///
    /// # Panics
    /// If the row has another length.
    pub fn write<T: bytemuck::Pod>(&mut self, values: &[T]) {
        self.elements::<T>().copy_from_slice(values);
    }
}

/// What came of one step.
///
/// `terminated` is an ending that belongs to the task (bootstrap with zero); `truncated` is a
/// cut from outside (bootstrap with the value of the last observation). The pool adds the time
/// limit to `truncated`; an environment sets it only for cuts of its own.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepOutcome {
    /// The reward that the agent learns from; the pool's batch rounds it to `f32`.
    pub reward: f64,
    /// Whether the episode ended by the rules of the task.
    pub terminated: bool,
    /// Whether the environment itself cut the episode.
    pub truncated: bool,
    /// Whether a life was lost.
    pub life_lost: bool,
    /// The reward of the full game, before any clipping. Episode statistics add up this one.
    pub game_reward: f64,
    /// Whether the full game is over. An environment that ends episodes at each lost life has
    /// `terminated` without this, and [`Env::next_episode`].
    pub game_over: bool,
    /// Whether nothing that comes after counts for the agent although the episode goes on, as
    /// after a lost life where that does not end it.
    pub zero_discount: bool,
}

impl StepOutcome {
    /// The outcome where the episode and the game are the same thing.
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
}

/// A picture: `height * width` pixels of red, green, blue, top row first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Rows of pixels.
    pub height: usize,
    /// Pixels in a row.
    pub width: usize,
    /// `height * width * 3` bytes.
    pub rgb: Vec<u8>,
}

impl Frame {
    /// A picture of square cells, given by rows of `columns`.
    pub(super) fn of_cells(cells: &[[u8; 3]], columns: usize) -> Frame {
        // A multiple of 16, which video encoders like.
        const SIDE: usize = 16;
        let (height, width) = (cells.len() / columns * SIDE, columns * SIDE);
        let pixel = |i: usize| cells[i / width / SIDE * columns + i % width / SIDE];
        Frame { height, width, rgb: (0..height * width).flat_map(pixel).collect() }
    }
}

/// `state` as JSON: a saved state.
pub(super) fn save_json<T: Serialize>(id: &str, state: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(state).map_err(|e| Error::Env(format!("{id}: saving the state failed: {e}")))
}

/// The inverse of [`save_json`]; fails for anything else and for what is not `valid`.
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

/// `values` as little-endian bytes: a saved state.
pub(super) fn save_f64(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The inverse of [`save_f64`]; fails when `state` does not hold exactly `N` numbers.
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
