//! Runs the same functions compiled, operation by operation, and interpreted, and prints a table of times.
//!
//! You learn what each mode is for. `jit` compiles a whole function once and then launches it;
//! `eager` traces at every call and runs each operation on the device, as JAX does outside `jit`;
//! `interpret` runs on the host without XLA, and is the reference that the other two are tested against.
//!
//! ```sh
//! cargo run --release --example eager_vs_jit -- --repeats 100
//! ```

use std::time::{Duration, Instant};

use clap::Parser;
use podracer::jit::{Mode, jit};
use podracer::prelude::*;

/// Command line.
#[derive(Parser)]
struct Args {
    /// Timed calls of each function in each mode
    #[arg(long, default_value = "100")]
    repeats: usize,
}

/// About ten elementwise operations, which the compiler fuses into one loop over the memory.
fn gelu(x: Tensor) -> Tensor {
    x.gelu()
}

/// Self-attention of one head, without weights.
fn attention(x: Tensor) -> Tensor {
    let scores = x.matmul(x.t()) / (x.dim(-1) as f64).sqrt();
    scores.softmax(-1).matmul(x)
}

/// Derivative of the attention's squared norm.
fn attention_grad(x: Tensor) -> Tensor {
    grad(|x: Tensor| attention(x).square().sum(..))(x)
}

/// Twenty steps of a recurrent network. The loop is one operation of the program.
fn recurrence(x: Tensor) -> Tensor {
    fori_loop(0, 20, |_, h: Tensor| (h.matmul(x) * 0.1).tanh(), x)
}

type Function = fn(Tensor) -> Tensor;

/// A result, the time of the first call and the median time of the calls after it.
struct Measured {
    values: Vec<f32>,
    first: Duration,
    median: Duration,
}

fn measure(mode: Mode, f: Function, x: &Array, repeats: usize) -> Result<Measured> {
    let f = jit(f).with_mode(mode);
    let timed_call = || {
        let start = Instant::now();
        let y = f.call(x.clone())?;
        y.wait()?; // calls are asynchronous: they return when the work is queued
        Ok::<_, Error>((y, start.elapsed()))
    };
    let (y, first) = timed_call()?;
    let mut times = Vec::new();
    for _ in 0..repeats.max(1) {
        times.push(timed_call()?.1);
    }
    times.sort();
    Ok(Measured { values: y.to_vec()?, first, median: times[times.len() / 2] })
}

fn main() -> Result<()> {
    let args = Args::parse();
    let x = jit(|key| random::normal(key, [32, 32], DType::F32)).call(Key::new(0))?;
    let functions: [(&str, Function); 4] = [
        ("gelu", gelu),
        ("attention", attention),
        ("attention_grad", attention_grad),
        ("recurrence", recurrence),
    ];
    println!("median of {} calls on f32[32,32], in microseconds", args.repeats.max(1));
    println!(
        "{:15} {:>10} {:>10} {:>10} {:>10} {:>14} {:>12}",
        "function", "jit", "eager", "interpret", "eager/jit", "jit, 1st call", "difference"
    );
    for (name, f) in functions {
        let jit = measure(Mode::Jit, f, &x, args.repeats)?;
        let eager = measure(Mode::Eager, f, &x, args.repeats)?;
        let interpret = measure(Mode::Interpret, f, &x, args.repeats)?;
        let mut difference = 0.0f32;
        for (other, values) in [&eager, &interpret].map(|m| (&m.values, &jit.values)) {
            for (a, b) in other.iter().zip(values) {
                difference = difference.max((a - b).abs());
            }
        }
        let us = |time: Duration| 1e6 * time.as_secs_f64();
        println!(
            "{name:15} {:10.1} {:10.1} {:10.1} {:10.1} {:14.1} {difference:12.1e}",
            us(jit.median),
            us(eager.median),
            us(interpret.median),
            us(eager.median) / us(jit.median),
            us(jit.first),
        );
    }
    Ok(())
}
