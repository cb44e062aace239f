//! Tests of the training loop's host side: resumed runs, refused files, write errors, logged metrics.

use std::cell::Cell;
use std::fs;

use clap::Parser;
use serde::Serialize;

use super::*;
use crate::rl::algorithm;
use crate::rl::checkpoint::Checkpoint;
use crate::rl::logging::tensorboard::{Event, Value, read_events};
use crate::rl::summary::Summary;

/// Counts to the end of the run
#[derive(Debug, Parser, Serialize)]
struct Args {
    #[arg(long, default_value = "Numbers-v0")]
    env_id: String,
    #[arg(long, default_value = "500")]
    total_timesteps: u64,
    #[arg(long, default_value = "0.5")]
    gamma: f64,
    #[command(flatten)]
    #[serde(flatten)]
    run: RunOptions,
}

crate::algorithm!(Args, "count", train, play = play);

#[derive(Tree)]
struct Metrics<T> {
    td_loss: T,
}

/// Adds 1 to its only number in each call of 50 timesteps.
fn train(args: &Args) -> Result<Summary> {
    go_until(args, u64::MAX)
}

thread_local! {
    static EVALUATED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn play(_: &Args, _: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    EVALUATED_AT.set(Some(Instant::now()));
    evaluation.returns = vec![2.0, 4.0];
    Ok(())
}

#[test]
fn the_description_of_an_algorithm_is_its_own() {
    let command = <Args as clap::CommandFactory>::command();
    assert_eq!(command.get_about().unwrap().to_string(), "Counts to the end of the run");
    assert!(command.get_long_about().is_none());
}

#[test]
fn a_saved_model_is_evaluated_outside_of_the_training_time() {
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let summary = train(&args(folder.path(), &["--save-model"]).unwrap()).unwrap();
    let trained = EVALUATED_AT.get().unwrap() - started;
    assert!(summary.wall_s <= trained.as_secs_f64(), "{summary}");
    assert_eq!(summary.eval_episodic_return, Some(3.0));
    let model = Path::new(&summary.run_dir).join("count.safetensors");
    assert_eq!(summary.model_path.as_deref(), model.to_str());
    let last = summary.in_words().lines().last().unwrap().to_string();
    assert_eq!(last, format!("model: {}, mean return 3.0 +- 1.0 of 2 episodes", model.display()));
    // The program of an algorithm outside of this crate evaluates its models.
    let eval = |run: &str| {
        let words = ["--run", run].map(Into::into);
        algorithm::eval_own::<Args>("target/count".as_ref(), &words).unwrap()
    };
    let text = eval(&summary.run_dir).unwrap();
    assert_eq!(text, "count on Numbers-v0, 2 episodes: 3.00 +- 1.00\n2.0 4.0\n");
    assert!(eval("nowhere").unwrap_err().to_string().contains("cannot read nowhere"));
}

/// Trains until step `end`, at which the loop returns an error, as if the run were lost.
fn go_until(args: &Args, end: u64) -> Result<Summary> {
    let mut trainer = Trainer::start(args, 50)?;
    let mut count = trainer.init_or_resume(Array::from(0i32), ())?;
    while trainer.should_continue() {
        if trainer.global_step() == end {
            return Err(Error::Argument("lost".into()));
        }
        let next = count.item::<i32>()? + 1;
        count = Array::from(next);
        let episode =
            EpisodeRecord { step: 10, env_id: 0, episodic_return: f64::from(next), length: 3 };
        trainer.record(&[episode], Some(&Array::from(next as f32)))?;
        trainer.checkpoint_if_due(&count, ())?;
    }
    trainer.finish(&count)
}

fn args(folder: &Path, flags: &[&str]) -> std::result::Result<Args, String> {
    let folder = folder.to_str().unwrap();
    let all = ["count", "--mode", "interpret", "--json", "--runs-dir", folder];
    let all = all.into_iter().chain(flags.iter().copied()).map(Into::into);
    algorithm::parse(all).map_err(|error| error.to_string())
}

fn only_in(folder: &Path) -> std::path::PathBuf {
    fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()
}

/// Returns the logged events, without times and speeds.
fn logged(run: &Path) -> Vec<(u64, Value)> {
    let files = fs::read_dir(run).unwrap().map(|file| file.unwrap().path());
    let events = files.filter(|path| path.to_string_lossy().contains("events.out"));
    let events: Vec<Vec<Event>> = events.map(|path| read_events(path).unwrap()).collect();
    assert_eq!(events.len(), 1);
    let timeless = |value: &Value| match value {
        Value::Scalar { tag, .. } => !tag.contains("SPS"),
        Value::Text { .. } => false,
        _ => true,
    };
    let events = events.into_iter().flatten().map(|event| (event.step, event.value));
    events.filter(|(_, value)| timeless(value)).collect()
}

#[test]
fn a_run_that_was_lost_goes_on_as_if_it_was_not() {
    let (whole, cut) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(&args(whole.path(), &["--save-model"]).unwrap()).unwrap();
    let flags = ["--save-model", "--checkpoint-frequency", "150"];
    go_until(&args(cut.path(), &flags).unwrap(), 400).unwrap_err();
    let run = only_in(cut.path());
    let resume = ["--resume", run.to_str().unwrap()];
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let saved = algorithm::env_id_in(words(&resume));
    assert_eq!(saved.as_deref(), Some(args(cut.path(), &[]).unwrap().env_id()));
    let named = algorithm::env_id_in(words(&[&resume[..], &["--env-id=A"]].concat()));
    assert_eq!(named.as_deref(), Some("A"));
    assert_eq!(algorithm::env_id_in(words(&["--resume", "nowhere"])), None);
    let summary = train(&args(cut.path(), &resume).unwrap()).unwrap();
    assert_eq!((summary.global_step, summary.episodes), (500, 10));
    assert_eq!(summary.avg_episodic_return, Some(5.5));
    assert_eq!(Path::new(&summary.run_dir), run);
    assert_eq!(logged(&run), logged(&only_in(whole.path())));

    // The end is a checkpoint too, from which a longer run is resumed.
    let longer = [&resume[..], &["--total-timesteps", "600"]].concat();
    let summary = train(&args(cut.path(), &longer).unwrap()).unwrap();
    assert_eq!((summary.global_step, summary.avg_episodic_return), (600, Some(6.5)));
}

#[test]
fn what_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--save-model", "--checkpoint-frequency", "100"];
    train(&args(folder.path(), &flags).unwrap()).unwrap();
    let run = only_in(folder.path());
    let resume = |at: &Path, more: &[&str]| {
        let flags = [&["--resume", at.to_str().unwrap()], more].concat();
        args(folder.path(), &flags).and_then(|args| train(&args).map_err(|e| e.to_string()))
    };
    let error_of = |outcome: std::result::Result<Summary, String>| outcome.unwrap_err();
    let error = error_of(resume(&run, &["--gamma", "0.9"]));
    assert!(error.contains("--gamma 0.9: the run of"), "{error}");
    let error = error_of(resume(&run.join("count.safetensors"), &[]));
    assert!(error.contains("is a model, from which a run cannot go on"), "{error}");
    let error = error_of(resume(&folder.path().join("nothing"), &[]));
    assert!(error.contains("cannot read"), "{error}");

    let path = run.join(CHECKPOINT);
    let saved = fs::read(&path).unwrap();
    let text = |from: &str, to: &str| {
        let place = saved.windows(from.len()).position(|x| x == from.as_bytes()).unwrap();
        let mut edited = saved.clone();
        edited[place..place + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, edited).unwrap();
        error_of(resume(&run, &[]))
    };
    let error = text("\\\"algorithm\\\": \\\"count\\\"", "\\\"algorithm\\\": \\\"other\\\"");
    assert!(error.contains("was saved by other, and this is count"), "{error}");
    let error = text("\\\"format\\\": 1", "\\\"format\\\": 7");
    assert!(error.contains("is of format 7, and this version reads format 1"), "{error}");
    fs::write(&path, &saved[..saved.len() - 1]).unwrap();
    let error = error_of(resume(&run, &[]));
    assert!(error.contains("is not a saved model or checkpoint"), "{error}");
    fs::write(&path, &saved[..20]).unwrap();
    let error = error_of(resume(&run, &[]));
    assert!(error.contains("is not a saved model or checkpoint"), "{error}");
}

