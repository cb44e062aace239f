//! Environments of Programs as traced environments, and traced environments as those.

use std::panic::Location;

use super::{TracedEnv, TracedStep};
use crate::envs::env::spec::EnvSpec;
use crate::envs::programs::StepResults;
use crate::error::Result;
use crate::jit::{eval_shape, make_program};
use crate::random::Key;
use crate::trace::tensor::{catch, trace_tree};
use crate::trace::{DType, LoadedProgram, Tensor, TensorType};
use crate::tree;

pub use crate::envs::programs::ProgramEnv;

impl TracedEnv for ProgramEnv {
    type State = Vec<Tensor>;

    fn spec(&self) -> EnvSpec {
        self.specification().clone()
    }

    #[track_caller]
    fn reset(&self, key: Key<Tensor>) -> (Vec<Tensor>, Tensor) {
        self.start(key)
    }

    #[track_caller]
    fn step(
        &self,
        state: Vec<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, Vec<Tensor>> {
        let StepResults { obs, state, reward, terminated, truncated } =
            self.advance(state, action, key);
        TracedStep { state, obs, reward, terminated, truncated }
    }
}

impl ProgramEnv {
    /// Traces the functions of an environment.
    ///
    /// # Errors
    /// [`Error::Trace`](crate::Error::Trace) for functions that cannot be typed, and
    /// [`Error::Env`](crate::Error::Env) for results that do not fit the specification.
    #[track_caller]
    pub(super) fn trace<E: TracedEnv>(env: &E) -> Result<ProgramEnv> {
        let spec = env.spec();
        let key = || Key::new(0);
        let start = |key: Key<Tensor>| {
            let (state, obs) = env.reset(key);
            (obs, state)
        };
        let reset = make_program(start, &key())?;
        let (_, state) = eval_shape(start, &key())?;
        let names: Vec<String> =
            tree::paths(&state).iter().map(|path| tree::path_of("state", path)).collect();
        let key_type = Key::from_data(TensorType::new(DType::U32, [2]));
        let types = (key_type, state, TensorType::new(spec.action.dtype(), spec.action.shape()));
        let advance = |(key, state, action): (Key<Tensor>, E::State, Tensor)| {
            let TracedStep { state, obs, reward, terminated, truncated } =
                env.step(state, action, key);
            (obs, state, reward, terminated, truncated)
        };
        let at = Location::caller();
        let (step, _) = catch(|| trace_tree("step", at, &types, advance))?;
        let step = step.program;

        let around_state = |first: &str, last: &[&str]| -> Vec<String> {
            let last = last.iter().map(|name| name.to_string());
            [first.to_string()].into_iter().chain(names.iter().cloned()).chain(last).collect()
        };
        let named = |function: &str, program, inputs, outputs| {
            LoadedProgram::named(format!("{function} of {}", spec.id), program, inputs, outputs)
        };
        let reset = named("reset", reset, vec!["key".into()], around_state("observation", &[]));
        let inputs = around_state("key", &["action"]);
        let outputs = around_state("observation", &["reward", "terminated", "truncated"]);
        let step = named("step", step, inputs, outputs);
        ProgramEnv::new(reset, step, spec, 1)
    }
}
