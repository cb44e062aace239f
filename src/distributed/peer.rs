//! Client side of the connection to process 0.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::coordinator::{Coordinator, gone};
use super::handshake::{Failure, join};
use super::launch::Launch;
use super::secret::Secret;
use super::wire::{
    Answer, Ask, HEARTBEAT_INTERVAL, Head, LONGEST_BODY, Out, SILENCE, Together, receive,
};
use crate::error::{Error, Result};
use crate::output;

/// Time limit of one attempt to connect to process 0, and the pause after it.
const TRY: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);
/// Additional time that the others wait for a missing process, so that the error of process 0 is
/// printed.
const LONGER: Duration = Duration::from_secs(5);
/// Maximum waiting time: a year. Clocks cannot represent much more.
pub(super) const MAX_PATIENCE: Duration = Duration::from_secs(365 * 86_400);
/// Time that a run may take to end by itself after another process has failed.
const GRACE: Duration = Duration::from_secs(3);
/// Time that process 0 waits after its own run for the others to end theirs.
const FAREWELL: Duration = Duration::from_secs(5);

/// Connection of this process to the others of a run. Each process has one; that of process 0 also
/// owns the server, which holds the key-value store and the collective operations.
///
/// If a process fails, is killed, or is silent for 30 s, all calls of all others fail with an error
/// that names it. A process that has not ended three seconds later is terminated, because it may be
/// about to wait forever.
pub struct Peer {
    launch: Launch,
    line: Arc<Line>,
    rounds: AtomicU64,
    coordinator: Option<Coordinator>,
}

/// Connection to process 0.
struct Line {
    out: Out,
    ids: AtomicU64,
    state: Mutex<LineState>,
}

#[derive(Default)]
struct LineState {
    /// Channel that receives the answer to each pending request, by its id.
    waiting: HashMap<u64, Sender<(Answer, Vec<u8>)>>,
    /// Reason why no more answers will come.
    over: Option<String>,
    /// True once this process is ending its run, with or without an error.
    ended: bool,
}

impl Peer {
    /// Joins the other processes. Process 0 listens; the others try to connect to it for up to
    /// `timeout`.
    ///
    /// # Errors
    /// [`Error::Config`] if process 0 cannot listen, is not found, or refuses this process: for a
    /// wrong secret, a different number of processes, a rank that is already taken, or a different
    /// version.
    pub fn join(launch: Launch, secret: Secret, timeout: Duration) -> Result<Peer> {
        let coordinator = match launch.rank {
            0 => Some(Coordinator::listen(launch.listens_at(), launch.size, secret.clone())?),
            _ => None,
        };
        let address = match &coordinator {
            Some(coordinator) => coordinator.reached_at().to_string(),
            None => launch.address.clone(),
        };
        let stream = reach(&address, &launch, &secret, timeout.min(MAX_PATIENCE))?;
        let problem = |error| Error::Config(format!("--coordinator-address {address}: {error}"));
        let out = Out::new(&stream).map_err(problem)?;
        let line = Line { out, ids: AtomicU64::new(1), state: Mutex::default() };
        let line = Arc::new(line);
        let (listens, beats) = (line.clone(), line.clone());
        let (rank, size) = (launch.rank, launch.size);
        thread::spawn(move || {
            let cause = listens.listen(stream);
            if !listens.ends(cause.clone()) {
                return;
            }
            thread::sleep(GRACE);
            if !listens.state().ended {
                output::stderr_line(format_args!("error: process {rank} of {size}: {cause}"));
                process::exit(1);
            }
        });
        thread::spawn(move || {
            while !beats.is_over() && beats.out.send(&Head { id: 0, it: Ask::Beat }, b"").is_ok() {
                thread::sleep(HEARTBEAT_INTERVAL);
            }
        });
        Ok(Peer { launch, line, rounds: AtomicU64::new(0), coordinator })
    }

