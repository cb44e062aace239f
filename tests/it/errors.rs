//! What a user reads when traced code is wrong. The texts stand in `tests/errors`;
//! `UPDATE_GOLDEN=1` writes them anew.
//!
//! Lines are the user's own: those of this file. In the texts they are counted from the line at
//! which the case begins, so that they stay what they are when cases are added above.

use std::fmt::Write;
use std::path::Path;

use podracer::optim::Adam;
use podracer::trace::control::{ScanOptions, cond, fori_loop, scan, scan_with, switch, while_loop};
use podracer::trace::numpy::{det, solve};
use podracer::trace::op::TriangularSolveOp;
use podracer::trace::ops::{
    self, ConvGeneralDilated, ConvOptions, ConvTranspose, DimensionNumbers, Padding, cholesky,
    concatenate, constant, conv_general_dilated, conv_transpose, conv2d, polygamma, sort_by,
    triangular_solve, where_,
};
use podracer::trace::{LeafAxes, VmapOptions, vmap_with};
use podracer::{
    Array, DType, Error, Literal, Tensor, all_to_all, custom_jvp, custom_vjp, debug_callback,
    debug_print, grad, io_callback, jacrev, jvp, linearize, make_program, pmean, ppermute, psum,
    pure_callback, ravel, value_and_grad, vjp, vmap, vmap_axis,
};
use pretty_assertions::assert_eq;

type Function = dyn Fn(&[Tensor]) -> Vec<Tensor>;

/// A wrong function.
struct Wrong {
    name: &'static str,
    line: u32,
    f: Box<Function>,
}

macro_rules! wrong {
    ($($name:literal => |$x:pat_param| $body:expr),* $(,)?) => {
        vec![$(Wrong {
            name: $name,
            // `line!` would be that of the invocation.
            line: line_of($name),
            f: Box::new(|$x: &[Tensor]| { let _ = $body; vec![] }),
        }),*]
    };
}

/// The line of this file at which a case begins.
fn line_of(name: &str) -> u32 {
    let source = include_str!("errors.rs");
    let start = format!("\"{name}\" =>");
    let line = source.lines().position(|line| line.trim_start().starts_with(&start));
    line.unwrap_or_else(|| panic!("no case {name}")) as u32 + 1
}

/// `f32[2,3]`, `f32[4]`, `i32[4]`, `bool[]`, `f32[]`, `i32[]`, `f32[2,5,5,3]`, `f32[3,3,2,8]`.
fn arguments() -> Vec<Array> {
    let image = Array::zeros([2, 5, 5, 3], DType::F32);
    let kernel = Array::zeros([3, 3, 2, 8], DType::F32);
    vec![
        Array::zeros([2, 3], DType::F32),
        Array::zeros([4], DType::F32),
        Array::zeros([4], DType::I32),
        Array::from(true),
        Array::from(1.0f32),
        Array::from(1i32),
        image,
        kernel,
    ]
}

/// The message, with lines of this file counted from `line`; the line of the call that traces is
/// no part of the case.
fn message(error: &Error, line: u32, call: u32) -> String {
    let text = error.to_string();
    let mut parts = text.split("tests/it/errors.rs:");
    let mut out = parts.next().expect("a first part").to_string();
    for part in parts {
        let (at, rest) = part.split_once(':').expect("a line and a column");
        let at: u32 = at.parse().expect("a line number");
        if at == call {
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            write!(out, "the call{rest}").expect("a string grows");
        } else {
            write!(out, "case:+{}:{rest}", at - line).expect("a string grows");
        }
    }
    out.push('\n');
    out
}

fn cases() -> Vec<Wrong> {
    let mut cases = operations();
    cases.extend(control());
    cases.extend(transformations());
    cases.extend(callbacks());
    cases
}

#[track_caller]
fn convolve(x: &[Tensor], layouts: Option<DimensionNumbers>, strides: Vec<usize>) -> Tensor {
    let args = ConvGeneralDilated {
        dimension_numbers: layouts,
        window_strides: strides,
        ..ConvGeneralDilated::default()
    };
    conv_general_dilated(x[6], x[7], &args)
}

