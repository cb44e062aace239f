//! Files of a run folder: names that must stay inside their folder, and files that must be regular
//! ones.
//!
//! A run folder may have been downloaded. A name in its checkpoint can be an absolute path, a file
//! in it can be a link to a file of the user or a pipe that blocks the reader for ever.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

use crate::envs::jax_folder;
use crate::error::{Error, Result};
use crate::files::{regular, unblocked};

pub use crate::files::{open_regular, read};

/// Longest name accepted: file systems allow 255 bytes, and endings such as `.safetensors.123.tmp`
/// and the parts of a run's name are added.
const MAX_NAME: usize = 128;
/// Longest path of a folder of JAX programs.
const MAX_PATH: usize = 4096;

/// Characters of a text from a file that a message shows.
const MAX_SHOWN: usize = 80;

/// Description of a [`plain_name`], for messages.
pub const PLAIN_NAME: &str =
    "one plain name of at most 128 bytes, without path separators or control characters";

/// Returns true for a name of one file or folder, which no join can move to another folder.
pub fn plain_name(name: &str) -> bool {
    let forbidden = |c: char| c == '/' || c == '\\' || c.is_control();
    !name.is_empty()
        && name.len() <= MAX_NAME
        && !matches!(name, "." | "..")
        && !name.contains(forbidden)
}

/// Text of a file for a message: without control characters, and no longer than a line.
pub fn shown(text: &str) -> String {
    shortened(text, MAX_SHOWN)
}

/// A parser's message, which may repeat contents of the file: without control characters, and no
/// longer than some lines.
pub fn shown_error(error: &impl std::fmt::Display) -> String {
    shortened(&error.to_string(), 5 * MAX_SHOWN)
}

fn shortened(text: &str, limit: usize) -> String {
    let escaped = || {
        text.chars().flat_map(|c| match c.is_control() {
            true => c.escape_debug().collect::<Vec<char>>(),
            false => vec![c],
        })
    };
    let mut shown: String = escaped().take(limit).collect();
    if escaped().nth(limit).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Fails unless the value of `--flag` is a [`plain_name`].
///
/// # Errors
/// [`Error::Config`].
pub fn ensure_plain_name(flag: &str, name: &str) -> Result<()> {
    match plain_name(name) {
        true => Ok(()),
        false => Err(Error::Config(format!("--{flag} \"{}\": must be {PLAIN_NAME}", shown(name)))),
    }
}

/// Last name of a path.
fn file_name(path: &str) -> Option<&str> {
    Path::new(path).file_name()?.to_str()
}

/// Returns the id of an environment as part of the name of a run: that of a folder of JAX programs
/// has no path.
pub fn env_in_run_name(id: &str) -> String {
    match jax_folder(id).and_then(file_name) {
        Some(name) => format!("jax:{name}"),
        None => id.to_string(),
    }
}

/// Fails unless the id of an environment is a [`plain_name`], or one with a namespace before it, as
/// in `MinAtar/Breakout-v1`, or the path of a folder of JAX programs, as in `jax:envs/cartpole`.
///
/// # Errors
/// [`Error::Config`].
pub fn ensure_env_id(id: &str) -> Result<()> {
    let holds = match (jax_folder(id), id.split_once('/')) {
        (Some(folder), _) => {
            folder.len() <= MAX_PATH
                && !folder.contains(|c: char| c.is_control())
                && file_name(folder).is_some_and(plain_name)
        }
        (None, Some((namespace, name))) => plain_name(namespace) && plain_name(name),
        (None, None) => plain_name(id),
    };
    match holds {
        true => Ok(()),
        false => Err(Error::Config(format!(
            "--env-id \"{}\": must be {PLAIN_NAME}, or two of them as in MinAtar/Breakout-v1, or \
             the path of a folder as in jax:envs/cartpole",
            shown(id)
        ))),
    }
}

/// Opens a regular file to write into it, unless it is a link; makes an empty one where there is none.
///
/// # Errors
/// Returns the system's error, and one of its own for links and other kinds of files.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    opened(path, OpenOptions::new().read(true).write(true).create(true))
}

