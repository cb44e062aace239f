//! The memory that a loaded library takes from the C library, kept when it frees it.
//!
//! XLA's plugin for CPUs takes temporaries and results from `malloc` anew in every run. The C library
//! gives large blocks back to the system, and the next run gets them page by page, each by a fault:
//! a fifth of the time of PPO's step on images. Small blocks take a fourth of the time of a small call,
//! and a sixth of the time to compile a program. So the plugin's calls of `malloc`, `free` and their
//! relatives are redirected (`hook`) to functions that keep both (`functions`). The measurements are in
//! `docs/decisions/0002-convolutions-on-cpu.md`, section 5.
//!
//! This is a package of its own because debug builds optimize whole packages, and these functions are
//! called millions of times while a program is compiled.

#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
mod functions;
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
mod hook;
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
mod large;
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
mod small;

use std::ffi::c_void;

/// Keeps for later requests the blocks that a library frees: up to 2 GiB of large ones, and all small ones.
/// `inside` is an address in the library. On systems other than Linux on x86-64 with glibc, it does nothing.
///
/// The C library keeps the small blocks if the address space is limited (`ulimit -v`), or the process has
/// another allocator, linked or preloaded. It keeps all blocks of a library that calls a function of
/// `functions::EXPECTING`.
pub fn keep_freed_memory(inside: *const c_void) {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
    {
        if hook::calls_any(inside, &functions::EXPECTING) {
            return;
        }
        // Another thread may use the library: what it gets from now on can be freed at once.
        hook::redirect_calls(inside, &functions::FREEING);
        if let Some(cpp_library) = hook::cpp_library() {
            hook::redirect_calls(cpp_library, &functions::FREEING);
            small::reserve();
        }
        hook::redirect_calls(inside, &functions::ALLOCATING);
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")))]
    let _ = inside;
}

/// Returns true for a block that this package gave.
pub fn owns(block: *const c_void) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
    return small::bytes_at(block.cast_mut())
        .or_else(|| large::size_of_block(block.cast_mut()))
        .is_some();
    #[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")))]
    {
        let _ = block;
        false
    }
}
