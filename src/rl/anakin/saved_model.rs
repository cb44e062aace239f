//! Saved models of several agents.

use crate::error::Result;
use crate::jit::eval_shape;
use crate::rl::anakin::options::AnakinArgs;
use crate::rl::checkpoint::Checkpoint;
use crate::rl::checkpoint::saved::load_result;
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, TensorType};

/// Loads the agents of a saved model, which has the structure and the sizes of the result of `init`
/// for one agent. With several agents every leaf has a leading axis of agents.
///
/// # Errors
/// Returns the errors of [`Checkpoint::expect`], and errors of tracing `init`.
pub fn load_agents<A: AnakinArgs, S: Tree<Tensor>>(
    args: &A,
    model: &Checkpoint,
    init: impl Fn(Key<Tensor>) -> S,
) -> Result<S::With<Array>> {
    let options = args.agents();
    let init_all = |keys: Key<Tensor>| options.for_agents(&init, keys);
    load_result(model, init_all, &options.keys(args.options().seed)?)
}

/// Returns the types of the result of `init` for all agents.
///
/// # Errors
/// Returns errors of tracing.
pub(crate) fn agent_types<A: AnakinArgs, S: Tree<Tensor>>(
    args: &A,
    init: impl Fn(Key<Tensor>) -> S,
) -> Result<S::With<TensorType>> {
    let options = args.agents();
    let init_all = |keys: Key<Tensor>| options.for_agents(&init, keys);
    eval_shape(init_all, &options.keys(args.options().seed)?)
}

/// Returns the index of the agent to evaluate: the first whose `parameters` (of all agents) are all
/// finite, or 0. Returns `None` if the model holds a single agent.
///
/// # Errors
/// Returns errors of reading the parameters.
pub fn evaluated_agent<A: AnakinArgs, P: Tree<Array>>(
    args: &A,
    parameters: &P,
) -> Result<Option<usize>> {
    let agents = args.agents().num_agents();
    let mut finite = vec![true; agents];
    for leaf in tree::leaves(parameters).iter().filter(|leaf| leaf.dtype() == DType::F32) {
        let values = leaf.to_vec::<f32>()?;
        let size = (values.len() / agents).max(1);
        for (agent, values) in values.chunks_exact(size).enumerate() {
            finite[agent] &= values.iter().all(|x| x.is_finite());
        }
    }
    let first = finite.iter().position(|finite| *finite).unwrap_or(0);
    Ok((agents > 1).then_some(first))
}

/// Selects agent `index` of a saved model of several agents. With `None` the model holds a single
/// agent, which is returned unchanged.
#[track_caller]
pub fn select_agent<P: Tree<Tensor>>(agents: P, index: Option<usize>) -> P::With<Tensor> {
    tree::map(agents, |x: Tensor| match index {
        Some(index) => x.index_axis(0, index as isize),
        None => x,
    })
}
