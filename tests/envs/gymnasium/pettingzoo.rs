//! Games of PettingZoo's parallel API: equality with PettingZoo itself step by step, and errors.

use std::path::Path;
use std::process::{Command, Stdio};

use podracer::envs::{
    Autoreset, EnvPool, GymnasiumOptions, OnError, PoolOptions, is_pettingzoo, make, num_agents,
    set_gymnasium_options, spec,
};
use podracer::error::Result;
use pretty_assertions::assert_eq;
use serde_json::{Map, Value, json};

use super::{ActionSampler, kwargs, last, python, row, seed, step};

/// Module with the game of these tests.
const GAMES: &str = "tests.envs.gymnasium.games";

fn pool_of(python: &Path, module: &str, with: Value, options: PoolOptions) -> Result<EnvPool> {
    let own = GymnasiumOptions {
        python: Some(python.into()),
        kwargs: kwargs(with),
        ..Default::default()
    };
    EnvPool::gymnasium(&format!("pettingzoo:{module}"), own, options)
}

/// Results of PettingZoo's own steps.
fn reference(python: &Path, settings: &Value) -> Value {
    use std::io::Write;
    let script = "import runpy; runpy.run_path('tests/envs/gymnasium/reference_parallel.py', \
                  run_name='__main__')";
    let mut child = Command::new(python)
        .args(["-W", "ignore", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(settings.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{settings}");
    // Packages print to standard output when they are imported.
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// Compares `steps` steps of three games in two processes with PettingZoo. Returns the number of ends
/// of games and the number of steps of agents that are out of their game.
fn compare(python: &Path, module: &str, with: Value, steps: usize) -> [usize; 2] {
    let settings = GymnasiumOptions {
        kwargs: kwargs(with.clone()),
        python: Some(python.into()),
        ..Default::default()
    };
    let id = format!("pettingzoo:{module}");
    set_gymnasium_options(&id, settings);
    let agents = num_agents(&id);
    let num_envs = 3 * agents;
    let options = PoolOptions { num_envs, num_threads: 2, seed: 11, ..Default::default() };
    let mut pool = EnvPool::make(&id, options).unwrap();
    assert_eq!(pool.num_threads(), 2);
    let mut sampler = ActionSampler::new(&pool.spec().action.clone());
    let actions: Vec<Vec<Vec<f64>>> =
        (0..steps).map(|_| (0..num_envs).map(|_| sampler.next()).collect()).collect();
    let seeds: Vec<u64> = (0..3).map(|game| seed(11, game * agents)).collect();
    let expected = reference(
        python,
        &json!({ "module": module, "kwargs": with, "seeds": seeds, "actions": actions }),
    );
    let first = pool.reset().unwrap();
    let start: Vec<_> = (0..num_envs).map(|env| row(&first, env)).collect();
    assert_eq!(json!(start), expected["first"], "{id}");
    let mut counts = [0; 2];
    for (i, actions) in actions.iter().enumerate() {
        let batch = step(&mut pool, &sampler, actions);
        for env in 0..num_envs {
            let expected = &expected["steps"][i][env];
            let over = batch.terminated()[env] || batch.truncated()[env];
            let row = json!({
                "reward": expected["reward"],
                "over": over,
                "out": batch.life_lost()[env],
                "truncated": batch.truncated()[env],
                "last": last(&batch, env),
                "obs": row(&batch, env),
            });
            assert_eq!(row, *expected, "{id}, step {i}, env {env}");
            let reward = expected["reward"].as_f64().unwrap() as f32;
            assert_eq!(batch.reward()[env], reward, "{id}, step {i}, env {env}");
            assert!(!batch.life_lost()[env] || batch.discount()[env] == 0.0);
            counts[0] += usize::from(over && env % agents == 0);
            counts[1] += usize::from(batch.life_lost()[env]);
        }
    }
    counts
}

#[test]
fn agents_that_leave_a_game_early_wait_for_its_end() {
    let Some(python) = python() else { return };
    let [ends, outs] = compare(&python, GAMES, json!({}), 150);
    assert!(ends > 10 && outs > 50, "{ends} games, {outs} steps outside of them");
    let [ends, _] = compare(&python, GAMES, json!({ "max_cycles": 3 }), 20);
    assert!(ends > 15, "{ends}");
}

#[test]
fn games_of_the_packages_are_stepped_as_there() {
    let Some(python) = python() else { return };
    let [ends, _] = compare(&python, "mpe2.simple_spread_v3", json!({ "max_cycles": 20 }), 50);
    assert_eq!(ends, 6);
    let archers = "pettingzoo.butterfly.knights_archers_zombies_v11";
    let [ends, _] = compare(&python, archers, json!({ "max_cycles": 12 }), 30);
    assert_eq!(ends, 6);
}

#[test]
fn specifications_are_those_of_one_agent() {
    let Some(python) = python() else { return };
    let id = format!("pettingzoo:{GAMES}:Survival");
    assert!(is_pettingzoo(&id) && !is_pettingzoo("pong_v3"));
    set_gymnasium_options(&id, GymnasiumOptions { python: Some(python), ..Default::default() });
    assert_eq!(num_agents(&id), 3);
    let own = spec(&id).unwrap();
    assert_eq!(own.id, id);
    assert_eq!(own.observation.to_string(), "Box(0, 255, f32[3])");
    assert_eq!(own.action.to_string(), "Discrete(4)");
    let error = make(&id).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("has 3 agents, which act at the same time"), "{error}");
}

#[test]
fn wrappers_and_actions_of_numbers_reach_the_game() {
    let Some(python) = python() else { return };
    let own = GymnasiumOptions {
        python: Some(python),
        wrappers: vec![(format!("{GAMES}.Brighter"), kwargs(json!({ "by": 2.0 })))],
        ..Default::default()
    };
    let options = PoolOptions { num_envs: 3, ..Default::default() };
    let id = format!("pettingzoo:{GAMES}:continuous");
    let mut pool = EnvPool::gymnasium(&id, own, options).unwrap();
    assert_eq!(pool.spec().action.to_string(), "Box(0, 1, f32[2])");
    pool.reset().unwrap();
    let batch = pool.step(&[0.0f32, 0.0, 0.25, 0.0, 0.5, 0.0]).unwrap();
    assert_eq!(batch.reward(), [2.5, 3.5, 4.5]);
}

#[test]
fn a_rendered_game_starts_its_episodes_for_all_agents() {
    let Some(python) = python() else { return };
    let options = PoolOptions { num_envs: 6, num_threads: 1, seed: 3, ..Default::default() };
    let new = |render: &str| {
        let with = json!({ "render_mode": render });
        pool_of(&python, GAMES, with, options.clone()).unwrap()
    };
    let (mut filmed, mut plain) = (new("rgb_array"), new("rgb_array"));
    let mut sampler = ActionSampler::new(&plain.spec().action.clone());
    let _ = (filmed.reset().unwrap(), plain.reset().unwrap());
    let frame = filmed.render(0).unwrap().unwrap();
    assert_eq!((frame.height, frame.width), (6, 8));
    for _ in 0..60 {
        let actions: Vec<_> = (0..6).map(|_| sampler.next()).collect();
        let one = step(&mut filmed, &sampler, &actions);
        let other = step(&mut plain, &sampler, &actions);
        assert_eq!(one.obs_bytes(), other.obs_bytes());
        assert_eq!(one.terminated(), other.terminated());
        (0..6).for_each(|env| assert_eq!(last(&one, env), last(&other, env)));
    }
}

#[test]
fn errors_say_what_a_pool_of_games_needs() {
    let Some(python) = python() else { return };
    let error = |module: &str, with: Value, options: PoolOptions| {
        let made = pool_of(&python, module, with, options);
        made.map(|_| ()).unwrap_err().to_string()
    };
    let of = |num_envs: usize| PoolOptions { num_envs, ..Default::default() };
    let none = || Value::Object(Map::new());
    for (error, parts) in [
        (error(GAMES, none(), of(4)), &["num_envs is 4, expected a multiple of 3"][..]),
        (
            error(GAMES, none(), PoolOptions { batch_size: 3, ..of(6) }),
            &["batch_size is 3, expected num_envs, 6: its agents act at the same time"],
        ),
        (
            error(GAMES, none(), PoolOptions { max_episode_steps: Some(5), ..of(3) }),
            &["max_episode_steps is for environments of Gymnasium only", "such as max_cycles"],
        ),
        (
            error(GAMES, json!({ "fault": "spaces" }), of(3)),
            &[
                "the spaces of blue are Box(0.0, 1.0, (2,), float32)",
                "supersuit.pad_observations_v0",
            ],
        ),
        (error(&format!("{GAMES}:Nameless"), none(), of(3)), &["the game has no possible_agents"]),
        (
            error(&format!("{GAMES}:absent"), none(), of(3)),
            &["games has no function absent", "the parallel API of PettingZoo is needed"],
        ),
        (error("no_such_module", none(), of(3)), &["No module named 'no_such_module'"]),
    ] {
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn a_fault_of_a_game_names_the_environment() {
    let Some(python) = python() else { return };
    let options = PoolOptions { num_envs: 6, num_threads: 2, ..Default::default() };
    let mut pool = pool_of(&python, GAMES, json!({ "fault": "raise" }), options).unwrap();
    pool.reset().unwrap();
    let error = (0..3).find_map(|_| pool.step(&[0; 6]).err()).unwrap().to_string();
    assert!(error.contains("env 0 failed: Traceback"), "{error}");
    assert!(error.contains("RuntimeError: the ball is lost"), "{error}");
}

#[test]
fn missing_unknown_and_double_agents_are_errors() {
    let Some(python) = python() else { return };
    let options = PoolOptions { num_envs: 3, num_threads: 1, ..Default::default() };
    for (wrong, part) in [
        ("no obs", "the observations have none for the agent 'blue'"),
        ("no reward", "the rewards have none for the agent 'blue'"),
        ("no termination", "the terminations have none for the agent 'blue'"),
        ("no truncation", "the truncations have none for the agent 'blue'"),
        ("None as obs", "the observations have none for the agent 'blue'"),
        ("None as reward", "the rewards have none for the agent 'blue'"),
        ("None as termination", "the terminations have none for the agent 'blue'"),
        ("unknown obs", "the dict of observations has the agent 'violet'"),
        ("unknown reward", "the dict of rewards has the agent 'violet'"),
        (
            "unknown agent",
            "agents has the agent 'violet', which is none of ['red', 'green', 'blue']",
        ),
        ("agent twice", "agents has an agent twice: ['red', 'red']"),
        ("twice", "the game has an agent twice in its possible_agents ['red', 'red']"),
        ("reset", "the observations have none for the agent 'blue'"),
        ("list", "expected a dict by agents"),
        ("arity", "step returned 4 values, expected 5"),
    ] {
        let made =
            pool_of(&python, &format!("{GAMES}:Odd"), json!({ "wrong": wrong }), options.clone());
        let played = made.and_then(|mut pool| {
            pool.reset()?;
            pool.step(&[0; 3]).map(|_| ())
        });
        let error = played.unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains("<stdin>"), "{wrong}: {error}");
    }
}

#[test]
fn a_fault_of_a_game_truncates_the_episodes_of_all_its_agents() {
    let Some(python) = python() else { return };
    let on_error = OnError::Truncate;
    let options = PoolOptions { num_envs: 3, num_threads: 1, on_error, ..Default::default() };
    let mut pool = pool_of(&python, GAMES, json!({ "fault": "raise" }), options).unwrap();
    pool.reset().unwrap();
    for _ in 0..2 {
        pool.step(&[0; 3]).unwrap();
    }
    let batch = pool.step(&[0; 3]).unwrap();
    assert_eq!((batch.truncated(), batch.first()), (&[true; 3][..], &[true; 3][..]));
    let failures = pool.take_failures();
    let envs: Vec<usize> = failures.iter().map(|failure| failure.env_id).collect();
    assert_eq!(envs, [0, 1, 2]);
    assert!(failures.iter().all(|failure| failure.message.contains("the ball is lost")));
    // The next game.
    let batch = pool.step(&[0; 3]).unwrap();
    assert_eq!(batch.elapsed_steps(), [1; 3]);
}

#[test]
fn a_restored_pool_begins_new_episodes() {
    let Some(python) = python() else { return };
    let options = PoolOptions { num_envs: 6, num_threads: 2, seed: 4, ..Default::default() };
    let new = || pool_of(&python, GAMES, json!({}), options.clone()).unwrap();
    let mut first = new();
    first.reset().unwrap();
    first.step(&[1; 6]).unwrap();
    let states: Vec<_> = (0..6).map(|env| first.save(env).unwrap()).collect();
    let mut second = new();
    for (env, state) in states.iter().enumerate() {
        second.restore(env, state).unwrap();
    }
    let batch = second.step(&[1; 6]).unwrap();
    assert_eq!(batch.truncated(), [true; 6]);
    for _ in 0..20 {
        second.step(&[1; 6]).unwrap();
    }
}

#[test]
fn resets_apart_from_steps_start_the_same_episodes() {
    let Some(python) = python() else { return };
    let options = PoolOptions { num_envs: 3, seed: 9, ..Default::default() };
    let next = PoolOptions { autoreset: Autoreset::NextStep, ..options.clone() };
    let mut same = pool_of(&python, GAMES, json!({}), options).unwrap();
    let mut next = pool_of(&python, GAMES, json!({}), next).unwrap();
    let _ = (same.reset().unwrap(), next.reset().unwrap());
    let mut episodes = 0;
    for _ in 0..40 {
        let (one, other) = (same.step(&[1; 3]).unwrap(), next.step(&[1; 3]).unwrap());
        assert_eq!(one.terminated(), other.terminated());
        if one.terminated()[0] || one.truncated()[0] {
            // The step after the last one of an episode is the reset.
            let started = next.step(&[1; 3]).unwrap();
            assert_eq!(started.obs_bytes(), one.obs_bytes());
            episodes += 1;
        }
    }
    assert!(episodes > 2, "{episodes}");
}

/// Trains by the command line, and returns the result.
fn train(algorithm: &str, module: &str, flags: &[&str]) -> Option<Value> {
    let python = python()?;
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_podracer"))
        .args(["train", algorithm, "--json", "--env-id"])
        .arg(format!("pettingzoo:{module}"))
        .args(flags)
        .arg("--runs-dir")
        .arg(folder.path())
        .env("PODRACER_PYTHON", python)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{algorithm} on {module}: {error}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn algorithms_train_on_games() {
    let flags = ["--num-envs", "6", "--total-timesteps", "1536", "--eval-episodes", "2"];
    let saved = [&flags[..], &["--save-model"]].concat();
    let Some(result) = train("ppo", "mpe2.simple_spread_v3", &saved) else { return };
    assert_eq!(result["global_step"], 1536);
    assert!(result["episodes"].as_u64().unwrap() > 20, "{result}");
    let small = ["--num-envs", "6", "--num-steps", "16", "--total-timesteps", "192"];
    let images = [&small[..], &["--env-kwargs", "{\"image\": true}"]].concat();
    train("ppo_pettingzoo_ma_atari", GAMES, &images);
    let spread = "{\"continuous_actions\": true}";
    let steps = ["--num-steps", "64", "--num-minibatches", "4", "--total-timesteps", "768"];
    let continuous = [&["--num-envs", "6", "--env-kwargs", spread], &steps[..]].concat();
    train("ppo_continuous_action", "mpe2.simple_spread_v3", &continuous);
}
