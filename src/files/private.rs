//! Folders and files that one user alone can write: the executable cache, its key, and the memo of
//! checksums.
//!
//! Files found on disk are hostile until shown otherwise. Opening one never waits and never follows
//! a link (`O_NONBLOCK | O_NOFOLLOW`), and type, owner and mode are read from the open file, not
//! from its name.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rand::TryRng;
use rand::rngs::SysRng;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;

/// Suffix of files that are being written.
const PARTIAL: &str = ".partial";

/// A folder owned by this process's user and writable by nobody else.
#[derive(Debug, Clone)]
pub(crate) struct PrivateDir(PathBuf);

impl PrivateDir {
    /// Opens the folder and makes it first if it does not exist. Errors give the reason why it
    /// cannot be trusted.
    pub(crate) fn create(path: &Path) -> Result<PrivateDir, String> {
        match PrivateDir::open(path) {
            Ok(Some(dir)) => return Ok(dir),
            Ok(None) => {}
            Err(reason) => return Err(reason),
        }
        let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
            // Another process may make it at the same time.
            match DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            }
        });
        made.map_err(|error| format!("it cannot be made: {error}"))?;
        PrivateDir::open(path)?.ok_or_else(|| "it was removed as soon as it was made".into())
    }

    /// Opens the folder; `None` if there is nothing of this name.
    pub(crate) fn open(path: &Path) -> Result<Option<PrivateDir>, String> {
        let metadata = match path.symlink_metadata() {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("it cannot be read: {error}")),
        };
        if metadata.is_symlink() {
            return Err("it is a symbolic link".into());
        }
        if !metadata.is_dir() {
            return Err("it is no folder".into());
        }
        only_ours(&metadata)?;
        Ok(Some(PrivateDir(path.to_path_buf())))
    }

    /// The folder's path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Opens the file `name` for reading; `None` if there is none. It is regular, ours, writable by
    /// nobody else, and has at most `most` bytes.
    pub(crate) fn file(&self, name: &str, most: u64) -> Result<Option<File>, String> {
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(self.0.join(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                return Err("it is a symbolic link".into());
            }
            Err(error) => return Err(format!("it cannot be read: {error}")),
        };
        let metadata = file.metadata().map_err(|error| format!("it cannot be read: {error}"))?;
        if !metadata.is_file() {
            return Err("it is no regular file".into());
        }
        only_ours(&metadata)?;
        if metadata.len() > most {
            return Err(format!("it has {} bytes, more than {most}", metadata.len()));
        }
        Ok(Some(file))
    }

    /// Writes the file `name` so that readers see all of it or nothing. Whatever had this name is
    /// replaced, unless it is a folder.
    pub(crate) fn write(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = self.0.join(format!(".{}-{count}{PARTIAL}", std::process::id()));
        let result = (|| {
            // A killed process of the same number may have left one.
            let _ = fs::remove_file(&temporary);
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            parts.iter().try_for_each(|part| file.write_all(part))?;
            drop(file);
            fs::rename(&temporary, self.0.join(name))
        })();
        if result.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        result
    }

    /// Returns true if a file of this name is one that [`PrivateDir::write`] had not finished.
    pub(crate) fn is_partial(name: &str) -> bool {
        name.starts_with('.') && name.ends_with(PARTIAL)
    }

    /// The secret key in the file `name`, made of the system's random bytes at first use. Nobody
    /// but the owner may read the file.
    pub(crate) fn key(&self, name: &str) -> Result<[u8; KEY_BYTES], String> {
        let path = self.0.join(name);
        let unusable =
            |reason: String| format!("its key {} is not usable: {reason}", path.display());
        let failed = |error: io::Error| unusable(error.to_string());
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
            .open(&path)
            .map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(unusable("it is no regular file".into()));
        }
        only_ours(&metadata).map_err(unusable)?;
        if metadata.mode() & 0o077 != 0 {
            return Err(unusable(format!(
                "others may read it (mode {:o}); remove it",
                metadata.mode() & 0o777
            )));
        }
        // Two processes may find it empty; the second waits here and then reads the first one's
        // key.
        file.lock().map_err(failed)?;
        let mut bytes = Vec::new();
        (&file).take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.is_empty() {
            bytes = vec![0; KEY_BYTES];
            SysRng
                .try_fill_bytes(&mut bytes)
                .map_err(|error| unusable(format!("the system gives no random bytes: {error}")))?;
            file.write_all(&bytes).map_err(failed)?;
        }
        bytes.try_into().map_err(|_| unusable(format!("it has not {KEY_BYTES} bytes; remove it")))
    }
}

