//! Values where others were before: what a program computes depends on what its arguments hold, and
//! not on where they lie.

use podracer::{Array, Tensor, eager, jit};

/// Small whole numbers, so that products are exact in any order.
fn numbers(shape: [usize; 2], seed: usize) -> Vec<f32> {
    (0..shape[0] * shape[1]).map(|i| ((i * 7 + i / 5 + seed) % 5) as f32 - 2.0).collect()
}

/// Weights that an optimizer updates in place: each call must use those of the call before, and none
/// of an earlier one, whatever the compiler keeps of an argument by its address.
#[test]
fn products_use_the_weights_of_the_call() {
    let step = jit(|(w, x): (Tensor, Tensor)| (w + 1.0, x.matmul(w)));
    for (m, k, n) in [(256, 3136, 512), (256, 512, 512), (256, 256, 256), (64, 256, 6), (8, 64, 64)]
    {
        let (first, x) = (numbers([k, n], 1), numbers([m, k], 2));
        let rows: Vec<f32> = x.chunks(k).map(|row| row.iter().sum()).collect();
        let x = Array::new([m, k], &x).unwrap();
        let mut w = Array::new([k, n], &first).unwrap();
        let mut before: Option<Vec<f32>> = None;
        for call in 0..12 {
            let copy = Array::from(w.to_literal().unwrap());
            let (next, y) = step.call((w, x.clone())).unwrap();
            w = next;
            // The same in memory of its own, so that weights come to lie where others were.
            let again =
                eager(|(w, x): (Tensor, Tensor)| x.matmul(w)).call((copy, x.clone())).unwrap();
            let again = again.to_vec::<f32>().unwrap();
            let y = y.to_vec::<f32>().unwrap();
            let differ = y.iter().zip(&again).filter(|(y, again)| y != again).count();
            assert_eq!(differ, 0, "call {call} of {m}x{k} by {k}x{n}, of {}", y.len());
            if let Some(before) = before {
                // With all weights 1 larger, every product is larger by the row's sum.
                let wrong = y.iter().zip(&before).enumerate();
                let wrong = wrong.filter(|&(i, (y, before))| y - before != rows[i / n]).count();
                assert_eq!(wrong, 0, "call {call} of {m}x{k} by {k}x{n}, of {}", y.len());
            }
            before = Some(y);
        }
    }
}
