//! Actors and learners on several devices: one result in every layout, and what is refused.

use std::path::Path;

use podracer::algos::{cleanba_impala, cleanba_ppo, sebulba_sac};
use podracer::rl::logging::tensorboard::{Value, read_events};
use podracer::rl::{Algorithm, Summary, checkpoint};

use super::{devices, error};

/// A short run; `layout` are flags of devices.
pub(super) fn run<A: Algorithm>(
    runs: &Path,
    layout: &str,
    more: &[&str],
) -> podracer::Result<Summary> {
    devices(8);
    let runs = format!("--runs-dir={}", runs.display());
    let small = [
        "--local-num-envs=12",
        "--num-actor-threads=1",
        "--save-model",
        "--eval-episodes=1",
        "--log-frequency=1",
        "--json",
        &runs,
    ];
    let own: &[&str] = match A::NAME {
        "sebulba_sac" => &[
            "--env-id=Pendulum-v1",
            "--buffer-size=200",
            "--batch-size=12",
            "--learning-starts=96",
        ],
        _ => &["--env-id=CartPole-v1", "--learning-rate=1e-3"],
    };
    let small = small.into_iter().chain(own.iter().copied());
    let flags = small.chain(layout.split(' ')).chain(more.iter().copied());
    A::from_flags(flags).map_err(|e| podracer::Error::Config(e.to_string()))?.train()
}

/// All scalars of a run's events in their order: tag, step, value.
pub(super) fn all_scalars(summary: &Summary) -> Vec<(String, u64, f32)> {
    let files = std::fs::read_dir(&summary.run_dir).unwrap().map(|file| file.unwrap().path());
    let events = files.filter(|path| path.to_string_lossy().contains("tfevents"));
    let events = events.flat_map(|path| read_events(path).unwrap());
    let scalars = events.filter_map(|event| match event.value {
        Value::Scalar { tag, value } => Some((tag, event.step, value)),
        _ => None,
    });
    scalars.collect()
}

/// The values of a tag in a run's events, with their steps.
pub(super) fn scalars(summary: &Summary, wanted: &str) -> Vec<(u64, f32)> {
    let all = all_scalars(summary).into_iter().filter(|(tag, ..)| tag == wanted);
    all.map(|(_, step, value)| (step, value)).collect()
}

/// The numbers of a run's model, by name: as bytes.
pub(super) fn model(summary: &Summary) -> Vec<(String, Vec<u8>)> {
    let file = format!("{}.safetensors", summary.exp_name);
    let saved = checkpoint::load(Path::new(&summary.run_dir).join(file)).unwrap();
    saved.entries().map(|entry| (entry.name.to_string(), entry.data.to_vec())).collect()
}

/// The largest difference between parameters.
fn apart(one: &[(String, Vec<u8>)], other: &[(String, Vec<u8>)]) -> f32 {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let mut largest = 0.0f32;
    for ((name, a), (also, b)) in one.iter().zip(other) {
        assert_eq!(name, also);
        if name.contains("agent") {
            let pairs = floats(a).into_iter().zip(floats(b));
            largest = pairs.fold(largest, |far, (a, b)| far.max((a - b).abs()));
        }
    }
    largest
}

const ONE: &str = "--actor-device-ids 0 --learner-device-ids 0";
const OTHERS: [&str; 4] = [
    "--actor-device-ids 0 --learner-device-ids 0 1",
    "--actor-device-ids 0 --learner-device-ids 1 2",
    "--actor-device-ids 0 --learner-device-ids 1 2 3",
    "--actor-device-ids 5 --learner-device-ids 2 4",
];

/// 50 updates: at most the order of sums differs.
const FIFTY: [&str; 2] = ["--num-steps=16", "--total-timesteps=9600"];

#[test]
fn all_layouts_learn_the_same() {
    let runs = tempfile::tempdir().unwrap();
    let run = |layout: &str| model(&run::<cleanba_ppo::Args>(runs.path(), layout, &FIFTY).unwrap());
    let one = run(ONE);
    for layout in OTHERS {
        let far = apart(&one, &run(layout));
        assert!(far <= 1e-6, "{layout}: {far:e}");
    }
    assert!(run(OTHERS[2]) == run(OTHERS[2]), "one seed, two models");
}

