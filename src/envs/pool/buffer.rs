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

use crate::envs::pool::columns::{Row, step_columns};
use crate::error::{Error, Result};
use crate::spaces::Space;
use crate::trace::literal::Element;
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

    #[inline]
    fn start(&self) -> *mut u8 {
        UnsafeCell::raw_get(self.lines.as_ptr()).cast()
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the allocation has at least `bytes` initialized bytes, and `&mut self` is the
        // only access to them.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.bytes) }
    }

    /// # Safety
    /// No `RowWriter` of this memory may exist while the slice does.
    #[inline]
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
    #[inline]
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
    bytes: usize,
    element: PhantomData<T>,
}

impl<T: Element> Column<T> {
    /// Makes a column of zeros, which are valid elements of all types.
    fn new(rows: usize) -> Column<T> {
        let bytes = rows * size_of::<T>();
        let lines = vec![Line::zeroed(); bytes.div_ceil(ALIGNMENT)];
        Column { lines, bytes, element: PhantomData }
    }

    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.bytes]
    }

    fn get(&self) -> &[T] {
        T::cast_slice(self.bytes()).expect("`set` wrote elements")
    }

    #[inline]
    fn set(&mut self, row: usize, value: T) {
        let bytes = &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.bytes];
        bytes[row * size_of::<T>()..][..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
    }
}

/// Defines the memory of the columns, and their names and methods in a [`Batch`].
macro_rules! batch_columns {
    (
        batch_and_compiled_code { $(
            $(#[$doc:meta])*
            $name:ident $field:ident: $type:ident = |$row:ident| $value:expr, |$rows:ident| $traced:expr;
        )* }
        batch_only { $(
            $(#[$doc_of_batch:meta])*
            $batch_name:ident $batch_field:ident: $batch_type:ident =
                |$batch_row:ident| $batch_value:expr;
        )* }
    ) => {
        batch_columns! {
            $($(#[$doc])* $name $field: $type = |$row| $value;)*
            $(
                $(#[$doc_of_batch])*
                $batch_name $batch_field: $batch_type = |$batch_row| $batch_value;
            )*
        }
    };
    ($(
        $(#[$doc:meta])*
        $name:ident $field:ident: $type:ident = |$row:ident| $value:expr;
    )*) => {
        /// The columns of one batch.
        struct Columns {
            $($name: Column<$type>,)*
        }

        impl Columns {
            fn new(rows: usize) -> Columns {
                Columns { $($name: Column::new(rows),)* }
            }

            /// Stores one row.
            #[inline]
            fn set(&mut self, index: usize, row: &Row) {
                $(
                    let $row = row;
                    self.$name.set(index, $value);
                )*
            }

            /// Returns the bytes of a column; `None` for observations, which are not in one.
            fn bytes(&self, field: Field) -> Option<&[u8]> {
                match field {
                    Field::Obs => None,
                    $(Field::$field => Some(self.$name.bytes()),)*
                }
            }
        }

        impl Batch {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> &[$type] {
                    self.0.columns.$name.get()
                }
            )*
        }

        /// One of the arrays of a [`Batch`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Field {
            /// [`Batch::obs`], of the observations' type.
            Obs,
            $(
                #[doc = concat!("[`Batch::", stringify!($name), "`], `", stringify!($type), "`.")]
                $field,
            )*
        }
    };
}
step_columns!(batch_columns);

/// All arrays of one batch.
struct Arrays {
    rows: usize,
    shape: Shape,
    dtype: DType,
    obs_bytes: usize,
    final_bytes: usize,
    obs: Arc<Rows>,
    final_obs: Arc<Rows>,
    columns: Columns,
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
            columns: Columns::new(rows),
        };
        BatchBuilder { arrays, handed_out: vec![false; rows] }
    }

    /// Returns write access to `row`.
    ///
    /// # Panics
    /// If the row was lent before or does not exist: a defect of the pool.
    #[inline]
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
    #[inline]
    pub(in crate::envs) fn obs_bytes(&self) -> usize {
        self.arrays.obs_bytes
    }

    /// Stores the results of a step, except the observation, which the step has written itself.
    #[inline]
    pub(super) fn set(&mut self, index: usize, row: &Row) {
        self.arrays.columns.set(index, row);
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

impl Batch {
    /// Returns the number of rows.
    #[inline]
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
    #[inline]
    pub fn obs_bytes(&self) -> &[u8] {
        // SAFETY: `BatchBuilder::finish`, the only maker of batches, saw that no writer was left, and
        // writers come only from a `BatchBuilder`, which a shared batch is not.
        unsafe { self.0.obs.bytes() }
    }

    /// Returns one array as bytes, aligned to [`ALIGNMENT`].
    pub(in crate::envs) fn bytes_of(&self, field: Field) -> &[u8] {
        self.0.columns.bytes(field).unwrap_or_else(|| self.obs_bytes())
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
        self.batch.bytes_of(self.field)
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
