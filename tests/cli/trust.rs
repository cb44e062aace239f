//! Models and checkpoints of others, whose settings name Python code.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Running, peers, podracer, ppo, run, run_dir};

/// A run with a model and a checkpoint, and a Python that leaves a file when it is started.
struct Download {
    folder: TempDir,
    run: PathBuf,
}

impl Download {
    fn new() -> Download {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let (status, _, err) =
            run(ppo(&runs, "--save-model --eval-episodes 1 --checkpoint-frequency 64"));
        assert_eq!(status, 0, "{err}");
        let run = run_dir(&runs);
        let python = folder.path().join("python");
        fs::write(&python, "#!/bin/sh\ntouch \"$(dirname \"$0\")/started\"\nexit 1\n").unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        Download { folder, run }
    }

    /// Replaces the saved environment in the model and in the checkpoint.
    fn change(&self, settings: &str) {
        for name in ["ppo", "checkpoint"] {
            let path = self.run.join(format!("{name}.safetensors"));
            let original = self.run.join(format!("{name}.original"));
            if !original.exists() {
                fs::copy(&path, &original).unwrap();
            }
            let bytes = fs::read(&original).unwrap();
            let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
            let (header, arrays) = rest.split_at(u64::from_le_bytes(*length) as usize);
            let mut header: Value = serde_json::from_slice(header).unwrap();
            let metadata = &mut header["__metadata__"]["podracer"];
            let text = metadata.as_str().unwrap();
            let env = "\"env_id\": \"CartPole-v1\"";
            assert_eq!(text.matches(env).count(), 1, "{text}");
            // What is replaced by an option would otherwise be there twice.
            let mut text = text.replace(env, settings);
            for name in ["env_kwargs", "env_wrappers"] {
                if settings.contains(name) {
                    text = text.replacen(&format!("\"{name}\": null,"), "", 1);
                }
            }
            *metadata = text.into();
            let header = header.to_string().into_bytes();
            let length = (header.len() as u64).to_le_bytes();
            fs::write(&path, [&length[..], &header, arrays].concat()).unwrap();
        }
    }

    /// Runs a command; returns its status, standard error, and true if Python was started.
    fn command(&self, words: &[&str]) -> (i32, String, bool) {
        let started = self.folder.path().join("started");
        let _ = fs::remove_file(&started);
        let mut command = podracer(words);
        command.env("PODRACER_PYTHON", self.folder.path().join("python"));
        let (status, _, err) = run(command);
        (status, err, started.exists())
    }

    /// Command lines that make the environment of the model or of the checkpoint.
    fn uses(&self) -> [Vec<String>; 2] {
        let run = self.run.display();
        let words = |line: String| line.split(' ').map(String::from).collect::<Vec<_>>();
        [
            words(format!("eval --episodes 1 --run {run}")),
            words(format!("train ppo --total-timesteps 128 --resume {run}")),
        ]
    }
}

