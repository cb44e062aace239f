//! Every public function of `trace::ops` and `nn` that works on tensors, applied to a tensor of a
//! trace that has ended: the error must name the function.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use podracer::nn::normalize::{NormalizeReward, RunningMeanStd};
use podracer::nn::{
    BatchNorm, BatchRenorm, BatchStats, GroupNorm, InstanceNorm, LayerNorm, PReLU, RMSNorm,
    WeightNorm,
};
use podracer::trace::Axis;
use podracer::trace::numpy::{
    self, BitOrder, Closeness, ConvolveMode, FftNorm, Indexing, MatrixNorm, WindowOptions,
};
use podracer::trace::op::{
    Axes, ConvDims, DotDims, GatherDims, Precision, ReduceOp, ScatterDims, ScatterKind,
    TriangularSolveOp,
};
use podracer::trace::ops::{
    self, ConvGeneralDilated, ConvOptions, ConvTranspose, IndexMode, IndexUpdate,
};
use podracer::{Array, DType, Tensor, make_program, vmap_axis};

use super::layers::{LAYERS, batch_norm, batch_stats};

pub(super) type Function = (&'static str, fn(Tensor));

macro_rules! methods {
    ($($method:ident $(($($argument:expr),*))?),* $(,)?) => {
        &[$((stringify!($method), |x: Tensor| { let _ = x.$method($($($argument),*)?); })),*]
    };
}

/// Methods of `Tensor` without further tensors.
const METHODS: &[Function] = methods![
    all(0),
    all_keepdims(0),
    angle,
    any(0),
    any_keepdims(0),
    argmax(0),
    argmin(0),
    argpartition(1, 0),
    argsort(0),
    argsort_descending(0),
    argwhere(2, 0),
    array_split(2, 0),
    atan,
    atleast_1d,
    atleast_2d,
    atleast_3d,
    bincount(3),
    bitcast(DType::F32),
    bitwise_count,
    broadcast_in_dim([2], &[0]),
    broadcast_to([2]),
    celu(1.0),
    clamp(0.0, 1.0),
    clip(0.0, 1.0),
    clz,
    conj,
    corrcoef,
    count_nonzero(0),
    cov(1),
    cumlogsumexp(0),
    cumlogsumexp_reverse(0),
    cummax(0),
    cummax_reverse(0),
    cummin(0),
    cummin_reverse(0),
    cumprod(0),
    cumprod_reverse(0),
    cumsum(0),
    cumsum_reverse(0),
    cumulative_prod(0),
    cumulative_sum(0),
    deg2rad,
    delete(&[0], 0),
    diag,
    diag_indices_from,
    diagflat(0),
    diagonal,
    diagonal_of(0, 0, 1),
    diff(0),
    dim(0),
    divmod(2.0),
    dsplit(2),
    ediff1d,
    elu,
    exp2,
    expand_dims(0),
    fftshift(0),
    fill_diagonal(0.0),
    flatnonzero(2, 0),
    flatten_from(0),
    flip(0),
    fliplr,
    flipud,
    floor_div(2.0),
    frexp,
    gelu,
    gelu_exact,
    glu(0),
    gradient(1.0, 0),
    hard_sigmoid,
    hard_silu,
    hard_tanh,
    heaviside(0.5),
    hsplit(2),
    ifftshift(0),
    imag,
    index_axis(0, 0),
    is_finite,
    is_inf,
    is_nan,
    is_neginf,
    is_posinf,
    iscomplex,
    isreal,
    leaky_relu(0.1),
    log10,
    log1mexp,
    log2,
    log_sigmoid,
    log_softmax(0),
    logmeanexp(0),
    logsumexp(0),
    logsumexp_keepdims(0),
    matrix_transpose,
    max(0),
    max_keepdims(0),
    mean(0),
    mean_keepdims(0),
    median(0),
    min(0),
    min_keepdims(0),
    mish,
    modf,
    modulo(2.0),
    moveaxis(0, 1),
    nan_to_num(0.0),
    nanargmax(0),
    nanargmin(0),
    nancumprod(0),
    nancumsum(0),
    nanmax(0),
    nanmean(0),
    nanmedian(0),
    nanmin(0),
    nanpercentile(50.0, 0),
    nanprod(0),
    nanquantile(0.5, 0),
    nanstd(0, 0),
    nansum(0),
    nanvar(0, 0),
    nonzero(2, 0),
    norm,
    norm_along(2.0, 0),
    packbits(0, BitOrder::Big),
    pad(&[0], &[0], 0.0),
    pad_interior(&[0], &[0], &[0], 0.0),
    partition(1, 0),
    percentile(50.0, 0),
    population_count,
    pow(2.0),
    powi(2),
    prod(0),
    prod_keepdims(0),
    ptp(0),
    quantile(0.5, 0),
    rad2deg,
    ravel,
    real,
    reciprocal,
    reduce_and(0),
    reduce_or(0),
    reduce_xor(0),
    relu,
    relu6,
    repeat(2, 0),
    reshape([2]),
    resize([2]),
    roll(1, 0),
    rollaxis(1, 0),
    rot90(1, 0, 1),
    selu,
    signbit,
    silu,
    sinc,
    slice_axis(0, 0, 1),
    soft_sign,
    softmax(0),
    softplus,
    sort(0),
    sort_complex,
    sort_descending(0),
    sparse_plus,
    sparse_sigmoid,
    split(2, 0),
    split_at(&[1], 0),
    square,
    squareplus(4.0),
    squeeze(0),
    standardize(0, 1e-5),
    std(0),
    std_ddof(0, 1),
    std_keepdims(0),
    stop_gradient,
    strided_slice(&[0], &[1], &[1]),
    sum(0),
    sum_keepdims(0),
    swapaxes(0, 1),
    t,
    tile(2, 0),
    to(DType::I32),
    top_k(1),
    trace,
    trace_of(0, 0, 1),
    transpose(&[1, 0]),
    trapezoid(1.0, 0),
    tril(0),
    tril_indices_from(0),
    triu(0),
    triu_indices_from(0),
    trunc,
    unique(2),
    unpackbits(0, BitOrder::Big),
    unstack(0),
    unwrap(0),
    vander(2),
    var(0),
    var_ddof(0, 1),
    var_keepdims(0),
    vector_norm(2.0, 0),
    vsplit(2),
];

/// Functions of several tensors, and those that are no methods.
const FUNCTIONS: &[Function] = calls! {
    "allclose" => |x| x.allclose(x, Closeness::default()),
    "append" => |x| x.append(x, 0),
    "apply_along_axis" => |x| x.apply_along_axis(0, |v| v),
    "apply_over_axes" => |x| x.apply_over_axes(0, |x, axis| x.sum(axis)),
    "array_equal" => |x| numpy::array_equal(x, x),
    "array_equiv" => |x| numpy::array_equiv(x, x),
    "bessel_jn" => |x| numpy::bessel_jn(x, 2, 50),
    "beta" => |x| numpy::beta(x, x),
    "betainc" => |x| numpy::betainc(x, x, x),
    "block" => |x| numpy::block(&[&[x]]),
    "boxcox" => |x| numpy::boxcox(x, x),
    "boxcox1p" => |x| numpy::boxcox1p(x, x),
    "broadcast_arrays" => |x| numpy::broadcast_arrays(&[x]),
    "choose" => |x| numpy::choose(x, &[x]),
    "complex" => |x| ops::complex(x, x),
    "fft" => |x| numpy::fft(x, None, -1, FftNorm::Backward),
    "fft2" => |x| numpy::fft2(x, None, [-2, -1], FftNorm::Backward),
    "fftn" => |x| numpy::fftn(x, None, .., FftNorm::Backward),
    "hfft" => |x| numpy::hfft(x, None, -1, FftNorm::Backward),
    "ifft" => |x| numpy::ifft(x, None, -1, FftNorm::Backward),
    "ifft2" => |x| numpy::ifft2(x, None, [-2, -1], FftNorm::Backward),
    "ifftn" => |x| numpy::ifftn(x, None, .., FftNorm::Backward),
    "ihfft" => |x| numpy::ihfft(x, None, -1, FftNorm::Backward),
    "irfft" => |x| numpy::irfft(x, None, -1, FftNorm::Backward),
    "irfft2" => |x| numpy::irfft2(x, None, [-2, -1], FftNorm::Backward),
    "irfftn" => |x| numpy::irfftn(x, None, .., FftNorm::Backward),
    "rfft" => |x| numpy::rfft(x, None, -1, FftNorm::Backward),
    "rfft2" => |x| numpy::rfft2(x, None, [-2, -1], FftNorm::Backward),
    "rfftn" => |x| numpy::rfftn(x, None, .., FftNorm::Backward),
    "wofz" => |x| numpy::wofz(x),
    "sph_harm_y" => |x| numpy::sph_harm_y(x, x, x, x, 2),
    "column_stack" => |x| numpy::column_stack(&[x]),
    "comb" => |x| numpy::comb(x, x),
    "compress" => |x| x.compress(x, 0, 2, 0.0),
    "convolve" => |x| numpy::convolve(x, x, ConvolveMode::Full),
    "copysign" => |x| x.copysign(x),
    "correlate" => |x| numpy::correlate(x, x, ConvolveMode::Full),
    "dawsn" => |x| numpy::dawsn(x),
    "digitize" => |x| numpy::digitize(x, x, false),
    "dstack" => |x| numpy::dstack(&[x]),
    "entr" => |x| numpy::entr(x),
    "erfcx" => |x| numpy::erfcx(x),
    "exp1" => |x| numpy::exp1(x),
    "expi" => |x| numpy::expi(x),
    "expn" => |x| numpy::expn(2, x),
    "extract" => |x| x.extract(x, 2, 0.0),
    "factorial" => |x| numpy::factorial(x),
    "fmax" => |x| x.fmax(x),
    "fmin" => |x| x.fmin(x),
    "fresnel" => |x| numpy::fresnel(x),
    "gamma" => |x| numpy::gamma(x),
    "gammainc" => |x| numpy::gammainc(x, x),
    "gammaincc" => |x| numpy::gammaincc(x, x),
    "gammasgn" => |x| numpy::gammasgn(x),
    "gcd" => |x| x.gcd(x),
    "histogram" => |x| numpy::histogram(x, x, x),
    "histogram2d" => |x| numpy::histogram2d(x, x, [x, x], x),
    "histogram_bin_edges" => |x| numpy::histogram_bin_edges(x, 2, None),
    "histogramdd" => |x| numpy::histogramdd(x, &[x], x),
    "hstack" => |x| numpy::hstack(&[x]),
    "hyp1f1" => |x| numpy::hyp1f1(x, x, x),
    "hyp2f1" => |x| numpy::hyp2f1(x, x, x, x),
    "i0" => |x| numpy::i0(x),
    "i1" => |x| numpy::i1(x),
    "igamma_grad_a" => |x| numpy::igamma_grad_a(x, x),
    "insert" => |x| x.insert(0, x, 0),
    "interp" => |x| numpy::interp(x, x, x),
    "intersect1d" => |x| numpy::intersect1d(x, x, 2, 0.0),
    "isclose" => |x| x.isclose(x, Closeness::default()),
    "ix_" => |x| numpy::ix_(&[x]),
    "kl_div" => |x| numpy::kl_div(x, x),
    "kron" => |x| numpy::kron(x, x),
    "lcm" => |x| x.lcm(x),
    "ldexp" => |x| x.ldexp(x),
    "log_ndtr" => |x| numpy::log_ndtr(x),
    "logaddexp2" => |x| numpy::logaddexp2(x, x),
    "logit" => |x| numpy::logit(x),
    "cond" => |x| numpy::cond(x, MatrixNorm::Spectral),
    "eig" => |x| numpy::eig(x),
    "eigh" => |x| numpy::eigh(x),
    "eigvals" => |x| numpy::eigvals(x),
    "eigvalsh" => |x| numpy::eigvalsh(x),
    "lstsq" => |x| numpy::lstsq(x, x, None),
    "matrix_rank" => |x| numpy::matrix_rank(x, None),
    "mulhi" => |x| numpy::mulhi(x, x),
    "pinv" => |x| numpy::pinv(x, None),
    "polyfit" => |x| numpy::polyfit(x, x, 1),
    "ragged_dot" => |x| numpy::ragged_dot(x, x, x),
    "reduce" => |x| numpy::reduce(x, x, |a, b| a + b, &[0]),
    "spacing" => |x| x.spacing(),
    "svd" => |x| numpy::svd(x, true),
    "svdvals" => |x| numpy::svdvals(x),
    "matrix_norm" => |x| numpy::matrix_norm(x, MatrixNorm::One),
    "matrix_power" => |x| numpy::matrix_power(x, 2),
    "matvec" => |x| numpy::matvec(x, x),
    "meshgrid" => |x| numpy::meshgrid(&[x], Indexing::Ij),
    "multi_dot" => |x| numpy::multi_dot(&[x, x]),
    "multigammaln" => |x| numpy::multigammaln(x, 2),
    "ndtr" => |x| numpy::ndtr(x),
    "ndtri" => |x| numpy::ndtri(x),
    "nextafter" => |x| x.nextafter(x),
    "owens_t" => |x| numpy::owens_t(x, x),
    "piecewise" => |x| numpy::piecewise(x, &[], &[]),
    "place" => |x| x.place(x, x),
    "poch" => |x| numpy::poch(x, x),
    "poly" => |x| numpy::poly(x),
    "polyadd" => |x| numpy::polyadd(x, x),
    "polyder" => |x| numpy::polyder(x, 1),
    "polydiv" => |x| numpy::polydiv(x, x),
    "polyint" => |x| numpy::polyint(x, 1),
    "polymul" => |x| numpy::polymul(x, x),
    "polysub" => |x| numpy::polysub(x, x),
    "polyval" => |x| numpy::polyval(x, x),
    "put" => |x| x.put(x, x),
    "put_along_axis" => |x| x.put_along_axis(x, x, 0),
    "random_gamma_grad" => |x| numpy::random_gamma_grad(x, x),
    "ravel_multi_index" => |x| numpy::ravel_multi_index(&[x], [3]),
    "rel_entr" => |x| numpy::rel_entr(x, x),
    "segment_max" => |x| numpy::segment_max(x, x, 2),
    "segment_min" => |x| numpy::segment_min(x, x, 2),
    "segment_prod" => |x| numpy::segment_prod(x, x, 2),
    "segment_sum" => |x| numpy::segment_sum(x, x, 2),
    "select" => |x| numpy::select(&[x], &[x], x),
    "setdiff1d" => |x| numpy::setdiff1d(x, x, 2, 0.0),
    "setxor1d" => |x| numpy::setxor1d(x, x, 2, 0.0),
    "sici" => |x| numpy::sici(x),
    "spence" => |x| numpy::spence(x),
    "tensorinv" => |x| numpy::tensorinv(x, 1),
    "tensorsolve" => |x| numpy::tensorsolve(x, x),
    "union1d" => |x| numpy::union1d(x, x, 2),
    "unique_all" => |x| numpy::unique_all(x, 2),
    "unravel_index" => |x| numpy::unravel_index(x, [3]),
    "vecdot" => |x| numpy::vecdot(x, x),
    "vecmat" => |x| numpy::vecmat(x, x),
    "vstack" => |x| numpy::vstack(&[x]),
    "xlog1py" => |x| numpy::xlog1py(x, x),
    "xlogy" => |x| numpy::xlogy(x, x),
    "zeta" => |x| numpy::zeta(x, x),
    "at" => |x| x.at(&[x]),
    "average" => |x| x.average(x, 0),
    "betaln" => |x| numpy::betaln(x, x),
    "cho_solve" => |x| numpy::cho_solve(x, x),
    "cholesky" => |x| ops::cholesky(x),
    "concatenate" => |x| ops::concatenate(&[x, x], 0),
    "conv2d" => |x| ops::conv2d(x, x, &ConvOptions::default()),
    "conv_general" => |x| ops::conv_general(x, x, convolution()),
    "conv_general_dilated" => |x| ops::conv_general_dilated(x, x, &ConvGeneralDilated::default()),
    "conv_transpose" => |x| ops::conv_transpose(x, x, &ConvTranspose::default()),
    "cross" => |x| x.cross(x),
    "det" => |x| numpy::det(x),
    "div" => |x| ops::div(x, x),
    "dot_general" => |x| ops::dot_general(x, x, DotDims::default()),
    "dynamic_index" => |x| x.dynamic_index(0, x),
    "dynamic_slice" => |x| x.dynamic_slice(&[0], [1]),
    "dynamic_slice_axis" => |x| x.dynamic_slice_axis(0, x, 1),
    "dynamic_update_index" => |x| x.dynamic_update_index(0, x, x),
    "dynamic_update_slice" => |x| x.dynamic_update_slice(x, &[0]),
    "einsum" => |x| numpy::einsum("i,i->", &[x, x]),
    "full_like" => |x| ops::full_like(x, 1.0),
    "gather" => |x| ops::gather(x, x, GatherDims::default()),
    "hypot" => |x| x.hypot(x),
    "inner" => |x| x.inner(x),
    "inv" => |x| numpy::inv(x),
    "isin" => |x| x.isin(x),
    "lexsort" => |x| numpy::lexsort(&[x, x], 0),
    "logaddexp" => |x| ops::logaddexp(x, x),
    "lu" => |x| numpy::lu(x),
    "matmul" => |x| x.matmul(x),
    "matmul_with" => |x| x.matmul_with(x, Precision::High),
    "one_hot" => |x| ops::one_hot(x, 3, DType::F32),
    "ones_like" => |x| ops::ones_like(x),
    "orthonormal_columns" => |x| numpy::orthonormal_columns(x),
    "outer" => |x| x.outer(x),
    "pad_with" => |x| x.pad_with(&[0], &[0], &[0], x),
    "polygamma" => |x| ops::polygamma(1, x),
    "qr" => |x| numpy::qr(x),
    "reduce_window" => |x| x.reduce_window(ReduceOp::Sum, &WindowOptions::new(&[2])),
    "roots" => |x| numpy::roots(x),
    "scatter" => |x| ops::scatter(x, x, x, scatter()),
    "searchsorted" => |x| x.searchsorted(x, false),
    "slogdet" => |x| numpy::slogdet(x),
    "solve" => |x| numpy::solve(x, x),
    "sort_by" => |x| ops::sort_by(x, &[x], 0),
    "stack" => |x| ops::stack(&[x, x], 0),
    "take" => |x| x.take(x, 0),
    "take_along_axis" => |x| x.take_along_axis(x, 0),
    "take_along_axis_mode" => |x| x.take_along_axis_mode(x, 0, IndexMode::Clip),
    "take_mode" => |x| x.take_mode(x, 0, IndexMode::Clip),
    "tensordot" => |x| numpy::tensordot(x, x, 1),
    "triangular_solve" => |x| ops::triangular_solve(x, x, TriangularSolveOp::default()),
    "vdot" => |x| x.vdot(x),
    "where" => |x| ops::where_(x, x, x),
    "zeros_like" => |x| ops::zeros_like(x),
    "at().get" => |_| leaked_update().get(),
    "at().set" => |x| leaked_update().set(x),
    "at().add" => |x| leaked_update().add(x),
    "at().multiply" => |x| leaked_update().multiply(x),
    "at().max" => |x| leaked_update().max(x),
    "at().min" => |x| leaked_update().min(x),
};

type FunctionOverAxis = (&'static str, fn(Tensor, Axis) -> Tensor);

/// Functions over a named axis.
const COLLECTIVES: &[FunctionOverAxis] = &[
    ("psum", ops::psum),
    ("pmean", ops::pmean),
    ("pmax", ops::pmax),
    ("pmin", ops::pmin),
    ("all_gather", |x, axis| ops::all_gather(x, axis, 0)),
    ("all_gather_tiled", |x, axis| ops::all_gather_tiled(x, axis, 0)),
    ("psum_scatter", |x, axis| ops::psum_scatter(x, axis, 0)),
    ("psum_scatter_tiled", |x, axis| ops::psum_scatter_tiled(x, axis, 0)),
    ("all_to_all_tiled", |x, axis| ops::all_to_all_tiled(x, axis, 0, 0)),
    ("all_to_all", |x, axis| ops::all_to_all(x, axis, 0, 0)),
    ("ppermute", |x, axis| ops::ppermute(x, axis, &[(0, 1)])),
    ("BatchNorm::apply_over", |x, axis| batch_norm(x).apply_over(x, batch_stats(x), axis).0),
];

macro_rules! creators {
    ($($name:literal => $body:expr,)*) => {
        &[$(($name, || { let _ = $body; })),*]
    };
}

/// Functions that take no tensor, called outside of every trace.
const CREATORS: &[(&str, fn())] = creators! {
    "bartlett" => numpy::bartlett(3, DType::F32),
    "bernoulli" => numpy::bernoulli(3, DType::F32),
    "blackman" => numpy::blackman(3, DType::F32),
    "diag_indices" => numpy::diag_indices(3, 2),
    "fftfreq" => numpy::fftfreq(3, 1.0, DType::F32),
    "fromfunction" => numpy::fromfunction(|i| i[0], [2], DType::F32),
    "geomspace" => numpy::geomspace(1.0, 2.0, 3, DType::F32),
    "hamming" => numpy::hamming(3, DType::F32),
    "hanning" => numpy::hanning(3, DType::F32),
    "indices" => numpy::indices([2], DType::F32),
    "kaiser" => numpy::kaiser(3, 1.0, DType::F32),
    "logspace" => numpy::logspace(0.0, 1.0, 3, 10.0, DType::F32),
    "rfftfreq" => numpy::rfftfreq(3, 1.0, DType::F32),
    "tri" => numpy::tri(2, 2, 0, DType::F32),
    "tril_indices" => numpy::tril_indices(2, 0, 2),
    "triu_indices" => numpy::triu_indices(2, 0, 2),
    "BatchNorm::init" => BatchNorm::init(3),
    "BatchRenorm::init" => BatchRenorm::init(3),
    "BatchStats::init" => BatchStats::init(3),
    "GroupNorm::init" => GroupNorm::init(4, 2),
    "InstanceNorm::init" => InstanceNorm::init(3),
    "LayerNorm::init" => LayerNorm::init(3),
    "PReLU::init" => PReLU::init(),
    "RMSNorm::init" => RMSNorm::init(3),
    "WeightNorm::init" => WeightNorm::init(3),
    "NormalizeReward::init" => NormalizeReward::default().init([2], DType::F32),
    "RunningMeanStd::new" => RunningMeanStd::new([2], DType::F32),
    "arange" => ops::arange(3, DType::F32),
    "constant" => ops::constant(1.0f32),
    "eye" => ops::eye(3, DType::F32),
    "full" => ops::full([2], 1.0, DType::F32),
    "iota" => ops::iota([2], 0, DType::F32),
    "linspace" => ops::linspace(0.0, 1.0, 3, DType::F32),
    "ones" => ops::ones([2], DType::F32),
    "zeros" => ops::zeros([2], DType::F32),
};

/// Functions without a tensor, and without an error of their own: they make options or distributions,
/// read shapes, take the caller's name, or fail for their axis or element type only, as `tests/errors` shows.
const WITHOUT_ERRORS: &[&str] = &[
    "AttentionOptions::causal",
    "AttentionOptions::masked",
    "RNN::new",
    "RnnKind::num_states",
    "DenseGeneral::with_axis",
    "Dropout::new",
    "Encoder::hidden_units",
    "Encoder::with_compute_dtype",
    "WindowOptions::new",
    "WindowOptions::padding",
    "WindowOptions::strides",
    "axis_index",
    "axis_size",
    "broadcast_shapes",
    "default_matmul_precision",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "orthogonal",
    "torch_default",
    "truncated_normal",
    "uniform",
];

fn convolution() -> ConvDims {
    let axes = || Axes::from_slice(&[0, 1, 2]);
    ConvDims {
        lhs_spec: axes(),
        rhs_spec: axes(),
        out_spec: axes(),
        strides: Axes::from_elem(1, 1),
        padding: std::iter::once((0, 0)).collect(),
        lhs_dilation: Axes::from_elem(1, 1),
        rhs_dilation: Axes::from_elem(1, 1),
        feature_groups: 1,
        batch_groups: 1,
        precision: Precision::Default,
    }
}

fn scatter() -> ScatterDims {
    ScatterDims {
        kind: ScatterKind::Add,
        update_window_dims: Axes::new(),
        inserted_window_dims: Axes::new(),
        operand_batching_dims: Axes::new(),
        scatter_indices_batching_dims: Axes::new(),
        scatter_dims_to_operand_dims: Axes::new(),
    }
}

/// A tensor of a trace that has ended.
fn leaked() -> Tensor {
    let kept = Cell::new(None);
    let f = |x: Tensor| {
        kept.set(Some(x));
        x
    };
    make_program(f, &Array::zeros([2, 2], DType::F32)).unwrap();
    kept.get().unwrap()
}

/// Places of a tensor of a trace that has ended.
fn leaked_update() -> IndexUpdate {
    let kept = RefCell::new(None);
    let f = |x: Tensor| {
        *kept.borrow_mut() = Some(x.at(&[ops::zeros([1], DType::I32)]));
        x
    };
    make_program(f, &Array::zeros([2, 2], DType::F32)).unwrap();
    kept.into_inner().unwrap()
}

/// The first line of the error of `f` in a trace.
fn error_of(f: impl Fn()) -> String {
    let in_trace = |x: Tensor| {
        f();
        x
    };
    match make_program(in_trace, &Array::zeros([2], DType::F32)) {
        Ok(_) => "no error".into(),
        Err(error) => error.to_string().lines().next().unwrap_or_default().to_string(),
    }
}

/// The first line of the panic of `f`, which runs outside of every trace.
fn panic_of(f: fn()) -> String {
    let payload = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(()) => return "no panic".into(),
        Err(payload) => payload,
    };
    let text = payload.downcast::<String>().map_or_else(|_| "no text".into(), |text| *text);
    text.lines().next().unwrap_or_default().to_string()
}

#[test]
fn every_public_function_names_itself() {
    let x = leaked();
    let mut messages: Vec<(&str, String)> = Vec::new();
    for &(name, f) in [METHODS, FUNCTIONS, LAYERS].concat().iter() {
        messages.push((name, error_of(|| f(x))));
    }
    for &(name, f) in COLLECTIVES {
        let along_axis = || {
            let body = |axis: Axis, y: Tensor| {
                f(x, axis);
                y
            };
            vmap_axis("i", body)(ops::zeros([2], DType::F32));
        };
        messages.push((name, error_of(along_axis)));
    }
    for &(name, f) in CREATORS {
        messages.push((name, panic_of(f)));
    }
    let wrong: Vec<String> = messages
        .iter()
        .filter(|(name, text)| !text.starts_with(&format!("{name}: a tensor ")))
        .map(|(name, text)| format!("{name}: {text}"))
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), messages.len(), wrong.join("\n"));
}

