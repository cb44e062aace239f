//! Networks, distributions, losses, optimizers.

use podracer::optim::{self, Adam};
use podracer::trace::control::{ScanOptions, scan, scan_with};
use podracer::trace::op::{Axes, ConvDims, DotDims, Precision};
use podracer::trace::ops::{
    ConvOptions, Padding, concatenate, conv_general, conv2d, dot_general, full, linspace, one_hot,
    ones, where_, zeros, zeros_like,
};
use podracer::{DType, Tensor, grad, vmap};

use super::Function;

fn conv(x: Tensor, w: Tensor, stride: usize, padding: Padding) -> Tensor {
    conv2d(x, w, &ConvOptions { stride, padding })
}

fn nhwc(padding: &[(i64, i64)]) -> ConvDims {
    let axes = |axes: &[usize]| Axes::from_slice(axes);
    ConvDims {
        lhs_spec: axes(&[0, 3, 1, 2]),
        rhs_spec: axes(&[3, 2, 0, 1]),
        out_spec: axes(&[0, 3, 1, 2]),
        strides: axes(&[1, 1]),
        padding: padding.into(),
        lhs_dilation: axes(&[1, 1]),
        rhs_dilation: axes(&[1, 1]),
        feature_groups: 1,
        batch_groups: 1,
        precision: Precision::Default,
    }
}

/// A product of matrices over a first batch axis; `transposed` contracts the last axes.
fn batched(x: Tensor, y: Tensor, transposed: bool) -> Tensor {
    let axes = |axis: usize| Axes::from_slice(&[axis]);
    let dims = DotDims {
        lhs_contract: axes(2),
        rhs_contract: axes(if transposed { 2 } else { 1 }),
        lhs_batch: axes(0),
        rhs_batch: axes(0),
        precision: Precision::Default,
    };
    dot_general(x, y, dims)
}

fn normal_log_prob(z: Tensor, log_std: Tensor) -> Tensor {
    z * z * -0.5 - log_std - 0.5 * (2.0 * std::f64::consts::PI).ln()
}

fn huber(x: Tensor) -> Tensor {
    let small = x.abs().minimum(1.0);
    small.square() * 0.5 + (x.abs() - small)
}

fn ppo_loss(new: Tensor, old: Tensor, advantage: Tensor) -> Tensor {
    let ratio = (new - old).exp();
    (-advantage * ratio).maximum(-advantage * ratio.clip(0.8, 1.2)).mean(..)
}

