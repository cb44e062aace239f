//! Python scripts that run beside training and serve it: child processes that get messages through a
//! pipe. Nothing that happens in them slows or ends the training.

use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::envs::default_python;
use crate::output::{self, child::read_line};
use crate::rl::interrupt;

/// Maximum number of bytes that wait to be written into the pipe.
const MAX_QUEUED: usize = 16 << 20;
/// Interval at which queued messages are written.
const WRITE_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which the end of a process is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum time that a run waits at its end for the script to send its last data.
const FINISH_TIMEOUT: Duration = Duration::from_secs(600);
/// Time after which a waiting run reports that it waits.
const REPORT_AFTER: Duration = Duration::from_secs(3);
/// Maximum length of an error text of the process, in bytes.
const MAX_ERROR: usize = 400;

/// A Python script as a child process. Messages are queued without waiting and written into its
/// standard input by a thread; lines of its standard output are printed.
#[derive(Debug)]
pub(in crate::rl) struct Script {
    purpose: Purpose,
    queue: Arc<Queue>,
    child: Arc<Mutex<Child>>,
    writer: Option<JoinHandle<()>>,
    supervisor: Option<JoinHandle<()>>,
}

/// Words for messages about a script.
#[derive(Debug, Clone, Copy)]
pub(in crate::rl) struct Purpose {
    /// Flag that asked for the script, as in `--track`.
    pub(in crate::rl) flag: &'static str,
    /// End of a sentence about a failure: the consequence for the run.
    pub(in crate::rl) consequence: &'static str,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<Messages>,
    /// Notified when the queue is closed.
    closed: Condvar,
}

#[derive(Debug, Default)]
struct Messages {
    bytes: Vec<u8>,
    /// Number of messages that the queue had no room for.
    dropped: u64,
    /// True if there are no further messages.
    closed: bool,
    /// True once the process reads no more.
    ended: bool,
    /// True once a problem was printed, or the process was killed by this one.
    reported: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// Prints a problem, unless one was printed before.
    fn report(&self, Purpose { flag, consequence }: Purpose, problem: &str) {
        if !std::mem::replace(&mut lock(&self.state).reported, true) {
            output::stderr_line(format_args!("{flag}: {problem}; {consequence}"));
        }
    }
}

impl Script {
    /// Starts the script. If that fails, prints the reason and returns `None`. Unless `quiet`,
    /// lines that begin with `info` are printed; problems always are.
    pub(in crate::rl) fn start(purpose: Purpose, text: &str, quiet: bool) -> Option<Script> {
        let python = default_python();
        let mut command = Command::new(&python);
        command.args(["-c", text]).env("PYTHONSAFEPATH", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C in a terminal goes to all processes of a group.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                output::stderr_line(format_args!(
                    "{}: cannot run {}: {error}; PODRACER_PYTHON names the Python to use; {}",
                    purpose.flag,
                    python.display(),
                    purpose.consequence
                ));
                return None;
            }
        };
        let (Some(input), Some(out), Some(err)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            unreachable!("all three streams are pipes");
        };
        let queue = Arc::new(Queue::default());
        let child = Arc::new(Mutex::new(child));
        let writer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || write_messages(&queue, input))
        };
        let supervisor = {
            let (queue, child) = (Arc::clone(&queue), Arc::clone(&child));
            let error = Arc::new(Mutex::new(String::new()));
            let last = Arc::clone(&error);
            let errors = thread::spawn(move || read_errors(err, &last));
            thread::spawn(move || {
                print_replies(&queue, purpose, quiet, out);
                let status = wait(&child);
                lock(&queue.state).ended = true;
                let Some(status) = status.filter(|status| !status.success()) else { return };
                // A process that it started may hold the pipe open.
                let ended = Instant::now();
                while !errors.is_finished() && ended.elapsed() < WRITE_INTERVAL {
                    thread::sleep(POLL_INTERVAL);
                }
                let problem = format!("its Python process ended, {status}: {}", lock(&error));
                queue.report(purpose, problem.trim_end_matches([' ', ':']));
            })
        };
        Some(Script { purpose, queue, child, writer: Some(writer), supervisor: Some(supervisor) })
    }

    /// Queues a message, one line without its end. If the queue is full, the message is dropped,
    /// unless it is `required`.
    pub(in crate::rl) fn send(&self, message: &str, required: bool) {
        let mut state = lock(&self.queue.state);
        if state.ended || state.closed {
            return;
        }
        if !required && state.bytes.len() + message.len() >= MAX_QUEUED {
            state.dropped += 1;
            return;
        }
        state.bytes.extend_from_slice(message.as_bytes());
        state.bytes.push(b'\n');
    }

    /// Closes the process's standard input and waits for its end: at most ten minutes, or until an
    /// interruption is requested. Prints how many messages were dropped.
    pub(in crate::rl) fn finish(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(supervisor) = self.supervisor.take() else { return };
        let dropped = {
            let mut state = lock(&self.queue.state);
            state.closed = true;
            state.dropped
        };
        self.queue.closed.notify_all();
        let (began, stopped) = (Instant::now(), interrupt::requested());
        let (mut announced, flag) = (false, self.purpose.flag);
        while !supervisor.is_finished() {
            let interrupted = !stopped && interrupt::requested();
            if interrupted || began.elapsed() > FINISH_TIMEOUT {
                lock(&self.queue.state).reported = true;
                kill(&mut lock(&self.child));
                output::stderr_line(format_args!("{flag}: the last data were not sent"));
                break;
            }
            if !announced && began.elapsed() > REPORT_AFTER {
                announced = true;
                output::stderr_line(format_args!(
                    "{flag}: sending the last data; Ctrl-C ends this"
                ));
            }
            thread::sleep(POLL_INTERVAL);
        }
        // Both end with the process; a process that it left behind may hold its pipes open.
        if supervisor.is_finished() {
            let _ = supervisor.join();
            let _ = self.writer.take().map(JoinHandle::join);
        }
        if dropped > 0 {
            output::stderr_line(format_args!(
                "{flag}: {dropped} entries were left out, because Python did not keep up; the event \
                 file has them"
            ));
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.end();
    }
}

