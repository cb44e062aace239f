//! Every algorithm, by a small run: a seed gives one run, which logs the tags of `tags.txt`; a run that is
//! resumed from its first checkpoint logs what an uninterrupted one does, bit for bit, and saves its model.

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use podracer::algos::registry::ALGORITHMS;
use podracer::algos::*;
use podracer::rl::checkpoint::saved::SavedMetadata;
use podracer::rl::logging::tensorboard::{Value, read_events};
use podracer::rl::{Algorithm, Summary, TrainedPolicy};
use podracer::{Array, Mode};

use super::models::model;

fn train<A: Algorithm>(flags: &[&str]) -> Summary {
    A::from_flags(flags.iter().copied()).unwrap().train().unwrap()
}

/// A small run of an algorithm: its name, its function, its timesteps, its flags.
type Case = (&'static str, fn(&[&str]) -> Summary, u64, &'static [&'static str]);

const fn case<A: Algorithm>(timesteps: u64, flags: &'static [&'static str]) -> Case {
    (A::NAME, train::<A>, timesteps, flags)
}

const ROLLOUTS: &[&str] =
    &["--num-envs=2", "--num-steps=16", "--num-minibatches=2", "--update-epochs=2"];
pub const ANAKIN: &[&str] = &[
    "--env-id=CartPole-v1",
    "--num-envs=2",
    "--num-steps=16",
    "--num-minibatches=2",
    "--update-epochs=2",
    "--updates-per-call=1",
];
// `recurrent_cells` uses these and the one above too, so that each program is compiled once.
pub const CARTPOLE_POSITIONS: &[&str] = &[
    "--env-id=CartPolePositions-v0",
    "--num-envs=2",
    "--num-steps=16",
    "--num-minibatches=2",
    "--update-epochs=1",
];
pub const PENDULUM_POSITIONS: &[&str] = &[
    "--env-id=PendulumPositions-v0",
    "--num-envs=2",
    "--num-steps=16",
    "--num-minibatches=2",
    "--update-epochs=1",
];
const BOARD_ROLLOUTS: &[&str] = &[
    "--env-id=MinAtar/Breakout-v1",
    "--num-envs=2",
    "--num-steps=16",
    "--num-minibatches=2",
    "--update-epochs=1",
];
const ACTORS: &[&str] = &[
    "--env-id=CartPole-v1",
    "--local-num-envs=4",
    "--num-actor-threads=1",
    "--num-steps=16",
    "--log-frequency=1",
];
/// The buffers wrap around before the checkpoint.
const REPLAY: &[&str] = &[
    "--learning-starts=100",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=16",
];
const BOARDS: &[&str] = &[
    "--env-id=MinAtar/SpaceInvaders-v1",
    "--learning-starts=100",
    "--target-network-frequency=100",
    "--buffer-size=250",
    "--batch-size=8",
];
const CONTINUOUS: &[&str] = &["--learning-starts=100", "--buffer-size=250", "--batch-size=8"];
const PENDULUM: &[&str] = &[
    "--env-id=Pendulum-v1",
    "--num-envs=2",
    "--num-steps=128",
    "--num-minibatches=4",
    "--update-epochs=1",
];

/// All algorithms, in the order of the registry. Episodes end before and after the first checkpoint.
const CASES: &[Case] = &[
    case::<a2c::Args>(4000, &["--num-envs=4"]),
    case::<a2c_continuous_action::Args>(4096, &["--env-id=Pendulum-v1"]),
    case::<c51::Args>(600, REPLAY),
    case::<c51_atari::Args>(600, BOARDS),
    case::<cleanba_impala::Args>(512, ACTORS),
    case::<cleanba_ppo::Args>(512, ACTORS),
    case::<crossq_continuous_action::Args>(
        300,
        &[
            "--env-id=InvertedPendulum-v4",
            "--learning-starts=80",
            "--buffer-size=90",
            "--batch-size=8",
        ],
    ),
    case::<ddpg_continuous_action::Args>(600, CONTINUOUS),
    case::<dpo_anakin::Args>(256, ANAKIN),
    case::<dqn::Args>(600, REPLAY),
    case::<dqn_anakin::Args>(
        400,
        &[
            "--num-envs=5",
            "--learning-starts=100",
            "--target-network-frequency=100",
            "--buffer-size=150",
            "--batch-size=16",
            "--updates-per-call=1",
        ],
    ),
    case::<dqn_atari::Args>(600, BOARDS),
    case::<fast_sac::Args>(
        1200,
        &[
            "--env-id=Pendulum-v1",
            "--num-envs=2",
            "--num-steps=3",
            "--learning-starts=100",
            "--buffer-size=250",
            "--batch-size=8",
            "--critic-hidden-dim=16",
            "--actor-hidden-dim=16",
        ],
    ),
    case::<fast_td3::Args>(
        1200,
        &[
            "--env-id=Pendulum-v1",
            "--num-envs=2",
            "--learning-starts=100",
            "--buffer-size=250",
            "--batch-size=8",
            "--critic-hidden-dim=16",
            "--actor-hidden-dim=16",
        ],
    ),
    case::<iqn::Args>(600, REPLAY),
    case::<ppg::Args>(
        256,
        &[
            "--env-id=MinAtar/Breakout-v1",
            "--num-envs=4",
            "--num-steps=16",
            "--num-minibatches=2",
            "--n-iteration=2",
            "--e-auxiliary=1",
            "--num-aux-rollouts=2",
        ],
    ),
    case::<ppo::Args>(256, ROLLOUTS),
    case::<ppo_anakin::Args>(256, ANAKIN),
    case::<ppo_anakin_gru::Args>(256, ANAKIN),
    case::<ppo_atari::Args>(192, BOARD_ROLLOUTS),
    case::<ppo_atari_envpool::Args>(
        96,
        &["--num-envs=2", "--num-steps=12", "--num-minibatches=2", "--update-epochs=1"],
    ),
    case::<ppo_atari_lstm::Args>(384, CARTPOLE_POSITIONS),
    case::<ppo_atari_multigpu::Args>(
        192,
        &[
            "--env-id=MinAtar/Breakout-v1",
            "--num-devices=1",
            "--local-num-envs=2",
            "--num-steps=16",
            "--num-minibatches=2",
            "--update-epochs=1",
        ],
    ),
    case::<ppo_continuous_action::Args>(1024, PENDULUM),
    case::<ppo_continuous_action_lstm::Args>(1408, PENDULUM_POSITIONS),
    case::<ppo_masked::Args>(960, ROLLOUTS),
    case::<ppo_pettingzoo_ma_atari::Args>(
        64,
        &[
            "--num-envs=2",
            "--num-steps=8",
            "--num-minibatches=2",
            "--update-epochs=1",
            "--eval-episodes=0",
        ],
    ),
    case::<ppo_rnd_envpool::Args>(
        192,
        &[
            "--env-id=MinAtar/Breakout-v1",
            "--num-envs=2",
            "--num-steps=16",
            "--num-minibatches=2",
            "--update-epochs=1",
            "--num-iterations-obs-norm-init=1",
        ],
    ),
    case::<ppo_self_play::Args>(
        768,
        &[
            "--num-envs=4",
            "--num-steps=32",
            "--num-minibatches=2",
            "--update-epochs=1",
            "--snapshot-frequency=1",
            "--eval-frequency=2",
        ],
    ),
    case::<ppo_trxl::Args>(
        320,
        &[
            "--env-id=ProofofMemory-v0",
            "--num-envs=2",
            "--num-steps=10",
            "--num-minibatches=2",
            "--update-epochs=1",
            "--trxl-num-layers=2",
            "--trxl-dim=8",
            "--trxl-memory-length=4",
        ],
    ),
    case::<pqn::Args>(512, &["--num-envs=2", "--num-steps=16"]),
    case::<pqn_atari_envpool::Args>(
        512,
        &["--env-id=MinAtar/Breakout-v1", "--num-envs=2", "--num-steps=32"],
    ),
    case::<pqn_atari_envpool_lstm::Args>(
        512,
        &["--env-id=CartPolePositions-v0", "--num-envs=2", "--num-steps=32", "--num-minibatches=2"],
    ),
    case::<qdagger_dqn_atari::Args>(
        600,
        &[
            "--env-id=MinAtar/SpaceInvaders-v1",
            "--learning-starts=100",
            "--target-network-frequency=100",
            "--buffer-size=250",
            "--batch-size=8",
            "--teacher-steps=200",
            "--offline-steps=50",
            "--teacher-eval-episodes=1",
        ],
    ),
    case::<qrdqn::Args>(600, REPLAY),
    case::<rainbow_atari::Args>(600, BOARDS),
    case::<rpo_continuous_action::Args>(1024, PENDULUM),
    case::<sac_atari::Args>(600, BOARDS),
    case::<sac_continuous_action::Args>(600, CONTINUOUS),
    case::<sebulba_sac::Args>(
        1344,
        &[
            "--env-id=Pendulum-v1",
            "--local-num-envs=2",
            "--num-steps=16",
            "--learning-starts=100",
            "--buffer-size=250",
            "--batch-size=8",
        ],
    ),
    case::<simba_sac::Args>(
        600,
        &[
            "--env-id=Pendulum-v1",
            "--learning-starts=100",
            "--buffer-size=250",
            "--batch-size=8",
            "--critic-hidden-dim=8",
            "--actor-hidden-dim=8",
        ],
    ),
    case::<td3_continuous_action::Args>(600, CONTINUOUS),
];
/// The folder of the only run in `runs`.
fn run_in(runs: &Path) -> Option<PathBuf> {
    let mut folders = vec![runs.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries: Vec<PathBuf> =
            fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.path()).collect();
        if entries.iter().any(|path| path.to_string_lossy().contains("tfevents")) {
            return Some(folder);
        }
        folders.extend(entries.into_iter().filter(|path| path.is_dir()));
    }
    None
}

