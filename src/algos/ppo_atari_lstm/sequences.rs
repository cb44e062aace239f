//! Episodes of a rollout as separate, padded sequences: `--sequence split`.

use super::{Args, Sequence};
use crate::Array;
use crate::error::Result;
use crate::tree::Tree;

/// T steps of n environments, split at episode boundaries into S sequences padded to L steps.
#[derive(Debug, Clone, Copy, Tree)]
pub struct SplitSequences<T> {
    pub steps: T, // i32[L, S]: index, among the `T n` steps, of the step at each position
    pub envs: T,  // i32[S]: index of the sequence's environment
    /// `f32[S]`: 1 where the sequence begins with an episode, 0 where it continues the episode that
    /// was running when the rollout began.
    pub episode_starts: T,
    pub positions: T, // i32[T n]: position of each step in the flattened `[L S]`
}

impl SplitSequences<Array> {
    /// Splits the minibatches of one rollout with `episode_starts: [T, N]`; `minibatches` has the
    /// environments of each. All results have the same L and S, rounded up to powers of two (L at
    /// most T), so that few programs are compiled.
    ///
    /// # Errors
    /// Returns the errors of [`Array::new`]; none depends on the arguments.
    pub fn of_minibatches(
        episode_starts: &[f32],
        num_envs: usize,
        minibatches: &[Vec<usize>],
    ) -> Result<Vec<SplitSequences<Array>>> {
        let num_steps = episode_starts.len() / num_envs;
        // Sequences of a minibatch: index of the environment in the minibatch, first step, length.
        let sequences_of = |envs: &Vec<usize>| -> Vec<(usize, usize, usize)> {
            let mut sequences = Vec::new();
            for (column, env) in envs.iter().enumerate() {
                let begins = |t: &usize| *t == 0 || episode_starts[t * num_envs + env] == 1.0;
                let starts: Vec<usize> = (0..num_steps).filter(begins).collect();
                for (k, &start) in starts.iter().enumerate() {
                    let end = starts.get(k + 1).copied().unwrap_or(num_steps);
                    sequences.push((column, start, end - start));
                }
            }
            sequences
        };
        let all: Vec<_> = minibatches.iter().map(sequences_of).collect();
        let longest = all.iter().flatten().map(|sequence| sequence.2).max().unwrap_or(1);
        let length = longest.next_power_of_two().min(num_steps);
        let count = all.iter().map(Vec::len).max().unwrap_or(1).next_power_of_two();
        let mut splits = Vec::new();
        for (sequences, minibatch) in all.iter().zip(minibatches) {
            let mut steps = vec![0i32; length * count];
            let (mut envs, mut starts) = (vec![0i32; count], vec![1.0f32; count]);
            let mut positions = vec![0i32; num_steps * minibatch.len()];
            for (s, &(column, start, size)) in sequences.iter().enumerate() {
                envs[s] = column as i32;
                starts[s] = episode_starts[start * num_envs + minibatch[column]];
                for l in 0..size {
                    let step = (start + l) * minibatch.len() + column;
                    steps[l * count + s] = step as i32;
                    positions[step] = (l * count + s) as i32;
                }
            }
            splits.push(SplitSequences {
                steps: Array::new([length, count], &steps)?,
                envs: Array::new([count], &envs)?,
                episode_starts: Array::new([count], &starts)?,
                positions: Array::new([positions.len()], &positions)?,
            });
        }
        Ok(splits)
    }
}

/// Splits each minibatch with `--sequence split`, else returns `None` for each. `episode_starts` is
/// that of the rollout, `f32[T, N]`; each row of `indices` has the environments of a minibatch.
///
/// # Errors
/// Returns errors of the computations that made the arrays.
pub fn split_minibatches(
    episode_starts: &Array,
    indices: &Array,
    args: &Args,
) -> Result<Vec<Option<SplitSequences<Array>>>> {
    if args.sequence == Sequence::Scan {
        return Ok(vec![None; args.update_epochs * args.num_minibatches]);
    }
    let indices = indices.to_vec::<i32>()?;
    let minibatches: Vec<Vec<usize>> = indices
        .chunks(args.num_envs / args.num_minibatches)
        .map(|envs| envs.iter().map(|&env| env as usize).collect())
        .collect();
    let episode_starts = episode_starts.to_vec::<f32>()?;
    let splits = SplitSequences::of_minibatches(&episode_starts, args.num_envs, &minibatches)?;
    Ok(splits.into_iter().map(Some).collect())
}
