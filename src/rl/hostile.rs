//! Tests with manipulated checkpoints: every field of the metadata and of the header is replaced,
//! removed or extended, in a file that is otherwise intact. A resumption returns an error or runs
//! to its end; it writes nothing outside the run's folder and never panics.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use clap::Parser;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::array::Array;
use crate::error::Result;
use crate::rl::algorithm::{self, Algorithm};
use crate::rl::checkpoint::saved::{CHECKPOINT, SavedMetadata};
use crate::rl::checkpoint::{self, Checkpoint};
use crate::rl::policy::evaluation::Evaluation;
use crate::rl::run::episodes::EpisodeRecord;
use crate::rl::run::trainer::Trainer;
use crate::rl::settings::options::RunOptions;
use crate::rl::summary::Summary;
use crate::trace::TensorType;

#[derive(Debug, Parser, Serialize)]
struct Args {
    #[arg(long, default_value = "Numbers-v0")]
    env_id: String,
    #[arg(long, default_value = "200")]
    total_timesteps: u64,
    #[arg(long, default_value = "4")]
    num_envs: usize,
    #[arg(long, default_value = "0.5")]
    gamma: f64,
    #[command(flatten)]
    #[serde(flatten)]
    run: RunOptions,
}

crate::algorithm!(Args, "count", train, play = play);

/// Adds 1 to its only number in each call of 50 timesteps.
fn train(args: &Args) -> Result<Summary> {
    let mut trainer = Trainer::start(args, 50)?;
    let mut count = trainer.init_or_resume(Array::from(0i32), ())?;
    while trainer.should_continue() {
        let next = count.item::<i32>()?.wrapping_add(1);
        count = Array::from(next);
        let game =
            EpisodeRecord { step: 10, env_id: 0, episodic_return: f64::from(next), length: 3 };
        trainer.record(&[game], Some(&Array::from(next as f32)))?;
        trainer.checkpoint_if_due(&count, ())?;
    }
    trainer.finish(&count)
}

fn play(_: &Args, _: &Checkpoint, _: &mut Evaluation) -> Result<()> {
    Ok(())
}

/// A folder with a user's files, which contains a folder of runs with one saved run.
struct Sandbox {
    folder: tempfile::TempDir,
    run: PathBuf,
    /// The run's files in their original state.
    files: BTreeMap<PathBuf, Vec<u8>>,
}

/// Returns all files below a folder, by their paths; links are read as their targets.
fn files_in(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_in(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap_or_default());
        }
    }
    files
}

impl Sandbox {
    fn new() -> Sandbox {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("home")).unwrap();
        fs::write(folder.path().join("home/precious"), "years of work").unwrap();
        // A valid event file is the easiest to mistake for one of the run.
        let events = folder.path().join("home/events.out.tfevents.1.host.2.0");
        let runs = folder.path().join("runs");
        let flags = ["--checkpoint-frequency=100", "--mode=interpret", "--json"];
        let runs_dir = format!("--runs-dir={}", runs.display());
        let args = Args::from_flags(flags.into_iter().chain([&*runs_dir])).unwrap();
        let run = PathBuf::from(args.train().unwrap().run_dir);
        let files = files_in(&run);
        let own = files.keys().find(|path| path.to_string_lossy().contains("tfevents")).unwrap();
        fs::copy(own, events).unwrap();
        Sandbox { run, files, folder }
    }

    fn outside(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = files_in(self.folder.path());
        files.retain(|path, _| !path.starts_with(&self.run));
        files
    }

    fn reset(&self) {
        let _ = fs::remove_dir_all(&self.run);
        fs::create_dir_all(&self.run).unwrap();
        for (path, bytes) in &self.files {
            fs::write(path, bytes).unwrap();
        }
    }

    /// Resumes from the files in the run's folder; returns the error, if there is one.
    fn resumed(&self, about: &str) -> std::result::Result<Summary, String> {
        let before = (self.outside(), files_in(&self.run));
        let run = self.run.to_str().unwrap();
        let runs_dir = format!("--runs-dir={}", self.folder.path().join("runs").display());
        let flags = ["--resume", run, "--json", "--total-timesteps=300", &runs_dir];
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let args = Args::from_flags(flags).map_err(|error| error.to_string())?;
            args.train().map_err(|error| error.to_string())
        }));
        let Ok(outcome) = outcome else { panic!("{about}: a panic") };
        assert!(self.outside() == before.0, "{about}: something outside the run has changed");
        match &outcome {
            Ok(summary) => assert!((251..=300).contains(&summary.global_step), "{about}"),
            Err(error) => {
                assert!(!error.is_empty() && error.len() < 16_000, "{about}: {error}");
                // A failed resumption must not change the run.
                assert!(
                    files_in(&self.run) == before.1,
                    "{about}: {error}: but the run has changed"
                );
            }
        }
        outcome
    }
}

