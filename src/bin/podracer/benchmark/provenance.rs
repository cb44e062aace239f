//! Commit of the program and machine that it runs on.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use super::results::Machine;

/// Sources of the program, as paths in the repository.
const SOURCES: [&str; 5] = ["src", "derive", "Cargo.toml", "Cargo.lock", "native.lock.json"];

/// Commit of the program.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// Hash; `None` if the program was built outside of a repository, or the repository is gone.
    pub hash: Option<String>,
    /// True if the sources are those of the commit, and none is newer than the program.
    pub clean: bool,
}

impl Commit {
    /// Returns the commit of the repository in which the program was built.
    pub fn of_program() -> Commit {
        let hash = git(&["rev-parse", "HEAD"]).map(|text| text.trim().to_string());
        let status = git(&[&["status", "--porcelain", "--"][..], &SOURCES[..]].concat());
        let clean = hash.is_some() && status.is_some_and(|text| text.is_empty()) && !is_stale();
        Commit { hash, clean }
    }
}

/// Returns the output of git in the repository of the program.
fn git(arguments: &[&str]) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if !root.join(".git").exists() {
        return None;
    }
    let mut command = Command::new("git");
    command.arg("-C").arg(root).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

/// Returns true unless the program is known to be newer than all of its sources.
fn is_stale() -> bool {
    let program = std::env::current_exe().and_then(fs::metadata);
    let Some(built) = program.and_then(|program| program.modified()).ok() else { return true };
    let Some(files) = git(&[&["ls-files", "--"][..], &SOURCES[..]].concat()) else { return true };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let modified = |name: &str| fs::metadata(root.join(name)).and_then(|file| file.modified());
    files.lines().any(|name| modified(name).unwrap_or(SystemTime::UNIX_EPOCH) > built)
}

/// Returns the machine that the program runs on.
pub fn machine() -> Machine {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    Machine { processor: model.unwrap_or(std::env::consts::ARCH).to_string(), cores }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_one_of_the_repository() {
        let commit = Commit::of_program();
        if let Some(hash) = commit.hash {
            assert!(hash.len() >= 40 && hash.chars().all(|c| c.is_ascii_hexdigit()), "{hash}");
            assert!(git(&["cat-file", "-t", &hash]).is_some_and(|kind| kind == "commit\n"));
        }
        assert!(machine().cores > 0);
    }
}