#[test]
fn all_layouts_learn_the_same_to_the_bit_if_asked_to() {
    let runs = tempfile::tempdir().unwrap();
    // Two actor threads, for the order of their rollouts to count.
    let exact = ["--deterministic", "--num-actor-threads=2", "--local-num-envs=6"];
    let flags = [&exact[..], &["--num-steps=8", "--total-timesteps=1920"]].concat();
    let run = |layout: &str| model(&run::<cleanba_ppo::Args>(runs.path(), layout, &flags).unwrap());
    let one = run(ONE);
    for layout in OTHERS {
        assert!(one == run(layout), "{layout}");
    }
}

#[test]
fn all_layouts_learn_the_same_of_impala() {
    let runs = tempfile::tempdir().unwrap();
    let flags = ["--num-steps=10", "--total-timesteps=6000", "--num-minibatches=2"];
    let run = |layout: &str, more: &[&str]| {
        let flags = [&flags[..], more].concat();
        model(&run::<cleanba_impala::Args>(runs.path(), layout, &flags).unwrap())
    };
    let one = run(ONE, &[]);
    let other = OTHERS[2];
    let far = apart(&one, &run(other, &[]));
    assert!(far <= 1e-6, "{far:e}");
    let exact = ["--deterministic", "--total-timesteps=1200"];
    assert!(run(ONE, &exact) == run(other, &exact));
    // The reward of the action before is another one.
    assert!(one != run(ONE, &["--parity"]));
}

#[test]
fn all_layouts_learn_the_same_of_sac() {
    let runs = tempfile::tempdir().unwrap();
    let flags = ["--deterministic", "--num-steps=8", "--total-timesteps=384"];
    let run = |layout: &str, more: &[&str]| {
        let flags = [&flags[..], more].concat();
        model(&run::<sebulba_sac::Args>(runs.path(), layout, &flags).unwrap())
    };
    let one = run(ONE, &[]);
    // With all environments in one thread or in two.
    let two = ["--num-actor-threads=2", "--local-num-envs=6"];
    for (layout, more) in [(OTHERS[2], &[][..]), (OTHERS[3], &two)] {
        assert!(one == run(layout, more), "{layout} {more:?}");
    }
}

/// The number of critic updates for the timesteps after the start of learning is exact.
#[test]
fn sac_takes_as_many_gradient_steps_as_asked_for() {
    let runs = tempfile::tempdir().unwrap();
    let updates = |gradient_steps: usize, more: &[&str]| {
        let ratio = format!("--gradient-steps={gradient_steps}");
        let flags = ["--num-steps=8", "--total-timesteps=576", &ratio];
        let flags = [&flags, more].concat();
        let saved = model(&run::<sebulba_sac::Args>(runs.path(), ONE, &flags).unwrap());
        let count = |name: &str| {
            let found = saved.iter().find(|(entry, _)| entry == name);
            let (_, bytes) = found.unwrap_or_else(|| panic!("{name} is saved"));
            i32::from_le_bytes(bytes[..].try_into().unwrap())
        };
        (count("$.opt_state.qf.count"), count("$.opt_state.actor.count"))
    };
    // Six rollouts of eight steps, the first of which is before the start of learning.
    assert_eq!(updates(1, &[]), (5 * 8, 5 * 8));
    assert_eq!(updates(3, &["--no-concurrency"]), (5 * 24, 5 * 24));
    assert_eq!(updates(1, &["--policy-frequency=4", "--learning-starts=0"]), (6 * 8, 6 * 8));
}

