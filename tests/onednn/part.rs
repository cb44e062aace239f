//! The native part: choices of the environment, and what is wrong with it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use podracer::native::{Lock, Settings};

/// Trains for a moment in a process with this choice of convolutions and this folder, without a
/// network.
fn train(home: &Path, conv: &str) -> Output {
    let settings = Settings::from_env().unwrap();
    let plugin = settings.locate_cpu_plugin().unwrap();
    let runs = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_podracer"))
        .args(["train", "ppo", "--total-timesteps=512", "--runs-dir"])
        .arg(runs.path())
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
    let output = train(home.path(), "onednn");
    assert!(!output.status.success());
    assert!(
        message(&output).contains("onednn (oneDNN's convolutions for the CPU) is not installed")
    );
    for conv in ["", "xla"] {
        let output = train(home.path(), conv);
        assert!(output.status.success(), "{}", message(&output));
    }
    let output = train(home.path(), "mkl");
    let message = message(&output);
    assert!(message.contains("PODRACER_CONV is `mkl`; there are xla and onednn"), "{message}");
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
    let output = train(home.path(), "onednn");
    let message = message(&output);
    assert!(!output.status.success());
    assert!(message.contains("libdnnl.so.3.2 is damaged: it has 10 bytes"), "{message}");
    assert!(message.contains("podracer fetch onednn"), "{message}");
}

#[test]
fn the_part_is_optional() {
    let optional: Vec<&str> = (Lock::get().parts.iter())
        .filter(|part| part.optional)
        .map(|part| part.name.as_str())
        .collect();
    assert_eq!(optional, ["onednn"]);
}
