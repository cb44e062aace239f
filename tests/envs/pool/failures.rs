//! Environments that fail, and calls that cannot be.

use std::sync::Arc;

use podracer::envs::{
    Autoreset, Env, EnvPool, OnError, PoolOptions, Space, StepOutcome, list_envs, make,
};
use podracer::error::{Error, Result};
use pretty_assertions::assert_eq;

use super::load::Changed;
use super::{CUT, Counter, GO, options};

#[test]
fn failing_environments_are_errors_and_never_hang() {
    for (num_threads, batch_size) in [(1, 4), (3, 4), (1, 2), (0, 2)] {
        for (panics, words) in [(true, "panicked: the wheels came off"), (false, "failed: no fuel")]
        {
            let factory = |i: usize| -> Result<Box<dyn Env>> {
                let fail_at = (i == 2).then_some((3, panics));
                Ok(Box::new(Counter { fail_at, ..Default::default() }))
            };
            let options = PoolOptions { num_threads, batch_size, ..options(4) };
            let mut pool = EnvPool::custom(factory, options).unwrap();
            pool.async_reset().unwrap();
            let mut batches = 0;
            let error = loop {
                match pool.recv() {
                    Ok(batch) => pool.send(&vec![GO; batch.len()], batch.env_id()).unwrap(),
                    Err(error) => break error.to_string(),
                }
                batches += 1;
                assert!(batches < 10);
            };
            assert_eq!(error, format!("Counter-v0: env 2 {words}"));
            let again = format!("{error}\n  help: the pool ended there; make a new one");
            assert_eq!(pool.recv().unwrap_err().to_string(), again);
            assert_eq!(pool.async_reset().unwrap_err().to_string(), again);
        }
    }
}

/// Payload of a panic that panics when it is dropped, and so does that panic's.
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 > 0 {
            std::panic::panic_any(Bomb(self.0 - 1));
        }
    }
}

#[test]
fn a_panic_whose_payload_panics_is_an_error() {
    for num_threads in [1, 3] {
        let bomb = |_: &mut f32, _: &mut StepOutcome| std::panic::panic_any(Bomb(3));
        let factory =
            |_| -> Result<Box<dyn Env>> { Ok(Box::new(Changed(Counter::default(), bomb))) };
        let mut pool = EnvPool::custom(factory, PoolOptions { num_threads, ..options(2) }).unwrap();
        pool.reset().unwrap();
        let error = pool.step(&[GO; 2]).unwrap_err().to_string();
        assert_eq!(error, "Counter-v0: env 0 panicked: no message");
    }
}

#[test]
fn absurd_numbers_of_threads_and_environments_are_refused() {
    for options in [
        PoolOptions { num_threads: 1_000_000, ..options(2) },
        PoolOptions { num_threads: usize::MAX, ..options(2) },
        options(usize::MAX),
    ] {
        let factory = |_| -> Result<Box<dyn Env>> { Ok(Box::<Counter>::default()) };
        for made in
            [EnvPool::custom(factory, options.clone()), EnvPool::make("CartPole-v1", options)]
        {
            let error = made.unwrap_err().to_string();
            assert!(
                error.contains(", expected 0 to 1024") || error.contains("to 1048576"),
                "{error}"
            );
        }
    }
}

#[test]
fn a_failed_step_may_end_its_episode_alone() {
    for (num_threads, batch_size) in [(1, 4), (3, 4), (1, 2), (0, 2)] {
        for autoreset in [Autoreset::SameStep, Autoreset::NextStep, Autoreset::Disabled] {
            let factory = |i: usize| -> Result<Box<dyn Env>> {
                let fail_at = (i == 2).then_some((3, false));
                Ok(Box::new(Counter { fail_at, ..Default::default() }))
            };
            let on_error = OnError::Truncate;
            let options =
                PoolOptions { num_threads, batch_size, autoreset, on_error, ..options(4) };
            let mut pool = EnvPool::custom(factory, options).unwrap();
            pool.async_reset().unwrap();
            let mut steps = vec![Vec::new(); 4];
            while steps.iter().any(|seen| seen.len() < 4) {
                let batch = pool.recv().unwrap();
                for (row, &env) in batch.env_id().iter().enumerate() {
                    let last = batch.final_obs::<f32>(row).map(|obs| obs[0]);
                    let message =
                        (batch.reward()[row], batch.truncated()[row], batch.elapsed_steps()[row]);
                    steps[env as usize].push((batch.obs_row::<f32>(row)[0], last, message));
                }
                pool.send(&vec![GO; batch.len()], batch.env_id()).unwrap_or_else(|error| {
                    // In this mode whose episode is over must be reset.
                    assert!(autoreset == Autoreset::Disabled, "{error}");
                    pool.send_reset(batch.env_id()).unwrap();
                });
            }
            // The failed step is as if not taken: reward 0, and the observation before it.
            let failed = (0.0, true, 3);
            let expected = match autoreset {
                Autoreset::SameStep => (20.0, Some(12.0), failed),
                _ => (12.0, None, failed),
            };
            assert_eq!(steps[2][3], expected, "{autoreset:?}");
            assert_eq!(steps[1][3], (13.0, None, (1.0, false, 3)));
            let failures = pool.take_failures();
            assert_eq!((failures[0].env_id, failures[0].step), (2, 3));
            assert_eq!(failures[0].message, "no fuel");
            // The game ends there: what it had until then.
            let games = pool.take_finished();
            let game = games.iter().find(|game| game.env_id == 2).unwrap();
            assert_eq!((game.episodic_return, game.length), (10.0, 3));
        }
    }
    // A panic is no error: nobody knows what it left behind.
    let factory = |_: usize| -> Result<Box<dyn Env>> {
        Ok(Box::new(Counter { fail_at: Some((1, true)), ..Default::default() }))
    };
    let truncate = PoolOptions { on_error: OnError::Truncate, ..options(1) };
    let mut pool = EnvPool::custom(factory, truncate).unwrap();
    pool.reset().unwrap();
    let error = pool.step(&[GO]).unwrap_err().to_string();
    assert_eq!(error, "Counter-v0: env 0 panicked: the wheels came off");
}