/// Returns all positions of a JSON value, from the root to the leaves.
fn positions(value: &Value) -> Vec<String> {
    fn collect(value: &Value, at: String, into: &mut Vec<String>) {
        into.push(at.clone());
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                let name = name.replace('~', "~0").replace('/', "~1");
                collect(value, format!("{at}/{name}"), into);
            }),
            Value::Array(items) => items.iter().take(2).enumerate().for_each(|(i, value)| {
                collect(value, format!("{at}/{i}"), into);
            }),
            _ => {}
        }
    }
    let mut all = Vec::new();
    collect(value, String::new(), &mut all);
    all
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(Value::Null, |inner, _| json!([inner]))
}

/// Returns values of every type, extreme values, and paths that lead out of the folder.
fn hostile_values(home: &Path) -> Vec<Value> {
    let precious = home.join("precious");
    let events = home.join("events.out.tfevents.1.host.2.0");
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(-0.0),
        json!(0.5),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1u64 << 53),
        json!(1e300),
        json!(-1e300),
        json!(5e-324),
        json!(""),
        json!("."),
        json!(".."),
        json!("../.."),
        json!("../../home/precious"),
        json!(precious),
        json!(events),
        json!("../../home/events.out.tfevents.1.host.2.0"),
        json!("events.out.tfevents./../../../home/precious"),
        json!("events.out.tfevents.1\u{0}"),
        json!("/dev/full"),
        json!("C:\\Windows\\x"),
        json!("\u{1b}[2J\n\r\u{7f}"),
        json!("nan"),
        json!("--help"),
        json!("checkpoint"),
        json!("x".repeat(100_000)),
        json!([]),
        json!({}),
        json!([[1]]),
        json!({"a": {"b": 1}}),
        json!(vec![1.0; 1000]),
        nested(100),
        nested(200),
    ]
}

fn removed(value: &Value, at: &str) -> Option<Value> {
    let mut value = value.clone();
    let (parent, name) = at.rsplit_once('/')?;
    match value.pointer_mut(parent)? {
        Value::Object(fields) => drop(fields.remove(&name.replace("~1", "/").replace("~0", "~"))?),
        Value::Array(items) => drop(items.remove(name.parse().ok()?)),
        _ => return None,
    }
    Some(value)
}

fn replaced(value: &Value, at: &str, by: &Value) -> Value {
    let mut value = value.clone();
    *value.pointer_mut(at).unwrap() = by.clone();
    value
}

/// Writes the checkpoint with other metadata, and a matching header.
fn write_metadata(path: &Path, metadata: &Value) {
    let saved = checkpoint::load(path).unwrap();
    let arrays: Vec<(String, TensorType, Vec<u8>)> =
        saved.entries().map(|e| (e.name.to_string(), e.ty.clone(), e.data.to_vec())).collect();
    let arrays: Vec<(String, TensorType, &[u8])> =
        arrays.iter().map(|(name, ty, data)| (name.clone(), ty.clone(), &data[..])).collect();
    checkpoint::save(path, &arrays, metadata).unwrap();
}

fn split_header(bytes: &[u8]) -> (Value, &[u8]) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), &bytes[8 + length..])
}

fn write_header(path: &Path, header: &Value, data: &[u8]) {
    let header = serde_json::to_vec(header).unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(&header);
    bytes.extend(data);
    fs::write(path, bytes).unwrap();
}

