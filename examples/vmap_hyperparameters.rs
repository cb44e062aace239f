//! Trains one network with 64 learning rates at once, and prints how far each of them got.
//!
//! You learn that `vmap` maps whole training runs: the function below trains one network with one
//! learning rate, and `vmap(train)` is one compiled program that trains 64 of them.
//!
//! ```sh
//! cargo run --release --example vmap_hyperparameters
//! ```

use std::time::Instant;

use clap::Parser;
use podracer::nn::{Activation, Mlp};
use podracer::prelude::*;
use podracer::trace::ops;

/// Command line.
#[derive(Parser)]
struct Args {
    /// Learning rates, from 1e-5 to 1 at equal ratios
    #[arg(long, default_value = "64")]
    num_rates: usize,
    /// Gradient steps of each run
    #[arg(long, default_value = "300")]
    steps: usize,
}

/// Mean squared error of `sin(3 x)` on 64 points.
fn loss(model: &Mlp<Tensor>) -> Tensor {
    let x = ops::linspace(-1.0, 1.0, 64, DType::F32).expand_dims(-1);
    (model.apply(x) - (x * 3.0).sin()).square().mean(..)
}

/// Trains one network and returns its final loss. All runs start from the same parameters.
fn train(learning_rate: Tensor, steps: usize) -> Tensor {
    let adam = Adam::default().with_learning_rate(learning_rate);
    let model = Mlp::init(Key::constant(0), &[1, 32, 32, 1], Activation::Tanh);
    let opt_state = adam.init(&model);
    type State = (Mlp<Tensor>, AdamState<Tensor, Mlp<Tensor>>);
    let step = |_, (model, opt_state): State| {
        let grads = grad(|model: Mlp<Tensor>| loss(&model))(model.clone());
        adam.step(model, grads, opt_state)
    };
    let (model, _) = fori_loop(0, steps, step, (model, opt_state));
    loss(&model)
}

fn main() -> Result<()> {
    let args = Args::parse();
    let exponent =
        |i: usize| -5.0 + 5.0 * i as f32 / args.num_rates.saturating_sub(1).max(1) as f32;
    let rates: Vec<f32> = (0..args.num_rates).map(|i| 10f32.powf(exponent(i))).collect();
    let batch = Array::new([args.num_rates], &rates)?;

    let one = jit(|rate: Tensor| train(rate, args.steps));
    let all = jit(|rates: Tensor| vmap(|rate: Tensor| train(rate, args.steps))(rates));
    // The first calls compile.
    one.call(Array::from(1e-3f32))?.wait()?;
    let losses = all.call(batch.clone())?.to_vec::<f32>()?;
    let start = Instant::now();
    one.call(Array::from(1e-3f32))?.wait()?;
    let one_run = start.elapsed();
    let start = Instant::now();
    all.call(batch)?.wait()?;
    let all_runs = start.elapsed();

    println!("final loss by learning rate; a longer bar is a smaller loss");
    for (rate, loss) in rates.iter().zip(&losses) {
        let length = (-8.0 * loss.log10()).clamp(0.0, 60.0) as usize;
        println!("{rate:9.2e}  {loss:9.2e}  {}", "#".repeat(length));
    }
    let mut order: Vec<usize> = (0..args.num_rates).collect();
    order.sort_by(|a, b| losses[*a].total_cmp(&losses[*b]));
    println!("best learning rates:");
    for i in order.into_iter().take(5) {
        println!("  {:.2e}: loss {:.2e}", rates[i], losses[i]);
    }
    println!("one run: {one_run:.1?}; {} runs at once: {all_runs:.1?}", args.num_rates);
    Ok(())
}
