//! Transformer-XL over a window of the steps of an episode.

use clap::ValueEnum;
use serde::Serialize;

use super::Args;
use crate::nn::{
    Dense, LayerNorm,
    init::{normal, torch_default},
};
use crate::rl::merge_time_and_env;
use crate::trace::DType;
use crate::trace::numpy::einsum;
use crate::trace::ops::{
    IndexMode, arange, concatenate, constant, full_like, stack, where_, zeros_like,
};
use crate::tree::Tree;
use crate::{Key, Tensor};

/// Encoding of the episode steps of memories, added to the memories of every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PositionalEncoding {
    /// No encoding.
    #[value(alias = "")]
    None,
    /// Sine and cosine of the steps to the end of the longest episode (Vaswani et al. 2017).
    Absolute,
    /// A learned vector for each episode step.
    Learned,
}

/// Attention whose heads share their projections.
#[derive(Debug, Clone, Tree)]
pub struct MultiHeadAttention<T> {
    pub values: Dense<T>,  // projection of the values of a head
    pub keys: Dense<T>,    // projection of the keys of a head
    pub queries: Dense<T>, // projection of the query of a head
    pub fc_out: Dense<T>,  // layer from all heads to the result
    pub num_heads: usize,
}

impl MultiHeadAttention<Tensor> {
    fn init(key: Key<Tensor>, embed_dim: usize, num_heads: usize) -> MultiHeadAttention<Tensor> {
        let [values, keys, queries, fc_out] = key.split_n();
        let head_size = embed_dim / num_heads;
        let projection = |key| Dense::init_with(key, head_size, head_size, torch_default(), None);
        MultiHeadAttention {
            values: projection(values),
            keys: projection(keys),
            queries: projection(queries),
            fc_out: Dense::init_torch(fc_out, embed_dim, embed_dim),
            num_heads,
        }
    }

    /// Maps a query `f32[B, dim]` and memories `f32[B, W, dim]`, of which it attends to those where
    /// `mask: bool[B, W]` is true, to `f32[B, dim]`. Where all are masked it attends to all equally.
    pub fn apply(&self, memories: Tensor, query: Tensor, mask: Tensor) -> Tensor {
        let [batch, window, dim] = [0, 1, 2].map(|axis| memories.dim(axis));
        let head_size = dim / self.num_heads;
        let memories = memories.reshape([batch, window, self.num_heads, head_size]);
        let (values, keys) = (self.values.apply(memories), self.keys.apply(memories));
        let queries = self.queries.apply(query.reshape([batch, self.num_heads, head_size]));
        let energy = einsum("nhd,nkhd->nhk", &[queries, keys]);
        let mask = mask.expand_dims(1).broadcast_to(energy.shape());
        let energy = where_(mask, energy, full_like(energy, -1e20));
        let attention = (energy / (dim as f64).sqrt()).softmax(-1);
        let out = einsum("nhk,nkhd->nhd", &[attention, values]);
        self.fc_out.apply(out.reshape([batch, dim]))
    }
}

/// Layer of the transformer, with normalization before attention and before the projection.
#[derive(Debug, Clone, Tree)]
pub struct TransformerLayer<T> {
    pub attention: MultiHeadAttention<T>, // attention of the input to the memories
    pub layer_norm_q: LayerNorm<T>,       // normalization of the query
    pub norm_kv: LayerNorm<T>,            // normalization of keys and values
    pub layer_norm_attn: LayerNorm<T>,    // normalization before the projection
    pub fc_projection: Dense<T>,          // projection after the attention
}

impl TransformerLayer<Tensor> {
    fn init(key: Key<Tensor>, dim: usize, num_heads: usize) -> TransformerLayer<Tensor> {
        let (attention, fc_projection) = key.split();
        let norm = || LayerNorm { eps: 1e-5, ..LayerNorm::init(dim) };
        TransformerLayer {
            attention: MultiHeadAttention::init(attention, dim, num_heads),
            layer_norm_q: norm(),
            norm_kv: norm(),
            layer_norm_attn: norm(),
            fc_projection: Dense::init_torch(fc_projection, dim, dim),
        }
    }

    /// Maps `query: f32[B, dim]` to the same shape.
    pub fn apply(&self, memories: Tensor, query: Tensor, mask: Tensor) -> Tensor {
        let (memories, query_) = (self.norm_kv.apply(memories), self.layer_norm_q.apply(query));
        let x = self.attention.apply(memories, query_, mask) + query;
        self.fc_projection.apply(self.layer_norm_attn.apply(x)).relu() + x
    }
}

/// Memory windows of B steps.
#[derive(Debug, Clone, Copy, Tree)]
pub struct MemoryWindow<T> {
    pub memories: T, // f32[B, W, layers, dim]: inputs of the layers in the steps of the window
    pub mask: T,     // bool[B, W]: true for steps before this one
    pub indices: T,  // i32[B, W]: steps of the episode
}

