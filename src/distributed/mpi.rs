//! Processes started by MPI: `mpiexec -n 2 ...`.

use std::ffi::c_int;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::abi::{ANY_SOURCE, Library, Parts, THREAD_MULTIPLE, THREAD_SERIALIZED};
use super::arrivals::{Arrivals, name_of_the_launch};
use super::key_values::Store;
use super::launch::Launch;
use super::watch::Watch;
use super::{MAX_TIMEOUT, POLL_INTERVAL};
use crate::error::{Error, Result};
use crate::lower::pjrt::KeyValues;
use crate::native::{MPI_LIBRARY, Settings};
use crate::output;

/// Additional time that the other processes wait, so that the error of the first one is printed.
const LONGER: Duration = Duration::from_secs(5);
/// Interval at which a process that waits for the others to start looks for those that never will.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between the error message of a process and the end of all. `MPI_Abort` discards messages
/// that the launcher has not read yet, of this process and of others that fail for the same reason.
const MESSAGE_TIME: Duration = Duration::from_millis(500);
/// Tag of the barrier's messages: arrival of one process, arrival of all.
const HERE: c_int = 1;

/// Processes of one launch by MPI, to which this one belongs. All make the same calls in the same
/// order; each call returns when all have made it.
pub struct Mpi {
    library: &'static Library,
    rank: usize,
    size: usize,
    /// True if any threads may call MPI at once.
    multiple: bool,
    store: Mutex<Option<(Arc<Store>, JoinHandle<()>)>>,
    /// Memory for the numbers of a sum that other processes send, kept because the system takes
    /// longer to hand out new memory than to add.
    received: Mutex<Vec<f32>>,
    /// Watcher that names this process if it is killed.
    watch: Option<Watch>,
}

impl Mpi {
    /// Joins the processes; it can be called once per process. MPI is the library that
    /// `PODRACER_MPI` names, else the system's, else the one of the pinned wheel.
    ///
    /// # Errors
    /// [`Error::Config`] if no launcher has started this process, if MPI was joined before, or if
    /// it cannot be called from several threads; [`Error::Native`] if the library cannot be loaded.
    /// If not all others have joined after `timeout`, or if some never will, the process exits, and
    /// the first process of this machine prints which are missing: `MPI_Init` itself waits forever.
    pub fn join(timeout: Duration) -> Result<Mpi> {
        let launch = Launch::of(|name| std::env::var(name).ok());
        let library = library(&Settings::from_env()?, &launch)?;
        let threads = init(library, &launch, timeout)?;
        if threads < THREAD_SERIALIZED {
            return Err(Error::Config(
                "--distributed: this MPI cannot be called from several threads, as it offers less \
                 than MPI_THREAD_SERIALIZED"
                    .into(),
            ));
        }
        let (rank, size) = library.rank_and_size()?;
        launch.check(size)?;
        let (pid, machine) = (std::process::id(), library.machine());
        let message = format!(
            "error: process {rank} of {size} is gone: PID {pid} on {machine} was killed, or ended \
             before the run"
        );
        // Without a watcher, the launcher names a process by its PID.
        let watch = Watch::start(&name_of_the_launch(), &message).ok();
        let multiple = threads >= THREAD_MULTIPLE;
        let (store, received) = (Mutex::default(), Mutex::default());
        Ok(Mpi { library, rank, size, multiple, store, received, watch })
    }

    /// Returns the rank of this process.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Waits until all processes have reached this call.
    ///
    /// # Errors
    /// [`Error::Config`] with the ranks of those that have not reached it after `timeout`; returns
    /// errors of MPI, as do all calls below.
    pub fn barrier(&self, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout.min(MAX_TIMEOUT);
        let missing = |ranks: Vec<usize>| {
            Error::Config(format!(
                "--distributed: process(es) {ranks:?} started, and did not come to the beginning of \
                 the run within {} s",
                timeout.as_secs()
            ))
        };
        // A message of one byte, which MPI buffers at once.
        let send = |to: usize| self.library.send(&[1], to, HERE);
        if self.rank > 0 {
            send(0)?;
            // If others are missing, process 0 reports it.
            let answer = self.listen(0, deadline + LONGER)?;
            return answer.map(|_| ()).ok_or_else(|| missing(vec![0]));
        }
        let mut here = vec![false; self.size];
        here[0] = true;
        while here.contains(&false) {
            let Some(other) = self.listen(ANY_SOURCE, deadline)? else {
                return Err(missing((0..self.size).filter(|&rank| !here[rank]).collect()));
            };
            here[other] = true;
        }
        (1..self.size).try_for_each(send)
    }

