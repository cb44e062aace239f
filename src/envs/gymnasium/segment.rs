//! Shared memory of a pool and its worker processes: one anonymous file, mapped by all.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use bytemuck::Pod;

use super::spec::Spaces;

/// Alignment of each array in the memory, in bytes: a cache line.
const ALIGNMENT: usize = 64;

/// Anonymous file. It has no name, so nothing is left of it once its processes have ended.
#[derive(Debug)]
pub(super) struct SharedFile(File);

impl SharedFile {
    /// Makes an empty file.
    pub(super) fn new() -> io::Result<SharedFile> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"podracer-gymnasium".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        Ok(SharedFile(unsafe { File::from_raw_fd(fd) }))
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Gives the file its size, for good, and maps it.
    pub(super) fn map(&self, layout: Layout) -> io::Result<Segment> {
        let bytes = layout.bytes;
        self.0.set_len(bytes as u64)?;
        // A process that cut the file would end all others, which read past its end.
        // SAFETY: the descriptor is open, and this command takes a number.
        unsafe { libc::fcntl(self.fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that has this size; no existing memory is replaced.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, self.fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Segment { start: start.cast(), layout })
    }
}

/// Offsets of the arrays in the memory, in bytes. Each has one element for each environment.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Layout {
    envs: usize,
    processes: usize,
    bytes: usize,
    /// Bytes of an observation.
    #[serde(skip)]
    obs_bytes: usize,
    /// Distance of two observations, in bytes.
    obs_stride: usize,
    /// Bytes of an action.
    #[serde(skip)]
    action_bytes: usize,
    obs: usize,
    final_obs: usize,
    /// `f64`.
    rewards: usize,
    /// `u8`, the end of an episode.
    flags: usize,
    /// `i64` for choices, `f32` for the elements of boxes.
    actions: usize,
    /// `i64`: seed of a reset, or -1.
    seeds: usize,
    /// `i32`, one for each process: the position of the environment in a call, or -1.
    current: usize,
}

impl Layout {
    pub(super) fn new(envs: usize, processes: usize, spaces: &Spaces) -> Layout {
        let obs_bytes = spaces.observation.bytes();
        let obs_stride = obs_bytes.next_multiple_of(ALIGNMENT);
        let action_bytes = spaces.width * if spaces.is_continuous() { 4 } else { 8 };
        let mut bytes = 0;
        let mut array = |size: usize| {
            let start = bytes;
            bytes = (start + size).next_multiple_of(ALIGNMENT);
            start
        };
        Layout {
            envs,
            processes,
            obs_bytes,
            obs_stride,
            action_bytes,
            obs: array(envs * obs_stride),
            final_obs: array(envs * obs_stride),
            rewards: array(envs * size_of::<f64>()),
            flags: array(envs),
            actions: array(envs * action_bytes),
            seeds: array(envs * size_of::<i64>()),
            current: array(processes * size_of::<i32>()),
            // After all arrays.
            bytes,
        }
    }
}

/// The mapped memory. Values are copied in and out: another process may write at any time, so that
/// no reference to them exists. The pipes order the accesses.
#[derive(Debug)]
pub(super) struct Segment {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the memory belongs to the segment, not to a thread, and is only read and written by
// copies. Callers hold the lock of the process whose environments they access.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    fn read<T: Pod>(&self, at: usize, values: &mut [T]) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        assert!(at + bytes.len() <= self.layout.bytes);
        // SAFETY: in bounds of the mapping, which lives as long as `self`; the destination is a
        // slice of this process, outside of it.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.add(at), bytes.as_mut_ptr(), bytes.len())
        }
    }

    fn write<T: Pod>(&self, at: usize, values: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        assert!(at + bytes.len() <= self.layout.bytes);
        // SAFETY: as in `read`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) }
    }

    fn one<T: Pod>(&self, at: usize) -> T {
        let mut value = [T::zeroed()];
        self.read(at, &mut value);
        value[0]
    }

    /// Copies the observation of environment `env`: the last one of an ended episode if `last`.
    pub(super) fn obs(&self, env: usize, last: bool, into: &mut [u8]) {
        assert_eq!(into.len(), self.layout.obs_bytes);
        let array = if last { self.layout.final_obs } else { self.layout.obs };
        self.read(array + env * self.layout.obs_stride, into);
    }

    pub(super) fn reward(&self, env: usize) -> f64 {
        self.one(self.layout.rewards + env * size_of::<f64>())
    }

    pub(super) fn flags(&self, env: usize) -> u8 {
        self.one(self.layout.flags + env)
    }

    /// Sets the flags to those of a step that ends no episode. A worker writes only others.
    pub(super) fn clear_flags(&self, env: usize) {
        self.write(self.layout.flags + env, &[0u8]);
    }

    /// Returns the position in process `process` of the environment in a call.
    pub(super) fn current(&self, process: usize) -> Option<usize> {
        let position: i32 = self.one(self.layout.current + process * size_of::<i32>());
        usize::try_from(position).ok()
    }

    pub(super) fn set_seed(&self, env: usize, seed: i64) {
        self.write(self.layout.seeds + env * size_of::<i64>(), &[seed]);
    }

    pub(super) fn set_action<T: Pod>(&self, env: usize, values: &[T]) {
        assert_eq!(size_of_val(values), self.layout.action_bytes);
        self.write(self.layout.actions + env * self.layout.action_bytes, values);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this size and is not used after.
        unsafe { libc::munmap(self.start.cast(), self.layout.bytes) };
    }
}
