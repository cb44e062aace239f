//! Statistics, signals, sets, polynomials and matrices.

use podracer::trace::numpy::{self, ConvolveMode, MatrixNorm};
use podracer::trace::ops::{concatenate, constant, ones_like};
use podracer::{DType, Tensor};

use super::Function;

const MODES: [ConvolveMode; 3] = [ConvolveMode::Full, ConvolveMode::Same, ConvolveMode::Valid];

fn ids() -> Tensor {
    constant([0i32, 2, 0, 5, -1])
}

fn columns(x: &[Tensor]) -> Tensor {
    let columns: Vec<Tensor> = x.iter().map(|x| x.expand_dims(1)).collect();
    concatenate(&columns, 1)
}

pub const FUNCTIONS: &[Function] = &[
    ("nanprod", |x| vec![x[0].nanprod(..), x[0].nanprod(1)]),
    ("nancum", |x| vec![x[0].nancumsum(1), x[0].nancumprod(0)]),
    ("nanvar", |x| {
        let rows = concatenate(&[x[0].slice_axis(0, 0, 1), x[0].slice_axis(0, 2, 3)], 0);
        vec![x[0].nanvar(.., 0), rows.nanvar(1, 0), rows.nanvar(1, 1), x[0].nanstd(.., 0)]
    }),
    ("nanarg", |x| vec![x[0].nanargmax(1), x[0].nanargmin(1)]),
    ("nanquantile", |x| {
        vec![x[0].nanquantile(0.3, 1), x[0].nanmedian(1), x[0].nanpercentile(75.0, 0)]
    }),
    ("percentile", |x| vec![x[0].percentile(30.0, 1)]),
    ("cov", |x| vec![x[0].cov(1), x[1].cov(1), x[0].cov(0)]),
    ("corrcoef", |x| vec![x[0].corrcoef()]),
    ("cumulative", |x| vec![x[0].cumulative_sum(1), x[0].cumulative_prod(0)]),
    ("interp", |x| vec![numpy::interp(x[0], x[1], x[2])]),
    ("histogram_bin_edges", |x| {
        vec![
            numpy::histogram_bin_edges(x[0], 4, None),
            numpy::histogram_bin_edges(x[0], 3, Some((-1.0, 2.0))),
        ]
    }),
    ("histogram", |x| {
        let edges = constant([-1.0f32, -0.5, 0.0, 0.75]);
        vec![
            numpy::histogram(x[0], edges, ones_like(x[0])),
            numpy::histogram(x[0], constant([-1.0f32, 0.0, 1.0]), x[1]),
        ]
    }),
    ("histogram2d", |x| {
        let edges = [constant([-1.0f32, 0.0, 1.0]), constant([-1.0f32, 0.5, 1.0, 2.0])];
        let points = columns(&[x[0], x[1], x[0]]);
        let weights = ones_like(x[0]).to(DType::I32);
        vec![
            numpy::histogram2d(x[0], x[1], edges, weights),
            numpy::histogramdd(points, &[edges[0]; 3], weights),
        ]
    }),
    ("digitize", |x| {
        let edges = constant([0.0f32, 1.0, 2.0]);
        [false, true].map(|right| numpy::digitize(x[0], edges, right)).to_vec()
    }),
    ("convolve", |x| {
        let pairs = [(x[0], x[1]), (x[1], x[0])];
        let each = pairs.map(|(x, y)| MODES.map(|mode| numpy::convolve(x, y, mode)));
        each.concat()
    }),
    ("correlate", |x| {
        let pairs = [(x[0], x[1]), (x[1], x[0])];
        let each = pairs.map(|(x, y)| MODES.map(|mode| numpy::correlate(x, y, mode)));
        each.concat()
    }),
    ("gradient", |x| vec![x[0].gradient(1.0, 1), x[0].gradient(0.5, 0)]),
    ("ediff1d", |x| vec![x[0].ediff1d()]),
    ("trapezoid", |x| vec![x[0].trapezoid(1.0, 1), x[0].trapezoid(0.5, 0)]),
    ("unwrap", |x| vec![x[0].unwrap(1)]),
    ("partition", |x| {
        let least = [x[0].partition(2, 1), x[0].argpartition(2, 1)];
        least.map(|x| x.slice_axis(1, 0, 2).sort(1)).to_vec()
    }),
    ("unique", |x| {
        let [six, two] = [6, 2].map(|size| numpy::unique_all(x[0], size));
        let fields = |u: numpy::Unique| [u.values, u.indices, u.inverse, u.counts];
        [&[x[0].unique(6)], &fields(six)[..], &fields(two)].concat()
    }),
    ("sets", |x| {
        vec![
            numpy::union1d(x[0], x[1], 8),
            numpy::intersect1d(x[0], x[1], 4, -1.0),
            numpy::setdiff1d(x[0], x[1], 4, -1.0),
            numpy::setxor1d(x[0], x[1], 6, -1.0),
        ]
    }),
    ("segment_sum", |x| vec![numpy::segment_sum(x[0], ids(), 4)]),
    ("segment_prod", |x| vec![numpy::segment_prod(x[0], ids(), 4)]),
    ("segment_max", |x| {
        vec![numpy::segment_max(x[0], ids(), 4), numpy::segment_min(x[0], ids(), 4)]
    }),
    ("polynomials", |x| {
        let (p, q) = (x[0], x[1]);
        vec![
            numpy::polyval(p, x[2]),
            numpy::polyadd(p, q),
            numpy::polysub(q, p),
            numpy::polymul(p, q),
            numpy::polyder(p, 1),
            numpy::polyder(p, 2),
            numpy::polyint(p, 1),
            numpy::polyint(q, 2),
            numpy::poly(q),
        ]
    }),
    ("polydiv", |x| {
        let (quotient, remainder) = numpy::polydiv(x[0], x[1]);
        vec![quotient, remainder]
    }),
    ("windows", |_| {
        let windows = [numpy::bartlett, numpy::blackman, numpy::hamming, numpy::hanning];
        let each = windows.map(|window| [1, 6].map(|n| window(n, DType::F32)));
        [&each.concat()[..], &[numpy::kaiser(6, 8.6, DType::F32)]].concat()
    }),
    ("ranges", |_| {
        vec![
            numpy::logspace(0.0, 2.0, 5, 10.0, DType::F32),
            numpy::logspace(0.0, 3.0, 4, 2.0, DType::F32),
            numpy::geomspace(1.0, 1000.0, 4, DType::F32),
            numpy::geomspace(-1.0, -16.0, 5, DType::F32),
        ]
    }),
    ("kron", |x| vec![numpy::kron(x[0], x[1]), numpy::kron(x[0].index_axis(0, 0), x[1])]),
    ("matvec", |x| {
        vec![numpy::matvec(x[0], x[1]), numpy::vecmat(x[2], x[0]), numpy::vecdot(x[0], x[1])]
    }),
    ("matrix_power", |x| [3, 0, -2].map(|n| numpy::matrix_power(x[0], n)).to_vec()),
    ("multi_dot", |x| vec![numpy::multi_dot(x)]),
    ("norms", |x| {
        let orders = [MatrixNorm::Frobenius, MatrixNorm::One, MatrixNorm::Infinity];
        let matrices = orders.map(|order| numpy::matrix_norm(x[0], order));
        let vectors = [
            x[0].vector_norm(2.0, 1),
            x[0].vector_norm(1.0, 0),
            x[0].vector_norm(f64::NEG_INFINITY, 0),
            x[0].vector_norm(0.0, 1),
        ];
        [&matrices[..], &vectors].concat()
    }),
    ("tensorinv", |x| vec![numpy::tensorinv(x[0], 1)]),
    ("tensorsolve", |x| vec![numpy::tensorsolve(x[0], x[1])]),
];
