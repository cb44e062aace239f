//! The law of sizes: every function that takes a size gives a result or an error, whatever the
//! size: it never panics, wraps around or ends the process.

use std::panic::{AssertUnwindSafe, catch_unwind};

use podracer::jit::run_program;
use podracer::nn::{Dense, GruCell, Lru, LstmCell, MinGru};
use podracer::random::{self, Key};
use podracer::trace::control::{ScanOptions, fori_loop, scan_with};
use podracer::trace::numpy::{WindowOptions, einsum, tensordot};
use podracer::trace::op::ReduceOp;
use podracer::trace::ops::{
    self, ConvGeneralDilated, ConvOptions, ConvTranspose, Padding, concatenate,
    conv_general_dilated, conv_transpose, stack,
};
use podracer::trace::{VmapOptions, vmap_with};
use podracer::{Array, DType, Error, Literal, Mode, Program, Tensor, jit, make_program, vmap};

const SIZES: [usize; 14] = [
    0,
    1,
    2,
    3,
    7,
    100_000,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 61,
    1 << 62,
    isize::MAX as usize,
    1 << 63,
    usize::MAX,
];

type Function = fn(Tensor, usize, usize) -> Vec<Tensor>;

/// Functions of two sizes and a tensor `f32[2,3]`.
const FUNCTIONS: &[(&str, Function)] = &[
    ("zeros", |_, m, n| vec![ops::zeros([m, n], DType::U8)]),
    ("ones", |_, m, n| vec![ops::ones([m, 0, n], DType::F64)]),
    ("full", |_, m, n| vec![ops::full([m, n, m, n], 1.0, DType::F32)]),
    ("iota", |_, m, n| vec![ops::iota([m, n], 1, DType::I32)]),
    ("arange", |_, m, _| vec![ops::arange(m, DType::I64)]),
    ("linspace", |_, m, _| vec![ops::linspace(0.0, 1.0, m, DType::F32)]),
    ("eye", |_, m, _| vec![ops::eye(m, DType::F32)]),
    ("one_hot", |x, m, _| vec![ops::one_hot(x.to(DType::I32), m, DType::F32)]),
    ("broadcast_to", |x, m, n| vec![x.broadcast_to([m, n, 2, 3])]),
    ("broadcast_in_dim", |x, m, n| vec![x.broadcast_in_dim([2, m, n, 3], &[0, 3])]),
    ("reshape", |x, m, n| vec![x.reshape([m, n])]),
    ("reshape of much", |x, m, n| vec![x.broadcast_to([m, 2, 3]).reshape([n, 6])]),
    ("flatten_from", |x, m, n| vec![x.broadcast_to([m, n, 2, 3]).flatten_from(0)]),
    ("expand", |x, m, _| vec![x.broadcast_to([m, 2, 3]).bitcast(DType::U8)]),
    ("tile", |x, m, n| vec![x.tile(m, 0).tile(n, -1)]),
    ("repeat", |x, m, n| vec![x.repeat(m, 1).repeat(n, 0)]),
    ("concatenate", |x, m, n| {
        vec![concatenate(&[x.broadcast_to([m, 2, 3]), x.broadcast_to([n, 2, 3])], 0)]
    }),
    ("stack", |x, m, _| vec![stack(&[x.broadcast_to([m, 2, 3]); 3], 1)]),
    ("pad", |x, m, n| vec![x.pad(&[m as i64, 0], &[0, n as i64], 0.0)]),
    ("pad both", |x, m, n| vec![x.pad(&[m as i64, 0], &[n as i64, 0], 0.0)]),
    ("pad_interior", |x, m, n| vec![x.pad_interior(&[0, 0], &[0, 0], &[m, n], 0.0)]),
    ("slice_axis", |x, m, n| vec![x.slice_axis(1, m, n)]),
    ("strided_slice", |x, m, n| vec![x.strided_slice(&[0, 0], &[2, 3], &[m, n])]),
    ("index_axis", |x, m, _| vec![x.index_axis(0, m as isize)]),
    ("axis", |x, m, n| vec![x.sum([m as isize]), x.flip(n as isize)]),
    ("roll", |x, m, _| vec![x.roll(m as isize, 1)]),
    ("split", |x, m, n| x.broadcast_to([m, 2, 3]).split(n, 0)),
    ("array_split", |x, m, n| x.broadcast_to([m, 2, 3]).array_split(n, 0)),
    ("rot90", |x, m, _| vec![x.rot90(m as i32, 0, 1)]),
    ("matmul", |x, m, n| {
        let x = x.slice_axis(1, 0, 2);
        vec![x.index_axis(0, 0).broadcast_to([m, 2]).matmul(x.broadcast_to([n, 2, 2]))]
    }),
    ("outer", |x, m, n| {
        let x = x.index_axis(0, 0).index_axis(0, 0);
        vec![einsum("i,j->ij", &[x.broadcast_to([m]), x.broadcast_to([n])])]
    }),
    ("tensordot", |x, m, n| vec![tensordot(x.broadcast_to([m, 2, 3]), x, n)]),
    ("diag", |x, m, _| vec![x.sum(..).broadcast_to([m]).diag()]),
    ("cumsum", |x, m, _| vec![x.sum(..).broadcast_to([m]).cumsum(0)]),
    ("top_k", |x, m, _| vec![x.top_k(m).0]),
    ("nonzero", |x, m, _| x.nonzero(m, 0)),
    ("bincount", |x, m, _| vec![x.ravel().to(DType::I32).bincount(m)]),
    ("dynamic_slice", |x, m, n| vec![x.dynamic_slice(&[0, 0], [m, n])]),
    ("take", |x, m, n| {
        let indices = ops::zeros([m], DType::I32);
        vec![x.broadcast_to([n, 2, 3]).take(indices, 1)]
    }),
    ("convolution's strides and dilation", |_, m, n| convolved(&[1, 5, 1], m, n, Padding::Same)),
    ("convolution's kernel", |_, m, n| {
        let kernel = ops::zeros([n, 1, 1], DType::F32);
        let image = ops::zeros([1, m, 1], DType::F32);
        vec![conv_general_dilated(image, kernel, &with_layouts(Padding::Same))]
    }),
    ("convolution's padding", |_, m, n| {
        convolved(&[1, 5, 1], 1, 1, Padding::Explicit(vec![(m as i64, n as i64)]))
    }),
    ("conv_transpose", |_, m, n| transposed(m, n, Padding::Same)),
    ("conv_transpose, valid", |_, m, n| transposed(m, n, Padding::Valid)),
    ("conv_transpose, explicit", |_, m, n| {
        transposed(1, 1, Padding::Explicit(vec![(m as i64, n as i64)]))
    }),
    ("reduce_window", |x, m, n| {
        let options = WindowOptions::new(&[1, m]).strides(&[1, n]);
        vec![x.broadcast_to([2, 3]).reduce_window(ReduceOp::Max, &options)]
    }),
    ("reduce_window's padding", |x, m, n| {
        let options = WindowOptions::new(&[1, 2]).padding(&[(0, 0), (m as i64, n as i64)]);
        vec![x.reduce_window(ReduceOp::Sum, &options)]
    }),
    ("scan's length", |x, m, _| {
        let body = |h: Tensor, ()| (h, h);
        vec![scan_with(body, x, (), ScanOptions::length(m)).1]
    }),
    ("scan's unroll", |x, m, n| {
        let options = ScanOptions { unroll: n, ..ScanOptions::length(m.min(9)) };
        vec![scan_with(|h: Tensor, ()| (h, ()), x, (), options).0]
    }),
    ("fori_loop", |x, m, _| vec![fori_loop(0, m, |_, h: Tensor| h, x)]),
    ("vmap's size", |x, m, _| {
        let options = VmapOptions::default().in_axes(None).size(m);
        vec![vmap_with(options, |y: Tensor| y + 1.0)(x)]
    }),
    ("vmap of much", |x, m, n| {
        let batch = x.broadcast_to([m, 2, 3]);
        vec![vmap_with(VmapOptions::default(), move |y: Tensor| y.broadcast_to([n, 2, 3]))(batch)]
    }),
    ("split_vec", |_, m, _| {
        let _ = Key::constant(0).split_vec(m);
        vec![]
    }),
    ("split_batch", |_, m, _| {
        let _ = Key::constant(0).split_batch(m);
        vec![]
    }),
    ("bits", |_, m, n| vec![random::bits(Key::constant(0), [m, n], DType::U32)]),
    ("normal", |_, m, n| vec![random::normal(Key::constant(0), [m, n], DType::F32)]),
    ("permutation", |_, m, _| vec![random::permutation(Key::constant(0), m)]),
    ("choice", |_, m, n| vec![random::choice(Key::constant(0), m, [n], false)]),
    ("dense", |_, m, n| {
        let kernel = podracer::nn::init::lecun_normal();
        vec![Dense::init(Key::constant(0), m, n, kernel).w]
    }),
    ("orthogonal", |_, m, n| {
        let kernel = podracer::nn::init::orthogonal(1.0);
        vec![kernel.draw(Key::constant(0), [m, 2, n], DType::F32)]
    }),
    ("lstm", |_, m, n| vec![LstmCell::init(Key::constant(0), m, n).w_i]),
    ("gru", |_, m, n| vec![GruCell::init(Key::constant(0), m, n).w_i]),
    ("min_gru", |_, m, n| vec![MinGru::init(Key::constant(0), m, n).w]),
    ("lru", |_, m, n| vec![Lru::init(Key::constant(0), m, n).b]),
];

