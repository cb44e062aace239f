//! Trains a small transformer language model on the guides of this repository, and writes text with it.
//!
//! You learn how a whole model is written that is no reinforcement learning: blocks in a `scan`, a dropout key
//! for each, recomputation in the backward pass (`checkpoint`), products in bfloat16 with parameters in
//! float32, AdamW with warm-up and cosine decay, and data-parallel steps by `shard_map`. The guide
//! docs/language-model.md explains the parts.
//!
//! ```sh
//! cargo run --release --example transformer
//! ```

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use podracer::losses::softmax_cross_entropy_with_integer_labels;
use podracer::nn::{
    Dense, Dropout, Embed, LayerNorm, MultiHeadDotProductAttention, init, make_causal_mask,
};
use podracer::optim::{
    Chain, ClipByGlobalNorm, Optimizer, Schedule, chain, clip_by_global_norm,
    warmup_cosine_decay_schedule,
};
use podracer::prelude::*;
use podracer::runtime::{Runtime, RuntimeOptions};
use podracer::trace::ops::{arange, concatenate};
use podracer::{P, axis_index, device_get, device_put, make_mesh, pmean, shard_map, sharded_jit};

/// Text to learn, if no file is given.
const GUIDES: [&str; 8] = [
    include_str!("../docs/from-scratch.md"),
    include_str!("../docs/custom-algorithm.md"),
    include_str!("../docs/jax-users.md"),
    include_str!("../docs/runs.md"),
    include_str!("../docs/gpus.md"),
    include_str!("../docs/decisions/0002-convolutions-on-cpu.md"),
    include_str!("../docs/sebulba.md"),
    include_str!("../docs/adding-an-op.md"),
];

/// Attention heads of a block.
const HEADS: usize = 4;

/// Command line.
#[derive(Parser)]
pub struct Args {
    /// Gradient steps
    #[arg(long, default_value = "1000")]
    pub steps: u32,
    /// Devices over which a batch is divided
    #[arg(long, default_value = "2")]
    pub num_devices: usize,
    /// Sequences of a batch, over all devices
    #[arg(long, default_value = "16")]
    pub batch_size: usize,
    /// Bytes of a sequence
    #[arg(long, default_value = "64")]
    pub length: usize,
    /// Blocks of the model
    #[arg(long, default_value = "2")]
    pub layers: usize,
    /// Features of each byte
    #[arg(long, default_value = "64")]
    pub features: usize,
    /// Dropout rate
    #[arg(long, default_value = "0.05")]
    pub dropout: f64,
    /// Learning rate at the end of the warm-up
    #[arg(long, default_value = "0.006")]
    pub learning_rate: f64,
    /// Compute in bfloat16; parameters stay in float32
    #[arg(long)]
    pub bf16: bool,
    /// Recompute each block in the backward pass, which takes less memory and more time
    #[arg(long)]
    pub remat: bool,
    /// Seed of the parameters, the batches and the dropout
    #[arg(long, default_value = "1")]
    pub seed: u64,
    /// Text file to learn instead of the guides
    #[arg(long)]
    pub text: Option<PathBuf>,
}

/// Pre-norm block: attention, then two dense layers, each added to its input.
#[derive(Tree, Clone)]
pub struct Block<T> {
    norm1: LayerNorm<T>,
    attention: MultiHeadDotProductAttention<T>,
    norm2: LayerNorm<T>,
    up: Dense<T>,
    down: Dense<T>,
    dropout: Dropout,
}

impl Block<Tensor> {
    fn init(key: Key<Tensor>, args: &Args) -> Block<Tensor> {
        let [attention, up, down] = key.split_n();
        let (features, kernel) = (args.features, init::lecun_normal());
        let attention = MultiHeadDotProductAttention::init(attention, HEADS, features, kernel);
        Block {
            norm1: LayerNorm::init(features),
            attention: MultiHeadDotProductAttention { dropout_rate: args.dropout, ..attention },
            norm2: LayerNorm::init(features),
            up: Dense::init(up, features, 4 * features, kernel),
            down: Dense::init(down, 4 * features, features, kernel),
            dropout: Dropout::new(args.dropout),
        }
    }

    /// Maps `x: [batch, length, features]` to the same shape. A key switches dropout on.
    fn apply(&self, x: Tensor, mask: Tensor, key: Option<Key<Tensor>>) -> Tensor {
        let [weights_key, attention_key, mlp_key] = match key {
            Some(key) => key.split_n().map(Some),
            None => [None, None, None],
        };
        let y = self.norm1.apply(x);
        let y = self.attention.apply(y, y, y, Some(mask), weights_key);
        let x = x + self.dropout.apply(y, attention_key);
        let y = self.down.apply(self.up.apply(self.norm2.apply(x)).gelu());
        x + self.dropout.apply(y, mlp_key)
    }
}

