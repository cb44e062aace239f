//! The traced environments against the pool's, and what is around them.

use podracer::envs::minatar::{self, MinAtarOptions};
use podracer::envs::traced::{
    Acrobot, AcrobotState, AutoReset, AutoStep, Breakout, BreakoutState, CartPole,
    CartPolePositions, CartPoleState, MountainCar, MountainCarState, Pendulum, PendulumState,
    Traced, TracedEnv, TracedStep, list_envs, make,
};
use podracer::envs::{Action, Env, EnvRng, ObsMut, Space, seeds, spec};
use podracer::trace::control::scan;
use podracer::trace::ops::{constant, where_};
use podracer::tree::Tree;
use podracer::{Array, DType, Key, Literal, Tensor, interpret, jit, tree, vmap};
use pretty_assertions::assert_eq;

// ---- Step for step as the pool's ---------------------------------------------------------------

/// Outputs of an environment of the pool, step by step, up to the end of the episode.
#[derive(Default)]
struct Told {
    /// The saved states, one before each step and one at the end.
    states: Vec<Vec<f64>>,
    actions: Vec<f32>,
    obs: Vec<Vec<f32>>,
    rewards: Vec<f32>,
    terminated: Vec<bool>,
}

/// Episode `seed` of the pool's environment under random actions, of at most `limit` steps.
fn pooled(id: &str, seed: u32, limit: usize) -> Told {
    let mut env = podracer::envs::make(id).unwrap();
    let spec = env.spec();
    let mut rng = EnvRng::new(seeds(5, 0, 0, seed));
    let mut obs = vec![0f32; spec.observation.shape().numel()];
    let numbers = |env: &dyn Env| -> Vec<f64> {
        let bytes = env.save().unwrap();
        bytes.chunks_exact(8).map(|x| f64::from_le_bytes(x.try_into().unwrap())).collect()
    };
    env.reset(&mut rng, ObsMut(bytemuck::cast_slice_mut(&mut obs))).unwrap();
    let mut message = Told { states: vec![numbers(&*env)], ..Told::default() };
    for _ in 0..limit {
        let (value, action);
        match spec.action {
            // The same action for a while: Acrobot and the car then move far.
            Space::Discrete { n } => {
                let again = message.actions.last().filter(|_| rng.below(4) > 0).copied();
                value = [again.unwrap_or_else(|| rng.below(n as u64) as f32)];
                action = Action::Discrete(value[0] as usize);
            }
            _ => {
                value = [rng.uniform(-2.5, 2.5) as f32];
                action = Action::Box(&value);
            }
        }
        let row = ObsMut(bytemuck::cast_slice_mut(&mut obs));
        let outcome = env.step(action, &mut rng, row).unwrap();
        message.actions.push(value[0]);
        message.obs.push(obs.clone());
        message.rewards.push(outcome.reward as f32);
        message.terminated.push(outcome.terminated);
        message.states.push(numbers(&*env));
        if outcome.terminated {
            break;
        }
    }
    message
}

/// An action as the environment takes it, from a number.
fn action_of(discrete: bool, number: Tensor) -> Tensor {
    if discrete { number.to(DType::I32) } else { number.reshape([1]) }
}

/// In f64 and run on the host, where sine and cosine are those of the pool, every bit is the
/// pool's; whole episodes from the same start.
fn equal<E: TracedEnv>(env: &E, start: impl Fn(Tensor) -> E::State) {
    let spec = env.spec();
    let discrete = matches!(spec.action, Space::Discrete { .. });
    let run = interpret(|(first, actions): (Tensor, Tensor)| {
        let env_step = |state: E::State, action: Tensor| {
            let step = env.step(state, action_of(discrete, action), Key::constant(0));
            (step.state, (step.obs, step.reward, step.terminated))
        };
        scan(env_step, start(first), actions).1
    });
    let mut ends = 0;
    for seed in 0..6 {
        let message = pooled(&spec.id, seed, 200);
        let steps = message.actions.len();
        let first = Array::new([message.states[0].len()], &message.states[0]).unwrap();
        let (obs, rewards, terminated) =
            run.call((first, Array::new([steps], &message.actions).unwrap())).unwrap();
        assert_eq!(obs.to_vec::<f32>().unwrap(), message.obs.concat(), "{}: observations", spec.id);
        assert_eq!(rewards.to_vec::<f32>().unwrap(), message.rewards, "{}: rewards", spec.id);
        assert_eq!(terminated.to_vec::<bool>().unwrap(), message.terminated, "{}", spec.id);
        ends += usize::from(message.terminated[steps - 1]);
    }
    let fails = matches!(&*spec.id, "CartPole-v1" | "CartPole-v0");
    assert!(!fails || ends == 6, "{}: {ends} episodes ended", spec.id);
}

