//! Agents of the Anakin algorithms: runs that are resumed to a larger total, agents that diverge, and
//! environments of JAX with states of integers.

use std::fs;
use std::path::Path;

use podracer::algos::{dqn_anakin, ppo_anakin, ppo_anakin_gru};
use podracer::rl::{Algorithm, Summary, checkpoint};

use super::models::model;
use super::scalars;

/// Updates of 32 timesteps.
const ROLLOUTS: &[&str] = &[
    "--num-envs=2",
    "--num-steps=16",
    "--num-minibatches=2",
    "--update-epochs=1",
    "--env-id=CartPole-v1",
    "--no-anneal-lr",
];

/// Updates of the target network every 32 timesteps.
const REPLAY: &[&str] = &[
    "--num-envs=2",
    "--learning-starts=32",
    "--train-frequency=8",
    "--target-network-frequency=32",
    "--buffer-size=128",
    "--batch-size=8",
];

fn train<A: Algorithm>(runs: &Path, flags: &[&[&str]]) -> Summary {
    let runs = format!("--runs-dir={}", runs.display());
    let flags = [&flags.concat()[..], &["--json", &runs]].concat();
    A::from_flags(flags).unwrap().train().unwrap()
}

/// Returns the steps at which a tag was logged.
fn steps(summary: &Summary, tag: &str) -> Vec<u64> {
    let logged = scalars(&summary.run_dir);
    logged.keys().filter(|(name, _)| name == tag).map(|(_, step)| *step).collect()
}

/// Three updates in calls of two are resumed to six: again a call of two and one of one. The training loop is
/// the same for all algorithms.
fn resumes_to_a_larger_total<A: Algorithm>(small: &[&str], seeds: u64, tag: &str) {
    let runs = tempfile::tempdir().unwrap();
    let seed_flag = format!("--num-seeds={seeds}");
    let more = ["--updates-per-call=2", "--checkpoint-frequency=32", "--total-timesteps=96"];
    let mut summary = train::<A>(runs.path(), &[small, &more, &[&seed_flag]]);
    // No update fits into the last 8 timesteps.
    for total in [96, 192, 200] {
        if total > 96 {
            let run = format!("--resume={}", summary.run_dir);
            let total = format!("--total-timesteps={total}");
            summary = train::<A>(runs.path(), &[&[&run, &total]]);
        }
        let expected: Vec<u64> = (1..=total / 32).map(|update| update * 32).collect();
        assert_eq!(steps(&summary, tag), expected, "{} of {seeds} seeds", A::NAME);
        assert_eq!(summary.global_step, total / 32 * 32 * seeds);
    }
    let saved = checkpoint::load(Path::new(&summary.run_dir).join("checkpoint.safetensors"));
    let saved = saved.unwrap();
    let counts = saved.entries().find(|entry| entry.name.ends_with("num_updates")).unwrap();
    let counts: Vec<i32> = counts.data.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    assert_eq!(counts, vec![6; seeds as usize]);
}

#[test]
fn three_agents_of_ppo_resume_to_a_larger_total() {
    resumes_to_a_larger_total::<ppo_anakin::Args>(ROLLOUTS, 3, "losses/value_loss");
}

#[test]
fn dqn_resumes_to_a_larger_total() {
    resumes_to_a_larger_total::<dqn_anakin::Args>(REPLAY, 1, "losses/td_loss");
}

/// Writes an environment of JAX: the names of the leaves of its state, and the equations of `reset` and
/// `step`, which return observation, state, reward, termination and truncation.
fn write_jax_env(folder: &Path, leaves: &[&str], limit: &str, [reset, step]: [&str; 2]) {
    let names = |prefix: &str| -> Vec<String> {
        leaves.iter().map(|name| format!("\"{prefix}['{name}']\"")).collect()
    };
    let (states, results) = (names("state").join(", "), names("result[1]").join(", "));
    let heading = |inputs: &str, outputs: &str, more: &str| {
        format!(
            "# podracer program {{\"version\": 1, \"inputs\": [{inputs}], \"outputs\": [{outputs}]{more}}}\n"
        )
    };
    let environment = format!(
        ", \"environment\": {{\"id\": \"test\", \"observation\": {{\"kind\": \"box\", \"shape\": [1], \
         \"dtype\": \"float32\", \"low\": null, \"high\": null}}, \"action\": {{\"kind\": \
         \"discrete\", \"n\": 2}}, \"max_episode_steps\": {limit}, \"reward_threshold\": null}}"
    );
    let first = heading("\"key\"", &format!("\"result[0]\", {results}"), "");
    fs::write(folder.join("reset.txt"), first + reset).unwrap();
    let inputs = format!("\"key\", {states}, \"action\"");
    let outputs = format!("\"result[0]\", {results}, \"result[2]\", \"result[3]\", \"result[4]\"");
    fs::write(folder.join("step.txt"), heading(&inputs, &outputs, &environment) + step).unwrap();
}

