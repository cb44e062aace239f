//! The integration tests: one binary, one module per room.

mod derive;
mod envs;
mod eval;
mod pjrt;
mod rl;