/// In f32 and compiled, one step from each state that the pool's environment came through:
/// observations and rewards are near. The tolerance is relative to the larger of 1 and the number.
fn near<E: TracedEnv>(env: &E, start: impl Fn(Tensor) -> E::State, tolerance: f32) {
    let spec = env.spec();
    let discrete = matches!(spec.action, Space::Discrete { .. });
    let run = jit(|(states, actions): (Tensor, Tensor)| {
        vmap(|(state, action): (Tensor, Tensor)| {
            let action = action_of(discrete, action);
            let step = env.step(start(state.to(DType::F32)), action, Key::constant(0));
            (step.obs, step.reward)
        })((states, actions))
    });
    let (mut states, mut actions, mut obs, mut rewards) = (vec![], vec![], vec![], vec![]);
    let mut width = 0;
    for seed in 10..14 {
        let message = pooled(&spec.id, seed, 200);
        width = message.states[0].len();
        states.extend(message.states[..message.actions.len()].concat());
        actions.extend(message.actions);
        obs.extend(message.obs.concat());
        rewards.extend(message.rewards);
    }
    let steps = actions.len();
    let states = Array::new([steps, width], &states).unwrap();
    let message = run.call((states, Array::new([steps], &actions).unwrap())).unwrap();
    for (ours, theirs) in [(message.0, obs), (message.1, rewards)] {
        for (i, (a, b)) in ours.to_vec::<f32>().unwrap().into_iter().zip(theirs).enumerate() {
            let close = (a - b).abs() <= tolerance * b.abs().max(1.0);
            assert!(close, "{}: number {i} is {a}, not {b}", spec.id);
        }
    }
}

fn four(x: Tensor) -> [Tensor; 4] {
    [0, 1, 2, 3].map(|i| x.index_axis(0, i))
}

fn cart(x: Tensor) -> CartPoleState<Tensor> {
    let [x, x_dot, theta, theta_dot] = four(x);
    CartPoleState { x, x_dot, theta, theta_dot }
}

fn links(x: Tensor) -> AcrobotState<Tensor> {
    let [a, b, a_dot, b_dot] = four(x);
    AcrobotState { theta: [a, b], theta_dot: [a_dot, b_dot] }
}

fn car(x: Tensor) -> MountainCarState<Tensor> {
    MountainCarState { position: x.index_axis(0, 0), velocity: x.index_axis(0, 1) }
}

fn pendulum(x: Tensor) -> PendulumState<Tensor> {
    PendulumState { theta: x.index_axis(0, 0), theta_dot: x.index_axis(0, 1) }
}

#[test]
fn cartpole_is_the_pools() {
    equal(&CartPole::v1().with_dtype(DType::F64), cart);
    // A state of f32 has an error of 2^-24 of its size, and the step adds a few of these.
    near(&CartPole::v1(), cart, 1e-6);
    equal(&CartPolePositions::v0().with_dtype(DType::F64), cart);
    near(&CartPolePositions::v0(), cart, 1e-6);
}

#[test]
fn acrobot_is_the_pools() {
    equal(&Acrobot::v1().with_dtype(DType::F64), links);
    // Four stages, with squares of velocities of up to 28 rad/s that nearly cancel.
    near(&Acrobot::v1(), links, 1e-4);
}

#[test]
fn mountain_car_is_the_pools() {
    equal(&MountainCar::v0().with_dtype(DType::F64), car);
    near(&MountainCar::v0(), car, 1e-6);
}

