//! `podracer export`: the files of a policy, run by JAX and ONNX Runtime of `PODRACER_PEER_PYTHON`,
//! give what Podracer gives.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use podracer::algos::registry;
use podracer::envs::{EnvPool, PoolOptions};
use podracer::export::Exported;
use podracer::export::artifact::PyTree;
use podracer::rl::checkpoint::saved::SavedMetadata;
use podracer::rl::{Evaluation, TrainedPolicy};
use podracer::{Array, DType, Literal, Mode, TensorType};
use serde_json::{Value, json};

use super::{peers, podracer, run, run_dir};

/// Trains with these words after `train`, saves the model, and returns the run's folder.
fn trained(runs: &Path, words: &str) -> PathBuf {
    let mut command = podracer(&["train"]);
    command.args(words.split_whitespace());
    command.args(["--save-model", "--eval-episodes", "0", "--num-threads", "1", "--runs-dir"]);
    let (status, _, err) = run({
        command.arg(runs);
        command
    });
    assert_eq!(status, 0, "{words}: {err}");
    let folder = run_dir(runs);
    // Ids such as MinAtar/Breakout-v1 have a folder of their own.
    if folder.ends_with("MinAtar") { run_dir(&folder) } else { folder }
}

/// Exports the policy of a run in all formats, and returns what the command prints.
fn exported(run_folder: &Path, out: &Path, batch_size: usize) -> String {
    let mut command = podracer(&["export", "--batch-size", &batch_size.to_string(), "--run"]);
    command.arg(run_folder).arg("--out").arg(out);
    let (status, text, err) = run(command);
    assert_eq!(status, 0, "{err}");
    text
}

/// Numbers that differ between elements: all bytes, or floats from -1 to 1.
fn sample(ty: &TensorType) -> Array {
    let shape = ty.shape.clone();
    let count = ty.numel() as u64;
    let bytes = (0..count).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8);
    match ty.dtype {
        DType::U8 => Array::from(Literal::new(shape, &bytes.collect::<Vec<u8>>())),
        DType::F32 => {
            let values: Vec<f32> = bytes.map(|byte| f32::from(byte) / 127.5 - 1.0).collect();
            Array::from(Literal::new(shape, &values))
        }
        DType::Bool => {
            let values: Vec<bool> = bytes.map(|byte| byte > 127).collect();
            Array::from(Literal::new(shape, &values))
        }
        other => panic!("a policy takes {other}"),
    }
}

fn value(array: &Array) -> Value {
    let literal = array.to_literal().unwrap();
    let dtype = match literal.ty().dtype {
        DType::Bool => "bool",
        DType::U8 => "uint8",
        DType::I32 => "int32",
        DType::F32 => "float32",
        other => panic!("{other}"),
    };
    json!({"dtype": dtype, "shape": literal.ty().shape.to_vec(), "data": literal.to_f64_vec()})
}

/// Names of the results, in the order of [`Exported::call`].
fn result_names(policy: &Exported) -> Vec<String> {
    let PyTree::Dict(results) = policy.out_tree() else { panic!("{policy}") };
    results.iter().map(|(name, _)| name.clone()).collect()
}

/// Writes `values.json`: inputs, and the results that the artifact gives here.
fn write_values(folder: &Path, printed: &str, scale: f64) {
    let policy = Exported::load(folder.join("policy.jaxexport")).unwrap();
    let inputs: Vec<Array> = policy.in_types().iter().map(sample).collect();
    let results = policy.call(&inputs).unwrap();
    let named = |names: &[String], arrays: &[Array]| -> Vec<Value> {
        names.iter().zip(arrays).map(|(name, array)| json!([name, value(array)])).collect()
    };
    let in_names = ["observation".to_string(), "state".to_string()];
    let order = printed.lines().find_map(|line| line.strip_prefix("  gives ")).unwrap();
    let values = json!({
        "in": named(&in_names, &inputs),
        "out": named(&result_names(&policy), &results),
        "scale": scale,
        "order": order.split(", ").collect::<Vec<_>>(),
    });
    fs::write(folder.join("values.json"), values.to_string()).unwrap();
}

/// Policies that one process of Python checks, with the words that trained them.
struct Policies {
    python: OsString,
    exported: Vec<(String, tempfile::TempDir)>,
}

impl Policies {
    /// `None` without a Python that has the peers.
    fn new() -> Option<Policies> {
        Some(Policies { python: peers::python("PODRACER_PEER_PYTHON")?, exported: Vec::new() })
    }