fn operations() -> Vec<Wrong> {
    wrong![
        "dot" => |x| {
            let weights = ops::zeros([4, 2], DType::F32).t();
            x[0].matmul(weights)
        },
        "matmul_scalar" => |x| x[0].matmul(x[4]),
        "add_shapes" => |x| x[0] + x[1],
        "add_dtypes" => |x| x[1] + x[2],
        "literal_float_meets_int" => |x| x[2] * 0.5,
        "literal_int_meets_bool" => |x| x[3] & 1,
        "literal_does_not_fit" => |x| x[2].to(DType::U8) + 300,
        "concat_sizes" => |x| concatenate(&[x[0], ops::zeros([2, 4], DType::F32)], 0),
        "concat_dtypes" => |x| concatenate(&[x[1], x[2]], 0),
        "concat_nothing" => |_| concatenate(&[], 0),
        "reshape" => |x| x[0].reshape([4, 2]),
        "broadcast" => |x| x[0].broadcast_to([3, 3]),
        "transpose" => |x| x[0].transpose(&[0, 0]),
        "squeeze" => |x| x[0].squeeze(1),
        "split" => |x| x[0].split(2, 1),
        "slice" => |x| x[1].slice_axis(0, 2, 5),
        "index" => |x| x[1].index_axis(0, -5),
        "pad_cut" => |x| x[1].pad(&[-3], &[-2], 0.0),
        "where_choices" => |x| where_(x[2].gt(0), x[1], x[2]),
        "where_predicate" => |x| where_(x[2], x[1], 0.0),
        "axis" => |x| x[0].sum(2),
        "axis_negative" => |x| x[0].softmax(-3),
        "div_of_ints" => |x| x[2] / x[5],
        "div_of_int_by_literal" => |x| x[2] / 2,
        "exp_of_int" => |x| x[2].exp(),
        "not_of_float" => |x| !x[1],
        "bitcast" => |x| x[1].bitcast(DType::F64),
        "bitcast_bool" => |x| x[3].bitcast(DType::U32),
        "cholesky_shape" => |x| cholesky(x[0]),
        "cholesky_of_int" => |x| cholesky(x[2].reshape([2, 2])),
        "triangular_solve_sizes" => |x| {
            triangular_solve(ops::eye(3, DType::F32), x[0], TriangularSolveOp { left_side: true, ..TriangularSolveOp::default() })
        },
        "triangular_solve_batch" => |x| {
            triangular_solve(ops::zeros([2, 3, 3], DType::F32), x[6], TriangularSolveOp::default())
        },
        "triangular_solve_dtypes" => |x| {
            triangular_solve(ops::eye(3, DType::F64), x[0], TriangularSolveOp::default())
        },
        "solve_sizes" => |x| solve(ops::eye(3, DType::F32), x[0]),
        "det_shape" => |x| det(x[1]),
        "polygamma_by_order" => |x| grad(|n: Tensor| polygamma(n, n).sum(..))(x[1]),
        "dimension_numbers_length" => |x| convolve(x, Some(["NHC", "HWIO", "NHWC"]), vec![]),
        "dimension_numbers_letters" => |x| convolve(x, Some(["NHWX", "HWIO", "NHWC"]), vec![]),
        "dimension_numbers_twice" => |x| convolve(x, Some(["NHHC", "HWIO", "NHWC"]), vec![]),
        "dimension_numbers_differ" => |x| convolve(x, Some(["NXWC", "HWIO", "NHWC"]), vec![]),
        "conv_strides" => |x| convolve(x, Some(["NHWC", "HWIO", "NHWC"]), vec![2]),
        "conv_padding_by_name" => |x| {
            let args = ConvGeneralDilated {
                padding: Padding::Same,
                lhs_dilation: vec![2, 2],
                ..ConvGeneralDilated::default()
            };
            conv_general_dilated(x[6], x[6], &args)
        },
        "conv_transpose_padding" => |x| {
            let args = ConvTranspose { padding: Padding::SameLower, ..ConvTranspose::default() };
            conv_transpose(x[6], x[7], &args)
        },
        "sort_by" => |x| sort_by(x[1], &[x[0]], 0),
        "conv_features" => |x| conv2d(x[6], x[7], &ConvOptions::default()),
        "conv_rank" => |x| conv2d(x[0], x[7], &ConvOptions::default()),
        "take_by_float" => |x| x[0].take(x[1], 0),
        "take_along_axis" => |x| x[0].take_along_axis(x[2], 1),
        "at_too_many" => |x| x[1].at(&[x[2], x[2]]).add(1.0),
        "dynamic_slice_size" => |x| x[1].dynamic_slice(&[x[5]], [5]),
        "dynamic_slice_start" => |x| x[1].dynamic_slice(&[x[4]], [2]),
        "linspace" => |_| ops::linspace(0.0, 1.0, 3, DType::I32),
    ]
}

