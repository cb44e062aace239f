//! Convolutions and pooling.

use podracer::Tensor;
use podracer::nn::{Conv, ConvLocal, ConvPadding, ConvTranspose, avg_pool, max_pool, min_pool};
use podracer::trace::ops::Padding;

use crate::names::Function;

/// A convolution with Flax's defaults.
fn conv(x: &[Tensor]) -> Conv<Tensor> {
    Conv {
        kernel: x[1],
        bias: Some(x[2]),
        strides: vec![],
        padding: ConvPadding::Zeros(Padding::Same),
        input_dilation: vec![],
        kernel_dilation: vec![],
        feature_group_count: 1,
    }
}

fn conv_transpose(x: &[Tensor]) -> ConvTranspose<Tensor> {
    ConvTranspose {
        kernel: x[1],
        bias: Some(x[2]),
        strides: vec![],
        padding: ConvPadding::Zeros(Padding::Same),
        kernel_dilation: vec![],
        transpose_kernel: false,
    }
}

pub const FUNCTIONS: &[Function] = &[
    ("conv_causal", |x| {
        let kernel_dilation = vec![2];
        let layer = Conv { padding: ConvPadding::Causal, kernel_dilation, ..conv(x) };
        vec![layer.apply(x[0])]
    }),
    ("conv_circular", |x| vec![Conv { padding: ConvPadding::Circular, ..conv(x) }.apply(x[0])]),
    ("conv_reflect", |x| {
        let layer = Conv { padding: ConvPadding::Reflect, strides: vec![2, 2], ..conv(x) };
        vec![layer.apply(x[0])]
    }),
    ("conv_3d", |x| vec![Conv { strides: vec![1, 2, 1], ..conv(x) }.apply(x[0])]),
    ("conv_depthwise", |x| {
        let padding = ConvPadding::Zeros(Padding::Explicit(vec![(1, 0), (2, 1)]));
        vec![Conv { padding, feature_group_count: 3, ..conv(x) }.apply(x[0])]
    }),
    ("conv_batches", |x| {
        let padding = ConvPadding::Zeros(Padding::Explicit(vec![(1, 1)]));
        vec![Conv { padding, input_dilation: vec![2], ..conv(x) }.apply(x[0])]
    }),
    ("conv_single", |x| vec![conv(x).apply(x[0])]),
    ("conv_transpose_1d", |x| {
        vec![ConvTranspose { strides: vec![2], ..conv_transpose(x) }.apply(x[0])]
    }),
    ("conv_transpose_2d", |x| {
        let layer = ConvTranspose {
            strides: vec![2, 3],
            padding: ConvPadding::Zeros(Padding::Valid),
            transpose_kernel: true,
            ..conv_transpose(x)
        };
        vec![layer.apply(x[0])]
    }),
    ("conv_transpose_3d", |x| {
        vec![ConvTranspose { kernel_dilation: vec![1, 2, 1], ..conv_transpose(x) }.apply(x[0])]
    }),
    ("conv_transpose_circular", |x| {
        let padding = ConvPadding::Circular;
        vec![ConvTranspose { padding, strides: vec![2], ..conv_transpose(x) }.apply(x[0])]
    }),
    ("conv_transpose_circular_2d", |x| {
        let layer = ConvTranspose {
            padding: ConvPadding::Circular,
            strides: vec![1, 2],
            kernel_dilation: vec![2, 1],
            transpose_kernel: true,
            ..conv_transpose(x)
        };
        vec![layer.apply(x[0])]
    }),
    ("conv_transpose_circular_short", |x| {
        let padding = ConvPadding::Circular;
        vec![ConvTranspose { padding, strides: vec![3], ..conv_transpose(x) }.apply(x[0])]
    }),
    ("conv_local", |x| {
        let layer = ConvLocal {
            kernel: x[1],
            bias: Some(x[2]),
            kernel_size: vec![3, 2],
            strides: vec![2, 1],
            padding: ConvPadding::Zeros(Padding::Same),
        };
        vec![layer.apply(x[0])]
    }),
    ("conv_local_1d", |x| {
        let layer = ConvLocal {
            kernel: x[1],
            bias: Some(x[2]),
            kernel_size: vec![2],
            strides: vec![],
            padding: ConvPadding::Circular,
        };
        vec![layer.apply(x[0])]
    }),
    ("pools", |x| {
        let (window, stride) = ([3, 2], [2, 1]);
        let one = Padding::Explicit(vec![(1, 0), (0, 1)]);
        vec![
            max_pool(x[0], window, stride, &Padding::Same),
            min_pool(x[0], window, stride, &Padding::Valid),
            avg_pool(x[0], window, stride, &Padding::Same, true),
            avg_pool(x[0], window, stride, &Padding::Same, false),
            max_pool(x[0], [2], [2], &Padding::Valid),
            avg_pool(x[0], [2, 2], [1, 1], &one, true),
        ]
    }),
];
