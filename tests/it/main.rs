//! The integration tests: one binary, one module per room.

mod envs;
