//! Operations that move elements.

use podracer::trace::ops::{concatenate, stack};
use podracer::{DType, Tensor};

use super::{Case, In, case, cases_of, int, within, x};

/// `x` cubed: a factor that depends on the element, so that one in the wrong place shows.
fn cube(x: Tensor) -> Tensor {
    x * x * x
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("broadcast", &[x(&[3])], |x| cube(x[0]).broadcast_to([2, 3])),
        case("broadcast/in the middle", &[x(&[2, 3])], |x| {
            cube(x[0]).broadcast_in_dim([2, 4, 3], &[0, 2])
        }),
        case("broadcast/size 1", &[x(&[1, 3])], |x| cube(x[0]).broadcast_to([4, 2, 3])),
        case("broadcast/scalar", &[x(&[])], |x| cube(x[0]).broadcast_to([2, 2])),
        case("broadcast/empty", &[x(&[1])], |x| cube(x[0]).broadcast_to([0, 1])),
        case("broadcast/tile", &[x(&[2, 3])], |x| cube(x[0]).tile(2, 1)),
        case("broadcast/repeat", &[x(&[2, 3])], |x| cube(x[0]).repeat(2, 0)),
        case("reshape", &[x(&[2, 6])], |x| cube(x[0]).reshape([3, 2, 2])),
        case("reshape/scalar", &[x(&[1, 1])], |x| cube(x[0]).reshape([])),
        case("reshape/ravel", &[x(&[2, 3])], |x| cube(x[0]).ravel()),
        case("reshape/empty", &[x(&[0, 3])], |x| cube(x[0]).reshape([3, 0, 2])),
        case("reshape/flatten_from", &[x(&[2, 3, 2])], |x| cube(x[0]).flatten_from(1)),
        case("transpose", &[x(&[2, 3, 4])], |x| cube(x[0]).transpose(&[2, 0, 1])),
        case("transpose/matrix", &[x(&[2, 3])], |x| cube(x[0]).t()),
        case("transpose/swapaxes", &[x(&[2, 3, 2])], |x| cube(x[0]).swapaxes(0, -1)),
        case("transpose/moveaxis", &[x(&[2, 3, 2])], |x| cube(x[0]).moveaxis(0, 2)),
        case("reverse", &[x(&[2, 3])], |x| cube(x[0]).flip(1)),
        case("reverse/both", &[x(&[2, 3])], |x| cube(x[0]).flip(1).flip(0)),
        case("concat", &[x(&[2, 3]), x(&[2, 1]), x(&[2, 2])], |x| {
            concatenate(&[cube(x[0]), x[1], cube(x[2])], 1)
        }),
        case("concat/first axis", &[x(&[2, 3]), x(&[1, 3])], |x| {
            concatenate(&[cube(x[0]), x[1], x[0]], 0)
        }),
        case("concat/empty part", &[x(&[2]), x(&[0])], |x| concatenate(&[cube(x[0]), x[1]], 0)),
        case("concat/stack", &[x(&[2, 3]), x(&[2, 3])], |x| stack(&[cube(x[0]), x[1]], 1)),
        case("concat/roll", &[x(&[2, 5])], |x| cube(x[0]).roll(2, 1)),
        case("concat/roll back", &[x(&[2, 5])], |x| cube(x[0]).roll(-7, 1)),
        case("pad", &[x(&[2, 3])], |x| cube(x[0]).pad(&[1, 0], &[2, 1], 0.5)),
        case("pad/tensor", &[x(&[2, 3]), x(&[])], |x| {
            cube(x[0]).pad_with(&[1, 0], &[2, 1], &[0, 0], cube(x[1]))
        }),
        case("pad/interior", &[x(&[2, 3]), x(&[])], |x| {
            cube(x[0]).pad_with(&[0, 1], &[1, 0], &[1, 2], x[1])
        }),
        case("pad/cut off", &[x(&[4, 5]), x(&[])], |x| {
            cube(x[0]).pad_with(&[-1, 2], &[-1, -3], &[0, 0], x[1])
        }),
        case("pad/cut and interior", &[x(&[4, 3]), x(&[])], |x| {
            cube(x[0]).pad_with(&[-2, -1], &[-1, 1], &[1, 2], x[1])
        }),
        case("pad/of nothing", &[x(&[0]), x(&[])], |x| cube(x[0]).pad_with(&[1], &[2], &[3], x[1])),
        case("slice", &[x(&[4, 5])], |x| cube(x[0]).strided_slice(&[1, 0], &[3, 5], &[1, 1])),
        case("slice/strided", &[x(&[4, 7])], |x| {
            cube(x[0]).strided_slice(&[0, 1], &[4, 7], &[2, 3])
        }),
        case("slice/stride past the end", &[x(&[7])], |x| {
            cube(x[0]).strided_slice(&[1], &[6], &[2])
        }),
        case("slice/empty", &[x(&[4])], |x| cube(x[0]).strided_slice(&[2], &[2], &[1])),
        case("slice/index", &[x(&[3, 2])], |x| cube(x[0]).index_axis(0, -1)),
        cases_of("slice/split", &[x(&[4, 2])], |x| cube(x[0]).split(2, 0)),
        case("select/tril", &[x(&[3, 4])], |x| cube(x[0]).tril(-1)),
        case("dynamic_slice", &[x(&[4, 5]), int(&[], 0, 2), int(&[], 0, 3)], |x| {
            cube(x[0]).dynamic_slice(&[x[1], x[2]], [2, 3])
        }),
        case("dynamic_slice/clamped", &[x(&[4, 5]), int(&[], -9, 9), int(&[], -9, 9)], |x| {
            cube(x[0]).dynamic_slice(&[x[1], x[2]], [2, 3])
        }),
        case("dynamic_slice/whole", &[x(&[4]), int(&[], -9, 9)], |x| {
            cube(x[0]).dynamic_slice(&[x[1]], [4])
        }),
        case("dynamic_slice/index", &[x(&[4, 2]), int(&[], -1, 5)], |x| {
            cube(x[0]).dynamic_index(0, x[1])
        }),
        case("dynamic_slice/i32", &[int(&[4, 2], -5, 5), int(&[], -1, 5)], |x| {
            x[0].dynamic_slice_axis(0, x[1], 2)
        })
        .flat(),
        case(
            "dynamic_update_slice",
            &[x(&[4, 5]), x(&[2, 3]), int(&[], 0, 2), int(&[], 0, 3)],
            |x| cube(x[0]).dynamic_update_slice(cube(x[1]), &[x[2], x[3]]),
        ),
        case(
            "dynamic_update_slice/clamped",
            &[x(&[4, 5]), x(&[2, 3]), int(&[], -9, 9), int(&[], -9, 9)],
            |x| cube(x[0]).dynamic_update_slice(cube(x[1]), &[x[2], x[3]]),
        ),
        case("dynamic_update_slice/index", &[x(&[4, 2]), int(&[], -1, 5), x(&[2])], |x| {
            cube(x[0]).dynamic_update_index(0, x[1], cube(x[2]))
        }),
        case("dynamic_update_slice/same", &[x(&[4]), int(&[], 0, 3)], |x| {
            x[0].dynamic_update_index(0, x[1], x[0].sum(..))
        }),
    ];
    for dtype in [DType::Bool, DType::U8, DType::I64, DType::BF16] {
        cases.push(
            cases_of(format!("pad/{dtype}"), &[int(&[2, 3], 0, 1), within(&[], 0.0, 1.0)], {
                move |x: &[Tensor]| {
                    let x = x[0].to(dtype);
                    vec![
                        x.pad(&[1, -1], &[0, 2], 1.0),
                        x.flip(1),
                        x.t(),
                        concatenate(&[x, x.flip(0)], 0),
                        x.tile(2, 0),
                        x.strided_slice(&[0, 1], &[2, 3], &[1, 2]),
                    ]
                }
            })
            .flat(),
        );
    }
    let index = In::Int(DType::I32, vec![], 0, 3);
    cases.push(case("dynamic_slice/mapped twice", &[x(&[4, 4]), index.clone(), index], |x| {
        cube(x[0]).dynamic_index(0, x[1]).dynamic_index(0, x[2])
    }));
    cases
}
