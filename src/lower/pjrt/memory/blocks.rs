//! A store of large blocks: replacements for the C library's allocator that take large blocks from
//! the store, and all others from the C library.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// The names of functions of the C library, and their replacements.
pub const FUNCTIONS: [(&CStr, *const c_void); 5] = [
    (c"malloc", malloc as *const c_void),
    (c"aligned_alloc", aligned_alloc as *const c_void),
    (c"posix_memalign", posix_memalign as *const c_void),
    (c"realloc", realloc as *const c_void),
    (c"free", free as *const c_void),
];

/// The size of a huge page. Every block begins at a multiple, which an address of the C library
/// hardly ever does: that distinguishes nearly all others without a lookup in the store.
const PAGE: usize = 2 << 20;

/// Blocks of at least this many bytes belong to the store: the C library keeps smaller ones by
/// itself, and rounding them to huge pages would waste too much.
const MIN_BLOCK_BYTES: usize = 4 << 20;

/// Bytes of free blocks that are kept at most.
const MAX_CACHED_BYTES: usize = 2 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    address: usize,
    size: usize,
}

/// All blocks, in use and free.
struct Store {
    used: Vec<Block>,
    /// Free blocks, ordered by the time at which they were freed; the latest is last.
    free: Vec<Block>,
}

static STORE: Mutex<Store> = Mutex::new(Store { used: Vec::new(), free: Vec::new() });

impl Store {
    /// A block of at least `size` bytes; its address, or 0 if the system has none left.
    fn take(&mut self, size: usize) -> usize {
        let Some(size) = size.checked_next_multiple_of(PAGE) else { return 0 };
        // A much larger block would soon be missing for a larger request.
        let fits = |block: &&(usize, Block)| {
            (size..=size.saturating_add(size / 4)).contains(&block.1.size)
        };
        let free: Vec<(usize, Block)> = self.free.iter().copied().enumerate().collect();
        let best = free.iter().filter(fits).min_by_key(|(_, block)| block.size);
        let block = match best {
            Some(&(index, _)) => self.free.remove(index),
            None => match map(size) {
                0 => {
                    self.free.drain(..).for_each(unmap);
                    Block { address: map(size), size }
                }
                address => Block { address, size },
            },
        };
        if block.address != 0 {
            self.used.push(block);
        }
        block.address
    }

    /// The block at an address, if it is one of these, free from now on.
    fn free(&mut self, address: usize) -> Option<Block> {
        let index = self.used.iter().position(|block| block.address == address)?;
        let block = self.used.swap_remove(index);
        self.free.push(block);
        while self.free.iter().map(|block| block.size).sum::<usize>() > MAX_CACHED_BYTES {
            unmap(self.free.remove(0));
        }
        Some(block)
    }
}

/// New memory that begins at a huge page; 0 if there is none.
fn map(size: usize) -> usize {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let Some(whole) = size.checked_add(PAGE) else { return 0 };
    // SAFETY: new memory at an address that the system chooses.
    let start = unsafe { libc::mmap(ptr::null_mut(), whole, prot, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return 0;
    }
    let start = start as usize;
    let address = start.next_multiple_of(PAGE);
    let parts = [(start, address - start), (address + size, start + whole - address - size)];
    for (start, size) in parts.into_iter().filter(|part| part.1 > 0) {
        // SAFETY: the parts of the new memory around the block, which nobody knows.
        unsafe { libc::munmap(start as *mut c_void, size) };
    }
    // SAFETY: the block just mapped. It is advice: where it is not followed, pages are small.
    unsafe { libc::madvise(address as *mut c_void, size, libc::MADV_HUGEPAGE) };
    address
}

fn unmap(block: Block) {
    // SAFETY: a block of `map`, which nobody uses.
    unsafe { libc::munmap(block.address as *mut c_void, block.size) };
}

fn with_store<R>(f: impl FnOnce(&mut Store) -> R) -> R {
    f(&mut STORE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns true if an allocation belongs to the store.
fn is_of_store(align: usize, size: usize) -> bool {
    size >= MIN_BLOCK_BYTES && align <= PAGE
}

fn take(size: usize) -> *mut c_void {
    with_store(|store| store.take(size)) as *mut c_void
}

fn could_be_of_store(pointer: *mut c_void) -> bool {
    !pointer.is_null() && (pointer as usize).is_multiple_of(PAGE)
}

unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    if is_of_store(1, size) {
        return take(size);
    }
    // SAFETY: the caller's own call.
    unsafe { libc::malloc(size) }
}

unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if is_of_store(align, size) {
        return take(size);
    }
    // SAFETY: as above.
    unsafe { libc::aligned_alloc(align, size) }
}

unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !is_of_store(align, size) {
        // SAFETY: as above.
        return unsafe { libc::posix_memalign(out, align, size) };
    }
    let block = take(size);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller gives a place for a pointer.
    unsafe { *out = block };
    0
}

unsafe extern "C" fn realloc(pointer: *mut c_void, size: usize) -> *mut c_void {
    let own = could_be_of_store(pointer)
        .then(|| {
            with_store(|store| store.used.iter().copied().find(|b| b.address == pointer as usize))
        })
        .flatten();
    let Some(block) = own else {
        // SAFETY: as above.
        return unsafe { libc::realloc(pointer, size) };
    };
    // SAFETY: the stand-ins may be called with any size.
    let new = unsafe { malloc(size) };
    if !new.is_null() {
        // SAFETY: both are allocations of at least this size, and not the same one.
        unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), new.cast(), size.min(block.size)) };
        with_store(|store| store.free(block.address));
    }
    new
}

unsafe extern "C" fn free(pointer: *mut c_void) {
    if could_be_of_store(pointer) && with_store(|store| store.free(pointer as usize)).is_some() {
        return;
    }
    // SAFETY: as above.
    unsafe { libc::free(pointer) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_blocks_are_used_again() {
        let mut store = Store { used: Vec::new(), free: Vec::new() };
        let first = store.take(8 * PAGE + 1);
        assert!(first != 0 && first.is_multiple_of(PAGE));
        assert_eq!(store.used[0].size, 9 * PAGE);
        // Neither one in use, nor one too small or much too large.
        let second = store.take(8 * PAGE + 1);
        assert_ne!(second, first);
        assert_eq!(store.free(first), Some(Block { address: first, size: 9 * PAGE }));
        assert_eq!(store.free(first), None);
        assert_ne!(store.take(10 * PAGE), first);
        assert_ne!(store.take(4 * PAGE), first);
        assert_eq!(store.take(8 * PAGE), first);
        store.used.drain(..).for_each(unmap);
    }

    #[test]
    fn the_store_is_limited() {
        let mut store = Store { used: Vec::new(), free: Vec::new() };
        // Untouched memory is only addresses.
        let blocks: Vec<usize> = (0..5).map(|_| store.take(MAX_CACHED_BYTES / 4)).collect();
        blocks.iter().for_each(|&block| assert!(store.free(block).is_some()));
        let kept: Vec<usize> = store.free.iter().map(|block| block.address).collect();
        assert_eq!(kept, blocks[1..]);
        assert_eq!(store.take(usize::MAX - PAGE), 0, "no such memory");
        assert!(store.free.is_empty(), "given back before it failed");
    }

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
            assert!(could_be_of_store(out));
            free(out);
            free(aligned_alloc(64, 128));
            free(ptr::null_mut());
        }
    }
}
