//! Replacements for the C library's and the C++ library's functions of memory. Large blocks come from
//! the store (`large`), small ones from an allocator of size classes (`small`), all others from the C
//! library.
//!
//! The C++ library frees some small blocks that the plugin took, such as the text of a string that
//! grows, and no large ones.

use std::alloc::Layout;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use crate::{large, small};

/// Imports that take a block, and their replacements.
pub const ALLOCATING: [(&CStr, *const c_void); 8] = [
    (c"malloc", malloc as *const c_void),
    (c"aligned_alloc", aligned_alloc as *const c_void),
    (c"posix_memalign", posix_memalign as *const c_void),
    (c"_Znwm", new as *const c_void),
    (c"_Znam", new as *const c_void),
    (c"_ZnwmRKSt9nothrow_t", new_or_null as *const c_void),
    (c"_ZnwmSt11align_val_t", new_aligned as *const c_void),
    (c"_ZnwmSt11align_val_tRKSt9nothrow_t", new_aligned_or_null as *const c_void),
];

/// Imports that free a block, and their replacements. Those of C++ may have more arguments, which are not
/// needed.
pub const FREEING: [(&CStr, *const c_void); 12] = [
    (c"free", free as *const c_void),
    (c"realloc", realloc as *const c_void),
    (c"_ZdlPv", free as *const c_void),
    (c"_ZdaPv", free as *const c_void),
    (c"_ZdlPvm", free as *const c_void),
    (c"_ZdaPvm", free as *const c_void),
    (c"_ZdlPvRKSt9nothrow_t", free as *const c_void),
    (c"_ZdaPvRKSt9nothrow_t", free as *const c_void),
    (c"_ZdlPvSt11align_val_t", free as *const c_void),
    (c"_ZdaPvSt11align_val_t", free as *const c_void),
    (c"_ZdlPvmSt11align_val_t", free as *const c_void),
    (c"_ZdaPvmSt11align_val_t", free as *const c_void),
];

/// Imports that expect a block of the C library.
pub const EXPECTING: [&CStr; 4] = [c"reallocarray", c"malloc_usable_size", c"getline", c"getdelim"];

/// The alignment of every block of the C library.
const DEFAULT_ALIGN: usize = 16;

/// A block that is not of the store; null if there is no memory left.
#[inline]
fn take(align: usize, size: usize) -> *mut c_void {
    if size <= small::MAX_BYTES && align <= small::MAX_ALIGN {
        let block = small::take(match align > DEFAULT_ALIGN {
            true => size.max(1).next_multiple_of(small::MAX_ALIGN),
            false => size,
        });
        if !block.is_null() {
            return block;
        }
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
    if large::belongs(align, size) {
        let block = large::take(size);
        if !block.is_null() {
            return block;
        }
    }
    take(align, size)
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
    let old_size = small::bytes_at(pointer).or_else(|| large::size_of_block(pointer));
    let Some(old_size) = old_size else {
        // SAFETY: the caller's own call.
        return unsafe { libc::realloc(pointer, size) };
    };
    let new = take_any(DEFAULT_ALIGN, size);
    if !new.is_null() {
        // SAFETY: both are allocations of at least this size, and not the same one; the caller no
        // longer uses the old one.
        unsafe {
            ptr::copy_nonoverlapping(pointer.cast::<u8>(), new.cast(), size.min(old_size));
            free(pointer);
        }
    }
    new
}

unsafe extern "C" fn free(pointer: *mut c_void) {
    // SAFETY: the caller no longer uses the block, whosever it is.
    unsafe {
        if !small::free(pointer) && !large::free(pointer) {
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
    use super::*;
    use crate::large::MIN_BLOCK_BYTES;

    #[test]
    fn contents_survive_a_new_size() {
        small::reserve();
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
            assert!(large::size_of_block(out).is_some());
            free(out);
            for size in [0, 1, 100, 128] {
                let block = aligned_alloc(64, size);
                assert!((block as usize).is_multiple_of(64), "{size}");
                free(block);
            }
            free(new_aligned(128, 4096));
            free(new_aligned_or_null(MIN_BLOCK_BYTES, 64, ptr::null()));
            assert!(new_or_null(usize::MAX / 2, ptr::null()).is_null());
            free(new(MIN_BLOCK_BYTES));
            free(ptr::null_mut());
        }
    }
}
