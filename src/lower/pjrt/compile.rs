//! Compilation of programs, and loading of compiled ones.

use std::ffi::c_char;

use super::calls::ensure_no_call;
use super::ffi;
use super::fork::ensure_no_fork;
use super::in_flight::InFlight;
use super::options::CompileOptions;
use crate::error::{Error, Result};
use crate::lower::pjrt::client::Client;
use crate::lower::pjrt::executable::Executable;

impl Client {
    /// Compiles an MLIR module: StableHLO text, or the bytecode of its portable dialect. Its entry
    /// is `func.func public @main`.
    ///
    /// Fails with the compiler's message; where that names a line of the text, with the line.
    pub fn compile(
        &self,
        module: &(impl AsRef<[u8]> + ?Sized),
        options: &CompileOptions,
    ) -> Result<Executable> {
        ensure_no_fork("compile a program")?;
        ensure_no_call("compile a program")?;
        const FORMAT: &str = "mlir";
        let module = module.as_ref();
        let encoded = options.encode();
        let mut program = ffi::Program::zeroed();
        program.code = module.as_ptr().cast::<c_char>().cast_mut();
        program.code_size = module.len();
        program.format = FORMAT.as_ptr().cast();
        program.format_size = FORMAT.len();
        let mut args = ffi::ClientCompileArgs::zeroed();
        args.client = self.raw();
        args.program = &program;
        args.compile_options = encoded.as_ptr().cast();
        args.compile_options_size = encoded.len();
        let _in_flight = InFlight::begin();
        // SAFETY: everything that the arguments point to outlives the call; the plugin only reads
        // the code.
        let error = unsafe { (self.functions().client_compile)(&mut args) };
        if !error.is_null() {
            let (code, message) = self.plugin().take_error(error);
            return Err(Error::Pjrt {
                context: "cannot compile the program".into(),
                code,
                message: match std::str::from_utf8(module) {
                    Ok(text) => with_offending_line(message, text),
                    Err(_) => message,
                },
            });
        }
        Executable::from_raw(self.clone(), args.executable)
    }

    /// Loads an executable that [`Executable::serialize`] made with the same plugin on the same
    /// kind of machine.
    ///
    /// # Safety
    /// The bytes are machine code, which runs unchecked: they must be those of
    /// [`Executable::serialize`].
    pub unsafe fn deserialize(&self, serialized: &[u8]) -> Result<Executable> {
        ensure_no_fork("load an executable")?;
        let mut args = ffi::ExecutableDeserializeAndLoadArgs::zeroed();
        args.client = self.raw();
        args.serialized_executable = serialized.as_ptr().cast();
        args.serialized_executable_size = serialized.len();
        let _in_flight = InFlight::begin();
        // SAFETY: the bytes outlive the call.
        let error = unsafe { (self.functions().executable_deserialize_and_load)(&mut args) };
        self.plugin().check(error, || "cannot load a serialized executable".into())?;
        Executable::from_raw(self.clone(), args.loaded_executable)
    }
}

/// A compiler message that names `line:column` of the program, with that line below it.
fn with_offending_line(message: String, program: &str) -> String {
    let Some((line, column)) = position(&message) else { return message };
    let Some(text) = program.lines().nth(line.wrapping_sub(1)) else { return message };
    // Long constants would bury the message.
    let shown: String = text.chars().skip(column.saturating_sub(61)).take(120).collect();
    let caret = column.min(61);
    let message = message.trim_end();
    format!("{message}\n  line {line} of the program:\n  | {shown}\n  | {:>caret$}", "^")
}

/// The first `:LINE:COLUMN:` of a message.
fn position(message: &str) -> Option<(usize, usize)> {
    let mut parts = message.split(':').map(str::trim);
    let mut before = parts.next()?.parse::<usize>().ok();
    for part in parts {
        let number = part.parse::<usize>().ok();
        if let (Some(line), Some(column)) = (before, number) {
            return Some((line, column));
        }
        before = number;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiler_messages_show_the_line() {
        let shown = with_offending_line("<unknown>:2:3: error: no".into(), "module {\n  foo\n}");
        assert_eq!(shown, "<unknown>:2:3: error: no\n  line 2 of the program:\n  |   foo\n  |   ^");
        assert_eq!(with_offending_line("no position: 3".into(), "x"), "no position: 3");
        assert_eq!(with_offending_line("x:9:1: y".into(), "one line"), "x:9:1: y");
    }
}
