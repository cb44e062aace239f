//! lab
use podracer::nn::LstmCell;
use podracer::trace::control::scan;
use podracer::trace::graph::simplify;
use podracer::{Array, DType, Tensor, jit, make_program, value_and_grad};
type Cell = LstmCell<Tensor>;
fn lstm((cell, xs): (Cell, Tensor)) -> (Tensor, Cell) {
    value_and_grad(|cell: Cell| {
        let turn = |state, x| {
            let (c, h) = cell.apply(x, state);
            ((c, h), h)
        };
        scan(turn, cell.start(64), xs).1.square().mean(..)
    })(cell)
}
fn main() {
    let z = |s: &[usize]| Array::zeros(s, DType::F32);
    let args =
        (LstmCell { w_i: z(&[128, 512]), w_h: z(&[128, 512]), b: z(&[512]) }, z(&[128, 64, 128]));
    let p = simplify(make_program(lstm, &args).unwrap());
    println!("{p}");
    let l = jit(lstm).lower(&args).unwrap();
    std::fs::write("/tmp/lab/lstm.mlir", l.stablehlo()).unwrap();
}