/// Writes queued messages until the queue is closed or the process reads no more.
fn write_messages(queue: &Queue, mut input: ChildStdin) {
    let mut state = lock(&queue.state);
    loop {
        let bytes = std::mem::take(&mut state.bytes);
        let last = state.closed;
        drop(state);
        let written = input.write_all(&bytes);
        state = lock(&queue.state);
        if written.is_err() {
            state.ended = true;
            state.bytes = Vec::new();
        }
        if state.ended || (last && state.bytes.is_empty()) {
            return;
        }
        if !state.closed {
            let waited = queue.closed.wait_timeout(state, WRITE_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Prints the lines of the process until it closes its standard output.
fn print_replies(queue: &Queue, purpose: Purpose, quiet: bool, out: impl Read) {
    let (mut out, mut line) = (BufReader::new(out), Vec::new());
    while read_line(&mut out, &mut line).is_ok_and(|read| read > 0) {
        match String::from_utf8_lossy(&line).trim_end().split_once(' ') {
            Some(("info", text)) if !quiet => output::stderr_line(text),
            Some(("problem", text)) => queue.report(purpose, &shortened(text)),
            _ => {}
        }
    }
}

/// Reads all lines, and stores each that is not blank in the place of the one before.
pub(super) fn read_errors(err: impl Read, last: &Mutex<String>) {
    let mut err = BufReader::new(err);
    let mut line = Vec::new();
    while read_line(&mut err, &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() {
            *lock(last) = shortened(text.trim());
        }
    }
}

/// Returns the text without its end if it is long.
fn shortened(text: &str) -> String {
    match text.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_ERROR) {
        Some(end) => format!("{} ...", &text[..end]),
        None => text.to_string(),
    }
}

/// Kills the process and those that it started: `python3` may be a script that starts the interpreter.
fn kill(child: &mut Child) {
    #[cfg(unix)]
    if let (Ok(None), Ok(group)) = (child.try_wait(), libc::pid_t::try_from(child.id())) {
        // SAFETY: `kill` takes two numbers. The process is the leader of its group and was not
        // waited for, so the number is still its own.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
    let _ = child.kill();
}

/// Waits for the end of the process, so that it does not remain as a zombie.
fn wait(child: &Mutex<Child>) -> Option<std::process::ExitStatus> {
    loop {
        match lock(child).try_wait() {
            Ok(None) => {}
            Ok(status) => return status,
            Err(_) => return None,
        }
        thread::sleep(POLL_INTERVAL);
    }
}
