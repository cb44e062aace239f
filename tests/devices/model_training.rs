//! Training with Adam on a mesh of 4 x 2 devices, data and tensor parallel by the compiler, equal to
//! one device: the transformer, the ResNet-18 and the Perceiver of `tests/models`.
//!
//! Everything is f64. In f32 some gradients are rounding errors only, such as those of the bias of
//! keys, and Adam scales them to the size of all others.

use podracer::losses::softmax_cross_entropy_with_integer_labels;
use podracer::nn::BatchStats;
use podracer::optim::{Adam, AdamState};
use podracer::{
    Array, DType, Key, P, PartitionSpec, Specs, Tensor, Tree, device_get, device_put, jit,
    make_mesh, random, tree, value_and_grad,
};

use super::devices;
use super::models::{Perceiver, ResNet18, Stats, Transformer};

const BATCH: usize = 8;
const CLASSES: usize = 3;
const STEPS: usize = 4;
/// Length of a sequence.
const LENGTH: usize = 6;
const ADAM: Adam =
    Adam { learning_rate: 3e-3, b1: 0.9, b2: 0.999, eps: 1e-8, eps_root: 0.0, weight_decay: 0.0 };

/// Leaves of the model's parameters and batch statistics, and the state of Adam.
#[derive(Tree, Clone)]
struct TrainState<T> {
    params: Vec<T>,
    stats: Vec<T>,
    opt_state: AdamState<T, Vec<T>>,
}

/// A model and its loss.
trait Model {
    /// Initializes the parameters, and returns them with their paths.
    fn init(key: Key<Tensor>) -> Vec<(String, Tensor)>;
    /// Initializes the batch statistics.
    fn init_stats() -> Vec<Tensor> {
        Vec::new()
    }
    /// Samples inputs and labels.
    fn batch(key: Key<Tensor>) -> (Tensor, Tensor);
    /// Returns the loss and the next batch statistics.
    fn loss(
        params: &[Tensor],
        stats: &[Tensor],
        x: Tensor,
        labels: Tensor,
    ) -> (Tensor, Vec<Tensor>);
    /// Returns the sharding of the parameter at a path.
    fn spec(path: &str) -> PartitionSpec;
}

fn f64_leaves<M: Tree<Tensor>>(model: &M) -> Vec<(String, Tensor)> {
    tree::leaves_with_path(model).into_iter().map(|(path, x)| (path, x.to(DType::F64))).collect()
}

/// Heads of attention and hidden features over the axis "model".
fn attention_spec(path: &str) -> PartitionSpec {
    let ends = |ends: &[&str]| ends.iter().any(|end| path.ends_with(end));
    if ends(&[".query.kernel", ".key.kernel", ".value.kernel"]) {
        P((None, "model", None))
    } else if ends(&["up.w"]) {
        P((None, "model"))
    } else if ends(&[".query.bias", ".key.bias", ".value.bias", ".out.kernel", "up.b", "down.w"]) {
        P("model")
    } else {
        P(())
    }
}

impl Model for Transformer<Tensor> {
    fn init(key: Key<Tensor>) -> Vec<(String, Tensor)> {
        f64_leaves(&Transformer::init(key, 11, LENGTH, 8))
    }

    fn batch(key: Key<Tensor>) -> (Tensor, Tensor) {
        let tokens = random::randint(key, [BATCH, LENGTH + 1], 0, 11, DType::I32);
        (tokens.slice_axis(1, 0, LENGTH), tokens.slice_axis(1, 1, LENGTH + 1))
    }

    fn loss(params: &[Tensor], _: &[Tensor], x: Tensor, labels: Tensor) -> (Tensor, Vec<Tensor>) {
        let template = Transformer::init(Key::constant(0), 11, LENGTH, 8);
        let logits = tree::replace(&template, params.iter().copied()).apply(x);
        (softmax_cross_entropy_with_integer_labels(logits, labels).mean(..), Vec::new())
    }

    fn spec(path: &str) -> PartitionSpec {
        attention_spec(path)
    }
}

impl Model for Perceiver<Tensor> {
    fn init(key: Key<Tensor>) -> Vec<(String, Tensor)> {
        f64_leaves(&Perceiver::init(key, 5, 8))
    }

    fn batch(key: Key<Tensor>) -> (Tensor, Tensor) {
        let (x, labels) = key.split();
        let x = random::normal(x, [BATCH, 9, 5], DType::F64);
        (x, random::randint(labels, [BATCH], 0, CLASSES as i32, DType::I32))
    }

    fn loss(params: &[Tensor], _: &[Tensor], x: Tensor, labels: Tensor) -> (Tensor, Vec<Tensor>) {
        let template = Perceiver::init(Key::constant(0), 5, 8);
        let logits = tree::replace(&template, params.iter().copied()).apply(x);
        (softmax_cross_entropy_with_integer_labels(logits, labels).mean(..), Vec::new())
    }

    fn spec(path: &str) -> PartitionSpec {
        attention_spec(path)
    }
}

impl Model for ResNet18<Tensor> {
    fn init(key: Key<Tensor>) -> Vec<(String, Tensor)> {
        f64_leaves(&ResNet18::init(key, 2, CLASSES))
    }

