//! Trained policies in programs that do not train: observations in, actions out.

use std::fmt;
use std::sync::OnceLock;

use crate::array::{Array, to_device};
use crate::envs::{EnvSpec, GymnasiumSpaces};
use crate::error::{Error, Result};
use crate::jit::{Jit, Mode, Stats, jit};
use crate::random::Key;
use crate::rl::policy::{Input, Policy, observation};
use crate::trace::{DType, Shape, Tensor};

/// Argument of the function: parameters, observations, and a key if the action is sampled.
type Inputs<T> = (Vec<T>, T, Option<Key<T>>);
type Act = Box<dyn Fn(Inputs<Tensor>) -> Tensor + Send + Sync>;

/// Policy of a saved model, for programs that do not train: a function from batches of observations
/// to actions. It may be shared by threads.
///
/// [`load`](TrainedPolicy::load) reads a model and makes no environment: neither ROMs nor Python are
/// needed. Normalization of observations and scaling of actions are part of the policy. Wrappers of
/// the environment, such as stacks of frames, are not.
///
/// Each batch size is compiled at its first call or by [`compile`](TrainedPolicy::compile), and the
/// last 256 remain compiled. A service with batches of many sizes should pad them to a few.
///
/// ```no_run
/// use podracer::Array;
/// use podracer::rl::TrainedPolicy;
///
/// let policy = TrainedPolicy::load("runs/CartPole-v1__ppo__1__1795252538")?;
/// policy.compile(2)?;
/// let observations = Array::zeros([2, 4], podracer::DType::F32);
/// let actions = policy.act(&observations)?.to_vec::<i32>()?;
/// assert_eq!(actions.len(), 2);
/// # Ok::<(), podracer::Error>(())
/// ```
pub struct TrainedPolicy {
    algorithm: String,
    spec: EnvSpec,
    gymnasium_spaces: Option<GymnasiumSpaces>,
    input: Input,
    parameters: Vec<Array>,
    /// Parameters on the device, from the first call that needs them.
    on_device: OnceLock<Vec<Array>>,
    function: Jit<Inputs<Tensor>, Tensor, Act>,
}

impl TrainedPolicy {
    /// Creates the policy of a model that `algorithm` saved. The pool of `policy` is closed.
    ///
    /// # Errors
    /// [`Error::Argument`] for a recurrent policy.
    pub fn new(algorithm: &str, policy: Policy) -> Result<TrainedPolicy> {
        let Policy { pool, gymnasium_spaces, state, parameters, f } = policy;
        if state.is_some() {
            return Err(Error::Argument(format!(
                "the policy of {algorithm} is recurrent: its action depends on a state, which \
                 TrainedPolicy does not keep\n  help: `podracer export` writes it as a function of \
                 observations and state"
            )));
        }
        let act = move |(parameters, obs, key): Inputs<Tensor>| {
            let results = f(&parameters, &[obs]);
            let greedy = results.get("action").expect("every policy has an action");
            match (results.sample, key) {
                (Some(sample), Some(key)) => sample(key),
                _ => greedy,
            }
        };
        let function = jit(Box::new(act) as Act).named(format!("{algorithm}_act"));
        let spec = pool.spec().clone();
        Ok(TrainedPolicy {
            algorithm: algorithm.into(),
            gymnasium_spaces,
            input: observation(&spec),
            spec,
            parameters,
            on_device: OnceLock::new(),
            function,
        })
    }

    /// Sets the execution mode; compiled otherwise. [`Mode::Interpret`] needs no plugin of XLA.
    pub fn with_mode(self, mode: Mode) -> TrainedPolicy {
        TrainedPolicy { function: self.function.with_mode(mode), ..self }
    }

    /// Returns the name of the algorithm that trained the policy.
    pub fn algorithm(&self) -> &str {
        &self.algorithm
    }

    /// Returns the specification of the environment: its id, and the spaces of observations and
    /// actions.
    pub fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    /// Returns the spaces as Python has them, for an environment in Python: the order
    /// in which the parts of a `Dict` are flattened, and the `start` of a `Discrete`, which is to be
    /// added to the actions where no [`EnvPool`](crate::envs::EnvPool) does so.
    pub fn gymnasium_spaces(&self) -> Option<&GymnasiumSpaces> {
        self.gymnasium_spaces.as_ref()
    }

