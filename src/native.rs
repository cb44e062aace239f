//! Native parts: files that are loaded at run time and come as members of pinned Python wheels.
//!
//! `native.lock.json` pins every part. [`Settings::locate`] finds a part, if possible without a
//! network, in this order:
//!
//! 1. the file that an environment variable names (`PODRACER_PJRT_PLUGIN` for the XLA plugin,
//!    `PODRACER_MPI` for MPI): if that is wrong it is an error, never a reason to look elsewhere;
//! 2. installed Python packages, in the folders that can be derived without running Python;
//! 3. our own folder, `$PODRACER_HOME` (`~/.cache/podracer` without it);
//! 4. the folders that Python itself names: it is run only now;
//! 5. [`Settings::fetch`]: pip installs the wheel into our folder, checked against the lock file.
//!
//! In steps 2 to 4 every byte is checked against the lock file before a part counts as found, so
//! before any of its code runs. Step 1 is the user's own choice and is not checked.

pub(crate) mod checksum;
mod fetch;
mod lock;
mod mpi;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

pub use lock::{Lock, Member, Part, Wheel};
pub use mpi::MPI_LIBRARY;

use self::checksum::Checksums;
use crate::error::{Error, Result};
use crate::output;

/// The versions of CUDA that JAX has plugins for, the newest first.
const CUDA: [u32; 2] = [13, 12];

/// Search paths for native parts, and the way they are fetched. A test makes its own.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The XLA plugin that the user named (`PODRACER_PJRT_PLUGIN`).
    pub plugin: Option<PathBuf>,
    /// The MPI library, or the folder with it, that the user named (`PODRACER_MPI`).
    pub mpi: Option<PathBuf>,
    /// Our folder (`PODRACER_HOME`).
    pub home: PathBuf,
    /// The folders with programs (`PATH`), in which `python3` is looked for.
    pub path: OsString,
    /// The active Python environment, if any (`VIRTUAL_ENV` or `CONDA_PREFIX`).
    pub python_prefix: Option<PathBuf>,
    /// The folder above that of the running program: its Python environment, if pip installed it.
    pub own_prefix: Option<PathBuf>,
    /// The user's folder (`HOME`), below which pip installs for one user.
    pub user_home: Option<PathBuf>,
    /// If true, installed Python packages are searched.
    pub python_packages: bool,
    /// If true, missing parts are fetched (`PODRACER_OFFLINE=1` disables this).
    pub fetch: bool,
    /// If true, a fetch prints nothing on the standard error stream.
    pub quiet: bool,
}

/// A part that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The folder that holds the wheel's members.
    pub root: PathBuf,
    /// Source in which it was found.
    pub origin: Origin,
}

/// Source in which a part was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// An installed Python package.
    Python,
    /// Our folder.
    Home,
    /// Our folder, fetched just now.
    Fetched,
}

impl Settings {
    /// The settings of this process's environment.
    pub fn from_env() -> Result<Settings> {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let user_home = var("HOME").map(PathBuf::from);
        let home = match (var("PODRACER_HOME"), var("XDG_CACHE_HOME"), &user_home) {
            (Some(home), _, _) => PathBuf::from(home),
            (None, Some(cache), _) => PathBuf::from(cache).join("podracer"),
            (None, None, Some(user)) => user.join(".cache/podracer"),
            (None, None, None) => {
                return Err(Error::Native {
                    problem: "no folder for native parts: neither PODRACER_HOME nor HOME is set"
                        .into(),
                    help: "set PODRACER_HOME to a folder that you may write to".into(),
                });
            }
        };
        Ok(Settings {
            plugin: var("PODRACER_PJRT_PLUGIN").map(PathBuf::from),
            mpi: var("PODRACER_MPI").map(PathBuf::from),
            home,
            path: var("PATH").unwrap_or_default(),
            python_prefix: var("VIRTUAL_ENV").or_else(|| var("CONDA_PREFIX")).map(PathBuf::from),
            own_prefix: own_prefix(),
            user_home,
            python_packages: true,
            fetch: var("PODRACER_OFFLINE").is_none_or(|value| value == "0"),
            quiet: false,
        })
    }

