//! Rainbow: its loss against JAX, small runs on boards, its bad settings.

use podracer::algos::rainbow_atari::{Args, Noisy, QNetwork, Streams, goals, loss};
use podracer::nn::Dense;
use podracer::rl::Algorithm;
use podracer::rl::atoms::Atoms;
use podracer::rl::frames::SampledBatch;
use podracer::rl::images::{Convs, Images};
use podracer::{Array, Tensor, interpret, value_and_grad};

use super::cases::{Case, args, one_seed_gives_one_run, refused};
use super::dqn_atari::drawn;

const SMALL: &[&str] = &[
    "--env-id=MinAtar/SpaceInvaders-v1",
    "--total-timesteps=600",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=8",
];
const ATOMS: Atoms = Atoms { count: 5, v_min: -2.0, v_max: 2.0 };

fn net(case: &Case, prefix: &str) -> QNetwork<Array> {
    let layer = |name: &str| {
        let dense = |kind: &str| {
            let of = |part: &str| format!("{prefix}{name}_{kind}{part}");
            case.dense(&of("w"), &of("b"))
        };
        Noisy { mean: dense(""), sigma: dense("sigma_") }
    };
    QNetwork {
        convs: Convs { layers: Vec::new() },
        value: [layer("value_hidden"), layer("value_head")],
        advantage: [layer("advantage_hidden"), layer("advantage_head")],
        images: Images::MinAtar { channels: 1 },
    }
}

fn noise(case: &Case, prefix: &str) -> Streams<Array> {
    let layer = |name: &str| -> Dense<Array> {
        case.dense(&format!("{prefix}{name}_noise_w"), &format!("{prefix}{name}_noise_b"))
    };
    Streams {
        value: [layer("value_hidden"), layer("value_head")],
        advantage: [layer("advantage_hidden"), layer("advantage_head")],
    }
}

#[test]
fn the_loss_is_that_of_jax() {
    let case = Case::of("rainbow");
    type Net = (QNetwork<Tensor>, Streams<Tensor>);
    type Inputs = (Net, Net, SampledBatch<Tensor>, Tensor);
    let run = interpret(|((q, noise), (target, other), batch, weights): Inputs| {
        let (q_streams, target_streams) = (q.streams(Some(&noise)), target.streams(Some(&other)));
        let goal = goals((&q, &q_streams), (&target, &target_streams), &batch, &ATOMS);
        value_and_grad(|q: QNetwork<Tensor>| loss(&q, &noise, goal, &batch, weights, &ATOMS))(q)
    });
    let nets = |prefix: &str| (net(&case, prefix), noise(&case, prefix));
    let inputs = (nets(""), nets("target_"), drawn(&case), case.f32("weights"));
    let ((value, (cross, q_values)), grads) = run.call(inputs).unwrap();
    case.close("loss", &value);
    case.close("cross", &cross);
    case.close("q_values", &q_values);
    case.close("grad_w", &grads.value[1].mean.w);
    case.close("grad_sigma", &grads.advantage[1].sigma.w);
}

#[test]
fn one_seed_is_one_run() {
    let tags = one_seed_gives_one_run::<Args>(SMALL);
    for tag in ["charts/beta", "losses/td_loss", "eval/episodic_return"] {
        assert!(tags.iter().any(|t| t == tag), "{tags:?}");
    }
}

#[test]
fn noise_of_every_weight_and_several_environments_run() {
    let runs = tempfile::tempdir().unwrap();
    let more = ["--parity", "--num-envs=2", "--n-step=5", "--total-timesteps=400"];
    let summary = args::<Args>(runs.path(), SMALL, &more).train().unwrap();
    assert_eq!(summary.global_step, 400);
}

#[test]
fn settings_that_cannot_be_are_told() {
    let told = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(told(&["--n-step=0"]), "--n-step 0: must be a whole number from 1 to 64");
    assert_eq!(
        told(&["--prioritized-replay-alpha=1.5"]),
        "--prioritized-replay-alpha 1.5: must be a number from 0 to 1"
    );
    assert_eq!(
        told(&["--prioritized-replay-eps=0"]),
        "--prioritized-replay-eps 0: must be a number from 1e-37 to 1e15"
    );
    assert_eq!(told(&["--buffer-size=14"]), "--buffer-size 14: must be 15 to 1073741823");
    let text = told(&["--env-id=CartPole-v1"]);
    assert!(text.contains("rainbow_atari takes images u8[4, 84, 84]"), "{text}");
}
