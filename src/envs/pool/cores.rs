//! Affinity of threads to cores. Linux only; elsewhere every call does nothing.

#![cfg_attr(not(target_os = "linux"), allow(unused_variables))]

use std::thread::JoinHandle;

/// Returns the cores that this process may use, in ascending order; empty if they are unknown.
pub(super) fn allowed() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: a mask of zeros is a valid, empty mask.
        let mut mask: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the mask is valid for writing and has the size that is passed.
        let status = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), &mut mask) };
        if status == 0 {
            let bits = 8 * size_of_val(&mask);
            // SAFETY: each number is below the bits of the mask.
            return (0..bits).filter(|&core| unsafe { libc::CPU_ISSET(core, &mask) }).collect();
        }
    }
    Vec::new()
}

/// Returns the core that runs the calling thread now.
pub(super) fn current() -> Option<usize> {
    #[cfg(target_os = "linux")]
    // SAFETY: the function takes nothing and touches nothing.
    return usize::try_from(unsafe { libc::sched_getcpu() }).ok();
    #[cfg(not(target_os = "linux"))]
    None
}

/// Restricts a thread to some of the cores. Best effort: the system may refuse, and results do not
/// depend on it.
pub(super) fn keep(thread: &JoinHandle<()>, cores: impl Iterator<Item = usize>) {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::thread::JoinHandleExt;
        // SAFETY: a mask of zeros is a valid, empty mask.
        let mut mask: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for core in cores.filter(|&core| core < 8 * size_of::<libc::cpu_set_t>()) {
            // SAFETY: the number is below the bits of the mask.
            unsafe { libc::CPU_SET(core, &mut mask) };
        }
        // SAFETY: the handle is not joined, so the thread's id is still its own; the mask is valid
        // and has the size that is passed.
        unsafe {
            libc::pthread_setaffinity_np(thread.as_pthread_t() as _, size_of_val(&mask), &mask);
        }
    }
}
