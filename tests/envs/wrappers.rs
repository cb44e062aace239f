//! Wrappers, and running normalization in its three forms against gymnasium's.

use podracer::envs::wrappers::{
    ClipReward, FlattenObservation, FrameStack, NormalizeObservation, NormalizeObservationOptions,
    NormalizeReward, NormalizeRewardOptions, ObservationNormalizer, RescaleAction,
    RewardNormalizer, RunningMeanStd, TransformReward,
};
use podracer::envs::{
    Action, Env, EnvPool, EnvRng, EnvSeed, EnvSpec, Frame, ObsMut, PoolOptions, Space, StepOutcome,
    make,
};
use podracer::error::Result;
use podracer::nn::normalize;
use podracer::trace::control::scan;
use podracer::{
    Array, DType, Mode, Tensor, TensorType, eager, interpret, jit, rl::checkpoint, tree,
};
use pretty_assertions::assert_eq;
use safetensors::SafeTensors;

const FIXTURE: &[u8] = include_bytes!("../fixtures/envs/wrappers.safetensors");
const STEPS: usize = 60;
const ENVS: usize = 3;
const WIDTH: usize = 2;

fn column<T: bytemuck::AnyBitPattern>(name: &str) -> Vec<T> {
    let tensors = SafeTensors::deserialize(FIXTURE).unwrap();
    let bytes = tensors.tensor(name).unwrap().data();
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// The largest difference, as a share of the expected number or of 1.
#[track_caller]
fn near(found: impl IntoIterator<Item = f64>, expected: &[f64], tolerance: f64) {
    let found: Vec<f64> = found.into_iter().collect();
    assert_eq!(found.len(), expected.len());
    for (i, (x, y)) in found.iter().zip(expected).enumerate() {
        assert!((x - y).abs() <= tolerance * y.abs().max(1.0), "element {i}: {x} instead of {y}");
    }
}

/// What gymnasium makes of the recording, within our limits.
fn clipped(name: &str, clip: f64) -> Vec<f64> {
    column::<f64>(name).into_iter().map(|x| x.clamp(-clip, clip)).collect()
}

fn observation_options(clip: f64) -> NormalizeObservationOptions {
    NormalizeObservationOptions { clip, ..Default::default() }
}

fn reward_options(clip: f64) -> NormalizeRewardOptions {
    NormalizeRewardOptions { gamma: 0.9, clip, ..Default::default() }
}

// ---- Normalization, on the host ----------------------------------------------------------------

/// Our arithmetic is `f64` like gymnasium's, summed in another order; the results are `f32`.
#[test]
fn batches_are_normalized_as_by_gymnasium() {
    for clip in [10.0, f64::INFINITY] {
        let mut observations =
            ObservationNormalizer::new(WIDTH, observation_options(clip)).unwrap();
        let mut rewards = RewardNormalizer::new(ENVS, reward_options(clip)).unwrap();
        let obs = column::<f32>("obs");
        let found: Vec<f32> =
            obs.chunks(ENVS * WIDTH).flat_map(|rows| observations.normalize(rows)).collect();
        near(found.iter().map(|&x| x.into()), &clipped("all/obs", clip), 1e-7);
        near(observations.stats.mean().to_vec(), &column("all/mean"), 1e-13);
        near(observations.stats.var().to_vec(), &column("all/var"), 1e-12);
        near([observations.stats.count()], &column("all/count"), 1e-15);

        let terminated: Vec<bool> = column::<u8>("terminated").iter().map(|&x| x != 0).collect();
        let found: Vec<f64> = column::<f32>("reward")
            .chunks(ENVS)
            .zip(terminated.chunks(ENVS))
            .flat_map(|(reward, over)| rewards.normalize(reward, over))
            .collect();
        near(found, &clipped("all/reward", clip), 1e-12);

        // Without taking them in, and for as many rows as there happen to be.
        let before = observations.clone();
        let last = &obs[obs.len() - WIDTH..];
        let again: Vec<f64> = observations.apply(last).iter().map(|&x| x.into()).collect();
        let all = clipped("all/obs", clip);
        near(again, &all[all.len() - WIDTH..], 1e-7);
        assert_eq!(observations, before);
    }
    // The recording goes over the limit.
    for name in ["all/obs", "all/reward"] {
        assert!(clipped(name, 10.0) != column::<f64>(name), "{name}");
    }
}

/// Plays the first column of the recording.
struct Tape {
    obs: Vec<f32>,
    reward: Vec<f32>,
    terminated: Vec<u8>,
    t: usize,
}

fn tape() -> Box<dyn Env> {
    let (obs, reward) = (column("obs"), column("reward"));
    Box::new(Tape { obs, reward, terminated: column("terminated"), t: 0 })
}

impl Tape {
    fn observe(&self, mut obs: ObsMut<'_>) {
        obs.write(&self.obs[self.t * ENVS * WIDTH..][..WIDTH]);
    }
}

impl Env for Tape {
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: "Tape-v0".into(),
            observation: Space::f32([WIDTH], [-1.0, -2.0], [1.0, 2.0]),
            action: Space::f32([2], [-2.0, 0.0], [2.0, 10.0]),
            max_episode_steps: None,
            reward_threshold: None,
        }
    }

    fn reset(&mut self, _rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.t = 0;
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        _action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let at = self.t * ENVS;
        self.t += 1;
        self.observe(obs);
        Ok(StepOutcome::new(self.reward[at].into(), self.terminated[at] != 0))
    }

    fn render(&mut self) -> Option<Frame> {
        Some(Frame { height: 1, width: 1, fps: Frame::FPS, rgb: vec![1, 2, 3] })
    }

    fn save(&self) -> Result<Vec<u8>> {
        Ok(vec![self.t as u8])
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        match state {
            [t] => self.t = usize::from(*t),
            _ => return Err(podracer::error::Error::Env("Tape-v0: not one byte".into())),
        }
        Ok(())
    }
}

