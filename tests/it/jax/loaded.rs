//! Programs that `tools/jax_to_podracer.py` wrote of JAX functions, one for each group of
//! primitives, against JAX's own results (`tests/fixtures/jax/programs/make.py`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use podracer::jit::run_program;
use podracer::tree::Tree;
use podracer::{
    Array, Error, Literal, LoadedProgram, Mode, Program, Result, Tensor, grad, interpret, jit, vmap,
};

use crate::fixture::{Kinds, compare, read};
use crate::peers;

const FOLDER: &str = "tests/fixtures/jax/programs";

fn load(name: &str) -> LoadedProgram {
    Program::load(format!("{FOLDER}/{name}.txt")).unwrap()
}

fn values() -> BTreeMap<String, Kinds> {
    read(&format!("{FOLDER}/values.safetensors"))
}

fn arrays(literals: &[Literal]) -> Vec<Array> {
    literals.iter().cloned().map(Array::from).collect()
}

fn literals(arrays: Vec<Array>) -> Vec<Literal> {
    arrays.iter().map(|array| array.to_literal().unwrap()).collect()
}

#[test]
fn values_are_those_of_jax() {
    let mut faults = Vec::new();
    let values = values();
    for (name, kinds) in &values {
        let inputs = kinds.get("in").map_or(vec![], |inputs| arrays(inputs));
        let program = load(name);
        for mode in [Mode::Interpret, Mode::Jit] {
            let results = run_program(program.program(), &inputs, mode).map(literals);
            let compared = match results {
                Ok(found) => compare(&found, &kinds["out"]),
                Err(error) => Err(error.to_string()),
            };
            if let Err(difference) = compared {
                faults.push(format!("{name}, {mode}: {difference}"));
            }
        }
    }
    assert!(values.len() >= 15, "{} functions", values.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Each function over a batch of three: the function of each, stacked.
#[test]
fn a_loaded_program_maps_over_a_batch() {
    let mut faults = Vec::new();
    for (name, kinds) in values() {
        let program = load(&name);
        let inputs = kinds.get("in").cloned().unwrap_or_default();
        let stacked = |x: &Literal| {
            let ty = x.ty();
            let bytes = (*x.bytes()).as_ref().repeat(3);
            let shape = ty.shape.with_axis(0, 3);
            let bytes = podracer::trace::literal::AlignedBytes::copy_of(&bytes);
            Literal::from_bytes(podracer::TensorType::new(ty.dtype, shape), bytes)
        };
        let batch = arrays(&inputs.iter().map(stacked).collect::<Vec<_>>());
        let mapped = interpret(|x: Vec<Tensor>| vmap(|x: Vec<Tensor>| program.call(x))(x));
        let found = literals(mapped.call(batch).unwrap());
        let expected: Vec<Literal> = kinds["out"].iter().map(stacked).collect();
        if let Err(difference) = compare(&found, &expected) {
            faults.push(format!("{name}: {difference}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The rules of `custom_jvp`, `custom_vjp` and of primitives are JAX's: the derivative of relu at 0 is 0.
#[test]
fn a_loaded_program_is_differentiated_by_the_rules_of_jax() {
    for name in ["smooth", "own_derivatives"] {
        let function = load(name);
        let kinds = &values()[name];
        let x = Array::from(kinds["in"][0].clone());
        let slope = |x: Tensor| grad(|x: Tensor| function.call(x)[0])(x);
        for found in [jit(slope).call(x.clone()), interpret(slope).call(x.clone())] {
            let found = found.unwrap().to_literal().unwrap();
            compare(&[found], &kinds["grad"]).unwrap();
        }
    }
}

#[test]
fn a_loaded_program_is_native_inside_a_loop() {
    let elementary = load("rounding");
    let twice = jit(|(s, x): (Tensor, Tensor)| {
        let body = |x: Tensor, ()| {
            let clipped = elementary.call((s, x))[13];
            (clipped * 2.0, clipped)
        };
        scan_two(body, x)
    });
    let s = Array::from([0.0f32; 8]);
    let x = Array::new([3, 4], &[0.25f32; 12]).unwrap();
    let (last, outputs) = twice.call((s, x)).unwrap();
    assert_eq!(last.to_vec::<f32>().unwrap(), [1.0; 12]);
    assert_eq!(outputs.to_vec::<f32>().unwrap()[..12], [0.25; 12]);
}

fn scan_two<Y: Tree<Tensor>>(
    body: impl Fn(Tensor, ()) -> (Tensor, Y),
    init: Tensor,
) -> (Tensor, Y) {
    podracer::scan_with(body, init, (), podracer::ScanOptions::length(2))
}

#[test]
fn arguments_and_results_have_the_names_of_the_pytree() {
    let network = load("network");
    assert_eq!(network.inputs(), ["params['b']", "params['w']", "x"]);
    assert_eq!(network.outputs(), ["result['x']", "result['y']"]);
    let call = |args: Vec<Array>| {
        let error = interpret(|args: Vec<Tensor>| network.call(args)).call(args).unwrap_err();
        error.to_string()
    };
    let [b, w, x] =
        [&[3][..], &[2, 3], &[2]].map(|shape| Array::zeros(shape, podracer::DType::F32));
    let error = call(vec![w.clone(), b.clone(), x.clone()]);
    assert!(
        error.contains("network.txt takes params['b'] as f32[3], and was given f32[2,3]"),
        "{error}"
    );
    let error = call(vec![b, w]);
    assert!(error.contains("takes 3 tensors, and was given 2: it takes (params['b']: f32[3], params['w']: f32[2,3], x: f32[2])"), "{error}");
}

/// A file in a folder of its own.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, content: &[u8]) -> TempFile {
        let path = std::env::temp_dir().join(format!("podracer-{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        TempFile(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn files_that_are_no_programs_are_refused_with_the_line() {
    let program = "{ lambda a:f32[]. let\n  b:f32[] = sin a\n in (b) }\n";
    let file = TempFile::new("good.txt", program.as_bytes());
    let loaded = Program::load(&file.0).unwrap();
    assert_eq!(
        (loaded.inputs(), loaded.outputs()),
        (&["inputs[0]".into()][..], &["outputs[0]".into()][..])
    );
    let with = |header: &str| format!("# podracer program {header}\n{program}");
    let callback =
        "{ lambda a:f32[]. let\n  b:f32[] = pure_callback[id=0 vmap=sequential] a\n in (b) }";
    for (content, part) in [
        (
            program.replace("sin", "sine").as_str(),
            "line 2, column 13: expected an operation, found `sine`",
        ),
        (
            &program.replace("b:f32[] =", "b:f32[2] ="),
            "line 2, column 3: sin gives f32[], not f32[2]",
        ),
        (&program[..30], "line 2, column"),
        (&with("{"), "line 1: the header is no JSON"),
        (
            &with("{\"version\": 2}"),
            "line 1: version 2 of the header; this Podracer reads version 1",
        ),
        (&with("{}"), "line 1: version none of the header"),
        (
            &with("{\"version\": 1, \"inputs\": [\"x\", \"y\"]}"),
            "line 1: 2 names of inputs for a Program with 1",
        ),
        (&with("{\"version\": 1, \"outputs\": 3}"), "line 1: outputs must be a list of names"),
        (callback, "there is no function 0"),
        (&format!("{}{}", "[".repeat(100_000), program), "line 1, column 1: expected `{`"),
    ] {
        let file = TempFile::new("bad.txt", content.as_bytes());
        let error = Program::load(&file.0).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("bad.txt: "), "{error}");
    }
    let file = TempFile::new("bytes.txt", b"{ lambda\xff");
    let error = Program::load(&file.0).unwrap_err().to_string();
    assert!(error.contains("bytes.txt: no text of a Program: byte 8 is not UTF-8"), "{error}");
    let error = Program::load("no/such/file.txt").unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
}

/// The script, run on the functions of `make.py`, writes the files that are committed.
#[test]
fn the_script_writes_the_committed_files() -> Result<()> {
    let Some(python) = peers::python("PODRACER_PEER_PYTHON") else { return Ok(()) };
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(python)
        .arg(Path::new(FOLDER).join("make.py"))
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in values().keys().map(String::as_str).chain(["corridor/reset", "corridor/step"]) {
        let read =
            |folder: &Path| std::fs::read_to_string(folder.join(format!("{name}.txt"))).unwrap();
        assert!(read(folder.path()) == read(Path::new(FOLDER)), "{name}.txt differs: run make.py");
    }
    Ok(())
}

/// A primitive without an operation here is an error with its name, advice and the user's line.
#[test]
fn the_script_refuses_by_name_and_line() {
    let Some(python) = peers::python("PODRACER_PEER_PYTHON") else { return };
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools");
    let script = "import sys\nsys.path.insert(0, sys.argv[1])\nimport jax, jax.numpy as jnp\n\
                  from jax_to_podracer import text\n\
                  def spectrum(x):\n    y = x + 1\n    return jax.scipy.linalg.schur(y[:, None] * y)\n\
                  def called(x):\n    return jax.pure_callback(lambda y: y, x, x)\n\
                  for f in (spectrum, called):\n    \
                      try:\n        text(f, jnp.zeros(4))\n    \
                      except Exception as error:\n        print(type(error).__name__, error)\n";
    let file = TempFile::new("refused.py", script.as_bytes());
    let output = Command::new(python).arg(&file.0).arg(tools).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let path = file.0.display();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "Unsupported the Schur form of a real matrix is not supported; use that of a complex one",
            &format!("  at {path}:7 (spectrum)"),
            "Unsupported the primitive pure_callback is not supported: a program cannot call the host. \
             Write the function in jax.numpy, give its result as an argument, or call \
             podracer::pure_callback or io_callback around the program",
            &format!("  at {path}:9 (called)"),
        ],
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
