//! Loops, branches, and what goes on inside and around them.

use podracer::trace::control::{
    ScanOptions, cond, fori_loop, map, scan, scan_with, switch, while_loop,
};
use podracer::trace::ops::{arange, where_, zeros, zeros_like};
use podracer::{DType, Tensor, grad, jvp, vmap};

use super::{Case, In, case, cases_of, int, within, x};

const ONCE: ScanOptions = ScanOptions { length: None, reverse: false, unroll: 1 };

/// A recurrence with a constant matrix: carry, input and constant all matter.
fn recurrence(options: ScanOptions, x: &[Tensor]) -> Vec<Tensor> {
    let (w, h, xs) = (x[0], x[1], x[2]);
    let (h, ys) = scan_with(
        |h: Tensor, x: Tensor| {
            let h = (h.matmul(w) + x).tanh();
            (h, (h * x).sin())
        },
        h,
        xs,
        options,
    );
    vec![h, ys]
}

fn scans(cases: &mut Vec<Case>) {
    let args = [x(&[2, 2]), x(&[2]), x(&[4, 2])];
    cases.push(cases_of("scan", &args, |x| recurrence(ONCE, x)));
    cases.push(cases_of("scan/reverse", &args, |x| {
        recurrence(ScanOptions { reverse: true, ..ONCE }, x)
    }));
    for unroll in [2, 3, 4, 9] {
        cases.push(cases_of(format!("scan/unroll {unroll}"), &args, move |x| {
            recurrence(ScanOptions { unroll, ..ONCE }, x)
        }));
    }
    cases.push(cases_of("scan/reverse unroll 3", &args, |x| {
        recurrence(ScanOptions { reverse: true, unroll: 3, ..ONCE }, x)
    }));
    for length in [0, 1] {
        let args = [x(&[2, 2]), x(&[2]), x(&[length, 2])];
        cases.push(cases_of(format!("scan/length {length}"), &args, |x| recurrence(ONCE, x)));
    }
    cases.push(case("scan/no carry", &[x(&[3, 2])], |x| map(|x: Tensor| (x * x).sin(), x[0])));
    cases.push(cases_of("scan/no carry, a constant", &[x(&[3]), x(&[])], |x| {
        vec![map(|y: Tensor| (y * x[1]).sin(), x[0])]
    }));
    cases.push(case("scan/no xs", &[x(&[2]), x(&[2])], |x| {
        scan_with(|h: Tensor, ()| ((h * x[1]).sin(), ()), x[0], (), ScanOptions::length(3)).0
    }));
    cases.push(cases_of("scan/no results used twice", &[x(&[2]), x(&[3, 2])], |x| {
        let ((a, b), ys) = scan(
            |(a, b): (Tensor, Tensor), x: Tensor| ((a * x, b + a), (b, a.sin())),
            (x[0], zeros_like(x[0])),
            x[1],
        );
        vec![a, b, ys.0, ys.1]
    }));
    cases.push(cases_of("scan/integers carried", &[x(&[3])], |x| {
        let ((sum, n), ys) = scan(
            |(sum, n): (Tensor, Tensor), x: Tensor| {
                let sum = sum + x * x * (n + 1).to(x.dtype());
                ((sum, n + 1), (sum, n))
            },
            (x[0].sum(..), podracer::trace::ops::constant(0i32)),
            x[0],
        );
        vec![sum, n, ys.0, ys.1]
    }));
    cases.push(cases_of("scan/constant carried through", &[x(&[3]), x(&[])], |x| {
        let ((a, b), ys) = scan(
            |(a, b): (Tensor, Tensor), x: Tensor| ((a * x + b, b), b),
            (x[0].index_axis(0, 0), x[1]),
            x[0],
        );
        vec![a, b, ys]
    }));
    cases.push(case("scan/carry from zero", &[x(&[4, 2])], |x| {
        let dtype = x[0].dtype();
        scan(|h: Tensor, x: Tensor| ((h + x).tanh(), h), zeros([2], dtype), x[0]).1
    }));
    cases.push(case("scan/tangent spreads through the carry", &[x(&[]), x(&[3])], |x| {
        // Only the third carry depends on the input at first; each turn one more does.
        let zero = zeros([], x[0].dtype());
        let ((a, b, _), ()) = scan(
            |(a, b, c): (Tensor, Tensor, Tensor), x: Tensor| ((a + b * x, b + c * x, c.sin()), ()),
            (zero, zero, x[0]),
            x[1],
        );
        a * b + 1.0
    }));
    cases.push(case("scan/nested", &[x(&[2]), x(&[3, 2])], |x| {
        scan(
            |h: Tensor, row: Tensor| {
                let (h, ()) = scan(|h: Tensor, y: Tensor| ((h * y).sin() + y, ()), h, row);
                (h, h.cos())
            },
            x[0].sum(..),
            x[1],
        )
        .1
    }));
    cases.push(case("scan/cond inside", &[x(&[4])], |x| {
        scan(
            |h: Tensor, x: Tensor| {
                let h = cond(x.gt(0.0), |(h, x)| (h * x).sin(), |(h, x)| h - x * x, (h, x));
                (h, h)
            },
            x[0].sum(..),
            x[0],
        )
        .1
    }));
    cases.push(case("scan/gather by the turn", &[x(&[4, 2])], |x| {
        scan(
            |h: Tensor, i: Tensor| ((h + x[0].dynamic_index(0, i)).sin(), ()),
            zeros([2], x[0].dtype()),
            arange(3, DType::I32),
        )
        .0
    }));
    cases.push(case("scan/update by the turn", &[x(&[4])], |x| {
        fori_loop(
            0,
            3,
            |i, y: Tensor| {
                let here = y.dynamic_index(0, i);
                y.dynamic_update_index(0, i + 1, (here * y.sum(..)).sin())
            },
            x[0],
        )
    }));
    cases.push(case("scan/fori", &[x(&[2])], |x| {
        fori_loop(0, 4, |i, h: Tensor| (h * (i + 1).to(h.dtype())).sin(), x[0])
    }));
    cases.push(case("scan/grad inside", &[x(&[3])], |x| {
        scan(
            |h: Tensor, x: Tensor| {
                let g = grad(|h: Tensor| (h * x).sin() * h)(h);
                (g, g)
            },
            x[0].sum(..) * 0.1,
            x[0],
        )
        .1
    }));
    cases.push(cases_of(
        "scan/bool and u8 stacked",
        &[x(&[4]), In::Int(DType::U8, vec![4], 0, 9)],
        {
            |x| {
                let (n, ys) = scan(
                    |n: Tensor, (x, k): (Tensor, Tensor)| {
                        let positive = x.gt(0.0);
                        (n ^ positive, (positive, k + 1, where_(positive, x, -x)))
                    },
                    podracer::trace::ops::constant(false),
                    (x[0], x[1]),
                );
                vec![n, ys.0, ys.1, ys.2]
            }
        },
    ));
}

