//! DDPG, TD3 and SAC: `tests/fixtures/algos/cleanrl/continuous.py` recorded CleanRL's
//! `ddpg_continuous_action_jax.py`, `td3_continuous_action_jax.py` and `sac_continuous_action.py`, and
//! `fast_td3.py`, `fast_sac.py` and `simba_sac.py` beside it the authors' FastTD3, FastSAC and SimBa.

use podracer::algos::{
    ddpg_continuous_action as ddpg, fast_sac, fast_td3, sac_continuous_action as sac, sebulba_sac,
    simba_sac, td3_continuous_action as td3,
};
use podracer::nn::Mlp;
use podracer::nn::normalize::RunningMeanStd;
use podracer::optim::Adam;
use podracer::random::normal;
use podracer::rl::Algorithm;
use podracer::rl::buffers::replay::Transition;
use podracer::rl::environments::bounds::Bounds;
use podracer::trace::ops::constant;
use podracer::tree::{self, Tree};
use podracer::{Array, DType, Key, Tensor, jit};

use super::cleanba::one_learner;
use super::{Trajectory, UPDATES, adam_state, flags, floats, integers, scaled, start};

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

/// Discounts of transitions over one to three steps.
fn discounts(update: usize, gamma: f64) -> Array {
    let steps = integers(&format!("steps {update}"), 3, BATCH);
    let discounts: Vec<f32> = steps.iter().map(|steps| gamma.powi(steps + 1) as f32).collect();
    Array::new([BATCH], &discounts).unwrap()
}

fn key(seed: usize) -> Key<Array> {
    Key::new(seed as u64)
}

/// DDPG's parameters under the names of the fixtures.
#[derive(Tree)]
struct DdpgNetworks<T> {
    actor: Mlp<T>,
    critic: Mlp<T>,
}

#[test]
fn ddpg_follows_cleanrl() {
    let args = ddpg::Args::from_flags(["--tau=0.5"]).unwrap();
    let bounds = Bounds::new(&[-1.0, -1.0], &[1.0, 1.0]).unwrap();
    let step = jit(|(train_state, batch): (ddpg::TrainState<Tensor>, Transition<Tensor>)| {
        let (train_state, _) = ddpg::update_critic(train_state, &batch, &args);
        ddpg::update_actor(train_state, &batch, &args).0
    });
    let agent = |prefix| {
        let DdpgNetworks { actor, critic } = start(prefix, |key| {
            let ddpg::Agent { actor, qf } = ddpg::Agent::init(key, OBS, &bounds);
            DdpgNetworks { actor: actor.layers, critic: qf.layers }
        });
        let actor = ddpg::Actor { layers: actor, bounds: bounds.clone() };
        ddpg::Agent { actor, qf: ddpg::QNetwork { layers: critic } }
    };
    let (agent, target) = (agent(""), agent("target "));
    let opt_state = ddpg::OptState { actor: adam_state(&agent.actor), qf: adam_state(&agent.qf) };
    let mut train_state = ddpg::TrainState { agent, target, opt_state };
    let recorded = ["ddpg", "ddpg_targets"].map(Trajectory::of);
    for update in 0..UPDATES {
        train_state = step.call((train_state, transitions(update, 1.0))).unwrap();
        for (recorded, agent) in recorded.iter().zip([&train_state.agent, &train_state.target]) {
            let ddpg::Agent { actor, qf } = agent.clone();
            recorded.check(update, &DdpgNetworks { actor: actor.layers, critic: qf.layers });
        }
    }
}

/// TD3's parameters under the names of the fixtures.
#[derive(Tree)]
struct Td3Networks<T> {
    actor: Mlp<T>,
    critics: [Mlp<T>; 2],
}

