//! Replacements for the C library's and the C++ library's functions of memory. Large blocks come from
//! the store (`blocks`), small ones from the calling thread's lists (`lists`), all others from the C
//! library.
//!
//! Small blocks are the C library's own, so that its functions can free them. Blocks of the store are
//! not: they are given for requests that the C++ library never frees itself.

mod blocks;
mod lists;

use std::alloc::Layout;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use super::COMPILATIONS;

/// The names of functions, and their replacements.
pub const FUNCTIONS: [(&CStr, *const c_void); 14] = [
    (c"malloc", malloc as *const c_void),
    (c"aligned_alloc", aligned_alloc as *const c_void),
    (c"posix_memalign", posix_memalign as *const c_void),
    (c"realloc", realloc as *const c_void),
    (c"free", free as *const c_void),
    (c"_Znwm", new as *const c_void),
    (c"_Znam", new as *const c_void),
    (c"_ZnwmRKSt9nothrow_t", new_or_null as *const c_void),
    (c"_ZnwmSt11align_val_t", new_aligned as *const c_void),
    (c"_ZnwmSt11align_val_tRKSt9nothrow_t", new_aligned_or_null as *const c_void),
    (c"_ZdlPv", free as *const c_void),
    (c"_ZdaPv", free as *const c_void),
    (c"_ZdlPvRKSt9nothrow_t", free as *const c_void),
    (c"_ZdlPvSt11align_val_t", free as *const c_void),
];

/// The alignment of every block of the C library.
const DEFAULT_ALIGN: usize = 16;

#[inline]
fn is_compiling() -> bool {
    COMPILATIONS.load(Ordering::Relaxed) > 0
}

/// A block that the C library can free; null if there is no memory left.
#[inline]
fn take(align: usize, size: usize) -> *mut c_void {
    if size <= lists::MAX_BYTES && align <= lists::ALIGN && !is_compiling() {
        return lists::take(align > DEFAULT_ALIGN, size);
    }
    if align <= DEFAULT_ALIGN {
        // SAFETY: any size may be asked for.
        return unsafe { libc::malloc(size) };
    }
    // SAFETY: as above; the C library checks the alignment.
    unsafe { libc::aligned_alloc(align, size) }
}

/// A block for `malloc` and its relatives; null if there is no memory left.
#[inline]
fn take_any(align: usize, size: usize) -> *mut c_void {
    if blocks::belongs(align, size) { blocks::take(size) } else { take(align, size) }
}

/// A block is needed, and there is none: ends the process, as a C++ exception that nobody catches.
fn expect_block(block: *mut c_void, align: usize, size: usize) -> *mut c_void {
    if block.is_null() {
        std::alloc::handle_alloc_error(
            Layout::from_size_align(size, align).unwrap_or(Layout::new::<u8>()),
        )
    }
    block
}

unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    take_any(DEFAULT_ALIGN, size)
}

unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    take_any(align, size)
}

unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    let block = take_any(align, size);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller gives a place for a pointer.
    unsafe { *out = block };
    0
}

unsafe extern "C" fn realloc(pointer: *mut c_void, size: usize) -> *mut c_void {
    let Some(old_size) = blocks::size_of_block(pointer) else {
        // SAFETY: the caller's own call.
        return unsafe { libc::realloc(pointer, size) };
    };
    let new = take_any(DEFAULT_ALIGN, size);
    if !new.is_null() {
        // SAFETY: both are allocations of at least this size, and not the same one.
        unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), new.cast(), size.min(old_size)) };
        blocks::free(pointer);
    }
    new
}

unsafe extern "C" fn free(pointer: *mut c_void) {
    if pointer.is_null() || blocks::free(pointer) {
        return;
    }
    // SAFETY: all other blocks are the C library's, and the caller no longer uses this one.
    unsafe {
        if is_compiling() || !lists::keep(pointer) {
            libc::free(pointer);
        }
    }
}

unsafe extern "C" fn new(size: usize) -> *mut c_void {
    expect_block(take(DEFAULT_ALIGN, size), DEFAULT_ALIGN, size)
}

unsafe extern "C" fn new_or_null(size: usize, _: *const c_void) -> *mut c_void {
    take(DEFAULT_ALIGN, size)
}

unsafe extern "C" fn new_aligned(size: usize, align: usize) -> *mut c_void {
    expect_block(take_any(align, size), align, size)
}

unsafe extern "C" fn new_aligned_or_null(
    size: usize,
    align: usize,
    _: *const c_void,
) -> *mut c_void {
    take_any(align, size)
}

#[cfg(test)]
mod tests {
    use super::blocks::MIN_BLOCK_BYTES;
    use super::*;

    #[test]
    fn contents_survive_a_new_size() {
        // SAFETY: the stand-ins, used as one uses the functions they stand in for.
        unsafe {
            let small = malloc(100).cast::<u8>();
            small.write_bytes(7, 100);
            let large = realloc(small.cast(), MIN_BLOCK_BYTES).cast::<u8>();
            assert_eq!(*large.add(99), 7);
            free(large.cast());
            let large = malloc(MIN_BLOCK_BYTES).cast::<u8>();
            large.write_bytes(9, MIN_BLOCK_BYTES);
            let larger = realloc(large.cast(), 4 * MIN_BLOCK_BYTES).cast::<u8>();
            assert_ne!(larger, large);
            assert_eq!((*larger, *larger.add(MIN_BLOCK_BYTES - 1)), (9, 9));
            let small = realloc(larger.cast(), 10).cast::<u8>();
            assert_eq!(*small.add(9), 9);
            free(small.cast());
            let mut out = ptr::null_mut();
            assert_eq!(posix_memalign(&mut out, 64, MIN_BLOCK_BYTES), 0);
            assert!(blocks::size_of_block(out).is_some());
            free(out);
            free(aligned_alloc(64, 128));
            free(new_aligned(128, 4096));
            free(new_aligned_or_null(MIN_BLOCK_BYTES, 64, ptr::null()));
            assert!(new_or_null(usize::MAX / 2, ptr::null()).is_null());
            free(new(MIN_BLOCK_BYTES));
            free(ptr::null_mut());
        }
    }
}