fn whiles(cases: &mut Vec<Case>) {
    cases.push(
        case("while", &[within(&[], 1.5, 4.0)], |x| {
            // Newton's square root.
            while_loop(|y: Tensor| (y * y - x[0]).abs().gt(1e-9), |y| (y + x[0] / y) * 0.5, x[0])
        })
        .dtypes(&[DType::F64])
        .forward(),
    );
    cases.push(
        cases_of("while/trips by lane", &[int(&[], 0, 5), within(&[2], 0.5, 1.5)], |x| {
            let (n, y) = while_loop(
                |(n, _): (Tensor, Tensor)| n.gt(0),
                |(n, y)| (n - 1, (y * 1.5).sin() + y),
                (x[0], x[1]),
            );
            vec![n, y]
        })
        .forward(),
    );
    cases.push(
        cases_of("while/never", &[within(&[2], 0.5, 1.5)], |x| {
            vec![while_loop(|y: Tensor| y.sum(..).lt(0.0), |y| y * 2.0, x[0])]
        })
        .forward(),
    );
    cases.push(
        cases_of("while/constants", &[int(&[], 1, 4), within(&[], 0.5, 1.5), x(&[2])], |x| {
            let (n, y) = while_loop(
                |(n, _): (Tensor, Tensor)| n.lt(x[0]),
                |(n, y)| (n + 1, (y * x[1]).sin()),
                (podracer::trace::ops::constant(0i32), x[2]),
            );
            vec![n, y]
        })
        .forward(),
    );
    cases.push(
        cases_of("while/nested", &[int(&[], 0, 3), int(&[], 0, 3), x(&[])], |x| {
            let (i, y) = while_loop(
                |(i, _): (Tensor, Tensor)| i.gt(0),
                |(i, y)| {
                    let (_, y) = while_loop(
                        |(j, _): (Tensor, Tensor)| j.gt(0),
                        |(j, y)| (j - 1, (y + 1.0).sin()),
                        (x[1], y),
                    );
                    (i - 1, y * 0.5)
                },
                (x[0], x[2]),
            );
            vec![i, y]
        })
        .forward(),
    );
    cases.push(
        cases_of("while/in a branch", &[int(&[], 0, 1), int(&[], 0, 3), x(&[])], |x| {
            // Endless in the branch that is not taken.
            vec![cond(
                x[0].gt(0),
                |(n, y): (Tensor, Tensor)| {
                    while_loop(
                        |(n, _): (Tensor, Tensor)| n.ne(0),
                        |(n, y)| (n - x[0], (y + 1.0).sin()),
                        (n + 1, y),
                    )
                    .1
                },
                |(_, y)| y * 2.0,
                (x[1], x[2]),
            )]
        })
        .forward(),
    );
    cases.push(
        cases_of("while/scan inside", &[int(&[], 0, 3), x(&[3])], |x| {
            let (_, y) = while_loop(
                |(n, _): (Tensor, Tensor)| n.gt(0),
                |(n, y)| {
                    let (_, y) = scan(|h: Tensor, y: Tensor| ((h + y).sin(), h * y), y.sum(..), y);
                    (n - 1, y)
                },
                (x[0], x[1]),
            );
            vec![y]
        })
        .forward(),
    );
    cases.push(
        cases_of("while/in a scan", &[In::Int(DType::I32, vec![3], 0, 4), x(&[])], |x| {
            let (y, ys) = scan(
                |y: Tensor, n: Tensor| {
                    let (_, y) = while_loop(
                        |(n, _): (Tensor, Tensor)| n.gt(0),
                        |(n, y)| (n - 1, (y * 1.1).sin()),
                        (n, y),
                    );
                    (y, y)
                },
                x[1],
                x[0],
            );
            vec![y, ys]
        })
        .forward(),
    );
}

