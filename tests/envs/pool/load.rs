//! Many environments, and environments that take their time.

use std::time::Duration;

use podracer::envs::{
    Action, Autoreset, Env, EnvPool, EnvRng, EnvSpec, ObsMut, OnError, PoolOptions, StepOutcome,
};
use podracer::error::Result;
use pretty_assertions::assert_eq;

use super::{Counter, GO, options};

/// A counter whose steps are changed by a function of their observation and outcome.
pub struct Changed<F>(pub Counter, pub F);

impl<F: FnMut(&mut f32, &mut StepOutcome) + Send> Env for Changed<F> {
    fn spec(&self) -> EnvSpec {
        self.0.spec()
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.0.reset(rng, obs)
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        mut obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let obs = obs.elements::<f32>();
        let mut outcome = self.0.step(action, rng, ObsMut(bytemuck::cast_slice_mut(obs)))?;
        (self.1)(&mut obs[0], &mut outcome);
        Ok(outcome)
    }
}

#[test]
fn a_thousand_environments_are_stepped_as_by_one_thread() {
    let run = |num_threads, batch_size| {
        let options = PoolOptions { num_envs: 1024, num_threads, batch_size, ..options(0) };
        let mut pool = EnvPool::make("CartPole-v1", options).unwrap();
        pool.async_reset().unwrap();
        let mut seen = vec![Vec::new(); 1024];
        while seen.iter().any(|rows| rows.len() < 40) {
            let batch = pool.recv().unwrap();
            let mut actions = Vec::new();
            for (row, &env) in batch.env_id().iter().enumerate() {
                let rows = &mut seen[env as usize];
                actions.push(i32::from((rows.len() + env as usize).is_multiple_of(3)));
                rows.push((batch.obs_row::<f32>(row).to_vec(), batch.reward()[row].to_bits()));
            }
            pool.send(&actions, batch.env_id()).unwrap();
        }
        seen.iter_mut().for_each(|rows| rows.truncate(40));
        seen
    };
    let alone = run(1, 1024);
    assert!(run(4, 1024) == alone && run(3, 256) == alone, "threads change what happens");
}

/// Environments whose steps take 0 to 2 ms, most of them fast: batches come as they were sent.
#[test]
fn environments_of_uneven_speed_change_nothing_but_the_time() {
    let run = |num_threads, uneven: bool| {
        let factory = |i: usize| -> Result<Box<dyn Env>> {
            let mut steps = 0;
            Ok(Box::new(Changed(Counter::default(), move |_: &mut f32, _: &mut StepOutcome| {
                steps += 1;
                let share = (i * 7 + steps * 13) % 20;
                if uneven && share > 16 {
                    std::thread::sleep(Duration::from_micros(share as u64 * 100));
                }
            })))
        };
        let options = PoolOptions { num_threads, batch_size: 3, ..options(8) };
        let mut pool = EnvPool::custom(factory, options).unwrap();
        pool.async_reset().unwrap();
        let mut seen = Vec::new();
        for _ in 0..100 {
            let batch = pool.recv().unwrap();
            seen.push((batch.env_id().to_vec(), batch.obs::<f32>().to_vec()));
            pool.send(&[GO; 3], batch.env_id()).unwrap();
        }
        seen
    };
    let alone = run(1, false);
    assert_eq!(run(3, true), alone);
    assert_eq!(run(0, true), alone);
}

/// NaN in the observation of the third step of environment 1.
fn with_nan(options: PoolOptions) -> EnvPool {
    let factory = |i: usize| -> Result<Box<dyn Env>> {
        let mut steps = 0;
        Ok(Box::new(Changed(Counter::default(), move |obs: &mut f32, _: &mut StepOutcome| {
            steps += 1;
            if i == 1 && steps == 3 {
                *obs = f32::NAN;
            }
        })))
    };
    EnvPool::custom(factory, options).unwrap()
}

#[test]
fn nan_is_an_error_that_names_its_place() {
    for num_threads in [1, 2] {
        let mut pool = with_nan(PoolOptions { num_threads, ..options(2) });
        pool.reset().unwrap();
        pool.step(&[GO, GO]).unwrap();
        pool.step(&[GO, GO]).unwrap();
        let error = pool.step(&[GO, GO]).unwrap_err().to_string();
        assert_eq!(
            error,
            "Counter-v0: env 1 failed: element 0 of the observation is NaN, 3 steps after the \
             game's start"
        );

        let autoreset = Autoreset::SameStep;
        let on_error = OnError::Truncate;
        let mut pool = with_nan(PoolOptions { num_threads, autoreset, on_error, ..options(2) });
        pool.reset().unwrap();
        (0..2).for_each(|_| drop(pool.step(&[GO, GO]).unwrap()));
        let batch = pool.step(&[GO, GO]).unwrap();
        assert_eq!(batch.truncated(), [false, true]);
        assert_eq!(batch.final_obs::<f32>(1), Some(&[12.0][..]));
        assert!(batch.obs::<f32>().iter().all(|x| x.is_finite()));
        assert_eq!(pool.take_failures().len(), 1);
    }
}

#[test]
fn a_reward_that_is_not_finite_is_an_error() {
    for (reward, text) in
        [(f64::NAN, "NaN"), (f64::NEG_INFINITY, "-inf"), (1e39, "1e39, infinite in f32")]
    {
        let changed = move |_: &mut f32, outcome: &mut StepOutcome| outcome.reward = reward;
        let factory =
            |_| -> Result<Box<dyn Env>> { Ok(Box::new(Changed(Counter::default(), changed))) };
        let mut pool = EnvPool::custom(factory, options(1)).unwrap();
        pool.reset().unwrap();
        let error = pool.step(&[GO]).unwrap_err().to_string();
        let expected =
            format!("Counter-v0: env 0 failed: the reward of step 1 of the game is {text}");
        assert_eq!(error, expected);
    }
}
