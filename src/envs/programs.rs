//! Environments given by the Programs of `reset` and `step`: those of JAX, in a folder, and traced
//! environments of the user's.

mod pooled;

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::envs::env::spec::EnvSpec;
use crate::error::{Error, Result};
use crate::random::Key;
use crate::spaces::Space;
use crate::spaces::described::Described;
use crate::trace::{DType, LoadedProgram, Program, Tensor, TensorType};

pub(super) use pooled::{make, pool};

/// Prefix of the ids of this family; the folder follows.
pub(super) const PREFIX: &str = "jax:";

/// Returns the folder in the id of an environment of JAX, as in `jax:cartpole`.
pub(crate) fn jax_folder(id: &str) -> Option<&str> {
    id.strip_prefix(PREFIX)
}

/// Environment given by the Programs of its `reset` and its `step`, which become part of the trace
/// that calls them: one of JAX that `tools/jax_to_podracer.py` wrote, for which no Python runs, or
/// one that [`register`](super::traced::register) traced.
///
/// ```no_run
/// use podracer::envs::traced::{AutoReset, ProgramEnv};
/// // python tools/jax_to_podracer.py gymnax:CartPole-v1 --out cartpole
/// let env = AutoReset::new(ProgramEnv::load("cartpole")?);
/// # Ok::<(), podracer::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ProgramEnv(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    reset: LoadedProgram,
    step: LoadedProgram,
    spec: EnvSpec,
    /// Types of the state's leaves.
    state: Vec<TensorType>,
    num_players: usize,
}

/// Description of an environment in the first line of `step.txt`.
#[derive(Debug, Deserialize)]
struct Metadata {
    observation: Described,
    action: Described,
    max_episode_steps: Option<u32>,
    reward_threshold: Option<f64>,
    #[serde(default = "one")]
    num_players: usize,
}

/// Number of players of environments that do not say it.
fn one() -> usize {
    1
}

impl ProgramEnv {
    /// Reads `reset.txt` and `step.txt` in `folder`.
    ///
    /// # Errors
    /// Returns the errors of [`Program::load`], and [`Error::Env`] if the two are not the Programs
    /// of an environment.
    pub fn load(folder: impl AsRef<Path>) -> Result<ProgramEnv> {
        let folder = folder.as_ref();
        if !folder.is_dir() {
            return Err(Error::Env(format!(
                "{PREFIX}{}: no such folder; `python tools/jax_to_podracer.py gymnax:CartPole-v1 \
                 --out FOLDER` writes one",
                folder.display()
            )));
        }
        let reset = Program::load(folder.join("reset.txt"))?;
        let step = Program::load(folder.join("step.txt"))?;
        let id = format!("{PREFIX}{}", folder.display());
        let (spec, num_players) = spec(id, step.metadata().get("environment"))
            .map_err(|error| Error::Env(format!("{}: {error}", step.path().display())))?;
        ProgramEnv::new(reset, step, spec, num_players)
    }

    /// Returns the environment of two Programs.
    ///
    /// # Errors
    /// [`Error::Env`] if they do not fit the specification.
    pub(super) fn new(
        reset: LoadedProgram,
        step: LoadedProgram,
        spec: EnvSpec,
        num_players: usize,
    ) -> Result<ProgramEnv> {
        let state = check(&reset, &step, &spec)?;
        Ok(ProgramEnv(Arc::new(Loaded { reset, step, spec, state, num_players })))
    }

    /// Returns the specification.
    pub(super) fn specification(&self) -> &EnvSpec {
        &self.0.spec
    }

    /// Returns the number of players that alternate.
    pub(super) fn num_players(&self) -> usize {
        self.0.num_players
    }

    /// Returns the types of the state's leaves.
    pub(super) fn state_types(&self) -> &[TensorType] {
        &self.0.state
    }

    /// Starts an episode: returns the leaves of its state, and its first observation.
    #[track_caller]
    pub(super) fn start(&self, key: Key<Tensor>) -> (Vec<Tensor>, Tensor) {
        let mut results = self.0.reset.call(key.into_data());
        let state = results.split_off(1);
        (state, results[0])
    }

