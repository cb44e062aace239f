//! Normalization, linear layers, embeddings and dropout.

use podracer::nn::{
    BatchNorm, BatchRenorm, BatchRenormStats, BatchStats, Conv2d, Dense, DenseGeneral, Dropout,
    Einsum, Embed, GroupNorm, InstanceNorm, LayerNorm, PReLU, RMSNorm, SpectralNorm, SpectralStats,
    WeightNorm,
};
use podracer::trace::ops::{ConvOptions, Padding};
use podracer::{Array, DType, Error, Key, Result, Tensor, interpret, vmap_axis};

use crate::names::Function;

fn batch_norm(x: &[Tensor], train: bool) -> Vec<Tensor> {
    let layer =
        BatchNorm { scale: Some(x[1]), bias: Some(x[2]), momentum: 0.9, ..BatchNorm::init(4).0 };
    let (y, stats) = layer.apply(x[0], BatchStats { mean: x[3], var: x[4] }, train);
    vec![y, stats.mean, stats.var]
}

fn batch_norm_masked(x: &[Tensor]) -> Vec<Tensor> {
    let layer =
        BatchNorm { scale: Some(x[2]), bias: Some(x[3]), momentum: 0.9, ..BatchNorm::init(4).0 };
    let (y, stats) = layer.apply_masked(x[0], BatchStats { mean: x[4], var: x[5] }, x[1]);
    vec![y, stats.mean, stats.var]
}

fn batch_renorm(x: &[Tensor]) -> Vec<Tensor> {
    let layer = BatchRenorm {
        scale: Some(x[1]),
        bias: Some(x[2]),
        r_max: 1.5,
        d_max: 0.5,
        warmup_steps: 2,
        ..BatchRenorm::init(4).0
    };
    let stats = BatchStats { mean: x[3], var: x[4] };
    let (y, state) = layer.apply(x[0], BatchRenormStats { stats, steps: x[5] }, true);
    vec![y, state.stats.mean, state.stats.var, state.steps]
}

pub const FUNCTIONS: &[Function] = &[
    ("batch_norm_train", |x| batch_norm(x, true)),
    ("batch_norm_eval", |x| batch_norm(x, false)),
    ("batch_renorm", batch_renorm),
    ("batch_renorm_warmup", batch_renorm),
    ("layer_norm", |x| vec![LayerNorm { scale: x[1], bias: x[2], eps: 1e-6 }.apply(x[0])]),
    ("group_norm", |x| {
        let layer = GroupNorm { scale: Some(x[1]), bias: Some(x[2]), ..GroupNorm::init(4, 2) };
        vec![layer.apply(x[0])]
    }),
    ("instance_norm", |x| {
        let layer = InstanceNorm { scale: Some(x[1]), bias: Some(x[2]), epsilon: 1e-6 };
        vec![layer.apply(x[0])]
    }),
    ("rms_norm", |x| vec![RMSNorm { scale: Some(x[1]), epsilon: 1e-6 }.apply(x[0])]),
    ("batch_norm_masked", batch_norm_masked),
    ("layer_norm_masked", |x| {
        vec![LayerNorm { scale: x[2], bias: x[3], eps: 1e-6 }.apply_masked(x[0], x[1])]
    }),
    ("group_norm_masked", |x| {
        let layer = GroupNorm { scale: Some(x[2]), bias: Some(x[3]), ..GroupNorm::init(4, 2) };
        vec![layer.apply_masked(x[0], x[1])]
    }),
    ("instance_norm_masked", |x| {
        let layer = InstanceNorm { scale: Some(x[2]), bias: Some(x[3]), epsilon: 1e-6 };
        vec![layer.apply_masked(x[0], x[1])]
    }),
    ("rms_norm_masked", |x| {
        vec![RMSNorm { scale: Some(x[2]), epsilon: 1e-6 }.apply_masked(x[0], x[1])]
    }),
    ("weight_norm", |x| {
        let norm = WeightNorm { scale: Some(x[3]), ..WeightNorm::init(4) };
        vec![Dense { w: norm.apply(x[1]), b: Some(x[2]) }.apply(x[0])]
    }),
    ("spectral_norm", |x| {
        let norm = SpectralNorm { n_steps: 2, ..SpectralNorm::default() };
        let (w, stats) = norm.apply(x[1], SpectralStats { u: x[3], sigma: x[4] }, true);
        let options = ConvOptions { stride: 1, padding: Padding::Same };
        let y = Conv2d { w, b: Some(x[2]), options }.apply(x[0]);
        vec![y, stats.u, stats.sigma]
    }),
    ("dropout", |x| {
        let key = || Some(Key::from_data(x[1]));
        let rows = Dropout { rate: 0.5, broadcast_dims: vec![1] };
        let full = Dropout::new(0.3);
        vec![full.apply(x[0], key()), rows.apply(x[0], key()), full.apply(x[0], None)]
    }),
    ("embed", |x| {
        let layer = Embed { embedding: x[0] };
        vec![layer.apply(x[1]), layer.attend(x[2])]
    }),
    ("dense_general", |x| {
        let layer =
            DenseGeneral { kernel: x[1], bias: Some(x[2]), axis: vec![1, -1], batch_dims: 0 };
        vec![layer.apply(x[0])]
    }),
    ("dense_general_batched", |x| {
        let layer = DenseGeneral { kernel: x[1], bias: Some(x[2]), axis: vec![-1], batch_dims: 1 };
        vec![layer.apply(x[0])]
    }),
    ("einsum", |x| {
        let einsum_str = "...bc,cde->...bde".into();
        vec![Einsum { kernel: x[1], bias: Some(x[2]), einsum_str }.apply(x[0])]
    }),
    ("prelu", |x| vec![PReLU { negative_slope: x[1] }.apply(x[0])]),
];

