//! Memory tasks against CleanRL's Proof of Memory and MiniGrid: `tests/fixtures/envs/make_memory.py`
//! recorded both with our random numbers.

use std::collections::BTreeMap;

use podracer::envs::memory_tasks::{MiniGridMemory, MiniGridOptions, ProofOfMemory};
use podracer::envs::{Action, Env, EnvPool, EnvRng, EnvSeed, ObsMut, PoolOptions, make, spec};
use serde::Deserialize;

#[derive(Deserialize)]
struct Row {
    seed: u32,
    actions: String,
    obs: Vec<u32>,
    rewards: Vec<(usize, f64)>,
    terminated: Vec<usize>,
    truncated: Vec<usize>,
}

fn rows() -> BTreeMap<String, Row> {
    serde_json::from_str(include_str!("../fixtures/envs/memory.json")).unwrap()
}

/// FNV-1a of the bytes.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step)
}

/// Every observation, reward and end must be that of the reference.
fn same_episodes(name: &str, mut env: Box<dyn Env>) {
    let row = &rows()[name];
    let spec = env.spec();
    let limit = spec.max_episode_steps.unwrap() as usize;
    let mut rng = EnvRng::new(EnvSeed(u128::from(row.seed)));
    let mut obs = vec![7u32; spec.observation.bytes().div_ceil(4)];
    let bytes = spec.observation.bytes();
    let mut sums = Vec::new();
    let (mut rewards, mut terminated, mut truncated) = (Vec::new(), Vec::new(), Vec::new());
    let mut reset = |env: &mut Box<dyn Env>, rng: &mut EnvRng, sums: &mut Vec<u32>| {
        let seen = &mut bytemuck::cast_slice_mut::<u32, u8>(&mut obs)[..bytes];
        env.reset(rng, ObsMut(seen)).unwrap();
        sums.push(checksum(seen));
    };
    reset(&mut env, &mut rng, &mut sums);
    let mut steps = 0;
    let mut seen = vec![7u32; bytes.div_ceil(4)];
    for (at, action) in row.actions.bytes().enumerate() {
        let seen = &mut bytemuck::cast_slice_mut::<u32, u8>(&mut seen)[..bytes];
        let action = Action::Discrete(usize::from(action - b'0'));
        let outcome = env.step(action, &mut rng, ObsMut(seen)).unwrap();
        sums.push(checksum(seen));
        steps += 1;
        if outcome.reward != 0.0 {
            rewards.push((at, outcome.reward));
        }
        if outcome.terminated {
            terminated.push(at);
        } else if steps == limit {
            truncated.push(at);
        }
        if outcome.terminated || steps == limit {
            steps = 0;
            reset(&mut env, &mut rng, &mut sums);
        }
    }
    assert_eq!(rewards, row.rewards, "{name}");
    assert_eq!(terminated, row.terminated, "{name}");
    assert_eq!(truncated, row.truncated, "{name}");
    let first = sums.iter().zip(&row.obs).position(|(ours, theirs)| ours != theirs);
    assert_eq!((first, sums.len()), (None, row.obs.len()), "{name}: the first wrong observation");
}

#[test]
fn proof_of_memory_is_that_of_cleanrl() {
    same_episodes("ProofofMemory-v0", Box::new(ProofOfMemory::v0()));
}

#[test]
fn memory_tasks_are_those_of_minigrid() {
    for name in rows().keys().filter(|name| name.starts_with("MiniGrid")) {
        let id = podracer::envs::list_envs().into_iter().find(|id| id == name).unwrap();
        same_episodes(name, make(id).unwrap());
    }
}

#[test]
fn the_options_of_cleanrl_are_a_small_view_and_a_time_limit() {
    let env = MiniGridMemory::new("MiniGrid-MemoryS9-v0", MiniGridOptions::cleanrl()).unwrap();
    assert_eq!(env.spec().observation.to_string(), "Box(0, 1, bool[3,3,20])");
    assert_eq!(env.spec().max_episode_steps, Some(96));
    same_episodes("cleanrl", Box::new(env));
    assert_eq!(spec("MiniGrid-MemoryS9-v0").unwrap().max_episode_steps, Some(405));
}

#[test]
fn options_and_ids_that_do_not_exist_are_refused() {
    let error = |id: &str, agent_view_size| {
        let options = MiniGridOptions { agent_view_size, ..Default::default() };
        MiniGridMemory::new(id, options).unwrap_err().to_string()
    };
    assert!(error("MiniGrid-MemoryS8-v0", 7).contains("MiniGrid-MemoryS7-v0, MiniGrid-MemoryS9"));
    for size in [0, 1, 4] {
        let text = error("MiniGrid-MemoryS9-v0", size);
        assert!(text.contains("must be an odd number from 3 on"), "{text}");
    }
}

#[test]
fn states_are_saved_and_restored() {
    for id in ["ProofofMemory-v0", "MiniGrid-MemoryS9-v0", "MiniGrid-MemoryS17Random-v0"] {
        let mut pool =
            EnvPool::make(id, PoolOptions { num_envs: 1, ..Default::default() }).unwrap();
        pool.reset().unwrap();
        let step = |pool: &mut EnvPool, t: i32| {
            let action =
                if id == "ProofofMemory-v0" { t % 2 } else { [2, 2, 1, 2][t as usize % 4] };
            let batch = pool.step(&[action]).unwrap();
            (batch.obs_row::<u8>(0).to_vec(), batch.reward().to_vec())
        };
        (0..5).for_each(|t| drop(step(&mut pool, t)));
        let state = pool.save(0).unwrap();
        let once: Vec<_> = (5..40).map(|t| step(&mut pool, t)).collect();
        pool.restore(0, &state).unwrap();
        assert!(once == (5..40).map(|t| step(&mut pool, t)).collect::<Vec<_>>(), "{id}");
    }
    let mut corridor = ProofOfMemory::v0();
    assert!(corridor.restore(b"{\"cell\":6,\"left_rewards\":true,\"shown\":0}").is_err());
    let mut board =
        MiniGridMemory::new("MiniGrid-MemoryS7-v0", MiniGridOptions::default()).unwrap();
    // In a wall, beyond the board, and a direction that does not exist.
    for (x, y, direction) in [(4, 2, 0), (9, 9, 0), (1, 3, 4)] {
        let state = format!(
            "{{\"hallway_end\":4,\"position\":[{x},{y}],\"direction\":{direction},\
             \"ball_in_room\":true,\"ball_above\":false,\"steps\":3}}"
        );
        assert!(board.restore(state.as_bytes()).is_err(), "{state}");
    }
}
