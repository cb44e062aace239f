//! Checksums of files, remembered so that a start does not read 260 MB again.
//!
//! A checksum is remembered by the file's device, inode, size, time of modification and time of
//! status change, in this process and in `$PODRACER_HOME/private/checksums`. A program can set a
//! file's time of modification as it likes, but not its time of status change, which every write
//! moves. The memo is believed only while its folder and file are the user's and writable by nobody
//! else.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::files::hex;
use crate::files::private::{PrivateDir, open_regular};

/// Files of at least this size are worth a line of the memo.
const MEMO_MIN_BYTES: u64 = 1 << 20;

/// Lines that the memo keeps.
const MEMO_LINES: usize = 64;

/// Bytes that a memo may have.
const MEMO_MAX_BYTES: u64 = 1 << 16;

/// A file younger than this may change again within one tick of the file system's clock.
const SETTLED: Duration = Duration::from_secs(2);

/// Identity of a file's bytes: device, inode, size, and both times with nanoseconds.
type FileId = [i128; 5];

/// Source of checksums.
pub(crate) enum Checksums {
    /// Every byte is read.
    Fresh,
    /// Files that have not changed since they were read are not read again; the memo is in this
    /// folder.
    Remembered(PathBuf),
}

impl Checksums {
    /// Remembered checksums of the installation in `home`.
    pub(super) fn remembered(home: &Path) -> Checksums {
        Checksums::Remembered(home.join("private"))
    }

    /// SHA-256 of a regular file, in hexadecimal.
    pub(super) fn sha256(&self, path: &Path) -> io::Result<String> {
        let mut file = open_regular(path)?;
        let metadata = file.metadata()?;
        let id = id_of(&metadata);
        let Checksums::Remembered(folder) = self else { return hash(&mut file) };
        let large = metadata.len() >= MEMO_MIN_BYTES;
        if let Some(sum) = known().get(&id) {
            return Ok(sum.clone());
        }
        if large && let Some(sum) = read_memo(folder).remove(&id) {
            known().insert(id, sum.clone());
            return Ok(sum);
        }
        let sum = hash(&mut file)?;
        let settled = id_of(&file.metadata()?) == id && is_settled(&metadata);
        if settled {
            known().insert(id, sum.clone());
        }
        if settled && large {
            write_memo(folder, id, &sum);
        }
        Ok(sum)
    }
}

/// Checksums that this process knows.
fn known() -> std::sync::MutexGuard<'static, HashMap<FileId, String>> {
    static KNOWN: OnceLock<Mutex<HashMap<FileId, String>>> = OnceLock::new();
    KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn id_of(metadata: &Metadata) -> FileId {
    let time = |seconds: i64, nanoseconds: i64| {
        i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
    };
    [
        metadata.dev().into(),
        metadata.ino().into(),
        metadata.len().into(),
        time(metadata.mtime(), metadata.mtime_nsec()),
        time(metadata.ctime(), metadata.ctime_nsec()),
    ]
}

fn is_settled(metadata: &Metadata) -> bool {
    let changed = Duration::new(
        u64::try_from(metadata.ctime()).unwrap_or_default(),
        u32::try_from(metadata.ctime_nsec()).unwrap_or_default(),
    );
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.checked_sub(changed).is_some_and(|age| age > SETTLED)
}

fn hash(file: &mut File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut block)?;
        if read == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&block[..read]);
    }
}

