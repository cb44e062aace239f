//! Cost of a call of a compiled function, from arrays to arrays: beside the bare C calls that it
//! comes down to, and beside JAX.
//!
//! `cargo bench --bench dispatch`; with `PODRACER_PEER_PYTHON=.../bin/python`, a Python with jax,
//! each row is measured alternately with `benches/peers/jax_dispatch.py`. Microseconds per call.

mod peer;
mod raw;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use peer::{Peer, Row};
use podracer::array::to_device;
use podracer::distributions::Categorical;
use podracer::error::Result;
use podracer::lower::pjrt::{Buffer, CompileOptions, Executable, OptionValue};
use podracer::nn::{Activation, Mlp, init};
use podracer::random::Key;
use podracer::runtime::Runtime;
use podracer::trace::literal::AlignedBytes;
use podracer::{Array, DType, Program, Tensor, Tree, jit, tree};
use raw::Raw;

const ROUNDS: usize = 15;

/// Microseconds of one call, the mean of `calls`.
fn time(calls: usize, mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        f();
    }
    start.elapsed().as_secs_f64() / calls as f64 * 1e6
}

/// Rows of the bare call, ours and the peer's, alternately.
fn measure(
    name: &str,
    calls: usize,
    peer: &mut Peer,
    bare: &mut dyn FnMut(),
    ours: &mut dyn FnMut(),
) {
    let mut bare_row = Row::new(format!("{name}, bare C calls"));
    let mut row = Row::new(name);
    for _ in 0..ROUNDS {
        bare_row.ours(time(calls, &mut *bare));
        row.ours(time(calls, &mut *ours));
        row.peer(peer, name);
    }
    bare_row.print();
    row.print();
}

/// A function compiled without donation, for calls over and over on the same buffers.
fn compile(text: &str, flags: &[(&str, bool)]) -> Result<Executable> {
    let mut kept = String::new();
    for (i, part) in text.split(" {tf.aliasing_output").enumerate() {
        kept.push_str(if i == 0 { part } else { &part[part.find('}').map_or(0, |end| end + 1)..] });
    }
    let flag = |&(name, on): &(&str, bool)| (name.to_string(), OptionValue::Bool(on));
    let env_option_overrides = flags.iter().map(flag).collect();
    let options = CompileOptions { env_option_overrides, ..CompileOptions::default() };
    Runtime::get()?.client.compile(&kept, &options)
}

/// Zeros for the inputs of a program.
fn zeros(program: &Program) -> Result<Vec<Buffer>> {
    let client = &Runtime::get()?.client;
    let one = |ty| {
        client.buffer_from_shared(
            Arc::new(AlignedBytes::zeroed(podracer::TensorType::bytes(ty))),
            ty,
            0,
        )
    };
    program.input_types().map(one).collect()
}

#[derive(Debug, Clone, Tree)]
struct Layer<T> {
    w: T,
    b: T,
    s: T,
}

/// Ten layers of three leaves.
fn layers() -> Result<Vec<Layer<Array>>> {
    let zeros = |shape: &[usize]| Array::zeros(shape, DType::F32);
    let layer = || Layer { w: zeros(&[4, 4]), b: zeros(&[4]), s: zeros(&[]) };
    to_device((0..10).map(|_| layer()).collect())
}

/// CartPole's actor and critic.
#[derive(Debug, Clone, Tree)]
struct Agent<T> {
    actor: Mlp<T>,
    critic: Mlp<T>,
}

fn agent(_: Tensor) -> (Agent<Tensor>, Tensor) {
    let [a, b, key] = Key::constant(1).split_n();
    let (hidden, head) = (init::orthogonal(2f64.sqrt()), init::orthogonal(1.0));
    let net =
        |key, outputs| Mlp::init_with(key, &[4, 64, 64, outputs], Activation::Tanh, hidden, head);
    (Agent { actor: net(a, 2), critic: net(b, 1) }, key.into_data())
}

fn act((agent, x, key): (Agent<Tensor>, Tensor, Tensor)) -> [Tensor; 4] {
    let (now, next) = Key::from_data(key).split();
    let policy = Categorical::new(agent.actor.apply(x));
    let action = policy.sample(now);
    [action, policy.log_prob(action), agent.critic.apply(x).squeeze(-1), next.into_data()]
}

fn main() -> Result<()> {
    let mut peer = Peer::start("jax_dispatch.py");
    Row::header();

    let x = Array::from([1.0f32; 8]).to_device()?;
    let add = jit(|(x, y): (Tensor, Tensor)| x + y);
    let lowered = add.lower(&(x.clone(), x.clone()))?;
    let executable = compile(lowered.stablehlo(), &[])?;
    let args = zeros(lowered.program())?;
    let mut bare = Raw::new(&executable, &args);
    measure("add of 8 floats", 5000, &mut peer, &mut || bare.call(), &mut || {
        add.call((x.clone(), x.clone())).unwrap().wait().unwrap();
    });

    let layers = layers()?;
    let plus_one = jit(|layers: Vec<Layer<Tensor>>| tree::map(layers, |x: Tensor| x + 1.0));
    let lowered = plus_one.lower(&layers)?;
    let executable = compile(lowered.stablehlo(), &[])?;
    let args = zeros(lowered.program())?;
    let mut bare = Raw::new(&executable, &args);
    measure("30 leaves in and out", 1000, &mut peer, &mut || bare.call(), &mut || {
        plus_one.call(layers.clone()).unwrap()[9].s.wait().unwrap();
    });
    let mut state = Some(self::layers()?);
    let mut row = Row::new("30 leaves in and out, donated");
    for _ in 0..ROUNDS {
        row.ours(time(1000, || {
            let next = plus_one.call(state.take().unwrap()).unwrap();
            next[9].s.wait().unwrap();
            state = Some(next);
        }));
        row.peer(&mut peer, "30 leaves in and out, donated");
    }
    row.print();

    let (agent, key) = jit(agent).call(Array::from(0i32))?;
    for batch in [1, 4, 32, 256] {
        let observations = Array::new([batch, 4], &vec![0.1f32; batch * 4])?;
        let policy = jit(act);
        let lowered = policy.lower(&(agent.clone(), observations.clone(), key.clone()))?;
        let args = zeros(lowered.program())?;
        for eigen in [true, false] {
            let flags = [("xla_cpu_multi_thread_eigen", eigen)];
            let executable = compile(lowered.stablehlo(), &flags)?;
            let mut bare = Raw::new(&executable, &args);
            let mut row = Row::new(format!("policy of {batch}, bare, threads {eigen}"));
            for _ in 0..ROUNDS {
                row.ours(time(500, || bare.call()));
            }
            row.print();
        }
        let mut key = Some(key.clone());
        let mut row = Row::new(format!("policy of {batch}: host to host"));
        for _ in 0..ROUNDS {
            row.ours(time(500, || {
                let args = (agent.clone(), observations.clone(), key.take().unwrap());
                let [action, _, _, next] = policy.call(args).unwrap();
                black_box(action.to_vec::<i32>().unwrap());
                key = Some(next);
            }));
            if batch == 4 {
                row.peer(&mut peer, "policy of 4");
            }
        }
        row.print();
    }
    Ok(())
}