#[test]
fn impala_minibatches_need_not_divide_a_learners_environments() {
    let runs = tempfile::tempdir().unwrap();
    let run = |layout: &str, more: &[&str]| {
        let flags = [&["--num-steps=10", "--num-minibatches=4"], more].concat();
        model(&run::<cleanba_impala::Args>(runs.path(), layout, &flags).unwrap())
    };
    // One learner has 12 environments, 3 a minibatch; each of two has 6, of which 1 or 2.
    let steps = ["--total-timesteps=2400"];
    let far = apart(&run(ONE, &steps), &run(OTHERS[1], &steps));
    assert!(far <= 1e-6, "{far:e}");
    let exact = ["--deterministic", "--total-timesteps=1200"];
    assert!(run(ONE, &exact) == run(OTHERS[1], &exact));
}

/// Asserts that flags are accepted, by the error of a run that is too short for one batch: its length
/// is checked last.
fn is_accepted<A: Algorithm>(flags: &[&str]) {
    let flags = flags.iter().copied().chain(["--total-timesteps=1"]);
    let outcome = A::from_flags(flags.clone())
        .map_err(|e| podracer::Error::Config(e.to_string()))
        .and_then(|args| args.train());
    let error = error(outcome);
    let flags: Vec<&str> = flags.collect();
    assert!(error.contains("must be at least one batch"), "{flags:?}: {error}");
}

#[test]
fn one_to_six_learners_take_the_default_environments() {
    devices(8);
    for learners in ["1", "1,2", "1,2,3", "1,2,3,4", "1,2,3,4,5", "1,2,3,4,5,6"] {
        let learners = format!("--learner-device-ids={learners}");
        // Environments of vectors have other defaults.
        let flags = ["--env-id=MinAtar/Breakout-v1", &learners];
        is_accepted::<cleanba_ppo::Args>(&flags);
        is_accepted::<cleanba_impala::Args>(&flags);
    }
}

/// The flags behind `sebulba_ppo`, `sebulba_impala` and `podracer train cleanba_..` in the documents.
fn documented_commands() -> Vec<(&'static str, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = ["README.md", "docs/sebulba.md", "docs/scaling.md", "docs/algos/cleanba_ppo.md"];
    let mut commands = Vec::new();
    for page in pages.into_iter().chain(["docs/algos/cleanba_impala.md", "docs/timeline.md"]) {
        let text = std::fs::read_to_string(root.join(page)).unwrap().replace("\\\n", " ");
        for line in text.split(['\n', '`']) {
            for (name, command) in [
                ("ppo", "sebulba_ppo "),
                ("ppo", "train cleanba_ppo "),
                ("impala", "sebulba_impala "),
                ("impala", "train cleanba_impala "),
            ] {
                let Some((_, flags)) = line.split_once(command) else { continue };
                let words = flags.split_whitespace().filter(|word| *word != "--" && *word != "&");
                commands.push((name, words.map(str::to_string).collect()));
            }
        }
    }
    commands
}

#[test]
fn documented_layouts_are_accepted() {
    devices(8);
    let commands = documented_commands();
    let mut checked = 0;
    for (name, words) in &commands {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // Commands of several processes, and such as leave flags to the reader.
        let skipped = ["--distributed", "--help", "..", "SEED", "S"];
        if !words.first().is_some_and(|word| word.starts_with("--"))
            || words.iter().any(|word| skipped.contains(word))
        {
            continue;
        }
        match *name {
            "ppo" => is_accepted::<cleanba_ppo::Args>(&words),
            _ => is_accepted::<cleanba_impala::Args>(&words),
        }
        checked += 1;
    }
    assert!(checked >= 10, "{checked} of {commands:?}");
}

