//! Sebulba over processes that `mpirun` starts: `cargo test --release --features mpi --test mpi`, where
//! an MPI is installed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[path = "../processes/mod.rs"]
mod processes;

use podracer::rl::sebulba::{Exchange, Mpi, World};
use processes::{PODRACER, expect_the_same, flags, message, one_process, two_are_under_way};

/// `mpirun -n 2`, more processes than there may be cores for, as whoever the tests run as.
fn mpirun() -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--allow-run-as-root"]);
    command
}

#[test]
fn two_processes_learn_what_one_does() {
    for exact in ["--no-deterministic", "--deterministic"] {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        one_process(one.path(), &[exact, "--local-num-envs=12"]);
        let both = mpirun()
            .args(["-n", "2", PODRACER])
            .args(flags(two.path()))
            .args([exact, "--local-num-envs=6", "--distributed"])
            .args(["--actor-device-ids", "0", "--learner-device-ids", "0", "1"])
            .output()
            .unwrap();
        assert!(both.status.success(), "{}", message(&both));
        // One line of one process.
        let line = String::from_utf8(both.stdout).unwrap();
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("\"global_step\":9600"), "{line}");

        expect_the_same(one.path(), two.path(), exact == "--deterministic");
    }
}

#[test]
fn a_process_that_dies_ends_the_others() {
    let runs = tempfile::tempdir().unwrap();
    let mut both = mpirun()
        .args(["-n", "2", PODRACER])
        .args(flags(runs.path()))
        .args(["--distributed", "--local-num-envs=12", "--total-timesteps=1000000000"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    two_are_under_way(runs.path());
    let second = child_with(both.id(), "OMPI_COMM_WORLD_RANK=1");
    let killed = Instant::now();
    let sent = Command::new("kill").args(["-9", &second.to_string()]).status().unwrap();
    assert!(sent.success());
    let status = both.wait().unwrap();
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    assert!(!status.success());
    let lines: Vec<String> =
        BufReader::new(both.stderr.take().unwrap()).lines().map(|line| line.unwrap()).collect();
    assert!(lines.iter().any(|line| line.contains("rank 1")), "{lines:?}");
}

/// The process below `parent` with this variable in its environment.
fn child_with(parent: u32, variable: &str) -> u32 {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for number in numbers {
        let read = |what: &str| std::fs::read(format!("/proc/{number}/{what}")).unwrap_or_default();
        let environment = read("environ");
        let has = environment.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes());
        let status = String::from_utf8(read("status")).unwrap_or_default();
        if has && status.contains(&format!("PPid:\t{parent}\n")) {
            return number;
        }
    }
    panic!("no process of {variable} below {parent}");
}

/// A program in the place of the third process, which never starts MPI.
#[test]
fn a_process_that_never_comes_is_named() {
    let runs = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let output = mpirun()
        .args(["-n", "2", PODRACER])
        .args(flags(runs.path()))
        .args(["--distributed", "--local-num-envs=12", "--join-timeout=3"])
        .args([":", "-n", "1", "sleep", "60"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let message = message(&output);
    let expected = "error: --distributed: process 0 of 3 has waited 3 s for the others to start: \
                    process(es) [2] have not come";
    assert!(message.contains(expected), "{message}");
}

#[test]
#[ignore = "a process of the test below"]
fn meets_the_others_unless_it_is_the_second() {
    let processes = Mpi::join(Duration::from_secs(60)).unwrap();
    if processes.world().rank == 1 {
        std::thread::sleep(Duration::from_secs(60));
    }
    if let Err(error) = processes.barrier(Duration::from_secs(2)) {
        processes.abort(&error);
    }
}

#[test]
fn a_process_that_starts_and_then_hangs_is_named() {
    let began = Instant::now();
    let meeting = |count: &str| {
        let mut command = mpirun();
        command.args(["-n", count]).arg(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "meets_the_others_unless_it_is_the_second"]);
        command.arg("--nocapture");
        command.output().unwrap()
    };
    let alone = meeting("1");
    assert!(alone.status.success(), "{}", message(&alone));
    let output = meeting("3");
    assert!(!output.status.success());
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let message = message(&output);
    let expected = "error: process 0 of 3: --distributed: process(es) [1] started, and did not come \
                    to the beginning of the run within 2 s";
    assert!(message.contains(expected), "{message}");
}

#[test]
#[ignore = "a process of the test below"]
fn tells_the_others_keys_and_values() {
    let processes: Arc<dyn Exchange> = Arc::new(Mpi::join(Duration::from_secs(60)).unwrap());
    let timeout = Duration::from_secs(20);
    let World { rank, size } = processes.world();
    // Twice is once.
    let [store, _] = [(); 2].map(|()| processes.clone().key_values().unwrap());
    store.put(&format!("local_topology/cuda/{rank}"), &[rank as u8; 3]).unwrap();
    for other in 0..size {
        let found = store.get(&format!("local_topology/cuda/{other}"), timeout).unwrap();
        assert_eq!(found.unwrap(), [other as u8; 3]);
    }
    processes.barrier(timeout).unwrap();
    eprintln!("process {rank} of {size} has read all");
}

/// As the clients of GPUs do.
#[test]
fn keys_and_values_are_shared_where_mpi_says() {
    let output = mpirun()
        .args(["-n", "3"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "tells_the_others_keys_and_values", "--nocapture"])
        .output()
        .unwrap();
    let message = message(&output);
    assert!(output.status.success(), "{message}");
    for rank in 0..3 {
        assert!(message.contains(&format!("process {rank} of 3 has read all")), "{message}");
    }
}

#[test]
fn flags_that_differ_are_told() {
    let runs = tempfile::tempdir().unwrap();
    let one = |seed: &'static str| {
        let mut words = vec!["-n".to_string(), "1".into(), PODRACER.into()];
        words.extend(flags(runs.path()));
        words.extend(["--distributed", "--local-num-envs=12", "--seed", seed].map(String::from));
        words
    };
    let output = mpirun().args(one("1")).arg(":").args(one("2")).output().unwrap();
    assert!(!output.status.success());
    let message = message(&output);
    assert!(message.contains("process(es) [1]"), "{message}");
    assert!(message.contains("--seed 2 (process 0 has 1)"), "{message}");
}
