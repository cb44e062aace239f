//! The integration tests: one binary, one module per room.

mod derive;
mod rl;
mod envs;
