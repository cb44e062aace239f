//! Detection of the processes of a launch that have not started yet, while `MPI_Init` waits for
//! them.
//!
//! No MPI call is possible before `MPI_Init` returns, and it does not return before the last
//! process has called it. The processes of one machine have one parent, the launcher's helper there.
//! Each process opens a socket when it starts, whose name has the parent's number and the rank. The
//! name is not in the file system, and the system frees it when the process ends, however it ends.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use super::launch::Launch;

/// Name of the processes of MPICH's launcher that start those of a machine. They start all of them at
/// once, and are the parents of no others.
const HELPER: &str = "hydra_pmi_proxy";

/// Identity of this process within its launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Arrivals {
    /// The launch's name on this machine.
    launch: String,
    /// Rank of this process.
    rank: Option<usize>,
    /// Number of processes in all, and number of them on this machine.
    sizes: Option<(usize, usize)>,
}

impl Arrivals {
    /// Returns the identity of this process within `launch`.
    pub fn of(launch: &Launch) -> Arrivals {
        Arrivals::within(launch, name_of_the_launch())
    }

    fn within(launch: &Launch, name: String) -> Arrivals {
        Arrivals { launch: name, rank: launch.rank, sizes: launch.size.zip(launch.local_size) }
    }

    /// Announces this process to the others of its machine until the result is dropped; `None` if
    /// it has no rank.
    ///
    /// # Errors
    /// Returns the error of the system, which is also that there are no such sockets.
    pub fn announce(&self) -> io::Result<Option<Presence>> {
        self.rank.map(|rank| presence(&format!("{}/{rank}", self.launch))).transpose()
    }

    /// Announces this process as one that runs by itself, until the result is dropped.
    ///
    /// # Errors
    /// Returns the same errors as [`announce`](Arrivals::announce).
    pub fn announce_alone(&self) -> io::Result<Option<Presence>> {
        self.rank.map(|rank| presence(&format!("{}/alone/{rank}", self.launch))).transpose()
    }

    /// Returns the ranks of the processes on this machine that have started.
    fn come(&self) -> BTreeSet<usize> {
        self.announced("")
    }

    /// Returns the ranks of the processes on this machine whose sockets have this kind of name.
    fn announced(&self, kind: &str) -> BTreeSet<usize> {
        // One socket a line, the name last. Names that are not in the file system begin with `@`.
        let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let start = format!("@{}/{kind}", self.launch);
        let names = sockets.lines().filter_map(|line| line.split_whitespace().last());
        names.filter_map(|name| name.strip_prefix(&start)?.parse().ok()).collect()
    }

    /// Returns true if this process has the lowest rank of those started on this machine, and
    /// therefore reports the missing ones.
    pub fn speaks(&self) -> bool {
        self.rank.is_none_or(|rank| self.come().first().is_none_or(|&first| rank <= first))
    }

