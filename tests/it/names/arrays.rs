//! Joining and cutting, indices and choices.

use podracer::DType;
use podracer::Tensor;
use podracer::trace::numpy::{self, Indexing, Piece};
use podracer::trace::ops::constant;

use super::Function;

fn mask() -> Tensor {
    constant([true, false, true, true])
}

pub const FUNCTIONS: &[Function] = &[
    ("hstack", |x| vec![numpy::hstack(x)]),
    ("hstack_2d", |x| vec![numpy::hstack(x)]),
    ("vstack", |x| vec![numpy::vstack(x)]),
    ("dstack", |x| x.iter().map(|&x| numpy::dstack(&[x, x])).collect()),
    ("column_stack", |x| vec![numpy::column_stack(x)]),
    ("block", |x| vec![numpy::block(&[&[x[0], x[1]], &[x[1], x[0]]])]),
    ("broadcast_arrays", numpy::broadcast_arrays),
    ("atleast", |x| vec![x[0].atleast_1d(), x[1].atleast_2d(), x[1].atleast_3d()]),
    ("append", |x| vec![x[0].append(x[1], 1)]),
    ("split_at", |x| x[0].split_at(&[1, 3], 1)),
    ("hsplit", |x| x[0].hsplit(2)),
    ("vsplit", |x| x[0].vsplit(3)),
    ("dsplit", |x| x[0].dsplit(2)),
    ("unstack", |x| x[0].unstack(1)),
    ("flips", |x| vec![x[0].fliplr(), x[0].flipud(), x[0].matrix_transpose()]),
    ("rollaxis", |x| vec![x[0].rollaxis(2, 0), x[0].rollaxis(0, 2), x[0].rollaxis(-1, 1)]),
    ("insert", |x| vec![x[0].insert(2, x[1], 1)]),
    ("delete", |x| vec![x[0].delete(&[0, 2], 1)]),
    ("resize", |x| vec![x[0].resize([3, 5]), x[0].resize([2])]),
    ("diagflat", |x| vec![x[0].diagflat(0), x[0].diagflat(1), x[0].diagflat(-2)]),
    ("vander", |x| vec![x[0].vander(4)]),
    ("fft_order", |x| {
        vec![
            x[0].fftshift(..),
            x[0].ifftshift(1),
            numpy::fftfreq(5, 0.5, DType::F32),
            numpy::fftfreq(4, 1.0, DType::F32),
            numpy::rfftfreq(5, 1.0, DType::F32),
            numpy::rfftfreq(4, 0.5, DType::F32),
        ]
    }),
    ("slices", |x| vec![x[0].split_at(&[1], 1)[1], x[0].flatten_from(0)]),
    ("meshgrid", |x| {
        let mut grids = numpy::meshgrid(&x[..2], Indexing::Xy);
        grids.extend(numpy::meshgrid(x, Indexing::Ij));
        grids
    }),
    ("indices", |_| vec![numpy::indices([2, 3], DType::I32)]),
    ("ix_", numpy::ix_),
    ("tril_indices", |x| {
        let lists = [
            numpy::tril_indices(3, 0, 3),
            numpy::tril_indices(3, -1, 4),
            x[0].tril_indices_from(1),
        ];
        lists.concat()
    }),
    ("triu_indices", |x| {
        let lists = [
            numpy::triu_indices(3, 0, 3),
            numpy::triu_indices(3, 1, 4),
            x[0].triu_indices_from(-1),
        ];
        lists.concat()
    }),
    ("diag_indices", |x| [numpy::diag_indices(3, 2), x[0].diag_indices_from()].concat()),
    ("unravel_index", |x| numpy::unravel_index(x[0], [3, 4])),
    ("ravel_multi_index", |x| vec![numpy::ravel_multi_index(x, [3, 4])]),
    ("select", |x| {
        let x = x[0];
        vec![numpy::select(&[x.lt(-0.5), x.lt(0.5)], &[x * 2.0, x * x], 7.0)]
    }),
    ("choose", |x| vec![numpy::choose(x[0], &[x[1], x[2], x[1] * x[2]])]),
    ("piecewise", |x| {
        let x = x[0];
        let pieces: [Piece<'_>; 3] = [&|x| x * 2.0, &|x| x * x, &|x| -x];
        let one: [Piece<'_>; 1] = [&|x| x * 3.0];
        vec![
            numpy::piecewise(x, &[x.lt(-0.5), x.gt(0.5)], &pieces),
            numpy::piecewise(x, &[x.lt(0.0)], &one),
        ]
    }),
    ("tri", |_| vec![numpy::tri(3, 3, 0, DType::F32), numpy::tri(2, 4, 1, DType::F32)]),
    ("fromfunction", |_| vec![numpy::fromfunction(|i| i[0] * 2 + i[1], [2, 3], DType::I32)]),
    ("put_along_axis", |x| vec![x[0].put_along_axis(x[1], x[2], 1)]),
    ("put", |x| vec![x[0].put(constant([0i32, 5, -1]), x[1])]),
    ("place", |x| vec![x[0].place(x[0].gt(0.0), x[1])]),
    ("flatnonzero", |x| vec![x[0].gt(0.0).flatnonzero(9, -1)]),
    ("argwhere", |x| vec![x[0].gt(0.0).argwhere(9, -1)]),
    ("compress", |x| vec![x[0].compress(mask(), 1, 3, 9.0)]),
    ("extract", |x| vec![x[0].extract(x[0].gt(0.0), 9, 5.0)]),
    ("fill_diagonal", |x| vec![x[0].fill_diagonal(3.0)]),
    ("apply_along_axis", |x| {
        vec![x[0].apply_along_axis(1, |v| v * v.sum(..)), x[0].apply_along_axis(1, |v| v.outer(v))]
    }),
    ("apply_over_axes", |x| vec![x[0].apply_over_axes([0, 2], |x, axis| x.sum(axis))]),
];
