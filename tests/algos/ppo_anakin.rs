//! PPO in one program: its functions by hand, modes and seeds against each other, refused settings.

use std::collections::BTreeMap;
use std::path::Path;

use podracer::algos::ppo_anakin::{
    Args, RunnerState, TracedArgs, collect_rollout, compute_gae, init_runner,
};
use podracer::rl::anakin::AnakinEnv;
use podracer::rl::{Algorithm, checkpoint};
use podracer::trace::ops::zeros_like;
use podracer::{Array, Error, Key, Tensor, interpret, jit, tree};

use super::scalars;

const SMALL: &[&str] = &[
    "--total-timesteps",
    "96",
    "--num-envs",
    "2",
    "--num-steps",
    "16",
    "--num-minibatches",
    "2",
    "--update-epochs",
    "2",
    "--json",
    "--updates-per-call=1",
];

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = runs.to_str().unwrap();
    Args::from_flags(SMALL.iter().chain(more).copied().chain(["--runs-dir", runs])).unwrap()
}

#[test]
fn gae_equals_the_sum_by_hand() {
    // Steps 1 and 3 end their episodes.
    let (rewards, values) = ([1.0f32, 2.0, 3.0, 4.0], [0.5f32, 0.25, -0.5, 1.0]);
    let dones = [false, true, false, true];
    let run = interpret(|(rewards, dones, values, next): (Tensor, Tensor, Tensor, Tensor)| {
        compute_gae(rewards, dones, values, next, (0.9, 0.8))
    });
    let rows = |column: [f32; 4]| Array::new([4, 1], &column).unwrap();
    let dones = Array::new([4, 1], &dones).unwrap();
    let (advantages, returns) =
        run.call((rows(rewards), dones, rows(values), Array::from([7.0f32]))).unwrap();
    let a3 = 4.0 - 1.0;
    let a2 = (3.0 + 0.9 * 1.0 + 0.5) + 0.9 * 0.8 * a3;
    let a1 = 2.0 - 0.25;
    let a0 = (1.0 + 0.9 * 0.25 - 0.5) + 0.9 * 0.8 * a1;
    let expected: [f32; 4] = [a0, a1, a2, a3];
    let advantages = advantages.to_vec::<f32>().unwrap();
    let returns = returns.to_vec::<f32>().unwrap();
    for i in 0..4 {
        assert!((advantages[i] - expected[i]).abs() < 1e-6, "{advantages:?} {expected:?}");
        assert!((returns[i] - expected[i] - values[i]).abs() < 1e-6);
    }
}

#[test]
fn every_mode_logs_the_same_losses() {
    for env in ["CartPole-v1", "Pendulum-v1", "MinAtar/Breakout-v1"] {
        let runs = tempfile::tempdir().unwrap();
        let log = |mode: &str| {
            let summary = args(runs.path(), &["--mode", mode, "--env-id", env]).train().unwrap();
            assert_eq!((summary.mode.as_str(), summary.global_step), (mode, 96));
            scalars(&summary.run_dir)
        };
        let jit = log("jit");
        assert!(jit.keys().filter(|(tag, _)| tag == "losses/value_loss").count() == 3);
        let other = log("interpret");
        assert_eq!(jit.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
        for (key, values) in &jit {
            for (a, b) in values.iter().zip(&other[key]) {
                // Three updates, of which the later see the roundings of the earlier.
                let close = (a - b).abs() <= 1e-3 * a.abs().max(1.0);
                assert!(close || (a.is_nan() && b.is_nan()), "{env} {key:?}: {a}, host {b}");
            }
        }
    }
}

#[test]
fn many_seeds_at_once_are_the_seeds_alone() {
    let runs = tempfile::tempdir().unwrap();
    let model = |flags: &[&str]| {
        let summary = args(runs.path(), &[flags, &["--save-model"]].concat()).train().unwrap();
        checkpoint::load(Path::new(&summary.run_dir).join("ppo_anakin.safetensors")).unwrap()
    };
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
    };
    let alone: Vec<_> = ["5", "6", "7"].map(|seed| (seed, model(&["--seed", seed]))).into();
    // Products of batches round otherwise than those of one agent.
    for (axis, tolerance) in [("map", 0.0), ("vmap", 1e-4)] {
        let many = model(&["--seed", "5", "--num-seeds", "3", "--seed-axis", axis]);
        for (i, (seed, alone)) in alone.iter().enumerate() {
            for (one, all) in alone.entries().zip(many.entries()) {
                assert_eq!(one.name, all.name);
                assert_eq!(all.ty.shape[0], 3);
                assert_eq!(all.ty.shape[1..], one.ty.shape[..]);
                let size = one.data.len();
                let part = &all.data[i * size..(i + 1) * size];
                let name = format!("{} of seed {seed} by {axis}", one.name);
                if one.name.starts_with("$.train_state.agent") {
                    for (a, b) in floats(one.data).into_iter().zip(floats(part)) {
                        assert!((a - b).abs() <= tolerance, "{name}: {a}, not {b}");
                    }
                } else if one.name == "$.key.data" || one.name == "$.num_updates" {
                    assert_eq!(one.data, part, "{name}");
                }
            }
        }
    }
}