#[test]
fn batch_norm_over_an_axis_uses_the_statistics_of_all_its_members() -> Result<()> {
    let f = interpret(|x: Tensor| {
        let (layer, stats) = BatchNorm::init(3);
        let (whole, after) = layer.apply(x.reshape([8, 3]), stats.clone(), true);
        let parts = vmap_axis("i", |axis, x: Tensor| layer.apply_over(x, stats.clone(), axis))(x);
        (whole.reshape([2, 4, 3]), parts.0, after.var, parts.1.var)
    });
    let x: Vec<f32> = (0..24).map(|i| (0.7 * i as f32).sin()).collect();
    let (whole, parts, var, vars) = f.call(Array::new([2, 4, 3], &x)?)?;
    let vars = vars.to_vec::<f32>()?;
    let pairs = whole.to_vec::<f32>()?.into_iter().zip(parts.to_vec::<f32>()?);
    for (a, b) in pairs.chain(var.to_vec::<f32>()?.into_iter().zip(vars)) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    Ok(())
}

/// The message of the error of `f`.
fn refused(f: impl Fn(Tensor) -> Tensor) -> String {
    let x = Array::zeros([2, 3, 4], DType::F32);
    let error: Error = interpret(|x: Tensor| f(x)).call(x).unwrap_err();
    error.to_string()
}

#[test]
fn layers_refuse_inputs_of_other_sizes() {
    for (error, expected) in [
        (refused(|x| BatchNorm::init(3).0.apply(x, BatchStats::init(3), true).0), "takes features"),
        (refused(|x| BatchNorm::init(1).0.apply(x, BatchStats::init(1), true).0), "takes features"),
        (
            refused(|x| {
                let _ = GroupNorm::init(4, 3);
                x
            }),
            "must divide the number of features",
        ),
        (refused(|x| GroupNorm { num_groups: 0, ..GroupNorm::init(4, 2) }.apply(x)), "0 groups"),
        (refused(|x| RMSNorm::init(4).apply(x.to(DType::I32))), "takes floats"),
        (
            refused(|x| RMSNorm::init(4).apply_masked(x, x)),
            "takes a bool mask that broadcasts to f32[2,3,4]; got f32[2,3,4]",
        ),
        (
            refused(|x| GroupNorm::init(4, 2).apply_masked(x, x.slice_axis(2, 0, 1).gt(0.0))),
            "takes a mask with 4 features; got bool[2,3,1]",
        ),
        (refused(|x| Dropout::new(1.5).apply(x, None)), "a probability from 0 to 1"),
        (refused(|x| Embed { embedding: x.index_axis(0, 0) }.apply(x)), "takes integers"),
        (
            refused(|x| Einsum { kernel: x, bias: None, einsum_str: "ab".into() }.apply(x)),
            "takes a formula",
        ),
        (
            refused(|x| InstanceNorm::init(4).apply(x.index_axis(0, 0).index_axis(0, 0))),
            "takes [batch, .., features]",
        ),
    ] {
        assert!(error.contains(expected), "{error}");
    }
}