    /// Returns the rank of this process and the number of processes.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Returns the address at which process 0 listens; `None` in the other processes.
    pub fn listens_at(&self) -> Option<SocketAddr> {
        self.coordinator.as_ref().map(Coordinator::reached_at)
    }

    /// Stores a value for the key, which all processes can read.
    ///
    /// # Errors
    /// [`Error::Config`] if another process has failed; this applies to all calls below.
    pub fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        self.line.ask(Ask::Put { key: key.into() }, value, None).map(|_| ())
    }

    /// Returns the value of a key once a process has stored it; `None` after `timeout`.
    ///
    /// # Errors
    /// Returns the same errors as [`Peer::put`].
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>> {
        let millis = timeout.min(MAX_PATIENCE).as_millis() as u64;
        match self.line.ask(Ask::Get { key: key.into(), millis }, b"", None)? {
            Some((Answer::Done, value)) => Ok(Some(value)),
            _ => Ok(None),
        }
    }

    /// Waits until all processes have made this call.
    ///
    /// # Errors
    /// Returns the same errors as [`Peer::put`], and an error with the ranks of those that have not
    /// come after `timeout`.
    pub fn barrier(&self, timeout: Duration) -> Result<()> {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        // If others are missing, process 0 reports it.
        let timeout = timeout.min(MAX_PATIENCE);
        let timeout = if self.launch.rank == 0 { timeout } else { timeout + LONGER };
        let ask = Ask::Take { round, together: Together::Meet };
        if self.line.ask(ask, b"", Some(timeout))?.is_some() {
            return Ok(());
        }
        let missing = self.line.ask(Ask::Missing { round }, b"", Some(LONGER))?;
        let (ranks, refused) = match missing {
            Some((Answer::Missing { ranks, refused }, _)) => (ranks, refused),
            _ => (vec![0], Vec::new()),
        };
        let refused = match refused.is_empty() {
            true => String::new(),
            false => format!("; refused were {}", refused.join(", ")),
        };
        Err(Error::Config(format!(
            "--distributed: process(es) {ranks:?} have not come to the beginning of the run within \
             {} s{refused}",
            timeout.as_secs()
        )))
    }

    /// Replaces `numbers` with their sum over all processes, added in the order of the processes.
    ///
    /// # Errors
    /// Returns the same errors as [`Peer::put`].
    pub fn sum_f32(&self, numbers: &mut [f32]) -> Result<()> {
        let sums = self.take(Together::SumF32, bytemuck::cast_slice(numbers))?;
        bytemuck::cast_slice_mut(numbers).copy_from_slice(&sums);
        Ok(())
    }

    /// Replaces `numbers` with their sum over all processes; overflow wraps around.
    ///
    /// # Errors
    /// Returns the same errors as [`Peer::put`].
    pub fn sum_i64(&self, numbers: &mut [i64]) -> Result<()> {
        let sums = self.take(Together::SumI64, bytemuck::cast_slice(numbers))?;
        bytemuck::cast_slice_mut(numbers).copy_from_slice(&sums);
        Ok(())
    }

    /// Returns the bytes passed by process 0.
    ///
    /// # Errors
    /// Returns the same errors as [`Peer::put`].
    pub fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        self.take(Together::Broadcast, if self.launch.rank == 0 { bytes } else { b"" })
    }

    fn take(&self, together: Together, bytes: &[u8]) -> Result<Vec<u8>> {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        let answer = self.line.ask(Ask::Take { round, together }, bytes, None)?;
        Ok(answer.expect("it waits without end").1)
    }

    /// Closes the connection without a message, as when the process is killed.
    #[cfg(test)]
    pub(super) fn vanish(&self) {
        self.line.state().ended = true;
        self.line.out.close();
    }

    /// Ends all processes, because this one cannot continue.
    pub fn abort(&self, cause: &Error) -> ! {
        let Launch { rank, size, .. } = self.launch;
        output::stderr_line(format_args!("error: process {rank} of {size}: {cause}"));
        self.line.state().ended = true;
        // If another process failed first, all processes know it already.
        if self.line.ends("it ends".into()) {
            let fails = Ask::Fails { cause: format!("has failed: {cause}") };
            let _ = self.line.out.send(&Head { id: 0, it: fails }, b"");
        }
        if let Some(coordinator) = &self.coordinator {
            coordinator.wait_for_the_others(FAREWELL);
        }
        process::exit(1)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.line.state().ended = true;
        if self.line.ends("this process has ended its run".into()) {
            let _ = self.line.out.send(&Head { id: 0, it: Ask::Ends }, b"");
        }
        if let Some(coordinator) = &self.coordinator {
            coordinator.wait_for_the_others(FAREWELL);
        }
    }
}

