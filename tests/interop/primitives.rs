//! Every primitive of JAX is converted by `tools/jax_to_podracer.py`, with JAX's values and
//! derivatives, or refused with advice (`primitives.py`).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use podracer::jit::run_program;
use podracer::{Array, LoadedProgram, Mode, Program, Result, Tensor, grad, interpret, jit};

use super::{array, numbers, peers};

/// Arguments, results, and the gradient of the sum of all results by the first argument. Numbers are
/// texts, since JSON has no NaN.
#[derive(serde::Deserialize)]
struct Values {
    r#in: Vec<Vec<String>>,
    out: Vec<Vec<String>>,
    grad: Vec<Vec<String>>,
}

fn parsed(texts: &[Vec<String>]) -> Vec<Vec<f64>> {
    let row =
        |texts: &Vec<String>| texts.iter().map(|text| text.parse().expect("a number")).collect();
    texts.iter().map(row).collect()
}

fn script(args: &[&std::ffi::OsStr]) -> bool {
    let Some(python) = peers::python("PODRACER_PEER_PYTHON") else { return false };
    let status = Command::new(python).arg("tests/interop/primitives.py").args(args).status();
    assert!(status.expect("PODRACER_PEER_PYTHON can be run").success());
    true
}

#[test]
fn every_primitive_of_jax_is_converted_or_refused() {
    script(&["check".as_ref()]);
}

/// The largest difference, relative to numbers greater than 1.
fn difference(found: &[Vec<f64>], expected: &[Vec<f64>]) -> f64 {
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), lengths(expected));
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    let one = |(x, y): (&f64, &f64)| match x == y || (x.is_nan() && y.is_nan()) {
        true => 0.0,
        false => (x - y).abs() / y.abs().max(1.0),
    };
    // A NaN is larger than every number.
    pairs.map(one).fold(0.0, |worst, x| if x > worst || x.is_nan() { x } else { worst })
}

fn lengths(values: &[Vec<f64>]) -> Vec<usize> {
    values.iter().map(Vec::len).collect()
}

fn results(program: &LoadedProgram, args: &[Array], mode: Mode) -> Result<Vec<Vec<f64>>> {
    Ok(numbers(&run_program(program.program(), args, mode)?))
}

fn gradient(program: &LoadedProgram, args: &[Array], mode: Mode) -> Result<Vec<Vec<f64>>> {
    let slope = |args: Vec<Tensor>| {
        let total = |x: Tensor| {
            let all = [x].into_iter().chain(args[1..].iter().copied()).collect::<Vec<_>>();
            let sums = program.call(all).into_iter().map(|y| y.sum(..));
            sums.reduce(|a, b| a + b).expect("a result")
        };
        grad(total)(args[0])
    };
    let slope: &dyn Fn(Vec<Tensor>) -> Tensor = &slope;
    let found = match mode {
        Mode::Interpret => interpret(slope).call(args.to_vec())?,
        _ => jit(slope).call(args.to_vec())?,
    };
    Ok(numbers(&[found]))
}

#[test]
fn converted_functions_have_the_values_and_derivatives_of_jax() {
    let dir = tempfile::tempdir().unwrap();
    if !script(&["write".as_ref(), dir.path().as_ref()]) {
        return;
    }
    let text = std::fs::read_to_string(dir.path().join("values.json")).unwrap();
    let values: BTreeMap<String, Values> = serde_json::from_str(&text).unwrap();
    let mut faults = Vec::new();
    for (name, values) in &values {
        for (what, result) in compared(dir.path(), name, values) {
            match result {
                Ok(difference) if difference <= 1e-8 => {
                    println!("{name}, {what}: {difference:.1e}")
                }
                Ok(difference) => {
                    faults.push(format!("{name}, {what}: differs by {difference:.1e}"))
                }
                Err(error) => faults.push(format!("{name}, {what}: {error}")),
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn compared(folder: &Path, name: &str, values: &Values) -> Vec<(String, Result<f64>)> {
    let program = match Program::load(folder.join(format!("{name}.txt"))) {
        Ok(program) => program,
        Err(error) => return vec![("file".into(), Err(error))],
    };
    let types = program.program().input_types();
    let args: Vec<Array> = types.zip(parsed(&values.r#in)).map(|(ty, x)| array(ty, &x)).collect();
    let mut all = Vec::new();
    for mode in [Mode::Interpret, Mode::Jit] {
        let found = results(&program, &args, mode);
        all.push((format!("{mode}"), found.map(|found| difference(&found, &parsed(&values.out)))));
        if !values.grad.is_empty() {
            let found = gradient(&program, &args, mode);
            all.push((
                format!("{mode}, grad"),
                found.map(|found| difference(&found, &parsed(&values.grad))),
            ));
        }
    }
    all
}
