//! `--track` and `--upload-model`: the Python packages beside a run, their faults, and a run of Weights
//! & Biases that the real package reads back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{ENDLESS, Running, peers, ppo, run, run_dir};

/// Folder of a run that is tracked by a package that tests provide.
struct Tracked {
    folder: tempfile::TempDir,
}

impl Tracked {
    fn new() -> Tracked {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("wandb", include_str!("track/fake_wandb.py")),
            ("huggingface_hub", include_str!("track/fake_huggingface_hub.py")),
        ] {
            let package = folder.path().join("packages").join(name);
            fs::create_dir_all(&package).unwrap();
            fs::write(package.join("__init__.py"), text).unwrap();
        }
        Tracked { folder }
    }

    fn runs(&self) -> PathBuf {
        self.folder.path().join("runs")
    }

    /// The short run of [`ppo`] with the package, in which `fault` happens.
    fn command(&self, fault: &str, flags: &str) -> Command {
        let mut command = ppo(&self.runs(), flags);
        command.env("PYTHONPATH", self.folder.path().join("packages"));
        command.env("FAKE_WANDB_LOG", self.log()).env("FAKE_WANDB", fault);
        command.env("PODRACER_PYTHON", real_python());
        command
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("calls.jsonl")
    }

    /// The calls of the package so far, without one whose line is not yet complete.
    fn calls(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        complete.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Calls of one function.
    fn of(&self, name: &str) -> Vec<Value> {
        self.calls().into_iter().filter(|call| call["call"] == name).collect()
    }

    /// Waits until the function was called.
    fn wait_for(&self, name: &str) {
        eventually(name, || !self.of(name).is_empty());
    }

    /// Waits for the end of the Python process.
    fn wait_for_end(&self) {
        let pid = self.calls()[0]["pid"].as_u64().unwrap();
        eventually("the process ends", || !Path::new(&format!("/proc/{pid}")).exists());
    }
}

