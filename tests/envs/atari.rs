//! The Atari games. The emulator and the cartridges are fetched when they are not installed.

use std::collections::HashMap;

use podracer::envs::{
    Action, AtariOptions, AtariStart, Autoreset, Env, EnvPool, EnvRng, EnvSeed, ObsMut,
    PoolOptions, Space, StepOutcome, list_envs, make, make_atari,
};
use podracer::native::{Lock, Settings};
use pretty_assertions::assert_eq;

/// The ids of this family: those with the ending that EnvPool gives them.
fn games() -> Vec<&'static str> {
    list_envs().into_iter().filter(|id| make_atari_knows(id)).collect()
}

fn make_atari_knows(id: &str) -> bool {
    // Whatever else is wrong with them, settings are looked at after the game's name.
    let options = AtariOptions { stack_num: 0, ..AtariOptions::default() };
    let error = make_atari(id, &options).err().expect("no stack").to_string();
    !error.starts_with("unknown Atari game")
}

fn bytes(env: &dyn Env) -> usize {
    env.spec().observation.bytes()
}

fn step(env: &mut dyn Env, choice: usize, rng: &mut EnvRng) -> (Vec<u8>, StepOutcome) {
    let mut obs = vec![0; bytes(env)];
    let outcome = env.step(Action::Discrete(choice), rng, ObsMut(&mut obs)).unwrap();
    (obs, outcome)
}

fn reset(env: &mut dyn Env, rng: &mut EnvRng) -> Vec<u8> {
    let mut obs = vec![0; bytes(env)];
    env.reset(rng, ObsMut(&mut obs)).unwrap();
    obs
}

/// CRC-32 as zlib's.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |mut crc, &byte| {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
        crc
    })
}

// ---- Every game ------------------------------------------------------------------------------

/// Every game starts and steps; a game that starts again, which the emulator does from a kept
/// state, goes as the first one did; and bytes that were saved go on as if nothing had been.
#[test]
fn all_games_start_again_and_go_on() {
    let games = games();
    assert_eq!(games.len(), 106);
    for id in games {
        let mut env = make(id).unwrap();
        let Space::Discrete { n } = env.spec().action else { panic!("{id}") };
        let game = |env: &mut dyn Env, from: usize, rng: &mut EnvRng| -> Vec<(Vec<u8>, f64)> {
            let mut seen = Vec::new();
            if from == 0 {
                seen.push((reset(env, rng), 0.0));
            }
            for t in from..50 {
                let (obs, outcome) = step(env, (7 * t + t / 5) % n, rng);
                seen.push((obs, outcome.game_reward));
            }
            seen
        };
        let rng = EnvRng::new(EnvSeed(3));
        let first = game(&mut *env, 0, &mut rng.clone());
        // Some games stand still while they play a tune: Amidar does for 62 steps.
        let moves = first.iter().any(|(obs, _)| obs != &first[0].0)
            || (50..500).any(|t| step(&mut *env, t % n, &mut rng.clone()).0 != first[0].0);
        assert!(moves, "{id} shows nothing");
        let again = game(&mut *env, 0, &mut rng.clone());
        assert!(first == again, "{id}: the second game is another one");

        let saved = env.save().unwrap();
        let picture = env.render().unwrap();
        assert_eq!(picture.rgb.len(), 3 * picture.height * picture.width);
        let on = game(&mut *env, 20, &mut rng.clone());
        let mut other = make(id).unwrap();
        other.restore(&saved).unwrap();
        assert!(other.render().unwrap() == picture, "{id}: another picture");
        assert!(on == game(&mut *other, 20, &mut rng.clone()), "{id}: restored to something else");
        env.restore(&saved).unwrap();
        assert!(on == game(&mut *env, 20, &mut rng.clone()), "{id}: restored to something else");
    }
}