/// An environment outside of a pool, with memory for its observation.
struct Play(Box<dyn Env>, EnvRng, Vec<u32>);

impl Play {
    fn new(env: Box<dyn Env>) -> Play {
        let words = env.spec().observation.bytes() / 4;
        Play(env, EnvRng::new(EnvSeed(1)), vec![7; words])
    }

    fn reset(&mut self) -> Vec<f32> {
        self.0.reset(&mut self.1, ObsMut(bytemuck::cast_slice_mut(&mut self.2))).unwrap();
        bytemuck::cast_slice(&self.2).to_vec()
    }

    fn step(&mut self) -> (Vec<f32>, StepOutcome) {
        let obs = ObsMut(bytemuck::cast_slice_mut(&mut self.2));
        let action = match self.0.spec().action {
            Space::Discrete { .. } => Action::Discrete(1),
            _ => Action::Box(&[0.5, 0.25]),
        };
        let outcome = self.0.step(action, &mut self.1, obs).unwrap();
        (bytemuck::cast_slice(&self.2).to_vec(), outcome)
    }
}

#[test]
fn one_environment_is_normalized_as_by_gymnasium() {
    let wrapped = |clip: f64| {
        let env = NormalizeObservation::wrap(tape(), observation_options(clip)).unwrap();
        Play::new(NormalizeReward::wrap(env, reward_options(clip)).unwrap())
    };
    for clip in [10.0, f64::INFINITY] {
        let mut play = wrapped(clip);
        let limits = Space::f32([WIDTH], -clip, clip);
        assert_eq!(play.0.spec().observation, limits);
        let mut found = play.reset();
        let mut rewards = Vec::new();
        for t in 0..STEPS {
            // Any state continues in another wrapper as in this one.
            if t % 20 == 7 {
                let mut other = wrapped(clip);
                other.0.restore(&play.0.save().unwrap()).unwrap();
                play = other;
            }
            let (obs, outcome) = play.step();
            found.extend(obs);
            rewards.push(outcome.reward);
            assert_eq!(outcome.game_reward, f64::from(column::<f32>("reward")[t * ENVS]));
        }
        near(found.iter().map(|&x| x.into()), &clipped("first/obs", clip), 1e-7);
        near(rewards, &clipped("first/reward", clip), 1e-12);
    }
}

