//! Small blocks: an allocator of size classes with a cache for each thread, as tcmalloc is one.
//!
//! A range of addresses is divided into spans, each with blocks of one size class. Most requests are
//! met by the thread's cache, without a lock: by a list of free blocks, or by the unused part of a span.
//! A list that grows long, as that of a thread that frees what others take, is moved whole to the central
//! lists, from which another thread takes it; so are the lists and unused parts of a thread that ends.
//! Memory is not given back to the system, and a span keeps its class. A thread has at most 20 MB of free
//! blocks.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};

/// The largest block, in bytes.
pub const MAX_BYTES: usize = 64 << 10;

/// Largest alignment of a block whose size is a multiple of it, in bytes: that of XLA's buffers.
pub const MAX_ALIGN: usize = 64;

/// Bytes of the range, and of a span.
const RANGE: usize = 16 << 30;
const SPAN: usize = 256 << 10;

/// Size classes: one for every 16 bytes up to `FINE`, then four for each doubling.
const CLASSES: usize = 64 + 24;
const FINE: usize = 1024;

/// A list of a thread that is longer, or has more bytes, goes to the central lists.
const MAX_LENGTH: usize = 1024;
const MAX_LIST_BYTES: usize = 256 << 10;

/// The first address of the range; before [`reserve`], one that no address of a process is within
/// [`RANGE`] above.
static START: AtomicUsize = AtomicUsize::new(usize::MAX - RANGE);

/// Number of spans in use.
static SPANS: Mutex<usize> = Mutex::new(0);

/// The size class of each span.
static CLASS_OF_SPAN: [AtomicU8; RANGE / SPAN] = [const { AtomicU8::new(0) }; RANGE / SPAN];

/// True in a process made by `fork`, where a thread that was not copied may hold a lock for ever.
static FORKED: AtomicBool = AtomicBool::new(false);

/// A free block, in which the address of the next one is written.
struct Block {
    next: *mut Block,
}

/// Free blocks of a size class.
#[derive(Clone, Copy)]
struct List {
    first: *mut Block,
    length: usize,
}

/// Lists of free blocks of a size class, and unused parts of its spans, for the thread that asks next.
struct Central {
    lists: Vec<List>,
    unused: Vec<Unused>,
}

// SAFETY: nobody uses the blocks, and whoever holds the lock may take them.
unsafe impl Send for Central {}

static CENTRAL: [Mutex<Central>; CLASSES] =
    [const { Mutex::new(Central { lists: Vec::new(), unused: Vec::new() }) }; CLASSES];

/// The unused part of a span: addresses from `next` to `end`.
#[derive(Clone, Copy)]
struct Unused {
    next: usize,
    end: usize,
}

impl Unused {
    #[inline]
    fn has(self, bytes: usize) -> bool {
        self.next + bytes <= self.end
    }
}

/// Blocks of a size class that a thread has.
#[derive(Clone, Copy)]
struct ClassCache {
    free: List,
    unused: Unused,
}

/// Blocks of all size classes that a thread has.
struct ThreadCache(UnsafeCell<[ClassCache; CLASSES]>);

const EMPTY: List = List { first: ptr::null_mut(), length: 0 };
const NO_BLOCKS: ClassCache = ClassCache { free: EMPTY, unused: Unused { next: 0, end: 0 } };

thread_local! {
    static CACHE: ThreadCache = const { ThreadCache(UnsafeCell::new([NO_BLOCKS; CLASSES])) };
}

impl Drop for ThreadCache {
    fn drop(&mut self) {
        for (class, cache) in self.0.get_mut().iter().enumerate() {
            let Some(mut central) = lock(&CENTRAL[class]) else { continue };
            // Without memory for it, the blocks are lost.
            if cache.free.length > 0 {
                push(&mut central.lists, cache.free);
            }
            if cache.unused.has(bytes_of(class)) {
                push(&mut central.unused, cache.unused);
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

/// Guard of a lock; none if it is held in a forked process, perhaps for ever.
pub fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    if !FORKED.load(Ordering::Relaxed) {
        return Some(mutex.lock().unwrap_or_else(PoisonError::into_inner));
    }
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Appends to a list. Returns false if there is no memory for it, which must not end the process.
fn push<T>(list: &mut Vec<T>, item: T) -> bool {
    let has_room = list.try_reserve(1).is_ok();
    if has_room {
        list.push(item);
    }
    has_room
}

/// Reserves the range, once. Without it, the C library has all small blocks; so it is where the process has
/// a limit of its address space.
pub fn reserve() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a question.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } == 0;
        if !known || limit.rlim_cur != libc::RLIM_INFINITY {
            return;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: new addresses that the system chooses, without access.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), RANGE + SPAN, libc::PROT_NONE, flags, -1, 0) };
        if start != libc::MAP_FAILED {
            // SAFETY: the handler stores to an atomic, which a forked process may do.
            unsafe { libc::pthread_atfork(None, None, Some(in_forked_process)) };
            START.store((start as usize).next_multiple_of(SPAN), Ordering::Release);
        }
    });
}

extern "C" fn in_forked_process() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The smallest size class of at least `bytes`, and the bytes of its blocks.
#[inline]
fn class_for(bytes: usize) -> (usize, usize) {
    if bytes <= FINE {
        let class = bytes.max(1).div_ceil(16) - 1;
        return (class, (class + 1) * 16);
    }
    let exponent = (bytes - 1).ilog2() as usize;
    let quarter = ((bytes - 1) >> (exponent - 2)) & 3;
    (64 + (exponent - 10) * 4 + quarter, (quarter + 5) << (exponent - 2))
}

