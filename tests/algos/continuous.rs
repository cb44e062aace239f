//! The algorithms for continuous actions: their losses against JAX, short runs of each, and their
//! answers to bad settings.

use std::collections::BTreeMap;
use std::path::Path;

use podracer::algos::{
    ddpg_continuous_action as ddpg, ppo_continuous_action as ppo, rpo_continuous_action as rpo,
    sac_continuous_action as sac, td3_continuous_action as td3,
};
use podracer::nn::{Activation, Dense, Mlp};
use podracer::rl::Algorithm;
use podracer::rl::replay::Transition;
use podracer::rl::replay::concatenate_steps;
use podracer::rl::spaces::Bounds;
use podracer::{Array, DType, Key, Tensor, Tree, interpret, random, tree, value_and_grad};

use super::scalars;

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
    let networks = |pi, q| ddpg::Networks { actor: actor(pi, 1), critic: critic(q) };
    type Input<T> = (ddpg::Networks<T>, ddpg::Networks<T>, Transition<T>);
    let run = interpret(|(online, targets, batch): Input<Tensor>| {
        let goal = ddpg::goal(&targets, &batch, &bounds(), GAMMA);
        let loss = |pi: Mlp<Tensor>| ddpg::actor_loss(&pi, &online.critic, batch.obs, &bounds());
        let critic = ddpg::critic_loss(&online.critic, &batch, goal);
        (goal, critic, value_and_grad(loss)(online.actor.clone()))
    });
    let (goal, critic, (actor, grads)) =
        run.call((networks(1.0, 3.0), networks(2.0, 5.0), transitions())).unwrap();
    close("ddpg_goal", &goal);
    close("ddpg_critic", &critic);
    close("ddpg_actor", &actor);
    close("ddpg_actor_grads", &grads);
}

#[test]
fn losses_of_td3_are_those_of_the_formulas() {
    let args = td3::Args::from_flags(["--gamma", "0.9", "--noise-clip", "0.15"]).unwrap();
    let networks = |pi, q, q2| td3::Networks { actor: actor(pi, 1), critics: [q, q2].map(critic) };
    type Input<T> = (td3::Networks<T>, td3::Networks<T>, Transition<T>);
    let run = interpret(|(online, targets, batch): Input<Tensor>| {
        let goal = td3::goal(&targets, &batch, Key::constant(7), &bounds(), &args);
        let actor = td3::actor_loss(&online.actor, &online.critics[0], batch.obs, &bounds());
        (goal, td3::critic_loss(&online.critics, &batch, goal), actor)
    });
    let (goal, critics, actor) =
        run.call((networks(1.0, 3.0, 4.0), networks(2.0, 5.0, 6.0), transitions())).unwrap();
    close("td3_goal", &goal);
    close("td3_critic", &critics);
    close("td3_actor", &actor);
}