#[test]
fn the_lock_file_has_every_cartridge() {
    let wheel = Lock::get().part("atari-roms").unwrap().wheel().unwrap();
    let roms: Vec<&str> = wheel.members.iter().map(|member| member.path.as_str()).collect();
    // Two of them are for two players only.
    assert_eq!(roms.len(), games().len() + 2);
    assert!(wheel.members.iter().all(|member| member.role == "rom"));
}

// ---- What the settings do --------------------------------------------------------------------

#[test]
fn presets_have_the_options_of_their_libraries() {
    let envpool = AtariOptions::default();
    assert_eq!(envpool, AtariOptions::envpool());
    let message = AtariOptions { episodic_life: true, reward_clip: true, ..envpool.clone() };
    assert_eq!(AtariOptions::espeholt(), message);
    assert_eq!(
        AtariOptions::gymnasium(),
        AtariOptions { start: AtariStart::Gymnasium, ..message.clone() }
    );
    let machado = AtariOptions::machado();
    assert_eq!(machado.repeat_action_probability, 0.25);
    assert_eq!(machado.max_episode_steps * machado.frame_skip, 108_000);
    assert!(machado.full_action_space && !machado.episodic_life);
    for atari in [message, machado, AtariOptions::gymnasium()] {
        let n = if atari.full_action_space { 18 } else { 4 };
        let mut pool = EnvPool::atari("Breakout-v5", atari, PoolOptions::default()).unwrap();
        assert_eq!(pool.spec().action, Space::Discrete { n });
        assert_eq!(pool.spec().observation, Space::image([4, 84, 84]));
        assert_eq!(pool.spec().max_episode_steps, Some(27_000));
        pool.reset().unwrap();
        pool.step(&[2]).unwrap();
    }
}

/// One seed, one run: whatever the threads, and whether batches are whole or half.
#[test]
fn one_seed_gives_one_run_whatever_the_threads() {
    let run = |num_threads: usize, batch_size: usize, seed: u64| {
        let atari = AtariOptions {
            episodic_life: true,
            repeat_action_probability: 0.25,
            ..AtariOptions::default()
        };
        let options =
            PoolOptions { num_envs: 4, batch_size, num_threads, seed, ..Default::default() };
        let mut pool = EnvPool::atari("Breakout-v5", atari, options).unwrap();
        pool.async_reset().unwrap();
        let mut seen: HashMap<i32, Vec<(u32, f32, bool)>> = HashMap::new();
        for _ in 0..200 * 4 / batch_size {
            let batch = pool.recv().unwrap();
            for row in 0..batch.len() {
                let of = seen.entry(batch.env_id()[row]).or_default();
                let sum = crc32(batch.obs_row(row));
                of.push((sum, batch.reward()[row], batch.terminated()[row]));
            }
            let actions: Vec<i32> =
                batch.env_id().iter().map(|env| (seen[env].len() as i32 / 3 + env) % 4).collect();
            pool.send(&actions, batch.env_id()).unwrap();
        }
        seen
    };
    let one = run(1, 4, 1);
    assert!(one == run(2, 4, 1), "two threads");
    assert!(one == run(2, 2, 1), "half batches");
    assert!(one != run(1, 4, 2), "another seed");
    assert!(one[&0] != one[&1], "environments of a pool differ");
}

/// Lives as episodes: the game, its statistics and its time limit go on.
#[test]
fn lives_as_episodes_leave_the_game_running() {
    for autoreset in [Autoreset::SameStep, Autoreset::NextStep] {
        let atari = AtariOptions { episodic_life: true, ..AtariOptions::default() };
        let options = PoolOptions { autoreset, ..Default::default() };
        let mut pool = EnvPool::atari("Breakout-v5", atari, options).unwrap();
        pool.reset().unwrap();
        let (mut ends, mut elapsed) = (0, 0);
        let episode = loop {
            let batch = pool.step(&[0]).unwrap();
            let reset = batch.first()[0] && !batch.terminated()[0];
            assert_eq!(batch.elapsed_steps()[0], elapsed + i32::from(!reset));
            elapsed = batch.elapsed_steps()[0];
            ends += usize::from(batch.terminated()[0]);
            if batch.terminated()[0] {
                assert!(batch.life_lost()[0]);
                assert_eq!(batch.discount(), [0.0]);
            }
            if let Some(&episode) = pool.take_finished().first() {
                break episode;
            }
        };
        assert_eq!(ends, 5);
        assert_eq!(episode.length as i32, elapsed);
    }
}

