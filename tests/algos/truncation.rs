//! `--bootstrap-truncated` of every on-policy algorithm: it changes what is learned where a time limit
//! truncates episodes, and only there.

use std::sync::Once;

use podracer::algos::{
    a2c, a2c_continuous_action, cleanba_impala, cleanba_ppo, dpo_anakin, dqn_anakin, ppg, ppo,
    ppo_anakin, ppo_anakin_gru, ppo_atari, ppo_atari_lstm, ppo_continuous_action,
    ppo_continuous_action_lstm, ppo_masked, ppo_pettingzoo_ma_atari, ppo_rnd_envpool, ppo_trxl,
    pqn, pqn_atari_envpool, pqn_atari_envpool_lstm, rpo_continuous_action,
};
use podracer::envs::{
    self, Action, Autoreset, Bound, Env, EnvPool, EnvRng, EnvSpec, Handle, ObsMut, PoolOptions,
    Space, StepOutcome,
};
use podracer::error::Result;
use podracer::rl::{Algorithm, bootstrap_truncated, bootstrap_truncated_batch};
use podracer::trace::control::{ScanOptions, scan_with};
use podracer::trace::ops::{stack, zeros};
use podracer::{Array, DType, Tensor, interpret, jit};

use super::cases::args;
use super::models::model;

/// Steps of an episode.
const LIMIT: u32 = 4;

/// Observations and actions of an episode.
#[derive(Clone, Copy)]
enum Kind {
    Vector,
    Box,
    Board,
    Masked,
}

/// Episodes of four steps with a reward of 1 each: the time limit truncates them, or they terminate.
struct Clock {
    kind: Kind,
    terminates: bool,
    step: u32,
}

impl Clock {
    fn write(&self, mut obs: ObsMut<'_>) {
        let part = self.step as f32 / LIMIT as f32;
        match self.kind {
            Kind::Vector | Kind::Box => obs.write(&[part, 1.0 - part]),
            // One feature, and two choices that are allowed.
            Kind::Masked => obs.write(&[part, 1.0, 1.0]),
            Kind::Board => {
                let lit = |cell: usize| u8::from(cell < 20 * self.step as usize);
                obs.write(&(0..100).map(lit).collect::<Vec<u8>>());
            }
        }
    }
}

impl Env for Clock {
    fn spec(&self) -> EnvSpec {
        let (observation, action) = match self.kind {
            Kind::Vector => (Space::f32([2], 0.0, 1.0), Space::Discrete { n: 2 }),
            Kind::Box => (Space::f32([2], 0.0, 1.0), Space::f32([1], -1.0, 1.0)),
            Kind::Masked => {
                (Space::f32([3], 0.0, 1.0), Space::MultiDiscrete { nvec: vec![2], masked: true })
            }
            Kind::Board => {
                let (low, high) = (Bound::All(0.0), Bound::All(1.0));
                let (shape, dtype) = ([10, 10, 1].into(), DType::Bool);
                (Space::Box { low, high, shape, dtype }, Space::Discrete { n: 2 })
            }
        };
        let max_episode_steps = (!self.terminates).then_some(LIMIT);
        EnvSpec {
            id: "Clock".into(),
            observation,
            action,
            max_episode_steps,
            reward_threshold: None,
        }
    }

    fn reset(&mut self, _rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.step = 0;
        self.write(obs);
        Ok(())
    }

    fn step(&mut self, _: Action<'_>, _: &mut EnvRng, obs: ObsMut<'_>) -> Result<StepOutcome> {
        self.step += 1;
        self.write(obs);
        Ok(StepOutcome::new(1.0, self.terminates && self.step == LIMIT))
    }
}

/// Registers the environments of both endings.
fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (kind, name) in [
            (Kind::Vector, "Vector"),
            (Kind::Box, "Box"),
            (Kind::Board, "Board"),
            (Kind::Masked, "Masked"),
        ] {
            for (terminates, ending) in [(false, "Truncates"), (true, "Terminates")] {
                let make = move || -> Result<Box<dyn Env>> {
                    Ok(Box::new(Clock { kind, terminates, step: 0 }))
                };
                envs::register(&format!("{name}{ending}-v0"), make).unwrap();
            }
        }
    });
}

