//! Columns of an environment's step: the one table of what a step returns beside the observation.
//!
//! [`Batch`](crate::envs::Batch), [`Field`](crate::envs::Field), [`EnvStep`](crate::envs::EnvStep) and
//! the calls of compiled code are derived from the table, so a new column is one more row of it.

use crate::envs::env::StepOutcome;
use crate::envs::pool::stats::Episode;
use crate::trace::ops::{iota, zeros};
use crate::trace::{DType, Tensor};

/// Applies the macro `$with` to the columns, in the order in which compiled code gets them. A row is the
/// doc comment of the method of `Batch`; its name; the variant of `Field`; the element type; the value
/// of a [`Row`]; and, for the columns that `EnvStep` has too, the value of [`TracedRows`]. A reset
/// needs no values: both have those of an environment that was just reset.
macro_rules! step_columns {
    ($with:ident) => {
        $with! {
            batch_and_compiled_code {
                /// Returns the rewards.
                reward Reward: f32 = |row| row.outcome.reward as f32, |rows| rows.reward;
                /// Returns one flag per row: true if the episode ended by the rules of the task.
                terminated Terminated: bool = |row| row.outcome.terminated, |rows| rows.terminated;
                /// Returns one flag per row: true if the episode was cut, by the time limit or by the
                /// environment. Both this flag and `terminated` may be true, as in gymnasium.
                truncated Truncated: bool = |row| row.outcome.truncated, |rows| rows.truncated;
                /// Returns one flag per row: true if the observation is the first of an episode.
                first First: bool = |row| row.first, |rows| rows.first;
                /// Returns one flag per row: true if a life was lost in this step.
                life_lost LifeLost: bool = |row| row.outcome.life_lost, |rows| rows.never;
                /// Returns the index of each row's environment.
                env_id EnvId: i32 = |row| row.env_id as i32, |rows| rows.env_id;
                /// Returns the number of steps taken in the game that the row's reward belongs to: the
                /// whole length where the game ended, 0 after a reset. A lost life that ends an episode
                /// does not end the game.
                elapsed_steps ElapsedSteps: i32 = |row| row.elapsed as i32, |rows| rows.elapsed;
                /// Returns one flag per row: true if a full game finished in this step, by game over or
                /// truncation. If episodes are lives, not all rows that are `terminated` have this flag.
                finished Finished: bool = |row| row.finished.is_some(), |rows| rows.finished;
                /// Returns the sum of the rewards of the game that finished, before any clipping; 0 where
                /// none did.
                episodic_return EpisodicReturn: f32 =
                    |row| row.finished.map_or(0.0, |game| game.episodic_return as f32),
                    |rows| rows.episodic_return;
                /// Returns the number of steps of the game that finished; 0 where none did.
                episodic_length EpisodicLength: i32 =
                    |row| row.finished.map_or(0, |game| game.length as i32),
                    |rows| rows.episodic_length;
            }
            batch_only {
                /// Returns the factor of the value of the next state, apart from the agent's own discount:
                /// 0 where the episode terminated or the environment asks for a zero discount, else 1,
                /// also where it was truncated.
                discount Discount: f32 =
                    |row| if row.outcome.terminated || row.outcome.zero_discount { 0.0 } else { 1.0 };
                /// Returns one flag per row: true if the row has a [`final_obs`](Batch::final_obs).
                has_final_obs HasFinalObs: bool = |row| row.has_final_obs;
            }
        }
    };
}
pub(in crate::envs) use step_columns;

/// Results of one step of one environment, except the observation: the source of its row in each column.
#[derive(Debug, Clone, Copy)]
pub(in crate::envs) struct Row {
    /// Index of the environment.
    pub(in crate::envs) env_id: usize,
    /// Outcome of the environment's step, `truncated` also at the time limit.
    pub(in crate::envs) outcome: StepOutcome,
    /// True if the observation is the first of an episode.
    pub(in crate::envs) first: bool,
    /// True if an episode ended and the next one started in the same step.
    pub(in crate::envs) has_final_obs: bool,
    /// Number of steps of the game.
    pub(in crate::envs) elapsed: u32,
    /// Game that finished.
    pub(in crate::envs) finished: Option<Episode>,
}

impl Row {
    /// Returns the row of an environment that took no step.
    #[inline]
    pub(in crate::envs) fn new(env_id: usize) -> Row {
        Row {
            env_id,
            outcome: StepOutcome::new(0.0, false),
            first: false,
            has_final_obs: false,
            elapsed: 0,
            finished: None,
        }
    }
}

/// Results of one step of environments that are part of the compiled code, `[n]` each: the source of
/// the columns there.
#[derive(Debug)]
pub(in crate::envs) struct TracedRows {
    /// `i32`.
    pub(in crate::envs) env_id: Tensor,
    /// `f32`.
    pub(in crate::envs) reward: Tensor,
    pub(in crate::envs) terminated: Tensor,
    pub(in crate::envs) truncated: Tensor,
    pub(in crate::envs) first: Tensor,
    /// `i32`: number of steps of the episode.
    pub(in crate::envs) elapsed: Tensor,
    pub(in crate::envs) finished: Tensor,
    /// `f32`, 0 where no episode finished.
    pub(in crate::envs) episodic_return: Tensor,
    /// `i32`, 0 where no episode finished.
    pub(in crate::envs) episodic_length: Tensor,
    /// False in each row.
    pub(in crate::envs) never: Tensor,
}

impl TracedRows {
    /// Returns the rows of environments that were just reset.
    #[track_caller]
    pub(in crate::envs) fn new(num_envs: usize) -> TracedRows {
        let [number, count] = [DType::F32, DType::I32].map(|dtype| zeros([num_envs], dtype));
        let never = number.gt(0.0);
        TracedRows {
            env_id: iota([num_envs], 0, DType::I32),
            reward: number,
            terminated: never,
            truncated: never,
            first: !never,
            elapsed: count,
            finished: never,
            episodic_return: number,
            episodic_length: count,
            never,
        }
    }
}
