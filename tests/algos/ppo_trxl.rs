//! PPO with a Transformer-XL: its memory windows, updates that compute what acting computed, the policy
//! of evaluations, its runs, refused settings. `trajectory/trxl.rs` compares updates with CleanRL's.

use std::path::Path;

use podracer::algos::ppo_trxl::{Agent, Args, MemoryWindow, TrainState, TrxlSizes, memory_window};
use podracer::algos::registry;
use podracer::envs::ObsKind;
use podracer::export::artifact::PyTree;
use podracer::optim::Adam;
use podracer::rl::checkpoint::saved::{SavedMetadata, load_model};
use podracer::rl::{Algorithm, checkpoint};
use podracer::{Array, Key, Tensor, interpret, jit};

use super::cases::{args, refused};
use super::{DIVERGING, expect_traced_nan, scalars};

/// Episodes of up to 16 steps, and a window of four.
const SMALL: &[&str] = &[
    "--total-timesteps=192",
    "--num-envs=3",
    "--num-steps=32",
    "--num-minibatches=4",
    "--update-epochs=2",
    "--trxl-num-layers=2",
    "--trxl-num-heads=2",
    "--trxl-dim=8",
    "--trxl-memory-length=4",
];

const WINDOW: usize = 4;

/// Row `step` of CleanRL's tables of window indices and masks.
fn row_of(step: usize) -> ([usize; WINDOW], [bool; WINDOW]) {
    let first = (step + 1).saturating_sub(WINDOW);
    let ones = step.min(WINDOW - 1);
    (std::array::from_fn(|k| first + k), std::array::from_fn(|k| k < ones))
}

#[test]
fn windows_are_those_of_cleanrls_tables() {
    // Twelve steps of two environments; memory `n * 100 + t` is that of step t of environment n. The
    // first episode begins four steps before the rollout, others in it.
    let starts_at: [&[i32]; 2] = [&[-2, 3], &[-4, 0, 9]];
    let (rows, steps) = (WINDOW + 12, 12);
    let stored: Vec<f32> = (0..2)
        .flat_map(|n| (0..rows).map(move |row| (n * 100 + row) as f32 - WINDOW as f32))
        .collect();
    let (mut starts, mut episode_steps) = (Vec::new(), Vec::new());
    for t in 0..steps {
        for (n, begins) in starts_at.iter().enumerate() {
            let begin = *begins.iter().rfind(|&&begin| begin <= t as i32).unwrap();
            starts.push((n * rows + t) as i32);
            episode_steps.push(t as i32 - begin);
        }
    }
    let run = interpret(|(stored, starts, episode_steps): (Tensor, Tensor, Tensor)| {
        memory_window(stored, starts, episode_steps, WINDOW)
    });
    let column = |values: &[i32]| Array::new([values.len()], values).unwrap();
    let stored = Array::new([2 * rows, 1, 1], &stored).unwrap();
    let window = run.call((stored, column(&starts), column(&episode_steps))).unwrap();
    let (memories, indices) =
        (window.memories.to_vec::<f32>().unwrap(), window.indices.to_vec::<i32>().unwrap());
    let mask = window.mask.to_vec::<bool>().unwrap();
    for (sample, &now) in episode_steps.iter().enumerate() {
        let (t, n) = (sample / 2, sample % 2);
        let (steps_of, ones) = row_of(now as usize);
        for k in 0..WINDOW {
            let at = sample * WINDOW + k;
            assert_eq!((indices[at], mask[at]), (steps_of[k] as i32, ones[k]), "{t} {n} {k}");
            // Memories of steps to come are not there yet.
            let time = t as f32 - (now as f32 - steps_of[k] as f32);
            let expected = if ones[k] { n as f32 * 100.0 + time } else { 0.0 };
            assert_eq!(memories[at], expected, "step {t} of environment {n}, {k}");
        }
    }
}

/// A gradient step on all samples of a rollout, before anything has changed.
fn first_update(more: &[&str]) -> Vec<(String, f32)> {
    let runs = tempfile::tempdir().unwrap();
    let once = [
        "--total-timesteps=192",
        "--num-steps=64",
        "--num-minibatches=1",
        "--update-epochs=1",
        "--mode=interpret",
    ];
    let flags = [&once[..], more].concat();
    let summary = args::<Args>(runs.path(), SMALL, &flags).train().unwrap();
    scalars(&summary.run_dir).into_iter().map(|((tag, _), values)| (tag, values[0])).collect()
}

