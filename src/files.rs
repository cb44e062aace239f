//! Files that come from outside the process, which must be regular ones: a pipe would block the
//! reader for ever.

pub(crate) mod private;

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Opens a regular file to read it. A link to one is followed; a pipe, a device and a folder are
/// refused, without waiting for a writer.
///
/// # Errors
/// Returns the system's error, and one of its own for other kinds of files.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    unblocked(&mut options, 0);
    regular(options.open(path)?)
}

/// The whole of a regular file.
///
/// # Errors
/// [`Error::Io`].
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let whole = || {
        let mut bytes = Vec::new();
        open_regular(path)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    whole().map_err(Error::io("cannot read", path))
}

/// Fails unless the open file is a regular one.
pub(crate) fn regular(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Sets the flags of opening a file, so that a pipe does not wait for its other end.
#[cfg(unix)]
pub(crate) fn unblocked(options: &mut OpenOptions, flags: i32) {
    use std::os::unix::fs::OpenOptionsExt;
    // Without the flag, opening a pipe waits for a writer. Regular files ignore it.
    options.custom_flags(libc::O_NONBLOCK | flags);
}

#[cfg(not(unix))]
pub(crate) fn unblocked(_: &mut OpenOptions, _: i32) {}
