//! Small blocks, from a range of addresses of their own.
//!
//! The range is divided into pages, each with blocks of one size. A thread has a list of free blocks
//! and a part of a page for each size, so that most requests take no lock. Lists that grow long, as
//! those of a thread that frees what others take, go to lists of the process, and so do the lists and
//! the parts of a thread that ends. Memory is not given back to the system.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};

/// The largest block, in bytes.
pub const MAX_BYTES: usize = 64 << 10;

/// Largest alignment of a block whose size is a multiple of it, in bytes: that of XLA's buffers.
pub const MAX_ALIGN: usize = 64;

/// Bytes of all addresses, and of a page.
const RANGE: usize = 16 << 30;
const PAGE: usize = 256 << 10;

/// Sizes: every 16 bytes up to `FINE`, then four for each doubling.
const SIZES: usize = 64 + 24;
const FINE: usize = 1024;

/// A longer list of a thread goes to those of the process; also one of more bytes.
const MAX_LENGTH: usize = 1024;
const MAX_LIST_BYTES: usize = 256 << 10;

/// The first address; before [`reserve`], one to which every address has a larger distance than
/// [`RANGE`].
static START: AtomicUsize = AtomicUsize::new(usize::MAX - RANGE);

/// Number of pages in use.
static PAGES: AtomicUsize = AtomicUsize::new(0);

/// For each page, the number of its blocks' size.
static SIZE_OF_PAGE: [AtomicU8; RANGE / PAGE] = [const { AtomicU8::new(0) }; RANGE / PAGE];

/// True in a process made by `fork`, where a lock may be that of a thread that was not copied.
static FORKED: AtomicBool = AtomicBool::new(false);

/// A free block, in which the address of the next one is written.
struct Block {
    next: *mut Block,
}

/// Free blocks of a size.
#[derive(Clone, Copy)]
struct List {
    first: *mut Block,
    length: usize,
}

/// Lists of the process for a size, and parts of pages whose blocks were never used.
struct Shared {
    lists: Vec<List>,
    parts: Vec<Part>,
}

// SAFETY: nobody uses the blocks, and whoever holds the lock may take them.
unsafe impl Send for Shared {}

static SHARED: [Mutex<Shared>; SIZES] =
    [const { Mutex::new(Shared { lists: Vec::new(), parts: Vec::new() }) }; SIZES];

/// Addresses from `next` to `end`.
#[derive(Clone, Copy)]
struct Part {
    next: usize,
    end: usize,
}

impl Part {
    #[inline]
    fn has(self, bytes: usize) -> bool {
        self.next + bytes <= self.end
    }
}

/// Blocks of a size that a thread has.
#[derive(Clone, Copy)]
struct Own {
    free: List,
    part: Part,
}

/// Blocks of all sizes that a thread has.
struct Thread(UnsafeCell<[Own; SIZES]>);

const EMPTY: List = List { first: ptr::null_mut(), length: 0 };
const NOTHING: Own = Own { free: EMPTY, part: Part { next: 0, end: 0 } };

thread_local! {
    static THREAD: Thread = const { Thread(UnsafeCell::new([NOTHING; SIZES])) };
}

impl Drop for Thread {
    fn drop(&mut self) {
        if FORKED.load(Ordering::Relaxed) {
            return;
        }
        for (size, (own, shared)) in self.0.get_mut().iter().zip(&SHARED).enumerate() {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if own.free.length > 0 {
                shared.lists.push(own.free);
            }
            if own.part.has(bytes_of(size)) {
                shared.parts.push(own.part);
            }
        }
    }
}

impl List {
    /// # Safety
    /// Nobody uses the block.
    #[inline]
    unsafe fn push(&mut self, block: *mut Block) {
        // SAFETY: the caller's promise; every block has room for an address.
        unsafe { (*block).next = self.first };
        self.first = block;
        self.length += 1;
    }

    /// A block of the list; null if it has none.
    #[inline]
    fn pop(&mut self) -> *mut Block {
        let block = self.first;
        if !block.is_null() {
            // SAFETY: a free block, in which `push` wrote it.
            self.first = unsafe { (*block).next };
            self.length -= 1;
        }
        block
    }
}