#[test]
fn an_update_computes_what_acting_computed() {
    for more in [
        &["--env-id=ProofofMemory-v0"][..],
        &["--env-id=ProofofMemory-v0", "--trxl-positional-encoding=learned"],
        &["--env-id=CartPolePositions-v0", "--trxl-positional-encoding=none"],
        &["--env-id=MiniGrid-MemoryS7-v0", "--trxl-memory-length=16"],
        &["--env-id=Harvest-v0", "--trxl-memory-length=1"],
    ] {
        let logged = first_update(more);
        let value = |tag: &str| logged.iter().find(|(name, _)| name == tag).unwrap().1;
        for tag in ["losses/old_approx_kl", "losses/approx_kl", "losses/clipfrac"] {
            assert!(value(tag).abs() < 1e-6, "{more:?}: {tag} is {}", value(tag));
        }
        assert!(value("losses/entropy") > 0.5 && value("losses/value_loss") >= 0.0, "{logged:?}");
    }
}

/// The policy of a model, as it is exported and evaluated, and the network of the same model on windows
/// made by hand.
#[test]
fn the_policy_remembers_the_steps_of_its_episode() {
    let runs = tempfile::tempdir().unwrap();
    let flags = ["--save-model", "--eval-episodes=1", "--env-id=ProofofMemory-v0"];
    let args: Args = args(runs.path(), SMALL, &flags);
    let summary = args.train().unwrap();
    let path = Path::new(&summary.run_dir).join("ppo_trxl.safetensors");
    let metadata = SavedMetadata::read(&path).unwrap();
    let exported = registry::policy(&path, &metadata).unwrap().exported("policy", 1).unwrap();
    let types: Vec<String> = exported.in_types().iter().map(ToString::to_string).collect();
    assert_eq!(types, ["f32[1,3]", "f32[5,1,16]"]);
    let PyTree::Dict(names) = exported.out_tree() else { panic!("{exported}") };
    let index = |name: &str| names.iter().position(|(other, _)| other == name).unwrap();

    let sizes = TrxlSizes {
        obs_kind: ObsKind::Vector,
        shape: [3].into(),
        nvec: vec![2],
        max_episode_steps: 16,
    };
    let saved = checkpoint::load(&path).unwrap();
    let agent = load_model(&saved, |key| {
        let agent = Agent::init(key, &sizes, &args);
        TrainState { opt_state: Adam::default().init(&agent), agent }
    })
    .unwrap()
    .agent;
    type Input<T> = (Agent<T>, T, MemoryWindow<T>);
    let network = jit(|(agent, obs, window): Input<Tensor>| {
        let output = agent.apply(obs, &window);
        (output.policy.components[0].logits, output.memory)
    });
    let mut state = Array::zeros([5, 1, 16], podracer::DType::F32);
    let mut memories: Vec<Vec<f32>> = Vec::new();
    for step in 0..10 {
        let obs = Array::new([1, 3], &[1.0, 0.1 * step as f32, -1.0]).unwrap();
        let results = exported.call(&[obs.clone(), state]).unwrap();
        state = results[index("next_state")].clone();

        let (indices, mask) = row_of(step);
        let of = |k: usize| if mask[k] { memories[indices[k]].clone() } else { vec![0.0; 16] };
        let window = MemoryWindow {
            memories: Array::new([1, WINDOW, 2, 8], &(0..WINDOW).flat_map(of).collect::<Vec<_>>())
                .unwrap(),
            mask: Array::new([1, WINDOW], &mask).unwrap(),
            indices: Array::new([1, WINDOW], &indices.map(|index| index as i32)).unwrap(),
        };
        let (logits, memory) = network.call((agent.clone(), obs, window)).unwrap();
        memories.push(memory.to_vec().unwrap());
        let ours = results[index("logits")].to_vec::<f32>().unwrap();
        for (a, b) in ours.iter().zip(logits.to_vec::<f32>().unwrap()) {
            assert!((a - b).abs() < 1e-5, "step {step}: {a}, expected {b}");
        }
    }
}

