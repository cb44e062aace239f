//! Stops of runs of several processes: a signal to one of them, at any time, ends all at one timestep.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use podracer::rl::Summary;
use podracer::rl::checkpoint::saved::SavedMetadata;
use podracer::rl::logging::tensorboard::{Value, read_events};

use super::processes::{PODRACER, message};
use super::{mpiexec, process_of, processes_of};

/// Longest time from the signal to the end of all processes. A program that is being compiled is
/// compiled to its end.
const STOP_TIMEOUT: Duration = Duration::from_secs(90);
/// Timesteps of an update: 12 environments in all, four steps each.
const BATCH: u64 = 48;

/// Numbers that look random, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Starts a run whose processes wait for each other for most of the time.
fn start(size: usize, runs: &Path, more: &[String]) -> Child {
    let mut command = mpiexec();
    command.args(["-n", &size.to_string(), PODRACER, "train", "cleanba_ppo", "--distributed"]);
    command.args(["--env-id=CartPole-v1", "--num-actor-threads=1", "--num-steps=4"]);
    command.args(["--num-minibatches=1", "--update-epochs=1", "--no-concurrency"]);
    command.args(["--log-frequency=1", "--no-anneal-lr", "--json"]);
    command.arg(format!("--local-num-envs={}", 12 / size));
    command.arg(format!("--runs-dir={}", runs.display())).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The output of the run, which must end soon; `what` names the stop otherwise.
fn end(mut run: Child, what: &str) -> Output {
    let (out, err) = (run.stdout.take().unwrap(), run.stderr.take().unwrap());
    let read = |mut stream: Box<dyn std::io::Read + Send>| {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            // The receiver is gone if the run hung.
            let _ = sender.send(bytes);
        });
        receiver
    };
    let (out, err) = (read(Box::new(out)), read(Box::new(err)));
    let began = Instant::now();
    let status = loop {
        if let Some(status) = run.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > STOP_TIMEOUT {
            // The launcher ends its processes.
            Command::new("kill").arg(run.id().to_string()).status().unwrap();
            panic!("{what}: they wait for each other");
        }
        sleep(Duration::from_millis(10));
    };
    Output { status, stdout: out.recv().unwrap(), stderr: err.recv().unwrap() }
}

/// The folders of the runs of all processes, that of the first one first.
fn folders(runs: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir(runs).unwrap().map(|entry| entry.unwrap().path()).collect();
    // `.._process1__..` comes after `..__1__..`, whatever the order of the letters.
    folders.sort_by_key(|path| (path.to_string_lossy().contains("_process"), path.clone()));
    folders
}

/// True after the first updates of a run with the flag `--checkpoint-frequency`.
fn has_checkpoint(runs: &Path) -> bool {
    folders(runs).first().is_some_and(|folder| folder.join("checkpoint.safetensors").exists())
}

/// The last timestep of which a process has logged an update.
fn last_update(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let events = files.filter(|path| path.to_string_lossy().contains("tfevents"));
    let events = events.flat_map(|path| read_events(path).unwrap());
    let updates = events.filter(
        |event| matches!(&event.value, Value::Scalar { tag, .. } if tag == "charts/learning_rate"),
    );
    updates.map(|event| event.step).max().unwrap_or(0)
}

/// Stops a run at a random time by a signal to a random process: during its start or after its first update.
/// Returns true if it had begun.
fn stop(random: &mut Random, starting: bool) -> bool {
    let size = 2 + random.below(2) as usize;
    let victim = random.below(size as u64) as usize;
    let signal = ["-TERM", "-INT"][random.below(2) as usize];
    let delay = Duration::from_millis(random.below(if starting { 4000 } else { 2000 }));
    let what = format!("{signal} to process {victim} of {size}, starting: {starting}, {delay:?}");

    let runs = tempfile::tempdir().unwrap();
    let more = ["--total-timesteps=1000000000", "--checkpoint-frequency=96"].map(String::from);
    let mut run = start(size, runs.path(), &more);
    while !starting && !has_checkpoint(runs.path()) {
        assert!(run.try_wait().unwrap().is_none(), "{what}: {}", message(&end(run, &what)));
        sleep(Duration::from_millis(10));
    }
    sleep(delay);
    let pid = process_of(run.id(), victim).to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success(), "{what}");
    let output = end(run, &what);
    let text = message(&output);
    if !output.status.success() {
        // Before the handlers of signals are installed, a signal kills. Within `MPI_Init` the launcher
        // says so, of this process or of one that it killed then.
        assert!(starting, "{what}: {text}");
        let launcher = String::from_utf8_lossy(&output.stdout);
        let named = text.contains(&format!("process {victim} of {size} is gone"))
            || text.contains(&format!("process(es) [{victim}] ended before the others"))
            || launcher.contains("BAD TERMINATION");
        assert!(named, "{what}: {text}{launcher}");
        return false;
    }
    let summary: Summary = serde_json::from_slice(&output.stdout).unwrap();
    assert!(summary.interrupted && summary.global_step.is_multiple_of(BATCH), "{what}: {summary}");
    for folder in folders(runs.path()) {
        assert_eq!(last_update(&folder), summary.global_step, "{what}: {}", folder.display());
    }
    if summary.global_step == 0 {
        assert!(starting, "{what}");
        return false;
    }
    let folder = &folders(runs.path())[0];
    let checkpoint = folder.join("checkpoint.safetensors");
    let saved = SavedMetadata::read(&checkpoint).unwrap().run_state(&checkpoint).unwrap();
    assert_eq!(saved.global_step, summary.global_step, "{what}");

    let total = summary.global_step + 2 * BATCH;
    let more = [format!("--resume={}", folder.display()), format!("--total-timesteps={total}")];
    let output = end(start(size, runs.path(), &more), &what);
    assert!(output.status.success(), "{what}, resumed: {}", message(&output));
    let summary: Summary = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((summary.global_step, summary.interrupted), (total, false), "{what}, resumed");
    true
}

