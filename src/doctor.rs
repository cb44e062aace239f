//! `podracer doctor`: the components found, their paths and versions, and the remedies for missing
//! ones.

use std::env::consts::{ARCH, OS};
use std::ffi::CString;
use std::fmt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::files::private::only_ours;
use crate::lower::Platform;
use crate::lower::cache::{Cache, CacheStatus};
use crate::lower::pjrt::Plugin;
use crate::native::checksum::Checksums;
use crate::native::{Lock, Origin, Part, Settings, shown};

/// Reports the components that are found and those that are missing, by this process's environment.
pub fn doctor() -> Report {
    Report::of(&Settings::from_env())
}

/// State of a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Found and whole.
    Ok,
    /// Not there, but it will be fetched when it is needed.
    Missing,
    /// Not used, for a reason that is reported; everything runs without it.
    Unused,
    /// Wrong: nothing that needs it will run.
    Broken,
}

/// One finding.
#[derive(Debug, Clone)]
pub struct Check {
    /// Name of the component.
    pub name: String,
    /// State of the component.
    pub state: State,
    /// Description of the finding, with its path.
    pub detail: String,
    /// Remedy, if one is needed.
    pub fix: Option<String>,
}

/// All findings. Prints one line each, with the remedy below a component that has a problem.
#[derive(Debug, Clone)]
pub struct Report {
    /// The findings.
    pub checks: Vec<Check>,
}

impl Report {
    /// Looks at everything. Nothing is fetched. The plugin is loaded if its checksum is right, or
    /// if the user named it.
    pub fn of(settings: &Result<Settings>) -> Report {
        let settings = match settings {
            Ok(settings) => settings,
            Err(error) => return Report { checks: vec![Check::broken("folder", error)] },
        };
        let mut checks = vec![home(settings), python(settings)];
        checks.push(cache(settings));
        for part in &Lock::get().parts {
            checks.push(member_check(settings, part));
        }
        checks.push(plugin(settings, &checks));
        checks.extend(named_mpi(settings));
        Report { checks }
    }

    /// Returns true if programs run at once, with nothing to fetch: nothing is broken, and there is
    /// an XLA plugin.
    pub fn is_ready(&self) -> bool {
        let plugin = |check: &Check| check.name == PLUGIN && check.state == State::Ok;
        self.is_ok() && self.checks.iter().any(plugin)
    }

    /// Returns true if nothing is broken. Missing parts can be fetched.
    pub fn is_ok(&self) -> bool {
        self.checks.iter().all(|check| check.state != State::Broken)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        for check in &self.checks {
            let state = match check.state {
                State::Ok => "ok",
                State::Missing => "missing",
                State::Unused => "unused",
                State::Broken => "BROKEN",
            };
            writeln!(f, "{state:<8} {:<width$}  {}", check.name, check.detail)?;
            if let Some(fix) = &check.fix {
                writeln!(f, "{:<8} {:<width$}  -> {fix}", "", "")?;
            }
        }
        if self.is_ok() && self.checks.iter().any(|check| check.state == State::Missing) {
            writeln!(f, "A run downloads the missing parts that it needs.")?;
        }
        Ok(())
    }
}

impl Check {
    fn ok(name: &str, detail: String) -> Check {
        Check { name: name.into(), state: State::Ok, detail, fix: None }
    }

    fn unused(name: &str, detail: String) -> Check {
        Check { name: name.into(), state: State::Unused, detail, fix: None }
    }

    fn broken(name: &str, error: &Error) -> Check {
        let (detail, fix) = match error {
            Error::Native { problem, help } => (problem.clone(), Some(help.clone())),
            other => (other.to_string(), None),
        };
        Check { name: name.into(), state: State::Broken, detail, fix }
    }
}

fn home(settings: &Settings) -> Check {
    let home = &settings.home;
    let detail = match home.metadata() {
        Ok(metadata) if metadata.is_dir() && is_writable(home) => match only_ours(&metadata) {
            Ok(()) => home.display().to_string(),
            Err(reason) => {
                let detail = format!("{}: {reason}", home.display());
                let fix = "make it a folder that you own and only you can write to: chmod go-w";
                return Check { fix: Some(fix.into()), ..Check::ok("folder", detail) };
            }
        },
        Ok(_) => {
            return Check {
                name: "folder".into(),
                state: State::Broken,
                detail: format!("{} is no folder that we may write to", home.display()),
                fix: Some("make it one, or set PODRACER_HOME to a folder that is".into()),
            };
        }
        Err(_) => format!("{} (made when it is needed)", home.display()),
    };
    Check::ok("folder", detail)
}

/// Returns true if this process may create files in the folder.
fn is_writable(folder: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = CString::new(folder.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path ends with a zero and outlives the call.
    unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) == 0 }
}