#[test]
fn statistics_go_through_arrays() {
    let mut stats = RunningMeanStd::new(2);
    stats.update(&[1.0, 10.0, 2.0, 30.0]);
    let (mean, var, count) = stats.to_arrays();
    assert_eq!(RunningMeanStd::from_arrays((&mean, &var, &count)).unwrap(), stats);
    let wrong = Array::from([1.0f64, -1.0]);
    let error = RunningMeanStd::from_arrays((&mean, &wrong, &count)).unwrap_err().to_string();
    assert!(error.contains("these are not a running mean and variance"), "{error}");
    assert!(RunningMeanStd::from_arrays((&mean, &Array::from([1.0f64]), &count)).is_err());
    // Nothing changes nothing.
    let before = stats.clone();
    stats.update(&[]);
    assert_eq!(stats, before);
}

// ---- Normalization, traced ---------------------------------------------------------------------

type Out = (Tensor, Tensor, normalize::RunningMeanStd<Tensor>);

/// The whole recording as one `scan`, with statistics of type `dtype`.
fn traced(dtype: DType, clip: f64) -> impl Fn((Tensor, Tensor, Tensor)) -> Out {
    move |(obs, reward, terminated)| {
        let observations = normalize::NormalizeObservation { clip, ..Default::default() };
        let rewards = normalize::NormalizeReward { gamma: 0.9, clip, ..Default::default() };
        let stats = normalize::RunningMeanStd::new([WIDTH], dtype);
        let (first, stats) = observations.step(obs.index_axis(0, 0), stats);
        let state = (stats, rewards.init([ENVS], dtype));
        let steps = (obs.slice_axis(0, 1, STEPS + 1), reward, terminated);
        let ((stats, _), (seen, scaled)) = scan(
            |(stats, state), (obs, reward, terminated): (Tensor, Tensor, Tensor)| {
                let (obs, stats) = observations.step(obs, stats);
                let (reward, state) = rewards.step(reward, terminated, state);
                ((stats, state), (obs, reward))
            },
            state,
            steps,
        );
        let first = first.reshape([1, ENVS, WIDTH]);
        (podracer::trace::ops::concatenate(&[first, seen], 0), scaled, stats)
    }
}

/// With `f64` statistics and inputs the numbers are gymnasium's but for rounding; with `f32` they
/// are off by what 60 updates of numbers around 1e5 leave of 24 bits.
#[test]
fn tensors_are_normalized_as_by_gymnasium() {
    let terminated: Vec<bool> = column::<u8>("terminated").iter().map(|&x| x != 0).collect();
    let terminated = || Array::new([STEPS, ENVS], &terminated).unwrap();
    let (obs, reward) = (column::<f32>("obs"), column::<f32>("reward"));
    let (wide_obs, wide_reward): (Vec<f64>, Vec<f64>) =
        (obs.iter().map(|&x| x.into()).collect(), reward.iter().map(|&x| x.into()).collect());
    for clip in [10.0, f64::INFINITY] {
        for mode in [Mode::Jit, Mode::Interpret] {
            let input = (
                Array::new([STEPS + 1, ENVS, WIDTH], &wide_obs).unwrap(),
                Array::new([STEPS, ENVS], &wide_reward).unwrap(),
                terminated(),
            );
            let f = traced(DType::F64, clip);
            let (seen, scaled, stats) = match mode {
                Mode::Jit => jit(f).call(input).unwrap(),
                _ => interpret(f).call(input).unwrap(),
            };
            near(seen.to_vec::<f64>().unwrap(), &clipped("all/obs", clip), 1e-11);
            near(scaled.to_vec::<f64>().unwrap(), &clipped("all/reward", clip), 1e-12);
            near(stats.mean.to_vec::<f64>().unwrap(), &column("all/mean"), 1e-13);
            near(stats.var.to_vec::<f64>().unwrap(), &column("all/var"), 1e-12);
            near([stats.count.item::<f64>().unwrap()], &column("all/count"), 1e-15);

            let input = (
                Array::new([STEPS + 1, ENVS, WIDTH], &obs).unwrap(),
                Array::new([STEPS, ENVS], &reward).unwrap(),
                terminated(),
            );
            let f = traced(DType::F32, clip);
            let (seen, scaled, _) = match mode {
                Mode::Jit => jit(f).call(input).unwrap(),
                _ => eager(f).call(input).unwrap(),
            };
            let wide = |x: &Array| x.to_vec::<f32>().unwrap().into_iter().map(f64::from);
            near(wide(&seen), &clipped("all/obs", clip), 1e-4);
            near(wide(&scaled), &clipped("all/reward", clip), 1e-5);
        }
    }
}

