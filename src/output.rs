//! Standard output and standard error of programs whose work must not depend on them.
//!
//! `println!` and `eprintln!` panic when their stream is full or closed, and a panic inside a
//! callback of the runtime aborts the process. Everything that this crate prints goes through this
//! module: diagnostics that cannot be written are dropped, results that cannot be written are an
//! error.
//!
//! A message may repeat a text from elsewhere: the name of a file, an exception of an environment, a
//! line of a child process. Its control characters are escaped, since a terminal would obey them.

pub mod child;

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};

/// Takes a progress bar off the terminal while the given function writes.
pub(crate) type Suspend = dyn Fn(&dyn Fn()) + Send + Sync;

/// The progress bar on the terminal.
static PROGRESS_BAR: Mutex<Option<Arc<Suspend>>> = Mutex::new(None);

/// Names the progress bar around which lines are printed.
#[cfg(feature = "rl")]
pub(crate) fn set_progress_bar(bar: Arc<Suspend>) {
    *PROGRESS_BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
}

fn around_progress_bar(write: &dyn Fn()) {
    // The lock is released before writing: a writer may print a line of its own.
    let bar = PROGRESS_BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(suspend) => suspend(write),
        None => write(),
    }
}

/// Returns the text with its control characters escaped, but for ends of lines and tabs.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_obeyed(c) {
            true => escaped.extend(c.escape_debug()),
            false => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}

/// Writes a line to standard error, above a progress bar if there is one. Failures are ignored:
/// there is no other channel to report them on.
pub fn stderr_line(line: impl Display) {
    let line = format!("{line}\n");
    let line = escaped(&line);
    around_progress_bar(&|| drop(io::stderr().lock().write_all(line.as_bytes())));
}

/// Writes a line of diagnostics to standard output. Failures are ignored.
pub(crate) fn stdout_line(line: impl Display) {
    let line = format!("{line}\n");
    around_progress_bar(&|| {
        let mut out = io::stdout().lock();
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    });
}

/// Writes a result to standard output. A reader that has closed its end, as `head` does, is no
/// error.
///
/// # Errors
/// [`Error::Io`] if standard output cannot be written, as on a full disk.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(escaped(text).as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write", "standard output")(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let text = "a\tname\n\u{1b}[2J\u{1b}]0;title\u{7}\r\u{9b}31m\u{8}\u{7f}";
        let shown = "a\tname\n\\u{1b}[2J\\u{1b}]0;title\\u{7}\\r\\u{9b}31m\\u{8}\\u{7f}";
        assert_eq!(escaped(text), shown);
        assert!(matches!(escaped("plain: \u{e9}\u{4e2d}\n"), Cow::Borrowed(_)));
    }
}
