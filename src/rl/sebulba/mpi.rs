//! Processes started by MPI: `mpirun -n 2 ...`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Root, Source};

use super::arrivals::Arrivals;
use super::exchange::Exchange;
use super::layout::World;
use crate::distributed::{Launch, Peer, Secret};
use crate::error::{Error, Result};
use crate::lower::pjrt::KeyValues;
use crate::output;

/// Additional time that the other processes wait, so that the error of the first one is printed.
const LONGER: Duration = Duration::from_secs(5);
/// Interval at which a process polls for messages of the others.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Tag of the barrier's messages: arrival of one process, arrival of all.
const HERE: i32 = 1;

/// Processes that `mpirun` started.
pub struct Mpi {
    world: SimpleCommunicator,
    /// Connection to process 0 that provides the key-value store, which MPI lacks.
    peer: Mutex<Option<Arc<Peer>>>,
    timeout: Duration,
    /// Finalizes MPI when it is dropped.
    _universe: Universe,
}

// SAFETY: MPI is started with `Threading::Serialized`, under which any thread may call it, one at a
// time. The calls are collective: each is made where all earlier ones of this process have
// returned, by the learner's thread between updates and by the program of the first learner device
// within.
unsafe impl Sync for Mpi {}
// SAFETY: as above; and MPI ends on whichever thread drops it last, when no other call is made.
unsafe impl Send for Mpi {}

impl Mpi {
    /// Joins the processes; it can be called once per process.
    ///
    /// # Errors
    /// [`Error::Config`] if MPI was joined before, or if it cannot be called from several threads.
    /// If not all others have joined after `timeout`, the process exits, and the first process of
    /// this machine prints which are missing: `MPI_Init` itself waits forever.
    pub fn join(timeout: Duration) -> Result<Mpi> {
        let (joined, waits) = mpsc::channel::<()>();
        let timed_out =
            move |timeout| waits.recv_timeout(timeout) == Err(mpsc::RecvTimeoutError::Timeout);
        let arrivals = Arrivals::of(|name| std::env::var(name).ok());
        // Without this file, the error message says less about the missing processes.
        let _ = arrivals.tell();
        thread::spawn(move || {
            if timed_out(timeout) && (arrivals.speaks() || timed_out(LONGER)) {
                output::stderr_line(format_args!(
                    "error: {}",
                    arrivals.complaint(timeout.as_secs())
                ));
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
        let (world, peer) = (universe.world(), Mutex::default());
        Ok(Mpi { world, peer, timeout, _universe: universe })
    }

    /// Connects to the other processes where process 0 listens. MPI broadcasts that address and a
    /// secret created for this run.
    fn rendezvous(&self) -> Result<Peer> {
        let World { rank, size } = self.world();
        let launch = |address: String| Launch { rank, size, address, bind: None };
        // All processes make the same collective calls, even if process 0 fails.
        let (mut words, mut first) = (Vec::new(), None);
        if rank == 0 {
            let opened = interface().and_then(|at| {
                let secret = Secret::fresh_text()?;
                let peer = Peer::join(launch(at.to_string()), Secret::new(&secret)?, self.timeout);
                Ok((peer?, secret))
            });
            words = match &opened {
                Ok((peer, secret)) => {
                    let at = peer.listens_at().expect("process 0 listens");
                    format!("{at}\n{}\n{secret}", machine()).into_bytes()
                }
                Err(error) => format!("\n{error}\n").into_bytes(),
            };
            first = Some(opened.map(|(peer, _)| peer));
        }
        self.broadcast(&mut words)?;
        let words = String::from_utf8_lossy(&words).into_owned();
        let mut words = words.split('\n');
        let mut word = || words.next().unwrap_or_default();
        let (at, its_machine, secret) = (word(), word(), word());
        let elsewhere = &mut [i64::from(!at.is_empty() && machine() != its_machine)];
        self.sum_i64(elsewhere)?;
        let Ok(address) = at.parse::<SocketAddr>() else {
            let error = || Error::Config(format!("--distributed: process 0: {its_machine}"));
            return first.unwrap_or_else(|| Err(error()));
        };
        if elsewhere[0] > 0 && address.ip().is_loopback() {
            return Err(Error::Config(format!(
                "--distributed: {its_machine}, where process 0 runs, knows itself by the address {} \
                 alone, which other machines do not reach; name one by --coordinator-address \
                 HOST:PORT",
                address.ip()
            )));
        }
        match first {
            Some(opened) => opened,
            None => Peer::join(launch(at.to_string()), Secret::new(secret)?, self.timeout),
        }
    }

    /// Polls for a message of `from` until `deadline`; returns the rank of the sender.
    fn listen(&self, from: &impl Source, deadline: Instant) -> Option<usize> {
        loop {
            if let Some(word) = from.immediate_probe_with_tag(HERE) {
                let rank = word.source_rank();
                self.world.process_at_rank(rank).receive_with_tag::<u8>(HERE);
                return Some(rank as usize);
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Returns the name of this machine.
fn machine() -> String {
    // A machine without a name gets the empty name.
    mpi::environment::processor_name().unwrap_or_default()
}

/// Returns the address that the name of this machine resolves to, with any port.
fn interface() -> Result<SocketAddr> {
    let name = machine();
    let found = (name.as_str(), 0).to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| {
        Error::Config(format!(
            "--distributed: this machine's name, `{name}`, has no address; name one by \
             --coordinator-address HOST:PORT"
        ))
    })
}

impl Exchange for Mpi {
    fn world(&self) -> World {
        World { rank: self.world.rank() as usize, size: self.world.size() as usize }
    }

    fn barrier(&self, timeout: Duration) -> Result<()> {
        let World { rank, size } = self.world();
        let deadline = Instant::now() + timeout;
        let missing = |ranks: Vec<usize>| {
            Error::Config(format!(
                "--distributed: process(es) {ranks:?} started, and did not come to the beginning of \
                 the run within {} s",
                timeout.as_secs()
            ))
        };
        // A message of one byte, which MPI buffers at once.
        let say = |to: usize| self.world.process_at_rank(to as i32).send_with_tag(&1u8, HERE);
        if rank > 0 {
            say(0);
            let first = self.world.process_at_rank(0);
            // If others are missing, process 0 reports it.
            let answer = self.listen(&first, deadline + LONGER);
            return answer.map(|_| ()).ok_or_else(|| missing(vec![0]));
        }
        let mut here = vec![false; size];
        here[0] = true;
        while here.contains(&false) {
            let Some(other) = self.listen(&self.world.any_process(), deadline) else {
                return Err(missing((0..size).filter(|&rank| !here[rank]).collect()));
            };
            here[other] = true;
        }
        (1..size).for_each(say);
        Ok(())
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

    fn key_values(self: Arc<Self>) -> Result<Arc<dyn KeyValues>> {
        let mut peer = self.peer.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = match &*peer {
            Some(peer) => peer.clone(),
            None => peer.insert(Arc::new(self.rendezvous()?)).clone(),
        };
        peer.key_values()
    }

    fn abort(&self, cause: &Error) -> ! {
        let World { rank, size } = self.world();
        output::stderr_line(format_args!("error: process {rank} of {size}: {cause}"));
        self.world.abort(1)
    }
}
