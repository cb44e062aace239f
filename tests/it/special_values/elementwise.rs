//! Elementwise functions beside those of `tests/it/elementary`, and functions of vectors.

use podracer::trace::numpy::{self as np, BitOrder, Closeness, ConvolveMode};
use podracer::trace::ops::{constant, div, full_like, ones_like, where_};
use podracer::{DType, Literal, Tensor, losses};

use super::Function::{One, Three, Two};
use super::Row;

fn vector(values: &[f32], like: Tensor) -> Tensor {
    constant(Literal::from(values)).to(like.dtype())
}

fn equal_nan() -> Closeness {
    Closeness { equal_nan: true, ..Closeness::default() }
}

/// NaN instead of an `x` that is as huge as `y`: JAX's loop of `gammainc` does not end there in f64.
fn unequal(x: Tensor, y: Tensor) -> Tensor {
    where_(x.eq(y) & x.gt(1e30), full_like(x, f64::NAN), x)
}

/// 2 instead of infinities: JAX's loop of `hyp2f1` does not end there.
fn finite(x: Tensor) -> Tensor {
    where_(x.is_inf(), full_like(x, 2.0), x)
}

/// Functions of the vector of special values.
pub const UNARY: &[Row] = &[
    ("nan_to_num", "jnp.nan_to_num(x)", One(|x| x.nan_to_num(0.0))),
    ("is_posinf", "jnp.isposinf(x)", One(|x| x.is_posinf())),
    ("is_neginf", "jnp.isneginf(x)", One(|x| x.is_neginf())),
    ("signbit", "jnp.signbit(x)", One(|x| x.signbit())),
    ("spacing", "jnp.spacing(lax.stop_gradient(x))", One(|x| x.spacing())),
    ("modf_0", "jnp.modf(x)[0]", One(|x| x.modf().0)),
    ("modf_1", "jnp.modf(x)[1]", One(|x| x.modf().1)),
    ("frexp_0", "jnp.frexp(x)[0]", One(|x| x.frexp().0)),
    ("frexp_1", "jnp.frexp(x)[1]", One(|x| x.frexp().1)),
    ("ldexp_3", "jnp.ldexp(x, jnp.int32(3))", One(|x| x.ldexp(constant(3)))),
    ("ldexp_down", "jnp.ldexp(x, jnp.int32(-130))", One(|x| x.ldexp(constant(-130)))),
    ("sinc", "jnp.sinc(x)", One(|x| x.sinc())),
    ("deg2rad", "jnp.deg2rad(x)", One(|x| x.deg2rad())),
    ("rad2deg", "jnp.rad2deg(x)", One(|x| x.rad2deg())),
    ("angle", "jnp.angle(x)", One(|x| x.angle())),
    ("real", "jnp.real(x)", One(|x| x.real())),
    ("conj", "jnp.conj(x)", One(|x| x.conj())),
    ("to_i32", "x.astype(jnp.int32)", One(|x| x.to(DType::I32))),
    ("to_u8", "x.astype(jnp.uint8)", One(|x| x.to(DType::U8))),
    ("to_bool", "x.astype(bool)", One(|x| x.to(DType::Bool))),
    ("to_f16", "x.astype(jnp.float16)", One(|x| x.to(DType::F16))),
    ("to_bf16", "x.astype(jnp.bfloat16)", One(|x| x.to(DType::BF16))),
    ("to_f32", "x.astype(jnp.float32)", One(|x| x.to(DType::F32))),
    // Activations.
    ("celu", "nn.celu(x)", One(|x| x.celu(1.0))),
    ("selu", "nn.selu(x)", One(|x| x.selu())),
    ("gelu_exact", "nn.gelu(x, approximate=False)", One(|x| x.gelu_exact())),
    ("relu6", "nn.relu6(x)", One(|x| x.relu6())),
    ("hard_sigmoid", "nn.hard_sigmoid(x)", One(|x| x.hard_sigmoid())),
    ("hard_silu", "nn.hard_silu(x)", One(|x| x.hard_silu())),
    ("hard_tanh", "nn.hard_tanh(x)", One(|x| x.hard_tanh())),
    ("soft_sign", "nn.soft_sign(x)", One(|x| x.soft_sign())),
    ("mish", "nn.mish(x)", One(|x| x.mish())),
    ("squareplus", "nn.squareplus(x)", One(|x| x.squareplus(4.0))),
    ("sparse_plus", "nn.sparse_plus(x)", One(|x| x.sparse_plus())),
    ("sparse_sigmoid", "nn.sparse_sigmoid(x)", One(|x| x.sparse_sigmoid())),
    ("log1mexp", "nn.log1mexp(x)", One(|x| x.log1mexp())),
    // jax.scipy.special.
    ("logit", "special.logit(x)", One(np::logit)),
    ("entr", "special.entr(x)", One(np::entr)),
    ("ndtr", "special.ndtr(x)", One(np::ndtr)),
    ("log_ndtr", "special.log_ndtr(x)", One(np::log_ndtr)),
    ("ndtri", "special.ndtri(x)", One(np::ndtri)),
    ("erfcx", "special.erfcx(x)", One(np::erfcx)),
    ("dawsn", "special.dawsn(x)", One(np::dawsn)),
    ("gammasgn", "special.gammasgn(x)", One(np::gammasgn)),
    ("gamma", "special.gamma(x)", One(np::gamma)),
    ("factorial", "special.factorial(x)", One(np::factorial)),
    ("multigammaln", "special.multigammaln(x, 2)", One(|x| np::multigammaln(x, 2))),
    ("i0", "special.i0(x)", One(np::i0)),
    ("i1", "special.i1(x)", One(np::i1)),
    ("expn_1", "lax.map(lambda a: special.expn(1, a), x)", One(|x| np::expn(1, x))),
    ("expn_3", "lax.map(lambda a: special.expn(3, a), x)", One(|x| np::expn(3, x))),
    ("exp1", "lax.map(special.exp1, x)", One(np::exp1)),
    ("expi", "lax.map(special.expi, x)", One(np::expi)),
    ("spence", "special.spence(x)", One(np::spence)),
    ("sici_0", "special.sici(x)[0]", One(|x| np::sici(x).0)),
    ("sici_1", "special.sici(x)[1]", One(|x| np::sici(x).1)),
    ("fresnel_0", "special.fresnel(x)[0]", One(|x| np::fresnel(x).0)),
    ("fresnel_1", "special.fresnel(x)[1]", One(|x| np::fresnel(x).1)),
    ("log_cosh", "optax.losses.log_cosh(x)", One(|x| losses::log_cosh(x, 0.0))),
    ("l2_loss", "optax.losses.l2_loss(x)", One(|x| losses::l2_loss(x, 0.0))),
    ("huber_loss", "optax.losses.huber_loss(x)", One(|x| losses::huber_loss(x, 0.0, 1.0))),
    ("iscomplex", "jnp.iscomplex(x)", One(|x| x.iscomplex())),
    ("isreal", "jnp.isreal(x)", One(|x| x.isreal())),
    (
        "bessel_jn",
        "jnp.moveaxis(special.bessel_jn(x, v=2, n_iter=20), 0, -1)",
        One(|x| np::bessel_jn(x, 2, 20).moveaxis(0, -1)),
    ),
];

