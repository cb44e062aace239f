//! Environments of Gymnasium and EnvPool: equality with Gymnasium itself step by step, faults, and processes.
//! Needs a Python with Gymnasium, which `PODRACER_PEER_PYTHON` names.

mod bounds;
mod envpool;
mod faults;
mod pettingzoo;
mod training;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use podracer::envs::{
    Actions, Autoreset, Batch, Camera, EnvPool, EnvRng, Frame, GymnasiumOptions, PoolOptions,
    Space, seeds,
};
use podracer::trace::DType;
use pretty_assertions::assert_eq;
use serde_json::{Map, Value, json};

#[path = "../peers/mod.rs"]
mod peers;

/// Module with the environments of these tests.
const MODULE: &str = "tests.envs.gymnasium.envs";

fn python() -> Option<PathBuf> {
    peers::python("PODRACER_PEER_PYTHON").map(PathBuf::from)
}

fn kwargs(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other}"),
    }
}

fn pool_of(id: &str, python: PathBuf, options: PoolOptions) -> EnvPool {
    let python = GymnasiumOptions { python: Some(python), ..Default::default() };
    EnvPool::gymnasium(&format!("gymnasium:{id}"), python, options).unwrap()
}

/// Seed of the first reset of environment `env` in a pool of seed `run`.
fn seed(run: u64, env: usize) -> u64 {
    EnvRng::new(seeds(run, 0, 0, env as u32)).bits() >> 33
}

/// Actions that depend on nothing but the step and the element.
struct ActionSampler {
    space: Space,
    rng: EnvRng,
}

impl ActionSampler {
    fn new(space: &Space) -> ActionSampler {
        ActionSampler { space: space.clone(), rng: EnvRng::new(seeds(5, 0, 0, 0)) }
    }

    /// One action, element by element.
    fn next(&mut self) -> Vec<f64> {
        let rng = &mut self.rng;
        match &self.space {
            Space::Discrete { n } => vec![rng.below(*n as u64) as f64],
            Space::MultiDiscrete { nvec, .. } => {
                nvec.iter().map(|&n| rng.below(n as u64) as f64).collect()
            }
            Space::Box { low, high, shape, .. } => (0..shape.numel())
                .map(|i| f64::from(rng.uniform(low.at(i), high.at(i)) as f32))
                .collect(),
            other => panic!("{other}"),
        }
    }

    fn is_continuous(&self) -> bool {
        matches!(self.space, Space::Box { .. })
    }
}

/// Sends actions to `envs`, or steps all of them without `envs`.
fn step(pool: &mut EnvPool, sampler: &ActionSampler, actions: &[Vec<f64>]) -> Batch {
    let floats: Vec<f32> = actions.iter().flatten().map(|&x| x as f32).collect();
    let ints: Vec<i32> = actions.iter().flatten().map(|&x| x as i32).collect();
    let actions = if sampler.is_continuous() { Actions::F32(&floats) } else { Actions::I32(&ints) };
    pool.step(actions).unwrap()
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let (words, doubles) = (bytes.as_chunks::<4>().0, bytes.as_chunks::<8>().0);
    match dtype {
        DType::F32 => words.iter().map(|&word| f32::from_ne_bytes(word).into()).collect(),
        DType::I32 => words.iter().map(|&word| i32::from_ne_bytes(word).into()).collect(),
        DType::F64 => doubles.iter().map(|&word| f64::from_ne_bytes(word)).collect(),
        _ => bytes.iter().map(|&x| x.into()).collect(),
    }
}

fn row(batch: &Batch, row: usize) -> Vec<f64> {
    let size = batch.obs_bytes().len() / batch.len();
    numbers(batch.obs_dtype(), &batch.obs_bytes()[row * size..][..size])
}

fn last(batch: &Batch, row: usize) -> Value {
    let last: Option<&[u8]> = match batch.obs_dtype().size() {
        1 => batch.final_obs::<u8>(row),
        4 => batch.final_obs::<f32>(row).map(bytemuck::cast_slice),
        _ => batch.final_obs::<f64>(row).map(bytemuck::cast_slice),
    };
    last.map_or(Value::Null, |last| json!(numbers(batch.obs_dtype(), last)))
}

