//! Callbacks: compiled, operation by operation, and interpreted they do the same, in order, once;
//! and what goes wrong in them is told.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use podracer::trace::callback::{CallbackKind, HostFn};
use podracer::trace::control::{ScanOptions, cond, fori_loop, scan, scan_with, while_loop};
use podracer::{
    Array, DType, Error, Literal, Mode, Result, Tensor, TensorType, VmapMethod, checkpoint,
    custom_jvp, debug_callback, debug_callback_ordered, debug_print, debug_print_ordered, eager,
    effects_barrier, grad, interpret, io_callback, jit, jvp, linearize, make_program,
    pure_callback, pure_callback_with, raw_callback, value_and_grad, vmap,
};

const MODES: [Mode; 3] = [Mode::Jit, Mode::Eager, Mode::Interpret];

/// The barrier is the process's: while one test looks at what it tells, no other may fail on
/// purpose, or ask it.
static GATE: RwLock<()> = RwLock::new(());

/// Waits, whatever other tests have done.
fn barrier() {
    let _gate = GATE.read().unwrap_or_else(PoisonError::into_inner);
    let _ = effects_barrier();
}

/// What was seen, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<f64>>>);

impl Log {
    fn push(&self, x: &Literal) {
        self.0.lock().unwrap().extend(x.to_f64_vec());
    }

    /// What was seen since the last time.
    #[track_caller]
    fn take(&self) -> Vec<f64> {
        barrier();
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn debug(&self, x: Tensor) {
        let log = self.clone();
        debug_callback(move |x: Literal| log.push(&x), x);
    }

    fn ordered(&self, x: Tensor) {
        let log = self.clone();
        debug_callback_ordered(move |x: Literal| log.push(&x), x);
    }

    /// Gives back what it saw, times ten.
    fn io(&self, ordered: bool, x: Tensor) -> Tensor {
        let log = self.clone();
        let f = move |x: Literal| {
            log.push(&x);
            tenfold(x)
        };
        io_callback(f, x.ty(), ordered, x)
    }
}

fn tenfold(x: Literal) -> Result<Literal> {
    let values: Vec<f32> = x.to_vec::<f32>()?.iter().map(|x| 10.0 * x).collect();
    Ok(Literal::new(&x.ty().shape, &values))
}

fn pure(x: Tensor) -> Tensor {
    pure_callback(tenfold, x.ty(), x)
}

/// The values in each mode.
#[track_caller]
fn everywhere(f: impl Fn(Tensor) -> Tensor, x: impl Into<Array>, expected: &[f64]) {
    let x = x.into();
    for mode in MODES {
        let y = jit(&f).with_mode(mode).call(x.clone()).unwrap().to_literal().unwrap();
        assert_eq!(y.to_f64_vec(), expected, "{mode}");
    }
}

fn numbers(n: usize) -> Array {
    Array::new([n], &(0..n).map(|i| i as f32).collect::<Vec<f32>>()).unwrap()
}

#[test]
fn values_come_and_go() {
    everywhere(pure, [1.0f32, 2.0], &[10.0, 20.0]);
    everywhere(|x| pure(x) + pure(x * 2.0), 1.0f32, &[30.0]);
    // In loops and branches.
    let looped = |x: Tensor| scan(|c: Tensor, x: Tensor| (pure(c) + x, c), x.sum(..) * 0.0, x).0;
    everywhere(looped, [1.0f32, 2.0, 3.0], &[123.0]);
    let branch = |x: Tensor| cond(x.sum(..).gt(0.0), pure, |x: Tensor| x, x);
    everywhere(branch, [1.0f32], &[10.0]);
    everywhere(branch, [-1.0f32], &[-1.0]);
    let until = |x: Tensor| while_loop(|x: Tensor| x.lt(500.0), pure, x);
    everywhere(until, 1.0f32, &[1000.0]);
}

#[test]
fn every_element_type_goes_through() {
    let dtypes = [
        DType::Bool,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
        DType::F8E4M3FN,
        DType::F8E5M2,
    ];
    for dtype in dtypes {
        let f = |x: Tensor| {
            let seen = move |x: Literal| {
                assert_eq!(x.to_f64_vec(), [0.0, 1.0, 1.0]);
                assert_eq!(x.ty().dtype, dtype);
                Ok((x.clone(), x))
            };
            let x = x.to(dtype);
            let (a, b): (Tensor, Tensor) = pure_callback(seen, (x.ty(), x.ty()), x);
            a.to(DType::F32) + b.to(DType::F32)
        };
        for mode in MODES {
            let y = jit(f).with_mode(mode).call(Array::from([0.0f32, 1.0, 1.0])).unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), [0.0, 2.0, 2.0], "{mode} {dtype}");
        }
    }
}

