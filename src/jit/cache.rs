//! Function cache of [`Jit`](crate::Jit), [`Pmap`](crate::Pmap) and
//! [`ShardedJit`](crate::ShardedJit): finds the executable for the signature of an argument, traces
//! and compiles on a miss, counts the cost, limits and explains recompilations.

mod entries;
mod explain;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use smallvec::SmallVec;

use self::entries::Entries;
pub use self::explain::{Difference, Recompile};
use self::explain::{Signature, Signatures};
use crate::array::Array;
use crate::error::{Loc, Result};
use crate::lower::cache::CacheOutcome;
use crate::lower::pjrt::calls::ensure_no_call;
use crate::timeline;
use crate::trace::ops::structure_in_scope;
use crate::trace::program::Program;
use crate::trace::tensor::{Tensor, catch, paths_of, trace_call};
use crate::trace::types::TensorType;
use crate::tree::{self, Leaf, Path, Tree};

/// Leaves of an argument, in order.
pub(crate) type Leaves<'a, L> = SmallVec<[&'a L; 32]>;

/// The leaves of an argument.
#[inline]
pub(crate) fn leaves_of<L: Leaf, M: Tree<L>>(args: &M) -> Leaves<'_, L> {
    let mut leaves = Leaves::new();
    args.visit_leaves(&Path::ROOT, &mut |_, leaf| leaves.push(leaf));
    leaves
}

/// Leaf of the argument of a compiled function.
pub(crate) trait ArgumentLeaf: Leaf {
    /// Type of the value, or of each of its parts.
    fn ty(&self) -> &TensorType;

    /// Text that names the devices of the leaf, if its signature depends on them.
    fn placement(&self) -> Option<String>;
}

impl ArgumentLeaf for Array {
    fn ty(&self) -> &TensorType {
        Array::ty(self)
    }

    fn placement(&self) -> Option<String> {
        None
    }
}

/// Executable for one signature.
pub(crate) trait SignatureExecutable {
    /// Leaf type of its arguments.
    type Leaf: ArgumentLeaf;

    /// Returns true if it was compiled for leaves like these.
    fn takes(&self, leaves: &[&Self::Leaf]) -> bool;

    /// Cache hit or miss of its compilation, and the time that it took.
    fn outcome(&self) -> CacheOutcome;
}

/// Cost of a compiled function so far.
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

/// [`Stats`] of a function that others may read while it compiles more.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedStats(Arc<Mutex<Stats>>);

