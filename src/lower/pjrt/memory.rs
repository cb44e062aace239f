//! The memory that a plugin takes from the C library, kept when it frees it.
//!
//! A plugin for CPUs takes temporaries and results from `malloc` anew in every run. The C library
//! gives large blocks back to the system, and the next run gets them page by page, each by a fault:
//! a fifth of the time of PPO's step on images. So the plugin's calls of `malloc`, `free` and their
//! relatives, and no other library's, are redirected (`hook`) to a store of large blocks
//! (`blocks`), which keeps them and gives them huge pages. Feature `malloc-hook`; the measurements
//! are in `docs/decisions/0002-convolutions-on-cpu.md`, section 6.

#[cfg(all(
    feature = "malloc-hook",
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64"
))]
mod blocks;
#[cfg(all(
    feature = "malloc-hook",
    target_os = "linux",
    target_env = "gnu",
    target_arch = "x86_64"
))]
mod hook;

use crate::lower::pjrt::plugin::Plugin;

impl Plugin {
    /// Keeps for later runs the large blocks that this plugin frees, up to 2 GiB. To be called
    /// before a client is made, of a plugin that takes device memory from the C library. With
    /// `PODRACER_MALLOC=default`, without the feature `malloc-hook`, and on systems other than Linux
    /// on x86-64 with glibc, it does nothing.
    pub fn keep_freed_memory(&self) {
        #[cfg(all(
            feature = "malloc-hook",
            target_os = "linux",
            target_env = "gnu",
            target_arch = "x86_64"
        ))]
        if !std::env::var("PODRACER_MALLOC").is_ok_and(|value| value == "default") {
            hook::redirect_calls(self.address(), &blocks::FUNCTIONS);
        }
    }
}
