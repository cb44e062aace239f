//! Loops and branches.

use super::*;
use crate::trace::control::ScanOptions;

fn scans() -> Vec<Case> {
    vec![
        case("scan", [floats([]), floats([2]), floats([4, 2])], |x| {
            let rate = x[0];
            let (last, sums) = control::scan(
                |carry: Tensor, x: Tensor| {
                    let next = carry * rate + x;
                    (next, next.sum(..))
                },
                x[1],
                x[2],
            );
            vec![last, sums]
        }),
        // The second carry becomes mapped by way of the first, an iteration later.
        case("scan, carries that follow", [floats([]), floats([3]), floats([])], |x| {
            let ((a, b, c), ys) = control::scan_with(
                |(a, b, c): (Tensor, Tensor, Tensor), x: Tensor| ((a + x, a * b, c * 0.5), (b, x)),
                (x[0], x[2], constant(1f32)),
                x[1],
                ScanOptions { unroll: 2, ..ScanOptions::reversed() },
            );
            vec![a, b, c, ys.0, ys.1]
        }),
        case("scan without inputs", [floats([2])], |x| {
            vec![control::fori_loop(0, 3, |i, x: Tensor| x + i.to(DType::F32), x[0])]
        }),
        case("scan in a scan", [floats([2]), floats([3, 2])], |x| {
            let given = x[0];
            vec![control::map(
                |row: Tensor| {
                    control::scan(|c: Tensor, x: Tensor| (c + x, c * x), given.sum(..), row).1
                },
                x[1],
            )]
        }),
    ]
}

fn whiles() -> Vec<Case> {
    vec![
        case("while", [ints([], 0, 9), floats([2]), floats([])], |x| {
            let (limit, by) = (x[0], x[2]);
            let (i, y) = control::while_loop(
                |(i, _): (Tensor, Tensor)| i.lt(limit),
                |(i, y)| (i + 2, y * by),
                (constant(0i32), x[1]),
            );
            vec![i, y]
        }),
        case("while on its carry", [floats([]), floats([2])], |x| {
            let by = x[1];
            let (s, n) = control::while_loop(
                |(s, n): (Tensor, Tensor)| s.abs().lt(5.0) & n.lt(9),
                |(s, n)| (s + by.sum(..), n + 1),
                (x[0], constant(0i32)),
            );
            vec![s, n]
        }),
        // The inner loop ends for positive numbers only, and must not wait for the others: those
        // that the outer loop has let go.
        case("while in a while", [ints([], -2, 5), ints([], 2, 3)], |x| {
            let step = x[1];
            vec![control::while_loop(
                |n: Tensor| n.gt(0),
                move |n| control::while_loop(|m: Tensor| m.ne(0), |m| m - 1, n) + n - step,
                x[0],
            )]
        }),
        case("while in the first branch", [ints([], -3, 3), ints([], 1, 3)], |x| {
            let countdown = |n: Tensor| {
                let (_, steps) = control::while_loop(
                    |(m, _): (Tensor, Tensor)| m.ne(0),
                    |(m, steps)| (m - 1, steps + 1),
                    (n, constant(0i32)),
                );
                steps
            };
            vec![control::switch(x[0], &[&countdown, &|n| -n, &|n| n + 10], x[1])]
        }),
        // The active examples are known inside a scan and a branch as well.
        case("while in a scan and a branch, in a branch", [ints([], -3, 3), bools([])], |x| {
            let flag = x[1];
            let slow_zero = |n: Tensor| control::while_loop(|m: Tensor| m.ne(0), |m| m - 1, n);
            vec![control::cond(
                x[0].gt(0),
                move |n: Tensor| {
                    let zeros = control::fori_loop(0, 2, |_, sum: Tensor| sum + slow_zero(n), n);
                    zeros + control::cond(flag, slow_zero, |n| n * 5, n)
                },
                |n| n * 2,
                x[0],
            )]
        }),
        case("while in a branch that nobody takes", [ints([], -3, 3)], |x| {
            let start = constant(-1i32);
            vec![control::cond(
                x[0].gt(9),
                move |_: Tensor| control::while_loop(|m: Tensor| m.ne(0), |m| m - 1, start),
                |n| n * 2,
                x[0],
            )]
        }),
        case("while in a branch", [ints([], -3, 3), ints([], -3, 3)], |x| {
            let start = x[1];
            vec![control::cond(
                x[0].gt(0) & start.gt(0),
                move |_: Tensor| control::while_loop(|m: Tensor| m.ne(0), |m| m - 1, start) + 7,
                |n| n * 2,
                x[0],
            )]
        }),
    ]
}

fn branches() -> Vec<Case> {
    vec![
        case("cond", [bools([]), floats([3]), floats([3])], |x| {
            let other = x[2];
            let (a, b) = control::cond(
                x[0],
                move |y: Tensor| (y * 2.0, other),
                |y| (y.sin(), y * 0.0),
                x[1],
            );
            vec![a, b]
        }),
        case("switch", [ints([], -2, 5), floats([2]), floats([])], |x| {
            let captured = x[2];
            let double = |(a, b): (Tensor, Tensor)| (a * 2.0, b);
            let shift = |(a, b): (Tensor, Tensor)| (a + captured, b);
            let keep = |(a, b): (Tensor, Tensor)| (a, b);
            let (a, b) = control::switch(x[0], &[&double, &shift, &keep], (x[1], x[2]));
            vec![a, b]
        }),
        case("switch of one", [ints([], -2, 5), floats([2])], |x| {
            vec![control::switch(x[0], &[&|a: Tensor| a * 2.0], x[1])]
        }),
        case("branches in a scan", [bools([4]), floats([])], |x| {
            let (last, ys) = control::scan(
                |c: Tensor, flag: Tensor| {
                    let next = control::cond(flag, |c: Tensor| c * 2.0, |c| c + 1.0, c);
                    (next, c)
                },
                x[1],
                x[0],
            );
            vec![last, ys]
        }),
    ]
}

#[test]
fn scans_are_a_loop() {
    hold_all(scans());
}

#[test]
fn whiles_are_a_loop() {
    hold_all(whiles());
}

#[test]
fn branches_are_a_loop() {
    hold_all(branches());
}

#[test]
fn a_carry_that_nothing_mapped_reaches_stays_unmapped() {
    let types = [TensorType::new(DType::F32, [3])];
    let program = trace(&types, |x| {
        vec![vmap(|x: Tensor| {
            control::fori_loop(
                0,
                4,
                |i, (n, y): (Tensor, Tensor)| (n + i, y * 2.0),
                (constant(0i32), x),
            )
            .1
        })(x[0])]
    });
    let scan = program.equations.iter().find(|e| e.op.name() == "scan").unwrap();
    let types: Vec<String> = scan.inputs.iter().map(|&var| program.ty(var).to_string()).collect();
    assert_eq!(types, ["i32[]", "f32[3]", "i32[4]"]);
}
