//! Format of checkpoints and saved models: named arrays in a safetensors file, with metadata as JSON. What
//! a run saves in it is in [`saved`].
//!
//! `NAME.safetensors` holds everything: the arrays, named by their paths in the tree, and the
//! metadata in its header. It is written to a temporary file and renamed, so that there is always a
//! complete checkpoint, either the old or the new one. `NAME.json` beside it is a copy of the
//! metadata for people and tools; loading does not read it.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::array::Array;
use crate::error::{Error, Result};
use crate::rl::files::{self, shown_error};
use crate::trace::Literal;
use crate::trace::types::{DType, TensorType};
use crate::tree::{self, Tree};

pub mod saved;
pub mod saved_spec;

/// Key of the metadata in the file's header.
const METADATA: &str = "podracer";
/// Key of the names of arrays whose bytes are integers of 4 bits, for which the format has no
/// element type.
const INT4: &str = "podracer.int4";
/// Largest header accepted, in bytes: the limit of the safetensors crate.
const MAX_HEADER: u64 = 100_000_000;
/// Maximum number of mismatched entries that an error lists.
const LISTED: usize = 10;

/// Saves every leaf of a tree under its path, with `metadata`.
///
/// # Errors
/// Returns the errors of [`save`], and errors of the computations that made the arrays.
pub fn save_tree<M: Tree<Array>>(
    path: impl AsRef<Path>,
    tree: &M,
    metadata: &impl Serialize,
) -> Result<()> {
    let values = tree::leaves(tree)
        .iter()
        .map(|leaf| Ok(leaf.to_literal()?.dense()))
        .collect::<Result<Vec<Literal>>>()?;
    let bytes: Vec<_> = values.iter().map(Literal::bytes).collect();
    let arrays: Vec<_> = tree::paths(tree)
        .into_iter()
        .zip(values.iter().zip(&bytes))
        .map(|(path, (value, bytes))| (path, value.ty().clone(), (**bytes).as_ref()))
        .collect();
    save(path, &arrays, metadata)
}

/// Saves named arrays and `metadata` to `path`, atomically replacing an existing file.
///
/// Each array is given as its name, type and bytes, as in the host's memory.
///
/// # Errors
/// [`Error::Io`] if a file cannot be written; [`Error::Argument`] if a name occurs twice, bytes do
/// not fit their type, or `metadata` does not serialize.
pub fn save(
    path: impl AsRef<Path>,
    arrays: &[(String, TensorType, &[u8])],
    metadata: &impl Serialize,
) -> Result<()> {
    let path = path.as_ref();
    let sidecar = path.with_extension("json");
    if sidecar == path {
        let problem = format!("{} is the place of the metadata's copy", path.display());
        return Err(Error::Argument(problem));
    }
    let json = serde_json::to_string_pretty(metadata).map_err(|error| {
        Error::Argument(format!("the metadata of {} is not JSON: {error}", path.display()))
    })?;
    // The widest elements come first, so that all are aligned; otherwise the order is the tree's.
    let mut arrays: Vec<&(String, TensorType, &[u8])> = arrays.iter().collect();
    arrays.sort_by_key(|(_, ty, _)| std::cmp::Reverse(ty.dtype.size()));
    let header = header(&arrays, &json)?;

    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Error::io("cannot create", parent))?;
    }
    replace(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        arrays.iter().try_for_each(|(_, _, data)| file.write_all(data))
    })?;
    replace(&sidecar, |file| writeln!(file, "{json}"))
}

