//! Environments of Programs in the pool: each step runs a Program on the host, by the interpreter.
//!
//! The evaluation of a model needs it, and algorithms whose environments are not inside the
//! compiled program. Compiled code may call the pool, and must not launch other compiled code.

use super::{ProgramEnv, StepResults};
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, ObsMut, StepOutcome};
use crate::envs::pool::{EnvPool, PoolOptions};
use crate::error::{Error, Result};
use crate::random::Key;
use crate::trace::eval::eval;
use crate::trace::literal::AlignedBytes;
use crate::trace::{Literal, TensorType};

/// An environment of Programs in the pool.
struct Pooled {
    env: ProgramEnv,
    /// Leaves of the state.
    state: Vec<Literal>,
}

/// Makes one environment.
pub(in crate::envs) fn make(env: &ProgramEnv) -> Box<dyn Env> {
    Box::new(Pooled { env: env.clone(), state: Vec::new() })
}

/// Makes a pool, whose environments share the Programs.
pub(in crate::envs) fn pool(env: &ProgramEnv, options: PoolOptions) -> Result<EnvPool> {
    Ok(EnvPool::parallel(|_| Ok(make(env)), options)?.with_traced(env.clone()))
}

/// Draws a PRNG key.
fn key(rng: &mut EnvRng) -> Literal {
    Key::literal(rng.bits()).into_data()
}

/// Copies an observation into its row.
fn write(obs: &Literal, row: ObsMut<'_>) {
    row.0.copy_from_slice((*obs.bytes()).as_ref());
}

impl Env for Pooled {
    fn spec(&self) -> EnvSpec {
        self.env.specification().clone()
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        let mut results = eval(self.env.0.reset.program(), &[key(rng)])?;
        self.state = results.split_off(1);
        write(&results[0], obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let shape = self.env.specification().action.shape();
        let action = match action {
            Action::Discrete(choice) => Literal::scalar(choice as i32),
            Action::MultiDiscrete(choices) => {
                let choices: Vec<i32> = choices.iter().map(|&choice| choice as i32).collect();
                Literal::new(shape, &choices)
            }
            Action::Box(values) => Literal::new(shape, values),
        };
        let mut arguments = vec![key(rng)];
        arguments.append(&mut self.state);
        arguments.push(action);
        let results = eval(self.env.0.step.program(), &arguments)?;
        let StepResults { obs: next, state, reward, terminated, truncated } =
            StepResults::new(results);
        self.state = state;
        write(&next, obs);
        let [reward, terminated, truncated] =
            [reward, terminated, truncated].map(|scalar| scalar.to_f64_vec()[0]);
        Ok(StepOutcome::new(reward, terminated != 0.0).with_truncated(truncated != 0.0))
    }

    fn save(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for leaf in &self.state {
            bytes.extend_from_slice((*leaf.bytes()).as_ref());
        }
        Ok(bytes)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<()> {
        let types = &self.env.0.state;
        let size: usize = types.iter().map(TensorType::bytes).sum();
        if bytes.len() != size {
            let id = &self.env.specification().id;
            let given = bytes.len();
            return Err(Error::Env(format!(
                "{id}: a saved state has {size} bytes, this one has {given}"
            )));
        }
        let mut rest = bytes;
        let mut state = Vec::with_capacity(types.len());
        for ty in types {
            let (own, others) = rest.split_at(ty.bytes());
            rest = others;
            if !ty.dtype.has_valid(own) {
                let id = &self.env.specification().id;
                return Err(Error::Env(format!("{id}: this is not a saved state")));
            }
            state.push(Literal::from_bytes(ty.clone(), AlignedBytes::copy_of(own)));
        }
        self.state = state;
        Ok(())
    }
}
