//! Recurrent cells, and cells over sequences.

use podracer::Tensor;
use podracer::nn::{
    Activation, Bidirectional, Conv, ConvLSTMCell, ConvPadding, Dense, GRUCell, LSTMCell, Lru,
    MGUCell, MinGru, OptimizedLSTMCell, RNN, RNNCellBase, Sequential, SimpleCell,
};
use podracer::trace::ops::{Padding, concatenate};

use crate::names::Function;

fn gru(x: &[Tensor]) -> GRUCell<Tensor> {
    GRUCell { w_i: x[0], w_h: x[1], b: x[2], b_n: x[3] }
}

fn simple(x: &[Tensor]) -> SimpleCell<Tensor> {
    SimpleCell { w_i: x[0], w_h: x[1], b: x[2], residual: false }
}

fn conv(kernel: Tensor, bias: Tensor) -> Conv<Tensor> {
    Conv {
        kernel,
        bias: Some(bias),
        strides: vec![],
        padding: ConvPadding::Zeros(Padding::Same),
        input_dilation: vec![],
        kernel_dilation: vec![],
        feature_group_count: 1,
    }
}

pub const FUNCTIONS: &[Function] = &[
    ("lstm_cell", |x| {
        let cell = LSTMCell { w_i: x[3], w_h: x[4], b: x[5] };
        let ((c, h), _) = cell.step((x[1], x[2]), x[0]);
        vec![c, h]
    }),
    ("optimized_lstm_cell", |x| {
        let cell = OptimizedLSTMCell { w_i: x[3], w_h: x[4], b: x[5] };
        let (c, h) = cell.apply(x[0], (x[1], x[2]));
        vec![c, h]
    }),
    ("gru_cell", |x| vec![gru(&x[2..]).step(x[1], x[0]).1]),
    ("mgu_cell", |x| {
        let cell = MGUCell { w_i: x[2], w_h: x[3], b: x[4], b_n: Some(x[5]) };
        let plain = MGUCell { b_n: None, ..cell.clone() };
        vec![cell.step(x[1], x[0]).1, plain.step(x[1], x[0]).1]
    }),
    ("simple_cell", |x| {
        let cell = simple(&x[2..]);
        let residual = SimpleCell { residual: true, ..cell.clone() };
        vec![cell.step(x[1], x[0]).1, residual.step(x[1], x[0]).1]
    }),
    ("conv_lstm_cell", |x| {
        let cell = ConvLSTMCell { ih: conv(x[3], x[4]), hh: conv(x[5], x[6]) };
        let ((c, h), _) = cell.step((x[1], x[2]), x[0]);
        vec![c, h]
    }),
    ("rnn", |x| {
        let (inputs, lengths) = (x[0], Some(x[1]));
        let rnn = || RNN::new(gru(&x[2..]));
        let back = RNN { reverse: true, ..rnn() };
        let kept = RNN { keep_order: true, ..back.clone() };
        let major = RNN { time_major: true, unroll: 2, ..rnn() };
        let start = inputs.slice_axis(1, 0, 1).slice_axis(2, 0, 1).squeeze(1);
        let start = start.broadcast_to([3, 2]);
        let results = [
            rnn().apply(inputs, None, None),
            back.apply(inputs, None, None),
            kept.apply(inputs, None, lengths),
            rnn().apply(inputs, None, lengths),
            major.apply(inputs.swapaxes(0, 1), Some(start), None),
        ];
        results.into_iter().flat_map(|(carry, y)| [carry, y]).collect()
    }),
    ("bidirectional", |x| {
        let forward = LSTMCell { w_i: x[2], w_h: x[3], b: x[4] };
        let layer = Bidirectional {
            forward_rnn: RNN::new(forward),
            backward_rnn: RNN::new(simple(&x[5..])),
        };
        let (((c, h), s), y) = layer.apply(x[0], None, Some(x[1]));
        let ((..), merged) =
            layer.apply_with(x[0], None, Some(x[1]), |a, b| concatenate(&[a, b], -1));
        vec![c, h, s, (y + merged) / 2.0]
    }),
    ("min_gru", |x| {
        let cell = MinGru { w: x[3], b: x[4] };
        let (last, states) = cell.scan(cell.project(x[0]), Some(x[1]), x[2]);
        vec![last, states]
    }),
    ("lru", |x| {
        let cell =
            Lru { nu_log: x[4], theta_log: x[5], gamma_log: x[6], b: x[7], c: x[8], d: x[9] };
        let ((re, im), y) = cell.scan(cell.project(x[0]), Some(x[1]), (x[2], x[3]));
        vec![re, im, y]
    }),
    ("sequential", |x| {
        let dense = |i: usize| Dense { w: x[i], b: Some(x[i + 1]) };
        let layers = (dense(1), Activation::Relu, dense(3), Activation::Tanh);
        vec![Sequential { layers }.apply(x[0])]
    }),
];
