//! `podracer benchmark`: its results file, its queue, interruptions, and the tables made from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::{Running, podracer, run};

/// Flags of a run that takes hundreds of short iterations.
const SMALL: &str = "--num-envs 2 --num-steps 16 --num-minibatches 2 --update-epochs 1 \
                     --num-threads 1";

/// A folder with a queue file.
struct Bench {
    folder: TempDir,
}

impl Bench {
    /// One row of PPO on CartPole with these seeds and timesteps.
    fn new(seeds: &str, timesteps: u64, flags: &str) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let row = format!(
            "{{\"algorithm\": \"ppo\", \"env_id\": \"CartPole-v1\", \"seeds\": {seeds}, \
             \"flags\": \"{SMALL} --total-timesteps {timesteps} {flags}\", \"hours\": 0.25}}\n"
        );
        fs::write(folder.path().join("queue.jsonl"), row).unwrap();
        Bench { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, flags: &str) -> Command {
        let mut command = podracer(&["benchmark", "--queue"]);
        command.arg(self.path("queue.jsonl")).arg("--results").arg(self.path("results.jsonl"));
        command.args(flags.split_whitespace());
        command.args(["--", "--runs-dir"]).arg(self.path("runs"));
        command
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("results.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Checkpoints of all runs.
    fn checkpoints(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        files_below(&self.path("runs"), &mut found);
        found.retain(|path| path.ends_with("checkpoint.safetensors"));
        found
    }

    /// Waits for the first checkpoint of a running benchmark.
    fn wait_for_checkpoint(&self, running: &mut Running) {
        while self.checkpoints().is_empty() {
            let ended = running.child.try_wait().unwrap();
            assert!(ended.is_none(), "no checkpoint at the end: {ended:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    // A folder that a run has not created yet has no files.
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// The line without times, speeds and the folder, which differ between runs.
fn learned(line: &Value) -> Value {
    let names = ["seed", "flags", "steps", "episodes", "mean_return", "curve"];
    names.iter().map(|name| line[name].clone()).collect()
}

#[test]
fn finished_runs_are_lines_of_the_results_file() {
    let bench = Bench::new("[3, 4]", 3200, "");
    let (status, out, err) = run(bench.command("--workers 0"));
    assert_eq!(status, 0, "{err}");
    assert_eq!(out.lines().filter(|line| line.ends_with("# 0.25 h")).count(), 2, "{out}");
    assert!(out.contains("--env-id CartPole-v1 --seed 4 "), "{out}");

    let (status, out, err) = run(bench.command("--workers 2"));
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("| CartPole-v1 | "), "{out}");
    for run in ["run 1 of 2, ppo CartPole-v1 seed 3", "run 2 of 2, ppo CartPole-v1 seed 4"] {
        assert!(err.contains(&format!("{run}\n")), "{err}");
        let at = |line: &str| line.starts_with(&format!("{run}, ")) && line.contains(" %");
        assert!(err.lines().any(at), "{err}");
    }
    let mut lines = bench.lines();
    lines.sort_by_key(|line| line["seed"].as_u64());
    assert_eq!(lines.len(), 2);
    for (line, seed) in lines.iter().zip([3, 4]) {
        assert_eq!((line["kind"].as_str(), line["seed"].as_u64()), (Some("run"), Some(seed)));
        assert_eq!((line["steps"].as_u64(), &line["algorithm"]), (Some(3200), &"ppo".into()));
        let settings = &line["settings"];
        assert_eq!(settings["learning_rate"].as_f64(), Some(2.5e-4));
        assert_eq!((&settings["num_steps"], &line["flags"]["num_steps"]), (&16.into(), &16.into()));
        let absent = ["seed", "total_timesteps", "num_threads", "runs_dir", "learning_rate"];
        assert!(absent.iter().all(|name| line["flags"].get(name).is_none()), "{line}");
        assert!(line["machine"]["cores"].as_u64() > Some(0) && line["wall_s"].as_f64() > Some(0.0));
        let curve = line["curve"].as_array().unwrap();
        assert!((50..=100).contains(&curve.len()), "{}", curve.len());
        assert_eq!(curve.last().unwrap()[0], 3200);
        let (last, mean) = (curve.last().unwrap()[1].as_f64(), line["mean_return"].as_f64());
        assert!((last.unwrap() - mean.unwrap()).abs() < 1e-3, "{last:?} {mean:?}");
    }
    assert!(bench.checkpoints().is_empty(), "checkpoints of finished runs are removed");

    // The same runs again are an error, or nothing is left of them.
    let (status, _, err) = run(bench.command(""));
    assert!(status == 1 && err.contains("has 2 of these 2 runs already: --resume"), "{err}");
    let (status, out, err) = run(bench.command("--resume --workers 0"));
    assert_eq!((status, out.as_str()), (0, ""), "{err}");
    let (status, _, err) = run(bench.command("--resume"));
    assert!(status == 0 && err.contains("2 of 2 runs are in"), "{err}");
    assert_eq!(bench.lines().len(), 2);
    // So are runs of a time when a flag did not exist, if the flag has its default.
    let mut lines = bench.lines();
    for line in &mut lines {
        assert!(line["settings"].as_object_mut().unwrap().remove("env_kwargs").is_some());
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(bench.path("results.jsonl"), text).unwrap();
    let (status, out, err) = run(bench.command("--resume --workers 0"));
    assert_eq!((status, out.as_str()), (0, ""), "{err}");
    // Other settings are other runs.
    let mut other = bench.command("--resume --workers 0");
    other.args(["--gamma", "0.9"]);
    assert_eq!(run(other).1.lines().count(), 2);
}

#[test]
fn a_killed_queue_resumes_from_the_checkpoint() {
    let (whole, cut) = (Bench::new("[1]", 9600, ""), Bench::new("[1]", 9600, ""));
    let frequency = "--checkpoint-frequency=64";
    let mut command = whole.command("");
    command.arg(frequency);
    assert_eq!(run(command).0, 0);
    assert_eq!(whole.checkpoints().len(), 1, "checkpoints that the flags ask for stay");

    let mut command = cut.command("");
    command.arg(frequency);
    let mut running = Running::start(command);
    cut.wait_for_checkpoint(&mut running);
    running.signal("KILL");
    assert_eq!(running.end().0, None);
    assert_eq!(cut.lines(), [] as [Value; 0]);
    // The lock of the run is released when the system has ended the run with its parent.
    let lock = cut.checkpoints()[0].with_file_name("run.lock");
    let file = fs::File::options().write(true).open(lock).unwrap();
    file.lock().unwrap();
    drop(file);
    let mut command = cut.command("--resume");
    command.arg(frequency);
    let (status, _, err) = run(command);
    assert_eq!(status, 0, "{err}");
    assert!(err.contains("resuming ") && err.contains("0 of 1 runs are in"), "{err}");
    let lines = cut.lines();
    assert_eq!(lines.len(), 1);
    assert_eq!(learned(&lines[0]), learned(&whole.lines()[0]));
}

#[test]
fn an_interrupted_queue_keeps_its_checkpoint_and_says_so() {
    let bench = Bench::new("[1, 2]", 100_000_000, "--checkpoint-frequency 3200");
    let mut running = Running::start(bench.command(""));
    bench.wait_for_checkpoint(&mut running);
    // Another benchmark does not write the same file meanwhile.
    let (status, _, err) = run(bench.command("--resume"));
    assert!(status == 1 && err.contains("is in use by another `podracer benchmark`"), "{err}");
    running.signal("INT");
    let (status, err) = running.end();
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("ppo on CartPole-v1, seed 1: interrupted at step "), "{err}");
    assert!(err.contains("seed 2: not started"), "{err}");
    assert!(err.contains("2 of 2 runs did not end") && err.contains("with --resume"), "{err}");
    assert_eq!(bench.lines(), [] as [Value; 0]);
    assert_eq!(bench.checkpoints().len(), 1);
}

/// Scheduling class of a process, from the fields that follow its name in `/proc`.
#[cfg(target_os = "linux")]
fn scheduling_class(process: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(38).map(String::from)
}

#[cfg(target_os = "linux")]
#[test]
fn idle_benchmarks_and_their_runs_have_the_lowest_priority() {
    let bench = Bench::new("[1]", 100_000_000, "");
    let own = scheduling_class(std::process::id());
    for (flags, class) in [("--idle", Some("5")), ("", own.as_deref())] {
        let mut running = Running::start(bench.command(flags));
        running.wait_for("run 1 of 1, ppo CartPole-v1 seed 1");
        let process = running.child.id();
        let children = format!("/proc/{process}/task");
        let child = loop {
            let threads = fs::read_dir(&children).unwrap().flatten();
            let of_thread = threads.filter_map(|thread| {
                let children = fs::read_to_string(thread.path().join("children")).ok()?;
                children.split_whitespace().next()?.parse::<u32>().ok()
            });
            if let Some(child) = of_thread.into_iter().next() {
                break child;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        assert_eq!(scheduling_class(child).as_deref(), class, "{flags}");
        running.signal("KILL");
        running.end();
    }
}

/// Lines of a queue that are refused, and parts of the message.
const BAD_ROWS: [(&str, &[&str]); 10] = [
    ("ppo on CartPole", &["queue.jsonl:2: ", "expected a row in JSON, as in {\"algorithm\""]),
    ("{\"algorithm\": \"ppo\"}", &["queue.jsonl:2: missing field `env_id`"]),
    (
        "{\"algorithm\": \"ppo\", \"env_id\": \"CartPole-v1\", \"seeds\": 3}",
        &["queue.jsonl:2: invalid type: integer `3`"],
    ),
    (
        "{\"algorithm\": \"ppo\", \"env_id\": \"CartPole-v1\", \"seeds\": []}",
        &["queue.jsonl:2: `seeds` is empty"],
    ),
    (
        "{\"algorithm\": \"ppo\", \"env_id\": \"CartPole-v1\", \"seeds\": [1], \"seed\": 1}",
        &["queue.jsonl:2: unknown field `seed`"],
    ),
    (
        "{\"algorithm\": \"pgo\", \"env_id\": \"CartPole-v1\", \"seeds\": [1]}",
        &["queue.jsonl:2: no algorithm pgo; did you mean ppo? `podracer train` lists"],
    ),
    (
        "{\"algorithm\": \"ppo\", \"env_id\": \"CartPole-v9\", \"seeds\": [1]}",
        &["queue.jsonl:2: ", "CartPole-v9"],
    ),
    (
        "{\"algorithm\": \"ppo\", \"env_id\": \"CartPole-v1\", \"seeds\": [1], \"flags\": \"--gama 1\"}",
        &["queue.jsonl:2: ", "--gama"],
    ),
    (
        "{\"algorithm\": \"ppo\", \"env_id\": \"CartPole-v1\", \"seeds\": [1], \"hours\": -1}",
        &["queue.jsonl:2: `hours` must be a number not below 0"],
    ),
    (
        "{\"algorithm\": \"ppo\", \"env_id\": \"CartPole-v1\", \"seeds\": [7, 7]}",
        &["queue.jsonl:2: ppo on CartPole-v1, seed 7: the same run is in the queue twice"],
    ),
];

#[test]
fn bad_lines_of_a_queue_are_named() {
    let bench = Bench::new("[1]", 3200, "");
    let good = fs::read_to_string(bench.path("queue.jsonl")).unwrap();
    for (row, parts) in BAD_ROWS {
        fs::write(bench.path("queue.jsonl"), format!("{good}{row}\n")).unwrap();
        let (status, _, err) = run(bench.command(""));
        assert_eq!(status, 1, "{row}: {err}");
        assert!(parts.iter().all(|part| err.contains(part)), "{row}: {err}");
        assert!(!bench.path("runs").exists(), "{row}: nothing was started");
    }
    fs::write(bench.path("queue.jsonl"), "\n").unwrap();
    let (status, _, err) = run(bench.command(""));
    assert!(status == 1 && err.contains("has no rows; expected a row in JSON"), "{err}");
    fs::write(bench.path("queue.jsonl"), b"\xff\n").unwrap();
    let (status, _, err) = run(bench.command(""));
    assert!(status == 1 && err.contains("queue.jsonl:1: the line is not UTF-8"), "{err}");
}

#[test]
fn bad_lines_of_a_results_file_are_named_and_kept() {
    let bench = Bench::new("[1]", 320, "");
    assert_eq!(run(bench.command("")).0, 0);
    let good = fs::read_to_string(bench.path("results.jsonl")).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replacen(from, to, 1)
    };
    let summary = "{\"kind\": \"summary\", \"algorithm\": \"ppo\", \"env_id\": \"X\", \
                   \"total_timesteps\": 9, \"seeds\": \"1\", \"commits\": [], \
                   \"command\": \"x\", \"page\": \"y\", \"page_commit\": \"z\"}\n";
    let long = changed("\"flags\":{", &format!("\"flags\":{{\"x\":\"{}\",", "x".repeat(9000)));
    let cases = [
        ("half a li".to_string(), "the last line has no end"),
        ("half a li\n".to_string(), "expected one finished run in JSON"),
        (changed("\"kind\":\"run\"", "\"kind\":\"walk\""), "unknown variant `walk`"),
        (changed("\"wall_s\":", "\"wall_time\":"), "unknown field `wall_time`"),
        (changed("\"seed\":1", "\"seed\":2"), "expected `settings` to have the same `seed`"),
        (changed("\"steps\":320", "\"steps\":0"), "expected `steps` to be at least 1"),
        (changed("\"flags\":{", "\"flags\":{\"x\":1,"), "expected `flags` to be a part"),
        (long, "expected a line of at most 8192"),
        (good.clone(), "the run of line 1 again"),
        (summary.to_string(), "expected `returns`, or `num_seeds` and `mean_return`"),
    ];
    for (line, part) in cases {
        let text = format!("{good}{line}");
        fs::write(bench.path("results.jsonl"), &text).unwrap();
        let (status, _, err) = run(bench.command("--resume"));
        assert_eq!(status, 1, "{part}: {err}");
        assert!(err.contains("results.jsonl:2: ") && err.contains(part), "{part}: {err}");
        assert_eq!(fs::read_to_string(bench.path("results.jsonl")).unwrap(), text);
    }
}

#[test]
fn flags_that_do_not_fit_together_are_refused() {
    for (words, part) in [
        ("benchmark", "--algos"),
        ("benchmark --queue q", "--results"),
        ("benchmark --algos ppo --env-ids CartPole-v1 --resume", "--results"),
        ("benchmark --queue q --results r --algos ppo", "--queue"),
        ("benchmark --write-docs x --results r", "--write-docs"),
        ("benchmark --write-docs x --idle", "--idle"),
        ("benchmark --algos ppo --env-ids CartPole-v1 --pool", "--pool"),
        ("benchmark --queue q --results r --newest", "--newest"),
        ("benchmark --algos ppo --env-ids CartPole-v1 --slurm s --results r", "--slurm"),
        ("benchmark --queue q --slurm s --results r", "--slurm"),
    ] {
        let (status, _, err) = run(podracer(&words.split(' ').collect::<Vec<_>>()));
        assert!(status == 2 && err.contains(part), "{words}: {err}");
    }
}

/// Tables and figures of one run, of a page with its markers.
#[test]
fn tables_and_figures_are_written_between_the_markers() {
    let bench = Bench::new("[1, 2]", 3200, "");
    assert_eq!(run(bench.command("")).0, 0);
    let docs = bench.path("docs");
    fs::create_dir_all(docs.join("results")).unwrap();
    fs::rename(bench.path("results.jsonl"), docs.join("results/runs.jsonl")).unwrap();
    fs::rename(bench.path("queue.jsonl"), docs.join("results/queue.jsonl")).unwrap();
    fs::write(docs.join("results/notes.jsonl"), "").unwrap();
    let names = ["results", "figures", "time limits", "queue"];
    let markers = names.map(|name| format!("<!-- begin {name} -->\n<!-- end {name} -->\n"));
    fs::write(docs.join("results.md"), format!("# Title\n{}end\n", markers.concat())).unwrap();
    let write = || run(podracer(&["benchmark", "--write-docs", docs.to_str().unwrap()]));
    let (status, out, err) = write();
    assert!(status == 0 && out.contains("1 figures"), "{out}{err}");
    let page = fs::read_to_string(docs.join("results.md")).unwrap();
    assert!(page.starts_with("# Title\n") && page.ends_with("end\n"), "{page}");
    assert!(page.contains("| `ppo` | CartPole-v1 (f) | 3,200 | 2 | "), "{page}");
    assert!(page.contains("\n0 runs, about 0 hours.\n"), "{page}");
    let figure = page.split("](figures/results/").nth(1).unwrap().split(')').next().unwrap();
    let svg = fs::read_to_string(docs.join("figures/results").join(figure)).unwrap();
    assert!(svg.contains("<svg") && svg.contains("CartPole-v1"), "{svg}");
    // The same files give the same page, and a figure of no row is removed.
    fs::write(docs.join("figures/results/old.svg"), "").unwrap();
    assert_eq!(write().0, 0);
    assert_eq!(fs::read_to_string(docs.join("results.md")).unwrap(), page);
    assert_eq!(fs::read_dir(docs.join("figures/results")).unwrap().count(), 1);

    // A row of one seed has a reason.
    let lines = fs::read_to_string(docs.join("results/runs.jsonl")).unwrap();
    fs::write(docs.join("results/runs.jsonl"), lines.lines().next().unwrap()).unwrap();
    let (status, _, err) = write();
    assert!(status == 1 && err.contains("notes.jsonl: expected a line with `one_seed`"), "{err}");
    let flags =
        "{\"num_envs\": 2, \"num_steps\": 16, \"num_minibatches\": 2, \"update_epochs\": 1}";
    let note = format!(
        "{{\"algorithm\": \"ppo\", \"env_id\": \"CartPole-v1\", \"flags\": {flags}, \
         \"one_seed\": \"time\"}}\n"
    );
    fs::write(docs.join("results/notes.jsonl"), &note).unwrap();
    assert_eq!(write().0, 0);
    assert!(fs::read_to_string(docs.join("results.md")).unwrap().contains(" | one seed: time |"));
    for (line, part) in [
        ("{}\n".to_string(), "notes.jsonl:2: missing field `algorithm`"),
        (note.clone(), "notes.jsonl:2: a second note of the same row"),
        (
            note.replace("CartPole", "Acrobot").replace("one_seed", "note"),
            "notes.jsonl:2: no result has this algorithm",
        ),
    ] {
        fs::write(docs.join("results/notes.jsonl"), format!("{note}{line}")).unwrap();
        let (status, _, err) = write();
        assert!(status == 1 && err.contains(part), "{part}: {err}");
    }
    fs::write(docs.join("results/notes.jsonl"), &note).unwrap();
    fs::write(docs.join("results.md"), "no markers\n").unwrap();
    let (status, _, err) = write();
    assert!(status == 1 && err.contains("expected the lines <!-- begin results -->"), "{err}");
}
