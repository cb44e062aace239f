//! The examples, run in a short setting. `cargo test` builds them; so does `cargo build --examples`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use podracer::export::Exported;
use podracer::rl::Algorithm;
use podracer::rl::logging::tensorboard::{Value, read_events};
use podracer::{distributions, nn, random, rl};

/// The edit of `docs/custom-algorithm.md` that makes an algorithm's file one of another crate.
macro_rules! registered_algorithm {
    ($args:ty, $name:literal, $envs:ident, $($rest:tt)*) => {
        podracer::algorithm!($args, "my_ppo", $($rest)*);
    };
}

/// PPO's file as a copy in this crate, in which `crate::distributions` and the others are podracer's.
#[path = "../../src/algos/ppo.rs"]
mod copied;

/// The program of an example, beside the folder of this test's own.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(program.exists(), "run `cargo build --examples` first: no {}", program.display());
    program
}

/// Runs an example in `folder` and returns its standard output.
fn run(name: &str, folder: &Path, flags: &str) -> String {
    let mut command = Command::new(program(name));
    command.args(flags.split_whitespace()).current_dir(folder).stdin(Stdio::null());
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}\n{error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs an example that writes no files.
fn run_here(name: &str, flags: &str) -> String {
    run(name, tempfile::tempdir().unwrap().path(), flags)
}

/// The number after `label` in a line.
fn number(line: &str, label: &str) -> f64 {
    let (_, rest) = line.split_once(label).unwrap_or_else(|| panic!("no {label:?} in {line:?}"));
    let word = rest.split_whitespace().next().unwrap_or_default();
    word.trim_end_matches(',').parse().unwrap_or_else(|_| panic!("{label:?} in {line:?}"))
}

/// The lines that begin with `start`; there must be some.
fn lines<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(start)).collect();
    assert!(!lines.is_empty(), "no line {start:?} in:\n{text}");
    lines
}

/// The only event file below `folder`: the number of values of each tag in `tags`.
fn event_counts(folder: &Path, tags: &[&str]) -> Vec<usize> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_events = |path: &PathBuf| path.to_str().unwrap().contains("events.out.tfevents");
    let files: Vec<PathBuf> = files.filter(is_events).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let events = read_events(&files[0]).unwrap();
    let count = |name: &&str| {
        let has_tag = |value: &Value| matches!(value, Value::Scalar { tag, .. } if tag == name);
        events.iter().filter(|event| has_tag(&event.value)).count()
    };
    tags.iter().map(count).collect()
}

#[test]
fn jit_grad_vmap() {
    let out = run_here("jit_grad_vmap", "");
    assert_eq!(out.matches("{ lambda ").count(), 3, "{out}");
    // Example 1: w.x = 4.5, y = 4, gradient 2 (4.5 - 4) x = x.
    assert!(out.contains("  [1.0, 2.0, 3.0]\n"), "{out}");
    assert!(out.contains("traces: 1\nthe interpreter agrees\n"), "{out}");
}

#[test]
fn train_mlp() {
    let out = run_here("train_mlp", "--steps 40");
    let steps = lines(&out, "step ");
    assert_eq!(steps.len(), 10, "{out}");
    let loss = |line| number(line, "loss ");
    assert!(loss(steps[9]) < loss(steps[0]), "{out}");
    let is_picture = |line: &&str| line.len() == 48 && line.chars().all(|c| c == '#' || c == '.');
    assert_eq!(out.lines().filter(is_picture).count(), 24, "{out}");
}

#[test]
fn eager_vs_jit() {
    let out = run_here("eager_vs_jit", "--repeats 2");
    for function in ["gelu ", "attention ", "attention_grad ", "recurrence "] {
        let row = lines(&out, function)[0];
        let cells: Vec<f64> =
            row.split_whitespace().skip(1).map(|cell| cell.parse().unwrap()).collect();
        assert_eq!(cells.len(), 6, "{out}");
        assert!(cells[5] < 1e-3, "modes differ: {row}");
    }
}

#[test]
fn custom_environment() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--total-timesteps 2048 --episodes 20 --runs-dir own";
    let out = run("custom_environment", folder.path(), flags);
    let mean_return = |policy: &str| number(lines(&out, policy)[0], policy);
    assert!(mean_return("controller ") > mean_return("random "), "{out}");
    let dir = &lines(&out, "TensorBoard")[0].rsplit_once(' ').unwrap().1;
    assert!(dir.starts_with("own/Docking-v0__ppo__1__"), "{out}");
    let counts = event_counts(&folder.path().join(dir), &["losses/policy_loss"]);
    assert_eq!(counts, [2], "{out}");
}

#[test]
fn custom_robot() {
    let folder = tempfile::tempdir().unwrap();
    let out = run("custom_robot", folder.path(), "--total-timesteps 2048 --runs-dir own");
    let mean_return = number(lines(&out, "PPO, 2048 steps")[0], "episodes ");
    assert!((0.0..=500.0).contains(&mean_return), "{out}");
    let dir = &lines(&out, "run: ")[0].rsplit_once(' ').unwrap().1;
    let model = folder.path().join(dir).join("ppo_continuous_action.safetensors");
    assert!(model.exists(), "{out}");
}

