//! PPO's minibatch step on Atari: tracing and lowering, compiling, running; beside JAX.
//!
//! `cargo bench --bench ppo_atari` measures Podracer alone; with
//! `PODRACER_PEER_PYTHON=.../bin/python`, a Python with JAX, each row is measured alternately with
//! `benches/peers/jax_ppo_atari.py`. Rows can be chosen: `cargo bench --bench ppo_atari -- lower
//! step`. `scan` is four steps in one program; JAX takes 7 s for each step of it. `parts` are the
//! parts of a step, each compiled alone, and their sum; `acting` are those of choosing actions for 8
//! environments. `step` also prints the time of oneDNN's primitives in the step, as oneDNN measures it in
//! a second process. Three rows are measured only when named: `torch`, the step beside PyTorch with
//! channels-last images (`benches/peers/torch_ppo_atari.py`), `direct`, the step without Winograd's
//! algorithm, and `bfloat16`, the step with layers that compute in bfloat16.
//!
//! On a machine shared with others, wall times depend on the other load: compare minimums and
//! processor times.
//!
//! The step: 256 observations u8[4,84,84], the Nature network, PPO's clipped losses, gradients
//! clipped by their global norm, Adam.

mod peer;

use std::process::Command;
use std::thread::available_parallelism;
use std::time::Instant;

use peer::{Peer, Row, processor_seconds};
use podracer::array::to_device;
use podracer::distributions::Categorical;
use podracer::error::Result;
use podracer::nn::{Conv2d, Dense, init};
use podracer::optim::{Adam, AdamState, clip_by_global_norm};
use podracer::random::Key;
use podracer::trace::control::scan;
use podracer::trace::op::Precision;
use podracer::trace::ops::{ConvOptions, Padding, conv2d, default_matmul_precision};
use podracer::{Array, DType, Jit, Tensor, Tree, jit, tree, value_and_grad, vjp};

const BATCH: usize = 256;
const ACTIONS: usize = 4;
const CLIP: f64 = 0.1;

#[derive(Debug, Clone, Tree)]
struct Agent<T> {
    convs: Vec<Conv2d<T>>,
    hidden: Dense<T>,
    actor: Dense<T>,
    critic: Dense<T>,
}

impl Agent<Tensor> {
    fn init(key: Key<Tensor>) -> Agent<Tensor> {
        let [a, b, c, hidden, actor, critic] = key.split_n();
        let conv = |key, shape, stride| {
            let options = ConvOptions { stride, padding: Padding::Valid };
            Conv2d::init(key, shape, options, init::he_normal())
        };
        Agent {
            convs: vec![
                conv(a, [8, 8, 4, 32], 4),
                conv(b, [4, 4, 32, 64], 2),
                conv(c, [3, 3, 64, 64], 1),
            ],
            hidden: Dense::init(hidden, 3136, 512, init::he_normal()),
            actor: Dense::init(actor, 512, ACTIONS, init::lecun_normal()),
            critic: Dense::init(critic, 512, 1, init::lecun_normal()),
        }
    }

    /// Observations u8[batch, 4, 84, 84] to the policy and the value of each. The convolutions and
    /// the hidden layer compute in `dtype`.
    fn apply(&self, observations: Tensor, dtype: DType) -> (Categorical<Tensor>, Tensor) {
        let mut x = (observations.transpose(&[0, 2, 3, 1]).to(DType::F32) / 255.0).to(dtype);
        for conv in &self.convs {
            x = tree::map(conv.clone(), |w: Tensor| w.to(dtype)).apply(x).relu();
        }
        let hidden = tree::map(self.hidden.clone(), |w: Tensor| w.to(dtype));
        let x = hidden.apply(x.flatten_from(1)).relu().to(DType::F32);
        (Categorical::new(self.actor.apply(x)), self.critic.apply(x).squeeze(-1))
    }
}

#[derive(Debug, Clone, Tree)]
struct Minibatch<T> {
    observations: T,
    actions: T,
    log_probs: T,
    advantages: T,
    returns: T,
    values: T,
}