#[test]
fn td3_follows_cleanrl() {
    let args = td3::Args::from_flags(["--tau=0.5"]).unwrap();
    let bounds = Bounds::new(&[-1.0, -2.0], &[1.0, 3.0]).unwrap();
    type Input<T> = (td3::TrainState<T>, Transition<T>, Key<T>);
    let critic = jit(|(train_state, batch, key): Input<Tensor>| {
        // CleanRL splits a key in two and samples with the second.
        td3::update_critic(train_state, &batch, key.split().1, &args).0
    });
    let actor = jit(|(train_state, batch): (td3::TrainState<Tensor>, Transition<Tensor>)| {
        td3::update_actor(train_state, &batch, &args).0
    });
    let agent = |prefix| {
        let Td3Networks { actor, critics } = start(prefix, |key| {
            let td3::Agent { actor, qf } = td3::Agent::init(key, OBS, &bounds);
            Td3Networks { actor: actor.layers, critics: qf.map(|qf| qf.layers) }
        });
        let actor = td3::Actor { layers: actor, bounds: bounds.clone() };
        td3::Agent { actor, qf: critics.map(|layers| td3::QNetwork { layers }) }
    };
    let (agent, target) = (agent(""), agent("target "));
    let opt_state = td3::OptState { actor: adam_state(&agent.actor), qf: adam_state(&agent.qf) };
    let mut train_state = td3::TrainState { agent, target, opt_state };
    let recorded = ["td3", "td3_targets"].map(Trajectory::of);
    for update in 0..UPDATES {
        let batch = transitions(update, 1.0);
        train_state = critic.call((train_state, batch.clone(), key(update))).unwrap();
        if update.is_multiple_of(args.policy_frequency) {
            train_state = actor.call((train_state, batch)).unwrap();
        }
        for (recorded, agent) in recorded.iter().zip([&train_state.agent, &train_state.target]) {
            let td3::Agent { actor, qf } = agent.clone();
            let critics = qf.map(|qf| qf.layers);
            recorded.check(update, &Td3Networks { actor: actor.layers, critics });
        }
    }
}

/// SAC's parameters under the names of the fixtures.
#[derive(Tree)]
struct SacNetworks<T> {
    actor: Mlp<T>,
    critics: [Mlp<T>; 2],
    log_alpha: T,
}

#[test]
fn sac_follows_cleanrl() {
    let flags = ["--tau=0.5", "--q-lr=0.0001", "--policy-lr=0.0001"];
    let args = sac::Args::from_flags(flags).unwrap();
    let bounds = Bounds::new(&[-1.0, -2.0], &[1.0, 3.0]).unwrap();
    type Input<T> = (sac::TrainState<T>, Transition<T>, Key<T>);
    let critic = jit(|(train_state, batch, key): Input<Tensor>| {
        sac::update_critic(train_state, &batch, key.split().0, &args).0
    });
    let actor = jit(|(mut train_state, batch, key): Input<Tensor>| {
        for key in key.split().1.split_vec(args.policy_frequency) {
            let (actor_key, alpha_key) = key.split();
            train_state = sac::update_actor(train_state, &batch, actor_key, &args).0;
            train_state = sac::update_alpha(train_state, &batch, alpha_key, &args).0;
        }
        train_state
    });
    let target = jit(|train_state: sac::TrainState<Tensor>| sac::update_target(train_state, &args));
    let init = |key: Key<Tensor>| {
        let sac::Agent { actor, qf } = sac::Agent::init(key, OBS, &bounds);
        (actor.layers, qf.map(|qf| qf.layers))
    };
    let networks = start("", |key| {
        let (actor, critics) = init(key);
        Td3Networks { actor, critics }
    });
    let targets = start("target ", |key| init(key).1);
    let q_networks = |critics: [Mlp<Array>; 2]| critics.map(|layers| sac::QNetwork { layers });
    let agent = sac::Agent {
        actor: sac::Actor { layers: networks.actor, bounds: bounds.clone() },
        qf: q_networks(networks.critics),
    };
    let log_alpha = Array::from(0.0f32);
    let opt_state = sac::OptState {
        actor: adam_state(&agent.actor),
        qf: adam_state(&agent.qf),
        log_alpha: adam_state(&log_alpha),
    };
    let mut train_state =
        sac::TrainState { agent, target: q_networks(targets), log_alpha, opt_state };
    let recorded = ["sac", "sac_targets"].map(Trajectory::of);
    for update in 0..UPDATES {
        let batch = transitions(update, 1.0);
        train_state = critic.call((train_state, batch.clone(), key(update))).unwrap();
        if update.is_multiple_of(args.policy_frequency) {
            train_state = actor.call((train_state, batch, key(update))).unwrap();
        }
        train_state = target.call(train_state).unwrap();
        let sac::TrainState { agent: sac::Agent { actor, qf }, target, log_alpha, .. } =
            train_state.clone();
        let critics = qf.map(|qf| qf.layers);
        recorded[0].check(update, &SacNetworks { actor: actor.layers, critics, log_alpha });
        recorded[1].check(update, &target.map(|qf| qf.layers));
    }
}