/// Functions of the vector as a whole, without denormal numbers.
pub const VECTOR: &[Row] = &[
    ("sort_all", "jnp.sort(x)", One(|x| x.sort(0))),
    ("argsort_all", "jnp.argsort(x)", One(|x| x.argsort(0))),
    ("unique", "jnp.unique(x, size=12)", One(|x| x.unique(12))),
    ("isin", "jnp.isin(x, x[::3])", One(|x| x.isin(x.strided_slice(&[0], &[x.dim(0)], &[3])))),
    (
        "digitize",
        "jnp.digitize(x, jnp.array([-1, 0, 1], x.dtype))",
        One(|x| np::digitize(x, vector(&[-1.0, 0.0, 1.0], x), false)),
    ),
    (
        "searchsorted",
        "jnp.searchsorted(jnp.array([-1, 0, 1, jnp.nan], x.dtype), x)",
        One(|x| vector(&[-1.0, 0.0, 1.0, f32::NAN], x).searchsorted(x, false)),
    ),
    (
        "interp",
        "jnp.interp(x, jnp.array([-1, 0, 2], x.dtype), jnp.array([1, 3, 2], x.dtype))",
        One(|x| np::interp(x, vector(&[-1.0, 0.0, 2.0], x), vector(&[1.0, 3.0, 2.0], x))),
    ),
    (
        "histogram",
        "jnp.histogram(x, jnp.array([-1, 0, 1], x.dtype))[0]",
        One(|x| np::histogram(x, vector(&[-1.0, 0.0, 1.0], x), ones_like(x))),
    ),
    (
        "convolve",
        "jnp.convolve(x, jnp.array([1, 0, 2], x.dtype))",
        One(|x| np::convolve(x, vector(&[1.0, 0.0, 2.0], x), ConvolveMode::Full)),
    ),
    (
        "polyval",
        "jnp.polyval(jnp.array([1, 0, 2], x.dtype), x)",
        One(|x| np::polyval(vector(&[1.0, 0.0, 2.0], x), x)),
    ),
    ("vander", "jnp.vander(x, 4)", One(|x| x.vander(4))),
    ("gradient", "jnp.gradient(x)", One(|x| x.gradient(1.0, 0))),
    ("ediff1d", "jnp.ediff1d(x)", One(|x| x.ediff1d())),
    ("count_nonzero_all", "jnp.count_nonzero(x)", One(|x| x.count_nonzero(..))),
    ("flatnonzero", "jnp.flatnonzero(x, size=20, fill_value=-1)", One(|x| x.flatnonzero(20, -1))),
];