/// Results of Gymnasium itself.
fn reference(python: &Path, settings: &Value) -> Value {
    let mut child = Command::new(python)
        .args(["-W", "ignore", "-c"])
        .arg("import runpy; runpy.run_path('tests/envs/gymnasium/reference.py', run_name='__main__')")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(settings.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{settings}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Compares a pool with Gymnasium, bit by bit: `steps` steps of five environments in two processes.
fn compare(id: &str, steps: usize, options: GymnasiumOptions) {
    if let Some(python) = python() {
        compare_with(&python, &format!("gymnasium:{id}"), steps, options);
    }
}

/// Compares the environment `id`, which begins with its family.
fn compare_with(python: &Path, id: &str, steps: usize, options: GymnasiumOptions) {
    let (family, own_id) = id.split_once(':').unwrap();
    let pool = PoolOptions { num_envs: 5, num_threads: 2, seed: 11, ..Default::default() };
    let own = GymnasiumOptions { python: Some(python.into()), ..options.clone() };
    let mut pool = EnvPool::gymnasium(id, own, pool).unwrap();
    assert_eq!(pool.num_threads(), if family == "envpool" { 1 } else { 2 });
    let mut sampler = ActionSampler::new(&pool.spec().action.clone());
    let actions: Vec<Vec<Vec<f64>>> =
        (0..steps).map(|_| (0..5).map(|_| sampler.next()).collect()).collect();
    let wrappers: Vec<Value> =
        options.wrappers.iter().map(|(path, with)| json!([path, with])).collect();
    let expected = reference(
        python,
        &json!({
            "family": family,
            "id": own_id,
            "kwargs": options.kwargs,
            "wrappers": wrappers,
            "seeds": (0..5).map(|env| seed(11, env)).collect::<Vec<_>>(),
            "actions": actions,
        }),
    );
    let first = pool.reset().unwrap();
    let start: Vec<_> = (0..5).map(|env| row(&first, env)).collect();
    assert_eq!(json!(start), expected["first"], "{id}");
    for (i, actions) in actions.iter().enumerate() {
        let batch = step(&mut pool, &sampler, actions);
        for env in 0..5 {
            let expected = &expected["steps"][i][env];
            let reward = expected["reward"].as_f64().unwrap() as f32;
            assert_eq!(batch.reward()[env], reward, "{id}, step {i}, env {env}");
            let row = json!({
                "reward": expected["reward"],
                "terminated": batch.terminated()[env],
                "truncated": batch.truncated()[env],
                "last": last(&batch, env),
                "obs": row(&batch, env),
            });
            assert_eq!(row, *expected, "{id}, step {i}, env {env}");
        }
    }
}

#[test]
fn classic_control_is_gymnasiums() {
    compare("CartPole-v1", 150, GymnasiumOptions::default());
    compare("Pendulum-v1", 210, GymnasiumOptions::default());
}

/// Writes a program that starts `python` with the words `before` and `after` around its path.
fn python_with(python: &Path, name: &str, before: &str, after: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let name = format!("{name}-{}", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let line = format!("#!/bin/sh\nexec {before} {} {after} \"$@\"\n", python.display());
    std::fs::write(&path, line).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The Python, and the folder with the oldest Gymnasium, where `tests/peers/install` puts it. Fails if
/// the peers are required and it is missing.
fn oldest_gymnasium(python: PathBuf) -> Option<(PathBuf, PathBuf)> {
    let folder = python.parent().unwrap().parent().unwrap().join("gymnasium-0.29");
    let there = folder.exists();
    let required = std::env::var_os("PODRACER_REQUIRE_PEERS").is_some();
    assert!(there || !required, "{} is missing: run tests/peers/install", folder.display());
    if !there {
        eprintln!("SKIPPED: there is no {}", folder.display());
    }
    there.then_some((python, folder))
}

#[test]
fn the_oldest_supported_gymnasium_steps_the_same() {
    let Some((python, folder)) = python().and_then(oldest_gymnasium) else { return };
    let packages = format!("env PYTHONPATH='{}'", folder.display());
    let python = python_with(&python, "gymnasium-0.29", &packages, "");
    let version = Command::new(&python)
        .args(["-c", "import gymnasium; print(gymnasium.__version__)"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&version.stdout).trim(), "0.29.1");
    let id = format!("gymnasium:{MODULE}:VectorNoise-v0");
    compare_with(&python, "gymnasium:CartPole-v1", 40, GymnasiumOptions::default());
    compare_with(&python, &id, 40, GymnasiumOptions::default());
}

#[test]
fn spaces_of_every_kind_are_gymnasiums() {
    for name in [
        "Vector",
        "Double",
        "Scalar",
        "Board",
        "Bytes",
        "Discrete",
        "MultiDiscrete",
        "MultiBinary",
        "Dict",
    ] {
        compare(&format!("{MODULE}:{name}Noise-v0"), 60, GymnasiumOptions::default());
    }
    for name in ["Image", "Colors"] {
        compare(&format!("{MODULE}:{name}Noise-v0"), 3, GymnasiumOptions::default());
    }
}

#[test]
fn keyword_arguments_and_wrappers_are_applied() {
    let wrappers = vec![
        (
            "gymnasium.wrappers.RescaleAction".to_string(),
            kwargs(json!({"min_action": -1.0, "max_action": 1.0})),
        ),
        (format!("{MODULE}.Doubled"), Map::new()),
        (format!("{MODULE}.Doubled"), kwargs(json!({ "factor": 3 }))),
    ];
    let options =
        GymnasiumOptions { kwargs: kwargs(json!({ "g": 5.0 })), wrappers, ..Default::default() };
    compare("Pendulum-v1", 30, options);
}

#[test]
fn specifications_are_those_of_the_environment() {
    let Some(python) = python() else { return };
    let spec = |id: &str| pool_of(id, python.clone(), PoolOptions::default()).spec().clone();
    let cartpole = spec("CartPole-v1");
    assert_eq!(cartpole.id, "gymnasium:CartPole-v1");
    assert_eq!(cartpole.action, Space::Discrete { n: 2 });
    assert_eq!(cartpole.observation.to_string(), "Box(f32[4])");
    assert_eq!((cartpole.max_episode_steps, cartpole.reward_threshold), (Some(500), Some(475.0)));
    assert_eq!(spec("Pendulum-v1").action.to_string(), "Box(-2, 2, f32[1])");
    let of = |name: &str| {
        let spec = spec(&format!("{MODULE}:{name}Noise-v0"));
        (spec.observation.to_string(), spec.action.to_string())
    };
    let pair = |observation: &str, action: &str| (observation.to_string(), action.to_string());
    assert_eq!(of("Image"), pair("Box(0, 255, u8[4,84,84])", "Discrete(4)"));
    assert_eq!(of("Colors"), pair("Box(0, 255, u8[3,40,36])", "Box(-1, 1, f32[3])"));
    assert_eq!(of("Board"), pair("Box(0, 1, bool[5,5,2])", "MultiDiscrete([2, 2, 2, 2])"));
    assert_eq!(of("Bytes"), pair("Box(0, 255, f32[5])", "MultiDiscrete([2, 3, 4, 5])"));
    assert_eq!(of("Double"), pair("Box(-inf, inf, f64[2])", "Box(f32[2])"));
    assert_eq!(of("Scalar"), pair("Box(-1, 1, f32[1])", "Box(-1, 1, f32[4])"));
    assert_eq!(of("Discrete").0, "Discrete(5)");
    assert_eq!(of("Dict").0, "Box(f32[11])");
}

/// Rows of one environment: observation, reward, end.
type Rows = Vec<(Vec<f64>, f32, bool)>;

#[test]
fn an_asynchronous_pool_steps_the_same_episodes() {
    let Some(python) = python() else { return };
    let id = format!("{MODULE}:VectorNoise-v0");
    let (num_envs, steps) = (4, 40);
    let action = |env: usize, step: usize| ((env + step * step) % 3) as i32;
    let options = PoolOptions { num_envs, num_threads: 2, ..Default::default() };
    let mut pool = pool_of(&id, python.clone(), options.clone());
    let mut expected: Vec<Rows> = vec![Vec::new(); num_envs];
    let push = |all: &mut Vec<Rows>, batch: &Batch| {
        for (k, &env) in batch.env_id().iter().enumerate() {
            let end = batch.terminated()[k] || batch.truncated()[k];
            all[env as usize].push((row(batch, k), batch.reward()[k], end));
        }
    };
    push(&mut expected, &pool.reset().unwrap());
    for i in 0..steps {
        let actions: Vec<i32> = (0..num_envs).map(|env| action(env, i)).collect();
        push(&mut expected, &pool.step(&actions).unwrap());
    }
    for batch_size in [1, 2, 3] {
        let mut pool = pool_of(&id, python.clone(), PoolOptions { batch_size, ..options.clone() });
        let mut rows: Vec<Rows> = vec![Vec::new(); num_envs];
        pool.async_reset().unwrap();
        while rows.iter().any(|rows| rows.len() <= steps) {
            let batch = pool.recv().unwrap();
            push(&mut rows, &batch);
            let actions: Vec<i32> = batch
                .env_id()
                .iter()
                .map(|&env| action(env as usize, rows[env as usize].len() - 1))
                .collect();
            pool.send(&actions, batch.env_id()).unwrap();
        }
        for (env, expected) in expected.iter().enumerate() {
            assert_eq!(rows[env][..=steps], expected[..], "batch size {batch_size}, env {env}");
        }
        // Steps in flight are abandoned.
        pool.async_reset().unwrap();
        assert!(pool.recv().unwrap().first().iter().all(|&first| first));
    }
}

#[test]
fn other_times_of_resets_give_the_same_episodes() {
    let Some(python) = python() else { return };
    let id = format!("{MODULE}:VectorNoise-v0");
    let of = |autoreset| {
        let options = PoolOptions { num_envs: 1, autoreset, ..Default::default() };
        let mut pool = pool_of(&id, python.clone(), options);
        let mut seen = vec![row(&pool.reset().unwrap(), 0)];
        let mut over = false;
        while seen.len() < 60 {
            let batch = match (over, autoreset) {
                (true, Autoreset::Disabled) => {
                    pool.send_reset(&[0]).unwrap();
                    pool.recv().unwrap()
                }
                _ => pool.step(&[1]).unwrap(),
            };
            over = batch.terminated()[0] || batch.truncated()[0];
            if let Some(last) = batch.final_obs::<f32>(0) {
                seen.push(last.iter().map(|&x| x.into()).collect());
            }
            seen.push(row(&batch, 0));
        }
        seen.truncate(60);
        seen
    };
    let same_step = of(Autoreset::SameStep);
    assert_eq!(of(Autoreset::NextStep), same_step);
    assert_eq!(of(Autoreset::Disabled), same_step);
}

#[test]
fn the_pools_step_limit_is_that_of_the_environment() {
    let Some(python) = python() else { return };
    let options = PoolOptions { num_envs: 2, max_episode_steps: Some(250), ..Default::default() };
    let mut pool = pool_of("Pendulum-v1", python, options);
    pool.reset().unwrap();
    for _ in 0..249 {
        assert_eq!(pool.step(&[0.0f32; 2]).unwrap().truncated(), [false; 2]);
    }
    assert_eq!(pool.step(&[0.0f32; 2]).unwrap().truncated(), [true; 2]);
    let episodes = pool.take_finished();
    assert_eq!(episodes.iter().map(|e| e.length).collect::<Vec<_>>(), [250; 2]);
    assert!(episodes[0].episodic_return < -100.0);
}

#[test]
fn an_environment_is_rendered() {
    let Some(python) = python() else { return };
    let id = format!("{MODULE}:VectorNoise-v0");
    let mut pool = pool_of(&id, python, PoolOptions { num_envs: 2, ..Default::default() });
    pool.reset().unwrap();
    let ended = pool.step(&[0, 0]).unwrap().first()[1];
    let frame = pool.render(1).unwrap().unwrap();
    assert_eq!((frame.height, frame.width, frame.fps), (4, 6, 12));
    assert_eq!(frame.rgb, [u8::from(!ended); 4 * 6 * 3]);
}

#[test]
fn an_environment_without_images_draws_none() {
    let Some(python) = python() else { return };
    let mut pool = pool_of(&format!("{MODULE}:Blind-v0"), python, PoolOptions::default());
    pool.reset().unwrap();
    assert!(pool.render(0).unwrap().is_none());
    pool.step(&[0]).unwrap();
}

/// Camera that keeps the first number of each frame, episode by episode.
struct FirstNumbers {
    episodes: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Camera for FirstNumbers {
    fn begin(&mut self) -> bool {
        self.episodes.lock().unwrap().push(Vec::new());
        true
    }

    fn frame(&mut self, frame: Frame) {
        self.episodes.lock().unwrap().last_mut().unwrap().push(frame.rgb[0]);
    }

    fn end(&mut self) {}
}

/// The environment draws the number of its steps.
#[test]
fn a_filmed_episode_ends_with_the_frame_after_its_last_step() {
    let Some(python) = python() else { return };
    let id = format!("{MODULE}:VectorNoise-v0");
    let (mut lengths, mut pools) = (Vec::new(), Vec::new());
    let episodes = Arc::new(Mutex::new(Vec::new()));
    for filmed in [true, false] {
        let options = PoolOptions { num_envs: 2, num_threads: 1, ..Default::default() };
        let mut pool = pool_of(&id, python.clone(), options);
        pool.reset().unwrap();
        if filmed {
            pool.render(0).unwrap();
            pool.film(0, Box::new(FirstNumbers { episodes: episodes.clone() })).unwrap();
        }
        let mut rows: Vec<Vec<f64>> = Vec::new();
        for _ in 0..60 {
            let batch = pool.step(&[1; 2]).unwrap();
            rows.extend([row(&batch, 0), row(&batch, 1)]);
            if filmed && batch.finished()[0] {
                lengths.push(batch.episodic_length()[0]);
            }
        }
        pools.push(rows);
    }
    // Filming changes nothing else.
    assert_eq!(pools[0], pools[1]);
    let episodes = episodes.lock().unwrap();
    assert!(lengths.len() > 3, "{lengths:?}");
    for (k, (frames, length)) in episodes.iter().zip(lengths).enumerate() {
        // The first episode was under way already when it was filmed.
        let first = u8::from(k == 0);
        let expected: Vec<u8> = (first..=length as u8).collect();
        assert_eq!(*frames, expected, "episode {k}");
    }
}

#[test]
fn an_action_mask_is_the_end_of_the_observation() {
    let Some(python) = python() else { return };
    let id = format!("gymnasium:{MODULE}:VectorNoise-v0");
    let own = GymnasiumOptions { python: Some(python), action_mask: true, ..Default::default() };
    let mut pool = EnvPool::gymnasium(&id, own, PoolOptions::default()).unwrap();
    assert_eq!(pool.spec().observation.to_string(), "Box(-inf, inf, f32[6])");
    assert_eq!(pool.spec().action, Space::MultiDiscrete { nvec: vec![3], masked: true });
    let mut masks = vec![row(&pool.reset().unwrap(), 0).split_off(3)];
    for _ in 0..30 {
        masks.push(row(&pool.step(&[2]).unwrap(), 0).split_off(3));
    }
    assert!(
        masks.iter().all(|mask| mask[0] == 1.0 && mask[1..].iter().all(|&x| x == 0.0 || x == 1.0))
    );
    assert!(masks.iter().any(|mask| mask[1..] == [0.0, 1.0]), "{masks:?}");
}

#[test]
fn a_restored_environment_begins_a_new_episode() {
    let Some(python) = python() else { return };
    let id = format!("{MODULE}:VectorNoise-v0");
    let options = PoolOptions { num_envs: 3, num_threads: 2, ..Default::default() };
    let mut pool = pool_of(&id, python, options);
    pool.reset().unwrap();
    pool.step(&[1; 3]).unwrap();
    let state = pool.save(2).unwrap();
    pool.restore(2, &state).unwrap();
    let batch = pool.step(&[1; 3]).unwrap();
    assert_eq!((batch.truncated()[2], batch.first()[2], batch.reward()[2]), (true, true, 0.0));
    pool.step(&[1; 3]).unwrap();
    let error = pool.restore(2, b"something else").unwrap_err().to_string();
    assert!(error.contains("no saved state"), "{error}");
}
