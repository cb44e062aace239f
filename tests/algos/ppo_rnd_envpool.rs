//! PPO with RND: its functions against NumPy, runs, networks, refused settings.

use std::path::Path;

use podracer::algos::ppo_rnd_envpool::{
    Agent, Args, Features, Moments, RndModel, fwd_loss, reward_forward_filter,
};
use podracer::envs::ObsKind;
use podracer::jit::eval_shape;
use podracer::rl::Algorithm;
use podracer::rl::environments::spaces::Sizes;
use podracer::trace::ops::concatenate;
use podracer::{Array, DType, Key, Tensor, interpret, jit, random};

use super::fixture::{expect, floats, wave};
use super::{DIVERGING, expect_traced_nan, message};

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    let small = [
        "--env-id=MinAtar/Breakout-v1",
        "--total-timesteps=192",
        "--num-envs=4",
        "--num-steps=16",
        "--num-minibatches=2",
        "--update-epochs=2",
        "--num-iterations-obs-norm-init=2",
        "--json",
        &runs,
    ];
    Args::from_flags(small.into_iter().chain(more.iter().copied())).unwrap()
}

#[test]
fn predictor_loss_equals_numpys() {
    let mask = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0];
    expect("rnd_fwd_loss", || {
        vec![fwd_loss([wave([6, 4], 3.0), wave([6, 4], 3.3)], floats([6], &mask))]
    });
    let none = interpret(|_: Tensor| {
        fwd_loss([wave([6, 4], 3.0), wave([6, 4], 3.3)], floats([6], &[0.0; 6]))
    });
    assert_eq!(none.call(Array::from(0.0f32)).unwrap().item::<f32>().unwrap(), 0.0);
}

#[test]
fn intrinsic_rewards_are_discounted_over_time() {
    expect("rnd_filter", || {
        let rewards = wave([4, 2], 0.4).square();
        vec![reward_forward_filter(floats([2], &[0.0, 0.0]), rewards, 0.99).1]
    });
}

#[test]
fn moments_of_two_batches_equal_those_of_both() {
    let run = interpret(|_: Tensor| {
        let (a, b) = (wave([5, 3], 0.0) * 2.0 + 1.0, wave([7, 3], 2.0));
        let all = concatenate(&[a, b], 0);
        let moments = Moments::new(&[3]).update(a).update(b);
        (moments.mean, all.mean(0), moments.var, all.var(0), moments.whiten(all * 100.0))
    });
    let (mean, whole_mean, var, whole_var, white) = run.call(Array::from(0.0f32)).unwrap();
    for (ours, whole) in [(mean, whole_mean), (var, whole_var)] {
        for (a, b) in ours.to_vec::<f32>().unwrap().iter().zip(whole.to_vec::<f32>().unwrap()) {
            assert!((a - b).abs() < 1e-3, "{a}, not {b}");
        }
    }
    let white = white.to_vec::<f32>().unwrap();
    assert!(white.contains(&5.0) && white.iter().all(|x| x.abs() <= 5.0), "{white:?}");
}

#[test]
fn a_nan_of_a_rollout_is_traced_to_its_operation() {
    let runs = tempfile::tempdir().unwrap();
    let flags = [&DIVERGING[..], &["--learning-rate=1e15"]].concat();
    expect_traced_nan(args(runs.path(), &flags).train());
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| message(args(runs.path(), flags).train());
    assert_eq!(
        error(&["--update-proportion=2"]),
        "--update-proportion 2: must be a number from 0 to 1"
    );
    let vector = error(&["--env-id=CartPole-v1"]);
    assert!(vector.contains("ppo_rnd_envpool takes images"), "{vector}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run folder was created");
}

/// CleanRL's `RNDModel`: leaky ReLUs after convolutions, none after the target's dense layer.
#[test]
fn target_has_leaky_relus_and_no_last_activation() {
    let sizes = Sizes { obs_kind: ObsKind::Board, shape: [10, 10, 2].into(), num_actions: 3 };
    let run = jit(|key: Key<Tensor>| {
        let [key, draw] = key.split_n();
        let white = random::normal(draw, [4, 10, 10, 2], DType::F32);
        let rnd = RndModel::init(key, &sizes);
        let features = |net: &Features<Tensor>| {
            let x = net.layers.convs[0].apply(white);
            let x = x.maximum(0.0) + 0.01 * x.minimum(0.0);
            net.layers.dense[0].apply(x.flatten_from(1))
        };
        let hidden = rnd.head[0].apply(features(&rnd.predictor).relu()).relu();
        let expected = [rnd.head[1].apply(hidden), features(&rnd.target)];
        (expected, rnd.apply(white))
    });
    let (expected, found) = run.call(Key::new(1)).unwrap();
    for (expected, found) in expected.iter().zip(&found) {
        let pairs = expected.to_vec::<f32>().unwrap().into_iter().zip(found.to_vec().unwrap());
        pairs.for_each(|(a, b): (f32, f32)| assert!((a - b).abs() < 1e-5, "{a} {b}"));
    }
    assert!(
        found[1].to_vec::<f32>().unwrap().iter().any(|&x| x < 0.0),
        "the target has a last ReLU"
    );
}

#[test]
fn policy_encoder_of_frames_has_256_and_448_units() {
    let sizes = Sizes { obs_kind: ObsKind::Image, shape: [4, 84, 84].into(), num_actions: 18 };
    let key = Key::new(1);
    let agent = eval_shape(|key: Key<Tensor>| Agent::init(key, &sizes), &key).unwrap();
    let shapes: Vec<Vec<usize>> =
        agent.trunk.dense.iter().map(|layer| layer.w.shape.to_vec()).collect();
    assert_eq!(shapes, [[3136, 256], [256, 448]]);
    assert_eq!(agent.critic_int.w.shape[..], [448, 1]);
}
