//! Policies of trained agents as functions that other programs can run.

use std::fmt;
use std::panic::Location;

use crate::array::Array;
use crate::distributions::{ActionDistribution, Categorical, DiagNormal, MultiCategorical};
use crate::envs::{EnvPool, EnvSpec, GymnasiumSpaces, Space, gymnasium_spaces};
use crate::error::Result;
use crate::export::Exported;
use crate::export::onnx::{SYMBOLIC_BATCH, onnx};
use crate::jit::{Mode, jit};
use crate::lower::stablehlo::{LowerOptions, Platform, stablehlo};
use crate::random::Key;
use crate::rl::environments::bounds::{Bounds, bounds_of};
use crate::rl::policy::evaluation::{Evaluation, PolicyOutput};
use crate::trace::graph::simplify;
use crate::trace::literal::Literal;
use crate::trace::ops::{concatenate, constant, where_, zeros_like};
use crate::trace::program::Program;
use crate::trace::tensor::{catch, trace_call};
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::leaf_path::{LeafPath, Step};
use crate::tree::{self, Path, Tree};

pub mod evaluation;
pub mod trained;

/// Name of the input with the observations `[B, ..]`.
const OBSERVATION: &str = "observation";
/// Name of the input with the state of a recurrent policy.
const STATE: &str = "state";

/// Policy of a trained agent: a function from observations to named results, of which `action` is
/// the greedy action, with the environment in which it is evaluated.
///
/// ```
/// use podracer::envs::{EnvPool, PoolOptions};
/// use podracer::rl::{Policy, PolicyResults};
/// use podracer::{Array, DType, Tensor};
///
/// let pool = EnvPool::make("CartPole-v1", PoolOptions::default())?;
/// let weights = Array::zeros([4, 2], DType::F32);
/// let policy = Policy::new(pool, weights, |weights: &Tensor, obs| {
///     PolicyResults::from_values("q_values", obs.matmul(*weights))
/// });
/// let exported = policy.exported("policy", 3)?; // for 3 observations
/// assert_eq!(exported.in_types()[0].to_string(), "f32[3,4]");
/// # Ok::<(), podracer::Error>(())
/// ```
pub struct Policy {
    pool: EnvPool,
    /// Spaces of an environment in Python.
    gymnasium_spaces: Option<GymnasiumSpaces>,
    /// Sizes of the state of a recurrent policy: layers and units.
    state: Option<[usize; 2]>,
    parameters: Vec<Array>,
    f: Function,
}

/// Function of the parameters and the inputs.
type Function = Box<dyn Fn(&[Tensor], &[Tensor]) -> PolicyResults + Send + Sync>;

/// Input of a policy; an axis of size `None` is the batch.
#[derive(Debug, Clone)]
struct Input {
    name: &'static str,
    dtype: DType,
    shape: Vec<Option<usize>>,
}

impl Input {
    fn ty(&self, batch_size: usize) -> TensorType {
        let sizes: Vec<usize> = self.shape.iter().map(|n| n.unwrap_or(batch_size)).collect();
        TensorType::new(self.dtype, sizes)
    }

    /// Returns the element type and the sizes, with `B` for the batch, as in `f32[B,4]`.
    fn shown(&self) -> String {
        let sizes: Vec<String> =
            self.shape.iter().map(|n| n.map_or("B".into(), |n| n.to_string())).collect();
        format!("{}[{}]", self.dtype, sizes.join(","))
    }
}

/// Function of a policy, traced.
struct Traced {
    program: Program,
    /// Names of the results.
    names: Vec<&'static str>,
    /// True if evaluations draw the action.
    is_sampled: bool,
}

/// Results of a policy by name, and the actions that it takes in an evaluation.
pub struct PolicyResults {
    named: Vec<(&'static str, Tensor)>,
    sample: Option<Sample>,
    bars: Option<Tensor>,
}

type Sample = Box<dyn FnOnce(Key<Tensor>) -> Tensor>;

impl PolicyResults {
    /// Returns the greedy action `action`, the class with the greatest value, and the values
    /// themselves, `f32[B, actions]`, under the name `name`: `logits` or `q_values`. Evaluations
    /// take the greedy action, and their videos draw the values as bars.
    pub fn from_values(name: &'static str, values: Tensor) -> PolicyResults {
        let named = vec![("action", values.argmax(-1)), (name, values)];
        PolicyResults { named, sample: None, bars: Some(values) }
    }

    /// Returns the action alone, for deterministic policies.
    pub fn from_action(action: Tensor) -> PolicyResults {
        PolicyResults { named: vec![("action", action)], sample: None, bars: None }
    }

