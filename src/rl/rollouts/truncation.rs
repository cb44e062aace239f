//! Bootstrapping at time limits (Pardo et al. 2018).

use crate::array::Array;
use crate::envs::Batch;
use crate::error::Result;
use crate::trace::Tensor;
use crate::trace::control::cond;
use crate::trace::ops::{Operand, where_, zeros_like};

/// Returns the rewards `f32[N]` of a step, with `gamma` times the value of the final observation
/// added where `truncated: bool[N]`.
///
/// `truncated` is true where a step was truncated and did not terminate, and `final_obs: [N, ..]`
/// are the observations before a reset. An estimate over these rewards that ends the episode at the
/// step equals one that bootstraps from `value(final_obs)` there: `r + gamma V(s')` is then the
/// target of the step, independent of the next episode. The values are computed only in steps in
/// which an environment was truncated.
#[track_caller]
pub fn bootstrap_truncated(
    rewards: Tensor,
    truncated: Tensor,
    final_obs: Tensor,
    gamma: impl Operand,
    value: impl Fn(Tensor) -> Tensor,
) -> Tensor {
    type Operands = (Tensor, Tensor, Tensor);
    let add = |(rewards, truncated, final_obs): Operands| {
        let values = value(final_obs);
        rewards + where_(truncated, gamma.to_tensor(&values.ty()) * values, zeros_like(values))
    };
    let keep = |(rewards, ..): Operands| rewards;
    cond(truncated.any(..), add, keep, (rewards, truncated, final_obs))
}

/// Like [`bootstrap_truncated`], but on the host, for `rewards` of the last batch of a pool.
/// `value` returns the values `f32[N]` of observations `[N, ..]`, and is called only if an
/// environment was truncated.
///
/// # Errors
/// Returns the errors of `value`.
pub fn bootstrap_truncated_batch(
    rewards: &mut [f32],
    batch: &Batch,
    gamma: f64,
    value: impl FnOnce(Array) -> Result<Array>,
) -> Result<()> {
    let flags = batch.truncated().iter().zip(batch.terminated());
    let truncated: Vec<bool> = flags.map(|(&truncated, &over)| truncated && !over).collect();
    if !truncated.contains(&true) {
        return Ok(());
    }
    let values = value(batch.next_obs_array())?.to_vec::<f32>()?;
    for ((reward, value), truncated) in rewards.iter_mut().zip(values).zip(truncated) {
        if truncated {
            *reward += gamma as f32 * value;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algos::ppo::compute_gae;
    use crate::interpret;
    use crate::trace::DType;
    use crate::{Array, jit};

    /// Four steps of two environments: the first is truncated in steps 1 and 3; the second
    /// terminates in step 0, and both terminates and is truncated in step 2.
    #[test]
    fn gae_over_bootstrapped_rewards_is_gae_with_the_value_of_the_final_observation() {
        let (steps, envs, gamma, lambda) = (4, 2, 0.9f64, 0.8f64);
        let rewards = [1.0f32, -2.0, 0.5, 3.0, 0.25, -1.0, 2.0, 1.5];
        let truncated = [false, false, true, false, false, true, true, false];
        let terminated = [false, true, false, false, false, true, false, false];
        let values = [0.3f32, -0.4, 1.2, 0.7, -0.9, 0.1, 2.2, -1.7];
        let final_obs = [9.0f32, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0];
        let next_value = [0.6f32, -0.8];
        let value = |x: f64| 2.0 * x + 1.0;

        // The recursion with the value of the observation after each step; only termination ends it.
        let mut expected = vec![0.0f64; steps * envs];
        for (env, &last_value) in next_value.iter().enumerate() {
            let mut advantage = 0.0;
            for step in (0..steps).rev() {
                let i = step * envs + env;
                let following = match (terminated[i], truncated[i]) {
                    (true, _) => 0.0,
                    (_, true) => value(final_obs[i].into()),
                    _ if step + 1 == steps => last_value.into(),
                    _ => values[i + envs].into(),
                };
                let delta = f64::from(rewards[i]) + gamma * following - f64::from(values[i]);
                let same_episode = if terminated[i] || truncated[i] { 0.0 } else { 1.0 };
                advantage = delta + gamma * lambda * same_episode * advantage;
                expected[i] = advantage;
            }
        }

        let shape = [steps, envs];
        let flags = |flags: &[bool]| Array::new(shape, flags).unwrap();
        let numbers = |numbers: &[f32]| Array::new(shape, numbers).unwrap();
        type Steps = (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor);
        let estimate = |(rewards, terminated, truncated, final_obs, values, next_value): Steps| {
            let by_step = |x: Tensor, step: usize| x.index_axis(0, step as isize);
            let rewards = (0..steps).map(|step| {
                let truncated_only = truncated & !terminated;
                let value = |obs: Tensor| 2.0 * obs + 1.0;
                let [rewards, truncated_only, obs] =
                    [rewards, truncated_only, final_obs].map(|x| by_step(x, step));
                bootstrap_truncated(rewards, truncated_only, obs, gamma, value)
            });
            let rewards = crate::trace::ops::stack(&rewards.collect::<Vec<_>>(), 0);
            let dones = (terminated | truncated).to(DType::F32);
            compute_gae(rewards, dones, values, next_value, (gamma, lambda)).0
        };
        let operands = || {
            let next_value = Array::new([envs], &next_value).unwrap();
            let (rewards, final_obs) = (numbers(&rewards), numbers(&final_obs));
            let values = numbers(&values);
            (rewards, flags(&terminated), flags(&truncated), final_obs, values, next_value)
        };
        for found in
            [interpret(estimate).call(operands()).unwrap(), jit(estimate).call(operands()).unwrap()]
        {
            for (found, expected) in found.to_vec::<f32>().unwrap().iter().zip(&expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} {expected}");
            }
        }
    }
}
