//! Transformed programs beside JAX's: the gradient of a scan over an LSTM cell, and the updates of
//! 64 networks by one `vmap`. Milliseconds a call, and bytes of scratch memory.
//!
//! `cargo bench --bench transforms`; with `PODRACER_PEER_PYTHON=.../bin/python`, a Python with jax,
//! each row is measured alternately with `benches/peers/jax_transforms.py`.

mod peer;

use std::time::Instant;

use peer::{Peer, Row};
use podracer::error::Result;
use podracer::nn::{Activation, LstmCell, Mlp, init};
use podracer::optim::{Adam, AdamState};
use podracer::trace::control::scan;
use podracer::{Array, DType, Key, Tensor, jit, random, value_and_grad, vmap};

const ROUNDS: usize = 15;
const CALLS: usize = 5;

const TURNS: usize = 128;
const BATCH: usize = 64;
const HIDDEN: usize = 128;

const SEEDS: usize = 64;
const ROWS: usize = 128;
const WIDTH: usize = 64;

type Cell = LstmCell<Tensor>;
type Network = Mlp<Tensor>;
type State = (Network, AdamState<Tensor, Network>);

/// Mean square of the outputs of all turns, and its gradient for the cell.
fn lstm((cell, xs): (Cell, Tensor)) -> (Tensor, Cell) {
    value_and_grad(|cell: Cell| {
        let step = |state, x| {
            let (c, h) = cell.apply(x, state);
            ((c, h), h)
        };
        scan(step, cell.start(BATCH), xs).1.square().mean(..)
    })(cell)
}

/// One step of Adam on a mean square error.
fn update(((network, adam), (x, y)): (State, (Tensor, Tensor))) -> (State, Tensor) {
    let loss = |network: Network| (network.apply(x) - y).square().mean(..);
    let (loss, grads) = value_and_grad(loss)(network.clone());
    let optimizer = Adam { learning_rate: 1e-3, eps: 1e-5, ..Adam::default() };
    (optimizer.step(network, grads, adam), loss)
}

fn key(seed: u64) -> Key<Array> {
    Key::new(seed)
}

/// One program alternately with the peer's.
fn measure(
    name: &str,
    peer: &mut Peer,
    scratch: i64,
    mut call: impl FnMut() -> Result<()>,
) -> Result<()> {
    for _ in 0..3 {
        call()?;
    }
    let mut row = Row::new(name);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        row.ours(start.elapsed().as_secs_f64() / CALLS as f64 * 1e3);
        row.peer(peer, name);
    }
    row.print();
    let mut row = Row::new(format!("{name}, MB of scratch memory"));
    row.ours(scratch as f64 / 1e6);
    if let Some(bytes) = peer.ask(&format!("{name} bytes")) {
        row.theirs(bytes / 1e6);
    }
    row.print();
    Ok(())
}

fn main() -> Result<()> {
    let mut peer = Peer::start("jax_transforms.py");
    Row::header();

    let start = jit(|key: Key<Tensor>| {
        let (cell, xs) = key.split();
        let xs = random::normal(xs, [TURNS, BATCH, HIDDEN], DType::F32) * 0.1;
        (LstmCell::init(cell, HIDDEN, HIDDEN), xs)
    });
    let arguments = start.call(key(0))?;
    let f = jit(lstm);
    let scratch = f.lower(&arguments)?.compile()?.memory_stats()?.temporary;
    measure("lstm", &mut peer, scratch, || {
        let (loss, _) = f.call(arguments.clone())?;
        loss.wait()
    })?;

    let start = jit(|key: Key<Tensor>| {
        let [networks, x, y]: [Key<Tensor>; 3] = key.split_n();
        let network = |key: Key<Tensor>| {
            let gain = init::lecun_normal();
            let network = Mlp::init_with(key, &[4, WIDTH, WIDTH, 2], Activation::Tanh, gain, gain);
            let adam = Adam::default().init(&network);
            (network, adam)
        };
        let states = vmap(network)(networks.split_batch(SEEDS));
        let x = random::normal(x, [SEEDS, ROWS, 4], DType::F32);
        (states, (x, random::normal(y, [SEEDS, ROWS, 2], DType::F32)))
    });
    let arguments = start.call(key(1))?;
    let f = jit(vmap(update));
    let scratch = f.lower(&arguments)?.compile()?.memory_stats()?.temporary;
    // As one trains: the next call takes the state over, and its memory.
    let (states, batches) = arguments;
    let mut states = Some(states);
    measure("mlps", &mut peer, scratch, || {
        let (next, loss) = f.call((states.take().expect("the last call's"), batches.clone()))?;
        states = Some(next);
        loss.wait()
    })
}
