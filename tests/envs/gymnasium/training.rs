//! Short runs of algorithms on environments of Gymnasium.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use super::{MODULE, python};

/// Trains by the command line; returns the result and what was printed to standard error.
fn run(algorithm: &str, id: &str, flags: &[&str]) -> Option<(Output, String)> {
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
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    Some((output, error))
}

/// Trains by the command line, and returns the result.
fn train(algorithm: &str, id: &str, flags: &[&str]) -> Option<Value> {
    let (output, error) = run(algorithm, id, flags)?;
    assert!(output.status.success(), "{algorithm} on {id}: {error}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Few steps of algorithms for continuous actions, with an evaluation.
const ROLLOUTS: [&str; 9] = [
    "--num-steps",
    "64",
    "--num-minibatches",
    "4",
    "--total-timesteps",
    "128",
    "--save-model",
    "--eval-episodes",
    "2",
];
const REPLAYED: [&str; 9] = [
    "--total-timesteps",
    "300",
    "--learning-starts",
    "200",
    "--buffer-size",
    "1000",
    "--save-model",
    "--eval-episodes",
    "2",
];

/// The environment asserts that its space contains each action; its bounds are not numbers of f32.
#[test]
fn algorithms_keep_the_bounds_of_the_space() {
    let id = format!("{MODULE}:Narrow-v0");
    train("ppo_continuous_action", &id, &ROLLOUTS);
    train("sac_continuous_action", &id, &REPLAYED);
    train("td3_continuous_action", &id, &REPLAYED);
}

#[test]
fn actions_without_bounds_are_learned_where_cleanrl_does() {
    let Some((output, error)) =
        run("sac_continuous_action", &format!("{MODULE}:Free-v0"), &REPLAYED)
    else {
        return;
    };
    assert!(!output.status.success(), "{error}");
    for part in ["scales its actions to the bounds", "a Box with finite bounds", "ppo_continuous"] {
        assert!(error.contains(part), "{error}");
    }
    train("a2c_continuous_action", &format!("{MODULE}:Free-v0"), &ROLLOUTS[4..]);
    train("rpo_continuous_action", &format!("{MODULE}:FreeDiscrete-v0"), &ROLLOUTS);
    train("ppo_continuous_action", &format!("{MODULE}:FreeArray-v0"), &ROLLOUTS);
}

#[test]
fn numbers_and_arrays_become_vectors() {
    let steps = ["--total-timesteps", "512", "--save-model", "--eval-episodes", "2"];
    train("ppo", &format!("{MODULE}:DiscreteArray-v0"), &steps);
    let replayed = [&REPLAYED[2..], &["--total-timesteps", "600"]].concat();
    train("dqn", &format!("{MODULE}:DiscreteDiscrete-v0"), &replayed);
    let Some((output, error)) = run("ppo", &format!("{MODULE}:ImageNoise-v0"), &steps) else {
        return;
    };
    let flag = "--env-wrappers gymnasium.wrappers.FlattenObservation";
    assert!(!output.status.success() && error.contains(flag), "{error}");
}

#[test]
fn images_in_color_are_learned_from() {
    let flags = ["--num-devices=1", "--local-num-envs=4", "--num-actor-threads=1", "--num-steps=8"];
    let flags =
        [&flags[..], &["--total-timesteps=64", "--save-model", "--eval-episodes=1"]].concat();
    train("cleanba_ppo", &format!("{MODULE}:ColorsNoise-v0"), &flags);
}

#[test]
fn training_goes_on_where_an_image_cannot_be_drawn() {
    let flags = ["--total-timesteps", "512", "--capture-video", "--num-envs", "2"];
    for (id, kwargs) in [("Unpainted", "{}"), ("VectorNoise", r#"{"render_mode": "human"}"#)] {
        let flags = [&flags[..], &["--env-kwargs", kwargs, "--eval-episodes", "2"]].concat();
        let Some((output, error)) = run("ppo", &format!("{MODULE}:{id}-v0"), &flags) else {
            return;
        };
        assert!(output.status.success(), "{id}: {error}");
        assert!(error.contains("the run continues without videos"), "{id}: {error}");
    }
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
