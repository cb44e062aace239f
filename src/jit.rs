//! The entry points [`jit()`], [`eager()`] and [`interpret`]: three ways to run one function of
//! tensors on arrays, with the same results.

mod core;
mod eager;
mod effects;
mod entries;
mod explain;
mod inspect;
mod nan;

use std::marker::PhantomData;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use self::core::CompilerOptions;
pub(crate) use self::core::{Compiled, aliases};
use self::eager::EagerOps;
pub(crate) use self::effects::Effects;
pub use self::effects::effects_barrier;
pub(crate) use self::entries::Entries;
pub use self::explain::{Difference, Recompile};
pub(crate) use self::explain::{Signature, Signatures};
pub use self::inspect::{Analysis, CompileTimes, Lowered};
use self::nan::{Check, Recorder, has_nan};
use crate::array::Array;
use crate::error::{Error, Loc, Result};
use crate::lower::dump::lowered;
use crate::lower::pjrt::OptionValue;
use crate::lower::pjrt::custom_call::expect_no_call;
use crate::lower::stablehlo::{LowerOptions, stablehlo};
use crate::runtime::Runtime;
use crate::timeline;
use crate::trace::eval::eval;
use crate::trace::graph::simplify;
use crate::trace::literal::Literal;
use crate::trace::ops::structure_in_scope;
use crate::trace::program::Program;
use crate::trace::tensor::{Tensor, catch, trace_call};
use crate::trace::types::TensorType;
use crate::tree::{self, Path, Tree};

/// Execution mode of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Serialize)]
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
    name: String,
    mode: Mode,
    device: usize,
    options: CompilerOptions,
    check_nans: bool,
    entries: Entries<Entry<B>>,
    signatures: Signatures,
    /// One compilation at a time, so that two threads do not compile the same thing.
    compiling: Mutex<()>,
    stats: Mutex<Stats>,
    argument: PhantomData<fn(A)>,
}

/// Cost of a [`Jit`] so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Number of times the function was traced.
    pub traces: usize,
    /// Seconds spent tracing, simplifying and lowering.
    pub trace_seconds: f64,
    /// Seconds spent in the compiler, or loading from the cache.
    pub compile_seconds: f64,
    /// Number of executables that came from the persistent cache.
    pub cache_hits: usize,
}

impl Stats {
    /// Seconds before the program could run: tracing, lowering and compiling.
    pub fn seconds(&self) -> f64 {
        self.trace_seconds + self.compile_seconds
    }
}

/// One signature's executable and the shape of its result.
struct Entry<B> {
    structure: u64,
    /// Number of the signature.
    signature: usize,
    template: B,
    compiled: Compiled,
    /// Log of the results of its callbacks, kept under [`Jit::check_nans`].
    recorder: Option<Recorder>,
}

