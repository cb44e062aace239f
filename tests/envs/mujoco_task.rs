//! Robots of one's own: what a task reads of a simulation, beside MuJoCo's own Python bindings
//! (`tests/fixtures/envs/make_mujoco_task.py`), and errors.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use podracer::envs::mujoco::{
    Carry, Contact, MjData, Mjcf, Mujoco, MujocoSpec, MujocoStep, MujocoTask,
};
use podracer::envs::{self, Action, Env, EnvPool, EnvRng, ObsMut, PoolOptions, Space, seeds};
use podracer::{DType, Result};
use pretty_assertions::assert_eq;
use serde::Deserialize;

const MODEL: &str = include_str!("../fixtures/envs/mujoco_task.xml");

/// One step of the fixture.
#[derive(Debug, Deserialize, PartialEq)]
struct Recorded {
    time: f64,
    xpos: [f64; 3],
    xquat: [f64; 4],
    cvel: [f64; 6],
    root: [Vec<f64>; 2],
    shoulder: [Vec<f64>; 2],
    hull: [f64; 3],
    tip: [f64; 3],
    sensors: Sensors,
    contacts: Vec<[f64; 6]>,
}

#[derive(Debug, Deserialize, PartialEq)]
struct Sensors {
    gyro: Vec<f64>,
    accelerometer: Vec<f64>,
    touch: Vec<f64>,
    bent: Vec<f64>,
}

fn record(data: &MjData<'_>) -> Result<Recorded> {
    let joint = |name| data.joint(name).map(|joint| [joint.qpos.to_vec(), joint.qvel.to_vec()]);
    let sensor = |name| data.sensor(name).map(<[f64]>::to_vec);
    let arm = data.body("arm")?;
    let numbers =
        |Contact { geom: [a, b], pos: [x, y, z], dist }| [a as f64, b as f64, x, y, z, dist];
    Ok(Recorded {
        time: data.time(),
        xpos: arm.xpos,
        xquat: arm.xquat,
        cvel: arm.cvel,
        root: joint("root")?,
        shoulder: joint("shoulder")?,
        hull: data.geom("hull")?,
        tip: data.site("tip")?,
        sensors: Sensors {
            gyro: sensor("gyro")?,
            accelerometer: sensor("accelerometer")?,
            touch: sensor("touch")?,
            bent: sensor("bent")?,
        },
        contacts: data.contacts().map(numbers).collect(),
    })
}

/// Observes the positions, and keeps what it reads at each step.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Recorded>>>);

impl MujocoTask for Recorder {
    fn spec(&self) -> MujocoSpec {
        let model = Mjcf::Text(MODEL.into());
        MujocoSpec { id: "Fixture-v0".into(), model, frame_skip: 10, ..Default::default() }
    }

    fn reward(&self, step: &MujocoStep<'_>) -> Result<(f64, bool)> {
        self.0.lock().unwrap().push(record(step.data)?);
        Ok((step.dt, false))
    }

    fn observe(&self, data: &MjData<'_>, obs: &mut Vec<f64>) -> Result<()> {
        obs.extend_from_slice(data.qpos());
        Ok(())
    }
}

fn step(env: &mut Mujoco, action: &[f32]) -> Result<f64> {
    let (size, mut rng) = (12, EnvRng::new(seeds(1, 0, 0, 0)));
    let mut obs = vec![0f32; size];
    let row = ObsMut(bytemuck::cast_slice_mut(&mut obs));
    Ok(env.step(Action::Box(action), &mut rng, row)?.reward)
}

#[test]
fn a_task_reads_what_mujoco_has() {
    let recorder = Recorder::default();
    let mut env = Mujoco::from_task(recorder.clone()).unwrap();
    for t in 0..12 {
        let reward = step(&mut env, &[(0.1 * f64::from(t) - 0.3) as f32, 0.5]).unwrap();
        assert!((reward - 0.05).abs() < 1e-12, "{reward}");
    }
    let recorded: Vec<Recorded> =
        serde_json::from_str(include_str!("../fixtures/envs/mujoco_task.json")).unwrap();
    assert_eq!(*recorder.0.lock().unwrap(), recorded);
}