    /// Returns the cost of tracing and compiling so far. `traces` is the number of compilations, of
    /// which `cache_hits` were loaded from the cache on the disk.
    pub fn stats(&self) -> Stats {
        self.function.stats()
    }

    /// Compiles the policy for batches of this size and runs it on zeros, for
    /// [`act`](TrainedPolicy::act) and [`sample`](TrainedPolicy::sample). Later calls with batches of
    /// this size compile nothing.
    ///
    /// # Errors
    /// Returns the errors of [`act`](TrainedPolicy::act).
    pub fn compile(&self, batch_size: usize) -> Result<()> {
        let ty = self.input.ty(batch_size);
        let zeros = Array::zeros(ty.shape, ty.dtype);
        self.act(&zeros)?.wait()?;
        self.sample(&zeros, Key::new(0))?.wait()
    }

    /// Returns the greedy actions: the most likely choices, the choices with the greatest value, or
    /// the means of continuous actions.
    ///
    /// `observations` are `[B, ..]` in the shape and the element type of the environment, for any B
    /// of at least 1; `f32` stands for `f64` too. The actions are those that
    /// [`EnvPool::step`](crate::envs::EnvPool::step) takes: `i32[B]` for `Discrete`, counted from 0,
    /// `i32[B, components]` for `MultiDiscrete`, `f32[B, ..]` for `Box`.
    ///
    /// The computation is asynchronous: reading the array waits for it.
    ///
    /// # Errors
    /// [`Error::Argument`] for observations of another shape or element type, errors of tracing, and,
    /// unless the mode is [`Mode::Interpret`], errors of the compiler and of the runtime.
    pub fn act(&self, observations: &Array) -> Result<Array> {
        self.call(observations, None)
    }

    /// Returns the actions that `podracer eval` takes with this key: samples of a policy that is a
    /// distribution, epsilon-greedy actions of DQN and its variants, otherwise those of
    /// [`act`](TrainedPolicy::act). Each call needs another key.
    ///
    /// # Errors
    /// Returns the errors of [`act`](TrainedPolicy::act).
    pub fn sample(&self, observations: &Array, key: Key<Array>) -> Result<Array> {
        self.call(observations, Some(key))
    }

    fn call(&self, observations: &Array, key: Option<Key<Array>>) -> Result<Array> {
        let observations = self.checked(observations)?;
        self.function.call((self.parameters()?.clone(), observations, key))
    }

    /// Returns the parameters: on the device, if the policy runs there.
    fn parameters(&self) -> Result<&Vec<Array>> {
        if self.function.mode() == Mode::Interpret {
            return Ok(&self.parameters);
        }
        match self.on_device.get() {
            Some(parameters) => Ok(parameters),
            None => {
                let parameters = to_device(self.parameters.clone())?;
                Ok(self.on_device.get_or_init(|| parameters))
            }
        }
    }

    /// Returns observations as the function takes them.
    fn checked(&self, observations: &Array) -> Result<Array> {
        let given = observations.ty();
        let batch_size = given.shape.first().copied().unwrap_or(0);
        let is_wide = self.spec.observation.dtype() == DType::F64 && given.dtype == DType::F64;
        let expected = self.input.ty(batch_size);
        if batch_size == 0 || given.shape != expected.shape {
            let one = given.shape == self.spec.observation.shape();
            let help = if one { "\n  help: a single observation is a batch of 1" } else { "" };
            return Err(self.unexpected(given, help));
        }
        if is_wide {
            let values = observations.to_vec::<f64>()?;
            let values: Vec<f32> = values.into_iter().map(|x| x as f32).collect();
            return Array::new(Shape::from(given.shape.to_vec()), &values);
        }
        match given.dtype == expected.dtype {
            true => Ok(observations.clone()),
            false => Err(self.unexpected(given, "")),
        }
    }

    fn unexpected(&self, given: &impl fmt::Display, help: &str) -> Error {
        let (algorithm, id, input) = (&self.algorithm, &self.spec.id, &self.input);
        Error::Argument(format!(
            "the policy of {algorithm} for {id} takes observations {}, B of at least 1, and these are \
             {given}{help}",
            input.shown()
        ))
    }
}

impl fmt::Debug for TrainedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, input) = (&self.spec.id, self.input.shown());
        write!(f, "TrainedPolicy({} for {id}, {input} to {})", self.algorithm, self.spec.action)
    }
}
