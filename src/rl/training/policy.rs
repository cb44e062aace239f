//! Policies of trained agents as functions that other programs can run.

use std::fmt;
use std::panic::Location;

use crate::array::Array;
use crate::distributions::{ActionDistribution, Categorical, DiagNormal};
use crate::envs::EnvSpec;
use crate::error::Result;
use crate::export::Exported;
use crate::lower::artifact::{LeafPath, Step};
use crate::lower::onnx::{SYMBOLIC_BATCH, onnx};
use crate::lower::stablehlo::{LowerOptions, Platform, stablehlo};
use crate::rl::training::bounds::bounds_of;
use crate::trace::graph::simplify;
use crate::trace::literal::Literal;
use crate::trace::ops::{concatenate, constant};
use crate::trace::program::Program;
use crate::trace::tensor::{catch, trace_call};
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::{self, Path, Tree};

/// Name of the input with the observations `[B, ..]`.
const OBSERVATION: &str = "observation";
/// Name of the input with the state of a recurrent policy.
const STATE: &str = "state";

/// Policy of a trained agent: a function from observations to named results, of which `action` is
/// the greedy action. The parameters are constants of the function.
///
/// ```
/// use podracer::rl::{Policy, PolicyResults};
/// use podracer::{Array, DType, Tensor, envs};
///
/// let spec = envs::spec("CartPole-v1")?;
/// let weights = Array::zeros([4, 2], DType::F32);
/// let policy = Policy::new(&spec, weights, |weights: &Tensor, obs| {
///     PolicyResults::from_values("q_values", obs.matmul(*weights))
/// })?;
/// let exported = policy.exported("policy", 3)?; // for 3 observations
/// assert_eq!(exported.in_types()[0].to_string(), "f32[3,4]");
/// # Ok::<(), podracer::Error>(())
/// ```
pub struct Policy {
    inputs: Vec<Input>,
    f: Function,
}

type Function = Box<dyn Fn(&[Tensor]) -> PolicyResults>;

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
}

