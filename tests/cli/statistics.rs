//! Statistics over runs: `podracer benchmark --compare`, `podracer plot --statistic` and `--profile`.

use std::fs;
use std::path::PathBuf;

use super::{podracer, ppo, run};

/// Lines of a results file: algorithm, environment, returns.
fn results(rows: &[(&str, &str, &[f64])]) -> String {
    let line = |(algorithm, env_id, returns): &(&str, &str, &[f64])| {
        format!(
            "{{\"kind\": \"summary\", \"algorithm\": \"{algorithm}\", \"env_id\": \"{env_id}\", \
             \"total_timesteps\": 9, \"seeds\": \"x\", \"returns\": {returns:?}, \"commits\": [], \
             \"command\": \"x\", \"page\": \"y\", \"page_commit\": \"z\"}}\n"
        )
    };
    rows.iter().map(line).collect()
}

#[test]
fn results_files_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let low: &[f64] = &[1.0, 2.0, 3.0, 4.0];
    let high: &[f64] = &[11.0, 12.0, 13.0, 14.0];
    let a = file("a.jsonl", results(&[("ppo", "Pong-v5", high), ("ppo", "Boxing-v5", low)]));
    let b = file("b.jsonl", results(&[("ppo", "Pong-v5", low), ("ppo", "Boxing-v5", low)]));
    let both =
        file("c.jsonl", results(&[("ppo", "CartPole-v1", low), ("dqn", "CartPole-v1", high)]));
    let compare = |words: &[&str]| run(podracer(&[&["benchmark", "--compare"], words].concat()));

    let (status, out, err) = compare(&[&a, &b]);
    assert_eq!(status, 0, "{err}");
    for part in [
        &format!("A: ppo of {a}\nB: ppo of {b}\n"),
        "| Pong-v5 | 4, 4 | 12.50 +- 1.12, IQM 12.50 [11.00, 14.00] | 2.50 +- 1.12, IQM 2.50 ",
        "| 1.00 [1.00, 1.00] |",
        "| Boxing-v5 | 4, 4 |",
        "| mean of 2 environments | | | | 0.75 [",
        // The means of the human-normalized scores of Pong and Boxing.
        "| human-normalized | A | B |",
        "| median | 0.570 [",
        "| optimality gap | ",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    // Two algorithms of one file; no human has a score on CartPole.
    let (status, out, err) = compare(&[&both, "--algos", "dqn,ppo"]);
    assert_eq!(status, 0, "{err}");
    assert!(out.starts_with("A: dqn\nB: ppo\n") && out.contains("| 1.00 [1.00, 1.00] |"), "{out}");
    assert!(!out.contains("human") && !out.contains("mean of"), "{out}");

    let empty = file("d.jsonl", String::new());
    for (words, part) in [
        (vec![both.as_str()], "expected two paths, or one path and --algos A,B"),
        (
            vec![both.as_str(), "--algos", "dqn,c51"],
            "c.jsonl has no runs of `c51`; there are dqn, ppo",
        ),
        (vec![&a, &both], "have no environment in common: Boxing-v5, Pong-v5 and CartPole-v1"),
        (
            vec![&a, &empty],
            "d.jsonl: no run with the return of an episode; expected a results file",
        ),
        (vec![&a, "nowhere"], "cannot read nowhere"),
    ] {
        let (status, _, err) = compare(&words);
        assert!(status == 1 && err.contains(part), "{words:?}: {err}");
    }
}

#[test]
fn curves_and_profiles_have_intervals() {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    for seed in [1, 2] {
        let (status, _, err) = run(ppo(&runs, &format!("--total-timesteps 1600 --seed {seed}")));
        assert_eq!(status, 0, "{err}");
    }
    let folders: Vec<PathBuf> =
        fs::read_dir(&runs).unwrap().map(|entry| entry.unwrap().path()).collect();
    let plot = |flags: &str| {
        let out = folder.path().join("plot.svg");
        let mut command = podracer(&["plot"]);
        command.args(&folders).args(flags.split_whitespace()).arg("--out").arg(&out);
        let (status, _, err) = run(command);
        assert_eq!(status, 0, "{err}");
        fs::read_to_string(out).unwrap()
    };
    let [mean, iqm, profile] = ["", "--statistic iqm --points 10", "--profile"].map(plot);
    assert!(mean != iqm && iqm.contains("CartPole-v1 ppo (2)"), "{iqm}");
    assert!(profile.contains("fraction of runs above") && profile.contains("ppo (2)"), "{profile}");

    // A folder of runs is a set of runs.
    let path = runs.to_str().unwrap();
    let (status, out, err) = run(podracer(&["benchmark", "--compare", path, path]));
    assert!(status == 0 && out.contains("| CartPole-v1 | 2, 2 | "), "{out}{err}");
    assert!(out.contains("| 0.50 ["), "{out}");

    let (status, _, err) = run(podracer(&["plot", "--profile", path]));
    assert!(status == 1 && err.contains("expected the folder of a run, named ENV_ID__"), "{err}");
}
