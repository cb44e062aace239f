//! MinAtar's traced games against the pool's, frame by frame. The pool's random numbers are drawn
//! from a copy of its generator, in its order, and given to the traced rules.

use podracer::envs::minatar::{self, Game, MinAtarOptions, Move};
use podracer::envs::traced::{
    Asterix, AsterixDraws, AsterixState, Freeway, FreewayCars, Seaquest, SeaquestDraws,
    SeaquestState, SpaceInvaders, SpaceInvadersState, TracedEnv, TracedStep,
};
use podracer::envs::{Action, Env, EnvRng, ObsMut, seeds};
use podracer::trace::control::scan;
use podracer::trace::ops::{constant, iota};
use podracer::{Array, DType, Key, Tensor, jit, vmap};
use serde_json::Value;

/// Saved state of a game.
fn saved(env: &dyn Env) -> Value {
    serde_json::from_slice(&env.save().unwrap()).unwrap()
}

/// Whole number of a saved state.
fn number(value: &Value) -> i32 {
    value.as_i64().unwrap() as i32
}

/// Returns 1 with probability `p`, as the pool's games draw it.
fn chance(rng: &mut EnvRng, p: f64) -> i32 {
    i32::from(rng.uniform(0.0, 1.0) < p)
}

/// One of the pool's games and what is needed to repeat its episodes.
struct Native<'a> {
    id: &'a str,
    /// Moves of the actions.
    moves: &'a [Move],
    /// Move that the policy chooses most often.
    favorite: Move,
    /// Number of random numbers of a frame.
    draws: usize,
    /// Draws the random numbers of a reset.
    at_reset: &'a dyn Fn(&mut EnvRng) -> Vec<i32>,
    /// Draws the random numbers of a frame, given the saved game and the player's move.
    at_frame: &'a dyn Fn(&Value, Move, &mut EnvRng) -> Vec<i32>,
    /// Changes the saved game before the first frame.
    edit: &'a dyn Fn(&mut Value),
}

/// Sets whole numbers of a saved game.
fn set(game: &mut Value, fields: &[(&str, i32)]) {
    for &(field, value) in fields {
        assert!(game[field].is_i64(), "{field}");
        game[field] = value.into();
    }
}

/// Episode of the pool's game.
struct Episode {
    start: Vec<i32>,
    moves: Vec<i32>,
    draws: Vec<i32>,
    obs: Vec<bool>,
    rewards: Vec<f32>,
    terminated: Vec<bool>,
}

impl Native<'_> {
    /// Plays an episode of at most `limit` frames with random actions, each held for some frames.
    fn play(&self, seed: u32, limit: usize) -> Episode {
        let options = MinAtarOptions::default();
        let mut env = minatar::make(self.id, options).unwrap();
        let mut rng = EnvRng::new(seeds(7, 0, 0, seed));
        let mut policy = EnvRng::new(seeds(8, 0, 0, seed));
        let mut board = vec![0u8; env.spec().observation.shape().numel()];
        let start = (self.at_reset)(&mut rng.clone());
        env.reset(&mut rng, ObsMut(&mut board)).unwrap();
        let mut state = saved(&*env);
        (self.edit)(&mut state["game"]);
        env.restore(&serde_json::to_vec(&state).unwrap()).unwrap();

        let (mut moves, mut draws, mut obs) = (vec![], vec![], vec![]);
        let (mut rewards, mut terminated) = (vec![], vec![]);
        let (mut action, mut last_move) = (0, Move::Noop);
        while moves.len() < limit && terminated.last() != Some(&true) {
            if policy.below(3) == 0 {
                action = policy.below(self.moves.len() as u64) as usize;
                if policy.below(2) == 0 {
                    action = self.moves.iter().position(|m| *m == self.favorite).unwrap();
                }
            }
            let mut copy = rng.clone();
            if chance(&mut copy, options.sticky_action_prob) == 0 {
                last_move = self.moves[action];
            }
            draws.extend((self.at_frame)(&saved(&*env)["game"], last_move, &mut copy));
            moves.push(last_move as i32);
            let outcome = env.step(Action::Discrete(action), &mut rng, ObsMut(&mut board)).unwrap();
            assert_eq!(copy, rng, "{}: the frame drew other random numbers", self.id);
            obs.extend(board.iter().map(|&cell| cell == 1));
            rewards.push(outcome.reward as f32);
            terminated.push(outcome.terminated);
        }
        Episode { start, moves, draws, obs, rewards, terminated }
    }
}

