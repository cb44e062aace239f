//! Distributions and bijectors against distrax; `tests/fixtures/distrax/make.py` generates the fixture.

use super::super::*;
use crate::trace::testing::{Fixture, interpret, numbers, wave};
use crate::trace::transpose::grad;

const ROUNDING: f64 = 1e-5;

fn fixture() -> Fixture {
    Fixture::new(include_str!("../../../tests/fixtures/distrax/distrax.json"))
}

fn a() -> Tensor {
    wave([4, 3], 0.3)
}

fn b() -> Tensor {
    wave([3], 0.5)
}

fn c() -> Tensor {
    wave([4, 3], 1.1)
}

fn d() -> Tensor {
    wave([3], 2.5)
}

type Make<D> = fn(&[Tensor]) -> D;

type Parameters = fn() -> Vec<Tensor>;

/// Compares samples, densities, entropies and divergences of `make`, and their gradients.
fn check<D: ClosedForm>(
    name: &str,
    make: Make<D>,
    first: Parameters,
    second: Parameters,
    values: fn() -> Tensor,
) {
    let fixture = fixture();
    let close = |what: &str, ours: Vec<f64>| {
        fixture.close(&format!("{name}_{what}"), ours, ROUNDING);
    };
    close("sample", numbers(|| make(&first()).sample(Key::constant(42))));
    close("log_prob", numbers(|| make(&first()).log_prob(values())));
    let density = |(p, x): (Vec<Tensor>, Tensor)| make(&p).log_prob(x).sum(..);
    if numbers(values).iter().all(|x| x.fract() == 0.0) {
        let gradient = || grad(|p: Vec<Tensor>| density((p, values())))(first());
        close("log_prob_grad", numbers(gradient));
    } else {
        close("log_prob_grad", numbers(|| grad(density)((first(), values()))));
    }
    close("entropy", numbers(|| make(&first()).entropy()));
    let entropy = |p: Vec<Tensor>| make(&p).entropy().sum(..);
    close("entropy_grad", numbers(|| grad(entropy)(first())));
    close("kl", numbers(|| make(&first()).kl(&make(&second()))));
    let kl = |(p, q): (Vec<Tensor>, Vec<Tensor>)| make(&p).kl(&make(&q)).sum(..);
    close("kl_grad", numbers(|| grad(kl)((first(), second()))));
}

#[test]
fn distributions_of_numbers_are_those_of_distrax() {
    check(
        "uniform",
        |p| Uniform::new(p[0] - p[1].exp(), p[0] + p[1].exp()),
        || vec![a(), b()],
        || vec![a(), b() + 1.0],
        || a() + 0.1 * c(),
    );
    let binary = || ops::arange(12, DType::I32).reshape([4, 3]) % 3 % 2;
    check("bernoulli", |p| Bernoulli::new(3.0 * p[0]), || vec![a()], || vec![c()], binary);
    let [first, second]: [Parameters; 2] = [|| vec![a(), b()], || vec![c(), d()]];
    let beta = |p: &[Tensor]| Beta::new((2.0 * p[0]).exp(), p[1].exp());
    check("beta", beta, first, second, || c().sigmoid());
    let [first, second]: [Parameters; 2] =
        [|| vec![a(), b().broadcast_to([4, 3])], || vec![c(), d().broadcast_to([4, 3])]];
    check("gumbel", |p| Gumbel::new(p[0], p[1].exp()), first, second, || 2.0 * c());
    check("laplace", |p| Laplace::new(p[0], p[1].exp()), first, second, || 2.0 * c());
    check("log_stddev_normal", |p| LogStddevNormal::new(p[0], p[1]), first, second, || 2.0 * c());
    let independent = |p: &[Tensor]| Independent::new(Laplace::new(p[0], p[1].exp()), 1);
    check("independent", independent, first, second, || 2.0 * c());
    // A probability of 0 or 1 has a finite entropy.
    let certain = numbers(|| Bernoulli::from_probs(ops::constant([0.0f32, 1.0])).entropy());
    assert_eq!(certain, [0.0, 0.0]);
}

fn triangle(phase: f64) -> Tensor {
    wave([3, 3], phase).tril(0) + 2.0 * ops::eye(3, DType::F32)
}

