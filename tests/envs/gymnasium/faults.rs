//! Faults of environments and of their processes, and the processes that are left.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use podracer::envs::{EnvPool, GymnasiumOptions, OnError, PoolOptions};
use podracer::error::Result;
use serde_json::{Value, json};

use super::{MODULE, kwargs, pool_of, python, python_with};

/// Makes three environments in two processes, of which one has a fault.
fn faulty(python: &Path, with: Value, options: PoolOptions) -> Result<EnvPool> {
    let own = GymnasiumOptions {
        python: Some(python.to_path_buf()),
        kwargs: kwargs(with),
        timeout: Duration::from_secs(20),
        ..Default::default()
    };
    let options = PoolOptions { num_envs: 3, num_threads: 2, ..options };
    EnvPool::gymnasium(&format!("gymnasium:{MODULE}:Faulty-v0"), own, options)
}

/// Error of the third step, in which one environment has the fault.
fn error_of(python: &Path, fault: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("marker");
    let with = json!({ "fault": fault, "marker": marker });
    let mut pool = faulty(python, with, PoolOptions::default()).unwrap();
    pool.reset().unwrap();
    pool.step(&[0; 3]).unwrap();
    pool.step(&[0; 3]).unwrap();
    let error = pool.step(&[0; 3]).unwrap_err().to_string();
    // The pool ended, and says so.
    assert!(pool.step(&[0; 3]).unwrap_err().to_string().contains("the pool ended there"));
    error
}

#[test]
fn a_fault_in_a_step_is_an_error_that_names_the_environment() {
    let Some(python) = python() else { return };
    for (fault, parts) in [
        ("raise", &["Traceback", "envs.py\", line", "RuntimeError: out of fuel"][..]),
        ("exit", &["SystemExit: 3"]),
        ("shape", &["the observation has shape (1,), the observation space (3,)"]),
        ("type", &["ValueError"]),
        ("reward", &["the reward is None, expected a number"]),
        ("nan", &["the reward of step 3 of the game is NaN"]),
        ("arity", &["step returned 4 values, expected 5: observation, reward, terminated"]),
        ("kill", &["the worker process", "signal 9 ended it, in a call of env"]),
    ] {
        let error = error_of(&python, fault);
        let named = (0..3).any(|env| error.contains(&format!("Faulty-v0: env {env} failed: ")));
        assert!(named && parts.iter().all(|part| error.contains(part)), "{fault}: {error}");
        assert!(!error.contains("File \"<stdin>\"") || !error.contains("envs.py"), "{error}");
    }
}

/// Parts of the errors of the steps of `Odd-v0`, in their order.
const ODD: [&str; 19] = [
    "step returned None, expected a tuple: observation, reward, terminated, truncated, info",
    "step returned array([0., 0., 0.], dtype=float32), expected a tuple",
    "step returned 4 values, expected 5",
    "the reward is None, expected a number",
    "the reward is '1', expected a number",
    "the reward is array([0., 0.]), expected a number",
    "the reward is {}, expected a number",
    "the reward of step 1 of the game is inf",
    "the reward of step 1 of the game is 1e300, infinite in f32",
    "terminated is None, expected True or False",
    "truncated is 'no', expected True or False",
    "terminated is array([ True, False]), expected True or False",
    "the observation is None, expected numbers",
    "the observation is [[1], [1, 2]], which is no array",
    "the observation is {'x': array([0., 0., 0.], dtype=float32)}, expected numbers",
    "element 0 of the observation is inf",
    "characters ..] xxx",
    "\\x1b[31mred\\x1b[0m \\ud800",
    "Unprintable",
];

/// Each step is an error that says what is wrong in words of Gymnasium; the last step is none.
#[test]
fn results_of_other_types_are_errors_that_name_the_value() {
    let Some(python) = python() else { return };
    let options = PoolOptions { on_error: OnError::Truncate, ..Default::default() };
    let mut pool = pool_of(&format!("{MODULE}:Odd-v0"), python.clone(), options);
    pool.reset().unwrap();
    for part in ODD {
        pool.step(&[0]).unwrap();
        let failures = pool.take_failures();
        let message = &failures[0].message;
        assert!(message.contains(part) && message.len() < 1 << 16, "{part}: {message}");
        assert!(!message.contains("<stdin>") && !message.contains('\x1b'), "{message}");
        assert_eq!(message.contains("Traceback"), message.contains("envs.py"), "{message}");
    }
    assert_eq!(pool.step(&[0]).unwrap().reward(), [1.5]);
    assert!(pool.take_failures().is_empty());
    for (reset, part) in [
        ("obs", "reset returned array(["),
        ("none", "reset returned None, expected a tuple: observation, info"),
    ] {
        let own = GymnasiumOptions {
            python: Some(python.clone()),
            kwargs: kwargs(json!({ "reset": reset })),
            ..Default::default()
        };
        let id = format!("gymnasium:{MODULE}:Odd-v0");
        let mut pool = EnvPool::gymnasium(&id, own, PoolOptions::default()).unwrap();
        let error = pool.reset().unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains("<stdin>"), "{error}");
    }
}

