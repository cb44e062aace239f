//! The `podracer` command, run as a user runs it; and fetching by the real pip, out of reach of
//! any network.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use podracer::native::{Lock, Settings};
use pretty_assertions::assert_eq;

/// The command in this process's environment.
fn podracer(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podracer"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// The command in an environment that sees nothing of this machine but what is below `dir`.
fn isolated(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = podracer(arguments);
    command.env_clear().env("HOME", dir).env("PATH", dir.join("bin"));
    command
}

/// Runs it: the exit status, the standard output, the standard error stream.
fn run(mut command: Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    for word in ["panicked", "RUST_BACKTRACE", "Native {", "Error {"] {
        assert!(!err.contains(word), "{err}");
    }
    (output.status.code().expect("no signal"), out, err)
}

/// A `python3` for [`isolated`] that does what `script` says. Asked for its folders, the only
/// other thing that it is asked, it names none.
fn python3(dir: &Path, script: &str) {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let python = bin.join("python3");
    fs::write(&python, format!("#!/bin/sh\n[ \"$1\" = -c ] && exit 0\n{script}\n")).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The interpreter behind this machine's `python3`.
fn real_python() -> PathBuf {
    let ask = ["-c", "import sys; print(sys.executable)"];
    let output = Command::new("python3").args(ask).output().unwrap();
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

#[test]
fn ir_dump_targets_the_requested_platform() {
    let dir = tempfile::tempdir().unwrap();
    let (ir, runs) = (dir.path().join("ir"), dir.path().join("runs"));
    let small = "train cleanba_ppo --env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 \
                 --num-steps 8 --total-timesteps 64 --runs-dir";
    let mut words: Vec<&str> = small.split_whitespace().collect();
    words.push(runs.to_str().unwrap());
    let mut command = podracer(&words);
    command.env("PODRACER_DUMP_IR_TO", &ir).env("PODRACER_DUMP_IR_FOR", "cuda");
    let (status, _, err) = run(command);
    assert_eq!(status, 0, "{err}");
    let files: Vec<PathBuf> = fs::read_dir(&ir).unwrap().map(|file| file.unwrap().path()).collect();
    // The rollout is a jitted function, the update a pmapped one.
    for name in ["sebulba_rollout-", "sebulba_step-"] {
        let of = |file: &&PathBuf| file.file_name().unwrap().to_str().unwrap().starts_with(name);
        let file = files.iter().find(of).unwrap_or_else(|| panic!("no {name} in {files:?}"));
        let text = fs::read_to_string(file).unwrap();
        assert!(text.starts_with("module @sebulba_"), "{text}");
        // CPU-only native calls must be absent from a GPU's module.
        assert!(!text.contains("@podracer.threefry"), "{text}");
    }
}

#[test]
fn unknown_platform_is_an_error() {
    let mut command = podracer(&["train", "ppo", "--total-timesteps", "512"]);
    command.env("PODRACER_PLATFORM", "gpu");
    let (status, _, err) = run(command);
    assert_eq!(status, 1);
    assert!(err.contains("PODRACER_PLATFORM is `gpu`; there are cpu and cuda"), "{err}");
}

#[test]
fn version_and_help() {
    let (status, out, _) = run(podracer(&["--version"]));
    assert_eq!((status, out), (0, format!("podracer {}\n", env!("CARGO_PKG_VERSION"))));
    let (status, out, _) = run(podracer(&["--help"]));
    assert_eq!(status, 0);
    for command in ["fetch", "doctor", "envs"] {
        assert!(out.contains(&format!("\n  {command} ")), "{out}");
    }
    let (status, _, err) = run(podracer(&[]));
    assert!(status == 2 && err.contains("Usage: podracer"), "{status} {err}");
    let (status, _, err) = run(podracer(&["fly"]));
    assert!(status == 2 && err.starts_with("error: unrecognized subcommand 'fly'"), "{err}");
}

#[test]
fn envs_lists_them_all() {
    let (status, out, err) = run(podracer(&["envs"]));
    assert_eq!((status, err.as_str()), (0, ""));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("id "), "{out}");
    let ids: Vec<&str> =
        lines[1..].iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(ids, podracer::envs::list_envs());
    let cartpole = lines.iter().find(|line| line.starts_with("CartPole-v1 ")).unwrap();
    assert!(cartpole.contains("Discrete(2)") && cartpole.contains("500"), "{cartpole}");
}

#[test]
fn a_reader_may_leave() {
    let mut child =
        podracer(&["envs"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(err, "");
}

#[test]
fn fetch_and_doctor_agree() {
    let (status, out, err) = run(podracer(&["fetch"]));
    assert_eq!(status, 0, "{err}");
    let fetched = Lock::get().parts.iter().filter(|part| part.in_place_of.is_none());
    assert_eq!(out.lines().count(), fetched.count(), "{out}");
    assert!(out.starts_with("lammps-jax-pjrt-cpu 0.11.2 "), "{out}");
    let (status, again, err) = run(podracer(&["fetch", "xla-cpu"]));
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(again.contains(" is there"), "{again}");
    let (status, out, err) = run(podracer(&["doctor"]));
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(out.contains("ok       XLA plugin  ") && out.contains("PJRT C API 0."), "{out}");
}

#[test]
fn doctor_fails_where_something_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (status, out, err) = run(isolated(dir.path(), &["doctor"]));
    assert_eq!((status, err.as_str()), (1, ""));
    assert!(out.contains("missing  XLA plugin"), "{out}");
    assert!(out.contains("-> podracer fetch xla-cpu"), "{out}");

    let mut command = isolated(dir.path(), &["doctor"]);
    command.env("PODRACER_PJRT_PLUGIN", dir.path().join("none.so"));
    let (status, out, _) = run(command);
    assert_eq!(status, 1);
    assert!(out.contains("BROKEN   XLA plugin") && out.contains("cannot be read"), "{out}");

    let mut command = isolated(dir.path(), &["doctor"]);
    command.env("PODRACER_PLATFORM", "cuda");
    let (status, out, _) = run(command);
    assert_eq!(status, 1);
    assert!(out.contains("BROKEN   XLA plugin        no XLA plugin for NVIDIA GPUs"), "{out}");

    // A plugin of the right size with other bytes is damaged, and is not loaded.
    let part = Lock::get().part("xla-cpu").unwrap();
    let wheel = part.wheel().unwrap();
    let site = dir.path().join(".local/lib/python3.12/site-packages");
    let member = site.join(&wheel.members[0].path);
    fs::create_dir_all(member.parent().unwrap()).unwrap();
    fs::File::create(&member).unwrap().set_len(wheel.members[0].bytes).unwrap();
    let (status, out, _) = run(isolated(dir.path(), &["doctor"]));
    assert_eq!(status, 1);
    assert!(out.contains("is damaged: its sha256 is"), "{out}");
    assert!(out.contains("BROKEN   XLA plugin        not loaded"), "{out}");
    // Nobody is told to remove all Python packages.
    assert!(out.contains("--force-reinstall --no-deps lammps-jax-pjrt-cpu==0.11.2"), "{out}");
}

#[test]
fn doctor_says_that_others_can_write_to_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    for (mode, is_shared) in [(0o755, false), (0o775, true), (0o757, true)] {
        fs::set_permissions(&home, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = isolated(dir.path(), &["doctor"]);
        command.env("PODRACER_HOME", &home);
        let out = run(command).1;
        assert_eq!(out.contains("other users may write to it"), is_shared, "{mode:o}: {out}");
    }
}

#[test]
fn pip_imports_no_module_of_the_working_folder() {
    let dir = tempfile::tempdir().unwrap();
    python3(dir.path(), "echo \"$PYTHONSAFEPATH\" > \"$HOME/safe\"\nexit 1");
    let (status, _, err) = run(isolated(dir.path(), &["fetch", "xla-cpu"]));
    assert_eq!(status, 1, "{err}");
    assert_eq!(fs::read_to_string(dir.path().join("safe")).unwrap(), "1\n");
}

#[test]
fn wrong_requests_are_errors() {
    let (status, out, err) = run(podracer(&["fetch", "nothing"]));
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(err.starts_with("error: no native part `nothing`; there is xla-cpu"), "{err}");

    let dir = tempfile::tempdir().unwrap();
    let mut command = isolated(dir.path(), &["fetch"]);
    command.env("PODRACER_OFFLINE", "1");
    let (status, _, err) = run(command);
    assert_eq!(status, 1);
    assert!(err.starts_with("error: xla-cpu (") && err.contains("PODRACER_OFFLINE"), "{err}");
    assert!(err.contains("\n  help: "), "{err}");

    let mut command = podracer(&["fetch"]);
    let (status, _, err) = run({
        command.env_clear();
        command
    });
    assert_eq!(status, 1);
    assert!(err.starts_with("error: no folder for native parts: "), "{err}");

    let (status, _, err) = run(isolated(dir.path(), &["fetch"]));
    assert_eq!(status, 1);
    assert!(err.contains("there is no python3 on PATH"), "{err}");
}

#[test]
fn an_older_xla_takes_the_place_of_one_that_cannot_be_fetched() {
    let older = Lock::get().part("xla-cpu-2025").unwrap();
    let root = podracer::native::locate(&older.name).unwrap().root;
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { home: dir.path().join("parts"), ..Settings::from_env().unwrap() };
    let place = settings.install_dir(older, older.wheel().unwrap());
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(root, place).unwrap();
    let arguments = ["train", "ppo", "--total-timesteps", "4096"];
    let mut command = isolated(dir.path(), &arguments);
    command.current_dir(dir.path()).env("PODRACER_HOME", &settings.home);
    let (status, out, err) = run(command);
    assert_eq!(status, 0, "{err}");
    assert!(err.contains("has to be fetched, but there is no python3 on PATH"), "{err}");
    assert!(err.contains("\n  using xla-cpu-pjrt 0.0.1\n"), "{err}");
    assert!(out.contains("4096 steps in"), "{out}");
}

/// What the real pip says, understood: without itself, without a network, and with a wheel that is
/// cut short or another.
#[test]
fn real_pip_failures_are_understood() {
    let python = real_python();
    let python = python.display();
    let part = Lock::get().part("xla-cpu").unwrap();
    let wheel = part.wheel().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let fetch = |variables: &[(&str, &str)]| {
        let mut command = isolated(dir.path(), &["fetch", "xla-cpu"]);
        command.envs(variables.iter().copied());
        let (status, out, err) = run(command);
        assert_eq!((status, out.as_str()), (1, ""));
        assert!(err.contains("\n  help: "), "{err}");
        // Nothing half-made stays.
        let parts = fs::read_dir(dir.path().join(".cache/podracer/parts")).unwrap();
        assert_eq!(parts.count(), 1);
        err
    };
    // No installed package is seen: neither pip nor ours.
    python3(dir.path(), &format!("exec {python} -I -S \"$@\""));
    let err = fetch(&[]);
    assert!(err.contains("has no pip, which fetches lammps-jax-pjrt-cpu 0.11.2"), "{err}");

    python3(dir.path(), &format!("exec {python} \"$@\""));
    // Nothing listens on the port of the discard protocol.
    let nowhere = [("PIP_INDEX_URL", "http://127.0.0.1:9/simple"), ("PIP_RETRIES", "1")];
    let err = fetch(&[&nowhere[..], &[("PIP_CONFIG_FILE", "/dev/null")]].concat());
    assert!(err.contains("pip could not fetch lammps-jax-pjrt-cpu 0.11.2"), "{err}");

    let wheels = dir.path().join("wheels");
    fs::create_dir(&wheels).unwrap();
    let links = wheels.to_str().unwrap();
    let local =
        [("PIP_CONFIG_FILE", "/dev/null"), ("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", links)];
    let err = fetch(&local);
    assert!(err.contains("pip finds no lammps-jax-pjrt-cpu 0.11.2 for this machine"), "{err}");

    fs::write(wheels.join(&wheel.file), "PK\x03\x04 cut short").unwrap();
    let err = fetch(&local);
    let expected = format!("is not the pinned file (sha256 {})", wheel.sha256);
    assert!(err.contains(&expected), "{err}");
}
