//! Several processes of one run, on one machine or many, by MPI.
//!
//! `mpiexec` starts the processes, and [`Mpi::join`] makes each find the others. The library is any
//! with the standard ABI of MPI 5.0, loaded at run time: the one that `PODRACER_MPI` names, the
//! system's, or MPICH of the pinned wheel (`podracer fetch mpi`), which has `mpiexec` too.

mod abi;
mod arrivals;
mod key_values;
mod launch;
mod mpi;
#[cfg(target_os = "linux")]
mod watch;
#[cfg(not(target_os = "linux"))]
#[path = "distributed/no_watch.rs"]
mod watch;

use std::time::Duration;

pub use mpi::Mpi;
pub(crate) use mpi::run_alone;

/// Interval at which a process polls for messages of the others.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum waiting time: a year. Clocks cannot represent much more.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 86_400);

/// Returns `process 1 of 2: ` as the begin of an error message, if a launcher has started several
/// processes, of which this is one; otherwise nothing.
pub fn process_prefix() -> String {
    let launch = launch::Launch::of(|name| std::env::var(name).ok());
    match (launch.rank, launch.size) {
        (Some(rank), Some(size)) if size > 1 => format!("process {rank} of {size}: "),
        _ => String::new(),
    }
}
