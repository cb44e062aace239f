//! Fetching: pip installs a pinned wheel into our folder.
//!
//! pip knows the user's mirrors, proxies and certificates, so no host is named here. The wheel is
//! installed, or unpacked if its files are outside of a Python package, into a temporary folder next to its target and renamed, so a part is present whole or
//! not at all; a file lock makes a second process wait instead of fetching again.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::Settings;
use super::checksum::Checksums;
use crate::error::{Error, Result};
use crate::native::lock::{Part, Wheel};
use crate::output::{self, child::output_of};

impl Settings {
    /// Fetches a part into our folder, unless it is there. Returns the folder with its members.
    pub fn fetch(&self, part: &Part) -> Result<PathBuf> {
        let wheel = part.wheel()?;
        let target = self.install_dir(part, wheel);
        let parts = self.home.join("parts");
        fs::create_dir_all(&parts).map_err(|source| self.not_writable(&parts, &source))?;
        let lock = parts.join(format!("{}.lock", part.package));
        let lock_file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock)
            .map_err(|source| self.not_writable(&lock, &source))?;
        if lock_file.try_lock().is_err() {
            if !self.quiet {
                output::stderr_line(format_args!(
                    "podracer: waiting for another process that fetches {}",
                    part.package
                ));
            }
            lock_file.lock().map_err(Error::io("cannot lock", &lock))?;
        }
        // Another process may have fetched it while this one waited. A damaged copy is replaced.
        if target.exists() && check_members(wheel, &target, &Checksums::Fresh).is_ok() {
            return Ok(target);
        }
        let python = self.python().ok_or_else(|| Error::Native {
            problem: format!("{} has to be fetched, but there is no python3 on PATH", part.name),
            help: match part.variable() {
                Some(variable) => format!(
                    "install Python 3 with pip; or install {}=={} elsewhere and point {variable} at it",
                    part.package, part.version
                ),
                None => "install Python 3 with pip".into(),
            },
        })?;
        let temporary = Temporary::new(&parts, &part.package)
            .map_err(|source| self.not_writable(&parts, &source))?;
        if !self.quiet {
            output::stderr_line(format_args!(
                "podracer: fetching {} {} ({:.0} MB, {}) into {}",
                part.package,
                part.version,
                wheel.bytes as f64 / 1e6,
                part.license,
                target.display()
            ));
        }
        self.pip(part, wheel, &python, &temporary.0)?;
        let installed = temporary.0.join("wheel");
        check_members(wheel, &installed, &Checksums::Fresh).map_err(|problem| Error::Native {
            problem,
            help:
                "pip accepted the wheel and installed something else: try again, and see whether \
                   the disk is full or failing"
                    .into(),
        })?;
        if target.exists() {
            fs::remove_dir_all(&target).map_err(Error::io("cannot replace", &target))?;
        }
        fs::rename(&installed, &target).map_err(|source| self.not_writable(&target, &source))?;
        Ok(target)
    }

    fn pip(&self, part: &Part, wheel: &Wheel, python: &Path, temporary: &Path) -> Result<()> {
        let requirements = temporary.join("requirements.txt");
        fs::write(&requirements, part.requirement(wheel))
            .map_err(|source| self.not_writable(&requirements, &source))?;
        let unpacks = wheel.has_data_files();
        let (command, target) = match unpacks {
            true => (&["download", "--dest"][..], temporary.to_path_buf()),
            false => (&["install", "--no-compile", "--target"][..], temporary.join("wheel")),
        };
        let mut arguments: Vec<OsString> = ["-m", "pip"].map(OsString::from).into();
        arguments.extend(command.iter().map(OsString::from));
        arguments.push(target.into());
        let common = [
            "--no-deps",
            "--require-hashes",
            "--only-binary=:all:",
            "--disable-pip-version-check",
            "--no-input",
        ];
        arguments.extend(common.map(OsString::from));
        arguments.extend(wheel.pip_target().into_iter().map(OsString::from));
        arguments.push("-r".into());
        arguments.push(requirements.into());
        let mut output = self.run_python(python, &arguments)?;
        if output.status.success() && unpacks {
            let archive = temporary.join(&wheel.file).into();
            let into = temporary.join("wheel").into();
            let unzip = [OsString::from("-m"), "zipfile".into(), "-e".into(), archive, into];
            output = self.run_python(python, &unzip)?;
            make_executable(wheel, &temporary.join("wheel"))?;
        }
        if output.status.success() {
            return Ok(());
        }
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Err(pip_failed(part, wheel, python, &said))
    }

    fn run_python(&self, python: &Path, arguments: &[OsString]) -> Result<Output> {
        let mut command = Command::new(python);
        // A random.py in the working directory is not Python's.
        command.args(arguments).env("PATH", &self.path).env("PYTHONSAFEPATH", "1");
        output_of(&mut command).map_err(|source| Error::Native {
            problem: format!("cannot run {}: {source}", python.display()),
            help: "install a working Python 3 with pip".into(),
        })
    }

    fn not_writable(&self, path: &Path, source: &io::Error) -> Error {
        Error::Native {
            problem: format!("cannot write {}: {source}", path.display()),
            help: format!(
                "make {} writable, or set PODRACER_HOME to a folder that is",
                self.home.display()
            ),
        }
    }
}