#[test]
fn spaces_that_cannot_be_used_are_named() {
    let Some(python) = python() else { return };
    for (name, part) in [
        ("Text", "array([0., 0., 0.], dtype=float32), which is none of Text("),
        ("Sequence", "has no fixed size; wrap the environment"),
        ("NoSpace", "its observation_space is None of builtins.NoneType"),
    ] {
        let own = GymnasiumOptions { python: Some(python.clone()), ..Default::default() };
        let id = format!("gymnasium:{MODULE}:{name}-v0");
        let made = EnvPool::gymnasium(&id, own, PoolOptions::default());
        let error = made.and_then(|mut pool| pool.reset().map(|_| ())).unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains("<stdin>"), "{error}");
    }
}

/// Numbers of the processes that a worker started and that run.
fn children_of(worker: u32) -> usize {
    let pids = fs::read_dir("/proc").unwrap();
    let pids = pids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
    let runs = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        !status.lines().any(|line| line.starts_with("State:\tZ"))
    };
    pids.filter(|pid| parent_of(*pid) == Some(worker)).filter(runs).count()
}

#[test]
fn processes_that_an_environment_forks_do_not_serve_the_pool() {
    let Some(python) = python() else { return };
    for child in ["return", "raise", "exit", "process"] {
        let folder = tempfile::tempdir().unwrap();
        let own = GymnasiumOptions {
            python: Some(python.clone()),
            kwargs: kwargs(json!({ "child": child, "folder": folder.path() })),
            timeout: Duration::from_secs(60),
            ..Default::default()
        };
        let id = format!("gymnasium:{MODULE}:Forking-v0");
        let options = PoolOptions { num_envs: 2, num_threads: 1, ..Default::default() };
        let options =
            if child == "process" { PoolOptions { num_envs: 1, ..options } } else { options };
        let mut pool = EnvPool::gymnasium(&id, own, options).unwrap();
        let num_envs = pool.num_envs();
        pool.reset().unwrap();
        for step in 1..=8 {
            let batch = pool.step(&vec![0; num_envs]).unwrap();
            assert_eq!(batch.reward(), vec![step as f32; num_envs], "{child}");
            assert!(batch.obs::<f32>().iter().all(|&x| x == 0.0), "{child}");
        }
        let workers = workers_of(std::process::id(), &id["gymnasium:".len()..]);
        assert_eq!(workers.len(), 1, "{child}");
        eventually("the children end", || children_of(workers[0]) == 0);
        if child == "process" {
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 8);
        }
    }
}

/// A Python that writes `message` into the pipe of replies for ever.
#[test]
fn a_reply_without_end_is_an_error() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (message, part) in [
        ("b'S' + b'\\xff' * 4095", "it sent a message of 4294967295 bytes"),
        ("bytes(4096)", "it sent a message of unknown kind 0"),
        ("b'R\\1\\0\\0\\0x'", "it sent something else than the description"),
        ("b'.'", "it sent something else than the description"),
    ] {
        let path = folder.path().join("python");
        let text = format!(
            "#!{}\nimport os, sys\nwhile True: os.write(int(sys.argv[3]), {message})\n",
            python.display()
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let own = GymnasiumOptions { python: Some(path), ..Default::default() };
        let made = EnvPool::gymnasium("gymnasium:Endless-v0", own, PoolOptions::default());
        let error = made.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{message}: {error}");
    }
}

#[test]
fn an_environment_that_cannot_be_rendered_is_stepped_nevertheless() {
    let Some(python) = python() else { return };
    let options = PoolOptions { num_envs: 2, num_threads: 1, ..Default::default() };
    let mut pool = pool_of(&format!("{MODULE}:Unpainted-v0"), python, options);
    pool.reset().unwrap();
    assert!(pool.render(0).unwrap().is_some() && pool.render(0).unwrap().is_some());
    let error = pool.render(0).unwrap_err().to_string();
    assert!(error.contains("out of paint"), "{error}");
    pool.step(&[0, 0]).unwrap();
}