#[test]
fn every_field_of_the_metadata_is_hostile() {
    let sandbox = Sandbox::new();
    let path = sandbox.run.join(CHECKPOINT);
    let metadata: Value = checkpoint::load_metadata(&path).unwrap();
    sandbox.resumed("the checkpoint itself").unwrap();

    let (mut refused, mut resumed) = (0, 0);
    let mut case = |about: &str, metadata: &Value| {
        sandbox.reset();
        write_metadata(&path, metadata);
        match sandbox.resumed(about) {
            Ok(_) => resumed += 1,
            Err(_) => refused += 1,
        }
    };
    let values = hostile_values(&sandbox.folder.path().join("home"));
    for at in positions(&metadata) {
        for value in &values {
            let shown: String = value.to_string().chars().take(60).collect();
            case(&format!("{at} = {shown}"), &replaced(&metadata, &at, value));
        }
        if let Some(without) = removed(&metadata, &at) {
            case(&format!("without {at}"), &without);
        }
    }
    assert!(refused > 500 && resumed > 10, "{refused} refused, {resumed} resumed");
}

/// A file of a version that lacked some flags: they count as their defaults.
#[test]
fn settings_that_the_file_lacks_are_the_defaults() {
    let sandbox = Sandbox::new();
    let path = sandbox.run.join(CHECKPOINT);
    let mut metadata: Value = checkpoint::load_metadata(&path).unwrap();
    let settings = metadata["settings"].as_object_mut().unwrap();
    for name in ["env_kwargs", "env_wrappers", "mode", "cuda"] {
        assert!(settings.remove(name).is_some(), "{name}");
    }
    write_metadata(&path, &metadata);
    sandbox.resumed("an older file").unwrap();
}

/// Settings become flags: names that no run saves are refused.
#[test]
fn settings_of_their_own_are_refused() {
    let sandbox = Sandbox::new();
    let path = sandbox.run.join(CHECKPOINT);
    let metadata: Value = checkpoint::load_metadata(&path).unwrap();
    let home = sandbox.folder.path().join("home");
    for (name, value) in [
        ("runs-dir", json!(home)),
        ("timeline ", json!(home.join("precious"))),
        ("time-line", json!(home.join("precious"))),
        ("secret_file", json!(home.join("precious"))),
        ("coordinator_address", json!("127.0.0.1:1")),
        ("help", json!("x")),
        ("", json!(1)),
        ("seed=1 --gamma", json!(0.25)),
        ("\u{1b}[2J", json!(1)),
    ] {
        sandbox.reset();
        let mut metadata = metadata.clone();
        metadata["settings"].as_object_mut().unwrap().insert(name.into(), value);
        write_metadata(&path, &metadata);
        sandbox.resumed(name).unwrap_err();
    }
    // Paths of output settings are not taken from the checkpoint: those of the new command line
    // apply.
    sandbox.reset();
    let mut metadata = metadata.clone();
    metadata["settings"]["timeline"] = json!(home.join("precious"));
    metadata["settings"]["runs_dir"] = json!(home);
    write_metadata(&path, &metadata);
    sandbox.resumed("paths of how it is watched").unwrap();
}

