//! Env steps per second of the pool, for the same settings as `benches/peers/envpool_classic.py`.
//!
//! usage: cargo bench --bench envs [-- ENV_ID [NUM_ENVS BATCH_SIZE NUM_THREADS]]
//!
//! One JSON line per setting: median, lowest and highest of the repeats. Actions are drawn
//! beforehand. `num_threads` 0 lets the pool choose; `threads_used` is its choice.

use std::time::{Duration, Instant};

use podracer::envs::{Action, Actions, EnvPool, EnvRng, ObsMut, PoolOptions, Space, make, seeds};
use podracer::error::Result;

const REPEATS: usize = 5;
const REPEAT: Duration = Duration::from_millis(400);
const DRAWN: usize = 256;

fn main() -> Result<()> {
    // Cargo passes --bench along.
    let asked: Vec<String> = std::env::args().skip(1).filter(|x| !x.starts_with('-')).collect();
    let id = asked.first().map_or("CartPole-v1", String::as_str);
    let sizes: Vec<usize> = asked.iter().skip(1).filter_map(|x| x.parse().ok()).collect();
    if let [num_envs, batch_size, num_threads] = sizes[..] {
        return measure(id, num_envs, batch_size, num_threads);
    }
    limit(id)?;
    for num_envs in [8, 64, 1024] {
        for batch_size in [num_envs, num_envs / 2] {
            for num_threads in [0, 1, 2] {
                measure(id, num_envs, batch_size, num_threads)?;
            }
        }
    }
    Ok(())
}

/// The limit of one thread: one environment in a plain loop, no pool.
fn limit(id: &str) -> Result<()> {
    let mut env = make(id)?;
    let spec = env.spec();
    let mut rng = EnvRng::new(seeds(0, 0, 0, 0));
    // Words, so that elements of any type are aligned.
    let mut words = vec![0u64; spec.observation.bytes().div_ceil(8)];
    let obs = &mut bytemuck::cast_slice_mut(&mut words)[..spec.observation.bytes()];
    let width = spec.action.shape().numel();
    let mut values = vec![0f32; width];
    let limit = spec.max_episode_steps.unwrap_or(u32::MAX);
    let mut rates = Vec::new();
    for _ in 0..=REPEATS {
        let (began, mut steps, mut elapsed, mut over) = (Instant::now(), 0u64, 0, true);
        while began.elapsed() < REPEAT {
            for _ in 0..1024 {
                if over {
                    env.reset(&mut rng, ObsMut(obs))?;
                    elapsed = 0;
                }
                let action = match spec.action {
                    Space::Discrete { n } => Action::Discrete(rng.below(n as u64) as usize),
                    _ => {
                        values.fill_with(|| rng.uniform(-1.0, 1.0) as f32);
                        Action::Box(&values)
                    }
                };
                let outcome = env.step(action, &mut rng, ObsMut(obs))?;
                elapsed += 1;
                over = outcome.terminated || elapsed >= limit;
                steps += 1;
            }
        }
        rates.push(steps as f64 / began.elapsed().as_secs_f64());
    }
    let rates = &mut rates[1..];
    rates.sort_by(f64::total_cmp);
    println!(
        "{{\"what\": \"plain loop\", \"env_id\": \"{id}\", \"steps_per_s\": {:.0}, \"min\": \
         {:.0}, \"max\": {:.0}}}",
        rates[REPEATS / 2],
        rates[0],
        rates[REPEATS - 1]
    );
    Ok(())
}

fn measure(id: &str, num_envs: usize, batch_size: usize, num_threads: usize) -> Result<()> {
    let options = PoolOptions { num_envs, batch_size, num_threads, ..Default::default() };
    let mut pool = EnvPool::make(id, options)?;
    let mut rng = EnvRng::new(seeds(0, 0, 0, 0));
    let discrete = match pool.spec().action {
        Space::Discrete { n } => Some(n as u64),
        _ => None,
    };
    let width = pool.spec().action.shape().numel();
    let draws = DRAWN * batch_size * width;
    let choices: Vec<i32> = (0..draws).map(|_| rng.below(discrete.unwrap_or(1)) as i32).collect();
    let values: Vec<f32> = (0..draws).map(|_| rng.uniform(-1.0, 1.0) as f32).collect();
    let actions = |k: usize| -> Actions<'_> {
        let row = batch_size * width;
        let range = (k % DRAWN) * row..(k % DRAWN + 1) * row;
        if discrete.is_some() { choices[range].into() } else { values[range].into() }
    };

    let synchronous = batch_size == num_envs;
    pool.async_reset()?;
    if synchronous {
        pool.recv()?;
    }
    let mut calls = 0;
    let mut rates = Vec::new();
    // One more repeat than we report: the first is the warm-up.
    for _ in 0..=REPEATS {
        let (began, first) = (Instant::now(), calls);
        while began.elapsed() < REPEAT {
            for _ in 0..64 {
                if synchronous {
                    pool.step(actions(calls))?;
                } else {
                    let batch = pool.recv()?;
                    pool.send(actions(calls), batch.env_id())?;
                }
                calls += 1;
            }
            pool.take_finished();
        }
        rates.push(((calls - first) * batch_size) as f64 / began.elapsed().as_secs_f64());
    }
    let rates = &mut rates[1..];
    rates.sort_by(f64::total_cmp);
    println!(
        "{{\"what\": \"podracer\", \"env_id\": \"{id}\", \"num_envs\": {num_envs}, \
         \"batch_size\": {batch_size}, \"num_threads\": {num_threads}, \"threads_used\": {}, \
         \"steps_per_s\": {:.0}, \"min\": {:.0}, \"max\": {:.0}}}",
        pool.num_threads(),
        rates[REPEATS / 2],
        rates[0],
        rates[REPEATS - 1]
    );
    Ok(())
}