    fn init_stats() -> Vec<Tensor> {
        // The stem, and eight blocks of two norms, of which three have one more.
        let features = [2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 8, 8, 8, 8, 8, 16, 16, 16, 16, 16];
        let stats = features.map(|n| BatchStats::init(n));
        stats.iter().flat_map(tree::leaves::<Tensor, _>).map(|x| x.to(DType::F64)).collect()
    }

    fn batch(key: Key<Tensor>) -> (Tensor, Tensor) {
        let (x, labels) = key.split();
        let x = random::normal(x, [BATCH, 32, 32, 3], DType::F64);
        (x, random::randint(labels, [BATCH], 0, CLASSES as i32, DType::I32))
    }

    fn loss(
        params: &[Tensor],
        stats: &[Tensor],
        x: Tensor,
        labels: Tensor,
    ) -> (Tensor, Vec<Tensor>) {
        let template = ResNet18::init(Key::constant(0), 2, CLASSES);
        let net = tree::replace(&template, params.iter().copied());
        let stats: Stats = stats.chunks(2).map(|s| BatchStats { mean: s[0], var: s[1] }).collect();
        let (logits, stats) = net.apply(x, stats, true);
        let loss = softmax_cross_entropy_with_integer_labels(logits, labels).mean(..);
        (loss, stats.iter().flat_map(tree::leaves::<Tensor, _>).collect())
    }

    /// The features of a convolution's output over the axis "model".
    fn spec(path: &str) -> PartitionSpec {
        if path.ends_with(".kernel") { P((None, None, None, "model")) } else { P(()) }
    }
}

fn init<M: Model>(key: Key<Tensor>) -> TrainState<Tensor> {
    let params: Vec<Tensor> = M::init(key).into_iter().map(|(_, leaf)| leaf).collect();
    TrainState { opt_state: ADAM.init(&params), params, stats: M::init_stats() }
}

fn train_step<M: Model>(
    (state, (x, labels)): (TrainState<Tensor>, (Tensor, Tensor)),
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { params, stats, opt_state } = state;
    let loss_fn = |params: Vec<Tensor>| M::loss(&params, &stats, x, labels);
    let ((loss, stats), grads) = value_and_grad(loss_fn)(params.clone());
    let (params, opt_state) = ADAM.step(params, grads, opt_state);
    (TrainState { params, stats, opt_state }, loss)
}

/// The numbers of all float leaves.
fn flat(state: &TrainState<Array>) -> Vec<f64> {
    let leaves = tree::leaves(state).into_iter().filter(|leaf: &Array| leaf.dtype().is_float());
    leaves.flat_map(|leaf| leaf.to_vec::<f64>().unwrap()).collect()
}

fn trains_as_on_one_device<M: Model>() {
    devices(8);
    let mesh = make_mesh(&[4, 2], &["data", "model"]).unwrap();
    let start = jit(init::<M>).call(Key::new(3)).unwrap();
    let batch = jit(M::batch).call(Key::new(4)).unwrap();
    let step = jit(train_step::<M>);
    let (mut one, mut losses) = (start.clone(), Vec::new());
    for _ in 0..STEPS {
        let (next, loss) = step.call((one, batch.clone())).unwrap();
        (one, losses) = (next, [losses, vec![loss.item::<f64>().unwrap()]].concat());
    }
    assert!(losses[STEPS - 1] < losses[0], "{losses:?}");

    let paths = std::cell::RefCell::new(Vec::new());
    let abstract_init = jit(|key| {
        let params = M::init(key);
        *paths.borrow_mut() = params.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>();
        params.into_iter().map(|(_, leaf)| leaf).collect::<Vec<Tensor>>()
    });
    abstract_init.call(Key::new(3)).unwrap();
    let params: Vec<PartitionSpec> = paths.borrow().iter().map(|path| M::spec(path)).collect();
    assert!(params.iter().any(|spec| *spec != P(())), "{:?}", paths.borrow());
    let specs = Specs::tree(&TrainState {
        stats: vec![P(()); start.stats.len()],
        opt_state: AdamState { count: P(()), m: params.clone(), v: params.clone() },
        params,
    });
    let sharded = jit(train_step::<M>).out_shardings((&mesh, (specs.clone(), P(()))));
    let shardings = (&mesh, (specs, (P("data"), P("data"))));
    let (mut many, batch) = device_put(&(start, batch), shardings).unwrap();
    for (i, expected) in losses.iter().enumerate() {
        let (next, loss) = sharded.call((many, batch.clone())).unwrap();
        let loss = device_get(&loss).unwrap().item::<f64>().unwrap();
        assert!((loss - expected).abs() < 1e-9, "loss of step {i}: {loss} {expected}");
        many = next;
    }
    let (many, one) = (flat(&device_get(&many).unwrap()), flat(&one));
    assert_eq!(many.len(), one.len());
    for (i, (a, b)) in many.iter().zip(&one).enumerate() {
        assert!((a - b).abs() < 1e-7 * b.abs().max(1.0), "number {i}: {a} {b}");
    }
}

#[test]
fn a_transformer_trains_as_on_one_device() {
    trains_as_on_one_device::<Transformer<Tensor>>();
}

#[test]
fn a_resnet_trains_as_on_one_device() {
    trains_as_on_one_device::<ResNet18<Tensor>>();
}

#[test]
fn a_perceiver_trains_as_on_one_device() {
    trains_as_on_one_device::<Perceiver<Tensor>>();
}
