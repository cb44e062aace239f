//! The integration tests: one binary, one module per room.

mod cli;
mod derive;
mod envs;
mod pjrt;
mod rl;
