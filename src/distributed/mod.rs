//! Several processes of one run, on one machine or many: `jax.distributed`, with a secret.
//!
//! ```text
//! process 0      coordinator: key-value store, barriers, sums
//!                    |              |              |
//!                 process 0      process 1      process 2     one connection each
//! ```
//!
//! A process joins by [`Peer::join`], with the rank and address of its [`Launch`], which come from
//! flags, Slurm or `mpirun`. Process 0 listens at its address and accepts processes that prove to
//! know the [`Secret`]; it proves the same to them. Process 0 adds the numbers, in the order of the
//! processes: this suits a few processes; for many, use MPI.

mod coordinator;
mod handshake;
mod launch;
mod peer;
mod secret;
#[cfg(test)]
mod tests;
mod wire;

pub use launch::{Launch, LaunchOptions};
pub use peer::Peer;
pub use secret::Secret;
