//! Defines a robot by a model and a reward, registers it, and trains PPO on it.
//!
//! You learn the trait `MujocoTask`: a model in MuJoCo's XML format, the start of an episode, the reward,
//! the observation. Threads, time limits, films and export are those of every environment.
//!
//! ```sh
//! cargo run --release --example custom_robot
//! ```

use clap::Parser;
use podracer::algos::ppo_continuous_action as ppo;
use podracer::envs::mujoco::{MjData, Mjcf, Mujoco, MujocoSpec, MujocoStep, MujocoTask};
use podracer::envs::{self, EnvRng};
use podracer::prelude::*;
use podracer::rl::Algorithm;

/// Command line.
#[derive(Parser)]
struct Args {
    /// Timesteps of PPO
    #[arg(long, default_value = "300000")]
    total_timesteps: u64,
    /// Film an episode of each thousand, and the evaluation
    #[arg(long)]
    capture_video: bool,
    /// Folder of PPO's run
    #[arg(long, default_value = "runs")]
    runs_dir: String,
}

/// The robot and its world, in MuJoCo's XML format.
const MODEL: &str = r#"
<mujoco model="balancer">
  <option timestep="0.005"/>
  <worldbody>
    <light pos="0 -2 3"/>
    <geom name="floor" type="plane" size="40 40 1" rgba="0.8 0.9 0.8 1" friction="1 0.01 0.001"/>
    <body name="chassis" pos="0 0 0.1">
      <camera name="track" mode="trackcom" pos="0 -3 0.6" xyaxes="1 0 0 0 0.1 1"/>
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="z" type="slide" axis="0 0 1"/>
      <joint name="pitch" type="hinge" axis="0 1 0"/>
      <geom name="post" type="capsule" fromto="0 0 0.12 0 0 0.6" size="0.04" mass="1" rgba="0.7 0.5 0.3 1"/>
      <site name="imu" pos="0 0 0.3"/>
      <body name="wheel">
        <joint name="axle" type="hinge" axis="0 1 0" damping="0.005"/>
        <geom name="tire" type="cylinder" size="0.1 0.03" euler="90 0 0" mass="0.4" rgba="0.3 0.3 0.4 1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="motor" joint="axle" gear="2" ctrlrange="-1 1"/>
  </actuator>
  <sensor>
    <gyro name="gyro" site="imu"/>
  </sensor>
</mujoco>
"#;

/// A post on a wheel that must ride at one metre per second and not fall.
struct Balancer;

impl Balancer {
    const ID: &str = "Balancer-v0";
}

impl MujocoTask for Balancer {
    fn spec(&self) -> MujocoSpec {
        MujocoSpec {
            id: Balancer::ID.into(),
            model: Mjcf::Text(MODEL.into()),
            frame_skip: 4, // 20 ms
            max_episode_steps: Some(500),
            ..Default::default()
        }
    }

    /// The post leans a little, forwards or backwards.
    fn reset(&self, rng: &mut EnvRng, qpos: &mut [f64], _qvel: &mut [f64]) {
        qpos[2] = rng.uniform(-0.1, 0.1);
    }

    fn reward(&self, step: &MujocoStep<'_>) -> Result<(f64, bool)> {
        let velocity = step.data.joint("x")?.qvel[0];
        let fallen = step.data.in_contact("post", "floor")?;
        let effort = 0.01 * f64::from(step.action[0]).powi(2);
        Ok((1.0 - 0.5 * (velocity - 1.0).abs().min(2.0) - effort, fallen))
    }

    fn observe(&self, data: &MjData<'_>, obs: &mut Vec<f64>) -> Result<()> {
        let (pitch, x, axle) = (data.joint("pitch")?, data.joint("x")?, data.joint("axle")?);
        obs.extend([pitch.qpos[0], x.qvel[0], axle.qvel[0]]);
        obs.extend_from_slice(data.sensor("gyro")?);
        Ok(())
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    envs::register(Balancer::ID, || Ok(Box::new(Mujoco::from_task(Balancer)?)))?;

    let steps = args.total_timesteps.to_string();
    let video = if args.capture_video { "--capture-video" } else { "--no-capture-video" };
    let flags = ["--env-id", Balancer::ID, "--num-envs", "8", "--num-steps", "256", video];
    let more = ["--total-timesteps", &steps, "--runs-dir", &args.runs_dir];
    let model = ["--save-model", "--eval-episodes", "5"];
    let flags = flags.into_iter().chain(more).chain(model);
    let ppo = ppo::Args::from_flags(flags).unwrap_or_else(|error| error.exit()).train()?;

    let last = ppo.avg_episodic_return.unwrap_or(f64::NAN);
    let deterministic = ppo.eval_episodic_return.unwrap_or(f64::NAN);
    println!("PPO, {} steps: mean return of the last 100 episodes {last:.1}", ppo.global_step);
    println!("without exploration {deterministic:.1}, of at most 500");
    println!("run: {}", ppo.run_dir);
    Ok(())
}
