//! The `podracer` command from outside: its flags, its streams, its run folders, its signals.

mod benchmark;
mod cleanrl;
mod completions;
mod envs;
mod export;
mod load;
mod output;
#[path = "../peers/mod.rs"]
mod peers;
mod runs;
mod signals;
mod statistics;
mod sweep;
mod track;
mod trust;
mod tune;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

/// The command.
fn podracer(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podracer"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A short PPO run in `runs`, with more flags.
fn ppo(runs: &Path, flags: &str) -> Command {
    let small = "train ppo --env-id CartPole-v1 --num-envs 2 --num-steps 16 --num-minibatches 2 \
                 --update-epochs 1 --num-threads 1 --total-timesteps 64";
    let mut command = podracer(&small.split_whitespace().collect::<Vec<_>>());
    command.args(flags.split_whitespace()).arg("--runs-dir").arg(runs);
    command
}

/// Flags of [`ppo`] for a run that does not end by itself.
const ENDLESS: &str = "--total-timesteps 2000000000";

/// Runs it: the exit status, standard output, standard error. Nothing panics.
fn run(mut command: Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!err.contains("panicked") && !err.contains("RUST_BACKTRACE"), "{err}");
    (output.status.code().unwrap_or_else(|| panic!("ended by a signal: {err}")), out, err)
}

/// The only run folder in `runs`.
fn run_dir(runs: &Path) -> PathBuf {
    let mut dirs = fs::read_dir(runs).unwrap();
    let dir = dirs.next().expect("a run").unwrap().path();
    assert!(dirs.next().is_none(), "one run");
    dir
}

/// A run under way.
struct Running {
    child: Child,
    err: BufReader<ChildStderr>,
    /// Standard error so far.
    text: String,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let err = BufReader::new(child.stderr.take().unwrap());
        Running { child, err, text: String::new() }
    }

    /// Reads until a line contains `part`.
    fn wait_for(&mut self, part: &str) {
        loop {
            let mut line = String::new();
            let read = self.err.read_line(&mut line).unwrap();
            assert!(read > 0, "no `{part}` in:\n{}", self.text);
            self.text.push_str(&line);
            if line.contains(part) {
                return;
            }
        }
    }

    /// Waits until the file exists; fails when the process ends before.
    fn wait_for_file(&mut self, file: &Path) {
        while !file.exists() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "no {} at the end: {ended:?}", file.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Waits for its end: the exit status, `None` after a signal, and all of standard error.
    fn end(mut self) -> (Option<i32>, String) {
        self.err.read_to_string(&mut self.text).unwrap();
        (self.child.wait().unwrap().code(), self.text)
    }
}