/// The observation of the restored episode, also in a pool that has seen another one or none.
#[test]
fn a_failed_step_after_a_restore_repeats_the_saved_observation() {
    let pool = || {
        let factory = |_: usize| -> Result<Box<dyn Env>> {
            Ok(Box::new(Counter { fail_at: Some((3, false)), ..Default::default() }))
        };
        let options = PoolOptions {
            on_error: OnError::Truncate,
            autoreset: Autoreset::NextStep,
            ..options(1)
        };
        EnvPool::custom(factory, options).unwrap()
    };
    let mut saved = pool();
    saved.reset().unwrap();
    for _ in 0..2 {
        saved.step(&[GO]).unwrap();
    }
    let state = saved.save(0).unwrap();
    for is_reset in [false, true] {
        let mut pool = pool();
        if is_reset {
            pool.reset().unwrap();
        }
        pool.restore(0, &state).unwrap();
        let batch = pool.step(&[GO]).unwrap();
        assert_eq!((batch.obs::<f32>(), batch.truncated()), (&[12.0f32][..], &[true][..]));
    }
}

#[test]
fn a_box_whose_low_is_not_below_its_high_is_a_problem() {
    let problem = |low: f64, high: f64| Space::f32([1], low, high).problem();
    assert_eq!(problem(1.0, -1.0).unwrap(), "element 0 has the bounds 1 and -1");
    assert_eq!(problem(f64::NAN, 1.0).unwrap(), "element 0 has the bounds NaN and 1");
    assert_eq!(problem(1.0, 1.0), None);
}

#[test]
fn a_failing_factory_is_an_error() {
    let factory = |i: usize| -> Result<Box<dyn Env>> {
        if i == 1 { Err(Error::Env("no ROM".into())) } else { Ok(Box::<Counter>::default()) }
    };
    let error = EnvPool::custom(factory, options(2)).unwrap_err();
    assert_eq!(error.to_string(), "making env 1 failed: no ROM");
    let mixed = |i: usize| make(["CartPole-v1", "CartPole-v0"][i]);
    let error = EnvPool::custom(mixed, options(2)).unwrap_err().to_string();
    assert_eq!(error, "env 1 (CartPole-v0) has another specification than env 0 (CartPole-v1)");
}

