//! Trains one network twice, on one device with `jit` and on several with `pmap`, and compares
//! parameters and times: `cargo run --release --example pmap_data_parallel -- --num-devices 4`.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use podracer::nn::{Dense, init};
use podracer::optim::{Adam, AdamState};
use podracer::rl::flags;
use podracer::runtime::{Runtime, RuntimeOptions};
use podracer::{
    DType, Error, Key, Result, Tensor, Tree, jit, pmap, pmean, random, replicate, shard, tree,
    unreplicate, value_and_grad,
};

/// Data-parallel training, checked against one device.
#[derive(Parser)]
struct Args {
    /// How many devices the batch is divided over.
    #[arg(long, default_value_t = 4)]
    num_devices: usize,
    /// Examples of a step, all devices together.
    #[arg(long, default_value_t = 4096)]
    batch_size: usize,
    /// Width of the two hidden layers.
    #[arg(long, default_value_t = 256)]
    hidden: usize,
    /// Steps to train, after one that is not timed.
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Seed of the parameters and the data.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Tree)]
struct Network<T> {
    layers: Vec<Dense<T>>,
}

impl Network<Tensor> {
    fn init(key: Key<Tensor>, [inputs, hidden, outputs]: [usize; 3]) -> Network<Tensor> {
        let keys: [Key<Tensor>; 3] = key.split_n();
        let sizes = [(inputs, hidden), (hidden, hidden), (hidden, outputs)];
        let layer =
            |(key, (inputs, outputs))| Dense::init(key, inputs, outputs, init::lecun_normal());
        Network { layers: keys.into_iter().zip(sizes).map(layer).collect() }
    }

    fn apply(&self, x: Tensor) -> Tensor {
        let (last, hidden) = self.layers.split_last().expect("there are layers");
        last.apply(hidden.iter().fold(x, |x, layer| layer.apply(x).tanh()))
    }

    fn loss(&self, (x, y): (Tensor, Tensor)) -> Tensor {
        (self.apply(x) - y).square().mean(..)
    }
}

type State = (Network<Tensor>, AdamState<Tensor, Network<Tensor>>);
type Batch = (Tensor, Tensor);

/// The optimiser. Its denominator is far from 0, where rounding would be blown up.
const ADAM: Adam =
    Adam { learning_rate: 1e-3, b1: 0.9, b2: 0.999, eps: 1e-3, eps_root: 0.0, weight_decay: 0.0 };

/// One step of training, with the gradient made the same on all devices by `sync`.
fn step(
    (network, adam): State,
    batch: Batch,
    sync: impl Fn((Tensor, Network<Tensor>)) -> (Tensor, Network<Tensor>),
) -> (State, Tensor) {
    let loss = value_and_grad(|network: Network<Tensor>| network.loss(batch));
    let (loss, grads) = sync(loss(network.clone()));
    (ADAM.step(network, grads, adam), loss)
}

fn train(args: &Args) -> Result<()> {
    Runtime::start(RuntimeOptions::with_cpu_devices(args.num_devices))?;
    let devices: Vec<usize> = (0..args.num_devices).collect();
    let (batch_size, hidden) = (args.batch_size, args.hidden);

    // Parameters to start with, and a batch labelled by another network.
    let start = jit(move |key: Key<Tensor>| {
        let [student, teacher, data] = key.split_n();
        let sizes = [32, hidden, 8];
        let network = Network::init(student, sizes);
        let x = random::normal(data, [batch_size, 32], DType::F32);
        let y = Network::init(teacher, sizes).apply(x);
        let adam = ADAM.init(&network);
        ((network, adam), (x, y))
    });
    let (state, batch) = start.call(Key::new(args.seed))?;

    let one = jit(|(state, batch): (State, Batch)| (step(state, batch, |grads| grads), batch));
    let all = pmap("devices", |axis, (state, batch): (State, Batch)| {
        (step(state, batch, |grads| pmean(grads, axis)), batch)
    });

    let mut there = replicate(&state, &devices)?;
    let mut parts = shard(&batch, &devices)?;
    let (mut here, mut whole) = (state, batch);
    let mut seconds = [0.0; 2];
    let mut losses = [0.0f32; 2];
    for i in 0..=args.steps {
        let start = Instant::now();
        let loss;
        ((here, loss), whole) = one.call((here, whole))?;
        losses[0] = loss.item()?;
        let between = Instant::now();
        let loss;
        ((there, loss), parts) = all.call((there, parts))?;
        losses[1] = unreplicate(&loss)?.item()?;
        // The first step compiles.
        if i > 0 {
            seconds[0] += (between - start).as_secs_f64();
            seconds[1] += between.elapsed().as_secs_f64();
        }
    }

    let mut apart = 0.0f32;
    let pairs = tree::leaves(&here.0).into_iter().zip(tree::leaves(&unreplicate(&there.0)?));
    for (one, all) in pairs {
        let (one, all) = (one.to_vec::<f32>()?, all.to_vec::<f32>()?);
        apart = one.iter().zip(all).fold(apart, |apart, (a, b)| apart.max((a - b).abs()));
    }
    let step_ms = |seconds: f64| 1e3 * seconds / args.steps as f64;
    podracer::output::print(&format!(
        "1 device:  {:8.3} ms a step, loss {:.6}\n{} devices: {:8.3} ms a step, loss {:.6}\n\
         largest difference between parameters: {apart:.1e}\n",
        step_ms(seconds[0]),
        losses[0],
        args.num_devices,
        step_ms(seconds[1]),
        losses[1]
    ))?;
    if apart < 1e-5 {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "the parameters differ by {apart:e}, and should by less than 1e-5"
    )))
}

fn main() -> ExitCode {
    flags::main(train)
}