#[test]
fn pendulum_is_the_pools() {
    equal(&Pendulum::v1().with_dtype(DType::F64), pendulum);
    // The reward is the square of an angle that was taken modulo a full rotation; angles grow to some
    // rotations, and with them the rounding of the state. Half a rotation from the top the sign of the
    // angle can differ, and its square not.
    near(&Pendulum::v1(), pendulum, 1e-4);
}

#[test]
fn acrobots_angles_come_back_into_half_a_turn() {
    // From states at the bounds of the velocities, where they overshoot most.
    let env = Acrobot::v1().with_dtype(DType::F64);
    let run = jit(|states: Tensor| {
        vmap(|state: Tensor| {
            let step = env.step(links(state), constant(2i32), Key::constant(0));
            step.state.theta
        })(states)
    });
    let mut rng = EnvRng::new(seeds(6, 0, 0, 0));
    let pi = std::f64::consts::PI;
    let mut states = Vec::new();
    for i in 0..4096 {
        let sign = |bit: u32| if i >> bit & 1 == 0 { -1.0 } else { 1.0 };
        let (a, b) = (rng.uniform(-pi, pi), rng.uniform(-pi, pi));
        states.extend([a, b, sign(0) * 4.0 * pi, sign(1) * 9.0 * pi]);
    }
    let [a, b] = run.call(Array::new([4096, 4], &states).unwrap()).unwrap();
    for angle in [a, b].iter().flat_map(|x| x.to_vec::<f64>().unwrap()) {
        assert!(angle.abs() <= pi, "{angle}");
    }
}

/// The fields of a saved game.
fn saved(env: &dyn Env) -> serde_json::Value {
    serde_json::from_slice(&env.save().unwrap()).unwrap()
}

#[test]
fn breakout_is_the_pools() {
    let env = Breakout::v1();
    // The game without its randomness: the pool's moves, sticky ones too, are played here.
    let run = interpret(|(right, moves): (Tensor, Tensor)| {
        let (start, _) = env.reset(Key::constant(0));
        let wall = where_(right, constant(0i32), constant(9i32));
        let ball = [wall, start.ball[1]];
        let velocity = [where_(right, constant(1i32), constant(-1i32)), start.velocity[1]];
        let start = BreakoutState { ball, last_ball: ball, velocity, ..start };
        let env_step = |state: BreakoutState<Tensor>, columns: Tensor| {
            let step = env.play(state, columns);
            (step.state, (step.obs, step.reward, step.terminated))
        };
        scan(env_step, start, moves).1
    });
    let (mut frames, mut bricks, mut ends) = (0, 0.0, 0);
    for seed in 0..8 {
        let options = MinAtarOptions { sticky_action_prob: 0.1, ..MinAtarOptions::default() };
        let mut host = minatar::make("MinAtar/Breakout-v1", options).unwrap();
        let mut rng = EnvRng::new(seeds(7, 0, 0, seed));
        let mut board = vec![0u8; 400];
        host.reset(&mut rng, ObsMut(&mut board)).unwrap();
        let right = saved(&*host)["game"]["velocity"][0] == 1;
        let (mut moves, mut obs, mut rewards, mut terminated) = (vec![], vec![], vec![], vec![]);
        for _ in 0..600 {
            // Run after the ball, now and then not.
            let game = &saved(&*host)["game"];
            let number = |x: &serde_json::Value| x.as_i64().unwrap();
            let target = number(&game["ball"][0]) + number(&game["velocity"][0]);
            let action = match number(&game["paddle"]).cmp(&target) {
                _ if rng.below(20) == 0 => rng.below(3) as usize,
                std::cmp::Ordering::Greater => 1,
                std::cmp::Ordering::Less => 2,
                std::cmp::Ordering::Equal => 0,
            };
            let outcome =
                host.step(Action::Discrete(action), &mut rng, ObsMut(&mut board)).unwrap();
            moves.push(match saved(&*host)["last_move"].as_str().unwrap() {
                "Left" => -1i32,
                "Right" => 1,
                _ => 0,
            });
            obs.extend(board.iter().map(|&cell| cell == 1));
            rewards.push(outcome.reward as f32);
            terminated.push(outcome.terminated);
            bricks += outcome.reward;
            if outcome.terminated {
                ends += 1;
                break;
            }
        }
        frames += moves.len();
        let moves = Array::new([moves.len()], &moves).unwrap();
        let message = run.call((Array::from(Literal::scalar(right)), moves)).unwrap();
        assert!(message.0.to_vec::<bool>().unwrap() == obs, "game {seed}: boards differ");
        assert_eq!(message.1.to_vec::<f32>().unwrap(), rewards, "game {seed}: rewards");
        assert_eq!(message.2.to_vec::<bool>().unwrap(), terminated, "game {seed}: endings");
    }
    // Bricks came back, and balls were lost.
    assert!(frames > 500 && bricks > 60.0 && ends > 2, "{frames} frames, {bricks}, {ends} ends");
}