fn conds(cases: &mut Vec<Case>) {
    let predicate = In::Bool(vec![]);
    cases.push(case("cond", &[predicate.clone(), x(&[2]), x(&[2])], |x| {
        cond(x[0], |(a, b)| (a * b).sin(), |(a, b)| a - b * b, (x[1], x[2]))
    }));
    cases.push(cases_of("cond/captures", &[predicate.clone(), x(&[2]), x(&[]), x(&[2])], |x| {
        let (y, z) = cond(
            x[0],
            |a: Tensor| ((a * x[2]).sin(), x[3]),
            |a| (a - x[3], (x[3] * a).cos()),
            x[1],
        );
        vec![y, z]
    }));
    cases.push(cases_of("cond/on a value", &[x(&[]), x(&[3])], |x| {
        vec![cond(x[0].gt(0.0), |y: Tensor| y.sin() * x[0], |y| y * y, x[1])]
    }));
    cases.push(case("cond/one side constant", &[predicate.clone(), x(&[2])], |x| {
        cond(x[0], |a: Tensor| a.sin(), |a| zeros_like(a), x[1])
    }));
    cases.push(cases_of("cond/same result", &[predicate.clone(), x(&[2]), x(&[2])], |x| {
        let (a, b) = cond(x[0], |(a, b)| (a, b), |(a, b)| (b, a), (x[1], x[2]));
        vec![a * a, b.sin()]
    }));
    cases.push(cases_of(
        "cond/integers too",
        &[predicate.clone(), x(&[2]), int(&[], -5, 5)],
        |x| {
            let (a, n) = cond(
                x[0],
                |(a, n): (Tensor, Tensor)| (a.sin(), n + 1),
                |(a, n)| (a * a, -n),
                (x[1], x[2]),
            );
            vec![a, n]
        },
    ));
    // The index is clamped.
    cases.push(case("cond/switch", &[int(&[], -2, 4), x(&[2])], |x| {
        switch(x[0], &[&|a: Tensor| a.sin(), &|a: Tensor| a * a, &|a: Tensor| a.exp() * a], x[1])
    }));
    cases.push(case("cond/one branch", &[int(&[], -2, 4), x(&[2])], |x| {
        switch(x[0], &[&|a: Tensor| a.sin()], x[1])
    }));
    cases.push(case("cond/nested", &[predicate.clone(), In::Bool(vec![]), x(&[2])], |x| {
        cond(x[0], |a: Tensor| cond(x[1], |a: Tensor| a.sin(), |a| a * a, a), |a| a.exp(), x[2])
    }));
    cases.push(case("cond/scan inside", &[predicate.clone(), x(&[3])], |x| {
        cond(
            x[0],
            |a: Tensor| scan(|h: Tensor, y: Tensor| ((h * y).sin(), h), a.sum(..), a).1,
            |a| a * a,
            x[1],
        )
    }));
    cases.push(case("cond/no arguments", &[predicate, x(&[])], |x| {
        cond(x[0], |()| x[1].sin(), |()| x[1] * x[1], ())
    }));
}