#[test]
fn trees_and_no_operands_and_no_elements() {
    let f = |(x, n): (Tensor, Vec<Tensor>)| {
        let g = |(x, n): (Literal, Vec<Literal>)| {
            assert_eq!(x.ty().numel(), 0);
            assert_eq!(n.len(), 2);
            Ok((n[1].clone(), vec![n[0].clone(), x]))
        };
        let (a, rest) = (n[1].ty(), vec![n[0].ty(), x.ty()]);
        let (a, rest): (Tensor, Vec<Tensor>) = pure_callback(g, (a, rest), (x, n));
        let three = pure_callback(|()| Ok(Literal::from(3i32)), TensorType::scalar(DType::I32), ());
        (a + three, rest)
    };
    for mode in MODES {
        let args = (Array::zeros([0, 2], DType::F32), vec![Array::from(1i32), Array::from(2i32)]);
        let (a, rest) = jit(f).with_mode(mode).call(args).unwrap();
        assert_eq!(a.item::<i32>().unwrap(), 5);
        assert_eq!(rest[0].item::<i32>().unwrap(), 1);
        assert_eq!(rest[1].shape()[..], [0, 2]);
    }
}

#[test]
fn a_thousand_turns_in_order() {
    const TURNS: usize = 1000;
    let expected: Vec<f64> = (0..TURNS).flat_map(|i| [i as f64, -(i as f64)]).collect();
    for mode in [Mode::Jit, Mode::Interpret] {
        for ordered in [false, true] {
            for unroll in [1, 7] {
                let log = Log::default();
                let f = jit(|xs: Tensor| {
                    let options = ScanOptions { unroll, ..ScanOptions::default() };
                    // No data flows from one call to another, and nobody wants the results.
                    let body = |c: Tensor, x: Tensor| {
                        let _ = log.io(ordered, x);
                        match ordered {
                            true => log.ordered(-x),
                            false => log.debug(-x),
                        }
                        (c + 1.0, ())
                    };
                    scan_with(body, xs.sum(..) * 0.0, xs, options).0
                })
                .with_mode(mode);
                let steps = f.call(numbers(TURNS)).unwrap();
                assert_eq!(steps.item::<f32>().unwrap(), TURNS as f32);
                assert_eq!(log.take(), expected, "{mode} {ordered} {unroll}");
            }
        }
    }
}

#[test]
fn large_programs_keep_the_order() {
    // Too large to run on the caller's thread, with work between the calls that could run apart.
    let log = Log::default();
    let f = jit(|x: Tensor| {
        let mut sums = Vec::new();
        for i in 0..8 {
            let y = (x * i as f32).matmul(x);
            log.debug(y.index_axis(0, 0).index_axis(0, 0) * 0.0 + i as f32);
            sums.push(y.sum(..));
            log.ordered(x.index_axis(0, 0).index_axis(0, 0) + i as f32);
        }
        sums
    });
    let expected: Vec<f64> = (0..8).flat_map(|i| [i as f64, i as f64 + 1.0]).collect();
    let x = Array::new([128, 128], &[1.0f32; 128 * 128]).unwrap();
    for _ in 0..20 {
        f.call(x.clone()).unwrap();
        assert_eq!(log.take(), expected);
    }
}

#[test]
fn in_loops_and_branches_and_conditions() {
    for mode in MODES {
        let log = Log::default();
        let f = jit(|x: Tensor| {
            log.debug(x);
            let x = while_loop(
                |x: Tensor| {
                    log.debug(x + 0.5);
                    x.lt(3.0)
                },
                |x: Tensor| {
                    log.debug(x);
                    x + 1.0
                },
                x,
            );
            let big = |x: Tensor| log.io(false, x);
            let small = |x: Tensor| {
                log.debug(x * 100.0);
                x
            };
            let y = cond(x.gt(2.0), big, small, x);
            // A branch without results.
            cond(x.gt(5.0), |x| log.debug(x), |x| log.debug(-x), y);
            log.debug(y + 1.0);
            y
        })
        .with_mode(mode);
        assert_eq!(f.call(Array::from(1.0f32)).unwrap().item::<f32>().unwrap(), 30.0);
        let expected = [1.0, 1.5, 1.0, 2.5, 2.0, 3.5, 3.0, -30.0, 31.0];
        assert_eq!(log.take(), expected, "{mode}");
    }
}