#[test]
fn a_failure_to_write_stops_the_run_or_not_as_chosen() {
    for (choice, continues) in [("stop", false), ("continue", true)] {
        let folder = tempfile::tempdir().unwrap();
        let flags = ["--checkpoint-frequency", "50", "--on-write-error", choice];
        let args = args(folder.path(), &flags).unwrap();
        let mut trainer = Trainer::start(&args, 50).unwrap();
        // Replace the run's folder by a file.
        let run = only_in(folder.path());
        fs::remove_dir_all(&run).unwrap();
        fs::write(&run, "").unwrap();
        let state = Array::from(1i32);
        assert!(trainer.should_continue());
        trainer.record::<Array>(&[], None).unwrap();
        match trainer.checkpoint_if_due(&state, ()) {
            Ok(()) => assert!(continues && trainer.should_continue()),
            Err(error) => {
                assert!(!continues && error.to_string().contains("removed or replaced"))
            }
        }
    }
}

#[test]
fn metrics_of_many_updates_are_logged_now_and_then() {
    let folder = tempfile::tempdir().unwrap();
    let args = args(folder.path(), &[]).unwrap();
    let mut trainer = Trainer::start(&args, 500).unwrap();
    let losses: Vec<f32> = (1..=50).map(|k| k as f32).collect();
    trainer.record(&[], Some(&Metrics { td_loss: Array::from(losses) })).unwrap();
    let bad = Metrics { td_loss: Array::from([1.0f32, f32::NAN]) };
    let error = trainer.record(&[], Some(&bad)).unwrap_err();
    drop(trainer);
    assert!(error.to_string().contains("is NaN at step 1000"), "{error}");
    let events = logged(&only_in(folder.path()));
    let steps: Vec<(u64, f32)> = events
        .iter()
        .filter_map(|(step, value)| match value {
            Value::Scalar { tag, value } if tag == "losses/td_loss" => Some((*step, *value)),
            _ => None,
        })
        .collect();
    assert_eq!(steps[..3], [(100, 10.0), (200, 20.0), (300, 30.0)]);
}
