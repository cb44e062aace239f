//! Reductions, extremes, sorting.

use podracer::trace::ops::sort_by;
use podracer::{DType, Literal};

use super::{Case, In, case, cases_of, distinct, int, within, x};

fn with_nan(shape: &[usize]) -> In {
    let n: usize = shape.iter().product();
    let values = (0..n)
        .map(|i| match i % 7 {
            3 => f64::NAN,
            1 => f64::INFINITY,
            5 => f64::NEG_INFINITY,
            2 => -0.0,
            4 => 0.0,
            i => i as f64,
        })
        .collect();
    In::Floats(shape.to_vec(), values)
}

/// Numbers many of which are equal.
fn ties(shape: &[usize]) -> In {
    int(shape, -1, 1)
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let floats = [DType::F64, DType::F32, DType::BF16];
    let mut cases = vec![
        case("reduce_sum", &[x(&[2, 3])], |x| x[0].sin().sum([1])).dtypes(&floats),
        case("reduce_sum/all", &[x(&[2, 3])], |x| x[0].sin().sum(..)),
        case("reduce_sum/two axes", &[x(&[2, 3, 4])], |x| x[0].sin().sum([0, -1])),
        case("reduce_sum/empty", &[x(&[2, 0])], |x| x[0].sin().sum([1])),
        case("reduce_sum/of empties", &[x(&[0, 2])], |x| x[0].sin().sum([1])),
        case("reduce_prod", &[x(&[2, 3])], |x| x[0].prod([1])),
        case("reduce_prod/all", &[x(&[2, 4])], |x| x[0].prod(..)),
        case("reduce_prod/one zero", &[In::Floats(vec![5], vec![2.0, 0.0, -1.5, 3.0, 0.5])], |x| {
            x[0].prod(..)
        }),
        case("reduce_prod/zeros", &[In::Floats(vec![4], vec![2.0, 0.0, 0.0, 3.0])], |x| {
            x[0].prod(..)
        }),
        case("reduce_prod/middle axis", &[x(&[2, 3, 2])], |x| x[0].prod([1])),
        case("reduce_prod/empty", &[x(&[2, 0])], |x| x[0].prod([1])),
        case("reduce_max", &[distinct(&[3, 4])], |x| x[0].max([1])).dtypes(&floats),
        case("reduce_max/all", &[distinct(&[3, 4])], |x| x[0].max(..)),
        case("reduce_min", &[distinct(&[3, 4])], |x| x[0].min([0])).dtypes(&floats),
        case("reduce_min/two axes", &[distinct(&[3, 2, 2])], |x| x[0].min([0, 2])),
        case("reduce_and", &[In::Bool(vec![3, 2])], |x| x[0].all([1])).flat(),
        case("reduce_or", &[In::Bool(vec![3, 2])], |x| x[0].any([0])).flat(),
        cases_of("reduce_or/empty", &[In::Value(Literal::new([0], &[] as &[bool]))], |x| {
            vec![x[0].any([0]), x[0].all([0])]
        })
        .flat(),
        cases_of("reduce_and/bits", &[In::Int(DType::U32, vec![3, 2], 0, 0xffff_ffff)], |x| {
            vec![x[0].reduce_and([1]), x[0].reduce_or([0])]
        })
        .flat(),
        cases_of("reduce_or/numbers", &[int(&[3, 2], -1, 1), with_nan(&[3, 7])], |x| {
            vec![x[0].all([1]), x[0].any([0]), x[1].all([0]), x[1].any(..), (x[1] * 0.0).any([0])]
        })
        .flat(),
        cases_of("argmax", &[x(&[3, 4])], |x| vec![x[0].argmax(0), x[0].argmax(1)])
            .dtypes(&floats)
            .flat(),
        cases_of("argmin", &[x(&[3, 4])], |x| vec![x[0].argmin(0), x[0].argmin(1)])
            .dtypes(&floats)
            .flat(),
        cases_of("argmax/ties", &[ties(&[4, 5])], |x| {
            vec![x[0].argmax(0), x[0].argmin(1), x[0].argmax(1), x[0].argmin(0)]
        })
        .flat(),
        cases_of("argmax/u8", &[In::Int(DType::U8, vec![4, 5], 0, 255)], |x| {
            vec![x[0].argmax(0), x[0].argmin(1)]
        })
        .flat(),
        cases_of("argmax/special", &[with_nan(&[3, 7])], |x| {
            vec![x[0].argmax(1), x[0].argmin(1), x[0].argmax(0), x[0].argmin(0)]
        })
        .flat(),
        cases_of("reduce_max/special", &[with_nan(&[3, 7])], |x| {
            let x = x[0];
            vec![x.max([1]), x.min([1]), x.max([0]), x.sum([0]), x.prod([1]), x.min(..)]
        })
        .flat(),
        cases_of("reduce_max/empty", &[x(&[2, 0])], |x| {
            vec![x[0].max([1]), x[0].min([1]), x[0].mean([1])]
        })
        .flat(),
        case("sort", &[distinct(&[2, 5])], |x| x[0].sort(1)).dtypes(&floats),
        case("sort/first axis", &[distinct(&[4, 2])], |x| x[0].sort(0)),
        cases_of("sort/by", &[distinct(&[2, 4]), x(&[2, 4]), int(&[2, 4], 0, 9)], |x| {
            let (keys, others) = sort_by(x[0], &[x[1].sin(), x[2]], 1);
            vec![keys, others[0], others[1]]
        }),
        cases_of("sort/int keys", &[int(&[6], -1, 1), x(&[6])], |x| {
            // Equal keys: the order of what follows them is that before.
            let (keys, others) = sort_by(x[0], &[x[1] * x[1]], 0);
            vec![keys, others[0]]
        }),
        cases_of("sort/special", &[with_nan(&[2, 9])], |x| {
            vec![x[0].sort(1), x[0].argsort(1), x[0].argsort(0)]
        })
        .flat(),
        cases_of("sort/stable", &[ties(&[3, 6])], |x| {
            vec![x[0].sort(1), x[0].argsort(1), x[0].argsort(0)]
        })
        .flat(),
        case("sort/bool", &[In::Bool(vec![7])], |x| x[0].sort(0)).flat(),
        case("sort/u8", &[In::Int(DType::U8, vec![7], 0, 255)], |x| x[0].sort(0)).flat(),
        case("sort/i64", &[In::Int(DType::I64, vec![7], -9, 9)], |x| x[0].sort(-1)).flat(),
        case("reduce_sum/mean", &[x(&[2, 3])], |x| x[0].sin().mean([0])),
        case("reduce_sum/var", &[x(&[2, 5])], |x| x[0].var([1])),
        case("reduce_sum/std", &[x(&[2, 5])], |x| x[0].std([1])),
        case("reduce_sum/norm", &[within(&[4], 0.5, 1.5)], |x| x[0].norm()),
        case("reduce_max/logsumexp", &[distinct(&[2, 4])], |x| x[0].logsumexp([1])),
        case("reduce_max/softmax", &[distinct(&[2, 4])], |x| x[0].softmax(1)),
        case("reduce_max/log_softmax", &[distinct(&[2, 4])], |x| x[0].log_softmax(0)),
        case("concat/cumsum", &[x(&[2, 5])], |x| x[0].sin().cumsum(1)),
        case("concat/cumsum i32", &[int(&[2, 5], -9, 9)], |x| x[0].cumsum(1)).flat(),
    ];
    for dtype in [DType::I8, DType::I32, DType::U8, DType::U32, DType::I64, DType::U64] {
        let span = if dtype.is_unsigned() { (0, 200) } else { (-100, 100) };
        let args = [In::Int(dtype, vec![3, 4], span.0, span.1)];
        cases.push(
            cases_of(format!("reduce_sum/{dtype}"), &args, |x| {
                let x = x[0];
                vec![
                    x.sum([0]),
                    x.prod([1]),
                    x.max([0]),
                    x.min([1]),
                    x.reduce_and([0]),
                    x.reduce_or([1]),
                ]
            })
            .flat(),
        );
        let empty = In::Value(super::ints(dtype, &[0, 2].into(), &[]));
        cases.push(
            cases_of(format!("reduce_max/empty {dtype}"), &[empty], |x| {
                let x = x[0];
                vec![
                    x.sum([0]),
                    x.prod([0]),
                    x.max([0]),
                    x.min([0]),
                    x.reduce_and([0]),
                    x.reduce_or([0]),
                ]
            })
            .flat(),
        );
    }
    cases
}
