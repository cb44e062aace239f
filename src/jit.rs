//! The entry points [`jit()`], [`eager()`] and [`interpret`]: three ways to run one function of
//! tensors on arrays, with the same results.

pub(crate) mod cache;
mod compiled;
mod eager;
mod effects;
mod inspect;
mod nan;

use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Once;

pub use self::cache::{Difference, Recompile, Stats};
use self::cache::{FunctionCache, History, SignatureExecutable, function_cache_methods, leaves_of};
pub(crate) use self::compiled::{
    Compiled, CompilerOptions, aliases, ensure_memory, ensure_program_fits, module_options,
    overridden, should_copy_kept,
};
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
use crate::lower::stablehlo::{LowerOptions, Platform, stablehlo};
use crate::output;
use crate::runtime::Runtime;
use crate::timeline;
use crate::trace::eval::eval;
use crate::trace::graph::simplify;
use crate::trace::literal::Literal;
use crate::trace::program::Program;
use crate::trace::tensor::{Tensor, catch};
use crate::trace::types::TensorType;
use crate::trace::vmap::on_one_device;
use crate::tree::leaf_path::leaf_paths;
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
    settings: Settings,
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
        settings: Settings::new(Location::caller()),
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
    /// The cost so far and from now on.
    #[cfg(feature = "rl")]
    pub(crate) fn shared_stats(&self) -> cache::SharedStats {
        self.cache.history.stats.clone()
    }

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
        self.settings.mode = mode;
        self
    }

    /// Sets the device that the compiled function runs on, by its number; the first one otherwise.
    /// Its arguments must be on that device ([`Array::to`]) or on the host, and its results are on
    /// it.
    ///
    /// In interpreted mode, everything runs on the host.
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
        self.settings.device = device;
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
        let options = &mut self.settings.options;
        options.retain(|(other, _)| *other != name);
        options.push((name, value.into()));
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
        self.settings.check_nans = on;
        self
    }

    /// The function, the line that compiles it, the flags of the compiler, and the cache. Instead of
    /// the flags the problem, if there is a setting that does not go together with shardings.
    #[allow(clippy::type_complexity)]
    pub(crate) fn into_parts<X>(
        self,
    ) -> (F, Loc, Result<CompilerOptions, String>, FunctionCache<X, B>) {
        let Settings { at, mode, device, options, check_nans } = self.settings;
        let setting = match (mode, device, check_nans) {
            (Mode::Jit, 0, false) => None,
            (Mode::Eager | Mode::Interpret, ..) => Some(format!("mode {mode}")),
            (_, 1.., _) => Some(format!("on({device})")),
            (.., true) => Some("check_nans(true)".into()),
        };
        let options = match setting {
            None => Ok(options),
            Some(setting) => Err(format!(
                "the function at {at} has shardings, with which {setting} does not go together"
            )),
        };
        (self.f, at, options, self.cache.for_executables())
    }

    /// Returns the execution mode of the function.
    pub fn mode(&self) -> Mode {
        self.settings.mode
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
        match self.settings.mode {
            Mode::Jit => self.call_compiled(&args, Location::caller()),
            Mode::Eager | Mode::Interpret => {
                let (program, template) = self.program(&args)?;
                let results = self.settings.run_traced(self.name(), &program, &leaves_of(&args))?;
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
            || Runtime::get()?.ensure_device(self.settings.device),
            || self.compile(args),
        )?;
        let JitExecutable { compiled, recorder } = &entry.executable;
        let _run = recorder.as_ref().map(Recorder::begin);
        let results = compiled.run(&leaves, self.settings.check_nans)?;
        if self.settings.check_nans && any_nan(&results)? {
            let (program, _) = self.program(args)?;
            explain_nan(self.name(), &program, &leaves, &results, recorder.as_ref())?;
        }
        Ok(tree::rebuild(&entry.template, results))
    }

    fn compile(&self, args: &A::With<Array>) -> Result<(JitExecutable, B)> {
        let (program, template) = self.traced(args)?;
        report_one_device(&program, self.name())?;
        let program = catch(|| on_one_device(program, self.settings.at))?;
        let lowered = self.settings.lower(&self.cache.history, program)?;
        Ok((lowered.compile_for_calls()?, template))
    }

    /// The Program for one device, for an argument like `args`, and its result over tensors.
    pub(crate) fn program(&self, args: &A::With<Array>) -> Result<(Program, B)> {
        let (program, template) = self.traced(args)?;
        Ok((catch(|| on_one_device(program, self.settings.at))?, template))
    }

    /// The function traced for an argument like `args`, and its result over tensors.
    fn traced(&self, args: &A::With<Array>) -> Result<(Program, B)> {
        let types: Vec<TensorType> = leaves_of(args).iter().map(|leaf| leaf.ty().clone()).collect();
        let transformation = self.settings.transformation();
        let at = self.settings.at;
        self.cache.history.trace(transformation, at, args, &types, |args| (self.f)(args))
    }

    /// The function traced and lowered for an argument like `args`, for inspection: its Program,
    /// its StableHLO text, and, once compiled, the compiler's output.
    ///
    /// # Errors
    /// As [`Jit::call`].
    pub fn lower(&self, args: &A::With<Array>) -> Result<Lowered<B>> {
        let start = std::time::Instant::now();
        let (program, template) = self.program(args)?;
        let trace_seconds = start.elapsed().as_secs_f64();
        let lowered = self.settings.lower(&self.cache.history, program)?;
        let in_paths = leaf_paths::<Array, A::With<Array>>(args);
        Ok(Lowered { lowered, template, in_paths, trace_seconds })
    }
}