    /// Trains and exports. Results are to agree to 1e-6.
    fn add(&mut self, words: &str, results: &str) {
        self.add_at(1.0, words, results);
    }

    /// As [`Policies::add`], to 1e-6 of results that are sums of terms as great as `scale`.
    fn add_at(&mut self, scale: f64, words: &str, results: &str) {
        let (runs, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let printed = exported(&trained(runs.path(), words), out.path(), 3);
        assert!(printed.contains(&format!("\n  gives {results}\n")), "{printed}");
        assert!(printed.contains("policy.onnx: B is any size\n"), "{printed}");
        write_values(out.path(), &printed, scale);
        self.exported.push((words.into(), out));
    }

    /// Compares the results of JAX and ONNX Runtime with ours.
    fn agree(self) {
        let output = Command::new(self.python)
            .arg("tests/cli/export/check.py")
            .args(self.exported.iter().map(|(_, folder)| folder.path()))
            .env("JAX_PLATFORMS", "cpu")
            .output()
            .unwrap();
        let (text, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        for (words, folder) in &self.exported {
            println!("{}: {words}", folder.path().display());
        }
        println!("{text}");
        assert!(output.status.success(), "{err}");
    }
}

/// A few updates, in the interpreter: a process that compiles its programs takes longer.
const SMALL: &str = "--num-envs 2 --num-steps 8 --total-timesteps 64 --mode interpret";

#[test]
fn policies_of_vectors_agree_with_jax_and_onnx_runtime() {
    let Some(mut policies) = Policies::new() else { return };
    policies.add(&format!("ppo {SMALL}"), "action, logits");
    policies.add(&format!("a2c {SMALL}"), "action, logits");
    policies.add(&format!("pqn {SMALL}"), "action, q_values");
    policies.add(&format!("ppo_anakin {SMALL}"), "action, logits");
    policies.add(&format!("dpo_anakin {SMALL}"), "action, mean, std");
    policies.add("dqn_anakin --total-timesteps 500", "action, q_values");
    let sebulba = "--env-id Pendulum-v1 --local-num-envs 4 --num-steps 8 --num-minibatches 2 \
                   --gradient-accumulation-steps 1 --total-timesteps 64";
    policies.add(&format!("cleanba_ppo {sebulba}"), "action, mean, std");
    policies.add(&format!("ppo_masked {SMALL}"), "action, logits");
    let players = "--num-envs 8 --num-steps 8 --total-timesteps 64 --mode interpret";
    policies.add(&format!("ppo_self_play {players}"), "action, logits");
    let pendulum = format!("--env-id Pendulum-v1 {SMALL}");
    policies.add(&format!("ppo_anakin {pendulum}"), "action, mean, std");
    policies.add(&format!("a2c_continuous_action {pendulum}"), "action, mean, std");
    let few = format!("{pendulum} --num-minibatches 2");
    policies.add(&format!("ppo_continuous_action {few}"), "action, mean, std");
    policies.add(&format!("rpo_continuous_action {few}"), "action, mean, std");
    let lstm = format!("ppo_continuous_action_lstm --env-id PendulumPositions-v0 {SMALL}");
    for rnn in ["lstm", "gru", "mingru", "lru"] {
        let flags = format!("{lstm} --num-minibatches 2 --rnn {rnn}");
        policies.add(&flags, "action, mean, std, next_state");
    }
    policies.agree();
}

#[test]
fn policies_learned_from_a_replay_buffer_agree_with_jax_and_onnx_runtime() {
    let Some(mut policies) = Policies::new() else { return };
    let small = "--total-timesteps 600 --learning-starts 500 --buffer-size 1000 --batch-size 16";
    policies.add(&format!("dqn {small}"), "action, q_values");
    // The support is from -100 to 100.
    policies.add_at(100.0, &format!("c51 {small}"), "action, q_values");
    policies.add(&format!("qrdqn {small}"), "action, q_values");
    policies.add(&format!("iqn {small}"), "action, q_values");
    let pendulum = format!("--env-id Pendulum-v1 {small}");
    policies.add(&format!("sac_continuous_action {pendulum}"), "action, mean, std");
    policies.add(&format!("td3_continuous_action {pendulum}"), "action");
    policies.add(&format!("ddpg_continuous_action {pendulum}"), "action");
    policies.agree();
}

/// A rollout of two environments that is updated on once.
const ATARI: &str = "--env-id Pong-v5 --num-envs 2 --num-steps 16 --num-minibatches 2 \
                     --update-epochs 1 --total-timesteps 64";

#[test]
fn policies_of_images_agree_with_jax_and_onnx_runtime() {
    let Some(mut policies) = Policies::new() else { return };
    policies.add(&format!("ppo_atari {ATARI}"), "action, logits");
    let players = ATARI.replace("Pong-v5", "pong_v3");
    policies.add(&format!("ppo_pettingzoo_ma_atari {players}"), "action, logits");
    let impala = "--env-id Pong-v5 --local-num-envs 4 --num-steps 8 --num-minibatches 2 \
                  --gradient-accumulation-steps 1 --total-timesteps 64";
    policies.add(&format!("cleanba_impala {impala}"), "action, logits");
    let ppg = "--network impala --n-iteration 1 --num-aux-rollouts 1 --e-auxiliary 1 --e-policy 1";
    let rollout = "--env-id Pong-v5 --num-envs 2 --num-steps 8 --num-minibatches 2";
    policies.add(&format!("ppg {ppg} {rollout} --total-timesteps 16"), "action, logits");
    policies.add(&format!("ppo_atari_lstm {ATARI}"), "action, logits, next_state");
    policies.agree();
}

#[test]
fn the_policy_of_a_student_agrees_with_jax_and_onnx_runtime() {
    let Some(mut policies) = Policies::new() else { return };
    let small = "--env-id MinAtar/Breakout-v1 --total-timesteps 1000 --learning-starts 900 \
                 --buffer-size 1000 --batch-size 16";
    let folder = tempfile::tempdir().unwrap();
    let teacher =
        trained(folder.path(), &format!("dqn_atari {small}")).join("dqn_atari.safetensors");
    let teaching = "--teacher-steps 1000 --offline-steps 250 --teacher-eval-episodes 1";
    let words = format!("{small} {teaching} --teacher-model {}", teacher.display());
    policies.add(&format!("qdagger_dqn_atari {words}"), "action, q_values");
    policies.agree();
}

/// The model of an environment in Python records how Python counts actions and orders observations, for
/// loaded policies, which start no Python, and for ONNX files.
#[test]
fn spaces_of_python_are_recorded() {
    let Some(python) = peers::python("PODRACER_PEER_PYTHON") else { return };
    let id = "gymnasium:tests.envs.gymnasium.envs:StartNoise-v0";
    let folder = tempfile::tempdir().unwrap();
    let mut command =
        podracer(&["train", "ppo", "--env-id", id, "--save-model", "--eval-episodes=0"]);
    command.args(["--num-envs=2", "--num-steps=16", "--total-timesteps=64", "--mode=interpret"]);
    command.arg("--runs-dir").arg(folder.path()).env("PODRACER_PYTHON", &python);
    let (status, _, err) = run(command);
    assert_eq!(status, 0, "{err}");
    let dir = run_dir(folder.path());

    let policy = TrainedPolicy::load(&dir).unwrap().with_mode(Mode::Interpret);
    let spaces = policy.gymnasium_spaces().unwrap();
    assert_eq!((&spaces.action_space[..], spaces.action_start), ("Discrete(3, start=1)", 1));
    let [a, b, c] =
        ["'a': ", "'b': ", "'c': "].map(|key| spaces.observation_space.find(key).unwrap());
    assert!(a < b && b < c, "{}", spaces.observation_space);
    // Flattened, as the pool has observations; actions count from 0, as the pool takes them.
    let size = policy.spec().observation.shape()[0];
    let actions =
        policy.act(&Array::zeros([9, size], DType::F32)).unwrap().to_vec::<i32>().unwrap();
    assert!(actions.iter().all(|action| (0..3).contains(action)), "{actions:?}");

    let mut command = podracer(&["export", "--format", "onnx", "--run"]);
    let (status, _, err) = run({
        command.arg(&dir).env("PODRACER_PYTHON", &python);
        command
    });
    assert_eq!(status, 0, "{err}");
    let bytes = fs::read(dir.join("policy.onnx")).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    for part in ["action_start", id, "Discrete(3, start=1)", "Discrete(3)", "sampled", "algorithm"]
    {
        assert!(text.contains(part), "{part}");
    }
}

/// The examples of a page: the blocks of Python under the heading, whose first comment names a file
/// of `podracer export`.
fn examples(page: &str, heading: &str) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let section = text.split(&format!("\n## {heading}\n")).nth(1).expect("the heading");
    let section = section.split("\n## ").next().unwrap();
    let blocks = section.split("```python\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_string()).collect()
}

#[test]
fn the_examples_of_loading_a_policy_run_and_agree() {
    let Some(python) = peers::python("PODRACER_PEER_PYTHON") else { return };
    let python = fs::canonicalize(Path::new(&python).parent().unwrap())
        .unwrap()
        .join(Path::new(&python).file_name().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let words = "ppo --num-envs 2 --num-steps 32 --total-timesteps 256";
    exported(&trained(&folder.path().join("runs"), words), folder.path(), 1);
    let examples = examples("docs/export.md", "Policies of runs");
    assert_eq!(examples.len(), 3, "one for each format");
    let mut printed = Vec::new();
    for example in examples {
        assert!(example.lines().count() <= 10, "{example}");
        let output = Command::new(&python)
            .args(["-c", &example])
            .current_dir(folder.path())
            .env("JAX_PLATFORMS", "cpu")
            .output()
            .unwrap();
        assert!(output.status.success(), "{example}{}", String::from_utf8_lossy(&output.stderr));
        printed.push(String::from_utf8(output.stdout).unwrap());
    }
    assert!(
        printed[0].starts_with("action [") && printed.iter().all(|text| *text == printed[0]),
        "{printed:?}"
    );
}

/// Returns of the episodes that the exported policy plays where `podracer eval` does.
fn played(run_folder: &Path, model: &str, episodes: usize) -> [Vec<f64>; 2] {
    let path = run_folder.join(model);
    let metadata = SavedMetadata::read(&path).unwrap();
    let mut evaluation = Evaluation::new(episodes);
    registry::play(&path, &metadata, &mut evaluation).unwrap();

    let policy = registry::policy(&path, &metadata).unwrap().exported("policy", 1).unwrap();
    let env_id = metadata.settings["env_id"].as_str().unwrap();
    let seed = metadata.settings["seed"].as_u64().unwrap().wrapping_add(1 << 32);
    let options = PoolOptions { num_envs: 1, num_threads: 1, seed, ..PoolOptions::default() };
    let mut again = Evaluation::new(episodes);
    again
        .play(EnvPool::make(env_id, options).unwrap(), |obs, _| {
            let obs = Array::new(
                obs.shape().clone(),
                &obs.to_literal()?.to_f64_vec().iter().map(|&x| x as f32).collect::<Vec<f32>>(),
            )?;
            Ok(policy.call(&[obs])?.remove(0))
        })
        .unwrap();
    [evaluation.returns, again.returns]
}

#[test]
fn an_exported_policy_plays_as_the_evaluated_one() {
    for (words, model) in [
        ("dqn --end-e 0 --total-timesteps 600 --learning-starts 300", "dqn.safetensors"),
        (
            "td3_continuous_action --env-id Pendulum-v1 --total-timesteps 600 --learning-starts 300",
            "td3_continuous_action.safetensors",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let words = format!("{words} --buffer-size 1000 --batch-size 16");
        let [evaluated, exported] = played(&trained(folder.path(), &words), model, 3);
        assert_eq!(evaluated.len(), 3);
        for (a, b) in evaluated.iter().zip(&exported) {
            assert!((a - b).abs() <= 1e-4 * a.abs(), "{words}: {evaluated:?} and {exported:?}");
        }
    }
}

#[test]
fn a_run_without_a_model_and_a_checkpoint_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = podracer(&["export", "--run"]);
    command.arg(folder.path());
    let (status, _, err) = run(command);
    assert_eq!(status, 1);
    assert!(err.contains("has no model; --save-model saves one"), "{err}");
}

#[test]
fn one_format_alone_is_written_beside_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let words = "ppo --num-envs 2 --num-steps 32 --total-timesteps 64";
    let run_folder = trained(folder.path(), words);
    let mut command = podracer(&["export", "--format", "onnx", "--run"]);
    command.arg(&run_folder);
    let (status, text, err) = run(command);
    assert_eq!(status, 0, "{err}");
    let takes = "  takes observation: f32[B,4]\n  gives action, logits\n";
    assert!(text.contains(takes), "{text}");
    let files = fs::read_dir(run_folder).unwrap().map(|file| file.unwrap().file_name());
    let files: Vec<OsString> =
        files.filter(|name| name.to_string_lossy().starts_with("policy.")).collect();
    assert_eq!(files, ["policy.onnx"]);
}
