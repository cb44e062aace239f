//! Integration tests, one binary.

mod pjrt;