fn control() -> Vec<Wrong> {
    wrong![
        "scan_carry_type" => |x| scan(
            |h: Tensor, x: Tensor| (h + x.to(DType::I32), ()),
            x[5].to(DType::F32),
            x[1],
        ),
        "scan_carry_shape" => |x| scan(|h: Tensor, row: Tensor| (h + row, ()), x[4], x[0]),
        "scan_carry_structure" => |x| scan(
            |mut h: Vec<Tensor>, x: Tensor| {
                h.push(x);
                (h, ())
            },
            vec![x[4]],
            x[1],
        ),
        "scan_lengths" => |x| scan(|h: Tensor, _: (Tensor, Tensor)| (h, ()), x[4], (x[0], x[1])),
        "scan_scalar" => |x| scan(|h: Tensor, _: Tensor| (h, ()), x[4], x[4]),
        "scan_no_length" => |x| scan(|h: Tensor, ()| (h, ()), x[4], ()),
        "scan_length_differs" => |x| scan_with(
            |h: Tensor, _: Tensor| (h, ()),
            x[4],
            x[1], ScanOptions::length(3)),
        "scan_inside" => |x| scan(
            |h: Tensor, row: Tensor| (h + row.matmul(x[1]), ()),
            x[4],
            x[0],
        ),
        "while_condition" => |x| while_loop(|h: Tensor| h, |h| h, x[4]),
        "while_carry" => |x| while_loop(|_: Tensor| x[3], |h| h.expand_dims(0), x[4]),
        "fori_carry" => |x| fori_loop(0, 3, |i, _: Tensor| i, x[4]),
        "cond_predicate" => |x| cond(x[4], |x: Tensor| x, |x| x, x[1]),
        "cond_branches_differ" => |x| cond(x[3], |x: Tensor| x.sum(..), |x| x, x[1]),
        "cond_structures_differ" => |x| cond(
            x[3],
            |x: Tensor| vec![x],
            |x| vec![x, x],
            x[1],
        ),
        "switch_index" => |x| switch(x[4], &[&|x: Tensor| x], x[1]),
        "switch_nothing" => |x| switch::<Tensor, Tensor>(x[5], &[], x[1]),
    ]
}

fn callbacks() -> Vec<Wrong> {
    wrong![
        "pure_callback_derivative" => |x| grad(|y: Tensor| {
            pure_callback(Ok, y.ty(), y).sum(..)
        })(x[1]),
        "io_callback_ordered_batch" => |x| vmap(|y: Tensor| {
            io_callback(Ok, y.ty(), true, y)
        })(x[1]),
        "io_callback_in_a_branch" => |x| vmap(|y: Tensor| {
            cond(y.gt(0.0), |y: Tensor| io_callback(Ok, y.ty(), false, y), |y| y, y)
        })(x[1]),
        "io_callback_in_a_while" => |x| vmap(|y: Tensor| {
            while_loop(|y: Tensor| y.lt(1.0), |y| io_callback(Ok, y.ty(), false, y), y)
        })(x[1]),
        "io_callback_linearized" => |x| linearize(|y: Tensor| {
            let twice = |y: Tensor| y * io_callback(Ok, y.ty(), false, y);
            while_loop(|y: Tensor| y.lt(1.0), twice, y)
        }, x[4]).1(x[4]),
        "debug_callback_of_a_cotangent" => |x| grad(|y: Tensor| {
            let rule = |y: Tensor, t: Tensor| {
                debug_callback(|_: Literal| {}, t);
                (y, t)
            };
            custom_jvp(|y: Tensor| y, rule)(y)
        })(x[4]),
        "debug_print_places" => |x| debug_print("{} and {}", x[1]),
        "debug_print_format" => |x| debug_print("{loss}", x[1]),
        "debug_print_brace" => |x| debug_print("{} }", x[1]),
    ]
}

