//! Working memory of runs.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::slice;
use std::sync::{Mutex, PoisonError};

/// Piece of memory, aligned for the widest instructions.
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "it is memory for others")] [u8; 64]);

/// Working memory, kept for later runs when it is dropped. It is written through pointers.
pub(super) struct Scratch(Vec<UnsafeCell<Line>>);

/// Memory that no run uses.
static FREE: Mutex<Vec<Vec<UnsafeCell<Line>>>> = Mutex::new(Vec::new());

/// The most pieces of memory that are kept.
const MAX_FREE: usize = 64;

impl Scratch {
    /// Memory of at least this many bytes, whose content is left from other runs.
    pub fn take(bytes: usize) -> Scratch {
        let lines = bytes.div_ceil(size_of::<Line>());
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        // The smallest that fits, or else a new one.
        let fits = free.iter().enumerate().filter(|(_, memory)| memory.len() >= lines);
        let best = fits.min_by_key(|(_, memory)| memory.len()).map(|(i, _)| i);
        let memory = best.map(|i| free.swap_remove(i));
        drop(free);
        let new = || (0..lines).map(|_| UnsafeCell::new(Line([0; 64]))).collect();
        Scratch(memory.unwrap_or_else(new))
    }

    /// Memory for this many numbers.
    pub fn floats(len: usize) -> Scratch {
        Scratch::take(len * size_of::<f32>())
    }

    pub fn as_ptr(&self) -> *mut c_void {
        UnsafeCell::raw_get(self.0.as_ptr()).cast()
    }

    /// The first elements, as numbers.
    pub fn as_floats(&mut self, len: usize) -> &mut [f32] {
        assert!(len <= self.0.len() * (size_of::<Line>() / size_of::<f32>()));
        // SAFETY: the memory is long enough, initialized, and this value's alone; all bits are
        // numbers.
        unsafe { slice::from_raw_parts_mut(self.as_ptr().cast(), len) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MAX_FREE {
            free.push(std::mem::take(&mut self.0));
        }
    }
}
