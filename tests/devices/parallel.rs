//! Training steps of an MLP and of a decoder-only transformer on a mesh of 4 x 2 devices: data,
//! tensor and pipeline parallel, by the compiler and by hand, equal to one device. The page
//! docs/sharding.md explains them.

use podracer::nn::{Dense, LayerNorm, init};
use podracer::trace::ops::{arange, stack, zeros_like};
use podracer::tree;
use podracer::{
    Array, DType, Key, Mesh, P, PartitionSpec, Specs, Tensor, Tree, axis_index, device_get,
    device_put, jit, make_mesh, pmean, ppermute, psum, shard_map, sharded_jit, value_and_grad,
    where_,
};

use super::devices;

const VOCABULARY: usize = 12;
const LENGTH: usize = 6;
const FEATURES: usize = 8;
const HEAD: usize = 4;
const BATCH: usize = 8;
const STAGES: usize = 4;
const STEPS: usize = 3;

/// A block of pre-norm attention and of two dense layers.
#[derive(Tree, Clone)]
struct Block<T> {
    norms: [LayerNorm<T>; 2],
    qkv: [Dense<T>; 3],
    out: Dense<T>,
    up: Dense<T>,
    down: Dense<T>,
}

/// A decoder-only transformer whose logits are products with its embedding.
#[derive(Tree, Clone)]
struct Transformer<T> {
    embedding: T,
    positions: T,
    blocks: Vec<Block<T>>,
    norm: LayerNorm<T>,
}

fn dense(key: Key<Tensor>, inputs: usize, outputs: usize) -> Dense<Tensor> {
    Dense::init(key, inputs, outputs, init::lecun_normal())
}

impl Block<Tensor> {
    fn init(key: Key<Tensor>) -> Block<Tensor> {
        let [q, k, v, out, up, down] = key.split_n();
        Block {
            norms: [LayerNorm::init(FEATURES), LayerNorm::init(FEATURES)],
            qkv: [q, k, v].map(|key| dense(key, FEATURES, FEATURES)),
            out: Dense { b: None, ..dense(out, FEATURES, FEATURES) },
            up: dense(up, FEATURES, 2 * FEATURES),
            down: Dense { b: None, ..dense(down, 2 * FEATURES, FEATURES) },
        }
    }

    /// The block of `x: [batch, length, features]`. `sum` adds the parts of products whose
    /// contracted axis is divided over devices.
    fn apply(&self, x: Tensor, sum: &dyn Fn(Tensor) -> Tensor) -> Tensor {
        let [first, second] = &self.norms;
        let y = first.apply(x);
        // [batch, heads, length, HEAD], of the heads that are here.
        let heads = |layer: &Dense<Tensor>| {
            let y = layer.apply(y);
            let shape = y.shape();
            y.reshape([shape[0], shape[1], shape[2] / HEAD, HEAD]).swapaxes(1, 2)
        };
        let [q, k, v] = [&self.qkv[0], &self.qkv[1], &self.qkv[2]].map(heads);
        let scores = q.matmul(k.swapaxes(2, 3)) / (HEAD as f64).sqrt();
        let steps = arange(scores.shape()[2], DType::I32);
        let causal = steps.expand_dims(1).ge(steps.expand_dims(0));
        let weights = where_(causal, scores, -1e9).softmax(-1);
        let y = weights.matmul(v).swapaxes(1, 2);
        let shape = y.shape();
        let x = x + sum(self.out.apply(y.reshape([shape[0], shape[1], shape[2] * HEAD])));
        x + sum(self.down.apply(self.up.apply(second.apply(x)).gelu()))
    }

    /// Heads and hidden features divided over the axis "model".
    fn specs() -> Block<PartitionSpec> {
        let norm = || LayerNorm { scale: P(()), bias: P(()), eps: 1e-6 };
        let columns = || Dense { w: P((None, "model")), b: Some(P("model")) };
        let rows = || Dense { w: P(("model", None)), b: None };
        Block {
            norms: [norm(), norm()],
            qkv: [columns(), columns(), columns()],
            out: rows(),
            up: columns(),
            down: rows(),
        }
    }
}

impl Transformer<Tensor> {
    fn init(key: Key<Tensor>) -> Transformer<Tensor> {
        let (a, key) = key.split();
        let (b, key) = key.split();
        Transformer {
            embedding: init::normal(0.5).draw(a, [VOCABULARY, FEATURES], DType::F32),
            positions: init::normal(0.5).draw(b, [LENGTH, FEATURES], DType::F32),
            blocks: key.split_n::<STAGES>().map(Block::init).into(),
            norm: LayerNorm::init(FEATURES),
        }
    }

    fn embed(&self, tokens: Tensor) -> Tensor {
        self.embedding.take(tokens, 0) + self.positions
    }

    /// The mean cross entropy of the next token of `tokens: [batch, length]`.
    fn loss(&self, x: Tensor, tokens: Tensor) -> Tensor {
        let logits = self.norm.apply(x).matmul(self.embedding.t()).log_softmax(-1);
        let next = tokens.slice_axis(1, 1, LENGTH).expand_dims(-1);
        -logits.slice_axis(1, 0, LENGTH - 1).take_along_axis(next, -1).mean(..)
    }

