//! Algorithms for continuous actions: losses compared with JAX, short runs, and invalid settings.

use std::collections::BTreeMap;
use std::path::Path;

use podracer::algos::{
    a2c_continuous_action as a2c, crossq_continuous_action as crossq,
    ddpg_continuous_action as ddpg, fast_sac, fast_td3, ppo_continuous_action as ppo,
    ppo_continuous_action_lstm as ppo_lstm, rpo_continuous_action as rpo,
    sac_continuous_action as sac, simba_sac, td3_continuous_action as td3,
};
use podracer::nn::{Activation, Dense, LstmCell, Mlp, RecurrentCell, RecurrentState};
use podracer::optim::RmsProp;
use podracer::rl::Algorithm;
use podracer::rl::buffers::replay::{Transition, concatenate_steps};
use podracer::rl::environments::bounds::Bounds;
use podracer::trace::ops::constant;
use podracer::{Array, DType, Key, Tensor, Tree, interpret, random, tree, value_and_grad};

use super::models::model;

// ------------------------------------------------------------------------------------- fixtures

const OBS: usize = 3;
const ACT: usize = 2;
const HIDDEN: usize = 5;
const BATCH: usize = 4;
const GAMMA: f64 = 0.9;

/// `sin(0.7 i + phase)` in f64, rounded to f32.
fn wave<const R: usize>(shape: [usize; R], phase: f64) -> Array {
    let n = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..n).map(|i| (0.7 * i as f64 + phase).sin() as f32).collect();
    Array::new(shape, &values).unwrap()
}

fn mlp(sizes: [usize; 3], phase: f64, activation: Activation) -> Mlp<Array> {
    let layer = |i: usize| Dense {
        w: wave([sizes[i], sizes[i + 1]], phase + i as f64),
        b: Some(wave([sizes[i + 1]], phase + i as f64 + 0.5)),
    };
    Mlp { layers: vec![layer(0), layer(1)], activation }
}

fn actor(phase: f64, heads: usize) -> Mlp<Array> {
    mlp([OBS, HIDDEN, heads * ACT], phase, Activation::Relu)
}

fn critic(phase: f64) -> Mlp<Array> {
    mlp([OBS + ACT, HIDDEN, 1], phase, Activation::Relu)
}

fn bounds() -> Bounds {
    Bounds::new(&[-1.0, -2.0], &[1.0, 3.0]).unwrap()
}

fn numbers<M: Tree<Array>>(tree: &M) -> Vec<f32> {
    tree::leaves(tree).iter().flat_map(|leaf| leaf.to_vec::<f32>().unwrap()).collect()
}

fn close<M: Tree<Array>>(name: &str, ours: &M) {
    let fixture = include_str!("../fixtures/algos/continuous.json");
    let cases: BTreeMap<String, Vec<f32>> = serde_json::from_str(fixture).unwrap();
    let (ours, theirs) = (numbers(ours), &cases[name]);
    assert_eq!(ours.len(), theirs.len(), "{name}");
    for (a, b) in ours.iter().zip(theirs) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{name}: {ours:?} {theirs:?}");
    }
}

fn transitions() -> Transition<Array> {
    Transition {
        obs: wave([BATCH, OBS], 0.1),
        action: wave([BATCH, ACT], 0.2),
        reward: wave([BATCH], 0.3),
        next_obs: wave([BATCH, OBS], 0.4),
        terminated: Array::from([0.0f32, 1.0, 0.0, 0.0]),
    }
}

#[test]
fn losses_of_ddpg_are_those_of_the_formulas() {
    let args = ddpg::Args::from_flags(["--gamma", "0.9"]).unwrap();
    let agent = |pi, q| ddpg::Agent {
        actor: ddpg::Actor { layers: actor(pi, 1), bounds: bounds() },
        qf: ddpg::QNetwork { layers: critic(q) },
    };
    type Input<T> = (ddpg::Agent<T>, ddpg::Agent<T>, Transition<T>);
    let run = interpret(|(agent, target, batch): Input<Tensor>| {
        let td_target = ddpg::td_target(&target, &batch, &args);
        let loss = |actor| ddpg::actor_loss(&actor, &agent.qf, batch.obs);
        let critic = ddpg::critic_loss(&agent.qf, &batch, td_target);
        (td_target, critic, value_and_grad(loss)(agent.actor.clone()))
    });
    let (td_target, (critic_loss, metrics), (actor, grads)) =
        run.call((agent(1.0, 3.0), agent(2.0, 5.0), transitions())).unwrap();
    close("ddpg_td_target", &td_target);
    assert_eq!(numbers(&critic_loss), numbers(&metrics.qf1_loss));
    close("ddpg_critic", &metrics);
    close("ddpg_actor", &actor);
    close("ddpg_actor_grads", &grads);
}

