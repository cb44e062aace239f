//! Cost of our share of a compilation: running the function on tensors, simplifying the Program,
//! writing StableHLO text; beside JAX's tracing and lowering to the same kind of text.
//!
//! `cargo bench --bench trace`; with `PODRACER_PEER_PYTHON=.../bin/python`, a Python with jax, each
//! row is measured alternately with `benches/peers/jax_trace.py`. Milliseconds; at the end, what a span
//! of the timeline costs.

mod peer;

use std::hint::black_box;
use std::time::Instant;

use peer::{Peer, Row};
use podracer::error::Result;
use podracer::lower::{LowerOptions, stablehlo};
use podracer::nn::{Activation, LstmCell, Mlp, init};
use podracer::random::Key;
use podracer::trace::control::scan;
use podracer::trace::graph::simplify;
use podracer::trace::ops::zeros_like;
use podracer::{
    Array, DType, Tensor, Tree, grad, interpret, jit, make_program, timeline, tree, vmap,
};

const ROUNDS: usize = 11;

fn milliseconds(f: impl FnOnce()) -> f64 {
    let start = Instant::now();
    f();
    start.elapsed().as_secs_f64() * 1e3
}

/// Rows of each stage, and of all together beside the peer.
fn measure<A: Tree<Tensor>, B: Tree<Tensor>>(
    peer: &mut Peer,
    name: &str,
    f: impl Fn(A) -> B + Copy,
    args: &A::With<Array>,
) -> Result<()> {
    let whole = jit(f);
    let (mut trace, mut passes) = (Row::new(format!("{name}: trace")), Row::new("  passes"));
    let (mut text, mut all) = (Row::new("  text"), Row::new(format!("{name}: in all")));
    for _ in 0..ROUNDS {
        let mut program = None;
        trace.ours(milliseconds(|| program = make_program(f, args).ok()));
        let mut program = program.expect("it can be traced");
        passes.ours(milliseconds(|| program = simplify(std::mem::take(&mut program))));
        text.ours(milliseconds(|| {
            black_box(stablehlo(&program, &LowerOptions::default()));
        }));
        all.ours(milliseconds(|| {
            black_box(whole.lower(args).expect("it can be lowered").stablehlo().len());
        }));
        all.peer(peer, name);
    }
    let lowered = whole.lower(args)?;
    println!("{} equations, {} bytes", lowered.program().size(), lowered.stablehlo().len());
    [trace, passes, text, all].iter_mut().for_each(Row::print);
    Ok(())
}

/// Ten thousand operations of several kinds, none of them alike.
fn flat((x, y): (Tensor, Tensor)) -> Tensor {
    let mut x = x;
    for i in 0..1250 {
        let scale = (x * (1.0 + i as f64 / 1e4)).tanh();
        let mean = scale.sum(0) / 32.0;
        x = (scale - mean).maximum(y) + x;
        x = x.transpose(&[1, 0]);
    }
    x
}

fn lstm((cell, xs): (LstmCell<Tensor>, Tensor)) -> LstmCell<Tensor> {
    grad(|cell: LstmCell<Tensor>| {
        let start = (zeros_like(cell.start(16).0), cell.start(16).1);
        let step = |carry, x| {
            let (c, h) = cell.apply(x, carry);
            ((c, h), h)
        };
        scan(step, start, xs).1.square().mean(..)
    })(cell)
}

type Net<T> = Mlp<T>;

fn updates((nets, xs, ys): (Net<Tensor>, Tensor, Tensor)) -> Net<Tensor> {
    vmap(|(net, x, y): (Net<Tensor>, Tensor, Tensor)| {
        let loss = |net: Net<Tensor>| (net.apply(x) - y).square().mean(..);
        let grads = grad(loss)(net.clone());
        tree::zip_map(net, grads, |w: Tensor, g: Tensor| w - 0.01 * g)
    })((nets, xs, ys))
}

/// Cost of a span without a timeline, and with one.
fn spans() -> Result<()> {
    const COUNT: usize = 10_000;
    let nanoseconds = || milliseconds(|| (0..COUNT).for_each(|_| drop(timeline::span("x")))) * 1e6;
    let (mut off, mut on) = (Row::new("a span, off (ns)"), Row::new("a span, recorded (ns)"));
    for _ in 0..ROUNDS {
        off.ours(nanoseconds() / COUNT as f64);
    }
    let path = std::env::temp_dir().join(format!("podracer-spans-{}.json", std::process::id()));
    let recording = timeline::start(&path)?;
    for _ in 0..ROUNDS {
        on.ours(nanoseconds() / COUNT as f64);
    }
    recording.finish()?;
    let _ = std::fs::remove_file(path);
    off.print();
    on.print();
    Ok(())
}

fn main() -> Result<()> {
    let mut peer = Peer::start("jax_trace.py");
    Row::header();
    let zeros = |shape: &[usize]| Array::zeros(shape, DType::F32);
    measure(&mut peer, "flat", flat, &(zeros(&[32, 32]), zeros(&[32, 32])))?;
    let cell = interpret(|_: Tensor| LstmCell::init(Key::constant(0), 8, 32)).call(zeros(&[]))?;
    measure(&mut peer, "grad of scan of lstm", lstm, &(cell, zeros(&[64, 16, 8])))?;
    let (hidden, head) = (init::lecun_normal(), init::lecun_normal());
    let nets = interpret(move |_: Tensor| {
        let net = Mlp::init_with(Key::constant(0), &[8, 64, 64, 2], Activation::Tanh, hidden, head);
        tree::map(net, |x: Tensor| {
            let shape = x.shape().with_axis(0, 64);
            x.expand_dims(0).broadcast_to(shape)
        })
    });
    let nets = nets.call(zeros(&[]))?;
    let data = (nets, zeros(&[64, 32, 8]), zeros(&[64, 32, 2]));
    measure(&mut peer, "vmap of 64 updates", updates, &data)?;
    spans()
}
