//! Pictures of the MuJoCo tasks: what is on them, that they move with the state, and that taking them
//! changes nothing.

use podracer::envs::mujoco::Mujoco;
use podracer::envs::{
    Action, Env, EnvPool, EnvRng, Frame, MujocoOptions, ObsMut, PoolOptions, seeds,
};
use pretty_assertions::assert_eq;

/// A color that a picture may have: pixels are compared without their brightness.
type Color = fn([f64; 3]) -> bool;

/// Of most robots: the brown of their material, 0.8, 0.6, 0.4.
fn brown([r, g, b]: [f64; 3]) -> bool {
    (r / g - 4.0 / 3.0).abs() < 0.1 && (g / b - 1.5).abs() < 0.15
}

/// 0.8, 0.9, 0.8.
fn green([r, g, b]: [f64; 3]) -> bool {
    (r - b).abs() < 3.0 && (g / r - 9.0 / 8.0).abs() < 0.08
}

/// 0, 0.7, 0.7.
fn cyan([r, g, b]: [f64; 3]) -> bool {
    r < 3.0 && g > 50.0 && (g - b).abs() < 3.0
}

/// All alike.
fn gray([r, g, b]: [f64; 3]) -> bool {
    (r - g).abs() < 3.0 && (g - b).abs() < 3.0
}

/// 0, 0.4, 0.6.
fn blue([r, g, b]: [f64; 3]) -> bool {
    r < 3.0 && (b / g - 1.5).abs() < 0.15
}

/// For each robot: what is to be in the middle, and what at the lower edge, if anything.
const SEEN: [(&str, Color, Option<Color>); 11] = [
    ("Ant", brown, Some(green)),
    ("HalfCheetah", brown, Some(green)),
    ("Hopper", brown, Some(green)),
    ("Humanoid", brown, Some(green)),
    ("HumanoidStandup", brown, Some(green)),
    ("InvertedDoublePendulum", cyan, Some(green)),
    ("InvertedPendulum", cyan, None),
    // The table does not fill the picture, and there is nothing below it.
    ("Pusher", gray, None),
    ("Reacher", blue, Some(gray)),
    ("Swimmer", brown, Some(green)),
    ("Walker2d", brown, Some(green)),
];

/// Counts the pixels of this color in these rows and columns, which are fractions of the picture.
fn count(frame: &Frame, rows: [f64; 2], columns: [f64; 2], color: Color) -> usize {
    let (height, width) = (frame.height as f64, frame.width as f64);
    let within = |x: f64, [from, to]: [f64; 2]| from <= x && x < to;
    let pixels = frame.rgb.as_chunks::<3>().0.iter().enumerate();
    let inside = pixels.filter(|(k, _)| {
        let (row, column) = (k / frame.width, k % frame.width);
        within(row as f64 / height, rows) && within(column as f64 / width, columns)
    });
    inside.filter(|(_, pixel)| color(pixel.map(f64::from))).count()
}

fn pool(id: &str) -> EnvPool {
    let options = PoolOptions { num_envs: 1, seed: 3, ..Default::default() };
    let mut pool = EnvPool::make(id, options).unwrap();
    pool.reset().unwrap();
    pool
}

fn actions(pool: &EnvPool, k: usize) -> Vec<f32> {
    let size = pool.spec().action.shape().numel();
    (0..size).map(|i| if (i + k / 7).is_multiple_of(2) { 0.4 } else { -0.4 }).collect()
}

/// Gymnasium's `render_fps`.
#[test]
fn videos_are_as_fast_as_the_robots() {
    let robots = [
        ("Ant", 20),
        ("HalfCheetah", 20),
        ("Hopper", 125),
        ("Humanoid", 67),
        ("HumanoidStandup", 67),
        ("InvertedDoublePendulum", 20),
        ("InvertedPendulum", 25),
        ("Pusher", 20),
        ("Reacher", 50),
        ("Swimmer", 25),
        ("Walker2d", 125),
    ];
    for (robot, fps) in robots {
        let frame = pool(&format!("{robot}-v4")).render(0).unwrap().unwrap();
        assert_eq!(frame.fps, fps, "{robot}");
    }
}

