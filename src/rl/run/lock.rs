//! Exclusive use of a run's folder: two writers would damage the event file and the checkpoint.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process;

use crate::error::{Error, Result};
use crate::rl::files::{self, is_at};
use crate::rl::logging::tensorboard::host;

/// Name of the lock file in the run's folder. It exists while the run is being written.
pub(in crate::rl) const LOCK: &str = "run.lock";

/// Lock of a run's folder. The operating system releases it when the process ends, however it ends.
#[derive(Debug)]
pub(in crate::rl) struct RunLock {
    path: PathBuf,
    file: File,
}

impl RunLock {
    /// Locks the folder `dir`.
    ///
    /// # Errors
    /// [`Error::Config`] that names the process that holds the lock; [`Error::Io`] if the lock file
    /// cannot be written.
    pub(in crate::rl) fn acquire(dir: &Path) -> Result<RunLock> {
        let path = dir.join(LOCK);
        loop {
            let file = files::open_or_create(&path);
            let mut file = file.map_err(Error::io("cannot write", &path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(held(dir, &mut file)),
                // The file system does not support locks, as some network file systems.
                Err(TryLockError::Error(_)) => {}
            }
            // The previous holder may have removed the file between opening and locking it.
            if !is_at(&file, &path) {
                continue;
            }
            let line = format!("process {} on {}\n", process::id(), host());
            file.set_len(0)
                .and_then(|()| file.write_all(line.as_bytes()))
                .map_err(Error::io("cannot write", &path))?;
            return Ok(RunLock { path, file });
        }
    }
}

impl RunLock {
    /// Locks the folder again if somebody removed or replaced the lock file, which another process
    /// could have locked meanwhile.
    ///
    /// # Errors
    /// Returns the errors of [`acquire`](RunLock::acquire).
    pub(in crate::rl) fn renew(&mut self) -> Result<()> {
        if !is_at(&self.file, &self.path) {
            *self = RunLock::acquire(self.path.parent().unwrap_or(Path::new(".")))?;
        }
        Ok(())
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Removed before it is released, so that a process that has opened it meanwhile tries
        // again.
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Bytes that are read of the line that names the holder.
const MAX_HOLDER_BYTES: u64 = 1 << 10;

fn held(dir: &Path, file: &mut File) -> Error {
    let mut holder = String::new();
    // The holder may not have written its line yet.
    let _ = file.take(MAX_HOLDER_BYTES).read_to_string(&mut holder);
    let holder = match holder.trim() {
        "" => "another process",
        holder => holder,
    };
    Error::Config(format!(
        "{} is in use by {holder}, which still writes this run; wait until it ends, or stop it",
        dir.display()
    ))
}

/// Removes temporary files that a killed process left: `NAME.PID.tmp`.
///
/// # Errors
/// [`Error::Io`] if the folder cannot be read or a file cannot be removed.
pub(in crate::rl) fn remove_unfinished(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(Error::io("cannot read", dir))? {
        let path = entry.map_err(Error::io("cannot read", dir))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut parts = name.rsplit('.');
        let tmp = parts.next() == Some("tmp");
        let pid = parts.next().is_some_and(|pid| pid.parse::<u32>().is_ok());
        if tmp && pid {
            fs::remove_file(&path).map_err(Error::io("cannot remove", &path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let lock = RunLock::acquire(dir.path()).unwrap();
        let error = RunLock::acquire(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("is in use by process {}", process::id())), "{error}");
        drop(lock);
        assert!(!dir.path().join(LOCK).exists());
        // The file of a killed process holds no lock.
        fs::write(dir.path().join(LOCK), "process 1 on mars\nand more").unwrap();
        let lock = RunLock::acquire(dir.path()).unwrap();
        let line = fs::read_to_string(dir.path().join(LOCK)).unwrap();
        assert!(line.starts_with(&format!("process {}", process::id())), "{line}");
        assert_eq!(line.lines().count(), 1);
        drop(lock);
    }

    #[test]
    fn a_removed_lock_is_taken_again_unless_another_process_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut lock = RunLock::acquire(dir.path()).unwrap();
        lock.renew().unwrap();
        fs::remove_file(dir.path().join(LOCK)).unwrap();
        lock.renew().unwrap();
        assert!(RunLock::acquire(dir.path()).is_err(), "the new file is locked");
        fs::remove_file(dir.path().join(LOCK)).unwrap();
        let other = RunLock::acquire(dir.path()).unwrap();
        let error = lock.renew().unwrap_err().to_string();
        assert!(error.contains("is in use by process"), "{error}");
        drop(lock);
        assert!(dir.path().join(LOCK).exists(), "the lock of another process stays");
        drop(other);
    }

    #[test]
    fn only_unfinished_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let left = ["checkpoint.safetensors.4711.tmp", "dqn.json.1.tmp"];
        let kept = ["checkpoint.safetensors", "notes.tmp", "x.y.tmp", "4711.tmp.txt"];
        left.iter().chain(&kept).for_each(|name| fs::write(dir.path().join(name), "").unwrap());
        remove_unfinished(dir.path()).unwrap();
        assert!(left.iter().all(|name| !dir.path().join(name).exists()));
        assert!(kept.iter().all(|name| dir.path().join(name).exists()));
    }
}
