//! Process 0's side of the connections: all messages between processes pass through it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::handshake::welcome;
use super::peer::MAX_PATIENCE;
use super::secret::Secret;
use super::wire::{Answer, Ask, Head, LONGEST_BODY, Out, Together, Until, receive};
use crate::error::{Error, Result};

/// Result whose error text follows the number of the process at fault.
type Verdict<T> = std::result::Result<T, String>;

/// Time limit of a connection's authentication.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// Maximum number of connections that have not authenticated yet, in all and from one address. One
/// more closes the oldest of them: processes authenticate at once, so the oldest is the least
/// likely to be one.
const MAX_STRANGERS: usize = 128;
const MAX_STRANGERS_PER_ADDRESS: usize = 32;
/// Pause after a connection that could not be accepted, for example because no file descriptors are
/// left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of refusals that are kept for error messages.
const MOST_REFUSED: usize = 8;

/// Reason for closing a connection in favour of newer ones; its process may try again.
const EVICTED: &str = "it was closed to make room for newer connections";

/// State of a process's slot in process 0.
#[derive(Debug, Clone, Default)]
enum Place {
    #[default]
    Empty,
    /// The process has authenticated and is joining.
    Taken,
    Here(Arc<Out>),
    /// The process's run has ended.
    Ended,
}

/// Collective operation that some processes have not reached yet.
struct Round {
    together: Together,
    /// Request id and bytes of each process that has reached it.
    parts: Vec<Option<(u64, Vec<u8>)>>,
}

struct State {
    values: BTreeMap<String, Vec<u8>>,
    places: Vec<Place>,
    rounds: BTreeMap<u64, Round>,
    refused: Vec<String>,
    failed: Option<String>,
}

struct Shared {
    size: usize,
    secret: Secret,
    strangers: Strangers,
    /// True once no more connections are accepted.
    closed: AtomicBool,
    state: Mutex<State>,
    /// Signals that a value was stored, a process left, or the run failed.
    changed: Condvar,
}

/// Connections that have not authenticated yet, oldest first.
#[derive(Default)]
struct Strangers(Mutex<VecDeque<Stranger>>);

struct Stranger {
    id: u64,
    ip: Option<IpAddr>,
    stream: TcpStream,
}

impl Strangers {
    /// Adds a connection, and closes the oldest one if there are too many.
    fn admit(&self, id: u64, stream: TcpStream) {
        let ip = stream.peer_addr().ok().map(|peer| peer.ip());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest_here = all.iter().position(|stranger| stranger.ip == ip);
        let here = all.iter().filter(|stranger| stranger.ip == ip).count();
        let evicted = match oldest_here {
            Some(at) if here >= MAX_STRANGERS_PER_ADDRESS => all.remove(at),
            _ if all.len() >= MAX_STRANGERS => all.pop_front(),
            _ => None,
        };
        if let Some(Stranger { stream, .. }) = evicted {
            // The thread that reads from it sees the end. An error means that it is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        all.push_back(Stranger { id, ip, stream });
    }

    /// Removes a connection that has authenticated or ended. Returns false if it was closed in
    /// favour of newer ones.
    fn leave(&self, id: u64) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|stranger| stranger.id == id);
        at.and_then(|at| all.remove(at)).is_some()
    }
}

/// Server of process 0: the key-value store and the collective operations.
pub(super) struct Coordinator {
    shared: Arc<Shared>,
    address: SocketAddr,
    listens: Option<JoinHandle<()>>,
}

