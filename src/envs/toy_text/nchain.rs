//! A chain of states (Strens 2000), as gym 0.20's `NChainEnv`, which is also in EnvPool.

use super::table::{self, Table, Transition};
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, ObsMut, StepOutcome};
use crate::error::Result;

const ID: &str = "NChain-v0";
const LENGTH: usize = 5;
const SLIP: f64 = 0.2;
const SMALL_REWARD: f64 = 2.0;
const LARGE_REWARD: f64 = 10.0;

/// `NChain-v0`: move forward along five states (0), or back to the first (1) for a reward of 2.
///
/// Observation: the index of the state. Moving forward in the last state stays there for a reward
/// of 10. With probability 1/5 the other action is taken instead. Never terminates.
#[derive(Debug, Clone)]
pub struct NChain {
    table: Table,
    state: usize,
}

impl NChain {
    /// Makes `NChain-v0`.
    pub fn v0() -> NChain {
        let mut start = vec![0.0; LENGTH];
        start[0] = 1.0;
        let table = Table::new(start, 2, |state, action| {
            let outcome = |probability, back| {
                let last = state == LENGTH - 1;
                let (state, reward) = match (back, last) {
                    (true, _) => (0, SMALL_REWARD),
                    (false, false) => (state + 1, 0.0),
                    (false, true) => (state, LARGE_REWARD),
                };
                Transition { probability, state, reward, terminated: false }
            };
            vec![outcome(SLIP, action == 0), outcome(1.0 - SLIP, action == 1)]
        });
        NChain { table, state: 0 }
    }

    /// Returns the transition table.
    pub fn table(&self) -> &Table {
        &self.table
    }
}

impl Env for NChain {
    fn spec(&self) -> EnvSpec {
        self.table.spec(ID, Some(1000), None)
    }

    fn reset(&mut self, _rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.state = 0;
        table::observe(self.state, obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let came = self.table.draw(self.state, action.discrete(), rng);
        self.state = came.state;
        table::observe(self.state, obs);
        Ok(StepOutcome::new(came.reward, came.terminated))
    }

    fn save(&self) -> Result<Vec<u8>> {
        table::save(ID, self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.state = self.table.restore(ID, state)?;
        Ok(())
    }
}
