//! Short runs of algorithms on environments of Gymnasium.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{MODULE, python};

/// Trains by the command line, and returns the result.
fn train(algorithm: &str, id: &str, flags: &[&str]) -> Option<Value> {
    let python = python()?;
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_podracer"))
        .args(["train", algorithm, "--json", "--env-id"])
        .arg(format!("gymnasium:{id}"))
        .args(flags)
        .arg("--runs-dir")
        .arg(folder.path())
        .env("PODRACER_PYTHON", python)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{algorithm} on {id}: {error}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn algorithms_train_on_environments_of_gymnasium() {
    let Some(result) = train("ppo", "CartPole-v1", &["--total-timesteps", "2048"]) else {
        return;
    };
    assert_eq!(result["global_step"], 2048);
    assert!(result["episodes"].as_u64().unwrap() > 20, "{result}");
    let steps = ["--total-timesteps", "600", "--learning-starts", "300", "--buffer-size", "1000"];
    train("dqn", "CartPole-v1", &steps);
    train("sac_continuous_action", "Pendulum-v1", &steps);
    train("ppo_masked", &format!("{MODULE}:VectorNoise-v0"), &["--total-timesteps", "2048"]);
    let filmed = ["--total-timesteps", "512", "--save-model", "--capture-video"];
    train("ppo", &format!("{MODULE}:VectorNoise-v0"), &filmed);
}

#[test]
fn files_in_the_working_folder_replace_no_module_of_python_or_of_packages() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    for module in ["random", "functools", "json", "gymnasium", "numpy"] {
        let text = format!("open('imported', 'w').close()\nraise SystemExit('{module}.py')\n");
        fs::write(folder.path().join(format!("{module}.py")), text).unwrap();
    }
    // The user's own modules are found there, also by one another.
    fs::write(folder.path().join("own_names.py"), "NAME = 'Own-v0'\n").unwrap();
    fs::write(
        folder.path().join("own_envs.py"),
        "import random\nimport gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\
         from own_names import NAME\n\
         gymnasium.register(NAME, CartPoleEnv, max_episode_steps=random.choice([100]))\n",
    )
    .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_podracer"))
        .args(["train", "ppo", "--env-id", "gymnasium:own_envs:Own-v0"])
        .args(["--total-timesteps", "512", "--num-threads", "1"])
        .env("PODRACER_PYTHON", python)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert!(fs::metadata(folder.path().join("imported")).is_err(), "{error}");
}
