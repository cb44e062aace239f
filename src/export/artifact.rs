//! The file format of exported functions: that of `jax.export`, read and written.
//!
//! An artifact is a flatbuffer with the function's name, its argument and result types and
//! structures, the platforms it was made for, and an MLIR module: the bytecode of StableHLO's
//! portable dialect where JAX wrote it, StableHLO text where we did (both sides read both). Field
//! numbers are those of JAX's schema, version 11; the calling convention is 9 or 10.

mod bytecode;
mod calls;
mod schema;

use std::borrow::Cow;

use flatbuffers::{FlatBufferBuilder, ForwardsUOffset, Vector};
use sha2::{Digest, Sha256};

use self::schema::{AbstractValue, Fault, Field, Function, PyTreeDef, Written, elements};
use crate::error::{Error, Result};
use crate::trace::types::{DType, Shape, TensorType};
use crate::tree::leaf_path::{LeafPath, Step};

/// The newest schema that is understood here.
const NEWEST_SCHEMA: u16 = 11;

/// The calling conventions that are supported; they differ in the data that several devices share.
const CONVENTIONS: std::ops::RangeInclusive<u16> = 9..=10;

/// Most axes of an array, as NumPy has it.
const MAX_RANK: usize = 64;

/// Marker after the flatbuffer in artifacts that this library writes; a SHA-256 of all bytes before
/// it follows. Readers of flatbuffers do not look behind the end.
const SEAL: &[u8; 16] = b"podracer-seal-1\n";

/// The first bytes of MLIR bytecode.
const BYTECODE: &[u8; 4] = b"ML\xefR";

/// Structure of arguments or results, as Python has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PyTree {
    /// A value.
    Leaf,
    /// Python's `None`.
    None,
    /// A tuple.
    Tuple(Vec<PyTree>),
    /// A list.
    List(Vec<PyTree>),
    /// A dictionary, its keys in order.
    Dict(Vec<(String, PyTree)>),
    /// A type registered with JAX: its name and its children.
    Custom(String, Vec<PyTree>),
}

/// An exported function, as it stands in a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Artifact {
    /// The function's name.
    pub name: String,
    /// The structure of `(positional arguments, keyword arguments)`.
    pub in_tree: PyTree,
    /// The types of the arguments' leaves.
    pub in_types: Vec<TensorType>,
    /// The structure of the result.
    pub out_tree: PyTree,
    /// The types of the result's leaves.
    pub out_types: Vec<TensorType>,
    /// The platforms it was made for, by JAX's names: `cpu`, `cuda`, `rocm`, `tpu`. The module of
    /// several takes the position of the one it runs on as its first argument.
    pub platforms: Vec<String>,
    /// True if it may run on other platforms too: JAX's `DisabledSafetyCheck.platform()`.
    pub any_platform: bool,
    /// The MLIR module.
    pub module: Vec<u8>,
    /// The arguments that the module takes, by position; the others are not used.
    pub kept: Vec<usize>,
}

fn malformed(what: impl std::fmt::Display) -> Error {
    Error::Argument(format!("not a usable exported function: {what}"))
}

