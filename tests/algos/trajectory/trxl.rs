//! PPO with a Transformer-XL: `tests/fixtures/algos/cleanrl/trxl.py` recorded CleanRL's `ppo_trxl.py`.

use podracer::algos::ppo_trxl::{
    Agent, Args, Metrics, Rollout, Samples, TrainState, TrxlSizes, make_samples, minibatch_step,
};
use podracer::envs::ObsKind;
use podracer::rl::{Algorithm, merge_time_and_env};
use podracer::{Array, DType, Tensor, jit};

use super::{Trajectory, adam_state, choices, flags, floats, integers, minibatches, scaled, start};

const STEPS: usize = 8;
const ENVS: usize = 4;
const WINDOW: usize = 4;
const DIM: usize = 8;

/// Steps of the episodes, which begin before the rollout.
fn episode_steps() -> Array {
    let ends = flags("ends", 4, [STEPS, ENVS]).to_vec::<f32>().unwrap();
    let mut steps = integers("steps", 7, ENVS);
    for at in 0..(STEPS - 1) * ENVS {
        steps.push(if ends[at] == 1.0 { 0 } else { steps[at] + 1 });
    }
    Array::new([STEPS, ENVS], &steps).unwrap()
}

fn actions(nvec: &[usize]) -> Array {
    let components: Vec<Vec<i32>> = (0..nvec.len())
        .map(|i| integers(&format!("actions {i}"), nvec[i] as u32, STEPS * ENVS))
        .collect();
    let values: Vec<i32> =
        (0..STEPS * ENVS).flat_map(|at| components.iter().map(move |one| one[at])).collect();
    Array::new([STEPS, ENVS, nvec.len()], &values).unwrap()
}

/// Follows the first `updates` updates of the fixture of this name.
fn follows_cleanrl(
    name: &'static str,
    sizes: &TrxlSizes,
    obs: Array,
    updates: usize,
    more: &[&str],
) {
    let flags_of = [
        "--num-steps=8",
        "--num-envs=4",
        "--num-minibatches=4",
        "--update-epochs=5",
        "--trxl-dim=8",
        "--trxl-num-heads=2",
        "--trxl-memory-length=4",
    ];
    let args = Args::from_flags(flags_of.into_iter().chain(more.iter().copied())).unwrap();
    let layers = args.trxl_num_layers;
    let components = sizes.nvec.len();
    let logprobs = floats("logprobs", [STEPS, ENVS, components]).to_vec::<f32>().unwrap();
    let logprobs: Vec<f32> = logprobs.iter().map(|x| x * 0.5 - 1.0).collect();
    let rollout = Rollout {
        obs,
        episode_steps: episode_steps(),
        actions: actions(&sizes.nvec),
        logprobs: Array::new([STEPS, ENVS, components], &logprobs).unwrap(),
        values: floats("values", [STEPS, ENVS]),
        rewards: floats("rewards", [STEPS, ENVS]),
        dones: flags("ends", 4, [STEPS, ENVS]),
        stored_memories: scaled("memories", 1.0, [ENVS, WINDOW + STEPS, layers, DIM]),
        next_value: floats("next_value", [ENVS]),
    };
    let prepare = jit(|rollout: Rollout<Tensor>| {
        let stored_memories = merge_time_and_env(rollout.stored_memories);
        (make_samples(rollout, &args).0, stored_memories)
    });
    let data = prepare.call(rollout).unwrap();
    type Inputs<T> = (TrainState<T>, (Samples<T>, T), T, (T, T));
    let step = jit(|(train_state, data, indices, coefficients): Inputs<Tensor>| {
        let output: (TrainState<Tensor>, Metrics<Tensor>) =
            minibatch_step(train_state, data, indices, coefficients, &args);
        output
    });
    let (learning_rate, ent_coef) = args.annealed(1000);
    let agent = start("", |key| Agent::init(key, sizes, &args));
    let mut train_state = TrainState { opt_state: adam_state(&agent), agent };
    let recorded = Trajectory::of(name);
    for (update, indices) in minibatches(5, 4, STEPS * ENVS).into_iter().take(updates).enumerate() {
        let coefficients = [learning_rate, ent_coef].map(|x| Array::from(x as f32));
        let metrics;
        (train_state, metrics) =
            step.call((train_state, data.clone(), indices, coefficients.into())).unwrap();
        assert!(metrics.loss.item::<f32>().unwrap().is_finite());
        recorded.check(update, &train_state.agent);
    }
}

#[test]
fn ppo_trxl_follows_cleanrl() {
    let sizes = TrxlSizes {
        obs_kind: ObsKind::Vector,
        shape: [3].into(),
        nvec: vec![3, 2],
        max_episode_steps: 16,
    };
    let obs = floats("obs", [STEPS, ENVS, 3]);
    let flags = ["--trxl-num-layers=2", "--anneal-steps=4000", "--init-ent-coef=0.01"];
    follows_cleanrl("ppo_trxl", &sizes, obs, 20, &flags);
}

#[test]
fn ppo_trxl_follows_cleanrl_on_images() {
    let sizes = TrxlSizes {
        obs_kind: ObsKind::Image,
        shape: [3, 84, 84].into(),
        nvec: vec![3],
        max_episode_steps: 16,
    };
    let shape = [STEPS, ENVS, 3, 84, 84];
    let bytes: Vec<u8> =
        choices("obs", 256, shape).to_vec::<i32>().unwrap().iter().map(|&x| x as u8).collect();
    let obs = Array::new(shape, &bytes).unwrap();
    assert_eq!(obs.dtype(), DType::U8);
    let flags = [
        "--trxl-num-layers=1",
        "--trxl-positional-encoding=learned",
        "--reconstruction-coef=0.1",
        "--norm-adv",
    ];
    // Rounding errors reach the tolerance after thirteen updates.
    follows_cleanrl("ppo_trxl_images", &sizes, obs, 12, &flags);
}
