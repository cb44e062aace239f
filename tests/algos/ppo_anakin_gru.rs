//! PPO with a GRU in one program: two updates against JAX, seeds and modes, its memory, refused settings.

use std::path::Path;

use podracer::algos::ppo_anakin_gru::{
    Agent, Args, FlatTrainState, Metrics, Samples, TracedArgs, gradient_step,
};
use podracer::nn::{GruCell, RecurrentCell, RecurrentState};
use podracer::optim::Adam;
use podracer::rl::{Algorithm, checkpoint};
use podracer::trace::jacobian::ravel;
use podracer::trace::ops::constant;
use podracer::{Array, DType, Tensor, interpret};

use super::cases::Case;
use super::scalars;

const SMALL: &[&str] = &[
    "--total-timesteps=96",
    "--num-envs=2",
    "--num-steps=16",
    "--num-minibatches=2",
    "--update-epochs=2",
    "--json",
    "--updates-per-call=1",
];

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    Args::from_flags(SMALL.iter().chain(more).copied().chain([&*runs])).unwrap()
}

/// Five steps of two environments, an agent of four units, and two gradient steps on them.
#[test]
fn two_updates_equal_jax() {
    let case = Case::of("ppo_anakin_gru");
    let agent = Agent {
        embedding: case.dense("embedding_w", "embedding_b"),
        gru: RecurrentCell::Gru(GruCell {
            w_i: case.f32("w_i"),
            w_h: case.f32("w_h"),
            b: case.f32("gru_b"),
            b_n: case.f32("b_n"),
        }),
        actor: [case.dense("actor0_w", "actor0_b"), case.dense("actor1_w", "actor1_b")],
        critic: [case.dense("critic0_w", "critic0_b"), case.dense("critic1_w", "critic1_b")],
        log_std: None,
    };
    let batch = Samples {
        initial_hidden: RecurrentState::One(case.f32("hidden")),
        obs: case.f32("obs"),
        episode_starts: case.f32("starts"),
        actions: case.i32("actions"),
        logprobs: case.f32("logprobs"),
        advantages: case.f32("advantages"),
        returns: case.f32("returns"),
        values: case.f32("values"),
    };
    let args = Args::from_flags(["--learning-rate=0.01"]).unwrap();
    type Updated<T> = (Agent<T>, Metrics<T>, Vec<T>);
    let run = interpret(|(agent, batch): (Agent<Tensor>, Samples<Tensor>)| -> Updated<Tensor> {
        let batch = Samples { episode_starts: batch.episode_starts.to(DType::Bool), ..batch };
        let mut hidden = batch.initial_hidden;
        let mut rows = Vec::new();
        for step in 0..5 {
            let [obs, start] =
                [batch.obs, batch.episode_starts].map(|x: Tensor| x.index_axis(0, step));
            let (next, output) = agent.gru_step(obs, start, hidden);
            hidden = next;
            rows.push(output);
        }
        let (params, unravel) = ravel(&agent);
        let opt_state = Adam::default().init(&params);
        let mut state = FlatTrainState { params, opt_state };
        let args = TracedArgs::new(&args, &[]);
        let rate = constant(0.01f32);
        (state, _) = gradient_step(state, &unravel, &batch, rate, &args);
        let (state, metrics) = gradient_step(state, &unravel, &batch, rate, &args);
        (unravel(state.params), metrics, rows)
    });
    let (updated, metrics, rows) = run.call((agent, batch)).unwrap();
    let rows: Vec<f32> = rows.iter().flat_map(|row| row.to_vec::<f32>().unwrap()).collect();
    case.close("hidden_units", &Array::new([5, 2, 4], &rows).unwrap());
    // After the first of two updates, and after both.
    case.close("second_loss", &metrics.loss);
    case.close("second_value_loss", &metrics.value_loss);
    case.close("second_policy_loss", &metrics.policy_loss);
    case.close("second_entropy", &metrics.entropy);
    let RecurrentCell::Gru(gru) = &updated.gru else { panic!("another cell") };
    case.close("updated_w_i", &gru.w_i);
    case.close("updated_w_h", &gru.w_h);
    case.close("updated_gru_b", &gru.b);
    case.close("updated_b_n", &gru.b_n);
    case.close("updated_embedding_w", &updated.embedding.w);
    case.close("updated_actor0_w", &updated.actor[0].w);
    case.close("updated_actor1_b", updated.actor[1].b.as_ref().unwrap());
    case.close("updated_critic0_b", updated.critic[0].b.as_ref().unwrap());
    case.close("updated_critic1_w", &updated.critic[1].w);
}

#[test]
fn every_mode_logs_the_same_losses() {
    let runs = tempfile::tempdir().unwrap();
    let log = |mode: &str| {
        let flags = ["--mode", mode, "--total-timesteps=64", "--env-id=CartPolePositions-v0"];
        scalars(&args(runs.path(), &flags).train().unwrap().run_dir)
    };
    let (jit, other) = (log("jit"), log("interpret"));
    assert_eq!(jit.keys().filter(|(tag, _)| tag == "losses/value_loss").count(), 2);
    assert_eq!(jit.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (key, values) in &jit {
        for (a, b) in values.iter().zip(&other[key]) {
            // Two updates, of which the second sees the roundings of the first.
            let close = (a - b).abs() <= 1e-3 * a.abs().max(1.0);
            assert!(close || (a.is_nan() && b.is_nan()), "{key:?}: {a}, host {b}");
        }
    }
}

#[test]
fn many_seeds_at_once_are_the_seeds_alone() {
    let runs = tempfile::tempdir().unwrap();
    let hidden = |flags: &[&str]| -> Vec<f32> {
        let more = ["--save-model", "--eval-episodes=1", "--env-id=CartPolePositions-v0"];
        let summary = args(runs.path(), &[flags, &more].concat()).train().unwrap();
        let file = Path::new(&summary.run_dir).join("ppo_anakin_gru.safetensors");
        let saved = checkpoint::load(file).unwrap();
        let entry = saved.entries().find(|entry| entry.name == "$.env_state.hidden").unwrap();
        entry.data.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
    };
    let many = hidden(&["--seed=5", "--num-seeds=2"]);
    assert_eq!(many.len(), 2 * 2 * 128);
    let alone = [hidden(&["--seed=5"]), hidden(&["--seed=6"])].concat();
    assert_eq!(many, alone);
    assert_ne!(alone[..256], alone[256..]);
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| args(runs.path(), flags).train().unwrap_err().to_string();
    assert_eq!(
        error(&["--num-minibatches=4"]),
        "--num-minibatches 4: must be a divisor of --num-envs 2: minibatches are whole environments"
    );
    let pooled = error(&["--env-id=FrozenLake-v1"]);
    assert!(pooled.contains("is in the pool only") && pooled.contains("CartPole-v1"), "{pooled}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run folder was created");
}