/// Returns the safetensors header: names, types and offsets, padded so that the arrays are aligned.
fn header(arrays: &[&(String, TensorType, &[u8])], json: &str) -> Result<Vec<u8>> {
    let mut names = HashSet::new();
    let mut end = 0;
    let mut infos = Vec::with_capacity(arrays.len());
    for (name, ty, data) in arrays {
        if !names.insert(name) {
            return Err(Error::Argument(format!("{name} is in the checkpoint twice")));
        }
        if data.len() != ty.bytes() {
            let (given, needed) = (data.len(), ty.bytes());
            let problem = format!("{name} has {given} bytes, but {ty} takes {needed}");
            return Err(Error::Argument(problem));
        }
        let data_offsets = (end, end + data.len());
        end = data_offsets.1;
        let dtype = stored(ty.dtype).ok_or_else(|| {
            Error::Argument(format!("{name} is {ty}, which safetensors has no element type for"))
        })?;
        let shape = ty.shape.to_vec();
        infos.push((name.clone(), TensorInfo { dtype, shape, data_offsets }));
    }
    let mut metadata = HashMap::from([(METADATA.to_string(), json.to_string())]);
    let int4 = arrays.iter().filter(|(_, ty, _)| ty.dtype.is_int4());
    let int4: Vec<&str> = int4.map(|(name, ..)| name.as_str()).collect();
    if !int4.is_empty() {
        metadata.insert(INT4.to_string(), json!(int4).to_string());
    }
    let header = Metadata::new(Some(metadata), infos)
        .map_err(|error| error.to_string())
        .and_then(|header| serde_json::to_vec(&header).map_err(|error| error.to_string()));
    let mut header = header.map_err(|problem| {
        Error::Argument(format!("the arrays do not fit into a checkpoint: {problem}"))
    })?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

/// Writes a temporary file, syncs it to the disk, and renames it to `path`.
fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}.tmp", std::process::id()));
    let aside = PathBuf::from(aside);
    // Remove the file of a killed process with the same id, or a link that somebody put there.
    let _ = fs::remove_file(&aside);
    let written = File::create_new(&aside).and_then(|file| {
        let mut file = BufWriter::with_capacity(1 << 20, file);
        write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&aside, path)
    });
    if written.is_err() {
        // The temporary file is of no use; the first error is the one to report.
        let _ = fs::remove_file(&aside);
    }
    written.map_err(Error::io("cannot write", path))?;
    // The new name must reach the disk too. Not every system can sync a folder.
    if let Some(Ok(folder)) = path.parent().map(File::open) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// One array of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry<'a> {
    /// Path in the tree, as in `$.layers[0].w`.
    pub name: &'a str,
    /// Type of the array.
    pub ty: &'a TensorType,
    /// Bytes of the elements.
    pub data: &'a [u8],
}

/// A loaded checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    bytes: Vec<u8>,
    arrays: Vec<(String, TensorType, Range<usize>)>,
    metadata: String,
}

/// Loads the checkpoint at `path`.
///
/// Safetensors files from other programs are loaded too; their metadata is null.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read; [`Error::File`] if it is damaged, or has an
/// unsupported element type.
pub fn load(path: impl AsRef<Path>) -> Result<Checkpoint> {
    let path = path.as_ref();
    let bytes = files::read(path)?;
    let damaged = |problem: String| {
        let problem = shown_error(&problem);
        Error::File(format!(
            "{} is not a saved model or checkpoint (.safetensors), or not a whole one: {problem}",
            path.display()
        ))
    };
    let (header, info) =
        SafeTensors::read_metadata(&bytes).map_err(|error| damaged(error.to_string()))?;
    let start = size_of::<u64>() + header;
    let metadata = |key| info.metadata().as_ref().and_then(|map| map.get(key)).map(String::as_str);
    let int4: HashSet<String> = serde_json::from_str(metadata(INT4).unwrap_or("[]"))
        .map_err(|error| damaged(format!("the names of integers of 4 bits: {error}")))?;
    let mut arrays = Vec::new();
    for name in info.offset_keys() {
        let Some(TensorInfo { dtype, shape, data_offsets: (from, to) }) = info.info(&name) else {
            return Err(damaged(format!("{name} is listed and not there")));
        };
        let known = DType::ALL.into_iter().filter(|known| known.is_int4() == int4.contains(&name));
        let dtype =
            known.into_iter().find(|known| stored(*known) == Some(*dtype)).ok_or_else(|| {
                Error::File(format!("{}: {name} has elements {dtype:?}", path.display()))
            })?;
        let range = start + from..start + to;
        if !dtype.has_valid(&bytes[range.clone()]) {
            return Err(damaged(format!("{name} has a bool that is neither 0 nor 1")));
        }
        arrays.push((name, TensorType::new(dtype, shape), range));
    }
    let metadata = metadata(METADATA).unwrap_or("null").to_string();
    Ok(Checkpoint { path: path.to_path_buf(), bytes, arrays, metadata })
}

