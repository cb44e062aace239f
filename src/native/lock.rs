//! The lock file: the wheels that hold the native parts, and their contents.

use std::sync::OnceLock;

use serde::Deserialize;

use crate::error::{Error, Result};

/// The lock file at the root of the repository.
#[derive(Debug, Deserialize)]
pub struct Lock {
    /// The version of this format.
    pub format: u32,
    /// Every part.
    pub parts: Vec<Part>,
}

/// A native part: one pinned wheel per platform.
#[derive(Debug, Clone, Deserialize)]
pub struct Part {
    /// Name of the part in this library: `xla-cpu`.
    pub name: String,
    /// The part in whose place this one is used where that cannot be fetched.
    pub in_place_of: Option<String>,
    /// Purpose of the part, in a few words.
    pub purpose: String,
    /// The Python package.
    pub package: String,
    /// The version of the package.
    pub version: String,
    /// The licence, as an SPDX expression.
    pub license: String,
    /// Notice about copyright and contents.
    pub notice: String,
    /// The wheels, one per platform.
    pub wheels: Vec<Wheel>,
}

/// One wheel file.
#[derive(Debug, Clone, Deserialize)]
pub struct Wheel {
    /// The operating system, as in `std::env::consts::OS`; `any` fits all.
    pub os: String,
    /// The processor, as in `std::env::consts::ARCH`; `any` fits all.
    pub arch: String,
    /// The file name, with the platform tag.
    pub file: String,
    /// The checksum of the file, in hexadecimal.
    pub sha256: String,
    /// The size of the file, which is the size of the download.
    pub bytes: u64,
    /// The files in it that we use.
    pub members: Vec<Member>,
}

/// A file in a wheel.
#[derive(Debug, Clone, Deserialize)]
pub struct Member {
    /// Role of the file: `plugin`, `library`, `rom`; `mpiexec` and `program` are executables.
    pub role: String,
    /// Its path in the wheel, hence below the folder into which the wheel is installed.
    pub path: String,
    /// Its checksum, in hexadecimal.
    pub sha256: String,
    /// Its size.
    pub bytes: u64,
}

impl Lock {
    /// The lock file of this build.
    pub fn get() -> &'static Lock {
        static LOCK: OnceLock<Lock> = OnceLock::new();
        LOCK.get_or_init(|| {
            let text = include_str!("../../native.lock.json");
            serde_json::from_str(text).expect("native.lock.json is checked by a test")
        })
    }

    /// The part with this name.
    pub fn part(&self, name: &str) -> Result<&Part> {
        self.parts.iter().find(|part| part.name == name).ok_or_else(|| {
            let known: Vec<_> = self.parts.iter().map(|part| part.name.as_str()).collect();
            Error::Config(format!("no native part `{name}`; there is {}", known.join(", ")))
        })
    }
}

impl Part {
    /// The part that is used in place of this one where this one cannot be fetched.
    pub(super) fn substitute(&self) -> Option<&'static Part> {
        let replaces = |part: &&Part| part.in_place_of.as_ref() == Some(&self.name);
        Lock::get().parts.iter().find(replaces)
    }

    /// This part, or the one that takes its place if this one is not published for this machine.
    pub fn published(&'static self) -> &'static Part {
        match self.substitute() {
            Some(other) if !self.is_published() && other.is_published() => other,
            _ => self,
        }
    }

    /// True if there is a wheel for this machine.
    pub fn is_published(&self) -> bool {
        self.wheel().is_ok()
    }

    /// The wheel for this machine.
    pub fn wheel(&self) -> Result<&Wheel> {
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        let fits = |wheel: &&Wheel| {
            (wheel.os == os || wheel.os == "any") && (wheel.arch == arch || wheel.arch == "any")
        };
        self.wheels.iter().find(fits).ok_or_else(|| {
            let known: Vec<_> =
                self.wheels.iter().map(|wheel| format!("{} {}", wheel.os, wheel.arch)).collect();
            Error::Native {
                problem: format!(
                    "{} ({}) is not published for {os} {arch}, only for {}",
                    self.name,
                    self.purpose,
                    known.join(", ")
                ),
                help: match self.variable() {
                    Some(variable) => format!(
                        "use one of these platforms, or build the part yourself and point {variable} at it"
                    ),
                    None => "use one of these platforms".into(),
                },
            }
        })
    }

    /// Returns the environment variable that names a file in place of this part, if there is one.
    pub(super) fn variable(&self) -> Option<&'static str> {
        match self.name.as_str() {
            "xla-cpu" | "xla-cpu-2025" => Some("PODRACER_PJRT_PLUGIN"),
            "mpi" => Some("PODRACER_MPI"),
            _ => None,
        }
    }

    /// Requirement line for pip: the version and the only checksum that is accepted.
    pub(crate) fn requirement(&self, wheel: &Wheel) -> String {
        format!("{}=={} --hash=sha256:{}\n", self.package, self.version, wheel.sha256)
    }
}

