//! The MuJoCo tasks, against recordings of gymnasium with the same version of the library.

use podracer::DType;
use podracer::envs::mujoco::Mujoco;
use podracer::envs::{
    Action, Batch, Env, EnvPool, EnvRng, EnvSpec, MujocoOptions, ObsMut, OnError, PoolOptions,
    Space, StepOutcome, list_envs, make, seeds,
};
use podracer::error::Result;
use pretty_assertions::assert_eq;
use safetensors::SafeTensors;

const FIXTURE: &[u8] = include_bytes!("../fixtures/envs/mujoco.safetensors");

const ROBOTS: [&str; 11] = [
    "Ant",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Walker2d",
];

fn ids() -> impl Iterator<Item = String> {
    ROBOTS.iter().flat_map(|robot| [format!("{robot}-v4"), format!("{robot}-v5")])
}

fn column<T: bytemuck::AnyBitPattern>(id: &str, name: &str) -> Vec<T> {
    let tensors = SafeTensors::deserialize(FIXTURE).unwrap();
    let bytes = tensors.tensor(&format!("{id}/{name}")).unwrap().data().to_vec();
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Element `i` of the action of step `t`, as in `make_mujoco.py`.
fn noise(t: usize, i: usize) -> f32 {
    let z = (t as u64 * 64 + i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let z = z ^ (z >> 31);
    ((z >> 40) as f64 / (1u64 << 23) as f64 - 1.0) as f32
}

fn fingerprint(obs: &[f64]) -> u64 {
    let step = |hash: u64, x: &f64| (hash ^ x.to_bits()).wrapping_mul(0x100_0000_01b3);
    obs.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The upper bounds of an action space that is symmetric.
fn bounds(space: &Space) -> Vec<f32> {
    let Space::Box { low, high, shape, .. } = space else { panic!("{space}") };
    (0..shape.numel())
        .map(|i| {
            assert_eq!(low.at(i), -high.at(i));
            high.at(i) as f32
        })
        .collect()
}

fn action(bounds: &[f32], t: usize) -> Vec<f32> {
    bounds.iter().enumerate().map(|(i, bound)| noise(t, i) * bound).collect()
}

fn rng() -> EnvRng {
    EnvRng::new(seeds(0, 0, 0, 0))
}

/// Replays a recording from its initial positions and velocities. Everything must be equal in every
/// bit: it is the same library, and what is around it computes in the same order.
fn align(id: &str, options: MujocoOptions) {
    let mut env = Mujoco::new(id.trim_end_matches("+loose"), &options).unwrap();
    let spec = env.spec();
    let bounds = bounds(&spec.action);
    let lengths: Vec<i32> = column(id, "lengths");
    let [qpos, qvel, first, last, rewards] =
        ["qpos", "qvel", "first", "last", "reward"].map(|name| column::<f64>(id, name));
    let [starts, hashes] = ["starts", "hashes"].map(|name| column::<u64>(id, name));
    let terminated: Vec<u8> = column(id, "terminated");
    let mut obs = vec![0f64; spec.observation.shape().numel()];
    let row = |values: &[f64], episode: usize| {
        let width = values.len() / lengths.len();
        values[episode * width..][..width].to_vec()
    };
    let mut t = 0;
    for (episode, &length) in lengths.iter().enumerate() {
        let place = format!("{id} episode {episode}");
        let (qpos, qvel) = (row(&qpos, episode), row(&qvel, episode));
        env.reset_to(&qpos, &qvel, ObsMut(bytemuck::cast_slice_mut(&mut obs))).unwrap();
        if episode == 0 {
            assert_eq!(obs, first, "{place}: first observation");
        }
        assert_eq!(fingerprint(&obs), starts[episode], "{place}: first observation");
        for step in 1..=length {
            let action = action(&bounds, t);
            let row = ObsMut(bytemuck::cast_slice_mut(&mut obs));
            let outcome = env.step(Action::Box(&action), &mut rng(), row).unwrap();
            assert_eq!(outcome.reward, rewards[t], "{place} step {step}: reward");
            assert_eq!(outcome.terminated, terminated[t] != 0, "{place} step {step}: end");
            assert_eq!(fingerprint(&obs), hashes[t], "{place} step {step}: {obs:?}");
            t += 1;
        }
    }
    assert_eq!(obs, last, "{id}: last observation");
    assert_eq!(t, hashes.len());
    assert!(t >= 250 && lengths.len() >= 3);
}

macro_rules! align {
    ($($name:ident $robot:literal,)*) => {$(
        #[test]
        fn $name() {
            align(concat!($robot, "-v4"), MujocoOptions::default());
            align(concat!($robot, "-v5"), MujocoOptions::default());
        }
    )*};
}

align! {
    align_ant "Ant",
    align_half_cheetah "HalfCheetah",
    align_hopper "Hopper",
    align_humanoid "Humanoid",
    align_humanoid_standup "HumanoidStandup",
    align_inverted_double_pendulum "InvertedDoublePendulum",
    align_inverted_pendulum "InvertedPendulum",
    align_pusher "Pusher",
    align_reacher "Reacher",
    align_swimmer "Swimmer",
    align_walker2d "Walker2d",
}

#[test]
fn align_with_other_options() {
    for id in ["HalfCheetah-v4+loose", "Swimmer-v5+loose"] {
        align(id, MujocoOptions { exclude_current_positions: false, ..Default::default() });
    }
    let loose = MujocoOptions {
        exclude_current_positions: false,
        terminate_when_unhealthy: false,
        ..Default::default()
    };
    for robot in ["Ant", "Hopper", "Humanoid", "Walker2d"] {
        align(&format!("{robot}-v4+loose"), loose.clone());
        align(&format!("{robot}-v5+loose"), loose.clone());
    }
}

#[test]
fn they_promise_what_gymnasium_registered() {
    let listed = list_envs();
    let expected = [
        ("Ant", 27, 105, 8, 1.0, 1000, Some(6000.0)),
        ("HalfCheetah", 17, 17, 6, 1.0, 1000, Some(4800.0)),
        ("Hopper", 11, 11, 3, 1.0, 1000, Some(3800.0)),
        ("Humanoid", 376, 348, 17, 0.4, 1000, None),
        ("HumanoidStandup", 376, 348, 17, 0.4, 1000, None),
        ("InvertedDoublePendulum", 11, 9, 1, 1.0, 1000, Some(9100.0)),
        ("InvertedPendulum", 4, 4, 1, 3.0, 1000, Some(950.0)),
        ("Pusher", 23, 23, 7, 2.0, 100, Some(0.0)),
        ("Reacher", 11, 10, 2, 1.0, 50, Some(-3.75)),
        ("Swimmer", 8, 8, 2, 1.0, 1000, Some(360.0)),
        ("Walker2d", 17, 17, 6, 1.0, 1000, None),
    ];
    for (robot, v4, v5, actions, bound, limit, threshold) in expected {
        for (version, width) in [("v4", v4), ("v5", v5)] {
            let id = format!("{robot}-{version}");
            assert!(listed.contains(&id.as_str()), "{id}");
            let spec = podracer::envs::spec(&id).unwrap();
            assert_eq!(spec.id, id);
            assert_eq!(spec.observation.shape()[..], [width], "{id}");
            assert_eq!(spec.observation.dtype(), DType::F64, "{id}");
            assert_eq!(bounds(&spec.action), vec![bound; actions], "{id}");
            assert_eq!(spec.max_episode_steps, Some(limit), "{id}");
            assert_eq!(spec.reward_threshold, threshold, "{id}");
        }
    }
}

// ---- Resets ----------------------------------------------------------------------------------

#[test]
fn starts_are_as_far_from_the_default_as_in_gymnasium() {
    let mut rng = rng();
    let mut starts = |id: &str, options: &MujocoOptions| -> Vec<Vec<f64>> {
        let mut env = Mujoco::new(id, options).unwrap();
        let width = env.spec().observation.shape().numel();
        let one = |_| {
            let mut obs = vec![0f64; width];
            env.reset(&mut rng, ObsMut(bytemuck::cast_slice_mut(&mut obs))).unwrap();
            obs
        };
        (0..2000).map(one).collect()
    };
    let within = |rows: &[Vec<f64>], columns: std::ops::Range<usize>, center: f64, scale: f64| {
        let values = rows.iter().flat_map(|row| &row[columns.clone()]).map(|x| x - center);
        let (low, high) =
            values.fold((f64::MAX, f64::MIN), |(low, high), x| (low.min(x), high.max(x)));
        assert!(-scale * (1.0 + 1e-9) <= low && low < -0.98 * scale, "{low}, not {scale}");
        assert!(0.98 * scale < high && high <= scale * (1.0 + 1e-9), "{high}, not {scale}");
    };
    let default = MujocoOptions::default();
    // HalfCheetah: uniform positions, normal velocities.
    let rows = starts("HalfCheetah-v4", &default);
    within(&rows, 0..8, 0.0, 0.1);
    let velocities: Vec<f64> = rows.iter().flat_map(|row| &row[8..]).copied().collect();
    let mean = velocities.iter().sum::<f64>() / velocities.len() as f64;
    let variance = velocities.iter().map(|x| x * x).sum::<f64>() / velocities.len() as f64;
    assert!(mean.abs() < 0.003 && (variance / 0.01 - 1.0).abs() < 0.04, "{mean} {variance}");
    assert!(velocities.iter().any(|x| x.abs() > 0.3), "a normal distribution has tails");
    // Hopper: both uniform.
    let rows = starts("Hopper-v4", &default);
    within(&rows, 0..1, 1.25, 0.005);
    within(&rows, 1..11, 0.0, 0.005);
    let wide = MujocoOptions { reset_noise_scale: Some(0.5), ..default.clone() };
    within(&starts("Hopper-v4", &wide), 5..11, 0.0, 0.5);
    // Reacher: the target (columns 4 and 5) within reach, and moving no more than the arm.
    let rows = starts("Reacher-v4", &default);
    within(&rows, 4..6, 0.0, 0.2);
    assert!(rows.iter().all(|row| row[4].hypot(row[5]) < 0.2));
    within(&rows, 6..8, 0.0, 0.005);
    // Pusher: the object not too near to its goal.
    let rows = starts("Pusher-v5", &default);
    assert!(rows.iter().all(|row| (row[17] - row[20]).hypot(row[18] - row[21]) > 0.17));
}

// ---- The same seed, the same trajectories ----------------------------------------------------

const STEPS: usize = 120;
const ENVS: usize = 5;

/// Outputs of an environment, compared bit for bit: observation, reward, end of the episode.
type Outcome = (Vec<u64>, u32, bool);

fn bits(obs: &[f64]) -> Vec<u64> {
    obs.iter().map(|x| x.to_bits()).collect()
}

/// Environment `index` of a pool with seed 1, alone.
fn alone(id: &str, index: usize) -> Vec<Outcome> {
    let mut env = make(id).unwrap();
    let bounds = bounds(&env.spec().action);
    let mut rng = EnvRng::new(seeds(1, 0, 0, index as u32));
    let mut obs = vec![0f64; env.spec().observation.shape().numel()];
    let limit = env.spec().max_episode_steps.unwrap();
    env.reset(&mut rng, ObsMut(bytemuck::cast_slice_mut(&mut obs))).unwrap();
    let mut message = vec![(bits(&obs), 0, false)];
    let mut elapsed = 0;
    for t in 1..STEPS {
        let action = action(&bounds, 1000 * index + t);
        let row = ObsMut(bytemuck::cast_slice_mut(&mut obs));
        let outcome = env.step(Action::Box(&action), &mut rng, row).unwrap();
        elapsed += 1;
        let over = outcome.terminated || elapsed == limit;
        if over {
            env.reset(&mut rng, ObsMut(bytemuck::cast_slice_mut(&mut obs))).unwrap();
            elapsed = 0;
        }
        message.push((bits(&obs), (outcome.reward as f32).to_bits(), over));
    }
    message
}

fn in_a_pool(id: &str, num_threads: usize, batch_size: usize) -> Vec<Vec<Outcome>> {
    let options = PoolOptions { num_envs: ENVS, batch_size, num_threads, ..Default::default() };
    let mut pool = EnvPool::make(id, options).unwrap();
    let bounds = bounds(&pool.spec().action);
    let mut all = vec![Vec::new(); ENVS];
    pool.async_reset().unwrap();
    while all.iter().any(|message| message.len() < STEPS) {
        let batch = pool.recv().unwrap();
        let mut actions = Vec::new();
        for (row, &env) in batch.env_id().iter().enumerate() {
            let env = env as usize;
            all[env].push(outcome(&batch, row));
            actions.extend(action(&bounds, 1000 * env + all[env].len()));
        }
        pool.send(&actions, batch.env_id()).unwrap();
    }
    all.iter_mut().for_each(|message| message.truncate(STEPS));
    all
}

fn outcome(batch: &Batch, row: usize) -> Outcome {
    let over = batch.terminated()[row] || batch.truncated()[row];
    (bits(batch.obs_row(row)), batch.reward()[row].to_bits(), over)
}

#[test]
fn deterministic_whatever_the_threads_and_batches() {
    for id in ids() {
        // Environments share simulations; alone, nobody else has used one in between.
        let reference: Vec<Vec<Outcome>> = (0..ENVS).map(|index| alone(&id, index)).collect();
        assert!((1..ENVS).all(|env| reference[env][0] != reference[0][0]), "{id}");
        for (num_threads, batch_size) in [(1, ENVS), (2, ENVS), (4, ENVS), (2, 2)] {
            let found = in_a_pool(&id, num_threads, batch_size);
            assert!(found == reference, "{id}: {num_threads} threads, batches of {batch_size}");
        }
    }
}

#[test]
fn a_saved_state_continues_the_episode() {
    for id in ids() {
        let mut env = make(&id).unwrap();
        let bounds = bounds(&env.spec().action);
        let mut obs = vec![0f64; env.spec().observation.shape().numel()];
        let mut rng = rng();
        let mut walk = |env: &mut Box<dyn Env>, steps: std::ops::Range<usize>| {
            let step = |t: usize| {
                let row = ObsMut(bytemuck::cast_slice_mut(&mut obs));
                let outcome = env.step(Action::Box(&action(&bounds, t)), &mut rng, row).unwrap();
                (bits(&obs), outcome.reward.to_bits())
            };
            steps.map(step).collect::<Vec<_>>()
        };
        walk(&mut env, 0..20);
        let state = env.save().unwrap();
        let expected = walk(&mut env, 20..40);
        let mut other = make(&id).unwrap();
        walk(&mut other, 50..60);
        other.restore(&state).unwrap();
        assert!(walk(&mut other, 20..40) == expected, "{id}");
        let (whole, short) = (state.len(), state.len() - 1);
        assert_eq!(
            other.restore(&state[1..]).unwrap_err().to_string(),
            format!("{id}: a saved state has {whole} bytes, this one has {short}")
        );
    }
}

#[test]
fn observations_may_be_f32() {
    let pool = |obs_dtype| {
        let options = MujocoOptions { obs_dtype, ..Default::default() };
        let pool = PoolOptions { num_envs: 2, ..Default::default() };
        EnvPool::mujoco("Humanoid-v5", options, pool).unwrap()
    };
    let (mut narrow, mut wide) = (pool(DType::F32), pool(DType::F64));
    assert_eq!(narrow.spec().observation.dtype(), DType::F32);
    let bounds = bounds(&narrow.spec().action);
    let (mut a, mut b) = (narrow.reset().unwrap(), wide.reset().unwrap());
    for t in 0..50 {
        let rounded: Vec<f32> = b.obs::<f64>().iter().map(|&x| x as f32).collect();
        assert_eq!(a.obs::<f32>(), rounded, "step {t}");
        let actions = [action(&bounds, t), action(&bounds, 100 + t)].concat();
        (a, b) = (narrow.step(&actions).unwrap(), wide.step(&actions).unwrap());
    }
}

// ---- Bad input -------------------------------------------------------------------------------

#[test]
fn bad_options_say_what_was_expected() {
    let error = |id: &str, options| Mujoco::new(id, &options).unwrap_err().to_string();
    let default = MujocoOptions::default();
    assert_eq!(
        error("Ant-v4", MujocoOptions { obs_dtype: DType::U8, ..default.clone() }),
        "Ant-v4: obs_dtype is u8, expected f64 (as in gymnasium) or f32"
    );
    assert_eq!(
        error("Reacher-v5", MujocoOptions { exclude_current_positions: false, ..default.clone() }),
        "Reacher-v5: exclude_current_positions is false, but it leaves none out"
    );
    assert_eq!(
        error("Swimmer-v4", MujocoOptions { terminate_when_unhealthy: false, ..default.clone() }),
        "Swimmer-v4: terminate_when_unhealthy is false, but it knows no health"
    );
    assert_eq!(
        error("Pusher-v5", MujocoOptions { reset_noise_scale: Some(0.1), ..default.clone() }),
        "Pusher-v5: reset_noise_scale is set, but its start is fixed"
    );
    assert_eq!(
        error("Ant-v4", MujocoOptions { reset_noise_scale: Some(f64::NAN), ..default.clone() }),
        "Ant-v4: reset_noise_scale is NaN, expected 0 to 1000"
    );
    let unknown = error("CartPole-v1", default);
    let expected = "\"CartPole-v1\" is no MuJoCo task; there are Ant-v4, Ant-v5, HalfCheetah-v4, ";
    assert!(unknown.starts_with(expected), "{unknown}");
}

#[test]
fn bad_actions_and_starts_are_refused() {
    let options = PoolOptions { num_envs: 2, ..Default::default() };
    let mut pool = EnvPool::make("InvertedPendulum-v4", options).unwrap();
    pool.reset().unwrap();
    assert_eq!(
        pool.step(&[0.0, f32::NAN]).unwrap_err().to_string(),
        "InvertedPendulum-v4: env 1: element 0 of its action is NaN, expected -3 to 3"
    );
    pool.step(&[0.0, 1.0]).unwrap();

    // Without a pool, nobody has checked before.
    let mut env = Mujoco::new("InvertedPendulum-v4", &MujocoOptions::default()).unwrap();
    let mut obs = [0f64; 4];
    let mut step = |env: &mut Mujoco, action: &[f32]| {
        let row = ObsMut(bytemuck::cast_slice_mut(&mut obs));
        env.step(Action::Box(action), &mut rng(), row)
    };
    assert_eq!(
        step(&mut env, &[f32::NAN]).unwrap_err().to_string(),
        "InvertedPendulum-v4: an action is not a number, or huge (number 0)"
    );
    assert_eq!(
        step(&mut env, &[0.5, 0.5]).unwrap_err().to_string(),
        "InvertedPendulum-v4: 1 numbers are needed, not Box([0.5, 0.5])"
    );
    let mut obs = [0f64; 4];
    let mut reset_to = |env: &mut Mujoco, qpos: &[f64]| {
        let row = ObsMut(bytemuck::cast_slice_mut(&mut obs));
        env.reset_to(qpos, &[0.0, 0.0], row).unwrap_err().to_string()
    };
    assert_eq!(
        reset_to(&mut env, &[0.0]),
        "InvertedPendulum-v4: 2 positions and 2 velocities are needed, 1 and 2 were given"
    );
    assert_eq!(
        reset_to(&mut env, &[0.0, f64::NAN]),
        "InvertedPendulum-v4: a position is not a number, or huge (number 1)"
    );
    // None of this has touched the state.
    step(&mut env, &[0.5]).unwrap();
}

/// A cheetah whose state breaks at a step.
struct Breaking {
    env: Mujoco,
    left: Option<u32>,
    value: f64,
}

impl Env for Breaking {
    fn spec(&self) -> EnvSpec {
        self.env.spec()
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.env.reset(rng, obs)
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        self.left = self.left.map(|left| left.wrapping_sub(1));
        if self.left == Some(0) {
            // After the two carried numbers comes the time, then the positions.
            let mut state = self.env.save()?;
            state[24..32].copy_from_slice(&self.value.to_le_bytes());
            self.env.restore(&state)?;
        }
        self.env.step(action, rng, obs)
    }
}

fn breaking(value: f64, options: PoolOptions) -> EnvPool {
    let make = |i: usize| -> Result<Box<dyn Env>> {
        let env = Mujoco::new("HalfCheetah-v4", &MujocoOptions::default())?;
        Ok(Box::new(Breaking { env, left: (i == 1).then_some(3), value }))
    };
    EnvPool::custom(make, options).unwrap()
}

#[test]
fn a_broken_state_names_the_environment() {
    let message = "HalfCheetah-v4: a position is not a number, or huge (number 0)";
    for (value, num_threads) in [(f64::NAN, 1), (1e11, 1), (f64::NAN, 2), (f64::INFINITY, 2)] {
        let options = PoolOptions { num_envs: 3, num_threads, ..Default::default() };
        let mut pool = breaking(value, options.clone());
        pool.reset().unwrap();
        let actions = [0f32; 18];
        pool.step(&actions).unwrap();
        pool.step(&actions).unwrap();
        let error = pool.step(&actions).unwrap_err().to_string();
        assert_eq!(error, format!("HalfCheetah-v4: env 1 failed: {message}"));
        assert!(pool.step(&actions).unwrap_err().to_string().contains("the pool ended there"));

        // By choice that episode ends and the others go on, as if nothing had been.
        let truncate = PoolOptions { on_error: OnError::Truncate, ..options.clone() };
        let mut pool = breaking(value, truncate);
        let mut whole = EnvPool::make("HalfCheetah-v4", options).unwrap();
        let mut a = pool.reset().unwrap();
        whole.reset().unwrap();
        for t in 1..10 {
            let before = a;
            let b;
            (a, b) = (pool.step(&actions).unwrap(), whole.step(&actions).unwrap());
            assert_eq!(a.truncated(), [false, t == 3, false]);
            for row in [0, 2] {
                assert_eq!(outcome(&a, row), outcome(&b, row), "step {t}, row {row}");
            }
            if t == 3 {
                assert_eq!(a.final_obs::<f64>(1), Some(before.obs_row::<f64>(1)));
                assert_eq!((a.reward()[1], a.elapsed_steps()[1], a.first()[1]), (0.0, 3, true));
            }
            assert!(a.obs::<f64>().iter().all(|x| x.is_finite()));
        }
        let failures = pool.take_failures();
        let failures: Vec<_> =
            failures.iter().map(|f| (f.env_id, f.step, f.message.as_str())).collect();
        assert_eq!(failures, [(1, 3, message)]);
        assert_eq!(pool.take_failures(), []);
    }
}
