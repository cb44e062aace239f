//! Cleanba's PPO and IMPALA: `tests/fixtures/algos/cleanrl/cleanba.py` recorded whole updates of
//! `cleanba_ppo.py` and `cleanba_impala.py` by one learner device.

use podracer::algos::{cleanba_impala, cleanba_ppo};
use podracer::envs::{ActionKind, ObsKind};
use podracer::optim::{AdamState, RmsPropState};
use podracer::rl::sebulba::{Agent, Reduce, Rollout, Sizes};
use podracer::rl::{Algorithm, ImageNetwork};
use podracer::trace::ops::constant;
use podracer::tree::{self, Tree};
use podracer::{Array, DType, Key, Tensor, jit, vmap_axis};

use super::{
    Trajectory, UPDATES, adam_state, choices, flags, floats, integers, noise, start, zeros_of,
};

const ACTIONS: usize = 3;
const STEPS: usize = 4;
const ENVS: usize = 4;

fn sizes() -> Sizes {
    Sizes {
        obs_kind: ObsKind::Image,
        shape: [4, 84, 84].into(),
        action_kind: ActionKind::Discrete { num_actions: ACTIONS },
        bounds: None,
        network: ImageNetwork::Impala,
        channels: vec![4],
        hiddens: vec![32],
    }
}

/// One learner device, whose axis has the data as its only element.
pub(super) fn one_learner<D, R>(data: D, update: impl Fn(&Reduce, D) -> R) -> R
where
    D: Tree<Tensor, With<Tensor> = D>,
    R: Tree<Tensor, With<Tensor> = R>,
{
    let f = |axis, data| update(&Reduce { axis, learners: 1, exact: false, across: None }, data);
    let data = tree::map(data, |x: Tensor| x.expand_dims(0));
    tree::map(vmap_axis("learners", f)(data), |x: Tensor| x.index_axis(0, 0))
}

fn bytes(name: &str, count: usize) -> Vec<u8> {
    integers(name, 256, count * 4 * 84 * 84).into_iter().map(|x| x as u8).collect()
}

fn numbered<const R: usize>(shape: [usize; R]) -> Array {
    Array::new(shape, &(0..ENVS as i32).collect::<Vec<_>>()).unwrap()
}

/// The rollout of an update of PPO.
fn ppo_rollout(k: usize) -> Rollout<Array> {
    let shape = [STEPS, ENVS];
    let logprobs: Vec<f32> =
        noise(&format!("logprobs {k}"), STEPS * ENVS).iter().map(|x| x * 0.5 - 1.0).collect();
    let obs = bytes(&format!("obs {k}"), STEPS * ENVS);
    Rollout {
        obs: Array::new([STEPS, ENVS, 4, 84, 84], &obs).unwrap(),
        actions: choices(&format!("actions {k}"), ACTIONS as u32, shape),
        logprobs: Array::new(shape, &logprobs).unwrap(),
        values: floats(&format!("values {k}"), shape),
        rewards: floats(&format!("rewards {k}"), shape),
        dones: flags(&format!("ends {k}"), 4, shape),
        next_obs: Array::new([ENVS, 4, 84, 84], &bytes(&format!("next_obs {k}"), ENVS)).unwrap(),
        last_reward: Array::zeros([ENVS], DType::F32),
        last_done: Array::zeros([ENVS], DType::F32),
        env_ids: numbered([ENVS]),
    }
}

