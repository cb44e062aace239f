//! The entry points [`jit()`], [`eager()`] and [`interpret`]: three ways to run one function of
//! tensors on arrays, with the same results.

pub(crate) mod cache;
mod core;
mod eager;
mod effects;
mod inspect;
mod nan;

use std::marker::PhantomData;
use std::panic::Location;

pub use self::cache::{Difference, Recompile, Stats};
use self::cache::{FunctionCache, SignatureExecutable, function_cache_methods, leaves_of};
use self::core::CompilerOptions;
pub(crate) use self::core::{Compiled, aliases};
use self::eager::EagerOps;
pub(crate) use self::effects::Effects;
pub use self::effects::effects_barrier;
pub use self::inspect::{Analysis, CompileTimes, Lowered};
use self::nan::{Check, Recorder, has_nan};
use crate::array::Array;
use crate::error::{Error, Loc, Result};
use crate::lower::cache::CacheOutcome;
use crate::lower::dump::lowered;
use crate::lower::pjrt::OptionValue;
use crate::lower::stablehlo::{LowerOptions, stablehlo};
use crate::runtime::Runtime;
use crate::timeline;
use crate::trace::eval::eval;
use crate::trace::graph::simplify;
use crate::trace::literal::Literal;
use crate::trace::program::Program;
use crate::trace::tensor::Tensor;
use crate::trace::types::TensorType;
use crate::tree::{self, Path, Tree};

/// Execution mode of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[cfg_attr(feature = "rl", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Compiled as a whole, once per signature; then one launch a call.
    #[default]
    Jit,
    /// Traced at every call, and run operation by operation on the device.
    Eager,
    /// Traced at every call, and run on the host, slowly and obviously. Needs no plugin.
    Interpret,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mode::Jit => "jit",
            Mode::Eager => "eager",
            Mode::Interpret => "interpret",
        })
    }
}

/// A function of tensors made to run on arrays; see [`jit`].
///
/// It may be called from several threads.
pub struct Jit<A, B, F> {
    f: F,
    at: Loc,
    mode: Mode,
    device: usize,
    options: CompilerOptions,
    check_nans: bool,
    cache: FunctionCache<JitExecutable, B>,
    argument: PhantomData<fn(A)>,
}

/// Executable for one signature, on one device.
struct JitExecutable {
    compiled: Compiled,
    /// Log of the results of its callbacks, kept under [`Jit::check_nans`].
    recorder: Option<Recorder>,
}

impl SignatureExecutable for JitExecutable {
    type Leaf = Array;

    #[inline]
    fn takes(&self, leaves: &[&Array]) -> bool {
        self.compiled.takes(leaves)
    }

    fn outcome(&self) -> CacheOutcome {
        self.compiled.outcome
    }
}

/// Leaves of an argument, in order.
type Leaves<'a> = cache::Leaves<'a, Array>;

/// Compiles `f` as a whole, once per signature (structure, types and shapes of its argument), and
/// launches it at each call.
///
/// The function takes one argument, a tree of tensors: several are a tuple, as in
/// `jit(|(x, y): (Tensor, Tensor)| x + y)`.
///
/// The result is asynchronous: a call returns when the work is queued, and reading an array waits
/// for it. An argument given by value, of which no clone is kept, is donated: its memory is used
/// for the results.
///
/// ```
/// use podracer::{Array, Tensor, jit};
/// # fn main() -> podracer::Result<()> {
/// let norm = jit(|x: Tensor| (x * x).sum(..).sqrt());
/// let length = norm.call(Array::from([3.0f32, 4.0]))?;
/// assert_eq!(length.item::<f32>()?, 5.0);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn jit<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(A) -> B>(f: F) -> Jit<A, B, F> {
    Jit {
        f,
        at: Location::caller(),
        mode: Mode::Jit,
        device: 0,
        options: CompilerOptions::new(),
        check_nans: false,
        cache: FunctionCache::default(),
        argument: PhantomData,
    }
}

/// Runs `f` operation by operation on the device, tracing it anew at each call, like JAX outside
/// `jit`. For comparing and debugging.
#[track_caller]
pub fn eager<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(A) -> B>(f: F) -> Jit<A, B, F> {
    jit(f).with_mode(Mode::Eager)
}

