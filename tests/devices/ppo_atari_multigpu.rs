//! PPO on several devices: gradient steps against one device with all samples, runs against
//! `ppo_atari`, resumed runs, refused settings.

use std::path::Path;

use podracer::algos::ppo_atari;
use podracer::algos::ppo_atari_multigpu::{
    Agent, Args, Metrics, Samples, TrainState, gradient_step,
};
use podracer::envs::ObsKind;
use podracer::optim::Adam;
use podracer::pmap::Sharded;
use podracer::rl::environments::spaces::Sizes;
use podracer::rl::{Algorithm, Summary, checkpoint};
use podracer::trace::ops::constant;
use podracer::{Array, DType, Key, Tensor, jit, pmap, replicate, shard, tree, unreplicate};

use super::devices;
use super::sebulba::scalars;

/// Four updates of eight samples on each of two devices.
const SMALL: &[&str] = &[
    "--env-id=MinAtar/Breakout-v1",
    "--total-timesteps=64",
    "--local-num-envs=2",
    "--num-steps=4",
    "--num-minibatches=2",
    "--update-epochs=2",
    "--seed=3",
    "--save-model",
    "--eval-episodes=1",
    "--json",
];

fn flags<'a>(runs: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [SMALL, more, &["--runs-dir", runs]].concat()
}

fn run(runs: &Path, more: &[&str]) -> podracer::Result<Summary> {
    Args::from_flags(flags(runs.to_str().unwrap(), more)).unwrap().train()
}

/// Parameters and moments of a saved model.
fn model(summary: &Summary) -> Vec<(String, Vec<f32>)> {
    let file = format!("{}.safetensors", summary.exp_name);
    let saved = checkpoint::load(Path::new(&summary.run_dir).join(file)).unwrap();
    let floats = |bytes: &[u8]| bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    saved.entries().map(|entry| (entry.name.to_string(), floats(entry.data))).collect()
}

/// Two gradient steps with copies of the parameters on the first `n` devices, each with its share of
/// 24 samples.
fn two_steps(
    n: usize,
    start: &TrainState<Array>,
    samples: &Samples<Array>,
) -> (TrainState<Sharded>, Metrics<Array>) {
    let args = Args::from_flags(["--no-norm-adv"]).unwrap();
    let devices = devices(n);
    let step = pmap("devices", |axis, (state, batch): (TrainState<Tensor>, Samples<Tensor>)| {
        gradient_step(state, &batch, constant(0.01f32), axis, &args)
    });
    let samples = shard(samples, &devices).unwrap();
    let state = replicate(start, &devices).unwrap();
    let (state, _) = step.call((state, samples.clone())).unwrap();
    let (state, metrics) = step.call((state, samples)).unwrap();
    (state, unreplicate(&metrics).unwrap())
}

#[test]
fn devices_with_a_share_each_are_one_device_with_all_samples() {
    devices(1);
    let sizes = Sizes { obs_kind: ObsKind::Board, shape: [10, 10, 2].into(), num_actions: 3 };
    let make = jit(|key: Key<Tensor>| {
        use podracer::random::{normal, randint, uniform};
        let [agent, obs, actions, logprobs, advantages, returns, values] = key.split_n();
        let agent = Agent::init(agent, &sizes);
        let column = |key| normal(key, [24], DType::F32);
        let samples = Samples {
            obs: uniform(obs, [24, 10, 10, 2], DType::F32, 0.0, 1.0).lt(0.3),
            actions: randint(actions, [24], 0, 3, DType::I32),
            logprobs: 0.2 * column(logprobs) - 1.1,
            advantages: column(advantages),
            returns: column(returns),
            values: column(values),
        };
        (TrainState { opt_state: Adam::default().init(&agent), agent }, samples)
    });
    let (start, samples) = make.call(Key::new(1)).unwrap();
    let (one, metrics_of_one) = two_steps(1, &start, &samples);
    let one = unreplicate(&one).unwrap();
    for n in [2, 4] {
        let (all, metrics) = two_steps(n, &start, &samples);
        for leaf in tree::leaves(&all) {
            let first = leaf.shards()[0].to_literal().unwrap();
            for shard in leaf.shards() {
                assert!(shard.to_literal().unwrap() == first, "the copies differ");
            }
        }
        let all = unreplicate(&all).unwrap();
        let paths = tree::paths(&all.agent);
        let pairs = tree::leaves(&all.agent).into_iter().zip(tree::leaves(&one.agent));
        let start = tree::leaves(&start.agent);
        for ((path, (a, b)), start) in paths.iter().zip(pairs).zip(start) {
            let [a, b, start] = [a, b, start].map(|x| x.to_vec::<f32>().unwrap());
            assert!(a != start, "{path} is not updated");
            for (a, b) in a.iter().zip(b) {
                // Adam divides by the root of the squares: roundings of small gradients grow.
                assert!((a - b).abs() <= 1e-4, "{n} devices: {path}: {a}, one device: {b}");
            }
        }
        for (a, b) in tree::leaves(&metrics).into_iter().zip(tree::leaves(&metrics_of_one)) {
            let [a, b] = [a, b].map(|x| x.item::<f32>().unwrap());
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{n} devices: {a}, one device: {b}");
        }
    }
}

