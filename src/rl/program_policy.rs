//! Policies that are Programs in files, such as the `apply` of a Flax model with its parameters.

use std::path::Path;
use std::sync::Arc;

use crate::array::Array;
use crate::envs::{AtariOptions, EnvPool, EnvSpec, PoolOptions, Space, is_python};
use crate::error::{Error, Result};
use crate::random::Key;
use crate::rl::policy::evaluation::Evaluation;
use crate::rl::policy::{Policy, PolicyResults};
use crate::rl::run::pools;
use crate::trace::{DType, LoadedProgram, Program, Tensor, TensorType};
use crate::{Mode, vmap};

/// Seed of the environments and of the policy's keys.
const SEED: u64 = 1;

/// Results of a policy's Program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    /// Action.
    Action,
    /// A value or logit for each action, of which the greatest is taken.
    Values,
}

/// Plays the episodes of an evaluation with the Program in `file`, a function of one observation
/// and, if it has a second argument, of a key `u32[2]`.
///
/// # Errors
/// Returns errors of reading the file, [`Error::Argument`] if the Program is not a policy for the
/// environment, and errors of the environment.
pub fn play(file: &Path, env_id: &str, evaluation: &mut Evaluation) -> Result<()> {
    let program = Program::load(file)?;
    let options = PoolOptions { seed: SEED, num_threads: 1, ..Default::default() };
    // The Program takes the observations of an environment in Python as they are.
    let pool = match is_python(env_id) {
        true => EnvPool::make(env_id, options)?,
        false => pools::any(env_id, AtariOptions::gymnasium(), options)?,
    };
    policy(program, pool)?.play("program_policy", Mode::default(), evaluation)
}

/// Returns the policy of a Program.
fn policy(program: LoadedProgram, pool: EnvPool) -> Result<Policy> {
    let output = check(&program, pool.spec())?;
    let program = Arc::new(program);
    let act = move |_: &Vec<Tensor>, obs: Tensor| {
        if program.inputs().len() == 1 {
            let results = vmap(|obs: Tensor| program.call(obs)[0])(obs);
            return match output {
                Output::Action => PolicyResults::from_action(results),
                Output::Values => PolicyResults::from_values("values", results),
            };
        }
        let program = Arc::clone(&program);
        let sample = move |key: Key<Tensor>| {
            let one = |(obs, key): (Tensor, Key<Tensor>)| program.call((obs, key.into_data()))[0];
            let results = vmap(one)((obs, key.split_batch(obs.dim(0))));
            match output {
                Output::Action => results,
                Output::Values => results.argmax(-1),
            }
        };
        PolicyResults::from_action(sample(Key::constant(SEED))).sampled_by(sample)
    };
    Ok(Policy::new(pool, Vec::<Array>::new(), act))
}

/// Checks that a Program is a policy for the environment, and returns what it gives.
fn check(program: &LoadedProgram, spec: &EnvSpec) -> Result<Output> {
    let (path, id) = (program.path().display(), &spec.id);
    let problem = |text: String| Err(Error::Argument(format!("--policy {path}: {text}")));
    let dtype = match spec.observation.dtype() {
        DType::F64 => DType::F32,
        dtype => dtype,
    };
    let obs = TensorType::new(dtype, spec.observation.shape());
    let key = TensorType::new(DType::U32, [2]);
    let takes: Vec<&TensorType> = program.program().input_types().collect();
    if takes != [&obs] && takes != [&obs, &key] {
        let takes: Vec<String> = takes.iter().map(ToString::to_string).collect();
        return problem(format!(
            "it takes ({}), and a policy for {id} takes one observation, {obs}, and possibly a \
             key, {key}; parameters are constants of the function",
            takes.join(", ")
        ));
    }
    let gives: Vec<&TensorType> = program.program().output_types().collect();
    let action = TensorType::new(spec.action.dtype(), spec.action.shape());
    let values = match spec.action {
        Space::Discrete { n } => Some(TensorType::new(DType::F32, [n])),
        _ => None,
    };
    match &gives[..] {
        [given] if **given == action => Ok(Output::Action),
        [given] if Some(*given) == values.as_ref() => Ok(Output::Values),
        _ => {
            let gives: Vec<String> = gives.iter().map(ToString::to_string).collect();
            let values = values.map_or(String::new(), |ty| format!(" or a value for each, {ty}"));
            problem(format!(
                "it returns ({}), and a policy for {id} returns an action, {action}{values}",
                gives.join(", ")
            ))
        }
    }
}
