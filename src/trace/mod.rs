//! Tracing: closures become Programs, Programs become other Programs.

pub mod types;
