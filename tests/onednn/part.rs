//! The native part: choices of the environment, and what is wrong with it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use podracer::native::{Lock, Settings};

/// Trains for a moment in a process with this choice of convolutions and this folder, without a
/// network. PPO's network is of dense layers, that of `ppo_atari` has convolutions.
fn train(algorithm: &str, home: &Path, conv: &str) -> Output {
    let settings = Settings::from_env().unwrap();
    let plugin = settings.locate_cpu_plugin().unwrap();
    let runs = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_podracer"));
    command.args(["train", algorithm, "--num-steps=16", "--total-timesteps=128", "--runs-dir"]);
    command.arg(runs.path());
    if algorithm == "ppo_atari" {
        command.args(["--env-id=MinAtar/Breakout-v1"]);
    }
    command
        .env("PODRACER_HOME", home)
        .env("PODRACER_PJRT_PLUGIN", plugin)
        .env("PODRACER_OFFLINE", "1")
        .env("PODRACER_CONV", conv)
        .output()
        .unwrap()
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_missing_part_is_an_error_only_if_it_was_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let output = train("ppo", home.path(), "onednn");
    assert!(!output.status.success());
    assert!(
        message(&output).contains("onednn (oneDNN's convolutions for the CPU) is not installed")
    );
    for conv in ["", "auto", "xla"] {
        let output = train("ppo", home.path(), conv);
        assert!(output.status.success(), "{}", message(&output));
        assert!(!message(&output).contains("oneDNN"), "{}", message(&output));
    }
    let output = train("ppo", home.path(), "mkl");
    let message = message(&output);
    assert!(message.contains("PODRACER_CONV is `mkl`; expected auto, xla or onednn"), "{message}");
}

#[test]
fn xla_computes_convolutions_after_a_warning_where_the_part_is_missing() {
    let home = tempfile::tempdir().unwrap();
    let output = train("ppo_atari", home.path(), "");
    assert!(output.status.success(), "{}", message(&output));
    let message = message(&output);
    let warning = "podracer: warning: XLA computes convolutions";
    assert_eq!(message.matches(warning).count(), 1, "{message}");
    assert!(message.contains("PODRACER_CONV=xla chooses XLA"), "{message}");
}

#[test]
fn a_damaged_part_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings { home: home.path().into(), ..Settings::from_env().unwrap() };
    let part = Lock::get().part("onednn").unwrap();
    let wheel = part.wheel().unwrap();
    let path = settings.install_dir(part, wheel).join(&wheel.members[0].path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "no library").unwrap();
    let output = train("ppo", home.path(), "onednn");
    let message = message(&output);
    assert!(!output.status.success());
    assert!(message.contains("libdnnl.so.3.2 is damaged: it has 10 bytes"), "{message}");
    assert!(message.contains("podracer fetch onednn"), "{message}");
}
