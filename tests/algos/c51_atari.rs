//! C51 on images: its projection and its loss compared with JAX, small runs on boards, invalid
//! settings.

use podracer::algos::c51_atari::{Args, QNetwork, project, td_loss};
use podracer::rl::buffers::frames::SampledBatch;
use podracer::{Array, Tensor, interpret, value_and_grad};

use super::c51::support;
use super::cases::{Case, refused};
use super::dqn_atari::{sampled_batch, trunk};

const SMALL: &[&str] = &[
    "--env-id=MinAtar/Freeway-v1",
    "--total-timesteps=600",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=8",
];

#[test]
fn distributions_are_projected_onto_the_support() {
    let project = |args: &Args, inputs: (Array, Array, Array)| {
        let run = interpret(|(reward, discount, pmf): (Tensor, Tensor, Tensor)| {
            project(reward, discount, pmf, args)
        });
        run.call(inputs).unwrap()
    };
    let case = Case::of("project");
    let inputs = (case.f32("reward"), case.f32("discount"), case.f32("probs"));
    case.close("projected", &project(&support(5, -2.0, 2.0, 0.9), inputs));
    // Nothing is lost at the ends of uneven atoms, where rounding could.
    let pmf = Array::new([4, 51], &[1.0f32 / 51.0; 4 * 51]).unwrap();
    let reward = Array::from([9.0f32, -9.0, 0.3, 0.69]);
    let inputs = (reward, Array::from([1.0f32, 1.0, 0.77, 0.0]), pmf);
    for pmf in project(&support(51, -0.1, 0.7, 0.9), inputs).to_vec::<f32>().unwrap().chunks(51) {
        let total: f32 = pmf.iter().sum();
        assert!((total - 1.0).abs() < 1e-5, "{total}");
    }
}

#[test]
fn td_loss_equals_jax() {
    let case = Case::of("c51_atari");
    let args = support(5, -2.0, 2.0, 0.9);
    let net = |prefix: &str| QNetwork {
        trunk: trunk(&case, prefix),
        head: case.dense(&format!("{prefix}w"), &format!("{prefix}b")),
    };
    type Nets = (QNetwork<Tensor>, QNetwork<Tensor>);
    let run = interpret(|((q, target), batch): (Nets, SampledBatch<Tensor>)| {
        value_and_grad(|q: QNetwork<Tensor>| td_loss(&q, &target, &batch, &args))(q)
    });
    let inputs = ((net(""), net("target_")), sampled_batch(&case));
    let ((loss, metrics), grads) = run.call(inputs).unwrap();
    case.close("loss", &loss);
    case.close("loss", &metrics.loss);
    case.close("q_values", &metrics.q_values);
    case.close("grad_w", &grads.head.w);
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(error(&["--n-atoms=1"]), "--n-atoms 1: must be a whole number from 2 to 1024");
    assert_eq!(error(&["--end-e=-1"]), "--end-e -1: must be a number from 0 to 1");
    let text = error(&["--env-id=CartPole-v1"]);
    assert!(text.contains("c51_atari takes images u8[4, 84, 84]"), "{text}");
}