/// The largest difference of two models' parameters with and without the flag, on an environment.
fn difference<A: Algorithm>(small: &[&str], env_id: &str) -> f32 {
    let runs = tempfile::tempdir().unwrap();
    let train = |flag: &str| {
        let more = ["--env-id", env_id, "--save-model", "--eval-episodes", "0", flag];
        let summary = args::<A>(runs.path(), small, &more).train().unwrap();
        model(&summary)
    };
    let (on, off) = (train("--bootstrap-truncated"), train("--no-bootstrap-truncated"));
    let pairs = on.iter().zip(&off).flat_map(|((name, on), (_, off))| {
        let numbers = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
        };
        // Counts and keys are whole numbers.
        let is_parameter = !name.contains("key") && !name.contains("count");
        let pairs = numbers(on).into_iter().zip(numbers(off));
        pairs.filter(move |_| is_parameter)
    });
    pairs.map(|(on, off)| (on - off).abs()).fold(0.0, f32::max)
}

/// Fails unless the flag matters where episodes are truncated, and does not where they terminate.
fn matters_where_truncated<A: Algorithm>(kind: &str, small: &[&str]) {
    register();
    let truncated = difference::<A>(small, &format!("{kind}Truncates-v0"));
    assert!(truncated > 1e-5, "{}: the flag changes nothing: {truncated}", A::NAME);
    let terminated = difference::<A>(small, &format!("{kind}Terminates-v0"));
    assert!(terminated < 1e-6, "{}: where nothing is truncated: {terminated}", A::NAME);
}

const PPO: &[&str] = &[
    "--total-timesteps=64",
    "--num-envs=2",
    "--num-steps=16",
    "--num-minibatches=2",
    "--update-epochs=2",
];

/// The mode of the small networks, which XLA compiles for longer than the interpreter runs them.
const INTERPRET: &str = "--mode=interpret";

#[test]
fn ppo_bootstraps_where_episodes_are_truncated() {
    let small = [PPO, &[INTERPRET]].concat();
    matters_where_truncated::<ppo::Args>("Vector", &small);
    matters_where_truncated::<ppo_masked::Args>("Masked", &small);
    matters_where_truncated::<ppo_continuous_action::Args>("Box", &small);
    matters_where_truncated::<ppo_continuous_action_lstm::Args>("Box", &small);
    matters_where_truncated::<rpo_continuous_action::Args>("Box", &small);
}

#[test]
fn ppo_trxl_bootstraps_where_episodes_are_truncated() {
    let small = ["--trxl-num-layers=1", "--trxl-dim=8", "--trxl-memory-length=3", INTERPRET];
    let small = [PPO, &small].concat();
    matters_where_truncated::<ppo_trxl::Args>("Vector", &small);
    matters_where_truncated::<ppo_trxl::Args>("Board", &small);
    matters_where_truncated::<ppo_trxl::Args>("Masked", &small);
}

#[test]
fn a2c_and_pqn_bootstrap_where_episodes_are_truncated() {
    matters_where_truncated::<pqn::Args>("Vector", &[PPO, &[INTERPRET]].concat());
    let a2c = ["--total-timesteps=64", "--num-envs=2", "--num-steps=8", INTERPRET];
    matters_where_truncated::<a2c::Args>("Vector", &a2c);
    matters_where_truncated::<a2c_continuous_action::Args>("Box", &a2c);
}

#[test]
fn algorithms_on_images_bootstrap_where_episodes_are_truncated() {
    matters_where_truncated::<ppo_atari::Args>("Board", PPO);
    matters_where_truncated::<ppo_pettingzoo_ma_atari::Args>("Board", PPO);
    matters_where_truncated::<ppo_atari_lstm::Args>("Board", PPO);
    matters_where_truncated::<pqn_atari_envpool::Args>("Board", PPO);
    matters_where_truncated::<pqn_atari_envpool_lstm::Args>("Board", PPO);
    let rnd = [PPO, &["--num-iterations-obs-norm-init=1"]].concat();
    matters_where_truncated::<ppo_rnd_envpool::Args>("Board", &rnd);
    let ppg = [
        "--total-timesteps=64",
        "--num-envs=2",
        "--num-steps=16",
        "--num-minibatches=2",
        "--n-iteration=2",
        "--e-auxiliary=1",
        "--num-aux-rollouts=2",
    ];
    matters_where_truncated::<ppg::Args>("Board", &ppg);
}

