//! PPO and RPO: `tests/fixtures/algos/cleanrl/policies.py` recorded CleanRL's `ppo.py`,
//! `ppo_continuous_action.py` and `rpo_continuous_action.py`.

use podracer::algos::{ppo, ppo_continuous_action, rpo_continuous_action};
use podracer::rl::on_policy::{Acted, Learner, Rollout, Samples, rows};
use podracer::rl::{Algorithm, gather_minibatch};
use podracer::{Array, Tensor, jit};

use super::{Trajectory, adam_state, choices, flags, floats, minibatches, noise, start};

const OBS: usize = 4;
const ACTIONS: usize = 3;
const ACT: usize = 2;
const STEPS: usize = 8;
const ENVS: usize = 4;

fn rollout(actions: Array) -> Rollout<Array> {
    Rollout {
        obs: floats("obs", [STEPS, ENVS, OBS]),
        actions,
        rewards: super::scaled("rewards", 5.0, [STEPS, ENVS]),
        ends: flags("ends", 4, [STEPS, ENVS]),
        next_obs: floats("next_obs", [ENVS, OBS]),
    }
}

/// Log probabilities about a number, and values.
fn acted(about: f32) -> Acted<Array> {
    let logprobs: Vec<f32> =
        noise("logprobs", STEPS * ENVS).iter().map(|x| x * 0.5 + about).collect();
    let logprobs = Array::new([STEPS, ENVS], &logprobs).unwrap();
    Acted { logprobs, values: floats("values", [STEPS, ENVS]) }
}

/// Twenty gradient steps over a rollout, in the third of ten iterations.
macro_rules! follows {
    ($algorithm:ident, $name:literal, $flags:expr, $actions:expr, $about:literal, $size:expr, $step:expr) => {{
        type Agent<T> = $algorithm::Agent<T>;
        let args = $algorithm::Args::from_flags($flags).unwrap();
        type Input<T> = (Agent<T>, Rollout<T>, Acted<T>);
        let prepare = jit(|(agent, rollout, acted): Input<Tensor>| {
            let next_value = agent.value(rollout.next_obs);
            rollout.samples(acted, next_value, (args.gamma, args.gae_lambda)).0
        });
        let learning_rate = Array::from((args.learning_rate * (1.0 - 2.0 / 10.0)) as f32);
        type Step<T> = (Learner<T, Agent<T>>, Samples<T>, T, T, T);
        let step = jit(|(learner, samples, indices, moved, learning_rate): Step<Tensor>| {
            $step(learner, rows(samples, indices), moved, learning_rate, &args)
        });
        let agent = start("", |key| Agent::init(key, OBS, $size));
        let samples = prepare.call((agent.clone(), rollout($actions), acted($about))).unwrap();
        let mut learner = Learner { optimizer: adam_state(&agent), agent };
        let trajectory = Trajectory::of($name);
        let batches = minibatches(5, args.num_minibatches, STEPS * ENVS);
        for (update, indices) in batches.into_iter().enumerate() {
            let size = indices.shape()[0];
            let moved = super::scaled(&format!("moved {update}"), 0.5, [size, ACT]);
            let input = (learner, samples.clone(), indices, moved, learning_rate.clone());
            learner = step.call(input).unwrap();
            trajectory.check(update, &learner.agent);
        }
    }};
}

/// Log probabilities about a number: `f32[STEPS, ENVS]`.
fn logprobs(about: f32) -> Array {
    let logprobs = noise("logprobs", STEPS * ENVS);
    let logprobs: Vec<f32> = logprobs.iter().map(|x| x * 0.5 + about).collect();
    Array::new([STEPS, ENVS], &logprobs).unwrap()
}

/// Takes twenty gradient steps on a rollout, in the third of ten iterations.
macro_rules! follows_cleanrl {
    ($algorithm:ident, $name:literal, $flags:expr, $actions:expr, $about:literal, $size:expr) => {{
        use $algorithm::{Agent, Args, Rollout, Samples, TrainState, gradient_step, make_samples};
        let args = Args::from_flags($flags).unwrap();
        let prepare = jit(
            |(agent, rollout, logprobs, values): (
                Agent<Tensor>,
                Rollout<Tensor>,
                Tensor,
                Tensor,
            )| {
                let next_value = agent.value(rollout.next_obs);
                make_samples(rollout, logprobs, values, next_value, &args).0
            },
        );
        let learning_rate = Array::from((args.learning_rate * (1.0 - 2.0 / 10.0)) as f32);
        type Input<T> = (TrainState<T>, Samples<T>, T, T);
        let step = jit(|(train_state, samples, indices, learning_rate): Input<Tensor>| {
            gradient_step(train_state, &gather_minibatch(samples, indices), learning_rate, &args).0
        });
        let agent = start("", |key| Agent::init(key, OBS, $size));
        let rollout = Rollout {
            obs: floats("obs", [STEPS, ENVS, OBS]),
            actions: $actions,
            rewards: super::scaled("rewards", 5.0, [STEPS, ENVS]),
            dones: flags("ends", 4, [STEPS, ENVS]),
            next_obs: floats("next_obs", [ENVS, OBS]),
        };
        let values = floats("values", [STEPS, ENVS]);
        let samples = prepare.call((agent.clone(), rollout, logprobs($about), values)).unwrap();
        let mut train_state = TrainState { opt_state: adam_state(&agent), agent };
        let trajectory = Trajectory::of($name);
        let batches = minibatches(5, args.num_minibatches, STEPS * ENVS);
        for (update, indices) in batches.into_iter().enumerate() {
            let input = (train_state, samples.clone(), indices, learning_rate.clone());
            train_state = step.call(input).unwrap();
            trajectory.check(update, &train_state.agent);
        }
    }};
}

#[test]
fn ppo_follows_cleanrl() {
    let actions = choices("actions", ACTIONS as u32, [STEPS, ENVS]);
    follows_cleanrl!(ppo, "ppo", [""; 0], actions, -1.0, ACTIONS);
}

#[test]
fn ppo_continuous_action_follows_cleanrl() {
    let flags = ["--num-minibatches=4", "--ent-coef=0.1"];
    let actions = floats("actions", [STEPS, ENVS, ACT]);
    let step = |learner, batch, _, learning_rate, args: &_| {
        ppo_continuous_action::minibatch_step(learner, batch, learning_rate, args).0
    };
    follows!(ppo_continuous_action, "ppo_continuous_action", flags, actions, -2.0, ACT, step);
}

#[test]
fn rpo_continuous_action_follows_cleanrl() {
    let flags = ["--num-minibatches=4", "--ent-coef=0.1"];
    let actions = floats("actions", [STEPS, ENVS, ACT]);
    let step = |learner, batch, moved, learning_rate, args: &_| {
        rpo_continuous_action::minibatch_step(learner, (batch, moved), learning_rate, args).0
    };
    follows!(rpo_continuous_action, "rpo_continuous_action", flags, actions, -2.0, ACT, step);
}