type State<T> = (Agent<T>, AdamState<T, Agent<T>>);

fn adam() -> Adam {
    Adam { learning_rate: 2.5e-4, eps: 1e-5, ..Adam::default() }
}

fn start(_: Tensor) -> State<Tensor> {
    let agent = Agent::init(Key::constant(1));
    let state = adam().init(&agent);
    (agent, state)
}

fn loss(agent: Agent<Tensor>, batch: &Minibatch<Tensor>, dtype: DType) -> Tensor {
    let (policy, value) = agent.apply(batch.observations, dtype);
    let ratio = (policy.log_prob(batch.actions) - batch.log_probs).exp();
    let advantages = batch.advantages;
    let advantages = (advantages - advantages.mean(..)) / (advantages.std(..) + 1e-8);
    let clipped = ratio.clip(1.0 - CLIP, 1.0 + CLIP);
    let policy_loss = (-advantages * ratio).maximum(-advantages * clipped).mean(..);
    let near = batch.values + (value - batch.values).clip(-CLIP, CLIP);
    let errors = (value - batch.returns).square().maximum((near - batch.returns).square());
    policy_loss - 0.01 * policy.entropy().mean(..) + 0.5 * (0.5 * errors.mean(..))
}

fn step(inputs: (State<Tensor>, Minibatch<Tensor>)) -> (State<Tensor>, Tensor) {
    step_in(DType::F32, inputs)
}

fn step_in(
    dtype: DType,
    (state, batch): (State<Tensor>, Minibatch<Tensor>),
) -> (State<Tensor>, Tensor) {
    let (agent, optimizer) = state;
    let (value, grads) = value_and_grad(|agent| loss(agent, &batch, dtype))(agent.clone());
    (adam().step(agent, clip_by_global_norm(0.5).apply(grads), optimizer), value)
}

fn four((state, batches): (State<Tensor>, Minibatch<Tensor>)) -> (State<Tensor>, Tensor) {
    scan(|state, batch| step((state, batch)), state, batches)
}

/// A minibatch, or several as rows of every leaf.
fn minibatch(rows: &[usize]) -> Result<Minibatch<Array>> {
    let count = rows.iter().product::<usize>() * BATCH;
    let shape = |rest: &[usize]| [rows, &[BATCH], rest].concat();
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    };
    let pixels: Vec<u8> = (0..count * 4 * 84 * 84).map(|_| next() as u8).collect();
    let actions: Vec<i32> = (0..count).map(|_| (next() % ACTIONS as u32) as i32).collect();
    let mut floats = |offset: f32, scale: f32| {
        let one = |_| offset + scale * (next() as f32 / (1u32 << 30) as f32 - 1.0);
        let values: Vec<f32> = (0..count).map(one).collect();
        Array::new(shape(&[]), &values)
    };
    to_device(Minibatch {
        observations: Array::new(shape(&[4, 84, 84]), &pixels)?,
        actions: Array::new(shape(&[]), &actions)?,
        log_probs: floats(-1.386, 0.05)?,
        advantages: floats(0.0, 1.0)?,
        returns: floats(0.0, 1.0)?,
        values: floats(0.0, 1.0)?,
    })
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Steps of one measurement.
const STEPS: usize = 21;

type Step<F> = Jit<(State<Tensor>, Minibatch<Tensor>), (State<Tensor>, Tensor), F>;

