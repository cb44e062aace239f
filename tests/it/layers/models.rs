//! The models of `tests/models` with the parameters of the fixture.

use podracer::nn::{BatchStats, MultiHeadDotProductAttention};
use podracer::{Key, Tensor, tree};

use crate::models::{Perceiver, ResNet18, Stats, Transformer};
use crate::names::Function;

fn resnet(x: &[Tensor]) -> Vec<Tensor> {
    let net = ResNet18::init(Key::constant(0), 2, 3);
    let (params, stats) = x[1..].split_at(tree::count(&net));
    let net = tree::replace(&net, params.iter().copied());
    let stats: Stats = stats.chunks(2).map(|s| BatchStats { mean: s[0], var: s[1] }).collect();
    // Small images make small fixtures.
    let images = x[0].repeat(4, 1).repeat(4, 2);
    let (y, next) = net.apply(images, stats.clone(), true);
    let last = next.last().expect("statistics of each norm");
    vec![y, last.mean, last.var, net.apply(images, stats, false).0]
}

/// Stops the gradient by the bias of keys, which is 0 but for rounding.
fn without_noise(attention: &mut MultiHeadDotProductAttention<Tensor>) {
    attention.key.bias = attention.key.bias.map(Tensor::stop_gradient);
}

pub const FUNCTIONS: &[Function] = &[
    ("transformer", |x| {
        let mut model =
            tree::replace(&Transformer::init(Key::constant(0), 11, 6, 8), x[1..].iter().copied());
        model.blocks.iter_mut().for_each(|block| without_noise(&mut block.attention.attention));
        vec![model.apply(x[0])]
    }),
    ("resnet18", resnet),
    ("perceiver", |x| {
        let mut model =
            tree::replace(&Perceiver::init(Key::constant(0), 5, 8), x[1..].iter().copied());
        without_noise(&mut model.cross);
        without_noise(&mut model.latent.attention);
        vec![model.apply(x[0])]
    }),
];