#[test]
fn sebulba_bootstraps_where_episodes_are_truncated() {
    let small = ["--local-num-envs=4", "--num-actor-threads=1", "--num-minibatches=2"];
    let ppo = [&small[..], &["--total-timesteps=128", "--num-steps=16"]].concat();
    matters_where_truncated::<cleanba_ppo::Args>("Vector", &ppo);
    matters_where_truncated::<cleanba_impala::Args>("Vector", &ppo);
}

/// As [`matters_where_truncated`], in an environment whose episodes are truncated after 200 steps: runs
/// of so many timesteps are too short for that, or long enough.
fn matters_from_the_limit<A: Algorithm>(env_id: &str, small: &[&str], short: u64, long: u64) {
    let after = |timesteps: u64| {
        let total = format!("--total-timesteps={timesteps}");
        difference::<A>(&[small, &[&total]].concat(), env_id)
    };
    let (short, long) = (after(short), after(long));
    assert!(short < 1e-6, "{}: where nothing is truncated: {short}", A::NAME);
    assert!(long > 1e-5, "{}: the flag changes nothing: {long}", A::NAME);
}

/// Traced environments are not registered. The runs of two lengths have one program.
#[test]
fn algorithms_in_one_program_bootstrap_where_episodes_are_truncated() {
    let ppo = [
        "--num-envs=2",
        "--num-steps=128",
        "--num-minibatches=2",
        "--update-epochs=1",
        "--updates-per-call=1",
        "--no-anneal-lr",
        INTERPRET,
    ];
    matters_from_the_limit::<ppo_anakin::Args>("Pendulum-v1", &ppo, 256, 512);
    matters_from_the_limit::<ppo_anakin_gru::Args>("Pendulum-v1", &ppo, 256, 512);
    matters_from_the_limit::<dpo_anakin::Args>("Pendulum-v1", &ppo, 256, 512);
    let dqn = [
        "--num-envs=2",
        "--learning-starts=300",
        "--target-network-frequency=100",
        "--buffer-size=500",
        "--learning-rate=0.01",
        "--updates-per-call=1",
        "--end-e=1",
        INTERPRET,
    ];
    matters_from_the_limit::<dqn_anakin::Args>("MountainCar-v0", &dqn, 380, 500);
}

fn clocks(autoreset: Autoreset) -> EnvPool {
    let make = |_| -> Result<Box<dyn Env>> {
        Ok(Box::new(Clock { kind: Kind::Vector, terminates: false, step: 0 }))
    };
    let options = PoolOptions { num_envs: 2, autoreset, ..PoolOptions::default() };
    EnvPool::custom(make, options).unwrap()
}

/// The value of a clock's observation `[step / 4, 1 - step / 4]` is 10 step / 4: 10 at the limit, and 0
/// in the first observation of the next episode.
#[test]
fn rewards_of_truncated_steps_have_the_value_of_the_final_observation() {
    for (autoreset, expected) in [
        (Autoreset::SameStep, [1.0, 1.0, 1.0, 6.0, 1.0, 1.0]),
        // The fifth step resets.
        (Autoreset::NextStep, [1.0, 1.0, 1.0, 6.0, 0.0, 1.0]),
    ] {
        let (handle, mut envs) = clocks(autoreset).xla().unwrap();
        if autoreset == Autoreset::SameStep {
            envs = envs.with_final_obs().unwrap();
        }
        let run = jit(|handle: Handle<Tensor>| {
            let (handle, _) = envs.reset(handle);
            let value = |obs: Tensor| 10.0 * obs.index_axis(-1, 0);
            let step = |handle: Handle<Tensor>, ()| {
                let (handle, step) = envs.step(handle, zeros([2], DType::I32));
                let final_obs = envs.final_obs_of(&step);
                let truncated = step.truncated_only();
                (handle, bootstrap_truncated(step.reward, truncated, final_obs, 0.5, value))
            };
            scan_with(step, handle, (), ScanOptions::length(6)).1
        });
        let rewards = run.call(handle).unwrap();
        let both = expected.iter().flat_map(|&reward| [reward, reward]).collect::<Vec<f32>>();
        assert_eq!(rewards.to_vec::<f32>().unwrap(), both, "{autoreset:?}");

        let mut pool = clocks(autoreset);
        pool.reset().unwrap();
        let mut rewards = Vec::new();
        for _ in 0..6 {
            let batch = pool.step(&[0i32, 0]).unwrap();
            let mut step_rewards = batch.reward().to_vec();
            let value = |obs: Array| {
                let values: Vec<f32> =
                    obs.to_vec::<f32>()?.chunks(2).map(|obs| 10.0 * obs[0]).collect();
                Array::new([2], &values)
            };
            bootstrap_truncated_batch(&mut step_rewards, &batch, 0.5, value).unwrap();
            rewards.extend(step_rewards);
        }
        assert_eq!(rewards, both, "{autoreset:?} on the host");
    }
}