    fn specs() -> Transformer<PartitionSpec> {
        Transformer {
            embedding: P(()),
            positions: P(()),
            blocks: (0..STAGES).map(|_| Block::specs()).collect(),
            norm: LayerNorm { scale: P(()), bias: P(()), eps: 1e-6 },
        }
    }
}

/// The loss of a whole batch, with blocks one after another.
fn loss_of(net: &Transformer<Tensor>, tokens: Tensor, sum: &dyn Fn(Tensor) -> Tensor) -> Tensor {
    let x = net.blocks.iter().fold(net.embed(tokens), |x, block| block.apply(x, sum));
    net.loss(x, tokens)
}

/// One step of gradient descent.
fn descend<M: Tree<Tensor> + Clone>(net: M, loss: impl Fn(M) -> Tensor) -> (M, Tensor) {
    let (loss, grads) = value_and_grad(loss)(net.clone());
    let pairs = tree::leaves(&net).into_iter().zip(tree::leaves(&grads));
    let leaves: Vec<Tensor> = pairs.map(|(w, g)| w - g * 0.3).collect();
    (tree::replace(&net, leaves), loss)
}

/// The numbers of all leaves.
fn flat<M: Tree<Array>>(tree: &M) -> Vec<f32> {
    tree::leaves(tree).iter().flat_map(|leaf: &Array| leaf.to_vec::<f32>().unwrap()).collect()
}

fn near(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() < 2e-5 * b.abs().max(1.0), "{what} {i}: {a} {b}");
    }
}

fn tokens() -> Array {
    let numbers: Vec<i32> =
        (0..BATCH * LENGTH).map(|i| (i * i * 7 + i / 3) as i32 % VOCABULARY as i32).collect();
    Array::new([BATCH, LENGTH], &numbers).unwrap()
}

fn mesh(names: &[&str]) -> Mesh {
    devices(8);
    make_mesh(&[4, 2], names).unwrap()
}

/// Initial parameters, and the parameters and losses after some steps on one device.
fn on_one_device() -> (Transformer<Array>, Vec<f32>) {
    let net = jit(Transformer::init).call(Key::new(3)).unwrap();
    let step = jit(|(net, tokens): (Transformer<Tensor>, Tensor)| {
        descend(net, |net: Transformer<Tensor>| loss_of(&net, tokens, &|x| x))
    });
    let (mut trained, mut losses) = (net.clone(), Vec::new());
    for _ in 0..STEPS {
        let (next, loss) = step.call((trained, tokens())).unwrap();
        (trained, losses) = (next, [losses, vec![loss.item::<f32>().unwrap()]].concat());
    }
    assert!(losses[STEPS - 1] < losses[0], "{losses:?}");
    (net, [flat(&trained), losses].concat())
}

#[test]
fn a_transformer_on_data_and_model_axes() {
    let mesh = mesh(&["data", "model"]);
    let (net, expected) = on_one_device();
    let specs = Specs::tree(&Transformer::specs());
    // The compiler divides the work as parameters and tokens are divided.
    let divided = jit(|(net, tokens): (Transformer<Tensor>, Tensor)| {
        descend(net, |net: Transformer<Tensor>| loss_of(&net, tokens, &|x| x))
    })
    .out_shardings((&mesh, (specs.clone(), P(()))));
    // The same by hand: sums over the devices that share a product, means over the batch.
    let body = |(net, tokens): (Transformer<Tensor>, Tensor)| {
        pmean(loss_of(&net, tokens, &|x| psum(x, "model")), "data")
    };
    let loss = |args| shard_map(body, &mesh, (specs.clone(), P("data")), P(()))(args);
    let by_hand = sharded_jit(|(net, tokens): (Transformer<Tensor>, Tensor)| {
        descend(net, |net: Transformer<Tensor>| loss((net, tokens)))
    })
    .out_shardings((&mesh, (specs.clone(), P(()))));
    let start = || {
        let args = (net.clone(), tokens());
        device_put(&args, (&mesh, (specs.clone(), P("data")))).unwrap()
    };
    let text = divided.optimized_hlo_text(&start()).unwrap();
    assert!(text.contains("all-reduce"), "no communication");
    for how in ["compiler", "shard_map"] {
        let (mut trained, tokens) = start();
        let mut losses = Vec::new();
        for _ in 0..STEPS {
            let args = (trained, tokens.clone());
            let (next, loss) = match how {
                "compiler" => divided.call(args).unwrap(),
                _ => by_hand.call(args).unwrap(),
            };
            losses.push(device_get(&loss).unwrap().item::<f32>().unwrap());
            trained = next;
        }
        // Two of four columns on each device, before and after.
        assert_eq!(trained.blocks[0].qkv[0].w.shape().to_string(), "[8,4]");
        near(how, &[flat(&device_get(&trained).unwrap()), losses].concat(), &expected);
    }
}

