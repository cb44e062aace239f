//! Compiles, differentiates and batches one function, and prints the program of each step.
//!
//! You learn that `grad` and `vmap` take and return functions of tensors, and compose in any order: a gradient
//! for each example of a batch is `vmap(grad(loss))`. `jit` goes around them, and is called with arrays.
//!
//! ```sh
//! cargo run --release --example jit_grad_vmap
//! ```

use std::time::Instant;

use podracer::make_program;
use podracer::prelude::*;

/// Squared error of a linear model on one example: `w`, `x` are `f32[3]`, `y` is a scalar.
fn loss(w: Tensor, (x, y): (Tensor, Tensor)) -> Tensor {
    ((w * x).sum(..) - y).square()
}

/// Gradient of the loss with respect to `w`. The example is captured, so it is a constant.
fn loss_grad(w: Tensor, example: (Tensor, Tensor)) -> Tensor {
    grad(|w: Tensor| loss(w, example))(w)
}

/// Gradients for a batch of examples, `f32[n,3]`. `w` is captured, so it is not batched.
fn per_example_grads(w: Tensor, batch: (Tensor, Tensor)) -> Tensor {
    vmap(|example: (Tensor, Tensor)| loss_grad(w, example))(batch)
}

fn main() -> Result<()> {
    let w = Array::from([0.5f32, -1.0, 2.0]);
    let example = (Array::from([1.0f32, 2.0, 3.0]), Array::from(4.0f32));
    let xs = Array::new([4, 3], &[1.0f32, 2.0, 3.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 2.0, 2.0, 2.0])?;
    let ys = Array::from([4.0f32, 0.0, 1.0, -2.0]);

    // Tracing runs a function on symbolic values and records its operations: JAX's jaxpr.
    type Example = (Tensor, (Tensor, Tensor));
    let one = (w.clone(), example);
    let program = make_program(|(w, example): Example| loss(w, example), &one)?;
    println!("loss of one example:\n{program}\n");
    let program = make_program(|(w, example): Example| loss_grad(w, example), &one)?;
    println!("its gradient, by grad:\n{program}\n");
    let batch = (w, (xs, ys));
    let program = make_program(|(w, batch): Example| per_example_grads(w, batch), &batch)?;
    println!("gradients of 4 examples, by vmap(grad):\n{program}\n");

    // `jit` compiles at the first call with new shapes or dtypes, and later only launches.
    let compiled = jit(|(w, batch): Example| per_example_grads(w, batch));
    let start = Instant::now();
    let grads = compiled.call(batch.clone())?.to_vec::<f32>()?;
    let first_call = start.elapsed();
    let start = Instant::now();
    compiled.call(batch.clone())?.wait()?;
    let second_call = start.elapsed();
    println!("gradients:");
    for row in grads.chunks(3) {
        println!("  {row:?}");
    }
    println!("first call (trace, compile, run): {first_call:.1?}; second call: {second_call:.1?}");
    println!("traces: {}", compiled.stats().traces);

    // The interpreter runs the same program on the host, without a compiler.
    let interpreted = interpret(|(w, batch): Example| per_example_grads(w, batch)).call(batch)?;
    assert_eq!(interpreted.to_vec::<f32>()?, grads);
    println!("the interpreter agrees");
    Ok(())
}