/// Loads the metadata of the checkpoint at `path` without its arrays.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read; [`Error::File`] if it is damaged, or if its
/// metadata is not an `M`.
pub(crate) fn load_metadata<M: DeserializeOwned>(path: impl AsRef<Path>) -> Result<M> {
    #[derive(serde::Deserialize)]
    struct Header {
        #[serde(default, rename = "__metadata__")]
        metadata: HashMap<String, String>,
    }
    let path = path.as_ref();
    let mut file = files::open_regular(path).map_err(Error::io("cannot read", path))?;
    let size = file.metadata().map_err(Error::io("cannot read", path))?.len();
    let mut length = [0; 8];
    let whole = file.read_exact(&mut length);
    let length = u64::from_le_bytes(length);
    let mut header = Vec::new();
    if whole.is_ok() && length < size && length <= MAX_HEADER {
        file.take(length).read_to_end(&mut header).map_err(Error::io("cannot read", path))?;
    }
    let header: Header = serde_json::from_slice(&header).map_err(|error| {
        let error = shown_error(&error);
        Error::File(format!(
            "{} is not a saved model or checkpoint (.safetensors), or not a whole one: {error}",
            path.display()
        ))
    })?;
    parse_metadata(path, header.metadata.get(METADATA).map_or("null", String::as_str))
}

fn parse_metadata<M: DeserializeOwned>(path: &Path, json: &str) -> Result<M> {
    serde_json::from_str(json).map_err(|error| {
        let (path, error) = (path.display(), shown_error(&error));
        Error::File(format!("the metadata of {path} is not as expected: {error}"))
    })
}

impl Checkpoint {
    /// Returns the arrays, in the order of the file.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.arrays.iter().map(|array| self.entry(array))
    }

    /// Returns the saved metadata.
    ///
    /// # Errors
    /// [`Error::File`] if it is not an `M`.
    pub fn metadata<M: DeserializeOwned>(&self) -> Result<M> {
        parse_metadata(&self.path, &self.metadata)
    }

    /// Returns the bytes of the arrays that a tree needs, in the tree's order.
    ///
    /// # Errors
    /// [`Error::File`] that lists by path the arrays that are missing, unexpected or of another
    /// type.
    pub fn expect(&self, expected: &[(String, TensorType)]) -> Result<Vec<&[u8]>> {
        let mut left: HashMap<&str, Entry<'_>> =
            self.entries().map(|entry| (entry.name, entry)).collect();
        let (mut found, mut problems) = (Vec::with_capacity(expected.len()), Vec::new());
        for (name, ty) in expected {
            match left.remove(name.as_str()) {
                Some(entry) if entry.ty == ty => found.push(entry.data),
                Some(entry) => {
                    problems.push(format!("{name} is {}, expected {ty}", entry.ty));
                }
                None => problems.push(format!("{name} is missing, expected {ty}")),
            }
        }
        let unexpected = self.entries().filter(|entry| left.contains_key(entry.name));
        problems.extend(unexpected.map(|e| format!("{} is {}, not expected", e.name, e.ty)));
        if problems.is_empty() {
            return Ok(found);
        }
        let mut message = format!("{} does not fit the model:", self.path.display());
        for problem in problems.iter().take(LISTED) {
            let _ = write!(message, "\n  {problem}");
        }
        if problems.len() > LISTED {
            let _ = write!(message, "\n  and {} more", problems.len() - LISTED);
        }
        message.push_str("\n  help: load it with the settings it was saved with");
        Err(Error::File(message))
    }

    fn entry<'a>(&'a self, array: &'a (String, TensorType, Range<usize>)) -> Entry<'a> {
        let (name, ty, range) = array;
        Entry { name, ty, data: &self.bytes[range.clone()] }
    }
}

