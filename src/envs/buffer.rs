//! Batch buffers: aligned memory that environments fill in place and learners read without a copy.
//!
//! A buffer goes round: *filling* (rows are handed out, each once, to whichever thread steps that
//! environment), then *batch* (shared, read only), then, when nobody holds the batch any longer,
//! filling again. A batch therefore stays valid for as long as anyone keeps it, a device runtime
//! that reads the memory in place included.
//!
//! This file has all the `unsafe` of the room: threads that write different rows of one
//! allocation.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};
use crate::trace::types::{DType, Shape};

use super::slot::Row;
use super::spec::Space;

/// Alignment of every array of a batch, in bytes: a cache line, and what XLA's CPU client asks of
/// memory that it reads in place.
pub const ALIGNMENT: usize = 64;

/// One cache line. A vector of them is aligned memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// Memory whose rows several threads may write, each its own.
struct Rows {
    lines: Box<[UnsafeCell<Line>]>,
    bytes: usize,
}

// SAFETY: shared access to the lines goes only through `RowWriter`, of which at most one exists
// per row, and through `Rows::bytes`, which requires that none exists.
unsafe impl Sync for Rows {}

impl Rows {
    fn new(bytes: usize) -> Rows {
        let line = || UnsafeCell::new(Line::zeroed());
        Rows { lines: (0..bytes.div_ceil(ALIGNMENT)).map(|_| line()).collect(), bytes }
    }

    fn start(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.lines.as_ptr()).cast()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the allocation has at least `bytes` initialised bytes, and `&mut self` is the
        // only access to them.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.bytes) }
    }

    /// # Safety
    /// No `RowWriter` of this memory may exist while the slice does.
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has at least `bytes` initialised bytes, and by the caller's
        // promise nobody writes them.
        unsafe { std::slice::from_raw_parts(self.start(), self.bytes) }
    }
}

/// The right to write one row, on any thread. Keeps the memory alive.
pub(super) struct RowWriter {
    obs: Arc<Rows>,
    final_obs: Arc<Rows>,
    row: usize,
    obs_bytes: usize,
    final_bytes: usize,
}

impl RowWriter {
    /// The row's observation, and the place for the last observation of an ended episode (empty
    /// where the pool keeps none).
    pub(super) fn slices(&mut self) -> (&mut [u8], &mut [u8]) {
        let slice = |rows: &Rows, bytes: usize| {
            debug_assert!((self.row + 1) * bytes <= rows.bytes);
            // SAFETY: in bounds (`Filling::writer` checked the row). `Filling` makes one
            // writer per row, so no other writer has these bytes, and makes no slice of its own
            // while a writer exists. `&mut self` keeps a writer from making two.
            unsafe { std::slice::from_raw_parts_mut(rows.start().add(self.row * bytes), bytes) }
        };
        (slice(&self.obs, self.obs_bytes), slice(&self.final_obs, self.final_bytes))
    }
}

/// An aligned array of `T`, one element per row.
struct Column<T> {
    lines: Vec<Line>,
    rows: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Column<T> {
    fn new(rows: usize) -> Column<T> {
        let lines = (rows * size_of::<T>()).div_ceil(ALIGNMENT);
        Column { lines: vec![Line::zeroed(); lines], rows, element: PhantomData }
    }

    fn get(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.rows]
    }

    fn set(&mut self, row: usize, value: T) {
        bytemuck::cast_slice_mut(&mut self.lines)[..self.rows][row] = value;
    }
}

/// All arrays of one batch.
struct Arrays {
    rows: usize,
    shape: Shape,
    dtype: DType,
    obs_bytes: usize,
    final_bytes: usize,
    obs: Arc<Rows>,
    final_obs: Arc<Rows>,
    reward: Column<f32>,
    terminated: Column<u8>,
    truncated: Column<u8>,
    first: Column<u8>,
    life_lost: Column<u8>,
    discount: Column<f32>,
    has_final_obs: Column<u8>,
    env_id: Column<i32>,
    elapsed_steps: Column<i32>,
    finished: Column<u8>,
    episodic_return: Column<f32>,
    episodic_length: Column<i32>,
}

