//! Exported functions: compiled programs without the code that made them, in the file format of
//! `jax.export`.
//!
//! ```
//! use podracer::export::Exported;
//! use podracer::{Array, Tensor, jit};
//! # fn main() -> podracer::Result<()> {
//! let norm = jit(|x: Tensor| (x * x).sum(..).sqrt()).named("norm");
//! let bytes = norm.export(&Array::from([0.0f32, 0.0]))?.to_bytes();
//! // In another process, or in Python: jax.export.deserialize(bytes).call(x)
//! let norm = Exported::from_bytes(&bytes)?;
//! assert_eq!(norm.call(&[Array::from([3.0f32, 4.0])])?[0].item::<f32>()?, 5.0);
//! # Ok(())
//! # }
//! ```
//!
//! `docs/export.md` lists the guarantees about the files.

pub mod artifact;
mod compiler;
pub mod onnx;

use std::collections::HashMap;
use std::fmt;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex, PoisonError};

use self::artifact::{Artifact, PyTree, newer};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::jit::{Compiled, Jit, Lowered};
use crate::lower::custom_calls::lapack;
use crate::lower::pjrt::{Client, CompileOptions};
use crate::lower::stablehlo::{LowerOptions, Platform, stablehlo};
use crate::runtime::Runtime;
use crate::trace::graph::simplify;
use crate::trace::program::Program;
use crate::trace::tensor::Tensor;
use crate::trace::types::{DType, TensorType};
use crate::tree::leaf_path::{LeafPath, Step, leaf_paths, path_text};
use crate::tree::{self, Leaf, Path, Tree};

/// An exported function: loaded from a file, or just made. It is compiled at its first call. Threads may
/// share it by reference: it is `Send` and `Sync`.
pub struct Exported {
    artifact: Artifact,
    /// Serialized container: the bytes that were read, or the bytes to write.
    bytes: Vec<u8>,
    in_paths: Vec<LeafPath>,
    out_paths: Vec<LeafPath>,
    compiled: Mutex<Option<Arc<Compiled>>>,
    /// True if the compiler may see the module in this process.
    trusted: bool,
}

impl fmt::Debug for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exported({self})")
    }
}

/// The name, the arguments, and the results, one a line.
impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}", self.name(), self.platforms().join(", "))?;
        let arguments = self.in_paths.iter().zip(self.in_types());
        for (path, ty) in arguments {
            write!(f, "\n  takes {} {ty}", argument_text(path))?;
        }
        let results = self.out_paths.iter().zip(self.out_types());
        for (path, ty) in results {
            write!(f, "\n  gives {} {ty}", path_text(path))?;
        }
        Ok(())
    }
}

/// An argument's path as messages name it: without the pair of positional and keyword arguments.
fn argument_text(path: &[Step]) -> String {
    path_text(without(path, 1))
}

/// A path without its first steps. A file may have shorter ones.
fn without(path: &[Step], steps: usize) -> &[Step] {
    path.get(steps..).unwrap_or_default()
}

impl Exported {
    /// The exported form of `program`, whose inputs and outputs are at these paths.
    pub(crate) fn of(
        name: &str,
        mut program: Program,
        in_paths: &[LeafPath],
        out_paths: &[LeafPath],
        platforms: &[Platform],
    ) -> Result<Exported> {
        if let Some(callback) = program.callbacks().first() {
            return Err(Error::Argument(format!(
                "{name} cannot be exported: it calls a function of this process, with {}\n  --> {}",
                callback.kind.name(),
                callback.f.at()
            )));
        }
        if platforms.is_empty() || program.inputs.len() > usize::from(u16::MAX) {
            return Err(Error::Argument(format!(
                "{name} cannot be exported for {} platforms with {} arguments: an artifact has at \
                 least 1 platform and at most 65535 arguments",
                platforms.len(),
                program.inputs.len()
            )));
        }
        let positional = in_paths.iter().all(|path| matches!(path.first(), Some(Step::Index(_))));
        let wrapped: Vec<LeafPath> = in_paths
            .iter()
            .map(|path| {
                let before = if positional { 1 } else { 2 };
                let before = std::iter::repeat_n(Step::Index(0), before);
                before.chain(path.iter().cloned()).collect()
            })
            .collect();
        let arguments = match PyTree::of(&wrapped) {
            PyTree::Tuple(mut children) if children.len() == 1 => children.remove(0),
            _ => PyTree::Tuple(vec![]),
        };
        let in_tree = PyTree::Tuple(vec![arguments, PyTree::Dict(vec![])]);
        let out_tree = match out_paths {
            [] => PyTree::Tuple(vec![]),
            paths => PyTree::of(paths),
        };
        // Python's dictionaries have sorted keys, whose order may differ from ours.
        program.inputs = in_order(name, &in_tree, &wrapped, &program.inputs)?;
        program.outputs = in_order(name, &out_tree, out_paths, &program.outputs)?;
        let (in_types, out_types): (Vec<_>, Vec<_>) =
            (program.input_types().cloned().collect(), program.output_types().cloned().collect());
        let kept = (0..program.inputs.len()).collect();
        if platforms.len() > 1 {
            let index = program.add_var(TensorType::scalar(DType::I32));
            program.inputs.insert(0, index);
        }
        let options = LowerOptions { name: name.into(), ..LowerOptions::for_platforms(platforms) };
        let artifact = Artifact {
            name: name.into(),
            in_tree,
            in_types,
            out_tree,
            out_types,
            platforms: platforms.iter().map(|platform| platform.name().into()).collect(),
            any_platform: false,
            module: stablehlo(&program, &options).into_bytes(),
            kept,
        };
        let bytes = artifact.encode();
        Ok(Exported::new(artifact, bytes).trusted())
    }

