//! Environments of JAX, exported to Programs: `tests/fixtures/jax/programs/make.py` (a corridor) and
//! `tests/fixtures/envs/jax/make.py` (gymnax).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use podracer::envs::traced::{AutoReset, JaxEnv, TracedEnv, make};
use podracer::envs::{Action, EnvPool, EnvRng, ObsMut, PoolOptions, Space, seeds, spec};
use podracer::trace::control::scan;
use podracer::{Array, DType, Key, Tensor, jit, vmap};
use safetensors::SafeTensors;

const CORRIDOR: &str = "tests/fixtures/jax/programs/corridor";
const GYMNAX: &str = "tests/fixtures/envs/jax";

/// Numbers of a file, as `f64`, by name.
fn numbers(path: &str) -> BTreeMap<String, (Vec<usize>, Vec<f64>)> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let of = |view: safetensors::tensor::TensorView<'_>| -> Vec<f64> {
        let words = || view.data().chunks_exact(4).map(|word| word.try_into().unwrap());
        match view.dtype() {
            safetensors::Dtype::F32 => words().map(|x| f32::from_le_bytes(x).into()).collect(),
            safetensors::Dtype::I32 => words().map(|x| i32::from_le_bytes(x).into()).collect(),
            safetensors::Dtype::U32 => words().map(|x| u32::from_le_bytes(x).into()).collect(),
            _ => view.data().iter().map(|&byte| f64::from(byte)).collect(),
        }
    };
    let names = file.tensors();
    names.into_iter().map(|(name, view)| (name, (view.shape().to_vec(), of(view)))).collect()
}

/// Steps the environment `game` with the recorded keys and actions, as the script did, and compares.
/// Observations are equal within `tolerance` of their size.
fn equal_to_recorded(folder: &str, game: &str, tolerance: f64) {
    let recorded = numbers(&format!("{folder}/{game}.safetensors"));
    let env = AutoReset::new(JaxEnv::load(format!("{folder}/{game}")).unwrap());
    let get = |name: &str| &recorded[name];
    let words = |name: &str| {
        let (shape, data) = get(name);
        let data: Vec<u32> = data.iter().map(|&x| x as u32).collect();
        Array::new(&shape[..], &data).unwrap()
    };
    let (shape, actions) = get("actions");
    assert_eq!(shape[0], 1000);
    let actions = match env.env.spec().action {
        Space::Discrete { .. } => {
            Array::from(actions.iter().map(|&x| x as i32).collect::<Vec<_>>())
        }
        _ => {
            let actions: Vec<f32> = actions.iter().map(|&x| x as f32).collect();
            Array::new(&shape[..], &actions).unwrap()
        }
    };
    let run = jit(|(first, keys, resets, actions): (Tensor, Tensor, Tensor, Tensor)| {
        let start = env.reset(Key::from_data(first));
        let step = |(episode, _): (_, Tensor), (key, reset, action): (Tensor, Tensor, Tensor)| {
            let start = env.env.reset(Key::from_data(reset));
            let next = env.step_or(episode, action, Key::from_data(key), start);
            let flags = (next.reward, next.terminated, next.truncated);
            ((next.episode, next.obs), (next.obs, flags))
        };
        (start.1, scan(step, start, (keys, resets, actions)).1)
    });
    let arguments = (words("first"), words("keys"), words("resets"), actions);
    let (first, (obs, (rewards, terminated, truncated))) = run.call(arguments).unwrap();
    let flat = |array: Array| array.to_literal().unwrap().to_f64_vec();
    let mut all = flat(first);
    all.extend(flat(obs));
    let expected = match recorded.get("obs") {
        Some((_, obs)) => obs.clone(),
        // Boards of zeros and ones are recorded as bits.
        None => {
            let bits = |&byte: &f64| (0..8).map(move |i| f64::from(byte as u8 >> (7 - i) & 1));
            get("obs_bits").1.iter().flat_map(bits).collect()
        }
    };
    assert!(expected.len() >= all.len() && expected.len() < all.len() + 8);
    let far = |(x, y): (&f64, &f64)| (x - y).abs() > tolerance * y.abs().max(1.0);
    if let Some(i) = all.iter().zip(&expected).position(far) {
        let step = i / (all.len() / 1001);
        panic!("{game}: observation {step} has {} and not {}", all[i], expected[i]);
    }
    for (name, found) in [("terminated", terminated), ("truncated", truncated)] {
        assert_eq!(flat(found), get(name).1, "{game}: {name}");
    }
    let rewards = flat(rewards);
    assert!(!rewards.iter().zip(&get("rewards").1).any(far), "{game}: rewards");
}

