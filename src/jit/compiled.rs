//! Non-generic code shared by the entry points: running executables on leaves.

use smallvec::SmallVec;

use super::effects::Effects;
use crate::array::{Array, upload_to};
use crate::error::{Error, Result};
use crate::lower::cache::{CacheOutcome, compile_cached, compile_cached_by};
use crate::lower::compile_log;
use crate::lower::cost::is_fused;
use crate::lower::pjrt::{Buffer, Client, CompileOptions, Event, Executable, OptionValue};
use crate::lower::stablehlo::{CompileFlags, compile_flags, semantics_flags};
use crate::runtime::Runtime;
use crate::timeline;
use crate::trace::program::Program;
use crate::trace::types::{TensorType, physical_memory};

/// An executable and the data needed to run it on leaves.
pub(crate) struct Compiled {
    pub(crate) executable: Executable,
    pub(super) outcome: CacheOutcome,
    types: Vec<TensorType>,
    /// Inputs whose memory results may take.
    donated: Vec<usize>,
    /// The module's name.
    name: String,
    /// The device it runs on.
    device: usize,
    effects: Option<Effects>,
    /// The last argument of a program with callbacks.
    numbers: Option<Buffer>,
}

/// For each input of a type that a result has too, the result that may take its memory.
pub(crate) fn aliases(program: &Program) -> Vec<(usize, usize)> {
    let mut free: Vec<bool> = vec![true; program.inputs.len()];
    let mut aliases = Vec::new();
    for (output, ty) in program.output_types().enumerate() {
        let mut inputs = program.input_types().enumerate();
        if let Some((input, _)) = inputs.find(|(i, input)| free[*i] && *input == ty) {
            free[input] = false;
            aliases.push((input, output));
        }
    }
    aliases
}

/// Minimum bytes of donated inputs for which kept ones are copied.
const MIN_DONATED_BYTES: usize = 1 << 16;

/// Returns true if copies of the `kept` inputs should be donated in their place. XLA's CPU client takes
/// no memory of the inputs after the first kept one, so that the program copies them: here it would copy
/// more. Both lists are sorted, and `kept` is a part of `donated`.
pub(crate) fn should_copy_kept(
    donated: &[usize],
    kept: &[i64],
    bytes: impl Fn(usize) -> usize,
) -> bool {
    let Some(&first) = kept.first() else { return false };
    if kept.len() == donated.len() {
        return false;
    }
    let (mut own, mut others) = (0, 0);
    let mut rest = kept.iter().peekable();
    for &input in donated.iter().filter(|input| **input as i64 >= first) {
        match rest.next_if(|kept| **kept == input as i64) {
            Some(_) => own += bytes(input),
            None => others += bytes(input),
        }
    }
    others > own
        && others >= MIN_DONATED_BYTES
        && Runtime::get().is_ok_and(|runtime| runtime.platform.is_host())
}

/// Flags of the compiler, by name.
pub(crate) type CompilerOptions = Vec<(String, OptionValue)>;

/// `flags`, overridden by `more`.
pub(crate) fn overridden(flags: CompileFlags, more: &CompilerOptions) -> CompilerOptions {
    let ours = flags.into_iter().map(|(name, value)| (name.to_string(), value));
    let ours = ours.filter(|(name, _)| !more.iter().any(|(other, _)| other == name));
    ours.chain(more.iter().cloned()).collect()
}

/// Compiles the text of `program` for a device. The flags in `more` override the defaults of this
/// library.
pub(super) fn compile(
    program: &Program,
    text: &str,
    device: usize,
    more: &CompilerOptions,
) -> Result<(Executable, CacheOutcome)> {
    ensure_program_fits(program)?;
    let runtime = Runtime::get()?;
    let flags = compile_flags(runtime.client.plugin(), runtime.platform, program);
    compile_module(text.as_bytes(), flags, device, more)
}

/// The options with which a module is compiled whose Program is not available.
pub(crate) fn module_options(runtime: &Runtime) -> CompileOptions {
    let semantics = semantics_flags(runtime.client.plugin(), runtime.platform);
    let env_option_overrides = overridden(semantics, &vec![]);
    CompileOptions { env_option_overrides, ..CompileOptions::default() }
}

/// The executable of an MLIR module.
fn compile_module(
    module: &[u8],
    flags: CompileFlags,
    device: usize,
    more: &CompilerOptions,
) -> Result<(Executable, CacheOutcome)> {
    let runtime = Runtime::get()?;
    runtime.ensure_device(device)?;
    let client = &runtime.client;
    let options = CompileOptions {
        env_option_overrides: overridden(flags, more),
        // The first device is the client's default; it is left out so that its cache keys do not
        // change.
        device_assignment: (device > 0).then(|| vec![client.devices()[device].id]),
        ..CompileOptions::default()
    };
    let _span = timeline::span("compile");
    let (executable, outcome) = compile_cached(client, module, &options)?;
    ensure_memory(&executable)?;
    Ok((executable, outcome))
}

/// Refuses a Program for the host that has a value too large for its memory, before the compiler
/// sees it: for such sizes a compilation may take hours or end the process. Values that the compiler
/// never writes to memory may have any size.
pub(crate) fn ensure_program_fits(program: &Program) -> Result<()> {
    fn within(program: &Program) -> Result<()> {
        for equation in &program.equations {
            if !is_fused(&equation.op) {
                for &var in &equation.outputs {
                    program.ty(var).ensure_allocatable()?;
                }
            }
            equation.op.subprograms().try_for_each(within)?;
        }
        Ok(())
    }
    if !Runtime::get()?.platform.is_host() {
        return Ok(());
    }
    program.output_types().try_for_each(TensorType::ensure_allocatable)?;
    within(program)
}