/// A batch while its rows are being written.
pub(super) struct Filling {
    arrays: Arrays,
    handed_out: Vec<bool>,
}

impl Filling {
    /// Memory for `rows` observations of `space`; also for as many final observations if asked.
    pub(super) fn new(rows: usize, space: &Space, keep_final: bool) -> Filling {
        let obs_bytes = space.bytes();
        let final_bytes = if keep_final { obs_bytes } else { 0 };
        let arrays = Arrays {
            rows,
            shape: space.shape(),
            dtype: space.dtype(),
            obs_bytes,
            final_bytes,
            obs: Arc::new(Rows::new(rows * obs_bytes)),
            final_obs: Arc::new(Rows::new(rows * final_bytes)),
            reward: Column::new(rows),
            terminated: Column::new(rows),
            truncated: Column::new(rows),
            first: Column::new(rows),
            life_lost: Column::new(rows),
            discount: Column::new(rows),
            has_final_obs: Column::new(rows),
            env_id: Column::new(rows),
            elapsed_steps: Column::new(rows),
            finished: Column::new(rows),
            episodic_return: Column::new(rows),
            episodic_length: Column::new(rows),
        };
        Filling { arrays, handed_out: vec![false; rows] }
    }

    /// The right to write `row`.
    ///
    /// # Panics
    /// If the row was handed out before or does not exist: a defect of the pool.
    pub(super) fn writer(&mut self, row: usize) -> RowWriter {
        assert!(!std::mem::replace(&mut self.handed_out[row], true), "row {row} twice");
        let Arrays { obs, final_obs, obs_bytes, final_bytes, .. } = &self.arrays;
        RowWriter {
            obs: obs.clone(),
            final_obs: final_obs.clone(),
            row,
            obs_bytes: *obs_bytes,
            final_bytes: *final_bytes,
        }
    }

    /// All observations and all final observations, for a caller that writes every row itself.
    ///
    /// # Panics
    /// If a writer still exists: a defect of the pool.
    pub(super) fn all(&mut self) -> (&mut [u8], &mut [u8]) {
        let unique = "no writer is left";
        let Arrays { obs, final_obs, .. } = &mut self.arrays;
        let obs = Arc::get_mut(obs).expect(unique).bytes_mut();
        (obs, Arc::get_mut(final_obs).expect(unique).bytes_mut())
    }

    /// Bytes of one observation.
    pub(super) fn obs_bytes(&self) -> usize {
        self.arrays.obs_bytes
    }

    /// Stores what a step told, beside the observation that it wrote.
    pub(super) fn set(&mut self, row: usize, env: usize, told: &Row) {
        let arrays = &mut self.arrays;
        arrays.reward.set(row, told.reward);
        arrays.terminated.set(row, told.terminated.into());
        arrays.truncated.set(row, told.truncated.into());
        arrays.first.set(row, told.first.into());
        arrays.life_lost.set(row, told.life_lost.into());
        arrays.discount.set(row, if told.zero_discount { 0.0 } else { 1.0 });
        arrays.has_final_obs.set(row, told.has_final_obs.into());
        arrays.env_id.set(row, env as i32);
        arrays.elapsed_steps.set(row, told.elapsed as i32);
        let (sum, length) =
            told.finished.map_or((0.0, 0), |game| (game.episodic_return as f32, game.length));
        arrays.finished.set(row, told.finished.is_some().into());
        arrays.episodic_return.set(row, sum);
        arrays.episodic_length.set(row, length as i32);
    }

    /// The finished batch.
    ///
    /// # Panics
    /// If a writer still exists: a defect of the pool.
    pub(super) fn finish(mut self) -> Batch {
        self.all(); // Panics while a writer exists, which `Batch::obs_bytes` relies on.
        Batch(Arc::new(self.arrays))
    }
}

