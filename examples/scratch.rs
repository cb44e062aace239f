//! scratch
use podracer::trace::ops::*;
use podracer::*;
fn main() -> Result<()> {
    let f = jit(|x: Tensor| (x * x).sum(..).sqrt());
    println!("{:?}", f.call(Array::from([3.0f32, 4.0]))?.item::<f32>()?);
    let g = jit(grad(|x: Tensor| (x * x * x).sin().sum(..)));
    println!("{:?}", g.call(Array::from([3.0f32, 4.0]))?.to_vec::<f32>()?);
    let gi = interpret(grad(|x: Tensor| (x * x * x).sin().sum(..)));
    println!("{:?}", gi.call(Array::from([3.0f32, 4.0]))?.to_vec::<f32>()?);
    let ge = eager(grad(|x: Tensor| (x * x * x).sin().sum(..)));
    println!("{:?}", ge.call(Array::from([3.0f32, 4.0]))?.to_vec::<f32>()?);
    let h = |(w, xs): (Tensor, Tensor)| {
        value_and_grad(move |w: Tensor| {
            let (c, ys) = trace::control::scan(
                |c: Tensor, x: Tensor| {
                    let c = (c * w + x).tanh();
                    (c, c * 2.0)
                },
                zeros([2], DType::F32),
                xs,
            );
            c.sum(..) + ys.mean(..)
        })(w)
    };
    let a = || (Array::from([0.5f32, -0.3]), Array::from([[1f32, 2.], [3., 4.], [0.1, 0.2]]));
    println!("{}", make_program(h, &a())?);
    println!("{:?} {:?} {:?}", jit(h).call(a())?, interpret(h).call(a())?, eager(h).call(a())?);
    let l = jit(h).lower(&a())?;
    println!("{}", l.stablehlo());
    let bad = jit(|(x, y): (Tensor, Tensor)| grad(move |x: Tensor| x.matmul(y.t()).sum(..))(x));
    println!(
        "error: {}",
        bad.call((Array::zeros([3, 4], DType::F32), Array::zeros([3, 5], DType::F32))).unwrap_err()
    );
    Ok(())
}