/// Frames, rewards and ends of the compared episodes.
#[derive(Debug, Default)]
struct Totals {
    frames: usize,
    rewards: f32,
    ends: usize,
}

/// Plays `episodes` episodes of the pool's game and repeats each with the traced rules: equal
/// boards, rewards and ends.
fn compare<E: TracedEnv>(
    env: &E,
    native: &Native<'_>,
    (episodes, limit): (u32, usize),
    start: impl Fn(Tensor) -> E::State,
    play: impl Fn(E::State, Tensor, Tensor) -> TracedStep<Tensor, E::State>,
) -> Totals {
    assert_eq!(&*env.spec().id, native.id);
    let run = jit(|(first, moves, draws): (Tensor, Tensor, Tensor)| {
        let frame = |state: E::State, (player_move, draws): (Tensor, Tensor)| {
            let step = play(state, player_move, draws);
            (step.state, (step.obs, step.reward, step.terminated))
        };
        scan(frame, start(first), (moves, draws)).1
    });
    let mut totals = Totals::default();
    for seed in 0..episodes {
        let mut episode = native.play(seed, limit);
        let frames = episode.moves.len();
        // One length for one compilation; frames after the end are not compared.
        episode.moves.resize(limit, 0);
        episode.draws.resize(limit * native.draws, 0);
        let inputs = (
            Array::new([episode.start.len()], &episode.start).unwrap(),
            Array::new([limit], &episode.moves).unwrap(),
            Array::new([limit, native.draws], &episode.draws).unwrap(),
        );
        let (obs, rewards, terminated) = run.call(inputs).unwrap();
        let obs = obs.to_vec::<bool>().unwrap();
        let size = obs.len() / limit;
        for frame in 0..frames {
            let cells = frame * size..(frame + 1) * size;
            let same = obs[cells.clone()] == episode.obs[cells];
            assert!(same, "{}: seed {seed}, frame {frame}: boards differ", native.id);
        }
        let rewards = rewards.to_vec::<f32>().unwrap();
        assert_eq!(rewards[..frames], episode.rewards, "{}: seed {seed}", native.id);
        let terminated = terminated.to_vec::<bool>().unwrap();
        assert_eq!(terminated[..frames], episode.terminated, "{}: seed {seed}", native.id);
        totals.frames += frames;
        totals.rewards += episode.rewards.iter().sum::<f32>();
        totals.ends += usize::from(episode.terminated.contains(&true));
    }
    totals
}

/// Scalar `i` of the random numbers of a frame.
fn draw(draws: Tensor, i: isize) -> Tensor {
    draws.index_axis(0, i)
}

fn flag(draws: Tensor, i: isize) -> Tensor {
    draw(draws, i).eq(1)
}

