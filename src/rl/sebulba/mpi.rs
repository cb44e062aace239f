//! Processes that MPI started: `mpirun -n 2 ...`.

use std::sync::mpsc;
use std::time::Duration;

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

use super::exchange::Exchange;
use super::layout::World;
use crate::error::{Error, Result};

/// How long a process waits for the others to start.
const PATIENCE: Duration = Duration::from_secs(120);

/// The processes that `mpirun` started.
pub struct Mpi {
    world: SimpleCommunicator,
    /// Ends MPI when it is dropped.
    _universe: Universe,
}

// SAFETY: MPI is started with `Threading::Serialized`, under which any thread may call it, one at a
// time. The calls are collective: each is made where all earlier ones of this process have returned,
// by the learner's thread between updates and by the program of the first learner device within.
unsafe impl Sync for Mpi {}
// SAFETY: as above; and MPI ends on whichever thread drops it last, when no other call is made.
unsafe impl Send for Mpi {}

impl Mpi {
    /// Joins the processes; once in a process.
    ///
    /// # Errors
    /// [`Error::Config`] if it was joined before, or if MPI cannot be called from several threads.
    /// Where the others do not come within two minutes, the process ends and says so.
    pub fn join() -> Result<Mpi> {
        let (joined, waits) = mpsc::channel::<()>();
        // MPI's own start waits for ever.
        std::thread::spawn(move || {
            if waits.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                let rank = std::env::var("OMPI_COMM_WORLD_RANK").unwrap_or_else(|_| "?".into());
                let size = std::env::var("OMPI_COMM_WORLD_SIZE").unwrap_or_else(|_| "?".into());
                eprintln!(
                    "error: --distributed: process {rank} of {size} has waited {} s for the others \
                     to start",
                    PATIENCE.as_secs()
                );
                std::process::exit(1);
            }
        });
        let universe = mpi::initialize_with_threading(Threading::Serialized);
        drop(joined);
        let (universe, threading) = universe.ok_or_else(|| {
            Error::Config("--distributed: MPI is joined once in a process".into())
        })?;
        if threading < Threading::Serialized {
            return Err(Error::Config(format!(
                "--distributed: this MPI offers {threading:?}, and calls come from several threads, \
                 which takes Serialized"
            )));
        }
        Ok(Mpi { world: universe.world(), _universe: universe })
    }
}

impl Exchange for Mpi {
    fn world(&self) -> World {
        World { rank: self.world.rank() as usize, size: self.world.size() as usize }
    }

    fn sum_f32(&self, numbers: &mut [f32]) -> Result<()> {
        let ours = numbers.to_vec();
        self.world.all_reduce_into(&ours[..], numbers, SystemOperation::sum());
        Ok(())
    }

    fn sum_i64(&self, numbers: &mut [i64]) -> Result<()> {
        let ours = numbers.to_vec();
        self.world.all_reduce_into(&ours[..], numbers, SystemOperation::sum());
        Ok(())
    }

    fn broadcast(&self, bytes: &mut Vec<u8>) -> Result<()> {
        let first = self.world.process_at_rank(0);
        let mut length = bytes.len() as u64;
        first.broadcast_into(&mut length);
        bytes.resize(length as usize, 0);
        first.broadcast_into(&mut bytes[..]);
        Ok(())
    }

    fn abort(&self, cause: &Error) -> ! {
        let World { rank, size } = self.world();
        eprintln!("error: process {rank} of {size}: {cause}");
        self.world.abort(1)
    }
}