#[test]
fn losses_of_sac_are_those_of_the_formulas() {
    type Critics<T> = [Mlp<T>; 2];
    type Input<T> = (Mlp<T>, Critics<T>, Critics<T>, Transition<T>, sac::Temperature<T>);
    let run = interpret(|(actor, online, targets, batch, temperature): Input<Tensor>| {
        let alpha = temperature.log_alpha.exp();
        let (actor_ref, key) = (&actor, Key::constant(8));
        let goal = sac::goal(actor_ref, &targets, alpha, &batch, key, &bounds(), GAMMA);
        let correction = podracer::distributions::TanhCorrection::Clipped(1e-6);
        let drawn = sac::policy(&actor, batch.next_obs, &bounds())
            .sample_and_log_prob(Key::constant(8), correction);
        let noise = random::normal(Key::constant(9), [BATCH, ACT], DType::F32);
        let loss =
            |pi: Mlp<Tensor>| sac::actor_loss(&pi, &online, alpha, batch.obs, noise, &bounds());
        let tuned = value_and_grad(|temperature: sac::Temperature<Tensor>| {
            sac::alpha_loss(&temperature, drawn.1, -(ACT as f64))
        })(temperature.clone());
        let critics = sac::critic_loss(&online, &batch, goal);
        ((drawn, goal), critics, value_and_grad(loss)(actor.clone()), tuned)
    });
    let (online, targets) = ([3.0, 4.0].map(critic), [5.0, 6.0].map(critic));
    let temperature = sac::Temperature { log_alpha: Array::from(0.3f32.ln()) };
    let input = (actor(7.0, 2), online, targets, transitions(), temperature);
    let ((drawn, goal), critics, (actor, grads), tuned) = run.call(input).unwrap();
    close("sac_draw", &drawn);
    close("sac_goal", &goal);
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

/// The arrays of a model's file, without its metadata, in which the run's folder stands.
fn arrays(model: &[u8]) -> &[u8] {
    let header = u64::from_le_bytes(model[..8].try_into().unwrap()) as usize;
    &model[8 + header..]
}

/// Trains for a moment: what is logged is there and finite, a saved model plays, and a run that
/// goes on from half way gives the same model as one that never stopped.
fn runs_and_goes_on<A: Algorithm>(flags: &[&str], half: &str, logged: &[&str]) {
    let runs = tempfile::tempdir().unwrap();
    let saved = ["--save-model", "--eval-episodes", "2"];
    let whole = args::<A>(runs.path(), flags, &saved).train().unwrap();
    let told = scalars(&whole.run_dir);
    for tag in logged {
        let values = told.iter().filter(|((name, _), _)| name == tag);
        let values: Vec<f32> = values.flat_map(|(_, values)| values).copied().collect();
        assert!(!values.is_empty(), "{tag} is not among {:?}", told.keys());
        assert!(values.iter().all(|value| value.is_finite()), "{tag}: {values:?}");
    }
    let played = told.keys().filter(|(tag, _)| tag == "eval/episodic_return").count();
    assert_eq!(played, 2);
    assert!(told.keys().any(|(tag, _)| tag == "charts/episodic_return"));

    let other = tempfile::tempdir().unwrap();
    let more = ["--checkpoint-frequency", "1", "--total-timesteps", half];
    let begun = args::<A>(other.path(), flags, &more).train().unwrap();
    let resume = ["--resume", &begun.run_dir, "--save-model", "--eval-episodes", "2"];
    let total = whole.global_step.to_string();
    let resume = [&resume[..], &["--total-timesteps", &total]].concat();
    let resumed = args::<A>(other.path(), &[], &resume).train().unwrap();
    assert_eq!((resumed.run_dir, resumed.global_step), (begun.run_dir.clone(), whole.global_step));
    let (one, two) = (model_of(&whole.run_dir), model_of(&begun.run_dir));
    assert!(!arrays(&one).is_empty());
    assert_eq!(arrays(&one), arrays(&two), "the resumed run gave another model");
}

#[test]
fn td3_runs_and_goes_on() {
    let logged = ["losses/qf1_loss", "losses/qf2_values", "losses/actor_loss"];
    runs_and_goes_on::<td3::Args>(OFF_POLICY, "300", &logged);
}

#[test]
fn ddpg_runs_and_goes_on() {
    let logged = ["losses/qf1_loss", "losses/qf1_values", "losses/actor_loss"];
    runs_and_goes_on::<ddpg::Args>(OFF_POLICY, "300", &logged);
}

#[test]
fn sac_runs_and_goes_on() {
    let logged = ["losses/qf_loss", "losses/alpha", "losses/alpha_loss", "losses/actor_loss"];
    runs_and_goes_on::<sac::Args>(OFF_POLICY, "300", &logged);
}

#[test]
fn ppo_continuous_runs_and_goes_on() {
    let logged = ["losses/value_loss", "losses/approx_kl", "losses/explained_variance"];
    // The learning rate falls with the whole of the timesteps, which half a run does not know.
    let flags = [ON_POLICY, &["--no-anneal-lr"]].concat();
    runs_and_goes_on::<ppo::Args>(&flags, "256", &logged);
}

#[test]
fn a_robot_is_filmed() {
    let runs = tempfile::tempdir().unwrap();
    let film = ["--env-id", "InvertedPendulum-v4", "--capture-video", "--eval-episodes", "1"];
    let summary = args::<ppo::Args>(runs.path(), ON_POLICY, &film).train().unwrap();
    let film = std::fs::read(Path::new(&summary.run_dir).join("videos/episode-0.gif")).unwrap();
    let size = |at: usize| u16::from_le_bytes([film[at], film[at + 1]]);
    assert_eq!((&film[..6], size(6), size(8)), (&b"GIF89a"[..], 240, 240));
}

#[test]
fn rpo_runs_and_goes_on() {
    let logged = ["losses/value_loss", "losses/approx_kl", "losses/explained_variance"];
    let flags = [ON_POLICY, &["--no-anneal-lr", "--bootstrap-truncated"]].concat();
    runs_and_goes_on::<rpo::Args>(&flags, "256", &logged);
}

#[test]
fn targets_of_sac_that_move_seldom_move() {
    let runs = tempfile::tempdir().unwrap();
    let model = |more: &[&str]| {
        let more = [&["--save-model", "--eval-episodes", "0"], more].concat();
        let summary = args::<sac::Args>(runs.path(), OFF_POLICY, &more).train().unwrap();
        arrays(&model_of(&summary.run_dir)).to_vec()
    };
    // Targets that never come to be due stay where they began, as with a tau of 0.
    let seldom = model(&["--target-network-frequency", "1000000", "--exp-name", "a"]);
    assert_eq!(seldom, model(&["--tau", "0", "--exp-name", "b"]));
    assert_ne!(seldom, model(&["--target-network-frequency", "3", "--exp-name", "c"]));
    assert_ne!(seldom, model(&["--no-autotune", "--tau", "0", "--exp-name", "d"]));
}

// ------------------------------------------------------------------------------------- bad input

fn refuses<A: Algorithm>(flags: &[&str], bad: &[(&str, &str, &str)]) {
    let runs = tempfile::tempdir().unwrap();
    let error =
        |more: &[&str]| args::<A>(runs.path(), flags, more).train().unwrap_err().to_string();
    for (flag, value, expected) in bad {
        let told = error(&[&format!("{flag}={value}")]);
        assert_eq!(told, format!("{flag} {value}: must be {expected}"), "{}", A::NAME);
    }
    let discrete = error(&["--env-id", "CartPole-v1"]);
    assert!(discrete.contains("CartPole-v1") && discrete.contains(A::NAME), "{discrete}");
    assert!(discrete.contains("continuous actions"), "{discrete}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run was begun");
}

#[test]
fn settings_out_of_range_are_told() {
    let common = [
        ("--gamma", "1.5", "a number from 0 to 1"),
        ("--tau", "-0.1", "a number from 0 to 1"),
        ("--batch-size", "0", "a whole number from 1 to 1048576"),
        ("--policy-frequency", "0", "a whole number from 1 to 1000"),
        ("--buffer-size", "0", "a whole number from 1 to 2147483647"),
        ("--total-timesteps", "10", "at least 100, the timesteps of one call"),
    ];
    let with = |more: &[(&'static str, &'static str, &'static str)]| [&common[..], more].concat();
    let number = "a number from 0 to 1e15";
    refuses::<td3::Args>(OFF_POLICY, &with(&[("--noise-clip", "-1", number)]));
    refuses::<ddpg::Args>(
        OFF_POLICY,
        &with(&[("--exploration-noise", "NaN", "a number not below 0")]),
    );
    let alpha = ("--alpha", "0", "a number from 1e-37 to 1e15");
    let targets = ("--target-network-frequency", "0", "a whole number from 1 to 1000000000");
    refuses::<sac::Args>(OFF_POLICY, &with(&[alpha, targets, ("--q-lr", "-1", number)]));
    let batch = [
        ("--num-minibatches", "3", "a divisor of the batch, num-envs * num-steps = 256"),
        ("--gae-lambda", "2", "a number from 0 to 1"),
        ("--clip-coef", "-1", number),
    ];
    refuses::<ppo::Args>(ON_POLICY, &batch);
    refuses::<rpo::Args>(ON_POLICY, &[&batch[..], &[("--rpo-alpha", "-1", number)]].concat());
}

#[test]
fn bounds_and_steps_that_do_not_fit_are_told() {
    let told = Bounds::new(&[0.0], &[0.0]).unwrap_err().to_string();
    assert_eq!(told, "the bounds of actions from [0.0] to [0.0]: must be as many, and rising");
    assert!(Bounds::new(&[0.0, 0.0], &[1.0]).is_err());
    let run = interpret(|_: Tensor| concatenate_steps::<Tensor>(&[]));
    let told = run.call(Array::from(0.0f32)).unwrap_err().to_string();
    assert!(told.contains("there are no steps to join"), "{told}");
}