/// Returns the safetensors element type, where there is one. An integer of 4 bits takes a byte.
fn stored(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::Bool => Dtype::BOOL,
        DType::I4 | DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U4 | DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::F8E4M3FN => Dtype::F8_E4M3,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::C64 => Dtype::C64,
        DType::C128 => return None,
    })
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    fn ty(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType::new(dtype, shape)
    }

    fn saved(dir: &tempfile::TempDir) -> PathBuf {
        let path = dir.path().join("run/model.safetensors");
        let arrays = [
            ("$.flags".to_string(), ty(DType::Bool, &[3]), &[0, 1, 0][..]),
            ("$.layers[0].w".to_string(), ty(DType::F32, &[1, 2]), &[1, 2, 3, 4, 5, 6, 7, 8]),
            ("$.layers[0].b".to_string(), ty(DType::F32, &[]), &[9; 4]),
            ("$.empty".to_string(), ty(DType::I64, &[0, 4]), &[]),
        ];
        save(&path, &arrays, &serde_json::json!({ "global_step": 128 })).unwrap();
        path
    }

    #[test]
    fn arrays_and_metadata_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = saved(&dir);
        let checkpoint = load(&path).unwrap();
        let names: Vec<&str> = checkpoint.entries().map(|entry| entry.name).collect();
        assert_eq!(names, ["$.empty", "$.layers[0].w", "$.layers[0].b", "$.flags"]);
        let expected = [
            ("$.layers[0].b".to_string(), ty(DType::F32, &[])),
            ("$.flags".to_string(), ty(DType::Bool, &[3])),
            ("$.empty".to_string(), ty(DType::I64, &[0, 4])),
            ("$.layers[0].w".to_string(), ty(DType::F32, &[1, 2])),
        ];
        let data = checkpoint.expect(&expected).unwrap();
        assert_eq!(data, [&[9; 4][..], &[0, 1, 0], &[], &[1, 2, 3, 4, 5, 6, 7, 8]]);

        let metadata: HashMap<String, u64> = checkpoint.metadata().unwrap();
        assert_eq!(metadata["global_step"], 128);
        assert!(checkpoint.metadata::<Vec<u64>>().is_err());
        let sidecar = fs::read_to_string(path.with_extension("json")).unwrap();
        assert_eq!(sidecar, "{\n  \"global_step\": 128\n}\n");

        // Saving again replaces the file and leaves no temporary file.
        save(&path, &[], &()).unwrap();
        assert_eq!(load(&path).unwrap().entries().count(), 0);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    }

    #[test]
    fn types_for_storage_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let narrow = [DType::F8E4M3FN, DType::F8E5M2, DType::I4, DType::U4, DType::I8, DType::U8];
        let arrays = narrow.map(|dtype| (format!("$.{dtype}"), ty(dtype, &[3]), &[1, 7, 3][..]));
        save(&path, &arrays, &()).unwrap();
        let expected = arrays.map(|(name, ty, _)| (name, ty));
        assert_eq!(load(&path).unwrap().expect(&expected).unwrap(), [&[1, 7, 3]; 6]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = saved(&dir);
        let expected = [
            ("$.layers[0].w".to_string(), ty(DType::F32, &[2, 1])),
            ("$.layers[0].b".to_string(), ty(DType::F64, &[])),
            ("$.flags".to_string(), ty(DType::Bool, &[3])),
            ("$.log_std".to_string(), ty(DType::F32, &[2])),
        ];
        let error = load(&path).unwrap().expect(&expected).unwrap_err().to_string();
        assert_eq!(
            error.strip_prefix(&path.display().to_string()).unwrap(),
            " does not fit the model:\n  $.layers[0].w is f32[1,2], expected f32[2,1]\n  \
             $.layers[0].b is f32[], expected f64[]\n  \
             $.log_std is missing, expected f32[2]\n  \
             $.empty is i64[0,4], not expected\n  \
             help: load it with the settings it was saved with"
        );
    }

    #[test]
    fn damaged_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = saved(&dir);
        let bytes = fs::read(&path).unwrap();
        let flag = bytes.len() - 2;
        let mut wrong_bool = bytes.clone();
        wrong_bool[flag] = 7;
        let mut wrong_header = bytes.clone();
        wrong_header[9] ^= 0xff;
        for damaged in [&bytes[..bytes.len() - 1], &bytes[..5], &[], &wrong_bool, &wrong_header] {
            fs::write(&path, damaged).unwrap();
            let error = load(&path).unwrap_err().to_string();
            assert!(error.contains("is not a saved model or checkpoint"), "{error}");
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(load(&path), Err(Error::Io { .. })));
    }

    #[test]
    fn mistakes_of_the_caller_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let scalar = |data| ("$.w".to_string(), ty(DType::U8, &[]), data);
        let twice = save(&path, &[scalar(&[1][..]), scalar(&[1][..])], &()).unwrap_err();
        assert_eq!(twice.to_string(), "$.w is in the checkpoint twice");
        let short = save(&path, &[scalar(&[][..])], &()).unwrap_err();
        assert_eq!(short.to_string(), "$.w has 0 bytes, but u8[] takes 1");
        assert!(!path.exists());
        let json = save(path.with_extension("json"), &[], &()).unwrap_err();
        assert!(json.to_string().ends_with("is the place of the metadata's copy"), "{json}");
    }
}