/// Decoder-only transformer over bytes.
#[derive(Tree, Clone)]
pub struct Transformer<T> {
    embed: Embed<T>,
    positions: Embed<T>,
    /// All blocks: each parameter has a leading axis of layers.
    blocks: Block<T>,
    norm: LayerNorm<T>,
    /// Element type of the computation.
    dtype: DType,
    /// Blocks are recomputed in the backward pass.
    remat: bool,
}

impl Transformer<Tensor> {
    /// Initializes a model.
    pub fn init(key: Key<Tensor>, args: &Args) -> Transformer<Tensor> {
        let [embed, positions, blocks] = key.split_n();
        Transformer {
            embed: Embed::init(embed, 256, args.features),
            positions: Embed::init(positions, args.length, args.features),
            blocks: vmap(|key| Block::init(key, args))(blocks.split_batch(args.layers)),
            norm: LayerNorm::init(args.features),
            dtype: if args.bf16 { DType::BF16 } else { DType::F32 },
            remat: args.remat,
        }
    }

    /// Maps `tokens: [batch, length]` to logits of the tokens that follow, `f32[batch, length, 256]`.
    pub fn apply(&self, tokens: Tensor, dropout_key: Option<Key<Tensor>>) -> Tensor {
        let cast = |param: Tensor| param.to(self.dtype);
        let Transformer { embed, positions, blocks, norm, .. } = tree::map(self.clone(), cast);
        let index = arange(tokens.dim(1), DType::I32);
        let mask = make_causal_mask(index);
        let x = embed.apply(tokens) + positions.apply(index);

        type Layer = (Block<Tensor>, Option<Key<Tensor>>);
        let apply_block = |(x, (block, key)): (Tensor, Layer)| block.apply(x, mask, key);
        let layer = |x: Tensor, layer: Layer| match self.remat {
            true => (checkpoint(apply_block)((x, layer)), ()),
            false => (apply_block((x, layer)), ()),
        };
        let layers = blocks.norm1.scale.dim(0);
        let keys = dropout_key.map(|key| key.split_batch(layers));
        let (x, ()) = scan(layer, x, (blocks, keys));
        embed.attend(norm.apply(x)).to(DType::F32)
    }
}

/// Mean cross-entropy in nats of each byte of `tokens: [batch, length + 1]` but the first.
pub fn loss(
    model: &Transformer<Tensor>,
    tokens: Tensor,
    dropout_key: Option<Key<Tensor>>,
) -> Tensor {
    let length = tokens.dim(1) - 1;
    let logits = model.apply(tokens.slice_axis(1, 0, length), dropout_key);
    let next = tokens.slice_axis(1, 1, length + 1);
    softmax_cross_entropy_with_integer_labels(logits, next).mean(..)
}

/// AdamW of clipped gradients.
pub fn optimizer(args: &Args) -> Chain<(ClipByGlobalNorm, Adam<Schedule>)> {
    let peak = args.learning_rate;
    let schedule = warmup_cosine_decay_schedule(0.0, peak, args.steps / 10, args.steps, 0.1 * peak);
    chain((clip_by_global_norm(1.0), Adam { weight_decay: 0.1, ..optim::adamw(schedule) }))
}

/// Everything that a gradient step changes.
#[derive(Tree)]
pub struct TrainState<T> {
    /// Parameters.
    pub model: Transformer<T>,
    /// State of clipping, which has none, and of AdamW.
    pub opt_state: ((), AdamState<T, Transformer<T>>),
    /// Key of the dropout to come.
    pub key: Key<T>,
}

/// Initializes model and optimizer.
pub fn init_state(key: Key<Tensor>, args: &Args) -> TrainState<Tensor> {
    let (model_key, key) = key.split();
    let model = Transformer::init(model_key, args);
    let opt_state = optimizer(args).init(&model);
    TrainState { model, opt_state, key }
}

/// One gradient step on one device of the mesh axis "data", with this device's part of the batch.
pub fn train_step(
    state: TrainState<Tensor>,
    tokens: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { model, opt_state, key } = state;
    let (dropout_key, key) = key.split();
    // Each device drops other elements. The loss, an `Fn`, cannot consume a key, so it captures its data.
    let words = dropout_key.fold_in(axis_index("data")).into_data();
    let loss_fn = |model: Transformer<Tensor>| loss(&model, tokens, Some(Key::from_data(words)));
    let (loss, grads) = pmean(value_and_grad(loss_fn)(model.clone()), "data");
    let (model, opt_state) = optimizer(args).step(model, grads, opt_state);
    (TrainState { model, opt_state, key }, loss)
}

