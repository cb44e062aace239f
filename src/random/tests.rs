//! Tests of sampling against JAX 0.10.2; `tests/fixtures/random/make.py` generates the fixtures.

mod draws;

use super::*;
use crate::trace::control::scan;
use crate::trace::testing::{Fixture, interpret};
use crate::trace::vmap::vmap;
use crate::tree;

fn fixture() -> Fixture {
    Fixture::new(include_str!("../../tests/fixtures/random/random.json"))
}

/// Returns the result of `f` with the key of `seed`, as numbers.
#[track_caller]
fn draw(seed: u64, f: impl FnOnce(Key<Tensor>) -> Tensor) -> Vec<f64> {
    interpret::<Key<Tensor>, Tensor>(Key::literal(seed), f).unwrap().to_f64_vec()
}

const SHAPES: [&[usize]; 5] = [&[], &[1], &[5], &[2, 3], &[4, 1, 7]];
const SEEDS: [u64; 3] = [0, 42, u32::MAX as u64];

/// JAX's logarithm and error function differ by some units in the last place.
const ROUNDING: f64 = 1e-6;

#[test]
fn keys_are_those_of_jax() {
    let cases = fixture();
    for seed in SEEDS {
        cases.same(&format!("key/{seed}"), Key::literal(seed).into_data().to_f64_vec());
        cases.same(&format!("key/{seed}"), draw(1, |_| Key::constant(seed).into_data()));
        cases.same(
            &format!("split2/{seed}"),
            draw(seed, |key| {
                let (a, b) = key.split();
                ops::concatenate(&[a.into_data(), b.into_data()], 0)
            }),
        );
        cases.same(
            &format!("split5/{seed}"),
            draw(seed, |key| {
                let keys: [Key<Tensor>; 5] = key.split_n();
                ops::concatenate(&keys.map(Key::into_data), 0)
            }),
        );
        cases.same(&format!("split5/{seed}"), draw(seed, |key| key.split_batch(5).into_data()));
        for number in [0u32, 7, i32::MAX as u32, u32::MAX] {
            let name = format!("fold_in/{seed}/{number}");
            cases.same(&name, draw(seed, |key| key.fold_in(number).into_data()));
            let traced = |key: Key<Tensor>| key.fold_in(ops::constant(number as i32)).into_data();
            cases.same(&name, draw(seed, traced));
        }
    }
    let wide = Key::literal(123456789012345).into_data().to_f64_vec();
    cases.same("key64/123456789012345", wide);
}

