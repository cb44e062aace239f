//! Algorithms that see Atari's frames: `tests/fixtures/algos/cleanrl/images.py` recorded CleanRL's
//! `dqn_atari_jax.py`, `c51_atari_jax.py`, `qdagger_dqn_atari_jax_impalacnn.py`,
//! `ppo_atari_envpool_xla_jax_scan.py`, `ppo_atari.py`, `ppo_atari_lstm.py`,
//! `ppo_pettingzoo_ma_atari.py`, `pqn_atari_envpool.py`, `pqn_atari_envpool_lstm.py`, `sac_atari.py`
//! and `rainbow_atari.py`.

use podracer::algos::{
    c51_atari, dqn_atari, ppo_atari, ppo_atari_envpool, ppo_atari_lstm, ppo_pettingzoo_ma_atari,
    pqn_atari_envpool, pqn_atari_envpool_lstm, qdagger_dqn_atari, rainbow_atari, sac_atari,
};
use podracer::envs::ObsKind;
use podracer::nn::RecurrentState;
use podracer::rl::buffers::frames::SampledBatch;
use podracer::rl::buffers::prioritized::PrioritizedBatch;
use podracer::rl::environments::spaces::Sizes;
use podracer::rl::{Algorithm, gather_minibatch};
use podracer::trace::op::Precision;
use podracer::trace::ops::{concatenate, constant, default_matmul_precision};
use podracer::tree::Tree;
use podracer::{Array, DType, Key, Tensor, jit};

use super::{
    Trajectory, UPDATES, adam_state, choices, flags, floats, integers, minibatches, noise, scaled,
    start, start_named,
};

const ACTIONS: usize = 3;
const BATCH: usize = 4;
const GAMMA: f32 = 0.99;

fn frames<const R: usize>(name: &str, shape: [usize; R]) -> Array {
    let bytes: Vec<u8> =
        integers(name, 256, shape.iter().product()).into_iter().map(|x| x as u8).collect();
    Array::new(shape, &bytes).unwrap()
}

/// The batch of an update; rewards up to `bound`, discounts `discount`, or 0 at an end.
fn sampled_batch(update: usize, bound: f32, discount: f32) -> SampledBatch<Array> {
    let ends = flags(&format!("terminated {update}"), 4, [BATCH]).to_vec::<f32>().unwrap();
    let discounts: Vec<f32> = ends.iter().map(|end| discount * (1.0 - end)).collect();
    SampledBatch {
        obs: frames(&format!("obs {update}"), [BATCH, 4, 84, 84]),
        action: choices(&format!("actions {update}"), ACTIONS as u32, [BATCH]),
        reward: scaled(&format!("rewards {update}"), bound, [BATCH]),
        next_obs: frames(&format!("next_obs {update}"), [BATCH, 4, 84, 84]),
        discount: Array::new([BATCH], &discounts).unwrap(),
    }
}

/// The name of a parameter in the fixtures of value-based algorithms.
fn name_of(path: &str) -> String {
    path.replace(".trunk[0].", ".trunk.")
        .replace(".trunk.convs", ".trunk.convs.layers")
        .replace(".trunk.dense[0]", ".trunk.hidden")
        .replace(".encoder.convs", ".convs.layers")
}

#[test]
fn dqn_atari_follows_cleanrl() {
    let args = dqn_atari::Args::from_flags([""; 0]).unwrap();
    type Input<T> = (dqn_atari::TrainState<T>, SampledBatch<T>);
    let step = jit(|(train_state, batch): Input<Tensor>| {
        dqn_atari::gradient_step(train_state, &batch, &args).0
    });
    let init = |key: Key<Tensor>| dqn_atari::QNetwork::init(key, &sizes(4));
    let (q, target) = (start_named("", name_of, init), start_named("target ", name_of, init));
    let mut train_state = dqn_atari::TrainState { opt_state: adam_state(&q), q, target };
    let recorded = Trajectory::named("dqn_atari", name_of);
    for update in 0..UPDATES {
        train_state = step.call((train_state, sampled_batch(update, 1.0, GAMMA))).unwrap();
        recorded.check(update, &train_state.q);
    }
}