/// A pool that is dropped while its threads step waits for them and drops every environment.
#[test]
fn no_environment_outlives_a_pool_that_is_dropped_with_work_in_flight() {
    let alive = Arc::new(());
    for _ in 0..50 {
        let factory = |_: usize| -> Result<Box<dyn Env>> {
            let held = alive.clone();
            let hold =
                move |_: &mut f32, _: &mut StepOutcome| assert!(Arc::strong_count(&held) > 1);
            Ok(Box::new(Changed(Counter::default(), hold)))
        };
        let options = PoolOptions { num_threads: 3, batch_size: 2, ..options(64) };
        let mut pool = EnvPool::custom(factory, options).unwrap();
        pool.async_reset().unwrap();
        let batch = pool.recv().unwrap();
        pool.send(&[GO, GO], batch.env_id()).unwrap();
        assert_eq!(Arc::strong_count(&alive), 65);
        drop(pool);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}

#[test]
fn bad_actions_are_errors_before_anything_moves() {
    let mut pool = EnvPool::make("CartPole-v1", options(3)).unwrap();
    let message = |error: Error| error.to_string();
    assert_eq!(
        message(pool.step(&[0, 0, 0]).unwrap_err()),
        "CartPole-v1: env 0 has not been reset; call reset first"
    );
    pool.reset().unwrap();
    assert_eq!(
        message(pool.step(&[0, 1, 2]).unwrap_err()),
        "CartPole-v1: env 2: its action is 2, expected 0 to 1"
    );
    assert_eq!(
        message(pool.step(&[0i64, -1, 0]).unwrap_err()),
        "CartPole-v1: env 1: its action is -1, expected 0 to 1"
    );
    assert_eq!(
        message(pool.step(&[0, 1]).unwrap_err()),
        "CartPole-v1: 3 environments with 1 i32 or i64 each need 3 values, 2 i32 were given"
    );
    assert_eq!(
        message(pool.step(&[0.0, 1.0, 0.0]).unwrap_err()),
        "CartPole-v1: actions are f32, expected i32 or i64"
    );
    assert_eq!(
        message(pool.send(&[0], &[3]).unwrap_err()),
        "CartPole-v1: there is no env 3, only 0 to 2"
    );
    assert_eq!(
        message(pool.send(&[0], &[-1]).unwrap_err()),
        "CartPole-v1: there is no env -1, only 0 to 2"
    );
    assert_eq!(
        message(pool.send(&[0, 0], &[1, 1]).unwrap_err()),
        "CartPole-v1: env 1 was sent and not received yet"
    );
    assert_eq!(
        message(pool.recv().unwrap_err()),
        "CartPole-v1: recv would wait forever: a batch has 3 rows, and 0 environments were sent"
    );
    // None of this moved anything.
    assert_eq!(pool.step(&[0, 0, 0]).unwrap().elapsed_steps(), [1, 1, 1]);

    let mut pool = EnvPool::make("Pendulum-v1", options(2)).unwrap();
    pool.reset().unwrap();
    assert_eq!(
        message(pool.step(&[0.0, f32::NAN]).unwrap_err()),
        "Pendulum-v1: env 1: element 0 of its action is NaN, expected -2 to 2"
    );
    assert_eq!(
        message(pool.step(&[2.5, 0.0]).unwrap_err()),
        "Pendulum-v1: env 0: element 0 of its action is 2.5, expected -2 to 2"
    );
    let clipped = PoolOptions { clip_actions: true, ..options(2) };
    let mut clipping = EnvPool::make("Pendulum-v1", clipped).unwrap();
    clipping.reset().unwrap();
    assert!(clipping.step(&[f32::NAN, 0.0]).is_err());
    let (a, b) = (clipping.step(&[9.0, -9.0]).unwrap(), pool.step(&[2.0, -2.0]).unwrap());
    assert_eq!(a.obs::<f32>(), b.obs::<f32>());
}

#[test]
fn bad_options_and_calls_are_errors() {
    let error = |options| EnvPool::make("CartPole-v1", options).unwrap_err().to_string();
    assert_eq!(error(options(0)), "num_envs is 0, expected 1 to 1048576");
    assert_eq!(
        error(PoolOptions { batch_size: 3, ..options(2) }),
        "batch_size 3 is more than num_envs 2: a batch has one row per environment at most"
    );
    let half = PoolOptions { batch_size: 1, ..options(2) };
    let mut pool = EnvPool::make("CartPole-v1", half).unwrap();
    assert_eq!(
        pool.reset().unwrap_err().to_string(),
        "CartPole-v1: reset is for synchronous pools; with batch_size 1 of 2 environments use \
         async_reset and recv"
    );
}

#[test]
fn unknown_ids_name_the_nearest() {
    let error = make("Cartpole-v2").err().unwrap().to_string();
    let expected =
        "unknown environment \"Cartpole-v2\"; the nearest are CartPole-v0, CartPole-v1, ";
    assert!(error.starts_with(expected), "{error}");
    let all = format!("`podracer envs` lists all {}\n", list_envs().len());
    assert!(error.contains(&all) && error.contains("gymnasium:ID"), "{error}");
    let error = EnvPool::make("Pendulum-v0", options(1)).unwrap_err().to_string();
    let expected = "unknown environment \"Pendulum-v0\"; the nearest are Pendulum-v1";
    assert!(error.starts_with(expected), "{error}");
    let error = make("BreakoutNoFrameskip-v5").err().unwrap().to_string();
    assert!(error.contains("the nearest are Breakout-v5, "), "{error}");
}

#[test]
fn episodes_of_the_other_environments_are_kept_after_a_failure() {
    let episodes = |num_threads| {
        let factory = |i: usize| -> Result<Box<dyn Env>> {
            let fail_at = (i == 1).then_some((3, false));
            Ok(Box::new(Counter { fail_at, ..Default::default() }))
        };
        let options = PoolOptions { num_threads, ..options(4) };
        let mut pool = EnvPool::custom(factory, options).unwrap();
        pool.reset().unwrap();
        pool.step(&[GO; 4]).unwrap();
        pool.step(&[GO; 4]).unwrap();
        let error = pool.step(&[CUT; 4]).unwrap_err().to_string();
        assert_eq!(error, "Counter-v0: env 1 failed: no fuel");
        pool.take_finished()
    };
    let expected = episodes(3);
    let envs: Vec<usize> = expected.iter().map(|episode| episode.env_id).collect();
    assert_eq!(envs, [0, 2, 3]);
    for num_threads in [0, 1, 2] {
        assert_eq!(episodes(num_threads), expected, "{num_threads} threads");
    }
}
