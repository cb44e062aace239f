//! Element types for storage, floats of 8 bits and integers of 4, against JAX: conversions to the bit,
//! and values and gradients of what moves elements, compiled, interpreted and in batches. The numbers
//! are JAX's own (`tests/fixtures/narrow/make.py`).

mod errors;

use podracer::jit::run_program;
use podracer::trace::eval::eval_op;
use podracer::trace::literal::Element;
use podracer::trace::op::Op;
use podracer::trace::ops::{concatenate, constant, full, where_, zeros};
use podracer::{
    Array, DType, F8E4M3FN, F8E5M2, I4, Literal, Mode, Tensor, U4, checkpoint, cond, make_program,
    scan, while_loop,
};

use crate::chunks::unpack;
use crate::fixture::read;
use crate::names::{Function, Suite};

/// Functions of tensors of a type for storage.
const OF_ANY: &[Function] = &[
    ("shapes", |x| {
        let x = x[0];
        vec![
            x.reshape([4, 3]),
            x.transpose(&[1, 0]),
            x.flip(0).slice_axis(1, 1, 3),
            x.pad(&[1, 1], &[1, 1], 0.0),
            x.strided_slice(&[0, 0], &[3, 4], &[1, 2]),
            concatenate(&[x, x.slice_axis(0, 0, 1)], 0),
            x.expand_dims(1).broadcast_to([3, 2, 4]),
        ]
    }),
    ("constants", |x| {
        let dtype = x[0].dtype();
        let table = constant(numbers(dtype, &[1, 4], &[1, 2, 3, 5]));
        let large: Vec<i32> = (0..100).map(|i| i * 5 % 14).collect();
        vec![
            concatenate(&[x[0], table], 0),
            zeros([2, 3], dtype),
            full([70], 5.0, dtype),
            constant(numbers(dtype, &[10, 10], &large)),
        ]
    }),
    ("indices", |x| {
        let (x, y, at) = (x[0], x[1], x[2]);
        let index = |i| at.index_axis(0, i);
        vec![
            x.take(at, 0),
            x.take(at, 1),
            x.at(&[at]).set(y.slice_axis(0, 0, 2)),
            x.dynamic_slice(&[index(1), index(1)], [2, 2]),
            x.dynamic_update_slice(y.slice_axis(0, 0, 1), &[index(0), index(1)]),
        ]
    }),
    ("collisions", |x| vec![x[0].take(x[1], 0), x[0].index_axis(0, 0).take(x[1], 0)]),
    ("where", |x| {
        let (x, y, p) = (x[0], x[1], x[2]);
        vec![where_(p, x, y), where_(p.index_axis(0, 0).index_axis(0, 0), x, y)]
    }),
    ("scan", |x| {
        let shift = |c: Tensor, x: Tensor| {
            (concatenate(&[c.slice_axis(0, 1, 4), x.slice_axis(0, 0, 1)], 0), c)
        };
        let (last, all) = scan(shift, x[0].index_axis(0, 0), x[1]);
        vec![last, all]
    }),
    ("while", |x| {
        let body = |(n, x): (Tensor, Tensor)| (n + 1, roll(x));
        vec![while_loop(|(n, _): (Tensor, Tensor)| n.lt(2), body, (constant(0), x[0])).1]
    }),
    ("cond", |x| [0, 1].map(|i| cond(x[1].index_axis(0, i), roll, |x: Tensor| x, x[0])).to_vec()),
    ("remat", |x| {
        let twice = |x: Tensor| (roll(x).to(DType::F32) * 2.0).to(x.dtype());
        vec![checkpoint(twice)(x[0])]
    }),
];

/// Functions of floats with one of 8 bits inside, of such a float, and of its bits.
fn of_float8<T: Element>() -> [Function; 6] {
    [
        ("there and back", |x| vec![through::<T>(x[0])]),
        ("product", |x| {
            let y = through::<T>(x[1]);
            vec![through::<T>(x[0]).matmul(y.t()), through::<T>(x[0]) * x[0]]
        }),
        ("used twice", |x| vec![x[0].to(DType::F32) * 2.0, roll(x[0]), x[0]]),
        ("one scale", |x| vec![x[0] * x[1].to(T::DTYPE).broadcast_to([3, 4]).to(DType::F32)]),
        ("scan of constants", |x| {
            let (c, x) = (x[0], x[1]);
            let step = move |s: Tensor, x: Tensor| (s + x * c.to(DType::F32), s);
            let (last, all) = scan(step, x.index_axis(0, 0), x);
            vec![last, all]
        }),
        ("bits", |x| {
            let (bytes, halves) = (x[1].bitcast(T::DTYPE), x[2].bitcast(T::DTYPE));
            vec![x[0].bitcast(DType::U8), bytes, halves]
        }),
    ]
}