    /// The XLA plugin for CPUs.
    pub fn locate_cpu_plugin(&self) -> Result<PathBuf> {
        if let Some(plugin) = self.named_plugin()? {
            return Ok(plugin);
        }
        let (part, found) = self.locate_or_substitute(Lock::get().part("xla-cpu")?.published())?;
        let member = part.wheel()?.member("plugin").expect("the lock file's test sees to it");
        Ok(found.root.join(&member.path))
    }

    /// Finds a part, or else the part that is used in its place where it cannot be fetched. The error is
    /// that of the first one.
    fn locate_or_substitute(&self, part: &'static Part) -> Result<(&'static Part, Found)> {
        let error = match self.locate(part) {
            Ok(found) => return Ok((part, found)),
            Err(error) => error,
        };
        let is_damaged = matches!(self.candidate(part), Ok(Some(_)));
        let Some(substitute) = part.substitute().filter(|_| !is_damaged) else { return Err(error) };
        let Ok(found) = self.locate(substitute) else { return Err(error) };
        if !self.quiet {
            let Part { package, version, .. } = substitute;
            output::stderr_line(format_args!("podracer: {error}\n  using {package} {version}"));
        }
        Ok((substitute, found))
    }

    /// The XLA plugin for NVIDIA's GPUs, of the newest CUDA, as JAX's package has it. With the
    /// libraries it needs it has gigabytes, so it is never fetched.
    pub fn locate_cuda_plugin(&self) -> Result<PathBuf> {
        if let Some(plugin) = self.named_plugin()? {
            return Ok(plugin);
        }
        let within = |root: &PathBuf| {
            let plugin = |cuda| root.join(format!("jax_plugins/xla_cuda{cuda}/xla_cuda_plugin.so"));
            CUDA.into_iter().map(plugin).find(|plugin| plugin.is_file())
        };
        let mut found = None;
        if self.python_packages {
            found = self.likely_python_folders().iter().find_map(within);
            if let (None, Some(python)) = (&found, self.python()) {
                found = python_folders(&python).iter().find_map(within);
            }
        }
        found.ok_or_else(|| Error::Native {
            problem: "no XLA plugin for NVIDIA GPUs: no Python package has \
                      jax_plugins/xla_cuda13/xla_cuda_plugin.so"
                .into(),
            help: "install it with the libraries it needs: python3 -m pip install \
                   'jax-cuda13-plugin[with-cuda]'; or point PODRACER_PJRT_PLUGIN at one; or unset \
                   PODRACER_PLATFORM to run on the CPU"
                .into(),
        })
    }

    /// The plugin that the user named, which must be there.
    fn named_plugin(&self) -> Result<Option<PathBuf>> {
        let Some(plugin) = &self.plugin else { return Ok(None) };
        match plugin.metadata() {
            Ok(metadata) if metadata.is_file() => Ok(Some(plugin.clone())),
            Ok(_) => Err(wrong_plugin(plugin, "is no file")),
            Err(source) => Err(wrong_plugin(plugin, &format!("cannot be read: {source}"))),
        }
    }

    /// Finds a part, and fetches it if it is nowhere.
    pub fn locate(&self, part: &Part) -> Result<Found> {
        let wheel = part.wheel()?;
        if let Some(found) = self.find(part)? {
            return Ok(found);
        }
        if self.python_packages
            && let Some(python) = self.python()
            && let Some(root) = python_folders(&python).iter().find(|root| complete(wheel, root))
        {
            let found = Found { root: root.clone(), origin: Origin::Python };
            return self.checked(part, found, &Checksums::remembered(&self.home));
        }
        if !self.fetch {
            return Err(self.offline(part, "is not installed"));
        }
        Ok(Found { root: self.fetch(part)?, origin: Origin::Fetched })
    }