impl Artifact {
    /// Reads an artifact.
    ///
    /// # Errors
    /// [`Error::Argument`] if the bytes are damaged or no artifact, if it is too new, or if it
    /// needs a feature that is not supported: several devices, effects, shapes with variables,
    /// other element types.
    pub fn decode(bytes: &[u8]) -> Result<Artifact> {
        let bytes = unsealed(bytes).map_err(malformed)?;
        let function = schema::root(bytes).map_err(malformed)?;
        let module = function.mlir_module().map_or(&[][..], |module| module.bytes());
        // A flatbuffer carries no name of its kind: the MLIR module identifies an artifact.
        let text = std::str::from_utf8(module).unwrap_or_default();
        if !module.starts_with(BYTECODE) && !text.contains("@main") {
            return Err(malformed(
                "it holds no MLIR module: was it written by jax.export or here?",
            ));
        }
        let schema = function.serialization_version().unwrap_or(0);
        let convention = function.calling_convention_version().unwrap_or(0);
        if schema > NEWEST_SCHEMA || convention > *CONVENTIONS.end() {
            return Err(malformed(format!(
                "it is of a newer version (schema {schema}, calling convention {convention}; this \
                 library reads schemas to {NEWEST_SCHEMA}, conventions to {}): export it for an \
                 older version, or use a newer library",
                CONVENTIONS.end()
            )));
        }
        if convention < *CONVENTIONS.start() {
            return Err(malformed(format!(
                "its calling convention is {convention}, and the oldest that is read is {}: export \
                 it again with a newer JAX",
                CONVENTIONS.start()
            )));
        }
        let artifact = Artifact::read(&function, module).map_err(malformed)?;
        artifact.refuse_what_is_not_here(&function)?;
        calls::allowed(&artifact.module).map_err(malformed)?;
        Ok(artifact)
    }

    fn read(function: &Function<'_>, module: &[u8]) -> Result<Artifact, String> {
        let unique = function.unique_avals();
        let in_types = types(function.in_aval_numbers(), unique, function.in_avals())?;
        let out_types = types(function.out_aval_numbers(), unique, function.out_avals())?;
        let mut budget = module.len() + (4 << 20);
        let in_tree = pytree(function.in_tree(), &mut budget)?;
        let out_tree = pytree(function.out_tree(), &mut budget)?;
        if in_tree.leaves() != in_types.len() || out_tree.leaves() != out_types.len() {
            return Err("its structures and types do not have the same number of leaves".into());
        }
        let kept: Vec<usize> = elements(function.module_kept_var_idx()).map(usize::from).collect();
        if kept.iter().any(|&i| i >= in_types.len()) {
            return Err("it uses an argument that it does not have".into());
        }
        let mut checks = elements(function.disabled_checks());
        Ok(Artifact {
            name: function.function_name().unwrap_or_default().into(),
            in_tree,
            in_types,
            out_tree,
            out_types,
            platforms: elements(function.platforms()).map(String::from).collect(),
            any_platform: checks.any(|check| check.kind().unwrap_or(0) == 0),
            module: module.to_vec(),
            kept,
        })
    }

    fn refuse_what_is_not_here(&self, function: &Function<'_>) -> Result<()> {
        let name = &self.name;
        let wide = function.num_devices().unwrap_or(0);
        let narrow = function.num_devices_u16().unwrap_or(0);
        let devices = if wide != 0 { wide } else { u32::from(narrow) };
        if devices != 1 {
            return Err(malformed(format!(
                "{name} was exported for {devices} devices, and only functions of one device run \
                 here: export it without shardings"
            )));
        }
        let mut effects =
            elements(function.ordered_effects()).chain(elements(function.unordered_effects()));
        if let Some(effect) = effects.next() {
            let effect = effect.type_name().unwrap_or_default();
            return Err(malformed(format!(
                "{name} has the effect {effect}: callbacks and prints live in the Python process \
                 that made it; export the function without them"
            )));
        }
        // Functions for several platforms have it set too.
        let variable = function.uses_global_constants().unwrap_or(0) != 0;
        if variable && self.platforms.len() < 2 {
            return Err(malformed(format!(
                "{name} depends on shapes that are only known when it is called: export it for \
                 constant shapes"
            )));
        }
        if self.platforms.is_empty() {
            return Err(malformed(format!("{name} names no platform")));
        }
        Ok(())
    }