#[test]
fn interpreted_and_compiled_runs_agree() {
    let runs = tempfile::tempdir().unwrap();
    let log = |mode: &str| {
        let flags = ["--mode", mode, "--num-steps=16", "--total-timesteps=96"];
        scalars(&args::<Args>(runs.path(), SMALL, &flags).train().unwrap().run_dir)
    };
    let (jit, other) = (log("jit"), log("interpret"));
    assert_eq!(jit.keys().filter(|(tag, _)| tag == "losses/value_loss").count(), 2);
    assert_eq!(jit.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (key, values) in &jit {
        for (a, b) in values.iter().zip(&other[key]) {
            // Two updates, of which the second sees the roundings of the first.
            assert!((a - b).abs() <= 1e-3 * a.abs().max(1.0), "{key:?}: {a}, interpreted {b}");
        }
    }
}

#[test]
fn images_are_reconstructed() {
    let runs = tempfile::tempdir().unwrap();
    let flags = [
        "--env-id=Pong-v5",
        "--num-envs=2",
        "--num-steps=4",
        "--total-timesteps=16",
        "--num-minibatches=2",
        "--reconstruction-coef=0.1",
    ];
    let summary = args::<Args>(runs.path(), SMALL, &flags).train().unwrap();
    let logged = scalars(&summary.run_dir);
    let of = |tag: &str, step| logged[&(format!("losses/{tag}"), step)][0];
    // Of pixels that are 0.5 the loss is log 2.
    let loss = of("reconstruction_loss", 8);
    assert!(loss > 0.3 && loss < 1.0, "{loss}");
    assert!(of("reconstruction_loss", 16) < loss, "it does not fall");
}

/// Returns the largest absolute value of a bias.
fn largest(bias: Option<&Array>) -> f32 {
    let values = bias.unwrap().to_vec::<f32>().unwrap();
    values.into_iter().fold(0.0, |largest, x| x.abs().max(largest))
}

/// A kernel of PyTorch's `ConvTranspose2d` is `[inputs, outputs, window, window]`: `orthogonal_`
/// makes the parts of the inputs orthonormal, and the fan-in of the bias is the size of a part.
#[test]
fn initial_weights_are_distributed_as_in_pytorch() {
    let sizes = TrxlSizes {
        obs_kind: ObsKind::Image,
        shape: [3, 84, 84].into(),
        nvec: vec![2],
        max_episode_steps: 16,
    };
    let flags = ["--trxl-dim=8", "--trxl-num-layers=1", "--reconstruction-coef=0.1"];
    let args = Args::from_flags(flags).unwrap();
    let run = jit(|key: Key<Tensor>| {
        let agent = Agent::init(key, &sizes, &args);
        (agent.convs, agent.transposed_cnn)
    });
    let (encoder, decoder) = run.call(Key::new(1)).unwrap();
    for conv in &encoder.convs {
        let bound = 1.0 / (conv.w.shape()[..3].iter().product::<usize>() as f32).sqrt();
        let largest = largest(conv.b.as_ref());
        assert!(largest <= 1.000_001 * bound && largest > 0.5 * bound, "{largest}, {bound}");
    }
    for conv in &decoder.unwrap().convs {
        let [height, width, inputs, outputs]: [usize; 4] =
            std::array::from_fn(|axis| conv.w.shape()[axis]);
        let values = conv.w.to_vec::<f32>().unwrap();
        // Element `[y, x, input, output]`, with `at` counting y, x and the output.
        let element = |at: usize, input: usize| {
            f64::from(values[(at / outputs * inputs + input) * outputs + at % outputs])
        };
        let size = height * width * outputs;
        for a in 0..inputs {
            for b in 0..=a {
                let product: f64 = (0..size).map(|at| element(at, a) * element(at, b)).sum();
                let expected = if a == b { 2.0 } else { 0.0 };
                assert!((product - expected).abs() < 1e-4, "inputs {a} and {b}: {product}");
            }
        }
        let (bound, largest) = (1.0 / (size as f32).sqrt(), largest(conv.b.as_ref()));
        assert!(largest <= 1.000_001 * bound && largest > 0.1 * bound, "{largest}, {bound}");
    }
}

#[test]
fn a_nan_of_a_rollout_is_traced_to_its_operation() {
    let runs = tempfile::tempdir().unwrap();
    let flags = [&DIVERGING[..], &["--init-lr=1e15"]].concat();
    expect_traced_nan(args::<Args>(runs.path(), SMALL, &flags).train());
}

#[test]
fn settings_out_of_range_are_refused() {
    let error = |flags: &[&str]| refused::<Args>(SMALL, flags);
    assert_eq!(
        error(&["--trxl-dim=10", "--trxl-num-heads=4"]),
        "--trxl-dim 10: must be even, and a multiple of --trxl-num-heads 4"
    );
    assert_eq!(
        error(&["--reconstruction-coef=0.1"]),
        "--reconstruction-coef 0.1: must be 0: observations of ProofofMemory-v0 are not images of 84 by 84"
    );
    let two = error(&["--env-id=ConnectFour-v0"]);
    assert!(
        two.contains("MultiDiscrete actions of one player, and this environment has 2"),
        "{two}"
    );
    assert!(error(&["--trxl-num-layers=0"]).contains("--trxl-num-layers 0: must be"));
}

#[test]
fn both_coefficients_are_annealed() {
    let args =
        Args::from_flags(["--anneal-steps=1000", "--init-lr=0.5", "--final-lr=0.1"]).unwrap();
    let (rate, coefficient) = args.annealed(250);
    assert!((rate - 0.4).abs() < 1e-12, "{rate}");
    assert!((coefficient - (0.75 * 99e-6 + 1e-6)).abs() < 1e-12, "{coefficient}");
    assert_eq!(args.annealed(1000), (0.1, 1e-6));
    assert_eq!(Args::from_flags(["--anneal-steps=0"]).unwrap().annealed(0), (1e-5, 1e-6));
}
