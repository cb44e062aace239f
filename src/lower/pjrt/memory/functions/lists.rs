//! Small blocks of the C library that a thread has freed, in lists for its next requests.
//!
//! The C library keeps seven blocks of a size for a thread, none above 1,032 bytes, and never reuses
//! one for an aligned request. A call of a compiled program frees more than that: some ten blocks,
//! and as many for each result, which is aligned.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr;

/// The largest block that a list keeps, in bytes.
pub const MAX_BYTES: usize = 64 << 10;

/// The alignment of XLA's buffers, in bytes: that of all blocks of the aligned lists.
pub const ALIGN: usize = 64;

/// Blocks that a list keeps at most, and their bytes.
const MAX_LENGTH: usize = 64;
const MAX_LIST_BYTES: usize = 128 << 10;

/// Size classes: one for each 16 bytes up to `FINE`, then four for each doubling.
const CLASSES: usize = 64 + 24;
const FINE: usize = 1032;

/// Blocks of one size class. Each holds the address of the next one in its first bytes.
#[derive(Clone, Copy)]
struct List {
    first: *mut c_void,
    length: usize,
}

/// Lists of blocks of any address, and of those with an address that is a multiple of [`ALIGN`].
struct Lists([[List; CLASSES]; 2]);

thread_local! {
    static LISTS: RefCell<Lists> = const {
        RefCell::new(Lists([[List { first: ptr::null_mut(), length: 0 }; CLASSES]; 2]))
    };
}

impl Drop for Lists {
    fn drop(&mut self) {
        for list in self.0.iter_mut().flatten() {
            while let Some(block) = list.pop() {
                // SAFETY: a block of the C library that nobody uses.
                unsafe { libc::free(block) };
            }
        }
    }
}

impl List {
    #[inline]
    fn pop(&mut self) -> Option<*mut c_void> {
        let block = self.first;
        if block.is_null() {
            return None;
        }
        // SAFETY: `push` wrote it.
        self.first = unsafe { block.cast::<*mut c_void>().read() };
        self.length -= 1;
        Some(block)
    }

    /// # Safety
    /// The block has at least 8 bytes, and nobody uses it.
    #[inline]
    unsafe fn push(&mut self, block: *mut c_void) {
        // SAFETY: the caller's.
        unsafe { block.cast::<*mut c_void>().write(self.first) };
        self.first = block;
        self.length += 1;
    }
}

/// The size class of a request, and the bytes to take from the C library, which all blocks of the
/// class have.
#[inline]
fn class_of_request(size: usize) -> (usize, usize) {
    if size <= FINE {
        // The C library's own sizes are multiples of 16, of which it keeps 8 bytes.
        let class = size.saturating_sub(8).div_ceil(16).max(1) - 1;
        return (class, (class + 1) * 16 + 8);
    }
    let exponent = (size - 1).ilog2();
    let quarter = ((size - 1) >> (exponent - 2)) & 3;
    let class = 64 + (exponent as usize - 10) * 4 + quarter;
    (class, (quarter + 5) << (exponent - 2))
}

/// The largest size class whose requests fit in a block of `size` bytes, at least 24.
#[inline]
fn class_of_block(size: usize) -> usize {
    if size < 1280 {
        return ((size - 8) / 16 - 1).min(63);
    }
    let exponent = size.ilog2();
    63 + (exponent as usize - 10) * 4 + ((size >> (exponent - 2)) & 3)
}

/// A block for at most [`MAX_BYTES`], aligned to [`ALIGN`] on request: one of this thread's lists, or
/// a new one of the C library; null if it has no memory left.
#[inline]
pub fn take(aligned: bool, size: usize) -> *mut c_void {
    let (class, bytes) = class_of_request(size);
    // After the end of this thread's values there are no lists.
    let kept = LISTS.try_with(|lists| lists.borrow_mut().0[usize::from(aligned)][class].pop());
    match kept {
        Ok(Some(block)) => block,
        // SAFETY: sizes and the alignment are valid.
        _ if aligned => unsafe { libc::aligned_alloc(ALIGN, bytes) },
        // SAFETY: as above.
        _ => unsafe { libc::malloc(bytes) },
    }
}

/// Keeps a block in a list of this thread. Returns false if it is too large, or its list is full.
///
/// # Safety
/// It is a block of the C library that nobody uses.
#[inline]
pub unsafe fn keep(block: *mut c_void) -> bool {
    // SAFETY: the caller's.
    let size = unsafe { libc::malloc_usable_size(block) };
    // The C library's blocks have 8 bytes more, and up to 32 that are too few for another block.
    if !(24..=MAX_BYTES + 40).contains(&size) {
        return false;
    }
    let aligned = (block as usize).is_multiple_of(ALIGN);
    LISTS
        .try_with(|lists| {
            let list = &mut lists.borrow_mut().0[usize::from(aligned)][class_of_block(size)];
            let room = list.length < MAX_LENGTH && list.length * size < MAX_LIST_BYTES;
            if room {
                // SAFETY: the caller's.
                unsafe { list.push(block) };
            }
            room
        })
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_the_requests_of_their_class() {
        for size in 0..=MAX_BYTES {
            let (class, bytes) = class_of_request(size);
            assert!(class < CLASSES && bytes >= size && bytes <= 24 + size + size / 4, "{size}");
            assert_eq!(class_of_block(bytes), class, "{size}");
        }
        for block in 24..=MAX_BYTES + 40 {
            let class = class_of_block(block);
            let next = (block..=MAX_BYTES).map(|size| class_of_request(size + 1).0).next();
            assert!(class < CLASSES && next.is_none_or(|next| next > class), "{block}");
        }
    }

    #[test]
    fn kept_blocks_are_used_again() {
        // SAFETY: blocks of this test, which it uses no longer.
        unsafe {
            for aligned in [false, true] {
                for size in [0, 100, 5000, MAX_BYTES] {
                    let block = take(aligned, size);
                    assert!(!aligned || (block as usize).is_multiple_of(ALIGN));
                    assert!(keep(block), "{size}");
                    let is_aligned = (block as usize).is_multiple_of(ALIGN);
                    // The C library may have given a block of a higher class.
                    let size = size.max(libc::malloc_usable_size(block).min(FINE));
                    assert_eq!(take(is_aligned, size), block);
                    libc::free(block);
                }
            }
            let large = libc::malloc(2 * MAX_BYTES);
            assert!(!keep(large));
            libc::free(large);
        }
    }

    #[test]
    fn lists_are_limited() {
        let kept = |size| {
            let blocks: Vec<_> = (0..200).map(|_| take(true, size)).collect();
            // SAFETY: blocks of this test, which it uses no longer.
            let keep = |&block: &*mut c_void| unsafe {
                keep(block) || {
                    libc::free(block);
                    false
                }
            };
            blocks.iter().filter(|block| keep(block)).count()
        };
        // A new thread has empty lists.
        let lengths = std::thread::spawn(move || [100, 4000, MAX_BYTES].map(kept)).join().unwrap();
        assert_eq!(lengths[1..], [32, 2]);
        // The C library gives blocks of up to three classes.
        assert!((64..=192).contains(&lengths[0]), "{}", lengths[0]);
    }
}