#[test]
fn runs_are_in_order() {
    // The first call of a run is slow; the runs depend on nothing of each other.
    let log = Log::default();
    let f = jit(|(x, big): (Tensor, Tensor)| {
        let slow = log.clone();
        let f = move |x: Literal| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            slow.push(&x);
            Ok(x)
        };
        let _ = io_callback(f, x.ty(), true, x);
        (big.matmul(big).sum(..), log.ordered(x + 0.5)).0
    });
    let big = Array::new([64, 64], &[1.0f32; 64 * 64]).unwrap();
    for i in 0..20 {
        f.call((Array::from(i as f32), big.clone())).unwrap();
    }
    let expected: Vec<f64> = (0..20).flat_map(|i| [i as f64, i as f64 + 0.5]).collect();
    assert_eq!(log.take(), expected);
}

#[test]
fn a_function_lives_as_long_as_its_runs() {
    let calls = Arc::new(AtomicUsize::new(0));
    let alive = Arc::downgrade(&calls);
    {
        let f = jit(move |x: Tensor| {
            let calls = calls.clone();
            let f = move |x: Literal| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                calls.fetch_add(1, Ordering::SeqCst);
                Ok(x)
            };
            io_callback(f, x.ty(), false, x).matmul(x)
        });
        // The function goes at the end of this line, with the run under way.
        let y = f.call(Array::new([64, 64], &[1.0f32; 64 * 64]).unwrap()).unwrap();
        drop(f);
        assert_eq!(y.to_vec::<f32>().unwrap()[0], 64.0);
    }
    barrier();
    assert!(alive.upgrade().is_none(), "the function is still held");
}

#[test]
fn nobody_wants_the_result() {
    for mode in MODES {
        let (log, count) = (Log::default(), Arc::new(AtomicUsize::new(0)));
        let f = jit(|x: Tensor| {
            let _ = log.io(false, x);
            let count = count.clone();
            let pure = move |x: Literal| {
                count.fetch_add(1, Ordering::SeqCst);
                Ok(x)
            };
            let _ = pure_callback(pure, x.ty(), x);
            log.debug(x + 1.0);
            x
        })
        .with_mode(mode);
        f.call(Array::from(1.0f32)).unwrap();
        assert_eq!(log.take(), [1.0, 2.0], "{mode}");
        // A pure call without use is left out when the program is compiled.
        assert_eq!(count.load(Ordering::SeqCst), usize::from(mode != Mode::Jit), "{mode}");
    }
}

#[test]
fn equal_calls_are_not_merged() {
    static COUNT: AtomicI32 = AtomicI32::new(0);
    let at = std::panic::Location::caller();
    let f = HostFn::new("count", at, |_, results| {
        let n = COUNT.fetch_add(1, Ordering::SeqCst);
        results[0].bytes.copy_from_slice(&n.to_ne_bytes());
        Ok(())
    });
    let g = jit(|()| {
        let draw = || {
            let kind = CallbackKind::io(false);
            raw_callback(f.clone(), kind, vec![TensorType::scalar(DType::I32)], &[])[0]
        };
        draw() * 100 + draw()
    });
    assert_eq!(g.call(()).unwrap().item::<i32>().unwrap(), 1);
    assert_eq!(g.call(()).unwrap().item::<i32>().unwrap(), 203);
}