/// Runs `f` on the host by the interpreter: the meaning of a Program, and the oracle of tests.
#[track_caller]
pub fn interpret<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(A) -> B>(f: F) -> Jit<A, B, F> {
    jit(f).with_mode(Mode::Interpret)
}

function_cache_methods!(Jit);

impl<A, B, F> Jit<A, B, F> {
    /// Sets the mode: compiled as a whole, run operation by operation, or interpreted.
    ///
    /// ```
    /// use podracer::jit::Mode;
    /// use podracer::{Array, Tensor, jit};
    ///
    /// let square = jit(|x: Tensor| x * x).with_mode(Mode::Interpret);
    /// assert_eq!(square.call(Array::from(3.0f32))?.item::<f32>()?, 9.0);
    /// # Ok::<(), podracer::Error>(())
    /// ```
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the device that the compiled function runs on, by its number; the first one otherwise.
    /// Its arguments must be on that device ([`Array::to`]) or on the host, and its results are on
    /// it.
    ///
    /// In eager mode, everything runs on the first device.
    ///
    /// ```
    /// use podracer::{Array, Tensor, jit};
    /// # fn main() -> podracer::Result<()> {
    /// let last = *podracer::devices()?.last().unwrap();
    /// let double = jit(|x: Tensor| x * 2.0).on(last);
    /// let x = Array::from(3.0f32).to(last)?;
    /// assert_eq!(double.call(x)?.item::<f32>()?, 6.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on(mut self, device: usize) -> Self {
        self.device = device;
        self
    }

    /// Sets a flag of the compiler for this function alone, by the name that `XLA_FLAGS` has for
    /// it, without the dashes: one of JAX's `compiler_options`. It overrides the environment and
    /// the defaults of this library. A flag that the compiler does not know, or of another type, is
    /// an error of the first call.
    ///
    /// Has no effect in the other modes.
    ///
    /// ```
    /// use podracer::{Tensor, jit};
    /// # fn main() -> podracer::Result<()> {
    /// // Compiled in less time, for a function that runs once.
    /// let once = jit(|x: Tensor| (x.sin() + 1.0).sum(..))
    ///     .compiler_option("xla_backend_optimization_level", 0)
    ///     .compiler_option("xla_llvm_disable_expensive_passes", true);
    /// assert_eq!(once.call([0.0f32, 0.0].into())?.item::<f32>()?, 2.0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn compiler_option(
        mut self,
        name: impl Into<String>,
        value: impl Into<OptionValue>,
    ) -> Self {
        let name = name.into();
        self.options.retain(|(other, _)| *other != name);
        self.options.push((name, value.into()));
        self
    }

    /// Checks every result for NaN, and if there is one finds the operation that made it: the call
    /// then fails with [`Error::Nan`], which gives the operation, its line, the iterations of the
    /// loops around it, and its operands. Nothing is donated while this is on. NaNs of constants
    /// are intended and not reported.
    ///
    /// In the eager and interpreted modes, every operation's results are checked. A compiled
    /// function runs on the host a second time for the check; callbacks with effects are not called
    /// again: that run uses the results that they returned the first time.
    pub fn check_nans(mut self, on: bool) -> Self {
        self.check_nans = on;
        self
    }

    /// Returns the execution mode of the function.
    pub fn mode(&self) -> Mode {
        self.mode
    }
}

