//! Runs that are killed and go on: the same events and the same model, bit for bit; and what is told
//! of checkpoints from which a run cannot go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use podracer::algos::{
    c51, c51_atari, dqn, dqn_anakin, dqn_atari, iqn, ppo_trxl, pqn, pqn_atari_envpool,
    qdagger_dqn_atari, qrdqn, rainbow_atari, sac_atari,
};
use podracer::rl::{Algorithm, Summary};

use super::cases::model;
use super::scalars;

/// How the child process is told its part: the algorithm, and its flags after it.
const PART: &str = "PODRACER_TEST_RESUME";

fn train<A: Algorithm>(flags: &[&str]) -> Summary {
    A::from_flags(flags.iter().copied()).unwrap().train().unwrap()
}

fn train_by_name(name: &str, flags: &[&str]) -> Summary {
    match name {
        "c51" => train::<c51::Args>(flags),
        "c51_atari" => train::<c51_atari::Args>(flags),
        "dqn" => train::<dqn::Args>(flags),
        "dqn_anakin" => train::<dqn_anakin::Args>(flags),
        "dqn_atari" => train::<dqn_atari::Args>(flags),
        "iqn" => train::<iqn::Args>(flags),
        "ppo_trxl" => train::<ppo_trxl::Args>(flags),
        "pqn" => train::<pqn::Args>(flags),
        "pqn_atari_envpool" => train::<pqn_atari_envpool::Args>(flags),
        "qdagger_dqn_atari" => train::<qdagger_dqn_atari::Args>(flags),
        "qrdqn" => train::<qrdqn::Args>(flags),
        "rainbow_atari" => train::<rainbow_atari::Args>(flags),
        "sac_atari" => train::<sac_atari::Args>(flags),
        other => panic!("{other}"),
    }
}

/// The program that the tests below kill.
#[test]
#[ignore = "run by the tests of each algorithm"]
fn child() {
    let part = std::env::var(PART).expect("the test that runs this sets it");
    let mut words = part.split('\n');
    let name = words.next().unwrap();
    println!("{}", train_by_name(name, &words.collect::<Vec<_>>()));
}

/// The folder of the only run in `runs`.
fn run_in(runs: &Path) -> Option<PathBuf> {
    let mut folders = vec![runs.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries: Vec<PathBuf> =
            fs::read_dir(&folder).ok()?.map(|entry| entry.unwrap().path()).collect();
        if entries.iter().any(|path| path.to_string_lossy().contains("tfevents")) {
            return Some(folder);
        }
        folders.extend(entries.into_iter().filter(|path| path.is_dir()));
    }
    None
}

/// Starts a run and kills it when its second checkpoint is written; its folder.
fn killed(name: &str, flags: &[&str], runs: &Path) -> PathBuf {
    let part = [&[name], flags].concat().join("\n");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "resume::child", "--ignored", "--nocapture"]).env(PART, part);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let checkpoint = || Some(run_in(runs)?.join("checkpoint.safetensors"));
    let written = || fs::metadata(checkpoint()?).ok()?.modified().ok();
    let mut first = None;
    loop {
        let now = written();
        if first.is_some() && now != first {
            break;
        }
        first = first.or(now);
        assert!(child.try_wait().unwrap().is_none(), "{name}: it ended before it could be killed");
        sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    run_in(runs).unwrap()
}

/// A run that was killed and went on leaves what an uninterrupted one leaves.
fn resumes_as_if_uninterrupted(name: &str, flags: &[&str]) {
    let whole = tempfile::tempdir().unwrap();
    let broken = tempfile::tempdir().unwrap();
    let flags_in = |runs: &Path| -> Vec<String> {
        let runs = runs.to_str().unwrap();
        let ours = ["--json", "--save-model", "--eval-episodes=1", "--runs-dir", runs];
        flags.iter().copied().chain(ours).map(str::to_string).collect()
    };
    let flags_of = flags_in(whole.path());
    let expected = train_by_name(name, &flags_of.iter().map(String::as_str).collect::<Vec<_>>());
    let flags_of = flags_in(broken.path());
    let run = killed(name, &flags_of.iter().map(String::as_str).collect::<Vec<_>>(), broken.path());
    let found = train_by_name(name, &["--resume", run.to_str().unwrap(), "--json"]);
    assert_eq!(Path::new(&found.run_dir), run);
    assert_eq!(found.global_step, expected.global_step);
    assert_eq!(found.episodes, expected.episodes);
    assert_eq!(found.avg_episodic_return, expected.avg_episodic_return);
    assert_eq!(scalars(&found.run_dir), scalars(&expected.run_dir));
    assert!(model(&found) == model(&expected), "{name}: the models differ");
}

/// Long enough to be killed in the middle, with a checkpoint at every call.
const VECTOR: &[&str] = &[
    "--total-timesteps=20000",
    "--checkpoint-frequency=500",
    "--learning-starts=1000",
    "--buffer-size=3000",
];

#[test]
fn dqn_resumes() {
    resumes_as_if_uninterrupted("dqn", VECTOR);
}

#[test]
fn dqn_anakin_resumes() {
    resumes_as_if_uninterrupted("dqn_anakin", &[VECTOR, &["--updates-per-call=1"]].concat());
}

#[test]
fn c51_resumes() {
    resumes_as_if_uninterrupted("c51", &[VECTOR, &["--n-atoms=21"]].concat());
}

/// Fewer gradient steps than by default.
const QUANTILES: &[&str] =
    &["--train-frequency=10", "--target-network-frequency=500", "--batch-size=16"];

#[test]
fn qrdqn_resumes() {
    resumes_as_if_uninterrupted("qrdqn", &[VECTOR, QUANTILES].concat());
}