#[test]
fn final_observations_that_the_pool_does_not_keep_are_refused() {
    let (handle, envs) = clocks(Autoreset::SameStep).xla().unwrap();
    let run = jit(|handle: Handle<Tensor>| {
        let (handle, step) = envs.step(handle, zeros([2], DType::I32));
        (handle, envs.final_obs_of(&step))
    });
    let error = run.call(handle).unwrap_err().to_string();
    assert!(error.contains("use XlaPool::with_final_obs"), "{error}");
}

/// Four steps of two environments: the first is truncated in steps 1 and 3; the second
/// terminates in step 0, and both terminates and is truncated in step 2.
#[test]
fn gae_over_bootstrapped_rewards_is_gae_with_the_value_of_the_final_observation() {
    let (steps, envs, gamma, lambda) = (4, 2, 0.9f64, 0.8f64);
    let rewards = [1.0f32, -2.0, 0.5, 3.0, 0.25, -1.0, 2.0, 1.5];
    let truncated = [false, false, true, false, false, true, true, false];
    let terminated = [false, true, false, false, false, true, false, false];
    let values = [0.3f32, -0.4, 1.2, 0.7, -0.9, 0.1, 2.2, -1.7];
    let final_obs = [9.0f32, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0];
    let next_value = [0.6f32, -0.8];
    let value = |x: f64| 2.0 * x + 1.0;

    // The recursion with the value of the observation after each step; only termination ends it.
    let mut expected = vec![0.0f64; steps * envs];
    for (env, &last_value) in next_value.iter().enumerate() {
        let mut advantage = 0.0;
        for step in (0..steps).rev() {
            let i = step * envs + env;
            let following = match (terminated[i], truncated[i]) {
                (true, _) => 0.0,
                (_, true) => value(final_obs[i].into()),
                _ if step + 1 == steps => last_value.into(),
                _ => values[i + envs].into(),
            };
            let delta = f64::from(rewards[i]) + gamma * following - f64::from(values[i]);
            let same_episode = if terminated[i] || truncated[i] { 0.0 } else { 1.0 };
            advantage = delta + gamma * lambda * same_episode * advantage;
            expected[i] = advantage;
        }
    }

    let shape = [steps, envs];
    let flags = |flags: &[bool]| Array::new(shape, flags).unwrap();
    let numbers = |numbers: &[f32]| Array::new(shape, numbers).unwrap();
    type Steps = (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor);
    let estimate = |(rewards, terminated, truncated, final_obs, values, next_value): Steps| {
        let by_step = |x: Tensor, step: usize| x.index_axis(0, step as isize);
        let rewards = (0..steps).map(|step| {
            let truncated_only = truncated & !terminated;
            let value = |obs: Tensor| 2.0 * obs + 1.0;
            let [rewards, truncated_only, obs] =
                [rewards, truncated_only, final_obs].map(|x| by_step(x, step));
            bootstrap_truncated(rewards, truncated_only, obs, gamma, value)
        });
        let rewards = stack(&rewards.collect::<Vec<_>>(), 0);
        let dones = (terminated | truncated).to(DType::F32);
        ppo::compute_gae(rewards, dones, values, next_value, (gamma, lambda)).0
    };
    let operands = || {
        let next_value = Array::new([envs], &next_value).unwrap();
        let (rewards, final_obs) = (numbers(&rewards), numbers(&final_obs));
        let values = numbers(&values);
        (rewards, flags(&terminated), flags(&truncated), final_obs, values, next_value)
    };
    for found in
        [interpret(estimate).call(operands()).unwrap(), jit(estimate).call(operands()).unwrap()]
    {
        for (found, expected) in found.to_vec::<f32>().unwrap().iter().zip(&expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} {expected}");
        }
    }
}