/// Measures steps, each followed by one of the peer's.
fn steps<F>(
    name: &str,
    step: &Step<F>,
    mut state: State<Array>,
    batch: &Minibatch<Array>,
    peer: &mut Peer,
) -> Result<f64>
where
    F: Fn((State<Tensor>, Minibatch<Tensor>)) -> (State<Tensor>, Tensor),
{
    let mut row = Row::new(name);
    let mut processor = Row::new(format!("{name} of processor time, both cores"));
    let mut last = None;
    for i in 0..STEPS {
        let (start, used) = (Instant::now(), processor_seconds());
        let (next, value) = step.call((state, batch.clone()))?;
        value.wait()?;
        if i > 0 {
            row.ours(ms(start));
            processor.ours((processor_seconds() - used) * 1e3);
            row.peer(peer, "step");
            processor.peer(peer, "processor");
        }
        (state, last) = (next, Some(value));
    }
    row.print();
    processor.print();
    println!("  (loss after {STEPS} steps: {:?})", last.map(|value| value.item::<f32>()));
    Ok(row.median())
}

/// A step whose convolutions are oneDNN's own, without Winograd's algorithm.
fn direct_step(inputs: (State<Tensor>, Minibatch<Tensor>)) -> (State<Tensor>, Tensor) {
    default_matmul_precision(Precision::Highest, || step(inputs))
}

/// Prints the time of oneDNN's convolutions and products in a step with direct convolutions, without the library
/// around them, and the ratio of the step's time, `ours`, to it.
fn primitives(ours: f64) {
    let bench = std::env::current_exe().expect("the path of this program");
    let child = Command::new(bench).arg("run").env("ONEDNN_VERBOSE", "1").output();
    let text = String::from_utf8(child.expect("a second process").stdout).expect("UTF-8");
    // onednn_verbose,exec,cpu,convolution,..,0.123: the last field is the time in ms.
    let is_product = |fields: &[&str]| {
        fields.starts_with(&["onednn_verbose", "exec"])
            && ["convolution", "matmul", "inner_product"].contains(&fields[3])
    };
    let times: Vec<f64> = text
        .lines()
        .map(|line| line.split(',').collect::<Vec<&str>>())
        .filter(|fields| is_product(fields))
        .map(|fields| fields.last().and_then(|ms| ms.parse().ok()).expect("a time"))
        .collect();
    if times.is_empty() {
        return println!("  (oneDNN computes nothing of the step)");
    }
    let steps = times.chunks(times.len() / STEPS).map(|step| step.iter().sum::<f64>());
    // Every product is cut into parts, which the threads share.
    let threads = available_parallelism().map_or(1, usize::from) as f64;
    let mut row = Row::new("oneDNN's products in a step, ms");
    steps.for_each(|sum| row.ours(sum / threads));
    row.print();
    println!("  (step / products, medians: {:.2})", ours / row.median());
}

/// Numbers around zero, on the device.
fn noise(shape: &[usize]) -> Result<Array> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.7).sin() * 0.1).collect();
    to_device(Array::new(shape, &values)?)
}

type Three = (Tensor, Tensor, Tensor);
type ThreeArrays = (Array, Array, Array);

/// Prints the time of one part of a step, compiled alone, and returns its median in milliseconds.
fn part<A, B>(name: &str, f: impl Fn(A) -> B, inputs: A::With<Array>) -> Result<f64>
where
    A: Tree<Tensor, With<Array>: Clone>,
    B: Tree<Tensor>,
{
    let compiled = jit(f);
    let mut row = Row::new(name);
    for i in 0..STEPS {
        let start = Instant::now();
        let outputs = compiled.call(inputs.clone())?;
        for output in tree::leaves(&outputs) {
            output.wait()?;
        }
        if i > 0 {
            row.ours(ms(start));
        }
    }
    row.print();
    Ok(row.median())
}

/// A part that is products of a dense layer. oneDNN computes them in programs with convolutions, so a
/// convolution of 10 microseconds is beside them.
fn dense_part(name: &str, f: impl Fn(Three) -> Tensor, inputs: ThreeArrays) -> Result<f64> {
    let options = ConvOptions { stride: 1, padding: Padding::Valid };
    let beside = (noise(&[1, 16, 16, 16])?, noise(&[3, 3, 16, 16])?);
    let both = |((x, w), inputs): ((Tensor, Tensor), Three)| (conv2d(x, w, &options), f(inputs));
    part(name, both, (beside, inputs))
}