/// The updates of `sebulba_sac` are those of SAC, which follow CleanRL.
#[test]
fn sebulba_sac_updates_as_sac() {
    let bounds = Bounds::new(&[-1.0, -2.0], &[1.0, 3.0]).unwrap();
    macro_rules! init {
        ($algorithm:ident) => {
            jit(|key: Key<Tensor>| {
                let agent = $algorithm::Agent::init(key, OBS, &bounds);
                let (adam, log_alpha) = (Adam::default(), constant(0.0f32));
                let opt_state = $algorithm::OptState {
                    actor: adam.init(&agent.actor),
                    qf: adam.init(&agent.qf),
                    log_alpha: adam.init(&log_alpha),
                };
                let target = agent.qf.clone();
                $algorithm::TrainState { agent, target, log_alpha, opt_state }
            })
        };
    }
    let args = sac::Args::from_flags(["--tau=0.5"]).unwrap();
    type Input<T> = (sac::TrainState<T>, Transition<T>, Key<T>);
    let update = jit(|(state, batch, key): Input<Tensor>| {
        let [critic_key, actor_key, alpha_key] = key.split_n();
        let state = sac::update_critic(state, &batch, critic_key, &args).0;
        let state = sac::update_actor(state, &batch, actor_key, &args).0;
        let state = sac::update_alpha(state, &batch, alpha_key, &args).0;
        sac::update_target(state, &args)
    });
    let own_args = sebulba_sac::Args::from_flags(["--tau=0.5", "--batch-size=16"]).unwrap();
    type OwnInput<T> = (sebulba_sac::TrainState<T>, Transition<T>, Key<T>);
    let own_update = jit(|(state, transitions, key): OwnInput<Tensor>| {
        let noise = key.split_n().map(|key| normal(key, [BATCH, ACT], DType::F32));
        one_learner((state, transitions, noise), |reduce, (state, transitions, noise)| {
            let ([noise, actor_noise, alpha_noise], how) = (noise, (reduce, &own_args));
            let samples = sebulba_sac::Samples { transitions, noise };
            let state = sebulba_sac::update_critic(state, &samples, how).0;
            let obs = transitions.obs;
            let state = sebulba_sac::update_actor(state, (obs, actor_noise), how).0;
            let state = sebulba_sac::update_alpha(state, (obs, alpha_noise), how).0;
            sebulba_sac::update_target(state, &own_args)
        })
    });
    let mut state = init!(sac).call(key(1)).unwrap();
    let mut own_state = init!(sebulba_sac).call(key(1)).unwrap();
    for k in 0..5 {
        state = update.call((state, transitions(k, 1.0), key(k))).unwrap();
        own_state = own_update.call((own_state, transitions(k, 1.0), key(k))).unwrap();
    }
    let (leaves, own_leaves) = (tree::leaves(&state), tree::leaves(&own_state));
    assert_eq!(leaves.len(), own_leaves.len());
    for (x, own) in leaves.iter().zip(&own_leaves).filter(|(x, _)| x.dtype() == DType::F32) {
        let pairs = x.to_vec::<f32>().unwrap().into_iter().zip(own.to_vec::<f32>().unwrap());
        let far = pairs.fold(0.0f32, |far, (x, own)| far.max((x - own).abs()));
        assert!(far < 1e-5, "{far:e}");
    }
}