#[test]
fn asterix_is_the_pools() {
    let at_frame = |game: &Value, _: Move, rng: &mut EnvRng| {
        if number(&game["spawn_timer"]) > 0 {
            return vec![0; 3];
        }
        let (right, gold) = (chance(rng, 0.5), chance(rng, 1.0 / 3.0));
        let lanes = game["lanes"].as_array().unwrap();
        let free: Vec<usize> = (0..8).filter(|&lane| lanes[lane].is_null()).collect();
        let rank = if free.is_empty() { 0 } else { rng.below(free.len() as u64) as usize };
        vec![right, gold, free.get(rank).map_or(0, |&lane| lane as i32)]
    };
    let env = Asterix::v1();
    let play = |state, player_move, draws| {
        let (right, gold) = (flag(draws, 0), flag(draws, 1));
        env.play(state, player_move, AsterixDraws { right, gold, lane: draw(draws, 2) })
    };
    let start = |_| env.reset(Key::constant(0)).0;
    let native = Native {
        id: "MinAtar/Asterix-v1",
        moves: minatar::Asterix::MOVES,
        favorite: Move::Noop,
        draws: 3,
        at_reset: &|_| vec![0],
        at_frame: &at_frame,
        edit: &|_| (),
    };
    let totals = compare(&env, &native, (40, 400), start, play);
    assert!(totals.frames > 2000 && totals.rewards > 12.0 && totals.ends > 30, "{totals:?}");
    // The highest speed: nothing is left to ramp.
    let fastest =
        [("spawn_interval", 1), ("spawn_timer", 1), ("move_interval", 1), ("move_timer", 1)];
    let native = Native { edit: &|game| set(game, &fastest), ..native };
    let start = |_| {
        let fastest = [constant(1i32), constant(1i32)];
        AsterixState { spawn: fastest, moves: fastest, ..env.reset(Key::constant(0)).0 }
    };
    let totals = compare(&env, &native, (24, 400), start, play);
    assert!(totals.frames > 250 && totals.rewards > 5.0 && totals.ends > 20, "{totals:?}");
}

/// Directions and speeds of Freeway's cars, as the pool draws them.
fn cars(rng: &mut EnvRng) -> Vec<i32> {
    let mut cars: Vec<i32> = (0..8).map(|_| 1 + rng.below(5) as i32).collect();
    cars.extend((0..8).map(|_| 1 - chance(rng, 0.5)));
    cars
}

fn cars_of(numbers: Tensor) -> FreewayCars<Tensor> {
    FreewayCars { interval: numbers.slice_axis(0, 0, 8), right: numbers.slice_axis(0, 8, 16).eq(1) }
}

#[test]
fn freeway_is_the_pools() {
    let at_frame = |game: &Value, player_move: Move, rng: &mut EnvRng| {
        let row_and_timer = (number(&game["row"]), number(&game["move_timer"]));
        let crosses = player_move == Move::Up && row_and_timer == (1, 0);
        if crosses { cars(rng) } else { vec![0; 16] }
    };
    let env = Freeway::v1();
    let native = Native {
        id: "MinAtar/Freeway-v1",
        moves: minatar::Freeway::MOVES,
        favorite: Move::Up,
        draws: 16,
        at_reset: &cars,
        at_frame: &at_frame,
        edit: &|_| (),
    };
    let start = |first| env.start(cars_of(first));
    let play = |state, player_move, draws| env.play(state, player_move, cars_of(draws));
    let totals = compare(&env, &native, (3, 2600), start, play);
    assert!(totals.frames == 3 * 2501 && totals.ends == 3 && totals.rewards > 9.0, "{totals:?}");
}

#[test]
fn space_invaders_is_the_pools() {
    let env = SpaceInvaders::v1();
    let native = Native {
        id: "MinAtar/SpaceInvaders-v1",
        moves: minatar::SpaceInvaders::MOVES,
        favorite: Move::Fire,
        draws: 1,
        at_reset: &|_| vec![0],
        at_frame: &|_, _, _| vec![0],
        edit: &|_| (),
    };
    let start = |_| env.reset(Key::constant(0)).0;
    let play = |state, player_move, _| env.play(state, player_move);
    let totals = compare(&env, &native, (60, 400), start, play);
    assert!(totals.frames > 2000 && totals.rewards > 100.0 && totals.ends > 40, "{totals:?}");
    // One alien above the cannon: waves that are cleared, and an alien that lands.
    for (row, frames, rewards) in [(2, 1000, 60.0), (8, 300, 0.0)] {
        let only = |y: usize, x: usize| y == row && x == 5;
        let aliens: Vec<Vec<bool>> =
            (0..10).map(|y| (0..10).map(|x| only(y, x)).collect()).collect();
        let edit = |game: &mut Value| game["aliens"] = aliens.clone().into();
        let native = Native { edit: &edit, ..native };
        let start = |first| {
            let [y, x] = [0, 1].map(|axis| iota([10, 10], axis, DType::I32));
            SpaceInvadersState { aliens: y.eq(row as i32) & x.eq(5), ..start(first) }
        };
        let totals = compare(&env, &native, (60, 400), start, play);
        assert!(totals.frames > frames && totals.rewards > rewards, "row {row}: {totals:?}");
    }
}

