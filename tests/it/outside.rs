//! Output of programs that use the library wrongly in `main`: an operation outside a trace panics
//! with a readable message, and an error that `main` returns prints its text.
//!
//! Each case is an ignored test that a child process runs alone.

use std::cell::Cell;
use std::process::{Command, Termination};

use podracer::random::Key;
use podracer::trace::ops::{constant, zeros};
use podracer::{Array, DType, Tensor, interpret, make_program};

/// The standard error stream and the exit status of one case of this file.
fn stderr_of(case: &str) -> (i32, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("outside::{case}"), "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let status = output.status.code().expect("the child exits by itself");
    (status, String::from_utf8(output.stderr).unwrap())
}

#[test]
#[ignore = "run by a_tensor_operation_outside_a_trace_panics_with_its_message"]
fn arithmetic() {
    let _ = zeros([2], DType::F32) + 1.0;
}

#[test]
#[ignore = "run by a_tensor_operation_outside_a_trace_panics_with_its_message"]
fn key() {
    Key::constant(0);
}

#[test]
#[ignore = "run by a_tensor_operation_outside_a_trace_panics_with_its_message"]
fn literal() {
    constant(1.0f32);
}

#[test]
#[ignore = "run by a_tensor_operation_outside_a_trace_panics_with_its_message"]
fn leaked_operand() {
    let _ = leak() + 1.0;
}

#[test]
#[ignore = "run by a_tensor_operation_outside_a_trace_panics_with_its_message"]
fn leaked_type() {
    leak().ty();
}

#[test]
#[ignore = "run by a_tensor_operation_outside_a_trace_panics_with_its_message"]
fn another_thread() {
    let f = |x: Tensor| {
        std::thread::scope(|scope| {
            let _ = scope.spawn(|| zeros([2], DType::F32)).join();
        });
        x
    };
    make_program(f, &Array::from(1.0f32)).unwrap();
    panic!("the trace around the thread goes on");
}

/// A tensor of a trace that has ended.
fn leak() -> Tensor {
    let leak = Cell::new(None);
    let keep = |x: Tensor| {
        leak.set(Some(x));
        x
    };
    make_program(keep, &Array::from(1.0f32)).unwrap();
    leak.get().unwrap()
}

#[test]
fn a_tensor_operation_outside_a_trace_panics_with_its_message() {
    let outside = [
        ": a tensor operation outside a trace",
        "a function given to jit, eager or interpret",
        "Array::from",
    ];
    let leaked = ["a tensor is used outside the trace that made it", "return it from the traced"];
    let cases = [
        ("arithmetic", &outside[..]),
        ("key", &outside),
        ("literal", &outside),
        ("another_thread", &outside),
        ("leaked_operand", &leaked),
        ("leaked_type", &leaked),
    ];
    for (case, parts) in cases {
        let (status, text) = stderr_of(case);
        assert_eq!(status, 101, "{case}: {text}");
        for part in parts {
            assert!(text.contains(part), "{case}: {part} in\n{text}");
        }
        assert!(text.contains("--> tests/it/outside.rs:"), "{case}: {text}");
    }
}

/// The form of README.md's `fn main() -> podracer::Result<()>`.
fn main_of_a_user() -> podracer::Result<()> {
    interpret(|x: Tensor| x + zeros([3], DType::F32)).call(Array::from([1.0f32, 2.0]))?;
    Ok(())
}

#[test]
#[ignore = "run by an_error_that_main_returns_is_readable"]
fn returned() {
    let _ = main_of_a_user().report();
}

#[test]
fn an_error_that_main_returns_is_readable() {
    let (_, text) = stderr_of("returned");
    let error = main_of_a_user().unwrap_err();
    assert!(text.contains(&format!("Error: {error}\n")), "{text}");
    assert!(error.to_string().starts_with("add: shapes do not broadcast"), "{error}");
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(format!("{error:#?}").starts_with("Trace(\n"), "{error:#?}");
}