/// Functions of all pairs of special values.
pub const BINARY: &[Row] = &[
    ("xlogy", "special.xlogy(x, y)", Two(np::xlogy)),
    ("xlog1py", "special.xlog1py(x, y)", Two(np::xlog1py)),
    ("rel_entr", "special.rel_entr(x, y)", Two(np::rel_entr)),
    ("kl_div", "special.kl_div(x, y)", Two(np::kl_div)),
    ("boxcox", "special.boxcox(x, y)", Two(np::boxcox)),
    ("boxcox_near_0", "special.boxcox(x, y * 0.05)", Two(|x, y| np::boxcox(x, y * 0.05))),
    ("boxcox1p", "special.boxcox1p(x, y)", Two(np::boxcox1p)),
    ("isclose", "jnp.isclose(x, y)", Two(|x, y| x.isclose(y, Closeness::default()))),
    ("isclose_nan", "jnp.isclose(x, y, equal_nan=True)", Two(|x, y| x.isclose(y, equal_nan()))),
    ("array_equal", "jnp.array_equal(x, y)", Two(np::array_equal)),
    ("copysign", "jnp.copysign(x, y)", Two(|x, y| x.copysign(y))),
    (
        "nextafter",
        "jnp.nextafter(lax.stop_gradient(x), lax.stop_gradient(y))",
        Two(|x, y| x.nextafter(y)),
    ),
    ("fmax", "jnp.fmax(x, y)", Two(|x, y| x.fmax(y))),
    ("fmin", "jnp.fmin(x, y)", Two(|x, y| x.fmin(y))),
    ("divmod_0", "jnp.divmod(x, y)[0]", Two(|x, y| x.divmod(y).0)),
    ("divmod_1", "jnp.divmod(x, y)[1]", Two(|x, y| x.divmod(y).1)),
    ("heaviside", "jnp.heaviside(x, y)", Two(|x, y| x.heaviside(y))),
    ("logaddexp2", "jnp.logaddexp2(x, y)", Two(np::logaddexp2)),
    ("comb", "special.comb(x, y)", Two(np::comb)),
    ("beta", "special.beta(x, y)", Two(np::beta)),
    ("poch", "special.poch(x, y)", Two(np::poch)),
    ("gammainc", "special.gammainc(unequal(x, y), y)", Two(|x, y| np::gammainc(unequal(x, y), y))),
    (
        "gammaincc",
        "special.gammaincc(unequal(x, y), y)",
        Two(|x, y| np::gammaincc(unequal(x, y), y)),
    ),
    ("zeta", "special.zeta(x, y)", Two(np::zeta)),
    ("owens_t", "special.owens_t(x, y)", Two(np::owens_t)),
    ("clip_below", "jnp.clip(x, y, 2.0)", Two(|x, y| x.clip(y, 2.0))),
    ("squared_error", "optax.losses.squared_error(x, y)", Two(|x, y| losses::squared_error(x, y))),
    (
        "sigmoid_cross_entropy",
        "optax.losses.sigmoid_binary_cross_entropy(x, y)",
        Two(losses::sigmoid_binary_cross_entropy),
    ),
    (
        "sigmoid_focal_loss",
        "optax.losses.sigmoid_focal_loss(x, y, alpha=0.5, gamma=2.0)",
        Two(|x, y| losses::sigmoid_focal_loss(x, y, Some(0.5), 2.0)),
    ),
    ("hinge_loss", "optax.losses.hinge_loss(x, y)", Two(losses::hinge_loss)),
    ("perceptron_loss", "optax.losses.perceptron_loss(x, y)", Two(losses::perceptron_loss)),
    ("sparsemax_loss", "optax.losses.sparsemax_loss(x, y)", Two(losses::sparsemax_loss)),
    ("allclose", "jnp.allclose(x, y)", Two(|x, y| x.allclose(y, Closeness::default()))),
    ("array_equiv", "jnp.array_equiv(x, y)", Two(np::array_equiv)),
    (
        "igamma_grad_a",
        "lax.igamma_grad_a(lax.stop_gradient(unequal(x, y)), lax.stop_gradient(y))",
        Two(|x, y| np::igamma_grad_a(unequal(x, y).stop_gradient(), y.stop_gradient())),
    ),
    (
        "random_gamma_grad",
        "lax.random_gamma_grad(lax.stop_gradient(unequal(x, y)), lax.stop_gradient(y))",
        Two(|x, y| np::random_gamma_grad(unequal(x, y).stop_gradient(), y.stop_gradient())),
    ),
    (
        "sph_harm_y",
        "special.sph_harm_y(jnp.full(x.shape, 2), jnp.full(x.shape, 1), x, y, n_max=2)",
        Two(|x, y| {
            let degree = ones_like(x).to(DType::I32);
            np::sph_harm_y(degree * 2, degree, x, y, 2)
        }),
    ),
];

