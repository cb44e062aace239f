//! Activations, special functions, comparisons and bits.

use podracer::trace::numpy::{self, BitOrder, Closeness};
use podracer::trace::ops::{constant, ones_like};
use podracer::{DType, Tensor, grad, jvp};

use super::Function;

pub const FUNCTIONS: &[Function] = &[
    ("isclose", |x| {
        let nan = Closeness { equal_nan: true, ..Closeness::default() };
        let plain = Closeness::default();
        vec![
            x[0].isclose(x[1], plain),
            x[0].isclose(x[1], nan),
            x[0].allclose(x[1], plain),
            x[0].allclose(x[0], nan),
        ]
    }),
    ("array_equal", |x| {
        let first = x[0].slice_axis(0, 0, 1);
        let rows = first * constant([[1.0f32], [1.0], [1.0]]);
        vec![
            numpy::array_equal(x[0], x[0]),
            numpy::array_equal(x[0], x[1]),
            numpy::array_equiv(first, rows),
        ]
    }),
    ("nan_to_num", |x| vec![x[0].nan_to_num(0.25)]),
    ("is_infinite", |x| vec![x[0].is_posinf(), x[0].is_neginf(), x[0].signbit()]),
    ("copysign", |x| vec![x[0].copysign(x[1])]),
    ("nextafter", |x| vec![x[0].nextafter(x[1])]),
    ("fmax", |x| vec![x[0].fmax(x[1]), x[0].fmin(x[1])]),
    ("divmod", |x| {
        let (quotient, remainder) = x[0].divmod(x[1]);
        vec![quotient, remainder, x[0] % x[1], (x[0] * x[0]).pow(x[1])]
    }),
    ("modf", |x| {
        let (fraction, whole) = x[0].modf();
        vec![fraction, whole]
    }),
    ("frexp", |x| {
        let (mantissa, exponent) = x[0].frexp();
        vec![mantissa, exponent]
    }),
    ("ldexp", |x| vec![x[0].ldexp(x[1])]),
    ("heaviside", |x| vec![x[0].heaviside(0.25)]),
    ("sinc", |x| {
        let slope = grad(|x: Tensor| x.sinc().sum(..));
        vec![x[0].sinc(), jvp(slope, x[0], ones_like(x[0])).1]
    }),
    ("degrees", |x| vec![x[0].deg2rad(), x[0].rad2deg(), x[0].deg2rad(), x[0].rad2deg()]),
    ("gcd", |x| vec![x[0].gcd(x[1]), x[0].lcm(x[1])]),
    ("logaddexp2", |x| vec![numpy::logaddexp2(x[0], x[1])]),
    ("population_count", |x| {
        vec![
            x[0].population_count(),
            x[1].population_count(),
            x[0].bitwise_count(),
            x[0].clz(),
            x[1].clz(),
        ]
    }),
    ("packbits", |x| vec![x[0].packbits(1, BitOrder::Big), x[0].packbits(0, BitOrder::Little)]),
    ("unpackbits", |x| {
        vec![x[0].unpackbits(1, BitOrder::Big), x[0].unpackbits(0, BitOrder::Little)]
    }),
    ("reduce_xor", |x| vec![x[0].reduce_xor(0), x[0].reduce_xor(1)]),
    ("logical", |x| vec![x[0] & x[1], x[0] | x[1], x[0] ^ x[1], !x[0]]),
    ("bitwise", |x| {
        let (x, y) = (x[0], x[1]);
        vec![x & y, x | y, x ^ y, !x, x << y, x >> y, x.shift_right_logical(y)]
    }),
    ("celu", |x| vec![x[0].celu(1.5)]),
    ("selu", |x| vec![x[0].selu()]),
    ("gelu_exact", |x| vec![x[0].gelu_exact()]),
    ("relu6", |x| vec![x[0].relu6()]),
    ("hard_sigmoid", |x| vec![x[0].hard_sigmoid()]),
    ("hard_silu", |x| vec![x[0].hard_silu()]),
    ("hard_tanh", |x| vec![x[0].hard_tanh()]),
    ("soft_sign", |x| vec![x[0].soft_sign()]),
    ("mish", |x| vec![x[0].mish()]),
    ("squareplus", |x| vec![x[0].squareplus(4.0)]),
    ("sparse_plus", |x| vec![x[0].sparse_plus()]),
    ("sparse_sigmoid", |x| vec![x[0].sparse_sigmoid()]),
    ("glu", |x| vec![x[0].glu(-1), x[0].glu(0)]),
    ("log1mexp", |x| vec![x[0].log1mexp()]),
    ("logmeanexp", |x| vec![x[0].logmeanexp(..), x[0].logmeanexp(1)]),
    ("standardize", |x| vec![x[0].standardize(-1, 1e-5), x[0].standardize(0, 1e-2)]),
    ("gammainc", |x| vec![numpy::gammainc(x[0], x[1])]),
    ("gammaincc", |x| vec![numpy::gammaincc(x[0], x[1])]),
    ("gammainc_gradients", |x| vec![numpy::gammainc(x[0], x[1]), numpy::gammaincc(x[0], x[1])]),
    ("igamma_grad_a", |x| {
        vec![numpy::igamma_grad_a(x[0], x[1]), numpy::random_gamma_grad(x[0], x[1])]
    }),
    ("betainc", |x| vec![numpy::betainc(x[0], x[1], x[2])]),
    ("betainc_x", |x| {
        let (a, b) = (constant([0.5f32, 2.0, 3.0, 10.0]), constant([0.5f32, 3.0, 1.0, 4.0]));
        vec![numpy::betainc(a, b, x[0])]
    }),
    ("zeta", |x| vec![numpy::zeta(x[0], x[1])]),
    ("logit", |x| vec![numpy::logit(x[0]), x[0].sigmoid()]),
    ("xlogy", |x| vec![numpy::xlogy(x[0], x[1]), numpy::xlog1py(x[0], x[1])]),
    ("entr", |x| vec![numpy::entr(x[0])]),
    ("entr_edges", |x| vec![numpy::entr(x[0])]),
    ("rel_entr", |x| vec![numpy::rel_entr(x[0], x[1]), numpy::kl_div(x[0], x[1])]),
    ("rel_entr_edges", |x| vec![numpy::rel_entr(x[0], x[1]), numpy::kl_div(x[0], x[1])]),
    ("ndtr", |x| vec![numpy::ndtr(x[0])]),
    ("log_ndtr", |x| vec![numpy::log_ndtr(x[0])]),
    ("ndtri", |x| vec![numpy::ndtri(x[0])]),
    ("ndtri_ends", |x| vec![numpy::ndtri(x[0])]),
    ("boxcox", |x| vec![numpy::boxcox(x[0], x[1]), numpy::boxcox1p(x[0], x[1])]),
    ("erfcx", |x| vec![numpy::erfcx(x[0])]),
    ("dawsn", |x| vec![numpy::dawsn(x[0])]),
    ("gamma", |x| vec![numpy::gamma(x[0])]),
    ("gammasgn", |x| vec![numpy::gammasgn(x[0])]),
    ("factorial", |x| vec![numpy::factorial(x[0])]),
    ("comb", |x| vec![numpy::comb(x[0], x[1])]),
    ("beta", |x| vec![numpy::beta(x[0], x[1])]),
    ("poch", |x| vec![numpy::poch(x[0], x[1])]),
    ("multigammaln", |x| vec![numpy::multigammaln(x[0], 3)]),
    ("i0", |x| vec![numpy::i0(x[0]), numpy::i1(x[0]), numpy::i0(x[0])]),
    ("expn", |x| {
        let orders = [1, 2, 5].map(|n| numpy::expn(n, x[0]));
        [&orders[..], &[numpy::exp1(x[0])]].concat()
    }),
    ("expi", |x| vec![numpy::expi(x[0])]),
    ("spence", |x| vec![numpy::spence(x[0])]),
    ("sici", |x| {
        let (si, ci) = numpy::sici(x[0]);
        vec![si, ci]
    }),
    ("fresnel", |x| {
        let (s, c) = numpy::fresnel(x[0]);
        vec![s, c]
    }),
    ("owens_t", |x| vec![numpy::owens_t(x[0], x[1])]),
    ("hyp1f1", |x| vec![numpy::hyp1f1(x[0], x[1], x[2])]),
    ("hyp2f1", |x| vec![numpy::hyp2f1(x[0], x[1], x[2], x[3])]),
    ("bessel_jn", |x| vec![numpy::bessel_jn(x[0], 3, 50)]),
    ("bernoulli_numbers", |_| vec![numpy::bernoulli(12, DType::F32)]),
];