#[test]
fn fast_td3_follows_its_authors() {
    let flags = [
        "--tau=0.5",
        "--critic-learning-rate=1e-4",
        "--actor-learning-rate=1e-4",
        "--critic-hidden-dim=32",
        "--actor-hidden-dim=32",
        "--num-atoms=21",
        "--v-min=-10",
        "--v-max=10",
        "--policy-noise=0.2",
        "--noise-clip=0.1",
        "--num-steps=3",
    ];
    let args = fast_td3::Args::from_flags(flags).unwrap();
    let bounds = Bounds::new(&[-1.0, -2.0], &[1.0, 3.0]).unwrap();
    type Input<T> = (fast_td3::TrainState<T>, Transition<T>, T, T);
    let critic = jit(|(train_state, batch, discount, noise): Input<Tensor>| {
        fast_td3::update_critic(train_state, &batch, discount, noise, &args).0
    });
    let actor = jit(|(train_state, batch): (fast_td3::TrainState<Tensor>, Transition<Tensor>)| {
        fast_td3::update_actor(train_state, &batch, &args).0
    });
    let target = jit(|train_state: fast_td3::TrainState<Tensor>| {
        fast_td3::update_target(train_state, &args)
    });
    let init = |key: Key<Tensor>| {
        let fast_td3::Agent { actor, qf } = fast_td3::Agent::init(key, OBS, &bounds, &args);
        (actor.layers, qf.map(|qf| qf.layers))
    };
    let networks = start("", |key| {
        let (actor, critics) = init(key);
        Td3Networks { actor, critics }
    });
    let q_networks = |critics: [Mlp<Array>; 2]| critics.map(|layers| fast_td3::QNetwork { layers });
    let agent = fast_td3::Agent {
        actor: fast_td3::Actor { layers: networks.actor, bounds: bounds.clone() },
        qf: q_networks(networks.critics),
    };
    let opt_state =
        fast_td3::OptState { actor: adam_state(&agent.actor), qf: adam_state(&agent.qf) };
    let obs_stats = jit(|()| RunningMeanStd::new([OBS], podracer::DType::F32)).call(()).unwrap();
    let targets = q_networks(start("target ", |key| init(key).1));
    let mut train_state = fast_td3::TrainState { agent, target: targets, opt_state, obs_stats };
    let [online, of_targets] = ["fast_td3", "fast_td3_targets"].map(Trajectory::of);
    for update in 0..UPDATES {
        let batch = transitions(update, 1.0);
        let discount = discounts(update, args.gamma);
        let noise = floats(&format!("noise {update}"), [BATCH, ACT]);
        train_state = critic.call((train_state, batch.clone(), discount, noise)).unwrap();
        if update % args.policy_frequency == 1 {
            train_state = actor.call((train_state, batch)).unwrap();
        }
        train_state = target.call(train_state).unwrap();
        let fast_td3::Agent { actor, qf } = train_state.agent.clone();
        let critics = qf.map(|qf| qf.layers);
        online.check(update, &Td3Networks { actor: actor.layers, critics });
        of_targets.check(update, &train_state.target.clone().map(|qf| qf.layers));
    }
}

/// FastSAC's parameters under the names of the fixtures.
#[derive(Tree)]
struct FastSacNetworks<T> {
    actor: fast_sac::Network<T>,
    critics: [fast_sac::Network<T>; 2],
    log_alpha: T,
}

#[test]
fn fast_sac_follows_its_authors() {
    let flags = [
        "--tau=0.5",
        "--critic-learning-rate=1e-4",
        "--actor-learning-rate=1e-4",
        "--alpha-learning-rate=1e-4",
        "--critic-hidden-dim=32",
        "--actor-hidden-dim=32",
        "--num-atoms=21",
        "--v-min=-10",
        "--v-max=10",
        "--alpha-init=0.1",
        "--target-entropy-ratio=0.5",
        "--policy-frequency=2",
        "--num-steps=3",
    ];
    let args = fast_sac::Args::from_flags(flags).unwrap();
    let bounds = Bounds::new(&[-1.0, -2.0], &[1.0, 3.0]).unwrap();
    type Input<T> = (fast_sac::TrainState<T>, Transition<T>, T);
    let critic = jit(|((train_state, batch, noise), discount): (Input<Tensor>, Tensor)| {
        let (train_state, _, log_prob) =
            fast_sac::update_critic(train_state, &batch, discount, noise, &args);
        fast_sac::update_alpha(train_state, log_prob, &args).0
    });
    let actor = jit(|(train_state, batch, noise): Input<Tensor>| {
        fast_sac::update_actor(train_state, &batch, noise, &args).0
    });
    let target = jit(|train_state: fast_sac::TrainState<Tensor>| {
        fast_sac::update_target(train_state, &args)
    });
    let init = |key: Key<Tensor>| {
        let fast_sac::Agent { actor, qf } = fast_sac::Agent::init(key, OBS, &bounds, &args);
        (actor.layers, qf.map(|qf| qf.layers))
    };
    let networks = start("", |key| {
        let (actor, critics) = init(key);
        FastSacNetworks { actor, critics, log_alpha: constant(0.0f32) }
    });
    let q_networks = |critics: [fast_sac::Network<Array>; 2]| {
        critics.map(|layers| fast_sac::QNetwork { layers })
    };
    let agent = fast_sac::Agent {
        actor: fast_sac::Actor { layers: networks.actor, bounds: bounds.clone() },
        qf: q_networks(networks.critics),
    };
    let log_alpha = Array::from(args.alpha_init.ln() as f32);
    let opt_state = fast_sac::OptState {
        actor: adam_state(&agent.actor),
        qf: adam_state(&agent.qf),
        log_alpha: adam_state(&log_alpha),
    };
    let obs_stats = jit(|()| RunningMeanStd::new([OBS], podracer::DType::F32)).call(()).unwrap();
    let target_networks = q_networks(start("target ", |key| init(key).1));
    let mut train_state =
        fast_sac::TrainState { agent, target: target_networks, log_alpha, opt_state, obs_stats };
    let [online, of_targets] = ["fast_sac", "fast_sac_targets"].map(Trajectory::of);
    for update in 0..UPDATES {
        let batch = transitions(update, 1.0);
        let noise = |name: &str| floats(&format!("{name} {update}"), [BATCH, ACT]);
        let discount = discounts(update, args.gamma);
        let input = (train_state, batch.clone(), noise("noise"));
        train_state = critic.call((input, discount)).unwrap();
        if update % args.policy_frequency == 1 {
            train_state = actor.call((train_state, batch, noise("actor noise"))).unwrap();
        }
        train_state = target.call(train_state).unwrap();
        let fast_sac::TrainState {
            agent: fast_sac::Agent { actor, qf }, target, log_alpha, ..
        } = train_state.clone();
        let critics = qf.map(|qf| qf.layers);
        online.check(update, &FastSacNetworks { actor: actor.layers, critics, log_alpha });
        of_targets.check(update, &target.map(|qf| qf.layers));
    }
}