/// A task made of functions, for errors.
struct Functions {
    spec: MujocoSpec,
    reward: fn(&MujocoStep<'_>) -> Result<(f64, bool)>,
    observe: fn(&MjData<'_>, &mut Vec<f64>) -> Result<()>,
}

impl Default for Functions {
    fn default() -> Self {
        Functions {
            spec: Recorder::default().spec(),
            reward: |step| Ok((step.after[0] - step.before[0], false)),
            observe: |data, obs| {
                obs.extend_from_slice(data.qpos());
                Ok(())
            },
        }
    }
}

impl MujocoTask for Functions {
    fn spec(&self) -> MujocoSpec {
        self.spec.clone()
    }

    fn reset(&self, rng: &mut EnvRng, qpos: &mut [f64], qvel: &mut [f64]) {
        qpos[0] = rng.uniform(-1.0, 1.0);
        qvel[0] = 2.0;
    }

    fn carry(&self, data: &MjData<'_>) -> Result<Carry> {
        Ok([data.qpos()[0], 0.0])
    }

    fn reward(&self, step: &MujocoStep<'_>) -> Result<(f64, bool)> {
        (self.reward)(step)
    }

    fn observe(&self, data: &MjData<'_>, obs: &mut Vec<f64>) -> Result<()> {
        (self.observe)(data, obs)
    }
}

#[test]
fn a_task_is_an_environment_of_pools() {
    envs::register("Functions-v0", || Ok(Box::new(Mujoco::from_task(Functions::default())?)))
        .unwrap();
    let options = PoolOptions { num_envs: 3, num_threads: 2, ..Default::default() };
    let run = || -> Vec<f32> {
        let mut pool = EnvPool::make("Functions-v0", options.clone()).unwrap();
        let spec = pool.spec();
        // The second actuator has no limits.
        let bounds = [0.5f32, f32::INFINITY];
        let [low, high] = [[-0.5, -bounds[1]], [1.0, bounds[1]]];
        assert_eq!(
            spec.action,
            Space::f32([2], low.map(f64::from).to_vec(), high.map(f64::from).to_vec())
        );
        assert_eq!(spec.max_episode_steps, Some(1000));
        pool.reset().unwrap();
        let batch = pool.step(&[0.25f32; 6]).unwrap();
        // The reward is the way in x: 2 m/s in 50 ms.
        assert!(
            batch.reward().iter().all(|reward| (reward - 0.1).abs() < 1e-3),
            "{:?}",
            batch.reward()
        );
        batch.obs::<f32>().to_vec()
    };
    let obs = run();
    assert_eq!(obs, run());
    assert!(obs[0] != obs[12], "each environment has a start of its own");
}

#[test]
fn errors_of_tasks_say_where() {
    let made = |task: Functions| Mujoco::from_task(task).unwrap_err().to_string();
    let with_model = |model: Mjcf| {
        let spec = MujocoSpec { model, ..Functions::default().spec };
        made(Functions { spec, ..Default::default() })
    };
    let text = |text: &'static str| with_model(Mjcf::Text(text.into()));
    // The line of the mistake.
    let error = text("<mujoco>\n<worldbody>\n<bodi/>\n</worldbody>\n</mujoco>");
    assert!(error.starts_with("Fixture-v0: the model's text: "), "{error}");
    assert!(error.contains("bodi") && error.contains("line 3"), "{error}");
    let error = text("<mujoco><worldbody><geom type=\"sphere\"/></worldbody></mujoco>");
    assert!(error.starts_with("Fixture-v0: the model's text: "), "{error}");
    let error = text("<mujoco><worldbody><geom size=\"1\"/></worldbody></mujoco>");
    assert_eq!(error, "Fixture-v0: the model has no actuator, so there are no actions");
    let error = with_model(Mjcf::File(PathBuf::from("no/robot.xml")));
    assert!(error.starts_with("Fixture-v0: the model no/robot.xml cannot be read: "), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "<mujoco>\n<oops/>\n</mujoco>").unwrap();
    let error = with_model(Mjcf::File(file.path().into()));
    assert!(error.contains(file.path().to_str().unwrap()) && error.contains("line 2"), "{error}");

    let spec = |change: fn(&mut MujocoSpec)| {
        let mut task = Functions::default();
        change(&mut task.spec);
        made(task)
    };
    assert_eq!(
        spec(|spec| spec.frame_skip = 0),
        "Fixture-v0: frame_skip is 0, expected at least 1"
    );
    assert_eq!(
        spec(|spec| spec.obs_dtype = DType::U8),
        "Fixture-v0: obs_dtype is u8, expected f64 (as in gymnasium) or f32"
    );
    let error = made(Functions { observe: |_, _| Ok(()), ..Default::default() });
    assert_eq!(error, "Fixture-v0: the observation has no numbers");
    let observe = |data: &MjData<'_>, _: &mut Vec<f64>| data.sensor("giro").map(|_| ());
    let error = made(Functions { observe, ..Default::default() });
    let names = "it has gyro, accelerometer, touch, bent";
    assert_eq!(error, format!("Fixture-v0: the model has no sensor named \"giro\"; {names}"));

    let after = |task: Functions| {
        let mut env = Mujoco::from_task(task).unwrap();
        step(&mut env, &[0.0, 0.0]).unwrap_err().to_string()
    };
    let reward = |step: &MujocoStep<'_>| Ok((0.0, step.data.in_contact("hull", "ground")?));
    let error = after(Functions { reward, ..Default::default() });
    let names = "it has floor, hull, link, palm";
    assert_eq!(error, format!("Fixture-v0: the model has no geom named \"ground\"; {names}"));
    let observe = |data: &MjData<'_>, obs: &mut Vec<f64>| {
        obs.resize(if data.time() > 0.0 { 2 } else { 1 }, 0.0);
        Ok(())
    };
    let error = after(Functions { observe, ..Default::default() });
    assert_eq!(error, "Fixture-v0: the observation has 2 numbers, the first had 1");
}
