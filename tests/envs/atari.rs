//! The Atari games.

use podracer::envs::{AtariOptions, EnvPool, PoolOptions, Space};

#[test]
fn two_games_play() {
    for (id, actions) in [("Pong-v5", 6), ("Breakout-v5", 4)] {
        let options = PoolOptions { num_envs: 2, ..Default::default() };
        let atari = AtariOptions { episodic_life: true, reward_clip: true, ..Default::default() };
        let mut pool = EnvPool::atari(id, atari, options).unwrap();
        assert_eq!(pool.spec().observation, Space::image([4, 84, 84]));
        assert_eq!(pool.spec().action, Space::Discrete { n: actions });
        assert_eq!(pool.spec().max_episode_steps, Some(27_000));
        pool.reset().unwrap();
        let mut ends = 0;
        for t in 0..1500 {
            let batch = pool.step(&[t % actions as i32, (t / 3) % actions as i32]).unwrap();
            ends += batch.terminated().iter().filter(|&&x| x).count();
        }
        let finished = pool.take_finished();
        println!("{id} {ends} {finished:?}");
        assert!(!finished.is_empty());
    }
}
