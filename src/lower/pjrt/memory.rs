//! The memory that a plugin takes from the C library, kept when it frees it.
//!
//! A plugin for CPUs takes temporaries and results from `malloc` anew in every run. The C library
//! gives large blocks back to the system, and the next run gets them page by page, each by a fault:
//! a fifth of the time of PPO's step on images. Small blocks take a fourth of the time of a small call.
//! So the plugin's calls of `malloc`, `free` and their relatives, and no other library's, are redirected
//! (`hook`) to functions that keep both (`functions`). Feature `malloc-hook`; the measurements are in
//! `docs/decisions/0002-convolutions-on-cpu.md`, section 5.

#[cfg(all(
    feature = "malloc-hook",
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64"
))]
mod functions;
#[cfg(all(
    feature = "malloc-hook",
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64"
))]
mod hook;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lower::pjrt::plugin::Plugin;

/// Compilations that run now, of all threads.
static COMPILATIONS: AtomicUsize = AtomicUsize::new(0);

/// A compilation, until it is dropped. Meanwhile the C library alone has the small blocks: a compiler
/// takes millions, most of them once.
pub struct Compilation(());

impl Compilation {
    pub fn begin() -> Compilation {
        COMPILATIONS.fetch_add(1, Ordering::Relaxed);
        Compilation(())
    }
}

impl Drop for Compilation {
    fn drop(&mut self) {
        COMPILATIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Plugin {
    /// Keeps for later runs the large blocks that this plugin frees, up to 2 GiB, and for each thread
    /// some of the small ones. To be called before a client is made, of a plugin that takes device
    /// memory from the C library. With `PODRACER_MALLOC=default`, without the feature `malloc-hook`,
    /// and on systems other than Linux on x86-64 with glibc, it does nothing.
    pub fn keep_freed_memory(&self) {
        #[cfg(all(
            feature = "malloc-hook",
            target_os = "linux",
            target_env = "gnu",
            target_arch = "x86_64"
        ))]
        if !std::env::var("PODRACER_MALLOC").is_ok_and(|value| value == "default") {
            hook::redirect_calls(self.address(), &functions::FUNCTIONS);
        }
    }
}