/// The blocks stacked, so that their first axis can be divided over the stages.
fn stacked(blocks: &[Block<Tensor>]) -> Block<Tensor> {
    let leaves: Vec<Vec<Tensor>> = blocks.iter().map(tree::leaves).collect();
    let column = |i: usize| {
        let parts: Vec<Tensor> = leaves.iter().map(|leaves| leaves[i]).collect();
        stack(&parts, 0)
    };
    tree::replace(&blocks[0], (0..leaves[0].len()).map(column))
}

/// GPipe: each stage has a block, and passes each microbatch of `x: [count, batch, ..]` on.
fn pipeline(block: Block<Tensor>, x: Tensor) -> Tensor {
    let parts: Vec<Tensor> =
        tree::leaves(&block).into_iter().map(|leaf: Tensor| leaf.index_axis(0, 0)).collect();
    let block = tree::replace(&block, parts);
    let (stage, count) = (axis_index("stage"), x.shape()[0]);
    let next: Vec<(usize, usize)> = (1..STAGES).map(|i| (i - 1, i)).collect();
    let mut received = zeros_like(x.index_axis(0, 0));
    let mut results = Vec::new();
    for step in 0..count + STAGES - 1 {
        let first = x.index_axis(0, step.min(count - 1) as isize);
        let y = block.apply(where_(stage.eq(0), first, received), &|x| x);
        if step + 1 >= STAGES {
            results.push(y);
        }
        received = ppermute(y, "stage", &next);
    }
    let results = stack(&results, 0);
    // The last stage has them; the others add zeros.
    psum(where_(stage.eq(STAGES as i32 - 1), results, zeros_like(results)), "stage")
}

#[test]
fn a_transformer_in_stages() {
    let mesh = mesh(&["stage", "data"]);
    let (net, expected) = on_one_device();
    let loss = |net: Transformer<Tensor>, tokens: Tensor| {
        let x = net.embed(tokens).reshape([2, BATCH / 2, LENGTH, FEATURES]);
        let specs = (P("stage"), P((None, "data")));
        let run = |(block, x): (Block<Tensor>, Tensor)| pipeline(block, x);
        let y = shard_map(run, &mesh, specs, P((None, "data")))((stacked(&net.blocks), x));
        net.loss(y.reshape([BATCH, LENGTH, FEATURES]), tokens)
    };
    let step = sharded_jit(|(net, tokens): (Transformer<Tensor>, Tensor)| {
        descend(net, |net: Transformer<Tensor>| loss(net, tokens))
    });
    let (mut trained, tokens) = device_put(&(net, tokens()), (&mesh, (P(()), P("data")))).unwrap();
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let (next, loss) = step.call((trained, tokens.clone())).unwrap();
        losses.push(device_get(&loss).unwrap().item::<f32>().unwrap());
        trained = next;
    }
    near("stages", &[flat(&device_get(&trained).unwrap()), losses].concat(), &expected);
}

type Layers<T> = (Dense<T>, Dense<T>);

#[test]
fn an_mlp_on_data_and_model_axes() {
    let mesh = mesh(&["data", "model"]);
    let loss_of = |(a, b): &Layers<Tensor>, x: Tensor, sum: &dyn Fn(Tensor) -> Tensor| {
        (sum(a.apply(x).tanh().matmul(b.w)) + b.b.unwrap() - x.sum(-1).expand_dims(-1))
            .square()
            .mean(..)
    };
    let init = |key: Key<Tensor>| {
        let (a, b) = key.split();
        (dense(a, 3, 6), dense(b, 6, 1))
    };
    let net = jit(init).call(Key::new(0)).unwrap();
    let x: Vec<f32> = (0..48).map(|i| (i as f32 * 0.7).sin()).collect();
    let x = Array::new([16, 3], &x).unwrap();
    let plain = |(net, x): (Layers<Tensor>, Tensor)| {
        descend(net, |net: Layers<Tensor>| loss_of(&net, x, &|x| x))
    };
    let (trained, loss) = jit(plain).call((net.clone(), x.clone())).unwrap();
    let expected = [flat(&trained), flat(&loss)].concat();
    let a = Dense { w: P((None, "model")), b: Some(P("model")) };
    let b = Dense { w: P("model"), b: Some(P(())) };
    let specs = Specs::tree(&(a, b));
    let put =
        || device_put(&(net.clone(), x.clone()), (&mesh, (specs.clone(), P("data")))).unwrap();
    let body =
        |(net, x): (Layers<Tensor>, Tensor)| pmean(loss_of(&net, x, &|x| psum(x, "model")), "data");
    let by_hand = |(net, x): (Layers<Tensor>, Tensor)| {
        descend(net, |net: Layers<Tensor>| {
            shard_map(body, &mesh, (specs.clone(), P("data")), P(()))((net, x))
        })
    };
    let out = || (&mesh, (specs.clone(), P(())));
    let results = [
        ("compiler", sharded_jit(plain).out_shardings(out()).call(put()).unwrap()),
        ("shard_map", sharded_jit(by_hand).out_shardings(out()).call(put()).unwrap()),
    ];
    for (how, result) in results {
        let (trained, loss) = device_get(&result).unwrap();
        near(how, &[flat(&trained), flat(&loss)].concat(), &expected);
    }
}
