//! The env pool and the classic-control environments.

use std::collections::HashSet;

use podracer::envs::{
    ALIGNMENT, Action, Actions, Autoreset, Batch, Env, EnvPool, EnvRng, EnvSpec, Episode, Field,
    ObsMut, OnError, PoolOptions, Space, StepOutcome, list_envs, make, seeds, spec,
};
use podracer::error::{Error, Result};
use pretty_assertions::assert_eq;
use safetensors::SafeTensors;

// ---- Step for step as gymnasium --------------------------------------------------------------

const FIXTURE: &[u8] = include_bytes!("../fixtures/envs/classic.safetensors");

/// One environment's recorded episodes; `make.py` says what is what.
struct Recording {
    initial: Vec<f64>,
    lengths: Vec<i32>,
    first_obs: Vec<f32>,
    actions: Vec<f32>,
    obs: Vec<f32>,
    reward: Vec<f64>,
    terminated: Vec<u8>,
    truncated: Vec<u8>,
}

fn column<T: bytemuck::AnyBitPattern>(tensors: &SafeTensors, name: String) -> Vec<T> {
    let bytes = tensors.tensor(&name).unwrap().data();
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn recording(id: &str) -> Recording {
    let tensors = SafeTensors::deserialize(FIXTURE).unwrap();
    let name = |name: &str| format!("{id}/{name}");
    Recording {
        initial: column(&tensors, name("initial")),
        lengths: column(&tensors, name("lengths")),
        first_obs: column(&tensors, name("first_obs")),
        actions: column(&tensors, name("actions")),
        obs: column(&tensors, name("obs")),
        reward: column(&tensors, name("reward")),
        terminated: column(&tensors, name("terminated")),
        truncated: column(&tensors, name("truncated")),
    }
}

/// Replays the recording from each initial state. Observations and both endings must be equal in
/// every bit; so must rewards, but for `tolerance`.
fn align(id: &str, tolerance: f64) {
    let recording = recording(id);
    let mut env = make(id).unwrap();
    let spec = env.spec();
    let width = spec.observation.shape().numel();
    let state_width = recording.initial.len() / recording.lengths.len();
    // What a saved state has beyond the physics: a fresh episode's flags are all zero.
    let saved_width = env.save().unwrap().len() / 8;
    let mut rng = EnvRng::new(seeds(0, 0, 0, 0));
    let mut t = 0;
    for (episode, &length) in recording.lengths.iter().enumerate() {
        let mut state = recording.initial[episode * state_width..][..state_width].to_vec();
        state.resize(saved_width, 0.0);
        env.restore(&state.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()).unwrap();
        for step in 1..=length as u32 {
            let place = format!("{id} episode {episode} step {step}");
            let value = [recording.actions[t]];
            let action = match spec.action {
                Space::Discrete { .. } => Action::Discrete(value[0] as usize),
                _ => Action::Box(&value),
            };
            let mut obs = vec![0f32; width];
            let row = ObsMut(bytemuck::cast_slice_mut(&mut obs));
            let outcome = env.step(action, &mut rng, row).unwrap();
            assert_eq!(obs, recording.obs[t * width..][..width], "{place}: observation");
            let (ours, theirs) = (outcome.reward, recording.reward[t]);
            assert!((ours - theirs).abs() <= tolerance, "{place}: reward {ours}, not {theirs}");
            assert_eq!(outcome.terminated, recording.terminated[t] != 0, "{place}: terminated");
            let truncated = step >= spec.max_episode_steps.unwrap();
            assert_eq!(truncated, recording.truncated[t] != 0, "{place}: truncated");
            t += 1;
        }
    }
    assert_eq!(t, recording.actions.len());
}

#[test]
fn align_cartpole() {
    align("CartPole-v1", 0.0);
}

#[test]
fn align_mountain_car() {
    align("MountainCar-v0", 0.0);
}

#[test]
fn align_mountain_car_continuous() {
    align("MountainCarContinuous-v0", 0.0);
}

#[test]
fn align_acrobot() {
    align("Acrobot-v1", 0.0);
}

#[test]
fn align_pendulum() {
    // Gymnasium squares the f32 torque with numpy's `**`, a call of powf that is wrong in the last
    // bit now and then; we multiply. One unit in the last place of 4 is 2.4e-7, and is weighted
    // by 0.001.
    align("Pendulum-v1", 0.3e-9);
}

/// The pool around a recorded episode: time limit, `f32` rewards, statistics.
#[test]
fn align_through_the_pool() {
    /// An environment whose every episode begins where a recorded one did.
    struct Replay(Box<dyn Env>, Vec<u8>, Vec<f32>);
    impl Env for Replay {
        fn spec(&self) -> EnvSpec {
            self.0.spec()
        }
        fn reset(&mut self, _rng: &mut EnvRng, mut obs: ObsMut<'_>) -> Result<()> {
            obs.write(&self.2);
            self.0.restore(&self.1)
        }
        fn step(
            &mut self,
            action: Action<'_>,
            rng: &mut EnvRng,
            obs: ObsMut<'_>,
        ) -> Result<StepOutcome> {
            self.0.step(action, rng, obs)
        }
    }

    let recording = recording("CartPole-v1");
    let num_envs = recording.lengths.len();
    let factory = |i: usize| -> Result<Box<dyn Env>> {
        let mut state = recording.initial[i * 4..][..4].to_vec();
        state.push(0.0);
        let state = state.iter().flat_map(|x| x.to_le_bytes()).collect();
        let first_obs = recording.first_obs[i * 4..][..4].to_vec();
        Ok(Box::new(Replay(make("CartPole-v1")?, state, first_obs)))
    };
    let mut pool =
        EnvPool::custom(factory, PoolOptions { num_envs, ..Default::default() }).unwrap();
    assert_eq!(pool.reset().unwrap().obs::<f32>(), recording.first_obs);
    let starts: Vec<usize> = recording
        .lengths
        .iter()
        .scan(0, |start, &length| Some(std::mem::replace(start, *start + length as usize)))
        .collect();
    for step in 0..500 {
        // Past its first ending an environment replays, which is the recording again.
        let at: Vec<usize> =
            (0..num_envs).map(|i| starts[i] + step % recording.lengths[i] as usize).collect();
        let actions: Vec<i32> = at.iter().map(|&t| recording.actions[t] as i32).collect();
        let batch = pool.step(&actions).unwrap();
        for (i, &t) in at.iter().enumerate() {
            let ended = recording.terminated[t] + recording.truncated[t] > 0;
            assert_eq!(batch.reward()[i], recording.reward[t] as f32);
            assert_eq!(batch.terminated()[i], recording.terminated[t] != 0);
            assert_eq!(batch.truncated()[i], recording.truncated[t] != 0);
            let last = &recording.obs[t * 4..][..4];
            assert_eq!(batch.final_obs::<f32>(i), ended.then_some(last));
            let first = &recording.first_obs[i * 4..][..4];
            assert_eq!(batch.obs_row::<f32>(i), if ended { first } else { last });
        }
    }
    for i in 0..num_envs {
        let length = recording.lengths[i] as u32;
        let episode = Episode { env_id: i, episodic_return: length.into(), length };
        assert_eq!(pool.last_finished(i), Some(episode));
    }
}

const CLASSIC: [&str; 6] = [
    "Acrobot-v1",
    "CartPole-v0",
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
];

// ---- The same seed, the same trajectories ----------------------------------------------------

fn options(num_envs: usize) -> PoolOptions {
    PoolOptions { num_envs, ..Default::default() }
}

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

/// What one environment told in one step, to be compared bit for bit.
type Told = (Vec<u32>, Option<Vec<u32>>, u32, [bool; 4], i32);

fn told(batch: &Batch, row: usize) -> Told {
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
            all[env].push(told(&batch, row));
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
fn a_restored_environment_goes_on_as_the_saved_one() {
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
                all.extend((0..3).map(|row| told(&batch, row)));
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
        let told = error(other.restore(0, b"something else"));
        assert!(told.contains("these 14 bytes are no saved state"), "{told}");
        let told = error(other.restore(0, &states[0][..states[0].len() - 3]));
        assert!(told.contains(&format!("{id}: a saved state has")), "{told}");
        let head = String::from_utf8_lossy(&states[0]).replace("\"elapsed\"", "\"elapses\"");
        let told = error(other.restore(0, head.as_bytes()));
        assert!(told.contains("the saved state is damaged"), "{told}");
        let other_id = if id == "CartPole-v1" { "Acrobot-v1" } else { "CartPole-v1" };
        let mut wrong = EnvPool::make(other_id, options(1)).unwrap();
        let told = error(wrong.restore(0, &states[0]));
        assert!(told.contains(&format!("the saved state is one of {id}")), "{told}");
        assert!(error(other.save(3).map(drop)).contains("there is no env 3"));
    }
}

#[test]
fn step_is_send_and_recv() {
    let mut pool = EnvPool::make("CartPole-v1", options(3)).unwrap();
    let mut all = vec![Vec::new(); 3];
    let mut batch = pool.reset().unwrap();
    for t in 0..100 {
        (0..3).for_each(|env| all[env].push(told(&batch, env)));
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
    // Neighbours look unrelated: about half of the 128 bits differ.
    for env in 0..100 {
        let differing = (seeds(0, 0, 0, env).0 ^ seeds(0, 0, 0, env + 1).0).count_ones();
        assert!((32..96).contains(&differing), "{differing}");
    }
}

// ---- Resets, time limits, statistics ---------------------------------------------------------

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
}

fn counter(options: PoolOptions) -> EnvPool {
    EnvPool::custom(|_| Ok(Box::<Counter>::default()), options).unwrap()
}

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
fn autoreset_same_step() {
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
fn autoreset_next_step() {
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
fn autoreset_disabled() {
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

// ---- Failures --------------------------------------------------------------------------------

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
                    let told =
                        (batch.reward()[row], batch.truncated()[row], batch.elapsed_steps()[row]);
                    steps[env as usize].push((batch.obs_row::<f32>(row)[0], last, told));
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

#[test]
fn dropping_a_pool_with_work_in_flight() {
    for _ in 0..50 {
        let mut pool = counter(PoolOptions { num_threads: 3, batch_size: 2, ..options(64) });
        pool.async_reset().unwrap();
        let batch = pool.recv().unwrap();
        pool.send(&[GO, GO], batch.env_id()).unwrap();
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
    assert_eq!(error(options(0)), "num_envs must be at least 1");
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
    assert!(error.ends_with(&format!("list_envs() has all {}", list_envs().len())), "{error}");
    let error = EnvPool::make("Pendulum-v0", options(1)).unwrap_err().to_string();
    assert!(error.contains("the nearest are Pendulum-v1"), "{error}");
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
    ] {
        is_send_and_sync(&share(field));
        assert_eq!(share(field).bytes(), bytes, "{field:?}");
        assert_eq!(share(field).bytes().as_ptr() as usize % ALIGNMENT, 0, "{field:?}");
    }
}

// ---- Threads ---------------------------------------------------------------------------------

/// Left to itself, a pool steps cheap environments on the caller's thread and slow ones on several.
#[test]
fn threads_are_chosen_by_what_a_step_costs() {
    /// A counter that takes its time.
    struct Slow(Counter);
    impl Env for Slow {
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
            obs: ObsMut<'_>,
        ) -> Result<StepOutcome> {
            std::thread::sleep(std::time::Duration::from_millis(1));
            self.0.step(action, rng, obs)
        }
    }
    let slow = |_| -> Result<Box<dyn Env>> { Ok(Box::new(Slow(Counter::default()))) };
    let limit = PoolOptions { max_episode_steps: Some(1000), ..options(4) };
    let mut pool = EnvPool::custom(slow, limit).unwrap();
    pool.reset().unwrap();
    for t in 1..40 {
        assert_eq!(pool.step(&[GO; 4]).unwrap().obs::<f32>(), [10.0 + t as f32; 4]);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert_eq!(pool.num_threads(), cores.min(4));

    let mut pool = counter(options(4));
    pool.reset().unwrap();
    (0..40).for_each(|_| drop(pool.step(&[GO; 4]).unwrap()));
    assert_eq!(pool.num_threads(), 1);
}
