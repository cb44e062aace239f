//! Layers and functions of `nn`, applied to tensors of a trace that has ended.

use podracer::envs::{ActionKind, ObsKind};
use podracer::nn::normalize::{
    NormalizeObservation, NormalizeReward, NormalizeRewardState, RunningMeanStd,
};
use podracer::nn::{
    Activation, AttentionOptions, BatchNorm, BatchRenorm, BatchRenormStats, BatchStats,
    Bidirectional, Conv, Conv2d, ConvLSTMCell, ConvLocal, ConvPadding, ConvTranspose2d, Dense,
    DenseGeneral, Dropout, Einsum, Embed, Encoder, GroupNorm, GruCell, ImageEncoder, ImpalaCnn,
    InstanceNorm, LayerNorm, Lru, LruOptions, LstmCell, MGUCell, MinGru, Mlp,
    MultiHeadDotProductAttention, PReLU, PolicyHead, RMSNorm, RNN, RecurrentCell, RecurrentState,
    RnnKind, SelfAttention, Sequential, SimpleCell, SpectralNorm, SpectralStats, WeightNorm,
    avg_pool, combine_masks, dot_product_attention, dot_product_attention_blockwise,
    dot_product_attention_weights, init, make_attention_mask, make_attention_mask_with,
    make_causal_mask, max_pool, min_pool, normed, reset_carry,
};
use podracer::random::Key;
use podracer::trace::Shape;
use podracer::trace::ops::{ConvOptions, Padding};
use podracer::{DType, Tensor, nn};

use super::every::Function;

