//! lab
use podracer::nn::{Activation, Mlp, init};
use podracer::optim::{Adam, AdamState};
use podracer::trace::graph::simplify;
use podracer::{Array, DType, Key, Tensor, jit, make_program, random, tree, value_and_grad, vmap};
type Network = Mlp<Tensor>;
type State = (Network, AdamState<Tensor, Network>);
fn update(((network, adam), (x, y)): (State, (Tensor, Tensor))) -> (State, Tensor) {
    let loss = |network: Network| (network.apply(x) - y).square().mean(..);
    let (loss, grads) = value_and_grad(loss)(network.clone());
    let optimiser = Adam { learning_rate: 1e-3, eps: 1e-5, ..Adam::default() };
    (optimiser.step(network, grads, adam), loss)
}
fn main() {
    let start = jit(|key: Key<Tensor>| {
        let [networks, x, y]: [Key<Tensor>; 3] = key.split_n();
        let network = |key: Key<Tensor>| {
            let gain = init::lecun_normal();
            let network = Mlp::init(key, &[4, 64, 64, 2], Activation::Tanh, gain, gain);
            let adam = Adam::default().init(&network);
            (network, adam)
        };
        let states = vmap(network)(networks.split_batch(64));
        let x = random::normal(x, [64, 128, 4], DType::F32);
        (states, (x, random::normal(y, [64, 128, 2], DType::F32)))
    });
    let args = start.call(tree::map(Key::new(1), Array::from)).unwrap();
    let p = simplify(make_program(vmap(update), &args).unwrap());
    println!("{p}");
    let l = jit(vmap(update)).lower(&args).unwrap();
    std::fs::write("/tmp/lab/mlps.mlir", l.stablehlo()).unwrap();
}
