use podracer::{Array, Tensor, jit};

fn main() {
    let weights = Array::from([1.0f32, 2.0]);
    let f = jit(move |x: Tensor| x * weights.clone());
    f.call(Array::from([3.0f32, 4.0])).unwrap();
}