#[test]
fn iqn_resumes() {
    let flags = [VECTOR, QUANTILES, &["--num-quantile-samples=4"]].concat();
    resumes_as_if_uninterrupted("iqn", &flags);
}

#[test]
fn pqn_resumes() {
    let flags = ["--total-timesteps=30000", "--checkpoint-frequency=500"];
    resumes_as_if_uninterrupted("pqn", &flags);
}

/// Checkpoints lie within episodes, whose memories they hold.
#[test]
fn ppo_trxl_resumes() {
    let flags =
        ["--env-id=ProofofMemory-v0", "--total-timesteps=1600", "--checkpoint-frequency=40"];
    let more = ["--num-envs=2", "--num-steps=10", "--num-minibatches=2", "--update-epochs=1"];
    let small = ["--trxl-num-layers=2", "--trxl-dim=8", "--trxl-memory-length=4"];
    resumes_as_if_uninterrupted("ppo_trxl", &[&flags[..], &more, &small].concat());
}

/// Boards, with a buffer that wraps around.
const BOARDS: &[&str] = &[
    "--env-id=MinAtar/Breakout-v1",
    "--total-timesteps=3000",
    "--checkpoint-frequency=200",
    "--target-network-frequency=200",
    "--learning-starts=400",
    "--buffer-size=1000",
];

#[test]
fn dqn_atari_resumes() {
    resumes_as_if_uninterrupted("dqn_atari", BOARDS);
}

#[test]
fn pqn_atari_envpool_resumes() {
    let flags = ["--env-id=MinAtar/Breakout-v1", "--total-timesteps=8192"];
    let more = ["--num-steps=32", "--checkpoint-frequency=256"];
    resumes_as_if_uninterrupted("pqn_atari_envpool", &[flags, more].concat());
}

#[test]
fn rainbow_resumes() {
    resumes_as_if_uninterrupted("rainbow_atari", &[BOARDS, &["--total-timesteps=1600"]].concat());
}

#[test]
fn sac_atari_resumes() {
    resumes_as_if_uninterrupted("sac_atari", &[BOARDS, &["--total-timesteps=1200"]].concat());
}

/// A finished run of DQN with a checkpoint.
fn finished(runs: &Path) -> PathBuf {
    let flags = ["--total-timesteps=1000", "--checkpoint-frequency=500", "--save-model"];
    let more = ["--eval-episodes=1", "--json", "--runs-dir", runs.to_str().unwrap()];
    Path::new(&train::<dqn::Args>(&[&flags[..], &more].concat()).run_dir).to_path_buf()
}

#[test]
fn checkpoints_of_something_else_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let run = finished(runs.path());
    let folder = run.to_str().unwrap();
    let parse = |flags: &[&str]| dqn::Args::from_flags(flags.iter().copied());
    let other = c51::Args::from_flags(["--resume", folder]).unwrap_err().to_string();
    assert!(other.contains("was saved by dqn, and this is c51"), "{other}");
    // The settings are those of the run, and others are refused when it goes on.
    let error = |flags: &[&str]| {
        let args = parse(&[&["--resume", folder, "--json"], flags].concat()).unwrap();
        args.train().unwrap_err().to_string()
    };
    let env = error(&["--env-id=Acrobot-v1"]);
    assert!(env.contains("--env-id \"Acrobot-v1\": the run of"), "{env}");
    assert!(env.contains("began with \"CartPole-v1\"; leave the flag out"), "{env}");
    let rate = error(&["--learning-rate=0.5"]);
    assert!(rate.contains("--learning-rate 0.5: the run of"), "{rate}");
    // A model has no environments to go on with.
    let file = run.join("dqn.safetensors");
    let text = match parse(&["--resume", file.to_str().unwrap()]) {
        Ok(args) => args.train().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(text.contains("is a model, from which a run cannot go on"), "{text}");
    let nowhere = parse(&["--resume", runs.path().join("none").to_str().unwrap()]).unwrap_err();
    assert!(nowhere.to_string().contains("none"), "{nowhere}");
}

#[test]
fn damaged_checkpoints_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let run = finished(runs.path());
    let file = run.join("checkpoint.safetensors");
    let whole = fs::read(&file).unwrap();
    let message = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let flags = ["--resume", run.to_str().unwrap(), "--json", "--total-timesteps=2000"];
        match dqn::Args::from_flags(flags) {
            Ok(args) => args.train().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    for length in [0, 7, 100, whole.len() / 2, whole.len() - 1] {
        let text = message(&whole[..length]);
        assert!(text.contains("is not a whole checkpoint"), "{length} bytes: {text}");
    }
    // Another format, of which the file itself tells.
    let edited = |from: &str, to: &str| {
        let place = whole.windows(from.len()).position(|bytes| bytes == from.as_bytes());
        let place = place.unwrap_or_else(|| panic!("no {from}"));
        let mut bytes = whole.clone();
        bytes[place..place + from.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    let text = message(&edited(r#"\"format\": 1"#, r#"\"format\": 9"#));
    assert!(text.contains("is of format 9, and this version reads format 1"), "{text}");
    let text = message(&edited("$.train_state.q.layers", "$.train_state.q.lawyer"));
    assert!(text.contains("does not fit the model"), "{text}");
    // The state of an environment.
    let text = message(&edited("podracer env 1", "podracer env 7"));
    assert!(text.contains("are no saved state"), "{text}");
    // Whole again, it goes on.
    fs::write(&file, &whole).unwrap();
    let flags = ["--resume", run.to_str().unwrap(), "--json", "--total-timesteps=2000"];
    assert_eq!(train::<dqn::Args>(&flags).global_step, 2000);
}
