//! Conversion of failed calls into errors.

use crate::error::Error;

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