/// A counter from 2139095041, which f32 does not have, and whose bits are a signaling NaN as f32; each step
/// in which it is exact gives 1.
const I32_COUNTER: [&str; 2] = [
    "{ lambda a:u32[2]. let
  b:f32[1] = reshape[shape=[1]] 0.0:f32[]
 in (b, 2139095041:i32[], 0:i32[]) }
",
    "{ lambda a:u32[2] b:i32[] c:i32[] d:i32[]. let
  e:i32[] = sub b 2139095041:i32[]
  f:bool[] = eq e c
  g:f32[] = convert[dtype=f32] f
  h:i32[] = add b 1:i32[]
  i:i32[] = add c 1:i32[]
  j:f32[1] = reshape[shape=[1]] g
  k:bool[] = lt i 0:i32[]
 in (j, h, i, g, k, k) }
",
];

/// The same with a counter from 2^32 - 7, which wraps around.
const U32_COUNTER: [&str; 2] = [
    "{ lambda a:u32[2]. let
  b:f32[1] = reshape[shape=[1]] 0.0:f32[]
 in (b, 4294967289:u32[], 0:i32[]) }
",
    "{ lambda a:u32[2] b:u32[] c:i32[] d:i32[]. let
  e:u32[] = sub b 4294967289:u32[]
  l:u32[] = convert[dtype=u32] c
  f:bool[] = eq e l
  g:f32[] = convert[dtype=f32] f
  h:u32[] = add b 1:u32[]
  i:i32[] = add c 1:i32[]
  j:f32[1] = reshape[shape=[1]] g
  k:bool[] = lt i 0:i32[]
 in (j, h, i, g, k, k) }
",
];

/// Episodes of ten steps have the return 10, in one run and in one that is resumed.
fn keeps_integers<A: Algorithm>(small: &[&str], programs: [&str; 2]) {
    let folder = tempfile::tempdir().unwrap();
    write_jax_env(folder.path(), &["count", "steps"], "10", programs);
    let env_id = format!("--env-id=jax:{}", folder.path().display());
    let runs = tempfile::tempdir().unwrap();
    let more = ["--total-timesteps=96", "--checkpoint-frequency=32", &env_id];
    let first = train::<A>(runs.path(), &[small, &more]);
    let run = format!("--resume={}", first.run_dir);
    let summary = train::<A>(runs.path(), &[&[&run, "--total-timesteps=192"]]);
    let logged = scalars(&summary.run_dir);
    let returns = logged.iter().filter(|((tag, _), _)| tag == "charts/episodic_return");
    let returns: Vec<f32> = returns.flat_map(|(_, values)| values.clone()).collect();
    let exact = returns.iter().all(|x| *x == 10.0);
    assert!(returns.len() >= 6 && exact, "{}: {returns:?}", A::NAME);
}

#[test]
fn states_of_i32_are_exact() {
    keeps_integers::<ppo_anakin::Args>(ROLLOUTS, I32_COUNTER);
    keeps_integers::<dqn_anakin::Args>(REPLAY, I32_COUNTER);
}

#[test]
fn states_of_u32_are_exact() {
    let batched = ["--num-seeds=2", "--seed-axis=vmap"];
    keeps_integers::<ppo_anakin::Args>(&[ROLLOUTS, &batched].concat(), U32_COUNTER);
}

/// Rewards are NaN in an episode whose key has an odd first word, else 0. Episodes do not end.
const NAN_REWARDS: [&str; 2] = [
    "{ lambda a:u32[2]. let
  b:f32[1] = reshape[shape=[1]] 0.0:f32[]
  c:u32[1] = slice[start=(0) limit=(1)] a
  d:u32[] = reshape[shape=[]] c
  e:u32[] = and d 1:u32[]
  f:f32[] = convert[dtype=f32] e
 in (b, f) }
