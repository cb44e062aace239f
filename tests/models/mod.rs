//! Whole models of public layers: a decoder-only transformer, a ResNet-18 and a Perceiver's
//! cross-attention. Their values and gradients are compared with Flax in `tests/it/layers`, and they
//! train on eight devices in `tests/devices/models.rs`.

use podracer::nn::{
    BatchNorm, BatchStats, Conv, Dense, Embed, LayerNorm, MultiHeadDotProductAttention,
    SelfAttention, init, make_causal_mask, max_pool,
};
use podracer::trace::ops::{Padding, arange};
use podracer::{DType, Key, Tensor, Tree};

fn dense(key: Key<Tensor>, inputs: usize, outputs: usize) -> Dense<Tensor> {
    Dense::init(key, inputs, outputs, init::lecun_normal())
}

#[derive(Clone, Tree)]
pub struct Block<T> {
    norm1: LayerNorm<T>,
    pub attention: SelfAttention<T>,
    norm2: LayerNorm<T>,
    up: Dense<T>,
    down: Dense<T>,
}

impl Block<Tensor> {
    fn init(key: Key<Tensor>, features: usize) -> Block<Tensor> {
        let [attention, up, down] = key.split_n();
        Block {
            norm1: LayerNorm::init(features),
            attention: SelfAttention::init(attention, 2, features, init::lecun_normal()),
            norm2: LayerNorm::init(features),
            up: dense(up, features, 2 * features),
            down: dense(down, 2 * features, features),
        }
    }

    fn apply(&self, x: Tensor, mask: Tensor) -> Tensor {
        let x = x + self.attention.apply(self.norm1.apply(x), Some(mask), None);
        x + self.down.apply(self.up.apply(self.norm2.apply(x)).gelu())
    }
}

#[derive(Clone, Tree)]
pub struct Transformer<T> {
    embed: Embed<T>,
    positions: Embed<T>,
    pub blocks: Vec<Block<T>>,
    norm: LayerNorm<T>,
}

impl Transformer<Tensor> {
    pub fn init(
        key: Key<Tensor>,
        vocabulary: usize,
        length: usize,
        features: usize,
    ) -> Transformer<Tensor> {
        let [embed, positions, first, second] = key.split_n();
        Transformer {
            embed: Embed::init(embed, vocabulary, features),
            positions: Embed::init(positions, length, features),
            blocks: vec![Block::init(first, features), Block::init(second, features)],
            norm: LayerNorm::init(features),
        }
    }

    /// Tokens `[batch, length]` to logits of the next ones.
    pub fn apply(&self, tokens: Tensor) -> Tensor {
        let positions = self.positions.apply(arange(tokens.dim(1), DType::I32));
        let mask = make_causal_mask(tokens);
        let x = self.embed.apply(tokens) + positions;
        let x = self.blocks.iter().fold(x, |x, block| block.apply(x, mask));
        self.embed.attend(self.norm.apply(x))
    }
}

/// A convolution without bias, and batch normalization.
#[derive(Clone, Tree)]
struct ConvNorm<T> {
    conv: Conv<T>,
    norm: BatchNorm<T>,
}

/// Batch statistics of all norms, in the order in which they are applied.
pub type Stats = Vec<BatchStats<Tensor>>;

impl ConvNorm<Tensor> {
    fn init(
        key: Key<Tensor>,
        inputs: usize,
        outputs: usize,
        size: usize,
        stride: usize,
    ) -> ConvNorm<Tensor> {
        let window = [size, size];
        let conv = Conv::init(key, &window, inputs, outputs, init::lecun_normal());
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
pub struct ResNet18<T> {
    stem: ConvNorm<T>,
    blocks: Vec<Residual<T>>,
    head: Dense<T>,
}

impl ResNet18<Tensor> {
    pub fn init(key: Key<Tensor>, width: usize, classes: usize) -> ResNet18<Tensor> {
        let [stem, head, blocks] = key.split_n();
        let (keys, mut blocks, mut inputs) = (blocks.split_n::<8>(), Vec::new(), width);
        for (k, key) in keys.into_iter().enumerate() {
            let [first, second, project] = key.split_n();
            let (features, stride) = (width << (k / 2), if [2, 4, 6].contains(&k) { 2 } else { 1 });
            blocks.push(Residual {
                first: ConvNorm::init(first, inputs, features, 3, stride),
                second: ConvNorm::init(second, features, features, 3, 1),
                project: (stride == 2).then(|| ConvNorm::init(project, inputs, features, 1, 2)),
            });
            inputs = features;
        }
        ResNet18 {
            stem: ConvNorm::init(stem, 3, width, 7, 2),
            blocks,
            head: dense(head, inputs, classes),
        }
    }

    pub fn apply(&self, x: Tensor, mut old: Stats, train: bool) -> (Tensor, Stats) {
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

/// Latents that attend to inputs of any length, and to themselves.
#[derive(Clone, Tree)]
pub struct Perceiver<T> {
    latents: T,
    norm_inputs: LayerNorm<T>,
    norm_latents: LayerNorm<T>,
    pub cross: MultiHeadDotProductAttention<T>,
    cross_norm: LayerNorm<T>,
    cross_up: Dense<T>,
    cross_down: Dense<T>,
    latent_norm: LayerNorm<T>,
    pub latent: SelfAttention<T>,
    head: Dense<T>,
}

impl Perceiver<Tensor> {
    pub fn init(key: Key<Tensor>, inputs: usize, features: usize) -> Perceiver<Tensor> {
        let [latents, cross, up, down, latent, head] = key.split_n();
        let kernel = init::lecun_normal();
        let sizes = [features, inputs, inputs];
        let cross = MultiHeadDotProductAttention::init_with(cross, 2, sizes, [features; 2], kernel);
        Perceiver {
            latents: init::normal(1.0).draw(latents, [4, features], DType::F32),
            norm_inputs: LayerNorm::init(inputs),
            norm_latents: LayerNorm::init(features),
            cross,
            cross_norm: LayerNorm::init(features),
            cross_up: dense(up, features, 2 * features),
            cross_down: dense(down, 2 * features, features),
            latent_norm: LayerNorm::init(features),
            latent: SelfAttention::init(latent, 2, features, kernel),
            head: dense(head, features, 3),
        }
    }

    pub fn apply(&self, inputs: Tensor) -> Tensor {
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
