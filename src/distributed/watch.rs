//! Watcher of this process, which names it if it dies: a process that is killed prints nothing, and
//! its launcher prints a PID and kills all others at once.
//!
//! The watcher is a fork that waits for the end of a pipe of this process, in a session of its own,
//! so that it is not killed with the launch. Of the watchers on a machine the first one prints: the
//! others see the launcher's clean-up. The name of a socket, which the system frees with the watcher,
//! is what they compete for.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, pid_t};

/// Messages to the watcher: the run has ended; the process ends all others, and has said why.
const ENDED: u8 = 1;
const ABORTS: u8 = 2;
/// Seconds that the first watcher keeps the name, until the launcher has ended the others.
const CLAIM_SECONDS: i64 = 3;

/// Watcher of this process. Dropping it means that the run has ended.
pub(super) struct Watch {
    pipe: File,
    watcher: pid_t,
}

impl Watch {
    /// Starts the watcher. If this process dies, it prints `message`, unless another watcher or
    /// process has claimed `name` before.
    ///
    /// # Errors
    /// Returns the error of the system if it has no pipe or process left.
    pub fn start(name: &str, message: &str) -> io::Result<Watch> {
        let (address, message) = (address(name), format!("{message}\n"));
        let mut ends = [0; 2];
        // SAFETY: a place for two file descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptors were made just now and belong to nobody else.
        let [read, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        // SAFETY: the child calls functions that are safe after a fork of a process with threads:
        // system calls alone, on memory that was allocated before. It never returns.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: as above.
            0 => unsafe { watch(read.as_raw_fd(), &address, message.as_bytes()) },
            watcher => Ok(Watch { pipe: File::from(write), watcher }),
        }
    }

    /// Makes all watchers of this machine silent: this process ends all others, and has said why.
    pub fn aborts(&self) {
        // The watcher may have been killed.
        let _ = (&self.pipe).write_all(&[ABORTS]);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The watcher may have been killed.
        let _ = (&self.pipe).write_all(&[ENDED]);
        // SAFETY: the watcher is a child of this process, which nobody else waits for; no status is
        // asked for.
        unsafe { libc::waitpid(self.watcher, std::ptr::null_mut(), 0) };
    }
}

/// Returns the address of a socket with this name, which is not in the file system.
fn address(name: &str) -> libc::sockaddr_un {
    let mut path = [0; 108];
    // The first byte stays 0.
    for (to, byte) in path[1..].iter_mut().zip(name.bytes()) {
        *to = byte as libc::c_char;
    }
    libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: path }
}

/// Waits for the end of the process that holds the other end of the pipe.
///
/// # Safety
/// Must run in a process made by `fork`, which it ends.
unsafe fn watch(pipe: c_int, address: &libc::sockaddr_un, message: &[u8]) -> ! {
    // SAFETY: system calls with valid arguments; see `Watch::start`.
    unsafe {
        libc::setsid();
        // Only the pipe and the standard error stream stay open: others wait for the ends of files.
        libc::dup2(pipe, 0);
        libc::close(1);
        if libc::syscall(libc::SYS_close_range, 3, c_int::MAX, 0) != 0 {
            (3..4096).for_each(|file| {
                libc::close(file);
            });
        }
        let mut word = 0u8;
        let read = loop {
            let read = libc::read(0, (&raw mut word).cast(), 1);
            if read >= 0 || *libc::__errno_location() != libc::EINTR {
                break read;
            }
        };
        if read == 1 && word == ENDED {
            libc::_exit(0);
        }
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0);
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        let first = libc::bind(socket, (&raw const *address).cast(), length) == 0;
        if first && read == 0 {
            libc::write(2, message.as_ptr().cast(), message.len());
        }
        // The launcher waits for the end of this stream.
        libc::close(2);
        if first {
            let pause = libc::timespec { tv_sec: CLAIM_SECONDS, tv_nsec: 0 };
            libc::nanosleep(&raw const pause, std::ptr::null_mut());
        }
        libc::_exit(0)
    }
}
