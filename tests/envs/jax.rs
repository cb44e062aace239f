//! Environments of JAX, exported to Programs: `tests/fixtures/jax/programs/make.py` (a corridor) and
//! `tests/fixtures/envs/jax/make.py` (gymnax).

mod recorded;

use std::path::Path;

use podracer::envs::traced::{AutoReset, ProgramEnv, TracedEnv, make};
use podracer::envs::{Action, EnvPool, EnvRng, Handle, ObsMut, PoolOptions, Space, seeds, spec};
use podracer::trace::control::{ScanOptions, scan, scan_with};
use podracer::{DType, Key, Tensor, jit, make_program, vmap};

const CORRIDOR: &str = "tests/fixtures/jax/programs/corridor";
const GYMNAX: &str = "tests/fixtures/envs/jax";

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
    let env = AutoReset::new(ProgramEnv::load(CORRIDOR).unwrap());
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

/// Their states are in the handle, which only `reset` and `step` change.
#[test]
fn asynchronous_calls_of_traced_environments_are_errors() {
    let options = PoolOptions { num_envs: 2, ..Default::default() };
    let (handle, envs) = EnvPool::make(&format!("jax:{CORRIDOR}"), options).unwrap().xla().unwrap();
    let start = jit(|handle: Handle<Tensor>| envs.async_reset(handle));
    let error = start.call(handle).unwrap_err().to_string();
    let problem = "env pool async_reset: environments of JAX have reset and step only";
    assert!(error.starts_with(problem), "{error}");
}

/// The walk to the left does not depend on draws: the wind blows against the wall too.
#[test]
fn compiled_code_has_the_environments_without_calls_of_the_pool() {
    let id = format!("jax:{CORRIDOR}");
    let options = || PoolOptions { num_envs: 3, seed: 3, ..Default::default() };
    let (handle, envs) = EnvPool::make(&id, options()).unwrap().xla().unwrap();
    assert!(
        envs.is_traced()
            && !EnvPool::make("CartPole-v1", options()).unwrap().xla().unwrap().1.is_traced()
    );
    let walk = |handle: Handle<Tensor>| {
        let (handle, first) = envs.reset(handle);
        let step = |handle, ()| envs.step(handle, podracer::trace::ops::full([3], 0.0, DType::I32));
        let (handle, steps) = scan_with(step, handle, (), ScanOptions::length(40));
        (handle, first, steps)
    };
    let program = make_program(walk, &handle).unwrap();
    assert!(program.callbacks().is_empty(), "{program}");
    let (handle, first, steps) = jit(walk).call(handle).unwrap();
    let mut pool = EnvPool::make(&id, options()).unwrap();
    let mut batches = vec![pool.reset().unwrap()];
    batches.extend((0..40).map(|_| pool.step(&[0, 0, 0]).unwrap()));
    macro_rules! equal {
        ($($field:ident: $ty:ty),*) => {$(
            let found: Vec<$ty> = [&first.$field, &steps.$field]
                .into_iter()
                .flat_map(|array| array.to_vec::<$ty>().unwrap())
                .collect();
            let expected: Vec<$ty> =
                batches.iter().flat_map(|batch| batch.$field().to_vec()).collect();
            assert_eq!(found, expected, stringify!($field));
        )*};
    }
    equal!(reward: f32, terminated: bool, truncated: bool, first: bool, life_lost: bool,
           env_id: i32, elapsed_steps: i32, finished: bool, episodic_length: i32);
    assert_eq!(steps.obs.to_vec::<f32>().unwrap(), [0.0; 40 * 3 * 2]);
    let returns = steps.episodic_return.to_vec::<f32>().unwrap();
    assert!((returns[29 * 3] + 0.3).abs() < 1e-6 && returns[30 * 3] == 0.0, "{returns:?}");
    // The handle goes on: the next walk has other keys and the same types.
    let (_, again, _) = jit(walk).call(handle).unwrap();
    assert_eq!(again.obs.to_vec::<f32>().unwrap(), [0.0; 6]);
}

/// PGX's connect four: players alternate, and an observation ends with the mask of free columns.
#[test]
fn a_game_of_two_players_alternates() {
    let env = ProgramEnv::load(format!("{GYMNAX}/connect_four")).unwrap();
    let columns = env.spec().action;
    assert_eq!(columns, Space::MultiDiscrete { nvec: vec![7], masked: true });
    let play = jit(|(key, moves): (Key<Tensor>, Tensor)| {
        let (state, obs) = env.reset(key);
        let step = |state, column: Tensor| {
            let next = env.step(state, column.expand_dims(0), Key::constant(0));
            (next.state, (next.obs, next.reward, next.terminated))
        };
        (obs, scan(step, state, moves).1)
    });
    // The first player takes column 3 four times, the second column 4.
    let moves = podracer::Array::from([3, 4, 3, 4, 3, 4, 3]);
    let (first, (obs, reward, terminated)) = play.call((Key::new(0), moves)).unwrap();
    assert_eq!(first.to_vec::<f32>().unwrap()[..84], [0.0; 84]);
    assert_eq!(first.to_vec::<f32>().unwrap()[84..], [1.0; 7]);
    assert_eq!(reward.to_vec::<f32>().unwrap(), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(terminated.to_vec::<bool>().unwrap()[5..], [false, true]);
    // Discs of the player to move, and of the other: after a move there is one of the other's.
    let obs = obs.to_vec::<f32>().unwrap();
    let discs = |step: usize, player: usize| -> f32 {
        obs[step * 91..][..84].iter().skip(player).step_by(2).sum()
    };
    assert_eq!([discs(0, 0), discs(0, 1)], [0.0, 1.0]);
    assert_eq!([discs(4, 0), discs(4, 1)], [2.0, 3.0]);
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
