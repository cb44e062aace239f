//! Gradient of the IMPALA network (Espeholt et al. 2018) on 128 images, and of its first max pooling alone;
//! beside JAX.
//!
//! `cargo bench --bench impala` measures Podracer alone; with `PODRACER_PEER_PYTHON=.../bin/python`, a Python
//! with JAX, each row is measured alternately with `benches/peers/jax_impala.py`.
//!
//! The network: three sequences of a 3 by 3 convolution, a 3 by 3 max pooling with stride 2 and two residual
//! blocks, with 16, 32 and 32 features; a dense layer of 256 units.

mod peer;

use std::time::Instant;

use peer::{Peer, Row};
use podracer::error::Result;
use podracer::nn::{ImpalaCnn, init, max_pool};
use podracer::random::Key;
use podracer::trace::op::Precision;
use podracer::trace::ops::{Padding, default_matmul_precision};
use podracer::{Array, DType, Tensor, grad, jit};

const BATCH: usize = 128;

/// Gradient of the mean square of the features of `u8[128,84,84,4]`.
fn network((network, images): (ImpalaCnn<Tensor>, Tensor)) -> ImpalaCnn<Tensor> {
    let images = images.to(DType::F32) / 255.0;
    grad(|network: ImpalaCnn<Tensor>| network.apply(images).square().mean(..))(network)
}

/// Gradient of the weighted sum of the maxima of `f32[128,84,84,16]`.
fn pooling((images, weights): (Tensor, Tensor)) -> Tensor {
    let loss = |x: Tensor| (max_pool(x, [3, 3], [2, 2], &Padding::Same) * weights).sum(..);
    grad(loss)(images)
}

/// Measures ours and the peer's alternately, in milliseconds.
fn measure(row: &str, mut run: impl FnMut() -> Result<()>, peer: &mut Peer) -> Result<()> {
    let mut line = Row::new(format!("{row}, ms"));
    run()?;
    for step in 0..10 {
        let start = Instant::now();
        run()?;
        line.ours(start.elapsed().as_secs_f64() * 1e3);
        if step < 5 {
            line.peer(peer, row);
        }
    }
    line.print();
    Ok(())
}

fn main() -> Result<()> {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("PODRACER_CACHE", "off") };
    let mut peer = Peer::start("jax_impala.py");
    Row::header();
    let numbers: Vec<f32> =
        (0..BATCH * 84 * 84 * 16).map(|i| (i * 7919 % 251) as f32 / 251.0).collect();
    let images = Array::new([BATCH, 84, 84, 16], &numbers)?;
    let weights = Array::new([BATCH, 42, 42, 16], &numbers[..BATCH * 42 * 42 * 16])?;
    let compiled = jit(pooling);
    measure("pooling", || compiled.call((images.clone(), weights.clone()))?.wait(), &mut peer)?;

    let bytes: Vec<u8> = (0..BATCH * 84 * 84 * 4).map(|i| (i * 7919 % 251) as u8).collect();
    let images = Array::new([BATCH, 84, 84, 4], &bytes)?;
    let start = |key: Key<Tensor>| {
        ImpalaCnn::init(key, [84, 84, 4], &[16, 32, 32], &[256], init::orthogonal(1.0))
    };
    let parameters = jit(start).call(Key::new(0))?;
    let compiled = jit(network);
    let run = || compiled.call((parameters.clone(), images.clone()))?.hidden[0].w.wait();
    measure("network", run, &mut peer)?;
    // Convolutions without Winograd's algorithm.
    let highest = |inputs| default_matmul_precision(Precision::Highest, || network(inputs));
    let compiled = jit(highest);
    let run = || compiled.call((parameters.clone(), images.clone()))?.hidden[0].w.wait();
    measure("network with direct convolutions", run, &mut Peer::none())
}
