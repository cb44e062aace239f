//! Environments of JAX inside a compiled program, beside JAX itself: steps per second of `vmap` of
//! the environment in a `scan`, with random actions and a reset in the same step.
//!
//! usage: PODRACER_PEER_PYTHON=PYTHON cargo bench --bench jax_environments [-- ID ...]
//!
//! The Python needs JAX and the packages of the ids, such as `gymnax:CartPole-v1`.

use std::process::Command;
use std::time::Instant;

use podracer::envs::Space;
use podracer::envs::traced::{AutoReset, ProgramEnv, TracedEnv};
use podracer::trace::control::scan;
use podracer::{DType, Jit, Key, Tensor, jit, random, vmap};

#[allow(dead_code)] // Tables of other benchmarks.
mod peer;

use peer::Peer;

const REPEATS: usize = 5;

fn main() -> podracer::Result<()> {
    // Cargo passes --bench along.
    let asked: Vec<String> = std::env::args().skip(1).filter(|x| !x.starts_with('-')).collect();
    let default = ["gymnax:CartPole-v1", "gymnax:Breakout-MinAtar", "pgx:connect_four", "brax:ant"];
    let default = default.map(String::from);
    let ids = if asked.is_empty() { &default[..] } else { &asked[..] };
    let Some(python) = std::env::var_os("PODRACER_PEER_PYTHON") else {
        println!("PODRACER_PEER_PYTHON is not set: it exports the environments");
        return Ok(());
    };
    let mut peer = Peer::start("jax_environment.py");
    println!("{:<28} {:>6} {:>12} {:>12} {:>8}", "environment", "envs", "podracer", "JAX", "/ JAX");
    for id in ids {
        let folder = std::env::temp_dir().join(format!("podracer-bench-{}", std::process::id()));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/jax_to_podracer.py");
        let status = Command::new(&python).args([script, id, "--out"]).arg(&folder).status();
        assert!(status.expect("the Python can be run").success(), "{id} is exported");
        // Steps of Brax take much longer than those of games.
        let sizes = match id.starts_with("brax:") {
            true => [(8, 100), (64, 40), (256, 20)],
            false => [(8, 4000), (256, 1000), (4096, 100)],
        };
        for (num_envs, num_steps) in sizes {
            let run = program(AutoReset::new(ProgramEnv::load(&folder)?), num_envs, num_steps);
            run.call(Key::new(0))?.item::<f32>()?;
            let (mut ours, mut theirs) = (vec![], vec![]);
            for _ in 0..REPEATS {
                let began = Instant::now();
                run.call(Key::new(1))?.item::<f32>()?;
                ours.push((num_envs * num_steps) as f64 / began.elapsed().as_secs_f64());
                theirs.extend(peer.ask(&format!("{id} {num_envs} {num_steps}")));
            }
            let [ours, theirs] = [ours, theirs].map(|mut rates| {
                rates.sort_by(f64::total_cmp);
                rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
            });
            let ratio = ours / theirs;
            println!("{id:<28} {num_envs:>6} {ours:>12.0} {theirs:>12.0} {ratio:>8.2}");
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
    Ok(())
}

/// All steps of all environments as one program; its result is the sum of the rewards.
fn program(
    env: AutoReset<ProgramEnv>,
    num_envs: usize,
    num_steps: usize,
) -> Jit<Key<Tensor>, Tensor, impl Fn(Key<Tensor>) -> Tensor> {
    jit(move |key: Key<Tensor>| {
        let (first, rest) = key.split();
        let (episodes, obs) = vmap(|key| env.reset(key))(first.split_batch(num_envs));
        let step = |(episodes, _), key: Tensor| {
            let [actions, steps] = Key::from_data(key).split_n();
            let actions = match env.env.spec().action {
                Space::Discrete { n } => {
                    random::randint(actions, [num_envs], 0, n as i32, DType::I32)
                }
                other => {
                    let shape = other.shape().with_axis(0, num_envs);
                    random::uniform(actions, shape, DType::F32, -1.0, 1.0)
                }
            };
            let one = |(episode, action, key)| env.step(episode, action, key);
            let next = vmap(one)((episodes, actions, steps.split_batch(num_envs)));
            ((next.episode, next.obs), next.reward.sum(..))
        };
        let keys = rest.split_batch(num_steps).into_data();
        // The last observations are part of the result, so that those of all steps are computed.
        let ((_, obs), rewards) = scan(step, (episodes, obs), keys);
        rewards.sum(..) + 0.0 * obs.to(DType::F32).sum(..)
    })
}
