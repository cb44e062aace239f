//! Batch buffers: aligned memory that environments fill in place and learners read without a copy.
//!
//! A buffer has a life cycle: *batch* (each row is lent once, to the thread that steps that
//! environment), then *batch* (shared, read only), then, when the last reference to the batch is
//! dropped, batch again. A batch therefore stays valid for as long as it is referenced, also by a
//! device runtime that reads the memory in place.
//!
//! This file has all the `unsafe` code for threads that write different rows of one allocation.

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::envs::pool::slot::Row;
use crate::error::{Error, Result};
use crate::spaces::Space;
use crate::trace::types::{DType, Shape};

/// Alignment of every array of a batch, in bytes: a cache line, and the alignment that XLA's CPU
/// client requires of memory that it reads in place.
pub const ALIGNMENT: usize = 64;

/// One cache line. A vector of cache lines is aligned memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// Memory whose rows may be written by several threads, each row by one thread.
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
        // SAFETY: the allocation has at least `bytes` initialized bytes, and `&mut self` is the
        // only access to them.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.bytes) }
    }

    /// # Safety
    /// No `RowWriter` of this memory may exist while the slice does.
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has at least `bytes` initialized bytes, and by the caller's
        // promise nobody writes them.
        unsafe { std::slice::from_raw_parts(self.start(), self.bytes) }
    }
}

/// Exclusive write access to one row, on any thread. Keeps the memory alive.
pub(in crate::envs) struct RowWriter {
    obs: Arc<Rows>,
    final_obs: Arc<Rows>,
    row: usize,
    obs_bytes: usize,
    final_bytes: usize,
}

impl RowWriter {
    /// Returns the row's observation, and the buffer of the last observation of an ended episode
    /// (empty if the pool keeps none).
    pub(in crate::envs) fn slices(&mut self) -> (&mut [u8], &mut [u8]) {
        let slice = |rows: &Rows, bytes: usize| {
            debug_assert!((self.row + 1) * bytes <= rows.bytes);
            // SAFETY: in bounds (`BatchBuilder::writer` checked the row). `BatchBuilder` makes one
            // writer per row, so no other writer has these bytes, and makes no slice of its own
            // while a writer exists. `&mut self` keeps a writer from making two.
            unsafe { std::slice::from_raw_parts_mut(rows.start().add(self.row * bytes), bytes) }
        };
        (slice(&self.obs, self.obs_bytes), slice(&self.final_obs, self.final_bytes))
    }
}

/// Aligned array of `T`, one element per row.
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

/// Batch whose rows are being written.
pub(in crate::envs) struct BatchBuilder {
    arrays: Arrays,
    handed_out: Vec<bool>,
}

impl BatchBuilder {
    /// Allocates memory for `rows` observations of `space`, and for as many final observations if
    /// `keep_final` is true.
    pub(in crate::envs) fn new(rows: usize, space: &Space, keep_final: bool) -> BatchBuilder {
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
        BatchBuilder { arrays, handed_out: vec![false; rows] }
    }

    /// Returns write access to `row`.
    ///
    /// # Panics
    /// If the row was lent before or does not exist: a defect of the pool.
    pub(in crate::envs) fn writer(&mut self, row: usize) -> RowWriter {
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

    /// Returns all observations and all final observations, for a caller that writes every row
    /// itself.
    ///
    /// # Panics
    /// If a writer still exists: a defect of the pool.
    pub(in crate::envs) fn all(&mut self) -> (&mut [u8], &mut [u8]) {
        let unique = "no writer is left";
        let Arrays { obs, final_obs, .. } = &mut self.arrays;
        let obs = Arc::get_mut(obs).expect(unique).bytes_mut();
        (obs, Arc::get_mut(final_obs).expect(unique).bytes_mut())
    }

    /// Returns the number of bytes of one observation.
    pub(in crate::envs) fn obs_bytes(&self) -> usize {
        self.arrays.obs_bytes
    }

    /// Stores the outputs of a step, except the observation, which the step has written itself.
    pub(super) fn set(&mut self, row: usize, env: usize, outcome: &Row) {
        let arrays = &mut self.arrays;
        arrays.reward.set(row, outcome.reward);
        arrays.terminated.set(row, outcome.terminated.into());
        arrays.truncated.set(row, outcome.truncated.into());
        arrays.first.set(row, outcome.first.into());
        arrays.life_lost.set(row, outcome.life_lost.into());
        arrays.discount.set(row, if outcome.zero_discount { 0.0 } else { 1.0 });
        arrays.has_final_obs.set(row, outcome.has_final_obs.into());
        arrays.env_id.set(row, env as i32);
        arrays.elapsed_steps.set(row, outcome.elapsed as i32);
        let (sum, length) =
            outcome.finished.map_or((0.0, 0), |game| (game.episodic_return as f32, game.length));
        arrays.finished.set(row, outcome.finished.is_some().into());
        arrays.episodic_return.set(row, sum);
        arrays.episodic_length.set(row, length as i32);
    }

    /// Returns the finished batch.
    ///
    /// # Panics
    /// If a writer still exists: a defect of the pool.
    pub(in crate::envs) fn finish(mut self) -> Batch {
        self.all(); // Panics while a writer exists, which `Batch::obs_bytes` relies on.
        Batch(Arc::new(self.arrays))
    }
}

/// Outputs of the environments: one row per environment that stepped.
///
/// A clone shares the memory. The pool reuses the memory once every clone is dropped.
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
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.0.rows
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the shape of [`obs`](Batch::obs): rows first, then the axes of one observation.
    pub fn obs_shape(&self) -> Shape {
        self.0.shape.with_axis(0, self.0.rows)
    }