/// The lists of the process for a size; none while another thread, or one that a fork did not copy,
/// has them.
fn shared(size: usize) -> Option<MutexGuard<'static, Shared>> {
    match SHARED[size].try_lock() {
        Ok(shared) => Some(shared),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Reserves the addresses, once. Without them, the C library has all small blocks.
pub fn reserve() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new addresses that the system chooses, without access.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), RANGE + PAGE, libc::PROT_NONE, flags, -1, 0) };
        if start != libc::MAP_FAILED {
            // SAFETY: the handler stores to an atomic, which a forked process may do.
            unsafe { libc::pthread_atfork(None, None, Some(in_forked_process)) };
            START.store((start as usize).next_multiple_of(PAGE), Ordering::Release);
        }
    });
}

extern "C" fn in_forked_process() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The number of the smallest size of at least `bytes`, and the bytes of its blocks.
#[inline]
fn size_for(bytes: usize) -> (usize, usize) {
    if bytes <= FINE {
        let size = bytes.max(1).div_ceil(16) - 1;
        return (size, (size + 1) * 16);
    }
    let exponent = (bytes - 1).ilog2() as usize;
    let quarter = ((bytes - 1) >> (exponent - 2)) & 3;
    (64 + (exponent - 10) * 4 + quarter, (quarter + 5) << (exponent - 2))
}

/// Bytes of the blocks of a size.
#[inline]
fn bytes_of(size: usize) -> usize {
    if size < 64 {
        return (size + 1) * 16;
    }
    let (exponent, quarter) = (10 + (size - 64) / 4, (size - 64) % 4);
    (quarter + 5) << (exponent - 2)
}

/// A new page for blocks of a size; none if there are no more, or the system has no memory.
#[cold]
fn new_page(size: usize) -> Option<Part> {
    let start = START.load(Ordering::Acquire);
    let in_range = |pages: &usize| *pages < RANGE / PAGE;
    if start == usize::MAX - RANGE || !in_range(&PAGES.load(Ordering::Relaxed)) {
        return None;
    }
    let page = Some(PAGES.fetch_add(1, Ordering::Relaxed)).filter(in_range)?;
    let next = start + page * PAGE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a page of the range that no thread has used.
    if unsafe { libc::mprotect(next as *mut c_void, PAGE, access) } != 0 {
        return None;
    }
    SIZE_OF_PAGE[page].store(size as u8, Ordering::Release);
    Some(Part { next, end: next + PAGE })
}

/// Gives a thread without blocks of a size a list of the process, or a part of a page.
#[cold]
fn refill(own: &mut Own, size: usize) {
    if let Some(mut shared) = shared(size) {
        if let Some(list) = shared.lists.pop() {
            own.free = list;
            return;
        }
        if let Some(part) = shared.parts.pop() {
            own.part = part;
            return;
        }
    }
    own.part = new_page(size).unwrap_or(NOTHING.part);
}

#[inline]
fn max_length(size: usize) -> usize {
    MAX_LENGTH.min(MAX_LIST_BYTES / bytes_of(size))
}

/// A block of at least `bytes`, at most [`MAX_BYTES`]; null if there is none left. Its address is a
/// multiple of 16, and of [`MAX_ALIGN`] if `bytes` is.
#[inline]
pub fn take(bytes: usize) -> *mut c_void {
    let (size, bytes) = size_for(bytes);
    let take = |thread: &Thread| {
        // SAFETY: no other thread has it, and nothing below takes or frees a small block.
        let own = unsafe { &mut (&mut *thread.0.get())[size] };
        if own.free.length == 0 && !own.part.has(bytes) {
            refill(own, size);
        }
        let block = own.free.pop();
        if !block.is_null() {
            return block.cast();
        }
        if !own.part.has(bytes) {
            return ptr::null_mut();
        }
        own.part.next += bytes;
        (own.part.next - bytes) as *mut c_void
    };
    // A thread that ends has no lists any more.
    THREAD.try_with(take).unwrap_or(ptr::null_mut())
}

