use podracer::{Tensor, jit};

fn main() {
    jit(|x: Tensor| x + 1u8);
}