fn python(settings: &Settings) -> Check {
    match settings.python() {
        Some(python) => Check::ok("python3", python.display().to_string()),
        None => Check {
            name: "python3".into(),
            state: State::Missing,
            detail: format!("not on PATH ({})", shown(&settings.path)),
            fix: Some("install Python 3 with pip: it fetches native parts".into()),
        },
    }
}

/// The executable cache: its size and limit, or why it is not used.
fn cache(settings: &Settings) -> Check {
    const NAME: &str = "cache";
    match Cache::of(settings).status() {
        CacheStatus::Used { dir, entries, bytes, limit } => {
            let megabytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            Check::ok(
                NAME,
                format!(
                    "{}, {entries} compiled programs, {:.1} of at most {:.0} MiB",
                    dir.display(),
                    megabytes(bytes),
                    megabytes(limit)
                ),
            )
        }
        CacheStatus::Off => Check::unused(NAME, "turned off by the environment".into()),
        CacheStatus::Refused(dir, reason) => Check {
            fix: Some(
                "make it a folder that you own and only you can write to, or remove it".into(),
            ),
            ..Check::unused(NAME, format!("{}: {reason}", dir.display()))
        },
    }
}

fn member_check(settings: &Settings, part: &Part) -> Check {
    let version = format!("{} {}", part.package, part.version);
    let unused = |why: String| Check::unused(&part.name, format!("{version}: {why}"));
    if !part.is_published() {
        return unused(format!("not published for {OS} {ARCH}"));
    }
    let found = settings.candidate(part).and_then(|found| {
        found.map(|found| settings.checked(part, found, &Checksums::Fresh)).transpose()
    });
    match found {
        Err(error) => Check::broken(&part.name, &error),
        Ok(Some(found)) => {
            let origin = match found.origin {
                Origin::Python => "installed Python package",
                Origin::Home | Origin::Fetched => "our folder",
            };
            let root = found.root.display();
            Check::ok(&part.name, format!("{version} in {root} ({origin}, checksums match)"))
        }
        Ok(None) => match &part.in_place_of {
            Some(first) if Lock::get().part(first).is_ok_and(Part::is_published) => {
                unused(format!("used where {first} cannot be fetched"))
            }
            _ => Check {
                name: part.name.clone(),
                state: State::Missing,
                detail: format!("{version}: {}", part.purpose),
                fix: Some(format!("podracer fetch {}", part.name)),
            },
        },
    }
}

/// The MPI library that the user named, if any.
fn named_mpi(settings: &Settings) -> Option<Check> {
    match settings.named_mpi() {
        Ok(None) => None,
        Ok(Some(path)) => Some(Check::ok("PODRACER_MPI", path.display().to_string())),
        Err(error) => Some(Check::broken("PODRACER_MPI", &error)),
    }
}

/// The name of the finding about the plugin that compiles and runs programs.
const PLUGIN: &str = "XLA plugin";

fn plugin(settings: &Settings, checks: &[Check]) -> Check {
    let platform = match Platform::from_env() {
        Ok(platform) => platform,
        Err(error) => return Check::broken(PLUGIN, &error),
    };
    // A plugin that the user names is not a part.
    let part = platform.facts().plugin_part.filter(|_| settings.plugin.is_none());
    let damaged = |check: &&Check| part == Some(&check.name) && check.state == State::Broken;
    if let Some(part) = checks.iter().find(damaged) {
        return Check {
            name: PLUGIN.into(),
            state: State::Broken,
            detail: format!("not loaded, because {} is not what it should be", part.name),
            fix: part.fix.clone(),
        };
    }
    // Looking must not fetch.
    let offline = Settings { fetch: false, quiet: true, ..settings.clone() };
    let path = match (platform.locate_plugin(&offline), part) {
        (Ok(path), _) => path,
        (Err(error), None) => return Check::broken(PLUGIN, &error),
        (Err(_), Some(part)) => {
            return Check {
                name: PLUGIN.into(),
                state: State::Missing,
                detail: "none yet".into(),
                fix: Some(format!("podracer fetch {part}")),
            };
        }
    };
    let plugin = match Plugin::load(path) {
        Ok(plugin) => plugin,
        Err(error) => return Check::broken(PLUGIN, &error),
    };
    let (major, minor) = plugin.api_version();
    Check::ok(
        PLUGIN,
        format!(
            "{}, PJRT C API {major}.{minor}, StableHLO {}",
            plugin.path().display(),
            plugin.stablehlo_version()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_not_published_here_is_unused() {
        let part = Part { wheels: Vec::new(), ..Lock::get().part("onednn").unwrap().clone() };
        let check = member_check(&Settings::from_env().unwrap(), &part);
        assert_eq!((check.state, &check.fix), (State::Unused, &None));
        assert!(check.detail.ends_with(&format!("not published for {OS} {ARCH}")), "{check:?}");
    }
}
