//! Rainbow: its loss compared with JAX, small runs on boards, invalid settings.

use podracer::DType;
use podracer::algos::rainbow_atari::{Args, NoisyLinear, QNetwork, Streams, target_pmf, td_loss};
use podracer::envs::ObsKind;
use podracer::nn::{Dense, Encoder};
use podracer::rl::Algorithm;
use podracer::rl::buffers::prioritized::PrioritizedBatch;
use podracer::rl::environments::spaces::Sizes;
use podracer::{Array, Key, Tensor, interpret, jit, value_and_grad};

use super::c51::support;
use super::cases::{Case, args, refused};
use super::dqn_atari::sampled_batch;

const SMALL: &[&str] = &[
    "--env-id=MinAtar/SpaceInvaders-v1",
    "--total-timesteps=600",
    "--learning-starts=200",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=8",
];

fn net(case: &Case, prefix: &str) -> QNetwork<Array> {
    let layer = |name: &str| {
        let dense = |kind: &str| {
            let key = |part: &str| format!("{prefix}{name}_{kind}{part}");
            case.dense(&key("w"), &key("b"))
        };
        NoisyLinear { mean: dense(""), sigma: dense("sigma_") }
    };
    QNetwork {
        encoder: Encoder {
            convs: Vec::new(),
            dense: Vec::new(),
            obs_kind: ObsKind::Board,
            shape: [10, 10, 1].into(),
            compute_dtype: DType::F32,
        },
        value: [layer("value_hidden"), layer("value_head")],
        advantage: [layer("advantage_hidden"), layer("advantage_head")],
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
fn td_loss_equals_jax() {
    let case = Case::of("rainbow");
    let args: Args = support(5, -2.0, 2.0, 0.9);
    type Net = (QNetwork<Tensor>, Streams<Tensor>);
    type Inputs = (Net, Net, PrioritizedBatch<Tensor>);
    let run = interpret(|((q, noise), (target, target_noise), batch): Inputs| {
        let (q_streams, target_streams) = (q.with_noise(&noise), target.with_noise(&target_noise));
        let networks = ((&q, &q_streams), (&target, &target_streams));
        let target_pmf = target_pmf(networks.0, networks.1, &batch.transitions, &args);
        value_and_grad(|q: QNetwork<Tensor>| {
            td_loss((&q, &q.with_noise(&noise)), target_pmf, &batch, &args)
        })(q.clone())
    });
    let nets = |prefix: &str| (net(&case, prefix), noise(&case, prefix));
    let transitions = sampled_batch(&case);
    let (indices, weights) = (transitions.action.clone(), case.f32("weights"));
    let batch = PrioritizedBatch { transitions, indices, weights };
    let inputs = (nets(""), nets("target_"), batch);
    let ((loss, (cross_entropy, metrics)), grads) = run.call(inputs).unwrap();
    case.close("loss", &loss);
    case.close("loss", &metrics.td_loss);
    case.close("cross", &cross_entropy);
    case.close("q_values", &metrics.q_values);
    case.close("grad_w", &grads.value[1].mean.w);
    case.close("grad_sigma", &grads.advantage[1].sigma.w);
}

/// PyTorch's `Conv2d`: kernels and biases are uniform up to one over the root of the fan-in.
#[test]
fn initial_convolutions_are_distributed_as_in_pytorch() {
    let sizes = Sizes { obs_kind: ObsKind::Image, shape: [4, 84, 84].into(), num_actions: 3 };
    let args = Args::from_flags([""; 0]).unwrap();
    let run = jit(|key: Key<Tensor>| QNetwork::init(key, &sizes, &args).encoder);
    for conv in run.call(Key::new(1)).unwrap().convs {
        let bound = 1.0 / (conv.w.shape()[..3].iter().product::<usize>() as f32).sqrt();
        for values in [conv.w, conv.b.unwrap()] {
            let values = values.to_vec::<f32>().unwrap();
            let largest = values.into_iter().fold(0.0, |largest: f32, x| x.abs().max(largest));
            assert!(largest <= 1.000_001 * bound && largest > 0.5 * bound, "{largest}, {bound}");
        }
    }
}

#[test]
fn independent_noise_and_several_environments_run() {
    let runs = tempfile::tempdir().unwrap();
    let more = ["--parity", "--num-envs=2", "--n-step=5", "--total-timesteps=400"];
    let summary = args::<Args>(runs.path(), SMALL, &more).train().unwrap();
    assert_eq!(summary.global_step, 400);
}

#[test]
fn invalid_settings_are_refused() {
    let error = |more: &[&str]| refused::<Args>(SMALL, more);
    assert_eq!(error(&["--n-step=0"]), "--n-step 0: must be a whole number from 1 to 64");
    assert_eq!(
        error(&["--prioritized-replay-alpha=1.5"]),
        "--prioritized-replay-alpha 1.5: must be a number from 0 to 1"
    );
    assert_eq!(
        error(&["--prioritized-replay-eps=0"]),
        "--prioritized-replay-eps 0: must be a number from 1e-37 to 1e15"
    );
    assert_eq!(error(&["--buffer-size=14"]), "--buffer-size 14: must be 15 to 1073741823");
    let text = error(&["--env-id=CartPole-v1"]);
    assert!(text.contains("rainbow_atari takes images u8[4, 84, 84]"), "{text}");
}