#[test]
fn c51_atari_follows_cleanrl() {
    let args = c51_atari::Args::from_flags([""; 0]).unwrap();
    type Input<T> = (c51_atari::TrainState<T>, SampledBatch<T>);
    let step = jit(|(train_state, batch): Input<Tensor>| {
        c51_atari::gradient_step(train_state, &batch, &args).0
    });
    let init = |key: Key<Tensor>| c51_atari::QNetwork::init(key, &sizes(4), &args);
    let (q, target) = (start_named("", name_of, init), start_named("target ", name_of, init));
    let mut train_state = c51_atari::TrainState { opt_state: adam_state(&q), q, target };
    let recorded = Trajectory::named("c51_atari", name_of);
    for update in 0..UPDATES {
        train_state = step.call((train_state, sampled_batch(update, 1.0, GAMMA))).unwrap();
        recorded.check(update, &train_state.q);
    }
}

#[test]
fn qdagger_dqn_atari_follows_cleanrl() {
    use qdagger_dqn_atari::{Args, QNetwork, Teacher, TrainState, gradient_step};
    let args = Args::from_flags([""; 0]).unwrap();
    type Input<T> = (TrainState<T>, Teacher<T>, SampledBatch<T>);
    // Some gradients are as small as Adam's epsilon, so its first step depends on their rounding errors:
    // those of direct convolutions are the recorded ones.
    let step = jit(|(train_state, teacher, batch): Input<Tensor>| {
        default_matmul_precision(Precision::Highest, || {
            gradient_step(train_state, &teacher, &batch, constant(0.7f32), &args).0
        })
    });
    let init = |key: Key<Tensor>| QNetwork::init(key, &sizes(4));
    let (q, target) = (start_named("", name_of, init), start_named("target ", name_of, init));
    let teacher = start_named("teacher ", name_of, |key| Teacher::init(key, &sizes(4)));
    let mut train_state = TrainState { opt_state: adam_state(&q), q, target };
    let recorded = Trajectory::named("qdagger_dqn_atari", name_of);
    for update in 0..UPDATES {
        let input = (train_state, teacher.clone(), sampled_batch(update, 1.0, GAMMA));
        train_state = step.call(input).unwrap();
        recorded.check(update, &train_state.q);
    }
}

#[test]
fn rainbow_atari_follows_cleanrl() {
    use rainbow_atari::{Args, QNetwork, TrainState, gradient_step};
    let args = Args::from_flags(["--parity"]).unwrap();
    type Input<T> = (TrainState<T>, PrioritizedBatch<T>, Key<T>);
    let step = jit(|(train_state, batch, key): Input<Tensor>| {
        gradient_step(train_state, &batch, key, &args).0
    });
    let init = |key: Key<Tensor>| QNetwork::init(key, &sizes(4), &args);
    let (q, target) = (start_named("", name_of, init), start_named("target ", name_of, init));
    let mut train_state = TrainState { opt_state: adam_state(&q), q, target };
    let recorded = Trajectory::named("rainbow_atari", name_of);
    for update in 0..UPDATES {
        let weights: Vec<f32> =
            noise(&format!("weights {update}"), BATCH).iter().map(|x| x.abs()).collect();
        let batch = PrioritizedBatch {
            transitions: sampled_batch(update, 2.0, GAMMA.powi(3)),
            indices: choices("rows", 1, [BATCH]),
            weights: Array::new([BATCH], &weights).unwrap(),
        };
        let key = Key::new(update as u64);
        train_state = step.call((train_state, batch, key)).unwrap();
        recorded.check(update, &train_state.q);
    }
}

/// SAC's parameters under the names of the fixture.
#[derive(Tree)]
struct SacNetworks<T> {
    actor: sac_atari::Actor<T>,
    critics: [sac_atari::QNetwork<T>; 2],
    log_alpha: T,
}