#[test]
fn breakout_repeats_a_tenth_of_its_moves() {
    let env = Breakout::v1();
    // The move before was to the right, and the one asked for is to the left.
    let run = interpret(|key: Key<Tensor>| {
        vmap(|key: Key<Tensor>| {
            let (state, _) = env.reset(Key::constant(0));
            let state = BreakoutState { last_move: constant(1i32), ..state };
            env.step(state, constant(1i32), key).state.paddle
        })(key.split_batch(4000))
    });
    let paddles = run.call(Key::new(1)).unwrap().to_vec::<i32>().unwrap();
    let sticky = paddles.iter().filter(|&&x| x == 5).count();
    assert!(paddles.iter().all(|x| [3, 5].contains(x)));
    // Five standard deviations of the binomial distribution.
    assert!((sticky as i32 - 400).abs() < 95, "{sticky} of 4000");
    // The six actions of -v0: only left (1) and right (3) move.
    let env = Breakout::v0();
    let run = interpret(|actions: Tensor| vmap(|action| env.move_of(action))(actions));
    let columns = run.call(Array::from([0i32, 1, 2, 3, 4, 5])).unwrap();
    assert_eq!(columns.to_vec::<i32>().unwrap(), [0, -1, 0, 1, 0, 0]);
}

// ---- Resets, time limits, statistics -----------------------------------------------------------

/// Outputs of one environment: obs, final obs, reward, flags, return, length.
type Lines = (Array, Array, Array, Array, Array, Array, Array);

fn play<E: TracedEnv>(env: E, action: i32, steps: usize) -> Lines {
    let env = AutoReset::new(env);
    let run = interpret(|key: Key<Tensor>| {
        let (start, keys) = key.split();
        let (episode, _) = env.reset(start);
        let env_step = |episode, key| {
            let step: AutoStep<Tensor, E::State> = env.step(episode, constant(action), key);
            let flags = (step.terminated, step.truncated);
            let ended = (step.episode_return, step.episode_length);
            let message = (step.obs, step.final_obs, step.reward, flags, ended);
            (step.episode, message)
        };
        scan(env_step, episode, keys.split_batch(steps)).1
    });
    let (obs, last, reward, (terminated, truncated), (total, length)) =
        run.call(Key::new(3)).unwrap();
    (obs, last, reward, terminated, truncated, total, length)
}

#[test]
fn the_time_limit_cuts_and_starts_anew() {
    // Without a push the car never leaves its valley.
    let (obs, last, _, terminated, truncated, total, length) = play(MountainCar::v0(), 1, 450);
    assert!(!terminated.to_vec::<bool>().unwrap().contains(&true));
    let cuts: Vec<usize> = truncated
        .to_vec::<bool>()
        .unwrap()
        .iter()
        .enumerate()
        .filter(|(_, cut)| **cut)
        .map(|(t, _)| t)
        .collect();
    assert_eq!(cuts, [199, 399]);
    let (obs, last) = (obs.to_vec::<f32>().unwrap(), last.to_vec::<f32>().unwrap());
    let (total, length) = (total.to_vec::<f32>().unwrap(), length.to_vec::<i32>().unwrap());
    for t in 0..450 {
        let cut = cuts.contains(&t);
        assert_eq!(obs[2 * t..2 * t + 2] != last[2 * t..2 * t + 2], cut, "step {t}");
        let played = t % 200 + 1;
        assert_eq!((total[t], length[t]), (-(played as f32), played as i32));
        // A start is at rest between -0.6 and -0.4.
        assert!(!cut || (obs[2 * t + 1] == 0.0 && (-0.6..=-0.4).contains(&obs[2 * t])));
    }
    assert!(obs[2 * 199] != obs[2 * 399], "two episodes start alike");
}

