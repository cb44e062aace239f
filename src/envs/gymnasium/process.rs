//! One worker process: how it is started, the two pipes to it, and its end.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Script of a worker: three files, of which the last one runs.
const SCRIPT: &str = concat!(
    include_str!("spaces.py"),
    "\n\n",
    include_str!("envpool.py"),
    "\n\n",
    include_str!("worker.py")
);

/// Word that asks for a reply.
const FLUSH: u32 = u32::MAX;

/// Time that processes have to close their environments before they are killed.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// Maximum length of a message in bytes: more than a picture or the bounds of a space need.
const MAX_MESSAGE: usize = 256 << 20;

/// Milliseconds of waiting for a reply after which it is checked that the process still runs.
const POLL_MILLIS: i32 = 100;

/// Command for one environment.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(super) enum Operation {
    Step = 1,
    StepAndReset = 2,
    Reset = 3,
    Render = 4,
}

/// Number of a request that waits for its reply.
pub(super) type Ticket = u64;

/// Worker process with its pipes.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// `None` once the pipe is closed.
    requests: Option<PipeWriter>,
    replies: PipeReader,
    /// Bytes of replies that were read and not used.
    unread: Vec<u8>,
    /// Words that were not delivered.
    queue: Vec<u8>,
    /// Number of requests and of replies so far.
    requested: Ticket,
    replied: Ticket,
    /// Errors of environments, each until the call that waits for it.
    failures: HashMap<usize, String>,
    /// Number of images that were requested and not received, and the last one received.
    images_due: usize,
    image: Option<Vec<u8>>,
    /// Reason why the process is not used any more.
    dead: Option<String>,
    timeout: Option<Duration>,
}

impl Process {
    /// Starts a worker and sends it its settings.
    pub(super) fn start(
        id: &str,
        python: &OsStr,
        shared: RawFd,
        settings: &serde_json::Value,
        timeout: Option<Duration>,
    ) -> Result<Process> {
        let (child, requests, replies) = spawn(id, python, shared).map_err(|error| {
            let python = python.display();
            Error::Env(format!(
                "cannot run {python}: {error}\n  help: install Python 3 with Gymnasium, or set \
                 PODRACER_PYTHON to one that has it"
            ))
        })?;
        let mut process = Process {
            child,
            requests: Some(requests),
            replies,
            unread: Vec::new(),
            queue: Vec::new(),
            requested: 0,
            replied: 0,
            failures: HashMap::new(),
            images_due: 0,
            image: None,
            dead: None,
            timeout,
        };
        let script = process.child.stdin.take().map(|mut stdin| stdin.write_all(SCRIPT.as_bytes()));
        // A process that ended already is reported by the first wait for it.
        drop(script);
        process.send_message(settings);
        Ok(process)
    }

    /// Sends a message in JSON.
    pub(super) fn send_message(&mut self, message: &impl serde::Serialize) {
        let json = serde_json::to_vec(message).expect("plain values");
        self.queue.extend((json.len() as u32).to_ne_bytes());
        self.queue.extend(json);
        self.deliver();
    }

    /// Waits for the description of the environments.
    pub(super) fn receive_description(&mut self) -> Result<Vec<u8>, String> {
        match self.receive()? {
            Reply::Description(json) => Ok(json),
            Reply::Refused(text) => Err(text),
            _ => Err(self.end("it sent something else than the description of its spaces")),
        }
    }

    /// Adds a command for the environment at position `position` of this process.
    pub(super) fn push(&mut self, position: usize, operation: Operation) -> Ticket {
        self.images_due += usize::from(matches!(operation, Operation::Render));
        self.queue.extend((((position as u32) << 8) | operation as u32).to_ne_bytes());
        self.requested + 1
    }

    /// Delivers the commands that were pushed.
    pub(super) fn flush(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        self.queue.extend(FLUSH.to_ne_bytes());
        self.requested += 1;
        self.deliver();
    }