    /// Finds a part as [`Settings::locate`] does, but reads every byte anew, and fetches a part of
    /// our folder again if it is damaged.
    pub fn install(&self, part: &Part) -> Result<Found> {
        let Some(found) = self.candidate(part)? else { return self.locate(part) };
        let origin = found.origin;
        match self.checked(part, found, &Checksums::Fresh) {
            Ok(found) => Ok(found),
            // pip installed it, and pip has to mend it.
            Err(error) if origin == Origin::Python => Err(error),
            Err(_) if !self.fetch => Err(self.offline(part, "is damaged")),
            Err(_) => Ok(Found { root: self.fetch(part)?, origin: Origin::Fetched }),
        }
    }

    /// Finds a part by looking at files alone: no Python is run, nothing is fetched. Every file of
    /// it has its pinned checksum.
    ///
    /// # Errors
    /// [`Error::Native`] if the files are present and differ from the lock file.
    pub fn find(&self, part: &Part) -> Result<Option<Found>> {
        let checked = |found| self.checked(part, found, &Checksums::remembered(&self.home));
        self.candidate(part)?.map(checked).transpose()
    }

    /// The folder in which a part seems to be: by the sizes of its files in Python's folders, by
    /// its name in ours. Nothing may be loaded from it before [`Settings::checked`].
    pub(crate) fn candidate(&self, part: &Part) -> Result<Option<Found>> {
        let wheel = part.wheel()?;
        if self.python_packages {
            let folders = self.likely_python_folders();
            if let Some(root) = folders.into_iter().find(|root| complete(wheel, root)) {
                return Ok(Some(Found { root, origin: Origin::Python }));
            }
        }
        let root = self.install_dir(part, wheel);
        // In our own folder a part is whole, or something happened to it that the user should know.
        Ok(root.exists().then_some(Found { root, origin: Origin::Home }))
    }

    /// The part at `found`, if its files are those of the lock file in every byte.
    pub(crate) fn checked(
        &self,
        part: &Part,
        found: Found,
        checksums: &Checksums,
    ) -> Result<Found> {
        match fetch::check_members(part.wheel()?, &found.root, checksums) {
            Ok(()) => Ok(found),
            Err(problem) => Err(damaged(part, &found, problem)),
        }
    }

    fn offline(&self, part: &Part, state: &str) -> Error {
        Error::Native {
            problem: format!(
                "{} ({}) {state}, and PODRACER_OFFLINE forbids fetching it",
                part.name, part.purpose
            ),
            help: format!(
                "unset PODRACER_OFFLINE, or install it yourself: python3 -m pip install --no-deps \
                 {}=={}",
                part.package, part.version
            ),
        }
    }

    /// The folder of a part below ours. Its name has the checksum, so versions live side by side.
    pub fn install_dir(&self, part: &Part, wheel: &Wheel) -> PathBuf {
        let name = format!("{}-{}-{}", part.package, part.version, &wheel.sha256[..12]);
        self.home.join("parts").join(name)
    }

    /// The `python3` of the Python environment that pip installed this program into, or that on the path.
    pub fn python(&self) -> Option<PathBuf> {
        let own = self.own_prefix.iter().map(|prefix| prefix.join("bin"));
        own.chain(std::env::split_paths(&self.path))
            .map(|folder| folder.join("python3"))
            .find(|python| is_executable(python))
    }