#[test]
fn the_learner_may_wait_for_the_newest_rollouts() {
    let runs = tempfile::tempdir().unwrap();
    let flags = ["--num-steps=16", "--total-timesteps=960"];
    let with = |more: &[&str]| {
        let flags = [&flags[..], more].concat();
        run::<cleanba_ppo::Args>(runs.path(), OTHERS[1], &flags).unwrap()
    };
    let (lagging, newest) = (with(&[]), with(&["--no-concurrency"]));
    // Another policy acted in all updates but the first.
    assert!(model(&lagging) != model(&newest));
    assert_eq!((lagging.num_devices, lagging.global_step), (3, 960));
    // Cleanba's tags.
    let files = std::fs::read_dir(&newest.run_dir).unwrap().map(|file| file.unwrap().path());
    let events = files.filter(|path| path.to_string_lossy().contains("tfevents"));
    let (mut tags, mut put_time) = (Vec::new(), 0.0);
    for event in events.flat_map(|path| read_events(path).unwrap()) {
        if let Value::Scalar { tag, value } = event.value {
            assert!(value.is_finite(), "{tag} {value}");
            if tag == "stats/rollout_queue_put_time" {
                put_time = value;
            }
            tags.push(tag);
        }
    }
    for tag in [
        "stats/rollout_time",
        "stats/params_queue_get_time",
        "stats/rollout_queue_put_time",
        "stats/rollout_queue_get_time",
        "stats/rollout_params_queue_get_time_diff",
        "stats/training_time",
        "stats/rollout_queue_size",
        "stats/params_queue_size",
        "charts/avg_episodic_return",
        "charts/learning_rate",
        "charts/SPS",
        "losses/approx_kl",
        "losses/policy_loss",
        "losses/value_loss",
        "losses/entropy",
        "losses/loss",
    ] {
        assert!(tags.iter().any(|there| there == tag), "{tag} is not logged");
    }
    assert!(put_time > 0.0, "the time that an actor waits to hand over its rollout");
}

#[test]
fn a_timeline_has_versions_and_the_device_of_each_event() {
    let runs = tempfile::tempdir().unwrap();
    let file = runs.path().join("run.json");
    let flags = ["--num-steps=16", "--total-timesteps=768", "--num-actor-threads=2"];
    let timeline = format!("--timeline={}", file.display());
    run::<cleanba_ppo::Args>(runs.path(), OTHERS[3], &[&flags[..], &[&timeline]].concat()).unwrap();
    let events: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let events = events["traceEvents"].as_array().unwrap();
    let rows = |name: &str| -> Vec<&str> {
        let spans = events.iter().filter(|event| event["ph"] == "X" && event["name"] == name);
        let row = |span: &serde_json::Value| {
            let is_its = |e: &&serde_json::Value| e["ph"] == "M" && e["tid"] == span["tid"];
            events.iter().find(is_its).unwrap()["args"]["name"].as_str().unwrap()
        };
        spans.map(row).collect()
    };
    // The first two rollouts are made with the first version.
    for rollout in ["rollout 1 (v1)", "rollout 2 (v1)"] {
        let rows = rows(rollout);
        assert!(rows.contains(&"actor 0") && rows.contains(&"actor 1"), "{rollout}: {rows:?}");
    }
    for update in ["update 1 -> v2", "update 2 -> v3"] {
        assert!(!rows(update).is_empty(), "{update}");
    }
    assert!(rows("sebulba_rollout").contains(&"device 5"));
    let learners = rows("sebulba_step");
    assert!(learners.contains(&"device 2") && learners.contains(&"device 4"), "{learners:?}");
}

#[test]
fn gradients_may_be_accumulated() {
    let runs = tempfile::tempdir().unwrap();
    let steps = ["--num-steps=16", "--total-timesteps=384", "--no-norm-adv"];
    let with = |more: &[&str]| {
        let flags = [&steps[..], more].concat();
        model(&run::<cleanba_ppo::Args>(runs.path(), ONE, &flags).unwrap())
    };
    // One minibatch is all samples, in whatever parts it is taken.
    let whole = with(&["--num-minibatches=1"]);
    let parts = with(&["--num-minibatches=1", "--gradient-accumulation-steps=4"]);
    let far = apart(&whole, &parts);
    assert!(far > 0.0 && far < 1e-6, "{far:e}");
}