/// Returns the memory windows of steps `episode_steps: i32[B]` of their episodes. The last W steps
/// before step b are in rows `starts[b]` to `starts[b] + W - 1` of `stored_memories: f32[rows, layers,
/// dim]`, oldest first; `starts: i32[B]`.
///
/// The window of step t is steps `max(0, t - W + 1)` to `max(0, t - W + 1) + W - 1` of the episode.
/// Steps t and later are masked, and their memories are zeros.
pub fn memory_window(
    stored_memories: Tensor,
    starts: Tensor,
    episode_steps: Tensor,
    memory_length: usize,
) -> MemoryWindow<Tensor> {
    let window = memory_length as i32;
    let indices = (episode_steps - (window - 1)).maximum(0).expand_dims(-1)
        + arange(memory_length, DType::I32).expand_dims(0); // i32[B, W]
    let mask = indices.lt(episode_steps.expand_dims(-1));
    let rows = (starts + window - episode_steps).expand_dims(-1) + indices;
    // Rows of steps to come are those of another environment, or beyond the last row.
    let rows = where_(mask, rows, zeros_like(rows));
    let memories = stored_memories.take_mode(rows, 0, IndexMode::Clip);
    let written = mask.to(DType::F32).expand_dims(-1).expand_dims(-1);
    MemoryWindow { memories: memories * written, mask, indices }
}

/// Returns the memory windows of environments in steps `i32[N]` of their episodes, from the memories
/// `f32[N, W, layers, dim]` of their last W steps.
pub(super) fn env_window(memory: Tensor, steps: Tensor) -> MemoryWindow<Tensor> {
    let [num_envs, window] = [memory.dim(0), memory.dim(1)];
    let starts = arange(num_envs, DType::I32) * window as i32;
    memory_window(merge_time_and_env(memory), starts, steps, window)
}

/// Returns the memories of the last W steps after a step with new memories `f32[N, layers, dim]`.
pub(super) fn append_memory(memory: Tensor, new: Tensor) -> Tensor {
    let newer = memory.slice_axis(1, 1, memory.dim(1));
    concatenate(&[newer, new.expand_dims(1)], 1)
}

/// Transformer-XL without gradients through its memories.
#[derive(Debug, Clone, Tree)]
pub struct Transformer<T> {
    pub transformer_layers: Vec<TransformerLayer<T>>, // layers, in order
    pub pos_embedding: Option<T>, // f32[max_episode_steps, dim]: learned positional encoding
    pub max_episode_steps: usize, // maximum number of steps of an episode
    pub absolute: bool,           // true for the positional encoding by sine and cosine
}

impl Transformer<Tensor> {
    pub(super) fn init(
        key: Key<Tensor>,
        max_episode_steps: usize,
        args: &Args,
    ) -> Transformer<Tensor> {
        let (layers, positions) = key.split();
        let layers = layers.split_vec(args.trxl_num_layers).into_iter();
        let (dim, num_heads) = (args.trxl_dim, args.trxl_num_heads);
        let learned = args.trxl_positional_encoding == PositionalEncoding::Learned;
        Transformer {
            transformer_layers: layers
                .map(|key| TransformerLayer::init(key, dim, num_heads))
                .collect(),
            pos_embedding: learned
                .then(|| normal(1.0).draw(positions, [max_episode_steps, dim], DType::F32)),
            max_episode_steps,
            absolute: args.trxl_positional_encoding == PositionalEncoding::Absolute,
        }
    }

    /// Returns the encoding `f32[B, W, dim]` of the episode steps `indices: i32[B, W]`.
    fn positional_encoding(&self, indices: Tensor, dim: usize) -> Option<Tensor> {
        let last = self.max_episode_steps as i32 - 1;
        if self.absolute {
            let frequencies: Vec<f32> =
                (0..dim).step_by(2).map(|i| 1e4f64.powf(-(i as f64) / dim as f64) as f32).collect();
            let remaining = (last - indices).maximum(0).to(DType::F32).expand_dims(-1);
            let angles = remaining * constant(frequencies.as_slice());
            return Some(concatenate(&[angles.sin(), angles.cos()], -1));
        }
        self.pos_embedding.map(|table| table.take_mode(indices, 0, IndexMode::Clip))
    }

    /// Maps `x: f32[B, dim]` to the output of the last layer and the new memories `f32[B, layers,
    /// dim]`: the inputs of the layers.
    pub fn apply(&self, mut x: Tensor, window: &MemoryWindow<Tensor>) -> (Tensor, Tensor) {
        let mut memories = window.memories;
        if let Some(encoding) = self.positional_encoding(window.indices, x.dim(-1)) {
            memories = memories + encoding.expand_dims(2);
        }
        let mut out_memories = Vec::new();
        for (i, layer) in self.transformer_layers.iter().enumerate() {
            out_memories.push(x.stop_gradient());
            x = layer.apply(memories.index_axis(2, i as isize), x, window.mask);
        }
        (x, stack(&out_memories, 1))
    }
}