#[test]
fn custom_algorithm() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--iterations 20 --num-envs 4 --log-dir events";
    let out = run("custom_algorithm", folder.path(), flags);
    assert_eq!(lines(&out, "iteration ").len(), 3, "{out}");
    let tags = ["charts/episodic_return", "losses/policy_loss"];
    assert_eq!(event_counts(&folder.path().join("events"), &tags), [20, 20]);
}

#[test]
fn vmap_hyperparameters() {
    let out = run_here("vmap_hyperparameters", "--num-rates 8 --steps 50");
    let (table, best) = out.split_once("best learning rates:\n").unwrap();
    let losses = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap());
    let losses: Vec<f64> = losses.collect();
    assert_eq!(losses.len(), 8, "{out}");
    let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(number(best.lines().next().unwrap(), "loss "), least, "{out}");
}

#[test]
fn transformer() {
    let flags = "--steps 60 --batch-size 4 --length 16 --layers 2 --features 16 --bf16 --remat";
    let out = run_here("transformer", flags);
    let steps = lines(&out, "step ");
    assert_eq!(steps.len(), 10, "{out}");
    for label in ["loss ", "held-out "] {
        assert!(number(steps[9], label) < number(steps[0], label), "{out}");
    }
    let (_, written) = out.split_once("--- written\n").unwrap();
    assert!(!written.trim().is_empty(), "{out}");
}

#[test]
fn pmap_data_parallel() {
    let flags = "--num-devices 2 --batch-size 64 --hidden 16 --steps 3";
    let out = run_here("pmap_data_parallel", flags);
    let [one, two] = ["1 device:", "2 devices:"].map(|label| lines(&out, label)[0]);
    assert!((number(one, "loss ") - number(two, "loss ")).abs() < 1e-4, "{out}");
    assert!(number(&out, "largest difference between parameters: ") < 1e-5, "{out}");
}

#[test]
fn export_to_jax() {
    let folder = tempfile::tempdir().unwrap();
    let out = run("export_to_jax", folder.path(), "--steps 20 --file sine.jaxexport");
    assert!(out.contains("export.deserialize(open(\"sine.jaxexport\", \"rb\").read())"), "{out}");
    let sine = Exported::load(folder.path().join("sine.jaxexport")).unwrap();
    assert_eq!(sine.name(), "sine");
    assert_eq!(sine.in_types()[0].to_string(), "f32[3,1]");
    assert_eq!(lines(&out, "sine(").len(), 3, "{out}");
}

/// The examples that run an algorithm print the result as one line of JSON.
fn trained_steps(name: &str, flags: &str) -> u64 {
    let out = run_here(name, &format!("--env-id CartPole-v1 --num-threads 1 --json {flags}"));
    let result: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(result["env_id"], "CartPole-v1", "{out}");
    result["global_step"].as_u64().unwrap()
}

#[test]
fn ppo_envpool_jit() {
    let flags = "--num-envs 2 --num-steps 16 --num-minibatches 2 --total-timesteps 64";
    assert_eq!(trained_steps("ppo_envpool_jit", flags), 64);
}

#[test]
fn policy_service() {
    let folder = tempfile::tempdir().unwrap();
    let out = run("policy_service", folder.path(), "--requests 20 --threads 2");
    assert!(
        out.starts_with("TrainedPolicy(ppo for CartPole-v1, f32[B,4] to Discrete(2))"),
        "{out}"
    );
    for mode in ["jit", "interpret"] {
        let found = lines(&out, mode);
        assert_eq!(found.len(), 2, "{out}");
        let last = |line: &&str| line.split_whitespace().last().unwrap().parse::<f64>().unwrap();
        assert!(found.iter().all(|line| last(line) > 0.0), "{out}");
    }
}

#[test]
fn sebulba_ppo_and_impala() {
    let flags = "--num-devices 2 --actor-device-ids 0 --learner-device-ids 1 --local-num-envs 4 \
                 --num-actor-threads 1 --num-steps 16 --total-timesteps 128";
    for name in ["sebulba_ppo", "sebulba_impala"] {
        assert_eq!(trained_steps(name, flags), 128, "{name}");
    }
}

#[test]
fn the_help_of_an_own_program_has_flags_and_subcommands() {
    let help = run_here("ppo_envpool_jit", "--help");
    for part in ["Usage: ppo_envpool_jit [FLAGS]", "--learning-rate", "  eval --run RUN  "] {
        assert!(help.contains(part), "{part} is not in\n{help}");
    }
}

#[test]
fn an_algorithm_that_was_copied_trains_and_is_evaluated() {
    let runs = tempfile::tempdir().unwrap();
    let mut args = copied::Args::from_flags(["--total-timesteps=512", "--save-model"]).unwrap();
    args.run.runs_dir = runs.path().into();
    let summary = args.train().unwrap();
    assert!(summary.exp_name == "my_ppo" && summary.eval_episodic_return.is_some(), "{summary}");
    let words = ["my_ppo", "eval", "--run", &summary.run_dir, "--episodes=1"];
    let status = rl::algorithm::run::<copied::Args>(words.iter().map(Into::into));
    assert_eq!(status, std::process::ExitCode::SUCCESS);
}