fn mixtures(cases: &mut Vec<Case>) {
    cases.push(case("dot/grad of vmap", &[x(&[3, 2]), x(&[2])], |x| {
        grad(|w: Tensor| vmap(|row: Tensor| (row * w).sum(..).sin())(x[0]).sum(..))(x[1])
            .outer(x[1])
    }));
    cases.push(case("mul/vmap of grad", &[x(&[3, 2]), x(&[2])], |x| {
        vmap(|row: Tensor| grad(|row: Tensor| ((row * x[1]).sum(..)).sin())(row))(x[0])
    }));
    cases.push(case("mul/hessian", &[x(&[3])], |x| {
        let f = |x: Tensor| (x.prod(..) + x.sin().sum(..)).tanh();
        let unit = podracer::trace::ops::eye(3, x[0].dtype());
        vmap(|v: Tensor| jvp(grad(f), x[0], v).1)(unit)
    }));
    cases.push(case("mul/vmap of vmap", &[x(&[3, 2]), x(&[4])], |x| {
        vmap(|row: Tensor| vmap(|s: Tensor| (row * s).sin())(x[1]))(x[0])
    }));
    cases.push(case("mul/linearize twice", &[x(&[3]), x(&[3]), x(&[3])], |x| {
        let (y, push) = podracer::linearize(|x: Tensor| x.sin() * x.sum(..), x[0]);
        y + push(x[1]) * push(x[2])
    }));
    cases.push(case("mul/vjp twice", &[x(&[3]), x(&[3]), x(&[3])], |x| {
        let (y, pull) = podracer::vjp(|x: Tensor| x.sin() * x.sum(..), x[0]);
        y + pull(x[1]) * pull(x[2])
    }));
    cases.push(case("scan/jvp inside grad", &[x(&[2]), x(&[3, 2])], |x| {
        grad(|h: Tensor| {
            let step = |h: Tensor, x: Tensor| ((h * x).sin(), ());
            let (h, dh) = jvp(|h: Tensor| scan(step, h, x[1]).0, h, x[0]);
            (h * dh).sum(..)
        })(x[0])
    }));
    cases.push(
        case("scan/grad of vmap of scan", &[x(&[2]), x(&[3, 2])], |x| {
            grad(|w: Tensor| {
                let run = |xs: Tensor| {
                    scan(|h: Tensor, y: Tensor| ((h * w + y).tanh(), ()), zeros_like(w), {
                        vmap(|y: Tensor| w * y)(xs)
                    })
                    .0
                };
                vmap(run)(x[1]).sum(..)
            })(x[0])
        })
        .once(),
    );
    cases.push(case("mul/capture across two levels", &[x(&[2]), x(&[2])], |x| {
        grad(|a: Tensor| {
            let inner = grad(|b: Tensor| (a * b).sin().sum(..))(x[1]);
            (inner * a).sum(..)
        })(x[0])
    }));
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    scans(&mut cases);
    whiles(&mut cases);
    conds(&mut cases);
    mixtures(&mut cases);
    cases
}
