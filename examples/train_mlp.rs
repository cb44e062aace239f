//! Fits a small network with Adam, and draws the classes that it has learned.
//!
//! You learn the shape of a training loop: parameters and optimizer state are one struct (`Tensor`s inside of
//! a compiled function, `Array`s outside), and a compiled step maps it to the next one. The data are
//! two spirals; the picture shows how the network divides the plane between them.
//!
//! ```sh
//! cargo run --release --example train_mlp -- --steps 1500
//! ```

use clap::Parser;
use podracer::nn::{Activation, Mlp};
use podracer::prelude::*;

/// Command line.
#[derive(Parser)]
struct Args {
    /// Gradient steps
    #[arg(long, default_value = "1500")]
    steps: usize,
    /// Seed of the parameters
    #[arg(long, default_value = "0")]
    seed: u64,
}

/// Everything that a gradient step changes.
#[derive(Tree, Clone)]
struct TrainState<T> {
    model: Mlp<T>,
    opt_state: AdamState<T, Mlp<T>>,
}

/// Mean binary cross-entropy, and the share of points on the right side.
fn loss(model: &Mlp<Tensor>, x: Tensor, y: Tensor) -> (Tensor, Tensor) {
    let logits = model.apply(x).squeeze(-1);
    let loss = (logits.softplus() - y * logits).mean(..);
    let correct = logits.gt(0.0).eq(y.gt(0.5)).to(DType::F32);
    (loss, correct.mean(..))
}

/// Points of two spirals, `f32[2n,2]`, and their classes, `f32[2n]`.
fn spirals(n: usize) -> Result<(Array, Array)> {
    let (mut points, mut classes) = (Vec::new(), Vec::new());
    for class in 0..2 {
        for i in 0..n {
            let radius = (i + 1) as f32 / n as f32;
            let angle = 8.0 * radius + class as f32 * std::f32::consts::PI;
            points.extend([radius * angle.cos(), radius * angle.sin()]);
            classes.push(class as f32);
        }
    }
    Ok((Array::new([2 * n, 2], &points)?, Array::new([2 * n], &classes)?))
}

/// Prints the class of each point of the square from -1 to 1.
fn draw(model: Mlp<Array>) -> Result<()> {
    const ROWS: usize = 24;
    const COLUMNS: usize = 2 * ROWS; // a character is twice as high as wide
    let along = |i: usize, n: usize| 2.0 * (i as f32 + 0.5) / n as f32 - 1.0;
    let cells = (0..ROWS * COLUMNS).map(|i| (i % COLUMNS, i / COLUMNS));
    let points: Vec<f32> =
        cells.flat_map(|(column, row)| [along(column, COLUMNS), -along(row, ROWS)]).collect();
    let predict = jit(|(model, x): (Mlp<Tensor>, Tensor)| model.apply(x));
    let logits = predict.call((model, Array::new([ROWS * COLUMNS, 2], &points)?))?;
    for row in logits.to_vec::<f32>()?.chunks(COLUMNS) {
        println!("{}", row.iter().map(|x| if *x > 0.0 { '#' } else { '.' }).collect::<String>());
    }
    Ok(())
}

fn main() -> Result<()> {
    let args = Args::parse();
    let adam = Adam { learning_rate: 5e-3, ..Adam::default() };
    let init = jit(|key: Key<Tensor>| {
        let sizes = [2, 64, 64, 1];
        let model = Mlp::init(key, &sizes, Activation::Tanh);
        let opt_state = adam.init(&model);
        TrainState { model, opt_state }
    });
    let step = jit(|(state, (x, y)): (TrainState<Tensor>, (Tensor, Tensor))| {
        let TrainState { model, opt_state } = state;
        let loss_fn = |model: Mlp<Tensor>| loss(&model, x, y);
        let ((loss, accuracy), grads) = value_and_grad(loss_fn)(model.clone());
        let (model, opt_state) = adam.step(model, grads, opt_state);
        (TrainState { model, opt_state }, (loss, accuracy))
    });

    let data = spirals(128)?;
    let mut state = init.call(Key::new(args.seed))?;
    let report_every = (args.steps / 10).max(1);
    for i in 1..=args.steps {
        let metrics;
        // `state` is donated: the next one reuses its memory.
        (state, metrics) = step.call((state, data.clone()))?;
        if i % report_every == 0 {
            let (loss, accuracy) = (metrics.0.item::<f32>()?, metrics.1.item::<f32>()?);
            println!("step {i:5}  loss {loss:.4}  accuracy {:.1} %", 100.0 * accuracy);
        }
    }
    draw(state.model)
}
