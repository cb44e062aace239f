//! Defines an environment, registers it, and compares a random policy, a controller and PPO on it.
//!
//! You learn the trait `Env`: a specification, `reset` and `step`. Threads, time limits, resets, seeds and
//! statistics are the pool's. After `register` every algorithm trains on it by its id.
//!
//! ```sh
//! cargo run --release --example custom_environment
//! ```

use clap::Parser;
use podracer::algos::ppo;
use podracer::envs::{
    self, Action, Env, EnvPool, EnvRng, EnvSpec, ObsMut, PoolOptions, Space, StepOutcome,
};
use podracer::prelude::*;
use podracer::rl::Algorithm;

/// Command line.
#[derive(Parser)]
struct Args {
    /// Timesteps of PPO
    #[arg(long, default_value = "100000")]
    total_timesteps: u64,
    /// Episodes of the other policies
    #[arg(long, default_value = "200")]
    episodes: usize,
    /// Folder of PPO's run
    #[arg(long, default_value = "runs")]
    runs_dir: String,
}

/// A ship on a line that must come to rest at the origin, where the dock is.
#[derive(Default)]
struct Docking {
    position: f64,
    velocity: f64,
}

impl Docking {
    const ID: &str = "Docking-v0";

    fn write_obs(&self, mut obs: ObsMut<'_>) {
        obs.write(&[self.position as f32, self.velocity as f32]);
    }
}

impl Env for Docking {
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: Docking::ID.into(),
            observation: Space::f32([2], -3.0, 3.0),
            action: Space::Discrete { n: 3 }, // thrust to the left, none, to the right
            max_episode_steps: Some(100),     // counted by the pool, which then sets `truncated`
            reward_threshold: None,
        }
    }

    // `rng` is the only source of randomness, so that a seed repeats a run bit for bit.
    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        *self = Docking { position: rng.uniform(-1.0, 1.0), velocity: 0.0 };
        self.write_obs(obs);
        Ok(())
    }

    fn step(&mut self, action: Action<'_>, _: &mut EnvRng, obs: ObsMut<'_>) -> Result<StepOutcome> {
        self.velocity += 0.02 * (action.discrete() as f64 - 1.0);
        self.position += self.velocity;
        self.write_obs(obs);
        let docked = self.position.abs() < 0.05 && self.velocity.abs() < 0.03;
        let lost = self.position.abs() > 2.0;
        let reward = match (docked, lost) {
            (true, _) => 10.0,
            (_, true) => -10.0,
            _ => -0.1 * self.position.abs(),
        };
        Ok(StepOutcome::new(reward, docked || lost))
    }
}

/// Mean return and length of complete episodes under a policy.
fn evaluate(
    episodes: usize,
    mut policy: impl FnMut(&[f32], &mut EnvRng) -> i32,
) -> Result<[f64; 2]> {
    let mut pool = EnvPool::make(Docking::ID, PoolOptions { num_envs: 8, ..Default::default() })?;
    let mut rng = EnvRng::new(envs::seeds(0, 0, 0, 0));
    let mut batch = pool.reset()?;
    let mut finished = Vec::new();
    while finished.len() < episodes.max(1) {
        let actions: Vec<i32> =
            (0..8).map(|row| policy(batch.obs_row::<f32>(row), &mut rng)).collect();
        batch = pool.step(&actions)?;
        finished.extend(pool.take_finished());
    }
    let mean = |total: f64| total / finished.len() as f64;
    Ok([
        mean(finished.iter().map(|episode| episode.episodic_return).sum()),
        mean(finished.iter().map(|episode| f64::from(episode.length)).sum()),
    ])
}

fn main() -> Result<()> {
    let args = Args::parse();
    envs::register(Docking::ID, || Ok(Box::new(Docking::default())))?;

    let random = evaluate(args.episodes, |_, rng| rng.below(3) as i32)?;
    // Thrust against where the ship would be when it has come to rest.
    let controller = evaluate(args.episodes, |obs, _| match obs[0] + 7.0 * obs[1] {
        x if x > 0.03 => 0,
        x if x < -0.03 => 2,
        _ => 1,
    })?;
    let steps = args.total_timesteps.to_string();
    let flags = ["--env-id", Docking::ID, "--num-envs", "8", "--learning-rate", "1e-3"];
    let flags =
        flags.into_iter().chain(["--total-timesteps", &steps, "--runs-dir", &args.runs_dir]);
    let ppo = ppo::Args::from_flags(flags).unwrap_or_else(|error| error.exit()).train()?;

    println!("{:34} {:>11} {:>11}", "policy", "mean return", "mean length");
    println!("{:34} {:11.2} {:11.1}", "random", random[0], random[1]);
    println!("{:34} {:11.2} {:11.1}", "controller", controller[0], controller[1]);
    let label = format!("PPO, {} steps, last 100 episodes", ppo.global_step);
    println!("{label:34} {:11.2}", ppo.avg_episodic_return.unwrap_or(f64::NAN));
    println!("TensorBoard events and settings of the run: {}", ppo.run_dir);
    Ok(())
}