/// The state is a tree, whose paths name it in a checkpoint beside a model's parameters.
#[test]
fn statistics_are_saved_with_the_model() {
    let state =
        interpret(|obs: Tensor| normalize::RunningMeanStd::new([2], DType::F32).update(obs))
            .call(Array::new([2, 2], &[1.0f32, 10.0, 3.0, 30.0]).unwrap())
            .unwrap();
    assert_eq!(tree::paths(&state), ["$.mean", "$.var", "$.count"]);
    let leaves: Vec<Array> = tree::leaves(&state);
    let literals: Vec<_> = leaves.iter().map(|leaf| leaf.to_literal().unwrap()).collect();
    let bytes: Vec<_> = literals.iter().map(|literal| literal.bytes()).collect();
    let arrays: Vec<(String, TensorType, &[u8])> = tree::paths(&state)
        .into_iter()
        .zip(literals.iter().zip(&bytes))
        .map(|(path, (literal, bytes))| (path, literal.ty().clone(), (**bytes).as_ref()))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    checkpoint::save(&path, &arrays, &()).unwrap();
    let loaded = checkpoint::load(&path).unwrap();
    let expected: Vec<_> = arrays.iter().map(|(path, ty, _)| (path.clone(), ty.clone())).collect();
    assert_eq!(
        loaded.expect(&expected).unwrap(),
        bytes.iter().map(|b| (**b).as_ref()).collect::<Vec<_>>()
    );
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let error_of = |f: &dyn Fn(Tensor) -> Tensor, x: Array| {
        podracer::make_program(f, &x).unwrap_err().to_string()
    };
    let update = |x: Tensor| normalize::RunningMeanStd::new([3], DType::F32).update(x).mean;
    let message = error_of(&update, Array::from([1.0f32, 2.0]));
    assert!(
        message.contains("the statistics are of f32[3], which f32[2] does not end with"),
        "{message}"
    );
    let message = error_of(
        &|x: Tensor| normalize::RunningMeanStd::new([3], DType::I32).update(x).mean,
        Array::from([1.0f32, 2.0]),
    );
    assert!(message.contains("statistics are floats, and not i32"), "{message}");
    let reward = |x: Tensor| {
        let normalize = normalize::NormalizeReward::default();
        normalize.step(x, x, normalize.init([2], DType::F32)).0
    };
    let message = error_of(&reward, Array::from([1.0f32, 2.0]));
    assert!(message.contains("terminated is f32[2], expected a bool of shape [2]"), "{message}");
}

// ---- The other wrappers ------------------------------------------------------------------------