/// The number of the size of a block; none for a pointer that is no small block.
#[inline]
fn size_at(pointer: *mut c_void) -> Option<usize> {
    let distance = (pointer as usize).wrapping_sub(START.load(Ordering::Relaxed));
    if distance >= RANGE {
        return None;
    }
    Some(usize::from(SIZE_OF_PAGE[distance / PAGE].load(Ordering::Relaxed)))
}

/// The bytes of a small block; none for other pointers.
pub fn bytes_at(pointer: *mut c_void) -> Option<usize> {
    size_at(pointer).map(bytes_of)
}

/// Keeps a small block for later requests. Returns false for other pointers.
///
/// # Safety
/// Nobody uses the block.
#[inline]
pub unsafe fn free(pointer: *mut c_void) -> bool {
    let Some(size) = size_at(pointer) else { return false };
    let block = pointer.cast::<Block>();
    let keep = |thread: &Thread| {
        // SAFETY: as in `take`.
        let own = unsafe { &mut (&mut *thread.0.get())[size] };
        // SAFETY: the caller's promise.
        unsafe { own.free.push(block) };
        if own.free.length > max_length(size)
            && let Some(mut shared) = shared(size)
        {
            shared.lists.push(std::mem::replace(&mut own.free, EMPTY));
        }
    };
    if THREAD.try_with(keep).is_err()
        && let Some(mut shared) = shared(size)
    {
        let mut list = EMPTY;
        // SAFETY: the caller's promise.
        unsafe { list.push(block) };
        shared.lists.push(list);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fit_and_are_aligned() {
        for bytes in 0..=MAX_BYTES {
            let (size, given) = size_for(bytes);
            assert!(size < SIZES && given >= bytes && given <= 16 + bytes + bytes / 4, "{bytes}");
            assert_eq!(bytes_of(size), given, "{bytes}");
            assert!(given.is_multiple_of(if bytes > FINE { 256 } else { 16 }), "{bytes}");
        }
        assert_eq!(size_for(MAX_BYTES), (SIZES - 1, MAX_BYTES));
    }

    #[test]
    fn freed_blocks_are_used_again() {
        reserve();
        for bytes in [0, 100, 5000, MAX_BYTES] {
            let block = take(bytes);
            assert!(bytes_at(block).unwrap() >= bytes);
            // SAFETY: a block of this test.
            unsafe { block.write_bytes(1, bytes) };
            let other = take(bytes);
            assert_ne!(other, block);
            // SAFETY: blocks of this test, which it uses no longer.
            unsafe { assert!(free(other) && free(block)) };
            assert_eq!([take(bytes), take(bytes)], [block, other]);
            // SAFETY: as above.
            unsafe { assert!(free(other) && free(block)) };
        }
        let mut local = 0u64;
        // SAFETY: no small block.
        assert!(unsafe { !free((&raw mut local).cast()) });
        assert_eq!(bytes_at(ptr::null_mut()), None);
    }

    #[test]
    fn addresses_are_multiples_of_the_alignment() {
        reserve();
        let sizes = (1..=MAX_BYTES / MAX_ALIGN).map(|n| n * MAX_ALIGN);
        for bytes in sizes {
            let block = take(bytes);
            assert!((block as usize).is_multiple_of(MAX_ALIGN), "{bytes}");
            // SAFETY: a block of this test, which it uses no longer.
            assert!(unsafe { free(block) });
        }
    }

    /// Blocks that one thread takes and another frees, and those of threads that have ended, are used
    /// again: many times the blocks of a page need few pages.
    #[test]
    fn blocks_of_other_threads_are_used_again() {
        reserve();
        const BYTES: usize = 48 << 10;
        let before = PAGES.load(Ordering::Relaxed);
        for _ in 0..100 {
            let blocks: Vec<usize> =
                std::thread::spawn(|| (0..20).map(|_| take(BYTES) as usize).collect())
                    .join()
                    .unwrap();
            let mut distinct = blocks.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), blocks.len());
            // SAFETY: blocks of this test, which it uses no longer.
            blocks.iter().for_each(|&block| assert!(unsafe { free(block as *mut c_void) }));
        }
        let pages = PAGES.load(Ordering::Relaxed) - before;
        assert!(pages < 100, "{pages} pages for at most 60 blocks at once");
    }
}