/// Makes this many stops; a seed of its own each time, which is printed.
fn random_stops(count: usize) {
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let mut random = Random(seed);
    // One in four during the start.
    let begun = (0..count).filter(|k| stop(&mut random, k % 4 == 0)).count();
    println!("{count} stops from seed {seed}: {begun} of runs that had begun; none hung");
}

#[test]
fn a_signal_to_one_process_stops_all() {
    random_stops(4);
}

#[test]
#[ignore = "fifty runs; docs/sebulba.md has the command"]
fn fifty_signals_stop_all() {
    random_stops(50);
}

/// All get the signal, as from a scheduler: the second one to arrive does not end its process at once,
/// although the first one has stopped the run.
#[test]
fn a_signal_to_all_processes_stops_all() {
    let runs = tempfile::tempdir().unwrap();
    let more = ["--total-timesteps=1000000000", "--checkpoint-frequency=96"].map(String::from);
    let run = start(3, runs.path(), &more);
    while !has_checkpoint(runs.path()) {
        sleep(Duration::from_millis(10));
    }
    let pids = [0, 1, 2].map(|rank| process_of(run.id(), rank).to_string());
    for (rank, pid) in pids.iter().enumerate() {
        let sent = Command::new("kill").args(["-TERM", pid]).status().unwrap();
        // The first signal stops all, so the others may have ended by now.
        assert!(sent.success() || rank > 0);
        sleep(Duration::from_millis(40));
    }
    let output = end(run, "a signal to all");
    assert!(output.status.success(), "{}", message(&output));
}

/// The message of a launch of two processes with other flags each, which ends within seconds.
fn refused(first: &[&str], second: &[&str]) -> String {
    let runs = tempfile::tempdir().unwrap();
    let mut command = mpiexec();
    for (k, flags) in [first, second].into_iter().enumerate() {
        command.args(if k == 0 { &["-n", "1"][..] } else { &[":", "-n", "1"] });
        command.args([PODRACER, "train", "cleanba_ppo", "--env-id=CartPole-v1"]);
        command.args(["--num-actor-threads=1", "--num-steps=16", "--total-timesteps=1000000000"]);
        command.arg(format!("--runs-dir={}", runs.path().display())).args(flags);
    }
    let began = Instant::now();
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = end(run, "flags that differ");
    let text = message(&output);
    assert!(!output.status.success(), "{text}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}: {text}", began.elapsed());
    text
}

#[test]
fn a_wrong_flag_of_one_process_ends_all() {
    let right = ["--distributed", "--local-num-envs=12"];
    for (wrong, words) in [
        ("--flag-that-is-unknown=3", "unexpected argument '--flag-that-is-unknown'"),
        ("--num-steps=0", "--num-steps 0"),
        ("--num-minibatches=7", "must be a multiple of 7"),
        ("--env-id=Cartpole-v9", "Cartpole-v9"),
        ("--local-num-envs=8", "--local-num-envs 8 (process 0 has 12)"),
        ("--seed=7", "--seed 7 (process 0 has 1)"),
        ("--total-timesteps=1000", "--total-timesteps 1000 (process 0 has 1000000000)"),
    ] {
        let text = refused(&right, &[&right[..], &[wrong]].concat());
        let named = |line: &&str| line.contains("process 1 of 2: ") && line.contains(words);
        assert_eq!(text.lines().filter(named).count(), 1, "{wrong}: {text}");
    }
    let text = refused(&[&right[..], &["--flag-that-is-unknown"]].concat(), &right);
    assert!(text.contains("error: process 0 of 2: unexpected argument"), "{text}");
    assert!(text.contains("process(es) [0] ended before the others had started"), "{text}");
    // It would train by itself.
    let text = refused(&right, &right[1..]);
    assert!(text.contains("process(es) [1] run without --distributed"), "{text}");
}

#[test]
#[ignore = "a process of the test below"]
fn the_second_panics() {
    let processes = podracer::distributed::Mpi::join(Duration::from_secs(60)).unwrap();
    assert_eq!(processes.rank(), 0, "the second one panics here");
    processes.sum_i64(&mut [1]).unwrap();
}

#[test]
fn a_panic_of_one_process_ends_all() {
    let mut command = processes_of("stops::the_second_panics", "2");
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let text = message(&end(run, "a panic"));
    assert!(text.contains("error: process 1 of 2: it panicked"), "{text}");
}
