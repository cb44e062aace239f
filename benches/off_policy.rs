//! TD3, DDPG and SAC on HalfCheetah-v4, DQN and C51 on CartPole-v1: steps per second of the whole loop
//! while learning, beside loops of CleanRL's kind.
//!
//! `cargo bench --bench off_policy` measures us alone. With `PODRACER_PEER_PYTHON=.../bin/python`,
//! a Python with gymnasium, mujoco and numpy, each row is measured alternately with
//! `benches/peers/off_policy.py`: `sac` needs torch there, the others jax. Rows can be chosen: `cargo
//! bench --bench off_policy -- td3 sac`. The row `sbx_sac`, beside SBX (`benches/peers/sbx_sac.py`, the package
//! sbx-rl), is measured if it is named.
//!
//! Ours is the difference of a run that learns for some thousand steps and one that only fills the
//! buffer before it, without compilation. The last column is their steps by ours, so that below 1
//! we are faster.

mod peer;

use peer::{Peer, Row};
use podracer::algos::{
    c51, ddpg_continuous_action, dqn, sac_continuous_action, td3_continuous_action,
};
use podracer::error::Result;
use podracer::rl::Algorithm;

/// Steps before learning starts.
const START: usize = 1000;

/// Seconds of a run without compilation.
fn seconds<A: Algorithm>(env_id: &str, steps: usize) -> Result<f64> {
    let runs = std::env::temp_dir().join("podracer-off-policy");
    let (start, steps) = (START.to_string(), steps.to_string());
    let flags = ["--env-id", env_id, "--learning-starts", &start, "--json"];
    let runs_dir = runs.to_string_lossy();
    let flags = [&flags[..], &["--total-timesteps", &steps, "--runs-dir", &runs_dir]].concat();
    let args = A::from_flags(flags).expect("the flags are right");
    let summary = args.train()?;
    std::fs::remove_dir_all(&summary.run_dir).expect("the run can be removed");
    Ok(summary.wall_s - summary.compile_s)
}

fn measure<A: Algorithm>(row: &str, env_id: &str, steps: usize, peer: &mut Peer) -> Result<()> {
    let mut line = Row::new(format!("{row}, steps/s"));
    seconds::<A>(env_id, START + 500)?; // Compiles.
    for _ in 0..3 {
        let learning = seconds::<A>(env_id, START + steps)? - seconds::<A>(env_id, START)?;
        line.ours(steps as f64 / learning);
        line.peer(peer, row);
    }
    line.print();
    Ok(())
}

fn main() -> Result<()> {
    let asked: Vec<String> = std::env::args().skip(1).filter(|x| !x.starts_with('-')).collect();
    let wants = |row: &str| asked.is_empty() || asked.iter().any(|x| x == row);
    let mut peer = Peer::start("off_policy.py");
    Row::header();
    let (robot, pole) = ("HalfCheetah-v4", "CartPole-v1");
    if wants("td3") {
        measure::<td3_continuous_action::Args>("td3", robot, 2000, &mut peer)?;
    }
    if wants("ddpg") {
        measure::<ddpg_continuous_action::Args>("ddpg", robot, 3000, &mut peer)?;
    }
    if wants("sac") {
        measure::<sac_continuous_action::Args>("sac", robot, 1000, &mut peer)?;
    }
    if wants("dqn") {
        measure::<dqn::Args>("dqn", pole, 50_000, &mut peer)?;
    }
    if wants("c51") {
        measure::<c51::Args>("c51", pole, 20_000, &mut peer)?;
    }
    // Only if it is named: the other rows need no SBX.
    if asked.iter().any(|row| row == "sbx_sac") {
        let mut peer = Peer::start("sbx_sac.py");
        measure::<sac_continuous_action::Args>("sbx_sac", robot, 1000, &mut peer)?;
    }
    Ok(())
}