impl Wheel {
    /// The first member with this role.
    pub fn member(&self, role: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.role == role)
    }

    /// Returns true if a file of the wheel is outside of the Python package (`NAME.data`): pip moves
    /// such files away from the folder that it installs into, so we unpack the wheel.
    pub(super) fn has_data_files(&self) -> bool {
        let is_data = |path: &str| path.split('/').next().is_some_and(|top| top.ends_with(".data"));
        self.members.iter().any(|member| is_data(&member.path))
    }

    /// Target options for pip, which make it take this wheel on any Python and machine: the tags of
    /// the file name. We use files of the wheel, not the Python package.
    pub(super) fn pip_target(&self) -> Vec<String> {
        // name-version-python-abi-platform.whl; the platform may be several, with dots between.
        let mut tags = self.file.trim_end_matches(".whl").rsplit('-');
        let (platform, abi, python) = (tags.next(), tags.next(), tags.next());
        let (Some(platform), Some(abi), Some(python)) = (platform, abi, python) else {
            return Vec::new();
        };
        // A wheel for every Python fits; its platform is pip's to judge.
        let Some(version) = python.strip_prefix("cp") else { return Vec::new() };
        let version = format!("{}.{}", &version[..1], &version[1..]);
        let mut arguments: Vec<String> =
            ["--implementation", "cp", "--python-version", &version, "--abi", abi]
                .map(String::from)
                .into();
        for platform in platform.split('.') {
            arguments.extend(["--platform".into(), platform.into()]);
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_is_whole() {
        let lock = Lock::get();
        assert_eq!(lock.format, 1);
        for part in &lock.parts {
            assert!(!part.license.is_empty() && !part.notice.is_empty(), "{}", part.name);
            for wheel in &part.wheels {
                let start = format!("{}-{}-", part.package.replace('-', "_"), part.version);
                assert!(wheel.file.starts_with(&start), "{}", wheel.file);
                let sums = wheel.members.iter().map(|member| &member.sha256);
                for sum in sums.chain([&wheel.sha256]) {
                    assert!(sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit()), "{sum}");
                }
                assert!(!wheel.members.is_empty());
                let any_python = wheel.file.contains("py3-none-");
                assert_eq!(wheel.pip_target().is_empty(), any_python, "{}", wheel.file);
            }
        }
        let error = lock.part("nothing").unwrap_err().to_string();
        assert!(error.starts_with("no native part `nothing`; there is xla-cpu"), "{error}");
    }

    #[test]
    fn an_older_xla_is_used_where_the_newer_one_is_not_published() {
        let xla = Lock::get().part("xla-cpu").unwrap();
        assert_eq!(xla.published().name, "xla-cpu");
        let elsewhere = Part { wheels: Vec::new(), ..xla.clone() };
        assert!(!elsewhere.is_published());
        let elsewhere: &'static Part = Box::leak(Box::new(elsewhere));
        assert_eq!(elsewhere.published().name, "xla-cpu-2025");
    }
}