fn str_of(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

#[test]
fn code_that_a_file_names_runs_only_with_the_flag() {
    let download = Download::new();
    for (settings, id) in [
        (r#""env_id": "pettingzoo:subprocess:Popen""#, "pettingzoo:subprocess:Popen"),
        (r#""env_id": "gymnasium:my_envs:Corridor-v0""#, "gymnasium:my_envs:Corridor-v0"),
        (r#""env_id": ["pettingzoo:subprocess:Popen"]"#, "pettingzoo:subprocess:Popen"),
        (
            r#""env_id": "CartPole-v1", "env_id": "pettingzoo:subprocess:Popen""#,
            "pettingzoo:subprocess:Popen",
        ),
        (
            r#""env_id": "gymnasium:CartPole-v1", "env_wrappers": "os.system""#,
            "gymnasium:CartPole-v1",
        ),
        (
            r#""env_id": "gymnasium:CartPole-v1", "env_wrappers": ["os.system"]"#,
            "gymnasium:CartPole-v1",
        ),
        (
            r#""env_id": "gymnasium:GymV26Environment-v0", "env_kwargs": "{\"env_id\": \"os:x\"}""#,
            "gymnasium:GymV26Environment-v0",
        ),
    ] {
        download.change(settings);
        for words in download.uses() {
            let (status, err, started) = download.command(&str_of(&words));
            assert!(status != 0 && !started, "{settings}, {words:?}: {err}");
            let parts = ["safetensors names the environment ", id, "--trust-remote-code"];
            assert!(parts.iter().all(|part| err.contains(part)), "{settings}, {words:?}: {err}");
            let trusted = [&str_of(&words)[..], &["--trust-remote-code"]].concat();
            let (_, err, started) = download.command(&trusted);
            assert!(started, "{settings}, {words:?}: {err}");
        }
    }
}

#[test]
fn tricks_with_the_names_of_settings_start_no_python() {
    let download = Download::new();
    let evil = "pettingzoo:subprocess:Popen";
    for settings in [
        format!(r#""env_id": "{evil}", "trust_remote_code": true"#),
        format!(r#""env_id": "{evil}", "trust-remote-code": true"#),
        format!(r#""env_id": "{evil}", "is_trusted": true"#),
        format!(r#""env_id": "CartPole-v1", "env-id": "{evil}""#),
        format!(r#""env_id": "CartPole-v1", "env_id=x --env_id": "{evil}""#),
        format!(r#""env_id": [["{evil}"]]"#),
        format!(r#""env_id": ["CartPole-v1", "{evil}"]"#),
        format!(r#""env_id": {{"a": "{evil}"}}"#),
    ] {
        download.change(&settings);
        for words in download.uses() {
            let (status, err, started) = download.command(&str_of(&words));
            assert!(status != 0 && !started, "{settings}, {words:?}: {err}");
        }
    }
}

#[test]
fn an_export_makes_no_environment() {
    let download = Download::new();
    let export = ["export", "--format", "onnx", "--run", download.run.to_str().unwrap()];
    for id in ["gymnasium:my_envs:Corridor-v0", "Corridor-v0"] {
        download.change(&format!(r#""env_id": "{id}""#));
        let (status, err, started) = download.command(&export);
        assert!(status == 0 && !started, "{id}: {err}");
    }
}

#[test]
fn environments_that_the_command_line_names_or_that_are_known_need_no_flag() {
    let download = Download::new();
    for words in download.uses() {
        let (status, err, started) = download.command(&str_of(&words));
        assert!(status == 0 && !started, "{words:?}: {err}");
    }
    // An id of Gymnasium's own registry.
    download.change(r#""env_id": "gymnasium:CartPole-v1""#);
    for words in download.uses() {
        let (_, err, started) = download.command(&str_of(&words));
        assert!(started && !err.contains("--trust-remote-code"), "{words:?}: {err}");
    }
    // The user's own words, not those of the file.
    download.change(r#""env_id": "gymnasium:my_envs:Corridor-v0""#);
    let run = download.run.to_str().unwrap();
    let words = ["train", "ppo", "--resume", run, "--total-timesteps", "128", "--env-id"];
    let own = [&words[..], &["gymnasium:my_envs:Corridor-v0"]].concat();
    let (_, err, started) = download.command(&own);
    assert!(started && !err.contains("--trust-remote-code"), "{err}");
    // Wrappers of the file are not theirs.
    download.change(r#""env_id": "gymnasium:CartPole-v1", "env_wrappers": "os.system""#);
    let (_, err, started) = download.command(&[&words[..], &["gymnasium:CartPole-v1"]].concat());
    assert!(!started && err.contains("the wrapper os.system"), "{err}");
}

/// A benchmark of an environment in the user's Python module, interrupted and resumed.
#[test]
fn a_benchmark_of_the_users_own_module_is_resumed_without_the_flag() {
    let Some(python) = peers::python("PODRACER_PEER_PYTHON") else { return };
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("own_envs.py"),
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\
         gymnasium.register('Own-v0', CartPoleEnv, max_episode_steps=100)\n",
    )
    .unwrap();
    let results = folder.path().join("results.jsonl");
    let command = |flags: &[&str]| {
        let mut command = podracer(&["benchmark", "--algos", "ppo", "--num-seeds", "1"]);
        command.args(["--env-ids", "gymnasium:own_envs:Own-v0", "--results"]).arg(&results);
        command.args(flags).arg("--").args(SMALL.split_whitespace());
        command.args(["--env-kwargs", &json!({ "sutton_barto_reward": false }).to_string()]);
        command.env("PODRACER_PYTHON", &python).current_dir(folder.path());
        command
    };
    let mut running = Running::start(command(&[]));
    while checkpoint_below(&folder.path().join("runs"), 4).is_none() {
        assert!(running.child.try_wait().unwrap().is_none(), "{}", running.end().1);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    running.signal("INT");
    assert_eq!(running.end().0, Some(1));
    let (status, _, err) = run(command(&["--resume"]));
    assert!(status == 0 && err.contains("resuming "), "{err}");
}

/// Flags of a run of some seconds.
const SMALL: &str = "--num-envs 2 --num-steps 16 --num-minibatches 2 --update-epochs 1 \
                     --num-threads 1 --total-timesteps 20000 --checkpoint-frequency 320";

fn checkpoint_below(folder: &Path, depth: usize) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    entries.filter(|_| depth > 0).find_map(|path| match path.is_dir() {
        true => checkpoint_below(&path, depth - 1),
        false => path.ends_with("checkpoint.safetensors").then_some(path),
    })
}

/// A module of the user's own, with which a run has been trained, needs no flag in its folder until it
/// changes.
#[test]
fn code_that_the_user_has_trained_with_needs_no_flag() {
    let Some(python) = peers::python("PODRACER_PEER_PYTHON") else { return };
    let folder = tempfile::tempdir().unwrap();
    let module = "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\
                  gymnasium.register('Own-v0', CartPoleEnv, max_episode_steps=100)\n";
    for name in ["here", "there"] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("own_envs.py"), module).unwrap();
    }
    let own = |words: &[&str], working: &str| {
        let mut command = podracer(words);
        command.env("PODRACER_PYTHON", &python).current_dir(folder.path().join(working));
        command
    };
    let runs = folder.path().join("runs");
    let id = ["train", "ppo", "--env-id", "gymnasium:own_envs:Own-v0", "--runs-dir"];
    let mut training = own(&[&id[..], &[runs.to_str().unwrap(), "--save-model"]].concat(), "here");
    training.args(SMALL.split_whitespace()).args(["--eval-episodes", "1"]);
    let (status, _, err) = run(training);
    assert_eq!(status, 0, "{err}");
    let run_folder = run_dir(&runs);
    let words = ["eval", "--episodes", "1", "--run", run_folder.to_str().unwrap()];
    let refused = |command: Command| {
        let (status, _, err) = run(command);
        assert!(status == 1 && err.contains("--trust-remote-code"), "{err}");
    };

    let (status, _, err) = run(own(&words, "here"));
    assert_eq!(status, 0, "{err}");
    // A folder in which somebody else's module may have that name.
    refused(own(&words, "there"));
    // Another user's records.
    let mut other = own(&words, "here");
    other.env("PODRACER_HOME", folder.path().join("home"));
    refused(other);
    // Other settings in the file.
    let model = run_folder.join("ppo.safetensors");
    let bytes = fs::read(&model).unwrap();
    let at = bytes.windows(6).position(|bytes| bytes == b"Own-v0").unwrap();
    let changed = [&bytes[..at], b"Two-v0", &bytes[at + 6..]].concat();
    fs::write(&model, changed).unwrap();
    refused(own(&words, "here"));
    fs::write(&model, bytes).unwrap();
    // Another module.
    fs::write(folder.path().join("here/own_envs.py"), format!("{module}import os\n")).unwrap();
    refused(own(&words, "here"));
}
