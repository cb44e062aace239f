//! Atari games for several players, compared with PettingZoo and SuperSuit.

use podracer::envs::{
    Batch, EnvPool, EnvRng, PoolOptions, Space, list_envs, make, num_agents, seeds, spec,
};
use serde_json::Value;

/// Written by `tests/fixtures/envs/make_pettingzoo.py`.
const FIXTURE: &str = include_str!("../fixtures/envs/pettingzoo.json");

fn pool(id: &str, num_envs: usize, num_threads: usize) -> EnvPool {
    let options = PoolOptions { num_envs, num_threads, ..Default::default() };
    EnvPool::make(id, options).unwrap()
}

/// Actions of the fixture's script.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = (self.0 * 1_103_515_245 + 12_345) % (1 << 31);
        self.0 >> 16
    }

    fn actions(&mut self, num_envs: usize, num_actions: u64) -> Vec<i32> {
        (0..num_envs).map(|_| (self.next() % num_actions) as i32).collect()
    }
}

/// Sum of the bytes of each row, and sum weighted by their positions.
fn checksums(batch: &Batch, num_envs: usize) -> Vec<[u64; 2]> {
    let obs = batch.obs::<u8>();
    let row = |row: &[u8]| {
        let sum = row.iter().map(|&byte| u64::from(byte)).sum();
        let weighted = row.iter().enumerate().map(|(i, &byte)| u64::from(byte) * (i as u64 % 251));
        [sum, weighted.sum()]
    };
    obs.chunks_exact(obs.len() / num_envs).map(row).collect()
}

#[test]
fn every_game_is_that_of_pettingzoo() {
    let fixture: Value = serde_json::from_str(FIXTURE).unwrap();
    let drawn = EnvRng::new(seeds(1, 0, 0, 0)).bits() >> 33;
    assert_eq!(fixture["seed"].as_u64(), Some(drawn), "the seed in the fixture's script");
    let games = fixture["games"].as_object().unwrap();
    assert_eq!(games.len(), 24);
    for (id, game) in games {
        let number = |name: &str| game[name].as_u64().unwrap();
        let agents = number("num_agents") as usize;
        assert_eq!(num_agents(id), agents, "{id}");
        assert!(list_envs().contains(&id.as_str()), "{id}");
        let mut pool = pool(id, agents, 1);
        assert_eq!(pool.spec().observation, Space::image([4 + agents, 84, 84]), "{id}");
        let size = number("num_actions");
        assert_eq!(pool.spec().action, Space::Discrete { n: size as usize }, "{id}");

        let rows = |name: &str| game[name].as_array().unwrap().iter();
        let at = |row: &Value, step: u64| row[0] == step;
        let mut numbers = Numbers(1);
        let mut batch = pool.reset().unwrap();
        let mut dead = vec![false; agents];
        for step in 0..=number("steps") {
            if step > 0 {
                batch = pool.step(&numbers.actions(agents, size)).unwrap();
                let mut rewards = vec![0.0; agents];
                for row in rows("rewards").filter(|row| at(row, step)) {
                    rewards[row[1].as_u64().unwrap() as usize] = row[2].as_f64().unwrap() as f32;
                }
                assert_eq!(batch.reward(), rewards, "{id}, step {step}");
                let ended = rows("ends").any(|end| *end == step);
                assert!(batch.terminated().iter().all(|&x| x == ended), "{id}, step {step}");
                assert!(!batch.truncated().contains(&true), "{id}, step {step}");
                for row in rows("deaths").filter(|row| at(row, step)) {
                    for agent in row[1].as_array().unwrap() {
                        dead[agent.as_u64().unwrap() as usize] = true;
                    }
                }
                if ended {
                    dead.fill(false);
                } else {
                    assert_eq!(batch.life_lost(), dead, "{id}, step {step}");
                }
            }
            if let Some(row) = rows("obs").find(|row| at(row, step)) {
                let wanted: Vec<[u64; 2]> = serde_json::from_value(row[1].clone()).unwrap();
                assert_eq!(checksums(&batch, agents), wanted, "{id}, step {step}");
            }
        }
    }
}

#[test]
fn a_pool_has_a_row_for_each_player() {
    let id = "combat_tank_v2";
    assert_eq!(spec(id).unwrap(), *pool(id, 2, 1).spec());
    let message = |num_envs, batch_size| {
        let options = PoolOptions { num_envs, batch_size, ..Default::default() };
        EnvPool::make(id, options).unwrap_err().to_string()
    };
    let odd = message(3, 0);
    assert!(odd.contains("num_envs is 3, expected a multiple of 2"), "{odd}");
    let asynchronous = message(4, 2);
    assert!(asynchronous.contains("batch_size is 2, expected num_envs, 4"), "{asynchronous}");
    let alone = make(id).err().unwrap().to_string();
    assert!(alone.contains("combat_tank_v2 has 2 agents"), "{alone}");
    let error = pool(id, 2, 1).step(&[0, 0]).unwrap_err().to_string();
    assert!(error.contains("has not been reset"), "{error}");
}

/// Steps three games; after half of the steps the games are those of a pool that was restored from
/// the other one's states, and start again once.
fn trajectory(num_threads: usize, restored: bool) -> Vec<(Vec<u8>, Vec<f32>)> {
    let (id, num_envs) = ("combat_tank_v2", 6);
    let mut games = pool(id, num_envs, num_threads);
    let mut numbers = Numbers(5);
    let mut steps = Vec::new();
    games.reset().unwrap();
    for step in 0..60 {
        if step == 30 && restored {
            let states: Vec<_> = (0..num_envs).map(|env| games.save(env).unwrap()).collect();
            games = pool(id, num_envs, num_threads);
            for (env, state) in states.iter().enumerate() {
                games.restore(env, state).unwrap();
            }
            let damaged = &states[0][..states[0].len() - 1];
            let error = games.restore(0, damaged).unwrap_err().to_string();
            assert!(error.contains("no state that was saved of this game"), "{error}");
        }
        if step == 45 {
            games.reset().unwrap();
        }
        let batch = games.step(&numbers.actions(num_envs, 18)).unwrap();
        steps.push((batch.obs::<u8>().to_vec(), batch.reward().to_vec()));
    }
    steps
}

#[test]
fn threads_and_restored_states_do_not_change_the_games() {
    let alone = trajectory(1, false);
    assert!(alone[10].0[..4 * 7056] != alone[10].0[12 * 7056..][..4 * 7056], "equal games");
    assert!(alone == trajectory(3, false), "three threads");
    assert!(alone == trajectory(2, true), "restored");
}

#[test]
fn a_game_is_truncated_for_all_players_and_drawn() {
    let options = PoolOptions { num_envs: 4, max_episode_steps: Some(3), ..Default::default() };
    let mut pool = EnvPool::make("quadrapong_v4", options).unwrap();
    pool.reset().unwrap();
    for step in 1..=6 {
        let batch = pool.step(&[0, 1, 2, 3]).unwrap();
        assert_eq!(batch.truncated(), [step % 3 == 0; 4], "step {step}");
    }
    assert_eq!(pool.take_finished().len(), 8);
    let frame = pool.render(3).unwrap().unwrap();
    assert_eq!((frame.height, frame.width), (210, 160));
}