/// Refuses an executable that needs more memory than the host has: there the allocation would end
/// the process, by an exception that does not become an error, or by the system's out-of-memory
/// killer. Devices with memory of their own give an error.
pub(crate) fn ensure_memory(executable: &Executable) -> Result<()> {
    if !Runtime::get()?.platform.is_host() {
        return Ok(());
    }
    // A plugin that does not count has nothing to compare.
    let Ok(stats) = executable.memory_stats() else { return Ok(()) };
    let [results, scratch] = [stats.outputs, stats.temporary].map(|bytes| bytes.max(0) as u64);
    let memory = physical_memory() as u64;
    if results.saturating_add(scratch) <= memory {
        return Ok(());
    }
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    Err(Error::Argument(format!(
        "the compiled program takes {:.1} GiB for its results and {:.1} GiB of scratch memory, and \
         this machine has {:.1} GiB of memory",
        gib(results),
        gib(scratch),
        gib(memory)
    )))
}

/// The name in `module @name ..`.
fn module_name(text: &str) -> &str {
    let name = text.strip_prefix("module @").unwrap_or_default();
    name.split([' ', '{']).next().unwrap_or_default()
}

impl Compiled {
    pub(super) fn new(
        program: Program,
        text: &str,
        aliases: Vec<(usize, usize)>,
        device: usize,
        options: &CompilerOptions,
    ) -> Result<Compiled> {
        let effects = Effects::of(&program)?;
        let (executable, outcome) =
            compile_log::named(module_name(text), || compile(&program, text, device, options))?;
        let types = program.input_types().cloned().collect();
        let mut donated: Vec<usize> = aliases.into_iter().map(|(input, _)| input).collect();
        donated.sort_unstable();
        let name = executable.name()?;
        let numbers = effects.as_ref().map(|effects| effects.numbers(device)).transpose()?;
        Ok(Compiled { executable, outcome, types, donated, name, device, effects, numbers })
    }

    /// An executable of a module whose Program is not available, with inputs of these types, none
    /// of them donated: from the cache, or made by `compile`, with these options, which returns the
    /// serialized code, too, if it loaded the executable from that.
    pub(crate) fn of_module(
        module: &[u8],
        types: Vec<TensorType>,
        compile: impl FnOnce(&Client, &CompileOptions) -> Result<(Executable, Option<Vec<u8>>)>,
    ) -> Result<Compiled> {
        let runtime = Runtime::get()?;
        let (client, options) = (&runtime.client, module_options(runtime));
        let _span = timeline::span("compile");
        let (executable, outcome) =
            compile_cached_by(client, module, &options, || compile(client, &options))?;
        ensure_memory(&executable)?;
        let name = executable.name()?;
        Ok(Compiled {
            executable,
            outcome,
            types,
            donated: vec![],
            name,
            device: 0,
            effects: None,
            numbers: None,
        })
    }

    /// Returns true if the executable was compiled for leaves of these types.
    #[inline]
    pub(super) fn takes(&self, leaves: &[&Array]) -> bool {
        self.types.len() == leaves.len()
            && self.types.iter().zip(leaves).all(|(ty, leaf)| ty == leaf.ty())
    }

    /// Launches it. Leaves of which another clone exists keep their memory.
    pub(crate) fn run(&self, leaves: &[&Array], keep: bool) -> Result<Vec<Array>> {
        let _span = timeline::span_of("execute", &self.name);
        let mut uploads: SmallVec<[Buffer; 4]> = SmallVec::new();
        for leaf in leaves {
            if let Some(literal) = leaf.literal() {
                uploads.push(upload_to(literal, self.device)?);
            }
        }
        let mut kept: SmallVec<[i64; 16]> = SmallVec::new();
        for &input in &self.donated {
            if keep || !leaves[input].is_unique() {
                kept.push(input as i64);
            }
        }
        let mut copies: SmallVec<[(usize, Buffer); 4]> = SmallVec::new();
        if !keep && should_copy_kept(&self.donated, &kept, |input| self.types[input].bytes()) {
            for input in kept.drain(..).map(|input| input as usize) {
                let buffer = leaves[input].buffer().expect("leaves of the host are not kept");
                copies.push((input, buffer.copy_to_device(self.device)?));
            }
        }
        let (mut uploads, mut copied) = (uploads.iter(), copies.iter().peekable());
        let args = leaves.iter().enumerate().map(|(input, leaf)| {
            if let Some((_, copy)) = copied.next_if(|(copied, _)| *copied == input) {
                return copy;
            }
            leaf.buffer().unwrap_or_else(|| uploads.next().expect("one upload a host leaf"))
        });
        let args = args.chain(&self.numbers);
        let mut outputs = Vec::with_capacity(self.executable.outputs().len());
        let timed = timeline::Execution::begin(&self.name);
        if timed.is_none() && self.effects.is_none() {
            self.executable.execute(args, &kept, &mut outputs)?;
            return Ok(outputs.into_iter().map(Array::from_buffer).collect());
        }
        let launch = || -> Result<Vec<Event>> {
            let done = self.executable.execute_with_event(args, &kept, &mut outputs)?;
            if let Some(timed) = timed {
                let device = self.executable.devices()[0];
                done.on_ready(move |_| timed.end(device))?;
            }
            Ok(vec![done])
        };
        match &self.effects {
            None => drop(launch()?),
            Some(effects) => effects.launch(launch)?,
        }
        Ok(outputs.into_iter().map(Array::from_buffer).collect())
    }
}