#[test]
fn distributions_of_vectors_are_those_of_distrax() {
    check(
        "multivariate_normal_tri",
        |p| MultivariateNormalTri::new(p[0], p[1]),
        || vec![a(), triangle(0.5)],
        || vec![c(), triangle(1.5)],
        || 2.0 * c(),
    );
    check(
        "multivariate_normal_diag",
        |p| DiagNormal::new(p[0], p[1].exp()),
        || vec![a(), b().broadcast_to([4, 3])],
        || vec![c(), d().broadcast_to([4, 3])],
        || 2.0 * c(),
    );
    let error =
        interpret::<(), Tensor>((), |()| MultivariateNormalTri::new(a(), wave([2, 2], 0.0)).mode());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("got f32[4,3] and f32[2,2]"), "{error}");
}

#[test]
fn policies_over_preferences_are_those_of_distrax() {
    let fixture = fixture();
    let preferences = || ops::constant([[1.0f32, 2.0, 2.0, 0.0], [0.5, -1.0, 0.25, -2.0]]);
    let policies: [(&str, &dyn Fn() -> Categorical<Tensor>); 3] = [
        ("greedy", &|| Categorical::greedy(preferences())),
        ("epsilon_greedy", &|| Categorical::epsilon_greedy(preferences(), 0.3)),
        ("softmax", &|| Categorical::softmax(preferences(), 0.25)),
    ];
    for (name, policy) in policies {
        let close = |what: &str, ours: Vec<f64>| {
            fixture.close(&format!("{name}_{what}"), ours, ROUNDING);
        };
        close("probs", numbers(|| policy().probs()));
        close("entropy", numbers(|| policy().entropy()));
        fixture.same(&format!("{name}_sample"), numbers(|| policy().sample(Key::constant(42))));
        let log_prob = numbers(|| policy().log_prob(ops::constant([1i32, 3])));
        if name == "greedy" {
            assert_eq!(log_prob[1], f64::NEG_INFINITY);
        } else {
            close("log_prob", log_prob);
        }
    }
}

fn check_mixture<D: Distribution>(
    name: &str,
    make: Make<MixtureSameFamily<D>>,
    params: Parameters,
    x: fn() -> Tensor,
) {
    let fixture = fixture();
    let sample = numbers(|| make(&params()).sample(Key::constant(42)));
    fixture.close(&format!("{name}_sample"), sample, ROUNDING);
    let log_prob = numbers(|| make(&params()).log_prob(x()));
    fixture.close(&format!("{name}_log_prob"), log_prob, ROUNDING);
    let density = |(p, x): (Vec<Tensor>, Tensor)| make(&p).log_prob(x).sum(..);
    fixture.close(&format!("{name}_grad"), numbers(|| grad(density)((params(), x()))), ROUNDING);
}

#[test]
fn mixtures_are_those_of_distrax() {
    check_mixture(
        "mixture",
        |p| MixtureSameFamily::new(Categorical::new(p[0]), Normal::new(p[1], p[2].exp())),
        || vec![wave([4, 3], 0.9), a(), b().broadcast_to([4, 3])],
        || c().index_axis(1, 0),
    );
    check_mixture(
        "mixture_of_vectors",
        |p| MixtureSameFamily::new(Categorical::new(p[0]), DiagNormal::new(p[1], p[2].exp())),
        || vec![wave([4, 3], 0.9), wave([4, 3, 2], 0.2), wave([4, 3, 2], 1.2)],
        || c().slice_axis(1, 0, 2),
    );
}

fn number(x: f64) -> Tensor {
    ops::full([], x, DType::F32)
}

fn chain(shift: Tensor) -> Chain {
    let outer = ScalarAffine::new(shift, number(3.0));
    let inner = ScalarAffine::new(number(0.0), number(0.5));
    Chain(vec![Box::new(outer), Box::new(Tanh), Box::new(inner)])
}