    /// Takes one step.
    #[track_caller]
    pub(super) fn advance(
        &self,
        state: Vec<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> StepResults<Tensor> {
        let action = action.reshape(self.0.spec.action.shape());
        StepResults::new(self.0.step.call((key.into_data(), state, action)))
    }
}

/// Order of the results of a step.
const STEP_RESULTS: &str = "observation, state.., reward, terminated, truncated";

/// Element types of those after the state.
const SCALARS: [DType; 3] = [DType::F32, DType::Bool, DType::Bool];

/// Results of the Program of a step.
pub(super) struct StepResults<T> {
    pub(super) obs: T,
    /// Leaves of the next state.
    pub(super) state: Vec<T>,
    pub(super) reward: T,
    pub(super) terminated: T,
    pub(super) truncated: T,
}

impl<T> StepResults<T> {
    /// Takes the results in their order, of which there are as many as [`check`] has found.
    fn new(results: Vec<T>) -> StepResults<T> {
        let mut results = results.into_iter();
        let obs = results.next().expect("an observation");
        let mut state: Vec<T> = results.collect();
        let scalars = state.split_off(state.len() - SCALARS.len());
        let Ok([reward, terminated, truncated]) = <[T; 3]>::try_from(scalars) else {
            unreachable!("three scalars were split off")
        };
        StepResults { obs, state, reward, terminated, truncated }
    }
}

/// The specification in the metadata of a step, and the number of players.
fn spec(id: String, metadata: Option<&Value>) -> Result<(EnvSpec, usize)> {
    let Some(metadata) = metadata else {
        return Err(Error::Env("its first line describes no environment".into()));
    };
    let metadata = Metadata::deserialize(metadata)
        .map_err(|error| Error::Env(format!("the environment in its first line: {error}")))?;
    let (observation, action) = (metadata.observation.space()?, metadata.action.space()?);
    for (what, space) in [("observation", &observation), ("action", &action)] {
        if let Some(problem) = space.problem() {
            return Err(Error::Env(format!("the space of its {what}: {problem}")));
        }
    }
    let Metadata { max_episode_steps, reward_threshold, num_players, .. } = metadata;
    if !(1..=2).contains(&num_players) {
        return Err(Error::Env(format!("num_players is {num_players}, and must be 1 or 2")));
    }
    Ok((EnvSpec { id, observation, action, max_episode_steps, reward_threshold }, num_players))
}

/// The type of an argument or result of this space.
fn type_of(space: &Space) -> TensorType {
    TensorType::new(space.dtype(), space.shape())
}

/// Checks that the two Programs are those of an environment, and returns the types of its state.
fn check(reset: &LoadedProgram, step: &LoadedProgram, spec: &EnvSpec) -> Result<Vec<TensorType>> {
    let key = TensorType::new(DType::U32, [2]);
    let outputs: Vec<TensorType> = reset.program().output_types().cloned().collect();
    let state = outputs.get(1..).unwrap_or(&[]).to_vec();
    let scalar = TensorType::scalar;
    let chain = |parts: [&[TensorType]; 3]| parts.concat();
    let obs = [type_of(&spec.observation)];
    let scalars = SCALARS.map(scalar);
    let expected = [
        (reset, "takes", vec![key.clone()], "key"),
        (reset, "returns", chain([&obs, &state, &[]]), "observation, state.."),
        (step, "takes", chain([&[key], &state, &[type_of(&spec.action)]]), "key, state.., action"),
        (step, "returns", chain([&obs, &state, &scalars]), STEP_RESULTS),
    ];
    for (loaded, verb, expected, what) in expected {
        let program = loaded.program();
        let (given, names): (Vec<&TensorType>, _) = match verb {
            "takes" => (program.input_types().collect(), loaded.inputs()),
            _ => (program.output_types().collect(), loaded.outputs()),
        };
        let path = loaded.path().display();
        if given.len() != expected.len() {
            return Err(Error::Env(format!(
                "{path}: it {verb} {} tensors, and that of this environment {verb} {}: {what}",
                given.len(),
                expected.len()
            )));
        }
        for ((given, expected), name) in given.into_iter().zip(&expected).zip(names) {
            if given != expected {
                return Err(Error::Env(format!(
                    "{path}: it {verb} {name} as {given}, and must have {expected} there: {what}"
                )));
            }
        }
    }
    Ok(state)
}