#[test]
fn losses_of_td3_are_those_of_the_formulas() {
    let args = td3::Args::from_flags(["--gamma", "0.9", "--noise-clip", "0.15"]).unwrap();
    let agent = |pi, q1, q2| td3::Agent {
        actor: td3::Actor { layers: actor(pi, 1), bounds: bounds() },
        qf: [q1, q2].map(|phase| td3::QNetwork { layers: critic(phase) }),
    };
    type Input<T> = (td3::Agent<T>, td3::Agent<T>, Transition<T>);
    let run = interpret(|(agent, target, batch): Input<Tensor>| {
        let td_target = td3::td_target(&target, &batch, Key::constant(7), &args);
        let actor = td3::actor_loss(&agent.actor, &agent.qf[0], batch.obs);
        (td_target, td3::critic_loss(&agent.qf, &batch, td_target), actor)
    });
    let (td_target, critics, actor) =
        run.call((agent(1.0, 3.0, 4.0), agent(2.0, 5.0, 6.0), transitions())).unwrap();
    close("td3_td_target", &td_target);
    close("td3_critic", &critics);
    close("td3_actor", &actor);
}

#[test]
fn losses_of_sac_are_those_of_the_formulas() {
    let args = sac::Args::from_flags(["--gamma", "0.9"]).unwrap();
    type Critics<T> = [sac::QNetwork<T>; 2];
    type Input<T> = (sac::Agent<T>, Critics<T>, Transition<T>, T);
    let run = interpret(|(agent, target, batch, log_alpha): Input<Tensor>| {
        let (sac::Agent { actor, qf }, alpha) = (&agent, log_alpha.exp());
        let key = Key::constant(8);
        let td_target = sac::td_target(actor, &target, alpha, &batch, key, &args);
        let sampled = actor.get_action(batch.next_obs, Key::constant(8));
        let noise = random::normal(Key::constant(9), [BATCH, ACT], DType::F32);
        let loss = |actor| sac::actor_loss(&actor, qf, alpha, batch.obs, noise);
        let alpha_loss = |log_alpha| sac::alpha_loss(log_alpha, sampled.1, -(ACT as f64));
        let critics = sac::critic_loss(qf, &batch, td_target);
        let tuned = value_and_grad(alpha_loss)(log_alpha);
        ((sampled, td_target), critics, value_and_grad(loss)(actor.clone()), tuned)
    });
    let critics = |phases: [f64; 2]| phases.map(|phase| sac::QNetwork { layers: critic(phase) });
    let actor = sac::Actor { layers: actor(7.0, 2), bounds: bounds() };
    let agent = sac::Agent { actor, qf: critics([3.0, 4.0]) };
    let input = (agent, critics([5.0, 6.0]), transitions(), Array::from(0.3f32.ln()));
    let ((sampled, td_target), critics, (actor, grads), tuned) = run.call(input).unwrap();
    close("sac_action_and_log_prob", &sampled);
    close("sac_td_target", &td_target);
    close("sac_critic", &critics);
    close("sac_actor", &actor);
    close("sac_actor_grads", &grads);
    close("sac_alpha", &tuned);
}

