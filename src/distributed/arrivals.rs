//! Detection of the processes of a launch that have not started yet, while `MPI_Init` waits for
//! them.
//!
//! No MPI call is possible before `MPI_Init` returns, and it does not return before the last
//! process has called it. The processes of one machine have one parent, the launcher's helper there,
//! and a folder for temporary files with its number. Each process creates a file there when it starts.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use super::launch::Launch;

/// Identity of this process within its launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrivals {
    /// The launch's folder on this machine.
    folder: PathBuf,
    /// Rank of this process.
    rank: Option<usize>,
    /// Number of processes in all, and number of them on this machine.
    sizes: Option<(usize, usize)>,
}

impl Arrivals {
    /// Returns the identity of this process within `launch`.
    pub fn of(launch: &Launch) -> Arrivals {
        Arrivals::within(launch, folder_of_the_parent())
    }

    fn within(launch: &Launch, folder: PathBuf) -> Arrivals {
        Arrivals { folder, rank: launch.rank, sizes: launch.size.zip(launch.local_size) }
    }

    /// Creates this process's file in the folder.
    pub fn announce(&self) -> io::Result<()> {
        let Some(file) = self.file() else { return Ok(()) };
        let made = create_private(&self.folder);
        if made.is_err() && !self.folder.is_dir() {
            return made;
        }
        fs::write(file, "")
    }

    /// Removes this process's file, and the folder with the last one.
    pub fn leave(&self) {
        if let Some(file) = self.file() {
            // Files of a folder for temporary files; nothing depends on their removal.
            let _ = fs::remove_file(file);
            let _ = fs::remove_dir(&self.folder);
        }
    }

    fn file(&self) -> Option<PathBuf> {
        Some(self.folder.join(format!("podracer-{}", self.rank?)))
    }

    /// Returns the ranks of the processes on this machine that have started.
    fn come(&self) -> BTreeSet<usize> {
        let files = fs::read_dir(&self.folder).into_iter().flatten();
        let names = files.flatten().filter_map(|file| file.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix("podracer-")?.parse().ok()).collect()
    }

    /// Returns true if this process has the lowest rank of those started on this machine, and
    /// therefore reports the missing ones.
    pub fn speaks(&self) -> bool {
        self.rank.is_none_or(|rank| self.come().first().is_none_or(|&first| rank <= first))
    }

    /// Returns the error message about the missing processes after a wait of `seconds`.
    pub fn complaint(&self, seconds: u64) -> String {
        let of = |x: Option<usize>| x.map_or_else(|| "?".to_string(), |x| x.to_string());
        let begin = format!(
            "--distributed: process {} of {} has waited {seconds} s for the others to start",
            of(self.rank),
            of(self.sizes.map(|(size, _)| size))
        );
        let come = self.come();
        match self.sizes {
            Some((size, here)) if !come.is_empty() && size == here => {
                let missing: Vec<usize> = (0..size).filter(|rank| !come.contains(rank)).collect();
                match missing.is_empty() {
                    false => format!("{begin}: process(es) {missing:?} have not come"),
                    true => format!("{begin}: all have come, and MPI does not go on"),
                }
            }
            // The ranks of the missing processes of this machine are unknown: only they have them.
            Some((_, here)) if !come.is_empty() && come.len() < here => format!(
                "{begin}: of the {here} of this machine only {:?} have come",
                Vec::from_iter(come)
            ),
            Some((_, here)) if !come.is_empty() => format!(
                "{begin}: all {here} of this machine have come, so that those missing are on others"
            ),
            _ => begin,
        }
    }
}

/// Returns the folder of the processes with the parent of this one.
fn folder_of_the_parent() -> PathBuf {
    std::env::temp_dir().join(name_of_the_launch())
}

/// Returns a name that the processes of this launch on this machine share.
pub(super) fn name_of_the_launch() -> String {
    #[cfg(unix)]
    let parent = std::os::unix::process::parent_id();
    #[cfg(not(unix))]
    let parent = 0;
    // A later process may have the same number.
    let stat = fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let started = fields.split_whitespace().nth(19).unwrap_or("0");
    format!("podracer-launch-{parent}-{started}")
}

#[cfg(unix)]
fn create_private(folder: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn create_private(folder: &std::path::Path) -> io::Result<()> {
    fs::create_dir(folder)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn arrivals(folder: &Path, rank: usize, size: usize, here: usize) -> Arrivals {
        let numbers = [("PMI_RANK", rank), ("PMI_SIZE", size), ("MPI_LOCALNRANKS", here)];
        let launch = Launch::of(|name| {
            numbers.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string())
        });
        Arrivals::within(&launch, folder.join("launch"))
    }

    #[test]
    fn those_that_have_not_come_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let process = |rank| arrivals(folder, rank, 4, 4);
        for rank in [3, 1] {
            process(rank).announce().unwrap();
        }
        let message = process(1).complaint(9);
        assert_eq!(
            message,
            "--distributed: process 1 of 4 has waited 9 s for the others to start: process(es) [0, 2] \
             have not come"
        );
        assert!(process(1).speaks() && !process(3).speaks());
        [0, 2].into_iter().for_each(|rank| process(rank).announce().unwrap());
        let message = process(0).complaint(9);
        assert!(message.ends_with(": all have come, and MPI does not go on"), "{message}");
        [0, 1, 2, 3].into_iter().for_each(|rank| process(rank).leave());
        assert!(!folder.join("launch").exists());
    }

    #[test]
    fn of_other_machines_no_more_is_said_than_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let process = |rank| arrivals(folder, rank, 4, 2);
        process(2).announce().unwrap();
        let message = process(2).complaint(9);
        assert!(message.ends_with(": of the 2 of this machine only [2] have come"), "{message}");
        process(3).announce().unwrap();
        let message = process(2).complaint(9);
        assert!(
            message
                .ends_with("all 2 of this machine have come, so that those missing are on others"),
            "{message}"
        );
        // No launcher that is known, or a folder that cannot be made.
        let unknown = Arrivals::within(&Launch::default(), folder.join("unknown"));
        unknown.announce().unwrap();
        assert!(unknown.speaks());
        assert_eq!(
            unknown.complaint(9),
            "--distributed: process ? of ? has waited 9 s for the others to start"
        );
        let gone = arrivals(Path::new("/no/such/folder"), 0, 2, 2);
        assert!(gone.announce().is_err() && gone.speaks());
        assert!(gone.complaint(9).ends_with("for the others to start"));
        assert_eq!(Arrivals::of(&Launch::default()).folder, folder_of_the_parent());
    }
}