#[test]
fn derivatives_run_debug_callbacks_once() {
    for mode in MODES {
        let log = Log::default();
        let f = |x: Tensor| {
            log.debug(x);
            let y = x.sin() * x;
            log.debug(y);
            y
        };
        let run = |g: &dyn Fn(Tensor) -> Tensor| {
            jit(g).with_mode(mode).call(Array::from(2.0f32)).unwrap();
            log.take().iter().map(|x| (x * 100.0).round()).collect::<Vec<f64>>()
        };
        let expected = [200.0, 182.0];
        assert_eq!(run(&grad(f)), expected, "{mode}");
        assert_eq!(run(&|x| value_and_grad(f)(x).1), expected, "{mode}");
        assert_eq!(run(&|x| jvp(f, x, x).1), expected, "{mode}");
        assert_eq!(run(&|x| linearize(f, x).1(x)), expected, "{mode}");
        assert_eq!(run(&grad(grad(f))), expected, "{mode}");
        assert_eq!(run(&grad(|x| checkpoint(f)(x))), expected, "{mode}");
        assert_eq!(run(&grad(|x| fori_loop(0, 1, |_, x| f(x), x))), expected, "{mode}");
        assert_eq!(run(&|x| linearize(|x| once(f, x), x).1(x)), expected, "{mode}");
        assert_eq!(run(&grad(|x: Tensor| cond(x.gt(0.0), f, |x| x, x))), expected, "{mode}");
    }
}

/// `f` once, by a `while_loop`.
fn once(f: impl Fn(Tensor) -> Tensor, x: Tensor) -> Tensor {
    let first = x.eq(x);
    while_loop(|(go, _): (Tensor, Tensor)| go, |(go, x)| (!go, f(x)), (first, x)).1
}

#[test]
fn loops_differentiated_run_effects_once_a_turn() {
    for mode in MODES {
        let log = Log::default();
        let f = jit(grad(|w: Tensor| {
            let body = |c: Tensor, i: Tensor| {
                log.debug(i);
                // What a callback gives is used by the derivative, and not asked for again.
                let scale = log.io(false, i + 0.5);
                // The same in every turn, and yet one call each.
                let _ = log.io(true, w);
                ((c * w * scale).sin(), ())
            };
            let xs = podracer::trace::ops::arange(3, DType::F32);
            scan(body, w, xs).0
        }))
        .with_mode(mode);
        f.call(Array::from(2.0f32)).unwrap();
        assert_eq!(log.take(), [0.0, 0.5, 2.0, 1.0, 1.5, 2.0, 2.0, 2.5, 2.0], "{mode}");
    }
}

#[test]
fn results_of_io_are_kept_by_checkpoints() {
    for mode in MODES {
        let log = Log::default();
        let f = jit(grad(|x: Tensor| {
            checkpoint(|x: Tensor| {
                log.debug(x);
                (x * log.io(false, x.stop_gradient())).sin()
            })(x)
        }))
        .with_mode(mode);
        let slope = f.call(Array::from(1.0f32)).unwrap().item::<f32>().unwrap();
        assert!((slope - 10.0 * 10f32.cos()).abs() < 1e-4, "{slope}");
        assert_eq!(log.take(), [1.0, 1.0], "{mode}");
    }
}

#[test]
fn custom_jvp_gives_a_derivative() {
    let f = |x: Tensor| custom_jvp(pure, |x, t| (pure(x), t * 10.0))(x);
    everywhere(grad(move |x: Tensor| f(x) * x), 3.0f32, &[60.0]);
}

