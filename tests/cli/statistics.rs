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
            "d.jsonl: no run has charts/episodic_return: nothing was logged of it; expected a run folder",
        ),
        (vec![&a, "nowhere"], "cannot read nowhere"),
    ] {
        let (status, _, err) = compare(&words);
        assert!(status == 1 && err.contains(part), "{words:?}: {err}");
    }
}

/// A folder of short PPO runs: the flags of each, beside the seed.
fn short_runs(flags: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    for flags in flags {
        let (status, _, err) = run(ppo(&runs, &format!("--total-timesteps 1600 {flags}")));
        assert_eq!(status, 0, "{err}");
    }
    (folder, runs)
}

#[test]
fn curves_and_profiles_have_intervals() {
    let (folder, runs) = short_runs(&["--seed 1", "--seed 2"]);
    let path = runs.to_str().unwrap();
    let plot = |flags: &str| {
        let out = folder.path().join("plot.svg");
        let mut command = podracer(&["plot", path]);
        command.args(flags.split_whitespace()).arg("--out").arg(&out);
        let (status, _, err) = run(command);
        assert_eq!(status, 0, "{err}");
        fs::read_to_string(out).unwrap()
    };
    let [mean, iqm, profile] = ["", "--statistic iqm --points 10", "--profile"].map(plot);
    assert!(mean.contains("\"CartPole-v1\"") && mean.contains("\"ppo (2 seeds)\""), "{mean}");
    assert!(mean.contains("\"mean, standard deviation\"") && mean.contains("\"timesteps\""));
    assert!(iqm.contains("\"IQM, 95% bootstrap interval\""), "{iqm}");
    assert!(profile.contains("\"fraction of runs above\""), "{profile}");
    assert!(profile.contains("\"ppo (2 runs)\""), "{profile}");
    for (flags, part) in [
        ("--x hours", "\"hours of training\""),
        ("--x updates --smooth 0.9", "\"updates\""),
        ("--facet none --band range", "\"CartPole-v1 ppo (2 seeds)\""),
        ("--facet algo --band none", "\"CartPole-v1 (2 seeds)\""),
        ("--title T --xlabel A --ylabel B --ylim -5,600 --xscale log", "\"B\""),
        ("--per-seed", "\"ppo seed 2\""),
        ("--width 320 --font-size 10 --legend outside", "width=\"320\""),
    ] {
        assert!(plot(flags).contains(part), "{flags}");
    }

    // A folder of runs is a set of runs.
    let (status, out, err) = run(podracer(&["benchmark", "--compare", path, path]));
    assert!(status == 0 && out.contains("| CartPole-v1 | 2, 2 | "), "{out}{err}");
    assert!(out.contains("| 0.50 ["), "{out}");

    for (flags, part) in [
        ("--statistic iqm --band std", "expected ci95, range or none"),
        ("--env-ids Acrobot-v1", "--env-ids Acrobot-v1: the runs are of CartPole-v1"),
        ("--out a.jpg", ".svg, .pdf or .png"),
        ("--tag charts/none", "no run has charts/none"),
    ] {
        let (status, _, err) =
            run(podracer(&[&["plot", path][..], &flags.split(' ').collect::<Vec<_>>()].concat()));
        assert!(status == 1 && err.contains(part), "{flags}: {err}");
    }
}

#[test]
fn runs_that_differ_are_not_pooled_unless_a_flag_asks_for_it() {
    let flags = ["--seed 1", "--seed 2 --gamma 0.5", "--seed 3 --total-timesteps 3200", "--seed 4"];
    let (folder, runs) = short_runs(&flags);
    let (path, out) = (runs.to_str().unwrap(), folder.path().join("plot.svg"));
    let plot = |flags: &[&str]| {
        let mut command = podracer(&[&["plot", path], flags].concat());
        command.arg("--out").arg(&out);
        let (status, _, err) = run(command);
        (status, err, fs::read_to_string(&out).unwrap_or_default())
    };
    let (status, err, svg) = plot(&["--legend", "outside", "--width", "1200"]);
    assert_eq!(status, 0, "{err}");
    for name in [
        "ppo --gamma 0.99 --total-timesteps 1600 (2 seeds)",
        "ppo --gamma 0.5 --total-timesteps 1600 (1 seed)",
        "ppo --gamma 0.99 --total-timesteps 3200 (1 seed)",
    ] {
        assert!(svg.contains(&format!("\"{name}\"")), "{name}: {svg}");
    }
    let (status, err, svg) = plot(&["--pool"]);
    assert!(status == 0 && svg.contains("\"ppo (4 runs)\""), "{err}{svg}");

    // The same seed again.
    let (status, _, err) = run(ppo(&runs, "--total-timesteps 1600 --seed 1"));
    assert_eq!(status, 0, "{err}");
    let (status, err, _) = plot(&[]);
    assert!(status == 1 && err.contains("two runs of seed 1 of ppo on CartPole-v1"), "{err}");
    assert!(err.contains("--newest") && err.contains("--pool"), "{err}");
    assert_eq!(plot(&["--newest"]).0, 0);
    let compare =
        |flags: &[&str]| run(podracer(&[&["benchmark", "--compare", path, path], flags].concat()));
    let (status, _, err) = compare(&[]);
    assert!(status == 1 && err.contains("two runs of seed 1"), "{err}");
    let (status, out, err) = compare(&["--newest"]);
    assert!(status == 0 && out.contains("--gamma 0.5"), "{out}{err}");
    let (status, out, err) = compare(&["--pool"]);
    assert!(status == 0 && out.contains("| CartPole-v1 | 5, 5 | "), "{out}{err}");
}

#[test]
fn tables_of_other_programs_are_drawn_beside_runs() {
    let (folder, runs) = short_runs(&["--seed 1"]);
    let table = folder.path().join("cleanrl.csv");
    let rows = "CartPole-v1,ppo of CleanRL,1,800,20\nCartPole-v1,ppo of CleanRL,1,1600,30\n";
    fs::write(&table, format!("env_id,algorithm,seed,step,value\n{rows}")).unwrap();
    let out = folder.path().join("both.svg");
    let mut command = podracer(&["plot"]);
    command.arg(&runs).arg(&table).arg("--out").arg(&out);
    let (status, _, err) = run(command);
    assert_eq!(status, 0, "{err}");
    let svg = fs::read_to_string(out).unwrap();
    assert!(svg.contains("\"ppo (1 seed)\"") && svg.contains("\"ppo of CleanRL (1 seed)\""));
}