#[test]
fn one_device_is_ppo_atari() {
    devices(1);
    let runs = tempfile::tempdir().unwrap();
    let one = run(runs.path(), &["--num-devices=1"]).unwrap();
    let words = flags(runs.path().to_str().unwrap(), &[]);
    let words = words.iter().map(|word| word.replace("local-num-envs", "num-envs"));
    let words: Vec<String> = words.collect();
    let args = ppo_atari::Args::from_flags(words.iter().map(String::as_str)).unwrap();
    let other = args.train().unwrap();
    assert_eq!((one.num_devices, one.global_step), (1, 64));
    assert_eq!(one.episodes, other.episodes);
    for ((name, ours), (_, theirs)) in model(&one).iter().zip(model(&other)) {
        for (a, b) in ours.iter().zip(theirs) {
            assert!((a - b).abs() <= 1e-5, "{name}: {a}, ppo_atari {b}");
        }
    }
}

#[test]
fn a_run_of_two_devices_resumes_as_if_uninterrupted() {
    devices(2);
    let runs = tempfile::tempdir().unwrap();
    let train = |more: &[&str]| {
        let always = ["--no-anneal-lr", "--checkpoint-frequency=16"];
        run(runs.path(), &[&always[..], more].concat()).unwrap()
    };
    let whole = train(&[]);
    assert_eq!((whole.num_devices, whole.global_step), (2, 64));
    let half = train(&["--total-timesteps=32"]);
    let resume = format!("--resume={}", half.run_dir);
    let rest = train(&[&resume, "--total-timesteps=64"]);
    assert_eq!((rest.run_dir.as_str(), rest.global_step), (half.run_dir.as_str(), 64));
    assert!(model(&rest) == model(&whole), "the models differ");
    assert_eq!(rest.episodes, whole.episodes);
    for tag in ["losses/loss", "losses/explained_variance", "charts/learning_rate"] {
        assert_eq!(scalars(&whole, tag).len(), 4, "{tag}");
    }
    // Another division of the same environments is another run.
    let other = run(runs.path(), &["--no-anneal-lr", "--device-ids", "3", "1"]).unwrap();
    assert!(model(&other) == model(&whole), "the ids of the devices change the run");
    let one = run(runs.path(), &["--no-anneal-lr", "--num-devices=1", "--local-num-envs=4"]);
    assert!(model(&one.unwrap()) != model(&whole));
}

#[test]
fn settings_out_of_range_are_refused() {
    devices(2);
    let runs = tempfile::tempdir().unwrap();
    let error = |more: &[&str]| run(runs.path(), more).unwrap_err().to_string();
    assert_eq!(
        error(&["--device-ids=0,1,2"]),
        "--device-ids [0, 1, 2]: must be one id for each of --num-devices 2"
    );
    assert_eq!(error(&["--device-ids=1,1"]), "--device-ids [1, 1]: must be different ids");
    assert_eq!(
        error(&["--num-minibatches=3"]),
        "--num-minibatches 3: must be a divisor of the local batch, local-num-envs * num-steps = 8"
    );
    assert_eq!(
        error(&["--num-devices=4", "--local-num-envs=8"]),
        "--total-timesteps 64: must be at least one batch, num-devices * local-num-envs * num-steps \
         = 128"
    );
    assert!(error(&["--check-nans"]).starts_with("--check-nans true: must be false"));
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run folder was created");
}