/// Settings of a [`Jit`], and the work that depends on them and on a traced Program alone: compiled
/// once, not for each function.
#[derive(Clone)]
struct Settings {
    at: Loc,
    mode: Mode,
    device: usize,
    options: CompilerOptions,
    check_nans: bool,
}

impl Settings {
    fn new(at: Loc) -> Settings {
        let options = CompilerOptions::new();
        Settings { at, mode: Mode::Jit, device: 0, options, check_nans: false }
    }

    /// Name of the transformation in messages.
    fn transformation(&self) -> &'static str {
        match self.mode {
            Mode::Jit => "jit",
            Mode::Eager => "eager",
            Mode::Interpret => "interpret",
        }
    }

    /// Runs a Program in eager or interpreted mode.
    fn run_traced(&self, name: &str, program: &Program, leaves: &Leaves<'_>) -> Result<Vec<Array>> {
        Effects::wait_for_order(program)?;
        let check = self.check_nans.then(|| Check::new(name));
        let host = |results: Vec<Literal>| results.into_iter().map(Array::from).collect();
        Ok(match (self.mode, &check) {
            (Mode::Eager, check) => {
                if let Some(check) = check {
                    check.arguments(&literals(leaves)?)?;
                }
                EagerOps::global().run(program, leaves, self.device, check.as_ref())?
            }
            (_, Some(check)) => host(check.run(program, &literals(leaves)?, None)?),
            (_, None) => host(eval(program, &literals(leaves)?)?),
        })
    }

    /// Simplifies a traced Program and writes its StableHLO.
    fn lower(&self, history: &History, program: Program) -> Result<LoweredProgram> {
        let _span = timeline::span_of("lower", &history.name);
        let start = std::time::Instant::now();
        let program = simplify(program);
        let (program, recorder) =
            if self.check_nans { Recorder::of(program) } else { (program, None) };
        let aliases = if self.check_nans { vec![] } else { compiled::aliases(&program) };
        let options = LowerOptions {
            name: history.name.clone(),
            aliases: aliases.clone(),
            ..Runtime::get()?.lower_options(&program)
        };
        let text = lowered(&program, &options);
        let seconds = start.elapsed().as_secs_f64();
        history.record_lowering(seconds);
        Ok(LoweredProgram {
            program,
            text,
            aliases,
            name: options.name,
            platform: options.platform,
            seconds,
            recorder,
            settings: self.clone(),
        })
    }
}

