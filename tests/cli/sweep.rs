//! `podracer train ppo_anakin --sweep`: its table, its files, its errors.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{podracer, run, run_dir};

fn sweep(runs: &Path, flags: &str) -> Command {
    let small = "train ppo_anakin --num-envs 2 --num-steps 16 --num-minibatches 2 \
                 --update-epochs 1 --num-devices 1 --total-timesteps 1600";
    let mut command = podracer(&small.split_whitespace().collect::<Vec<_>>());
    command.args(flags.split_whitespace()).arg("--runs-dir").arg(runs);
    command
}

#[test]
fn a_sweep_ends_with_a_table_a_figure_and_lines_of_json() {
    let runs = tempfile::tempdir().unwrap();
    let flags = "--sweep learning-rate=log:1e-4:1e-2:3 --sweep gamma=0.9,0.99 --num-seeds 2 \
                 --checkpoint-frequency 400";
    let (status, out, err) = run(sweep(runs.path(), flags));
    assert_eq!(status, 0, "{err}");
    let dir = run_dir(runs.path());
    assert!(out.starts_with("learning-rate  gamma  seeds  mean return of the last 100\n"), "{out}");
    assert!(
        out.contains("         0.01   0.99      2  ") && out.contains("\nbest: learning"),
        "{out}"
    );
    assert!(out.contains(&format!("figure: {}\n", dir.join("sweep.svg").display())), "{out}");
    let text = fs::read_to_string(dir.join("sweep.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[3]["values"], serde_json::json!({"learning_rate": 1e-3, "gamma": 0.99}));
    assert!(lines.iter().all(|line| line["returns"].as_array().unwrap().len() == 2), "{text}");
    let svg = fs::read_to_string(dir.join("sweep.svg")).unwrap();
    assert!(svg.contains("learning-rate") && svg.contains("gamma 0.99"), "{svg}");

    // A resumed run has the sweeps of its checkpoint.
    let resume = ["train", "ppo_anakin", "--resume", dir.to_str().unwrap()];
    let (status, out, err) = run(podracer(&[&resume[..], &["--total-timesteps", "1920"]].concat()));
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("best: learning-rate="), "{out}");
}

#[test]
fn a_diverged_agent_does_not_end_a_sweep() {
    let runs = tempfile::tempdir().unwrap();
    let flags = "--sweep learning-rate=1e15,1e-3 --vf-coef 1e15 --total-timesteps 320 --save-model \
                 --eval-episodes 1 --checkpoint-frequency 320";
    let (status, out, err) = run(sweep(runs.path(), flags));
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("1 diverged\n"), "{out}");
    let name = "learning-rate=1000000000000000, seed 1";
    assert!(out.contains(&format!("\ndiverged: {name} at step ")), "{out}");
    assert!(err.contains(&format!("the loss of {name} is ")), "{err}");
    assert!(err.contains("; the other agents continue\n"), "{err}");
    // The evaluated agent is the other one, whose parameters are finite.
    let dir = run_dir(runs.path());
    assert!(dir.join("ppo_anakin.safetensors").exists());

    // A run with nothing to resume still knows which agent diverged.
    let (status, out, err) =
        run(podracer(&["train", "ppo_anakin", "--resume", dir.to_str().unwrap()]));
    assert_eq!(status, 0, "{err}");
    assert!(out.contains(&format!("\ndiverged: {name} at step ")), "{out}");
}

#[test]
fn a_sweep_without_agents_left_ends_with_an_error() {
    let runs = tempfile::tempdir().unwrap();
    let flags = "--sweep learning-rate=1e15,9e14 --vf-coef 1e15 --total-timesteps 320";
    let (status, _, err) = run(sweep(runs.path(), flags));
    assert_eq!(status, 1, "{err}");
    assert!(err.contains("error: the loss of learning-rate=1"), "{err}");
    let text = fs::read_to_string(run_dir(runs.path()).join("sweep.jsonl")).unwrap();
    assert_eq!(text.matches("\"diverged\":1").count(), 2, "{text}");
}

#[test]
fn sweeps_that_cannot_be_trained_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    for (flags, status, part) in [
        (
            "--sweep gama=0.9",
            2,
            "'--sweep <SWEEP>': gama is no hyperparameter of a sweep; expected",
        ),
        ("--sweep gamma=0.9,2", 2, "gamma: 2 must be a number from 0 to 1"),
        ("--sweep gamma=0.9 --sweep gamma=0.8", 1, "--sweep: gamma is given twice"),
        (
            "--sweep gamma=linear:0:1:4096 --sweep gae-lambda=linear:0:1:16 --num-envs 16384 \
             --num-steps 16384 --num-minibatches 16 --total-timesteps 1000000000 --seed-axis vmap",
            1,
            "--sweep gae-lambda=linear:0:1:16 --num-envs 16384 --num-steps 16384: they take ",
        ),
    ] {
        let (code, _, err) = run(sweep(runs.path(), flags));
        assert!(code == status && err.contains(part), "{flags}: {code} {err}");
    }
    assert!(fs::read_dir(runs.path()).unwrap().next().is_none(), "a run folder was created");
}
