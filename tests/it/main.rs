//! The integration tests: one binary, one module per room.

mod derive;
mod rl;
mod envs;
//! Integration tests, one binary.

mod pjrt;