#[test]
fn a_lost_life_without_discount() {
    let atari = AtariOptions { zero_discount_on_life_loss: true, ..AtariOptions::default() };
    let mut pool = EnvPool::atari("Breakout-v5", atari, PoolOptions::default()).unwrap();
    pool.reset().unwrap();
    let mut lost = 0;
    while lost < 3 {
        let batch = pool.step(&[0]).unwrap();
        assert_eq!(batch.terminated(), [false]);
        assert_eq!(batch.discount(), [if batch.life_lost()[0] { 0.0 } else { 1.0 }]);
        // Without a ball nothing happens: the game waits for fire.
        if batch.life_lost()[0] {
            lost += 1;
            pool.step(&[1]).unwrap();
        }
    }
}

/// The time limit of a game counts over its lives, and cuts it whatever life it is at.
#[test]
fn a_time_limit_over_lives() {
    let atari =
        AtariOptions { episodic_life: true, max_episode_steps: 60, ..AtariOptions::default() };
    let mut pool = EnvPool::atari("Breakout-v5", atari, PoolOptions::default()).unwrap();
    pool.reset().unwrap();
    let ends: Vec<(i32, bool)> = (1..=120)
        .filter_map(|t| {
            let batch = pool.step(&[0]).unwrap();
            let (terminated, truncated) = (batch.terminated()[0], batch.truncated()[0]);
            (terminated || truncated).then_some((t, truncated))
        })
        .collect();
    let cuts: Vec<i32> = ends.iter().filter(|end| end.1).map(|end| end.0).collect();
    assert_eq!(cuts, [60, 120]);
    assert!(ends.len() > 2, "{ends:?}");
}

#[test]
fn rewards_are_clipped_for_the_agent_only() {
    let options = AtariOptions { reward_clip: true, ..AtariOptions::default() };
    let mut env = make_atari("SpaceInvaders-v5", &options).unwrap();
    let mut rng = EnvRng::new(EnvSeed(1));
    reset(&mut *env, &mut rng);
    let mut rewards = Vec::new();
    for t in 0..400 {
        let (_, outcome) = step(&mut *env, [1, 4, 5][t % 3], &mut rng);
        assert_eq!(outcome.reward, if outcome.game_reward > 0.0 { 1.0 } else { 0.0 });
        rewards.push(outcome.game_reward);
    }
    assert!(rewards.iter().any(|&reward| reward > 1.0), "{rewards:?}");
}

/// An action that always sticks is the one before the game: none.
#[test]
fn sticky_actions_repeat_the_previous_one() {
    let run = |sticky: f32, choice: fn(usize) -> usize| {
        let options = AtariOptions {
            repeat_action_probability: sticky,
            use_fire_reset: false,
            ..AtariOptions::default()
        };
        let mut env = make_atari("Pong-v5", &options).unwrap();
        let mut rng = EnvRng::new(EnvSeed(1));
        reset(&mut *env, &mut rng);
        (0..100).map(|t| step(&mut *env, choice(t), &mut rng).0).collect::<Vec<_>>()
    };
    let up: fn(usize) -> usize = |_| 2;
    assert!(run(1.0, up) == run(0.0, |_| 0));
    assert!(run(0.0, up) != run(0.0, |_| 0));
    assert!(run(0.5, up) != run(0.0, up));
}