#[test]
fn an_agent_of_a_sweep_is_the_agent_of_its_values_alone() {
    let runs = tempfile::tempdir().unwrap();
    let model = |flags: &[&str]| {
        let summary = args(runs.path(), &[flags, &["--save-model"]].concat()).train().unwrap();
        let path = Path::new(&summary.run_dir);
        (checkpoint::load(path.join("ppo_anakin.safetensors")).unwrap(), path.to_path_buf())
    };
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
    };
    // The last agent has the last values, and the last seed.
    for (env, axis, sweeps, alone) in [
        (
            "CartPole-v1",
            "map",
            ["--sweep=learning-rate=log:1e-4:1e-2:3", "--sweep=ent_coef=0,0.5"],
            ["--learning-rate=0.01", "--ent-coef=0.5"],
        ),
        (
            "Pendulum-v1",
            "map",
            ["--sweep=gamma=linear:0.5:0.9:2", "--sweep=clip-coef=0.2,0.01"],
            ["--gamma=0.9", "--clip-coef=0.01"],
        ),
        (
            "CartPole-v1",
            "vmap",
            ["--sweep=gae-lambda=0.95,0.1", "--bootstrap-truncated"],
            ["--gae-lambda=0.1", "--bootstrap-truncated"],
        ),
    ] {
        let shared = ["--env-id", env, "--learning-rate=0.01"];
        let many = [&shared[..], &sweeps, &["--num-seeds=2", "--seed-axis", axis, "--seed=3"]];
        let (many, folder) = model(&many.concat());
        let (one, _) = model(&[&shared[..], &alone, &["--seed=4"]].concat());
        let (first, _) = model(&[&shared[..], &["--seed=4"]].concat());
        let mut distance = 0.0f32;
        for ((one, all), first) in one.entries().zip(many.entries()).zip(first.entries()) {
            assert_eq!(one.name, all.name);
            if !one.name.starts_with("$.train_state.agent") {
                continue;
            }
            let part = floats(&all.data[all.data.len() - one.data.len()..]);
            for (a, b) in floats(one.data).into_iter().zip(part) {
                let name = &one.name;
                assert!((a - b).abs() <= 2e-4, "{env} {name}: {a} alone, {b} in {sweeps:?}");
            }
            for (a, b) in floats(one.data).into_iter().zip(floats(first.data)) {
                distance = distance.max((a - b).abs());
            }
        }
        assert!(distance > 1e-3, "{sweeps:?} change nothing: {distance}");
        let text = std::fs::read_to_string(folder.join("sweep.jsonl")).unwrap();
        assert_eq!(text.lines().count(), if axis == "vmap" { 2 } else { text.lines().count() });
        assert!(folder.join("sweep.svg").exists());
    }
}

