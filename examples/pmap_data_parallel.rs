//! Trains one network twice, on one device with `jit` and on several with `pmap`, and compares them.
//!
//! You learn data-parallel training with `pmap`: `replicate` puts the same state on every device, `shard`
//! divides the batch, and `pmean` averages the gradients, so that all devices take the same step. On CPU one
//! process has as many devices as it asks for. `pmap` is JAX's older way; new programs use `shard_map`, as the
//! example `transformer` does.
//!
//! ```sh
//! cargo run --release --example pmap_data_parallel -- --num-devices 4
//! ```

use std::time::Instant;

use clap::Parser;
use podracer::nn::{Activation, Mlp};
use podracer::prelude::*;
use podracer::runtime::{Runtime, RuntimeOptions};
use podracer::{pmean, replicate, shard, unreplicate};

/// Command line.
#[derive(Parser)]
struct Args {
    /// Devices over which the batch is divided
    #[arg(long, default_value = "4")]
    num_devices: usize,
    /// Examples of a step, over all devices
    #[arg(long, default_value = "4096")]
    batch_size: usize,
    /// Width of the two hidden layers
    #[arg(long, default_value = "256")]
    hidden: usize,
    /// Timed steps, after one that compiles
    #[arg(long, default_value = "100")]
    steps: usize,
    /// Seed of the parameters and the data
    #[arg(long, default_value = "1")]
    seed: u64,
}

/// Adam. Its epsilon is large, so that rounding is not blown up where a gradient is nearly 0.
const ADAM: Adam =
    Adam { learning_rate: 1e-3, b1: 0.9, b2: 0.999, eps: 1e-3, eps_root: 0.0, weight_decay: 0.0 };

type TrainState = (Mlp<Tensor>, AdamState<Tensor, Mlp<Tensor>>);
type Batch = (Tensor, Tensor);

/// Parameters to start with, and a batch labelled by another network of the same shape.
fn init(key: Key<Tensor>, batch_size: usize, hidden: usize) -> (TrainState, Batch) {
    let [student, teacher, data] = key.split_n();
    let mlp = |key| Mlp::init(key, &[32, hidden, hidden, 8], Activation::Tanh);
    let model = mlp(student);
    let x = random::normal(data, [batch_size, 32], DType::F32);
    let y = mlp(teacher).apply(x);
    ((model.clone(), ADAM.init(&model)), (x, y))
}

/// One gradient step. On several devices `axis` names them, and loss and gradients are averaged.
fn gradient_step(
    (model, opt_state): TrainState,
    (x, y): Batch,
    axis: Option<Axis>,
) -> (TrainState, Tensor) {
    let loss = |model: Mlp<Tensor>| (model.apply(x) - y).square().mean(..);
    let mut loss_and_grads = value_and_grad(loss)(model.clone());
    if let Some(axis) = axis {
        loss_and_grads = pmean(loss_and_grads, axis);
    }
    let (loss, grads) = loss_and_grads;
    (ADAM.step(model, grads, opt_state), loss)
}

/// Largest difference between the parameters of two models.
fn difference(a: &Mlp<Array>, b: &Mlp<Array>) -> Result<f32> {
    let mut largest = 0.0f32;
    for (a, b) in tree::leaves::<Array, _>(a).iter().zip(tree::leaves::<Array, _>(b)) {
        for (a, b) in a.to_vec::<f32>()?.iter().zip(b.to_vec::<f32>()?) {
            largest = largest.max((a - b).abs());
        }
    }
    Ok(largest)
}

fn main() -> Result<()> {
    let args = Args::parse();
    Runtime::start(RuntimeOptions::with_cpu_devices(args.num_devices))?;
    let devices: Vec<usize> = (0..args.num_devices).collect();
    let (mut state, batch) =
        jit(|key| init(key, args.batch_size, args.hidden)).call(Key::new(args.seed))?;

    let on_one = jit(|(state, batch): (TrainState, Batch)| gradient_step(state, batch, None));
    let on_all = pmap("devices", |axis, (state, batch): (TrainState, Batch)| {
        gradient_step(state, batch, Some(axis))
    });

    let (mut replicas, shards) = (replicate(&state, &devices)?, shard(&batch, &devices)?);
    let (mut loss_one, mut loss_all) = (f32::NAN, f32::NAN);
    let (mut seconds_one, mut seconds_all) = (0.0, 0.0);
    for i in 0..=args.steps {
        let start = Instant::now();
        let loss;
        (state, loss) = on_one.call((state, batch.clone()))?;
        loss_one = loss.item()?;
        let between = Instant::now();
        let loss;
        (replicas, loss) = on_all.call((replicas, shards.clone()))?;
        loss_all = unreplicate(&loss)?.item()?;
        // The first step compiles.
        if i > 0 {
            seconds_one += (between - start).as_secs_f64();
            seconds_all += between.elapsed().as_secs_f64();
        }
    }

    let ms = |seconds: f64| 1e3 * seconds / args.steps.max(1) as f64;
    println!("1 device:  {:8.3} ms a step, loss {loss_one:.6}", ms(seconds_one));
    let n = args.num_devices;
    println!("{n} devices: {:8.3} ms a step, loss {loss_all:.6}", ms(seconds_all));
    let difference = difference(&state.0, &unreplicate(&replicas.0)?)?;
    println!("largest difference between parameters: {difference:.1e}");
    if difference < 1e-5 {
        return Ok(());
    }
    Err(Error::Argument(format!("the parameters differ by {difference:e}, expected below 1e-5")))
}