    /// Writes the artifact.
    pub fn encode(&self) -> Vec<u8> {
        let mut builder = FlatBufferBuilder::new();
        let b = &mut builder;
        let (ins, outs) = (&self.in_types, &self.out_types);
        let avals: Vec<Written> = ins.iter().chain(outs).map(|ty| aval(b, ty)).collect();
        let (in_avals, out_avals) = avals.split_at(ins.len());
        let unspecified = schema::table(b, &[]);
        let disabled: Vec<Written> =
            self.any_platform.then(|| schema::table(b, &[(0, Field::U8(0))])).into_iter().collect();
        let kept: Vec<u16> = self.kept.iter().map(|&i| i as u16).collect();
        let count = |range: std::ops::Range<usize>| range.map(|i| i as u32).collect::<Vec<_>>();
        let fields = [
            // Not the schema's version: JAX itself writes 3, which older readers accept.
            (0, Field::U16(3)),
            (1, schema::text(b, &self.name)),
            (2, Field::from(self.in_tree.write(b))),
            (3, schema::list(b, in_avals)),
            (4, Field::from(self.out_tree.write(b))),
            (5, schema::list(b, out_avals)),
            (6, Field::U16(1)),
            (7, schema::list(b, &vec![unspecified; ins.len()])),
            (8, schema::list(b, &vec![unspecified; outs.len()])),
            (9, schema::texts(b, &self.platforms)),
            (10, schema::list(b, &[])),
            (11, schema::list(b, &[])),
            (12, schema::list(b, &disabled)),
            (13, schema::numbers(b, &self.module)),
            (14, Field::U16(*CONVENTIONS.start())),
            (15, schema::numbers(b, &kept)),
            (18, Field::U32(1)),
            (19, schema::list(b, &avals)),
            (22, schema::numbers(b, &count(0..ins.len()))),
            (23, schema::numbers(b, &count(ins.len()..avals.len()))),
        ];
        let root = schema::table(b, &fields);
        b.finish_minimal(root);
        let mut bytes = b.finished_data().to_vec();
        bytes.extend_from_slice(SEAL);
        let digest = Sha256::digest(&bytes);
        bytes.extend_from_slice(&digest);
        bytes
    }

    /// The module for a compiler that knows StableHLO to `version`. A change of a newer StableHLO
    /// is undone if it is another name for the same operation: `composite` (JAX's `erf`, `top_k`)
    /// got regions in its second version, which no front end writes yet.
    pub(crate) fn module_for(&self, version: &str) -> Cow<'_, [u8]> {
        const SECOND: &[u8] = b"\0composite_v2\0";
        let ahead = self.stablehlo_version().is_some_and(|own| newer(own, version));
        // The names of operations stand in a table of texts, each of which ends with a zero.
        let place = self.module.windows(SECOND.len()).position(|window| window == SECOND);
        match place.filter(|_| ahead) {
            None => Cow::Borrowed(&self.module),
            Some(at) => {
                let mut module = self.module.clone();
                module[at + SECOND.len() - 2] = b'1';
                Cow::Owned(module)
            }
        }
    }

    /// Returns true if the module calls native functions, which must be registered before it is
    /// compiled.
    pub(crate) fn calls_functions(&self) -> bool {
        calls::allowed(&self.module).is_ok_and(|calls| !calls.is_empty())
    }

    /// The StableHLO version of a module in bytecode: `1.15.0`.
    pub fn stablehlo_version(&self) -> Option<&str> {
        let rest = self.module.strip_prefix(BYTECODE)?;
        // The bytecode's own version, then the producer's name, which ends with a zero.
        let end = rest.iter().position(|&byte| byte == 0)?;
        let producer = std::str::from_utf8(rest.get(1..end)?).ok()?;
        producer.strip_prefix("StableHLO_v")
    }
}

/// Returns true if version `a` is above `b`.
pub fn newer(a: &str, b: &str) -> bool {
    let parts = |version: &str| -> Vec<u32> {
        version.split(['.', ',', ' ']).filter_map(|part| part.parse().ok()).collect()
    };
    parts(a) > parts(b)
}

