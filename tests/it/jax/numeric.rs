//! Convolutions by their layouts, linear algebra, functions around the gamma function, casts of
//! bits, and products of narrow floats. See `tests/fixtures/jax/numeric.py`.

use podracer::nn::ConvTranspose2d;
use podracer::trace::numpy::{betaln, cho_solve, det, inv, lu, slogdet, solve};
use podracer::trace::op::TriangularSolveOp;
use podracer::trace::ops::{
    ConvGeneralDilated, ConvOptions, ConvTranspose, Padding, cholesky, constant,
    conv_general_dilated, conv_transpose, eye, logaddexp, polygamma, triangular_solve,
};
use podracer::{DType, Tensor, grad};

use super::Function;

fn definite(x: Tensor) -> Tensor {
    x.matmul(x.swapaxes(-1, -2)) + eye(x.dim(-1), x.dtype()) * 2.0
}

fn shifted(a: Tensor) -> Tensor {
    a + eye(3, DType::F32) * 3.0
}

/// See `numeric.py`.
pub const FUNCTIONS: &[Function] = &[
    ("conv_layouts", |x| {
        let explicit = Padding::Explicit(vec![(1, 2), (0, -1)]);
        [Padding::Same, Padding::SameLower, Padding::Valid, explicit]
            .map(|padding| {
                let args = ConvGeneralDilated {
                    window_strides: vec![2, 1],
                    padding,
                    rhs_dilation: vec![1, 2],
                    dimension_numbers: Some(["NHWC", "HWIO", "NHWC"]),
                    ..ConvGeneralDilated::default()
                };
                conv_general_dilated(x[0], x[1], &args)
            })
            .to_vec()
    }),
    ("conv_odd_layouts", |x| {
        let args = ConvGeneralDilated {
            window_strides: vec![1, 2],
            padding: Padding::Same,
            dimension_numbers: Some(["HWNC", "OIWH", "CNHW"]),
            ..ConvGeneralDilated::default()
        };
        vec![conv_general_dilated(x[0], x[1], &args)]
    }),
    ("conv_default_layouts", |x| {
        vec![conv_general_dilated(x[0], x[1], &ConvGeneralDilated::default())]
    }),
    ("conv_grouped", |x| {
        let features = ConvGeneralDilated {
            padding: Padding::Explicit(vec![(1, 2)]),
            lhs_dilation: vec![2],
            feature_group_count: 2,
            ..ConvGeneralDilated::default()
        };
        let batch = ConvGeneralDilated {
            padding: Padding::Same,
            batch_group_count: 2,
            ..ConvGeneralDilated::default()
        };
        vec![
            conv_general_dilated(x[0], x[1].t(), &features),
            conv_general_dilated(x[2], x[3].t(), &batch),
        ]
    }),
    ("conv_transposes", |x| {
        let options = ConvOptions { stride: 2, padding: Padding::Same };
        let mut all = vec![ConvTranspose2d { w: x[1], b: Some(x[2]), options }.apply(x[0])];
        for strides in [vec![2, 3], vec![4, 1]] {
            let explicit = Padding::Explicit(vec![(1, 0), (2, 1)]);
            for padding in [Padding::Same, Padding::Valid, explicit] {
                for rhs_dilation in [vec![1, 1], vec![1, 2]] {
                    let args = ConvTranspose {
                        strides: strides.clone(),
                        padding: padding.clone(),
                        rhs_dilation,
                        ..ConvTranspose::default()
                    };
                    all.push(conv_transpose(x[0], x[1], &args));
                }
            }
        }
        all
    }),
    ("conv_transposes_of_a_kernel", |x| {
        let mut all = vec![];
        for padding in [Padding::Same, Padding::Valid, Padding::Explicit(vec![(1, 0), (0, 1)])] {
            for use_consistent_padding in [false, true] {
                let args = ConvTranspose {
                    strides: vec![2, 3],
                    padding: padding.clone(),
                    transpose_kernel: true,
                    use_consistent_padding,
                    ..ConvTranspose::default()
                };
                all.push(conv_transpose(x[0], x[1], &args));
            }
        }
        all
    }),
    ("conv_transpose_line", |x| {
        let padding = Padding::Same;
        let args = ConvTranspose { strides: vec![2], padding, ..ConvTranspose::default() };
        vec![conv_transpose(x[0], x[1], &args)]
    }),
    ("choleskys", |x| vec![cholesky(definite(x[0])), cholesky(definite(x[1]))]),
    ("cholesky_not_symmetric", |x| vec![cholesky(definite(x[0]) + x[0].triu(1) / 4.0)]),
    ("cholesky_not_definite", |x| vec![cholesky(x[0].stop_gradient())]),
    ("triangular_solves", |x| {
        let a = x[0] / 2.0 + eye(4, DType::F32) * 2.0;
        let each = |bits: usize| {
            let bit = |i: usize| bits >> i & 1 == 1;
            let (left_side, lower) = (bit(3), bit(2));
            let (transpose_a, unit_diagonal) = (bit(1), bit(0));
            let op = TriangularSolveOp { left_side, lower, transpose_a, unit_diagonal };
            triangular_solve(a, if left_side { x[1] } else { x[2] }, op)
        };
        (0..16).map(each).collect()
    }),
    ("cholesky_solves", |x| {
        let l = cholesky(definite(x[0]));
        vec![cho_solve(l, x[1]), cho_solve(cholesky(definite(x[2])), x[3])]
    }),
    ("lus", |x| {
        let (a, b) = (lu(x[0]), lu(x[1]));
        vec![a.0, a.1, a.2, b.0, b.1, b.2]
    }),
    ("solves", |x| vec![solve(x[0], x[1]), solve(x[0], x[2]), solve(x[3], x[4])]),
    ("inverses", |x| vec![inv(x[0]), inv(x[1])]),
    ("determinants", |x| x.iter().map(|a| det(*a)).collect()),
    ("log_determinants", |x| x.iter().flat_map(|a| <[Tensor; 2]>::from(slogdet(*a))).collect()),
    ("singular_determinants", |x| {
        let (one, two) = (constant([1.0f32, 1.0, 1.0, 0.0]), constant([1.0f32, 0.0, 1.0, 0.0]));
        vec![det(x[0].diag() * one), det(x[1].diag() * two)]
    }),
    ("second_derivatives", |x| {
        let (a, v, t) = (x[0], x[1], x[2]);
        vec![
            (grad(|a: Tensor| cholesky(definite(a)).sin().sum(..))(a) * t).sum(..),
            (grad(move |a: Tensor| solve(shifted(a), v).sin().sum(..))(a) * t).sum(..),
            (grad(|a: Tensor| slogdet(shifted(a)).1)(a) * t).sum(..),
            (grad(|a: Tensor| lu(shifted(a)).0.sin().sum(..))(a) * t).sum(..),
        ]
    }),
    ("gammas", |x| {
        let (x, n) = (x[0], x[0].dim(0));
        vec![
            x.lgamma(),
            x.digamma(),
            polygamma(1, x.slice_axis(0, 0, n - 3)),
            polygamma(3, x.slice_axis(0, 1, n - 3)),
        ]
    }),
    ("gamma_derivatives", |x| {
        let first = grad(|x: Tensor| x.lgamma().sum(..));
        let second = grad(move |x: Tensor| first(x).sum(..));
        let y = second(x[0]);
        vec![y, grad(move |x: Tensor| second(x).sum(..))(x[0])]
    }),
    ("gamma_poles", |x| {
        let x = x[0].stop_gradient();
        vec![x.lgamma(), x.digamma(), polygamma(1, x), polygamma(2, x)]
    }),
    ("complements", |x| vec![x[0].erfc(), x[0].slice_axis(0, 0, 8).erfc().log()]),
    ("log_betas", |x| vec![betaln(x[0], x[1]), betaln(x[1], x[0])]),
    ("log_sums", |x| {
        let head = |x: Tensor| x.slice_axis(0, 0, 4);
        vec![logaddexp(head(x[0]), head(x[1])), logaddexp(x[0], x[1]).stop_gradient()]
    }),
    ("bits", |x| {
        let (bytes, y) = (x[0].to(DType::U8), x[1]);
        vec![
            bytes.bitcast(DType::F32),
            y.bitcast(DType::U8).to(DType::I32),
            y.bitcast(DType::I16).to(DType::I32),
            y.bitcast(DType::U16).bitcast(DType::F32),
            bytes.index_axis(0, 0).bitcast(DType::U32).bitcast(DType::I32),
        ]
    }),
    ("narrow_products", |x| {
        let mut all = vec![];
        for dtype in [DType::F16, DType::BF16] {
            let [a, b, image, kernel] = [0, 1, 2, 3].map(|i| x[i].stop_gradient().to(dtype));
            all.push(a.matmul(b));
            let args = ConvGeneralDilated {
                dimension_numbers: Some(["NHWC", "HWIO", "NHWC"]),
                ..ConvGeneralDilated::default()
            };
            all.push(conv_general_dilated(image, kernel, &args));
        }
        all
    }),
];
