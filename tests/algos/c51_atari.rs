//! C51 on images: its loss against JAX, small runs on boards, its bad settings.

use podracer::algos::c51_atari::{Args, QNetwork, loss};
use podracer::rl::atoms::Atoms;
use podracer::rl::frames::SampledBatch;
use podracer::{Tensor, interpret, value_and_grad};

use super::cases::{Case, one_seed_gives_one_run, refused};
use super::dqn_atari::{drawn, trunk};

const SMALL: &[&str] = &[
    "--env-id=MinAtar/Freeway-v1",
    "--total-timesteps=600",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=8",
];
const ATOMS: Atoms = Atoms { count: 5, v_min: -2.0, v_max: 2.0 };

#[test]
fn the_loss_is_that_of_jax() {
    let case = Case::of("c51_atari");
    let net = |prefix: &str| QNetwork {
        trunk: trunk(&case, prefix),
        head: case.dense(&format!("{prefix}w"), &format!("{prefix}b")),
    };
    type Nets = (QNetwork<Tensor>, QNetwork<Tensor>);
    let run = interpret(|((q, target), batch): (Nets, SampledBatch<Tensor>)| {
        value_and_grad(|q: QNetwork<Tensor>| loss(&q, &target, &batch, &ATOMS))(q)
    });
    let inputs = ((net(""), net("target_")), drawn(&case));
    let ((value, q_values), grads) = run.call(inputs).unwrap();
    case.close("loss", &value);
    case.close("q_values", &q_values);
    case.close("grad_w", &grads.head.w);
}

#[test]
fn one_seed_is_one_run() {
    let tags = one_seed_gives_one_run::<Args>(SMALL);
    assert!(tags.contains(&"losses/loss".to_string()), "{tags:?}");
}

#[test]
fn settings_that_cannot_be_are_told() {
    let told = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(told(&["--n-atoms=1"]), "--n-atoms 1: must be a whole number from 2 to 1024");
    assert_eq!(told(&["--end-e=-1"]), "--end-e -1: must be a number from 0 to 1");
    let text = told(&["--env-id=CartPole-v1"]);
    assert!(text.contains("c51_atari takes images u8[4, 84, 84]"), "{text}");
}
