//! Run folders: one writer at a time, folders that vanish, what killed runs leave.

use std::fs;
use std::path::{Path, PathBuf};

use podracer::rl::logging::tensorboard::{Value, read_events};

use super::{ENDLESS, Running, peers, podracer, ppo, run, run_dir};

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

/// Another program cuts the event file, as a rotation of logs does: the run says so, and is resumed.
#[test]
fn a_cut_event_file_is_reported_and_its_run_is_resumed() {
    let runs = tempfile::tempdir().unwrap();
    let flags = format!("{ENDLESS} --checkpoint-frequency 6400");
    let mut running = Running::start(ppo(runs.path(), &flags));
    running.wait_for("step ");
    let dir = run_dir(runs.path());
    running.wait_for_file(&dir.join("checkpoint.safetensors"));
    let length = fs::metadata(events(&dir)).unwrap().len();
    fs::OpenOptions::new().write(true).open(events(&dir)).unwrap().set_len(length / 2).unwrap();
    running.wait_for("another program cut it to ");
    let (status, err) = running.end();
    assert_eq!(status, Some(1), "{err}");

    let resume = format!("{ENDLESS} --resume {}", dir.display());
    let mut running = Running::start(ppo(runs.path(), &resume));
    running.wait_for("warning: another program has cut ");
    running.wait_for("step ");
    running.signal("TERM");
    let (status, err) = running.end();
    assert_eq!(status, Some(0), "{err}");
    read_events(events(&dir)).expect("a whole event file");
}

/// Runs it and returns standard error; it must fail, and soon.
#[cfg(unix)]
fn refused_at_once(mut command: std::process::Command) -> String {
    use std::io::Read;
    use std::time::{Duration, Instant};

    let about = format!("{command:?}");
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if began.elapsed() > Duration::from_secs(30) => {
                child.kill().unwrap();
                panic!("{about} waits");
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!status.success(), "{about}: {text}");
    text
}

/// A pipe blocks its reader, and a device may have no end.
#[cfg(unix)]
#[test]
fn files_that_are_not_regular_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for file in [pipe.as_path(), Path::new("/dev/zero")] {
        let study = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(file, study.path().join("trials.jsonl")).unwrap();
        let (name, out) = (file.to_str().unwrap(), study.path().to_str().unwrap());
        for words in [
            "benchmark --queue FILE --slurm OUT/script.sh",
            "benchmark --algos ppo --env-ids CartPole-v1 --num-seeds 1 --results FILE",
            "benchmark --algos ppo --env-ids CartPole-v1 --num-seeds 1 --results FILE --resume",
            "benchmark --compare FILE FILE",
            "tune ppo --env-id CartPole-v1 --search gamma=0.9,0.99 --trials 1 --out OUT",
            "tune ppo --env-id CartPole-v1 --search gamma=0.9,0.99 --trials 1 --out OUT --resume",
            "train ppo --resume FILE",
            "eval --run FILE",
            "plot FILE",
        ] {
            let words = words.replace("FILE", name).replace("OUT", out);
            let words: Vec<&str> = words.split(' ').collect();
            let text = refused_at_once(podracer(&words));
            // A folder of runs is none of both.
            let refused = text.contains("not a regular file") || text.contains("Not a directory");
            assert!(refused, "{words:?}: {text}");
        }
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
    // The settings that the run ended with are its last.
    let settings = read_events(events(&run_dir(runs.path()))).unwrap().into_iter();
    let settings: Vec<String> = settings
        .filter_map(|event| match event.value {
            Value::Text { text, .. } => Some(text),
            _ => None,
        })
        .collect();
    let [began, ended] = &settings[..] else { panic!("{settings:?}") };
    assert!(began.contains("|total_timesteps|64|") && ended.contains("|total_timesteps|128|"));
}

/// The returns of a run's episodes, with their steps.
fn returns(dir: &Path) -> Vec<(u64, f32)> {
    let events = read_events(events(dir)).unwrap().into_iter();
    let returns = events.filter_map(|event| match event.value {
        Value::Scalar { tag, value } if tag == "charts/episodic_return" => {
            Some((event.step, value))
        }
        _ => None,
    });
    returns.collect()
}

/// Names of the videos of a run.
fn videos(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir.join("videos")).unwrap();
    let mut names: Vec<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A run with videos, made by the program that `ffmpeg` names.
