//! Conversion of failed calls into errors.

use crate::error::Error;

/// The kinds of errors, numbered as absl's statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The names are absl's.
pub enum Code {
    Cancelled = 1,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

/// The target behind which all callbacks are: its errors are the errors of the user's functions.
pub(crate) const CALLBACK: &str = "podracer.callback.2";

/// The error of a call that failed with this code and message, while doing `context`.
pub(super) fn failure(context: impl FnOnce() -> String, code: i32, message: String) -> Error {
    // An error of a user's function is reported with its own text.
    match message.split_once(CALLBACK).and_then(|(_, text)| text.strip_prefix(": ")) {
        Some(text) => Error::Callback(text.into()),
        None => Error::Pjrt { context: context(), code, message },
    }
}