impl SharedStats {
    /// The cost so far.
    pub(crate) fn get(&self) -> Stats {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Stats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compiled signatures of one function, and its [`History`].
pub(crate) struct FunctionCache<X, B> {
    pub(crate) history: History,
    entries: Entries<Entry<X, B>>,
}

/// One signature's executable and the structure of its result.
pub(crate) struct Entry<X, B> {
    structure: u64,
    /// Number of the signature.
    signature: usize,
    pub(crate) executable: X,
    pub(crate) template: B,
}

/// Name of a function, the signatures that it was compiled for, and the cost so far. It does not
/// depend on the function's type, so that its code is compiled once.
pub(crate) struct History {
    pub(crate) name: String,
    pub(crate) signatures: Signatures,
    /// One compilation at a time, so that two threads do not compile the same signature.
    compiling: Mutex<()>,
    pub(crate) stats: SharedStats,
}

impl<X, B> Default for FunctionCache<X, B> {
    fn default() -> Self {
        FunctionCache { history: History::new(), entries: Entries::default() }
    }
}

impl<X, B> FunctionCache<X, B> {
    /// Sets the number of signatures that stay compiled, at least one.
    pub(crate) fn set_capacity(&mut self, signatures: usize) {
        self.entries.set_capacity(signatures);
    }

    /// An empty cache with the same settings, for executables of another kind.
    pub(crate) fn for_executables<Y>(self) -> FunctionCache<Y, B> {
        FunctionCache { history: self.history, entries: self.entries.cleared() }
    }
}

impl<X: SignatureExecutable, B> FunctionCache<X, B> {
    /// The entry for an argument with these leaves. A new signature is checked by `validate`, counted
    /// against the limit, explained, and compiled by `compile`.
    ///
    /// # Errors
    /// Returns the errors of `validate` and `compile`; `Error::Argument` for one signature too many.
    #[inline]
    pub(crate) fn find_or_compile<M: Tree<X::Leaf>>(
        &self,
        args: &M,
        leaves: &[&X::Leaf],
        call: Loc,
        validate: impl FnOnce() -> Result<()>,
        compile: impl FnOnce() -> Result<(X, B)>,
    ) -> Result<Arc<Entry<X, B>>> {
        // Checked before any lock is taken, which this very thread may hold.
        ensure_no_call("launch a compiled program")?;
        let structure = structure_in_scope(tree::structure(args));
        if let Some(entry) = self.find(structure, leaves) {
            return Ok(entry);
        }
        let signature = || Signature::new(args, structure, leaves, call);
        self.compile(structure, leaves, signature, validate, compile)
    }

    #[inline]
    fn find(&self, structure: u64, leaves: &[&X::Leaf]) -> Option<Arc<Entry<X, B>>> {
        self.entries.find(|entry| entry.structure == structure && entry.executable.takes(leaves))
    }

    #[cold]
    fn compile(
        &self,
        structure: u64,
        leaves: &[&X::Leaf],
        signature: impl FnOnce() -> Signature,
        validate: impl FnOnce() -> Result<()>,
        compile: impl FnOnce() -> Result<(X, B)>,
    ) -> Result<Arc<Entry<X, B>>> {
        let history = &self.history;
        let _one_at_a_time = history.begin_compilation();
        // Another thread may have compiled it meanwhile.
        if let Some(entry) = self.find(structure, leaves) {
            return Ok(entry);
        }
        validate()?;
        let signature = history.signatures.note(&history.name, signature())?;
        let (executable, template) = compile()?;
        history.record_compilation(executable.outcome());
        let entry = Arc::new(Entry { structure, signature, executable, template });
        let evicted = self.entries.insert(entry.clone());
        history.signatures.forget(evicted.iter().map(|old| old.signature));
        Ok(entry)
    }
}

impl History {
    fn new() -> History {
        History {
            name: "program".into(),
            signatures: Signatures::default(),
            compiling: Mutex::default(),
            stats: SharedStats::default(),
        }
    }

    fn begin_compilation(&self) -> MutexGuard<'_, ()> {
        self.compiling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_trace(&self, start: Instant) {
        let mut stats = self.stats.lock();
        stats.traces += 1;
        stats.trace_seconds += start.elapsed().as_secs_f64();
    }

    /// Traces `f` for an argument like `args`, whose leaves have these types in the trace. Returns
    /// the Program and the result over tensors.
    ///
    /// # Errors
    /// Returns `Error::Trace` if `f` cannot be typed for these types.
    pub(crate) fn trace<L: Leaf, M: Tree<L>, B: Tree<Tensor>>(
        &self,
        transformation: &'static str,
        at: Loc,
        args: &M,
        types: &[TensorType],
        f: impl FnOnce(M::With<Tensor>) -> B,
    ) -> Result<(Program, B)> {
        let _span = timeline::span_of("trace", &self.name);
        let start = Instant::now();
        let build = |tensors: &[Tensor]| tree::rebuild(args, tensors.iter().copied());
        let paths = paths_of(transformation, args);
        let (traced, template) = catch(|| trace_call(transformation, at, types, paths, build, f))?;
        debug_assert_eq!(crate::trace::check::verify(&traced.program), Ok(()));
        self.record_trace(start);
        Ok((traced.program, template))
    }

    /// Adds the seconds of one simplification and lowering to the statistics.
    pub(crate) fn record_lowering(&self, seconds: f64) {
        self.stats.lock().trace_seconds += seconds;
    }

    fn record_compilation(&self, CacheOutcome { hit, seconds }: CacheOutcome) {
        let mut stats = self.stats.lock();
        stats.compile_seconds += seconds;
        stats.cache_hits += usize::from(hit);
    }
}

/// Methods that every function with a [`FunctionCache`] in its field `cache` has.
macro_rules! function_cache_methods {
    ($Function:ident) => {
        impl<A, B, F> $Function<A, B, F> {
            /// Gives the function a name, seen in messages, profiles and dumps.
            pub fn named(mut self, name: impl Into<String>) -> Self {
                self.cache.history.name = name.into();
                self
            }

            /// Writes to the standard error the reason for every compilation after the first one:
            /// the leaf of the argument that has another type or is on other devices, the leaves
            /// that are new or gone in its structure, and the line of the call, as
            /// JAX's `jax_explain_cache_misses` does. `PODRACER_EXPLAIN=1` sets it for all functions.
            pub fn explain_recompiles(mut self, on: bool) -> Self {
                self.cache.history.signatures.explain = on;
                self
            }

            /// Sets the number of signatures that stay compiled, at least 1; 256 by default. Beyond
            /// it the least recently used one is dropped with its executable, and compiled again
            /// when it is used again.
            pub fn cache_capacity(mut self, signatures: usize) -> Self {
                self.cache.set_capacity(signatures);
                self
            }

            /// Lets the function be traced for at most `n` signatures: the call that would add one
            /// more fails with [`Error::Argument`](crate::Error::Argument), which lists the
            /// differences. `chex.assert_max_traces`. Has no effect in eager and interpreted mode,
            /// which trace at every call.
            pub fn assert_max_traces(mut self, n: usize) -> Self {
                self.cache.history.signatures.most = Some(n);
                self
            }

            /// Explains every compilation after the first one so far: why the function was compiled
            /// again. At most the latest 1024 are kept.
            pub fn explain(&self) -> Vec<$crate::jit::Recompile> {
                self.cache.history.signatures.recompiles()
            }

            /// The name given by `named`.
            pub fn name(&self) -> &str {
                &self.cache.history.name
            }

            /// Returns the cost so far.
            pub fn stats(&self) -> $crate::jit::Stats {
                self.cache.history.stats.get()
            }
        }
    };
}
pub(crate) use function_cache_methods;