/// The flatbuffer without the seal, which is checked where there is one.
fn unsealed(bytes: &[u8]) -> Result<&[u8], Fault> {
    let Some(at) = bytes.len().checked_sub(SEAL.len() + 32) else { return Ok(bytes) };
    let (body, seal) = bytes.split_at(at);
    if !seal.starts_with(SEAL) {
        return Ok(bytes);
    }
    if Sha256::digest(&bytes[..at + SEAL.len()])[..] != seal[SEAL.len()..] {
        return Err("its checksum is wrong: it is damaged");
    }
    Ok(body)
}

/// Numbers of JAX's element types that are element types here.
const DTYPES: [(u8, DType); 19] = [
    (0, DType::Bool),
    (1, DType::I8),
    (2, DType::I16),
    (3, DType::I32),
    (4, DType::I64),
    (5, DType::U8),
    (6, DType::U16),
    (7, DType::U32),
    (8, DType::U64),
    (9, DType::F16),
    (10, DType::F32),
    (11, DType::F64),
    (12, DType::C64),
    (13, DType::C128),
    (14, DType::BF16),
    (15, DType::I4),
    (16, DType::U4),
    (18, DType::F8E4M3FN),
    (20, DType::F8E5M2),
];

fn aval(builder: &mut FlatBufferBuilder<'_>, ty: &TensorType) -> Written {
    let sizes: Vec<String> = ty.shape.iter().map(usize::to_string).collect();
    let (dtype, _) = DTYPES.iter().find(|(_, dtype)| *dtype == ty.dtype).expect("all are there");
    let fields = [
        (0, Field::U8(0)), // a shaped array
        (1, schema::texts(builder, &sizes)),
        (2, Field::U8(*dtype)),
        (3, Field::U8(1)), // in the device's memory
    ];
    schema::table(builder, &fields)
}

type Avals<'a> = Option<Vector<'a, ForwardsUOffset<AbstractValue<'a>>>>;

/// The types of arguments or results: by number in the table of types `unique`, or each by itself.
fn types(
    numbers: Option<Vector<'_, u32>>,
    unique: Avals<'_>,
    by_itself: Avals<'_>,
) -> Result<Vec<TensorType>, String> {
    if numbers.is_none_or(|numbers| numbers.is_empty()) {
        return elements(by_itself).map(|aval| read_type(&aval)).collect();
    }
    let unique: Vec<AbstractValue<'_>> = elements(unique).collect();
    let one = |number: u32| {
        read_type(unique.get(number as usize).ok_or("it names a type that it does not have")?)
    };
    elements(numbers).map(one).collect()
}

fn read_type(aval: &AbstractValue<'_>) -> Result<TensorType, String> {
    if aval.kind().unwrap_or(0) != 0 {
        return Err("it takes or gives a token, which is no array: it has ordered effects".into());
    }
    let number = aval.dtype().unwrap_or(0);
    let Some((_, dtype)) = DTYPES.iter().find(|(n, _)| *n == number) else {
        let name = match number {
            22 => "float0",
            17 | 19 | 21 | 23..=26 => "floats of 8 or fewer bits other than e4m3fn and e5m2",
            27..=29 => "typed PRNG keys (pass jax.random.key_data instead)",
            _ => "elements of a kind unknown here",
        };
        return Err(format!("it takes or gives {name}, which are not supported"));
    };
    let dims: Vec<&str> = elements(aval.shape()).collect();
    if dims.len() > MAX_RANK {
        return Err(format!("it takes or gives an array of {} axes", dims.len()));
    }
    let shape: Option<Shape> = dims.iter().map(|dim| dim.parse::<usize>().ok()).collect();
    let Some(shape) = shape else {
        return Err(format!(
            "it is for shapes with variables ({dtype}[{}]): export it for constant shapes",
            dims.join(",")
        ));
    };
    let ty = TensorType::new(*dtype, shape);
    ty.ensure_addressable()?;
    Ok(ty)
}