impl Coordinator {
    /// Listens at `address` for `size` processes that know the secret.
    ///
    /// # Errors
    /// [`Error::Config`] if the address cannot be bound.
    pub fn listen(address: &str, size: usize, secret: Secret) -> Result<Coordinator> {
        let cannot = |error| {
            Error::Config(format!(
                "--coordinator-address {address}: process 0 cannot listen there: {error}; it must be \
                 an address of this machine and a free port; --coordinator-bind-address names another"
            ))
        };
        let listener = TcpListener::bind(address).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let state = State {
            values: BTreeMap::new(),
            places: vec![Place::Empty; size],
            rounds: BTreeMap::new(),
            refused: Vec::new(),
            failed: None,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let (strangers, closed) = (Strangers::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { size, secret, strangers, closed, state, changed });
        let of_thread = shared.clone();
        let listens = thread::spawn(move || {
            for (id, stream) in (0..).zip(listener.incoming()) {
                if of_thread.closed.load(Ordering::Relaxed) {
                    return;
                }
                let both = stream.and_then(|stream| Ok((stream.try_clone()?, stream)));
                let Ok((copy, stream)) = both else {
                    thread::sleep(ACCEPT_PAUSE);
                    continue;
                };
                of_thread.strangers.admit(id, copy);
                let shared = of_thread.clone();
                thread::spawn(move || shared.serve(id, stream));
            }
        });
        Ok(Coordinator { shared, address, listens: Some(listens) })
    }

    /// Returns the address at which this process itself can connect to the server.
    pub fn reached_at(&self) -> SocketAddr {
        let mut at = self.address;
        // A socket bound to all interfaces is reached on the loopback interface too.
        if at.ip().is_unspecified() {
            at.set_ip(match at.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        at
    }

    /// Waits until the other processes have ended their runs, for at most `timeout`: the messages
    /// that they still wait for are already sent.
    pub fn wait_for_the_others(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.state();
        while state.places[1..].iter().any(|place| matches!(place, Place::Here(_))) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.shared.wait(state, left);
        }
        let outs: Vec<Arc<Out>> = state.places.iter().filter_map(Place::out).collect();
        drop(state);
        for out in outs {
            let _ = out.send(&Head { id: 0, it: Answer::Ends }, b"");
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        // The connection wakes the listening thread, which then sees the flag and frees the
        // address.
        if TcpStream::connect(self.reached_at()).is_ok()
            && let Some(listens) = self.listens.take()
        {
            // A panic of that thread was already reported.
            let _ = listens.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, at_most: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Serves one connection from its first byte to its last.
    fn serve(self: Arc<Self>, id: u64, mut stream: TcpStream) {
        let peer = stream.peer_addr().map_or_else(|_| "?".into(), |peer| peer.ip().to_string());
        let mut stranger = Until { stream: &stream, deadline: Instant::now() + HANDSHAKE };
        let mut taken = None;
        let met = welcome(&mut stranger, &self.secret, |rank, size| {
            // Done before the process is accepted: from here on the connection is not closed in
            // favour of newer ones.
            if !self.strangers.leave(id) {
                return Err(EVICTED.to_string());
            }
            self.take_place(rank, size)?;
            taken = Some(rank);
            Ok(())
        });
        self.strangers.leave(id);
        let free = || {
            if let Some(rank) = taken {
                self.state().places[rank] = Place::Empty;
            }
        };
        let rank = match met {
            Ok(Ok(rank)) => rank,
            // A connection that sends no request, such as a port scanner's, is not reported.
            Err(_) => return free(),
            Ok(Err(why)) if why == EVICTED => return,
            Ok(Err(why)) => {
                let mut state = self.state();
                if state.refused.len() < MOST_REFUSED {
                    state.refused.push(format!("one at {peer}: {why}"));
                }
                return;
            }
        };
        let Ok(out) = Out::new(&stream) else { return free() };
        let out = Arc::new(out);
        {
            let mut state = self.state();
            state.places[rank] = Place::Here(out.clone());
            let failed = state.failed.clone();
            drop(state);
            if let Some(cause) = failed {
                let _ = out.send(&Head { id: 0, it: Answer::Failed { cause } }, b"");
            }
        }
        let cause = loop {
            match receive::<Head<Ask>>(&mut stream, LONGEST_BODY) {
                Ok((Head { it: Ask::Ends, .. }, _)) => break None,
                Ok((Head { it: Ask::Fails { cause }, .. }, _)) => break Some(cause),
                Ok((Head { id, it }, body)) => {
                    if let Err(problem) = self.answer(rank, &out, id, it, body) {
                        break Some(problem);
                    }
                }
                Err(error) => break Some(gone(&error)),
            }
        };
        // The failing process may still be reading.
        if let Some(cause) = cause {
            self.fail(format!("process {rank} {cause}"));
        }
        self.state().places[rank] = Place::Ended;
        self.changed.notify_all();
    }

    /// Takes the slot of process `rank` of `size`, if it exists and is free. No two processes can
    /// take the same slot: it is taken before the process learns that it is accepted.
    fn take_place(&self, rank: usize, size: usize) -> Verdict<()> {
        if size != self.size {
            return Err(format!("it is of {size} processes, process 0 of {}", self.size));
        }
        match self.state().places.get_mut(rank) {
            None => {
                Err(format!("there is no process {rank} of {size}: they are 0 to {}", size - 1))
            }
            Some(place @ Place::Empty) => {
                *place = Place::Taken;
                Ok(())
            }
            Some(_) => Err(format!("another process has the number {rank}")),
        }
    }

    /// Records that the run has failed and notifies all processes.
    fn fail(&self, cause: String) {
        let mut state = self.state();
        if state.failed.is_some() {
            return;
        }
        let failed = Answer::Failed { cause: cause.clone() };
        state.failed = Some(cause);
        let outs: Vec<Arc<Out>> = state.places.iter().filter_map(Place::out).collect();
        drop(state);
        for out in outs {
            // Processes that have left need no message.
            let _ = out.send(&Head { id: 0, it: &failed }, b"");
        }
    }

    fn answer(
        self: &Arc<Self>,
        rank: usize,
        out: &Arc<Out>,
        id: u64,
        ask: Ask,
        body: Vec<u8>,
    ) -> Verdict<()> {
        let say = |it: Answer, body: &[u8]| {
            out.send(&Head { id, it }, body).map_err(|error| gone(&error))
        };
        match ask {
            Ask::Beat => say(Answer::Beat, b""),
            Ask::Put { key } => {
                self.state().values.insert(key, body);
                self.changed.notify_all();
                say(Answer::Done, b"")
            }
            Ask::Get { key, millis } => {
                // In a thread of its own: this thread must keep reading.
                let (shared, out) = (self.clone(), out.clone());
                thread::spawn(move || {
                    let found = shared.get(&key, Duration::from_millis(millis));
                    let (it, body) = match found {
                        Some(value) => (Answer::Done, value),
                        None => (Answer::NotFound, Vec::new()),
                    };
                    let _ = out.send(&Head { id, it }, &body);
                });
                Ok(())
            }
            Ask::Missing { round } => {
                let state = self.state();
                let came = |rank: &usize| match state.rounds.get(&round) {
                    Some(round) => round.parts[*rank].is_some(),
                    None => false,
                };
                let ranks = (0..self.size).filter(|rank| !came(rank)).collect();
                let refused = state.refused.clone();
                drop(state);
                say(Answer::Missing { ranks, refused }, b"")
            }
            Ask::Take { round, together } => self.take(rank, id, round, together, body),
            Ask::Fails { .. } | Ask::Ends => unreachable!("the listener takes these"),
        }
    }

    fn get(&self, key: &str, timeout: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + timeout.min(MAX_PATIENCE);
        let mut state = self.state();
        loop {
            if let Some(value) = state.values.get(key) {
                return Some(value.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.failed.is_some() {
                return None;
            }
            state = self.wait(state, left);
        }
    }

    /// Adds a process's part to a collective operation; the last part completes it, and the result
    /// is sent to all.
    fn take(
        &self,
        rank: usize,
        id: u64,
        number: u64,
        together: Together,
        body: Vec<u8>,
    ) -> Verdict<()> {
        let mut state = self.state();
        let empty = || Round { together, parts: vec![None; self.size] };
        let round = state.rounds.entry(number).or_insert_with(empty);
        if round.together != together {
            let other = round.together;
            return Err(format!("does {together:?} where others do {other:?}: not one program"));
        }
        round.parts[rank] = Some((id, body));
        if round.parts.contains(&None) {
            return Ok(());
        }
        let round = state.rounds.remove(&number).expect("it was there just now");
        let outs: Vec<Option<Arc<Out>>> = state.places.iter().map(Place::out).collect();
        drop(state);
        let (ids, parts): (Vec<u64>, Vec<Vec<u8>>) = round.parts.into_iter().flatten().unzip();
        let result = combined(together, parts)?;
        for (id, out) in ids.into_iter().zip(outs) {
            if let Some(out) = out {
                // A process that no longer reads is detected by the thread that listens to it.
                let _ = out.send(&Head { id, it: Answer::Done }, &result);
            }
        }
        Ok(())
    }
}

impl Place {
    fn out(&self) -> Option<Arc<Out>> {
        match self {
            Place::Here(out) => Some(out.clone()),
            Place::Empty | Place::Taken | Place::Ended => None,
        }
    }
}

/// Returns the error text for a process that sends nothing any more.
pub(super) fn gone(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            format!("has not been heard of for {} s", super::wire::SILENCE.as_secs())
        }
        std::io::ErrorKind::InvalidData => format!("sends what is no message: {error}"),
        // End of file, connection reset or broken pipe, depending on the kernel.
        _ => "is gone".to_string(),
    }
}

/// Combines the parts of all processes, in the order of their ranks.
fn combined(together: Together, parts: Vec<Vec<u8>>) -> Verdict<Vec<u8>> {
    let mut parts = parts.into_iter();
    let mut first = parts.next().expect("there is at least one process");
    match together {
        Together::Meet => Ok(Vec::new()),
        Together::Broadcast => Ok(first),
        Together::SumF32 => parts
            .try_for_each(|part| {
                add(&mut first, &part, |a, b| {
                    (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes()
                })
            })
            .map(|()| first),
        Together::SumI64 => parts
            .try_for_each(|part| {
                add(&mut first, &part, |a, b| {
                    i64::from_le_bytes(a).wrapping_add(i64::from_le_bytes(b)).to_le_bytes()
                })
            })
            .map(|()| first),
    }
}

fn add<const N: usize>(
    sums: &mut [u8],
    part: &[u8],
    plus: impl Fn([u8; N], [u8; N]) -> [u8; N],
) -> Verdict<()> {
    if sums.len() != part.len() {
        let (here, there) = (sums.len() / N, part.len() / N);
        return Err(format!("adds {here} numbers, another {there}: not one program"));
    }
    let (sums, _) = sums.as_chunks_mut::<N>();
    let (part, _) = part.as_chunks::<N>();
    sums.iter_mut().zip(part).for_each(|(sum, x)| *sum = plus(*sum, *x));
    Ok(())
}