impl<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(A) -> B> Jit<A, B, F> {
    /// Runs the function.
    ///
    /// # Errors
    /// [`Error::Trace`] if the function cannot be typed for this argument; errors from the compiler
    /// and the runtime; [`Error::Nan`] under [`Jit::check_nans`]; [`Error::Argument`] under
    /// [`Jit::assert_max_traces`].
    #[track_caller]
    pub fn call(&self, args: A::With<Array>) -> Result<B::With<Array>> {
        match self.mode {
            Mode::Jit => self.call_compiled(&args, Location::caller()),
            Mode::Eager | Mode::Interpret => {
                let (program, template) = self.program(&args)?;
                let leaves = leaves_of(&args);
                Effects::wait_for_order(&program)?;
                let check = self.check_nans.then(|| Check::new(self.name()));
                let host = |results: Vec<Literal>| results.into_iter().map(Array::from).collect();
                let results = match (self.mode, &check) {
                    (Mode::Eager, check) => {
                        if let Some(check) = check {
                            check.arguments(&literals(&leaves)?)?;
                        }
                        EagerOps::global().run(&program, &leaves, check.as_ref())?
                    }
                    (_, Some(check)) => host(check.run(&program, &literals(&leaves)?, None)?),
                    (_, None) => host(eval(&program, &literals(&leaves)?)?),
                };
                Ok(tree::rebuild(&template, results))
            }
        }
    }

    fn call_compiled(&self, args: &A::With<Array>, call: Loc) -> Result<B::With<Array>> {
        let leaves = leaves_of(args);
        let entry = self.cache.find_or_compile(
            args,
            &leaves,
            call,
            || Runtime::get()?.expect_device(self.device),
            || self.compile(args),
        )?;
        let JitExecutable { compiled, recorder } = &entry.executable;
        let _run = recorder.as_ref().map(Recorder::begin);
        let results = compiled.run(&leaves, self.check_nans)?;
        if self.check_nans {
            self.look_for_nans(args, &leaves, &results, recorder.as_ref())?;
        }
        Ok(tree::rebuild(&entry.template, results))
    }

    fn compile(&self, args: &A::With<Array>) -> Result<(JitExecutable, B)> {
        let Lowered { program, text, aliases, template, recorder, .. } = self.lower(args)?;
        let compiled = Compiled::new(program, &text, aliases, self.device, &self.options)?;
        Ok((JitExecutable { compiled, recorder }, template))
    }

    /// The function traced for an argument like `args`, and its result over tensors.
    pub(crate) fn program(&self, args: &A::With<Array>) -> Result<(Program, B)> {
        let types: Vec<TensorType> = leaves_of(args).iter().map(|leaf| leaf.ty().clone()).collect();
        let transformation = match self.mode {
            Mode::Jit => "jit",
            Mode::Eager => "eager",
            Mode::Interpret => "interpret",
        };
        self.cache.history.trace(transformation, self.at, args, &types, |args| (self.f)(args))
    }

    /// The function traced and lowered for an argument like `args`, for inspection: its Program,
    /// its StableHLO text, and, once compiled, the compiler's output.
    ///
    /// # Errors
    /// As [`Jit::call`].
    pub fn lower(&self, args: &A::With<Array>) -> Result<Lowered<B>> {
        let begin = std::time::Instant::now();
        let (program, template) = self.program(args)?;
        let _span = timeline::span_of("lower", self.name());
        let start = std::time::Instant::now();
        let program = simplify(program);
        let (program, recorder) =
            if self.check_nans { Recorder::of(program) } else { (program, None) };
        let aliases = if self.check_nans { vec![] } else { core::aliases(&program) };
        let options = LowerOptions {
            name: self.name().to_string(),
            aliases: aliases.clone(),
            ..Runtime::get()?.lower_options()
        };
        let text = lowered(&program, &options);
        let lower_seconds = start.elapsed().as_secs_f64();
        self.cache.history.record_lowering(lower_seconds);
        Ok(Lowered {
            program,
            text,
            aliases,
            template,
            name: self.name().to_string(),
            platform: options.platform,
            in_paths: crate::lower::artifact::paths::<Array, A::With<Array>>(args),
            trace_seconds: (start - begin).as_secs_f64(),
            lower_seconds,
            recorder,
            options: self.options.clone(),
        })
    }

    fn look_for_nans(
        &self,
        args: &A::With<Array>,
        leaves: &Leaves<'_>,
        results: &[Array],
        recorder: Option<&Recorder>,
    ) -> Result<()> {
        let results = results.iter().map(Array::to_literal).collect::<Result<Vec<Literal>>>()?;
        let Some(first) = results.iter().position(has_nan) else { return Ok(()) };
        let (program, _) = self.program(args)?;
        let check = Check::new(self.name());
        let recorded = recorder.map(Recorder::take);
        let again = check.run(&program, &literals(leaves)?, recorded)?;
        // The NaN comes from a constant: then it is intended.
        if again.iter().any(has_nan) {
            return Ok(());
        }
        Err(Error::Nan(format!(
            "{}: result {first} ({}) holds a NaN, which no operation makes when the function runs on \
             the host: compiled code rounds otherwise, and comes to an operation's limits where \
             that does not. Run it with eager to find the operation",
            self.name(),
            results[first].ty()
        )))
    }
}