fn with_layouts(padding: Padding) -> ConvGeneralDilated {
    ConvGeneralDilated {
        dimension_numbers: Some(["NHC", "HIO", "NHC"]),
        padding,
        ..ConvGeneralDilated::default()
    }
}

fn convolved(image: &[usize], stride: usize, dilation: usize, padding: Padding) -> Vec<Tensor> {
    let args = ConvGeneralDilated {
        window_strides: vec![stride],
        rhs_dilation: vec![dilation],
        ..with_layouts(padding)
    };
    let kernel = ops::zeros([3, 1, 1], DType::F32);
    vec![conv_general_dilated(ops::zeros(image, DType::F32), kernel, &args)]
}

fn transposed(stride: usize, dilation: usize, padding: Padding) -> Vec<Tensor> {
    let mut results = Vec::new();
    for use_consistent_padding in [false, true] {
        let args = ConvTranspose {
            strides: vec![stride],
            rhs_dilation: vec![dilation],
            padding: padding.clone(),
            use_consistent_padding,
            ..ConvTranspose::default()
        };
        let image = ops::zeros([1, 5, 1], DType::F32);
        results.push(conv_transpose(image, ops::zeros([3, 1, 1], DType::F32), &args));
    }
    results
}

fn two_by_three() -> Array {
    Array::zeros([2, 3], DType::F32)
}

