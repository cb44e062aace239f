//! Environments of Gymnasium in worker processes, beside Gymnasium's vector environments: steps per
//! second of all environments together. `step` steps all of them at once; `recv` is the asynchronous
//! pool, which returns the half that is ready first.
//!
//! usage: PODRACER_PEER_PYTHON=PYTHON cargo bench --bench gymnasium [-- ENV_ID ...]
//!
//! Ids that begin with `envpool:` are environments of EnvPool, beside EnvPool itself with as many threads.
//!
//! The Python needs Gymnasium and the packages of the environments. `SyncVectorEnv` has one process,
//! `AsyncVectorEnv` one for each environment. The column "loops" is the cost of the environment
//! itself: two processes, each of which steps half of the environments in a plain loop.

use std::time::{Duration, Instant};

use podracer::envs::{Actions, EnvPool, EnvRng, GymnasiumOptions, PoolOptions, Space, seeds};
use podracer::error::Result;

#[allow(dead_code)] // Tables of other benchmarks.
mod peer;

use peer::Peer;

const REPEATS: usize = 3;
const REPEAT: Duration = Duration::from_millis(1500);
const DRAWN: usize = 256;
const PROCESSES: usize = 2;

fn main() -> Result<()> {
    // Cargo passes --bench along.
    let asked: Vec<String> = std::env::args().skip(1).filter(|x| !x.starts_with('-')).collect();
    let default = ["CartPole-v1".to_string()];
    let ids = if asked.is_empty() { &default[..] } else { &asked[..] };
    let mut peer = Peer::start("gymnasium_vector.py");
    if ids.iter().all(|id| id.starts_with("envpool:")) {
        return envpool_table(&mut peer, ids);
    }
    println!(
        "{:<16} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10} {:>13} {:>13} {:>13}",
        "environment",
        "envs",
        "step",
        "recv",
        "async",
        "sync",
        "loops",
        "step / async",
        "step / loops",
        "recv / loops"
    );
    for id in ids {
        for num_envs in [2, 8, 64] {
            row(&mut peer, id, num_envs)?;
        }
    }
    Ok(())
}

/// Measures environments of EnvPool beside EnvPool, alternately, and prints the medians.
fn envpool_table(peer: &mut Peer, ids: &[String]) -> Result<()> {
    println!("{:<36} {:>5} {:>10} {:>10} {:>6}", "environment", "envs", "step", "EnvPool", "ratio");
    for id in ids {
        for num_envs in [8, 64] {
            let mut samples: [Vec<f64>; 2] = Default::default();
            for _ in 0..REPEATS {
                samples[0].push(Pool::start(id, num_envs, num_envs)?.rate()?);
                samples[1].extend(peer.ask(&format!("{id} envpool {num_envs}")));
            }
            let [step, envpool] = samples.map(median);
            let ratio = step / envpool;
            println!("{id:<36} {num_envs:>5} {step:>10.0} {envpool:>10.0} {ratio:>6.2}");
        }
    }
    Ok(())
}

/// Returns the median, NaN of nothing.
fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures one setting of all alternately, and prints the medians.
fn row(peer: &mut Peer, id: &str, num_envs: usize) -> Result<()> {
    let mut samples: [Vec<f64>; 5] = Default::default();
    for _ in 0..REPEATS {
        samples[0].push(Pool::start(id, num_envs, num_envs)?.rate()?);
        samples[1].push(Pool::start(id, num_envs, num_envs / 2)?.rate()?);
        for (samples, kind) in samples[2..].iter_mut().zip(["async", "sync", "loops"]) {
            samples.extend(peer.ask(&format!("{id} {kind} {num_envs}")));
        }
    }
    let [step, recv, parallel, serial, loops] = samples.map(median);
    println!(
        "{id:<16} {num_envs:>5} {step:>10.0} {recv:>10.0} {parallel:>10.0} {serial:>10.0} {loops:>10.0} {:>13.2} {:>13.2} {:>13.2}",
        step / parallel,
        step / loops,
        recv / loops
    );
    Ok(())
}

/// A pool and the actions to step it with.
struct Pool {
    pool: EnvPool,
    floats: Vec<Vec<f32>>,
    choices: Vec<Vec<i32>>,
}

impl Pool {
    fn start(id: &str, num_envs: usize, batch_size: usize) -> Result<Pool> {
        let python = std::env::var_os("PODRACER_PEER_PYTHON").map(Into::into);
        let own = GymnasiumOptions { python, ..Default::default() };
        let num_threads = PROCESSES;
        let options = PoolOptions { num_envs, batch_size, num_threads, ..Default::default() };
        let id = if id.contains(':') { id.to_string() } else { format!("gymnasium:{id}") };
        let mut pool = EnvPool::gymnasium(&id, own, options)?;
        pool.async_reset()?;
        let mut rng = EnvRng::new(seeds(0, 0, 0, 0));
        let (mut floats, mut choices) = (vec![vec![]; DRAWN], vec![vec![]; DRAWN]);
        let action = pool.spec().action.clone();
        for k in 0..DRAWN * batch_size {
            match &action {
                Space::Discrete { n } => choices[k % DRAWN].push(rng.below(*n as u64) as i32),
                Space::Box { low, high, shape, .. } => floats[k % DRAWN]
                    .extend((0..shape.numel()).map(|i| rng.uniform(low.at(i), high.at(i)) as f32)),
                other => panic!("actions are {other}"),
            }
        }
        Ok(Pool { pool, floats, choices })
    }

    /// Steps per second of all environments.
    fn rate(&mut self) -> Result<f64> {
        let mut batch = self.pool.recv()?;
        let (mut steps, began) = (0, Instant::now());
        for k in (0..DRAWN).cycle() {
            let actions = match self.choices[k].is_empty() {
                true => Actions::F32(&self.floats[k]),
                false => Actions::I32(&self.choices[k]),
            };
            let env_ids = batch.env_id().to_vec();
            drop(batch);
            self.pool.send(actions, &env_ids)?;
            batch = self.pool.recv()?;
            steps += env_ids.len();
            if began.elapsed() >= REPEAT {
                break;
            }
        }
        Ok(steps as f64 / began.elapsed().as_secs_f64())
    }
}
