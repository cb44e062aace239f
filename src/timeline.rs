//! A timeline of a run, in the trace format of Chrome: open the file in Perfetto or in
//! `chrome://tracing`.
//!
//! [`start`] begins to record and returns a guard that writes the file. The library records its own
//! work: tracing, lowering, compiling, launching and running programs, transfers, steps of
//! environments, phases of the algorithms. [`span`] adds spans of the user's code.
//!
//! ```
//! use podracer::timeline;
//! # fn main() -> podracer::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("timeline-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! let file = folder.join("run.json");
//! let recording = timeline::start(&file)?;
//! {
//!     let _span = timeline::span("read the data");
//! }
//! recording.finish()?;
//! assert!(std::fs::read_to_string(&file).unwrap().contains("read the data"));
//! # std::fs::remove_dir_all(&folder).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! While nothing is recorded a span costs the load of one flag.

use std::borrow::Cow;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::output;

static ON: AtomicBool = AtomicBool::new(false);

/// Maximum number of spans per row; later ones are counted and left out.
const MAX_SPANS: usize = 1 << 20;

/// Row id of device 0; ids of threads are smaller.
const FIRST_DEVICE_ROW: u32 = 1 << 20;

struct Event {
    name: Cow<'static, str>,
    start: Instant,
    end: Instant,
}

/// Spans of one thread or device: a track in Perfetto.
struct Row {
    id: u32,
    name: String,
    events: Vec<Event>,
    left_out: u64,
}

type SharedRow = Arc<Mutex<Row>>;

static ROWS: Mutex<Vec<SharedRow>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: SharedRow = {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let thread = std::thread::current();
        let name = thread.name().map_or_else(|| format!("thread {id}"), String::from);
        new_row(id, name)
    };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn new_row(id: u32, name: String) -> SharedRow {
    let row = Arc::new(Mutex::new(Row { id, name, events: vec![], left_out: 0 }));
    lock(&ROWS).push(row.clone());
    row
}

impl Row {
    fn push(&mut self, event: Event) {
        if self.events.len() < MAX_SPANS {
            self.events.push(event);
        } else {
            self.left_out += 1;
        }
    }
}

/// Returns true while a timeline is being recorded.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Records a span from this call to the drop of the returned guard, on any thread.
#[inline]
#[must_use = "the span ends when this is dropped"]
pub fn span(name: &'static str) -> Span {
    Span(is_on().then(|| (Cow::Borrowed(name), Instant::now())))
}

/// Records a span named `name`, a space and `what`, as in `execute ppo_update`. The name is
/// formatted only while a timeline is recorded:
/// `span_of("rollout", format_args!("{k} (v{version})"))`.
#[inline]
#[must_use = "the span ends when this is dropped"]
pub fn span_of(name: &'static str, what: impl Display) -> Span {
    Span(is_on().then(|| (Cow::Owned(format!("{name} {what}")), Instant::now())))
}

/// A span that has begun; see [`span`].
pub struct Span(Option<(Cow<'static, str>, Instant)>);

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if let Some((name, start)) = self.0.take() {
            record(name, start);
        }
    }
}

#[cold]
fn record(name: Cow<'static, str>, start: Instant) {
    if is_on() {
        let event = Event { name, start, end: Instant::now() };
        // A thread that is ending has no row any more.
        let _ = OWN.try_with(|row| lock(row).push(event));
    }
}

/// Longest time that the end of a recording waits for executions. Spans of later ones are left
/// out.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Executions whose spans are still to be recorded, and the signal that there are none.
static EXECUTIONS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Span of an execution on a device, from its launch to its end. The end of a recording waits for
/// executions in flight.
pub(crate) struct Execution {
    name: String,
    start: Instant,
}

impl Execution {
    /// An execution of the program `name` that is about to be launched; `None` while no timeline is
    /// recorded.
    #[inline]
    pub(crate) fn begin(name: &str) -> Option<Execution> {
        if is_on() { Execution::record(name) } else { None }
    }

    #[cold]
    fn record(name: &str) -> Option<Execution> {
        let mut open = lock(&EXECUTIONS.0);
        // Read again under the lock: after the end of the recording nothing may be opened.
        is_on().then(|| {
            *open += 1;
            Execution { name: name.to_string(), start: Instant::now() }
        })
    }

