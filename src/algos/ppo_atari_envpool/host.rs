//! Rollouts whose environments are stepped by the host, between calls of the compiled policy:
//! `--rollout host`.

use super::{Agent, Args, EnvState, Rollout, Samples, make_samples};
use crate::envs::XlaPool;
use crate::error::Result;
use crate::jit::{Jit, effects_barrier};
use crate::rl::{EpisodeRecord, Trainer, bootstrap_truncated_batch};
use crate::tree::Tree;
use crate::{Array, Key, Tensor};

/// Outputs of the policy for N environments.
#[derive(Debug, Tree)]
struct PolicyOutput<T> {
    /// `i32[N]`: sampled actions.
    action: T,
    /// `f32[N]`: their log probabilities.
    logprob: T,
    /// `f32[N]`: values of the observations.
    value: T,
    /// PRNG key of the next step.
    key: Key<T>,
}

/// Computes the policy's outputs for observations `u8[N, 4, 84, 84]`.
fn act((agent, obs, key): ActArgs<Tensor>) -> PolicyOutput<Tensor> {
    let (key, action_key) = key.split();
    let (policy, value) = agent.policy_and_value(obs);
    let action = policy.sample(action_key);
    PolicyOutput { action, logprob: policy.log_prob(action), value, key }
}

type ActArgs<T> = (Agent<T>, T, Key<T>);
type ValueArgs<T> = (Agent<T>, T);
type SamplesArgs<T> = (Agent<T>, Rollout<T>);

/// Compiled function of type `fn(A) -> B`.
type JitFn<A, B> = Jit<A, B, fn(A) -> B>;
/// Compiled closure.
type JitClosure<'a, A, B> = Jit<A, B, Box<dyn Fn(A) -> B + 'a>>;

/// Compiled programs of a rollout on the host. Each is compiled when it is called first.
pub struct HostRollout<'a> {
    args: &'a Args,
    act: JitFn<ActArgs<Tensor>, PolicyOutput<Tensor>>,
    value: JitFn<ValueArgs<Tensor>, Tensor>,
    samples: JitClosure<'a, SamplesArgs<Tensor>, Samples<Tensor>>,
}

/// Columns of a rollout, filled step by step.
#[derive(Default)]
struct Columns {
    obs: Vec<u8>,
    actions: Vec<i32>,
    logprobs: Vec<f32>,
    values: Vec<f32>,
    rewards: Vec<f32>,
    dones: Vec<f32>,
}

impl Columns {
    /// Returns the rollout of T steps of N environments.
    fn into_rollout(self, [t, n]: [usize; 2], next_obs: Array) -> Result<Rollout<Array>> {
        Ok(Rollout {
            obs: Array::new([&[t, n], &next_obs.shape()[1..]].concat(), &self.obs)?,
            actions: Array::new([t, n], &self.actions)?,
            logprobs: Array::new([t, n], &self.logprobs)?,
            values: Array::new([t, n], &self.values)?,
            rewards: Array::new([t, n], &self.rewards)?,
            dones: Array::new([t, n], &self.dones)?,
            next_obs,
        })
    }
}

impl<'a> HostRollout<'a> {
    pub fn new(trainer: &mut Trainer<'a, Args>, args: &'a Args) -> HostRollout<'a> {
        let value = |(agent, obs): ValueArgs<Tensor>| agent.policy_and_value(obs).1;
        let samples = |(agent, rollout): SamplesArgs<Tensor>| make_samples(&agent, rollout, args);
        HostRollout {
            args,
            act: trainer.jit("act", act as fn(_) -> _),
            value: trainer.jit("value", value as fn(_) -> _),
            samples: trainer.jit("samples", Box::new(samples) as Box<dyn Fn(_) -> _>),
        }
    }

    /// Collects a rollout and makes samples of it.
    pub fn collect_samples(
        &self,
        envs: &XlaPool,
        agent: &Agent<Array>,
        env_state: EnvState<Array>,
    ) -> Result<(EnvState<Array>, Vec<EpisodeRecord>, Samples<Array>)> {
        let EnvState { handle, mut obs, mut key } = env_state;
        let Args { num_envs, num_steps, gamma, .. } = *self.args;
        // The program that reset the environments may still be using the pool.
        effects_barrier()?;
        let mut pool = envs.pool(0);
        let (mut columns, mut episodes) = (Columns::default(), Vec::new());
        for step in 0..num_steps {
            let output = self.act.call((agent.clone(), obs.clone(), key))?;
            key = output.key;
            let actions = output.action.to_vec::<i32>()?;
            let batch = pool.step(&actions)?;
            columns.obs.extend(obs.to_vec::<u8>()?);
            columns.actions.extend(actions);
            columns.logprobs.extend(output.logprob.to_vec::<f32>()?);
            columns.values.extend(output.value.to_vec::<f32>()?);
            columns.rewards.extend_from_slice(batch.reward());
            if self.args.bootstrap_truncated {
                let rewards = &mut columns.rewards[step * num_envs..];
                let value = |obs| self.value.call((agent.clone(), obs));
                bootstrap_truncated_batch(rewards, &batch, gamma, value)?;
            }
            for env in 0..num_envs {
                let done = batch.terminated()[env] || batch.truncated()[env];
                columns.dones.push(f32::from(u8::from(done)));
                if batch.finished()[env] {
                    episodes.push(EpisodeRecord {
                        step: ((step + 1) * num_envs) as u64,
                        env_id: env,
                        episodic_return: batch.episodic_return()[env].into(),
                        length: batch.episodic_length()[env] as u64,
                    });
                }
            }
            obs = batch.obs_array();
        }
        let rollout = columns.into_rollout([num_steps, num_envs], obs.clone())?;
        let samples = self.samples.call((agent.clone(), rollout))?;
        Ok((EnvState { handle, obs, key }, episodes, samples))
    }
}