fn of_int4<T: Element>() -> [Function; 1] {
    [("floor", |x| vec![through::<T>(x[0])])]
}

fn suite() -> Suite {
    let named = |dtype: &str, functions: &[Function]| -> Vec<Function> {
        let all = OF_ANY.iter().chain(functions);
        all.map(|(name, f)| (&*format!("{name} of {dtype}").leak(), *f)).collect()
    };
    let functions = [
        named("float8_e4m3fn", &of_float8::<F8E4M3FN>()),
        named("float8_e5m2", &of_float8::<F8E5M2>()),
        named("int4", &of_int4::<I4>()),
        named("uint4", &of_int4::<U4>()),
    ];
    let fixture = "tests/fixtures/narrow/functions.safetensors";
    Suite { functions: functions.concat(), fixture }
}

/// Elements of type `dtype`, to which the numbers wrap.
fn numbers(dtype: DType, shape: &[usize], values: &[i32]) -> Literal {
    let wide = Literal::new(shape, values);
    eval_op(&Op::Convert { dtype }, &[wide]).remove(0)
}

fn roll(x: Tensor) -> Tensor {
    let n = x.shape()[0];
    concatenate(&[x.slice_axis(0, 1, n), x.slice_axis(0, 0, 1)], 0)
}

fn through<T: Element>(x: Tensor) -> Tensor {
    x.to(T::DTYPE).to(DType::F32)
}

#[test]
fn functions_are_those_of_the_fixture() {
    suite().is_complete();
}

#[test]
fn interpreted_values_and_gradients_are_those_of_jax() {
    suite().agrees(false);
}

#[test]
fn compiled_values_and_gradients_are_those_of_jax() {
    suite().agrees(true);
}

#[test]
fn vmap_is_the_function_of_each_example() {
    suite().batches();
}

/// Elements that differ in their bits, NaN aside, whose bits the compiler chooses.
fn differences(found: &Literal, expected: &Literal) -> Vec<usize> {
    assert_eq!(found.ty(), expected.ty());
    let (bytes, numbers) = ([found, expected].map(Literal::bytes), [found, expected]);
    let (size, count) = (found.ty().dtype.size(), found.ty().numel());
    let numbers = numbers.map(Literal::to_f64_vec);
    let equal = |i: usize| {
        let [a, b] = [0, 1].map(|k| &(*bytes[k]).as_ref()[i * size..][..size]);
        // A complex number is two.
        let [x, y] = [0, 1].map(|k| numbers[k][i * numbers[k].len() / count]);
        a == b || (x.is_nan() && y.is_nan())
    };
    (0..count).filter(|&i| !equal(i)).collect()
}

#[test]
fn conversions_are_those_of_jax_to_the_bit() {
    let cases: Vec<(String, Literal, Literal)> =
        read("tests/fixtures/narrow/conversions.safetensors")
            .into_iter()
            .map(|(name, kinds)| {
                let [input, output] = ["in", "out"].map(|kind| unpack(&kinds[kind][0]).remove(0));
                (name, input, output)
            })
            .collect();
    assert_eq!(cases.len(), 4 * 19 + 4 * 15);
    let targets: Vec<DType> = cases.iter().map(|(_, _, output)| output.ty().dtype).collect();
    let convert = |x: Vec<Tensor>| -> Vec<Tensor> {
        x.iter().zip(&targets).map(|(x, &dtype)| x.to(dtype)).collect()
    };
    let convert: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &convert;
    let inputs: Vec<Array> = cases.iter().map(|(_, input, _)| input.clone().into()).collect();
    let program = make_program(convert, &inputs).unwrap();
    let mut faults = Vec::new();
    for mode in [Mode::Interpret, Mode::Jit] {
        let found = run_program(&program, &inputs, mode).unwrap();
        for ((name, input, expected), found) in cases.iter().zip(found) {
            let found = found.to_literal().unwrap();
            let at = differences(&found, expected);
            if let Some(&i) = at.first() {
                let element = |x: &Literal| x.to_f64_vec()[i];
                let (x, y, z) = (element(input), element(&found), element(expected));
                faults.push(format!("{mode}, {name}: {} elements, {x} is {y}, not {z}", at.len()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