#[test]
fn a_fallen_pole_starts_anew() {
    let (obs, last, reward, terminated, truncated, total, length) = play(CartPole::v1(), 1, 60);
    let (obs, last) = (obs.to_vec::<f32>().unwrap(), last.to_vec::<f32>().unwrap());
    let terminated = terminated.to_vec::<bool>().unwrap();
    let (total, length) = (total.to_vec::<f32>().unwrap(), length.to_vec::<i32>().unwrap());
    assert!(!truncated.to_vec::<bool>().unwrap().contains(&true));
    assert_eq!(reward.to_vec::<f32>().unwrap(), [1.0; 60]);
    let mut played = 0;
    for t in 0..60 {
        played += 1;
        assert_eq!((total[t], length[t]), (played as f32, played));
        let start = obs[4 * t..4 * t + 4].iter().all(|x| x.abs() <= 0.05);
        assert_eq!(start, terminated[t], "step {t}");
        // Twelve degrees.
        assert_eq!(last[4 * t + 2].abs() > 0.20943951, terminated[t], "step {t}");
        if terminated[t] {
            played = 0;
        }
    }
    assert!(terminated.iter().filter(|x| **x).count() >= 5);
}

// ---- By name -----------------------------------------------------------------------------------

#[test]
fn every_traced_environment_is_in_the_pool_too() {
    let mut ids = list_envs();
    assert!(ids.contains(&"CartPole-v1") && ids.contains(&"MinAtar/Breakout-v1"));
    for &id in &ids {
        assert_eq!(make(id).unwrap().spec(), spec(id).unwrap());
    }
    let given = ids.clone();
    ids.sort_unstable();
    assert_eq!(given, ids);
}

#[test]
fn what_is_shown_is_as_specified() {
    for id in list_envs() {
        let env: Traced = make(id).unwrap();
        let spec = env.spec();
        let run = interpret(|key: Key<Tensor>| {
            let [start, now, draw] = key.split_n();
            // Steps first: an environment without its type needs no reset before.
            let (state, first) = env.reset(start);
            let action = match &spec.action {
                Space::Discrete { n } => {
                    podracer::random::randint(draw, [], 0, *n as i32, DType::I32)
                }
                other => podracer::random::uniform(draw, other.shape(), DType::F32, -1.0, 1.0),
            };
            let TracedStep { obs, reward, terminated, truncated, .. } =
                env.step(state, action, now);
            (first, obs, reward, (terminated, truncated))
        });
        let (first, obs, reward, (terminated, truncated)) = run.call(Key::new(2)).unwrap();
        for seen in [first, obs] {
            assert_eq!(
                (seen.shape(), seen.dtype()),
                (&spec.observation.shape(), spec.observation.dtype())
            );
        }
        assert_eq!((reward.dtype(), reward.shape().rank()), (DType::F32, 0), "{id}");
        for flag in [terminated, truncated] {
            assert_eq!((flag.dtype(), flag.shape().rank()), (DType::Bool, 0), "{id}");
        }
    }
}

#[test]
fn an_id_that_is_not_traced_is_reported() {
    let error = make("FrozenLake-v1").unwrap_err().to_string();
    assert!(
        error.starts_with(
            "environment \"FrozenLake-v1\" is in the pool only; traced environments: Acrobot-v1, "
        ),
        "{error}"
    );
    let error = make("CartPole-v7").unwrap_err().to_string();
    assert!(error.starts_with("environment \"CartPole-v7\" is not known; traced"), "{error}");
}

#[test]
fn a_state_is_a_tree_of_named_leaves() {
    let state: CartPoleState<usize> = CartPoleState { x: 0, x_dot: 1, theta: 2, theta_dot: 3 };
    assert_eq!(tree::paths::<usize, _>(&state), ["$.x", "$.x_dot", "$.theta", "$.theta_dot"]);
    fn any<S: Tree<usize>>(_: &S) {}
    any(&state);
}
