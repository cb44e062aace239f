//! `check_nans` finds the operation that made a NaN, its line, its turn and its operands, and calls
//! nothing twice.

use std::sync::atomic::{AtomicUsize, Ordering};

use podracer::jit;
use podracer::trace::control::{cond, scan, while_loop};
use podracer::{
    Array, DType, Error, Literal, Mode, Tensor, checkpoint, debug_callback, grad, io_callback,
    pure_callback, vmap,
};

const MODES: [Mode; 3] = [Mode::Jit, Mode::Eager, Mode::Interpret];

/// The message of the error, with lines counted from the caller's.
#[track_caller]
fn message(f: impl Fn(Tensor) -> Tensor, x: impl Into<Array>) -> String {
    let (x, line) = (x.into(), std::panic::Location::caller().line());
    let mut texts = MODES.map(|mode| {
        let error =
            jit(&f).with_mode(mode).named("f").check_nans(true).call(x.clone()).unwrap_err();
        assert!(matches!(error, Error::Nan(_)), "{mode}: {error}");
        let mut text = String::new();
        for (i, part) in error.to_string().split("tests/it/nans.rs:").enumerate() {
            if i == 0 {
                text.push_str(part);
                continue;
            }
            let (at, rest) = part.split_once(':').unwrap();
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            let at = at.parse::<i64>().unwrap() - line as i64;
            text.push_str(&format!("line {at:+}{rest}"));
        }
        text
    });
    assert!(texts[0] == texts[1] && texts[1] == texts[2], "{texts:#?}");
    std::mem::take(&mut texts[0])
}

#[test]
fn the_operation_and_its_operands() {
    assert_eq!(
        message(|x| (x - 2.0).log() * 3.0, [3.0f32, 4.0, 1.0]),
        "f: log makes the first NaN, in f32[3] at [2]\n  --> line +0\n  \
         its operands have none: f32[3] from -1 to 2"
    );
    assert_eq!(
        message(|x| x.sqrt(), f32::NAN),
        "f: argument 0 (f32[]) holds a NaN; it was not made here"
    );
    assert_eq!(
        message(
            |x| vmap(|x: Tensor| (x / (x - x)).sum(..))(x),
            Array::new([2, 2], &[1.0f32, 2.0, 0.0, 1.0]).unwrap()
        ),
        "f: div makes the first NaN, in f32[2,2] at [1, 0]\n  --> line +1\n  \
         its operands have none: f32[2,2] from 0 to 2, f32[2,2] from 0 to 0"
    );
    // The bits of integers may be those of a NaN.
    let text =
        message(|x| x.bitcast(DType::F32).bitcast(DType::I32).to(DType::F32).sqrt(), [-1i32]);
    assert!(text.starts_with("f: sqrt makes the first NaN"), "{text}");
    // A derivative has the line of what it is derived from.
    let text = message(|x| grad(|x: Tensor| checkpoint(|x: Tensor| x.sqrt() * 0.0)(x))(x), 0.0f32);
    assert!(text.contains("makes the first NaN") && text.contains("--> line +0"), "{text}");
}

#[test]
fn iterations_and_branches_with_nan_are_named() {
    let looped = |xs: Tensor| {
        scan(
            |c: Tensor, x: Tensor| {
                let c = c - x;
                (c, c.sqrt())
            },
            xs.sum(..) * 0.0 + 4.0,
            xs,
        )
        .1
    };
    assert_eq!(
        message(looped, [1.0f32, 2.0, 3.0]),
        "f: sqrt makes the first NaN, in f32[]\n  --> line -8, in step 2 of scan (line -11)\n  \
         its operands have none: f32[] from -2 to -2"
    );
    let nested = |xs: Tensor| {
        let inner = |x: Tensor| while_loop(|x: Tensor| x.gt(-2.0), |x| (x - 1.0).log1p(), x);
        let branch = |x: Tensor| cond(x.gt(1.5), inner, |x: Tensor| x, x);
        vmap(|xs: Tensor| scan(|c: Tensor, x: Tensor| (c, branch(x)), xs.sum(..), xs).1)(xs)
    };
    let text = message(nested, Array::new([1, 3], &[1.0f32, 0.5, 2.0]).unwrap());
    assert!(text.contains("log1p makes the first NaN, in f32[1] at [0]"), "{text}");
    let place = "--> line -4, in step 2 of while (line -4), in step 2 of scan (line -2)";
    assert!(text.contains(place), "{text}");
}

#[test]
fn effects_are_not_repeated() {
    for mode in MODES {
        let (reads, prints) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (reads, prints): (&'static _, &'static _) =
            (Box::leak(Box::new(reads)), Box::leak(Box::new(prints)));
        let f = jit(|xs: Tensor| {
            scan(
                |c: Tensor, x: Tensor| {
                    // 2, 1, 0, -1: never the same again.
                    let read = |_: Literal| {
                        Ok(Literal::from(2.0 - reads.fetch_add(1, Ordering::SeqCst) as f32))
                    };
                    let next = io_callback(read, x.ty(), false, x);
                    debug_callback(
                        |_: Literal| {
                            prints.fetch_add(1, Ordering::SeqCst);
                        },
                        x,
                    );
                    (c + next.sqrt(), ())
                },
                xs.sum(..),
                xs,
            )
            .0
        })
        .with_mode(mode);
        let f = f.named("f").check_nans(true);
        let text = f.call(Array::from([1.0f32; 4])).unwrap_err().to_string();
        assert!(
            text.contains("sqrt makes the first NaN") && text.contains("in step 3 of scan"),
            "{text}"
        );
        // Eager and interpreted runs end where they find it.
        assert_eq!(reads.load(Ordering::SeqCst), 4, "{mode}");
        assert_eq!(prints.load(Ordering::SeqCst), 4, "{mode}");
        // The record of one run is not that of the next.
        reads.store(1, Ordering::SeqCst);
        let text = f.call(Array::from([1.0f32; 4])).unwrap_err().to_string();
        assert!(text.contains("in step 2 of scan"), "{text}");
    }
}

#[test]
fn a_callback_may_be_the_one() {
    let bad = |x: Literal| Ok(Literal::from(0.0 / (x.to_vec::<f32>()?[0] - 1.0)));
    let text = message(move |x| pure_callback(bad, x.ty(), x) * 2.0, 1.0f32);
    assert!(text.starts_with("f: pure_callback makes the first NaN, in f32[]"), "{text}");
    let text = message(move |x| io_callback(bad, x.ty(), true, x) * 2.0, 1.0f32);
    assert!(text.starts_with("f: io_callback makes the first NaN, in f32[]"), "{text}");
}

#[test]
fn constants_may_be_nan() {
    for mode in MODES {
        let f = jit(|x: Tensor| podracer::trace::ops::full_like(x, f64::NAN)).with_mode(mode);
        let y = f.check_nans(true).call(Array::from(1.0f32)).unwrap();
        assert!(y.item::<f32>().unwrap().is_nan());
    }
}
