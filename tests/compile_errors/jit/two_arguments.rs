use podracer::{Tensor, jit};

fn main() {
    jit(|x: Tensor, y: Tensor| x + y);
}