#[test]
fn color_and_sizes_shape_the_observation() {
    let rng = || EnvRng::new(EnvSeed(1));
    let options = AtariOptions {
        gray_scale: false,
        stack_num: 2,
        img_height: 105,
        img_width: 80,
        ..AtariOptions::default()
    };
    let mut env = make_atari("Breakout-v5", &options).unwrap();
    assert_eq!(env.spec().observation, Space::image([6, 105, 80]));
    let color = reset(&mut *env, &mut rng());
    let planes: Vec<&[u8]> = color.chunks_exact(105 * 80).collect();
    // A game starts with the same frame in the whole stack.
    assert_eq!(planes[..3], planes[3..]);
    // The topmost of Breakout's rows of bricks is (200, 72, 72), at rows 57 to 62 of 210.
    assert_eq!([0, 1, 2].map(|plane| planes[plane][30 * 80 + 40]), [200, 72, 72]);
    let picture = env.render().unwrap();
    assert_eq!((picture.height, picture.width), (210, 160));
    assert_eq!(picture.rgb[3 * (60 * 160 + 80)..][..3], [200, 72, 72]);

    let linear = AtariOptions { use_inter_area_resize: false, ..AtariOptions::default() };
    let mut env = make_atari("Breakout-v5", &linear).unwrap();
    let smooth = reset(&mut *env, &mut rng());
    let mut env = make_atari("Breakout-v5", &AtariOptions::default()).unwrap();
    assert_ne!(smooth, reset(&mut *env, &mut rng()));
}

/// Every frame is the last one where nothing is skipped, and with gymnasium's starts every frame
/// of the first observation is the same, also after a lost life.
#[test]
fn starts_as_in_gymnasium() {
    let mut env = make_atari("Breakout-v5", &AtariOptions::gymnasium()).unwrap();
    let mut rng = EnvRng::new(EnvSeed(1));
    let same = |obs: &[u8]| obs.chunks_exact(84 * 84).all(|frame| frame == &obs[..84 * 84]);
    assert!(same(&reset(&mut *env, &mut rng)));
    let mut lives = 0;
    loop {
        let (obs, outcome) = step(&mut *env, 0, &mut rng);
        if outcome.game_over {
            break;
        }
        if outcome.terminated {
            lives += 1;
            let mut first = obs;
            env.next_episode(&mut rng, ObsMut(&mut first)).unwrap();
            assert!(same(&first));
        }
    }
    assert_eq!(lives, 4);
}

/// The statistics of CleanRL's scripts are next to the emulator: they count its frames, those of the
/// reset included.
#[test]
fn lengths_of_gymnasiums_games_are_frames() {
    let mut env = make_atari("Breakout-v5", &AtariOptions::gymnasium()).unwrap();
    let mut rng = EnvRng::new(EnvSeed(1));
    for _ in 0..5 {
        reset(&mut *env, &mut rng);
        // Up to 30 frames without an action, and two steps of fire.
        let start = env.episode_length().unwrap();
        assert!((1 + 8..=30 + 8).contains(&start), "{start}");
        for steps in 1..=5 {
            step(&mut *env, 0, &mut rng);
            assert_eq!(env.episode_length(), Some(start + 4 * steps));
        }
    }
    let mut other = make_atari("Breakout-v5", &AtariOptions::gymnasium()).unwrap();
    other.restore(&env.save().unwrap()).unwrap();
    assert_eq!(other.episode_length(), env.episode_length());
    let mut envpool = make_atari("Breakout-v5", &AtariOptions::envpool()).unwrap();
    reset(&mut *envpool, &mut rng);
    assert_eq!(envpool.episode_length(), None);
}