#[test]
fn integers_that_the_space_cannot_hold_are_an_error() {
    let Some(python) = python() else { return };
    let mut pool = pool_of(&format!("{MODULE}:Wide-v0"), python, PoolOptions::default());
    let error = pool.reset().unwrap_err().to_string();
    assert!(error.contains("the observation is uint16, which uint8 of the space"), "{error}");
}

#[test]
fn a_step_that_does_not_return_is_an_error_after_the_time_out() {
    let Some(python) = python() else { return };
    let own = GymnasiumOptions {
        python: Some(python),
        kwargs: kwargs(json!({ "fault": "hang", "at": 1 })),
        timeout: Duration::from_secs(4),
        ..Default::default()
    };
    let id = format!("gymnasium:{MODULE}:Faulty-v0");
    let mut pool = EnvPool::gymnasium(&id, own, PoolOptions::default()).unwrap();
    pool.reset().unwrap();
    let error = pool.step(&[0]).unwrap_err().to_string();
    assert!(error.contains("it did not answer for 4s, in a call of env 0"), "{error}");
}

#[test]
fn an_environment_that_raises_goes_on_with_its_next_episode_where_the_pool_truncates() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let with = json!({ "fault": "raise", "marker": folder.path().join("marker") });
    let options = PoolOptions { on_error: OnError::Truncate, ..Default::default() };
    let mut pool = faulty(&python, with, options).unwrap();
    pool.reset().unwrap();
    for _ in 0..2 {
        pool.step(&[0; 3]).unwrap();
    }
    let batch = pool.step(&[0; 3]).unwrap();
    assert_eq!(batch.truncated().iter().filter(|&&cut| cut).count(), 1);
    let failures = pool.take_failures();
    assert_eq!((failures.len(), failures[0].step), (1, 3));
    assert!(failures[0].message.contains("out of fuel"), "{failures:?}");
    pool.step(&[0; 3]).unwrap();
}

#[test]
fn an_environment_that_cannot_be_made_is_an_error_with_the_reason() {
    let Some(python) = python() else { return };
    let error = |id: &str, own: GymnasiumOptions| {
        let own = GymnasiumOptions { python: own.python.or(Some(python.clone())), ..own };
        let id = format!("gymnasium:{id}");
        EnvPool::gymnasium(&id, own, PoolOptions::default()).unwrap_err().to_string()
    };
    let plain = GymnasiumOptions::default;
    for (id, own, parts) in [
        ("Nothing-v0", plain(), &["gymnasium:Nothing-v0: NameNotFound"][..]),
        (
            "no_such_module:X-v0",
            plain(),
            &["No module named 'no_such_module'", "packages are those of"],
        ),
        (
            &format!("{MODULE}:Faulty-v0"),
            GymnasiumOptions { kwargs: kwargs(json!({ "fault": "make" })), ..plain() },
            &["RuntimeError: the engine is missing", "envs.py"],
        ),
        (
            "CartPole-v1",
            GymnasiumOptions { kwargs: kwargs(json!({ "nonsense": 1 })), ..plain() },
            &["TypeError", "nonsense"],
        ),
        (
            "CartPole-v1",
            GymnasiumOptions {
                wrappers: vec![("gymnasium.wrappers.Nothing".into(), Default::default())],
                ..plain()
            },
            &["AttributeError", "Nothing"],
        ),
        (
            &format!("{MODULE}:Mixed-v0"),
            plain(),
            &["has both choices and numbers; wrap the environment"],
        ),
        (
            &format!("{MODULE}:Idle-v0"),
            // Gymnasium's own check is off.
            GymnasiumOptions { kwargs: kwargs(json!({ "disable_env_checker": true })), ..plain() },
            &["the action space Tuple() has no elements; wrap the environment"],
        ),
        (
            "CartPole-v1",
            GymnasiumOptions { python: Some("no-such-python".into()), ..plain() },
            &["cannot run no-such-python", "PODRACER_PYTHON"],
        ),
        // A Python without site-packages, as `python3 -S` is.
        (
            "CartPole-v1",
            GymnasiumOptions {
                python: Some(python_with(&python, "bare-python", "", "-S -E")),
                ..plain()
            },
            &["has no package gymnasium", "-m pip install 'gymnasium>=0.29'"],
        ),
        (
            "CartPole-v1",
            GymnasiumOptions { python: Some("/bin/false".into()), ..plain() },
            &["the worker process", "it ended with exit status: 1"],
        ),
    ] {
        let error = error(id, own);
        assert!(parts.iter().all(|part| error.contains(part)), "{id}: {error}");
    }
    let error = EnvPool::gymnasium("CartPole-v1", plain(), PoolOptions::default()).unwrap_err();
    assert!(error.to_string().contains("whose ids begin with gymnasium:"), "{error}");
}