/// Opens a regular file for reading, through links; never waits for a FIFO's writer.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}

/// Refuses a file that another user owns or may write.
pub(crate) fn only_ours(metadata: &Metadata) -> Result<(), String> {
    let user = user();
    if metadata.uid() != user {
        return Err(format!("user {} owns it, and this process is user {user}", metadata.uid()));
    }
    match metadata.mode() & 0o022 {
        0 => Ok(()),
        _ => Err(format!("other users may write to it (mode {:o})", metadata.mode() & 0o777)),
    }
}

/// The user of this process.
pub(crate) fn user() -> u32 {
    // SAFETY: the call takes nothing, changes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Makes a FIFO; the shell's command is in every Unix.
    fn fifo(path: &Path) {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn only_folders_of_one_user_are_private() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("deep/private");
        assert!(PrivateDir::open(&path).unwrap().is_none());
        let dir = PrivateDir::create(&path).unwrap();
        assert_eq!(dir.path().metadata().unwrap().mode() & 0o777, 0o700);
        let why = || PrivateDir::create(&path).unwrap_err();
        mode(&path, 0o770);
        assert_eq!(why(), "other users may write to it (mode 770)");
        mode(&path, 0o755);
        PrivateDir::create(&path).unwrap();
        if user() == 0 {
            chown(&path, Some(1), None).unwrap();
            assert_eq!(why(), "user 1 owns it, and this process is user 0");
        }
        fs::remove_dir(&path).unwrap();
        symlink(base.path(), &path).unwrap();
        assert_eq!(why(), "it is a symbolic link");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(why(), "it is no folder");
    }

    #[test]
    fn only_regular_files_of_one_user_are_read() {
        let base = tempfile::tempdir().unwrap();
        let dir = PrivateDir::create(&base.path().join("private")).unwrap();
        let why = |name: &str| dir.file(name, 10).unwrap_err();
        assert!(dir.file("none", 10).unwrap().is_none());
        dir.write("file", &[b"0123", b"456789"]).unwrap();
        let mut text = String::new();
        dir.file("file", 10).unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "0123456789");
        dir.write("long", &[&[0; 11]]).unwrap();
        assert_eq!(why("long"), "it has 11 bytes, more than 10");
        mode(&dir.path().join("file"), 0o602);
        assert_eq!(why("file"), "other users may write to it (mode 602)");
        fifo(&dir.path().join("fifo"));
        assert_eq!(why("fifo"), "it is no regular file");
        fs::create_dir(dir.path().join("folder")).unwrap();
        assert_eq!(why("folder"), "it is no regular file");
        symlink(dir.path().join("long"), dir.path().join("link")).unwrap();
        assert_eq!(why("link"), "it is a symbolic link");
        if user() == 0 {
            chown(dir.path().join("long"), Some(1), None).unwrap();
            assert!(why("long").starts_with("user 1 owns it"), "{}", why("long"));
        }
        let error = open_regular(&dir.path().join("fifo")).unwrap_err();
        assert_eq!(error.to_string(), "it is no regular file");
    }

    #[test]
    fn a_key_is_made_once() {
        let base = tempfile::tempdir().unwrap();
        let dir = PrivateDir::create(&base.path().join("private")).unwrap();
        let keys: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| dir.key("key"))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0] && key.iter().any(|byte| *byte != 0)));
        let path = dir.path().join("key");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        mode(&path, 0o640);
        assert!(dir.key("key").unwrap_err().contains("others may read it (mode 640)"));
        mode(&path, 0o600);
        fs::write(&path, "short").unwrap();
        assert!(dir.key("key").unwrap_err().contains("it has not 32 bytes; remove it"));
        fs::remove_file(&path).unwrap();
        fifo(&path);
        assert!(dir.key("key").unwrap_err().contains("it is no regular file"));
        fs::remove_file(&path).unwrap();
        assert_ne!(dir.key("key").unwrap(), keys[0]);
    }
}