#[test]
fn every_robot_is_in_its_picture_on_its_floor() {
    for (robot, body, floor) in SEEN {
        for id in [format!("{robot}-v4"), format!("{robot}-v5")] {
            let mut pool = pool(&id);
            let frame = pool.render(0).unwrap().unwrap();
            assert_eq!((frame.height, frame.width), (240, 240), "{id}");
            assert_eq!(frame.rgb.len(), 240 * 240 * 3, "{id}");
            let middle = count(&frame, [0.3, 0.7], [0.3, 0.7], body);
            assert!(middle > 60, "{id}: {middle} pixels of the body in the middle");
            if let Some(floor) = floor {
                let below = count(&frame, [0.9, 1.0], [0.0, 1.0], floor);
                assert!(below > 1000, "{id}: {below} pixels of the floor below");
            }
            for k in 0..20 {
                pool.step(&actions(&pool, k)).unwrap();
            }
            let later = pool.render(0).unwrap().unwrap();
            let changed = frame.rgb.iter().zip(&later.rgb).filter(|(a, b)| a.abs_diff(**b) > 8);
            let changed = changed.count();
            assert!(changed > 100, "{id}: {changed} numbers differ after 20 steps");
            assert_eq!(later, pool.render(0).unwrap().unwrap(), "{id}: the same state");
        }
    }
}

#[test]
fn the_camera_goes_with_the_robot_and_the_floor_passes_by() {
    let mut env = Mujoco::new("HalfCheetah-v4", &MujocoOptions::default()).unwrap();
    let mut obs = vec![0f64; 17];
    let mut at = |x: f64| {
        let qpos = [x, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        env.reset_to(&qpos, &[0.0; 9], ObsMut(bytemuck::cast_slice_mut(&mut obs))).unwrap();
        env.render().unwrap()
    };
    // A square of the floor is 2/3 m: half a turn of the pattern, and a whole one.
    let (here, half, whole) = (at(0.0), at(2.0 / 3.0), at(4.0 / 3.0));
    let bodies = |frame: &Frame| count(frame, [0.0, 1.0], [0.0, 1.0], brown);
    // Edges are mixed with what is behind them.
    assert!(bodies(&here) > 1000 && bodies(&here).abs_diff(bodies(&half)) < 20);
    assert!(bodies(&here).abs_diff(bodies(&whole)) < 20);
    let far = |a: &Frame, b: &Frame| {
        a.rgb.iter().zip(&b.rgb).filter(|(a, b)| a.abs_diff(**b) > 8).count()
    };
    assert!(far(&here, &half) > 5000, "{}", far(&here, &half));
    assert!(far(&here, &whole) * 20 < far(&here, &half), "{}", far(&here, &whole));
    // MuJoCo's own floor ends at 40 m; what robots walk on does not.
    let away = at(400.0 / 3.0);
    assert!(far(&here, &away) * 20 < far(&here, &half), "{}", far(&here, &away));
}

#[test]
fn pictures_have_the_size_that_is_asked_for() {
    let options = |render_size| MujocoOptions { render_size, ..Default::default() };
    let mut env = Mujoco::new("Reacher-v5", &options(480)).unwrap();
    let frame = env.render().unwrap();
    assert_eq!((frame.height, frame.width, frame.rgb.len()), (480, 480, 480 * 480 * 3));
    let error = Mujoco::new("Reacher-v5", &options(0)).unwrap_err().to_string();
    assert!(error.contains("render_size is 0, expected 1 to 4096"), "{error}");
}

#[test]
fn taking_pictures_changes_nothing() {
    for id in ["Ant-v5", "Reacher-v4"] {
        let play = |filmed: bool| {
            let mut env = Mujoco::new(id, &MujocoOptions::default()).unwrap();
            let spec = env.spec();
            let mut rng = EnvRng::new(seeds(1, 0, 0, 0));
            let mut obs = vec![0f64; spec.observation.shape().numel()];
            let mut seen = Vec::new();
            env.reset(&mut rng, ObsMut(bytemuck::cast_slice_mut(&mut obs))).unwrap();
            for k in 0..30 {
                if filmed {
                    env.render().unwrap();
                }
                let action = vec![if k % 3 == 0 { 0.5 } else { -0.3 }; spec.action.shape().numel()];
                let row = ObsMut(bytemuck::cast_slice_mut(&mut obs));
                let outcome = env.step(Action::Box(&action), &mut rng, row).unwrap();
                seen.extend(obs.iter().map(|x| x.to_bits()));
                seen.push(outcome.reward.to_bits());
            }
            seen
        };
        assert!(play(true) == play(false), "{id}");
    }
}
