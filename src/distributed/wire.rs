//! Messages between processes: a head in JSON, followed by bytes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// First text sent by both sides. Other versions of this library may use another protocol.
pub(super) const GREETING: &str = concat!("podracer ", env!("CARGO_PKG_VERSION"), " processes");

/// Maximum number of bytes of a head; heads hold keys and error texts.
const LONGEST_HEAD: usize = 1 << 16;
/// Maximum number of bytes after a head, for peers that have authenticated.
pub(super) const LONGEST_BODY: usize = 1 << 32;
/// Interval at which a process sends a heartbeat.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);
/// Time of silence after which the other side counts as lost.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// Collective operation on the bytes of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Together {
    /// Barrier: the processes wait for each other.
    Meet,
    /// Sum of `f32` numbers, in the order of the processes.
    SumF32,
    /// Sum of `i64` numbers.
    SumI64,
    /// Bytes of process 0.
    Broadcast,
}

/// Request of a process to process 0. The bytes are those after the head.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Stores the bytes as the value of the key.
    Put { key: String },
    /// Asks for the value of the key, once there is one.
    Get { key: String, millis: u64 },
    /// Passes the bytes as this process's part in collective operation number `round`.
    Take { round: u64, together: Together },
    /// Asks which processes have not reached this operation.
    Missing { round: u64 },
    /// Heartbeat.
    Beat,
    /// The process has failed.
    Fails { cause: String },
    /// The process's run has ended.
    Ends,
}

/// Answer of process 0.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Success; the bytes after the head are the result.
    Done,
    /// The key has no value.
    NotFound,
    /// Ranks of the processes that have not reached an operation, and the reasons of refused
    /// connections.
    Missing { ranks: Vec<usize>, refused: Vec<String> },
    /// Heartbeat.
    Beat,
    /// A process has failed, so all fail.
    Failed { cause: String },
    /// The run of process 0 has ended.
    Ends,
}

/// Head of a message, with the id of the request that it makes or answers; 0 for neither.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Head<T> {
    pub id: u64,
    pub it: T,
}

/// Reads a head and the bytes after it, of which at most `longest` are accepted.
pub(super) fn receive<T: DeserializeOwned>(
    from: &mut impl Read,
    longest: usize,
) -> io::Result<(T, Vec<u8>)> {
    let mut sizes = [0; 16];
    from.read_exact(&mut sizes)?;
    let size = |at: usize| u64::from_le_bytes(sizes[at..at + 8].try_into().expect("8 bytes"));
    let (head, body) = (size(0), size(8));
    if head > LONGEST_HEAD as u64 || body > longest as u64 {
        let problem = format!("a message of {head} and {body} bytes, which is too long");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    let mut read = |size: u64| {
        let mut bytes = vec![0; size as usize];
        from.read_exact(&mut bytes).map(|()| bytes)
    };
    let (head, body) = (read(head)?, read(body)?);
    Ok((serde_json::from_slice(&head)?, body))
}

/// Writes a head and the bytes after it.
pub(super) fn send<T: Serialize>(to: &mut impl Write, head: &T, body: &[u8]) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    let mut start = Vec::with_capacity(16 + head.len());
    start.extend((head.len() as u64).to_le_bytes());
    start.extend((body.len() as u64).to_le_bytes());
    start.extend(head);
    to.write_all(&start)?;
    to.write_all(body)
}

/// Reader and writer of a connection with a deadline for the whole exchange, however slowly the
/// peer sends.
pub(super) struct Until<'a> {
    pub stream: &'a TcpStream,
    pub deadline: Instant,
}

impl Until<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Writing end of a connection, shared by several threads.
#[derive(Debug)]
pub(super) struct Out(Mutex<TcpStream>);

impl Out {
    /// Creates the writing end of this connection, and limits the time that its peer may stay
    /// silent.
    pub fn new(stream: &TcpStream) -> io::Result<Out> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Out(Mutex::new(stream.try_clone()?)))
    }

    /// Writes one message.
    pub fn send<T: Serialize>(&self, head: &T, body: &[u8]) -> io::Result<()> {
        send(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), head, body)
    }

    /// Closes the connection, so that reading from it ends, as when a process is killed.
    #[cfg(test)]
    pub fn close(&self) {
        // It may be closed already.
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let mut line = Vec::new();
        let head = Head { id: 7, it: Ask::Put { key: "a/b".into() } };
        send(&mut line, &head, b"value").unwrap();
        send(&mut line, &Head { id: 8, it: Ask::Beat }, b"").unwrap();
        let mut line = &line[..];
        let (head, body) = receive::<Head<Ask>>(&mut line, 5).unwrap();
        assert_eq!(
            (head.id, head.it, &body[..]),
            (7, Ask::Put { key: "a/b".into() }, &b"value"[..])
        );
        assert_eq!(receive::<Head<Ask>>(&mut line, 5).unwrap().0.it, Ask::Beat);
        let end = receive::<Head<Ask>>(&mut line, 5).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn who_trickles_is_not_waited_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let trickles = std::thread::spawn(move || {
            // Each byte arrives long before the deadline, the last one long after it.
            for byte in 12u128.to_le_bytes() {
                if theirs.write_all(&[byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let deadline = Instant::now() + Duration::from_millis(300);
        let mut line = Until { stream: &ours, deadline };
        let error = receive::<String>(&mut line, 0).unwrap_err();
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        // Without the deadline the whole message would come, or its end.
        assert!(kinds.contains(&error.kind()), "{error}");
        drop(ours);
        trickles.join().unwrap();
    }

    #[test]
    fn what_is_too_long_is_not_read() {
        let mut line = Vec::new();
        send(&mut line, &"head", &[0; 6]).unwrap();
        let error = receive::<String>(&mut &line[..], 5).unwrap_err();
        assert!(
            error.to_string().contains("a message of 6 and 6 bytes, which is too long"),
            "{error}"
        );
        // For example, a browser.
        let error =
            receive::<String>(&mut &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], 5).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let mut line = Vec::new();
        send(&mut line, &"head", b"").unwrap();
        assert!(receive::<Head<Ask>>(&mut &line[..], 5).is_err(), "no number is no question");
    }
}
