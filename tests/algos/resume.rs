//! Checkpoints that a run cannot be resumed from are refused. `every_algorithm` resumes runs, and `resume_ppo`
//! kills one at some moment.

use std::fs;
use std::path::{Path, PathBuf};

use podracer::algos::{c51, dqn};
use podracer::rl::{Algorithm, Summary};

fn train<A: Algorithm>(flags: &[&str]) -> Summary {
    A::from_flags(flags.iter().copied()).unwrap().train().unwrap()
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
        assert!(text.contains("is not a saved model or checkpoint"), "{length} bytes: {text}");
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