/// The path of a run's events.
fn events_of(run: &Path) -> PathBuf {
    let mut files = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.to_string_lossy().contains("tfevents")).unwrap()
}

/// Every logged scalar in its order, with the bits of its value; but those that tell the time, and the
/// working and waiting times of threads.
fn logged(run: &Path) -> Vec<(String, u64, u32)> {
    let events = read_events(events_of(run)).unwrap().into_iter();
    let scalars = events.filter_map(|event| match event.value {
        Value::Scalar { tag, value } => Some((tag, event.step, value.to_bits())),
        _ => None,
    });
    scalars.filter(|(tag, ..)| !tag.contains("SPS") && !tag.starts_with("stats/")).collect()
}

/// Trains in `runs` to the end, and keeps the first checkpoint as `kept`. Returns `None` if the last one
/// was there before the first could be kept.
fn train_and_keep(run: &dyn Fn() -> Summary, runs: &Path, kept: &Path) -> Option<Summary> {
    let ended = AtomicBool::new(false);
    let summary = thread::scope(|scope| {
        scope.spawn(|| {
            // Each checkpoint is a file of its own that takes the place of the one before.
            let link = || fs::hard_link(run_in(runs)?.join("checkpoint.safetensors"), kept).ok();
            while !ended.load(Ordering::Relaxed) && link().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let summary = run();
        ended.store(true, Ordering::Relaxed);
        summary
    });
    let saved = SavedMetadata::read(kept).ok()?.run_state(kept).unwrap();
    (saved.global_step < summary.global_step).then_some(summary)
}

/// Trains, and checks the run; then trains again with the same seed and another, and from the checkpoint.
fn is_reproduced(&(name, train, timesteps, flags): &Case) {
    let root = tempfile::tempdir().unwrap();
    let teacher = (name == "qdagger_dqn_atari").then(|| {
        let runs_dir = format!("--runs-dir={}", root.path().join("teacher").display());
        let flags = ["--total-timesteps=400", "--save-model", "--eval-episodes=0", "--json"];
        let teacher = self::train::<dqn_atari::Args>(&[BOARDS, &flags, &[&runs_dir]].concat());
        format!("--teacher-model={}/dqn_atari.safetensors", teacher.run_dir)
    });
    let teacher: Vec<&str> = teacher.as_deref().into_iter().collect();
    let total = format!("--total-timesteps={timesteps}");
    // Some algorithms take a third or a half of these timesteps in one call.
    let frequency = format!("--checkpoint-frequency={}", timesteps / 3);
    let common = [&total, &frequency, "--json", "--save-model", "--eval-episodes=1"];
    let run = |runs: &Path, seed: &str| {
        let runs = format!("--runs-dir={}", runs.display());
        train(&[&common[..], flags, &teacher, &[&runs, seed]].concat())
    };
    let (runs, kept, whole) = (0..10)
        .find_map(|attempt| {
            let runs = root.path().join(attempt.to_string());
            let kept = root.path().join(format!("{attempt}.safetensors"));
            let summary = train_and_keep(&|| run(&runs, "--seed=1"), &runs, &kept)?;
            Some((runs, kept, summary))
        })
        .unwrap_or_else(|| panic!("{name}: no checkpoint before the last"));
    logs_its_tags(name, &run_in(&runs).unwrap());
    let [again, other] = [1, 2].map(|seed| {
        let runs = root.path().join(format!("seed{seed}"));
        run(&runs, &format!("--seed={seed}"))
    });
    let of_again = logged(Path::new(&again.run_dir));
    assert_eq!(of_again, logged(&run_in(&runs).unwrap()), "{name}: a seed gives one run");
    assert!(model(&again) == model(&whole), "{name}: a seed gives one model");
    assert!(model(&other) != model(&whole), "{name}: another seed gives the same model");
    loads_its_policy(name, Path::new(&again.run_dir));
    resumes_as_if_uninterrupted(name, train, (&runs, &kept, &whole));
}

/// Loads the policy of a run and acts on two observations.
fn loads_its_policy(name: &str, run: &Path) {
    let policy = match TrainedPolicy::load(run) {
        Ok(policy) => policy.with_mode(Mode::Interpret),
        Err(error) => {
            let recurrent = ["lstm", "gru", "trxl"].iter().any(|kind| name.contains(kind));
            assert!(recurrent && error.to_string().contains("is recurrent"), "{name}: {error}");
            return;
        }
    };
    let space = &policy.spec().observation;
    let observations = Array::zeros([&[2], &space.shape()[..]].concat(), space.dtype());
    let actions = policy.act(&observations).unwrap();
    let expected = [&[2], &policy.spec().action.shape()[..]].concat();
    assert_eq!(actions.shape()[..], expected, "{name}");
}

/// Checks the tags of a run, and that their values are finite; what is not defined is NaN.
fn logs_its_tags(name: &str, run: &Path) {
    let expected = include_str!("tags.txt")
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let logged = logged(run);
    let tags: BTreeSet<&str> = logged.iter().map(|(tag, ..)| &tag[..]).collect();
    let tags = Vec::from_iter(tags).join(" ");
    assert_eq!(Some(&tags[..]), expected, "{name}");
    for (tag, step, bits) in &logged {
        let value = f32::from_bits(*bits);
        assert!(
            value.is_finite() || tag.ends_with("explained_variance"),
            "{name}: {tag} at {step}: {value}"
        );
    }
}

fn resumes_as_if_uninterrupted(
    name: &str,
    train: fn(&[&str]) -> Summary,
    (runs, kept, whole): (&Path, &Path, &Summary),
) {
    let whole_dir = run_in(runs).unwrap();
    // As the run was when its first checkpoint was written, but for events after it.
    let root = tempfile::tempdir().unwrap();
    let cut = root.path().join(whole_dir.file_name().unwrap());
    fs::create_dir_all(&cut).unwrap();
    fs::copy(kept, cut.join("checkpoint.safetensors")).unwrap();
    let events = events_of(&whole_dir);
    fs::copy(&events, cut.join(events.file_name().unwrap())).unwrap();

    let flags = ["--resume", cut.to_str().unwrap(), "--json", "--save-model"];
    let resumed = train(&flags);
    assert_eq!(Path::new(&resumed.run_dir), cut, "{name}");
    assert_eq!(resumed.global_step, whole.global_step, "{name}");
    assert_eq!(resumed.episodes, whole.episodes, "{name}");
    assert_eq!(resumed.avg_episodic_return, whole.avg_episodic_return, "{name}");
    let (found, expected) = (logged(&cut), logged(&whole_dir));
    let differs = found.iter().zip(&expected).find(|(found, expected)| found != expected);
    assert_eq!(differs, None, "{name}: tag, step and bits of a value, expected second");
    assert_eq!(found.len(), expected.len(), "{name}");
    assert!(model(&resumed) == model(whole), "{name}: the models differ");
    // Without episodes before and after, less is compared.
    let at = SavedMetadata::read(kept).unwrap().run_state(kept).unwrap().global_step;
    let ended = |after: bool| {
        let mut episodes = expected.iter().filter(|event| event.0 == "charts/episodic_return");
        episodes.any(|event| (event.1 > at) == after)
    };
    // Those of Atari are long.
    let long = ["ppo_atari_envpool", "ppo_pettingzoo_ma_atari"].contains(&name);
    assert!(long || (ended(false) && ended(true)), "{name}: no episodes");
}

/// Checks every second algorithm of the table from `first`; two tests run at once.
fn check(first: usize) {
    let failed: Vec<&str> = CASES
        .iter()
        .skip(first)
        .step_by(2)
        .filter(|case| catch_unwind(|| is_reproduced(case)).is_err())
        .map(|case| case.0)
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn the_table_has_every_algorithm() {
    let cases: Vec<&str> = CASES.iter().map(|case| case.0).collect();
    let known: Vec<&str> = ALGORITHMS.iter().map(|entry| entry.name).collect();
    assert_eq!(cases, known);
}

/// The cells of `--rnn` that are not the default.
#[test]
fn every_recurrent_cell_is_reproduced() {
    let cells = [
        ("ppo_anakin_gru", ["--rnn=lstm", "--rnn=mingru", "--rnn=lru"]),
        ("ppo_atari_lstm", ["--rnn=gru", "--rnn=mingru", "--rnn=lru"]),
        ("ppo_continuous_action_lstm", ["--rnn=gru", "--rnn=mingru", "--rnn=lru"]),
    ];
    for (name, cells) in cells {
        let &(_, train, timesteps, flags) = CASES.iter().find(|case| case.0 == name).unwrap();
        for cell in cells {
            is_reproduced(&(name, train, timesteps, [flags, &[cell]].concat().leak()));
        }
    }
}

#[test]
fn every_algorithm_is_reproduced_1() {
    check(0);
}

#[test]
fn every_algorithm_is_reproduced_2() {
    check(1);
}
