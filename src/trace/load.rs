//! Programs in files: [`Program::load`].

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::program::Program;
use super::tensor::{Tensor, fail_op, inline};
use super::types::TensorType;
use crate::error::{Error, Result};
use crate::files;
use crate::tree::{self, Tree};

/// Beginning of the line that names arguments and results.
const HEADER: &str = "# podracer program ";
/// Version of the header.
const VERSION: u64 = 1;
/// Size of a file, in bytes, beyond which it is not read.
const MAX_SIZE: u64 = 1 << 30;

/// A function read from a file by [`Program::load`]: a [`Program`], the names of its arguments and
/// results, and other data about it.
#[derive(Debug, Clone)]
pub struct LoadedProgram {
    path: PathBuf,
    program: Program,
    inputs: Vec<String>,
    outputs: Vec<String>,
    metadata: Map<String, Value>,
}

impl Program {
    /// Reads the text of a Program from a file: one that `tools/jax_to_podracer.py` made of a JAX
    /// function, or [`Program::to_text`]. JAX's `jax.export.deserialize`, but the result can be
    /// differentiated and mapped like a closure.
    ///
    /// ```
    /// use podracer::{Array, Program, Tensor, grad, interpret};
    /// # fn main() -> podracer::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("square-{}.txt", std::process::id()));
    /// # std::fs::write(&path, "{ lambda a:f32[]. let b:f32[] = mul a a\n in (b) }").unwrap();
    /// let square = Program::load(&path)?;
    /// let slope = interpret(grad(|x: Tensor| square.call(x)[0]));
    /// assert_eq!(slope.call(Array::from(3.0f32))?.item::<f32>()?, 6.0);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be read, and [`Error::File`] with line and column if it
    /// is not the text of a well-formed Program. Callbacks are refused: their functions are in
    /// no file.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<LoadedProgram> {
        let path = path.as_ref();
        let text = read(path)?;
        let named = |error: Error| Error::File(format!("{}: {error}", path.display()));
        let parsed = Program::parse(&text);
        let program = parsed.map_err(named)?;
        if !program.callbacks().is_empty() {
            let text = "it calls functions of the host by callbacks, which no file can hold";
            return Err(named(Error::Argument(text.into())));
        }
        let mut metadata = header(&text).map_err(named)?;
        let mut names = |key: &str, count: usize| names(&mut metadata, key, count);
        let inputs = names("inputs", program.inputs.len()).map_err(named)?;
        let outputs = names("outputs", program.outputs.len()).map_err(named)?;
        Ok(LoadedProgram { path: path.to_path_buf(), program, inputs, outputs, metadata })
    }
}

/// The text of a file of a sensible size.
fn read(path: &Path) -> Result<String> {
    let mut file = files::open_regular(path).map_err(Error::io("cannot read", path))?;
    let size = file.metadata().map_err(Error::io("cannot read", path))?.len();
    if size > MAX_SIZE {
        let path = path.display();
        return Err(Error::File(format!("{path}: {size} bytes; a Program has at most {MAX_SIZE}")));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(Error::io("cannot read", path))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let path = path.display();
        Error::File(format!("{path}: no text of a Program: byte {at} is not UTF-8"))
    })
}

/// The data in the first line; none if it is not a header.
fn header(text: &str) -> Result<Map<String, Value>> {
    let first = text.lines().next().unwrap_or("");
    let Some(json) = first.strip_prefix(HEADER) else {
        return Ok(Map::new());
    };
    let mut header: Map<String, Value> = serde_json::from_str(json)
        .map_err(|error| Error::Argument(format!("line 1: the header is no JSON: {error}")))?;
    match header.remove("version") {
        Some(version) if version.as_u64() == Some(VERSION) => Ok(header),
        version => {
            let found = version.map_or("none".into(), |version| version.to_string());
            Err(Error::Argument(format!(
                "line 1: version {found} of the header; this Podracer reads version {VERSION}"
            )))
        }
    }
}

/// Removes the list of names `key` from the header. A file without it gets numbers.
fn names(header: &mut Map<String, Value>, key: &str, count: usize) -> Result<Vec<String>> {
    let names: Vec<String> = match header.remove(key) {
        None => return Ok((0..count).map(|i| format!("{key}[{i}]")).collect()),
        Some(value) => serde_json::from_value(value).map_err(|error| {
            Error::Argument(format!("line 1: {key} must be a list of names: {error}"))
        })?,
    };
    if names.len() == count {
        return Ok(names);
    }
    let found = names.len();
    Err(Error::Argument(format!("line 1: {found} names of {key} for a Program with {count}")))
}

impl LoadedProgram {
    /// A Program that was traced, with a name for messages.
    #[cfg(feature = "envs")]
    pub(crate) fn named(
        name: String,
        program: Program,
        inputs: Vec<String>,
        outputs: Vec<String>,
    ) -> LoadedProgram {
        LoadedProgram { path: name.into(), program, inputs, outputs, metadata: Map::new() }
    }

    /// The results of the function, of the leaves of `args` in order: its equations become part of
    /// the trace, as those of [`Program::apply`]. A JAX pytree has its leaves in the order of
    /// [`LoadedProgram::inputs`]: a dictionary by its sorted keys, a dataclass by its fields.
    ///
    /// # Errors
    /// Ends the trace if `args` do not have the number and the types of leaves that the function
    /// takes. The message names the argument as JAX does.
    #[track_caller]
    pub fn call<A: Tree<Tensor>>(&self, args: A) -> Vec<Tensor> {
        let leaves = tree::leaves(&args);
        let takes: Vec<&TensorType> = self.program.input_types().collect();
        let path = self.path.display();
        if leaves.len() != takes.len() {
            let listed: Vec<String> =
                self.inputs.iter().zip(&takes).map(|(name, ty)| format!("{name}: {ty}")).collect();
            let problem = format!(
                "{path} takes {} tensors, and was given {}: it takes ({})",
                takes.len(),
                leaves.len(),
                listed.join(", ")
            );
            fail_op("program", problem);
        }
        for ((leaf, ty), name) in leaves.iter().zip(takes).zip(&self.inputs) {
            let given = leaf.ty();
            if given != *ty {
                fail_op("program", format!("{path} takes {name} as {ty}, and was given {given}"));
            }
        }
        inline(&self.program, &leaves)
    }

    /// The Program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Names of the arguments, one for each leaf: `x['w']` is the leaf `w` of the parameter `x`.
    pub fn inputs(&self) -> &[String] {
        &self.inputs
    }

    /// Names of the results, one for each leaf.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// Data from the file's first line, besides the names.
    pub fn metadata(&self) -> &Map<String, Value> {
        &self.metadata
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