#[test]
fn frame_stack_repeats_the_first_frame_and_keeps_the_last() {
    let mut play = Play::new(FrameStack::wrap(tape(), 3).unwrap());
    let spec = play.0.spec();
    let bounds = ([-1.0, -2.0].repeat(3), [1.0, 2.0].repeat(3));
    assert_eq!(spec.observation, Space::f32([3, WIDTH], bounds.0, bounds.1));
    let all = column::<f32>("obs");
    let frame = |t: usize| all[t * ENVS * WIDTH..][..WIDTH].to_vec();
    assert_eq!(play.reset(), frame(0).repeat(3));
    assert_eq!(play.step().0, [frame(0), frame(0), frame(1)].concat());
    assert_eq!(play.step().0, [frame(0), frame(1), frame(2)].concat());
    let saved = play.0.save().unwrap();
    let mut other = Play::new(FrameStack::wrap(tape(), 3).unwrap());
    other.0.restore(&saved).unwrap();
    for play in [&mut play, &mut other] {
        assert_eq!(play.step().0, [frame(1), frame(2), frame(3)].concat());
        assert_eq!(play.reset(), frame(0).repeat(3));
        assert_eq!(play.0.render().unwrap().rgb, [1, 2, 3]);
    }
    // A stack of numbers is an array of them.
    let env = FrameStack::wrap(make("Taxi-v3").unwrap(), 2).unwrap();
    let Space::Box { high, shape, dtype, .. } = env.spec().observation else { panic!() };
    assert_eq!((high.at(0), shape, dtype), (499.0, [2].into(), DType::I32));
}

#[test]
fn flatten_observation_keeps_the_bytes() {
    let factory = |_| Ok(FlattenObservation::wrap(make("MinAtar/Breakout-v1")?));
    let mut pool = EnvPool::custom(factory, PoolOptions::default()).unwrap();
    let flat = pool.reset().unwrap();
    assert_eq!(flat.obs_shape(), [1, 400].into());
    let mut plain = EnvPool::make("MinAtar/Breakout-v1", PoolOptions::default()).unwrap();
    assert_eq!(flat.obs_bytes(), plain.reset().unwrap().obs_bytes());

    let factory = |_| Ok(FlattenObservation::wrap(make("CliffWalking-v1")?));
    let mut pool = EnvPool::custom(factory, PoolOptions::default()).unwrap();
    for (t, state) in [36, 24, 25].into_iter().enumerate() {
        let batch = match t {
            0 => pool.reset().unwrap(),
            1 => pool.step(&[0]).unwrap(),
            _ => pool.step(&[1]).unwrap(),
        };
        let expected: Vec<i32> = (0..48).map(|i| i32::from(i == state)).collect();
        assert_eq!(batch.obs::<i32>(), expected);
    }
}

/// Notes its actions.
struct Note(std::sync::Arc<std::sync::Mutex<Vec<f32>>>);

impl Env for Note {
    fn spec(&self) -> EnvSpec {
        tape().spec()
    }
    fn reset(&mut self, _rng: &mut EnvRng, mut obs: ObsMut<'_>) -> Result<()> {
        obs.write(&[0.0f32; WIDTH]);
        Ok(())
    }
    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        mut obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        obs.write(&[0.0f32; WIDTH]);
        self.0.lock().unwrap().extend([action.continuous(0), action.continuous(1)]);
        Ok(StepOutcome::new(0.0, false))
    }
}

#[test]
fn rescale_action_maps_bounds_to_bounds() {
    let notes = std::sync::Arc::default();
    let factory = |_| RescaleAction::wrap(Box::new(Note(std::sync::Arc::clone(&notes))), -1.0, 3.0);
    let mut pool = EnvPool::custom(factory, PoolOptions::default()).unwrap();
    assert_eq!(pool.spec().action, Space::f32([2], -1.0, 3.0));
    pool.reset().unwrap();
    for action in [[-1.0f32, -1.0], [3.0, 3.0], [1.0, 0.0]] {
        pool.step(&action).unwrap();
    }
    assert_eq!(*notes.lock().unwrap(), [-2.0, 0.0, 2.0, 10.0, 0.0, 2.5]);
    // The bounds are those of the wrapper.
    let error = pool.step(&[-1.5f32, 0.0]).unwrap_err().to_string();
    assert!(error.contains("element 0 of its action is -1.5, expected -1 to 3"), "{error}");
}