    fn new(artifact: Artifact, bytes: Vec<u8>) -> Exported {
        let (in_paths, out_paths) = (artifact.in_tree.paths(), artifact.out_tree.paths());
        let (compiled, trusted) = (Mutex::default(), false);
        Exported { artifact, bytes, in_paths, out_paths, compiled, trusted }
    }

    /// Reads an artifact: one of this library, or the output of `jax.export`'s `serialize`. Bytes of
    /// any author give a function or an error. Calling it computes whatever its author wrote, in
    /// unlimited time and memory, and does nothing else.
    ///
    /// # Errors
    /// [`Error::Argument`] if the bytes are damaged or no artifact, if they are of a newer version,
    /// or if the function needs a feature that is not supported: several devices, effects, shapes
    /// that are not constant, element types that are no [`DType`], native functions that are not
    /// provided here.
    pub fn from_bytes(bytes: &[u8]) -> Result<Exported> {
        Ok(Exported::new(Artifact::decode(bytes)?, bytes.to_vec()))
    }

    /// The function, whose author is trusted like that of code: it is compiled in this process.
    /// Otherwise a function from a file is compiled by a process of its own at first, which takes
    /// about 0.2 seconds longer, because a damaged module can end the compiler's process.
    pub fn trusted(mut self) -> Exported {
        self.trusted = true;
        self
    }

    /// Compiles the function, which otherwise its first call does.
    ///
    /// # Errors
    /// As [`Exported::call`], without errors of arguments.
    pub fn compile(&self) -> Result<()> {
        self.compiled().map(drop)
    }