/// Functions of all triples of fewer special values.
pub const TERNARY: &[Row] = &[
    ("clip", "jnp.clip(x, y, z)", Three(|x, y, z| x.clip(y, z))),
    ("clamp", "lax.clamp(x, y, z)", Three(|x, y, z| y.clamp(x, z))),
    ("where", "jnp.where(x > 0, y, z)", Three(|x, y, z| where_(x.gt(0.0), y, z))),
];

/// Functions of such triples without the derivatives, which JAX has by one operand only.
pub const TRIPLES_OF_VALUES: &[Row] = &[
    ("betainc", "special.betainc(x, y, z)", Three(np::betainc)),
    ("hyp1f1", "special.hyp1f1(x, y, z)", Three(np::hyp1f1)),
    (
        "hyp2f1",
        "special.hyp2f1(finite(x), finite(y), finite(z), jnp.full_like(x, 0.5))",
        Three(|x, y, z| np::hyp2f1(finite(x), finite(y), finite(z), full_like(x, 0.5))),
    ),
    (
        "hyp2f1_of_x",
        "special.hyp2f1(finite(x), jnp.full_like(x, 1.5), finite(y), z)",
        Three(|x, y, z| np::hyp2f1(finite(x), full_like(x, 1.5), finite(y), z)),
    ),
];

