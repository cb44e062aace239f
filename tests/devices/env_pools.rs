//! Env pools inside a `pmap`: each device steps its own.

use podracer::envs::{EnvPool, Handle, PoolOptions, XlaPool};
use podracer::trace::control::scan;
use podracer::{Array, DType, Mode, Tensor, pmap_with_mode, psum, shard, unshard};

use super::devices;

fn pool(actor: usize) -> EnvPool {
    let options = PoolOptions { num_envs: 3, actor: actor as u16, ..Default::default() };
    EnvPool::make("CartPole-v1", options).unwrap()
}

#[test]
fn each_device_steps_its_own_pool() {
    const TURNS: usize = 30;
    let devices = devices(4);
    // What the four pools say on the host.
    let mut expected = Vec::new();
    for actor in 0..4 {
        let mut pool = pool(actor);
        pool.reset().unwrap();
        for _ in 0..TURNS - 1 {
            pool.step(&[1, 0, 1]).unwrap();
        }
        expected.extend_from_slice(pool.step(&[1, 0, 1]).unwrap().obs::<f32>());
    }
    for mode in [Mode::Jit, Mode::Eager, Mode::Interpret] {
        let (handle, envs) = XlaPool::new((0..4).map(pool).collect()).unwrap();
        let rollout =
            pmap_with_mode(mode, "device", |axis, (handle, actions): (Handle<Tensor>, Tensor)| {
                let handle = Handle::from_data(handle.into_data().reshape([]));
                let (handle, first) = envs.reset(handle);
                let step = |(handle, _): (Handle<Tensor>, Tensor), actions: Tensor| {
                    let (handle, step) = envs.step(handle, actions);
                    // The devices wait for each other in every turn.
                    let all = psum(step.reward.sum(..), axis);
                    ((handle, step.obs), all)
                };
                let ((_, obs), rewards) = scan(step, (handle, first.obs), actions);
                (obs, rewards)
            });
        let handle = Handle::from_data(shard(&handle.into_data(), &devices).unwrap());
        let actions: Vec<i32> = [1, 0, 1].repeat(4 * TURNS);
        let actions = shard(&Array::new([4 * TURNS, 3], &actions).unwrap(), &devices).unwrap();
        let (obs, rewards) = rollout.call((handle, actions)).unwrap();
        assert_eq!(unshard(&obs).unwrap().to_vec::<f32>().unwrap(), expected, "{mode}");
        let rewards = unshard(&rewards).unwrap();
        assert_eq!(rewards.dtype(), DType::F32);
        assert_eq!(rewards.to_vec::<f32>().unwrap(), [12.0; 4 * TURNS], "{mode}");
    }
}