/// Layers: of parameters that have leaked, or drawn with a key that has.
pub(super) const LAYERS: &[Function] = calls! {
    "Activation::apply" => |x| Activation::Tanh.apply(x),
    "Conv2d::apply" => |x| Conv2d { w: x, b: None, options: ConvOptions::default() }.apply(x),
    "Conv2d::init" => |x| Conv2d::init(key(x), [3, 3, 1, 1], ConvOptions::default(), init::lecun_normal()),
    "Conv2d::init_torch" => |x| Conv2d::init_torch(key(x), [3, 3, 1, 1], ConvOptions::default()),
    "Conv2d::init_with" => |x| {
        Conv2d::init_with(key(x), [3, 3, 1, 1], ConvOptions::default(), init::lecun_normal(), None)
    },
    "ConvTranspose2d::apply" => |x| {
        ConvTranspose2d { w: x, b: None, options: ConvOptions::default() }.apply(x)
    },
    "ConvTranspose2d::init" => |x| {
        ConvTranspose2d::init(key(x), [3, 3, 1, 1], ConvOptions::default(), init::lecun_normal())
    },
    "BatchNorm::apply" => |x| batch_norm(x).apply(x, batch_stats(x), true),
    "BatchNorm::apply_masked" => |x| batch_norm(x).apply_masked(x, batch_stats(x), x),
    "BatchRenorm::apply" => |x| {
        let layer = BatchRenorm {
            scale: None,
            bias: None,
            momentum: 0.9,
            epsilon: 1e-5,
            r_max: 3.0,
            d_max: 5.0,
            warmup_steps: 0,
        };
        layer.apply(x, BatchRenormStats { stats: batch_stats(x), steps: x }, true)
    },
    "DenseGeneral::apply" => |x| {
        DenseGeneral { kernel: x, bias: None, axis: vec![-1], batch_dims: 0 }.apply(x)
    },
    "DenseGeneral::init" => |x| DenseGeneral::init(key(x), &[2], &[2], init::lecun_normal()),
    "DenseGeneral::init_batched" => |x| {
        DenseGeneral::init_batched(key(x), &[2], &[2], &[2], init::lecun_normal())
    },
    "Dropout::apply" => |x| Dropout::new(0.5).apply(x, Some(key(x))),
    "Einsum::apply" => |x| {
        Einsum { kernel: x, bias: None, einsum_str: "ab,bc->ac".into() }.apply(x)
    },
    "Einsum::init" => |x| Einsum::init(key(x), &[2, 2], "ab,bc->ac", init::lecun_normal()),
    "Embed::apply" => |x| Embed { embedding: x }.apply(x),
    "Embed::attend" => |x| Embed { embedding: x }.attend(x),
    "Embed::init" => |x| Embed::init(key(x), 2, 2),
    "GroupNorm::apply" => |x| {
        GroupNorm { scale: None, bias: None, num_groups: 1, epsilon: 1e-6 }.apply(x)
    },
    "GroupNorm::apply_masked" => |x| {
        GroupNorm { scale: None, bias: None, num_groups: 1, epsilon: 1e-6 }.apply_masked(x, x)
    },
    "InstanceNorm::apply" => |x| {
        InstanceNorm { scale: None, bias: None, epsilon: 1e-6 }.apply(x)
    },
    "InstanceNorm::apply_masked" => |x| {
        InstanceNorm { scale: None, bias: None, epsilon: 1e-6 }.apply_masked(x, x)
    },
    "PReLU::apply" => |x| PReLU { negative_slope: x }.apply(x),
    "RMSNorm::apply" => |x| RMSNorm { scale: None, epsilon: 1e-6 }.apply(x),
    "RMSNorm::apply_masked" => |x| RMSNorm { scale: None, epsilon: 1e-6 }.apply_masked(x, x),
    "SpectralNorm::apply" => |x| {
        SpectralNorm::default().apply(x, SpectralStats { u: x, sigma: x }, true)
    },
    "SpectralNorm::init" => |x| SpectralNorm::default().init(key(x), 2),
    "WeightNorm::apply" => |x| WeightNorm { scale: None, epsilon: 1e-12 }.apply(x),
    "Dense::apply" => |x| dense(x).apply(x),
    "Dense::apply_batch" => |x| dense(x).apply_batch(x),
    "Dense::init" => |x| Dense::init(key(x), 2, 2, init::lecun_normal()),
    "Dense::init_torch" => |x| Dense::init_torch(key(x), 2, 2),
    "Dense::init_with" => |x| Dense::init_with(key(x), 2, 2, init::lecun_normal(), None),
    "Encoder::apply" => |x| encoder(x).apply(x),
    "Encoder::apply_scaled" => |x| encoder(x).apply_scaled(x),
    "Encoder::init" => |x| {
        Encoder::init(key(x), ObsKind::Vector, &Shape::from([3]), init::lecun_normal())
    },
    "Encoder::init_convs" => |x| {
        Encoder::init_convs(key(x), ObsKind::Board, &board(), init::lecun_normal())
    },
    "Encoder::init_with_keys" => |x| {
        let keys = vec![key(x), key(x)];
        Encoder::init_with_keys(keys, ObsKind::Board, &board(), init::lecun_normal())
    },
    "Encoder::scaled" => |x| Encoder::scaled(ObsKind::Image, x),
    "Encoder::size" => |x| encoder(x).size(),
    "Encoder::with_hidden" => |x| encoder(x).with_hidden(key(x), init::lecun_normal()),
    "GruCell::advance" => |x| GruCell { w_i: x, w_h: x, b: x, b_n: x }.advance(x, x),
    "GruCell::apply" => |x| GruCell { w_i: x, w_h: x, b: x, b_n: x }.apply(x, x),
    "GruCell::init" => |x| GruCell::init(key(x), 2, 2),
    "GruCell::project" => |x| GruCell { w_i: x, w_h: x, b: x, b_n: x }.project(x),
    "GruCell::start" => |x| GruCell { w_i: x, w_h: x, b: x, b_n: x }.start(2),
    "ImageEncoder::apply" => |x| ImageEncoder::Nature(encoder(x)).apply(x),
    "ImageEncoder::impala" => |x| {
        let sizes = (&[16][..], &[256][..]);
        ImageEncoder::impala(key(x), ObsKind::Board, &board(), sizes, init::lecun_normal())
    },
    "ImageEncoder::impala_normed" => |x| {
        ImageEncoder::impala_normed(key(x), ObsKind::Image, &Shape::from([4, 84, 84]))
    },
    "ImageEncoder::size" => |x| ImageEncoder::Nature(encoder(x)).size(),
    "ImpalaCnn::apply" => |x| impala(x).apply(x),
    "ImpalaCnn::init" => |x| ImpalaCnn::init(key(x), [8, 8, 4], &[4], &[8], init::lecun_normal()),
    "ImpalaCnn::size" => |x| impala(x).size(),
    "Init::draw" => |x| init::lecun_normal().draw(key(x), [2, 2], DType::F32),
    "LayerNorm::apply" => |x| LayerNorm { scale: x, bias: x, eps: 1e-6 }.apply(x),
    "LayerNorm::apply_masked" => |x| LayerNorm { scale: x, bias: x, eps: 1e-6 }.apply_masked(x, x),
    "reset_carry" => |x| reset_carry(x, x),
    "LstmCell::advance" => |x| LstmCell { w_i: x, w_h: x, b: x }.advance(x, (x, x)),
    "LstmCell::apply" => |x| LstmCell { w_i: x, w_h: x, b: x }.apply(x, (x, x)),
    "LstmCell::init" => |x| LstmCell::init(key(x), 2, 2),
    "LstmCell::init_orthogonal" => |x| LstmCell::init_orthogonal([key(x), key(x)], 2, 2),
    "LstmCell::project" => |x| LstmCell { w_i: x, w_h: x, b: x }.project(x),
    "LstmCell::start" => |x| LstmCell { w_i: x, w_h: x, b: x }.start(2),
    "Lru::advance" => |x| lru(x).advance(x, (x, x)),
    "Lru::apply" => |x| lru(x).apply(x, (x, x)),
    "Lru::init" => |x| Lru::init(key(x), 2, 2),
    "Lru::init_with" => |x| Lru::init_with(key(x), 2, 2, 2, LruOptions::default()),
    "Lru::project" => |x| lru(x).project(x),
    "Lru::scan" => |x| lru(x).scan(x, None, (x, x)),
    "Lru::start" => |x| lru(x).start(2),
    "MinGru::advance" => |x| MinGru { w: x, b: x }.advance(x, x),
    "MinGru::apply" => |x| MinGru { w: x, b: x }.apply(x, x),
    "MinGru::init" => |x| MinGru::init(key(x), 2, 2),
    "MinGru::project" => |x| MinGru { w: x, b: x }.project(x),
    "MinGru::scan" => |x| MinGru { w: x, b: x }.scan(x, None, x),
    "MinGru::start" => |x| MinGru { w: x, b: x }.start(2),
    "RecurrentCell::advance" => |x| min_gru(x).advance(x, RecurrentState::One(x)),
    "RecurrentCell::init" => |x| RecurrentCell::init(RnnKind::MinGru, key(x), 2, 2),
    "RecurrentCell::project" => |x| min_gru(x).project(x),
    "RecurrentCell::start" => |x| min_gru(x).start(2),
    "RecurrentCell::unroll" => |x| min_gru(x).unroll(x, None, RecurrentState::One(x)),
    "RecurrentState::stack" => |x| RecurrentState::Two((x, x)).stack(),
    "RecurrentState::unstack" => |x| RecurrentState::unstack(x),
    "Mlp::apply" => |x| Mlp { layers: vec![dense(x)], activation: Activation::Relu }.apply(x),
    "Mlp::init" => |x| Mlp::init(key(x), &[2, 2], Activation::Relu),
    "Mlp::init_with" => |x| {
        Mlp::init_with(key(x), &[2, 2], Activation::Relu, init::lecun_normal(), init::lecun_normal())
    },
    "normed" => |x| normed(x, 1.0),
    "PolicyHead::apply" => |x| PolicyHead { layer: dense(x), log_std: None }.apply(x),
    "PolicyHead::init" => |x| PolicyHead::init(key(x), 2, ActionKind::Continuous { size: 2 }),
    "NormalizeObservation::apply" => |x| NormalizeObservation::default().apply(x, &statistics(x)),
    "NormalizeObservation::step" => |x| NormalizeObservation::default().step(x, statistics(x)),
    "NormalizeReward::step" => |x| {
        let state = NormalizeRewardState { returns: x, stats: statistics(x) };
        NormalizeReward::default().step(x, x, state)
    },
    "RunningMeanStd::normalize" => |x| statistics(x).normalize(x, 1e-8),
    "RunningMeanStd::update" => |x| statistics(x).update(x),
    "Bidirectional::apply" => |x| bidirectional(x).apply(x, None, None),
    "Bidirectional::apply_with" => |x| bidirectional(x).apply_with(x, None, None, |a, _| a),
    "Conv::apply" => |x| conv(x).apply(x),
    "Conv::init" => |x| Conv::init(key(x), &[2], 2, 2, init::lecun_normal()),
    "Conv::init_grouped" => |x| Conv::init_grouped(key(x), &[2], [2, 2], 2, init::lecun_normal()),
    "ConvLSTMCell::apply" => |x| ConvLSTMCell { ih: conv(x), hh: conv(x) }.apply(x, (x, x)),
    "ConvLSTMCell::init" => |x| ConvLSTMCell::init(key(x), &[2], 2, 2, init::lecun_normal()),
    "ConvLocal::apply" => |x| {
        let (kernel_size, padding) = (vec![1], ConvPadding::Circular);
        ConvLocal { kernel: x, bias: None, kernel_size, strides: vec![], padding }.apply(x)
    },
    "ConvLocal::init" => |x| {
        ConvLocal::init(key(x), &[2], &[3], [2, 2], init::lecun_normal())
    },
    "ConvTranspose::apply" => |x| {
        let layer = conv(x);
        nn::ConvTranspose {
            kernel: x,
            bias: None,
            strides: layer.strides,
            padding: nn::ConvPadding::Zeros(Padding::Same),
            kernel_dilation: vec![],
            transpose_kernel: false,
        }
        .apply(x)
    },
    "ConvTranspose::init" => |x| {
        nn::ConvTranspose::init(key(x), &[2], 2, 2, init::lecun_normal())
    },
    "MGUCell::apply" => |x| MGUCell { w_i: x, w_h: x, b: x, b_n: None }.apply(x, x),
    "MGUCell::init" => |x| MGUCell::init(key(x), 2, 2),
    "MultiHeadDotProductAttention::apply" => |x| multi_head(x).apply(x, x, x, None, None),
    "MultiHeadDotProductAttention::apply_with" => |x| multi_head(x).apply_with(x, x, x, |q, _, _| q),
    "MultiHeadDotProductAttention::decode" => |x| {
        let cache = nn::AttentionCache { cached_key: x, cached_value: x, cache_index: x };
        multi_head(x).decode(x, cache, None)
    },
    "MultiHeadDotProductAttention::init" => |x| {
        MultiHeadDotProductAttention::init(key(x), 2, 4, init::lecun_normal())
    },
    "MultiHeadDotProductAttention::init_cache" => |x| multi_head(x).init_cache(&[2], 3),
    "MultiHeadDotProductAttention::init_with" => |x| {
        MultiHeadDotProductAttention::init_with(key(x), 2, [4; 3], [4; 2], init::lecun_normal())
    },
    "RNN::apply" => |x| RNN::new(simple_cell(x)).apply(x, None, None),
    "SelfAttention::apply" => |x| SelfAttention { attention: multi_head(x) }.apply(x, None, None),
    "SelfAttention::init" => |x| SelfAttention::init(key(x), 2, 4, init::lecun_normal()),
    "Sequential::apply" => |x| Sequential { layers: (dense(x), Activation::Relu) }.apply(x),
    "SimpleCell::apply" => |x| simple_cell(x).apply(x, x),
    "SimpleCell::init" => |x| SimpleCell::init(key(x), 2, 2),
    "avg_pool" => |x| avg_pool(x, [2], [2], &Padding::Valid, false),
    "combine_masks" => |x| combine_masks(&[Some(x)]),
    "dot_product_attention" => |x| dot_product_attention(x, x, x, AttentionOptions::default()),
    "dot_product_attention_blockwise" => |x| {
        dot_product_attention_blockwise(x, x, x, AttentionOptions::default(), [2, 2])
    },
    "dot_product_attention_weights" => |x| {
        dot_product_attention_weights(x, x, AttentionOptions::default())
    },
    "make_attention_mask" => |x| make_attention_mask(x, x),
    "make_attention_mask_with" => |x| make_attention_mask_with(x, x, |q, k| q.ge(k)),
    "make_causal_mask" => |x| make_causal_mask(x),
    "min_pool" => |x| min_pool(x, [2], [2], &Padding::Valid),
    "max_pool" => |x| max_pool(x, [2, 2], [2, 2], &Padding::Valid),
};