fn transformations() -> Vec<Wrong> {
    wrong![
        "grad_of_vector" => |x| grad(|x: Tensor| x * x)(x[1]),
        "grad_of_int" => |x| grad(|(a, b): (Tensor, Tensor)| (a * b.to(DType::F32)).sum(..))((
            x[1], x[2],
        )),
        "grad_of_while" => |x| grad(|x: Tensor| {
            while_loop(|y: Tensor| y.lt(5.0), |y| y * 2.0, x)
        })(x[4]),
        "grad_of_int_loss" => |x| value_and_grad(|x: Tensor| x.argmax(0))(x[1]),
        "jvp_tangent" => |x| jvp(|x: Tensor| x.sin(), x[1], x[4]),
        "vjp_cotangent" => |x| {
            let (_, pull) = vjp(|x: Tensor| x.sin(), x[1]);
            pull(x[4])
        },
        "vmap_sizes" => |x| vmap(|(a, b): (Tensor, Tensor)| a.sum(..) + b)((x[0], x[1])),
        "vmap_scalar" => |x| vmap(|x: Tensor| x)(x[4]),
        "vmap_nothing" => |_| vmap(|(): ()| ())(()),
        "vmap_out_axes" => |x| {
            let options = VmapOptions::default().out_axes(None);
            vmap_with(options, |x: Tensor| x)(x[1])
        },
        "vmap_positions" => |x| {
            let options = VmapOptions::default().in_axes((0, None));
            vmap_with(options, |(a, _, _): (Tensor, Tensor, Tensor)| a)((x[1], x[1], x[1]))
        },
        "vmap_parts_of_a_tensor" => |x| {
            let options = VmapOptions::default().in_axes((0, (1, None)));
            vmap_with(options, |(a, b): (Tensor, Tensor)| a + b)((x[1], x[1]))
        },
        "vmap_names" => |x| {
            let named = LeafAxes::Named(vec![("a", LeafAxes::All(0))]);
            let options = VmapOptions::default().in_axes(named);
            vmap_with(options, |(a, b): (Tensor, Tensor)| a + b)((x[1], x[1]))
        },
        "custom_jvp_capture" => |x| grad(|y: Tensor| {
            custom_jvp(|z: Tensor| z * y, |z, t| (z * y, t * y))(x[1]).sum(..)
        })(x[1]),
        "custom_jvp_tangent" => |x| {
            custom_jvp(|y: Tensor| y.sin(), |y, t| (y.sin(), t.sum(..)))(x[1])
        },
        "custom_jvp_not_linear" => |x| grad(|y: Tensor| {
            custom_jvp(|y: Tensor| y.sin(), |y, t| (y.sin(), t * t))(y).sum(..)
        })(x[1]),
        "custom_vjp_forwards" => |x| {
            let f = custom_vjp(|y: Tensor| y.sin(), |y| (y.sin(), y), |y: Tensor, ct| ct * y.cos());
            jvp(f, x[1], x[1])
        },
        "custom_vjp_linearized" => |x| {
            let f = custom_vjp(|y: Tensor| y.sin(), |y| (y.sin(), y), |y: Tensor, ct| ct * y.cos());
            linearize(f, x[1]).0
        },
        "custom_vjp_result" => |x| {
            custom_vjp(|y: Tensor| y.sin(), |y| (y.sum(..), y), |y: Tensor, ct| ct * y)(x[1])
        },
        "custom_vjp_cotangent" => |x| {
            custom_vjp(|y: Tensor| y.sin(), |y| (y.sin(), y), |y: Tensor, _| y.sum(..))(x[1])
        },
        "custom_vjp_structure" => |x| {
            custom_vjp(
                |y: Vec<Tensor>| y[0],
                |y| (y[0], y[0]),
                |y: Tensor, ct| vec![ct, y],
            )(vec![x[1]])
        },
        "custom_jvp_differentiates_itself" => |x| {
            fn f(y: Tensor) -> Tensor {
                custom_jvp(|y: Tensor| y.sin(), |y, t| jvp(f, y, t))(y)
            }
            f(x[1])
        },
        "custom_jvp_batches_itself" => |x| {
            fn f(y: Tensor) -> Tensor {
                custom_jvp(|y: Tensor| y.sin(), |y, t| (vmap(f)(y.expand_dims(0)).squeeze(0), t))(y)
            }
            f(x[1])
        },
        "custom_jvp_without_end" => |x| {
            fn f(k: f64, y: Tensor) -> Tensor {
                custom_jvp(|y: Tensor| y * k, |y, t| (y * k, f(k + 1.0, t)))(y)
            }
            f(1.0, x[1])
        },
        "custom_vjp_calls_itself" => |x| {
            fn f(y: Tensor) -> Tensor {
                custom_vjp(|y: Tensor| y.sin(), |y| (f(y), y), |y, ct| ct * y.cos())(y)
            }
            f(x[1])
        },
        "scan_without_end" => |x| {
            fn f(y: Tensor) -> Tensor {
                scan_with(|y: Tensor, ()| (f(y), ()), y, (), ScanOptions::length(2)).0
            }
            f(x[1])
        },
        "jacrev_of_int" => |x| jacrev(|y: Tensor| y.argmax(0))(x[1]),
        "ravel" => |x| ravel(&(x[1], x[2])).0,
        "axis_out_of_scope" => |x| {
            let kept = std::cell::Cell::new(None);
            vmap_axis("rows", |axis, y: Tensor| {
                kept.set(Some(axis));
                y
            })(x[1]);
            psum(x[1], kept.get().expect("the closure ran"))
        },
        "collective_in_a_branch" => |x| vmap_axis("rows", |axis, y: Tensor| {
            cond(y.gt(0.0), |y: Tensor| psum(y, axis), |y| y, y)
        })(x[1]),
        "pmean_of_int" => |x| vmap_axis("rows", |axis, y: Tensor| pmean(y, axis))(x[2]),
        "psum_of_bool" => |x| vmap_axis("rows", |axis, y: Tensor| psum(y.gt(0.0), axis))(x[1]),
        "ppermute_pairs" => |x| vmap_axis("rows", |axis, y: Tensor| {
            ppermute(y, axis, &[(0, 1), (2, 1)])
        })(x[1]),
        "all_to_all_split" => |x| vmap_axis("rows", |axis, y: Tensor| {
            all_to_all(y, axis, 0, 0)
        })(x[0]),
        "nested" => |x| value_and_grad(|weights: Tensor| {
            vmap(|row: Tensor| {
                scan(
                    |h: Tensor, y: Tensor| (h + weights.dot_with(y), ()),
                    row.sum(..),
                    row,
                )
                .0
            })(x[0])
            .sum(..)
        })(x[1]),
        "leaked" => |x| {
            let leak = std::cell::Cell::new(None);
            vmap(|row: Tensor| {
                leak.set(Some(row.exp()));
                row
            })(x[0]);
            leak.get().expect("set above") + 1.0
        },
        "optimizer_structure" => |x| {
            let adam = Adam::default();
            let params = vec![x[0], x[1]];
            let state = adam.init(&params);
            adam.update(&vec![x[0]], state, &params)
        },
        "optimizer_types" => |x| {
            let adam = Adam::default();
            let params = vec![x[0], x[1]];
            let state = adam.init(&params);
            adam.update(&vec![x[0], x[4]], state, &params)
        },
    ]
}