/// The same rollout, loss and gradient for PPO and RPO.
macro_rules! proximal {
    ($algorithm:ident, $name:literal, $loss:expr) => {{
        use $algorithm::{Agent, Args, Rollout, make_samples};
        let args = Args::from_flags(["--ent-coef", "0.1", "--gamma", "0.9", "--gae-lambda", "0.8"]);
        let args = args.unwrap();
        assert_eq!(args.gamma, GAMMA);
        let dones = [0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
        let rollout = Rollout {
            obs: wave([4, 2, OBS], 0.8),
            actions: wave([4, 2, ACT], 0.9),
            rewards: wave([4, 2], 0.5),
            dones: Array::new([4, 2], &dones).unwrap(),
            next_obs: wave([2, OBS], 0.0),
        };
        let agent = Agent {
            actor: mlp([OBS, HIDDEN, ACT], 1.0, Activation::Tanh),
            log_std: wave([ACT], 0.3),
            critic: mlp([OBS, HIDDEN, 1], 2.0, Activation::Tanh),
        };
        type Input<T> = (Agent<T>, Rollout<T>, T, T, T);
        let run = interpret(|(agent, rollout, values, next, logprobs): Input<Tensor>| {
            let logprobs = logprobs.reshape([4, 2]) - 2.0;
            let (batch, _) = make_samples(rollout, logprobs, values, next, &args);
            let loss = |agent: Agent<Tensor>| $loss(&agent, &batch, &args);
            let ((_, metrics), grads) = value_and_grad(loss)(agent.clone());
            ((batch.advantages, batch.returns), metrics, grads)
        });
        let (values, next) = (wave([4, 2], 0.6), wave([2], 0.7));
        let (gae, metrics, grads) =
            run.call((agent, rollout, values, next, wave([8], 1.1))).unwrap();
        close("gae", &gae);
        close($name, &metrics);
        close(concat!($name, "_grads"), &grads);
    }};
}

#[test]
fn losses_of_ppo_and_rpo_are_those_of_the_formulas() {
    proximal!(ppo, "ppo", ppo::ppo_loss);
    let noise = || random::uniform(Key::constant(10), [8, ACT], DType::F32, -0.5, 0.5);
    proximal!(rpo, "rpo", |agent: &_, batch: &_, args: &_| {
        rpo::rpo_loss(agent, batch, noise(), args)
    });
}

#[test]
fn the_loss_of_ppo_with_an_lstm_is_that_of_the_formulas() {
    let args =
        ppo_lstm::Args::from_flags(["--ent-coef=0.1", "--gamma=0.9", "--gae-lambda=0.8"]).unwrap();
    const UNITS: usize = 4;
    let dense = |sizes: [usize; 2], phase: f64| Dense {
        w: wave(sizes, phase),
        b: Some(wave([sizes[1]], phase + if sizes[0] == OBS { 0.5 } else { 0.1 })),
    };
    let agent = ppo_lstm::Agent {
        trunk: dense([OBS, HIDDEN], 1.0),
        lstm: RecurrentCell::Lstm(LstmCell {
            w_i: wave([HIDDEN, 4 * UNITS], 3.0),
            w_h: wave([UNITS, 4 * UNITS], 3.5),
            b: wave([4 * UNITS], 4.0),
        }),
        actor: dense([UNITS, ACT], 1.7),
        log_std: wave([ACT], 0.3),
        critic: dense([UNITS, 1], 2.3),
    };
    let dones = [0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
    let episode_starts = [1.0f32, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0];
    let rollout = ppo_lstm::Rollout {
        initial_lstm_state: RecurrentState::Two((wave([2, UNITS], 2.0), wave([2, UNITS], 2.5))),
        obs: wave([4, 2, OBS], 0.8),
        episode_starts: Array::new([4, 2], &episode_starts).unwrap(),
        actions: wave([4, 2, ACT], 0.9),
        logprobs: wave([4, 2], 1.1),
        values: wave([4, 2], 0.6),
        rewards: wave([4, 2], 0.5),
        dones: Array::new([4, 2], &dones).unwrap(),
        next_value: wave([2], 0.7),
    };
    let run =
        interpret(|(agent, rollout): (ppo_lstm::Agent<Tensor>, ppo_lstm::Rollout<Tensor>)| {
            let rollout = ppo_lstm::Rollout { logprobs: rollout.logprobs - 2.0, ..rollout };
            let (samples, _) = ppo_lstm::make_samples(rollout, &args);
            let loss = |agent: ppo_lstm::Agent<Tensor>| ppo_lstm::ppo_loss(&agent, &samples, &args);
            let ((_, metrics), grads) = value_and_grad(loss)(agent.clone());
            ((samples.advantages, samples.returns), metrics, grads)
        });
    let (gae, metrics, grads) = run.call((agent, rollout)).unwrap();
    close("gae", &gae);
    close("ppo_lstm", &metrics);
    close("ppo_lstm_grads", &grads);
}

#[test]
fn updates_of_a2c_are_those_of_the_formulas() {
    let flags = ["--ent-coef=0.1", "--gamma=0.9", "--gae-lambda=0.8", "--learning-rate=0.01"];
    let args = a2c::Args::from_flags(flags.into_iter().chain(["--no-anneal-lr"])).unwrap();
    let dones = [0.0f32, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
    let rollout = a2c::Rollout {
        obs: wave([4, 2, OBS], 0.8),
        actions: wave([4, 2, ACT], 0.9),
        rewards: wave([4, 2], 0.5),
        dones: Array::new([4, 2], &dones).unwrap(),
        next_obs: wave([2, OBS], 0.0),
    };
    let agent = a2c::Agent {
        actor: mlp([OBS, HIDDEN, ACT], 1.0, Activation::Tanh),
        log_std: wave([ACT], 0.3),
        critic: mlp([OBS, HIDDEN, 1], 2.0, Activation::Tanh),
    };
    // RMSProp's state begins with zeros.
    let run = interpret(|(agent, rollout): (a2c::Agent<Tensor>, a2c::Rollout<Tensor>)| {
        let rms_prop = RmsProp { decay: 0.99, eps: 1e-5, ..RmsProp::default() };
        let opt_state = rms_prop.init(&agent);
        let train_state = a2c::TrainState { agent, opt_state, num_updates: constant(0i32) };
        let (train_state, _) = a2c::update(train_state, rollout, &args);
        let (train_state, metrics) = a2c::update(train_state, rollout, &args);
        let a2c::Metrics { value_loss, policy_loss, entropy, .. } = metrics;
        ([value_loss, policy_loss, entropy], train_state.agent)
    });
    let (metrics, agent) = run.call((agent, rollout)).unwrap();
    close("a2c_metrics", &metrics);
    close("a2c_agent", &agent);
}

// ------------------------------------------------------------------------------------ short runs

const OFF_POLICY: &[&str] = &[
    "--env-id",
    "Pendulum-v1",
    "--total-timesteps",
    "400",
    "--learning-starts",
    "200",
    "--buffer-size",
    "300",
    "--batch-size",
    "16",
    "--json",
];

const ON_POLICY: &[&str] = &[
    "--env-id",
    "Pendulum-v1",
    "--total-timesteps",
    "512",
    "--num-envs",
    "2",
    "--num-steps",
    "128",
    "--num-minibatches",
    "4",
    "--update-epochs",
    "2",
    "--json",
];

fn args<A: Algorithm>(runs: &Path, flags: &[&str], more: &[&str]) -> A {
    let runs = runs.to_str().unwrap();
    A::from_flags(flags.iter().chain(more).copied().chain(["--runs-dir", runs])).unwrap()
}

fn model_of(run_dir: &str) -> Vec<u8> {
    let name = Path::new(run_dir).file_name().unwrap().to_str().unwrap();
    let algorithm = name.split("__").nth(1).unwrap();
    std::fs::read(Path::new(run_dir).join(format!("{algorithm}.safetensors"))).unwrap()
}

/// The arrays of a model's file, without its metadata, which names the run's folder.
fn arrays(model: &[u8]) -> &[u8] {
    let header = u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
    &model[8 + header..]
}

#[test]
fn a_robot_is_filmed() {
    let runs = tempfile::tempdir().unwrap();
    let film = ["--env-id", "InvertedPendulum-v4", "--capture-video", "--eval-episodes", "1"];
    let summary = args::<ppo::Args>(runs.path(), ON_POLICY, &film).train().unwrap();
    let path = Path::new(&summary.run_dir).join("videos/episode-0");
    // With an ffmpeg on the path the video is an MP4.
    if let Ok(film) = std::fs::read(path.with_extension("mp4")) {
        assert_eq!(&film[4..8], b"ftyp");
        return;
    }
    let film = std::fs::read(path.with_extension("gif")).unwrap();
    let size = |at: usize| u16::from_le_bytes([film[at], film[at + 1]]);
    assert_eq!((&film[..6], size(6), size(8)), (&b"GIF89a"[..], 240, 240));
}

#[test]
fn sac_updates_targets_when_due() {
    let runs = tempfile::tempdir().unwrap();
    let model = |more: &[&str]| {
        let more = [&["--save-model", "--eval-episodes", "0"], more].concat();
        let summary = args::<sac::Args>(runs.path(), OFF_POLICY, &more).train().unwrap();
        arrays(&model_of(&summary.run_dir)).to_vec()
    };
    // Targets that are never due keep their initial values, as with a tau of 0.
    let never_due = model(&["--target-network-frequency", "1000000", "--exp-name", "a"]);
    assert_eq!(never_due, model(&["--tau", "0", "--exp-name", "b"]));
    assert_ne!(never_due, model(&["--target-network-frequency", "3", "--exp-name", "c"]));
    assert_ne!(never_due, model(&["--no-autotune", "--tau", "0", "--exp-name", "d"]));
}

/// The number of critic updates of ten steps of four environments, three updates after each.
fn critic_updates<A: Algorithm>(more: &[&str]) -> i32 {
    let runs = tempfile::tempdir().unwrap();
    let flags = [
        "--total-timesteps=240",
        "--num-envs=4",
        "--policy-frequency=2",
        "--updates-per-call=5",
        "--gradient-steps=3",
        "--save-model",
        "--eval-episodes=0",
    ];
    let args = args::<A>(runs.path(), OFF_POLICY, &[&flags, more].concat());
    let saved = model(&args.train().unwrap());
    let count = saved.iter().find(|(name, _)| name.ends_with("opt_state.qf.count")).unwrap();
    i32::from_le_bytes(count.1[..].try_into().unwrap())
}

#[test]
fn gradient_steps_follow_each_step_of_several_environments() {
    assert_eq!(critic_updates::<sac::Args>(&[]), 30);
    assert_eq!(critic_updates::<td3::Args>(&[]), 30);
    assert_eq!(critic_updates::<ddpg::Args>(&[]), 30);
    assert_eq!(critic_updates::<crossq::Args>(&["--n-neurons=16"]), 30);
}

/// The names of a model, and its logarithm of the temperature.
fn names_and_log_alpha<A: Algorithm>(more: &[&str]) -> (Vec<String>, f32) {
    let runs = tempfile::tempdir().unwrap();
    let small = [
        "--critic-hidden-dim=8",
        "--actor-hidden-dim=8",
        "--num-envs=2",
        "--save-model",
        "--eval-episodes=0",
    ];
    let args = args::<A>(runs.path(), OFF_POLICY, &[&small, more].concat());
    let saved = model(&args.train().unwrap());
    let (_, bytes) = saved.iter().find(|(name, _)| name.ends_with("log_alpha")).unwrap();
    let log_alpha = f32::from_le_bytes(bytes[..].try_into().unwrap());
    (saved.into_iter().map(|(name, _)| name).collect(), log_alpha)
}

#[test]
fn variants_of_sac_tune_the_temperature_on_request() {
    let initial = 0.5f64.ln() as f32;
    let has_two_critics = |names: Vec<String>| names.iter().any(|name| name.contains("qf[1]"));
    let fast_sac = names_and_log_alpha::<fast_sac::Args>;
    assert_eq!(fast_sac(&["--alpha-init=0.5", "--no-use-autotune"]).1, initial);
    assert_ne!(fast_sac(&["--alpha-init=0.5"]).1, initial);
    let simba_sac = names_and_log_alpha::<simba_sac::Args>;
    let (names, log_alpha) = simba_sac(&["--alpha=0.5", "--no-autotune", "--no-use-cdq"]);
    assert_eq!(log_alpha, initial);
    assert!(!has_two_critics(names));
    let (names, log_alpha) = simba_sac(&["--alpha=0.5"]);
    assert_ne!(log_alpha, initial);
    assert!(has_two_critics(names));
}

// ------------------------------------------------------------------------------------- bad input

fn assert_refused<A: Algorithm>(flags: &[&str], bad: &[(&str, &str, &str)]) {
    let runs = tempfile::tempdir().unwrap();
    let error =
        |more: &[&str]| args::<A>(runs.path(), flags, more).train().unwrap_err().to_string();
    for (flag, value, expected) in bad {
        let text = error(&[&format!("{flag}={value}")]);
        assert_eq!(text, format!("{flag} {value}: must be {expected}"), "{}", A::NAME);
    }
    let discrete = error(&["--env-id", "CartPole-v1"]);
    assert!(discrete.contains("CartPole-v1") && discrete.contains(A::NAME), "{discrete}");
    assert!(discrete.contains("continuous actions"), "{discrete}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run folder was created");
}

#[test]
fn settings_out_of_range_are_refused() {
    let common = [
        ("--gamma", "1.5", "a number from 0 to 1"),
        ("--tau", "-0.1", "a number from 0 to 1"),
        ("--batch-size", "0", "a whole number from 1 to 1048576"),
        ("--policy-frequency", "0", "a whole number from 1 to 1000"),
        ("--buffer-size", "0", "a whole number from 1 to 2147483647"),
        ("--buffer-size", "1", "2 to 2147483647"),
        ("--total-timesteps", "10", "at least 100, the timesteps of one call"),
    ];
    let with = |more: &[(&'static str, &'static str, &'static str)]| [&common[..], more].concat();
    let number = "a number from 0 to 1e15";
    assert_refused::<td3::Args>(OFF_POLICY, &with(&[("--noise-clip", "-1", number)]));
    assert_refused::<ddpg::Args>(OFF_POLICY, &with(&[("--exploration-noise", "-1", number)]));
    let alpha = ("--alpha", "0", "a number from 1e-37 to 1e15");
    let targets = ("--target-network-frequency", "0", "a whole number from 1 to 1000000000");
    assert_refused::<sac::Args>(OFF_POLICY, &with(&[alpha, targets, ("--q-lr", "-1", number)]));
    let batch = [
        ("--num-minibatches", "3", "a divisor of the batch, num-envs * num-steps = 256"),
        ("--gae-lambda", "2", "a number from 0 to 1"),
        ("--clip-coef", "-1", number),
    ];
    assert_refused::<ppo::Args>(ON_POLICY, &batch);
    let minibatches = "a divisor of --num-envs 2: minibatches are whole environments";
    assert_refused::<ppo_lstm::Args>(
        &[ON_POLICY, &["--num-minibatches=2"]].concat(),
        &[&batch[1..], &[("--num-minibatches", "4", minibatches)]].concat(),
    );
    let batch_of_a2c = [
        ("--gae-lambda", "2", "a number from 0 to 1"),
        ("--rms-prop-eps", "-1", number),
        ("--total-timesteps", "31", "at least one batch, num-envs * num-steps = 32"),
    ];
    assert_refused::<a2c::Args>(&["--env-id=Pendulum-v1", "--json"], &batch_of_a2c);
    assert_refused::<rpo::Args>(
        ON_POLICY,
        &[&batch[..], &[("--rpo-alpha", "-1", number)]].concat(),
    );
}

#[test]
fn returns_of_too_many_steps_are_refused() {
    let bad = [("--num-steps", "65", "1 to 64")];
    assert_refused::<fast_td3::Args>(&["--json"], &bad);
    assert_refused::<fast_sac::Args>(&["--json"], &bad);
}

#[test]
fn invalid_bounds_and_steps_are_refused() {
    let error = Bounds::new(&[0.0], &[0.0]).unwrap_err().to_string();
    assert_eq!(error, "the bounds of actions from [0.0] to [0.0]: must be as many, and rising");
    assert!(Bounds::new(&[0.0, 0.0], &[1.0]).is_err());
    let run = interpret(|_: Tensor| concatenate_steps::<Tensor>(&[]));
    let error = run.call(Array::from(0.0f32)).unwrap_err().to_string();
    assert!(error.contains("there are no steps to join"), "{error}");
}