#[test]
fn bijectors_are_those_of_distrax() {
    let fixture = fixture();
    type Case<'a> = (&'a str, &'a dyn Fn() -> Box<dyn Bijector>, &'a dyn Fn() -> Tensor);
    let cases: [Case; 5] = [
        ("tanh", &|| Box::new(Tanh), &|| 0.9 * c()),
        ("sigmoid", &|| Box::new(Sigmoid), &|| c().sigmoid()),
        ("affine", &|| Box::new(ScalarAffine::new(number(0.3), number(-2.0))), &c),
        ("chain", &|| Box::new(chain(number(0.2))), &c),
        ("block", &|| Box::new(Block::new(chain(number(0.2)), 1)), &c),
    ];
    for (name, bijector, y) in cases {
        let close = |what: &str, ours: Vec<f64>| {
            fixture.close(&format!("{name}_{what}"), ours, ROUNDING);
        };
        close("forward", numbers(|| bijector().forward(a())));
        close("inverse", numbers(|| bijector().inverse(y())));
        close("forward_log_det", numbers(|| bijector().forward_log_det_jacobian(a())));
        close("inverse_log_det", numbers(|| bijector().inverse_log_det_jacobian(y())));
    }
}

#[test]
fn transformed_distributions_are_those_of_distrax() {
    fn policy(p: &[Tensor]) -> Transformed<DiagNormal<Tensor>, Block<Chain>> {
        Transformed::new(DiagNormal::new(p[0], p[1].exp()), Block::new(chain(p[2]), 1))
    }
    let fixture = fixture();
    let params = || vec![a(), b().broadcast_to([4, 3]), number(0.2)];
    let sample = numbers(|| policy(&params()).sample(Key::constant(42)));
    fixture.close("transformed_sample", sample, ROUNDING);
    let both = numbers(|| policy(&params()).sample_and_log_prob(Key::constant(42)));
    fixture.close("transformed_both", both, ROUNDING);
    let log_prob = numbers(|| policy(&params()).log_prob(c()));
    fixture.close("transformed_log_prob", log_prob, ROUNDING);
    let density = |(p, x): (Vec<Tensor>, Tensor)| policy(&p).log_prob(x).sum(..);
    let gradient = numbers(|| grad(density)((params(), c())));
    fixture.close("transformed_grad", gradient, ROUNDING);
    let error = interpret::<(), Tensor>((), |()| {
        Transformed::new(DiagNormal::new(a(), b()), Tanh).sample(Key::constant(0))
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("have 1 axes, and those of the bijector 0"), "{error}");
}

#[test]
fn distributions_of_positive_numbers_are_those_of_distrax() {
    let [first, second]: [Parameters; 2] =
        [|| vec![a(), b().broadcast_to([4, 3])], || vec![c(), d().broadcast_to([4, 3])]];
    check("gamma", |p| Gamma::new(p[0].exp(), p[1].exp()), first, second, || c().exp());
    let [first, second]: [Parameters; 2] = [|| vec![a()], || vec![c()]];
    check("dirichlet", |p| Dirichlet::new(p[0].exp()), first, second, || c().softmax(-1));
    let error = interpret::<(), Tensor>((), |()| Dirichlet::new(wave([1], 0.0)).mean());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("takes two classes at least, and was given f32[1]"), "{error}");
    let mode = numbers(|| Gamma::new(ops::constant([0.5f32, 3.0]), ops::constant(2f32)).mode());
    assert!(mode[0].is_nan() && mode[1] == 1.0, "{mode:?}");
}

#[test]
fn full_covariances_are_those_of_distrax() {
    check(
        "full_covariance",
        |p| MultivariateNormalTri::from_covariance(p[0], p[1].matmul(p[1].t())),
        || vec![a(), triangle(0.5)],
        || vec![c(), triangle(1.5)],
        || 2.0 * c(),
    );
}

#[test]
fn one_hot_vectors_are_those_of_distrax() {
    let classes = || ops::one_hot(ops::constant([0i32, 2, 1, 1]), 3, DType::F32);
    let make: Make<OneHotCategorical<Tensor>> = |p| OneHotCategorical::new(p[0]);
    check("one_hot", make, || vec![2.0 * a()], || vec![c()], classes);
    let sample = |x: Tensor| OneHotCategorical::new(x).sample_straight_through(Key::constant(42));
    fixture().close("straight_through", numbers(|| sample(2.0 * a())), ROUNDING);
    let gradient = numbers(|| grad(|x: Tensor| (sample(x) * c()).sum(..))(2.0 * a()));
    fixture().close("straight_through_grad", gradient, ROUNDING);
}