#[test]
fn modes_and_difficulties_change_the_game_or_are_refused() {
    let with = |id: &str, mode: i32, difficulty: i32| {
        let options = AtariOptions { mode, difficulty, ..AtariOptions::default() };
        let mut env = make_atari(id, &options)?;
        Ok(reset(&mut *env, &mut EnvRng::new(EnvSeed(1))))
    };
    let breakout = |mode, difficulty| with("Breakout-v5", mode, difficulty);
    assert!(breakout(-1, -1).unwrap() == breakout(0, 0).unwrap());
    assert!(breakout(0, 0).unwrap() != breakout(12, 0).unwrap());
    // The library numbers Pong's modes from 1, ale-py from 0.
    assert!(with("Pong-v5", -1, -1).unwrap() == with("Pong-v5", 0, 0).unwrap());
    let message = |result: podracer::error::Result<Vec<u8>>| result.unwrap_err().to_string();
    assert_eq!(message(with("Pong-v5", 2, -1)), "Pong-v5: there is no mode 2; there is [0, 1]");
    assert_eq!(message(breakout(-1, 7)), "Breakout-v5: there is no difficulty 7; there is [0, 1]");
}

// ---- Bad input -------------------------------------------------------------------------------

#[test]
fn unknown_games_are_refused_with_the_nearest() {
    let error = EnvPool::atari("Pnog-v5", AtariOptions::default(), PoolOptions::default());
    let message = error.unwrap_err().to_string();
    assert!(
        message.contains("unknown Atari game \"Pnog-v5\"; the nearest is Pong-v5; "),
        "{message}"
    );
    // Two cartridges are for two players; the emulator would end the process.
    assert!(make("Combat-v5").is_err() && make("MazeCraze-v5").is_err());
}

#[test]
fn bad_settings_are_refused_by_name() {
    let message = |change: fn(&mut AtariOptions)| {
        let mut atari = AtariOptions::default();
        change(&mut atari);
        make_atari("Pong-v5", &atari).err().unwrap().to_string()
    };
    assert_eq!(message(|o| o.stack_num = 0), "Pong-v5: stack_num must be at least 1");
    assert_eq!(message(|o| o.frame_skip = 0), "Pong-v5: frame_skip must be at least 1");
    assert_eq!(message(|o| o.img_width = 0), "Pong-v5: img_width must be at least 1");
    assert_eq!(
        message(|o| o.max_episode_steps = 0),
        "Pong-v5: max_episode_steps must be at least 1"
    );
    assert_eq!(
        message(|o| o.img_height = 5000),
        "Pong-v5: img_height is 5000, expected at most 1024"
    );
    assert_eq!(
        message(|o| o.repeat_action_probability = 1.5),
        "Pong-v5: repeat_action_probability is 1.5, expected 0 to 1"
    );
    assert_eq!(
        message(|o| o.repeat_action_probability = f32::NAN),
        "Pong-v5: repeat_action_probability is NaN, expected 0 to 1"
    );
}

#[test]
fn states_of_something_else() {
    let mut pong = make("Pong-v5").unwrap();
    let mut breakout = make("Breakout-v5").unwrap();
    reset(&mut *pong, &mut EnvRng::new(EnvSeed(1)));
    let mut state = pong.save().unwrap();
    let message = "this is no state that was saved of this game with these settings";
    let error = breakout.restore(&state).unwrap_err().to_string();
    assert_eq!(error, format!("Breakout-v5: {message}"));
    assert!(pong.restore(&[]).is_err());
    assert!(pong.restore(&state[..100]).is_err());
    state[50_000] ^= 1;
    assert_eq!(pong.restore(&state).unwrap_err().to_string(), format!("Pong-v5: {message}"));
}

#[test]
fn offline_without_the_parts() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings {
        home: home.path().into(),
        python_packages: false,
        fetch: false,
        ..Settings::from_env().unwrap()
    };
    for (name, package) in [("ale", "multi-agent-ale-py==0.1.12"), ("atari-roms", "ale-py==0.12.1")]
    {
        let error = settings.locate(Lock::get().part(name).unwrap()).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
        assert!(error.contains("PODRACER_OFFLINE forbids fetching it"), "{error}");
        assert!(error.contains(package), "{error}");
    }
}