/// What the environments said: one row per environment that stepped.
///
/// A clone shares the memory. The pool reuses the memory once every clone is gone.
#[derive(Clone)]
pub struct Batch(Arc<Arrays>);

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("obs", &format_args!("{}[{}]{}", self.0.dtype, self.len(), self.0.shape))
            .field("env_id", &self.env_id())
            .field("reward", &self.reward())
            .field("terminated", &self.terminated())
            .field("truncated", &self.truncated())
            .finish_non_exhaustive()
    }
}

fn bools(column: &Column<u8>) -> &[bool] {
    bytemuck::checked::cast_slice(column.get())
}

impl Batch {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.0.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shape of [`obs`](Batch::obs): rows first, then the axes of one observation.
    pub fn obs_shape(&self) -> Shape {
        self.0.shape.with_axis(0, self.0.rows)
    }

    /// The type of the elements of [`obs`](Batch::obs).
    pub fn obs_dtype(&self) -> DType {
        self.0.dtype
    }

    /// The observations after the step, row-major: `T[rows, ...]`. Where an episode ended and the
    /// pool resets in the same step, the first observation of the next one.
    ///
    /// # Panics
    /// If `T` is not of the size of the observations' elements.
    pub fn obs<T: Pod>(&self) -> &[T] {
        assert_eq!(size_of::<T>(), self.0.dtype.size(), "observations are {}", self.0.dtype);
        bytemuck::cast_slice(self.obs_bytes())
    }

    /// The observation of one row, as [`obs`](Batch::obs).
    ///
    /// # Panics
    /// If there is no such row, or as `obs` does.
    pub fn obs_row<T: Pod>(&self, row: usize) -> &[T] {
        let bytes = self.0.obs_bytes;
        bytemuck::cast_slice(&self.obs_bytes()[row * bytes..][..bytes])
    }

    /// The observations as bytes.
    pub fn obs_bytes(&self) -> &[u8] {
        // SAFETY: `Filling::finish`, the only maker of batches, saw that no writer was left, and
        // writers come only from a `Filling`, which a shared batch is not.
        unsafe { self.0.obs.bytes() }
    }

    /// The last observation of the episode that ended in `row`, where the pool resets in the same
    /// step; `None` if none ended there.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn final_obs<T: Pod>(&self, row: usize) -> Option<&[T]> {
        if !self.has_final_obs()[row] {
            return None;
        }
        // SAFETY: as in `obs_bytes`.
        let bytes = unsafe { self.0.final_obs.bytes() };
        let size = self.0.final_bytes;
        Some(bytemuck::cast_slice(&bytes[row * size..][..size]))
    }

    /// Which rows have a [`final_obs`](Batch::final_obs).
    pub fn has_final_obs(&self) -> &[bool] {
        bools(&self.0.has_final_obs)
    }

    /// The rewards.
    pub fn reward(&self) -> &[f32] {
        self.0.reward.get()
    }

    /// Whether the episode ended by the rules of the task.
    pub fn terminated(&self) -> &[bool] {
        bools(&self.0.terminated)
    }

    /// Whether the episode was cut, by the time limit or by the environment. May be true
    /// together with `terminated`, as in gymnasium.
    pub fn truncated(&self) -> &[bool] {
        bools(&self.0.truncated)
    }

    /// Whether the observation is the first of an episode.
    pub fn first(&self) -> &[bool] {
        bools(&self.0.first)
    }

    /// Whether a life was lost in this step.
    pub fn life_lost(&self) -> &[bool] {
        bools(&self.0.life_lost)
    }

    /// What the value of the next state is multiplied with, beside the agent's own discount: 0
    /// where the episode terminated or the environment says so, else 1, truncation included.
    pub fn discount(&self) -> &[f32] {
        self.0.discount.get()
    }

    /// Which environment each row is of.
    pub fn env_id(&self) -> &[i32] {
        self.0.env_id.get()
    }

    /// Steps taken in the game that the row's reward belongs to: the whole length where it ended,
    /// 0 after a reset. A lost life that ends an episode does not end the game.
    pub fn elapsed_steps(&self) -> &[i32] {
        self.0.elapsed_steps.get()
    }

    /// Whether a game finished in this step: game over or truncation. Where episodes are lives, not
    /// all that are `terminated` have it.
    pub fn finished(&self) -> &[bool] {
        bools(&self.0.finished)
    }

    /// The sum of the rewards of the game that finished, before any clipping; 0 where none did.
    pub fn episodic_return(&self) -> &[f32] {
        self.0.episodic_return.get()
    }

    /// The steps of the game that finished; 0 where none did.
    pub fn episodic_length(&self) -> &[i32] {
        self.0.episodic_length.get()
    }

    /// The memory of one array for a runtime that reads it in place.
    pub fn share(&self, field: Field) -> SharedBytes {
        SharedBytes { batch: self.clone(), field }
    }

    /// Whether this is the last hold on the memory.
    pub(super) fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// The memory, to be filled again, if nobody else holds it.
    pub(super) fn recycle(self) -> Option<Filling> {
        let arrays = Arc::into_inner(self.0)?;
        Some(Filling { handed_out: vec![false; arrays.rows], arrays })
    }
}

