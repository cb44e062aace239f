//! The same seed, the same trajectories, whatever the threads and batches.

use std::collections::HashSet;

use podracer::envs::{Actions, Autoreset, Batch, EnvPool, PoolOptions, Space, seeds, spec};
use podracer::error::Result;
use pretty_assertions::assert_eq;

use super::options;

const CLASSIC: [&str; 6] = [
    "Acrobot-v1",
    "CartPole-v0",
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
];

/// Actions for environment `env` at its step `t`, the same for every pool.
fn action(space: &Space, env: usize, t: usize) -> f32 {
    let bits = seeds(99, 0, 0, (env * 10_000 + t) as u32).0 as u32;
    match space {
        Space::Discrete { n } => (bits as usize % n) as f32,
        _ => bits as f32 / u32::MAX as f32 * 2.0 - 1.0,
    }
}

fn with_actions<T>(space: &Space, values: &[f32], f: impl FnOnce(Actions<'_>) -> T) -> T {
    match space {
        Space::Discrete { .. } => {
            let choices: Vec<i32> = values.iter().map(|&x| x as i32).collect();
            f((&choices).into())
        }
        _ => f(values.into()),
    }
}

/// Outputs of one environment in one step, compared bit for bit.
type Told = (Vec<u32>, Option<Vec<u32>>, u32, [bool; 4], i32);

fn message(batch: &Batch, row: usize) -> Told {
    let bits = |obs: &[f32]| obs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    (
        bits(batch.obs_row(row)),
        batch.final_obs(row).map(bits),
        batch.reward()[row].to_bits(),
        [
            batch.terminated()[row],
            batch.truncated()[row],
            batch.first()[row],
            batch.life_lost()[row],
        ],
        batch.elapsed_steps()[row],
    )
}

/// The first `steps` rows of each environment, by whatever route `options` take.
fn trajectories(id: &str, options: PoolOptions, steps: usize) -> Vec<Vec<Told>> {
    let mut pool = EnvPool::make(id, options).unwrap();
    let space = pool.spec().action.clone();
    let mut all = vec![Vec::new(); pool.num_envs()];
    pool.async_reset().unwrap();
    while all.iter().any(|env| env.len() < steps) {
        let batch = pool.recv().unwrap();
        assert_eq!(batch.len(), pool.batch_size());
        let mut values = Vec::new();
        for (row, &env) in batch.env_id().iter().enumerate() {
            let env = env as usize;
            values.push(action(&space, env, all[env].len()));
            all[env].push(message(&batch, row));
        }
        with_actions(&space, &values, |actions| pool.send(actions, batch.env_id())).unwrap();
    }
    all.iter_mut().for_each(|env| env.truncate(steps));
    all
}

#[test]
fn deterministic_whatever_the_threads_and_batches() {
    for id in CLASSIC {
        let reference = trajectories(id, PoolOptions { num_threads: 1, ..options(6) }, 250);
        for (num_threads, batch_size) in [(0, 6), (2, 6), (4, 6), (0, 2), (1, 3), (3, 4), (2, 1)] {
            let other = PoolOptions { num_threads, batch_size, ..options(6) };
            let route = format!("{id}: {num_threads} threads, batches of {batch_size}");
            assert!(trajectories(id, other, 250) == reference, "{route}");
        }
        let other = PoolOptions { seed: 2, ..options(6) };
        let elsewhere = trajectories(id, other, 1);
        assert!((0..6).all(|env| elsewhere[env][0] != reference[env][0]), "{id}: seed 2");
        // No two environments start alike.
        let starts: HashSet<&Vec<u32>> = reference.iter().map(|env| &env[0].0).collect();
        assert_eq!(starts.len(), 6, "{id}");
    }
}

#[test]
fn a_restored_environment_continues_as_the_saved_one() {
    for (id, autoreset) in
        CLASSIC.into_iter().zip([Autoreset::SameStep, Autoreset::NextStep].repeat(3))
    {
        let limits =
            |seed| PoolOptions { autoreset, seed, max_episode_steps: Some(40), ..options(3) };
        let run = |pool: &mut EnvPool, from: usize, to: usize| -> Vec<Told> {
            let space = pool.spec().action.clone();
            let mut all = Vec::new();
            for t in from..to {
                let values: Vec<f32> = (0..3).map(|env| action(&space, env, t)).collect();
                let batch = with_actions(&space, &values, |actions| pool.step(actions)).unwrap();
                all.extend((0..3).map(|row| message(&batch, row)));
            }
            all
        };
        let mut pool = EnvPool::make(id, limits(1)).unwrap();
        pool.reset().unwrap();
        run(&mut pool, 0, 60);
        pool.take_finished();
        let states: Vec<_> = (0..3).map(|env| pool.save(env).unwrap()).collect();
        let expected = run(&mut pool, 60, 150);
        let finished = pool.take_finished();
        assert!(!finished.is_empty(), "{id}: no episode ended");

        // In a pool that never was where this one is, and in one that has gone on.
        let mut other = EnvPool::make(id, limits(9)).unwrap();
        for pool in [&mut other, &mut pool] {
            states.iter().enumerate().for_each(|(env, state)| pool.restore(env, state).unwrap());
            assert_eq!(run(pool, 60, 150), expected, "{id}");
            assert_eq!(pool.take_finished(), finished, "{id}");
        }

        let error = |outcome: Result<()>| outcome.unwrap_err().to_string();
        let message = error(other.restore(0, b"something else"));
        assert!(message.contains("these 14 bytes are no saved state"), "{message}");
        let message = error(other.restore(0, &states[0][..states[0].len() - 3]));
        assert!(message.contains(&format!("{id}: a saved state has")), "{message}");
        let head = String::from_utf8_lossy(&states[0]).replace("\"elapsed\"", "\"elapses\"");
        let message = error(other.restore(0, head.as_bytes()));
        assert!(message.contains("the saved state is damaged"), "{message}");
        let other_id = if id == "CartPole-v1" { "Acrobot-v1" } else { "CartPole-v1" };
        let mut wrong = EnvPool::make(other_id, options(1)).unwrap();
        let message = error(wrong.restore(0, &states[0]));
        assert!(message.contains(&format!("the saved state is one of {id}")), "{message}");
        assert!(error(other.save(3).map(drop)).contains("there is no env 3"));
    }
}

#[test]
fn step_is_send_and_recv() {
    let mut pool = EnvPool::make("CartPole-v1", options(3)).unwrap();
    let mut all = vec![Vec::new(); 3];
    let mut batch = pool.reset().unwrap();
    for t in 0..100 {
        (0..3).for_each(|env| all[env].push(message(&batch, env)));
        let space = pool.spec().action.clone();
        let actions: Vec<i32> = (0..3).map(|env| action(&space, env, t) as i32).collect();
        batch = pool.step(&actions).unwrap();
    }
    assert!(all == trajectories("CartPole-v1", options(3), 100));
}

#[test]
fn observations_lie_in_their_space() {
    for id in CLASSIC {
        let Space::Box { low, high, .. } = spec(id).unwrap().observation else { panic!() };
        for (obs, ..) in trajectories(id, options(8), 600).into_iter().flatten() {
            for (i, x) in obs.into_iter().map(f32::from_bits).enumerate() {
                let inside = low.at(i) as f32 <= x && x <= high.at(i) as f32;
                assert!(inside, "{id}: element {i} is {x}");
            }
        }
    }
}

#[test]
fn seeds_do_not_collide() {
    let mut seen = HashSet::new();
    for run in (0..20).chain([u64::MAX, 1 << 32, 1 << 48]) {
        for (process, actor) in [(0, 0), (0, 1), (1, 0), (1, 1), (u16::MAX, 0), (0, u16::MAX)] {
            for env in (0..300).chain([u32::MAX]) {
                assert!(seen.insert(seeds(run, process, actor, env)));
            }
        }
    }
    // Neighbors look unrelated: about half of the 128 bits differ.
    for env in 0..100 {
        let differing = (seeds(0, 0, 0, env).0 ^ seeds(0, 0, 0, env + 1).0).count_ones();
        assert!((32..96).contains(&differing), "{differing}");
    }
}
