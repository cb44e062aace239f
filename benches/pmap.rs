//! Data-parallel training by `pmap` on CPU devices beside JAX's, and what a call costs beside the
//! bare execution of its program.
//!
//! `cargo bench --bench pmap`; with `PODRACER_PEER_PYTHON=.../bin/python`, a Python with jax, the
//! steps are measured alternately with `benches/peers/jax_pmap.py`. Milliseconds a step, microseconds
//! a call.

mod peer;

use std::time::Instant;

use peer::{Peer, Row};
use podracer::error::Result;
use podracer::lower::pjrt::{Buffer, CompileOptions};
use podracer::lower::stablehlo::{LowerOptions, stablehlo};
use podracer::nn::{Activation, Mlp, init};
use podracer::optim::{Adam, AdamState};
use podracer::runtime::{Runtime, RuntimeOptions};
use podracer::{
    Array, DType, Key, Tensor, TensorType, jit, pmap, pmean, psum, random, replicate, shard,
    value_and_grad,
};

const ROUNDS: usize = 15;
const BATCH: usize = 4096;

type Network = Mlp<Tensor>;
type State = (Network, AdamState<Tensor, Network>);
type Batch = (Tensor, Tensor);

const ADAM: Adam =
    Adam { learning_rate: 1e-3, b1: 0.9, b2: 0.999, eps: 1e-3, eps_root: 0.0, weight_decay: 0.0 };

fn steps(devices: &[usize], peer: &mut Peer) -> Result<()> {
    let n = devices.len();
    let start = jit(|key: Key<Tensor>| {
        let [network, x, y]: [Key<Tensor>; 3] = key.split_n();
        let gain = init::lecun_normal();
        let network = Mlp::init_with(network, &[32, 256, 256, 8], Activation::Tanh, gain, gain);
        let adam = ADAM.init(&network);
        let x = random::normal(x, [BATCH, 32], DType::F32);
        ((network, adam), (x, random::normal(y, [BATCH, 8], DType::F32)))
    });
    let (state, batch) = start.call(Key::new(0))?;
    let step = pmap("devices", |axis, ((network, adam), (x, y)): (State, Batch)| {
        let loss = |network: Network| (network.apply(x) - y).square().mean(..);
        let (loss, grads) = pmean(value_and_grad(loss)(network.clone()), axis);
        (ADAM.step(network, grads, adam), loss)
    });
    let mut state = Some(replicate(&state, devices)?);
    let batch = shard(&batch, devices)?;
    let mut run = |count: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..count {
            // The state is moved in, and its memory used again.
            let taken = state.take().expect("put back below");
            let (next, loss) = step.call((taken, batch.clone()))?;
            loss.wait()?;
            state = Some(next);
        }
        Ok(start.elapsed().as_secs_f64() / count as f64 * 1e3)
    };
    run(3)?;
    let mut row = Row::new(format!("step on {n} devices, ms"));
    for _ in 0..ROUNDS {
        row.ours(run(10)?);
        row.peer(peer, &n.to_string());
    }
    row.print();
    Ok(())
}

/// Eight leaves through a program that does next to nothing: the call itself.
fn calls(devices: &[usize]) -> Result<()> {
    let n = devices.len();
    let f = pmap("devices", |axis, x: Vec<Tensor>| psum(x, axis));
    let host: Vec<Array> = (0..8).map(|_| Array::zeros([n, 16], DType::F32)).collect();
    let x = shard(&host, devices)?;
    let program = f.make_program(&x)?;
    let client = &Runtime::get()?.client;
    let options = LowerOptions { num_replicas: n, ..Runtime::get()?.lower_options(&program) };
    let compile = CompileOptions {
        num_replicas: n,
        device_assignment: Some(devices.iter().map(|&d| client.devices()[d].id).collect()),
        ..CompileOptions::default()
    };
    let bare = client.compile(&stablehlo(&program, &options), &compile)?;
    let ty = TensorType::new(DType::F32, [1, 16]);
    let zeros = vec![0u8; ty.bytes()];
    let mut buffers: Vec<Vec<Buffer>> = Vec::new();
    for &device in devices {
        let row = (0..8).map(|_| client.buffer_from_host(&zeros, &ty, device));
        buffers.push(row.collect::<Result<_>>()?);
    }
    let args: Vec<Vec<&Buffer>> = buffers.iter().map(|row| row.iter().collect()).collect();
    let mut bare_row = Row::new(format!("call on {n} devices, bare execution, us"));
    let mut row = Row::new(format!("call on {n} devices, us"));
    const CALLS: usize = 200;
    for round in 0..=ROUNDS {
        let start = Instant::now();
        for _ in 0..CALLS {
            let mut outputs: Vec<Vec<Buffer>> = (0..n).map(|_| Vec::with_capacity(8)).collect();
            bare.execute_sharded(&args, &[], &mut outputs)?;
            outputs[0][0].wait()?;
        }
        let between = Instant::now();
        for _ in 0..CALLS {
            f.call(x.clone())?[0].shards()[0].wait()?;
        }
        // The first round compiles.
        if round > 0 {
            bare_row.ours((between - start).as_secs_f64() / CALLS as f64 * 1e6);
            row.ours(between.elapsed().as_secs_f64() / CALLS as f64 * 1e6);
        }
    }
    bare_row.print();
    row.print();
    Ok(())
}

fn main() -> Result<()> {
    Runtime::start(RuntimeOptions::with_cpu_devices(8))?;
    let mut peer = Peer::start("jax_pmap.py");
    Row::header();
    for n in [2, 4, 8] {
        steps(&(0..n).collect::<Vec<usize>>(), &mut peer)?;
    }
    for n in [2, 4, 8] {
        calls(&(0..n).collect::<Vec<usize>>())?;
    }
    Ok(())
}
