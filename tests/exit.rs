//! The end of a process while its programs still compute on other threads: exit destroys what the
//! threads of the runtime use, so the process has to wait for them.
//!
//! This test has a `main` of its own, because the test harness launches nothing on the main thread.

use std::process::{Command, Stdio};

use podracer::nn::{Dense, init};
use podracer::random::Key;
use podracer::{Array, DType, Error, Tensor, jit, value_and_grad};

/// Ways in which a process ends, each tried several times.
const WAYS: [&str; 3] = ["return", "exit", "thread"];

fn main() -> Result<(), Error> {
    match std::env::args().nth(1).filter(|way| WAYS.contains(&way.as_str())) {
        Some(way) => end_while_computing(&way),
        None => {
            WAYS.iter().for_each(|way| run_children(way));
            Ok(())
        }
    }
}

fn run_children(way: &str) {
    for run in 0..8 {
        let mut process = Command::new(std::env::current_exe().expect("the path of this program"));
        let output = process.arg(way).stdin(Stdio::null()).output().expect("this program runs");
        let (status, text) = (output.status, String::from_utf8_lossy(&output.stderr));
        assert!(status.success(), "{way}, run {run}: {status}\n{text}");
    }
    println!("test a process ends by {way} while its programs compute ... ok");
}

fn end_while_computing(way: &str) -> Result<(), Error> {
    match way {
        "thread" => std::thread::spawn(launch).join().expect("no panic"),
        _ => launch(),
    }?;
    if way == "exit" {
        std::process::exit(0);
    }
    Ok(())
}

/// Launches a step of a small network, whose first run initializes parts of the plugin, and reads no
/// result.
fn launch() -> Result<(), Error> {
    let step = jit(|(key, x): (Key<Tensor>, Tensor)| {
        let dense = Dense::init(key, 4, 32, init::lecun_normal());
        value_and_grad(|dense: Dense<Tensor>| (dense.apply(x) * 2.0).sum(..))(dense)
    });
    step.call((Key::new(0), Array::zeros([8, 4], DType::F32))).map(drop)
}