/// SimBa's parameters under the names of the fixtures.
#[derive(Tree)]
struct SimbaNetworks<T> {
    actor: simba_sac::Network<T>,
    critics: Vec<simba_sac::Network<T>>,
    log_alpha: T,
}

#[test]
fn simba_sac_follows_its_authors() {
    let flags = ["--tau=0.5", "--alpha=0.1", "--critic-hidden-dim=32", "--actor-hidden-dim=16"];
    let args = simba_sac::Args::from_flags(flags).unwrap();
    let bounds = Bounds::new(&[-1.0, -2.0], &[1.0, 3.0]).unwrap();
    type Input<T> = (simba_sac::TrainState<T>, Transition<T>, Key<T>);
    let step = jit(|(train_state, batch, key): Input<Tensor>| {
        let (actor_key, critic_key) = key.split();
        let (train_state, _, log_prob) =
            simba_sac::update_actor(train_state, &batch, actor_key, &args);
        let (train_state, _) = simba_sac::update_alpha(train_state, log_prob, &args);
        let (train_state, _) = simba_sac::update_critic(train_state, &batch, critic_key, &args);
        simba_sac::update_target(train_state, &args)
    });
    let layers = |qf: Vec<simba_sac::QNetwork<_>>| qf.into_iter().map(|qf| qf.layers).collect();
    let networks = start("", |key| {
        let simba_sac::Agent { actor, qf } = simba_sac::Agent::init(key, OBS, &bounds, &args);
        SimbaNetworks { actor: actor.layers, critics: layers(qf), log_alpha: constant(0.0f32) }
    });
    let targets: Vec<_> = start("target ", |key| -> Vec<simba_sac::Network<Tensor>> {
        layers(simba_sac::Agent::init(key, OBS, &bounds, &args).qf)
    });
    let q_networks = |critics: Vec<simba_sac::Network<Array>>| -> Vec<_> {
        critics.into_iter().map(|layers| simba_sac::QNetwork { layers }).collect()
    };
    let agent = simba_sac::Agent {
        actor: simba_sac::Actor { layers: networks.actor, bounds: bounds.clone() },
        qf: q_networks(networks.critics),
    };
    let log_alpha = Array::from(args.alpha.ln() as f32);
    let opt_state = simba_sac::OptState {
        actor: adam_state(&agent.actor),
        qf: adam_state(&agent.qf),
        log_alpha: adam_state(&log_alpha),
    };
    let obs_stats = jit(|()| RunningMeanStd::new([OBS], podracer::DType::F32)).call(()).unwrap();
    let target = q_networks(targets);
    let mut train_state = simba_sac::TrainState { agent, target, log_alpha, opt_state, obs_stats };
    let recorded = ["simba_sac", "simba_sac_targets"].map(Trajectory::of);
    for update in 0..UPDATES {
        train_state = step.call((train_state, transitions(update, 1.0), key(update))).unwrap();
        let simba_sac::TrainState { agent, target, log_alpha, .. } = train_state.clone();
        let simba_sac::Agent { actor, qf } = agent;
        let critics = qf.into_iter().map(|qf| qf.layers).collect();
        recorded[0].check(update, &SimbaNetworks { actor: actor.layers, critics, log_alpha });
        let targets: Vec<_> = target.into_iter().map(|qf| qf.layers).collect();
        recorded[1].check(update, &targets);
    }
}