/// Sequences of `length + 1` bytes from random places of `text`.
fn sample_batch(key: Key<Tensor>, text: Tensor, args: &Args) -> Tensor {
    let end = (text.dim(0) - args.length) as i32;
    let starts = random::randint(key, [args.batch_size], 0, end, DType::I32);
    vmap(|start: Tensor| text.dynamic_slice_axis(0, start, args.length + 1))(starts)
}

/// Continues `prompt`, a sequence of the model's length, by `count` bytes.
fn generate(model: &Transformer<Tensor>, prompt: Tensor, key: Key<Tensor>, count: usize) -> Tensor {
    let write = |window: Tensor, key: Key<Tensor>| {
        let logits = model.apply(window.expand_dims(0), None).index_axis(1, -1);
        let next = random::categorical(key, logits / 0.8, -1);
        let kept = window.slice_axis(0, 1, window.dim(0));
        (concatenate(&[kept, next], 0), next)
    };
    scan(write, prompt, key.split_batch(count)).1.squeeze(-1)
}

/// Cross-entropy in nats of bytes predicted by their frequencies alone.
fn unigram_entropy(text: &[i32]) -> f64 {
    let mut counts = [0; 256];
    text.iter().for_each(|byte| counts[*byte as usize] += 1);
    let shares = counts.iter().map(|count| f64::from(*count) / text.len() as f64);
    shares.filter(|share| *share > 0.0).map(|share| -share * share.ln()).sum()
}

fn main() -> Result<()> {
    let args = Args::parse();
    let bytes = match &args.text {
        Some(path) => std::fs::read(path).map_err(|error| Error::Argument(error.to_string()))?,
        None => GUIDES.concat().into_bytes(),
    };
    let text: Vec<i32> = bytes.into_iter().map(i32::from).collect();
    println!("{} bytes, unigram entropy {:.3}", text.len(), unigram_entropy(&text));
    let (train_text, held_out) = text.split_at(text.len() * 9 / 10);
    let train_text = Array::from(train_text);

    Runtime::start(RuntimeOptions::with_cpu_devices(args.num_devices))?;
    let mesh = make_mesh(&[args.num_devices], &["data"])?;
    // State and model are replicated; batches are divided.
    let specs = (P(()), P("data"));
    let step = |(state, tokens)| train_step(state, tokens, &args);
    let step = sharded_jit(shard_map(step, &mesh, specs.clone(), P(())));
    let evaluate = |(model, tokens)| pmean(loss(&model, tokens, None), "data");
    let evaluate = sharded_jit(shard_map(evaluate, &mesh, specs, P(())));
    let sample = jit(|(text, i): (Tensor, Tensor)| {
        sample_batch(Key::constant(args.seed).fold_in(i), text, &args)
    });

    // All of the held-out text, in sequences of `length + 1` bytes.
    let rows = held_out.len() / (args.length + 1) / args.num_devices * args.num_devices;
    let held_out = Array::new([rows, args.length + 1], &held_out[..rows * (args.length + 1)])?;
    let held_out_tokens = device_put(&held_out, (&mesh, P("data")))?;
    let state = jit(|key| init_state(key, &args)).call(Key::new(args.seed))?;
    let mut state = device_put(&state, (&mesh, P(())))?;

    let report_every = (args.steps / 10).max(1);
    let (mut sum, mut start) = (0.0, Instant::now());
    for i in 1..=args.steps {
        let tokens = sample.call((train_text.clone(), Array::from(i)))?;
        let tokens = device_put(&tokens, (&mesh, P("data")))?;
        let loss;
        (state, loss) = step.call((state, tokens))?;
        sum += device_get(&loss)?.item::<f32>()?;
        if i % report_every == 0 {
            let ms = 1e3 * start.elapsed().as_secs_f64() / f64::from(report_every);
            let held_out_loss = evaluate.call((state.model.clone(), held_out_tokens.clone()))?;
            let held_out_loss = device_get(&held_out_loss)?.item::<f32>()?;
            let loss = sum / report_every as f32;
            println!("step {i:5}  loss {loss:.3}  held-out {held_out_loss:.3}  {ms:.1} ms a step");
            (sum, start) = (0.0, Instant::now());
        }
    }

    let write = jit(|(model, held_out, key): (Transformer<Tensor>, Tensor, Key<Tensor>)| {
        let prompt = held_out.index_axis(0, 0).slice_axis(0, 0, args.length);
        (prompt, generate(&model, prompt, key, 300))
    });
    let model = device_get(&state.model)?;
    let (prompt, written) = write.call((model, held_out, Key::new(args.seed)))?;
    for (title, tokens) in [("prompt", prompt), ("written", written)] {
        let bytes: Vec<u8> = tokens.to_vec::<i32>()?.into_iter().map(|byte| byte as u8).collect();
        println!("--- {title}\n{}", String::from_utf8_lossy(&bytes));
    }
    Ok(())
}