/// Measures the parts of a step, each compiled alone.
fn parts(state: State<Array>) -> Result<()> {
    let layers = [
        ([84, 84, 4], [8, 8, 4, 32], 4),
        ([20, 20, 32], [4, 4, 32, 64], 2),
        ([9, 9, 64], [3, 3, 64, 64], 1),
    ];
    let mut products = 0.0;
    for (i, (image, kernel, stride)) in layers.into_iter().enumerate() {
        let size = (image[0] - kernel[0]) / stride + 1;
        let options = ConvOptions { stride, padding: Padding::Valid };
        let conv = |x: Tensor, w: Tensor| conv2d(x, w, &options);
        let x = noise(&[&[BATCH], &image[..]].concat())?;
        let (w, b) = (noise(&kernel)?, noise(&[kernel[3]])?);
        let g = noise(&[BATCH, size, size, kernel[3]])?;
        let inputs = (x, w, g);
        let name = |what| format!("convolution {}, {what}", i + 1);
        let layer = |(x, w, b): Three| (conv(x, w) + b).relu();
        products += part(&name("forward"), layer, (inputs.0.clone(), inputs.1.clone(), b))?;
        let of_kernel = |(x, w, g): Three| vjp(|w| conv(x, w), w).1(g);
        products += part(&name("gradient of the kernel"), of_kernel, inputs.clone())?;
        if i > 0 {
            let of_input = |(x, w, g): Three| vjp(|x| conv(x, w), x).1(g);
            products += part(&name("gradient of the input"), of_input, inputs)?;
        }
    }
    let inputs = (noise(&[BATCH, 3136])?, noise(&[3136, 512])?, noise(&[BATCH, 512])?);
    let product = |(x, w, _): Three| x.matmul(w);
    products += dense_part("dense layer, forward", product, inputs.clone())?;
    let of_kernel = |(x, w, g): Three| vjp(|w: Tensor| x.matmul(w), w).1(g);
    products += dense_part("dense layer, gradient of the kernel", of_kernel, inputs.clone())?;
    let of_input = |(x, w, g): Three| vjp(|x: Tensor| x.matmul(w), x).1(g);
    products += dense_part("dense layer, gradient of the input", of_input, inputs)?;
    println!("{:<44} {:>9} {products:>9.2}", "sum of convolutions and dense layer", "");

    let images = minibatch(&[])?.observations;
    let convert = |x: Tensor| x.transpose(&[0, 2, 3, 1]).to(DType::F32) / 255.0;
    let mut others = part("images to f32", convert, images)?;
    let (agent, optimizer) = state;
    let update = |(agent, grads, optimizer): (Agent<Tensor>, Agent<Tensor>, AdamState<_, _>)| {
        adam().step(agent, clip_by_global_norm(0.5).apply(grads), optimizer)
    };
    others += part("clip and Adam", update, (agent.clone(), agent, optimizer))?;
    println!("{:<44} {:>9} {:>9.2}", "sum of all parts", "", products + others);
    Ok(())
}

/// Measures the parts of choosing actions for 8 environments, each compiled alone.
fn acting(state: State<Array>) -> Result<()> {
    const ENVS: usize = 8;
    let layers = [
        ([84, 84, 4], [8, 8, 4, 32], 4),
        ([20, 20, 32], [4, 4, 32, 64], 2),
        ([9, 9, 64], [3, 3, 64, 64], 1),
    ];
    for (i, (image, kernel, stride)) in layers.into_iter().enumerate() {
        let options = ConvOptions { stride, padding: Padding::Valid };
        let layer = |(x, w, b): Three| (conv2d(x, w, &options) + b).relu();
        let x = noise(&[&[ENVS], &image[..]].concat())?;
        let inputs = (x, noise(&kernel)?, noise(&[kernel[3]])?);
        part(&format!("8 images: convolution {}", i + 1), layer, inputs)?;
    }
    let inputs = (noise(&[ENVS, 3136])?, noise(&[3136, 512])?, noise(&[1])?);
    dense_part("8 images: dense layer", |(x, w, _)| x.matmul(w), inputs)?;
    let images = to_device(Array::zeros([ENVS, 4, 84, 84], DType::U8))?;
    let convert = |x: Tensor| x.transpose(&[0, 2, 3, 1]).to(DType::F32) / 255.0;
    part("8 images: to f32", convert, images.clone())?;
    let act = |(agent, images): (Agent<Tensor>, Tensor)| {
        let (policy, value) = agent.apply(images, DType::F32);
        (policy.sample(Key::constant(1)), value)
    };
    part("8 images: actions and values", act, (state.0, images))?;
    Ok(())
}

