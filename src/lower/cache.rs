//! The persistent cache of compiled executables, so that the second run of a program starts at
//! once.
//! An entry is one file in `$PODRACER_HOME/executables`, named by a hash of everything that the
//! machine code depends on: the program, the options, the plugin, the platform, the processor, the
//! user, and the compiler flags of the environment. The file's authentication code covers that hash
//! and the code, under a secret key that lies beside it and that only the user can read. If an entry
//! was damaged, forged or replaced by another one, the cache warns, compiles anew and overwrites it.
//!
//! The folder must be the user's and writable by nobody else; otherwise the cache is not used, and
//! one warning is printed. Nothing about the cache is ever an error of the program.
//!
//! `PODRACER_CACHE=off` turns it off; `PODRACER_CACHE_MAX_SIZE` limits its size.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest, Sha256, Sha512_256};

use super::compile_log;
use super::pjrt::{Client, CompileOptions, Executable};
use crate::error::Result;
use crate::files::hex;
use crate::files::private::{KEY_BYTES, PrivateDir, user};
use crate::native::Settings;
use crate::output;

/// First bytes of every entry; the digit is the version of the format.
const MAGIC: &[u8; 16] = b"podracer-exec-3\n";

/// File with the secret key.
const KEY_FILE: &str = ".key";

/// Default limit of the bytes of all entries together.
const DEFAULT_MAX_SIZE: u64 = 2 << 30;

/// Entries that were unused for this long are removed.
const MAX_AGE: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// An unfinished file of this age was left by a process that was killed.
const MAX_PARTIAL_AGE: Duration = Duration::from_secs(60 * 60);

/// SHA-256 of everything that an entry's machine code depends on.
type EntryKey = [u8; 32];

/// Outcome of compiling through the cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheOutcome {
    /// True if the executable was in the cache.
    pub hit: bool,
    /// Time that the compilation or the load took, in seconds.
    pub seconds: f64,
}

/// State of a cache, for `podracer doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheStatus {
    /// The environment disables the cache.
    Off,
    /// The folder of this path cannot be trusted, for this reason, so the cache is not used.
    Refused(PathBuf, String),
    /// The cache is in use.
    Used {
        /// Folder of the entries.
        dir: PathBuf,
        /// Number of entries.
        entries: usize,
        /// Bytes of all entries.
        bytes: u64,
        /// Limit of those bytes.
        limit: u64,
    },
}

/// A folder of compiled executables, or none.
#[derive(Debug)]
pub struct Cache {
    dir: Option<PathBuf>,
    limit: u64,
    /// The folder and its key, checked at first use; `None` if they cannot be trusted.
    store: OnceLock<Option<Store>>,
    /// Bytes written since the folder's size was last measured; the maximum before the first time.
    written: AtomicU64,
    warned: AtomicBool,
}

/// A folder that only the user can write, and the key of its entries.
struct Store {
    dir: PrivateDir,
    key: [u8; KEY_BYTES],
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.dir.path().display())
    }
}

impl Cache {
    /// A cache in `dir`, which is made when it is needed, of at most `limit` bytes.
    pub fn at(dir: impl Into<PathBuf>, limit: u64) -> Cache {
        Cache {
            dir: Some(dir.into()),
            limit,
            store: OnceLock::new(),
            written: AtomicU64::new(u64::MAX),
            warned: AtomicBool::new(false),
        }
    }

    /// No cache: every program is compiled.
    pub fn off() -> Cache {
        Cache { dir: None, ..Cache::at("", 0) }
    }

    /// The cache that the environment configures.
    pub fn from_env() -> Cache {
        match Settings::from_env() {
            Ok(settings) => Cache::of(&settings),
            Err(_) => Cache::off(),
        }
    }

    /// The cache below the folder of `settings`, with the limits of the environment.
    pub(crate) fn of(settings: &Settings) -> Cache {
        let off = std::env::var("PODRACER_CACHE")
            .is_ok_and(|value| ["off", "0", "no", "false"].contains(&value.as_str()));
        let limit = match std::env::var("PODRACER_CACHE_MAX_SIZE") {
            Ok(text) if !text.is_empty() => parse_size(&text).unwrap_or_else(|| {
                output::stderr_line(format_args!(
                    "podracer: warning: PODRACER_CACHE_MAX_SIZE is `{text}`, expected bytes such as \
                     500M or 2G; the limit is 2G"
                ));
                DEFAULT_MAX_SIZE
            }),
            _ => DEFAULT_MAX_SIZE,
        };
        match off || limit == 0 {
            true => Cache::off(),
            false => Cache::at(settings.home.join("executables"), limit),
        }
    }

