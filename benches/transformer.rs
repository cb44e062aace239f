//! The training step of examples/transformer.rs beside JAX's, in milliseconds.
//!
//! `cargo bench --bench transformer`; with `PODRACER_PEER_PYTHON=.../bin/python`, a Python with jax and optax,
//! each row is measured alternately with `benches/peers/jax_transformer.py`.

mod peer;
#[allow(dead_code, missing_docs)] // The example's `main` is not called.
#[path = "../examples/transformer.rs"]
mod transformer;

use std::time::Instant;

use clap::Parser;
use peer::{Peer, Row};
use podracer::error::Result;
use podracer::runtime::{Runtime, RuntimeOptions};
use podracer::{DType, Key, P, Tensor, device_put, jit, make_mesh, random, shard_map, sharded_jit};
use transformer::{Args, init_state, train_step};

const ROUNDS: usize = 15;
const CALLS: usize = 3;

/// Measures the step on `devices` devices with the flags of the example.
fn measure(peer: &mut Peer, name: &str, devices: usize, flags: &[&str]) -> Result<()> {
    let args = Args::parse_from(["transformer"].iter().chain(flags));
    let mesh = make_mesh(&[devices], &["data"])?;
    let step = |(state, tokens)| train_step(state, tokens, &args);
    let step = sharded_jit(shard_map(step, &mesh, (P(()), P("data")), P(())));
    let init = jit(|key: Key<Tensor>| {
        let (state_key, key) = key.split();
        let shape = [args.batch_size, args.length + 1];
        (init_state(state_key, &args), random::randint(key, shape, 0, 256, DType::I32))
    });
    let arguments = init.call(Key::new(1))?;
    let (state, tokens) = device_put(&arguments, (&mesh, (P(()), P("data"))))?;
    let mut state = Some(state);
    let mut call = |times: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..times {
            // As one trains: the next call takes the state over, and its memory.
            let taken = state.take().expect("the last call's");
            let (next, loss) = step.call((taken, tokens.clone()))?;
            loss.wait()?;
            state = Some(next);
        }
        Ok(start.elapsed().as_secs_f64() / times as f64 * 1e3)
    };
    call(3)?;
    let mut row = Row::new(name);
    for _ in 0..ROUNDS {
        row.ours(call(CALLS)?);
        row.peer(peer, name);
    }
    row.print();
    Ok(())
}

fn main() -> Result<()> {
    Runtime::start(RuntimeOptions::with_cpu_devices(2))?;
    let mut peer = Peer::start("jax_transformer.py");
    Row::header();
    // The name of a row is the question to the peer.
    for (name, devices, flags) in [
        ("f32 1 device", 1, &[][..]),
        ("f32 2 devices", 2, &[]),
        ("f32 2 devices no-dropout", 2, &["--dropout", "0"]),
        ("f32 2 devices remat", 2, &["--remat"]),
        ("bf16 2 devices", 2, &["--bf16"]),
        ("bf16 2 devices no-dropout", 2, &["--bf16", "--dropout", "0"]),
        ("bf16 2 devices remat", 2, &["--bf16", "--remat"]),
        ("f32 2 devices remat no-dropout", 2, &["--remat", "--dropout", "0"]),
        ("bf16 2 devices remat no-dropout", 2, &["--bf16", "--remat", "--dropout", "0"]),
    ] {
        measure(&mut peer, name, devices, flags)?;
    }
    Ok(())
}
