//! DDPG, TD3 and SAC: `tests/fixtures/algos/cleanrl/continuous.py` recorded CleanRL's
//! `ddpg_continuous_action_jax.py`, `td3_continuous_action_jax.py` and `sac_continuous_action.py`.

use podracer::algos::{
    ddpg_continuous_action as ddpg, sac_continuous_action as sac, td3_continuous_action as td3,
};
use podracer::rl::Algorithm;
use podracer::rl::replay::Transition;
use podracer::rl::spaces::Bounds;
use podracer::tree::Tree;
use podracer::{Array, Key, Tensor, jit};

use super::{Trajectory, UPDATES, adam_state, flags, floats, scaled, start};

const OBS: usize = 3;
const ACT: usize = 2;
const BATCH: usize = 16;

fn transitions(update: usize, scale: f32) -> Transition<Array> {
    Transition {
        obs: floats(&format!("obs {update}"), [BATCH, OBS]),
        action: scaled(&format!("actions {update}"), scale, [BATCH, ACT]),
        reward: scaled(&format!("rewards {update}"), 5.0, [BATCH]),
        next_obs: floats(&format!("next_obs {update}"), [BATCH, OBS]),
        terminated: flags(&format!("terminated {update}"), 4, [BATCH]),
    }
}

fn key(seed: usize) -> Key<Array> {
    Key::new(seed as u64)
}

#[test]
fn ddpg_follows_cleanrl() {
    let args = ddpg::Args::from_flags(["--tau=0.5"]).unwrap();
    let bounds = Bounds::new(&[-1.0, -1.0], &[1.0, 1.0]).unwrap();
    let step = jit(|(learner, batch): (ddpg::Learner<Tensor>, Transition<Tensor>)| {
        let (learner, _) = ddpg::critic_step(learner, &batch, &bounds, &args);
        ddpg::actor_step(learner, &batch, &bounds, &args).0
    });
    let init = |key: Key<Tensor>| ddpg::Networks::init(key, OBS, ACT);
    let (networks, targets) = (start("", init), start("target ", init));
    let optimizers = ddpg::Optimizers {
        actor: adam_state(&networks.actor),
        critic: adam_state(&networks.critic),
    };
    let mut learner = ddpg::Learner { networks, targets, optimizers };
    let recorded = ["ddpg", "ddpg_targets"].map(Trajectory::of);
    for update in 0..UPDATES {
        learner = step.call((learner, transitions(update, 1.0))).unwrap();
        recorded[0].check(update, &learner.networks);
        recorded[1].check(update, &learner.targets);
    }
}

#[test]
fn td3_follows_cleanrl() {
    let args = td3::Args::from_flags(["--tau=0.5"]).unwrap();
    let bounds = Bounds::new(&[-1.0, -2.0], &[1.0, 3.0]).unwrap();
    type Input<T> = (td3::Learner<T>, Transition<T>, Key<T>);
    let critic = jit(|(learner, batch, key): Input<Tensor>| {
        // CleanRL splits a key in two and draws with the second.
        td3::critic_step(learner, &batch, key.split().1, &bounds, &args).0
    });
    let actor = jit(|(learner, batch): (td3::Learner<Tensor>, Transition<Tensor>)| {
        td3::actor_step(learner, &batch, &bounds, &args).0
    });
    let init = |key: Key<Tensor>| td3::Networks::init(key, OBS, ACT);
    let (networks, targets) = (start("", init), start("target ", init));
    let optimizers = td3::Optimizers {
        actor: adam_state(&networks.actor),
        critics: adam_state(&networks.critics),
    };
    let mut learner = td3::Learner { networks, targets, optimizers };
    let recorded = ["td3", "td3_targets"].map(Trajectory::of);
    for update in 0..UPDATES {
        let batch = transitions(update, 1.0);
        learner = critic.call((learner, batch.clone(), key(update))).unwrap();
        if update.is_multiple_of(args.policy_frequency) {
            learner = actor.call((learner, batch)).unwrap();
        }
        recorded[0].check(update, &learner.networks);
        recorded[1].check(update, &learner.targets);
    }
}

/// The parameters that SAC's gradient steps change.
#[derive(Tree)]
struct Soft<T> {
    actor: podracer::nn::Mlp<T>,
    critics: [podracer::nn::Mlp<T>; 2],
    log_alpha: T,
}

#[test]
fn sac_follows_cleanrl() {
    let flags = ["--tau=0.5", "--q-lr=0.0001", "--policy-lr=0.0001"];
    let args = sac::Args::from_flags(flags).unwrap();
    let bounds = Bounds::new(&[-1.0, -2.0], &[1.0, 3.0]).unwrap();
    type Input<T> = (sac::Learner<T>, Transition<T>, Key<T>);
    let critic = jit(|(learner, batch, key): Input<Tensor>| {
        sac::critic_step(learner, &batch, key.split().0, &bounds, &args).0
    });
    let actor = jit(|(mut learner, batch, key): Input<Tensor>| {
        for key in key.split().1.split_vec(args.policy_frequency) {
            learner = sac::actor_step(learner, batch.obs, key, &bounds, &args).0;
        }
        learner
    });
    let init = |key: Key<Tensor>| sac::Networks::init(key, OBS, ACT);
    let networks = start("", init);
    let targets = start("target ", |key| init(key).critics);
    let temperature = sac::Temperature { log_alpha: Array::from(0.0f32) };
    let optimizers = sac::Optimizers {
        actor: adam_state(&networks.actor),
        critics: adam_state(&networks.critics),
        log_alpha: adam_state(&temperature),
    };
    let mut learner = sac::Learner { networks, targets, temperature, optimizers };
    let recorded = ["sac", "sac_targets"].map(Trajectory::of);
    for update in 0..UPDATES {
        let batch = transitions(update, 1.0);
        learner = critic.call((learner, batch.clone(), key(update))).unwrap();
        if update.is_multiple_of(args.policy_frequency) {
            learner = actor.call((learner, batch, key(update))).unwrap();
        }
        let sac::Networks { actor, critics } = learner.networks.clone();
        let log_alpha = learner.temperature.log_alpha.clone();
        recorded[0].check(update, &Soft { actor, critics, log_alpha });
        recorded[1].check(update, &learner.targets);
    }
}