fn filmed(runs: &Path, flags: &str, ffmpeg: &str) -> PathBuf {
    let mut command = ppo(runs, &format!("{flags} --capture-video"));
    command.env("PODRACER_FFMPEG", ffmpeg);
    let (status, _, err) = run(command);
    assert_eq!(status, 0, "{err}");
    run_dir(runs)
}

#[test]
fn training_episodes_are_filmed_and_learning_is_the_same() {
    let (gifs, plain) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let flags = "--total-timesteps 800 --eval-episodes 1 --num-threads 2";
    let dir = filmed(gifs.path(), flags, "off");
    // 400 steps of an environment are more than 8 episodes and fewer than 27.
    let expected = ["episode-0", "rl-video-episode-0", "rl-video-episode-1", "rl-video-episode-8"];
    assert_eq!(videos(&dir), expected.map(|name| format!("{name}.gif")));
    assert_eq!(run(ppo(plain.path(), flags)).0, 0);
    assert_eq!(returns(&dir), returns(&run_dir(plain.path())));

    let Some(python) = peers::python("PODRACER_PEER_PYTHON") else { return };
    let script = "import imageio_ffmpeg; print(imageio_ffmpeg.get_ffmpeg_exe())";
    let found = std::process::Command::new(&python).args(["-c", script]).output().unwrap();
    let ffmpeg = String::from_utf8(found.stdout).unwrap();
    let mp4s = tempfile::tempdir().unwrap();
    let dir = filmed(mp4s.path(), flags, ffmpeg.trim());
    assert_eq!(videos(&dir), expected.map(|name| format!("{name}.mp4")));
    for name in videos(&dir) {
        let bytes = fs::read(dir.join("videos").join(name)).unwrap();
        // A complete file has its index; the one of fast starts is before the frames.
        let at = |name: &[u8]| bytes.windows(4).position(|part| part == name).unwrap();
        assert!(&bytes[4..8] == b"ftyp" && at(b"moov") < at(b"mdat"));
    }
    let script = "import sys, imageio_ffmpeg; \
                  print(next(imageio_ffmpeg.read_frames(sys.argv[1]))['fps'])";
    let video = dir.join("videos/episode-0.mp4");
    let found =
        std::process::Command::new(python).args(["-c", script]).arg(video).output().unwrap();
    // CartPole's `render_fps` in Gymnasium.
    assert_eq!(String::from_utf8(found.stdout).unwrap().trim(), "50.0");
    assert_eq!(returns(&dir), returns(&run_dir(plain.path())));
}

#[test]
fn an_ffmpeg_that_fails_does_not_end_training() {
    let runs = tempfile::tempdir().unwrap();
    let mut command = ppo(runs.path(), "--capture-video --save-model");
    command.env("PODRACER_FFMPEG", "false");
    let (status, _, err) = run(command);
    // The videos of training and of the evaluation are missing, the model is there.
    assert_eq!(err.matches("--capture-video: ffmpeg cannot write ").count(), 2, "{err}");
    assert!(err.contains("PODRACER_FFMPEG=off writes GIFs"), "{err}");
    assert_eq!(status, 0, "{err}");
    assert!(run_dir(runs.path()).join("ppo.safetensors").exists(), "{err}");
}

#[test]
fn environments_without_pictures_are_not_filmed() {
    let other = tempfile::tempdir().unwrap();
    let (status, _, err) = run(ppo(other.path(), "--env-id CartPolePositions-v0 --capture-video"));
    assert_eq!(status, 0, "{err}");
    assert_eq!(
        err.matches("--capture-video: CartPolePositions-v0 draws no pictures").count(),
        1,
        "{err}"
    );
}

#[test]
fn a_policy_of_flax_is_evaluated() {
    let policy = ["eval", "--policy", "tests/fixtures/jax/flax/policy.txt"];
    let flags = ["--env-id", "CartPole-v1", "--episodes", "1"];
    let (status, out, err) = run(podracer(&[&policy[..], &flags[..]].concat()));
    assert_eq!(status, 0, "{err}");
    assert!(out.ends_with("policy.txt on CartPole-v1, 1 episode: 500.00\n500.0\n"), "{out}");
    let (status, _, err) = run(podracer(&["eval"]));
    assert_ne!(status, 0);
    assert!(err.contains("eval needs --run"), "{err}");
    let (status, _, err) = run(podracer(&[&policy[..], &["--run", "runs/ppo"]].concat()));
    assert_ne!(status, 0);
    assert!(err.contains("cannot be used with") && err.contains("--run"), "{err}");
}