#[test]
fn one_seed_gives_one_run_however_it_is_launched() {
    let runs = tempfile::tempdir().unwrap();
    let log = |seed: &str, launch: &str| {
        let flags = ["--seed", seed, "--updates-per-call", launch];
        scalars(&args(runs.path(), &flags).train().unwrap().run_dir)
    };
    let bits = |log: BTreeMap<(String, u64), Vec<f32>>| -> Vec<_> {
        log.into_iter()
            .map(|(k, v)| (k, v.iter().map(|x| x.to_bits()).collect::<Vec<_>>()))
            .collect()
    };
    let (once, again) = (log("3", "3"), log("3", "3"));
    // Two updates, and the one that is left over: another program, which may round otherwise.
    let parts = log("3", "2");
    assert_eq!(once.keys().collect::<Vec<_>>(), parts.keys().collect::<Vec<_>>());
    for (key, values) in &once {
        for (a, b) in values.iter().zip(&parts[key]) {
            assert!((a - b).abs() <= 1e-3 * a.abs().max(1.0), "{key:?}: {a}, in parts {b}");
        }
    }
    let once = bits(once);
    assert_eq!(once, bits(again));
    assert_ne!(once, bits(log("4", "3")));
}

#[test]
fn a_saved_model_holds_everything_by_path() {
    let runs = tempfile::tempdir().unwrap();
    let flags = ["--save-model", "--no-anneal-lr", "--env-id", "Pendulum-v1"];
    let summary = args(runs.path(), &flags).train().unwrap();
    let model =
        checkpoint::load(Path::new(&summary.run_dir).join("ppo_anakin.safetensors")).unwrap();
    let names: Vec<String> = model.entries().map(|entry| entry.name.to_string()).collect();
    for name in [
        "$.train_state.agent.actor[0].w",
        "$.train_state.agent.critic[2].b",
        "$.train_state.agent.log_std",
        "$.train_state.opt_state.m.actor[0].w",
        "$.train_state.opt_state.count",
        "$.env_state.state.state[0]",
        "$.key.data",
        "$.num_updates",
    ] {
        assert!(names.iter().any(|n| n == name), "{name} is not among {names:?}");
    }
    let settings: serde_json::Value = model.metadata().unwrap();
    assert_eq!(settings["settings"]["anneal_lr"], false);
    assert_eq!(settings["settings"]["num_steps"], 16);
}

