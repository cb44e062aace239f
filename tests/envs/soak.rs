//! Many steps of many environments on many threads: nothing is lost, doubled or mixed up.
//!
//! `cargo test` takes a short one. `PODRACER_SOAK=1000000` is a million steps; under a race
//! detector: see `docs/environments.md`.

use std::hash::{DefaultHasher, Hash, Hasher};

use podracer::envs::{Actions, Batch, EnvPool, EnvRng, PoolOptions, Space, seeds};

/// Kinds of environments, 16 of each: 64 in four pools that step at the same time.
const KINDS: [&str; 4] = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"];
const ENVS: usize = 16;

/// What environment `env` does at its step `t`: the same in every pool.
fn action(space: &Space, env: usize, t: usize) -> f32 {
    let bits = seeds(5, 0, env as u16, t as u32).0 as u32;
    match space {
        Space::Discrete { n } => (bits as usize % n) as f32,
        _ => bits as f32 / u32::MAX as f32 * 4.0 - 2.0,
    }
}

fn note(hasher: &mut DefaultHasher, batch: &Batch, row: usize) {
    let obs = batch.obs_row::<f32>(row).iter().map(|x| x.to_bits());
    obs.for_each(|bits| bits.hash(hasher));
    batch.reward()[row].to_bits().hash(hasher);
    [batch.terminated()[row], batch.truncated()[row], batch.first()[row]].hash(hasher);
    batch.elapsed_steps()[row].hash(hasher);
    for last in batch.final_obs::<f32>(row).into_iter().flatten() {
        last.to_bits().hash(hasher);
    }
}

/// One number for each environment: a hash of the outputs of its first `steps` steps.
///
/// `random` draws how many of the environments that wait are sent at once, and which batches are
/// kept for a while.
fn output_hashes(id: &str, options: PoolOptions, steps: usize, mut random: EnvRng) -> Vec<u64> {
    let mut pool = EnvPool::make(id, options).unwrap();
    let space = pool.spec().action.clone();
    let mut hashers = vec![DefaultHasher::new(); ENVS];
    let mut counts = [0; ENVS];
    let mut waiting: Vec<i32> = Vec::new();
    let mut kept: Vec<Batch> = Vec::new();
    let mut in_flight = ENVS;
    pool.async_reset().unwrap();
    while counts.iter().any(|&count| count <= steps) {
        if in_flight >= pool.batch_size() {
            let batch = pool.recv().unwrap();
            in_flight -= batch.len();
            for (row, &env) in batch.env_id().iter().enumerate() {
                let env = env as usize;
                if counts[env] <= steps {
                    note(&mut hashers[env], &batch, row);
                }
                counts[env] += 1;
                waiting.push(env as i32);
            }
            // Memory that is held is not filled again; what is let go is.
            kept.push(batch);
            if kept.len() > 3 {
                kept.swap_remove(random.below(4) as usize);
            }
        }
        // At least so many that the next batch can come.
        let needed = pool.batch_size().saturating_sub(in_flight);
        let spare = waiting.len() - needed;
        let count = needed + random.below(spare as u64 + 1) as usize;
        let envs: Vec<i32> = waiting.drain(..count).collect();
        let values: Vec<f32> =
            envs.iter().map(|&env| action(&space, env as usize, counts[env as usize])).collect();
        let choices: Vec<i32> = values.iter().map(|&x| x as i32).collect();
        let actions: Actions<'_> = match space {
            Space::Discrete { .. } => (&choices).into(),
            _ => (&values).into(),
        };
        pool.send(actions, &envs).unwrap();
        in_flight += envs.len();
    }
    hashers.into_iter().map(|hasher| hasher.finish()).collect()
}

#[test]
fn sixty_four_environments_of_four_kinds() {
    let all: usize =
        std::env::var("PODRACER_SOAK").map_or(60_000, |text| text.parse().expect("a number"));
    // Three pools of each kind are compared.
    let steps = all / (3 * KINDS.len() * ENVS);
    let options = |num_threads, batch_size| PoolOptions {
        num_envs: ENVS,
        num_threads,
        batch_size,
        max_episode_steps: Some(100),
        ..Default::default()
    };
    std::thread::scope(|scope| {
        for (k, id) in KINDS.into_iter().enumerate() {
            scope.spawn(move || {
                let random = |pool| EnvRng::new(seeds(7, 0, k as u16, pool));
                let alone = output_hashes(id, options(1, ENVS), steps, random(0));
                assert!(
                    output_hashes(id, options(3, ENVS), steps, random(1)) == alone,
                    "{id}: synchronous"
                );
                assert!(
                    output_hashes(id, options(3, 5), steps, random(2)) == alone,
                    "{id}: asynchronous"
                );
            });
        }
    });
}