#[test]
fn batches_are_passed_as_the_method_says() {
    let log = Log::default();
    everywhere(|x| vmap(pure)(x), [1.0f32, 2.0], &[10.0, 20.0]);
    for (method, shapes) in [
        (VmapMethod::Sequential, ["f32[2]", "f32[]"]),
        (VmapMethod::ExpandDims, ["f32[3,2]", "f32[1]"]),
        (VmapMethod::BroadcastAll, ["f32[3,2]", "f32[3]"]),
    ] {
        let f = move |(x, y): (Tensor, Tensor)| {
            let one = |x: Tensor| {
                let f = move |(x, y): (Literal, Literal)| {
                    let types = [x.ty().to_string(), y.ty().to_string()];
                    assert_eq!(types, shapes);
                    tenfold(x)
                };
                pure_callback_with(method, f, x.ty(), (x, y))
            };
            vmap(one)(x)
        };
        let x = Array::new([3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        for mode in MODES {
            let y = jit(f).with_mode(mode).call((x.clone(), Array::from(1.0f32))).unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        }
    }
    for mode in MODES {
        // Once for each example, and once for all if it is the same for all.
        let f = jit(|(x, y): (Tensor, Tensor)| {
            vmap(|x: Tensor| {
                log.debug(x * 2.0 + y);
                log.ordered(x);
                log.debug(y);
                log.io(false, x)
            })(x)
        })
        .with_mode(mode);
        f.call((numbers(3), Array::from(1.0f32))).unwrap();
        assert_eq!(log.take(), [1.0, 3.0, 5.0, 0.0, 1.0, 2.0, 1.0, 0.0, 1.0, 2.0], "{mode}");
        // Twice mapped, in a loop.
        let g = jit(|x: Tensor| {
            vmap(vmap(|x: Tensor| {
                scan_with(|c: Tensor, ()| (pure(c), ()), x, (), ScanOptions::length(2)).0
            }))(x)
        })
        .with_mode(mode);
        let y = g.call(Array::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap()).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [100.0, 200.0, 300.0, 400.0]);
    }
}

#[test]
fn a_tensor_has_no_value_in_there() {
    let f = |x: Tensor| pure_callback(move |y: Literal| Ok((x * 2.0, y).1), x.ty(), x);
    for mode in MODES {
        let run = || jit(f).with_mode(mode).call(Array::from(1.0f32))?.to_literal();
        let text = run().unwrap_err().to_string();
        assert!(text.contains("a tensor is used outside the trace that made it"), "{mode}: {text}");
    }
}

#[test]
fn it_cannot_be_exported() {
    let text = jit(pure).named("f").export(&Array::from(1.0f32)).unwrap_err().to_string();
    let expected = "f cannot be exported: it calls a function of this process, with pure_callback";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn many_threads_call() {
    const THREADS: usize = 4;
    const CALLS: usize = 30;
    let log = Log::default();
    let f = jit(|(x, big): (Tensor, Tensor)| {
        log.ordered(x);
        let y = log.io(false, x + 0.25);
        log.ordered(x + 0.5);
        big.matmul(big).sum(..) + y
    });
    let big = Array::new([64, 64], &[1.0f32; 64 * 64]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (f, big) = (&f, &big);
            scope.spawn(move || {
                for call in 0..CALLS {
                    let x = (thread * CALLS + call) as f32;
                    let y = f.call((Array::from(x), big.clone())).unwrap();
                    assert_eq!(y.item::<f32>().unwrap(), 64.0 * 64.0 * 64.0 + 10.0 * x + 2.5);
                }
            });
        }
    });
    let seen = log.take();
    assert_eq!(seen.len(), 3 * THREADS * CALLS);
    // Runs do not mingle, and each thread's are in its order.
    let mut last = [-1.0; THREADS];
    for run in seen.chunks(3) {
        assert_eq!(run, [run[0], run[0] + 0.25, run[0] + 0.5]);
        let before = &mut last[run[0] as usize / CALLS];
        assert!(*before < run[0]);
        *before = run[0];
    }
}

#[test]
fn modes_keep_the_order_of_each_other() {
    let log = Log::default();
    let slow = log.clone();
    let f = |x: Tensor| {
        let slow = slow.clone();
        let f = move |x: Literal| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            slow.push(&x);
            Ok(x)
        };
        io_callback(f, x.ty(), true, x).matmul(x)
    };
    let fast = |x: Tensor| log.ordered(-x.max(..));
    let x = Array::new([64, 64], &[1.0f32; 64 * 64]).unwrap();
    for mode in MODES {
        jit(f).call(x.clone()).unwrap();
        jit(fast).with_mode(mode).call(x.clone()).unwrap();
        let seen = log.take();
        assert_eq!((seen.len(), seen.last()), (64 * 64 + 1, Some(&-1.0)), "{mode}");
    }
}

/// What [`lines_are_printed`] runs in a process of its own.
#[test]
#[ignore = "prints for lines_are_printed"]
fn printing() {
    let f = |x: Tensor| {
        let step = |c: Tensor, x: Tensor| {
            debug_print("at {}: x = {:.2}{{}}", (c, x));
            (c + 1, ())
        };
        scan(step, podracer::trace::ops::constant(0i32), x);
        debug_print_ordered("all: {}", x);
        x
    };
    for mode in MODES {
        println!("<{mode}");
        jit(f).with_mode(mode).call(Array::from([0.5f32, 1.25])).unwrap();
        effects_barrier().unwrap();
        println!(">");
    }
}