#[test]
fn sac_atari_follows_cleanrl() {
    use sac_atari::{Agent, Args, OptState, TrainState, gradient_step};
    let args = Args::from_flags(["--q-lr=0.00003", "--policy-lr=0.00003"]).unwrap();
    let step = jit(|(train_state, batch): (TrainState<Tensor>, SampledBatch<Tensor>)| {
        gradient_step(train_state, &batch, &args).0
    });
    let init = |key: Key<Tensor>| {
        let Agent { actor, qf } = Agent::init(key, &sizes(4));
        SacNetworks { actor, critics: qf, log_alpha: constant(0.0f32) }
    };
    let SacNetworks { actor, critics, .. } = start_named("", name_of, init);
    let (agent, target) =
        (Agent { actor, qf: critics }, start_named("target ", name_of, |key| init(key).critics));
    let log_alpha = Array::from(0.0f32);
    let opt_state = OptState {
        actor: adam_state(&agent.actor),
        qf: adam_state(&agent.qf),
        log_alpha: adam_state(&log_alpha),
    };
    let mut train_state = TrainState { agent, target, log_alpha, opt_state };
    let recorded = Trajectory::named("sac_atari", name_of);
    for update in 0..UPDATES {
        train_state = step.call((train_state, sampled_batch(update, 1.0, GAMMA))).unwrap();
        let TrainState { agent: Agent { actor, qf }, log_alpha, .. } = train_state.clone();
        recorded.check(update, &SacNetworks { actor, critics: qf, log_alpha });
    }
}

// ------------------------------------------------------------------------------------------- PPO

const STEPS: usize = 4;
const ENVS: usize = 4;

/// Rollout of an algorithm, with observations of `$frames` frames.
macro_rules! rollout {
    ($frames:literal $(, $field:ident: $value:expr)* $(,)?) => {
        Rollout {
            obs: frames("obs", [STEPS, ENVS, $frames, 84, 84]),
            actions: choices("actions", ACTIONS as u32, [STEPS, ENVS]),
            logprobs: logprobs(),
            values: floats("values", [STEPS, ENVS]),
            rewards: floats("rewards", [STEPS, ENVS]),
            dones: flags("ends", 4, [STEPS, ENVS]),
            next_obs: frames("next_obs", [ENVS, $frames, 84, 84]),
            $($field: $value,)*
        }
    };
}

fn logprobs() -> Array {
    let values: Vec<f32> = noise("logprobs", STEPS * ENVS).iter().map(|x| x * 0.5 - 1.0).collect();
    Array::new([STEPS, ENVS], &values).unwrap()
}

/// Indices below `count` of as many minibatches as the fixtures have.
fn indices(count: usize) -> Vec<Array> {
    minibatches(5, 4, count)
}

/// Gradient steps on the minibatches of `indices`, each a call.
macro_rules! follows_cleanrl {
    ($algorithm:ident, $args:expr, $agent:expr, $samples:expr, $indices:expr, $rate:expr) => {{
        use $algorithm::{Samples, TrainState, gradient_step};
        let args = $args;
        type Input<T> = (TrainState<T>, Samples<T>, T, T);
        let step = jit(|(train_state, samples, indices, rate): Input<Tensor>| {
            gradient_step(train_state, &gather_minibatch(samples, indices), rate, &args).0
        });
        let (agent, samples, indices) = ($agent, $samples, $indices);
        let mut train_state = TrainState { opt_state: adam_state(&agent), agent };
        let recorded = Trajectory::of(stringify!($algorithm));
        for update in 0..UPDATES {
            let indices = indices[update % indices.len()].clone();
            let rate = Array::from($rate as f32);
            train_state = step.call((train_state, samples.clone(), indices, rate)).unwrap();
            recorded.check(update, &train_state.agent);
        }
    }};
}

#[test]
fn ppo_atari_envpool_follows_cleanrl() {
    use ppo_atari_envpool::{Agent, Args, Rollout, make_samples};
    let args = Args::from_flags([""; 0]).unwrap();
    let samples_of = jit(|(agent, rollout): (Agent<Tensor>, Rollout<Tensor>)| {
        make_samples(&agent, rollout, &args)
    });
    let agent = start("", |key| Agent::init(key, ACTIONS));
    let samples = samples_of.call((agent.clone(), rollout!(4))).unwrap();
    // All samples in each step.
    let all: Vec<i32> = (0..(STEPS * ENVS) as i32).collect();
    let indices = [Array::new([STEPS * ENVS], &all).unwrap()];
    let rate = args.learning_rate;
    follows_cleanrl!(ppo_atari_envpool, args, agent, samples, indices, rate);
}

