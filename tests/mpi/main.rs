//! Sebulba over processes that the `mpiexec` of the fetched MPI starts. Nothing of the system's MPI
//! is used, if there is one: neither programs nor libraries are searched for.

use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

#[path = "../processes/mod.rs"]
mod processes;
mod stops;

use podracer::distributed::Mpi;
use podracer::native::Settings;
use processes::{PODRACER, expect_the_same, flags, learning_together, message, one_process};

/// The launcher of the pinned wheel, with an environment in which nothing else is found.
fn mpiexec() -> Command {
    let settings = Settings { mpi: None, ..Settings::from_env().unwrap() };
    let mut command = Command::new(settings.locate_mpiexec().unwrap());
    command.env("PATH", "/no/such/folder").env("PODRACER_OFFLINE", "1");
    command.env_remove("LD_LIBRARY_PATH").env_remove("PODRACER_MPI");
    command
}

/// A file that a process reads without end, until the test that made it drops it or is gone.
struct Held {
    folder: tempfile::TempDir,
    _writer: File,
}

impl Held {
    fn new() -> Held {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        // For both: a pipe without a reader cannot be opened for writing alone.
        let writer = File::options().read(true).write(true).open(path).unwrap();
        Held { folder, _writer: writer }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }
}

/// The output of a command, whose processes wait for each other. If they do so for minutes, what one
/// of them reads is dropped, and all end.
fn output_of(mut command: Command, held: Held) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (ended, ends) = mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait_with_output().unwrap()));
    match ends.recv_timeout(Duration::from_secs(180)) {
        Ok(output) => output,
        Err(_) => {
            drop(held);
            panic!("nobody is named: {}", message(&ends.recv().unwrap()));
        }
    }
}

/// Checks that a launch whose folder for temporary files is `folder` has left nothing in it.
fn expect_nothing_left(folder: &Path) {
    let left: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    let ours = |path: &&PathBuf| path.to_string_lossy().contains("podracer");
    assert!(!left.iter().any(|path| ours(&path)), "{left:?}");
}

/// The program of an example, beside the folder of this test's own.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(program.exists(), "run `cargo build --examples` first: no {}", program.display());
    program
}