/// Waits until `holds`, which another process brings about.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The interpreter behind this machine's `python3`, which may be a script that starts it.
fn real_python() -> String {
    let ask = ["-c", "import sys; print(sys.executable)"];
    let output = Command::new("python3").args(ask).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

#[test]
fn a_tracked_run_sends_settings_numbers_and_the_model() {
    let tracked = Tracked::new();
    let flags = "--track --wandb-project-name cleanrltest --wandb_entity me --wandb-group a \
                 --save-model --eval-episodes 2 --mode interpret";
    let (status, out, err) = run(tracked.command("", flags));
    assert_eq!(status, 0, "{err}");
    let dir = run_dir(&tracked.runs());
    let name = dir.file_name().unwrap().to_str().unwrap();
    assert!(err.contains(&format!("wandb: {name} is offline; `wandb sync ")), "{err}");
    assert!(!out.contains("wandb"), "{out}");

    let init = &tracked.of("init")[0];
    for (key, value) in [
        ("project", json!("cleanrltest")),
        ("entity", json!("me")),
        ("group", json!("a")),
        ("name", json!(name)),
    ] {
        assert_eq!(init[key], value, "{init}");
    }
    let config = &init["config"];
    for (key, value) in [
        ("env_id", json!("CartPole-v1")),
        ("learning_rate", json!(2.5e-4)),
        ("batch_size", json!(32)),
        ("minibatch_size", json!(16)),
        ("num_iterations", json!(2)),
        ("anneal_lr", json!(true)),
        ("target_kl", Value::Null),
        ("cuda", json!(false)),
        ("torch_deterministic", json!(true)),
        ("wandb_entity", json!("me")),
    ] {
        assert_eq!(config[key], value, "{key} in {config}");
    }
    let rows: Vec<Value> = tracked.of("log").iter().map(|call| call["row"].clone()).collect();
    let steps = |key: &str| -> Vec<u64> {
        let rows = rows.iter().filter(|row| !row[key].is_null());
        rows.map(|row| row["global_step"].as_u64().unwrap()).collect()
    };
    assert_eq!(steps("losses/value_loss"), [32, 64]);
    assert_eq!(steps("charts/learning_rate"), [32, 64]);
    assert!(!steps("charts/episodic_return").is_empty());
    assert_eq!(steps("eval/episodic_return"), [0, 1]);
    let model = dir.join("ppo.safetensors");
    assert_eq!(tracked.of("save")[0]["path"], json!(model));
    assert_eq!(tracked.of("finish")[0]["exit_code"], 0);
    assert_eq!(tracked.calls().last().unwrap()["call"], "finish");
}

/// Each fault is one line, and the run has its events, its result and status 0.
#[test]
fn faults_of_the_package_are_one_line() {
    let line = |fault: &str, flags: &str, python: Option<&str>| {
        let tracked = Tracked::new();
        let mut command = tracked.command(fault, &format!("--mode interpret {flags}"));
        if let Some(python) = python {
            command.env("PODRACER_PYTHON", python);
        }
        let (status, out, err) = run(command);
        assert!(status == 0 && out.contains("64 steps"), "{fault}: {err}");
        let lines: Vec<&str> = err.lines().filter(|line| line.starts_with("--track: ")).collect();
        assert_eq!(lines.len(), 1, "{fault}: {err}");
        assert!(lines[0].ends_with("; training continues without Weights & Biases"), "{err}");
        lines[0].to_string()
    };
    let missing = line("missing", "--track", None);
    assert!(
        missing.contains("the Python package wandb is missing; install it with: "),
        "{missing}"
    );
    assert!(missing.contains("-m pip install wandb"), "{missing}");
    let refused = line("refused", "--track True", None);
    assert!(refused.contains("wandb.init: api_key not configured (no-tty); `wandb login`"));
    let crash = line("crash", "--track --total-timesteps 64", None);
    assert!(crash.contains("its Python process ended, signal: 9 (SIGKILL)"), "{crash}");
    let error = line("error", "--track --json False", None);
    assert!(error.contains("wandb: RuntimeError: no space left\\u{1b}[2J; "), "{error}");
    let python = line("", "--track", Some("/nowhere/python3"));
    assert!(python.contains("cannot run /nowhere/python3: ") && python.contains("PODRACER_PYTHON"));
    let other = line("", "--track", Some("/bin/false"));
    assert!(other.contains("its Python process ended, exit status: 1"), "{other}");
}

/// Training does not wait for a package that does not answer; the end of the run does, until it is
/// interrupted.
#[test]
fn a_package_that_hangs_does_not_slow_the_run() {
    let tracked = Tracked::new();
    let mut command = tracked.command("hang", "--track --mode interpret");
    // Not the interpreter itself where `python3` is a script.
    command.env_remove("PODRACER_PYTHON");
    let mut running = Running::start(command);
    running.wait_for("step 64/64");
    running.wait_for("--track: sending the last data; Ctrl-C ends this");
    running.signal("TERM");
    let (status, err) = running.end();
    assert_eq!(status, Some(0), "{err}");
    assert!(err.contains("--track: the last data were not sent"), "{err}");
    tracked.wait_for_end();
}

#[test]
fn an_interrupted_run_ends_as_an_interrupted_one() {
    let tracked = Tracked::new();
    let mut running = Running::start(tracked.command("", &format!("--track {ENDLESS}")));
    running.wait_for("step ");
    tracked.wait_for("log");
    running.signal("INT");
    let (status, err) = running.end();
    assert_eq!(status, Some(0), "{err}");
    assert_eq!(tracked.of("finish")[0]["exit_code"], 255);
    tracked.wait_for_end();
}

#[test]
fn a_killed_run_leaves_no_process() {
    let tracked = Tracked::new();
    let mut running = Running::start(tracked.command("", &format!("--track {ENDLESS}")));
    running.wait_for("step ");
    tracked.wait_for("log");
    running.signal("KILL");
    assert_eq!(running.end().0, None);
    tracked.wait_for("finish");
    assert_eq!(tracked.of("finish")[0]["exit_code"], 1);
    tracked.wait_for_end();
}

#[test]
fn a_resumed_run_continues_its_run_in_wandb() {
    let tracked = Tracked::new();
    let flags = "--mode interpret --checkpoint-frequency 64 --track";
    assert_eq!(run(tracked.command("", flags)).0, 0);
    let dir = run_dir(&tracked.runs());
    // A checkpoint from somebody else does not choose an account.
    let resume = format!("--mode interpret --total-timesteps 128 --resume {}", dir.display());
    assert_eq!(run(tracked.command("", &resume)).0, 0);
    assert_eq!(tracked.of("init").len(), 1);
    let resume =
        format!("--mode interpret --total-timesteps 192 --track --resume {}", dir.display());
    assert_eq!(run(tracked.command("", &resume)).0, 0);
    let init = tracked.of("init");
    assert_eq!((init.len(), &init[0]["id"]), (2, &init[1]["id"]));
    assert_eq!((&init[0]["resume"], &init[1]["resume"]), (&Value::Null, &json!("allow")));
}

#[test]
fn a_model_is_uploaded() {
    let tracked = Tracked::new();
    let flags = "--mode interpret --upload-model --hf-entity me --eval-episodes 2";
    let (status, _, err) = run(tracked.command("", flags));
    assert_eq!(status, 0, "{err}");
    let repo = "me/CartPole-v1-ppo-seed1";
    assert!(err.contains(&format!("the model is at https://huggingface.co/{repo}")), "{err}");
    let commit = &tracked.of("create_commit")[0];
    assert_eq!(commit["repo_id"], repo);
    let files: Vec<&str> =
        commit["added"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
    assert_eq!((files[0], files[files.len() - 1]), ("ppo.safetensors", "README.md"));
    assert!(files.iter().any(|file| file.starts_with("events.out.tfevents.")), "{files:?}");
    assert_eq!(commit["deleted"], json!(["videos/old.mp4"]));
    let card = commit["card"].as_str().unwrap();
    assert!(card.contains("# ppo on CartPole-v1") && card.contains("metric_value"), "{card}");

    for (fault, expected) in [
        ("missing", "the Python package huggingface_hub is missing; install it with: "),
        ("refused", "huggingface_hub: ConnectionError: no route"),
    ] {
        let tracked = Tracked::new();
        let (status, _, err) = run(tracked.command(fault, flags));
        assert_eq!(status, 0, "{err}");
        let lines: Vec<&str> =
            err.lines().filter(|line| line.starts_with("--upload-model: ")).collect();
        assert!(lines.len() == 1 && lines[0].contains(expected), "{err}");
        assert!(lines[0].ends_with("; the model stays in the run's folder"), "{err}");
    }
}

/// Keys of the configuration of CleanRL's `ppo.py`, and of its rows.
const CONFIG: &str = "exp_name seed torch_deterministic cuda track wandb_project_name wandb_entity \
                      capture_video env_id total_timesteps learning_rate num_envs num_steps \
                      anneal_lr gamma gae_lambda num_minibatches update_epochs norm_adv clip_coef \
                      clip_vloss ent_coef vf_coef max_grad_norm target_kl batch_size \
                      minibatch_size num_iterations";
const KEYS: &str = "global_step charts/episodic_return charts/episodic_length charts/learning_rate \
                    losses/value_loss losses/policy_loss losses/entropy losses/old_approx_kl \
                    losses/approx_kl losses/clipfrac losses/explained_variance charts/SPS";

#[test]
fn the_real_package_reads_an_offline_run_with_cleanrls_keys() {
    let Some(python) = peers::python("PODRACER_WANDB_PYTHON") else { return };
    let folder = tempfile::tempdir().unwrap();
    let flags = "--track --wandb-project-name cleanrltest --wandb-group g --capture-video \
                 --eval-episodes 1 --total-timesteps 256";
    let mut command = ppo(&folder.path().join("runs"), flags);
    command.current_dir(folder.path()).env("PODRACER_PYTHON", &python);
    command.env("WANDB_MODE", "offline").env("WANDB_TAGS", "v1,pr-2");
    let (status, _, err) = run(command);
    assert_eq!(status, 0, "{err}");
    assert!(err.contains(" is offline; `wandb sync wandb/offline-run-"), "{err}");

    let read = ["-c", include_str!("track/read_wandb.py"), folder.path().to_str().unwrap()];
    let output = Command::new(&python).args(read).output().unwrap();
    let problems = String::from_utf8_lossy(&output.stderr);
    let found: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{problems}"));
    let dir = run_dir(&folder.path().join("runs"));
    assert_eq!(found["name"], json!(dir.file_name().unwrap().to_str().unwrap()));
    assert_eq!((&found["project"], &found["group"]), (&json!("cleanrltest"), &json!("g")));
    assert_eq!(found["tags"], json!(["v1", "pr-2"]));
    assert_eq!(found["exit_code"], 0, "{found}");
    for key in CONFIG.split_whitespace() {
        assert!(found["config"].get(key).is_some(), "{key} in {}", found["config"]);
    }
    assert_eq!(found["config"]["total_timesteps"], 256);
    let rows = found["rows"].as_array().unwrap();
    for key in KEYS.split_whitespace() {
        assert!(rows.iter().any(|row| row.get(key).is_some()), "{key} in {rows:?}");
    }
    let losses = rows.iter().filter(|row| row.get("losses/value_loss").is_some());
    let steps: Vec<u64> = losses.map(|row| row["global_step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=8).map(|k| 32 * k).collect::<Vec<_>>());
    let files: Vec<&str> =
        found["files"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(files.contains(&"ppo.safetensors"), "{files:?}");
    assert!(files.iter().any(|file| file.starts_with("media/videos/")), "{files:?}");
}
