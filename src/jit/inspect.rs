//! Inspection of a function on its way to the device: the traced Program, the lowered text, and the
//! compiler's output.

use std::fmt;

use super::LoweredProgram;
use super::compiled::Compiled;
use crate::error::Result;
use crate::lower::cache::CacheOutcome;
use crate::lower::cost::total_operations;
use crate::lower::pjrt::MemoryStats;
use crate::lower::pjrt::hlo;
use crate::lower::stablehlo::Platform;
use crate::trace::program::Program;
use crate::tree::leaf_path::LeafPath;

/// A function traced and lowered for one signature; made by [`Jit::lower`](crate::Jit::lower).
pub struct Lowered<B> {
    pub(super) lowered: LoweredProgram,
    pub(super) template: B,
    pub(crate) in_paths: Vec<LeafPath>,
    pub(super) trace_seconds: f64,
}

impl<B> Lowered<B> {
    /// The simplified Program, in the form that is lowered.
    pub fn program(&self) -> &Program {
        &self.lowered.program
    }

    /// The StableHLO module's text.
    pub fn stablehlo(&self) -> &str {
        &self.lowered.text
    }

    /// The result over the tensors of the trace, which has ended: its structure.
    pub fn template(&self) -> &B {
        &self.template
    }

    /// Compiles the function, so that the compiler's output can be inspected.
    ///
    /// # Errors
    /// Returns errors from the compiler.
    pub fn compile(self) -> Result<Analysis> {
        let equations = self.lowered.program.size();
        let operations = total_operations(&self.lowered.program);
        let (name, lower) = (self.lowered.name.clone(), self.lowered.seconds);
        let compiled = self.lowered.compile()?;
        let times = CompileTimes {
            trace: self.trace_seconds,
            lower,
            compile: compiled.outcome.seconds,
            from_cache: compiled.outcome.hit,
        };
        Ok(Analysis { compiled, name, equations, operations, times })
    }

    /// Name of the function.
    pub(crate) fn name(&self) -> &str {
        &self.lowered.name
    }

    /// Platform that the function was lowered for.
    pub(crate) fn platform(&self) -> Platform {
        self.lowered.platform
    }
}

/// Time that a function took to trace, lower and compile, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompileTimes {
    /// Running the function on tensors.
    pub trace: f64,
    /// Simplifying the Program and writing StableHLO.
    pub lower: f64,
    /// Compiling that, or loading it from the cache.
    pub compile: f64,
    /// True if the executable came from the cache.
    pub from_cache: bool,
}

/// A compiled function, for looking at; made by [`Lowered::compile`]. Its `Display` is a report.
pub struct Analysis {
    compiled: Compiled,
    name: String,
    equations: usize,
    operations: f64,
    times: CompileTimes,
}

impl Analysis {
    /// The compiler's cost estimate of a run: `flops`, `bytes accessed`, and others. If the compiler
    /// gives none, `flops` alone, counted in the Program.
    pub fn cost_analysis(&self) -> Vec<(String, f64)> {
        let counted = |_| vec![("flops".to_string(), self.operations)];
        self.compiled.executable.cost_analysis().unwrap_or_else(counted)
    }

    /// Bytes of memory that a run uses.
    ///
    /// # Errors
    /// Returns an error if the platform does not report them.
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        self.compiled.executable.memory_stats()
    }

    /// The optimized HLO: its format's name, and its bytes.
    ///
    /// # Errors
    /// If the platform does not give it.
    pub fn optimized_hlo(&self) -> Result<(String, Vec<u8>)> {
        self.compiled.executable.optimized_program()
    }

    /// The optimized HLO as text: computations, and in them names, shapes, operations and operands,
    /// with the user's line where the compiler kept it. For reading; it is not XLA's own syntax to
    /// the letter, and leaves most attributes out.
    ///
    /// # Errors
    /// If the platform does not give it, or in another format than `hlo` or `hlo_with_config`.
    pub fn optimized_hlo_text(&self) -> Result<String> {
        let (format, bytes) = self.optimized_hlo()?;
        hlo::text(&format, &bytes)
    }

    /// Seconds that compiling took, and true if the executable came from the cache.
    pub fn outcome(&self) -> CacheOutcome {
        self.compiled.outcome
    }

    /// Seconds of each stage.
    pub fn times(&self) -> CompileTimes {
        self.times
    }
}

/// `1234567` as `1.23 M`, with a unit: powers of 1000 for counts, of 1024 for bytes.
fn scaled(x: f64, base: f64, units: [&str; 5]) -> String {
    let mut x = x;
    let mut unit = 0;
    while x >= base && unit + 1 < units.len() {
        x /= base;
        unit += 1;
    }
    if unit == 0 { format!("{x} {}", units[0]) } else { format!("{x:.2} {}", units[unit]) }
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |x| scaled(x, 1000.0, ["", "K", "M", "G", "T"]).trim_end().to_string();
        let bytes = |x: i64| scaled(x as f64, 1024.0, ["B", "KiB", "MiB", "GiB", "TiB"]);
        let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
        let CompileTimes { trace, lower, compile, from_cache } = self.times;
        let place = if from_cache { "loaded from the cache" } else { "compiled" };
        writeln!(f, "{}: {} equations", self.name, self.equations)?;
        writeln!(f, "  traced in           {}", ms(trace))?;
        writeln!(f, "  lowered in          {}", ms(lower))?;
        write!(f, "  compiled in         {} ({place})", ms(compile))?;
        // Figures that a platform does not report are left out.
        let costs = self.cost_analysis();
        for (name, label) in [
            ("flops", "operations"),
            ("transcendentals", "transcendentals"),
            ("bytes accessed", "bytes accessed"),
        ] {
            if let Some((_, x)) = costs.iter().find(|(key, _)| key == name) {
                write!(f, "\n  {label:<19} {}", count(*x))?;
            }
        }
        if let Ok(memory) = self.memory_stats() {
            for (label, x) in [
                ("arguments", memory.arguments),
                ("results", memory.outputs),
                ("  of them donated", memory.aliased),
                ("scratch memory", memory.temporary),
                ("machine code", memory.generated_code),
            ] {
                write!(f, "\n  {label:<19} {}", bytes(x))?;
            }
            if memory.peak > 0 {
                write!(f, "\n  {:<19} {}", "peak", bytes(memory.peak))?;
            }
        }
        Ok(())
    }
}