fn sizes(stack: usize) -> Sizes {
    Sizes { obs_kind: ObsKind::Image, shape: [stack, 84, 84].into(), num_actions: ACTIONS }
}

#[test]
fn ppo_atari_follows_cleanrl() {
    use ppo_atari::{Agent, Args, Rollout, make_samples};
    let args = Args::from_flags([""; 0]).unwrap();
    let samples_of = jit(|(agent, rollout): (Agent<Tensor>, Rollout<Tensor>)| {
        make_samples(&agent, rollout, &args).0
    });
    let agent = start("", |key| Agent::init(key, &sizes(4)));
    let samples = samples_of.call((agent.clone(), rollout!(4))).unwrap();
    let rate = args.learning_rate * (1.0 - 2.0 / 10.0);
    follows_cleanrl!(ppo_atari, args, agent, samples, indices(STEPS * ENVS), rate);
}

/// Four frames and a plane for each of two players.
#[test]
fn ppo_pettingzoo_ma_atari_follows_cleanrl() {
    use ppo_pettingzoo_ma_atari::{Agent, Args, Rollout, make_samples};
    let args = Args::from_flags([""; 0]).unwrap();
    let samples_of = jit(|(agent, rollout): (Agent<Tensor>, Rollout<Tensor>)| {
        make_samples(&agent, rollout, &args).0
    });
    let agent = start("", |key| Agent::init(key, &sizes(6)));
    let samples = samples_of.call((agent.clone(), rollout!(6))).unwrap();
    let rate = args.learning_rate * (1.0 - 2.0 / 10.0);
    follows_cleanrl!(ppo_pettingzoo_ma_atari, args, agent, samples, indices(STEPS * ENVS), rate);
}

#[test]
fn ppo_atari_lstm_follows_cleanrl() {
    use ppo_atari_lstm::{
        Agent, Args, Minibatch, Rollout, Sizes, TrainState, make_samples, minibatch_step,
    };
    let args = Args::from_flags([""; 0]).unwrap();
    type Input<T> = (Agent<T>, Rollout<T>, T);
    let samples_of = jit(|(agent, rollout, first): Input<Tensor>| {
        let later = rollout.dones.slice_axis(0, 0, STEPS - 1);
        let episode_starts = concatenate(&[first, later], 0);
        let actions = rollout.actions.expand_dims(-1);
        make_samples(&agent, Rollout { episode_starts, actions, ..rollout }, &args).0
    });
    let sizes = Sizes { obs_kind: ObsKind::Image, shape: [1, 84, 84].into(), nvec: vec![ACTIONS] };
    let agent = start("", |key| Agent::init(key, args.rnn, &sizes));
    let lstm_state =
        |c: &str, h: &str| RecurrentState::Two((floats(c, [ENVS, 128]), floats(h, [ENVS, 128])));
    let rollout = rollout!(
        1,
        initial_lstm_state: lstm_state("c", "h"),
        episode_starts: Array::zeros([STEPS, ENVS], DType::F32),
        next_lstm_state: lstm_state("next_c", "next_h"),
    );
    let first = flags("first", 2, [1, ENVS]);
    let samples = samples_of.call((agent.clone(), rollout, first)).unwrap();
    let rate = args.learning_rate * (1.0 - 2.0 / 10.0);
    let step = jit(|(train_state, minibatch)| minibatch_step(train_state, minibatch, &args).0);
    let all: Vec<i32> = indices(ENVS).iter().flat_map(|one| one.to_vec::<i32>().unwrap()).collect();
    let count = indices(ENVS).len();
    let mut minibatch = Minibatch {
        samples,
        indices: Array::new([count, all.len() / count], &all).unwrap(),
        index: Array::from(0i32),
        sequences: None,
        learning_rate: Array::from(rate as f32),
    };
    let mut train_state = TrainState { opt_state: adam_state(&agent), agent };
    let recorded = Trajectory::of("ppo_atari_lstm");
    for update in 0..UPDATES {
        minibatch.index = Array::from((update % count) as i32);
        train_state = step.call((train_state, minibatch.clone())).unwrap();
        recorded.check(update, &train_state.agent);
    }
}

