//! Products and convolutions.

use podracer::trace::op::{Axes, ConvDims, DotDims, Precision};
use podracer::trace::ops::{
    ConvGeneralDilated, ConvOptions, ConvTranspose, Padding, conv_general, conv_general_dilated,
    conv_transpose, conv2d, dot_general, matmul, matmul_with,
};
use podracer::{DType, Tensor};

use super::{Case, In, case, int, x};

fn axes(axes: &[usize]) -> Axes {
    axes.into()
}

/// Name, shapes, contracted axes, batch axes.
type Dot = (
    &'static str,
    &'static [usize],
    &'static [usize],
    [&'static [usize]; 2],
    [&'static [usize]; 2],
);

const DOTS: &[Dot] = &[
    ("dot", &[2, 3], &[3, 4], [&[1], &[0]], [&[], &[]]),
    ("dot/inner", &[3], &[3], [&[0], &[0]], [&[], &[]]),
    ("dot/outer", &[3], &[2], [&[], &[]], [&[], &[]]),
    ("dot/scalars", &[], &[], [&[], &[]], [&[], &[]]),
    ("dot/first axes", &[3, 2], &[3, 4], [&[0], &[0]], [&[], &[]]),
    ("dot/batch", &[2, 3, 4], &[2, 4, 5], [&[2], &[1]], [&[0], &[0]]),
    ("dot/batch apart", &[3, 2, 4], &[4, 5, 2], [&[2], &[0]], [&[1], &[2]]),
    ("dot/two batch axes", &[2, 3, 4], &[3, 2, 4], [&[2], &[2]], [&[0, 1], &[1, 0]]),
    ("dot/two contracted", &[2, 3, 4], &[4, 5, 3], [&[2, 1], &[0, 2]], [&[], &[]]),
    ("dot/all contracted", &[2, 3], &[3, 2], [&[0, 1], &[1, 0]], [&[], &[]]),
    ("dot/free around", &[2, 3, 4], &[5, 3, 6], [&[1], &[1]], [&[], &[]]),
    ("dot/empty", &[2, 0], &[0, 3], [&[1], &[0]], [&[], &[]]),
    ("dot/no rows", &[0, 2], &[2, 3], [&[1], &[0]], [&[], &[]]),
];

struct Conv {
    name: &'static str,
    lhs: &'static [usize],
    rhs: &'static [usize],
    specs: [&'static [usize]; 3],
    strides: &'static [usize],
    padding: &'static [(i64, i64)],
    lhs_dilation: &'static [usize],
    rhs_dilation: &'static [usize],
    groups: (usize, usize),
}

const NHWC: [&[usize]; 3] = [&[0, 3, 1, 2], &[3, 2, 0, 1], &[0, 3, 1, 2]];
const NCHW: [&[usize]; 3] = [&[0, 1, 2, 3], &[0, 1, 2, 3], &[0, 1, 2, 3]];

/// A plain convolution of 5 by 4 images of 2 features by a window of 3 by 2.
const PLAIN: Conv = Conv {
    name: "conv",
    lhs: &[2, 5, 4, 2],
    rhs: &[3, 2, 2, 3],
    specs: NHWC,
    strides: &[1, 1],
    padding: &[(0, 0), (0, 0)],
    lhs_dilation: &[1, 1],
    rhs_dilation: &[1, 1],
    groups: (1, 1),
};

const CONVS: &[Conv] = &[
    PLAIN,
    Conv { name: "conv/stride", strides: &[2, 1], ..PLAIN },
    Conv { name: "conv/stride past", lhs: &[1, 6, 5, 2], strides: &[2, 2], ..PLAIN },
    Conv { name: "conv/padding", padding: &[(1, 2), (0, 1)], ..PLAIN },
    Conv { name: "conv/negative padding", padding: &[(-1, 1), (1, -1)], ..PLAIN },
    Conv { name: "conv/padding past the window", padding: &[(4, 0), (0, 3)], ..PLAIN },
    Conv { name: "conv/lhs dilation", lhs_dilation: &[2, 1], ..PLAIN },
    Conv {
        name: "conv/lhs dilation, stride and padding",
        lhs_dilation: &[2, 3],
        strides: &[3, 2],
        padding: &[(1, 0), (2, -1)],
        ..PLAIN
    },
    Conv { name: "conv/rhs dilation", rhs_dilation: &[2, 3], ..PLAIN },
    Conv {
        name: "conv/rhs dilation, stride and padding",
        rhs_dilation: &[1, 2],
        strides: &[2, 2],
        padding: &[(1, 1), (2, 1)],
        ..PLAIN
    },
    Conv { name: "conv/groups", lhs: &[2, 4, 3, 4], rhs: &[2, 2, 2, 6], groups: (2, 1), ..PLAIN },
    Conv {
        name: "conv/depthwise",
        lhs: &[1, 4, 3, 3],
        rhs: &[2, 2, 1, 3],
        strides: &[2, 1],
        padding: &[(1, 0), (0, 1)],
        groups: (3, 1),
        ..PLAIN
    },
    Conv {
        name: "conv/batch groups",
        lhs: &[4, 4, 3, 2],
        rhs: &[2, 2, 2, 6],
        groups: (1, 2),
        ..PLAIN
    },
    Conv {
        name: "conv/nchw",
        lhs: &[2, 2, 4, 3],
        rhs: &[3, 2, 2, 2],
        specs: NCHW,
        strides: &[2, 1],
        ..PLAIN
    },
    Conv {
        name: "conv/odd layouts",
        lhs: &[4, 2, 3, 2],
        rhs: &[2, 3, 2, 2],
        specs: [&[1, 3, 2, 0], &[1, 0, 3, 2], &[2, 0, 3, 1]],
        ..PLAIN
    },
    Conv {
        name: "conv/one axis",
        lhs: &[2, 7, 2],
        rhs: &[3, 2, 3],
        specs: [&[0, 2, 1], &[2, 1, 0], &[0, 2, 1]],
        strides: &[2],
        padding: &[(1, 1)],
        lhs_dilation: &[1],
        rhs_dilation: &[1],
        ..PLAIN
    },
    Conv {
        name: "conv/three axes",
        lhs: &[1, 3, 2, 3, 2],
        rhs: &[2, 2, 2, 2, 2],
        specs: [&[0, 4, 1, 2, 3], &[4, 3, 0, 1, 2], &[0, 4, 1, 2, 3]],
        strides: &[1, 1, 2],
        padding: &[(0, 1), (0, 0), (1, 0)],
        lhs_dilation: &[1, 1, 1],
        rhs_dilation: &[1, 1, 1],
        ..PLAIN
    },
    Conv {
        name: "conv/no axes",
        lhs: &[3, 2],
        rhs: &[4, 2],
        specs: [&[0, 1], &[0, 1], &[0, 1]],
        strides: &[],
        padding: &[],
        lhs_dilation: &[],
        rhs_dilation: &[],
        ..PLAIN
    },
    Conv { name: "conv/window too large", lhs: &[1, 2, 4, 2], ..PLAIN },
];

impl Conv {
    fn dims(&self) -> ConvDims {
        ConvDims {
            lhs_spec: axes(self.specs[0]),
            rhs_spec: axes(self.specs[1]),
            out_spec: axes(self.specs[2]),
            strides: axes(self.strides),
            padding: self.padding.into(),
            lhs_dilation: axes(self.lhs_dilation),
            rhs_dilation: axes(self.rhs_dilation),
            feature_groups: self.groups.0,
            batch_groups: self.groups.1,
            precision: Precision::Default,
        }
    }
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &(name, lhs, rhs, contract, batch) in DOTS {
        let dims = DotDims {
            lhs_contract: axes(contract[0]),
            rhs_contract: axes(contract[1]),
            lhs_batch: axes(batch[0]),
            rhs_batch: axes(batch[1]),
            precision: Precision::Default,
        };
        cases.push(
            case(name, &[x(lhs), x(rhs)], move |x| dot_general(x[0].sin(), x[1], dims.clone()))
                .loose(4.0),
        );
    }
    for conv in CONVS {
        let dims = conv.dims();
        cases.push(
            case(conv.name, &[x(conv.lhs), x(conv.rhs)], move |x| {
                conv_general(x[0].sin(), x[1], dims.clone())
            })
            .loose(8.0),
        );
    }
    for (stride, padding) in [(1, Padding::Same), (2, Padding::Same), (2, Padding::Valid)] {
        let name = format!("conv/conv2d {padding:?} {stride}");
        cases.push(
            case(name, &[x(&[2, 5, 4, 2]), x(&[3, 2, 2, 3])], move |x| {
                conv2d(x[0], x[1], &ConvOptions { stride, padding: padding.clone() })
            })
            .loose(8.0),
        );
    }
    for precision in [Precision::High, Precision::Highest] {
        cases.push(case(format!("dot/{}", precision.name()), &[x(&[2, 3]), x(&[3, 2])], {
            move |x| matmul_with(x[0], x[1].sin(), precision)
        }));
        let dims = ConvDims { precision, ..PLAIN.dims() };
        cases.push(
            case(format!("conv/{}", precision.name()), &[x(PLAIN.lhs), x(PLAIN.rhs)], move |x| {
                conv_general(x[0], x[1], dims.clone())
            })
            .loose(8.0),
        );
    }
    layouts(&mut cases);
    // The same tensor on both sides.
    cases.push(case("dot/twice the same", &[x(&[3, 3])], |x| matmul(x[0], matmul(x[0], x[0]))));
    let shapes: [(&[usize], &[usize]); 6] = [
        (&[3], &[3]),
        (&[2, 3], &[3]),
        (&[3], &[2, 3, 4]),
        (&[2, 1, 3, 2], &[4, 2, 3]),
        (&[2, 3], &[5, 3, 2]),
        (&[5, 2, 3], &[3, 2]),
    ];
    for (lhs, rhs) in shapes {
        let name = format!("dot/matmul {lhs:?} {rhs:?}");
        cases.push(case(name, &[x(lhs), x(rhs)], |x| matmul(x[0], x[1])));
    }
    for dtype in [DType::I8, DType::I32, DType::U32, DType::I64] {
        let args = [In::Int(dtype, vec![2, 3], 0, 99), In::Int(dtype, vec![3, 2], 0, 99)];
        cases.push(case(format!("dot/{dtype}"), &args, |x| matmul(x[0], x[1])).flat());
    }
    for dtype in [DType::BF16, DType::F16] {
        cases.push(
            case(format!("dot/{dtype}"), &[x(&[2, 3]), x(&[3, 2])], |x| matmul(x[0], x[1]))
                .flat()
                .dtypes(&[dtype]),
        );
    }
    let dims = PLAIN.dims();
    cases.push(
        case("conv/i32", &[int(PLAIN.lhs, -9, 9), int(PLAIN.rhs, -9, 9)], move |x: &[Tensor]| {
            conv_general(x[0], x[1], dims.clone())
        })
        .flat(),
    );
    cases
}

/// Convolutions by JAX's own arguments.
fn layouts(cases: &mut Vec<Case>) {
    let mut add = |name: &str, lhs: &[usize], rhs: &[usize], args: ConvGeneralDilated| {
        cases.push(
            case(format!("conv/{name}"), &[x(lhs), x(rhs)], move |x| {
                conv_general_dilated(x[0], x[1], &args)
            })
            .loose(8.0),
        );
    };
    let default = ConvGeneralDilated::default;
    add("dilated: default layouts", &[2, 2, 4, 3], &[3, 2, 2, 2], default());
    let args = ConvGeneralDilated {
        window_strides: vec![2, 1],
        padding: Padding::SameLower,
        rhs_dilation: vec![1, 2],
        dimension_numbers: Some(["HWNC", "OIWH", "CNHW"]),
        ..default()
    };
    add("dilated: layouts", &[5, 4, 2, 2], &[3, 2, 2, 3], args);
    let args = ConvGeneralDilated {
        padding: Padding::Explicit(vec![(1, 2)]),
        lhs_dilation: vec![2],
        dimension_numbers: Some(["NXC", "XIO", "NXC"]),
        feature_group_count: 2,
        precision: Precision::High,
        ..default()
    };
    add("dilated: one axis", &[2, 4, 4], &[3, 2, 4], args);
    let args = ConvGeneralDilated { batch_group_count: 2, ..default() };
    add("dilated: batch groups", &[4, 2, 3, 3], &[2, 2, 2, 2], args);

    let mut add = |name: &str, lhs: &[usize], rhs: &[usize], args: ConvTranspose| {
        cases.push(
            case(format!("conv/transpose {name}"), &[x(lhs), x(rhs)], move |x| {
                conv_transpose(x[0], x[1], &args)
            })
            .loose(8.0),
        );
    };
    let (image, kernel): (&[usize], &[usize]) = (&[2, 3, 2, 2], &[3, 2, 2, 3]);
    for padding in [Padding::Same, Padding::Valid, Padding::Explicit(vec![(1, 0), (2, 1)])] {
        let args = ConvTranspose { strides: vec![2, 3], padding, ..ConvTranspose::default() };
        let name = format!("{:?}", args.padding);
        add(&name, image, kernel, args.clone());
        let args = ConvTranspose {
            transpose_kernel: true,
            use_consistent_padding: true,
            rhs_dilation: vec![2, 1],
            ..args
        };
        add(&format!("{name} of a kernel turned"), image, &[3, 2, 3, 2], args);
    }
}
