//! Mutual authentication: two processes prove to each other that they know the secret, without
//! sending it.
//!
//! ```text
//! process 0                                  another process
//!   greeting, a nonce                  -->
//!                                      <--   its rank, the number of processes, a nonce, its proof
//!   its proof, or a reason to refuse   -->
//! ```
//!
//! A proof is a keyed hash of both nonces, so an intercepted proof cannot be replayed. Only the
//! connection is authenticated; messages sent on it afterwards are neither signed nor encrypted.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::secret::{Nonce, Proof, Secret, nonce};
use super::wire::{GREETING, receive, send};
use crate::error::Error;

#[derive(Serialize, Deserialize)]
struct Greeting {
    greeting: String,
    nonce: Nonce,
}

#[derive(Serialize, Deserialize)]
struct Join {
    rank: u32,
    size: u32,
    nonce: Nonce,
    proof: Proof,
}

#[derive(Serialize, Deserialize)]
enum Verdict {
    Welcome { proof: Proof },
    Refused { why: String },
}

/// Reason for refusing a process.
pub(super) const WRONG_SECRET: &str = "its secret is not that of process 0";

/// Returns the message that the joining process proves: all parts have a fixed length.
fn joins(greeted: &Nonce, nonce: &Nonce, rank: u32, size: u32) -> [Vec<u8>; 4] {
    [greeted.to_vec(), nonce.to_vec(), rank.to_le_bytes().into(), size.to_le_bytes().into()]
}

fn parts(of: &[Vec<u8>; 4]) -> [&[u8]; 4] {
    [&of[0], &of[1], &of[2], &of[3]]
}

/// Process 0's side. Returns the rank of the process that joins, or the reason for its refusal.
///
/// `judge` checks, for a process that knows the secret, whether there is a free slot for its rank
/// and number of processes.
pub(super) fn welcome(
    line: &mut (impl Read + Write),
    secret: &Secret,
    judge: impl FnOnce(usize, usize) -> std::result::Result<(), String>,
) -> io::Result<std::result::Result<usize, String>> {
    let greeted = nonce().map_err(io::Error::other)?;
    send(line, &Greeting { greeting: GREETING.into(), nonce: greeted }, b"")?;
    // A peer that has proved nothing may not send a body for us to store.
    let (Join { rank, size, nonce, proof }, _) = receive(line, 0)?;
    let about = joins(&greeted, &nonce, rank, size);
    let outcome = match secret.proves("client", &parts(&about), &proof) {
        true => judge(rank as usize, size as usize),
        false => Err(WRONG_SECRET.to_string()),
    };
    let verdict = match &outcome {
        Ok(()) => Verdict::Welcome { proof: secret.prove("server", &parts(&about)) },
        Err(why) => Verdict::Refused { why: why.clone() },
    };
    send(line, &verdict, b"")?;
    Ok(outcome.map(|()| rank as usize))
}

/// Error of an attempt to join.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection broke; another attempt may succeed.
    Broken(io::Error),
    /// Another attempt cannot succeed.
    Final(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::InvalidData => Failure::Final(Error::Config(format!(
                "--coordinator-address: who answers there is no process 0 of this library: {error}"
            ))),
            _ => Failure::Broken(error),
        }
    }
}

/// Joining side, for process `rank` of `size`.
pub(super) fn join(
    line: &mut (impl Read + Write),
    secret: &Secret,
    rank: usize,
    size: usize,
) -> std::result::Result<(), Failure> {
    let is_final = |problem: String| Failure::Final(Error::Config(problem));
    let (Greeting { greeting, nonce: greeted }, _) = receive(line, 0)?;
    if greeting != GREETING {
        return Err(is_final(format!(
            "--coordinator-address: process 0 says `{greeting}`, this one `{GREETING}`: all must be \
             of one version"
        )));
    }
    let nonce = nonce().map_err(Failure::Final)?;
    let about = joins(&greeted, &nonce, rank as u32, size as u32);
    let proof = secret.prove("client", &parts(&about));
    send(line, &Join { rank: rank as u32, size: size as u32, nonce, proof }, b"")?;
    match receive(line, 0)?.0 {
        Verdict::Welcome { proof } if secret.proves("server", &parts(&about), &proof) => Ok(()),
        Verdict::Welcome { .. } => Err(is_final(
            "--distributed: who answers at the coordinator's address does not know the secret"
                .into(),
        )),
        Verdict::Refused { why } => {
            Err(is_final(format!("--distributed: process 0 refuses process {rank}: {why}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    type Outcome = std::result::Result<(), Failure>;

    fn both(
        server: impl FnOnce(&mut TcpStream) + Send,
        client: impl FnOnce(&mut TcpStream) -> Outcome,
    ) -> Outcome {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || server(&mut theirs));
            client(&mut ours)
        })
    }

    fn message(outcome: Outcome) -> String {
        match outcome.unwrap_err() {
            Failure::Final(error) => error.to_string(),
            Failure::Broken(error) => panic!("{error}"),
        }
    }

    fn secret() -> Secret {
        Secret::new("the secret of this test").unwrap()
    }

    #[test]
    fn those_who_know_the_secret_are_let_in() {
        let judge = |rank: usize, size: usize| match (rank, size) {
            (1, 2) => Ok(()),
            _ => Err(format!("no place for {rank} of {size}")),
        };
        let server = |line: &mut TcpStream| {
            assert_eq!(welcome(line, &secret(), judge).unwrap(), Ok(1));
        };
        both(server, |line| join(line, &secret(), 1, 2)).unwrap();
        let server = |line: &mut TcpStream| {
            assert_eq!(
                welcome(line, &secret(), judge).unwrap().unwrap_err(),
                "no place for 3 of 2"
            );
        };
        let message = message(both(server, |line| join(line, &secret(), 3, 2)));
        assert_eq!(message, "--distributed: process 0 refuses process 3: no place for 3 of 2");
    }

    #[test]
    fn a_wrong_secret_is_refused_by_either_side() {
        let other = Secret::new("the secret of another").unwrap();
        let server = |line: &mut TcpStream| {
            let judge = |_, _| panic!("a peer without the secret gets no verdict");
            assert_eq!(welcome(line, &secret(), judge).unwrap().unwrap_err(), WRONG_SECRET);
        };
        let why = message(both(server, |line| join(line, &other, 1, 2)));
        assert!(why.ends_with("refuses process 1: its secret is not that of process 0"), "{why}");
        // A server that accepts every process, to receive their gradients.
        let server = |line: &mut TcpStream| {
            let greeting = Greeting { greeting: GREETING.into(), nonce: [1; 32] };
            send(line, &greeting, b"").unwrap();
            let (Join { proof, .. }, _) = receive(line, 0).unwrap();
            send(line, &Verdict::Welcome { proof }, b"").unwrap();
        };
        let why = message(both(server, |line| join(line, &secret(), 1, 2)));
        assert!(why.contains("does not know the secret"), "{why}");
    }

    #[test]
    fn strangers_are_told_apart() {
        let server =
            |line: &mut TcpStream| line.write_all(b"220 mail.example ESMTP ready\r\n").unwrap();
        let why = message(both(server, |line| join(line, &secret(), 1, 2)));
        assert!(why.contains("no process 0 of this library"), "{why}");
        let server = |line: &mut TcpStream| {
            let greeting = Greeting { greeting: "podracer 9 processes".into(), nonce: [1; 32] };
            send(line, &greeting, b"").unwrap();
        };
        let why = message(both(server, |line| join(line, &secret(), 1, 2)));
        assert!(why.contains("all must be of one version"), "{why}");
    }
}