    /// Folders of installed packages that can be derived from the file system.
    fn likely_python_folders(&self) -> Vec<PathBuf> {
        let mut prefixes: Vec<PathBuf> = Vec::new();
        prefixes.extend(self.own_prefix.clone());
        prefixes.extend(self.python_prefix.clone());
        // `<prefix>/bin/python3`, behind links.
        if let Some(python) = self.python()
            && let Ok(python) = python.canonicalize()
            && let Some(prefix) = python.parent().and_then(Path::parent)
        {
            prefixes.push(prefix.to_path_buf());
        }
        prefixes.extend(self.user_home.as_ref().map(|home| home.join(".local")));
        let mut folders = Vec::new();
        for prefix in prefixes {
            let Ok(entries) = prefix.join("lib").read_dir() else { continue };
            let mut versions: Vec<PathBuf> = entries
                .flatten()
                .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"python3"))
                .map(|entry| entry.path())
                .collect();
            versions.sort();
            for version in versions.iter().rev() {
                folders.push(version.join("site-packages"));
                folders.push(version.join("dist-packages"));
            }
        }
        folders
    }
}

/// Returns the folder above that of this program: `ENV` of `ENV/bin/podracer`.
fn own_prefix() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.parent()?.parent()?.to_path_buf())
}

/// Returns the error, with its remedy, for a part that is damaged.
fn damaged(part: &Part, found: &Found, problem: String) -> Error {
    let help = match found.origin {
        Origin::Python => format!(
            "install the package again: python3 -m pip install --force-reinstall --no-deps {}=={}",
            part.package, part.version
        ),
        Origin::Home | Origin::Fetched => {
            format!("run `podracer fetch {}`, which installs it again", part.name)
        }
    };
    Error::Native { problem, help }
}

fn wrong_plugin(plugin: &Path, what: &str) -> Error {
    Error::Native {
        problem: format!("PODRACER_PJRT_PLUGIN is {}, which {what}", plugin.display()),
        help: "set it to the path of a PJRT plugin, or unset it to use the one of this library"
            .into(),
    }
}

/// Returns true if every member of the wheel is below `root`, in its pinned size. A package of
/// another version counts as missing.
fn complete(wheel: &Wheel, root: &Path) -> bool {
    wheel.members.iter().all(|member| {
        let metadata = root.join(&member.path).metadata();
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.len() == member.bytes)
    })
}

/// The package folders that this Python names. It is asked once per process.
fn python_folders(python: &Path) -> Vec<PathBuf> {
    static KNOWN: OnceLock<Mutex<HashMap<PathBuf, Vec<PathBuf>>>> = OnceLock::new();
    let mut known =
        KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(folders) = known.get(python) {
        return folders.clone();
    }
    const ASK: &str =
        "import sys; print('\\n'.join(p for p in sys.path if p.endswith('-packages')))";
    // A Python that does not answer has no packages for us.
    let answer = answer_of(Command::new(python).args(["-c", ASK])).unwrap_or_default();
    let folders: Vec<PathBuf> = answer.lines().map(PathBuf::from).collect();
    known.insert(python.to_path_buf(), folders.clone());
    folders
}

/// Returns what a program that succeeds writes to its standard output, if that is short.
pub(crate) fn answer_of(command: &mut Command) -> Option<String> {
    const MAX_ANSWER: u64 = 1 << 20;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let mut answer = Vec::new();
    let read = child.stdout.take()?.take(MAX_ANSWER + 1).read_to_end(&mut answer);
    let whole = read.is_ok_and(|bytes| bytes as u64 <= MAX_ANSWER);
    if !whole {
        let _ = child.kill();
    }
    let status = child.wait().ok()?;
    (whole && status.success()).then(|| String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

/// The XLA plugin for CPUs, by this process's environment; fetched if it is nowhere.
pub fn locate_cpu_plugin() -> Result<PathBuf> {
    Settings::from_env()?.locate_cpu_plugin()
}

/// The folder that holds the members of the part with this name, by this process's environment;
/// fetched if it is nowhere.
pub fn locate(part: &str) -> Result<Found> {
    Settings::from_env()?.locate(Lock::get().part(part)?)
}

/// The value of an environment variable as text, for messages.
pub(crate) fn shown(value: &OsStr) -> String {
    value.to_string_lossy().into_owned()
}