    /// Returns the type of the elements of [`obs`](Batch::obs).
    pub fn obs_dtype(&self) -> DType {
        self.0.dtype
    }

    /// Returns the observations after the step, row-major: `T[rows, ...]`. If an episode ended and
    /// the pool resets in the same step, the row is the first observation of the next episode.
    ///
    /// # Panics
    /// If the size of `T` is not that of the observations' elements.
    pub fn obs<T: Pod>(&self) -> &[T] {
        assert_eq!(size_of::<T>(), self.0.dtype.size(), "observations are {}", self.0.dtype);
        bytemuck::cast_slice(self.obs_bytes())
    }

    /// Returns the observation of one row, as [`obs`](Batch::obs).
    ///
    /// # Panics
    /// If there is no such row, and in the cases of `obs`.
    pub fn obs_row<T: Pod>(&self, row: usize) -> &[T] {
        let bytes = self.0.obs_bytes;
        bytemuck::cast_slice(&self.obs_bytes()[row * bytes..][..bytes])
    }

    /// Returns the observations as bytes.
    pub fn obs_bytes(&self) -> &[u8] {
        // SAFETY: `BatchBuilder::finish`, the only maker of batches, saw that no writer was left, and
        // writers come only from a `BatchBuilder`, which a shared batch is not.
        unsafe { self.0.obs.bytes() }
    }

    /// Returns the last observation of the episode that ended in `row`, in a pool that resets in
    /// the same step; `None` if no episode ended there.
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

    /// Returns one flag per row: true if the row has a [`final_obs`](Batch::final_obs).
    pub fn has_final_obs(&self) -> &[bool] {
        bools(&self.0.has_final_obs)
    }

    /// Returns the rewards.
    pub fn reward(&self) -> &[f32] {
        self.0.reward.get()
    }

    /// Returns one flag per row: true if the episode ended by the rules of the task.
    pub fn terminated(&self) -> &[bool] {
        bools(&self.0.terminated)
    }

    /// Returns one flag per row: true if the episode was cut, by the time limit or by the
    /// environment. Both this flag and `terminated` may be true, as in gymnasium.
    pub fn truncated(&self) -> &[bool] {
        bools(&self.0.truncated)
    }

    /// Returns one flag per row: true if the observation is the first of an episode.
    pub fn first(&self) -> &[bool] {
        bools(&self.0.first)
    }

    /// Returns one flag per row: true if a life was lost in this step.
    pub fn life_lost(&self) -> &[bool] {
        bools(&self.0.life_lost)
    }

    /// Returns the factor of the value of the next state, apart from the agent's own discount: 0
    /// where the episode terminated or the environment asks for a zero discount, else 1, also where
    /// it was truncated.
    pub fn discount(&self) -> &[f32] {
        self.0.discount.get()
    }

    /// Returns the index of each row's environment.
    pub fn env_id(&self) -> &[i32] {
        self.0.env_id.get()
    }

    /// Returns the number of steps taken in the game that the row's reward belongs to: the whole
    /// length where the game ended, 0 after a reset. A lost life that ends an episode does not end
    /// the game.
    pub fn elapsed_steps(&self) -> &[i32] {
        self.0.elapsed_steps.get()
    }

    /// Returns one flag per row: true if a full game finished in this step, by game over or
    /// truncation. If episodes are lives, not all rows that are `terminated` have this flag.
    pub fn finished(&self) -> &[bool] {
        bools(&self.0.finished)
    }

    /// Returns the sum of the rewards of the game that finished, before any clipping; 0 where none
    /// did.
    pub fn episodic_return(&self) -> &[f32] {
        self.0.episodic_return.get()
    }

    /// Returns the number of steps of the game that finished; 0 where none did.
    pub fn episodic_length(&self) -> &[i32] {
        self.0.episodic_length.get()
    }

    /// Shares the memory of one array with a runtime that reads it in place.
    pub fn share(&self, field: Field) -> SharedBytes {
        SharedBytes { batch: self.clone(), field }
    }

    /// Returns true if this is the last reference to the memory.
    pub(in crate::envs) fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns the memory, to be filled again, if this is the last reference to it.
    pub(in crate::envs) fn recycle(self) -> Option<BatchBuilder> {
        let arrays = Arc::into_inner(self.0)?;
        Some(BatchBuilder { handed_out: vec![false; arrays.rows], arrays })
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

/// Array of a batch and its owner, which suffice to lend it to a device runtime.
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
    /// Returns the bytes; the first is aligned to [`ALIGNMENT`].
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

    /// Returns the owner that keeps the memory alive and unchanged; a runtime that has the address
    /// of [`bytes`](SharedBytes::bytes) holds it until it has read them.
    pub fn owner(&self) -> Arc<dyn Any + Send + Sync> {
        self.batch.0.clone()
    }
}

/// Returns an error if a batch of `rows` observations of `space` cannot exist.
pub(in crate::envs) fn check_rows(id: &str, rows: usize, space: &Space) -> Result<()> {
    let total = rows.checked_mul(space.bytes().max(1)).filter(|&bytes| bytes < 1 << 40);
    match total {
        Some(_) if i32::try_from(rows).is_ok() => Ok(()),
        _ => Err(Error::Config(format!("{id}: {rows} observations of {space} are too many"))),
    }
}