    /// Returns the error message about processes that will not come: they have ended, or run by
    /// themselves. `None` if there are none, or if it is unknown.
    pub fn never(&self) -> Option<String> {
        let alone = self.announced("alone/");
        if !alone.is_empty() {
            let alone = Vec::from_iter(alone);
            return Some(format!(
                "--distributed: process(es) {alone:?} run without --distributed, which all need"
            ));
        }
        let (size, here) = self.sizes?;
        let alive = alive()?;
        // The ranks of the processes of this machine are unknown if there are others.
        let ended = match size == here {
            true => (0..size).filter(|rank| !alive.contains(rank)).collect(),
            false => Vec::new(),
        };
        match here.saturating_sub(alive.len()) {
            0 => None,
            _ if !ended.is_empty() => Some(format!(
                "--distributed: process(es) {ended:?} ended before the others had started"
            )),
            count => Some(format!(
                "--distributed: {count} of the {here} processes of this machine ended before the \
                 others had started"
            )),
        }
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

/// Returns the ranks of the processes of this machine that have not ended, this one among them; `None`
/// if their parent may not be that of all.
fn alive() -> Option<BTreeSet<usize>> {
    let parent = parent();
    let name = fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
    if name.trim() != HELPER {
        return None;
    }
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let rank = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name: the state, which is Z once the process has ended, and the parent.
        let mut fields = stat.rsplit(')').next()?.split_whitespace();
        let runs = fields.next()? != "Z" && fields.next()?.parse::<u32>().ok()? == parent;
        let variables = runs.then(|| fs::read(format!("/proc/{pid}/environ")).ok())??;
        let mut variables = variables.split(|&byte| byte == 0);
        let rank = variables.find_map(|entry| entry.strip_prefix(b"PMI_RANK="))?;
        str::from_utf8(rank).ok()?.parse().ok()
    };
    Some(pids.filter_map(rank).collect())
}

/// Returns the number of the parent process; 0 if the system does not tell.
fn parent() -> u32 {
    #[cfg(unix)]
    return std::os::unix::process::parent_id();
    #[cfg(not(unix))]
    return 0;
}

/// Returns a name that the processes of this launch on this machine share.
pub(super) fn name_of_the_launch() -> String {
    let parent = parent();
    // A later process may have the same number.
    let stat = fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let started = fields.split_whitespace().nth(19).unwrap_or("0");
    format!("podracer-launch-{parent}-{started}")
}

/// Socket by which the other processes of a machine see this one.
#[cfg(target_os = "linux")]
pub(super) type Presence = std::os::unix::net::UnixDatagram;

#[cfg(not(target_os = "linux"))]
pub(super) enum Presence {}

#[cfg(target_os = "linux")]
fn presence(name: &str) -> io::Result<Presence> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

#[cfg(not(target_os = "linux"))]
fn presence(_name: &str) -> io::Result<Presence> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(name: &str, rank: usize, size: usize, here: usize) -> Arrivals {
        let numbers = [("PMI_RANK", rank), ("PMI_SIZE", size), ("MPI_LOCALNRANKS", here)];
        let launch = Launch::of(|name| {
            numbers.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string())
        });
        Arrivals::within(&launch, format!("podracer-test-{name}-{}", std::process::id()))
    }

    #[test]
    fn those_that_have_not_come_are_named() {
        let process = |rank| arrivals("missing", rank, 4, 4);
        let come = [3, 1].map(|rank| process(rank).announce().unwrap().unwrap());
        let message = process(1).complaint(9);
        assert_eq!(
            message,
            "--distributed: process 1 of 4 has waited 9 s for the others to start: process(es) [0, 2] \
             have not come"
        );
        assert!(process(1).speaks() && !process(3).speaks());
        let more = [0, 2].map(|rank| process(rank).announce().unwrap().unwrap());
        let message = process(0).complaint(9);
        assert!(message.ends_with(": all have come, and MPI does not go on"), "{message}");
        drop((come, more));
        assert!(process(0).come().is_empty());
    }

    #[test]
    fn of_other_machines_no_more_is_said_than_is_known() {
        let process = |rank| arrivals("others", rank, 4, 2);
        let _second = process(2).announce().unwrap();
        let message = process(2).complaint(9);
        assert!(message.ends_with(": of the 2 of this machine only [2] have come"), "{message}");
        let _third = process(3).announce().unwrap();
        let message = process(2).complaint(9);
        assert!(
            message
                .ends_with("all 2 of this machine have come, so that those missing are on others"),
            "{message}"
        );
        // A name that is taken, or no launcher that is known.
        assert!(process(3).announce().is_err());
        let unknown = Arrivals::within(&Launch::default(), "podracer-test-unknown".into());
        assert!(unknown.announce().unwrap().is_none());
        assert!(unknown.speaks());
        assert_eq!(
            unknown.complaint(9),
            "--distributed: process ? of ? has waited 9 s for the others to start"
        );
        assert_eq!(Arrivals::of(&Launch::default()).launch, name_of_the_launch());
    }
}