#[test]
fn transformed_and_clipped_rewards_leave_the_game_reward() {
    let mut play = Play::new(TransformReward::wrap(tape(), |reward| reward * 2.0));
    let mut limited = Play::new(ClipReward::wrap(tape(), -1.0, 1.0).unwrap());
    play.reset();
    limited.reset();
    for t in 0..STEPS {
        let reward = f64::from(column::<f32>("reward")[t * ENVS]);
        let outcome = play.step().1;
        assert_eq!((outcome.reward, outcome.game_reward), (2.0 * reward, reward));
        assert_eq!(limited.step().1.reward, reward.clamp(-1.0, 1.0));
    }
    // The pool's statistics are those of the game.
    let factory = |_| Ok(TransformReward::wrap(make("CartPole-v1")?, |_| -7.0));
    let mut pool = EnvPool::custom(factory, PoolOptions::default()).unwrap();
    pool.reset().unwrap();
    (0..30).for_each(|_| assert_eq!(pool.step(&[1]).unwrap().reward(), [-7.0]));
    let episode = pool.last_finished(0).unwrap();
    assert_eq!(episode.episodic_return, f64::from(episode.length));
}

#[test]
fn bad_settings_and_states() {
    let message = |outcome: Result<Box<dyn Env>>| outcome.err().unwrap().to_string();
    let has = |text: String, part: &str| assert!(text.contains(part), "{text}");
    has(message(FrameStack::wrap(tape(), 0)), "Tape-v0: FrameStack: num_stack must be at least 1");
    has(message(ClipReward::wrap(tape(), 1.0, -1.0)), "ClipReward: 1 to -1 is no range");
    has(message(ClipReward::wrap(tape(), f64::NAN, 1.0)), "ClipReward: NaN to 1 is no range");
    has(message(RescaleAction::wrap(tape(), 1.0, 1.0)), "RescaleAction: 1 to 1 is no range");
    let discrete = message(RescaleAction::wrap(make("CartPole-v1").unwrap(), -1.0, 1.0));
    has(discrete, "its actions are Discrete(2), not continuous");
    let image = make("MinAtar/Breakout-v0").unwrap();
    let text = message(NormalizeObservation::wrap(image, Default::default()));
    has(text, "NormalizeObservation: its observations are Box(0, 1, bool[10,10,4]), not floats");
    for (options, part) in [
        (NormalizeRewardOptions { gamma: 1.5, ..Default::default() }, "gamma is 1.5"),
        (NormalizeRewardOptions { epsilon: -1.0, ..Default::default() }, "epsilon is -1"),
        (NormalizeRewardOptions { clip: 0.0, ..Default::default() }, "clip is 0"),
    ] {
        has(message(NormalizeReward::wrap(tape(), options)), part);
    }

    let text = ObservationNormalizer::new(0, Default::default()).unwrap_err().to_string();
    has(text, "NormalizeObservation: there is nothing to normalize");

    let mut play = Play::new(FrameStack::wrap(tape(), 2).unwrap());
    play.reset();
    let saved = play.0.save().unwrap();
    let mut stats = Play::new(NormalizeObservation::wrap(tape(), Default::default()).unwrap());
    stats.reset();
    for wrong in [&saved[..4], &[255; 12][..], &stats.0.save().unwrap()] {
        let error = play.0.restore(wrong).unwrap_err().to_string();
        has(error, "Tape-v0: this is not a saved state of it with this wrapper");
    }
    // What the environment within refuses leaves the wrapper as it was.
    let mut damaged = saved.clone();
    damaged[9] = 77;
    damaged.push(1);
    has(play.0.restore(&damaged).unwrap_err().to_string(), "Tape-v0: not one byte");
    assert_eq!(play.0.save().unwrap(), saved);
    let mut nan = stats.0.save().unwrap();
    nan[8..16].copy_from_slice(&f64::NAN.to_le_bytes());
    has(stats.0.restore(&nan).unwrap_err().to_string(), "is not a saved state of it");
}
