//! Sebulba over processes that find each other at an address; `tests/mpi` has those of MPI.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::processes::{PODRACER, expect_the_same, flags, message, one_process, two_are_under_way};

const SECRET: &str = "the secret of these tests";

/// The address of process 0: a port that was free just now.
fn address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Process `rank` of `size`, under way.
fn process(runs: &Path, address: &str, (rank, size): (usize, usize), more: &[&str]) -> Child {
    let place = [
        "--distributed".to_string(),
        format!("--coordinator-address={address}"),
        format!("--process-id={rank}"),
        format!("--num-processes={size}"),
    ];
    Command::new(PODRACER)
        .args(flags(runs))
        .args(place)
        .args(more)
        .env("PODRACER_SECRET", SECRET)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ends(process: Child) -> Output {
    process.wait_with_output().unwrap()
}

#[test]
fn two_processes_learn_what_one_does() {
    for exact in ["--no-deterministic", "--deterministic"] {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        one_process(one.path(), &[exact, "--local-num-envs=12"]);
        let address = address();
        let more = [exact, "--local-num-envs=6", "--learner-device-ids=0,1"];
        let both = [0, 1].map(|rank| process(two.path(), &address, (rank, 2), &more)).map(ends);
        for process in &both {
            assert!(process.status.success(), "{}", message(process));
        }
        let line = String::from_utf8_lossy(&both[0].stdout).into_owned();
        assert!(line.lines().count() == 1 && line.contains("\"global_step\":9600"), "{line}");
        assert!(both[1].stdout.is_empty(), "the second process message a result");
        expect_the_same(one.path(), two.path(), exact == "--deterministic");
    }
}

#[test]
fn a_process_that_dies_ends_the_other() {
    for victim in [0, 1] {
        let runs = tempfile::tempdir().unwrap();
        let address = address();
        let more = ["--local-num-envs=6", "--total-timesteps=1000000000"];
        let mut both = [0, 1].map(|rank| process(runs.path(), &address, (rank, 2), &more));
        two_are_under_way(runs.path());
        both[victim].kill().unwrap();
        let killed = Instant::now();
        let other = &mut both[1 - victim];
        let status = other.wait().unwrap();
        assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
        assert!(!status.success());
        let mut message = String::new();
        other.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        let expected = format!("--distributed: process {victim} is gone");
        assert!(message.contains(&expected), "{message}");
        both[victim].wait().unwrap();
    }
}

#[test]
fn one_that_never_comes_and_one_that_does_not_know_the_secret_are_named() {
    let runs = tempfile::tempdir().unwrap();
    let address = address();
    let more = ["--local-num-envs=6", "--join-timeout=6"];
    let first = process(runs.path(), &address, (0, 3), &more);
    // Process 1 has another secret, process 2 never comes.
    let secret = runs.path().join("secret");
    std::fs::write(&secret, "the secret of others").unwrap();
    let readable = format!("--secret-file={}", secret.display());
    let open = ends(process(runs.path(), &address, (1, 3), &[&more[..], &[&readable]].concat()));
    assert!(message(&open).contains("others may read it"), "{}", message(&open));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let wrong = ends(process(runs.path(), &address, (1, 3), &[&more[..], &[&readable]].concat()));
    let expected = "error: --distributed: process 0 refuses process 1: its secret is not that of \
                    process 0";
    assert!(message(&wrong).contains(expected), "{}", message(&wrong));
    let first = ends(first);
    assert!(!first.status.success() && !wrong.status.success());
    let expected = "error: process 0 of 3: --distributed: process(es) [1, 2] have not come to the \
                    beginning of the run within 6 s; refused were one at 127.0.0.1: its secret is \
                    not that of process 0";
    assert!(message(&first).contains(expected), "{}", message(&first));
}

#[test]
fn flags_that_differ_are_told() {
    let runs = tempfile::tempdir().unwrap();
    let address = address();
    let both = [0, 1].map(|rank| {
        let seed = format!("--seed={}", rank + 1);
        process(runs.path(), &address, (rank, 2), &["--local-num-envs=12", &seed])
    });
    for output in both.map(ends) {
        assert!(!output.status.success());
        let message = message(&output);
        assert!(message.contains("process(es) [1]"), "{message}");
    }
}