",
    "{ lambda a:u32[2] b:f32[] c:i32[]. let
  d:f32[] = sub 1.0:f32[] b
  e:f32[] = div 0.0:f32[] d
  f:f32[1] = reshape[shape=[1]] b
  g:bool[] = lt c 0:i32[]
 in (f, b, e, g, g) }
",
];

/// The agents whose rewards are NaN are named, and the others are those that are trained alone.
fn others_survive_a_divergence<A: Algorithm>(small: &[&str], layer: &str) {
    let folder = tempfile::tempdir().unwrap();
    write_jax_env(folder.path(), &["odd"], "null", NAN_REWARDS);
    let env_id = format!("--env-id=jax:{}", folder.path().display());
    let runs = tempfile::tempdir().unwrap();
    let more = [
        "--num-envs=1",
        "--total-timesteps=64",
        "--save-model",
        "--eval-episodes=0",
        "--mode=interpret",
    ];
    let weights = |summary: &Summary| -> Vec<u8> {
        model(summary).into_iter().find(|(name, _)| name == layer).unwrap().1
    };
    let runs_dir = format!("--runs-dir={}", runs.path().display());
    let alone = |seed: u64| {
        let seed = format!("--seed={seed}");
        let flags = [small, &more, &[&env_id, &seed, "--json", &runs_dir]].concat();
        A::from_flags(flags).unwrap().train()
    };
    let alone: Vec<_> = (1..=6).map(alone).collect();
    let diverged: Vec<usize> = (0..6).filter(|i| alone[*i].is_err()).collect();
    assert!((1..6).contains(&diverged.len()), "{diverged:?}");

    let many = train::<A>(runs.path(), &[small, &more, &[&env_id, "--seed=1", "--num-seeds=6"]]);
    let all = weights(&many);
    for (i, one) in alone.iter().enumerate() {
        let row = many.details.lines().nth(i + 1).unwrap();
        assert_eq!(row.ends_with("diverged"), one.is_err(), "{}", many.details);
        let Ok(one) = one else { continue };
        let one = weights(one);
        assert!(all[i * one.len()..(i + 1) * one.len()] == one, "seed {}", i + 1);
    }
    let named = many.details.lines().last().unwrap();
    assert!(named.starts_with(&format!("diverged: seed {} at step ", diverged[0] + 1)), "{named}");
    assert_eq!(named.matches(" at step ").count(), diverged.len(), "{named}");
    // Means are those of the agents that did not diverge. Rewards of 0 have no explained variance.
    let logged = scalars(&many.run_dir);
    let means = logged.iter().filter(|((tag, _), _)| !tag.ends_with("explained_variance"));
    assert!(means.flat_map(|(_, values)| values).all(|x| x.is_finite()));
}

/// Steps without the end of an episode and negative integers in the packed state are no NaN.
#[test]
fn check_nans_finds_the_operation_of_a_nan_alone() {
    let runs = tempfile::tempdir().unwrap();
    let breakout = ["--env-id=MinAtar/Breakout-v1", "--total-timesteps=128", "--check-nans"];
    let rollouts = [&ROLLOUTS[..4], &ROLLOUTS[5..]].concat();
    train::<ppo_anakin::Args>(runs.path(), &[&rollouts, &breakout]);
    train::<ppo_anakin_gru::Args>(runs.path(), &[&rollouts, &breakout]);
    train::<dqn_anakin::Args>(runs.path(), &[REPLAY, &breakout]);
    let runs = format!("--runs-dir={}", runs.path().display());
    let diverges = ["--learning-rate=1e15", "--vf-coef=1e15", "--json", &runs];
    let flags = [&rollouts[..], &breakout, &diverges].concat();
    let error = ppo_anakin::Args::from_flags(flags).unwrap().train().unwrap_err().to_string();
    assert!(error.contains("makes the first NaN") && !error.contains("bitcast"), "{error}");
}

#[test]
fn a_diverged_agent_does_not_end_the_others() {
    let layer = "$.train_state.agent.actor[0].w";
    let rollouts = ["--num-steps=16", "--num-minibatches=1", "--update-epochs=1"];
    others_survive_a_divergence::<ppo_anakin::Args>(&rollouts, layer);
    others_survive_a_divergence::<dqn_anakin::Args>(REPLAY, "$.q.layers.layers[0].w");
}
