//! Toy text against gymnasium's tables and games, and EnvPool's games.

use podracer::envs::toy_text::{
    Blackjack, BlackjackOptions, Catch, CatchOptions, CliffWalking, CliffWalkingOptions,
    FrozenLake, FrozenLakeOptions, NChain, Table, Taxi, TaxiOptions,
};
use podracer::envs::{
    Action, Env, EnvPool, EnvRng, EnvSeed, Handle, ObsMut, PoolOptions, Space, make, spec,
};
use podracer::error::Result;
use podracer::trace::control::scan;
use podracer::{Array, DType, Tensor, TensorType, jit};
use pretty_assertions::assert_eq;
use safetensors::SafeTensors;

const FIXTURE: &[u8] = include_bytes!("../fixtures/envs/toy_text.safetensors");

fn column<T: bytemuck::AnyBitPattern>(name: &str, column: &str) -> Vec<T> {
    let tensors = SafeTensors::deserialize(FIXTURE).unwrap();
    let tensor = tensors.tensor(&format!("{name}/{column}")).unwrap();
    tensor.data().chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn dry() -> FrozenLakeOptions {
    FrozenLakeOptions { is_slippery: false, ..Default::default() }
}

fn islands() -> FrozenLakeOptions {
    FrozenLakeOptions {
        map: vec!["SFFHS".into(), "FHGFF".into()],
        is_slippery: true,
        success_rate: 0.7,
        reward_schedule: [10.0, -5.0, -1.0],
    }
}

fn rainy() -> TaxiOptions {
    TaxiOptions { is_rainy: true, ..Default::default() }
}

fn stormy() -> TaxiOptions {
    TaxiOptions {
        rainy_probability: 0.5,
        fickle_passenger: true,
        fickle_probability: 0.8,
        ..rainy()
    }
}

// ---- Tables ----------------------------------------------------------------------------------

/// Every number of the table must be gymnasium's, to the last bit.
fn same_table(name: &str, table: &Table) {
    let start = column::<f64>(name, "table_start");
    assert_eq!(table.start(), start, "{name}");
    let cells = start.len() * table.num_actions();
    let probability = column::<f64>(name, "table_probability");
    let state = column::<i16>(name, "table_state");
    let reward = column::<i8>(name, "table_reward");
    let terminated = column::<u8>(name, "table_terminated");
    let widest = probability.len() / cells;
    assert_eq!(probability.len(), cells * widest, "{name}");
    for cell in 0..cells {
        let (from, action) = (cell / table.num_actions(), cell % table.num_actions());
        let ours: Vec<_> = table
            .transitions(from, action)
            .iter()
            .map(|t| (t.probability, t.state as i16, t.reward, t.terminated))
            .collect();
        let theirs: Vec<_> = (cell * widest..(cell + 1) * widest)
            .filter(|&i| probability[i] != 0.0)
            .map(|i| (probability[i], state[i], f64::from(reward[i]), terminated[i] != 0))
            .collect();
        assert_eq!(ours, theirs, "{name}: state {from}, action {action}");
    }
}

#[test]
fn tables_are_those_of_gymnasium() {
    same_table("FrozenLake-v1", FrozenLake::v1(&FrozenLakeOptions::default()).unwrap().table());
    same_table("FrozenLake8x8-v1", FrozenLake::v1_8x8().table());
    same_table("dry", FrozenLake::v1(&dry()).unwrap().table());
    same_table("islands", FrozenLake::v1(&islands()).unwrap().table());
    same_table("CliffWalking-v1", CliffWalking::v0().table());
    same_table("CliffWalking-v1", CliffWalking::v1(CliffWalkingOptions::default()).table());
    same_table("CliffWalkingSlippery-v1", CliffWalking::slippery_v1().table());
    same_table("Taxi-v4", Taxi::v3().table());
    same_table("Taxi-v4", Taxi::v4(TaxiOptions::default()).unwrap().table());
    same_table("rainy", Taxi::v4(rainy()).unwrap().table());
}

// ---- Games -----------------------------------------------------------------------------------

fn observe(space: &Space, write: impl FnOnce(ObsMut<'_>)) -> Vec<i16> {
    // An i32 or an f32 per element, both of which have few bytes here.
    let mut words = vec![u32::MAX; space.shape().numel()];
    write(ObsMut(bytemuck::cast_slice_mut(&mut words)));
    match space.dtype() {
        DType::I32 => words.iter().map(|&word| word as i32 as i16).collect(),
        _ => words.iter().map(|&word| f32::from_bits(word) as i16).collect(),
    }
}

/// Gymnasium drew from our generator, so every step of every episode must be the same.
fn same_games(name: &str, mut env: Box<dyn Env>) {
    let mut rng = EnvRng::new(EnvSeed(column::<i32>(name, "seed")[0] as u128));
    let space = env.spec().observation;
    let width = space.shape().numel();
    let (first, obs) = (column::<i16>(name, "first"), column::<i16>(name, "obs"));
    let reward = column::<f32>(name, "reward");
    let terminated = column::<u8>(name, "terminated");
    let mut firsts = first.chunks(width);
    let mut over = true;
    for (t, action) in column::<u8>(name, "actions").into_iter().enumerate() {
        if over {
            let start = observe(&space, |obs| env.reset(&mut rng, obs).unwrap());
            assert_eq!(Some(&start[..]), firsts.next(), "{name}: before step {t}");
        }
        let mut message = None;
        let seen = observe(&space, |obs| {
            message = Some(env.step(Action::Discrete(action.into()), &mut rng, obs).unwrap());
        });
        let message = message.unwrap();
        assert_eq!(seen, obs[t * width..][..width], "{name}: step {t}");
        assert_eq!(message.reward, f64::from(reward[t]), "{name}: step {t}");
        assert_eq!(message.terminated, terminated[t] != 0, "{name}: step {t}");
        assert!(!message.truncated);
        over = message.terminated;
    }
    // The recording ends with a reset where the last step ended an episode.
    assert_eq!(firsts.count(), usize::from(over), "{name}");
}

#[test]
fn games_are_those_of_gymnasium() {
    for id in ["FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1"] {
        same_games(id, make(id).unwrap());
    }
    same_games("CliffWalking-v1", make("CliffWalking-v0").unwrap());
    for id in ["Taxi-v4", "Taxi-v3"] {
        same_games("Taxi-v4", make(id).unwrap());
    }
    same_games("dry", Box::new(FrozenLake::v1(&dry()).unwrap()));
    same_games("rainy", Box::new(Taxi::v4(rainy()).unwrap()));
    same_games("stormy", Box::new(Taxi::v4(stormy()).unwrap()));
    same_games("Blackjack-v1", make("Blackjack-v1").unwrap());
    for (name, natural) in [("plain", false), ("natural", true)] {
        same_games(name, Box::new(Blackjack::v1(BlackjackOptions { natural, sab: false })));
    }
}

/// EnvPool draws where the ball falls with its own generator: we put it there.
#[test]
fn catch_is_that_of_envpool() {
    let name = "Catch-v0";
    let mut env = make(name).unwrap();
    let (first, obs) = (column::<i16>(name, "first"), column::<i16>(name, "obs"));
    let reward = column::<f32>(name, "reward");
    let terminated = column::<u8>(name, "terminated");
    let mut rng = EnvRng::new(EnvSeed(0));
    let mut firsts = first.chunks(50);
    let mut over = true;
    for (t, action) in column::<u8>(name, "actions").into_iter().enumerate() {
        if over {
            let board = firsts.next().unwrap();
            let ball = board.iter().position(|&cell| cell == 1).unwrap();
            let saved = format!("{{\"ball\":[0,{ball}],\"paddle\":2}}");
            env.restore(saved.as_bytes()).unwrap();
            assert_eq!(board[9 * 5 + 2], 1, "the paddle begins in the middle");
        }
        let mut cells = [7f32; 50];
        let row = ObsMut(bytemuck::cast_slice_mut(&mut cells));
        let message = env.step(Action::Discrete(action.into()), &mut rng, row).unwrap();
        assert_eq!(cells.map(|cell| cell as i16)[..], obs[t * 50..][..50], "step {t}");
        assert_eq!(message.reward, f64::from(reward[t]));
        assert_eq!(message.terminated, terminated[t] != 0);
        over = message.terminated;
    }
    assert!(column::<u8>(name, "terminated").iter().filter(|&&over| over != 0).count() > 15);
}

/// Whether EnvPool's chain slipped is not known; each of its steps must be one of ours, and one in
/// five a slip (0.2 +- 5 standard deviations of 3000 steps).
#[test]
fn nchain_is_that_of_envpool() {
    let name = "NChain-v0";
    let env = NChain::v0();
    let (first, obs) = (column::<i16>(name, "first"), column::<i16>(name, "obs"));
    let reward = column::<f32>(name, "reward");
    let actions = column::<u8>(name, "actions");
    let mut slips = 0;
    let mut before = first[0];
    for (t, &action) in actions.iter().enumerate() {
        let outcomes = env.table().transitions(before as usize, action.into());
        let came = outcomes
            .iter()
            .position(|o| o.state == obs[t] as usize && o.reward == f64::from(reward[t]));
        slips += usize::from(came.unwrap_or_else(|| panic!("step {t} cannot be")) == 0);
        assert_eq!(outcomes[0].probability, 0.2);
        // Its episodes are cut after 1000 steps.
        before = if (t + 1) % 1000 == 0 { first[(t + 1) / 1000] } else { obs[t] };
    }
    let share = slips as f64 / actions.len() as f64;
    assert!((share - 0.2).abs() < 5.0 * (0.16 / actions.len() as f64).sqrt(), "{share}");
    assert_eq!(spec(name).unwrap().max_episode_steps, Some(1000));
}

// ---- In the pool -----------------------------------------------------------------------------

const IDS: [(&str, Space, usize, Option<u32>); 9] = [
    ("FrozenLake-v1", Space::Discrete { n: 16 }, 4, Some(100)),
    ("FrozenLake8x8-v1", Space::Discrete { n: 64 }, 4, Some(200)),
    ("CliffWalking-v0", Space::Discrete { n: 48 }, 4, None),
    ("CliffWalking-v1", Space::Discrete { n: 48 }, 4, None),
    ("CliffWalkingSlippery-v1", Space::Discrete { n: 48 }, 4, None),
    ("Taxi-v3", Space::Discrete { n: 500 }, 6, Some(200)),
    ("Taxi-v4", Space::Discrete { n: 500 }, 6, Some(200)),
    ("NChain-v0", Space::Discrete { n: 5 }, 2, Some(1000)),
    // A triple, which has another space.
    ("Blackjack-v1", Space::Discrete { n: 0 }, 2, None),
];

fn options(num_envs: usize, num_threads: usize) -> PoolOptions {
    PoolOptions { num_envs, num_threads, ..Default::default() }
}

/// A number as an observation goes through batches of every kind.
#[test]
fn discrete_observations_in_a_pool() {
    for (id, observation, actions, limit) in IDS {
        let spec = spec(id).unwrap();
        assert_eq!(spec.id, id);
        assert_eq!(spec.action, Space::Discrete { n: actions }, "{id}");
        assert_eq!(spec.max_episode_steps, limit, "{id}");
        let width = spec.observation.shape().numel();
        let highest = match (&spec.observation, &observation) {
            (Space::Box { high, .. }, _) => (0..width).map(|i| high.at(i) as i32).collect(),
            (found, expected) => {
                assert_eq!(found, expected, "{id}");
                let Space::Discrete { n } = found else { unreachable!() };
                vec![*n as i32 - 1]
            }
        };
        let run = |num_threads| {
            let short = PoolOptions { max_episode_steps: Some(50), ..options(5, num_threads) };
            let mut pool = EnvPool::make(id, short).unwrap();
            let mut seen = Vec::new();
            let mut batch = pool.reset().unwrap();
            for t in 0..120 {
                let axes = if width == 1 { vec![5] } else { vec![5, width] };
                assert_eq!(batch.obs_shape().to_vec(), axes, "{id}");
                let obs = batch.obs::<i32>();
                for (i, &x) in obs.iter().enumerate() {
                    assert!((0..=highest[i % width]).contains(&x), "{id}: {x}");
                }
                let last = |row| batch.final_obs::<i32>(row).map(<[i32]>::to_vec);
                seen.push((obs.to_vec(), (0..5).map(last).collect::<Vec<_>>()));
                let choices: Vec<i32> =
                    (0..5).map(|i| (t * 7 + i * 3) / 2 % actions as i32).collect();
                batch = pool.step(&choices).unwrap();
            }
            seen
        };
        let reference = run(1);
        assert!(run(3) == reference, "{id}");
        assert!(reference.iter().any(|(_, last)| last.iter().any(Option::is_some)), "{id}");
    }
}

#[test]
fn saved_states_continue() {
    for (id, observation, actions, _) in IDS {
        let mut rng = EnvRng::new(EnvSeed(8));
        let (mut env, mut other) = (make(id).unwrap(), make(id).unwrap());
        let width = if observation == (Space::Discrete { n: 0 }) { 12 } else { 4 };
        let (mut a, mut b) = (vec![0u32; width / 4], vec![1u32; width / 4]);
        env.reset(&mut rng, ObsMut(bytemuck::cast_slice_mut(&mut a))).unwrap();
        for t in 0..200 {
            other.restore(&env.save().unwrap()).unwrap();
            let action = Action::Discrete(t % 5 % actions);
            let mut again = rng.clone();
            let row = ObsMut(bytemuck::cast_slice_mut(&mut a));
            let message = env.step(action, &mut rng, row).unwrap();
            let row = ObsMut(bytemuck::cast_slice_mut(&mut b));
            assert_eq!(other.step(action, &mut again, row).unwrap(), message, "{id}: step {t}");
            assert_eq!((&a, &rng), (&b, &again), "{id}: step {t}");
            if message.terminated {
                env.reset(&mut rng, ObsMut(bytemuck::cast_slice_mut(&mut a))).unwrap();
            }
        }
    }
}

#[test]
fn bad_states_are_refused_by_each_environment() {
    for (id, wrong) in [
        ("FrozenLake-v1", "16"),
        ("CliffWalking-v1", "48"),
        ("Taxi-v3", "[500,false]"),
        ("NChain-v0", "5"),
        ("Blackjack-v1", "{\"player\":[11,1],\"dealer\":[1,1]}"),
        ("Blackjack-v1", "{\"player\":[1],\"dealer\":[1,1]}"),
        ("Catch-v0", "{\"ball\":[10,0],\"paddle\":0}"),
    ] {
        let error = make(id).unwrap().restore(wrong.as_bytes()).unwrap_err().to_string();
        let expected = format!(
            "{id}: this is not a saved state: something lies where the rules cannot put it"
        );
        assert_eq!(error, expected);
        let error = make(id).unwrap().restore(b"{").unwrap_err().to_string();
        assert!(error.starts_with(&format!("{id}: this is not a saved state: ")), "{error}");
    }
}

#[test]
fn pictures_have_the_sizes_of_their_boards() {
    for (id, height, width) in [
        ("FrozenLake-v1", 64, 64),
        ("CliffWalking-v1", 64, 192),
        ("Taxi-v4", 112, 176),
        ("Catch-v0", 160, 80),
    ] {
        let mut env = make(id).unwrap();
        let frame = env.render().unwrap();
        assert_eq!((frame.height, frame.width), (height, width), "{id}");
        assert_eq!(frame.rgb.len(), height * width * 3);
    }
    // The taxi, in the corner of the first state, is where the passenger waits and wants to go.
    let frame = make("Taxi-v4").unwrap().render().unwrap();
    assert_eq!(&frame.rgb[(16 * 176 + 16) * 3..][..3], [250, 250, 90]);
    assert_eq!(&frame.rgb[..3], [0, 0, 0], "a wall");
}

// ---- What bad options get --------------------------------------------------------------------

#[test]
fn options_are_checked() {
    let lake = |map: &[&str]| {
        let map = map.iter().map(|&row| row.into()).collect();
        let options = FrozenLakeOptions { map, ..Default::default() };
        FrozenLake::v1(&options).unwrap_err().to_string()
    };
    let error = |wrong: &str| format!("FrozenLake-v1: the map {wrong}");
    for (map, expected) in [
        (&[][..], "[] is not one: it has no cells"),
        (&["SF", "G"], "[\"SF\", \"G\"] is not one: its rows are not of one length"),
        (&["SX"], "[\"SX\"] is not one: it has other letters than S, F, H and G"),
        (&["FG"], "[\"FG\"] is not one: it has no start, S"),
    ] {
        let message = lake(map);
        assert!(message.contains(&error(expected)), "{message}");
    }
    let message = |result: Result<()>| result.unwrap_err().to_string();
    let options = FrozenLakeOptions { success_rate: 1.5, ..Default::default() };
    let text = message(FrozenLake::v1(&options).map(drop));
    let expected = "FrozenLake-v1: success_rate is 1.5, expected a probability from 0 to 1";
    assert!(text.contains(expected), "{text}");
    let text = message(Taxi::v4(TaxiOptions { fickle_probability: -1.0, ..stormy() }).map(drop));
    assert!(text.contains("Taxi-v4: fickle_probability is -1, expected a probability"), "{text}");
    let text = message(Catch::v0(CatchOptions { height: 1, width: 4 }).map(drop));
    assert!(text.contains("Catch-v0: a board of 1 rows and 4 columns is too small"), "{text}");
}

// ---- In compiled code ------------------------------------------------------------------------

/// Numbers and bools as observations come out of a compiled rollout as out of the pool.
#[test]
fn observations_in_compiled_code() {
    let num_steps = 30;
    for (id, dtype, axes) in [
        ("Taxi-v3", DType::I32, vec![]),
        ("Blackjack-v1", DType::I32, vec![3]),
        ("MinAtar/Breakout-v1", DType::Bool, vec![10, 10, 4]),
    ] {
        let choices: Vec<i32> = (0..num_steps * 2).map(|i| (i * i / 3 % 2) as i32).collect();
        let mut pool = EnvPool::make(id, options(2, 1)).unwrap();
        pool.reset().unwrap();
        let expected: Vec<u8> = choices
            .chunks(2)
            .flat_map(|choices| pool.step(choices).unwrap().obs_bytes().to_vec())
            .collect();

        let (handle, envs) = EnvPool::make(id, options(2, 1)).unwrap().xla().unwrap();
        let rollout = jit(|(handle, actions): (Handle<Tensor>, Tensor)| {
            let (handle, _) = envs.reset(handle);
            scan(|handle, actions| envs.step(handle, actions), handle, actions)
        });
        let actions = Array::new([num_steps, 2], &choices).unwrap();
        let (_, steps) = rollout.call((handle, actions)).unwrap();
        let found = steps.obs.to_literal().unwrap();
        let shape: Vec<usize> = [num_steps, 2].into_iter().chain(axes).collect();
        assert_eq!(found.ty(), &TensorType::new(dtype, &shape[..]), "{id}");
        assert!((*found.bytes()).as_ref() == expected, "{id}");
    }
}
