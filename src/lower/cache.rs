//! The persistent cache of compiled executables, so that the second run of a program starts at
//! once.
//!
//! An entry is one file in `$PODRACER_HOME/executables`, named by a hash of everything that the
//! machine code depends on: the program, the options, the plugin, the platform, the processor, and
//! the compiler flags of the environment. Files carry a checksum; one that does not fit is warned
//! about, compiled anew and overwritten. Nothing about the cache is ever an error of the program.
//!
//! `PODRACER_CACHE=off` turns it off.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use sha2::{Digest, Sha256};

use super::compile_log;
use super::native::{Settings, hex};
use super::pjrt::{Client, CompileOptions, Executable};
use crate::error::Result;
use crate::output;

/// The first bytes of every entry; the digit is the version of this format.
const MAGIC: &[u8; 16] = b"podracer-exec-1\n";

/// Bytes of all entries together, above which the least recently used ones go.
const LIMIT: u64 = 2 << 30;

/// How an executable was come by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheOutcome {
    /// Whether it was in the cache.
    pub hit: bool,
    /// How long it took, either way.
    pub seconds: f64,
}

/// A folder of compiled executables, or none.
#[derive(Debug)]
pub struct Cache {
    dir: Option<PathBuf>,
    limit: u64,
    /// Bytes written since the folder's size was last looked at; the maximum before the first time.
    written: AtomicU64,
    warned: AtomicBool,
}

impl Cache {
    /// A cache in `dir`, which is made when it is needed, of at most `limit` bytes.
    pub fn at(dir: impl Into<PathBuf>, limit: u64) -> Cache {
        Cache {
            dir: Some(dir.into()),
            limit,
            written: AtomicU64::new(u64::MAX),
            warned: AtomicBool::new(false),
        }
    }

    /// No cache: every program is compiled.
    pub fn off() -> Cache {
        Cache { dir: None, ..Cache::at("", 0) }
    }

    /// The cache that the environment asks for.
    pub fn from_env() -> Cache {
        let off = std::env::var("PODRACER_CACHE")
            .is_ok_and(|value| ["off", "0", "no", "false"].contains(&value.as_str()));
        match Settings::from_env() {
            Ok(settings) if !off => Cache::at(settings.home.join("executables"), LIMIT),
            _ => Cache::off(),
        }
    }

    /// The executable of an MLIR module, StableHLO text or portable bytecode: loaded from the cache,
    /// or compiled and kept there.
    ///
    /// Fails only as [`Client::compile`] does.
    pub fn compile(
        &self,
        client: &Client,
        module: &(impl AsRef<[u8]> + ?Sized),
        options: &CompileOptions,
    ) -> Result<(Executable, CacheOutcome)> {
        let start = Instant::now();
        let outcome = |hit| CacheOutcome { hit, seconds: start.elapsed().as_secs_f64() };
        let Some(dir) = &self.dir else {
            compile_log::started();
            return Ok((client.compile(module, options)?, outcome(false)));
        };
        let path = dir.join(key(client, module.as_ref(), options));
        match read(&path) {
            Ok(Some(code)) => match client.deserialize(&code) {
                Ok(executable) => {
                    // The time of last use, for the least recently used to go first.
                    let _ = File::options()
                        .append(true)
                        .open(&path)
                        .and_then(|file| file.set_modified(SystemTime::now()));
                    return Ok((executable, outcome(true)));
                }
                Err(error) => self.warn(&path, &first_line(&error.to_string())),
            },
            Ok(None) => {}
            Err(reason) => self.warn(&path, reason),
        }
        compile_log::started();
        let executable = client.compile(module, options)?;
        // Not every platform can serialize; then there is nothing to keep.
        if let Ok(code) = executable.serialize() {
            match write(dir, &path, &code) {
                Ok(()) => self.prune(dir, code.len() as u64),
                Err(reason) => self.warn_once(dir, &reason),
            }
        }
        Ok((executable, outcome(false)))
    }

    fn warn(&self, path: &Path, reason: &str) {
        output::stderr_line(format_args!(
            "podracer: warning: cached executable {} is not usable ({reason}); compiling anew",
            path.display()
        ));
    }