/// Functions of complex numbers.
pub const COMPLEX_UNARY: &[Row] = &[
    ("complex_abs", "jnp.abs(x)", One(|x| x.abs())),
    ("complex_angle", "jnp.angle(x)", One(|x| x.angle())),
    ("complex_sign", "jnp.sign(x)", One(|x| x.sign())),
    ("complex_conj", "jnp.conj(x)", One(|x| x.conj())),
    ("complex_neg", "-x", One(|x| -x)),
    ("complex_is_finite", "jnp.isfinite(x)", One(|x| x.is_finite())),
    ("complex_is_nan", "jnp.isnan(x)", One(|x| x.is_nan())),
    ("complex_exp", "jnp.exp(x)", One(|x| x.exp())),
    ("complex_expm1", "jnp.expm1(x)", One(|x| x.expm1())),
    ("complex_log", "jnp.log(x)", One(|x| x.log())),
    ("complex_log1p", "jnp.log1p(x)", One(|x| x.log1p())),
    ("complex_sqrt", "jnp.sqrt(x)", One(|x| x.sqrt())),
    ("complex_rsqrt", "lax.rsqrt(x)", One(|x| x.rsqrt())),
    ("complex_sin", "jnp.sin(x)", One(|x| x.sin())),
    ("complex_cos", "jnp.cos(x)", One(|x| x.cos())),
    ("complex_tan", "jnp.tan(x)", One(|x| x.tan())),
    ("complex_sinh", "jnp.sinh(x)", One(|x| x.sinh())),
    ("complex_cosh", "jnp.cosh(x)", One(|x| x.cosh())),
    ("complex_tanh", "jnp.tanh(x)", One(|x| x.tanh())),
    ("complex_asin", "jnp.arcsin(x)", One(|x| x.asin())),
    ("complex_acos", "jnp.arccos(x)", One(|x| x.acos())),
    ("complex_asinh", "jnp.arcsinh(x)", One(|x| x.asinh())),
    ("complex_acosh", "jnp.arccosh(x)", One(|x| x.acosh())),
    ("complex_atanh", "jnp.arctanh(x)", One(|x| x.atanh())),
    ("complex_sigmoid", "nn.sigmoid(x)", One(|x| x.sigmoid())),
    ("complex_square", "jnp.square(x)", One(|x| x.square())),
    ("complex_reciprocal", "jnp.reciprocal(x)", One(|x| x.reciprocal())),
    ("complex_iscomplex", "jnp.iscomplex(x)", One(|x| x.iscomplex())),
    ("complex_isreal", "jnp.isreal(x)", One(|x| x.isreal())),
    ("complex_wofz", "special.wofz(x)", One(np::wofz)),
    ("complex_sort", "jnp.sort_complex(x)", One(|x| x.sort_complex())),
];

/// Functions of pairs of complex numbers.
pub const COMPLEX_BINARY: &[Row] = &[
    ("complex_add", "x + y", Two(|x, y| x + y)),
    ("complex_sub", "x - y", Two(|x, y| x - y)),
    ("complex_mul", "x * y", Two(|x, y| x * y)),
    ("complex_div", "x / y", Two(|x, y| x / y)),
    ("complex_pow", "lax.pow(x, y)", Two(|x, y| x.pow(y))),
    ("complex_equal", "x == y", Two(|x, y| x.eq(y))),
];