    /// The executable of an MLIR module, StableHLO text or portable bytecode: loaded from the
    /// cache, or compiled and kept there.
    ///
    /// Fails only as [`Client::compile`] does.
    pub fn compile(
        &self,
        client: &Client,
        module: &(impl AsRef<[u8]> + ?Sized),
        options: &CompileOptions,
    ) -> Result<(Executable, CacheOutcome)> {
        let compile = || Ok((client.compile(module, options)?, None));
        self.compile_by(client, module.as_ref(), options, compile)
    }

    /// As [`Cache::compile`], where `compile` makes the executable that is not in the cache. It
    /// returns the serialized code, too, if it loaded the executable from that: such a one cannot be
    /// serialized again.
    fn compile_by(
        &self,
        client: &Client,
        module: &[u8],
        options: &CompileOptions,
        compile: impl FnOnce() -> Result<(Executable, Option<Vec<u8>>)>,
    ) -> Result<(Executable, CacheOutcome)> {
        let start = Instant::now();
        let outcome = |hit| CacheOutcome { hit, seconds: start.elapsed().as_secs_f64() };
        let Some(store) = self.store() else {
            compile_log::started();
            return Ok((compile()?.0, outcome(false)));
        };
        let key = key(client, module, options);
        match store.read(&key, self.limit) {
            Ok(Some(code)) => {
                // SAFETY: this user's process serialized the code for this plugin, program and
                // machine, as its authentication code says.
                match unsafe { client.deserialize(&code) } {
                    Ok(executable) => return Ok((executable, outcome(true))),
                    Err(error) => store.warn(&key, &first_line(&error.to_string())),
                }
            }
            Ok(None) => {}
            Err(reason) => store.warn(&key, &reason),
        }
        compile_log::started();
        let (executable, code) = compile()?;
        // Not every platform can serialize; then there is nothing to keep.
        if let Ok(code) = code.map_or_else(|| executable.serialize(), Ok) {
            match store.write(&key, &code) {
                Ok(()) => self.prune(store.dir.path(), code.len() as u64),
                Err(error) => self.warn_once(store.dir.path(), &error.to_string()),
            }
        }
        Ok((executable, outcome(false)))
    }

    /// The folder and key of the entries, if there is a cache and both can be trusted.
    fn store(&self) -> Option<&Store> {
        let path = self.dir.as_deref()?;
        let open = || -> std::result::Result<Store, String> {
            let dir = PrivateDir::create(path)?;
            let key = dir.key(KEY_FILE)?;
            Ok(Store { dir, key })
        };
        let opened = || open().map_err(|reason| self.warn_once(path, &reason)).ok();
        self.store.get_or_init(opened).as_ref()
    }

    /// Size and limit of the cache, or why it is not used. Makes nothing.
    pub fn status(&self) -> CacheStatus {
        let Some(dir) = &self.dir else { return CacheStatus::Off };
        if let Err(reason) = PrivateDir::open(dir) {
            return CacheStatus::Refused(dir.clone(), reason);
        }
        let files = entries(dir);
        CacheStatus::Used {
            dir: dir.clone(),
            entries: files.len(),
            bytes: files.iter().map(|file| file.bytes).sum(),
            limit: self.limit,
        }
    }

    /// A folder that cannot be used would warn at every compilation.
    fn warn_once(&self, dir: &Path, reason: &str) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            output::stderr_line(format_args!(
                "podracer: warning: compiled executables are not kept in {} ({reason}); set \
                 PODRACER_HOME to a folder that you own and only you can write to, or \
                 PODRACER_CACHE=off",
                dir.display()
            ));
        }
    }

    /// Removes old entries, and the least recently used ones when there are too many bytes of them.
    /// Looks only at the first write of a process and after every sixteenth of the limit.
    fn prune(&self, dir: &Path, bytes: u64) {
        let before = self.written.load(Ordering::Relaxed);
        let written = before.saturating_add(bytes);
        if before != u64::MAX && written < self.limit / 16 {
            self.written.store(written, Ordering::Relaxed);
            return;
        }
        self.written.store(0, Ordering::Relaxed);
        let now = SystemTime::now();
        let mut files = entries(dir);
        files.sort_by_key(|file| file.used);
        let mut total: u64 = files.iter().map(|file| file.bytes).sum();
        for file in files {
            let age = now.duration_since(file.used).unwrap_or_default();
            let old = age > if file.partial { MAX_PARTIAL_AGE } else { MAX_AGE };
            let too_many = total > self.limit && !file.partial;
            if (old || too_many) && fs::remove_file(&file.path).is_ok() {
                total -= file.bytes;
            }
        }
    }
}

