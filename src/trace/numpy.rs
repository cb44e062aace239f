//! Functions composed of [`ops`](super::ops), control flow and transformations: the rest of NumPy's
//! and JAX's functions. No transformation uses them.
//!
//! Most are methods of [`Tensor`](super::Tensor). Shapes broadcast and axes count as in
//! [`ops`](super::ops).

mod activations;
mod bits;
mod complex;
mod cumulative;
mod determinant;
mod eigen;
mod einsum;
mod elementary;
mod faddeeva;
mod fft;
mod filters;
mod frequencies;
mod hypergeometric;
mod incomplete;
mod indexing;
mod integrals;
mod linalg;
mod logic;
mod matrices;
mod nan;
mod nonsymmetric;
mod polynomial;
mod probability;
mod qr;
mod quadrature;
mod ragged;
mod sets;
mod signal;
mod sorting;
mod special;
mod spherical;
mod stacking;
mod statistics;
mod window;

pub use bits::BitOrder;
pub use determinant::{det, slogdet};
pub use eigen::{eigh, eigvalsh, lstsq, matrix_rank, pinv, svd, svdvals};
pub use einsum::{einsum, tensordot};
pub use faddeeva::wofz;
pub use fft::{
    FftNorm, fft, fft2, fftn, hfft, ifft, ifft2, ifftn, ihfft, irfft, irfft2, irfftn, rfft, rfft2,
    rfftn,
};
pub use filters::{bartlett, blackman, geomspace, hamming, hanning, kaiser, logspace};
pub use frequencies::{fftfreq, rfftfreq};
pub use hypergeometric::{bessel_jn, hyp1f1, hyp2f1};
pub use incomplete::{betainc, gammainc, gammaincc, igamma_grad_a, random_gamma_grad, zeta};
pub use indexing::{
    Indexing, Piece, choose, diag_indices, fromfunction, indices, ix_, meshgrid, piecewise,
    ravel_multi_index, select, tri, tril_indices, triu_indices, unravel_index,
};
pub use integrals::{bernoulli, exp1, expi, expn, spence};
pub use linalg::{cho_solve, inv, lu, solve};
pub use logic::{Closeness, array_equal, array_equiv, logaddexp2};
pub use matrices::{
    MatrixNorm, cond, kron, matrix_norm, matrix_power, matvec, multi_dot, tensorinv, tensorsolve,
    vecdot, vecmat,
};
pub use nonsymmetric::{eig, eigvals};
pub use polynomial::{
    poly, polyadd, polyder, polydiv, polyfit, polyint, polymul, polysub, polyval, roots,
};
pub use probability::{
    boxcox, boxcox1p, dawsn, entr, erfcx, kl_div, log_ndtr, logit, ndtr, ndtri, rel_entr, xlog1py,
    xlogy,
};
pub(crate) use qr::orthonormal_columns_unscaled;
pub use qr::{orthonormal_columns, qr};
pub use quadrature::{fresnel, owens_t, sici};
pub use ragged::{mulhi, ragged_dot, reduce};
pub use sets::{
    Unique, intersect1d, segment_max, segment_min, segment_prod, segment_sum, setdiff1d, setxor1d,
    union1d, unique_all,
};
pub use signal::{
    ConvolveMode, convolve, correlate, digitize, histogram, histogram_bin_edges, histogram2d,
    histogramdd, interp,
};
pub use sorting::lexsort;
pub use special::{beta, betaln, comb, factorial, gamma, gammasgn, i0, i1, multigammaln, poch};
pub use spherical::sph_harm_y;
pub use stacking::{block, broadcast_arrays, column_stack, dstack, hstack, vstack};
pub use window::WindowOptions;
pub(crate) use window::reduce_windows;
