//! Tests of the estimated memory of agents that are trained in one program.

use crate::algos::{dqn_anakin, ppo_anakin, ppo_anakin_gru};
use crate::rl::algorithm::Algorithm;
use crate::rl::anakin::AnakinEnv;
use crate::rl::anakin::memory::{ProgramSizes, estimate};
use crate::rl::anakin::saved_model::agent_types;
use crate::rl::environments::spaces::Sizes;
use crate::trace::TensorType;
use crate::tree;

/// CartPole has observations and states of four f32.
const CARTPOLE_STEP: u128 = 16 + 4 + 13 + 32;

#[test]
fn rollouts_count_for_the_agents_that_are_trained_at_once() {
    let bytes = |flags: &[&str], devices| {
        let small = ["--num-envs=4", "--num-steps=128"];
        let args = ppo_anakin::Args::from_flags(small.iter().chain(flags).copied()).unwrap();
        let env = AnakinEnv::new(&args).unwrap();
        let types = agent_types(&args, |key| ppo_anakin::init_runner(&env, key, &args));
        let state = tree::leaves(&types.unwrap());
        estimate(&args, &env, &ProgramSizes { state, updates_per_call: 3, devices }).unwrap()
    };
    // Parameters and two moments, the key, two counts, and the environments with statistics.
    let params = (4 * 64 + 64) * 2 + (64 * 64 + 64) * 2 + (64 * 2 + 2) + (64 + 1);
    let state = 4 * (3 * params + 2 + 2 + 4 * (4 + 4 + 2));
    let report = 3 * 512 * 8;
    let rollout = 512 * CARTPOLE_STEP;
    assert_eq!(bytes(&[], 1), state + report + rollout);
    assert_eq!(bytes(&["--num-seeds=8"], 2), 8 * (state + report) + 2 * rollout);
    let vmap = ["--num-seeds=8", "--seed-axis=vmap"];
    assert_eq!(bytes(&vmap, 2), 8 * (state + report + rollout));
    let sweep = ["--num-seeds=2", "--sweep=gamma=0.8,0.9,0.99"];
    assert_eq!(bytes(&sweep, 1), 6 * (state + report) + rollout);
}

#[test]
fn states_are_those_of_the_algorithm() {
    let args = ppo_anakin_gru::Args::from_flags(["--num-seeds=2"]).unwrap();
    let env = AnakinEnv::new(&args).unwrap();
    let types = agent_types(&args, |key| ppo_anakin_gru::init_runner(&env, key, &args));
    let bytes: usize = tree::leaves(&types.unwrap()).iter().map(TensorType::bytes).sum();
    // The two matrices of a GRU of 128 units, with two moments.
    assert!(bytes > 2 * 3 * 4 * (2 * 3 * 128 * 128), "{bytes}");

    let args = dqn_anakin::Args::from_flags(["--num-seeds=2", "--buffer-size=1000"]).unwrap();
    let env = AnakinEnv::new(&args).unwrap();
    let sizes = Sizes::from_spec(dqn_anakin::Args::NAME, &env.spec, &dqn_anakin::Args::ENVS);
    let sizes = sizes.unwrap();
    let types = agent_types(&args, |key| dqn_anakin::init_runner(&env, &sizes, key, &args));
    let bytes: usize = tree::leaves(&types.unwrap()).iter().map(TensorType::bytes).sum();
    // Four networks, and two observations and three numbers a transition.
    let params = 4 * 120 + 120 + 120 * 84 + 84 + 84 * 2 + 2;
    let least = 2 * (4 * 4 * params + 1000 * (2 * 16 + 12));
    assert!((least..least + 2000).contains(&bytes), "{bytes}, not {least}");
}