    fn deliver(&mut self) {
        match self.write_queue() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                self.end(&error.to_string());
            }
            // The process ended, which the next wait reports.
            Err(_) => self.requests = None,
        }
        self.queue.clear();
    }

    /// Writes the queue to the pipe. A full pipe is waited for as long as for a reply.
    fn write_queue(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.requests else { return Ok(()) };
        let (mut rest, mut began) = (&self.queue[..], Instant::now());
        while !rest.is_empty() {
            match pipe.write(rest) {
                Ok(written) => (rest, began) = (&rest[written..], Instant::now()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_for(pipe.as_raw_fd(), libc::POLLOUT, POLL_MILLIS)?;
                    if !matches!(self.child.try_wait(), Ok(None)) {
                        return Err(error);
                    }
                    if let Some(timeout) = self.timeout.filter(|limit| began.elapsed() >= *limit) {
                        let problem = format!("it read no request for {timeout:?}");
                        return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits for the reply to the request of `ticket`, and returns the error of environment `env`.
    pub(super) fn wait(&mut self, ticket: Ticket, env: usize) -> Result<(), String> {
        while self.replied < ticket {
            match self.receive()? {
                Reply::Done => self.replied += 1,
                Reply::Failed(failures) => {
                    self.replied += 1;
                    self.failures.extend(failures);
                }
                Reply::Image(image) if self.images_due > 0 => {
                    self.images_due -= 1;
                    self.image = Some(image);
                }
                Reply::Image(_) => return Err(self.end("it sent an image without a request")),
                Reply::Description(_) | Reply::Refused(_) => {
                    return Err(self.end("it sent a description of its spaces twice"));
                }
            }
        }
        self.failures.remove(&env).map_or(Ok(()), Err)
    }

    /// Returns the image of a request that was waited for: its size, then its bytes.
    pub(super) fn take_image(&mut self) -> Option<Vec<u8>> {
        self.image.take()
    }

    /// Returns the next reply.
    fn receive(&mut self) -> Result<Reply, String> {
        let began = Instant::now();
        loop {
            if let Some(reason) = &self.dead {
                return Err(reason.clone());
            }
            match Reply::parse(&mut self.unread) {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => self.read(began)?,
                Err(problem) => return Err(self.end(&problem)),
            }
        }
    }

    /// Waits for bytes of the reply for which `began` is the start of waiting, and reads them.
    fn read(&mut self, began: Instant) -> Result<(), String> {
        let mut status = None;
        loop {
            // A process that ended has written all that it will.
            let millis = if status.is_some() { 0 } else { POLL_MILLIS };
            match wait_for(self.replies.as_raw_fd(), libc::POLLIN, millis) {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => return Err(self.end(&format!("the pipe from it failed: {error}"))),
            }
            if let Some(status) = status {
                return Err(self.end(&ended(status)));
            }
            // The pipe may stay open: a process that it forked has it too.
            status = self.child.try_wait().ok().flatten();
            let late = |timeout: &Duration| status.is_none() && began.elapsed() >= *timeout;
            if let Some(timeout) = self.timeout.filter(late) {
                return Err(self.end(&format!("it did not answer for {timeout:?}")));
            }
        }
        let mut bytes = [0; 4096];
        match self.replies.read(&mut bytes) {
            Ok(0) => {
                self.join(Instant::now() + CLOSING_TIME);
                let status = self.child.wait().map_or_else(|e| e.to_string(), ended);
                Err(self.end(&status))
            }
            Ok(count) => {
                self.unread.extend(&bytes[..count]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(self.end(&format!("the pipe from it failed: {error}"))),
        }
    }

    /// Ends the process, and returns the text of the error of each of its environments from now on.
    fn end(&mut self, problem: &str) -> String {
        let reason = format!("the worker process {} was lost: {problem}", self.child.id());
        self.requests = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.dead.insert(reason).clone()
    }

    /// Closes the pipe, upon which the process closes its environments and ends.
    pub(super) fn close(&mut self) {
        self.requests = None;
    }

    /// Waits until `deadline` for the end of the process; kills it then.
    pub(super) fn join(&mut self, deadline: Instant) {
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() >= deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.close();
        self.join(Instant::now() + CLOSING_TIME);
    }
}

/// Ends processes: all pipes are closed before any process is waited for.
pub(super) fn end_all<'a>(processes: impl Iterator<Item = &'a mut Process>) {
    let mut processes: Vec<&mut Process> = processes.collect();
    processes.iter_mut().for_each(|process| process.close());
    let deadline = Instant::now() + CLOSING_TIME;
    processes.iter_mut().for_each(|process| process.join(deadline));
}

/// Message from a worker.
enum Reply {
    Done,
    Failed(Vec<(usize, String)>),
    Description(Vec<u8>),
    Refused(String),
    Image(Vec<u8>),
}

impl Reply {
    /// Takes the first message out of `bytes`; `None` if it is not complete.
    fn parse(bytes: &mut Vec<u8>) -> Result<Option<Reply>, String> {
        let Some(&tag) = bytes.first() else { return Ok(None) };
        if tag == b'.' {
            bytes.remove(0);
            return Ok(Some(Reply::Done));
        }
        if !b"!SER".contains(&tag) {
            return Err(format!("it sent a message of unknown kind {tag}"));
        }
        let Some(length) = bytes.get(1..5) else { return Ok(None) };
        let length = u32::from_ne_bytes(length.try_into().expect("four bytes")) as usize;
        if length > MAX_MESSAGE {
            return Err(format!("it sent a message of {length} bytes, of at most {MAX_MESSAGE}"));
        }
        if bytes.len() < 5 + length {
            return Ok(None);
        }
        let rest = bytes.split_off(5 + length);
        let body = std::mem::replace(bytes, rest).split_off(5);
        let damaged = |e: serde_json::Error| format!("it sent a damaged message: {e}");
        Ok(Some(match tag {
            b'!' => Reply::Failed(serde_json::from_slice(&body).map_err(damaged)?),
            b'S' => Reply::Description(body),
            b'E' => Reply::Refused(serde_json::from_slice(&body).map_err(damaged)?),
            _ => Reply::Image(body),
        }))
    }
}

/// Waits until a pipe has these events; returns false after `millis` milliseconds or at a signal.
fn wait_for(pipe: RawFd, events: libc::c_short, millis: i32) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: pipe, events, revents: 0 };
    // SAFETY: one valid element, as the count says.
    let ready = unsafe { libc::poll(&mut poll, 1, millis) };
    match ready {
        0 => Ok(false),
        1.. => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}

/// Describes the end of a process.
fn ended(status: std::process::ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal} ended it"),
        None => format!("it ended with {status}"),
    }
}

fn spawn(id: &str, python: &OsStr, shared: RawFd) -> io::Result<(Child, PipeWriter, PipeReader)> {
    let (their_requests, requests) = io::pipe()?;
    let (replies, their_replies) = io::pipe()?;
    // SAFETY: the call takes numbers only. The process reads from the other end, which stays blocking.
    if unsafe { libc::fcntl(requests.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let inherited = [their_requests.as_raw_fd(), their_replies.as_raw_fd(), shared];
    let mut command = Command::new(python);
    command.arg("-").args(inherited.map(|fd| fd.to_string()));
    // For lists of processes.
    command.args(["podracer-gymnasium-worker", id]);
    // What environments print does not mix with a result on standard output.
    command.stdin(Stdio::piped()).stdout(io::stderr().as_fd().try_clone_to_owned()?);
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        // There is a process for each core already.
        command.env("OMP_NUM_THREADS", "1");
    }
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: these calls take numbers only and are async-signal-safe; the closure allocates
        // nothing.
        unsafe {
            // An interrupt of the terminal reaches all processes of the run. The trainer ends its
            // workers itself, after the step in which they are.
            libc::signal(libc::SIGINT, libc::SIG_IGN);
            libc::signal(libc::SIGTERM, libc::SIG_IGN);
            for fd in inherited {
                libc::fcntl(fd, libc::F_SETFD, 0);
            }
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
                || libc::getppid() as u32 != parent
            {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes only the system calls above.
    unsafe { command.pre_exec(prepare) };
    let child = on_lasting_thread(move || {
        let child = command.spawn();
        drop((their_requests, their_replies));
        child
    })?;
    Ok((child, requests, replies))
}

/// Calls `work` on a thread that lives as long as this process: a child that is to end with its
/// parent ends when the thread that started it does.
fn on_lasting_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    type Work = Box<dyn FnOnce() + Send>;
    static THREAD: OnceLock<Mutex<Option<Sender<Work>>>> = OnceLock::new();
    let mut thread =
        THREAD.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if thread.is_none() {
        let (sender, receiver) = mpsc::channel::<Work>();
        let run = move || receiver.into_iter().for_each(|work| work());
        std::thread::Builder::new().name("podracer-spawner".into()).spawn(run)?;
        *thread = Some(sender);
    }
    let (sender, receiver) = mpsc::channel();
    let send = move || drop(sender.send(work()));
    thread.as_ref().expect("just made").send(Box::new(send)).expect("the thread never ends");
    drop(thread);
    receiver.recv().map_err(io::Error::other)?
}