#[test]
fn two_processes_learn_what_one_does() {
    for exact in ["--no-deterministic", "--deterministic"] {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        one_process(one.path(), &[exact, "--local-num-envs=12"]);
        let both = mpiexec()
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

/// Three processes add in an order that differs from one process's, and share the numbers unevenly.
#[test]
fn three_processes_learn_what_one_does() {
    let (one, three) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    one_process(one.path(), &["--deterministic", "--local-num-envs=12"]);
    let all = mpiexec()
        .args(["-n", "3", PODRACER])
        .args(flags(three.path()))
        .args(["--deterministic", "--local-num-envs=4", "--distributed"])
        .output()
        .unwrap();
    assert!(all.status.success(), "{}", message(&all));
    expect_the_same(one.path(), three.path(), true);
}

/// The example is one algorithm; `podracer mpiexec` is the launcher without its path.
#[test]
fn two_processes_of_the_example_learn_what_one_does() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    one_process(one.path(), &["--deterministic", "--local-num-envs=12"]);
    let both = Command::new(PODRACER)
        .args(["mpiexec", "-n", "2"])
        .arg(example("sebulba_ppo"))
        .args(&flags(two.path())[2..])
        .args(["--distributed", "--deterministic", "--local-num-envs=6"])
        .env("PATH", "/no/such/folder")
        .env_remove("PODRACER_MPI")
        .output()
        .unwrap();
    assert!(both.status.success(), "{}", message(&both));
    expect_the_same(one.path(), two.path(), true);
}

#[test]
fn a_process_without_a_launcher_gets_the_command() {
    let runs = tempfile::tempdir().unwrap();
    let mut alone = Command::new(PODRACER);
    alone.args(flags(runs.path())).arg("--distributed").env_remove("PODRACER_MPI");
    for variable in ["PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"] {
        alone.env_remove(variable);
    }
    let output = alone.output().unwrap();
    assert!(!output.status.success());
    let message = message(&output);
    assert!(message.contains("no launcher of MPI has started this process"), "{message}");
    assert!(message.contains("podracer mpiexec -n 2 podracer train"), "{message}");
}

/// The process of this rank below `launcher`, whose helper is its parent, once it is there.
fn process_of(launcher: u32, rank: usize) -> u32 {
    let began = Instant::now();
    loop {
        if let Some(pid) = find_process(launcher, rank) {
            return pid;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no process {rank} below {launcher}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn find_process(launcher: u32, rank: usize) -> Option<u32> {
    let read =
        |pid: u32, what: &str| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let parent = |pid: u32| {
        let status = String::from_utf8(read(pid, "status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        line.and_then(|pid| pid.trim().parse::<u32>().ok()).unwrap_or_default()
    };
    let variable = format!("PMI_RANK={rank}");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_it = |&pid: &u32| {
        let environment = read(pid, "environ");
        let has = environment.split(|&byte| byte == 0).any(|entry| entry == variable.as_bytes());
        has && parent(parent(pid)) == launcher
    };
    pids.into_iter().find(is_it)
}

#[test]
fn a_process_that_dies_ends_the_others_and_is_named() {
    for victim in [0, 1] {
        let (runs, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut both = mpiexec()
            .env("TMPDIR", temporary.path())
            .args(["-n", "2", PODRACER])
            .args(flags(runs.path()).iter().filter(|flag| *flag != "--json"))
            .args(["--distributed", "--local-num-envs=12", "--total-timesteps=1000000000"])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(both.stderr.take().unwrap());
        let mut message = learning_together(&mut errors);
        let pid = process_of(both.id(), victim);
        let sent = Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        assert!(sent.success());
        errors.read_to_string(&mut message).unwrap();
        assert!(!both.wait().unwrap().success());
        expect_nothing_left(temporary.path());
        let named: Vec<&str> = message.lines().filter(|line| line.contains(" is gone")).collect();
        let expected = format!("error: process {victim} of 2 is gone: PID {pid} on ");
        assert!(matches!(named[..], [line] if line.starts_with(&expected)), "{message}");
    }
}

/// A program in the place of the third process, which never starts MPI.
#[test]
fn a_process_that_never_comes_is_named() {
    let (runs, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let held = Held::new();
    let mut command = mpiexec();
    command
        .env("TMPDIR", temporary.path())
        .args(["-n", "2", PODRACER])
        .args(flags(runs.path()))
        .args(["--distributed", "--local-num-envs=12", "--join-timeout=3"])
        .args([":", "-n", "1", "/bin/cat"])
        .arg(held.path());
    let output = output_of(command, held);
    assert!(!output.status.success());
    let message = message(&output);
    let expected = "error: --distributed: process 0 of 3 has waited 3 s for the others to start: \
                    process(es) [2] have not come";
    assert!(message.contains(expected), "{message}");
    // The launcher has killed the second process while it waited.
    expect_nothing_left(temporary.path());
}

/// The command that starts an ignored test of this file in several processes.
fn processes_of(test: &str, count: &str) -> Command {
    let mut command = mpiexec();
    command.args(["-n", count]).arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    command
}

/// Variable with the path of what a process reads instead of meeting the others.
const HELD: &str = "PODRACER_TEST_HELD";

#[test]
#[ignore = "a process of the test below"]
fn meets_the_others_unless_it_is_the_second() {
    let processes = Mpi::join(Duration::from_secs(60)).unwrap();
    if processes.rank() == 1 {
        fs::read(std::env::var(HELD).unwrap()).unwrap();
    }
    if let Err(error) = processes.barrier(Duration::from_secs(2)) {
        processes.abort(&error);
    }
}

#[test]
fn a_process_that_starts_and_then_hangs_is_named() {
    let test = "meets_the_others_unless_it_is_the_second";
    let alone = processes_of(test, "1").output().unwrap();
    assert!(alone.status.success(), "{}", message(&alone));
    let held = Held::new();
    let mut command = processes_of(test, "3");
    command.env(HELD, held.path());
    let output = output_of(command, held);
    assert!(!output.status.success());
    let message = message(&output);
    let expected = "error: process 0 of 3: --distributed: process(es) [1] started, and did not come \
                    to the beginning of the run within 2 s";
    assert!(message.contains(expected), "{message}");
}

#[test]
#[ignore = "a process of the test below"]
fn sends_keys_and_values_to_the_others() {
    let processes = Mpi::join(Duration::from_secs(60)).unwrap();
    let timeout = Duration::from_secs(20);
    let (rank, size) = (processes.rank(), processes.size());
    // Twice is once.
    let [store, _] = [(); 2].map(|()| processes.key_values().unwrap());
    // Larger than what MPI sends without the receiver.
    let value = |rank: usize| vec![rank as u8; 1 << 20];
    store.put(&format!("local_topology/cuda/{rank}"), &value(rank)).unwrap();
    for other in 0..size {
        let found = store.get(&format!("local_topology/cuda/{other}"), timeout).unwrap();
        assert_eq!(found.unwrap(), value(other));
    }
    assert_eq!(store.get("never", Duration::from_millis(50)).unwrap(), None);
    processes.barrier(timeout).unwrap();
    // Clients outlive the run.
    drop(processes);
    let ended = |outcome: podracer::Result<()>| {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("this process has ended its run"), "{error}");
    };
    ended(store.get("local_topology/cuda/0", timeout).map(|_| ()));
    ended(store.put("late", b"value"));
    report(&format!("process {rank} of {size} has read all\n"));
}

/// As the clients of GPUs do.
#[test]
fn keys_and_values_are_shared() {
    let output = processes_of("sends_keys_and_values_to_the_others", "3").output().unwrap();
    let message = message(&output);
    assert!(output.status.success(), "{message}");
    for rank in 0..3 {
        assert!(message.contains(&format!("process {rank} of 3 has read all")), "{message}");
    }
}

/// Writes a line to the standard error, which several processes share, in one piece: `eprintln`
/// writes several.
fn report(line: &str) {
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

#[test]
#[ignore = "a process of the test below"]
fn adds_numbers_and_agrees() {
    let processes = Mpi::join(Duration::from_secs(60)).unwrap();
    let rank = processes.rank();
    // In the order of the ranks, (1e8 + 1) - 1e8 is 0; in another it is 1.
    for slow in 0..3 {
        if rank == slow {
            std::thread::sleep(Duration::from_millis(60));
        }
        for length in [1, 2, 3, 1000] {
            let mut numbers = vec![[1e8f32, 1.0, -1e8][rank]; length];
            processes.sum_f32(&mut numbers).unwrap();
            assert_eq!(numbers, vec![0.0; length]);
        }
    }
    processes.sum_f32(&mut []).unwrap();
    let mut whole = [i64::MAX, 1 << 40];
    processes.sum_i64(&mut whole).unwrap();
    assert_eq!(whole, [i64::MAX - 2, 3 << 40]);
    let mut word = format!("of process {rank}{}", "!".repeat(rank)).into_bytes();
    processes.broadcast(&mut word).unwrap();
    assert_eq!(word, b"of process 0");
    // Any waiting time is accepted, however long.
    processes.barrier(Duration::MAX).unwrap();
    let again = Mpi::join(Duration::from_secs(1)).err().unwrap().to_string();
    assert!(again.contains("MPI is joined once in a process"), "{again}");
    report(&format!("process {rank} of 3 agrees\n"));
}

#[test]
fn sums_are_added_in_the_order_of_the_ranks() {
    let output = processes_of("adds_numbers_and_agrees", "3").output().unwrap();
    let message = message(&output);
    assert!(output.status.success(), "{message}");
    for rank in 0..3 {
        assert!(message.contains(&format!("process {rank} of 3 agrees")), "{message}");
    }
}

#[test]
fn flags_that_differ_are_reported() {
    let runs = tempfile::tempdir().unwrap();
    let one = |seed: &'static str| {
        let mut words = vec!["-n".to_string(), "1".into(), PODRACER.into()];
        words.extend(flags(runs.path()));
        words.extend(["--distributed", "--local-num-envs=12", "--seed", seed].map(String::from));
        words
    };
    let output = mpiexec().args(one("1")).arg(":").args(one("2")).output().unwrap();
    assert!(!output.status.success());
    let message = message(&output);
    assert!(message.contains("process(es) [1]"), "{message}");
    assert!(message.contains("--seed 2 (process 0 has 1)"), "{message}");
}
