//! Several processes of one run, on one machine or many: `jax.distributed`, with a secret.
//!
//! ```text
//! process 0      coordinator: keys and values, meetings, sums
//!                    |              |              |
//!                 process 0      process 1      process 2     one connection each
//! ```
//!
//! A process joins by [`Peer::join`], as the one that [`Launch`] says it is: by flags, or what Slurm
//! or `mpirun` say. Process 0 listens at the address that it is told, and lets in whoever proves to
//! know the [`Secret`]; it proves the same to them. Numbers are added in process 0, in the order of
//! the processes: that serves a few processes, where many want MPI.

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