fn dense(x: Tensor) -> Dense<Tensor> {
    Dense { w: x, b: None }
}

fn conv(x: Tensor) -> Conv<Tensor> {
    Conv {
        kernel: x,
        bias: None,
        strides: vec![],
        padding: ConvPadding::Circular,
        input_dilation: vec![],
        kernel_dilation: vec![],
        feature_group_count: 1,
    }
}

fn simple_cell(x: Tensor) -> SimpleCell<Tensor> {
    SimpleCell { w_i: x, w_h: x, b: x, residual: false }
}

fn bidirectional(x: Tensor) -> Bidirectional<SimpleCell<Tensor>, SimpleCell<Tensor>> {
    let rnn = || RNN::new(simple_cell(x));
    Bidirectional { forward_rnn: rnn(), backward_rnn: rnn() }
}

fn multi_head(x: Tensor) -> MultiHeadDotProductAttention<Tensor> {
    let dense = || DenseGeneral { kernel: x, bias: None, axis: vec![-1], batch_dims: 0 };
    MultiHeadDotProductAttention {
        query: dense(),
        key: dense(),
        value: dense(),
        out: dense(),
        normalize_qk: None,
        dropout_rate: 0.0,
        broadcast_dropout: true,
    }
}

pub(super) fn batch_norm(x: Tensor) -> BatchNorm<Tensor> {
    BatchNorm { scale: Some(x), bias: Some(x), momentum: 0.9, epsilon: 1e-5 }
}

pub(super) fn batch_stats(x: Tensor) -> BatchStats<Tensor> {
    BatchStats { mean: x, var: x }
}

fn encoder(x: Tensor) -> Encoder<Tensor> {
    let (dense, shape) = (vec![dense(x)], [3].into());
    Encoder { convs: vec![], dense, obs_kind: ObsKind::Vector, shape, compute_dtype: DType::F32 }
}

fn board() -> Shape {
    Shape::from([10, 10, 4])
}

fn impala(x: Tensor) -> ImpalaCnn<Tensor> {
    ImpalaCnn { sequences: vec![], hidden: vec![dense(x)] }
}

fn statistics(x: Tensor) -> RunningMeanStd<Tensor> {
    RunningMeanStd { mean: x, var: x, count: x }
}

fn key(words: Tensor) -> Key<Tensor> {
    Key::from_data(words)
}

fn lru(x: Tensor) -> Lru<Tensor> {
    Lru { nu_log: x, theta_log: x, gamma_log: x, b: x, c: x, d: x }
}

fn min_gru(x: Tensor) -> RecurrentCell<Tensor> {
    RecurrentCell::MinGru(MinGru { w: x, b: x })
}