    /// A folder that cannot be written would warn at every compilation.
    fn warn_once(&self, dir: &Path, reason: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            output::stderr_line(format_args!(
                "podracer: warning: cannot keep compiled executables in {} ({reason}); set \
                 PODRACER_HOME to a folder that you may write to, or PODRACER_CACHE=off",
                dir.display()
            ));
        }
    }

    /// Removes the least recently used entries when there are too many bytes of them. Looks only
    /// at the first write of a process and after every sixteenth of the limit.
    fn prune(&self, dir: &Path, bytes: u64) {
        let before = self.written.load(Ordering::Relaxed);
        let written = before.saturating_add(bytes);
        if before != u64::MAX && written < self.limit / 16 {
            self.written.store(written, Ordering::Relaxed);
            return;
        }
        self.written.store(0, Ordering::Relaxed);
        let Ok(entries) = dir.read_dir() else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .flatten()
            .filter_map(|entry| {
                let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
                Some((metadata.modified().ok()?, metadata.len(), entry.path()))
            })
            .collect();
        files.sort();
        let mut total: u64 = files.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in files {
            if total <= self.limit {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= len;
            }
        }
    }
}

/// As [`Cache::compile`], in the cache of this process's environment.
pub fn compile_cached(
    client: &Client,
    module: &(impl AsRef<[u8]> + ?Sized),
    options: &CompileOptions,
) -> Result<(Executable, CacheOutcome)> {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(Cache::from_env).compile(client, module, options)
}

/// The file name of an entry.
fn key(client: &Client, module: &[u8], options: &CompileOptions) -> String {
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
        "PJRT {major}.{minor}, {} bytes, modified {modified}, {:?}; {} {}; {} devices",
        file.map_or(0, |metadata| metadata.len()),
        plugin.attributes(),
        client.platform_name(),
        client.platform_version(),
        client.devices().len(),
    );
    let flags = std::env::var("XLA_FLAGS").unwrap_or_default();
    let mut hash = Sha256::new();
    // Where a line of the user's code stands does not change what is compiled.
    let text = std::str::from_utf8(module).map(without_locations);
    for field in [
        text.as_ref().map_or(module, String::as_bytes),
        &options.encode(),
        identity.as_bytes(),
        processor().as_bytes(),
        flags.as_bytes(),
    ] {
        // The length keeps neighbouring fields apart.
        hash.update((field.len() as u64).to_le_bytes());
        hash.update(field);
    }
    hex(&hash.finalize())
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

/// The code in an entry; `None` when there is no entry.
fn read(path: &Path) -> Result<Option<Vec<u8>>, &'static str> {
    let mut bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => return Err("it cannot be read"),
    };
    let Some((header, code)) = bytes.split_at_checked(MAGIC.len() + 32) else {
        return Err("it is cut short");
    };
    if !header.starts_with(MAGIC) {
        return Err("it is no cache entry");
    }
    if Sha256::digest(code)[..] != header[MAGIC.len()..] {
        return Err("its checksum is wrong");
    }
    bytes.drain(..MAGIC.len() + 32);
    Ok(Some(bytes))
}

/// Writes an entry so that readers see all of it or nothing.
fn write(dir: &Path, path: &Path, code: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    fs::create_dir_all(dir)?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let temporary = dir.join(format!(".{}-{count}.partial", std::process::id()));
    let result = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(code))?;
        file.write_all(code)?;
        drop(file);
        fs::rename(&temporary, path)
    })();
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("entry");
        assert_eq!(read(&path), Ok(None));
        write(dir.path(), &path, b"machine code").unwrap();
        assert_eq!(read(&path), Ok(Some(b"machine code".to_vec())));
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read(&path), Err("its checksum is wrong"));
        fs::write(&path, &bytes[..20]).unwrap();
        assert_eq!(read(&path), Err("it is cut short"));
        bytes[0] = 0;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read(&path), Err("it is no cache entry"));
    }

    #[test]
    fn the_oldest_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path(), 250);
        for (i, name) in ["b", "a", "c"].iter().enumerate() {
            let file = File::create(dir.path().join(name)).unwrap();
            file.set_len(100).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(i as u64))
                .unwrap();
        }
        cache.prune(dir.path(), 100);
        let mut left: Vec<_> =
            dir.path().read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["a", "c"]);
    }
}
