//! Runs of several processes, however they are started: what tests of them share.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use podracer::rl::checkpoint;

pub const PODRACER: &str = env!("CARGO_BIN_EXE_podracer");

/// A short run, of one process or a few.
pub fn flags(runs: &Path) -> Vec<String> {
    let flags = [
        "train",
        "cleanba_ppo",
        "--env-id=CartPole-v1",
        "--num-actor-threads=1",
        "--num-steps=16",
        "--total-timesteps=9600",
        "--learning-rate=1e-3",
        "--save-model",
        "--eval-episodes=1",
        "--json",
    ];
    let runs = format!("--runs-dir={}", runs.display());
    flags.into_iter().map(String::from).chain([runs]).collect()
}

/// The run that several share, by one process, which ends well.
pub fn one_process(runs: &Path, more: &[&str]) {
    let alone = Command::new(PODRACER).args(flags(runs)).args(more).output().unwrap();
    assert!(alone.status.success(), "{}", message(&alone));
}

/// Reads lines of standard error until one shows that the processes of a run are learning together:
/// an update needs the gradients of each. Returns the lines.
pub fn learning_together(errors: &mut impl BufRead) -> String {
    let mut text = String::new();
    loop {
        let from = text.len();
        let read = errors.read_line(&mut text).unwrap();
        assert!(read > 0, "they ended before they learned:\n{text}");
        if text[from..].starts_with("step ") {
            return text;
        }
    }
}

/// What a process said.
pub fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The arrays of the one model in `runs`.
fn model(runs: &Path) -> Vec<(String, Vec<u8>)> {
    let folders = std::fs::read_dir(runs).unwrap().map(|entry| entry.unwrap().path());
    let models: Vec<PathBuf> = folders
        .map(|run| run.join("cleanba_ppo.safetensors"))
        .filter(|path| path.exists())
        .collect();
    let [model] = &models[..] else { panic!("{models:?}: only the first process saves its model") };
    let saved = checkpoint::load(model).unwrap();
    saved.entries().map(|entry| (entry.name.to_string(), entry.data.to_vec())).collect()
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()))
}

/// That the run of one process and that of several have learned the same: to the last bit if sums
/// are `exact`.
pub fn expect_the_same(one: &Path, several: &Path, exact: bool) {
    let (one, several) = (model(one), model(several));
    if exact {
        assert!(one == several, "the bits differ");
        return;
    }
    let both = one.iter().zip(&several).filter(|((name, _), _)| name.contains("agent"));
    let mut compared = 0;
    for ((name, a), (other, b)) in both {
        assert_eq!((name, a.len()), (other, b.len()));
        let far = floats(a).zip(floats(b)).fold(0.0f32, |far, (a, b)| far.max((a - b).abs()));
        assert!(far <= 1e-6, "{name}: {far:e}");
        compared += 1;
    }
    assert!(compared > 0, "no parameters");
}