#[test]
fn pqn_atari_envpool_lstm_follows_cleanrl() {
    use pqn_atari_envpool_lstm::{
        Args, QNetwork, Rollout, Samples, TrainState, gather_envs, gradient_step, make_samples,
    };
    let args = Args::from_flags([""; 0]).unwrap();
    let lstm_state = |c: &str, h: &str| (floats(c, [ENVS, 128]), floats(h, [ENVS, 128]));
    let rollout = Rollout {
        initial_lstm_state: lstm_state("c", "h"),
        obs: frames("obs", [STEPS, ENVS, 1, 84, 84]),
        episode_starts: Array::zeros([STEPS, ENVS], DType::F32),
        actions: choices("actions", ACTIONS as u32, [STEPS, ENVS]),
        rewards: floats("rewards", [STEPS, ENVS]),
        dones: flags("ends", 4, [STEPS, ENVS]),
        values: floats("values", [STEPS, ENVS]),
        next_obs: frames("next_obs", [ENVS, 1, 84, 84]),
        next_lstm_state: lstm_state("next_c", "next_h"),
    };
    let prepare = jit(|(q, rollout, first): (QNetwork<Tensor>, Rollout<Tensor>, Tensor)| {
        let later = rollout.dones.slice_axis(0, 0, STEPS - 1);
        let episode_starts = concatenate(&[first, later], 0);
        make_samples(&q, Rollout { episode_starts, ..rollout }, &args)
    });
    // The third of ten iterations.
    let learning_rate = Array::from((args.learning_rate * (1.0 - 2.0 / 10.0)) as f32);
    type Input<T> = (TrainState<T>, Samples<T>, T, T);
    let step = jit(|(train_state, samples, envs, learning_rate): Input<Tensor>| {
        gradient_step(train_state, &gather_envs(samples, envs), learning_rate, &args).0
    });

    let q = start("", |key| QNetwork::init(key, &sizes(1)));
    let samples = prepare.call((q.clone(), rollout, flags("first", 2, [1, ENVS]))).unwrap();
    let mut train_state = TrainState { opt_state: adam_state(&q), q };
    let recorded = Trajectory::of("pqn_atari_envpool_lstm");
    // Rounding errors reach the tolerance after twelve updates.
    for (update, envs) in minibatches(5, 4, ENVS).iter().take(10).enumerate() {
        let input = (train_state, samples.clone(), envs.clone(), learning_rate.clone());
        train_state = step.call(input).unwrap();
        recorded.check(update, &train_state.q);
    }
}

#[test]
fn pqn_atari_envpool_follows_cleanrl() {
    use pqn_atari_envpool::{Args, QNetwork, Rollout, Samples, TrainState};
    let args = Args::from_flags([""; 0]).unwrap();
    let rollout = Rollout {
        obs: frames("obs", [STEPS, ENVS, 4, 84, 84]),
        actions: choices("actions", ACTIONS as u32, [STEPS, ENVS]),
        rewards: floats("rewards", [STEPS, ENVS]),
        dones: flags("ends", 4, [STEPS, ENVS]),
        values: floats("values", [STEPS, ENVS]),
        next_obs: frames("next_obs", [ENVS, 4, 84, 84]),
    };
    let prepare = jit(|(q, rollout): (QNetwork<Tensor>, Rollout<Tensor>)| {
        pqn_atari_envpool::make_samples(&q, rollout, &args)
    });
    // The third of ten iterations.
    let learning_rate = Array::from((args.learning_rate * (1.0 - 2.0 / 10.0)) as f32);
    type Input<T> = (TrainState<T>, Samples<T>, T, T);
    let step = jit(|(train_state, samples, indices, learning_rate): Input<Tensor>| {
        let batch = gather_minibatch(samples, indices);
        pqn_atari_envpool::gradient_step(train_state, &batch, learning_rate, &args).0
    });

    let q = start("", |key| QNetwork::init(key, &sizes(4)));
    let samples = prepare.call((q.clone(), rollout)).unwrap();
    let mut train_state = TrainState { opt_state: adam_state(&q), q };
    let recorded = Trajectory::of("pqn_atari_envpool");
    for (update, indices) in minibatches(5, 4, STEPS * ENVS).iter().enumerate() {
        let input = (train_state, samples.clone(), indices.clone(), learning_rate.clone());
        train_state = step.call(input).unwrap();
        recorded.check(update, &train_state.q);
    }
}
