//! Run folders: one writer at a time, folders that vanish, what killed runs leave.

use std::fs;
use std::path::{Path, PathBuf};

use podracer::rl::tensorboard::read_events;

use super::{ENDLESS, Running, ppo, run, run_dir};

fn events(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let mut events = files.filter(|path| path.to_str().unwrap().contains("tfevents"));
    events.next().unwrap()
}

#[test]
fn a_run_has_one_writer() {
    let runs = tempfile::tempdir().unwrap();
    let flags = format!("{ENDLESS} --checkpoint-frequency 64");
    let mut first = Running::start(ppo(runs.path(), &flags));
    first.wait_for("step ");
    let dir = run_dir(runs.path());
    // The lines of progress come before the checkpoint of the same update.
    first.wait_for_file(&dir.join("checkpoint.safetensors"));
    first.signal("KILL");
    assert_eq!(first.end().0, None);
    // What the killed process was writing.
    let unfinished = dir.join("checkpoint.safetensors.999999.tmp");
    fs::write(&unfinished, "half").unwrap();

    let resume = || ppo(runs.path(), &format!("{ENDLESS} --resume {}", dir.display()));
    let mut second = Running::start(resume());
    second.wait_for("step ");
    assert!(!unfinished.exists());
    let pid = second.child.id();
    for _ in 0..2 {
        let (status, _, err) = run(resume());
        assert_eq!(status, 1, "{err}");
        assert!(err.contains(&format!("is in use by process {pid} on ")), "{err}");
    }
    second.signal("TERM");
    let (status, err) = second.end();
    assert_eq!(status, Some(0), "{err}");
    assert!(err.contains("continue with --resume "), "{err}");
    read_events(events(&dir)).expect("a whole event file");
    assert!(!dir.join("run.lock").exists());
}

#[test]
fn a_folder_that_vanishes_is_reported_at_once() {
    for (choice, ends) in [("stop", true), ("continue", false)] {
        let runs = tempfile::tempdir().unwrap();
        let flags = format!("{ENDLESS} --on-write-error {choice} --checkpoint-frequency 6400");
        let mut running = Running::start(ppo(runs.path(), &flags));
        running.wait_for("step ");
        fs::remove_dir_all(run_dir(runs.path())).unwrap();
        running.wait_for("it was removed or replaced while the run wrote it");
        if !ends {
            // Two more lines of progress, and many checkpoints.
            running.wait_for("step ");
            running.wait_for("step ");
            running.signal("TERM");
        }
        let (status, err) = running.end();
        assert_eq!(status, Some(i32::from(ends)), "{err}");
        assert_eq!(err.matches("cannot write").count(), 1, "{err}");
    }
}

#[test]
fn resuming_a_run_that_ended_says_so() {
    let runs = tempfile::tempdir().unwrap();
    let (status, _, err) = run(ppo(runs.path(), "--mode interpret --checkpoint-frequency 64"));
    assert_eq!(status, 0, "{err}");
    let resume = format!("--mode interpret --resume {}", run_dir(runs.path()).display());
    let (status, _, err) = run(ppo(runs.path(), &resume));
    assert_eq!(status, 0, "{err}");
    assert!(err.contains("nothing to resume: ") && err.contains("a larger number"), "{err}");
    let (status, _, err) = run(ppo(runs.path(), &format!("{resume} --total-timesteps 128")));
    assert!(status == 0 && !err.contains("nothing to resume"), "{err}");
}