/// A library of the user's: an error in it is reported at its own line.
trait DotWith {
    fn dot_with(self, other: Tensor) -> Tensor;
}

impl DotWith for Tensor {
    #[track_caller]
    fn dot_with(self, other: Tensor) -> Tensor {
        self.matmul(other.broadcast_to([3]))
    }
}

#[test]
fn errors_name_the_users_line() {
    let folder = Path::new("tests/errors");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut names = Vec::new();
    for case in cases() {
        let f: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &|x| (case.f)(&x);
        let call = line!() + 1;
        let traced = make_program(f, &arguments());
        let error = match traced {
            Ok(_) => panic!("{}: is no error", case.name),
            Err(error) => error,
        };
        let text = message(&error, case.line, call);
        assert!(!text.contains("src/"), "{}: a line of the library's:\n{text}", case.name);
        let path = folder.join(format!("{}.txt", case.name));
        if update {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, golden, "{}; UPDATE_GOLDEN=1 writes it anew", path.display());
        names.push(format!("{}.txt", case.name));
    }
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(names.contains(&name), "tests/errors/{name} belongs to no case");
    }
}

#[test]
fn a_tensor_outside_every_trace_is_reported() {
    let leak = std::cell::Cell::new(None);
    make_program(
        |x: Tensor| {
            leak.set(Some(x));
            x
        },
        &Array::from(1.0f32),
    )
    .unwrap();
    let x = leak.get().unwrap();
    assert_eq!(
        format!("{x:?}").split(':').next(),
        Some("Tensor(of a trace that has ended, made at tests/it/errors.rs")
    );
    let line = line!() + 1;
    let error = make_program(|y: Tensor| x + y, &Array::from(1.0f32)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("--> tests/it/errors.rs:{line}:")), "{text}");
    assert!(text.starts_with("add: a tensor is used outside the trace that made it"), "{text}");
    assert!(text.contains("the tensor was made at tests/it/errors.rs:"), "{text}");
}