fn main() -> Result<()> {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("PODRACER_CACHE", "off") };
    let asked: Vec<String> = std::env::args().skip(1).filter(|x| !x.starts_with('-')).collect();
    let wants = |row: &str| asked.is_empty() || asked.iter().any(|x| x == row);
    let mut peer = Peer::start("jax_ppo_atari.py");
    let state = jit(start).call(Array::from(0i32))?;
    let batch = minibatch(&[])?;
    let compiled = jit(step).named("ppo_atari_step");
    Row::header();

    if wants("lower") {
        let mut row = Row::new("trace + lower, ms");
        for step in 0..12 {
            let start = Instant::now();
            for _ in 0..10 {
                compiled.lower(&(state.clone(), batch.clone()))?;
            }
            row.ours(ms(start) / 10.0);
            if step < 6 {
                row.peer(&mut peer, "lower");
            }
        }
        row.print();
    }
    if wants("compile") {
        let mut row = Row::new("XLA compile, ms");
        for _ in 0..4 {
            let analysis = compiled.lower(&(state.clone(), batch.clone()))?.compile()?;
            row.ours(analysis.outcome().seconds * 1e3);
            row.peer(&mut peer, "compile");
        }
        row.print();
    }
    if wants("step") {
        let ours = steps("step, ms", &compiled, state.clone(), &batch, &mut peer)?;
        primitives(ours);
    }
    // The process of `primitives`.
    if asked.iter().any(|x| x == "run") {
        let compiled = jit(direct_step).named("ppo_atari_step");
        steps("step, ms", &compiled, state.clone(), &batch, &mut Peer::none())?;
    }
    if asked.iter().any(|x| x == "direct") {
        let compiled = jit(direct_step).named("ppo_atari_direct_step");
        steps(
            "step with direct convolutions, ms",
            &compiled,
            state.clone(),
            &batch,
            &mut Peer::none(),
        )?;
    }
    if asked.iter().any(|x| x == "bfloat16") {
        let compiled = jit(|inputs| step_in(DType::BF16, inputs)).named("ppo_atari_step_bf16");
        let no_peer = &mut Peer::none();
        steps("step in bfloat16, ms", &compiled, state.clone(), &batch, no_peer)?;
    }
    // Beside PyTorch only when asked: it needs a Python with torch.
    if asked.iter().any(|x| x == "torch") {
        let mut torch = Peer::start("torch_ppo_atari.py");
        steps("step beside PyTorch, ms", &compiled, state.clone(), &batch, &mut torch)?;
    }
    if wants("parts") {
        parts(state.clone())?;
    }
    if wants("acting") {
        acting(state.clone())?;
    }
    if wants("scan") {
        let mut row = Row::new("4 steps in a scan, ms per step");
        let batches = minibatch(&[4])?;
        let compiled = jit(four).named("ppo_atari_four");
        let mut state = state;
        for step in 0..9 {
            let start = Instant::now();
            let (next, values) = compiled.call((state, batches.clone()))?;
            values.wait()?;
            if step > 0 {
                row.ours(ms(start) / 4.0);
            }
            if step == 1 {
                row.peer(&mut peer, "scan");
            }
            state = next;
        }
        row.print();
    }
    Ok(())
}