#[test]
fn lines_are_printed() {
    let arguments = ["callbacks::printing", "--exact", "--ignored", "--nocapture"];
    let this = std::env::current_exe().unwrap();
    let output = std::process::Command::new(this).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for mode in MODES {
        let lines = "at 0: x = 0.50{}\nat 1: x = 1.25{}\nall: [0.5, 1.25]";
        assert!(text.contains(&format!("<{mode}\n{lines}\n>\n")), "{text}");
    }
}

/// What goes wrong in a call, in every mode.
#[track_caller]
fn faults(f: impl Fn(Tensor) -> Tensor, expected: &str) {
    let _gate = GATE.read().unwrap_or_else(PoisonError::into_inner);
    let line = std::panic::Location::caller().line();
    for mode in MODES {
        let run = || jit(&f).with_mode(mode).call(Array::from([1.0f32, 2.0]))?.to_literal();
        let error = run().unwrap_err();
        assert!(matches!(error, Error::Callback(_)), "{mode}: {error:?}");
        let text = error.to_string();
        let (text, at) = text.split_once("\n  --> tests/it/callbacks.rs:").expect(&text);
        assert_eq!(text, expected, "{mode}");
        let at: u32 = at.split(':').next().unwrap().parse().unwrap();
        assert!(at.abs_diff(line) < 40, "{mode}: line {at}, and the test is at {line}");
    }
    // The runtime is as good as before.
    everywhere(pure, [1.0f32], &[10.0]);
}

#[test]
fn failures_are_reported() {
    let fails = |_: Literal| Err(Error::Argument("no luck".into()));
    faults(move |x| pure_callback(fails, x.ty(), x), "pure_callback: the function failed: no luck");
    faults(
        move |x| io_callback(fails, x.ty(), true, x),
        "io_callback: the function failed: no luck",
    );
    faults(
        |x| pure_callback(|_: Literal| panic!("all is {}", "lost"), x.ty(), x),
        "pure_callback: the function panicked: all is lost",
    );
    let large = |x: Tensor| x.broadcast_to([64, 2]).t().matmul(x.broadcast_to([64, 2]));
    faults(
        move |x| pure_callback(fails, TensorType::new(DType::F32, [2, 2]), large(x)),
        "pure_callback: the function failed: no luck",
    );
    faults(
        |x| pure_callback(|_: Literal| Ok(Literal::from(1.0f32)), x.ty(), x),
        "pure_callback: result of the function is f32[], and must be f32[2]",
    );
    faults(
        |x| pure_callback(|x: Literal| Ok(vec![x]), vec![x.ty(), x.ty()], x)[0],
        "pure_callback: result of the function has the wrong structure: result[1] is in what was \
         declared and not in what was returned",
    );
    faults(
        |x| {
            debug_callback(|_: Literal| panic!("not shown"), x);
            x * 2.0
        },
        "debug_callback: the function panicked: not shown",
    );
    // In a loop, and under vmap.
    faults(
        move |x| {
            scan(|c: Tensor, x: Tensor| (io_callback(fails, c.ty(), false, c), x), x.sum(..), x).0
        },
        "io_callback: the function failed: no luck",
    );
    faults(
        move |x| vmap(move |x: Tensor| pure_callback(fails, x.ty(), x))(x),
        "pure_callback: the function failed: no luck",
    );
    faults(
        |x| {
            let at = std::panic::Location::caller();
            let f = HostFn::new("raw", at, |_, results| {
                results[0].bytes.fill(7);
                Ok(())
            });
            let ty = TensorType::new(DType::Bool, [2]);
            raw_callback(f, CallbackKind::io(false), vec![ty], &[x])[0].to(DType::F32)
        },
        "raw: the function gave bytes other than 0 and 1 as bools, result 0",
    );
}

#[test]
fn the_barrier_returns_errors_of_unread_calls() {
    let _gate = GATE.write().unwrap_or_else(PoisonError::into_inner);
    let _ = effects_barrier();
    let f = jit(|x: Tensor| {
        debug_callback(|_: Literal| panic!("unread"), x);
        x.matmul(x)
    });
    let x = Array::new([64, 64], &[1.0f32; 64 * 64]).unwrap();
    // A plugin that runs the program in this thread returns the error from the call.
    let text = f.call(x).and_then(|_| effects_barrier()).unwrap_err().to_string();
    assert!(text.contains("debug_callback: the function panicked: unread"), "{text}");
    effects_barrier().unwrap();
}