/// Functions of integers.
pub const INT_UNARY: &[Row] = &[
    ("int_abs", "jnp.abs(x)", One(|x| x.abs())),
    ("int_sign", "jnp.sign(x)", One(|x| x.sign())),
    ("int_neg", "-x", One(|x| -x)),
    ("int_not", "~x", One(|x| !x)),
    ("int_square", "jnp.square(x)", One(|x| x.square())),
    ("int_powi", "lax.integer_pow(x, 3)", One(|x| x.powi(3))),
    ("int_population_count", "lax.population_count(x)", One(|x| x.population_count())),
    ("int_clz", "lax.clz(x)", One(|x| x.clz())),
    ("int_to_f32", "x.astype(jnp.float32)", One(|x| x.to(DType::F32))),
    ("int_to_f16", "x.astype(jnp.float16)", One(|x| x.to(DType::F16))),
    ("int_to_bool", "x.astype(bool)", One(|x| x.to(DType::Bool))),
    ("int_to_i8", "x.astype(jnp.int8)", One(|x| x.to(DType::I8))),
    ("int_to_u16", "x.astype(jnp.uint16)", One(|x| x.to(DType::U16))),
    ("int_to_i32", "x.astype(jnp.int32)", One(|x| x.to(DType::I32))),
    ("int_relu", "nn.relu(x)", One(|x| x.relu())),
    ("int_nan_to_num", "jnp.nan_to_num(x)", One(|x| x.nan_to_num(0.0))),
    ("int_clip", "jnp.clip(x, 0, 2)", One(|x| x.clip(0, 2))),
    ("int_sort", "jnp.sort(x)", One(|x| x.sort(0))),
    ("int_argsort_descending", "jnp.argsort(x, descending=True)", One(|x| x.argsort_descending(0))),
    ("int_top_k", "lax.top_k(x, 2)[0]", One(|x| x.top_k(2).0)),
    ("int_unique", "jnp.unique(x, size=5)", One(|x| x.unique(5))),
    ("int_bincount", "jnp.bincount(x, length=3)", One(|x| x.bincount(3))),
    ("int_diff", "jnp.diff(x)", One(|x| x.diff(0))),
    ("int_isin", "jnp.isin(x, x[::2])", One(|x| x.isin(x.strided_slice(&[0], &[x.dim(0)], &[2])))),
    ("int_bitwise_count", "jnp.bitwise_count(x)", One(|x| x.bitwise_count())),
    ("int_cummax_reverse", "lax.cummax(x, 0, reverse=True)", One(|x| x.cummax_reverse(0))),
    (
        "int_unpackbits",
        "jnp.unpackbits(x.astype(jnp.uint8))",
        One(|x| x.to(DType::U8).unpackbits(0, BitOrder::Big)),
    ),
    ("int_packbits", "jnp.packbits(x)", One(|x| x.packbits(0, BitOrder::Big))),
];

/// Functions of pairs of integers.
pub const INT_BINARY: &[Row] = &[
    ("int_add", "x + y", Two(|x, y| x + y)),
    ("int_sub", "x - y", Two(|x, y| x - y)),
    ("int_mul", "x * y", Two(|x, y| x * y)),
    ("int_div", "lax.div(x, y)", Two(|x, y| div(x, y))),
    ("int_rem", "lax.rem(x, y)", Two(|x, y| x % y)),
    ("int_floor_div", "x // y", Two(|x, y| x.floor_div(y))),
    ("int_modulo", "x % y", Two(|x, y| x.modulo(y))),
    ("int_maximum", "jnp.maximum(x, y)", Two(|x, y| x.maximum(y))),
    ("int_minimum", "jnp.minimum(x, y)", Two(|x, y| x.minimum(y))),
    ("int_and", "x & y", Two(|x, y| x & y)),
    ("int_or", "x | y", Two(|x, y| x | y)),
    ("int_xor", "x ^ y", Two(|x, y| x ^ y)),
    ("int_shift_left", "lax.shift_left(x, y)", Two(|x, y| x << y)),
    ("int_shift_right", "x >> y", Two(|x, y| x >> y)),
    ("int_shift_logical", "lax.shift_right_logical(x, y)", Two(|x, y| x.shift_right_logical(y))),
    ("int_equal", "x == y", Two(|x, y| x.eq(y))),
    ("int_lt", "x < y", Two(|x, y| x.lt(y))),
    ("int_ge", "x >= y", Two(|x, y| x.ge(y))),
    ("int_isclose", "jnp.isclose(x, y)", Two(|x, y| x.isclose(y, Closeness::default()))),
    // The loop of JAX does not end at the least integers.
    ("int_gcd", "jnp.gcd(x // 2, y // 2)", Two(|x, y| x.floor_div(2).gcd(y.floor_div(2)))),
    ("int_lcm", "jnp.lcm(x // 2, y // 2)", Two(|x, y| x.floor_div(2).lcm(y.floor_div(2)))),
    ("int_mulhi", "lax.mulhi(x, y)", Two(np::mulhi)),
];
