//! Whole models of public layers: a decoder-only transformer, a ResNet-18 and a Perceiver's
//! cross-attention.

use podracer::nn::{
    BatchNorm, BatchStats, Conv, Dense, Embed, LayerNorm, MultiHeadDotProductAttention,
    SelfAttention, init, make_causal_mask, max_pool,
};
use podracer::trace::ops::{Padding, arange};
use podracer::{DType, Key, Tensor, Tree, tree};

use crate::names::Function;

fn dense(inputs: usize, outputs: usize) -> Dense<Tensor> {
    Dense::init(Key::constant(0), inputs, outputs, init::lecun_normal())
}

#[derive(Clone, Tree)]
struct Block<T> {
    norm1: LayerNorm<T>,
    attention: SelfAttention<T>,
    norm2: LayerNorm<T>,
    up: Dense<T>,
    down: Dense<T>,
}

impl Block<Tensor> {
    fn init(features: usize) -> Block<Tensor> {
        Block {
            norm1: LayerNorm::init(features),
            attention: SelfAttention::init(Key::constant(0), 2, features, init::lecun_normal()),
            norm2: LayerNorm::init(features),
            up: dense(features, 2 * features),
            down: dense(2 * features, features),
        }
    }

    fn apply(&self, x: Tensor, mask: Tensor) -> Tensor {
        let x = x + self.attention.apply(self.norm1.apply(x), Some(mask), None);
        x + self.down.apply(self.up.apply(self.norm2.apply(x)).gelu())
    }
}

#[derive(Clone, Tree)]
struct Transformer<T> {
    embed: Embed<T>,
    positions: Embed<T>,
    blocks: Vec<Block<T>>,
    norm: LayerNorm<T>,
}

impl Transformer<Tensor> {
    fn init(vocabulary: usize, length: usize, features: usize) -> Transformer<Tensor> {
        Transformer {
            embed: Embed::init(Key::constant(0), vocabulary, features),
            positions: Embed::init(Key::constant(0), length, features),
            blocks: vec![Block::init(features), Block::init(features)],
            norm: LayerNorm::init(features),
        }
    }

    /// Tokens `[batch, length]` to logits of the next ones.
    fn apply(&self, tokens: Tensor) -> Tensor {
        let positions = self.positions.apply(arange(tokens.dim(1), DType::I32));
        let mask = make_causal_mask(tokens);
        let x = self.embed.apply(tokens) + positions;
        let x = self.blocks.iter().fold(x, |x, block| block.apply(x, mask));
        self.embed.attend(self.norm.apply(x))
    }
}

/// A convolution without bias, and batch normalisation.
#[derive(Clone, Tree)]
struct ConvNorm<T> {
    conv: Conv<T>,
    norm: BatchNorm<T>,
}

type Stats = Vec<BatchStats<Tensor>>;

impl ConvNorm<Tensor> {
    fn init(inputs: usize, outputs: usize, size: usize, stride: usize) -> ConvNorm<Tensor> {
        let window = [size, size];
        let conv = Conv::init(Key::constant(0), &window, inputs, outputs, init::lecun_normal());
        let conv = Conv { strides: vec![stride; 2], bias: None, ..conv };
        ConvNorm { conv, norm: BatchNorm::init(outputs).0 }
    }

    /// Takes the statistics from the front of `old`, and appends the new ones to `new`.
    fn apply(&self, x: Tensor, old: &mut Stats, new: &mut Stats, train: bool) -> Tensor {
        let (y, stats) = self.norm.apply(self.conv.apply(x), old.remove(0), train);
        new.push(stats);
        y
    }
}

#[derive(Clone, Tree)]
struct Residual<T> {
    first: ConvNorm<T>,
    second: ConvNorm<T>,
    project: Option<ConvNorm<T>>,
}

#[derive(Clone, Tree)]
struct ResNet18<T> {
    stem: ConvNorm<T>,
    blocks: Vec<Residual<T>>,
    head: Dense<T>,
}

impl ResNet18<Tensor> {
    fn init(width: usize, classes: usize) -> ResNet18<Tensor> {
        let (mut blocks, mut inputs) = (Vec::new(), width);
        for k in 0..8 {
            let (features, stride) = (width << (k / 2), if [2, 4, 6].contains(&k) { 2 } else { 1 });
            blocks.push(Residual {
                first: ConvNorm::init(inputs, features, 3, stride),
                second: ConvNorm::init(features, features, 3, 1),
                project: (stride == 2).then(|| ConvNorm::init(inputs, features, 1, 2)),
            });
            inputs = features;
        }
        ResNet18 { stem: ConvNorm::init(3, width, 7, 2), blocks, head: dense(inputs, classes) }
    }