/// Names of the public functions and methods in a source file, but for those that a macro defines.
fn public_functions(text: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let (mut owner, mut names) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("impl") {
            // Without the parameters of the impl and the name of a trait.
            let generic = rest.starts_with('<');
            let rest = rest.split_once("> ").filter(|_| generic).map_or(rest, |(_, rest)| rest);
            let rest = rest.rsplit(" for ").next().unwrap_or(rest);
            owner = word(rest.trim_start_matches(|c: char| !c.is_uppercase()));
        } else if line.starts_with('}') {
            owner.clear();
        }
        let Some((_, rest)) = line.split_once("pub fn ") else { continue };
        let name = word(rest);
        let is_method = line.starts_with(' ') && owner != "Tensor";
        let name = match (owner.as_str(), name.as_str()) {
            (_, "") => continue,
            ("IndexUpdate", method) => format!("at().{method}"),
            (_, "where_") => "where".into(),
            (owner, method) if is_method => format!("{owner}::{method}"),
            (_, function) => function.into(),
        };
        names.push(name);
    }
    names
}

/// A new public function fails this test until it has a case above.
#[test]
fn every_public_function_has_a_case() {
    let functions = [METHODS, FUNCTIONS, LAYERS].concat();
    let cases: BTreeSet<&str> = (functions.iter().map(|(name, _)| *name))
        .chain(COLLECTIVES.iter().map(|(name, _)| *name))
        .chain(CREATORS.iter().map(|(name, _)| *name))
        .chain(WITHOUT_ERRORS.iter().copied())
        .collect();
    let mut public = BTreeSet::new();
    for folder in ["src/trace/ops", "src/trace/numpy", "src/nn"] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.file_stem().is_some_and(|name| name != "tests") {
                public.extend(public_functions(&std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    for known in ["where", "at().add", "Dense::apply", "psum", "zeros"] {
        assert!(public.contains(known), "{known} is not among {public:?}");
    }
    let missing: Vec<&String> =
        public.iter().filter(|name| !cases.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "functions without a case: {missing:?}");
}