impl Store {
    /// The code of an entry, which is marked as used now; `None` when there is no entry.
    fn read(&self, key: &EntryKey, most: u64) -> std::result::Result<Option<Vec<u8>>, String> {
        let Some(mut file) = self.dir.file(&hex(key), most)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| format!("it cannot be read: {error}"))?;
        let Some((header, code)) = bytes.split_at_checked(MAGIC.len() + 32) else {
            return Err("it is cut short".into());
        };
        if !header.starts_with(MAGIC) {
            return Err("it is no cache entry".into());
        }
        if self.authentication_code(key, code) != header[MAGIC.len()..] {
            return Err("it is damaged, or was not written for this program by this user".into());
        }
        // The least recently used entries go first.
        let _ = file.set_modified(SystemTime::now());
        bytes.drain(..MAGIC.len() + 32);
        Ok(Some(bytes))
    }

    /// Writes an entry.
    fn write(&self, key: &EntryKey, code: &[u8]) -> io::Result<()> {
        self.dir.write(&hex(key), &[MAGIC, &self.authentication_code(key, code), code])
    }

    /// Returns the authentication code of an entry: SHA-512/256 of the secret key and the entry.
    ///
    /// The secret key, magic and entry key have fixed lengths, so no two entries give the same
    /// input. The hash keeps half of its state to itself, so a code cannot be extended to that of a
    /// longer entry.
    fn authentication_code(&self, key: &EntryKey, code: &[u8]) -> [u8; 32] {
        let hash = Sha512_256::new_with_prefix(self.key);
        hash.chain_update(MAGIC).chain_update(key).chain_update(code).finalize().into()
    }

    fn warn(&self, key: &EntryKey, reason: &str) {
        output::stderr_line(format_args!(
            "podracer: warning: cached executable {} is not usable ({reason}); compiling anew",
            self.dir.path().join(hex(key)).display()
        ));
    }
}

/// A file of the cache.
struct EntryFile {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
    /// True for a file that is not completely written.
    partial: bool,
}

/// The files of a cache: regular files with names of entries, finished or not.
fn entries(dir: &Path) -> Vec<EntryFile> {
    let Ok(entries) = dir.read_dir() else { return Vec::new() };
    let file = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let partial = PrivateDir::is_partial(&name);
        let finished = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !(partial || finished) {
            return None;
        }
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        let (used, bytes) = (metadata.modified().ok()?, metadata.len());
        Some(EntryFile { used, bytes, path: entry.path(), partial })
    };
    entries.flatten().filter_map(file).collect()
}

/// Bytes written as `1048576`, `500M` or `2G`: suffixes are powers of 1024.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// As [`Cache::compile`], in the cache of this process's environment.
pub(crate) fn compile_cached(
    client: &Client,
    module: &(impl AsRef<[u8]> + ?Sized),
    options: &CompileOptions,
) -> Result<(Executable, CacheOutcome)> {
    cache().compile(client, module, options)
}

/// As [`compile_cached`], where `compile` makes the executable that is not in the cache, and returns
/// its serialized code, too, if it loaded the executable from that.
pub(crate) fn compile_cached_by(
    client: &Client,
    module: &[u8],
    options: &CompileOptions,
    compile: impl FnOnce() -> Result<(Executable, Option<Vec<u8>>)>,
) -> Result<(Executable, CacheOutcome)> {
    cache().compile_by(client, module, options, compile)
}

/// The cache that the environment configures.
fn cache() -> &'static Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(Cache::from_env)
}

/// Everything that the machine code of a program depends on, hashed.
fn key(client: &Client, module: &[u8], options: &CompileOptions) -> EntryKey {
    let plugin = client.plugin();
    let (major, minor) = plugin.api_version();
    // Two builds of a plugin may claim the same version.
    let file = plugin.path().metadata().ok();
    let modified = file
        .as_ref()
        .and_then(|metadata| metadata.modified().ok())
        .and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok())
        .map_or(0, |since| since.as_nanos());
    let identity = format!(
        "PJRT {major}.{minor}, {} bytes, modified {modified}, {:?}; {} {}; {} devices; user {}",
        file.map_or(0, |metadata| metadata.len()),
        plugin.attributes(),
        client.platform_name(),
        client.platform_version(),
        client.devices().len(),
        user(),
    );
    let flags = std::env::var("XLA_FLAGS").unwrap_or_default();
    let mut hash = Sha256::new();
    // The position of a line of the user's code does not change the compiled code.
    let text = std::str::from_utf8(module).map(without_locations);
    for field in [
        // Entries of another format have other names: they are not found, and age away.
        &MAGIC[..],
        text.as_ref().map_or(module, String::as_bytes),
        &options.encode(),
        identity.as_bytes(),
        processor().as_bytes(),
        flags.as_bytes(),
    ] {
        // The length keeps neighboring fields apart.
        hash.update((field.len() as u64).to_le_bytes());
        hash.update(field);
    }
    hash.finalize().into()
}

