//! Integers of every type where JAX takes them: indices and powers. Products of bools.

use podracer::trace::ops::constant;
use podracer::{Array, DType, Mode, Tensor, grad, jit, switch};

const INTEGERS: [DType; 8] =
    [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];

/// Returns the results of `f` of `x` in every mode.
fn each_mode(f: impl Fn(Tensor) -> Tensor, x: Array, check: impl Fn(Mode, Vec<f64>)) {
    for mode in [Mode::Interpret, Mode::Eager, Mode::Jit] {
        let found = jit(&f).with_mode(mode).call(x.clone()).unwrap();
        check(mode, found.to_literal().unwrap().to_f64_vec());
    }
}

#[test]
fn indices_are_integers_of_any_type() {
    const FAR: i64 = 1 << 40;
    for dtype in INTEGERS {
        let mut indices = vec![0, 2, 5, 6, 100];
        if !dtype.is_unsigned() {
            indices.extend([-1, -6, -100]);
        }
        if dtype.size() == 8 {
            indices.push(FAR);
            indices.extend((!dtype.is_unsigned()).then_some(-FAR));
        }
        for index in indices {
            let at = if index < 0 { index + 6 } else { index };
            let [one, two] = [at.clamp(0, 5), at.clamp(0, 4)].map(|at| at as usize);
            let f = |x: Tensor| {
                let index = constant(index).to(dtype);
                let numbers = x.dynamic_index(0, index).expand_dims(0);
                let window = x.dynamic_slice(&[index], [2]);
                let updated = x.dynamic_update_index(0, index, constant(9.0f32));
                let zeros = constant([0.0f32; 2]);
                let replaced = x.dynamic_update_slice(zeros, &[index]);
                let slope = grad(|x: Tensor| x.dynamic_slice(&[index], [2]).sum(..))(x);
                let branch =
                    switch(index, &[&|x: Tensor| x, &|x| x + 10.0, &|x| x + 20.0], numbers);
                let all = [numbers, window, updated, replaced, slope, branch - numbers];
                podracer::trace::ops::concatenate(&all, 0)
            };
            let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f64::from);
            let mut expected = vec![x[one], x[two], x[two + 1]];
            expected.extend((0..6).map(|i| if i == one { 9.0 } else { x[i] }));
            let inside = |i: &usize| *i == two || *i == two + 1;
            expected.extend((0..6).map(|i| if inside(&i) { 0.0 } else { x[i] }));
            expected.extend((0..6).map(|i| if inside(&i) { 1.0 } else { 0.0 }));
            expected.push(index.clamp(0, 2) as f64 * 10.0);
            each_mode(f, Array::from(x.map(|x| x as f32)), |mode, found| {
                assert_eq!(found, expected, "{dtype} {index} {mode}");
            });
        }
    }
}

#[test]
fn powers_of_integers_are_those_of_jax() {
    for dtype in INTEGERS {
        let f = |x: Tensor| {
            let exponents = constant([3i32, 4, 0, 5, 7, 6]).to(dtype);
            x.to(dtype).pow(exponents).to(DType::F64)
        };
        let x = Array::from([2i32, 3, 0, 0, 1, 2]);
        each_mode(f, x, |mode, found| {
            assert_eq!(found, [8.0, 81.0, 1.0, 0.0, 1.0, 64.0], "{dtype} {mode}");
        });
    }
    // They wrap around.
    let f = |x: Tensor| x.pow(constant([31i32, 32, 20, 63, 2])).to(DType::F64);
    each_mode(f, Array::from([2i32, 2, 3, -1, -7]), |mode, found| {
        let expected = [f64::from(i32::MIN), 0.0, f64::from(3i32.wrapping_pow(20)), -1.0, 49.0];
        assert_eq!(found, expected, "{mode}");
    });
    each_mode(
        |x| x.pow(2).to(DType::F64),
        Array::from([3i32, -4]),
        |mode, found| {
            assert_eq!(found, [9.0, 16.0], "{mode}");
        },
    );
}

#[test]
fn a_product_of_bools_is_true_where_a_pair_of_both_is() {
    let f = |x: Tensor| {
        let product = x.matmul(x.t());
        assert_eq!(product.dtype(), DType::Bool);
        product.to(DType::F32)
    };
    each_mode(f, Array::from([[true, false], [false, true], [true, true]]), |mode, found| {
        assert_eq!(found, [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0], "{mode}");
    });
}