    /// The artifact, for [`Exported::from_bytes`] and `jax.export.deserialize`. An artifact that
    /// was read is returned unchanged.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    /// Writes the artifact to a file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn save(&self, file: impl AsRef<FilePath>) -> Result<()> {
        let file = file.as_ref();
        std::fs::write(file, &self.bytes).map_err(Error::io("cannot write", file))
    }

    /// Reads an artifact from a file.
    ///
    /// # Errors
    /// [`Error::Io`], and [`Error::File`] for a file that is not a usable exported function.
    pub fn load(file: impl AsRef<FilePath>) -> Result<Exported> {
        let file = file.as_ref();
        let bytes = crate::files::read(file)?;
        Exported::from_bytes(&bytes).map_err(|error| match error {
            Error::Argument(text) => {
                let expected = "expected a file of jax.export, `podracer export` or Exported::save";
                Error::File(format!("{}: {text}; {expected}", file.display()))
            }
            other => other,
        })
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        &self.artifact.name
    }

    /// The types of the arguments' leaves, in the order of [`Exported::call`].
    pub fn in_types(&self) -> &[TensorType] {
        &self.artifact.in_types
    }

    /// The types of the results' leaves, in order.
    pub fn out_types(&self) -> &[TensorType] {
        &self.artifact.out_types
    }

    /// The platforms it was made for, by JAX's names: `cpu`, `cuda`, `rocm`, `tpu`.
    pub fn platforms(&self) -> Vec<&str> {
        self.artifact.platforms.iter().map(String::as_str).collect()
    }

    /// The structure of `(positional arguments, keyword arguments)`, as Python has it.
    pub fn in_tree(&self) -> &PyTree {
        &self.artifact.in_tree
    }

    /// The structure of the result, as Python has it.
    pub fn out_tree(&self) -> &PyTree {
        &self.artifact.out_tree
    }

    /// The MLIR module: StableHLO text, or the bytecode of its portable dialect.
    pub fn module(&self) -> &[u8] {
        &self.artifact.module
    }

    /// Runs the function on the leaves of its arguments, in the order of [`Exported::in_types`].
    ///
    /// # Errors
    /// [`Error::Argument`] if the arguments do not have these types, if the function was not made
    /// for this platform, or by a newer compiler; and errors from the compiler and the runtime.
    pub fn call(&self, args: &[Array]) -> Result<Vec<Array>> {
        self.run(&args.iter().collect::<Vec<_>>())
    }

    /// Runs the function on trees: leaves are matched by their paths, fields of structs with keys
    /// of dictionaries. The tree of arguments is a tuple of the positional arguments, or the one
    /// there is, or a struct or map of the keyword arguments. The result has the structure of
    /// `like`, whose leaves do not matter.
    ///
    /// # Errors
    /// As [`Exported::call`]; [`Error::Argument`] if the paths are not the function's.
    pub fn call_tree<L: Leaf, A: Tree<Array>, M: Tree<L>>(
        &self,
        args: &A,
        like: &M,
    ) -> Result<M::With<Array>> {
        let mut leaves = Vec::new();
        args.visit_leaves(&Path::ROOT, &mut |_, leaf| leaves.push(leaf));
        let ours = leaf_paths::<Array, A>(args);
        let before: [&[Step]; 3] =
            [&[Step::Index(0)], &[Step::Index(0), Step::Index(0)], &[Step::Index(1)]];
        let order = before.iter().find_map(|before| {
            let full = ours.iter().map(|path| before.iter().chain(path).cloned().collect());
            matching(&self.in_paths, &full.collect::<Vec<LeafPath>>())
        });
        let Some(order) = order else {
            return Err(self.other_structure("takes", &self.in_paths, &ours, 1));
        };
        let wanted = leaf_paths::<L, M>(like);
        let Some(places) = matching(&wanted, &self.out_paths) else {
            return Err(self.other_structure("gives", &self.out_paths, &wanted, 0));
        };
        let ordered: Vec<&Array> = order.into_iter().map(|i| leaves[i]).collect();
        let results = self.run(&ordered)?;
        Ok(tree::rebuild(like, places.into_iter().map(|i| results[i].clone())))
    }

    fn other_structure(
        &self,
        verb: &str,
        theirs: &[LeafPath],
        ours: &[LeafPath],
        skip: usize,
    ) -> Error {
        let list = |paths: &[LeafPath], skip: usize| {
            let texts: Vec<String> =
                paths.iter().map(|path| path_text(without(path, skip))).collect();
            if texts.len() <= 12 {
                return texts.join(", ");
            }
            format!("{}, and {} more", texts[..12].join(", "), texts.len() - 12)
        };
        Error::Argument(format!(
            "{} {verb} the leaves {}, and the tree has {}",
            self.name(),
            list(theirs, skip),
            list(ours, 0)
        ))
    }

    fn run(&self, args: &[&Array]) -> Result<Vec<Array>> {
        let (name, types) = (self.name(), self.in_types());
        if args.len() != types.len() {
            return Err(Error::Argument(format!(
                "{name} takes {} arrays, and {} were given",
                types.len(),
                args.len()
            )));
        }
        for ((path, ty), arg) in self.in_paths.iter().zip(types).zip(args) {
            if arg.ty() != ty {
                return Err(Error::Argument(format!(
                    "{name} takes {ty} at {}, and {} was given; an exported function has the one \
                     signature that it was exported for",
                    argument_text(path),
                    arg.ty()
                )));
            }
        }
        let compiled = self.compiled()?;
        let index = self.platform_index()?;
        let mut taken: Vec<&Array> = Vec::with_capacity(self.artifact.kept.len() + 1);
        taken.extend(&index);
        taken.extend(self.artifact.kept.iter().map(|&i| args[i]));
        compiled.run(&taken, true)
    }

    /// Returns the first argument of a module for several platforms: the position of this platform.
    fn platform_index(&self) -> Result<Option<Array>> {
        let platforms = &self.artifact.platforms;
        let here = Runtime::get()?.platform.name();
        let position = platforms.iter().position(|platform| platform == here);
        if position.is_none() && !self.artifact.any_platform {
            return Err(Error::Argument(format!(
                "{} was exported for {}, and this is {here}: export it for {here} too \
                 (platforms=[..] in jax.export, Jit::export_for here)",
                self.name(),
                platforms.join(", ")
            )));
        }
        Ok((platforms.len() > 1).then(|| Array::from(position.unwrap_or(0) as i32)))
    }

    fn compiled(&self) -> Result<Arc<Compiled>> {
        let mut slot = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = &*slot {
            return Ok(compiled.clone());
        }
        self.platform_index()?;
        let runtime = Runtime::get()?;
        let mut types = Vec::new();
        if self.artifact.platforms.len() > 1 {
            types.push(TensorType::scalar(DType::I32));
        }
        types.extend(self.artifact.kept.iter().map(|&i| self.in_types()[i].clone()));
        let calls_functions = self.artifact.calls_functions();
        if calls_functions && runtime.platform.is_host() {
            lapack::provide(runtime.client.plugin())?;
        }
        let ours = runtime.client.plugin().stablehlo_version();
        let module = self.artifact.module_for(ours);
        let declared = types.clone();
        let compile = |client: &Client, options: &CompileOptions| match self.trusted {
            true => Ok((client.compile(&module, options)?, None)),
            false => compiler::compile(&module, &declared, calls_functions, client, options),
        };
        let compiled = Compiled::of_module(&module, types, compile).map_err(|error| {
            if let Error::Config(_) = error {
                return error;
            }
            let text = error.to_string();
            if ["custom call", "custom-call", "FFI handler"].iter().any(|part| text.contains(part))
            {
                return Error::Argument(format!(
                    "{} calls a native function that is not registered here\n  {error}",
                    self.name()
                ));
            }
            // The compiler reports this only as an error of its parser.
            match self.artifact.stablehlo_version() {
                Some(theirs) if newer(theirs, ours) => Error::Argument(format!(
                    "{} was written in StableHLO {theirs}, and the compiler here knows it to \
                     {ours}; export it with an older JAX, or use a newer plugin\n  {error}",
                    self.name()
                )),
                _ => error,
            }
        })?;
        let outputs = compiled.executable.outputs();
        if outputs != self.out_types() {
            let list = |types: &[TensorType]| {
                types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ")
            };
            return Err(Error::Argument(format!(
                "{} says that it gives ({}), but its module gives ({}): the artifact is damaged",
                self.name(),
                list(self.out_types()),
                list(outputs)
            )));
        }
        Ok(slot.insert(Arc::new(compiled)).clone())
    }
}