#[test]
fn seaquest_is_the_pools() {
    let at_frame = |game: &Value, _: Move, rng: &mut EnvRng| {
        let mut draws = vec![0; 5];
        if number(&game["enemy_timer"]) == 0 {
            draws[..2].copy_from_slice(&[chance(rng, 0.5), chance(rng, 1.0 / 3.0)]);
            draws[2] = 1 + rng.below(8) as i32;
        }
        if number(&game["diver_timer"]) == 0 {
            draws[3..].copy_from_slice(&[chance(rng, 0.5), 1 + rng.below(8) as i32]);
        }
        draws
    };
    let env = Seaquest::v1();
    let native = Native {
        id: "MinAtar/Seaquest-v1",
        moves: minatar::Seaquest::MOVES,
        favorite: Move::Fire,
        draws: 5,
        at_reset: &|_| vec![0],
        at_frame: &at_frame,
        edit: &|_| (),
    };
    let start = |_| env.reset(Key::constant(0)).0;
    let play = |state, player_move, draws| {
        let draws = SeaquestDraws {
            enemy_right: flag(draws, 0),
            is_submarine: flag(draws, 1),
            enemy_row: draw(draws, 2),
            diver_right: flag(draws, 3),
            diver_row: draw(draws, 4),
        };
        env.play(state, player_move, draws)
    };
    let totals = compare(&env, &native, (100, 400), start, play);
    assert!(totals.frames > 5000 && totals.rewards > 8.0 && totals.ends > 90, "{totals:?}");
    // The highest speed, with a full crew: the bonus at the surface, and most enemies.
    let fastest = [
        ("divers_aboard", 6),
        ("enemy_interval", 1),
        ("enemy_timer", 1),
        ("move_interval", 2),
        ("diver_timer", 1),
    ];
    let native = Native { favorite: Move::Up, edit: &|game| set(game, &fastest), ..native };
    let start = |_| SeaquestState {
        divers_aboard: constant(6i32),
        enemy_interval: constant(1i32),
        enemy_timer: constant(1i32),
        move_interval: constant(2i32),
        diver_timer: constant(1i32),
        ..start(constant(0i32))
    };
    let totals = compare(&env, &native, (100, 400), start, play);
    assert!(totals.frames > 5000 && totals.rewards > 200.0 && totals.ends > 80, "{totals:?}");
}

/// Moves that the actions of an environment stand for, by `last_move` after a step with one key.
fn moves_of<E: TracedEnv>(
    env: &E,
    actions: usize,
    last_move: impl Fn(&E::State) -> Tensor,
) -> Vec<i32> {
    let step = |action: Tensor| {
        let (state, _) = env.reset(Key::constant(0));
        last_move(&env.step(state, action, Key::constant(1)).state)
    };
    let run = jit(|()| vmap(step)(iota([actions], 0, DType::I32)));
    run.call(()).unwrap().to_vec::<i32>().unwrap()
}

#[test]
fn actions_stand_for_the_moves_of_the_pools() {
    macro_rules! check {
        ($game:ident) => {
            let minimal = moves_of(
                &$game::v1().with_sticky_action_prob(0.0),
                minatar::$game::MOVES.len(),
                |s| s.last_move,
            );
            let expected: Vec<i32> = minatar::$game::MOVES.iter().map(|&m| m as i32).collect();
            assert_eq!(minimal, expected);
            let all = moves_of(&$game::v0().with_sticky_action_prob(0.0), 6, |s| s.last_move);
            assert_eq!(all, [0, 1, 2, 3, 4, 5]);
            // The move before an episode's first is a no-op.
            let sticky = moves_of(&$game::v0().with_sticky_action_prob(1.0), 6, |s| s.last_move);
            assert_eq!(sticky, [0; 6]);
        };
    }
    check!(Asterix);
    check!(Freeway);
    check!(Seaquest);
    check!(SpaceInvaders);
}