    /// Returns the most likely action `action` and the `logits` of a policy for discrete actions.
    /// Evaluations sample the action.
    pub fn from_categorical(policy: Categorical<Tensor>) -> PolicyResults {
        let named = vec![("action", policy.mode()), ("logits", policy.logits)];
        PolicyResults { named, sample: Some(Box::new(move |key| policy.sample(key))), bars: None }
    }

    /// Returns the most likely choices `action: i32[B, components]` and the `logits`, one after
    /// another, of a policy for MultiDiscrete actions. Masked choices have the logit -1e8.
    /// Evaluations sample the choices.
    pub fn from_multi_categorical(policy: MultiCategorical<Tensor>) -> PolicyResults {
        let components = &policy.components;
        let modes: Vec<Tensor> = components.iter().map(|one| one.mode().expand_dims(-1)).collect();
        let logits: Vec<Tensor> = components.iter().map(|one| one.logits).collect();
        let named = vec![("action", concatenate(&modes, -1)), ("logits", concatenate(&logits, -1))];
        PolicyResults { named, sample: Some(Box::new(move |key| policy.sample(key))), bars: None }
    }

    /// Returns the results of [`from_categorical`](PolicyResults::from_categorical) for an
    /// environment with discrete actions, whose policy has one component, and otherwise those of
    /// [`from_multi_categorical`](PolicyResults::from_multi_categorical).
    pub fn from_components(policy: MultiCategorical<Tensor>, spec: &EnvSpec) -> PolicyResults {
        if matches!(spec.action, Space::Discrete { .. }) {
            return PolicyResults::from_categorical(policy.components[0]);
        }
        PolicyResults::from_multi_categorical(policy)
    }

    /// Returns the `mean` and the standard deviations `std` of a policy for continuous actions, and
    /// the mean as `action`. Evaluations sample the action. Both are clipped to `bounds`, if given.
    pub fn from_normal(policy: DiagNormal<Tensor>, bounds: Option<Bounds>) -> PolicyResults {
        let mean = policy.normal.mean;
        let std = policy.normal.std.broadcast_to(mean.shape());
        let clip = move |action| bounds.as_ref().map_or(action, |bounds| bounds.clip(action));
        let named = vec![("action", clip(mean)), ("mean", mean), ("std", std)];
        let sample = move |key| clip(policy.sample(key));
        PolicyResults { named, sample: Some(Box::new(sample)), bars: None }
    }

    /// Returns the results of [`from_categorical`](PolicyResults::from_categorical) or, with the
    /// bounds of the environment's actions, of [`from_normal`](PolicyResults::from_normal).
    pub fn from_distribution(policy: ActionDistribution, spec: &EnvSpec) -> PolicyResults {
        match policy {
            ActionDistribution::Discrete(policy) => PolicyResults::from_categorical(policy),
            ActionDistribution::Continuous(policy) => {
                PolicyResults::from_normal(policy, bounds_of(&spec.action).ok())
            }
        }
    }

    /// Adds a result.
    pub fn with(mut self, name: &'static str, value: Tensor) -> PolicyResults {
        self.named.push((name, value));
        self
    }

    /// Replaces the action of evaluations by the one that `sample` draws with a key.
    pub fn sampled_by(
        mut self,
        sample: impl FnOnce(Key<Tensor>) -> Tensor + 'static,
    ) -> PolicyResults {
        self.sample = Some(Box::new(sample));
        self
    }

    /// Replaces the values that videos of evaluations draw as bars beside the frame, `f32[B, K]` or
    /// `f32[B, actions, K]`.
    pub fn with_bars(mut self, values: Tensor) -> PolicyResults {
        self.bars = Some(values);
        self
    }

    fn get(&self, name: &str) -> Option<Tensor> {
        self.named.iter().find(|(other, _)| *other == name).map(|&(_, value)| value)
    }
}

impl fmt::Debug for PolicyResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.named.iter().map(|(name, value)| (name, value))).finish()
    }
}