/// Bytes of a block of a size class.
#[inline]
fn bytes_of(class: usize) -> usize {
    if class < 64 {
        return (class + 1) * 16;
    }
    let (exponent, quarter) = (10 + (class - 64) / 4, (class - 64) % 4);
    (quarter + 5) << (exponent - 2)
}

/// A new span for a size class; none if there are no more, or the system has no memory.
#[cold]
fn new_span(class: usize) -> Option<Unused> {
    let start = START.load(Ordering::Acquire);
    let mut spans = lock(&SPANS)?;
    if start == usize::MAX - RANGE || *spans == RANGE / SPAN {
        return None;
    }
    let next = start + *spans * SPAN;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a span of the range that no thread has used.
    if unsafe { libc::mprotect(next as *mut c_void, SPAN, access) } != 0 {
        return None;
    }
    CLASS_OF_SPAN[*spans].store(class as u8, Ordering::Release);
    *spans += 1;
    Some(Unused { next, end: next + SPAN })
}

/// Gives a cache without blocks of a size class a central list, or an unused part of a span.
#[cold]
fn refill(cache: &mut ClassCache, class: usize) {
    if let Some(mut central) = lock(&CENTRAL[class]) {
        if let Some(list) = central.lists.pop() {
            cache.free = list;
            return;
        }
        if let Some(unused) = central.unused.pop() {
            cache.unused = unused;
            return;
        }
    }
    cache.unused = new_span(class).unwrap_or(NO_BLOCKS.unused);
}

#[inline]
fn max_length(class: usize) -> usize {
    MAX_LENGTH.min(MAX_LIST_BYTES / bytes_of(class))
}

/// A block of at least `bytes`, at most [`MAX_BYTES`]; null if there is none left. Its address is a
/// multiple of 16, and of [`MAX_ALIGN`] if `bytes` is.
#[inline]
pub fn take(bytes: usize) -> *mut c_void {
    let (class, bytes) = class_for(bytes);
    let take = |cache: &ThreadCache| {
        // SAFETY: no other thread has it, and nothing below takes or frees a small block.
        let cache = unsafe { &mut (&mut *cache.0.get())[class] };
        if cache.free.length == 0 && !cache.unused.has(bytes) {
            refill(cache, class);
        }
        let block = cache.free.pop();
        if !block.is_null() {
            return block.cast();
        }
        if !cache.unused.has(bytes) {
            return ptr::null_mut();
        }
        cache.unused.next += bytes;
        (cache.unused.next - bytes) as *mut c_void
    };
    // A thread that ends may have no cache any more.
    CACHE.try_with(take).unwrap_or(ptr::null_mut())
}

/// The size class of a block; none for a pointer that is no small block.
#[inline]
fn class_at(pointer: *mut c_void) -> Option<usize> {
    let distance = (pointer as usize).wrapping_sub(START.load(Ordering::Relaxed));
    if distance >= RANGE {
        return None;
    }
    Some(usize::from(CLASS_OF_SPAN[distance / SPAN].load(Ordering::Relaxed)))
}

/// The bytes of a small block; none for other pointers.
pub fn bytes_at(pointer: *mut c_void) -> Option<usize> {
    class_at(pointer).map(bytes_of)
}

/// Keeps a small block for later requests. Returns false for other pointers.
///
/// # Safety
/// Nobody uses the block.
#[inline]
pub unsafe fn free(pointer: *mut c_void) -> bool {
    let Some(class) = class_at(pointer) else { return false };
    let block = pointer.cast::<Block>();
    let keep = |cache: &ThreadCache| {
        // SAFETY: as in `take`.
        let cache = unsafe { &mut (&mut *cache.0.get())[class] };
        // SAFETY: the caller's promise.
        unsafe { cache.free.push(block) };
        if cache.free.length > max_length(class)
            && let Some(mut central) = lock(&CENTRAL[class])
            && push(&mut central.lists, cache.free)
        {
            cache.free = EMPTY;
        }
    };
    if CACHE.try_with(keep).is_err()
        && let Some(mut central) = lock(&CENTRAL[class])
    {
        let mut list = EMPTY;
        // SAFETY: the caller's promise.
        unsafe { list.push(block) };
        push(&mut central.lists, list);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_fit_and_are_aligned() {
        for bytes in 0..=MAX_BYTES {
            let (class, given) = class_for(bytes);
            assert!(
                class < CLASSES && given >= bytes && given <= 16 + bytes + bytes / 4,
                "{bytes}"
            );
            assert_eq!(bytes_of(class), given, "{bytes}");
            assert!(given.is_multiple_of(if bytes > FINE { 256 } else { 16 }), "{bytes}");
        }
        assert_eq!(class_for(MAX_BYTES), (CLASSES - 1, MAX_BYTES));
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
        let multiples = (1..=MAX_BYTES / MAX_ALIGN).map(|n| n * MAX_ALIGN);
        for bytes in multiples {
            let block = take(bytes);
            assert!((block as usize).is_multiple_of(MAX_ALIGN), "{bytes}");
            // SAFETY: a block of this test, which it uses no longer.
            assert!(unsafe { free(block) });
        }
    }

    /// Blocks that one thread takes and another frees, and those of threads that have ended, are used
    /// again: many times the blocks of a span need few spans.
    #[test]
    fn blocks_of_other_threads_are_used_again() {
        reserve();
        const BYTES: usize = 48 << 10;
        let before = *lock(&SPANS).unwrap();
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
        let spans = *lock(&SPANS).unwrap() - before;
        assert!(spans < 100, "{spans} spans for at most 60 blocks at once");
    }
}
