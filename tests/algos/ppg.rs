//! PPG: auxiliary loss against NumPy, gradients of the encoder, networks, runs, refused settings.

use std::path::Path;

use podracer::algos::ppg::{Agent, Args, AuxSamples, Samples, aux_loss, ppo_loss};
use podracer::envs::ObsKind;
use podracer::jit::eval_shape;
use podracer::nn::ImageEncoder;
use podracer::rl::environments::spaces::Sizes;
use podracer::rl::{Algorithm, ImageNetwork};
use podracer::{Array, Key, Tensor, grad, interpret, jit, tree};

use super::fixture::{dense, expect, ints, trunk, wave};
use super::{message, scalars};

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    let small = [
        "--total-timesteps=300",
        "--num-envs=4",
        "--num-steps=16",
        "--num-minibatches=2",
        "--n-iteration=2",
        "--e-auxiliary=2",
        "--num-aux-rollouts=2",
        "--json",
        &runs,
    ];
    Args::from_flags(small.into_iter().chain(more.iter().copied())).unwrap()
}

fn agent() -> Agent<Tensor> {
    Agent {
        trunk: ImageEncoder::Nature(trunk()),
        actor: dense([4, 2], 0.3),
        critic: dense([4, 1], 1.3),
        aux_critic: dense([4, 1], 1.4),
    }
}

#[test]
fn auxiliary_loss_equals_numpys() {
    let args = Args::from_flags([]).unwrap();
    expect("ppg_aux", || {
        let batch = AuxSamples {
            obs: wave([6, 3], 1.0),
            returns: wave([6], 7.0),
            logits: wave([6, 2], 9.0),
        };
        let (loss, metrics) = aux_loss(&agent(), &batch, &args);
        [vec![loss], tree::leaves(&metrics)].concat()
    });
}

#[test]
fn value_loss_of_the_policy_phase_does_not_reach_the_encoder() {
    // Without advantages and entropy the gradient of the policy is zero.
    let args = Args::from_flags(["--ent-coef=0"]).unwrap();
    let run = interpret(|advantage: Tensor| {
        let batch = Samples {
            obs: wave([6, 3], 1.0),
            actions: ints([6], &[0, 1, 1, 0, 1, 0]),
            logprobs: wave([6], 2.0),
            advantages: wave([6], 6.0) * advantage,
            returns: wave([6], 7.0),
            values: wave([6], 8.0),
        };
        grad(|agent: Agent<Tensor>| ppo_loss(&agent, &batch, &args).0)(agent())
    });
    let nonzero = |advantage: f32| {
        let grads = run.call(Array::from(advantage)).unwrap();
        let any = |x: &Array| x.to_vec::<f32>().unwrap().iter().any(|&x| x != 0.0);
        let ImageEncoder::Nature(trunk) = &grads.trunk else { panic!("{:?}", grads.trunk) };
        (any(&trunk.dense[0].w), any(&grads.critic.w), any(&grads.aux_critic.w))
    };
    assert_eq!(nonzero(0.0), (false, true, false));
    assert_eq!(nonzero(1.0), (true, true, false));
}

#[test]
fn a_run_has_whole_phases() {
    let runs = tempfile::tempdir().unwrap();
    let summary = args(runs.path(), &["--eval-episodes=0"]).train().unwrap();
    // Two phases of two rollouts; the remaining 44 timesteps are dropped.
    assert_eq!(summary.global_step, 256);
    let logged = scalars(&summary.run_dir);
    let steps = |tag: &str| -> Vec<u64> {
        logged.keys().filter(|(name, _)| name == tag).map(|(_, step)| *step).collect()
    };
    assert_eq!(steps("losses/value_loss"), [64, 128, 192, 256]);
    assert_eq!(steps("losses/aux/kl_loss"), [128, 256]);
    assert_eq!(steps("losses/aux/real_value_loss"), [128, 256]);
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| message(args(runs.path(), flags).train());
    assert_eq!(
        error(&["--num-aux-rollouts=3"]),
        "--num-aux-rollouts 3: must be a divisor of num-envs * n-iteration = 8"
    );
    assert_eq!(
        error(&["--total-timesteps=127"]),
        "--total-timesteps 127: must be at least one phase, 128 timesteps"
    );
    let vector = error(&["--env-id=CartPole-v1"]);
    assert!(vector.contains("ppg takes images"), "{vector}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run folder was created");
}

/// `--network impala` selects IMPALA's network for every observation that PPG takes, and is never
/// replaced by another.
#[test]
fn network_flag_holds_for_frames_and_boards() {
    for (obs_kind, shape) in [(ObsKind::Image, [4, 84, 84]), (ObsKind::Board, [10, 10, 4])] {
        let sizes = Sizes { obs_kind, shape: shape.into(), num_actions: 6 };
        for (network, impala) in [(ImageNetwork::Impala, true), (ImageNetwork::Nature, false)] {
            let init = |key: Key<Tensor>| Agent::init(key, network, &sizes);
            let agent = eval_shape(init, &Key::new(1)).unwrap();
            assert_eq!(matches!(agent.trunk, ImageEncoder::Impala(_)), impala, "{obs_kind}");
        }
    }
}

/// CleanRL's `layer_init_normed`: the weights of each output have the norm of the layer.
#[test]
fn impala_layers_are_normed() {
    let sizes = Sizes { obs_kind: ObsKind::Image, shape: [4, 84, 84].into(), num_actions: 6 };
    let run = jit(|key: Key<Tensor>| Agent::init(key, ImageNetwork::Impala, &sizes));
    let agent = run.call(Key::new(1)).unwrap();
    let norms = |w: &Array, norm: f64| {
        let outputs = *w.shape().last().unwrap();
        let mut squares = vec![0.0f64; outputs];
        for (i, x) in w.to_vec::<f32>().unwrap().into_iter().enumerate() {
            squares[i % outputs] += f64::from(x) * f64::from(x);
        }
        for square in squares {
            assert!((square.sqrt() - norm).abs() < 1e-4, "{}, not {norm}", square.sqrt());
        }
    };
    let ImageEncoder::Impala(net) = &agent.trunk else { panic!("{:?}", agent.trunk) };
    for sequence in &net.sequences {
        norms(&sequence.conv.w, 1.0);
        for conv in sequence.residuals.iter().flat_map(|residual| &residual.convs) {
            norms(&conv.w, 0.408_248_3f64.sqrt());
        }
    }
    assert_eq!(net.hidden[0].w.shape()[..], [11 * 11 * 32, 256]);
    norms(&net.hidden[0].w, 1.4);
    for head in [&agent.actor, &agent.critic, &agent.aux_critic] {
        norms(&head.w, 0.1);
    }
}

#[test]
fn network_and_reward_normalization_are_flags() {
    let runs = tempfile::tempdir().unwrap();
    let train = |more: &[&str]| {
        let flags = [&["--total-timesteps=128"], more].concat();
        scalars(&args(runs.path(), &flags).train().unwrap().run_dir)
    };
    let normalized = train(&[]);
    assert_ne!(normalized, train(&["--no-normalize-reward"]));
    assert_ne!(normalized, train(&["--network=impala"]));
}
