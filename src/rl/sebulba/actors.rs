//! Actor threads' programs: environments are reset and stepped on the actor devices.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::actor_learner::ActorRollout;
use super::checkpoint::ActorSnapshot;
use super::rollout::{EnvState, RolloutResults, reset_envs};
use super::setup::Setup;
use super::stats::processor_time;
use super::status::{Activity, RunStatus};
use crate::envs::{Handle, XlaPool};
use crate::error::{Error, Result};
use crate::jit::{Jit, jit};
use crate::timeline;
use crate::tree::{self, Tree};
use crate::{Array, Key, Tensor};

/// Arguments of a rollout: the parameters, the state of the environments, and the number of the
/// first environment, `i32[]`.
type RolloutArgs<P> = (P, EnvState<Tensor>, Tensor);

/// Actors of this process.
pub(super) struct Actors<'r, P, R, F> {
    setup: &'r Setup,
    status: &'r RunStatus,
    /// Rollout program of each actor device.
    programs: Vec<Jit<RolloutArgs<P>, RolloutResults<R>, F>>,
    /// State of each actor's environments; `None` during a rollout, and after one that failed.
    env_states: Vec<Mutex<Option<EnvState<Array>>>>,
    /// If true, every rollout comes with the state after it, for a checkpoint.
    takes_snapshots: bool,
}

impl<'r, P: Tree<Tensor>, R: Tree<Tensor>> Actors<'r, P, R, ()> {
    /// Creates the actors of this process, which call `collect`, with the states of their
    /// environments.
    pub fn new(
        setup: &'r Setup,
        status: &'r RunStatus,
        env_states: Vec<EnvState<Array>>,
        collect: &'r impl Fn(&XlaPool, &P, EnvState<Tensor>, Tensor) -> RolloutResults<R>,
        takes_snapshots: bool,
    ) -> Actors<'r, P, R, impl Fn(RolloutArgs<P>) -> RolloutResults<R>> {
        let programs = setup.layout.actors.iter().map(|&device| {
            let rollout = |(params, env_state, first_env): RolloutArgs<P>| {
                collect(&setup.envs, &params, env_state, first_env)
            };
            jit(rollout).on(device).named("sebulba_rollout")
        });
        let programs = programs.collect();
        let env_states = env_states.into_iter().map(|state| Mutex::new(Some(state))).collect();
        Actors { setup, status, programs, env_states, takes_snapshots }
    }
}

impl<P: Tree<Tensor>, R: Tree<Tensor>, F> Actors<'_, P, R, F>
where
    P::With<Array>: Clone,
    F: Fn(RolloutArgs<P>) -> RolloutResults<R>,
{
    /// Makes one rollout of an actor and transfers it to the learner devices; called on the actor's
    /// thread.
    ///
    /// # Errors
    /// Returns errors of the environments and of execution.
    pub fn rollout(
        &self,
        actor: usize,
        params: &P::With<Array>,
    ) -> Result<ActorRollout<R::With<Array>>> {
        let Setup { layout, envs, .. } = self.setup;
        let (began, cpu) = (Instant::now(), processor_time());
        let mut env_state = self.env_states[actor].lock().unwrap_or_else(PoisonError::into_inner);
        let before =
            env_state.take().ok_or_else(|| Error::Env("its last rollout failed".into()))?;
        let first_env = Array::from(layout.first_env(actor) as i32);
        let program = &self.programs[actor / layout.threads];
        let (after, parts, episodes) = program.call((params.clone(), before, first_env))?;
        // Reading the episodes waits for the rollout.
        let episodes = episodes.to_vec()?;
        let (rollout_time, cpu) = (began.elapsed(), processor_time().saturating_sub(cpu));
        let snapshot = match self.takes_snapshots {
            true => Some(ActorSnapshot::of(envs, actor, &after)?),
            false => None,
        };
        *env_state = Some(after);
        let _span = timeline::span("send the rollout");
        self.status.actors[actor].enter(Activity::Sends);
        let mut sent = Vec::with_capacity(parts.len());
        for (part, &device) in parts.iter().zip(&layout.learners) {
            sent.push(copy_to(part, device)?);
        }
        sent.iter().flat_map(tree::leaves).try_for_each(|x| x.wait())?;
        let times = (rollout_time, began.elapsed() - rollout_time);
        Ok(ActorRollout { parts: sent, episodes, times, cpu, snapshot })
    }

    /// Returns the seconds of compilation; the actor devices compile in parallel.
    pub fn compile_seconds(&self) -> f64 {
        self.programs.iter().map(|program| program.stats().seconds()).fold(0.0, f64::max)
    }
}

/// Resets the environments of all actors. Returns their states, and the seconds of compilation.
///
/// # Errors
/// Returns errors of the environments, compilation and execution.
pub(super) fn reset_actors(setup: &Setup, key: Key<Array>) -> Result<(Vec<EnvState<Array>>, f64)> {
    let Setup { layout, envs, handles, .. } = setup;
    let programs = layout.actors.iter().map(|&device| {
        let reset = |(handle, key): (Handle<Tensor>, Key<Tensor>)| reset_envs(envs, handle, key);
        jit(reset).on(device).named("sebulba_reset")
    });
    let programs: Vec<_> = programs.collect();
    let key = key.into_data().to_literal()?;
    let mut env_states = Vec::new();
    for (actor, &handle) in handles.iter().enumerate() {
        let key = Key::from_data(Array::from(key.clone()));
        let handle = Handle::from_data(Array::from(handle));
        env_states.push(programs[actor / layout.threads].call((handle, key))?);
    }
    let seconds = programs.iter().map(|program| program.stats().seconds()).sum();
    Ok((env_states, seconds))
}

/// Copies a tree to a device.
pub(super) fn copy_to<M: Tree<Array>>(tree: &M, device: usize) -> Result<M> {
    let leaves = tree::leaves(tree).iter().map(|x| x.to(device)).collect::<Result<Vec<Array>>>()?;
    Ok(tree::replace(tree, leaves))
}