/// Reads a structure whose paths to all nodes have at most `budget` steps and bytes of names: damaged
/// bytes could make a small file describe a huge one.
fn pytree(table: Option<PyTreeDef<'_>>, budget: &mut usize) -> Result<PyTree, String> {
    fn go(
        table: &PyTreeDef<'_>,
        depth: usize,
        names_above: usize,
        budget: &mut usize,
    ) -> Result<PyTree, String> {
        let path = 1 + depth + names_above;
        if depth > 100 || *budget < path {
            return Err("its structure is nested too deeply or too large".into());
        }
        *budget -= path;
        let mut names = elements(table.children_names());
        let mut children = Vec::new();
        for child in elements(table.children()) {
            let name = names.next().map_or(0, str::len);
            children.push(go(&child, depth + 1, names_above + name, budget)?);
        }
        Ok(match table.kind().unwrap_or(0) {
            0 => PyTree::Leaf,
            1 => PyTree::None,
            2 => PyTree::Tuple(children),
            3 => PyTree::List(children),
            4 => {
                let names: Vec<&str> = elements(table.children_names()).collect();
                if names.len() != children.len() {
                    return Err("a dictionary in it has not as many keys as values".into());
                }
                PyTree::Dict(names.into_iter().map(String::from).zip(children).collect())
            }
            5 => PyTree::Custom(table.custom_name().unwrap_or_default().into(), children),
            kind => return Err(format!("its structure has a node of an unknown kind, {kind}")),
        })
    }
    go(&table.ok_or("it has no structure")?, 0, 0, budget)
}

impl PyTree {
    fn children(&self) -> Vec<(Step, &PyTree)> {
        match self {
            PyTree::Leaf | PyTree::None => vec![],
            PyTree::Tuple(children) | PyTree::List(children) | PyTree::Custom(_, children) => {
                children.iter().enumerate().map(|(i, child)| (Step::Index(i), child)).collect()
            }
            PyTree::Dict(children) => {
                children.iter().map(|(name, child)| (Step::Name(name.clone()), child)).collect()
            }
        }
    }

    /// Number of leaves.
    pub fn leaves(&self) -> usize {
        match self {
            PyTree::Leaf => 1,
            node => node.children().iter().map(|(_, child)| child.leaves()).sum(),
        }
    }

    /// The ways to all leaves, in order.
    pub fn paths(&self) -> Vec<LeafPath> {
        fn go(tree: &PyTree, path: &mut LeafPath, paths: &mut Vec<LeafPath>) {
            if *tree == PyTree::Leaf {
                paths.push(path.clone());
            }
            for (step, child) in tree.children() {
                path.push(step);
                go(child, path, paths);
                path.pop();
            }
        }
        let mut paths = Vec::new();
        go(self, &mut Vec::new(), &mut paths);
        paths
    }