/// One of the arrays of a [`Batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// [`Batch::obs`], of the observations' type.
    Obs,
    /// [`Batch::reward`], `f32`.
    Reward,
    /// [`Batch::terminated`], `bool`.
    Terminated,
    /// [`Batch::truncated`], `bool`.
    Truncated,
    /// [`Batch::first`], `bool`.
    First,
    /// [`Batch::life_lost`], `bool`.
    LifeLost,
    /// [`Batch::discount`], `f32`.
    Discount,
    /// [`Batch::env_id`], `i32`.
    EnvId,
    /// [`Batch::elapsed_steps`], `i32`.
    ElapsedSteps,
}

/// An array of a batch and what keeps it alive: enough to lend it to a device runtime.
///
/// The bytes are aligned to [`ALIGNMENT`] and do not change while this or [`owner`] lives.
///
/// [`owner`]: SharedBytes::owner
#[derive(Debug, Clone)]
pub struct SharedBytes {
    batch: Batch,
    field: Field,
}

impl SharedBytes {
    /// The bytes; the first is aligned to [`ALIGNMENT`].
    pub fn bytes(&self) -> &[u8] {
        let batch = &self.batch;
        match self.field {
            Field::Obs => batch.obs_bytes(),
            Field::Reward => bytemuck::cast_slice(batch.reward()),
            Field::Terminated => batch.0.terminated.get(),
            Field::Truncated => batch.0.truncated.get(),
            Field::First => batch.0.first.get(),
            Field::LifeLost => batch.0.life_lost.get(),
            Field::Discount => bytemuck::cast_slice(batch.discount()),
            Field::EnvId => bytemuck::cast_slice(batch.env_id()),
            Field::ElapsedSteps => bytemuck::cast_slice(batch.elapsed_steps()),
        }
    }

    /// What keeps the memory alive and unchanged; a runtime that was given the address of
    /// [`bytes`](SharedBytes::bytes) holds it until it has read them.
    pub fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.batch.0.clone()
    }
}

/// Fails unless a batch of `rows` observations of `space` can be.
pub(super) fn check_rows(id: &str, rows: usize, space: &Space) -> Result<()> {
    let total = rows.checked_mul(space.bytes().max(1)).filter(|&bytes| bytes < 1 << 40);
    match total {
        Some(_) if i32::try_from(rows).is_ok() => Ok(()),
        _ => Err(Error::Config(format!("{id}: {rows} observations of {space} are too many"))),
    }
}