/// Compares samples and densities of `make`, and the gradients of the densities.
fn check_density<D: Distribution>(
    name: &str,
    make: Make<D>,
    params: Parameters,
    values: fn() -> Tensor,
) {
    let fixture = fixture();
    let close = |what: &str, ours: Vec<f64>| {
        fixture.close(&format!("{name}_{what}"), ours, ROUNDING);
    };
    close("sample", numbers(|| make(&params()).sample(Key::constant(42))));
    close("log_prob", numbers(|| make(&params()).log_prob(values())));
    let density = |(p, x): (Vec<Tensor>, Tensor)| make(&p).log_prob(x).sum(..);
    close("grad", numbers(|| grad(density)((params(), values()))));
}

#[test]
fn distributions_made_of_others_are_those_of_distrax() {
    let params: Parameters = || vec![a(), b().broadcast_to([4, 3])];
    check_density("logistic", |p| Logistic::new(p[0], p[1].exp()), params, c);
    let entropy = numbers(|| Logistic::new(a(), b().exp()).entropy());
    fixture().close("logistic_entropy", entropy, ROUNDING);
    let bounds = || (2.0 * c()).clip(-0.5, 0.75);
    let normal: Make<Clipped<Normal<Tensor>>> =
        |p| Clipped::new(Normal::new(p[0], p[1].exp()), number(-0.5), number(0.75));
    check_density("clipped_normal", normal, params, bounds);
    let logistic: Make<Clipped<Logistic<Tensor>>> =
        |p| Clipped::new(Logistic::new(p[0], p[1].exp()), number(-0.5), number(0.75));
    check_density("clipped_logistic", logistic, params, bounds);
    let integers = || (ops::arange(12, DType::F32) % 5.0 - 2.0).reshape([4, 3]);
    let logistic: Make<Quantized<Logistic<Tensor>>> =
        |p| Quantized::new(Logistic::new(3.0 * p[0], p[1].exp()), None, None);
    check_density("quantized", logistic, params, integers);
    let normal: Make<Quantized<Normal<Tensor>>> =
        |p| Quantized::new(Normal::new(3.0 * p[0], p[1].exp()), Some(-2.5), Some(2.5));
    check_density("quantized_bounds", normal, params, integers);
    check_density(
        "mixture_of_two",
        |p| {
            let second = Laplace::new(p[2], 1.0 + p[1].square());
            MixtureOfTwo::new(p[0], Normal::new(p[1], p[2].exp()), second)
        },
        || vec![number(0.3), a(), b().broadcast_to([4, 3])],
        c,
    );
    let sure = numbers(|| Deterministic::new(ops::constant([1f32, 2.0])).log_prob(number(1.0)));
    assert_eq!(sure, [0.0, f64::NEG_INFINITY]);
    let error = interpret::<(), Tensor>((), |()| {
        MixtureOfTwo::new(number(0.3), Normal::new(a(), a()), DiagNormal::new(a(), a()))
            .sample(Key::constant(0))
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("got f32[] and values of 0 and 1 axes"), "{error}");
}

#[test]
fn joint_distributions_are_those_of_distrax() {
    fn joint(
        m: Tensor,
        s: Tensor,
        w: Tensor,
    ) -> Joint<(Normal<Tensor>, Gumbel<Tensor>, Bernoulli<Tensor>)> {
        Joint((Normal::new(m, s.exp()), Gumbel::new(s, m.exp()), Bernoulli::new(w)))
    }
    let wide = |x: Tensor| x.broadcast_to([4, 3]);
    let first = || joint(a(), wide(b()), wave([4, 3], 0.9));
    let fixture = fixture();
    let sample = numbers(|| first().sample(Key::constant(42)).map(|x| x.to(DType::F32)));
    fixture.close("joint_sample", sample, ROUNDING);
    let binary = || ops::arange(12, DType::I32).reshape([4, 3]) % 3 % 2;
    let log_prob = numbers(|| first().log_prob([c(), 2.0 * c(), binary()]));
    fixture.close("joint_log_prob", log_prob, ROUNDING);
    fixture.close("joint_entropy", numbers(|| first().entropy()), ROUNDING);
    let kl = numbers(|| first().kl(&joint(c(), wide(d()), a())));
    fixture.close("joint_kl", kl, ROUNDING);
}