/// Explains pip's output as an error. The output itself is shown in any case.
fn pip_failed(part: &Part, wheel: &Wheel, python: &Path, said: &str) -> Error {
    let lines: Vec<&str> = said.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(8)..].join("\n    ");
    let name = format!("{} {}", part.package, part.version);
    let any = |needles: &[&str]| needles.iter().any(|needle| said.contains(needle));
    let (what, help) = if any(&["No module named pip"]) {
        (
            format!("{} has no pip, which fetches {name}", python.display()),
            "install pip for it: python3 -m ensurepip, or your system's python3-pip package".into(),
        )
    } else if any(&["DO NOT MATCH THE HASHES", "Hashes are required", "hashes do not match"]) {
        (
            format!("what pip found as {name} is not the pinned file (sha256 {})", wheel.sha256),
            "a mirror or proxy serves another file: pip's configuration says which \
             (python3 -m pip config list); do not use that file"
                .into(),
        )
    } else if any(&["No matching distribution", "Could not find a version"])
        && !any(&["Connection", "connection", "Retrying", "ProxyError", "SSLError"])
    {
        (
            format!("pip finds no {name} for this machine ({})", wheel.file),
            "check the network and pip's index (python3 -m pip config list): a mirror may lack the \
             package; pip older than 20.3 does not know this platform tag (python3 -m pip install -U pip)"
                .into(),
        )
    } else if any(&["No space left"]) {
        (format!("no space left to install {name}"), "free some disk space, then try again".into())
    } else {
        (
            format!("pip could not fetch {name}"),
            format!(
                "check the network and pip's settings (python3 -m pip config list), then run \
                 `podracer fetch {}`; without a network, copy {} from elsewhere, install it with \
                 pip, and podracer finds it",
                part.name, wheel.file
            ),
        )
    };
    Error::Native { problem: format!("{what}; pip said:\n    {last}"), help }
}

/// Marks the programs of the wheel as executable, which unpacking does not.
fn make_executable(wheel: &Wheel, root: &Path) -> Result<()> {
    #[cfg(unix)]
    for member in &wheel.members {
        use std::os::unix::fs::PermissionsExt;
        let path = root.join(&member.path);
        // A missing file is reported when the members are checked.
        if ["mpiexec", "program"].contains(&member.role.as_str()) && path.exists() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                .map_err(Error::io("cannot make executable", &path))?;
        }
    }
    Ok(())
}

/// Checks that the members below `root` are those of the lock file, by size and checksum. Errors
/// describe the difference.
pub(super) fn check_members(
    wheel: &Wheel,
    root: &Path,
    checksums: &Checksums,
) -> Result<(), String> {
    for member in &wheel.members {
        let path = root.join(&member.path);
        let unreadable = |source: io::Error| format!("{} cannot be read: {source}", path.display());
        let metadata = path.metadata().map_err(unreadable)?;
        if metadata.len() != member.bytes {
            return Err(format!(
                "{} is damaged: it has {} bytes instead of {}",
                path.display(),
                metadata.len(),
                member.bytes
            ));
        }
        let sum = checksums.sha256(&path).map_err(unreadable)?;
        if sum != member.sha256 {
            return Err(format!(
                "{} is damaged: its sha256 is {sum} instead of {}",
                path.display(),
                member.sha256
            ));
        }
    }
    Ok(())
}

/// A folder that is removed when this is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(parent: &Path, name: &str) -> io::Result<Temporary> {
        // The file lock is held, so a folder with this name was left by a process that died.
        let path = parent.join(format!(".{name}.partial"));
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