/// For each path of `to`, its position in `from`; `None` if they are not the same paths.
fn matching(to: &[LeafPath], from: &[LeafPath]) -> Option<Vec<usize>> {
    let positions: HashMap<&LeafPath, usize> =
        from.iter().enumerate().map(|(i, path)| (path, i)).collect();
    let order: Option<Vec<usize>> = to.iter().map(|path| positions.get(path).copied()).collect();
    order.filter(|order| order.len() == from.len() && positions.len() == from.len())
}

/// Returns `items`, which are at `paths`, in the order of the leaves of `tree`.
fn in_order<T: Copy>(name: &str, tree: &PyTree, paths: &[LeafPath], items: &[T]) -> Result<Vec<T>> {
    let order = matching(&tree.paths(), paths).ok_or_else(|| {
        Error::Argument(format!("{name} has two leaves of one path, and cannot be exported"))
    })?;
    Ok(order.into_iter().map(|i| items[i]).collect())
}

impl<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(A) -> B> Jit<A, B, F> {
    /// The function, traced for an argument like `args`, as a portable artifact for the platform of
    /// this process: `jax.export.export`. It does not depend on the mode.
    ///
    /// A tuple's parts become positional arguments in Python; any other argument is the first and
    /// only one. Structs and maps become dictionaries, sequences become tuples.
    ///
    /// # Errors
    /// As [`Jit::lower`]; and if the function has callbacks.
    pub fn export(&self, args: &A::With<Array>) -> Result<Exported> {
        self.export_for(args, &[Runtime::get()?.platform])
    }

    /// [`Jit::export`] for other platforms, or several at once. Needs no plugin.
    ///
    /// # Errors
    /// As [`Jit::export`]; and if `platforms` is empty.
    pub fn export_for(&self, args: &A::With<Array>, platforms: &[Platform]) -> Result<Exported> {
        let (program, template) = self.program(args)?;
        let in_paths = leaf_paths::<Array, A::With<Array>>(args);
        let out_paths = leaf_paths::<Tensor, B>(&template);
        Exported::of(self.name(), simplify(program), &in_paths, &out_paths, platforms)
    }
}

impl<B: Tree<Tensor>> Lowered<B> {
    /// The function as a portable artifact for the platform it was lowered for; see
    /// [`Jit::export`].
    ///
    /// # Errors
    /// As [`Jit::export`].
    pub fn export(&self) -> Result<Exported> {
        let out_paths = leaf_paths::<Tensor, B>(self.template());
        let program = self.program().clone();
        Exported::of(self.name(), program, &self.in_paths, &out_paths, &[self.platform()])
    }
}