#[test]
fn bits_uniform_and_integer_draws_are_those_of_jax_to_the_bit() {
    let cases = fixture();
    for seed in SEEDS {
        for (width, dtype) in [(8, DType::U8), (16, DType::U16), (32, DType::U32)] {
            cases.same(&format!("bits{width}/{seed}"), draw(seed, |k| bits(k, [2, 5], dtype)));
        }
        for (i, shape) in SHAPES.into_iter().enumerate() {
            let name = |what: &str| format!("{what}{i}/{seed}");
            let unit = draw(seed, |k| uniform(k, shape, DType::F32, 0.0, 1.0));
            cases.same(&name("uniform"), unit);
            let range = draw(seed, |k| uniform(k, shape, DType::F32, -2.5, 0.3));
            // On the CPU, XLA fuses the product and the sum, with one rounding instead of two.
            let theirs = cases.case(&name("uniform_range"));
            let unit = 4.0 * f32::EPSILON as f64;
            assert!(range.iter().zip(theirs).all(|(a, b)| (a - b).abs() <= unit), "{range:?}");
            let integers = draw(seed, |k| randint(k, shape, -3, 10, DType::I32));
            cases.same(&name("randint"), integers);
        }
        let name = |what: &str| format!("{what}/{seed}");
        for (what, dtype) in [("uniform_bf16", DType::BF16), ("uniform_f16", DType::F16)] {
            let ours = draw(seed, |k| uniform(k, [9], dtype, 0.0, 1.0));
            cases.same(&name(what), ours);
        }
        cases.same(
            &name("randint_bounds"),
            draw(seed, |k| {
                let low = ops::constant([[0i32], [10]]);
                randint(k, [2, 3], low, ops::constant([1i32, 20, 1000]), DType::I32)
            }),
        );
        let wide = draw(seed, |k| randint(k, [6], i32::MIN, i32::MAX, DType::I32));
        cases.same(&name("randint_wide"), wide);
        for (what, low, high, dtype) in [
            ("randint_u8", 0, 256, DType::U8),
            ("randint_u8_200", 3, 200, DType::U8),
            ("randint_i8", -128, 128, DType::I8),
            ("randint_i16", -300, 3000, DType::I16),
            ("randint_u32", 5, 2_000_000_011, DType::U32),
        ] {
            cases.same(&name(what), draw(seed, |k| randint(k, [8], low, high, dtype)));
        }
        cases.same(&name("bernoulli"), draw(seed, |k| bernoulli(k, 0.3, [16])));
        let p = [0.0f32, 0.25, 0.5, 1.0];
        let mixed = draw(seed, |k| bernoulli(k, ops::constant(p), [3, 4]));
        cases.same(&name("bernoulli_p"), mixed);
    }
    cases.same("bits64/42", draw(42, |k| bits(k, [2, 5], DType::U64)));
    let ours = draw(42, |k| uniform(k, [6], DType::F64, 0.0, 1.0));
    assert_eq!(ours, cases.case("uniform_f64/42"));
    let high = 1_000_000_000_000_000i64;
    cases.same("randint_i64/42", draw(42, |k| randint(k, [6], -5, high, DType::I64)));
}

#[test]
fn many_draws_are_those_of_jax_to_the_bit() {
    let cases = fixture();
    let key = Key::literal(1);
    let n = 300_000;
    let literal = interpret::<Key<Tensor>, Tensor>(key, |k| uniform(k, [n], DType::F32, 0.0, 1.0));
    let draws: Vec<f32> = literal.unwrap().to_vec().unwrap();
    let some = [0, 1, 65535, 65536, n - 1].map(|i| draws[i] as f64);
    cases.same("many_uniform", some);
    let sum = draws.iter().fold(0u32, |sum, x| sum.wrapping_add(x.to_bits()));
    assert_eq!(sum as f64, cases.case("many_uniform_sum_of_bits")[0]);
}

#[test]
fn orders_and_choices_are_those_of_jax() {
    let cases = fixture();
    for seed in SEEDS {
        let name = |what: &str| format!("{what}/{seed}");
        for n in [1, 2, 10, 33] {
            cases.same(&format!("permutation{n}/{seed}"), draw(seed, |k| permutation(k, n)));
        }
        let long = draw(seed, |k| permutation(k, 2000).slice_axis(0, 0, 40));
        cases.same(&name("permutation2000"), long);
        for axis in 0..2 {
            let ours = draw(seed, |k| {
                let x = ops::arange(12, DType::F32).reshape([4, 3]);
                permutation_of(k, x, axis)
            });
            cases.same(&format!("permutation_of{axis}/{seed}"), ours);
        }
        let vector = draw(seed, |k| permutation_of(k, ops::arange(8, DType::F32) * 0.5, 0));
        cases.same(&name("permutation_of_vector"), vector);
        cases.same(&name("choice"), draw(seed, |k| choice(k, 8, [2, 3], true)));
        cases.same(&name("choice_once"), draw(seed, |k| choice(k, 8, [5], false)));
        let p = [0.1f32, 0.2, 0.0, 0.4, 0.3];
        let drawn = draw(seed, |k| choice_weighted(k, ops::constant(p), [12], true));
        cases.same(&name("choice_p"), drawn);
        let drawn = draw(seed, |k| choice_weighted(k, ops::constant(p), [4], false));
        cases.same(&name("choice_p_once"), drawn);
        let logits = || {
            let none = f32::NEG_INFINITY;
            ops::constant([[0.0f32, 1.0, 2.0, -1.0], [3.0, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, none]])
        };
        cases.same(&name("categorical"), draw(seed, |k| categorical(k, logits(), -1)));
        cases.same(&name("categorical_axis0"), draw(seed, |k| categorical(k, logits(), 0)));
        let shaped = draw(seed, |k| categorical_shaped(k, logits(), -1, [6]));
        cases.same(&name("categorical_shaped"), shaped);
    }
}

