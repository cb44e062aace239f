//! Interface to processes that step environments, for pools whose environments live elsewhere.

use crate::envs::env::Action;
use crate::envs::env::seeds::EnvRng;

/// Call of an environment that a pool starts before it waits for any.
pub(in crate::envs) enum Call<'a> {
    /// [`Env::reset`](crate::envs::Env::reset), with the environment's generator.
    Reset(&'a mut EnvRng),
    /// [`Env::step`](crate::envs::Env::step).
    Step(Action<'a>),
}

/// Processes that step the environments of a pool.
///
/// A pool submits the calls of a whole batch, flushes once, and only then makes the same calls of
/// its [`Env`](crate::envs::Env)s, which wait for the results. All processes step at the same time, while
/// the pool has one thread. Errors are those of the calls that wait.
pub(in crate::envs) trait Backend: Send + Sync {
    /// Starts a call of environment `env`; [`flush`](Backend::flush) delivers it.
    fn submit(&self, env: usize, call: Call<'_>);

    /// Delivers the submitted calls to the processes.
    fn flush(&self);

    /// Returns the number of processes.
    fn num_processes(&self) -> usize;
}
