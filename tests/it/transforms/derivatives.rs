//! Derivatives of derivatives, and of single operations.

use podracer::trace::jacobian::{hessian, hvp, jacfwd, jacrev};
use podracer::trace::ops::{
    ConvOptions, Padding, arange, concatenate, constant, conv2d, eye, logaddexp, ones, where_,
};
use podracer::{DType, Tensor, grad, jvp, linearize, value_and_grad, vjp, vmap};

use super::Function;

type Two = (Tensor, Tensor);
type Three = (Tensor, Tensor, Tensor);

const F32: DType = DType::F32;

/// The derivative of a function of a scalar, forwards.
fn d(f: impl Fn(Tensor) -> Tensor) -> impl Fn(Tensor) -> Tensor {
    move |x: Tensor| jvp(&f, x, constant(1.0f32)).1
}

fn tanh_net(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor {
    x.matmul(w1).tanh().matmul(w2).tanh()
}

fn flipped_product(x: Tensor) -> Tensor {
    x.tanh() * x.flip(0)
}

pub fn conv(x: Tensor, w: Tensor, stride: usize, padding: Padding) -> Tensor {
    conv2d(x, w, &ConvOptions { stride, padding })
}

/// See `make.py`.
pub const FUNCTIONS: &[Function] = &[
    ("grad_of_grad", |x| {
        let g = grad(|x: Tensor| (x.sin() * x.square()).sum(..));
        vec![grad(|x: Tensor| g(x).prod(..))(x[0])]
    }),
    ("third_derivative", |x| vec![grad(grad(grad(|x: Tensor| x.tanh() * x)))(x[0])]),
    ("fourth_derivative_forwards", |x| vec![d(d(d(d(|x: Tensor| x.sin().exp()))))(x[0])]),
    ("mixed_orders", |x| {
        let base = |x: Tensor| (x * x).log1p() * x.cos();
        vec![grad(d(grad(base)))(x[0]), d(grad(d(base)))(x[0])]
    }),
    ("hessian_forward_over_reverse", |x| {
        vec![hessian(|y: Tensor| y.matmul(x[1]).tanh().logsumexp(..))(x[0])]
    }),
    ("hessian_reverse_over_reverse", |x| {
        let (_, pull) = vjp(grad(|y: Tensor| y.matmul(x[1]).tanh().logsumexp(..)), x[0]);
        vec![vmap(pull)(eye(4, F32))]
    }),
    ("jacobian_forwards", |x| {
        // Column by column, where `jacfwd` has them last.
        vec![jacfwd(|y: Tensor| y.matmul(x[1]).sin())(x[0]).t()]
    }),
    ("jacobian_backwards", |x| vec![jacrev(|y: Tensor| y.matmul(x[1]).sin())(x[0])]),
    ("jacobian_of_jacobian", |x| {
        let inner = |y: Tensor| {
            let f = |y: Tensor| y.matmul(x[1]).tanh() * y;
            vmap(|v: Tensor| jvp(f, y, v).1)(eye(2, F32))
        };
        vec![vmap(|v: Tensor| jvp(inner, x[0], v).1)(eye(2, F32))]
    }),
    ("hessian_vector_by_grad", |x| {
        let f = |y: Tensor| (-(y * y).sum(..)).exp() * y.index_axis(0, 0);
        let (by_hvp, by_grad) =
            (hvp(f, x[0], x[1]), grad(|y: Tensor| (grad(f)(y) * x[1]).sum(..))(x[0]));
        // The two must agree; their mean is what is recorded.
        vec![(by_hvp + by_grad) * 0.5]
    }),
    ("jvp_of_jvp", |x| {
        let inner = |y: Tensor| jvp(|y: Tensor| y.sin() * y.sum(..), y, x[1]).1;
        let (y, t) = jvp(inner, x[0], x[2]);
        vec![y, t]
    }),
    ("jvp_of_vjp", |x| {
        let pulled = |(x, ct): Two| vjp(flipped_product, x).1(ct);
        let (y, t) = jvp(pulled, (x[0], x[1]), (x[1], x[0]));
        vec![y, t]
    }),
    ("vjp_of_jvp", |x| {
        let along = |(x, v): Two| jvp(flipped_product, x, v).1;
        let (y, pull) = vjp(along, (x[0], x[1]));
        let (a, b) = pull(y.cos());
        vec![y, a, b]
    }),
    ("linearize_twice", |x| {
        let (y, push) = linearize(|y: Tensor| y.sin() * y.prod(..), x[0]);
        vec![y, push(x[1]), push(x[2] * 2.0)]
    }),
    ("linearize_of_grad", |x| {
        let (g, push) = linearize(grad(|y: Tensor| y.cos().prod(..)), x[0]);
        vec![g, push(x[1])]
    }),
    ("grad_of_linearize", |x| {
        let along = |y: Tensor| {
            let (_, push) = linearize(|y: Tensor| y.exp() * y.sum(..), y);
            (push(x[1]) * y).sum(..)
        };
        vec![grad(along)(x[0])]
    }),
    ("vjp_called_twice", |x| {
        let (y, pull) = vjp(|(x, w): Two| w.matmul(x).sin(), (x[0], x[1]));
        let (a, b) = (pull(y), pull(ones([2], F32)));
        vec![a.0, a.1, b.0, b.1]
    }),
    ("vjp_of_vjp", |x| {
        let gradient = |(w1, w2): Two| {
            let (y, pull) = vjp(|(w1, w2): Two| tanh_net(x[0], w1, w2), (w1, w2));
            pull(y)
        };
        let (g, pull) = vjp(gradient, (x[1], x[2]));
        let second = pull(g);
        vec![g.0, g.1, second.0, second.1]
    }),
    ("value_and_grad_with_aux", |x| {
        let loss = |w: Tensor| {
            let z = x[0].matmul(w);
            ((z - x[2]).square().mean(..), (z, w.sum(..)))
        };
        let ((value, (z, s)), g) = value_and_grad(loss)(x[1]);
        vec![value, z, s, g]
    }),
    ("grad_of_tree", |x| {
        let loss = |(w, b): (Tensor, (Tensor,))| {
            (x[0].matmul(w) + b.0).tanh().prod(..) + b.0.powi(3).sum(..)
        };
        let (w, (b,)) = grad(loss)((x[1], (x[2],)));
        vec![w, b]
    }),
    ("stop_gradient_orders", |x| {
        vec![grad(|y: Tensor| (y * y.square().stop_gradient() + y.sin()).sum(..))(x[0])]
    }),
    ("meta_learning", |x| {
        let loss = |w: Tensor, data: Tensor| data.matmul(w).tanh().square().mean(..);
        let adapted = |w: Tensor| w - 0.3 * grad(|w: Tensor| loss(w, x[0]))(w);
        let (value, g) = value_and_grad(|w: Tensor| loss(adapted(w), x[1]))(x[2]);
        vec![value, g]
    }),
    ("fisher_vector", |x| {
        let kl = |w: Tensor| {
            let logp = x[0].matmul(w).log_softmax(-1);
            let fixed = logp.stop_gradient();
            (fixed.exp() * (fixed - logp)).sum(-1).mean(..)
        };
        vec![jvp(grad(kl), x[1], x[2]).1 + 0.1 * x[2]]
    }),
    ("gauss_newton_vector", |x| {
        let model = |w: Tensor| x[0].matmul(w).tanh();
        let (y, push) = linearize(model, x[1]);
        let (_, pull) = vjp(model, x[1]);
        vec![y, pull(push(x[2]) * (1.0 + y.square()))]
    }),
    ("laplacian", |x| {
        let one = |y: Tensor| {
            let h = hessian(|y: Tensor| y.matmul(x[1]).sin().prod(..))(y);
            (h * eye(2, F32)).sum(..)
        };
        vec![vmap(one)(x[0])]
    }),
    ("sobolev_loss", |x| {
        let model = |w: Tensor, y: Tensor| y.matmul(w).tanh().matmul(x[2]);
        let loss = |w: Tensor| {
            let slopes = vmap(grad(|y: Tensor| model(w, y)))(x[0]);
            let values = vmap(|y: Tensor| model(w, y))(x[0]);
            (slopes - 1.0).square().mean(..) + values.square().mean(..)
        };
        let (value, g) = value_and_grad(loss)(x[1]);
        vec![value, g]
    }),
    ("conv_gradients", |x| {
        let loss = |(x, w): Two| conv(x, w, 2, Padding::Valid).sin().sum(..);
        let (a, b) = grad(loss)((x[0], x[1]));
        vec![a, b]
    }),
    ("critic_penalty", |x| {
        let one = |y: Tensor| {
            let critic =
                |y: Tensor| conv(y.expand_dims(0), x[1], 1, Padding::Same).softplus().sum(..);
            grad(critic)(y).ravel().norm()
        };
        let norms = vmap(one)(x[0]);
        let loss = |w: Tensor| (norms - 1.0).square().mean(..) + w.square().sum(..);
        vec![grad(loss)(x[1]), norms]
    }),
    ("arguments_that_are_no_floats", |x| {
        let (y, n, mask) = (x[0], x[1], x[2]);
        vec![where_(mask, y.square(), y * n.to(F32)), n * 2, y.gt(0.0), !mask]
    }),
    ("a_result_without_derivative", |x| {
        vec![x[0].argmax(0), x[0].sin(), x[0].round(), ones([2], F32)]
    }),
];

/// See `make.py`.
pub const OF_OPERATIONS: &[Function] = &[
    ("grad_of_max", |x| vec![grad(|x: Tensor| x.max(-1).powi(3).sum(..) + x.min(..))(x[0])]),
    ("grad_of_sort", |x| {
        vec![grad(|x: Tensor| (x.sort(0).powi(3) * arange(6, F32)).sum(..))(x[0])]
    }),
    ("grad_of_cumsum", |x| vec![grad(|x: Tensor| x.cumsum(0).powi(3).sum(..))(x[0])]),
    ("grad_of_prod", |x| vec![grad(|x: Tensor| x.sin().prod(..) + x.square().prod(..))(x[0])]),
    ("grad_of_take", |x| vec![grad(|y: Tensor| y.take(x[1], 0).powi(3).sum(..))(x[0])]),
    ("grad_of_scatter_add", |x| {
        let loss = |(y, z): Two| y.at(&[x[1]]).add(z.square()).powi(3).sum(..);
        let (a, b) = grad(loss)((x[0], x[2]));
        vec![a, b]
    }),
    ("grad_of_scatter_set", |x| {
        let loss = |(y, z): Two| y.at(&[x[1]]).set(z.square()).powi(3).sum(..);
        let (a, b) = grad(loss)((x[0], x[2]));
        vec![a, b]
    }),
    ("grad_of_dynamic_slice", |x| {
        let loss = |y: Tensor| y.dynamic_slice(&[x[1], constant(0i32)], [2, 2]).powi(3).sum(..);
        vec![grad(loss)(x[0])]
    }),
    ("grad_of_dynamic_update", |x| {
        let loss = |(y, z): Two| y.dynamic_update_slice(z, &[x[2], constant(0i32)]).powi(3).sum(..);
        let (a, b) = grad(loss)((x[0], x[1]));
        vec![a, b]
    }),
    ("grad_of_norm", |x| vec![grad(|x: Tensor| vmap(Tensor::norm)(x).prod(..))(x[0])]),
    ("grad_of_powers", |x| {
        let loss = |(x, y): Two| (x.pow(y) + x.powi(3) + x.powi(-1) + x.pow(0.5)).sum(..);
        let (a, b) = grad(loss)((x[0], x[1]));
        vec![a, b]
    }),
    ("grad_of_logs", |x| {
        let loss = |x: Tensor| (x.log1p() * x.expm1() + (x + 1.0).rsqrt()).sum(..);
        vec![grad(loss)(x[0])]
    }),
    ("grad_of_trigonometry", |x| {
        vec![grad(|x: Tensor| (x.tan() + x.sin() * x.cos() + x.tanh()).sum(..))(x[0])]
    }),
    ("grad_of_erf", |x| vec![grad(|x: Tensor| (x.erf() + x.erf_inv()).sum(..))(x[0])]),
    ("grad_of_activations", |x| {
        let loss = |x: Tensor| (x.silu() + x.gelu() * x.sigmoid() + x.softplus()).sum(..);
        vec![grad(loss)(x[0])]
    }),
    ("grad_of_elu", |x| vec![grad(|x: Tensor| (x.elu() * x).sum(..))(x[0])]),
    ("grad_of_atan2", |x| {
        let (a, b) = grad(|(y, x): Two| (y.atan2(x) * x).sum(..))((x[0], x[1]));
        vec![a, b]
    }),
    ("grad_of_logaddexp", |x| {
        let (a, b) = grad(|(x, y): Two| logaddexp(x, y).square().sum(..))((x[0], x[1]));
        vec![a, b]
    }),
    ("grad_of_division", |x| {
        let (a, b) = grad(|(x, y): Two| (x / y + (x * 3.0) % y * x).sum(..))((x[0], x[1]));
        vec![a, b]
    }),
    ("grad_of_clip_and_where", |x| {
        let loss = |(x, y): Two| {
            let chosen = where_(x.gt(y), x * y, x.minimum(y).square());
            (x.clip(-0.5, 0.5) * y + chosen).sum(..)
        };
        let (a, b) = grad(loss)((x[0], x[1]));
        vec![a, b]
    }),
    ("grad_of_layer_norm", |x| {
        let loss = |y: Tensor| {
            let mean = y.mean(-1).expand_dims(-1);
            let var = y.var(-1).expand_dims(-1);
            ((y - mean) * (var + 1e-2).rsqrt() * x[1] + x[2]).powi(3).sum(..)
        };
        vec![grad(loss)(x[0])]
    }),
    ("grad_of_attention", |x| {
        let loss = |(q, k, v): Three| {
            let mask = ones([4, 4], F32).tril(0).gt(0.0);
            where_(mask, q.matmul(k.t()), -1e9).softmax(-1).matmul(v).prod(..) * 10.0
        };
        let (a, b, c) = grad(loss)((x[0], x[1], x[2]));
        vec![a, b, c]
    }),
    ("grad_of_ppo_loss", |x| {
        let loss = |new: Tensor| {
            let a = (x[2] - x[2].mean(..)) / (x[2].std(..) + 1e-8);
            let ratio = (new - x[1]).exp();
            (-a * ratio).maximum(-a * ratio.clip(0.8, 1.2)).mean(..)
        };
        let (value, g) = value_and_grad(loss)(x[0]);
        vec![value, g]
    }),
    ("grad_of_einsum", |x| {
        let loss = |(y, z): Two| {
            let product = vmap(|(y, z): Two| y.matmul(z))((y, z));
            product.sum([1, 2]).square().matmul(x[2])
        };
        let (a, b) = grad(loss)((x[0], x[1]));
        vec![a, b]
    }),
    ("grad_of_shapes", |x| {
        let loss = |y: Tensor| {
            let padded = y.t().pad(&[1, 0], &[0, 0], 0.0).slice_axis(0, 0, 3);
            let y = concatenate(&[y.t(), padded], 1);
            let y = (y.roll(1, 0) * y.flip(1)).reshape([6, 2]);
            y.strided_slice(&[0, 0], &[6, 2], &[2, 1]).prod(1).sum(..)
        };
        vec![grad(loss)(x[0])]
    }),
];
