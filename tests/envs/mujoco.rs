//! The MuJoCo tasks, against recordings of gymnasium with the same version of the library.

use std::collections::HashSet;

use podracer::DType;
use podracer::envs::mujoco::Mujoco;
use podracer::envs::{
    Action, Env, EnvPool, EnvRng, MujocoOptions, ObsMut, PoolOptions, Space, list_envs, make,
    seeds, spec,
};
use pretty_assertions::assert_eq;
use safetensors::SafeTensors;

const FIXTURE: &[u8] = include_bytes!("../fixtures/envs/mujoco.safetensors");

const ROBOTS: [&str; 11] = [
    "Ant",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Walker2d",
];

fn ids() -> impl Iterator<Item = String> {
    ROBOTS.iter().flat_map(|robot| [format!("{robot}-v4"), format!("{robot}-v5")])
}

fn column<T: bytemuck::AnyBitPattern>(id: &str, name: &str) -> Vec<T> {
    let tensors = SafeTensors::deserialize(FIXTURE).unwrap();
    let bytes = tensors.tensor(&format!("{id}/{name}")).unwrap().data().to_vec();
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Element `i` of the action of step `t`, as in `make_mujoco.py`.
fn noise(t: usize, i: usize) -> f32 {
    let z = (t as u64 * 64 + i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let z = z ^ (z >> 31);
    ((z >> 40) as f64 / (1u64 << 23) as f64 - 1.0) as f32
}

fn fingerprint(obs: &[f64]) -> u64 {
    let step = |hash: u64, x: &f64| (hash ^ x.to_bits()).wrapping_mul(0x100_0000_01b3);
    obs.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The upper bounds of an action space that is symmetric.
fn bounds(space: &Space) -> Vec<f32> {
    let Space::Box { low, high, shape, .. } = space else { panic!("{space}") };
    (0..shape.numel())
        .map(|i| {
            assert_eq!(low.at(i), -high.at(i));
            high.at(i) as f32
        })
        .collect()
}

fn action(bounds: &[f32], t: usize) -> Vec<f32> {
    bounds.iter().enumerate().map(|(i, bound)| noise(t, i) * bound).collect()
}

fn rng() -> EnvRng {
    EnvRng::new(seeds(0, 0, 0, 0))
}

/// Replays a recording from its initial positions and velocities. Everything must be equal in every
/// bit: it is the same library, and what is around it computes in the same order.
fn align(id: &str) {
    let mut env = Mujoco::new(id, &MujocoOptions::default()).unwrap();
    let spec = env.spec();
    let bounds = bounds(&spec.action);
    let lengths: Vec<i32> = column(id, "lengths");
    let [qpos, qvel, first, last] =
        ["qpos", "qvel", "first", "last"].map(|name| column::<f64>(id, name));
    let hashes: Vec<u64> = column(id, "hashes");
    let rewards: Vec<f64> = column(id, "reward");
    let terminated: Vec<u8> = column(id, "terminated");
    let mut obs = vec![0f64; spec.observation.shape().numel()];
    let row = |values: &[f64], episode: usize| {
        let width = values.len() / lengths.len();
        values[episode * width..][..width].to_vec()
    };
    let mut t = 0;
    for (episode, &length) in lengths.iter().enumerate() {
        let place = format!("{id} episode {episode}");
        let (qpos, qvel) = (row(&qpos, episode), row(&qvel, episode));
        env.reset_to(&qpos, &qvel, ObsMut(bytemuck::cast_slice_mut(&mut obs))).unwrap();
        assert_eq!(obs, row(&first, episode), "{place}: first observation");
        for step in 1..=length {
            let action = action(&bounds, t);
            let row = ObsMut(bytemuck::cast_slice_mut(&mut obs));
            let outcome = env.step(Action::Box(&action), &mut rng(), row).unwrap();
            assert_eq!(outcome.reward, rewards[t], "{place} step {step}: reward");
            assert_eq!(outcome.terminated, terminated[t] != 0, "{place} step {step}: end");
            assert_eq!(fingerprint(&obs), hashes[t], "{place} step {step}: {obs:?}");
            t += 1;
        }
        assert_eq!(obs, row(&last, episode), "{place}: last observation");
    }
    assert_eq!(t, hashes.len());
    assert!(t >= 250 && lengths.len() >= 3);
}

macro_rules! align {
    ($($name:ident $robot:literal,)*) => {$(
        #[test]
        fn $name() {
            align(concat!($robot, "-v4"));
            align(concat!($robot, "-v5"));
        }
    )*};
}

align! {
    align_ant "Ant",
    align_half_cheetah "HalfCheetah",
    align_hopper "Hopper",
    align_humanoid "Humanoid",
    align_humanoid_standup "HumanoidStandup",
    align_inverted_double_pendulum "InvertedDoublePendulum",
    align_inverted_pendulum "InvertedPendulum",
    align_pusher "Pusher",
    align_reacher "Reacher",
    align_swimmer "Swimmer",
    align_walker2d "Walker2d",
}
