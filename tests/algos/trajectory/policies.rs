//! PPO and RPO: `tests/fixtures/algos/cleanrl/policies.py` recorded CleanRL's `ppo.py`,
//! `ppo_continuous_action.py` and `rpo_continuous_action.py`.

use podracer::algos::{ppo, ppo_continuous_action, rpo_continuous_action};
use podracer::rl::{Algorithm, gather_minibatch};
use podracer::{Array, Tensor, jit};

use super::{Trajectory, adam_state, choices, flags, floats, minibatches, noise, start};

const OBS: usize = 4;
const ACTIONS: usize = 3;
const ACT: usize = 2;
const STEPS: usize = 8;
const ENVS: usize = 4;

/// Log probabilities about a number: `f32[STEPS, ENVS]`.
fn logprobs(about: f32) -> Array {
    let logprobs = noise("logprobs", STEPS * ENVS);
    let logprobs: Vec<f32> = logprobs.iter().map(|x| x * 0.5 + about).collect();
    Array::new([STEPS, ENVS], &logprobs).unwrap()
}

/// Takes twenty gradient steps on a rollout, in the third of ten iterations.
macro_rules! follows_cleanrl {
    ($algorithm:ident, $name:expr, $flags:expr, $actions:expr, $about:literal, $size:expr, $step:expr) => {{
        use $algorithm::{Agent, Args, Rollout, Samples, TrainState, make_samples};
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
        type Input<T> = (TrainState<T>, Samples<T>, T, T, T);
        let step = jit(|(train_state, samples, indices, noise, learning_rate): Input<Tensor>| {
            $step(train_state, &gather_minibatch(samples, indices), noise, learning_rate, &args).0
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
            let shape = [indices.shape()[0], ACT];
            let noise = super::scaled(&format!("moved {update}"), 0.5, shape);
            let input = (train_state, samples.clone(), indices, noise, learning_rate.clone());
            train_state = step.call(input).unwrap();
            trajectory.check(update, &train_state.agent);
        }
    }};
}

#[test]
fn ppo_follows_cleanrl() {
    let actions = choices("actions", ACTIONS as u32, [STEPS, ENVS]);
    let step = |state, batch: &_, _, rate, args: &_| ppo::gradient_step(state, batch, rate, args);
    follows_cleanrl!(ppo, "ppo", [""; 0], actions, -1.0, ACTIONS, step);
}

#[test]
fn ppo_continuous_action_follows_cleanrl() {
    use ppo_continuous_action::gradient_step;
    let flags = ["--num-minibatches=4", "--ent-coef=0.1"];
    let actions = floats("actions", [STEPS, ENVS, ACT]);
    let step = |state, batch: &_, _, rate, args: &_| gradient_step(state, batch, rate, args);
    let name = "ppo_continuous_action";
    follows_cleanrl!(ppo_continuous_action, name, flags, actions, -2.0, ACT, step);
}

#[test]
fn rpo_continuous_action_follows_cleanrl() {
    use rpo_continuous_action::gradient_step;
    let flags = ["--num-minibatches=4", "--ent-coef=0.1"];
    let actions = floats("actions", [STEPS, ENVS, ACT]);
    let name = "rpo_continuous_action";
    follows_cleanrl!(rpo_continuous_action, name, flags, actions, -2.0, ACT, gradient_step);
}
