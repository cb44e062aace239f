//! Libraries of others that tests compare with, each in a Python of its own.

use std::ffi::OsString;

/// The Python interpreter that an environment variable names. Without it the test is skipped, except
/// where `PODRACER_REQUIRE_PEERS` is 1, as in `.ci/run`.
pub fn python(variable: &str) -> Option<OsString> {
    let python = std::env::var_os(variable).filter(|python| !python.is_empty());
    if python.is_none() {
        let required = std::env::var_os("PODRACER_REQUIRE_PEERS").is_some_and(|value| value == "1");
        assert!(!required, "PODRACER_REQUIRE_PEERS is 1, and {variable} names no Python");
        eprintln!("SKIPPED: {variable} names no Python");
    }
    python
}
