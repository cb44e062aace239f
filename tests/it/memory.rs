//! Values where others were before: what a program computes depends on what its arguments hold, and
//! not on where they lie. And values that no memory holds.

use podracer::{Array, Tensor, eager, interpret, jit};

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

/// The compiler would work on some of these for hours, or end the process.
#[test]
fn values_larger_than_the_memory_are_refused_before_they_are_compiled() {
    type Function = fn(Tensor) -> Tensor;
    let x = Array::from(1.0f32);
    let functions: [Function; 6] = [
        |x| x.broadcast_to([1 << 35]).cumsum(0),
        |x| x.broadcast_to([1 << 35]).cumsum(0).sum(..),
        |x| x.broadcast_to([1 << 40]).cumprod(0),
        |x| x.broadcast_to([1 << 40]).sort(0).sum(..),
        |x| x.broadcast_to([1 << 20, 1 << 5]).matmul(x.broadcast_to([1 << 5, 1 << 20])).sum(..),
        |x| x.broadcast_to([1 << 40]),
    ];
    for f in functions {
        for error in [jit(f).call(x.clone()), interpret(f).call(x.clone())] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(" GiB, and this machine has "), "{error}");
        }
    }
    // What is never in memory as a whole may have any size.
    let sum = jit(|x: Tensor| x.broadcast_to([1 << 20, 1 << 19]).sum([0]).sum(..));
    assert!(sum.lower(&x).unwrap().compile().is_ok());
}

/// Each value has room, and all of them together have not.
#[cfg(target_os = "linux")]
#[test]
fn an_interpreted_program_larger_than_the_memory_is_refused() {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    // Six tenths of the memory, in elements of 4 bytes.
    let elements = kib / 10 * 6 * 256;
    let f = interpret(move |x: Tensor| {
        let big = x.broadcast_to([elements]);
        (big + 1.0) * big
    });
    let error = f.call(Array::from(1.0f32)).unwrap_err().to_string();
    assert!(
        error.starts_with("the values that the Program keeps at the same time take"),
        "{error}"
    );
}