impl Line {
    fn state(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.state().over.is_some()
    }

    /// Records that no more answers will come, and the reason. Returns true if this is the first
    /// reason.
    fn ends(&self, cause: String) -> bool {
        let mut state = self.state();
        let news = state.over.is_none();
        state.over.get_or_insert(cause);
        // Dropping the senders wakes the threads that wait for answers.
        state.waiting.clear();
        news
    }

    /// Distributes the answers until the connection ends; returns the reason for its end.
    fn listen(&self, mut stream: TcpStream) -> String {
        loop {
            match receive::<Head<Answer>>(&mut stream, LONGEST_BODY) {
                Ok((Head { it: Answer::Beat, .. }, _)) => {}
                Ok((Head { it: Answer::Failed { cause }, .. }, _)) => return cause,
                Ok((Head { it: Answer::Ends, .. }, _)) => {
                    return "process 0 has ended its run".into();
                }
                Ok((Head { id, it }, body)) => {
                    if let Some(waits) = self.state().waiting.remove(&id) {
                        // The caller may have stopped waiting.
                        let _ = waits.send((it, body));
                    }
                }
                Err(error) => return format!("process 0 {}", gone(&error)),
            }
        }
    }

    /// Sends a request and waits for the answer; returns `None` after `timeout`.
    fn ask(
        &self,
        it: Ask,
        body: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Option<(Answer, Vec<u8>)>> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = mpsc::channel();
        {
            let mut state = self.state();
            if let Some(cause) = &state.over {
                return Err(over(cause));
            }
            state.waiting.insert(id, sender);
        }
        // If sending fails, the listening thread reports the reason.
        let _ = self.out.send(&Head { id, it }, body);
        let answer = match timeout {
            Some(timeout) => answer.recv_timeout(timeout),
            None => answer.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) => {
                self.state().waiting.remove(&id);
                Ok(None)
            }
            Err(RecvTimeoutError::Disconnected) => {
                let state = self.state();
                Err(over(state.over.as_deref().unwrap_or("the connection is closed")))
            }
        }
    }
}

fn over(cause: &str) -> Error {
    Error::Config(format!("--distributed: {cause}"))
}

/// Connects to process 0, which may start later than this process.
fn reach(address: &str, launch: &Launch, secret: &Secret, timeout: Duration) -> Result<TcpStream> {
    let deadline = Instant::now() + timeout;
    loop {
        let tried = connect(address).map_err(Failure::Broken).and_then(|mut stream| {
            join(&mut stream, secret, launch.rank, launch.size).map(|()| stream)
        });
        let problem = match tried {
            Ok(stream) => return Ok(stream),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Broken(error)) => error,
        };
        if Instant::now() >= deadline {
            return Err(Error::Config(format!(
                "--distributed: process {} of {} has not reached process 0 at {address} within {} s: \
                 {problem}",
                launch.rank,
                launch.size,
                timeout.as_secs()
            )));
        }
        thread::sleep(PAUSE);
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut problem = io::Error::new(io::ErrorKind::NotFound, "no such host");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TRY) {
            Ok(stream) => {
                stream.set_read_timeout(Some(SILENCE))?;
                stream.set_write_timeout(Some(SILENCE))?;
                return Ok(stream);
            }
            Err(error) => problem = error,
        }
    }
    Err(problem)
}