#[test]
fn cartpole_is_learned_beyond_a_random_policy() {
    let runs = tempfile::tempdir().unwrap();
    let runs = runs.path().to_str().unwrap();
    let flags = ["--json", "--total-timesteps", "100000", "--runs-dir", runs];
    let summary = Args::from_flags(flags).unwrap().train().unwrap();
    let mean = summary.avg_episodic_return.unwrap();
    // A random policy has 22.
    assert!(mean > 100.0, "{mean}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| args(runs.path(), flags).train().unwrap_err().to_string();
    assert_eq!(
        error(&["--num-minibatches", "3"]),
        "--num-minibatches 3: must be a divisor of the batch, num-envs * num-steps = 32"
    );
    assert_eq!(
        error(&["--num-seeds", "4", "--num-devices", "3"]),
        "--num-devices 3: must be a divisor of --num-seeds 4"
    );
    let nans = ["--num-seeds", "4", "--num-devices", "2", "--check-nans"];
    assert!(error(&nans).contains("--num-devices 2: must be 1 in other modes than jit"));
    assert_eq!(
        error(&["--num-seeds", "0"]),
        "--num-seeds 0: must be a whole number from 1 to 65536"
    );
    assert_eq!(error(&["--gamma", "1.5"]), "--gamma 1.5: must be a number from 0 to 1");
    assert_eq!(
        error(&["--total-timesteps", "31"]),
        "--total-timesteps 31: must be at least one batch, num-envs * num-steps = 32"
    );
    let pooled = error(&["--env-id", "FrozenLake-v1"]);
    assert!(pooled.contains("is in the pool only") && pooled.contains("CartPole-v1"), "{pooled}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run folder was created");
}

#[test]
fn a_nan_is_reported_with_its_seed() {
    let runs = tempfile::tempdir().unwrap();
    let flags = ["--learning-rate=1e15", "--vf-coef=1e15", "--num-seeds=2", "--seed=8"];
    let error = args(runs.path(), &flags).train().unwrap_err();
    assert!(matches!(error, Error::Nan(_)), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("the loss of seed 8 is ") && text.contains("--check-nans"), "{text}");
}

/// Running statistics on the host, of elements of `width` numbers: mean, variance, count.
struct Stats {
    mean: Vec<f64>,
    var: Vec<f64>,
    count: f64,
}

impl Stats {
    fn new(width: usize) -> Stats {
        Stats { mean: vec![0.0; width], var: vec![1.0; width], count: 1e-4 }
    }

    fn update(&mut self, batch: &[f32]) {
        let width = self.mean.len();
        let rows = (batch.len() / width) as f64;
        let total = self.count + rows;
        for i in 0..width {
            let column = || batch.iter().skip(i).step_by(width).map(|&x| f64::from(x));
            let mean = column().sum::<f64>() / rows;
            let var = column().map(|x| (x - mean) * (x - mean)).sum::<f64>() / rows;
            let delta = mean - self.mean[i];
            let squares =
                self.var[i] * self.count + var * rows + delta * delta * self.count * rows / total;
            self.mean[i] += delta * rows / total;
            self.var[i] = squares / total;
        }
        self.count = total;
    }
}

/// PureJaxRL's `NormalizeVecObservation` and `NormalizeVecReward`, over five steps of three pendulums
/// whose agent ignores its observations.
#[test]
fn observations_and_rewards_are_normalized_as_by_purejaxrl() {
    let (steps, envs, size, gamma) = (5, 3, 3, 0.9);
    let collect = |flag: &str| {
        let flags = ["--env-id=Pendulum-v1", "--num-envs=3", "--num-steps=5", "--gamma=0.9", flag];
        let args = Args::from_flags(flags).unwrap();
        let env = AnakinEnv::new(&args).unwrap();
        let run = jit(|key: Key<Tensor>| {
            let (key, rollout_key) = key.split();
            let RunnerState { train_state, env_state, .. } = init_runner(&env, key, &args);
            let agent = tree::map(train_state.agent, |x: Tensor| zeros_like(x));
            let (env_state, rollout) =
                collect_rollout(&env, &agent, env_state, rollout_key, &TracedArgs::new(&args, &[]));
            (rollout.obs, env_state.obs, rollout.rewards)
        });
        let (obs, last, rewards) = run.call(Key::new(3)).unwrap();
        let mut seen = obs.to_vec::<f32>().unwrap();
        seen.extend(last.to_vec::<f32>().unwrap());
        (seen, rewards.to_vec::<f32>().unwrap())
    };
    let (raw, raw_rewards) = collect("--no-normalize-env");
    let (normal, rewards) = collect("--normalize-env");

    let near = |found: f32, expected: f64| {
        let bound = 1e-3 * expected.abs().max(1.0);
        assert!((f64::from(found) - expected).abs() < bound, "{found}, not {expected}");
    };
    let mut stats = Stats::new(size);
    for step in 0..=steps {
        let rows = step * envs * size..(step + 1) * envs * size;
        stats.update(&raw[rows.clone()]);
        for i in rows {
            let (mean, var) = (stats.mean[i % size], stats.var[i % size]);
            near(normal[i], (f64::from(raw[i]) - mean) / (var + 1e-8).sqrt());
        }
    }
    let (mut stats, mut returns) = (Stats::new(1), vec![0.0f32; envs]);
    for step in 0..steps {
        for env in 0..envs {
            returns[env] = returns[env] * gamma as f32 + raw_rewards[step * envs + env];
        }
        stats.update(&returns);
        for i in step * envs..(step + 1) * envs {
            near(rewards[i], f64::from(raw_rewards[i]) / (stats.var[0] + 1e-8).sqrt());
        }
    }
}