/// A Program lowered with the settings of a function.
struct LoweredProgram {
    program: Program,
    text: String,
    aliases: Vec<(usize, usize)>,
    name: String,
    platform: Platform,
    /// Seconds that simplifying and lowering took.
    seconds: f64,
    recorder: Option<Recorder>,
    settings: Settings,
}

impl LoweredProgram {
    fn compile(self) -> Result<Compiled> {
        let Settings { device, options, .. } = &self.settings;
        Compiled::new(self.program, &self.text, self.aliases, *device, options)
    }

    fn compile_for_calls(mut self) -> Result<JitExecutable> {
        let recorder = self.recorder.take();
        Ok(JitExecutable { compiled: self.compile()?, recorder })
    }
}

/// Reports once that `jit` does not divide a `shard_map` over the devices that the process has.
fn report_one_device(program: &Program, name: &str) -> Result<()> {
    static REPORT: Once = Once::new();
    let Some(mesh) = program.find_mesh(&|_| true) else { return Ok(()) };
    let bodies: usize = mesh.iter().map(|axis| axis.size()).product();
    if bodies > 1 && Runtime::get()?.client.devices().len() > 1 {
        REPORT.call_once(|| {
            output::stderr_line(format_args!(
                "note: jit of {name} runs the {bodies} bodies of shard_map as one batch on one \
                 device; sharded_jit runs them on {bodies} devices"
            ));
        });
    }
    Ok(())
}

fn any_nan(results: &[Array]) -> Result<bool> {
    for result in results {
        if has_nan(&result.to_literal()?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Finds the operation that made the NaN in the results of a compiled Program.
///
/// # Errors
/// Returns [`Error::Nan`] with the operation, unless a constant holds the NaN, which is intended.
fn explain_nan(
    name: &str,
    program: &Program,
    leaves: &Leaves<'_>,
    results: &[Array],
    recorder: Option<&Recorder>,
) -> Result<()> {
    let check = Check::new(name);
    let recorded = recorder.map(Recorder::take);
    let again = check.run(program, &literals(leaves)?, recorded)?;
    if again.iter().any(has_nan) {
        return Ok(());
    }
    let results = results.iter().map(Array::to_literal).collect::<Result<Vec<Literal>>>()?;
    let first = results.iter().position(has_nan).expect("the caller found one");
    Err(Error::Nan(format!(
        "{name}: result {first} ({}) holds a NaN, which no operation makes when the function runs on \
         the host: compiled code rounds otherwise, and comes to an operation's limits where that \
         does not. Run it with eager to find the operation",
        results[first].ty()
    )))
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
    Ok(jit(f).with_mode(Mode::Interpret).traced(args)?.0)
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
    let (program, result) = jit(f).with_mode(Mode::Interpret).traced(args)?;
    let mut types = program.output_types().cloned();
    Ok(result.map_leaves_ref(&Path::ROOT, &mut |_, _| types.next().expect("one a leaf")))
}

/// Runs a ready-made Program: traced by [`make_program`], built or changed by a tool.
///
/// # Errors
/// If the Program is not well-formed, if the inputs are not of its types, or as [`Jit::call`].
pub fn run_program(program: &Program, inputs: &[Array], mode: Mode) -> Result<Vec<Array>> {
    crate::trace::check::verify_computable(program)
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
    let program = &catch(|| on_one_device(program.clone(), Location::caller()))?;
    let leaves: Leaves<'_> = inputs.iter().collect();
    match mode {
        Mode::Jit => {
            let text = stablehlo(program, &Runtime::get()?.lower_options(program));
            Compiled::new(program.clone(), &text, vec![], 0, &vec![])?.run(&leaves, true)
        }
        Mode::Eager => EagerOps::global().run(program, &leaves, 0, None),
        Mode::Interpret => {
            Ok(eval(program, &literals(&leaves)?)?.into_iter().map(Array::from).collect())
        }
    }
}