/// Leaves of an argument, in order.
type Leaves<'a> = SmallVec<[&'a Array; 32]>;

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
        name: "program".into(),
        mode: Mode::Jit,
        device: 0,
        options: CompilerOptions::new(),
        check_nans: false,
        entries: Entries::default(),
        signatures: Signatures::default(),
        compiling: Mutex::default(),
        stats: Mutex::default(),
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

    /// Gives the function a name, seen in messages, profiles and dumps.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
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

    /// Writes to the standard error the reason for every compilation after the first one: the leaf
    /// of the argument that has another type, the leaves that are new or gone in its structure, and
    /// the line of the call. JAX's `jax_explain_cache_misses`. `PODRACER_EXPLAIN=1` turns it on for
    /// all functions.
    pub fn explain_recompiles(mut self, on: bool) -> Self {
        self.signatures.explain = on;
        self
    }

    /// Sets the number of signatures that stay compiled, at least 1; 256 by default. Beyond it the
    /// least recently used one is dropped with its executable, and compiled again when it is used
    /// again.
    pub fn cache_capacity(mut self, signatures: usize) -> Self {
        self.entries.set_capacity(signatures);
        self
    }

    /// Lets the function be traced for at most `n` signatures: the call that would add one more
    /// fails with [`Error::Argument`], which lists the differences. `chex.assert_max_traces`. Has
    /// no effect in the other modes, which trace at every call.
    pub fn assert_max_traces(mut self, n: usize) -> Self {
        self.signatures.most = Some(n);
        self
    }

    /// Explains every compilation after the first one so far: why the function was compiled again.
    /// At most the latest 1024 are kept.
    pub fn explain(&self) -> Vec<Recompile> {
        self.signatures.recompiles()
    }

    /// The name given by [`Jit::named`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the execution mode of the function.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the cost so far.
    pub fn stats(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
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
                let leaves = leaves_of::<A>(&args);
                Effects::wait_for_order(&program)?;
                let check = self.check_nans.then(|| Check::new(&self.name));
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
        // Checked before any lock is taken, which this very thread may hold.
        expect_no_call("launch a compiled program")?;
        let leaves = leaves_of::<A>(args);
        let structure = structure_in_scope(tree::structure(args));
        let found = self.find(structure, &leaves);
        let entry = match found {
            Some(entry) => entry,
            None => self.compile(args, structure, &leaves, call)?,
        };
        let _run = entry.recorder.as_ref().map(Recorder::begin);
        let results = entry.compiled.run(&leaves, self.check_nans)?;
        if self.check_nans {
            self.look_for_nans(args, &leaves, &results, entry.recorder.as_ref())?;
        }
        Ok(tree::rebuild(&entry.template, results))
    }

    fn find(&self, structure: u64, leaves: &Leaves<'_>) -> Option<Arc<Entry<B>>> {
        self.entries.find(|e| e.structure == structure && e.compiled.takes(leaves))
    }

    #[cold]
    fn compile(
        &self,
        args: &A::With<Array>,
        structure: u64,
        leaves: &Leaves<'_>,
        call: Loc,
    ) -> Result<Arc<Entry<B>>> {
        let _one_at_a_time = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = self.find(structure, leaves) {
            return Ok(entry);
        }
        let types = leaves.iter().map(|leaf| leaf.ty().clone()).collect();
        let (paths, places) = (tree::paths(args), vec![]);
        let signature = Signature { structure, paths, types, places, call };
        let signature = self.signatures.note(&self.name, signature)?;
        // Checked before anything is traced for a device that does not exist.
        Runtime::get()?.expect_device(self.device)?;
        let Lowered { program, text, aliases, template, recorder, .. } = self.lower(args)?;
        let compiled = Compiled::new(program, &text, aliases, self.device, &self.options)?;
        {
            let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
            stats.compile_seconds += compiled.outcome.seconds;
            stats.cache_hits += compiled.outcome.hit as usize;
        }
        let entry = Arc::new(Entry { structure, signature, template, compiled, recorder });
        let evicted = self.entries.insert(entry.clone());
        self.signatures.forget(evicted.iter().map(|old| old.signature));
        Ok(entry)
    }

    /// The function traced for an argument like `args`, and its result over tensors.
    pub(crate) fn program(&self, args: &A::With<Array>) -> Result<(Program, B)> {
        let _span = timeline::span_of("trace", &self.name);
        let start = std::time::Instant::now();
        let leaves = leaves_of::<A>(args);
        let types: Vec<TensorType> = leaves.iter().map(|leaf| leaf.ty().clone()).collect();
        let build = |tensors: &[Tensor]| -> A {
            let mut tensors = tensors.iter().copied();
            args.map_leaves_ref(&Path::ROOT, &mut |_, _| tensors.next().expect("one a leaf"))
        };
        let name = match self.mode {
            Mode::Jit => "jit",
            Mode::Eager => "eager",
            Mode::Interpret => "interpret",
        };
        let (traced, template) =
            catch(|| trace_call(name, self.at, &types, build, |args| (self.f)(args)))?;
        debug_assert_eq!(crate::trace::check::verify(&traced.program), Ok(()));
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.traces += 1;
        stats.trace_seconds += start.elapsed().as_secs_f64();
        Ok((traced.program, template))
    }

    /// The function traced and lowered for an argument like `args`, for inspection: its Program,
    /// its StableHLO text, and, once compiled, the compiler's output.
    ///
    /// # Errors
    /// As [`Jit::call`].
    pub fn lower(&self, args: &A::With<Array>) -> Result<Lowered<B>> {
        let begin = std::time::Instant::now();
        let (program, template) = self.program(args)?;
        let _span = timeline::span_of("lower", &self.name);
        let start = std::time::Instant::now();
        let program = simplify(program);
        let (program, recorder) =
            if self.check_nans { Recorder::of(program) } else { (program, None) };
        let aliases = if self.check_nans { vec![] } else { core::aliases(&program) };
        let options = LowerOptions {
            name: self.name.clone(),
            aliases: aliases.clone(),
            ..Runtime::get()?.lower_options()
        };
        let text = lowered(&program, &options);
        let lower_seconds = start.elapsed().as_secs_f64();
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.trace_seconds += lower_seconds;
        Ok(Lowered {
            program,
            text,
            aliases,
            template,
            name: self.name.clone(),
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
        let check = Check::new(&self.name);
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
            self.name,
            results[first].ty()
        )))
    }
}

fn leaves_of<A: Tree<Tensor>>(args: &A::With<Array>) -> Leaves<'_> {
    let mut leaves = Leaves::new();
    args.visit_leaves(&Path::ROOT, &mut |_, leaf| leaves.push(leaf));
    leaves
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