fn literals(leaves: &Leaves<'_>) -> Result<Vec<Literal>> {
    leaves.iter().map(|leaf| leaf.to_literal()).collect()
}

/// The Program of `f` for an argument like `args`, as traced: `jax.make_jaxpr`. Needs no plugin.
///
/// ```
/// use podracer::{Array, Tensor, make_program};
/// # fn main() -> podracer::Result<()> {
/// let program = make_program(|x: Tensor| x.sin() * 2.0, &Array::from([1.0f32, 2.0]))?;
/// assert_eq!(
///     program.to_string(),
///     "{ lambda a:f32[2]. let\n    b:f32[2] = sin a\n    d:f32[2] = mul b 2:f32[2]\n  in (d) }",
/// );
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Trace`] if the function cannot be typed for this argument.
#[track_caller]
pub fn make_program<A: Tree<Tensor>, B: Tree<Tensor>>(
    f: impl Fn(A) -> B,
    args: &A::With<Array>,
) -> Result<Program> {
    Ok(jit(f).with_mode(Mode::Interpret).program(args)?.0)
}

/// The types of the results of `f` for an argument like `args`: `jax.eval_shape`. Nothing is
/// compiled or computed. Needs no plugin.
///
/// ```
/// use podracer::{Array, Tensor, eval_shape};
/// # fn main() -> podracer::Result<()> {
/// let f = |x: Tensor| (x.t().matmul(x), x.sum(..));
/// let (gram, sum) = eval_shape(f, &Array::from([[1.0f32, 2.0, 3.0]]))?;
/// assert_eq!((gram.to_string(), sum.to_string()), ("f32[3,3]".into(), "f32[]".into()));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`make_program`].
#[track_caller]
pub fn eval_shape<A: Tree<Tensor>, B: Tree<Tensor>>(
    f: impl Fn(A) -> B,
    args: &A::With<Array>,
) -> Result<B::With<TensorType>> {
    let (program, result) = jit(f).with_mode(Mode::Interpret).program(args)?;
    let mut types = program.output_types().cloned();
    Ok(result.map_leaves_ref(&Path::ROOT, &mut |_, _| types.next().expect("one a leaf")))
}

/// Runs a ready-made Program: traced by [`make_program`], built or changed by a tool.
///
/// # Errors
/// If the Program is not well-formed, if the inputs are not of its types, or as [`Jit::call`].
pub fn run_program(program: &Program, inputs: &[Array], mode: Mode) -> Result<Vec<Array>> {
    crate::trace::check::verify(program)
        .map_err(|fault| Error::Argument(format!("the Program is not well-formed: {fault}")))?;
    let fits = program.inputs.len() == inputs.len()
        && program.input_types().zip(inputs).all(|(ty, input)| ty == input.ty());
    if !fits {
        let list = |types: &mut dyn Iterator<Item = String>| types.collect::<Vec<_>>().join(", ");
        return Err(Error::Argument(format!(
            "the Program takes ({}), and was given ({})",
            list(&mut program.input_types().map(TensorType::to_string)),
            list(&mut inputs.iter().map(|input| input.ty().to_string()))
        )));
    }
    let leaves: Leaves<'_> = inputs.iter().collect();
    match mode {
        Mode::Jit => {
            let text = stablehlo(program, &Runtime::get()?.lower_options());
            Compiled::new(program.clone(), &text, vec![], 0, &vec![])?.run(&leaves, true)
        }
        Mode::Eager => EagerOps::global().run(program, &leaves, None),
        Mode::Interpret => {
            Ok(eval(program, &literals(&leaves)?)?.into_iter().map(Array::from).collect())
        }
    }
}