#[test]
fn an_error_leaves_the_trace_as_it_was() {
    let wrong = |x: Tensor| vmap(|x: Tensor| x.reshape([7]))(x);
    let right = |x: Tensor| x.sin();
    let before = make_program(right, &Array::from(1.0f32)).unwrap().to_string();
    make_program(wrong, &Array::zeros([2, 3], DType::F32)).unwrap_err();
    assert_eq!(make_program(right, &Array::from(1.0f32)).unwrap().to_string(), before);
}

#[test]
fn a_panic_of_the_users_passes_through() {
    let outcome = std::panic::catch_unwind(|| {
        make_program(
            |x: Tensor| -> Tensor { grad(|_: Tensor| -> Tensor { panic!("mine") })(x) },
            &Array::from(1.0f32),
        )
    });
    let payload = outcome.unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"mine"));
    // And the next trace is not disturbed.
    make_program(|x: Tensor| x + constant(1.0f32), &Array::from(1.0f32)).unwrap();
}

/// The source files of the rooms whose functions take tensors.
fn sources() -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = ["control", "jvp", "linearize", "transpose", "vmap", "tensor"]
        .map(|name| format!("src/trace/{name}.rs").into())
        .to_vec();
    let mut folders = vec!["src/trace/ops".into(), "src/trace/numpy".into()];
    for module in ["nn", "optim", "losses", "random", "distributions"] {
        files.push(format!("src/{module}.rs").into());
        folders.push(std::path::PathBuf::from(format!("src/{module}")));
    }
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files.retain(|path| path.is_file() && path.extension().is_some_and(|e| e == "rs"));
    files
}

/// The lines of a function after its signature.
fn source_of_body(lines: &[&str]) -> String {
    let indent = lines[0].len() - lines[0].trim_start().len();
    let end = format!("{}}}", " ".repeat(indent));
    let start = lines.iter().position(|line| line.trim_end().ends_with('{')).map_or(0, |i| i + 1);
    lines[start..].iter().take_while(|line| **line != end).copied().collect()
}

/// A message shows the line of whoever called the outermost function that passes its caller on.
/// One that forgets shows a line of the library's.
#[test]
fn public_functions_of_tensors_pass_the_callers_line_on() {
    let mut forgetful = Vec::new();
    let mut seen = 0;
    for path in sources() {
        let source = std::fs::read_to_string(&path).unwrap();
        let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let lines: Vec<&str> = source.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            if !line.trim_start().starts_with("pub fn ") {
                continue;
            }
            let mut signature = String::new();
            for line in &lines[i..] {
                signature.push_str(line);
                if line.trim_end().ends_with(['{', ';']) {
                    break;
                }
            }
            // One that only puts tensors together cannot fail.
            let body = source_of_body(&lines[i..]);
            if !body.replace("::new(", "").replace("Key(", "").contains('(') {
                continue;
            }
            let words: Vec<&str> =
                signature.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            if !words.contains(&"Tensor") {
                continue;
            }
            seen += 1;
            let above = lines[..i].iter().rev().take_while(|line| {
                let line = line.trim_start();
                line.starts_with("#[") || line.starts_with("//") || line.starts_with("$(#[")
            });
            let passes_on = |line: &&str| line.contains("#[track_caller]") || line.contains("#[op");
            if !above.clone().any(passes_on) {
                forgetful.push(format!("{}:{}: {}", path.display(), i + 1, line.trim()));
            }
        }
    }
    assert!(seen > 150, "only {seen} functions were looked at");
    assert!(forgetful.is_empty(), "without #[op] or #[track_caller]:\n{}", forgetful.join("\n"));
}