#[test]
fn a_callback_cannot_wait_for_the_runtime() {
    let inner = jit(|x: Tensor| x * 2.0);
    inner.call(Array::from(1.0f32)).unwrap();
    let inner = Arc::new(inner);
    let late = Arc::new(
        jit(|x: Tensor| x.matmul(x).matmul(x))
            .call(Array::new([64, 64], &[1.0f32; 64 * 64]).unwrap())
            .unwrap(),
    );
    late.wait().unwrap();
    let f = |x: Tensor| {
        let (inner, late) = (inner.clone(), late.clone());
        let f = move |x: Literal| {
            // What is there can be read, and the interpreter runs.
            assert_eq!(late.to_vec::<f32>()?[0], 4096.0);
            let y = interpret(|x: Tensor| x + 1.0).call(Array::from(x))?.to_literal()?;
            inner.call(Array::from(y))?.to_literal()
        };
        pure_callback(f, x.ty(), x)
    };
    let _gate = GATE.read().unwrap_or_else(PoisonError::into_inner);
    let run = || jit(f).call(Array::from(1.0f32))?.item::<f32>();
    let text = run().unwrap_err().to_string();
    assert!(text.contains("tried to launch a compiled program"), "{text}");
    // Elsewhere nothing is held.
    assert_eq!(eager(f).call(Array::from(1.0f32)).unwrap().item::<f32>().unwrap(), 4.0);
    assert_eq!(interpret(f).call(Array::from(1.0f32)).unwrap().item::<f32>().unwrap(), 4.0);
}

/// What the trace says.
#[track_caller]
fn refused(f: impl Fn(Tensor) -> Tensor) -> String {
    let error = make_program(f, &Array::from([1.0f32, 2.0])).unwrap_err().to_string();
    error.lines().next().unwrap().to_string()
}

#[test]
fn what_cannot_be_is_refused() {
    let sum = |x: Tensor| pure(x).sum(..);
    assert_eq!(
        refused(grad(sum)),
        "pure_callback: has no derivative; define one with custom_jvp or custom_vjp, or take the \
         stop_gradient() of its arguments"
    );
    let log = Log::default();
    assert_eq!(
        refused(vmap(|x: Tensor| log.io(true, x))),
        "io_callback: an ordered callback cannot be batched: vmap computes all batch elements \
         together, in no order. Make it unordered, or loop outside of the compiled function"
    );
    let branch = |x: Tensor| cond(x.gt(1.0), |x| log.io(false, x), |x| x, x);
    assert_eq!(
        refused(vmap(branch)),
        "io_callback: a cond under vmap whose condition differs between batch elements computes \
         all branches for all of them, and would make the call for elements that do not take it; \
         move the callback out of the cond"
    );
    let looped = |x: Tensor| while_loop(|x: Tensor| x.lt(1.0), |x| log.io(false, x), x);
    assert!(refused(vmap(looped)).contains("a while_loop under vmap whose condition differs"));
    assert_eq!(
        refused(|x| {
            let x = x.sum(..);
            linearize(|x: Tensor| once(|y| y * log.io(false, y), x), x).1(x)
        }),
        "io_callback: the derivative of the while_loop around it would make the call a second \
         time; move the callback out of the while_loop"
    );
    let tangents = |x: Tensor| {
        custom_jvp(
            |x: Tensor| x,
            |x, t| {
                log.debug(t);
                (x, t)
            },
        )(x)
        .sum(..)
    };
    assert!(refused(grad(tangents)).starts_with("debug_callback: the argument is a tangent"));
    let print = |format: &'static str| {
        refused(move |x| {
            debug_print(format, (x, x));
            x
        })
    };
    assert_eq!(print("{}"), "debug_print: the format has 1 placeholders, and 2 values are given");
    assert!(print("{} {y}").contains("is not a placeholder"));
}

#[test]
fn text_with_callbacks_reads_back_here() {
    let x = Array::from([1.0f32, 2.0]);
    let program = make_program(|x: Tensor| vmap(pure)(x), &x).unwrap();
    assert_eq!(podracer::Program::parse(&program.to_text()).unwrap(), program);
    let text = program.to_text();
    drop(program);
    let error = podracer::Program::parse(&text).unwrap_err().to_string();
    assert!(error.contains("can be read only by the process that wrote it"), "{error}");
}
