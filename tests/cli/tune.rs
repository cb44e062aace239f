//! `podracer tune`: its trials on disk, its table, its resumption, its errors.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{podracer, run};

fn tune(out: &Path, flags: &str, run_flags: &str) -> Command {
    let mut command = podracer(&["tune", "ppo", "--env-id", "CartPole-v1"]);
    command.args(flags.split_whitespace()).arg("--out").arg(out);
    let small = "--num-envs 2 --num-steps 16 --num-minibatches 2 --update-epochs 1 \
                 --num-threads 1 --total-timesteps 1600";
    command.arg("--").args(small.split_whitespace()).args(run_flags.split_whitespace());
    command
}

fn lines(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("trials.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const SEARCH: &str = "--search learning-rate=log:1e-4:1e-1 --search anneal_lr=true,false";

#[test]
fn a_study_is_kept_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("study");
    let first = format!("{SEARCH} --trials 2 --startup-trials 2 --num-seeds 2");
    let (status, text, err) = run(tune(&out, &first, ""));
    assert_eq!(status, 0, "{err}");
    assert!(text.starts_with("| trial | learning-rate | anneal-lr | mean return |\n"), "{text}");
    assert!(text.contains("\n2 trials: 2 complete, 0 pruned, 0 failed\nbest: podracer train ppo "));
    assert!(err.contains("trial 0: anneal_lr "), "{err}");
    let trials = lines(&out);
    assert_eq!((trials.len(), trials[0]["kind"].as_str()), (3, Some("study")));
    assert_eq!(trials[1]["returns"].as_array().unwrap().len(), 2);
    assert_eq!(trials[1]["reports"][1].as_array().unwrap().len(), 10, "{}", trials[1]);
    let rate = trials[1]["values"]["learning_rate"].as_f64().unwrap();
    assert!((1e-4..=1e-1).contains(&rate) && trials[1]["values"]["anneal_lr"].is_boolean());

    // Without --resume nothing is overwritten; with it only the missing trial runs.
    let (status, _, err) = run(tune(&out, &first, ""));
    assert!(status == 1 && err.contains("is a study already: --resume continues it"), "{err}");
    let more = first.replace("--trials 2", "--trials 3 --resume");
    let (status, text, err) = run(tune(&out, &more, ""));
    assert!(status == 0 && text.contains("\n3 trials: 3 complete"), "{text}{err}");
    assert!(!err.contains("trial 1:") && err.contains("trial 2:"), "{err}");
    assert_eq!(lines(&out)[..3], trials);
    let (status, _, err) = run(tune(&out, &more, "--gamma 0.9"));
    assert!(status == 1 && err.contains("is another study"), "{err}");
}

#[test]
fn failed_trials_are_kept_and_none_complete_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("study");
    // No episode of CartPole ends in one step.
    let flags = "--search gamma=0.9,0.99 --trials 2 --workers 2";
    let (status, _, err) =
        run(tune(&out, flags, "--total-timesteps 2 --num-steps 1 --num-minibatches 1"));
    assert!(
        status == 1 && err.contains("none of 2 trials reached its end; the first error:"),
        "{err}"
    );
    let trials = lines(&out);
    assert!(trials[1..].iter().all(|trial| trial["state"] == "failed"), "{trials:?}");
    assert_eq!(trials[1]["message"], "no episode ended");
}

#[test]
fn searches_that_no_run_can_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("study");
    for (flags, status, part) in [
        ("", 2, "--search <SEARCH>"),
        ("--search gamma", 2, "expected NAME=log:LOW:HIGH"),
        (
            "--search gama=0.9,0.99",
            1,
            "ppo has no hyperparameter --gama; did you mean gamma? `podracer train ppo --help`",
        ),
        ("--search lr=0.1,0.2", 1, "; did you mean learning-rate?"),
        ("--search seed=1,2", 1, "ppo has no hyperparameter --seed"),
        ("--search gamma=0.9,1.5", 1, "--search gamma=0.9,1.5: "),
        ("--search gamma=linear:0.9:1.5", 1, "must be a number from 0 to 1"),
        ("--search gamma=0.9,1 --search gamma=0,1", 1, "--gamma is given twice"),
        ("--search gamma=0.9,1 --workers 0", 1, "--workers 0: must be at least 1"),
    ] {
        let (code, _, err) = run(tune(&out, flags, ""));
        assert!(code == status && err.contains(part), "{flags}: {code} {err}");
    }
    let (status, _, err) =
        run(podracer(&["tune", "pgo", "--env-id", "x", "--search", "gamma=0,1"]));
    assert!(
        status == 1 && err.contains("no algorithm pgo; did you mean ppo? `podracer train` lists"),
        "{err}"
    );
    assert!(!out.exists(), "nothing was started");
}
