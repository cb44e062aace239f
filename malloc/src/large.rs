//! A store of large blocks.

use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;

use crate::small::lock;

/// The size of a huge page. Every block begins at a multiple, which an address of the C library
/// hardly ever does: that distinguishes nearly all others without a lookup in the store.
const PAGE: usize = 2 << 20;

/// Blocks of at least this many bytes belong to the store: the C library keeps smaller ones by
/// itself, and rounding them to huge pages would waste too much.
pub const MIN_BLOCK_BYTES: usize = 4 << 20;

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
        // A block is freed without memory for a longer list.
        let blocks = self.used.len() + 1;
        if self.used.try_reserve(1).is_err() || self.free.try_reserve(blocks).is_err() {
            return 0;
        }
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

/// The result of `f`; none if a forked process cannot have the store.
fn with_store<R>(f: impl FnOnce(&mut Store) -> R) -> Option<R> {
    lock(&STORE).map(|mut store| f(&mut store))
}

/// Returns true if an allocation belongs to the store.
#[inline]
pub fn belongs(align: usize, size: usize) -> bool {
    size >= MIN_BLOCK_BYTES && align <= PAGE
}

/// A block of at least `size` bytes that begins at a huge page; null if the system has no memory left.
pub fn take(size: usize) -> *mut c_void {
    with_store(|store| store.take(size)).unwrap_or(0) as *mut c_void
}

/// Returns true if a pointer could be a block of the store; nearly no other is.
#[inline]
fn could_be_of_store(pointer: *mut c_void) -> bool {
    !pointer.is_null() && (pointer as usize).is_multiple_of(PAGE)
}

/// The size of a block of the store; none for other pointers.
pub fn size_of_block(pointer: *mut c_void) -> Option<usize> {
    if !could_be_of_store(pointer) {
        return None;
    }
    with_store(|store| {
        store.used.iter().find(|block| block.address == pointer as usize).map(|block| block.size)
    })
    .flatten()
}

/// Gives a block back to the store. Returns false for other pointers. In a forked process that cannot have
/// the store, the block is lost.
#[inline]
pub fn free(pointer: *mut c_void) -> bool {
    could_be_of_store(pointer)
        && with_store(|store| store.free(pointer as usize).is_some()).unwrap_or(true)
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
}
