//! Detection of the processes of a launch that have not started yet, while `MPI_Init` waits for
//! them.
//!
//! No MPI call is possible before `MPI_Init` returns, and it does not return before the last
//! process has called it. The processes that OpenMPI starts on one machine share a session folder,
//! which OpenMPI creates for the launch and removes after it. Each process creates a file there
//! when it starts.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Identity of this process within its launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrivals {
    /// The launch's session folder on this machine; `None` if the launcher names none.
    folder: Option<PathBuf>,
    /// Rank of this process.
    rank: Option<usize>,
    /// Number of processes in all, and number of them on this machine.
    sizes: Option<(usize, usize)>,
}

impl Arrivals {
    /// Reads OpenMPI's environment variables through `variable`.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Arrivals {
        let number = |name: &str| variable(name)?.parse().ok();
        let size = number("OMPI_COMM_WORLD_SIZE");
        let here = number("OMPI_COMM_WORLD_LOCAL_SIZE");
        let folder = variable("PMIX_SERVER_TMPDIR").map(PathBuf::from);
        Arrivals { folder, rank: number("OMPI_COMM_WORLD_RANK"), sizes: size.zip(here) }
    }

    /// Creates this process's file in the session folder.
    pub fn tell(&self) -> io::Result<()> {
        match (&self.folder, self.rank) {
            (Some(folder), Some(rank)) => fs::write(folder.join(format!("podracer-{rank}")), ""),
            _ => Ok(()),
        }
    }

    /// Returns the ranks of the processes on this machine that have started.
    fn come(&self) -> BTreeSet<usize> {
        let files = self.folder.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(folder: &str, rank: usize, size: usize, here: usize) -> Arrivals {
        let (rank, size, here) = (rank.to_string(), size.to_string(), here.to_string());
        Arrivals::of(|name| match name {
            "PMIX_SERVER_TMPDIR" => Some(folder.to_string()),
            "OMPI_COMM_WORLD_RANK" => Some(rank.clone()),
            "OMPI_COMM_WORLD_SIZE" => Some(size.clone()),
            "OMPI_COMM_WORLD_LOCAL_SIZE" => Some(here.clone()),
            other => panic!("{other} is read"),
        })
    }

    #[test]
    fn those_that_have_not_come_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        let process = |rank| arrivals(folder, rank, 4, 4);
        for rank in [3, 1] {
            process(rank).tell().unwrap();
        }
        let message = process(1).complaint(9);
        assert_eq!(
            message,
            "--distributed: process 1 of 4 has waited 9 s for the others to start: process(es) [0, 2] \
             have not come"
        );
        assert!(process(1).speaks() && !process(3).speaks());
        [0, 2].into_iter().for_each(|rank| process(rank).tell().unwrap());
        let message = process(0).complaint(9);
        assert!(message.ends_with(": all have come, and MPI does not go on"), "{message}");
    }

    #[test]
    fn of_other_machines_no_more_is_said_than_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        let process = |rank| arrivals(folder, rank, 4, 2);
        process(2).tell().unwrap();
        let message = process(2).complaint(9);
        assert!(message.ends_with(": of the 2 of this machine only [2] have come"), "{message}");
        process(3).tell().unwrap();
        let message = process(2).complaint(9);
        assert!(
            message
                .ends_with("all 2 of this machine have come, so that those missing are on others"),
            "{message}"
        );
        // Another launcher, or a folder that does not exist.
        let unknown = Arrivals::of(|_| None);
        unknown.tell().unwrap();
        assert!(unknown.speaks());
        assert_eq!(
            unknown.complaint(9),
            "--distributed: process ? of ? has waited 9 s for the others to start"
        );
        let gone = arrivals("/no/such/folder", 0, 2, 2);
        assert!(gone.tell().is_err() && gone.speaks());
        assert!(gone.complaint(9).ends_with("for the others to start"));
    }
}