    /// The structure whose leaves are at `paths`. Sequences become tuples, with `None` where no
    /// path leads; names become keys of dictionaries, in their order as texts, as Python's are.
    pub fn of(paths: &[LeafPath]) -> PyTree {
        fn go(paths: &[&[Step]]) -> PyTree {
            if paths.first().is_some_and(|path| path.is_empty()) {
                return PyTree::Leaf;
            }
            let mut groups = std::collections::BTreeMap::<&Step, Vec<&[Step]>>::new();
            for path in paths {
                groups.entry(&path[0]).or_default().push(&path[1..]);
            }
            let names = groups.keys().any(|step| matches!(step, Step::Name(_)));
            if names {
                let entry = |(step, below): (&Step, Vec<&[Step]>)| {
                    let name = match step {
                        Step::Index(index) => index.to_string(),
                        Step::Name(name) => name.clone(),
                    };
                    (name, go(&below))
                };
                return PyTree::Dict(groups.into_iter().map(entry).collect());
            }
            let mut children = Vec::new();
            for (step, below) in groups {
                if let Step::Index(index) = step {
                    children.resize(*index, PyTree::None);
                    children.push(go(&below));
                }
            }
            PyTree::Tuple(children)
        }
        go(&paths.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    fn write(&self, builder: &mut FlatBufferBuilder<'_>) -> Written {
        let kind = match self {
            PyTree::Leaf => 0,
            PyTree::None => 1,
            PyTree::Tuple(_) => 2,
            PyTree::List(_) => 3,
            PyTree::Dict(_) => 4,
            PyTree::Custom(..) => 5,
        };
        let children: Vec<Written> =
            self.children().into_iter().map(|(_, child)| child.write(builder)).collect();
        let mut fields = vec![(0, Field::U8(kind))];
        if !children.is_empty() {
            fields.push((1, schema::list(builder, &children)));
        }
        match self {
            PyTree::Dict(children) if !children.is_empty() => {
                let names: Vec<&str> = children.iter().map(|(name, _)| name.as_str()).collect();
                fields.push((2, schema::texts(builder, &names)));
            }
            PyTree::Custom(name, _) => fields.push((3, schema::text(builder, name))),
            _ => {}
        }
        schema::table(builder, &fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Artifact {
        let named = |name: &str, tree| (name.to_string(), tree);
        let inner = PyTree::Dict(vec![named("a", PyTree::Leaf), named("b", PyTree::None)]);
        let in_tree = PyTree::Tuple(vec![
            PyTree::List(vec![PyTree::Leaf, inner]),
            PyTree::Custom("Box".into(), vec![PyTree::Dict(vec![]), PyTree::Leaf]),
        ]);
        Artifact {
            name: "sample".into(),
            in_tree,
            in_types: [DType::F32, DType::BF16, DType::Bool]
                .map(|dtype| TensorType::new(dtype, [2, 30]))
                .into(),
            out_tree: PyTree::Leaf,
            out_types: vec![TensorType::scalar(DType::I32)],
            platforms: vec!["cpu".into(), "cuda".into()],
            any_platform: true,
            module: b"func.func public @main()".into(),
            kept: vec![0, 2],
        }
    }

    #[test]
    fn an_artifact_that_is_written_is_read_back() {
        let sample = sample();
        assert_eq!(Artifact::decode(&sample.encode()).unwrap(), sample);
        let plain = Artifact { any_platform: false, kept: vec![], ..sample };
        assert_eq!(Artifact::decode(&plain.encode()).unwrap(), plain);
    }

    /// Without the seal, whose checksum would find the damage, and at every address.
    #[test]
    fn no_damage_makes_the_reader_panic() {
        let sealed = sample().encode();
        let whole = &sealed[..sealed.len() - SEAL.len() - 32];
        assert_eq!(Artifact::decode(whole).unwrap(), sample());
        for length in 0..whole.len() {
            // The last bytes may be padding or the end of a text.
            let read = Artifact::decode(&whole[..length]);
            assert!(read.is_err() || length + 4 > whole.len(), "{length}");
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 4, 0x7f, 0x80, 0xff] {
                let mut damaged = whole.to_vec();
                damaged[at] = byte;
                let _ = Artifact::decode(&damaged);
            }
        }
        for offset in 1..8 {
            let mut moved = vec![0; offset];
            moved.extend_from_slice(whole);
            assert_eq!(Artifact::decode(&moved[offset..]).unwrap(), sample());
        }
    }

    /// Structures nested deeper than the reader goes are refused, and do not exhaust its stack.
    #[test]
    fn a_structure_nested_too_deeply_is_refused() {
        let nested = |depth| {
            let tree = (0..depth).fold(PyTree::Leaf, |tree, _| PyTree::Tuple(vec![tree]));
            let in_types = vec![TensorType::scalar(DType::F32)];
            Artifact::decode(
                &Artifact { in_tree: tree, in_types, kept: vec![], ..sample() }.encode(),
            )
        };
        assert!(nested(100).is_ok());
        for depth in [101, 200, 500] {
            let error = nested(depth).unwrap_err().to_string();
            assert!(error.contains("its structure is nested too deeply"), "{depth}: {error}");
        }
    }
}