#[test]
fn every_field_of_the_header_is_hostile() {
    let sandbox = Sandbox::new();
    let path = sandbox.run.join(CHECKPOINT);
    let bytes = fs::read(&path).unwrap();
    let (header, data) = split_header(&bytes);
    let mut cases: Vec<(String, Value)> = Vec::new();
    let values = hostile_values(&sandbox.folder.path().join("home"));
    let more = [
        json!({"dtype": "I32", "shape": [0, u64::MAX, u64::MAX], "data_offsets": [0, 0]}),
        json!({"dtype": "I32", "shape": [1u64 << 62], "data_offsets": [0, 0]}),
        json!({"dtype": "F64", "shape": [], "data_offsets": [0, 8]}),
        json!({"dtype": "I32", "shape": [], "data_offsets": [4, 0]}),
        json!({"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}),
    ];
    for at in positions(&header) {
        for value in values.iter().chain(&more) {
            cases.push((format!("{at} = {value:.60}"), replaced(&header, &at, value)));
        }
        cases.extend(removed(&header, &at).map(|header| (format!("without {at}"), header)));
    }
    for (name, value) in [("envs[0]", &more[3]), ("\u{1b}[2J", &more[4]), ("envs[0]", &more[0])] {
        let mut header = header.clone();
        header.as_object_mut().unwrap().insert(name.into(), value.clone());
        cases.push((format!("with {name:?}"), header));
    }
    let mut refused = 0;
    for (about, header) in &cases {
        sandbox.reset();
        write_header(&path, header, data);
        refused += usize::from(sandbox.resumed(about).is_err());
    }
    assert!(refused > 100, "{refused} of {}", cases.len());
}

#[cfg(unix)]
#[test]
fn links_in_a_run_lead_nowhere() {
    use std::os::unix::fs::symlink;

    let sandbox = Sandbox::new();
    let home = sandbox.folder.path().join("home");
    let events = sandbox.files.keys().find(|path| path.to_string_lossy().contains("tfevents"));
    let events = events.unwrap();
    // The event file is a link to one of the user's files, of equal length.
    fs::remove_file(events).unwrap();
    symlink(home.join("events.out.tfevents.1.host.2.0"), events).unwrap();
    let error = sandbox.resumed("a link as the event file").unwrap_err();
    assert!(error.contains("it is a symbolic link"), "{error}");
    // A pipe has no end and no length.
    sandbox.reset();
    fs::remove_file(events).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(events).status().unwrap().success());
    let opened =
        crate::rl::logging::tensorboard::EventWriter::reopen(events.clone(), 10).unwrap_err();
    assert!(opened.to_string().contains("it is not a regular file"), "{opened}");
    // The files written next are links already: the checkpoint, its copy, and their temporary
    // files.
    sandbox.reset();
    let pid = std::process::id();
    for name in ["checkpoint.json".to_string(), format!("checkpoint.safetensors.{pid}.tmp")] {
        let _ = fs::remove_file(sandbox.run.join(&name));
        symlink(home.join("precious"), sandbox.run.join(name)).unwrap();
    }
    sandbox.resumed("links in the place of what is written").unwrap();
    assert_eq!(fs::read(home.join("precious")).unwrap(), b"years of work");
    // The lock file is written too.
    sandbox.reset();
    symlink(home.join("precious"), sandbox.run.join("run.lock")).unwrap();
    let error = sandbox.resumed("a link as the lock").unwrap_err();
    assert!(error.contains("it is a symbolic link"), "{error}");
    // A pipe as the checkpoint is refused; reading it would block.
    let path = sandbox.run.join(CHECKPOINT);
    fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error = SavedMetadata::read(&path).unwrap_err().to_string();
    assert!(error.contains("it is not a regular file"), "{error}");
}

/// Names from the command line must be names of one folder.
#[test]
fn names_that_lead_away_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let runs_dir = format!("--runs-dir={}", folder.path().join("a/b/runs").display());
    for flag in [
        "--exp-name=../..",
        "--exp-name=/tmp/x",
        "--exp-name=",
        "--exp-name=a/b",
        "--exp-name=checkpoint",
        "--env-id=../../x",
        "--env-id=/tmp/x",
        "--env-id=a/../b",
    ] {
        let args = Args::from_flags(["--mode=interpret", "--json", &runs_dir, flag]).unwrap();
        for error in [args.train().unwrap_err(), train(&args).unwrap_err()] {
            let error = error.to_string();
            assert!(error.starts_with(flag.split('=').next().unwrap()), "{error}");
        }
    }
    assert!(files_in(folder.path()).is_empty());
}

/// Returns that are not finite are null in JSON; the run continues.
#[test]
fn a_return_that_is_not_finite_is_no_damage() {
    let sandbox = Sandbox::new();
    let path = sandbox.run.join(CHECKPOINT);
    let mut metadata: Map<String, Value> = checkpoint::load_metadata(&path).unwrap();
    metadata["run_state"]["returns"][0] = json!(f64::NAN);
    assert!(metadata["run_state"]["returns"][0].is_null());
    write_metadata(&path, &Value::Object(metadata));
    sandbox.resumed("a return of NaN").unwrap();
    let _ = algorithm::check(&Args::from_flags([]).unwrap());
}
