//! PQN, DQN and C51: `tests/fixtures/algos/cleanrl/q_learning.py` recorded CleanRL's `pqn.py`, `dqn.py`,
//! `dqn_jax.py`, `c51.py` and `c51_jax.py`.

use podracer::algos::{c51, dqn, pqn};
use podracer::envs::ObsKind;
use podracer::rl::buffers::replay::Transition;
use podracer::rl::environments::spaces::Sizes;
use podracer::rl::{Algorithm, gather_minibatch};
use podracer::{Array, Key, Tensor, jit};

use super::{Trajectory, UPDATES, adam_state, choices, flags, floats, minibatches, scaled, start};

const OBS: usize = 4;
const BATCH: usize = 16;

fn sizes() -> Sizes {
    Sizes { obs_kind: ObsKind::Vector, shape: [OBS].into(), num_actions: 2 }
}

#[test]
fn pqn_follows_cleanrl() {
    let args =
        ["--num-steps=8", "--update-epochs=5", "--max-grad-norm=1", "--learning-rate=0.0025"];
    let args = pqn::Args::from_flags(args).unwrap();
    let (steps, envs) = (args.num_steps, args.num_envs);
    let rollout = pqn::Rollout {
        obs: floats("obs", [steps, envs, OBS]),
        actions: choices("actions", 2, [steps, envs]),
        rewards: scaled("rewards", 5.0, [steps, envs]),
        dones: flags("ends", 4, [steps, envs]),
        values: floats("values", [steps, envs]),
        next_obs: floats("next_obs", [envs, OBS]),
    };
    let prepare = jit(|(q, rollout): (pqn::QNetwork<Tensor>, pqn::Rollout<Tensor>)| {
        pqn::make_samples(&q, rollout, &args)
    });
    // The third of ten iterations.
    let learning_rate = Array::from((args.learning_rate * (1.0 - 2.0 / 10.0)) as f32);
    type Input<T> = (pqn::TrainState<T>, pqn::Samples<T>, T, T);
    let step = jit(|(train_state, samples, indices, learning_rate): Input<Tensor>| {
        let batch = gather_minibatch(samples, indices);
        pqn::gradient_step(train_state, &batch, learning_rate, &args).0
    });

    let q = start("", |key| pqn::QNetwork::init(key, OBS, 2));
    let samples = prepare.call((q.clone(), rollout)).unwrap();
    let mut train_state = pqn::TrainState { opt_state: adam_state(&q), q };
    let trajectory = Trajectory::of("pqn");
    for (update, indices) in minibatches(5, args.num_minibatches, steps * envs).iter().enumerate() {
        let input = (train_state, samples.clone(), indices.clone(), learning_rate.clone());
        train_state = step.call(input).unwrap();
        trajectory.check(update, &train_state.q);
    }
}

fn transitions(update: usize) -> Transition<Array> {
    Transition {
        obs: floats(&format!("obs {update}"), [BATCH, OBS]),
        action: choices(&format!("actions {update}"), 2, [BATCH]),
        reward: scaled(&format!("rewards {update}"), 5.0, [BATCH]),
        next_obs: floats(&format!("next_obs {update}"), [BATCH, OBS]),
        terminated: flags(&format!("terminated {update}"), 4, [BATCH]),
    }
}

#[test]
fn dqn_follows_cleanrl() {
    let args = dqn::Args::from_flags([""; 0]).unwrap();
    let step = jit(|(train_state, batch): (dqn::TrainState<Tensor>, Transition<Tensor>)| {
        dqn::gradient_step(train_state, &batch, &args).0
    });
    let init = |key: Key<Tensor>| dqn::QNetwork::init(key, &sizes());
    let (q, target) = (start("", init), start("target ", init));
    let mut train_state = dqn::TrainState { opt_state: adam_state(&q), q, target };
    let recorded = ["dqn", "dqn_jax"].map(Trajectory::of);
    for update in 0..UPDATES {
        train_state = step.call((train_state, transitions(update))).unwrap();
        recorded.iter().for_each(|trajectory| trajectory.check(update, &train_state.q));
    }
}

#[test]
fn c51_follows_cleanrl() {
    let args = ["--n-atoms=21", "--v-min=-10", "--v-max=10"];
    let args = c51::Args::from_flags(args).unwrap();
    let step = jit(|(train_state, batch): (c51::TrainState<Tensor>, Transition<Tensor>)| {
        c51::gradient_step(train_state, &batch, &args).0
    });
    let init = |key: Key<Tensor>| c51::QNetwork::init(key, &sizes(), &args);
    let (q, target) = (start("", init), start("target ", init));
    let mut train_state = c51::TrainState { opt_state: adam_state(&q), q, target };
    let recorded = ["c51", "c51_jax"].map(Trajectory::of);
    for update in 0..UPDATES {
        train_state = step.call((train_state, transitions(update))).unwrap();
        recorded.iter().for_each(|trajectory| trajectory.check(update, &train_state.q));
    }
}