#[test]
fn continuous_actions_and_boards_are_learned_too() {
    let runs = tempfile::tempdir().unwrap();
    let with = |flags: &[&str]| run::<cleanba_ppo::Args>(runs.path(), OTHERS[0], flags).unwrap();
    let small = ["--num-steps=4", "--total-timesteps=96"];
    for env in ["--env-id=Pendulum-v1", "--env-id=MinAtar/Breakout-v1"] {
        let summary = with(&[&small[..], &[env]].concat());
        assert_eq!(summary.global_step, 96, "{env}");
    }
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let ppo =
        |layout: &str, more: &[&str]| error(run::<cleanba_ppo::Args>(runs.path(), layout, more));
    let none = ppo("--actor-device-ids 0 --learner-device-ids 9", &[]);
    assert!(none.contains("--learner-device-ids 9: there are 8 device(s)"), "{none}");
    assert!(none.contains("--num-devices 10"), "{none}");
    let twice = ppo("--actor-device-ids 0 0", &[]);
    assert!(
        twice.contains("--actor-device-ids 0,0: must be devices of which none is twice"),
        "{twice}"
    );
    let twice = ppo("--learner-device-ids 2 1 2", &[]);
    assert!(twice.contains("--learner-device-ids 2,1,2: must be devices of which none"), "{twice}");
    let uneven = ppo("--learner-device-ids 1 2 3 4 5", &[]);
    assert!(uneven.contains("--local-num-envs 12: must be a multiple of 5"), "{uneven}");
    assert!(uneven.contains("nearest: 10 and 15"), "{uneven}");
    let steps = ppo(ONE, &["--num-steps=10"]);
    assert!(steps.contains("--num-steps 10: must be a multiple of 4"), "{steps}");
    assert!(steps.contains("nearest: 8 and 12"), "{steps}");
    let short = ppo(ONE, &["--total-timesteps=100"]);
    assert!(short.contains("at least one batch, which is 384: 12 environments of 32"), "{short}");
    let eager = ppo(ONE, &["--mode=eager"]);
    assert!(eager.contains("--mode eager"), "{eager}");
    let threads = ppo(ONE, &["--num-actor-threads=0"]);
    assert!(
        threads.contains("--num-actor-threads 0: must be a whole number from 1 to 256"),
        "{threads}"
    );
    let impala = error(run::<cleanba_impala::Args>(
        runs.path(),
        "--learner-device-ids 1 2 3",
        &["--num-minibatches=13"],
    ));
    assert!(impala.contains("--num-minibatches 13: must be at most --local-num-envs"), "{impala}");
}

/// A process of its own, in which a signal means something.
#[cfg(unix)]
#[test]
fn an_interrupted_run_ends_soon_and_resumes_later() {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    let runs = tempfile::tempdir().unwrap();
    let podracer = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_podracer"));
        command.args(["train", "cleanba_ppo", "--json"]);
        command
    };
    let mut run = podracer()
        .arg(format!("--runs-dir={}", runs.path().display()))
        .args(["--env-id=CartPole-v1", "--local-num-envs=12", "--learner-device-ids=1,2"])
        .args(["--total-timesteps=100000000", "--checkpoint-frequency=10000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let kept = || {
        let folder = std::fs::read_dir(runs.path()).unwrap().next()?.unwrap().path();
        folder.join("checkpoint.safetensors").exists().then_some(folder)
    };
    while kept().is_none() {
        assert_eq!(run.try_wait().unwrap(), None, "it ended by itself");
        std::thread::sleep(Duration::from_millis(50));
    }
    let sent = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let output = run.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    let summary: Summary = serde_json::from_slice(&output.stdout).unwrap();
    assert!((1..100000000).contains(&summary.global_step), "{}", summary.global_step);

    // From where it was: two updates more.
    let batch = 12 * 2 * 128;
    let total = format!("--total-timesteps={}", summary.global_step + 2 * batch);
    let folder = kept().unwrap();
    let output = podracer().arg("--resume").arg(&folder).arg(total).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words}");
    let went_on: Summary = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(went_on.global_step, summary.global_step + 2 * batch);
    assert_eq!(Path::new(&went_on.run_dir), folder);
}