#[test]
fn every_size_gives_a_result_or_an_error() {
    let mut faults = Vec::new();
    let mut errors = 0;
    for (name, f) in FUNCTIONS {
        for m in SIZES {
            for n in SIZES {
                let run = || make_program(|x: Tensor| f(x, m, n), &two_by_three());
                match catch_unwind(AssertUnwindSafe(run)) {
                    Ok(Ok(program)) => {
                        let wrapped = |ty: &&podracer::TensorType| {
                            let bytes =
                                ty.shape.iter().map(|&d| d.max(1) as u128).product::<u128>();
                            bytes * ty.dtype.size() as u128 > isize::MAX as u128
                        };
                        if let Some(ty) = program.types.iter().find(wrapped) {
                            faults.push(format!("{name} of {m} and {n} gives {ty}"));
                        }
                    }
                    Ok(Err(_)) => errors += 1,
                    Err(_) => faults.push(format!("{name} of {m} and {n} panics")),
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(errors > FUNCTIONS.len(), "{errors} errors");
}

#[test]
fn arrays_of_every_size_give_their_elements_or_an_error() {
    for m in SIZES {
        for n in SIZES {
            let zeros = Array::zeros([m, n], DType::F32);
            let count = m.checked_mul(n).filter(|&count| count <= 1_000_000);
            // Some machines have the memory, and none needs to be filled here.
            if count.is_none() && m.saturating_mul(n) <= 1 << 40 {
                continue;
            }
            match (zeros.to_vec::<f32>(), count) {
                (Ok(elements), Some(count)) => assert_eq!(elements.len(), count),
                (Err(Error::Argument(text)), None) => {
                    assert!(text.contains("of memory"), "{text}");
                }
                (other, _) => panic!("{m} by {n}: {:?}", other.map(|elements| elements.len())),
            }
            if count.is_none() {
                let literal = Literal::splat([m, n], 1.0f32);
                assert!(literal.to_vec::<f32>().is_err());
                assert!(literal.to_ndarray::<f32>().is_err());
                assert!(Array::new([m, n], &[0.0f32]).is_err());
                assert!(zeros.to_device().is_err());
                assert!(zeros.clone().to(0).is_err());
                assert!(zeros.item::<f32>().is_err());
                assert!(zeros.to_string().contains("of memory"));
            }
        }
    }
}

/// Values that can be addressed, and have no place in memory.
#[test]
fn values_larger_than_memory_are_errors_of_a_call() {
    let large: [fn(Tensor) -> Tensor; 5] = [
        |x| x.broadcast_to([1 << 40, 2, 3]),
        |x| ops::zeros([1 << 20, 1 << 20, 8], DType::F32) + x.sum(..),
        |x| x.tile(1 << 44, 0).sort(0),
        |x| x.pad(&[1 << 45, 0], &[0, 0], 0.0).exp(),
        |x| concatenate(&[x.tile(1 << 43, 1), x.tile(1 << 43, 1)], 0).cumsum(0),
    ];
    for (i, f) in large.into_iter().enumerate() {
        let program = make_program(f, &two_by_three()).unwrap();
        for mode in [Mode::Interpret, Mode::Eager, Mode::Jit] {
            let results = run_program(&program, &[two_by_three()], mode);
            let outcome = results.and_then(|results| results[0].wait());
            let error = outcome.expect_err(&format!("{i} {mode}")).to_string();
            assert!(error.to_lowercase().contains("memory"), "{i} {mode}: {error}");
        }
        let function = podracer::jit(f);
        let outcome = function.call(two_by_three()).and_then(|result| result.wait());
        assert!(outcome.is_err(), "{i}");
    }
    // An argument that is too large.
    let zeros = || Array::zeros([1 << 62], DType::F32);
    for mode in [Mode::Interpret, Mode::Eager, Mode::Jit] {
        assert!(jit(|x: Tensor| x + 1.0).with_mode(mode).call(zeros()).is_err());
    }
    assert!(make_program(|x: Tensor| x, &zeros()).is_err());
}

#[test]
fn program_texts_of_every_size_are_read_or_refused() {
    for size in SIZES {
        for other in SIZES {
            let texts = [
                format!("{{ lambda a:f32[{size},{other}]. let in (a) }}"),
                format!(
                    "{{ lambda a:f32[]. let b:f32[{size},{other}] = broadcast[shape=[{size},{other}] \
                     axes=()] a in (b) }}"
                ),
                format!(
                    "{{ lambda . let b:i32[{size}] = iota[axis=0] \n c:i32[{size},{other}] = \
                     broadcast[shape=[{size},{other}] axes=(0)] b in (c) }}"
                ),
            ];
            for text in texts {
                let read = catch_unwind(|| Program::parse(&text));
                assert!(read.is_ok(), "{text}");
            }
        }
    }
}

/// Operations on an example `f32[4,3]` and an index, under `vmap` over no examples.
#[test]
fn a_batch_may_be_empty() {
    type Case = (fn(Tensor, Tensor) -> Tensor, &'static [usize]);
    let cases: [Case; 6] = [
        (|x, i| x.take(i, 0), &[0, 3]),
        (|x, i| x.dynamic_slice(&[i, i], [1, 2]), &[0, 1, 2]),
        (|x, i| x.dynamic_update_slice(ops::ones([1, 2], DType::F32), &[i, i]), &[0, 4, 3]),
        (|x, i| x.at(&[i]).set(0.0), &[0, 4, 3]),
        (
            |x, _| convolution(x.reshape([1, 4, 3, 1]), ops::ones([2, 2, 1, 5], DType::F32)),
            &[0, 1, 3, 2, 5],
        ),
        (
            |x, _| convolution(ops::ones([1, 4, 3, 1], DType::F32), x.reshape([2, 2, 1, 3])),
            &[0, 1, 3, 2, 3],
        ),
    ];
    let args = (Array::zeros([0, 4, 3], DType::F32), Array::zeros([0], DType::I32));
    for (number, (f, shape)) in cases.into_iter().enumerate() {
        let batched = move |args: (Tensor, Tensor)| vmap(move |(x, i)| f(x, i))(args);
        let program = make_program(batched, &args);
        let program = program.unwrap_or_else(|error| panic!("{number}: {error}"));
        for mode in [Mode::Interpret, Mode::Eager, Mode::Jit] {
            let results = run_program(&program, &[args.0.clone(), args.1.clone()], mode).unwrap();
            assert_eq!(results[0].shape()[..], *shape, "{number} {mode}");
        }
    }
}

fn convolution(x: Tensor, kernel: Tensor) -> Tensor {
    ops::conv2d(x, kernel, &ConvOptions::default())
}

/// A loop counts in i32.
#[test]
fn loops_longer_than_the_counter_are_errors() {
    for length in [1 << 31, (1 << 32) + 5] {
        let f = move |x: Tensor| {
            scan_with(|c: Tensor, ()| (c + 1.0, ()), x, (), ScanOptions::length(length)).0
        };
        let error = make_program(f, &Array::from(0.0f32)).unwrap_err().to_string();
        assert!(error.contains(&format!("has {length} iterations")), "{error}");
    }
}
