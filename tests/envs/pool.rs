//! The pool: what is the same whatever its threads, resets, failures; here buffers and threads.

mod failures;
mod load;
mod resets;
mod trajectories;

use std::time::Duration;

use podracer::envs::{
    ALIGNMENT, Action, Batch, Env, EnvPool, EnvRng, EnvSpec, Field, ObsMut, PoolOptions, Space,
    StepOutcome,
};
use podracer::error::{Error, Result};
use pretty_assertions::assert_eq;

use load::Changed;

fn options(num_envs: usize) -> PoolOptions {
    PoolOptions { num_envs, ..Default::default() }
}

/// Counts: the observation is `10 * episode + step`. Episodes end when the action says so; a game
/// is two lives. The reward is clipped to 1, the game's is 5.
#[derive(Default)]
struct Counter {
    episode: i32,
    step: i32,
    lives: u8,
    fail_at: Option<(i32, bool)>,
}

const GO: i32 = 0;
const DIE: i32 = 1;
const CUT: i32 = 2;

impl Env for Counter {
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: "Counter-v0".into(),
            observation: Space::f32([1], 0.0, f64::INFINITY),
            action: Space::Discrete { n: 3 },
            max_episode_steps: Some(6),
            reward_threshold: None,
        }
    }

    fn reset(&mut self, _rng: &mut EnvRng, mut obs: ObsMut<'_>) -> Result<()> {
        self.episode += 1;
        self.step = 0;
        if self.lives == 0 {
            self.lives = 2;
        }
        obs.write(&[(10 * self.episode) as f32]);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        mut obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        self.step += 1;
        match self.fail_at {
            Some((step, true)) if step == self.step => panic!("the wheels came off"),
            Some((step, false)) if step == self.step => return Err(Error::Env("no fuel".into())),
            _ => {}
        }
        obs.write(&[(10 * self.episode + self.step) as f32]);
        let died = action.discrete() as i32 == DIE;
        self.lives -= u8::from(died);
        Ok(StepOutcome {
            reward: 1.0,
            terminated: died,
            truncated: action.discrete() as i32 == CUT,
            life_lost: died,
            game_reward: 5.0,
            game_over: self.lives == 0,
            zero_discount: false,
        })
    }

    fn save(&self) -> Result<Vec<u8>> {
        let numbers = [self.episode, self.step, self.lives.into()];
        Ok(numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let number = |i: usize| i32::from_le_bytes(state[4 * i..][..4].try_into().unwrap());
        (self.episode, self.step, self.lives) = (number(0), number(1), number(2) as u8);
        Ok(())
    }
}

fn counter(options: PoolOptions) -> EnvPool {
    EnvPool::custom(|_| Ok(Box::<Counter>::default()), options).unwrap()
}

// ---- Buffers ---------------------------------------------------------------------------------

#[test]
fn a_batch_stays_as_it_is_while_held() {
    for num_threads in [1, 2] {
        let mut pool = counter(PoolOptions { num_threads, ..options(2) });
        let first = pool.reset().unwrap();
        let shared = first.share(Field::Obs);
        assert_eq!(shared.bytes(), first.obs_bytes());
        let held: Vec<Batch> = (0..3).map(|_| pool.step(&[GO, GO]).unwrap()).collect();
        for (i, batch) in held.iter().enumerate() {
            assert_eq!(batch.obs::<f32>(), [11.0 + i as f32; 2]);
            assert_eq!(batch.obs_bytes().as_ptr() as usize % ALIGNMENT, 0);
        }
        // The memory of a batch is used again only when nobody holds it, a runtime included.
        let (address, owner) = (shared.bytes().as_ptr(), shared.owner());
        drop((first, held, shared));
        for _ in 0..10 {
            assert_ne!(pool.step(&[GO, GO]).unwrap().obs_bytes().as_ptr(), address);
        }
        drop(owner);
        assert!((0..10).any(|_| pool.step(&[GO, GO]).unwrap().obs_bytes().as_ptr() == address));
    }
}

#[test]
fn every_array_of_a_batch_can_be_shared() {
    fn is_send_and_sync<T: Send + Sync>(_: &T) {}
    fn is_send<T: Send>(_: &T) {}
    let mut pool = counter(options(3));
    is_send(&pool);
    pool.reset().unwrap();
    let batch = pool.step(&[GO, DIE, CUT]).unwrap();
    is_send_and_sync(&batch);
    let share = |field| batch.share(field);
    for (field, bytes) in [
        (Field::Reward, bytemuck::cast_slice(&[1f32; 3])),
        (Field::Terminated, &[0, 1, 0][..]),
        (Field::Truncated, &[0, 0, 1]),
        (Field::First, &[0, 1, 1]),
        (Field::LifeLost, &[0, 1, 0]),
        (Field::Discount, bytemuck::cast_slice(&[1f32, 0.0, 1.0])),
        (Field::EnvId, bytemuck::cast_slice(&[0, 1, 2])),
        (Field::ElapsedSteps, bytemuck::cast_slice(&[1, 1, 1])),
        (Field::HasFinalObs, &[0, 1, 1]),
        (Field::Finished, &[0, 0, 1]),
        (Field::EpisodicReturn, bytemuck::cast_slice(&[0f32, 0.0, 5.0])),
        (Field::EpisodicLength, bytemuck::cast_slice(&[0, 0, 1])),
    ] {
        is_send_and_sync(&share(field));
        assert_eq!(share(field).bytes(), bytes, "{field:?}");
        assert_eq!(share(field).bytes().as_ptr() as usize % ALIGNMENT, 0, "{field:?}");
    }
}

// ---- Threads ---------------------------------------------------------------------------------

/// Left to itself, a pool steps slow environments on several threads, and the rows stay the same.
#[test]
fn slow_environments_get_threads_of_their_own() {
    let pause = |_: &mut f32, _: &mut StepOutcome| std::thread::sleep(Duration::from_millis(1));
    let slow = |_| -> Result<Box<dyn Env>> { Ok(Box::new(Changed(Counter::default(), pause))) };
    let limit = PoolOptions { max_episode_steps: Some(1000), ..options(4) };
    let mut pool = EnvPool::custom(slow, limit).unwrap();
    pool.reset().unwrap();
    for t in 1..40 {
        assert_eq!(pool.step(&[GO; 4]).unwrap().obs::<f32>(), [10.0 + t as f32; 4]);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(pool.num_threads(), cores.min(4));
}