/// The memo's lines, oldest first; nothing if it cannot be trusted.
fn memo_lines(folder: &Path) -> Vec<(FileId, String)> {
    let mut text = String::new();
    let read = PrivateDir::open(folder).ok().flatten().and_then(|dir| {
        dir.file(MEMO, MEMO_MAX_BYTES).ok().flatten()?.read_to_string(&mut text).ok()
    });
    if read.is_none() {
        return Vec::new();
    }
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<(FileId, String)> {
    let (sum, id) = line.split_once(' ')?;
    let id: Vec<i128> = id.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let is_sum = sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((id.try_into().ok()?, sum.to_string())).filter(|_| is_sum)
}

fn read_memo(folder: &Path) -> HashMap<FileId, String> {
    memo_lines(folder).into_iter().collect()
}

/// Adds a line. A memo that cannot be written costs time at the next start and nothing else.
fn write_memo(folder: &Path, id: FileId, sum: &str) {
    let Ok(dir) = PrivateDir::create(folder) else { return };
    let mut lines = memo_lines(folder);
    lines.retain(|(other, _)| *other != id);
    lines.push((id, sum.to_string()));
    let mut text = String::new();
    for (id, sum) in &lines[lines.len().saturating_sub(MEMO_LINES)..] {
        let [device, inode, bytes, modified, changed] = id;
        let _ = writeln!(text, "{sum} {device} {inode} {bytes} {modified} {changed}");
    }
    let _ = dir.write(MEMO, &[text.as_bytes()]);
}

/// File of the memo.
const MEMO: &str = "checksums";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const BYTES: u64 = MEMO_MIN_BYTES;

    fn file(path: &Path, content: u8) -> FileId {
        fs::write(path, vec![content; BYTES as usize]).unwrap();
        id_of(&path.metadata().unwrap())
    }

    #[test]
    fn the_memo_is_believed_only_where_nobody_else_can_write() {
        let base = tempfile::tempdir().unwrap();
        let (path, home) = (base.path().join("file"), base.path().join("home"));
        let id = file(&path, 1);
        let checksums = Checksums::remembered(&home);
        let folder = home.join("private");
        // A wrong checksum in the memo shows if the memo was used.
        let lie = "00".repeat(32);
        write_memo(&folder, id, &lie);
        for mode in [0o777, 0o770, 0o702] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            assert_ne!(checksums.sha256(&path).unwrap(), lie, "{mode:o}");
            known().remove(&id);
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let memo = folder.join(MEMO);
        fs::set_permissions(&memo, fs::Permissions::from_mode(0o666)).unwrap();
        assert_ne!(checksums.sha256(&path).unwrap(), lie);
        known().remove(&id);
        fs::set_permissions(&memo, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(checksums.sha256(&path).unwrap(), lie);
        // The doctor reads every byte whatever is remembered.
        assert_eq!(
            Checksums::Fresh.sha256(&path).unwrap(),
            hex(&Sha256::digest(vec![1; BYTES as usize]))
        );
        known().remove(&id);
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("file");
        let id = file(&path, 1);
        write_memo(&base.path().join("home/private"), id, &"00".repeat(32));
        // Other bytes, the same size, and the old time of modification.
        let modified = path.metadata().unwrap().modified().unwrap();
        file(&path, 2);
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        let sum = Checksums::remembered(&base.path().join("home")).sha256(&path).unwrap();
        assert_eq!(sum, hex(&Sha256::digest(vec![2; BYTES as usize])));
        // So young a file is not remembered: it may change again at the same tick of the clock.
        assert!(!known().contains_key(&id_of(&path.metadata().unwrap())));
    }

    #[test]
    fn damaged_memos_are_empty_and_short_ones_stay_short() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("private");
        for i in 0..100 {
            write_memo(&folder, [i, 0, 0, 0, 0], &"ab".repeat(32));
        }
        let ids: Vec<i128> = memo_lines(&folder).iter().map(|(id, _)| id[0]).collect();
        assert_eq!(ids, (100 - MEMO_LINES as i128..100).collect::<Vec<_>>());
        let sum = "ab".repeat(32);
        for line in
            ["", "ab 1 2 3 4 5", &sum, &format!("{sum} 1 2 3 4"), &format!("{sum} 1 2 3 4 x")]
        {
            assert_eq!(parse_line(line), None, "{line}");
        }
        assert_eq!(parse_line(&format!("{sum} 1 2 3 4 5")), Some(([1, 2, 3, 4, 5], sum)));
        fs::write(folder.join(MEMO), [255, 0, 10]).unwrap();
        assert!(memo_lines(&folder).is_empty());
    }
}