#[test]
fn real_draws_are_those_of_jax_to_rounding() {
    let cases = fixture();
    for seed in SEEDS {
        let name = |what: &str| format!("{what}/{seed}");
        for (i, shape) in SHAPES.into_iter().enumerate() {
            let ours = draw(seed, |k| normal(k, shape, DType::F32));
            cases.close(&format!("normal{i}/{seed}"), ours, ROUNDING);
        }
        cases.close(&name("gumbel"), draw(seed, |k| gumbel(k, [3, 4], DType::F32)), ROUNDING);
        cases.close(
            &name("exponential"),
            draw(seed, |k| exponential(k, [8], DType::F32)),
            ROUNDING,
        );
        let both = draw(seed, |k| truncated_normal(k, -2.0, 2.0, [3, 4], DType::F32));
        cases.close(&name("truncated_normal"), both, ROUNDING);
        let side = draw(seed, |k| truncated_normal(k, 0.5, 1.5, [8], DType::F32));
        cases.close(&name("truncated_normal_side"), side, ROUNDING);
    }
}

#[test]
fn keys_are_carried_by_loops_and_mapped() {
    let cases = fixture();
    for seed in SEEDS {
        let ours = draw(seed, |key| {
            let step = |key: Key<Tensor>, ()| {
                let (next, now) = key.split();
                (next, normal(now, [2], DType::F32))
            };
            let options = crate::trace::control::ScanOptions::length(4);
            crate::trace::control::scan_with(step, key, (), options).1
        });
        cases.close(&format!("carried/{seed}"), ours, ROUNDING);
        let ours = draw(seed, |key| {
            let step = |(), key: Key<Tensor>| ((), uniform(key, [3], DType::F32, 0.0, 1.0));
            scan(step, (), key.split_batch(4)).1
        });
        cases.same(&format!("mapped/{seed}"), ours);
        let ours = draw(seed, |key| {
            let mapped = vmap(|key: Key<Tensor>| uniform(key, [3], DType::F32, 0.0, 1.0));
            mapped(key.split_batch(4))
        });
        cases.same(&format!("mapped/{seed}"), ours);
    }
}

#[test]
fn misuse_ends_the_trace_at_the_callers_line() {
    let refused = |f: fn(Key<Tensor>) -> Tensor| {
        let error = interpret::<Key<Tensor>, Tensor>(Key::literal(0), f).unwrap_err();
        error.to_string()
    };
    let error = refused(|k| normal(k.split_batch(3), [2], DType::F32));
    assert!(error.contains("a key is u32[2], and this one is u32[3,2]"), "{error}");
    assert!(error.contains("src/random/tests.rs"), "{error}");
    let error = refused(|k| uniform(k, [2], DType::I32, 0, 1));
    assert!(error.contains("uniform: draws floats, and was asked for i32"), "{error}");
    let error = refused(|k| uniform(k, [2], DType::F32, 0.0, ops::ones([3, 2], DType::F32)));
    assert!(error.contains("the parameters have shape [3,2], and the draw [2]"), "{error}");
    let error = refused(|k| choice(k, 3, [4], false));
    assert!(error.contains("4 draws from 3 numbers without repetition"), "{error}");
    let error = refused(|k| randint(k, [2], 0, 1, DType::F32));
    assert!(error.contains("randint: draws integers, and was asked for f32"), "{error}");
}

#[test]
fn a_key_is_one_leaf() {
    assert_eq!(tree::paths(&Key::literal(3)), ["$.data"]);
}