#[test]
fn steps_of_cartpole_are_those_of_gymnax() {
    equal_to_recorded(GYMNAX, "cartpole", 1e-5);
}

#[test]
fn steps_of_breakout_are_those_of_gymnax() {
    equal_to_recorded(GYMNAX, "breakout", 0.0);
}

/// Ids, with the tolerance of their observations. Small differences of physics grow.
const OTHERS: [(&str, f64); 8] = [
    ("gymnax:Acrobot-v1", 1e-3),
    ("gymnax:Asterix-MinAtar", 0.0),
    ("gymnax:FourRooms-misc", 0.0),
    ("gymnax:Freeway-MinAtar", 0.0),
    ("gymnax:Pendulum-v1", 1e-4),
    ("gymnax:SpaceInvaders-MinAtar", 0.0),
    ("pgx:connect_four", 0.0),
    ("pgx:tic_tac_toe", 0.0),
];

#[test]
#[ignore = "PODRACER_JAX_ENVS_PYTHON names a Python with gymnax and PGX"]
fn steps_of_other_environments_are_those_of_jax() {
    let python = std::env::var_os("PODRACER_JAX_ENVS_PYTHON")
        .expect("PODRACER_JAX_ENVS_PYTHON names a Python with gymnax and PGX");
    let folder = std::env::temp_dir().join(format!("podracer-jaxenvs-{}", std::process::id()));
    let script = format!("{GYMNAX}/record.py");
    let ids = OTHERS.map(|(id, _)| id);
    let status = Command::new(python).arg(script).arg(&folder).args(ids).status().unwrap();
    assert!(status.success());
    for (id, tolerance) in OTHERS {
        equal_to_recorded(folder.to_str().unwrap(), &id.replace([':', '/'], "_"), tolerance);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_file_describes_the_spaces() {
    let cartpole = spec(&format!("jax:{GYMNAX}/cartpole")).unwrap();
    assert_eq!(cartpole.action, Space::Discrete { n: 2 });
    assert_eq!(cartpole.max_episode_steps, Some(500));
    assert_eq!(cartpole.observation.shape()[..], [4]);
    let corridor = make(&format!("jax:{CORRIDOR}")).unwrap().spec();
    let unbounded = Space::f32([2], f64::NEG_INFINITY, f64::INFINITY);
    assert_eq!((corridor.observation, corridor.max_episode_steps), (unbounded, Some(30)));
    assert_eq!(corridor.id, format!("jax:{CORRIDOR}"));
}

/// The corridor by its rules: the agent always walks right, and the wind only delays it.
#[test]
fn a_batch_of_environments_runs_in_one_program() {
    let env = AutoReset::new(JaxEnv::load(CORRIDOR).unwrap());
    let run = jit(|key: Key<Tensor>| {
        let [starts, steps] = key.split_n();
        let (episodes, _) = vmap(|key| env.reset(key))(starts.split_batch(64));
        let walk = |episodes, keys: Tensor| {
            let right = podracer::trace::ops::full([64], 1.0, DType::I32);
            let step = |(episode, action, key)| env.step(episode, action, Key::from_data(key));
            let next = vmap(step)((episodes, right, keys));
            (next.episode, (next.reward, next.terminated, next.truncated, next.final_obs))
        };
        let keys = steps.split_batch(20 * 64).into_data().reshape([20, 64, 2]);
        scan(walk, episodes, keys).1
    });
    let (reward, terminated, truncated, obs) = run.call(Key::new(1)).unwrap();
    let terminated = terminated.to_vec::<bool>().unwrap();
    let reward = reward.to_vec::<f32>().unwrap();
    let obs = obs.to_vec::<f32>().unwrap();
    assert!(!truncated.to_vec::<bool>().unwrap().contains(&true));
    for (i, ended) in terminated.iter().enumerate() {
        assert_eq!(reward[i], if *ended { 1.0 } else { -0.01 });
        assert_eq!(obs[2 * i..][..2] == [1.0, 1.0], *ended);
        // Five steps right, at the least.
        assert!(!ended || i >= 4 * 64);
    }
    assert!(terminated.iter().filter(|ended| **ended).count() > 64);
}

#[test]
fn the_pool_steps_an_environment_of_jax() {
    let id = format!("jax:{CORRIDOR}");
    let options = PoolOptions { num_envs: 2, seed: 3, ..Default::default() };
    let mut pool = EnvPool::make(&id, options).unwrap();
    let first = pool.reset().unwrap();
    assert_eq!(first.obs::<f32>(), [0.0; 4]);
    drop(first);
    let mut ended = 0;
    for _ in 0..40 {
        let batch = pool.step(&[1, 0]).unwrap();
        // The second walks to the left, against the wall, until the time limit.
        assert_eq!(batch.obs::<f32>()[2..], [0.0, 0.0]);
        ended += usize::from(batch.terminated()[0]);
        drop(batch);
    }
    assert!(ended >= 4);
    let finished = pool.take_finished();
    assert!(finished.iter().any(|episode| episode.env_id == 1 && episode.length == 30));

    let mut env = podracer::envs::make(&id).unwrap();
    let mut rng = EnvRng::new(seeds(1, 0, 0, 0));
    let mut row = [0f32; 2];
    env.reset(&mut rng, ObsMut(bytemuck::cast_slice_mut(&mut row))).unwrap();
    let mut walk = |env: &mut dyn podracer::envs::Env| {
        env.step(
            Action::Discrete(1),
            &mut EnvRng::new(seeds(2, 0, 0, 0)),
            ObsMut(bytemuck::cast_slice_mut(&mut row)),
        )
        .unwrap();
        row
    };
    let saved = env.save().unwrap();
    let after = walk(&mut *env);
    env.restore(&saved).unwrap();
    assert_eq!(walk(&mut *env), after);
    let error = env.restore(&[0; 3]).unwrap_err().to_string();
    assert!(error.contains("a saved state has 8 bytes, this one has 3"), "{error}");
}

#[test]
fn folders_that_are_no_environments_are_refused() {
    let error = |id: &str| make(id).unwrap_err().to_string();
    assert!(error("jax:no/such").contains("jax:no/such: no such folder"));
    assert!(error("CartPole-v9").contains("one of JAX is jax:FOLDER"));
    let folder = std::env::temp_dir().join(format!("podracer-jaxenv-{}", std::process::id()));
    let id = format!("jax:{}", folder.display());
    let copy = |file: &str, change: &dyn Fn(String) -> String| {
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["reset.txt", "step.txt"] {
            let text = std::fs::read_to_string(Path::new(CORRIDOR).join(name)).unwrap();
            let text = if name == file { change(text) } else { text };
            std::fs::write(folder.join(name), text).unwrap();
        }
    };
    for (file, change, part) in [
        ("step.txt", ["\"environment\"", "\"other\""], "its first line describes no environment"),
        ("step.txt", ["\"kind\": \"discrete\"", "\"kind\": \"disc\""], "unknown variant `disc`"),
        ("step.txt", ["\"n\": 2", "\"n\": 0"], "the space of its action: it has nothing to choose"),
        (
            "step.txt",
            ["\"shape\": [2]", "\"shape\": [3]"],
            "returns result[0] as f32[2], and must have f32[3] there",
        ),
    ] {
        copy(file, &|text| {
            assert!(text.contains(change[0]), "{text}");
            text.replace(change[0], change[1])
        });
        let found = error(&id);
        assert!(found.contains(part), "{found}");
    }
    copy("reset.txt", &|_| "{ lambda a:u32[2]. let\n in (a) }".into());
    let found = error(&id);
    assert!(
        found.contains("reset.txt: it returns inputs") || found.contains("must have"),
        "{found}"
    );
    std::fs::remove_file(folder.join("step.txt")).unwrap();
    let found = error(&id);
    assert!(found.contains("cannot read") && found.contains("step.txt"), "{found}");
    std::fs::remove_dir_all(&folder).unwrap();
}