/// See `make.py`.
pub const FUNCTIONS: &[Function] = &[
    ("mlp_tanh", |x| vec![(x[0].matmul(x[1]) + x[2]).tanh().matmul(x[3]) + x[4]]),
    ("mlp_relu", |x| vec![(x[0].matmul(x[1]) + x[2]).relu().matmul(x[3]) + x[4]]),
    ("nature_cnn", |x| {
        let y = (conv(x[0] * 2.0 - 0.5, x[1], 2, Padding::Valid) + x[2]).relu();
        let y = (conv(y, x[3], 2, Padding::Valid) + x[4]).relu();
        vec![y.flatten_from(1).matmul(x[5]) + x[6]]
    }),
    ("conv_same", |x| vec![conv(x[0], x[1], 1, Padding::Same)]),
    ("conv_same_stride", |x| vec![conv(x[0], x[1], 2, Padding::Same)]),
    ("conv_dilated", |x| {
        let dims = ConvDims {
            strides: Axes::from_slice(&[1, 2]),
            lhs_dilation: Axes::from_slice(&[2, 1]),
            rhs_dilation: Axes::from_slice(&[1, 2]),
            ..nhwc(&[(1, 2), (0, 1)])
        };
        vec![conv_general(x[0], x[1], dims)]
    }),
    ("conv_groups", |x| {
        let dims = ConvDims { feature_groups: 2, ..nhwc(&[(0, 0), (0, 0)]) };
        vec![conv_general(x[0], x[1], dims)]
    }),
    ("average_pool", |x| vec![x[0].reshape([2, 2, 2, 3, 2, 2]).mean([2, 4])]),
    ("layer_norm", |x| {
        let mean = x[0].mean(-1).expand_dims(-1);
        let var = x[0].var(-1).expand_dims(-1);
        vec![(x[0] - mean) * (var + 1e-6).rsqrt() * x[1] + x[2]]
    }),
    ("rnn", |x| {
        let step = |h: Tensor, y: Tensor| {
            let h = (y.matmul(x[2]) + h.matmul(x[3])).tanh();
            (h, h)
        };
        let (h, hs) = scan(step, x[0], x[1]);
        vec![h, hs]
    }),
    ("gru", |x| {
        let step = |h: Tensor, y: Tensor| {
            let gx = (y.matmul(x[2]) + x[4]).split(3, -1);
            let gh = h.matmul(x[3]).split(3, -1);
            let (reset, update) = ((gx[0] + gh[0]).sigmoid(), (gx[1] + gh[1]).sigmoid());
            let new = (gx[2] + reset * gh[2]).tanh();
            let h = (1.0 - update) * new + update * h;
            (h, h)
        };
        let (h, hs) = scan(step, x[0], x[1]);
        vec![h, hs]
    }),
    ("lstm", |x| {
        let step = |(c, h): (Tensor, Tensor), y: Tensor| {
            let gates = (y.matmul(x[3]) + h.matmul(x[4]) + x[5]).split(4, -1);
            let c = gates[1].sigmoid() * c + gates[0].sigmoid() * gates[2].tanh();
            let h = gates[3].sigmoid() * c.tanh();
            ((c, h), h)
        };
        let ((c, h), hs) = scan(step, (x[0], x[1]), x[2]);
        vec![c, h, hs]
    }),
    ("attention", |x| {
        let scores = batched(x[0], x[1], true) / 3f64.sqrt();
        vec![batched(scores.softmax(-1), x[2], false)]
    }),
    ("causal_attention", |x| {
        let scores = batched(x[0], x[1], true);
        let mask = ones([4, 4], DType::F32).tril(0).gt(0.0);
        vec![batched(where_(mask, scores, -1e9).softmax(-1), x[2], false)]
    }),
    ("dueling", |x| vec![x[1] + x[0] - x[0].mean(-1).expand_dims(-1)]),
    // Distributions.
    ("softmax", |x| vec![x[0].softmax(0), x[0].softmax(-1)]),
    ("log_softmax", |x| vec![x[0].log_softmax(-1)]),
    ("logsumexp", |x| vec![x[0].logsumexp(-1), x[0].logsumexp(..)]),
    ("logsumexp_infinite", |x| vec![x[0].logsumexp(-1)]),
    ("softmax_large", |x| vec![x[0].softmax(-1), x[0].log_softmax(-1), x[0].logsumexp(-1)]),
    ("entropy", |x| {
        let logp = x[0].log_softmax(-1);
        vec![-(logp.exp() * logp).sum(-1)]
    }),
    ("categorical_log_prob", |x| {
        vec![x[0].log_softmax(-1).take_along_axis(x[1].expand_dims(1), 1).squeeze(1)]
    }),
    ("cross_entropy", |x| {
        let hot = one_hot(x[1], 3, DType::F32);
        vec![-(hot * x[0].log_softmax(-1)).sum(-1).mean(..)]
    }),
    ("masked_entropy", |x| {
        let allowed = x[1].eq(1);
        let logp = where_(allowed, x[0], f32::MIN).log_softmax(-1);
        let product = logp.exp() * where_(allowed, logp, 0.0);
        vec![-where_(allowed, product, 0.0).sum(-1)]
    }),
    ("normal_log_prob", |x| {
        let z = (x[0] - x[1]) / x[2].exp();
        vec![normal_log_prob(z, x[2]).sum(-1)]
    }),
    ("tanh_normal", |x| {
        let y = (x[1] + x[2].exp() * x[0]).tanh();
        let logp = normal_log_prob(x[0], x[2]);
        vec![y, (logp - (1.0 - y.square() + 1e-6).log()).sum(-1)]
    }),
    ("tanh_log_det", |x| vec![2.0 * (2f64.ln() - x[0] - (x[0] * -2.0).softplus())]),
    // Losses.
    ("ppo_loss", |x| {
        let advantage = (x[2] - x[2].mean(..)) / (x[2].std(..) + 1e-8);
        let loss = ppo_loss(x[0], x[1], advantage);
        let ratio = (x[0] - x[1]).exp();
        vec![loss + 0.0 * x[3].sum(..), ((ratio - 1.0) - (x[0] - x[1])).mean(..)]
    }),
    ("ppo_loss_ties", |x| vec![ppo_loss(x[0], x[1], x[2])]),
    ("value_loss_clipped", |x| {
        let clipped = x[1] + (x[0] - x[1]).clip(-0.2, 0.2);
        let worse = (x[0] - x[2]).square().maximum((clipped - x[2]).square());
        vec![0.5 * worse.mean(..)]
    }),
    ("gae", |x| {
        let going = 1.0 - x[2].to(DType::F32);
        let (values, next_values) = (x[1].slice_axis(0, 0, 5), x[1].slice_axis(0, 1, 6));
        let step = |carry: Tensor, (reward, value, next_value, going): Four| {
            let delta = reward + 0.99 * next_value * going - value;
            let carry = delta + (0.99 * 0.95) * going * carry;
            (carry, carry)
        };
        let xs = (x[0], values, next_values, going);
        let advantages = scan_with(step, zeros([2], DType::F32), xs, ScanOptions::reversed()).1;
        vec![advantages, advantages + values]
    }),
    ("vtrace", |x| {
        let (rho, values) = (x[0].exp(), x[2]);
        let c = rho.minimum(1.0);
        let following = concatenate(&[values.slice_axis(0, 1, 5), x[3].expand_dims(0)], 0);
        let deltas = c * (x[1] + 0.99 * following - values);
        let step = |acc: Tensor, (delta, c): (Tensor, Tensor)| {
            let acc = delta + 0.99 * c * acc;
            (acc, acc)
        };
        let start = zeros_like(x[3]);
        vec![scan_with(step, start, (deltas, c), ScanOptions::reversed()).1 + values]
    }),
    ("dqn_loss", |x| {
        let target = x[2] + (1 - x[4]).to(DType::F32) * 0.99 * x[3].stop_gradient().max(-1);
        let rows = podracer::trace::ops::arange(4, DType::I32);
        let taken = x[0].at(&[rows, x[1]]).get();
        vec![(taken - target).square().mean(..), taken]
    }),
    ("double_dqn", |x| {
        let best = x[0].argmax(-1).expand_dims(1);
        let target = x[3] + 0.99 * x[1].take_along_axis(best, 1).squeeze(1);
        let taken = x[0].take_along_axis(x[2].expand_dims(1), 1).squeeze(1);
        vec![huber(taken - target.stop_gradient()).mean(..)]
    }),
    ("c51_loss", |x| {
        let atoms = linspace(-2.0, 2.0, 5, DType::F32);
        let probs = x[1] / x[1].sum(-1).expand_dims(-1);
        let next_atoms = (x[2].expand_dims(1) + 0.9 * atoms).clip(-2.0, 2.0);
        let b = next_atoms + 2.0;
        let (low, high) = (b.floor().clip(0.0, 4.0), b.ceil().clip(0.0, 4.0));
        let d_low = (high + low.eq(high).to(DType::F32) - b) * probs;
        let d_high = (b - low) * probs;
        let project = |(low, high, d_low, d_high): Four| {
            let target = zeros([5], DType::F32).at(&[low.to(DType::I32)]).add(d_low);
            target.at(&[high.to(DType::I32)]).add(d_high)
        };
        let target = vmap(project)((low, high, d_low, d_high));
        let p = x[0].softmax(-1).clip(1e-5, 1.0 - 1e-5);
        vec![-(target * p.log()).sum(-1).mean(..), target]
    }),
    ("td3_critic", |x| {
        let target = (x[4] + 0.99 * x[2].minimum(x[3])).stop_gradient();
        vec![(x[0] - target).square().mean(..) + (x[1] - target).square().mean(..)]
    }),
    ("sac_losses", |x| {
        let alpha = x[3].exp();
        let actor = (alpha.stop_gradient() * x[0] - x[1].minimum(x[2])).mean(..);
        vec![actor, -(alpha * (x[0].stop_gradient() - 2.0)).mean(..)]
    }),
    ("huber", |x| vec![huber(x[0])]),
    // Optimizers.
    ("adam_step", |x| {
        let loss = |p: &[Tensor]| {
            let y = (x[0].matmul(p[0]) + p[1]).tanh().matmul(p[2]) + p[3];
            (y - x[1]).square().mean(..)
        };
        let adam = Adam { learning_rate: 1e-1, eps: 1e-5, ..Adam::default() };
        let mut params = x[2..].to_vec();
        let mut state = adam.init(&params);
        for _ in 0..2 {
            let grads = grad(|p: Vec<Tensor>| loss(&p))(params.clone());
            let grads = optim::clip_by_global_norm(0.5).apply(grads);
            (params, state) = adam.step(params, grads, state);
        }
        let last = loss(&params);
        params.push(last);
        params
    }),
    ("clip_by_global_norm", |x| optim::clip_by_global_norm(0.5).apply(x.to_vec())),
    ("incremental_update", |x| vec![optim::incremental_update(&x[0], &x[1], 0.005)]),
    ("gradient_penalty", |x| {
        let critic = |row: Tensor| row.matmul(x[1]).softplus();
        let norms = vmap(|row: Tensor| grad(critic)(row).norm())(x[0]);
        vec![(norms - full([2], 1.0, DType::F32)).square().mean(..)]
    }),
];

type Four = (Tensor, Tensor, Tensor, Tensor);