/// Ids of the processes that are workers of `parent` with the environment `id`.
fn workers_of(parent: u32, id: &str) -> Vec<u32> {
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
    let ours = |pid: &u32| {
        let words = command_line(*pid);
        is_worker(*pid)
            && parent_of(*pid) == Some(parent)
            && words.last().is_some_and(|word| *word == format!("gymnasium:{id}"))
    };
    pids.filter(ours).collect()
}

fn command_line(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.strip_suffix(b"\0").unwrap_or(&line).split(|&byte| byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn is_worker(pid: u32) -> bool {
    command_line(pid).iter().any(|word| word == "podracer-gymnasium-worker")
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Waits until `holds`, which other processes bring about.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_pool_that_is_dropped_leaves_no_process() {
    let Some(python) = python() else { return };
    // No other test of this process has this environment.
    let id = format!("{MODULE}:Lonely-v0");
    let options = PoolOptions { num_envs: 2, num_threads: 2, ..Default::default() };
    let mut pool = pool_of(&id, python, options);
    pool.reset().unwrap();
    let pids = workers_of(std::process::id(), &id);
    assert_eq!(pids.len(), 2);
    drop(pool);
    assert!(!pids.into_iter().any(is_worker));
}

/// A trainer that is busy with two workers, and the ids of these.
fn trainer(python: &Path, folder: &Path) -> (std::process::Child, Vec<u32>) {
    let trainer = Command::new(env!("CARGO_BIN_EXE_podracer"))
        .args(["train", "ppo", "--env-id", "gymnasium:CartPole-v1", "--num-threads", "2"])
        .args(["--total-timesteps", "100000000", "--runs-dir"])
        .arg(folder)
        .env("PODRACER_PYTHON", python)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let events = || {
        let runs: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        !runs.is_empty()
    };
    eventually("the trainer has two workers", || {
        events() && workers_of(trainer.id(), "CartPole-v1").len() == 2
    });
    let workers = workers_of(trainer.id(), "CartPole-v1");
    (trainer, workers)
}

#[test]
fn a_trainer_that_is_killed_leaves_no_process() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (mut trainer, workers) = trainer(&python, folder.path());
    trainer.kill().unwrap();
    trainer.wait().unwrap();
    eventually("the workers end", || !workers.iter().any(|&pid| is_worker(pid)));
}

#[test]
fn an_interrupt_of_the_terminal_ends_the_run_in_order() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (mut trainer, workers) = trainer(&python, folder.path());
    // The terminal sends the signal to all processes in the foreground.
    for pid in workers.iter().copied().chain([trainer.id()]) {
        // SAFETY: the call takes numbers; the trainer was not waited for.
        assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGINT) }, 0);
    }
    let status = trainer.wait().unwrap();
    assert!(status.code().is_some(), "{status}");
    eventually("the workers end", || !workers.iter().any(|&pid| is_worker(pid)));
}

/// A Python that does nothing, not even read.
fn sleeping_python(folder: &Path) -> PathBuf {
    let path = folder.join("python");
    fs::write(&path, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_time_out_holds_for_the_first_start() {
    let folder = tempfile::tempdir().unwrap();
    let python = sleeping_python(folder.path());
    let began = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_podracer"))
        .args(["train", "ppo", "--env-id", "gymnasium:Slow-v0", "--env-timeout", "1"])
        .env("PODRACER_PYTHON", &python)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("it did not answer for 1s"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

/// More bytes than a pipe holds.
#[test]
fn a_process_that_does_not_read_its_settings_is_late_too() {
    let folder = tempfile::tempdir().unwrap();
    let options = GymnasiumOptions {
        python: Some(sleeping_python(folder.path())),
        kwargs: kwargs(json!({ "map": "x".repeat(1 << 20) })),
        timeout: Duration::from_secs(1),
        ..Default::default()
    };
    let pool = PoolOptions { num_threads: 1, ..Default::default() };
    let error = EnvPool::gymnasium("gymnasium:Slow-v0", options, pool).unwrap_err().to_string();
    assert!(error.contains("it read no request for 1s"), "{error}");
}
