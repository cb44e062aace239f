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