    /// Returns the span of another execution that is launched together with this one.
    pub(crate) fn another(&self) -> Execution {
        *lock(&EXECUTIONS.0) += 1;
        Execution { name: self.name.clone(), start: self.start }
    }

    /// Records the end of the execution on `device`. Its span begins at the launch, or at the end
    /// of the previous execution on the device if that is later.
    pub(crate) fn end(mut self, device: usize) {
        let end = Instant::now();
        let id = FIRST_DEVICE_ROW + device as u32;
        let there = lock(&ROWS).iter().find(|row| lock(row).id == id).cloned();
        let row = there.unwrap_or_else(|| new_row(id, format!("device {device}")));
        let mut row = lock(&row);
        let start = row.events.last().map_or(self.start, |last| last.end.clamp(self.start, end));
        row.push(Event { name: Cow::Owned(std::mem::take(&mut self.name)), start, end });
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        let mut open = lock(&EXECUTIONS.0);
        *open -= 1;
        if *open == 0 {
            EXECUTIONS.1.notify_all();
        }
    }
}

/// Waits until every execution has ended, for at most [`MAX_WAIT`].
fn wait_for_executions() {
    let open = lock(&EXECUTIONS.0);
    let _ = EXECUTIONS.1.wait_timeout_while(open, MAX_WAIT, |open| *open > 0);
}

/// A recording in progress; made by [`start`]. It ends, and the file is written, with
/// [`Timeline::finish`] or when this is dropped.
#[derive(Debug)]
pub struct Timeline {
    path: PathBuf,
    file: Option<File>,
    begin: Instant,
}

/// Begins to record a timeline for the file at `path`.
///
/// # Errors
/// Returns [`Error::Io`] if the file cannot be created, and [`Error::Config`] if a timeline is
/// being recorded already.
pub fn start(path: impl AsRef<Path>) -> Result<Timeline> {
    let path = path.as_ref();
    if ON.swap(true, Ordering::Relaxed) {
        return Err(Error::Config(format!(
            "a timeline is being recorded already; the one for {} can start when that has ended",
            path.display()
        )));
    }
    let file = File::create(path).map_err(|error| {
        ON.store(false, Ordering::Relaxed);
        Error::io("cannot write", path)(error)
    })?;
    lock(&ROWS).retain(|row| {
        let mut inside = lock(row);
        (inside.events, inside.left_out) = (vec![], 0);
        // Rows of ended threads and of devices have no other owner and are removed.
        Arc::strong_count(row) > 1
    });
    Ok(Timeline { path: path.into(), file: Some(file), begin: Instant::now() })
}

impl Timeline {
    /// Ends the recording and writes the file.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the file cannot be written.
    pub fn finish(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        {
            let _open = lock(&EXECUTIONS.0);
            ON.store(false, Ordering::Relaxed);
        }
        wait_for_executions();
        let mut out = BufWriter::new(file);
        self.write(&mut out)
            .and_then(|()| out.flush())
            .map_err(Error::io("cannot write", self.path.clone()))
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let begin = self.begin;
        writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        let process =
            "{\"ph\":\"M\",\"pid\":1,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":";
        write!(out, "{process}\"podracer\"}}}}")?;
        for row in lock(&ROWS).iter() {
            let mut row = lock(row);
            let events = std::mem::take(&mut row.events);
            if events.is_empty() {
                continue;
            }
            let mut name = row.name.clone();
            if row.left_out > 0 {
                name = format!("{name} ({} later spans left out)", row.left_out);
            }
            let (id, name) = (row.id, text(&name));
            write!(
                out,
                ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{id},\"name\":\"thread_name\",\"args\":\
                 {{\"name\":{name}}}}}"
            )?;
            // Events that began before this recording belong to the one before.
            for event in events.iter().filter(|event| event.start >= begin) {
                let micros = |time: std::time::Duration| time.as_nanos() as f64 / 1e3;
                write!(
                    out,
                    ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{id},\"ts\":{:.3},\"dur\":{:.3},\
                     \"name\":{}}}",
                    micros(event.start - begin),
                    micros(event.end - event.start),
                    text(&event.name)
                )?;
            }
        }
        writeln!(out, "\n]}}")
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            output::stderr_line(format_args!("podracer: warning: the timeline is lost: {error}"));
        }
    }
}