/// Creates or empties a file, unless it is a link or not a regular file.
///
/// # Errors
/// As [`open_or_create`].
pub fn create(path: &Path) -> io::Result<File> {
    // Emptied only when it is known to be a regular file.
    let file = open_or_create(path)?;
    file.set_len(0)?;
    Ok(file)
}

fn opened(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    not_a_link(path)?;
    unblocked(options, no_follow());
    regular(options.open(path)?)
}

/// Fails if there is a link at `path`. A missing path is accepted.
///
/// # Errors
/// Returns an error that names the problem.
pub fn not_a_link(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.file_type().is_symlink() => Err(io::Error::other(
            "it is a symbolic link, which may lead out of the folder; replace it by what it names",
        )),
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn no_follow() -> i32 {
    libc::O_NOFOLLOW
}

#[cfg(not(unix))]
fn no_follow() -> i32 {
    0
}

/// Returns true if the open file is the one at `path`.
#[cfg(unix)]
pub fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// Returns true if there is a file at `path`; open files cannot be removed on this system.
#[cfg(not(unix))]
pub fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Opens or creates a file to which this process alone appends, and locks it. The system releases the
/// lock when the process ends, however it ends. `None` if another process holds the lock.
///
/// # Errors
/// Returns the system's errors.
pub fn open_locked(path: &Path) -> io::Result<Option<File>> {
    loop {
        let mut options = OpenOptions::new();
        unblocked(options.read(true).append(true).create(true), 0);
        let file = regular(options.open(path)?)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            // The file system does not support locks, as some network file systems.
            Err(TryLockError::Error(_)) => {}
        }
        // Another file may have come into its place between opening and locking it.
        if is_at(&file, path) {
            return Ok(Some(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_opens_a_locked_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.jsonl");
        let first = open_locked(&path).unwrap().unwrap();
        assert!(open_locked(&path).unwrap().is_none());
        // A file in its place is another file, with a lock of its own.
        fs::rename(&path, dir.path().join("old")).unwrap();
        let second = open_locked(&path).unwrap().unwrap();
        assert!(is_at(&second, &path) && !is_at(&first, &path));
        drop(second);
        assert!(open_locked(&path).unwrap().is_some());
    }

    #[test]
    fn names_stay_in_their_folder() {
        for name in ["ppo", "a b", "ppo.v2", "..a", "events.out.tfevents.1.host.2.0", "größe"] {
            assert!(plain_name(name), "{name}");
        }
        let long = "x".repeat(129);
        for name in ["", ".", "..", "/", "a/b", "../a", "a\\b", "a\0b", "a\nb", "\u{1b}[2J", &long]
        {
            assert!(!plain_name(name), "{name:?}");
        }
        assert!(ensure_env_id("MinAtar/Breakout-v1").is_ok() && ensure_env_id("Pong-v5").is_ok());
        for id in ["jax:cartpole", "jax:/a/b/cartpole", "jax:../envs/cartpole/"] {
            assert!(ensure_env_id(id).is_ok(), "{id:?}");
            assert_eq!(env_in_run_name(id), "jax:cartpole");
        }
        for id in ["/etc", "a/..", "../a", "a/b/c", "a//b", "", "jax:", "jax:..", "jax:a\nb"] {
            assert!(ensure_env_id(id).is_err(), "{id:?}");
        }
        assert_eq!(env_in_run_name("MinAtar/Breakout-v1"), "MinAtar/Breakout-v1");
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, pipe) =
            (dir.path().join("file"), dir.path().join("link"), dir.path().join("pipe"));
        fs::write(&file, "kept").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(read(&file).unwrap(), b"kept");
        assert_eq!(read(&link).unwrap(), b"kept");
        assert!(open_or_create(&link).is_err() && create(&link).is_err());
        for path in [&pipe, Path::new("/dev/zero"), dir.path()] {
            assert!(read(path).is_err(), "{}", path.display());
        }
        assert!(create(&pipe).is_err() && open_or_create(&pipe).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        create(&file).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"");
    }
}
