//! Cost of one callback in a compiled loop: the time of a scan whose body makes a call, less that
//! of the same scan without it, by the number of turns.
//!
//! `cargo bench --bench callbacks`. Microseconds per call; the median of fifteen rounds.

use std::time::Instant;

use podracer::error::Result;
use podracer::trace::callback::{CallbackKind, HostFn};
use podracer::trace::control::{ScanOptions, scan_with};
use podracer::{
    Array, DType, Literal, Tensor, debug_callback, io_callback, jit, pure_callback, raw_callback,
};

const TURNS: usize = 10_000;
const ROUNDS: usize = 15;

/// Microseconds of a turn of `body`.
fn step(size: usize, body: impl Fn(Tensor) -> Tensor) -> Result<f64> {
    let f = jit(|x: Tensor| {
        scan_with(|c: Tensor, ()| (body(c), ()), x, (), ScanOptions::length(TURNS)).0
    });
    let x = Array::zeros([size], DType::F32);
    f.call(x.clone())?.wait()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        f.call(x.clone())?.wait()?;
        times.push(start.elapsed().as_secs_f64() / TURNS as f64 * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

fn raw(x: Tensor) -> Tensor {
    let f = HostFn::new("copy", std::panic::Location::caller(), |operands, results| {
        results[0].bytes.copy_from_slice(operands[0].bytes);
        Ok(())
    });
    raw_callback(f, CallbackKind::io(true), vec![x.ty()], &[x])[0]
}

fn main() -> Result<()> {
    println!("microseconds per call, by the number of f32 in and out");
    println!("{:>8} {:>8} {:>8} {:>8} {:>8}", "f32", "pure", "io", "debug", "raw io");
    for size in [1, 64, 1024, 65_536] {
        let none = step(size, |x| x + 1.0)?;
        let pure = step(size, |x| pure_callback(Ok, x.ty(), x) + 1.0)?;
        let io = step(size, |x| io_callback(Ok, x.ty(), true, x) + 1.0)?;
        let debug = step(size, |x| {
            debug_callback(|_: Literal| {}, x);
            x + 1.0
        })?;
        let raw = step(size, |x| raw(x) + 1.0)?;
        let [pure, io, debug, raw] = [pure, io, debug, raw].map(|time| time - none);
        println!("{size:>8} {pure:>8.2} {io:>8.2} {debug:>8.2} {raw:>8.2}");
    }
    Ok(())
}
