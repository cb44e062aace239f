//! Process 0's side: what all say to each other goes through it.

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

/// What is said of a process after its number, when something is wrong with it.
type Verdict<T> = std::result::Result<T, String>;

/// Time limit of a connection's authentication.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// Connections that may be about to authenticate, in all and from one address. One more ends the
/// oldest of them: processes answer at once, so the oldest is the least likely to be one.
const MAX_STRANGERS: usize = 128;
const MAX_STRANGERS_PER_ADDRESS: usize = 32;
/// Pause after a connection that could not be accepted, as when there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How many refusals are remembered, to be told to who waits.
const MOST_REFUSED: usize = 8;

/// Why a connection that was closed to make room is not let in; it may try again.
const EVICTED: &str = "it was closed to make room for newer connections";

/// A process, as process 0 knows it.
#[derive(Debug, Clone, Default)]
enum Place {
    #[default]
    Empty,
    /// It is being let in.
    Taken,
    Here(Arc<Out>),
    /// Its run has ended.
    Ended,
}

/// What all do together, until all have come.
struct Round {
    together: Together,
    /// By process: the number of its question, and its bytes.
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
    /// Nobody is let in any more.
    closed: AtomicBool,
    state: Mutex<State>,
    /// A value came, a process left, or all failed.
    changed: Condvar,
}

/// Connections that have not authenticated yet, from the oldest to the newest.
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
            // The thread that waits for its words sees the end. One that is closed already is fine.
            let _ = stream.shutdown(Shutdown::Both);
        }
        all.push_back(Stranger { id, ip, stream });
    }

    /// Takes a connection out: it has authenticated, or it is over. Returns false if it was closed to
    /// make room.
    fn leave(&self, id: u64) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|stranger| stranger.id == id);
        at.and_then(|at| all.remove(at)).is_some()
    }
}

/// The store of keys and values, and the place where processes meet; in process 0.
pub(super) struct Coordinator {
    shared: Arc<Shared>,
    address: SocketAddr,
    listens: Option<JoinHandle<()>>,
}

impl Coordinator {
    /// Listens at `address`, for `size` processes that know the secret.
    ///
    /// # Errors
    /// [`Error::Config`] if it cannot be listened at.
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

    /// Where this process reaches it.
    pub fn reached_at(&self) -> SocketAddr {
        let mut at = self.address;
        // One that listens everywhere listens here too.
        if at.ip().is_unspecified() {
            at.set_ip(match at.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        at
    }

    /// Waits until the others have ended their runs too, but not for long: what they still wait for
    /// is on its way already.
    pub fn wait_for_the_others(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
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
        // Who listens wakes up, sees it, and frees the address.
        if TcpStream::connect(self.reached_at()).is_ok()
            && let Some(listens) = self.listens.take()
        {
            // A panic there was told.
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

    /// One connection, from its first byte to its last.
    fn serve(self: Arc<Self>, id: u64, mut stream: TcpStream) {
        let peer = stream.peer_addr().map_or_else(|_| "?".into(), |peer| peer.ip().to_string());
        let mut stranger = Until { stream: &stream, deadline: Instant::now() + HANDSHAKE };
        let mut taken = None;
        let met = welcome(&mut stranger, &self.secret, |rank, size| {
            // Before it is told that it may come in: from here on it cannot be closed to make room.
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
            // One that asks nothing, a port scanner say, is no news.
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
        // The one whose fault it is may still listen.
        if let Some(cause) = cause {
            self.fail(format!("process {rank} {cause}"));
        }
        self.state().places[rank] = Place::Ended;
        self.changed.notify_all();
    }

    /// Takes the place of process `rank` of `size`, if there is one. No two can take the same: it is
    /// taken before the process is told that it may come in.
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

    /// Tells all that the run is over.
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
            // Those that are gone need not be told.
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
                // Not here: this thread listens.
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

    fn get(&self, key: &str, patience: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + patience.min(MAX_PATIENCE);
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

    /// A process's part in a round; the last one's makes the result, which goes to all.
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
                // Who does not read any more is found by its listener.
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

/// Why nothing comes from a process any more.
pub(super) fn gone(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            format!("has not been heard of for {} s", super::wire::SILENCE.as_secs())
        }
        std::io::ErrorKind::InvalidData => format!("sends what is no message: {error}"),
        // The end of the file, a reset, a broken pipe: whatever the kernel calls it.
        _ => "is gone".to_string(),
    }
}

/// What comes of all parts, in the order of the processes.
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
