use std::collections::VecDeque;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::*;
use crate::error::{Error, Result};

const LONG: Duration = Duration::from_secs(20);

/// Returns a local address with a port that was free just now.
fn address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn launch(rank: usize, size: usize, address: &str) -> Launch {
    Launch { rank, size, address: address.into(), bind: None }
}

fn secret() -> Secret {
    Secret::new("the secret of these tests").unwrap()
}

/// Runs `run` with the peer of each of `size` processes, as threads, and returns the results.
fn together<R: Send>(size: usize, run: impl Fn(Peer) -> R + Sync) -> Vec<R> {
    let (address, run) = (&address(), &run);
    thread::scope(|scope| {
        let processes = (0..size).map(|rank| {
            scope.spawn(move || {
                run(Peer::join(launch(rank, size, address), secret(), LONG).unwrap())
            })
        });
        let processes: Vec<_> = processes.collect();
        processes.into_iter().map(|process| process.join().unwrap()).collect()
    })
}

#[test]
fn processes_add_up_and_agree() {
    let outcome = together(3, |peer| -> Result<_> {
        let rank = peer.launch().rank;
        peer.barrier(LONG)?;
        let mut floats = [rank as f32, 0.5];
        peer.sum_f32(&mut floats)?;
        let mut whole = [i64::MAX, 1 << 40];
        peer.sum_i64(&mut whole)?;
        let word = peer.broadcast(format!("of process {rank}").as_bytes())?;
        Ok((floats, whole, word))
    });
    for outcome in outcome {
        let sums = ([3.0, 1.5], [i64::MAX - 2, 3 << 40], b"of process 0".to_vec());
        assert_eq!(outcome.unwrap(), sums);
    }
}

#[test]
fn values_come_when_they_are_put() {
    let found = together(2, |peer| {
        if peer.launch().rank == 1 {
            thread::sleep(Duration::from_millis(100));
            peer.put("topology/1", b"two devices").unwrap();
            peer.barrier(LONG).unwrap();
            return true;
        }
        assert_eq!(peer.get("topology/1", Duration::ZERO).unwrap(), None);
        let found = peer.get("topology/1", LONG).unwrap();
        peer.barrier(LONG).unwrap();
        found.as_deref() == Some(b"two devices")
    });
    assert_eq!(found, [true, true]);
}

/// Floats are added in one order, whichever process is first.
#[test]
fn sums_of_floats_do_not_depend_on_who_is_fast() {
    let sums = |slow: usize| {
        together(3, |peer| {
            let rank = peer.launch().rank;
            if rank == slow {
                thread::sleep(Duration::from_millis(60));
            }
            let mut numbers = [[1e8f32, 1.0, -1e8][rank]];
            peer.sum_f32(&mut numbers).unwrap();
            numbers[0]
        })
    };
    for slow in 0..3 {
        assert_eq!(sums(slow), [0.0; 3]);
    }
}

#[test]
fn who_is_missing_is_named() {
    let address = &address();
    let outcome = thread::scope(|scope| {
        let there = [0, 2].map(|rank| {
            scope.spawn(move || {
                let peer = Peer::join(launch(rank, 4, address), secret(), LONG).unwrap();
                let outcome = peer.barrier(Duration::from_millis(300)).unwrap_err().to_string();
                peer.vanish();
                outcome
            })
        });
        let wrong = scope.spawn(move || {
            let other = Secret::new("a secret that is another").unwrap();
            Peer::join(launch(1, 4, address), other, LONG).err().unwrap().to_string()
        });
        let wrong = wrong.join().unwrap();
        assert!(wrong.contains("process 0 refuses process 1: its secret is not that"), "{wrong}");
        there.map(|process| process.join().unwrap())
    });
    assert!(outcome[0].contains("process(es) [1, 3] have not come"), "{}", outcome[0]);
    let refused = "refused were one at 127.0.0.1: its secret is not that of process 0";
    assert!(outcome[0].ends_with(refused), "{}", outcome[0]);
    // The second process waits longer, so that it receives the error of the first.
    assert_eq!(outcome[1], "--distributed: process 0 is gone");
}