/// The rollout of an update of IMPALA. Cleanba's have one step more, the first, of which the reward
/// and the end are those before ours.
fn impala_rollout(k: usize) -> Rollout<Array> {
    let (all, shape) = ((STEPS + 1) * ENVS, [STEPS, ENVS]);
    let actions = integers(&format!("actions {k}"), ACTIONS as u32, all);
    let logits = noise(&format!("logits {k}"), all * ACTIONS);
    let log_prob = |i: usize| {
        let logits = logits[i * ACTIONS..][..ACTIONS].iter().map(|&x| f64::from(x));
        let sum: f64 = logits.clone().map(f64::exp).sum();
        (logits.clone().nth(actions[i] as usize).unwrap() - sum.ln()) as f32
    };
    let logprobs: Vec<f32> = (0..STEPS * ENVS).map(log_prob).collect();
    let rewards = noise(&format!("rewards {k}"), all);
    let dones = flags(&format!("ends {k}"), 4, [all]).to_vec::<f32>().unwrap();
    let obs = bytes(&format!("obs {k}"), all);
    let (obs, next_obs) = obs.split_at(STEPS * ENVS * 4 * 84 * 84);
    Rollout {
        obs: Array::new([STEPS, ENVS, 4, 84, 84], obs).unwrap(),
        actions: Array::new(shape, &actions[..STEPS * ENVS]).unwrap(),
        logprobs: Array::new(shape, &logprobs).unwrap(),
        values: Array::new(shape, &[0.0f32; STEPS * ENVS]).unwrap(),
        rewards: Array::new(shape, &rewards[ENVS..]).unwrap(),
        dones: Array::new(shape, &dones[ENVS..]).unwrap(),
        next_obs: Array::new([ENVS, 4, 84, 84], next_obs).unwrap(),
        last_reward: Array::new([ENVS], &rewards[..ENVS]).unwrap(),
        last_done: Array::new([ENVS], &dones[..ENVS]).unwrap(),
        env_ids: numbered([ENVS]),
    }
}

#[test]
fn cleanba_ppo_follows_cleanba() {
    use cleanba_ppo::{Args, TrainState, gradient_step, prepare};
    // Of one minibatch the advantages' mean and deviation are Cleanba's as well.
    let flags = ["--num-steps=4", "--local-num-envs=4", "--num-minibatches=1", "--update-epochs=1"];
    let args = Args::from_flags(flags).unwrap();
    type State<T> = (Agent<T>, AdamState<T, Agent<T>>);
    type Input<T> = (State<T>, Rollout<T>, T);
    let update = jit(|((agent, opt_state), rollout, learning_rate): Input<Tensor>| {
        one_learner(rollout, |reduce, rollout| {
            // One minibatch is the whole rollout, in any order.
            let key = Key::constant(0);
            let state = TrainState { agent: agent.clone(), opt_state: opt_state.clone(), key };
            let (state, data) = prepare(state, rollout, &args);
            let index = (constant(0i32), learning_rate);
            let state = gradient_step(state, &data, index, (reduce, &args)).0;
            (state.agent, state.opt_state)
        })
    });
    let agent = start("", |key| Agent::init(key, &sizes()));
    let mut state = (agent.clone(), adam_state(&agent));
    let recorded = Trajectory::of("cleanba_ppo");
    for k in 0..UPDATES {
        state = update.call((state, ppo_rollout(k), Array::from(2.5e-4f32))).unwrap();
        recorded.check(k, &state.0);
    }
}

#[test]
fn cleanba_impala_follows_cleanba() {
    use cleanba_impala::{Args, TrainState, gradient_step, prepare};
    let flags = ["--num-steps=4", "--local-num-envs=4", "--num-minibatches=2", "--parity"];
    let args = Args::from_flags(flags).unwrap();
    type State<T> = (Agent<T>, RmsPropState<Agent<T>>);
    type Input<T> = (State<T>, Rollout<T>, T);
    let update = jit(|((agent, opt_state), rollout, learning_rate): Input<Tensor>| {
        one_learner(rollout, |reduce, rollout| {
            let data = prepare(rollout, &args);
            let state = TrainState { agent: agent.clone(), opt_state: opt_state.clone() };
            let step = |state, index: i32| {
                gradient_step(state, &data, (constant(index), learning_rate), (reduce, &args)).0
            };
            let state = [0, 1].into_iter().fold(state, step);
            (state.agent, state.opt_state)
        })
    });
    let agent = start("", |key| Agent::init(key, &sizes()));
    let mut state = (agent.clone(), RmsPropState { v: zeros_of(&agent), trace: None });
    let recorded = Trajectory::of("cleanba_impala");
    for k in 0..UPDATES {
        state = update.call((state, impala_rollout(k), Array::from(6e-4f32))).unwrap();
        recorded.check(k, &state.0);
    }
}