impl Policy {
    /// Creates the policy of a network: `f` maps the parameters and observations `[B, ..]`, in the
    /// environment's element type, to the results. Observations of `f64` are passed as `f32`.
    /// Evaluations step the environments of `pool`.
    pub fn new<M: Tree<Tensor> + 'static>(
        pool: EnvPool,
        parameters: M::With<Array>,
        f: impl Fn(&M, Tensor) -> PolicyResults + Send + Sync + 'static,
    ) -> Policy
    where
        M::With<Array>: Send + Sync + 'static,
    {
        Policy::make(pool, None, parameters, move |m, inputs| f(m, inputs[0]))
    }

    /// Creates the policy of a recurrent network, as [`new`](Policy::new) does. `f` also takes the
    /// state `f32[layers, B, units]`, and returns the next one as the result `next_state`. The state
    /// before the first step of an episode is zero.
    pub fn recurrent<M: Tree<Tensor> + 'static>(
        pool: EnvPool,
        state: [usize; 2],
        parameters: M::With<Array>,
        f: impl Fn(&M, Tensor, Tensor) -> PolicyResults + Send + Sync + 'static,
    ) -> Policy
    where
        M::With<Array>: Send + Sync + 'static,
    {
        Policy::make(pool, Some(state), parameters, move |m, inputs| f(m, inputs[0], inputs[1]))
    }

    fn make<M: Tree<Tensor> + 'static>(
        pool: EnvPool,
        state: Option<[usize; 2]>,
        parameters: M::With<Array>,
        f: impl Fn(&M, &[Tensor]) -> PolicyResults + Send + Sync + 'static,
    ) -> Policy
    where
        M::With<Array>: Send + Sync + 'static,
    {
        let arrays: Vec<Array> = tree::leaves(&parameters);
        let f = move |leaves: &[Tensor], inputs: &[Tensor]| {
            let mut leaves = leaves.iter();
            let mut next = |_: &Path<'_>, _: &Array| *leaves.next().expect("one a leaf");
            f(&parameters.map_leaves_ref(&Path::ROOT, &mut next), inputs)
        };
        let gymnasium_spaces = gymnasium_spaces(&pool.spec().id);
        Policy { pool, gymnasium_spaces, state, parameters: arrays, f: Box::new(f) }
    }

    /// Sets the spaces that a model records.
    pub(in crate::rl) fn with_gymnasium_spaces(self, spaces: Option<GymnasiumSpaces>) -> Policy {
        Policy { gymnasium_spaces: spaces, ..self }
    }

    /// Plays the episodes of an evaluation in the pool. `name` is that of the compiled function.
    ///
    /// # Errors
    /// Returns the errors of [`Evaluation::play`], of tracing and of compiling the function.
    pub fn play(self, name: &str, mode: Mode, evaluation: &mut Evaluation) -> Result<()> {
        let Policy { pool, state, parameters, f, .. } = self;
        // The state of a recurrent policy, and the environments whose episode begins.
        type Memory<T> = Option<(T, T)>;
        type Inputs<T> = (Vec<T>, T, Memory<T>, Key<T>);
        let act = jit(|(parameters, obs, memory, key): Inputs<Tensor>| {
            let state = memory.map(|(state, first)| {
                let first = first.expand_dims(0).expand_dims(-1).broadcast_to(state.shape());
                where_(first, zeros_like(state), state)
            });
            let inputs: Vec<Tensor> = [obs].into_iter().chain(state).collect();
            let results = f(&parameters, &inputs);
            let next_state = state.and_then(|_| results.get("next_state"));
            let greedy = results.get("action").expect("every policy has an action");
            let action = results.sample.map_or(greedy, |sample| sample(key));
            (action, results.bars, next_state)
        })
        .with_mode(mode)
        .named(name);
        let num_envs = pool.num_envs();
        let mut state =
            state.map(|[layers, units]| Array::zeros([layers, num_envs, units], DType::F32));
        evaluation.play_with(pool, |batch, key| {
            let first = Array::from(batch.first().to_vec());
            let memory = state.take().map(|state| (state, first));
            let (actions, bars, next_state) =
                act.call((parameters.clone(), batch.obs_array(), memory, key))?;
            state = next_state;
            Ok(PolicyOutput { actions, bars })
        })
    }

    /// Returns the inputs: observations, then the state of a recurrent policy.
    fn all_inputs(&self) -> Vec<Input> {
        let state = self.state.map(|[layers, units]| {
            let shape = vec![Some(layers), None, Some(units)];
            Input { name: STATE, dtype: DType::F32, shape }
        });
        [observation(self.pool.spec())].into_iter().chain(state).collect()
    }

    /// Traces the function for batches of this size, with the parameters as constants.
    fn program(&self, batch_size: usize) -> Result<Traced> {
        let inputs = self.all_inputs();
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty(batch_size)).collect();
        let at = Location::caller();
        let literals: Vec<Literal> =
            self.parameters.iter().map(Array::to_literal).collect::<Result<_>>()?;
        let (mut names, mut is_sampled) = (Vec::new(), false);
        let run = |inputs: Vec<Tensor>| -> Vec<Tensor> {
            let parameters: Vec<Tensor> = literals.into_iter().map(constant).collect();
            let results = (self.f)(&parameters, &inputs);
            is_sampled = results.sample.is_some();
            let (given, values): (Vec<_>, Vec<_>) = results.named.into_iter().unzip();
            names = given;
            values
        };
        let (traced, _) =
            catch(|| trace_call("policy", at, &types, vec![], <[Tensor]>::to_vec, run))?;
        Ok(Traced { program: simplify(traced.program), names, is_sampled })
    }

    /// Returns the policy for batches of this size in the format of `jax.export`, for every
    /// platform. The results are a dictionary.
    ///
    /// # Errors
    /// Returns errors of tracing the function.
    pub fn exported(&self, name: &str, batch_size: usize) -> Result<Exported> {
        let Traced { program, names, .. } = self.program(batch_size)?;
        let inputs: Vec<LeafPath> =
            (0..self.all_inputs().len()).map(|i| vec![Step::Index(i)]).collect();
        let outputs: Vec<LeafPath> =
            names.iter().map(|&name| vec![Step::Name(name.into())]).collect();
        Exported::of(name, program, &inputs, &outputs, &Platform::ALL)
    }

    /// Returns the policy for batches of this size as the text of a StableHLO module for every
    /// platform. The results are in the order of [`outputs`](Policy::outputs).
    ///
    /// # Errors
    /// Returns errors of tracing the function.
    pub fn stablehlo(&self, name: &str, batch_size: usize) -> Result<String> {
        let Traced { program, .. } = self.program(batch_size)?;
        let options = LowerOptions {
            name: name.into(),
            locations: false,
            ..LowerOptions::for_platforms(&Platform::ALL)
        };
        Ok(stablehlo(&program, &options))
    }

    /// Returns the policy as the bytes of an ONNX file, for batches of any size. Its metadata are those
    /// given and the description of the environment: `env_id`, `observation_space`, `action_space`,
    /// `action_start`, and `evaluation`, which is `sampled` or `greedy`; of an environment in Python
    /// also `gymnasium_observation_space` and `gymnasium_action_space`.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for an operation that ONNX does not have, and
    /// errors of tracing the function.
    pub fn onnx(&self, name: &str, metadata: &[(&str, String)]) -> Result<Vec<u8>> {
        let Traced { program, names, is_sampled } = self.program(SYMBOLIC_BATCH)?;
        let inputs: Vec<&str> = self.all_inputs().iter().map(|input| input.name).collect();
        let evaluation = if is_sampled { "sampled" } else { "greedy" };
        let all = [metadata, &self.env_metadata(), &[("evaluation", evaluation.into())]].concat();
        onnx(&program, name, &inputs, &names, &all)
    }

    /// Returns names and texts that describe the environment.
    fn env_metadata(&self) -> Vec<(&'static str, String)> {
        let EnvSpec { id, observation, action, .. } = self.pool.spec();
        let python = self.gymnasium_spaces.clone();
        let start = python.as_ref().map_or(0, |python| python.action_start);
        let mut metadata = vec![
            ("env_id", id.clone()),
            ("observation_space", observation.to_string()),
            ("action_space", action.to_string()),
            ("action_start", start.to_string()),
        ];
        if let Some(python) = python {
            metadata.push(("gymnasium_observation_space", python.observation_space));
            metadata.push(("gymnasium_action_space", python.action_space));
        }
        metadata
    }

    /// Returns the names and types of the inputs, with `B` in the place of the size of the batch.
    pub fn inputs(&self) -> Vec<String> {
        let text = |input: &Input| format!("{}: {}", input.name, input.shown());
        self.all_inputs().iter().map(text).collect()
    }

    /// Returns the names of the results.
    ///
    /// # Errors
    /// Returns errors of tracing the function.
    pub fn outputs(&self) -> Result<Vec<&'static str>> {
        Ok(self.program(1)?.names)
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy({})", self.inputs().join(", "))
    }
}

/// Returns the input for the observations of an environment.
fn observation(spec: &EnvSpec) -> Input {
    let sizes = spec.observation.shape();
    let dtype = match spec.observation.dtype() {
        DType::F64 => DType::F32,
        other => other,
    };
    let shape = [None].into_iter().chain(sizes.iter().map(|&n| Some(n))).collect();
    Input { name: OBSERVATION, dtype, shape }
}