    fn apply(&self, x: Tensor, mut old: Stats, train: bool) -> (Tensor, Stats) {
        let mut new = Vec::new();
        let x = self.stem.apply(x, &mut old, &mut new, train).relu();
        let mut x = max_pool(x, [3, 3], [2, 2], &Padding::Same);
        for block in &self.blocks {
            let y = block.first.apply(x, &mut old, &mut new, train).relu();
            let y = block.second.apply(y, &mut old, &mut new, train);
            if let Some(project) = &block.project {
                x = project.apply(x, &mut old, &mut new, train);
            }
            x = (x + y).relu();
        }
        (self.head.apply(x.mean([1, 2])), new)
    }
}

fn resnet(x: &[Tensor]) -> Vec<Tensor> {
    let net = ResNet18::init(2, 3);
    let (params, stats) = x[1..].split_at(tree::count(&net));
    let net = tree::replace(&net, params.iter().copied());
    let stats: Stats = stats.chunks(2).map(|s| BatchStats { mean: s[0], var: s[1] }).collect();
    // Small images make small fixtures.
    let images = x[0].repeat(4, 1).repeat(4, 2);
    let (y, next) = net.apply(images, stats.clone(), true);
    let last = next.last().expect("statistics of each norm");
    vec![y, last.mean, last.var, net.apply(images, stats, false).0]
}

/// Latents that attend to inputs of any length, and to themselves.
#[derive(Clone, Tree)]
struct Perceiver<T> {
    latents: T,
    norm_inputs: LayerNorm<T>,
    norm_latents: LayerNorm<T>,
    cross: MultiHeadDotProductAttention<T>,
    cross_norm: LayerNorm<T>,
    cross_up: Dense<T>,
    cross_down: Dense<T>,
    latent_norm: LayerNorm<T>,
    latent: SelfAttention<T>,
    head: Dense<T>,
}

impl Perceiver<Tensor> {
    fn init(inputs: usize, features: usize) -> Perceiver<Tensor> {
        let (key, kernel) = (|| Key::constant(0), init::lecun_normal());
        let sizes = [features, inputs, inputs];
        let cross = MultiHeadDotProductAttention::init_with(key(), 2, sizes, [features; 2], kernel);
        Perceiver {
            latents: init::normal(1.0).draw(key(), [4, features], DType::F32),
            norm_inputs: LayerNorm::init(inputs),
            norm_latents: LayerNorm::init(features),
            cross,
            cross_norm: LayerNorm::init(features),
            cross_up: dense(features, 2 * features),
            cross_down: dense(2 * features, features),
            latent_norm: LayerNorm::init(features),
            latent: SelfAttention::init(key(), 2, features, kernel),
            head: dense(features, 3),
        }
    }

    fn apply(&self, inputs: Tensor) -> Tensor {
        let [n, d] = [0, 1].map(|axis| self.latents.dim(axis));
        let x = self.latents.broadcast_to([inputs.dim(0), n, d]);
        let y = self.norm_inputs.apply(inputs);
        let x = x + self.cross.apply(self.norm_latents.apply(x), y, y, None, None);
        let hidden = self.cross_up.apply(self.cross_norm.apply(x)).gelu();
        let x = x + self.cross_down.apply(hidden);
        let x = x + self.latent.apply(self.latent_norm.apply(x), None, None);
        self.head.apply(x.mean(1))
    }
}

/// Stops the gradient by the bias of keys, which is 0 but for rounding.
fn without_noise(attention: &mut MultiHeadDotProductAttention<Tensor>) {
    attention.key.bias = attention.key.bias.map(Tensor::stop_gradient);
}

pub const FUNCTIONS: &[Function] = &[
    ("transformer", |x| {
        let mut model = tree::replace(&Transformer::init(11, 6, 8), x[1..].iter().copied());
        model.blocks.iter_mut().for_each(|block| without_noise(&mut block.attention.attention));
        vec![model.apply(x[0])]
    }),
    ("resnet18", resnet),
    ("perceiver", |x| {
        let mut model = tree::replace(&Perceiver::init(5, 8), x[1..].iter().copied());
        without_noise(&mut model.cross);
        without_noise(&mut model.latent.attention);
        vec![model.apply(x[0])]
    }),
];
