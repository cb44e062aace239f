//! Resets, time limits, statistics.

use podracer::envs::{Autoreset, Batch, EnvPool, Episode, PoolOptions};
use pretty_assertions::assert_eq;

use super::{CUT, DIE, GO, counter, options};

/// `obs reward terminated truncated first elapsed final_obs` of row 0.
fn line(batch: &Batch) -> String {
    let flag = |name: &str, on: &[bool]| if on[0] { format!(" {name}") } else { String::new() };
    let last = batch.final_obs::<f32>(0).map_or(String::new(), |x| format!(" final {}", x[0]));
    format!(
        "{} reward {}{}{}{}{} elapsed {}{last}",
        batch.obs::<f32>()[0],
        batch.reward()[0],
        flag("terminated", batch.terminated()),
        flag("truncated", batch.truncated()),
        flag("first", batch.first()),
        flag("life_lost", batch.life_lost()),
        batch.elapsed_steps()[0],
    )
}

fn lines(pool: &mut EnvPool, actions: &[i32]) -> Vec<String> {
    let first = line(&pool.reset().unwrap());
    let steps = actions.iter().map(|&action| line(&pool.step(&[action]).unwrap()));
    std::iter::once(first).chain(steps).collect()
}

#[test]
fn same_step_autoreset_returns_the_first_observation_at_once() {
    for num_threads in [1, 2] {
        let mut pool = counter(PoolOptions { num_threads, ..options(1) });
        let seen = lines(&mut pool, &[GO, DIE, GO, GO, GO, GO, CUT]);
        let expected = [
            "10 reward 0 first elapsed 0",
            "11 reward 1 elapsed 1",
            "20 reward 1 terminated first life_lost elapsed 2 final 12",
            "21 reward 1 elapsed 3",
            "22 reward 1 elapsed 4",
            "23 reward 1 elapsed 5",
            "30 reward 1 truncated first elapsed 6 final 24",
            "40 reward 1 truncated first elapsed 1 final 31",
        ];
        assert_eq!(seen, expected);
        // A lost life ends the episode, not the game, whose steps are counted on; the game's
        // rewards are not clipped.
        let games = [(30.0, 6), (5.0, 1)].map(|(episodic_return, length)| Episode {
            env_id: 0,
            episodic_return,
            length,
        });
        assert_eq!(pool.take_finished(), games);
        assert_eq!(pool.take_finished(), []);
        assert_eq!(pool.last_finished(0), Some(games[1]));
    }
}

#[test]
fn next_step_autoreset_returns_the_last_observation_first() {
    for num_threads in [1, 2] {
        let autoreset = Autoreset::NextStep;
        let mut pool = counter(PoolOptions { num_threads, autoreset, ..options(1) });
        let seen = lines(&mut pool, &[GO, DIE, DIE, GO, GO, GO, GO, GO]);
        let expected = [
            "10 reward 0 first elapsed 0",
            "11 reward 1 elapsed 1",
            "12 reward 1 terminated life_lost elapsed 2",
            "20 reward 0 first elapsed 2",
            "21 reward 1 elapsed 3",
            "22 reward 1 elapsed 4",
            "23 reward 1 elapsed 5",
            "24 reward 1 truncated elapsed 6",
            "30 reward 0 first elapsed 0",
        ];
        assert_eq!(seen, expected);
        let game = Episode { env_id: 0, episodic_return: 30.0, length: 6 };
        assert_eq!(pool.take_finished(), [game]);
    }
}

#[test]
fn without_autoreset_a_finished_episode_must_be_reset() {
    let mut pool = counter(PoolOptions { autoreset: Autoreset::Disabled, ..options(2) });
    pool.reset().unwrap();
    let batch = pool.step(&[DIE, GO]).unwrap();
    assert_eq!(line(&batch), "11 reward 1 terminated life_lost elapsed 1");
    let message = "Counter-v0: env 0's episode is over and autoreset is disabled; call send_reset \
                   for it";
    assert_eq!(pool.step(&[GO, GO]).unwrap_err().to_string(), message);
    // In whatever order they are sent, the rows of a synchronous pool are in order.
    pool.send(&[GO], &[1]).unwrap();
    pool.send_reset(&[0]).unwrap();
    let batch = pool.recv().unwrap();
    assert_eq!(batch.obs::<f32>(), [20.0, 12.0]);
    assert_eq!(batch.first(), [true, false]);
    assert_eq!(batch.env_id(), [0, 1]);
}

#[test]
fn time_limit_is_an_option() {
    let mut pool = counter(PoolOptions { max_episode_steps: Some(2), ..options(1) });
    assert_eq!(lines(&mut pool, &[GO, GO])[2], "20 reward 1 truncated first elapsed 2 final 12");
}

#[test]
fn reset_in_the_middle() {
    for (num_threads, batch_size) in [(1, 4), (2, 4), (2, 3), (0, 3)] {
        let mut pool = counter(PoolOptions { num_threads, batch_size, ..options(4) });
        pool.async_reset().unwrap();
        pool.recv().unwrap();
        pool.send(&[GO], &[0]).unwrap();
        pool.async_reset().unwrap();
        let batch = pool.recv().unwrap();
        let expected: Vec<i32> = (0..batch_size as i32).collect();
        assert_eq!(batch.env_id(), expected);
        assert!(batch.first().iter().all(|&first| first));
    }
}

/// Steps that were sent and not received change the environments in the same way with every number of
/// threads: an abandoned life, and draws of the generator.
#[test]
fn abandoned_steps_are_taken_with_every_number_of_threads() {
    let observed = |num_threads, batch_size| {
        let mut pool = counter(PoolOptions { num_threads, batch_size, ..options(4) });
        pool.async_reset().unwrap();
        pool.recv().unwrap();
        pool.send(&[DIE], &[0]).unwrap();
        pool.async_reset().unwrap();
        let batch = pool.recv().unwrap();
        (batch.obs::<f32>().to_vec(), pool.take_finished())
    };
    for batch_size in [4, 1] {
        let expected = observed(2, batch_size);
        assert_eq!(expected.0[0], 30.0, "reset, next life, reset");
        for num_threads in [0, 1] {
            assert_eq!(observed(num_threads, batch_size), expected, "{num_threads}, {batch_size}");
        }
    }
}
