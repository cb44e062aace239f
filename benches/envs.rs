//! Env steps per second of the pool, for the same settings as `benches/peers/envpool_classic.py`.
//!
//! usage: cargo bench --bench envs [-- ENV_ID [NUM_ENVS BATCH_SIZE NUM_THREADS]]
//!        cargo bench --bench envs -- overhead
//!
//! `overhead`: what the pool adds to a batch of environments whose step takes a known time.
//!
//! One JSON line per setting: median, lowest and highest of the repeats. Actions are drawn
//! beforehand. `num_threads` 0 lets the pool choose; `threads_used` is its choice.

use std::time::{Duration, Instant};

use podracer::envs::{
    Action, Actions, Env, EnvPool, EnvRng, EnvSpec, ObsMut, PoolOptions, Space, StepOutcome, make,
    seeds,
};
use podracer::error::Result;
use podracer::timeline;

const REPEATS: usize = 5;
const REPEAT: Duration = Duration::from_millis(400);
const DRAWN: usize = 256;

fn main() -> Result<()> {
    // Cargo passes --bench along.
    let asked: Vec<String> = std::env::args().skip(1).filter(|x| !x.starts_with('-')).collect();
    match &asked.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["share", id] => return share(id),
        ["start", id, num_envs] => return start(id, num_envs.parse().expect("a number")),
        _ => {}
    }
    let id = asked.first().map_or("CartPole-v1", String::as_str);
    if id == "overhead" {
        return overhead();
    }
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

/// An environment whose step takes `0` of time, and nothing else.
struct Busy(Duration);

impl Env for Busy {
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: "Busy-v0".into(),
            observation: Space::f32([4], -1.0, 1.0),
            action: Space::Discrete { n: 2 },
            max_episode_steps: None,
            reward_threshold: None,
        }
    }

    fn reset(&mut self, _: &mut EnvRng, mut obs: ObsMut<'_>) -> Result<()> {
        obs.write(&[0.0f32; 4]);
        Ok(())
    }

    fn step(&mut self, _: Action<'_>, _: &mut EnvRng, obs: ObsMut<'_>) -> Result<StepOutcome> {
        let began = Instant::now();
        let _ = obs;
        while began.elapsed() < self.0 {
            std::hint::spin_loop();
        }
        Ok(StepOutcome::new(0.0, false))
    }
}

fn overhead() -> Result<()> {
    for num_threads in [1, 2] {
        for (num_envs, us) in [(8, 0), (8, 10), (8, 100), (8, 400), (32, 100)] {
            let options = PoolOptions { num_envs, num_threads, ..Default::default() };
            let factory = |_| Ok(Box::new(Busy(Duration::from_micros(us))) as Box<dyn Env>);
            let mut pool = EnvPool::custom(factory, options)?;
            pool.reset()?;
            let actions = vec![0; num_envs];
            let ideal = us as f64 * (num_envs / num_threads) as f64;
            let steps = if us == 0 { 10_000 } else { 300 };
            let mut costs = Vec::new();
            for _ in 0..steps {
                let began = Instant::now();
                pool.step(&actions)?;
                costs.push(began.elapsed().as_secs_f64() * 1e6 - ideal);
            }
            costs.sort_by(f64::total_cmp);
            println!(
                "{{\"what\": \"overhead of a batch, us\", \"num_envs\": {num_envs}, \
                 \"num_threads\": {num_threads}, \"step_us\": {us}, \"median\": {:.2}, \"p10\": \
                 {:.2}, \"p90\": {:.2}}}",
                costs[steps / 2],
                costs[steps / 10],
                costs[steps * 9 / 10]
            );
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

/// The emulator's share of the time of steps, by the spans of a timeline; resets are left out.
fn share(id: &str) -> Result<()> {
    let mut env = make(id)?;
    let spec = env.spec();
    let Space::Discrete { n } = spec.action else { panic!("{id} is no Atari game") };
    let mut rng = EnvRng::new(seeds(0, 0, 0, 0));
    let mut obs = vec![0u8; spec.observation.bytes()];
    let path = std::env::temp_dir().join(format!("podracer-share-{}.json", std::process::id()));
    let mut shares = Vec::new();
    for _ in 0..=REPEATS {
        let recording = timeline::start(&path)?;
        let mut over = true;
        for _ in 0..1000 {
            if over {
                env.reset(&mut rng, ObsMut(&mut obs))?;
            }
            let action = Action::Discrete(rng.bits() as usize % n);
            let _span = timeline::span("step");
            over = env.step(action, &mut rng, ObsMut(&mut obs))?.terminated;
        }
        recording.finish()?;
        shares.push(emulators_share(&std::fs::read_to_string(&path).expect("just written")));
    }
    std::fs::remove_file(&path).expect("just written");
    let shares = &mut shares[1..];
    shares.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (share, step, rest) = shares[REPEATS / 2];
    println!(
        "{{\"what\": \"emulator's share\", \"env_id\": \"{id}\", \"share\": {share:.3}, \"min\": \
         {:.3}, \"max\": {:.3}, \"step_us\": {step:.1}, \"rest_us\": {rest:.1}}}",
        shares[0].0,
        shares[REPEATS - 1].0,
    );
    Ok(())
}

/// The emulator's share of the steps in a timeline, the median step and the median of what is not
/// the emulator's in it, in microseconds.
fn emulators_share(text: &str) -> (f64, f64, f64) {
    let trace: serde_json::Value = serde_json::from_str(text).expect("a timeline is JSON");
    let spans = |name: &'static str| {
        let events = trace["traceEvents"].as_array().expect("it has events").iter();
        let number = |event: &serde_json::Value, key: &str| event[key].as_f64().expect("a number");
        events
            .filter(move |event| event["name"] == name)
            .map(move |event| (number(event, "ts"), number(event, "dur")))
            .collect::<Vec<_>>()
    };
    let (mut steps, mut frames) = (spans("step"), spans("emulate"));
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    frames.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut rests = Vec::new();
    let (mut emulated, mut k) = (0.0, 0);
    for &(from, time) in &steps {
        let mut inside = 0.0;
        while k < frames.len() && frames[k].0 < from + time {
            // Frames before a step are of a reset.
            inside += if frames[k].0 >= from { frames[k].1 } else { 0.0 };
            k += 1;
        }
        emulated += inside;
        rests.push(time - inside);
    }
    let total: f64 = steps.iter().map(|step| step.1).sum();
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    (emulated / total, median(steps.iter().map(|step| step.1).collect()), median(rests))
}

/// Time to make and reset a pool, and memory of one of its environments.
fn start(id: &str, num_envs: usize) -> Result<()> {
    // What is loaded once per process comes first.
    drop(EnvPool::make(id, PoolOptions::default())?);
    let before = resident();
    let began = Instant::now();
    let mut pool = EnvPool::make(id, PoolOptions { num_envs, ..Default::default() })?;
    let made = began.elapsed();
    pool.reset()?;
    println!(
        "{{\"what\": \"start\", \"env_id\": \"{id}\", \"num_envs\": {num_envs}, \"made_s\": {:.2}, \
         \"reset_s\": {:.2}, \"mb_per_env\": {:.2}}}",
        made.as_secs_f64(),
        (began.elapsed() - made).as_secs_f64(),
        (resident() - before) / num_envs as f64 / 1e6,
    );
    Ok(())
}

/// Bytes of memory that this process uses; `None` on systems that do not report it.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kilobytes.map_or(f64::NAN, |kilobytes| 1024.0 * kilobytes)
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