/// Results of a policy by name.
#[derive(Debug, Clone)]
pub struct PolicyResults(Vec<(&'static str, Tensor)>);

impl PolicyResults {
    /// Returns the greedy action `action`, the class with the greatest value, and the values
    /// themselves, `f32[B, actions]`, under the name `name`: `logits` or `q_values`.
    pub fn from_values(name: &'static str, values: Tensor) -> PolicyResults {
        PolicyResults(vec![("action", values.argmax(-1)), (name, values)])
    }

    /// Returns the action alone, for deterministic policies.
    pub fn from_action(action: Tensor) -> PolicyResults {
        PolicyResults(vec![("action", action)])
    }

    /// Returns the most likely action `action` and the `logits` of a policy for discrete actions.
    pub fn from_categorical(policy: &Categorical<Tensor>) -> PolicyResults {
        PolicyResults::from_values("logits", policy.logits)
    }

    /// Returns the most likely choices `action: i32[B, components]` and the `logits`, one after
    /// another, of a policy for MultiDiscrete actions. Masked choices have the logit -1e8.
    pub fn from_components(components: &[Categorical<Tensor>]) -> PolicyResults {
        let modes: Vec<Tensor> = components.iter().map(|one| one.mode().expand_dims(-1)).collect();
        let logits: Vec<Tensor> = components.iter().map(|one| one.logits).collect();
        PolicyResults(vec![
            ("action", concatenate(&modes, -1)),
            ("logits", concatenate(&logits, -1)),
        ])
    }

    /// Returns the `mean` and the standard deviations `std` of a policy for continuous actions, and
    /// the mean within the bounds of the environment's actions as `action`.
    pub fn from_normal(policy: &DiagNormal<Tensor>, spec: &EnvSpec) -> PolicyResults {
        let mean = policy.normal.mean;
        let std = policy.normal.std.broadcast_to(mean.shape());
        let action = bounds_of(&spec.action).map_or(mean, |bounds| bounds.clip(mean));
        PolicyResults(vec![("action", action), ("mean", mean), ("std", std)])
    }

    /// Returns the results of [`from_categorical`](PolicyResults::from_categorical) or
    /// [`from_normal`](PolicyResults::from_normal).
    pub fn from_distribution(policy: &ActionDistribution, spec: &EnvSpec) -> PolicyResults {
        match policy {
            ActionDistribution::Discrete(policy) => PolicyResults::from_categorical(policy),
            ActionDistribution::Continuous(policy) => PolicyResults::from_normal(policy, spec),
        }
    }

    /// Adds a result.
    pub fn with(mut self, name: &'static str, value: Tensor) -> PolicyResults {
        self.0.push((name, value));
        self
    }
}

impl Policy {
    /// Creates the policy of a network for an environment: `f` maps the parameters and observations
    /// `[B, ..]`, in the environment's element type, to the results. Observations of `f64` are
    /// passed as `f32`.
    ///
    /// # Errors
    /// Returns errors of copying the parameters from the device.
    pub fn new<M: Tree<Tensor> + 'static>(
        spec: &EnvSpec,
        parameters: M::With<Array>,
        f: impl Fn(&M, Tensor) -> PolicyResults + 'static,
    ) -> Result<Policy>
    where
        M::With<Array>: 'static,
    {
        Policy::make(vec![observation(spec)], parameters, move |m, inputs| f(m, inputs[0]))
    }

    /// Creates the policy of a recurrent network, as [`new`](Policy::new) does. `f` also takes the
    /// state `f32[layers, B, units]`, and returns the next one as the result `next_state`. The state
    /// before the first step of an episode is zero.
    ///
    /// # Errors
    /// Returns errors of copying the parameters from the device.
    pub fn recurrent<M: Tree<Tensor> + 'static>(
        spec: &EnvSpec,
        [layers, units]: [usize; 2],
        parameters: M::With<Array>,
        f: impl Fn(&M, Tensor, Tensor) -> PolicyResults + 'static,
    ) -> Result<Policy>
    where
        M::With<Array>: 'static,
    {
        let shape = vec![Some(layers), None, Some(units)];
        let state = Input { name: STATE, dtype: DType::F32, shape };
        let inputs = vec![observation(spec), state];
        Policy::make(inputs, parameters, move |m, inputs| f(m, inputs[0], inputs[1]))
    }

    fn make<M: Tree<Tensor> + 'static>(
        inputs: Vec<Input>,
        parameters: M::With<Array>,
        f: impl Fn(&M, &[Tensor]) -> PolicyResults + 'static,
    ) -> Result<Policy>
    where
        M::With<Array>: 'static,
    {
        let arrays: Vec<Array> = tree::leaves(&parameters);
        let literals: Vec<Literal> = arrays.iter().map(Array::to_literal).collect::<Result<_>>()?;
        let f = move |inputs: &[Tensor]| {
            let mut leaves = literals.iter().map(|literal| constant(literal.clone()));
            let mut next = |_: &Path<'_>, _: &Array| leaves.next().expect("one a leaf");
            f(&parameters.map_leaves_ref(&Path::ROOT, &mut next), inputs)
        };
        Ok(Policy { inputs, f: Box::new(f) })
    }

    /// Traces the function for batches of this size. Returns its Program and the names of its
    /// results.
    fn program(&self, batch_size: usize) -> Result<(Program, Vec<&'static str>)> {
        let types: Vec<TensorType> = self.inputs.iter().map(|input| input.ty(batch_size)).collect();
        let at = Location::caller();
        let mut names = Vec::new();
        let run = |inputs: Vec<Tensor>| -> Vec<Tensor> {
            let (given, values): (Vec<_>, Vec<_>) = (self.f)(&inputs).0.into_iter().unzip();
            names = given;
            values
        };
        let (traced, _) = catch(|| trace_call("policy", at, &types, <[Tensor]>::to_vec, run))?;
        Ok((simplify(traced.program), names))
    }

    /// Returns the policy for batches of this size in the format of `jax.export`, for every
    /// platform. The results are a dictionary.
    ///
    /// # Errors
    /// Returns errors of tracing the function.
    pub fn exported(&self, name: &str, batch_size: usize) -> Result<Exported> {
        let (program, names) = self.program(batch_size)?;
        let inputs: Vec<LeafPath> = (0..self.inputs.len()).map(|i| vec![Step::Index(i)]).collect();
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
        let (program, _) = self.program(batch_size)?;
        // The form without native functions of this library.
        let options = LowerOptions {
            name: name.into(),
            platform: Platform::Tpu,
            locations: false,
            ..LowerOptions::default()
        };
        Ok(stablehlo(&program, &options))
    }

    /// Returns the policy as the bytes of an ONNX file, for batches of any size.
    ///
    /// # Errors
    /// [`Error::Argument`](crate::Error::Argument) for an operation that ONNX does not have, and
    /// errors of tracing the function.
    pub fn onnx(&self, name: &str) -> Result<Vec<u8>> {
        let (program, outputs) = self.program(SYMBOLIC_BATCH)?;
        let inputs: Vec<&str> = self.inputs.iter().map(|input| input.name).collect();
        onnx(&program, name, &inputs, &outputs)
    }

    /// Returns the names and types of the inputs, with `B` in the place of the size of the batch.
    pub fn inputs(&self) -> Vec<String> {
        let text = |input: &Input| {
            let sizes: Vec<String> =
                input.shape.iter().map(|n| n.map_or("B".into(), |n| n.to_string())).collect();
            format!("{}: {}[{}]", input.name, input.dtype, sizes.join(","))
        };
        self.inputs.iter().map(text).collect()
    }

    /// Returns the names of the results.
    ///
    /// # Errors
    /// Returns errors of tracing the function.
    pub fn outputs(&self) -> Result<Vec<&'static str>> {
        Ok(self.program(1)?.1)
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