/// The text without its source locations.
fn without_locations(text: &str) -> String {
    let mut bare = String::with_capacity(text.len());
    for line in text.lines().filter(|line| !line.starts_with("#loc")) {
        bare.push_str(line.rfind(" loc(").map_or(line, |at| &line[..at]));
        bare.push('\n');
    }
    bare
}

/// The processor: model, instruction sets, number of cores. Machine code is made for it.
fn processor() -> &'static str {
    static PROCESSOR: OnceLock<String> = OnceLock::new();
    PROCESSOR.get_or_init(|| {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let line = |names: &[&str]| {
            text.lines().find(|line| names.iter().any(|name| line.starts_with(name))).unwrap_or("")
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        format!(
            "{} {}; {}; {cores} cores",
            std::env::consts::ARCH,
            line(&["model name", "CPU part"]),
            line(&["flags", "Features"])
        )
    })
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn store(dir: &Path) -> Store {
        let dir = PrivateDir::create(&dir.join("executables")).unwrap();
        let key = dir.key(KEY_FILE).unwrap();
        Store { dir, key }
    }

    #[test]
    fn entries_are_authenticated() {
        let base = tempfile::tempdir().unwrap();
        let store = store(base.path());
        let (one, two) = ([1; 32], [2; 32]);
        let path = |key: &EntryKey| store.dir.path().join(hex(key));
        assert_eq!(store.read(&one, 1000), Ok(None));
        store.write(&one, b"machine code").unwrap();
        store.write(&two, b"other code").unwrap();
        assert_eq!(store.read(&one, 1000), Ok(Some(b"machine code".to_vec())));
        let forged = "it is damaged, or was not written for this program by this user";
        let refused = |key: &EntryKey, reason: &str| {
            assert_eq!(store.read(key, 1000), Err(reason.to_string()));
        };

        // Every byte counts.
        let whole = fs::read(path(&one)).unwrap();
        for i in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[i] ^= 1;
            fs::write(path(&one), &bytes).unwrap();
            refused(&one, if i < MAGIC.len() { "it is no cache entry" } else { forged });
        }
        fs::write(path(&one), &whole[..20]).unwrap();
        refused(&one, "it is cut short");

        // The entry of another program.
        fs::rename(path(&two), path(&one)).unwrap();
        refused(&one, forged);

        // An entry whose checksum was recomputed without the key.
        let mut bytes = [&MAGIC[..], &Sha256::digest(b"evil code"), b"evil code"].concat();
        fs::write(path(&one), &bytes).unwrap();
        refused(&one, forged);
        let other = Store { dir: store.dir.clone(), key: [0; KEY_BYTES] };
        let code = other.authentication_code(&one, b"evil code");
        bytes[MAGIC.len()..MAGIC.len() + 32].copy_from_slice(&code);
        fs::write(path(&one), &bytes).unwrap();
        refused(&one, forged);

        store.write(&one, &[7; 1000]).unwrap();
        refused(&one, "it has 1048 bytes, more than 1000");
    }

    #[test]
    fn sizes_are_parsed() {
        assert_eq!(parse_size("1048576"), Some(1 << 20));
        assert_eq!(parse_size(" 500M "), Some(500 << 20));
        assert_eq!(parse_size("2g"), Some(2 << 30));
        for wrong in ["", "G", "-1", "1.5G", "2 lots", "99999999999T"] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_oldest_go_first() {
        let base = tempfile::tempdir().unwrap();
        let (now, day) = (SystemTime::now(), Duration::from_secs(24 * 60 * 60));
        let name = |letter: char| std::iter::repeat_n(letter, 64).collect::<String>();
        let put = |name: &str, age: Duration| {
            let file = File::create(base.path().join(name)).unwrap();
            file.set_len(100).unwrap();
            file.set_modified(now - age).unwrap();
        };
        for (letter, days) in [('b', 3), ('a', 2), ('c', 1)] {
            put(&name(letter), day * days);
        }
        for (other, age) in
            [("notes", day * 200), (".1-0.partial", day), (".1-1.partial", day / 100)]
        {
            put(other, age);
        }
        let left = || {
            let mut left: Vec<_> = base
                .path()
                .read_dir()
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            left.sort();
            left
        };
        // The unfinished file that is an hour old, and the oldest entry.
        Cache::at(base.path(), 400).prune(base.path(), 100);
        assert_eq!(left(), [".1-1.partial", &name('a'), &name('c'), "notes"]);
        // An entry that was unused for long is removed, however much free space there is.
        put(&name('a'), day * 91);
        Cache::at(base.path(), 10_000).prune(base.path(), 100);
        assert_eq!(left(), [".1-1.partial", &name('c'), "notes"]);
    }
}