    /// Polls for a message of the barrier from `source` until `deadline`; returns the rank of the
    /// sender.
    fn listen(&self, source: c_int, deadline: Instant) -> Result<Option<usize>> {
        loop {
            if let Some(message) = self.library.probe(source, HERE)? {
                self.library.receive(message, HERE)?;
                return Ok(Some(message.source as usize));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Replaces `numbers` with their sums over all processes, which pass equally many. They are
    /// added in the order of the ranks, so that all processes get the same bits, whichever way the
    /// library sends messages: the standard leaves the order of `MPI_Allreduce` to the library.
    ///
    /// # Errors
    /// Returns the same errors as [`Mpi::barrier`].
    pub fn sum_f32(&self, numbers: &mut [f32]) -> Result<()> {
        // Process p adds part p of the numbers.
        let parts = Parts::of(numbers.len(), self.size, self.rank)?;
        let own = parts.own();
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received.resize(own.len() * self.size, 0.0);
        self.library.exchange_parts(numbers, &parts, &mut received)?;
        if !own.is_empty() {
            let sums = &mut numbers[own.clone()];
            let (before, after) = received.split_at_mut(self.rank * own.len());
            let mut before = before.chunks_exact_mut(own.len());
            if let Some(first) = before.next() {
                before.for_each(|other| add(first, other));
                add(sums, first);
            }
            after.chunks_exact(own.len()).skip(1).for_each(|other| add(sums, other));
        }
        self.library.gather(numbers, &parts)
    }

    /// Replaces `numbers` with their sums over all processes, which pass equally many; overflow
    /// wraps around.
    ///
    /// # Errors
    /// Returns the same errors as [`Mpi::barrier`].
    pub fn sum_i64(&self, numbers: &mut [i64]) -> Result<()> {
        self.library.sum(numbers)
    }

    /// Replaces the `bytes` of every process with those of process 0.
    ///
    /// # Errors
    /// Returns the same errors as [`Mpi::barrier`].
    pub fn broadcast(&self, bytes: &mut Vec<u8>) -> Result<()> {
        let mut length = (bytes.len() as u64).to_le_bytes();
        self.library.broadcast(&mut length)?;
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        self.library.broadcast(bytes)
    }

    /// Returns the key-value store shared by all processes.
    ///
    /// # Errors
    /// [`Error::Config`] if MPI does not allow calls of several threads at once.
    pub fn key_values(&self) -> Result<Arc<dyn KeyValues>> {
        if !self.multiple {
            return Err(Error::Config(
                "--distributed: GPUs of several processes need an MPI that offers \
                 MPI_THREAD_MULTIPLE"
                    .into(),
            ));
        }
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let (rank, size) = (self.rank, self.size);
        let (store, _) = store.get_or_insert_with(|| Store::start(self.library, (rank, size)));
        Ok(store.clone())
    }

    /// Ends all processes, because this one cannot continue.
    pub fn abort(&self, cause: &Error) -> ! {
        let Mpi { rank, size, .. } = self;
        output::stderr_line(format_args!("error: process {rank} of {size}: {cause}"));
        self.watch.iter().for_each(Watch::aborts);
        thread::sleep(MESSAGE_TIME);
        self.library.abort(1);
        std::process::exit(1)
    }
}

/// Announces to the other processes of a launch that this one runs by itself, so that those that wait
/// for it end. Does nothing if a launcher has started no others.
pub fn run_alone() {
    let launch = Launch::of(|name| std::env::var(name).ok());
    if launch.size.is_some_and(|size| size > 1) {
        // The others wait longer without it.
        std::mem::forget(Arrivals::of(&launch).announce_alone());
    }
}

/// Adds `others` to `sums`. Additions are commutative, so only the order of the pairs matters.
fn add(sums: &mut [f32], others: &[f32]) {
    sums.iter_mut().zip(others).for_each(|(sum, x)| *sum += x);
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // The others would wait for a process that panicked: `MPI_Finalize` is for all.
        if thread::panicking() {
            self.abort(&Error::Config("it panicked, so all end".into()));
        }
        let store = self.store.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((store, receives)) = store {
            store.end();
            // A panic of that thread was already reported.
            let _ = receives.join();
        }
        if let Err(error) = self.library.finalize() {
            output::stderr_line(format_args!("podracer: {error}"));
        }
    }
}

/// Returns the MPI library of this process, loaded.
fn library(settings: &Settings, launch: &Launch) -> Result<&'static Library> {
    let library = if let Some(named) = settings.named_mpi()? {
        Library::load(&named)?
    } else {
        launch.ensure_started()?;
        match Library::of_system(Path::new(MPI_LIBRARY)) {
            Some(library) => library?,
            None => {
                launch.ensure_pmi()?;
                Library::load(&settings.locate_mpi()?)?
            }
        }
    };
    // Threads may be inside the library at any time, so it is never unloaded.
    Ok(Box::leak(Box::new(library)))
}

/// Starts MPI, which waits for all processes, and returns the level of thread support. Exits if
/// they have not come after `timeout`.
fn init(library: &Library, launch: &Launch, timeout: Duration) -> Result<c_int> {
    let (joined, waits) = mpsc::channel::<()>();
    let timed_out =
        move |timeout| waits.recv_timeout(timeout) == Err(mpsc::RecvTimeoutError::Timeout);
    let arrivals = Arrivals::of(launch);
    // Without it, the error message says less about the missing processes.
    let presence = arrivals.announce();
    thread::spawn(move || {
        let deadline = Instant::now() + timeout.min(MAX_TIMEOUT);
        let mut before = None;
        let complaint = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if !timed_out(left.min(LOOK_INTERVAL)) {
                return;
            }
            if left.is_zero() {
                break arrivals.complaint(timeout.as_secs());
            }
            // Twice in a row: the launcher may not have started all.
            match arrivals.never() {
                Some(problem) if before.as_ref() == Some(&problem) => break problem,
                found => before = found,
            }
        };
        if arrivals.speaks() || timed_out(LONGER) {
            output::stderr_line(format_args!("error: {complaint}"));
            std::process::exit(1);
        }
    });
    let threads = library.init(THREAD_MULTIPLE);
    drop((joined, presence));
    threads
}