#[test]
fn those_that_do_not_fit_are_refused() {
    let address = &address();
    let first = Peer::join(launch(0, 2, address), secret(), LONG).unwrap();
    let second = Peer::join(launch(1, 2, address), secret(), LONG).unwrap();
    let outcome = |rank, size| {
        let refused = Peer::join(launch(rank, size, address), secret(), LONG);
        refused.err().unwrap().to_string()
    };
    assert!(outcome(1, 2).ends_with("another process has the number 1"), "{}", outcome(1, 2));
    assert!(outcome(1, 3).ends_with("it is of 3 processes, process 0 of 2"), "{}", outcome(1, 3));
    let taken = outcome(0, 2);
    assert!(taken.contains("process 0 cannot listen there"), "{taken}");
    drop(second);
    drop(first);
    // The place is free again.
    TcpListener::bind(address).unwrap();
}

#[test]
fn of_two_with_one_number_one_is_let_in() {
    for _ in 0..20 {
        let first = Peer::join(launch(0, 2, "127.0.0.1:0"), secret(), LONG).unwrap();
        let address = &first.listens_at().unwrap().to_string();
        let outcomes = thread::scope(|scope| {
            let both = [(); 2].map(|()| {
                scope.spawn(move || Peer::join(launch(1, 2, address), secret(), LONG).err())
            });
            both.map(|one| one.join().unwrap().map(|error| error.to_string()))
        });
        let refused: Vec<&String> = outcomes.iter().flatten().collect();
        assert_eq!(refused.len(), 1, "{outcomes:?}");
        assert!(refused[0].ends_with("another process has the number 1"), "{refused:?}");
    }
}

/// Connections that send nothing, or something else, do not keep a process out.
#[test]
fn silent_connections_do_not_keep_a_process_out() {
    let first = Peer::join(launch(0, 3, "127.0.0.1:0"), secret(), LONG).unwrap();
    let at = first.listens_at().unwrap();
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(at).unwrap()).collect();
    let second = Peer::join(launch(1, 3, &at.to_string()), secret(), LONG).unwrap();
    // The same holds while more of them come all the time.
    let stop = AtomicBool::new(false);
    let third = thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = VecDeque::new();
            while !stop.load(Ordering::Relaxed) {
                held.extend(TcpStream::connect(at));
                if let Some(mut line) = held.back() {
                    let _ = line.write_all(b"GET / HTTP/1.1\r\n\r\n");
                }
                if held.len() > 100 {
                    held.pop_front();
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let third = Peer::join(launch(2, 3, &at.to_string()), secret(), LONG);
        stop.store(true, Ordering::Relaxed);
        third.unwrap()
    });
    // Connections that have joined are not closed in favor of newer ones.
    let more: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(at).unwrap()).collect();
    let outcome = thread::scope(|scope| {
        let all = [&first, &second, &third];
        let all =
            all.map(|peer| scope.spawn(move || peer.barrier(LONG).map(|()| peer.launch().rank)));
        all.map(|one| one.join().unwrap().unwrap())
    });
    assert_eq!(outcome, [0, 1, 2]);
    drop((silent, more));
}

/// Any waiting time is accepted, however long.
#[test]
fn the_longest_timeout_is_a_number_like_others() {
    let first = Peer::join(launch(0, 1, "127.0.0.1:0"), secret(), Duration::MAX).unwrap();
    first.put("key", b"value").unwrap();
    assert_eq!(first.get("key", Duration::MAX).unwrap().as_deref(), Some(&b"value"[..]));
    first.barrier(Duration::MAX).unwrap();
}

#[test]
fn nobody_at_the_address_is_told() {
    let alone = Peer::join(launch(1, 2, &address()), secret(), Duration::from_millis(300));
    let outcome = alone.err().unwrap().to_string();
    assert!(
        outcome.contains("process 1 of 2 has not reached process 0 at 127.0.0.1:"),
        "{outcome}"
    );
}

#[test]
fn a_process_that_leaves_is_named_to_who_waits_for_it() {
    let joined = Barrier::new(3);
    let outcome = together(3, |peer| {
        let rank = peer.launch().rank;
        // Else process 2 may find nobody to join.
        joined.wait();
        if rank == 1 {
            // The connection is closed without a message, as when the process is killed.
            peer.vanish();
            return String::new();
        }
        peer.barrier(LONG).unwrap_err().to_string()
    });
    assert_eq!(
        outcome,
        ["--distributed: process 1 is gone", "", "--distributed: process 1 is gone"]
    );
}

#[test]
fn programs_that_differ_are_told() {
    let outcome = together(2, |peer| {
        let mut numbers = vec![1.0; 2 + peer.launch().rank];
        peer.sum_f32(&mut numbers).unwrap_err()
    });
    for outcome in outcome {
        assert!(
            matches!(&outcome, Error::Config(cause) if cause.contains("not one program")),
            "{outcome}"
        );
    }
}
