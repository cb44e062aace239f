//! Trains a function, exports it, and prints the Python lines that call it from JAX.
//!
//! You learn that an exported function is one file in the format of `jax.export`, which needs neither this
//! program nor Rust to run. The trained parameters are constants inside of it.
//!
//! ```sh
//! cargo run --release --example export_to_jax -- --file sine.jaxexport
//! ```

use std::path::PathBuf;

use clap::Parser;
use podracer::Literal;
use podracer::export::Exported;
use podracer::nn::{Activation, Mlp};
use podracer::prelude::*;
use podracer::trace::ops;

/// Command line.
#[derive(Parser)]
struct Args {
    /// Gradient steps
    #[arg(long, default_value = "1000")]
    steps: usize,
    /// File to write
    #[arg(long, default_value = "sine.jaxexport")]
    file: PathBuf,
}

/// Mean squared error of the sine on 128 points from -pi to pi.
fn loss(model: &Mlp<Tensor>) -> Tensor {
    let pi = std::f64::consts::PI;
    let x = ops::linspace(-pi, pi, 128, DType::F32).expand_dims(-1);
    (model.apply(x) - x.sin()).square().mean(..)
}

/// Trains a network; the whole run is one compiled program.
fn train(key: Key<Tensor>, steps: usize) -> (Mlp<Tensor>, Tensor) {
    let adam = Adam { learning_rate: 1e-2, ..Adam::default() };
    let model = Mlp::init(key, &[1, 32, 32, 1], Activation::Tanh);
    let opt_state = adam.init(&model);
    type State = (Mlp<Tensor>, AdamState<Tensor, Mlp<Tensor>>);
    let step = |_, (model, opt_state): State| {
        let grads = grad(|model: Mlp<Tensor>| loss(&model))(model.clone());
        adam.step(model, grads, opt_state)
    };
    let (model, _) = fori_loop(0, steps, step, (model, opt_state));
    let loss = loss(&model);
    (model, loss)
}

/// The parameters on the host, from where they can become constants of another program.
fn to_host(model: &Mlp<Array>) -> Result<Mlp<Literal>> {
    let leaves = tree::leaves::<Array, _>(model);
    let literals: Vec<Literal> = leaves.iter().map(Array::to_literal).collect::<Result<_>>()?;
    Ok(tree::rebuild::<Array, Literal, _>(model, literals))
}

fn main() -> Result<()> {
    let args = Args::parse();
    let (model, loss) = jit(|key: Key<Tensor>| train(key, args.steps)).call(Key::new(0))?;
    println!("trained on the sine for {} steps: loss {:.2e}", args.steps, loss.item::<f32>()?);

    let model = to_host(&model)?;
    let predict = jit(|x: Tensor| tree::map(model.clone(), |w: Literal| ops::constant(w)).apply(x));
    let x = Array::new([3, 1], &[-1.0f32, 0.5, 2.0])?;
    predict.named("sine").export(&x)?.save(&args.file)?;

    // Another process would begin here.
    let sine = Exported::load(&args.file)?;
    println!("{sine}");
    let y = sine.call(std::slice::from_ref(&x))?[0].to_vec::<f32>()?;
    for (x, y) in x.to_vec::<f32>()?.iter().zip(&y) {
        println!("sine({x:4}) = {y:.6}, and sin({x:4}) is {:.6}", x.sin());
    }
    println!("\nThe same from Python:\n");
    println!("import numpy");
    println!("from jax import export");
    println!("sine = export.deserialize(open({:?}, \"rb\").read())", args.file);
    println!("print(sine.call(numpy.array([[-1.0], [0.5], [2.0]], \"float32\")))");
    Ok(())
}