/// Fails unless each of `0..classes` is about equally frequent, within five standard deviations.
fn uniform(numbers: &[i32], classes: i32, what: &str) {
    let expected = numbers.len() as f64 / f64::from(classes);
    for class in 0..classes {
        let found = numbers.iter().filter(|&&x| x == class).count() as f64;
        let deviation = (expected * (1.0 - 1.0 / f64::from(classes))).sqrt();
        assert!((found - expected).abs() < 5.0 * deviation, "{what}: {found} of {class}");
    }
    assert!(numbers.iter().all(|x| (0..classes).contains(x)), "{what}");
}

#[test]
fn random_numbers_have_the_distributions_of_the_pools() {
    const N: usize = 6000;
    let numbers = |x: &Array| x.to_vec::<i32>().unwrap();
    let flags =
        |x: &Array| x.to_vec::<bool>().unwrap().into_iter().map(i32::from).collect::<Vec<_>>();

    let asterix = Asterix::v1();
    let run = jit(|keys: Key<Tensor>| {
        vmap(|key: Key<Tensor>| {
            let (state, _) = asterix.reset(Key::constant(0));
            let occupied = iota([8], 0, DType::I32).lt(2);
            let spawn = [state.spawn[0], constant(0i32)];
            let next =
                asterix.step(AsterixState { occupied, spawn, ..state }, constant(0i32), key).state;
            let lane = (next.occupied & !occupied).argmax(0);
            let of_lane = |x: Tensor| x.take(lane, 0);
            (lane - 2, of_lane(next.right), of_lane(next.gold))
        })(keys.split_batch(N))
    });
    let (lane, right, gold) = run.call(Key::new(1)).unwrap();
    uniform(&numbers(&lane), 6, "free lane");
    uniform(&flags(&right), 2, "direction");
    let gold: i32 = flags(&gold).iter().sum();
    assert!((gold - 2000).abs() < 183, "{gold} of 6000 are gold");

    let freeway = Freeway::v1();
    let run = jit(|keys: Key<Tensor>| {
        vmap(|key: Key<Tensor>| {
            let cars = freeway.reset(key).0.cars;
            (cars.interval - 1, cars.right)
        })(keys.split_batch(N))
    });
    let (interval, right) = run.call(Key::new(1)).unwrap();
    uniform(&numbers(&interval), 5, "interval");
    uniform(&flags(&right), 2, "direction");

    let seaquest = Seaquest::v1();
    let run = jit(|keys: Key<Tensor>| {
        vmap(|key: Key<Tensor>| {
            let (state, _) = seaquest.reset(Key::constant(0));
            let due = constant(0i32);
            let state = SeaquestState { enemy_timer: due, diver_timer: due, ..state };
            let next = seaquest.step(state, constant(0i32), key).state;
            let last = |x: Tensor| x.index_axis(0, -1);
            let (enemies, divers) = (next.enemies, next.divers);
            let rows = (last(enemies.y) - 1, last(divers.y) - 1);
            (rows, (last(enemies.right), last(divers.right)), last(next.is_submarine))
        })(keys.split_batch(N))
    });
    let ((enemy, diver), (enemy_right, diver_right), submarine) = run.call(Key::new(1)).unwrap();
    uniform(&numbers(&enemy), 8, "row of an enemy");
    uniform(&numbers(&diver), 8, "row of a diver");
    uniform(&flags(&enemy_right), 2, "direction of an enemy");
    uniform(&flags(&diver_right), 2, "direction of a diver");
    let submarines: i32 = flags(&submarine).iter().sum();
    assert!((submarines - 2000).abs() < 183, "{submarines} of 6000 are submarines");
}
