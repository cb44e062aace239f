//! `podracer envs`: the table, a part of it, one environment, JSON.

use super::{podracer, run};

#[test]
fn environments_are_listed_by_a_part_of_the_id() {
    let (status, out, _) = run(podracer(&["envs", "cartpole"]));
    let ids: Vec<&str> = out.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(
        (status, &ids[..]),
        (0, &["id", "CartPole-v0", "CartPole-v1", "CartPolePositions-v0"][..])
    );
    let (status, _, err) = run(podracer(&["envs", "CartPool"]));
    assert!(status == 1 && err.contains("CartPole-v1"), "{err}");
}

#[test]
fn one_environment_has_the_algorithms_that_take_it() {
    let (status, out, _) = run(podracer(&["envs", "Pendulum-v1"]));
    assert!(
        status == 0 && out.contains("sac_continuous_action") && !out.contains(" dqn "),
        "{out}"
    );
    let (status, out, _) = run(podracer(&["envs", "Pendulum-v1", "--json"]));
    let row: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (status, &row["id"], &row["max_episode_steps"]),
        (0, &"Pendulum-v1".into(), &200.into())
    );
}

/// The list says what would have to be fetched, and fetches nothing.
#[test]
fn a_list_fetches_nothing() {
    let home = tempfile::tempdir().unwrap();
    let mut command = podracer(&["envs", "--json"]);
    // No Python packages are found, and none can be fetched.
    command.env("PODRACER_HOME", home.path()).env("HOME", home.path()).env("PATH", home.path());
    command.env_remove("VIRTUAL_ENV").env_remove("CONDA_PREFIX").env_remove("XDG_CACHE_HOME");
    let (status, out, err) = run(command);
    let rows: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |id: &str| rows.iter().find(|row| row["id"] == id).unwrap();
    assert_eq!((status, &*err), (0, ""));
    assert_eq!(row("Pong-v5")["missing"], serde_json::json!(["ale", "atari-roms"]));
    assert!(row("CartPole-v1").get("missing").is_none());
    assert_eq!(home.path().read_dir().unwrap().count(), 0);
}
