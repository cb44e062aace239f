//! Standard output, standard error, and streams that cannot be written.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use podracer::rl::logging::tensorboard::{Value, read_events};

use super::{podracer, ppo, run, run_dir};

#[test]
fn train_help_lists_algorithms_and_shared_flags() {
    for word in ["--help", "-h", "help"] {
        let (status, out, err) = run(podracer(&["train", word]));
        assert_eq!((status, err.as_str()), (0, ""));
        for part in ["  ppo_atari_envpool ", "  dqn ", "podracer train ALGO --help"] {
            assert!(out.contains(part), "{part} in {out}");
        }
        for part in ["Experiment:\n", "Run:\n", "  --[no-]save-model ", "  --seed INT "] {
            assert!(out.contains(part), "{part} in {out}");
        }
    }
    let (status, _, err) = run(podracer(&["train", "--seed", "1"]));
    assert!(status == 1 && err.contains("the algorithm comes first"), "{err}");
}

#[test]
fn lines_are_wrapped_at_the_width_of_the_terminal() {
    for words in ["train", "train --help", "train ppo --help", "doctor", "envs", "envs CartPole-v1"]
    {
        for columns in [50, 80] {
            let mut command = podracer(&words.split(' ').collect::<Vec<_>>());
            command.env("COLUMNS", columns.to_string());
            let (_, out, _) = run(command);
            // Paths have no space at which they could be wrapped.
            let wrappable = |line: &&str| line.trim().contains(' ');
            let widest = out.lines().filter(wrappable).map(str::len).max();
            assert!(widest.is_some_and(|width| width <= columns), "{words}: {widest:?} in {out}");
        }
    }
}

#[test]
fn results_go_to_standard_output_and_progress_to_standard_error() {
    let runs = tempfile::tempdir().unwrap();
    let mut command = ppo(runs.path(), "--save-model --eval-episodes 2");
    command.env("PODRACER_CACHE", "off");
    let (status, out, err) = run(command);
    assert_eq!(status, 0, "{err}");
    let dir = run_dir(runs.path());
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("ppo on CartPole-v1, seed 1, jit on cpu: 64 steps in "), "{out}");
    assert_eq!(lines[2], dir.to_str().unwrap());
    let model = format!("model: {}, mean return ", dir.join("ppo.safetensors").display());
    assert!(lines[3].starts_with(&model), "{out}");
    assert!(err.contains("step 64/64 (100%)") && !err.contains("ppo on CartPole"), "{err}");
    for name in ["ppo_init", "ppo_iteration"] {
        assert!(err.contains(&format!("compiling {name} ...\n")), "{err}");
    }
}

/// Texts from elsewhere: names of files, ids, lines of a file.
#[test]
fn control_characters_are_not_sent_to_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let queue = folder.path().join("queue.jsonl");
    let row = r#"{"algorithm": "\u001b[2J\u009b31m", "env_id": "CartPole-v1", "seeds": [1], "flags": ""}"#;
    fs::write(&queue, row).unwrap();
    let (queue, script) = (queue.to_str().unwrap(), "/nowhere/script.sh");
    let name = "\u{1b}]0;title\u{7}\u{1b}[2J\r";
    for words in [
        &["benchmark", "--queue", queue, "--slurm", script][..],
        &["train", name],
        &["train", "ppo", "--resume", name],
        &["train", "ppo", "--env-id", name],
        &["train", "ppo", name],
        &["eval", "--run", name],
        &["plot", name],
        &["fetch", name],
    ] {
        let (status, out, err) = run(podracer(words));
        assert_ne!(status, 0, "{words:?}: {out}");
        let text = out + &err;
        let obeyed = |c: &char| c.is_control() && !matches!(c, '\n' | '\t');
        assert_eq!(text.chars().find(obeyed), None, "{words:?}: {text:?}");
        // clap removes sequences of escape characters.
        let shown = text.contains("\\u{1b}") || text.contains("\\r");
        assert!(shown, "{words:?}: {text:?}");
    }
}

#[test]
fn values_of_flags_are_spelled_as_in_cleanrl() {
    let runs = tempfile::tempdir().unwrap();
    let (status, _, err) = run(ppo(runs.path(), "--learning-rate -1"));
    assert!(status == 2 && err.contains("error: --learning-rate -1: must be "), "{err}");
    let (status, _, err) = run(ppo(runs.path(), "--num-envs -1"));
    assert!(status == 2 && err.contains("--num-envs -1: must be a whole number"), "{err}");
    let flags = "--mode interpret --anneal-lr False --no-norm-adv --clip_vloss true";
    let (status, _, err) = run(ppo(runs.path(), flags));
    assert_eq!(status, 0, "{err}");
    let settings = hyperparameters(&run_dir(runs.path()));
    for row in ["|anneal_lr|False|", "|norm_adv|False|", "|clip_vloss|True|"] {
        assert!(settings.contains(row), "{settings}");
    }
}

/// The table of settings in a run's event file.
fn hyperparameters(dir: &Path) -> String {
    let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let mut events = files.filter(|path| path.to_str().unwrap().contains("tfevents"));
    let events = read_events(events.next().unwrap()).unwrap();
    let text = events.into_iter().find_map(|event| match event.value {
        Value::Text { text, .. } => Some(text),
        _ => None,
    });
    text.unwrap()
}

#[test]
fn unknown_names_point_to_commands() {
    let runs = tempfile::tempdir().unwrap();
    let (status, _, err) = run(ppo(runs.path(), "--env-id CartPole-v9"));
    assert!(status == 1 && err.contains("`podracer envs`"), "{err}");
}

#[test]
fn a_flag_of_other_algorithms_names_them() {
    let (status, _, err) = run(podracer(&["train", "ppo", "--seed_axis=map"]));
    let expected = "--seed-axis: ppo does not have this flag, but these do: dpo_anakin, ";
    assert!(status == 1 && err.contains(expected), "{err}");
    // One of no algorithm is explained by similar ones.
    let (status, _, err) = run(podracer(&["train", "ppo", "--learning-rat=1"]));
    assert!(status == 2 && err.contains("'--learning-rate'"), "{err}");
}

/// Commands that print, but for `train`.
const PRINTING: [&[&str]; 5] =
    [&["train"], &["train", "--help"], &["train", "ppo", "--help"], &["envs"], &["--help"]];

#[test]
fn full_streams_end_nothing() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for arguments in PRINTING {
        let mut command = podracer(arguments);
        let status = command.stdout(full()).stderr(full()).status().unwrap();
        assert!(matches!(status.code(), Some(0 | 1)), "{arguments:?}: {status}");
    }
    for flags in ["", "--json", "--mode interpret --check-nans"] {
        let runs = tempfile::tempdir().unwrap();
        let status = ppo(runs.path(), flags).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{flags}: the result was not written");
        assert!(run_dir(runs.path()).is_dir());
        let output = ppo(runs.path(), flags).stdout(full()).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        let lines = err.lines().filter(|line| line.starts_with("error: ")).count();
        assert!(lines == 1 && err.contains("cannot write standard output"), "{err}");
        let mut command = ppo(runs.path(), flags);
        assert!(command.stderr(full()).stdout(Stdio::null()).status().unwrap().success());
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let runs = tempfile::tempdir().unwrap();
    let mut commands: Vec<_> = PRINTING.into_iter().map(podracer).collect();
    commands.extend([ppo(runs.path(), ""), ppo(runs.path(), "--json")]);
    for mut command in commands {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert!(child.wait().unwrap().success(), "{err}");
        assert!(!err.contains("error") && !err.contains("panicked"), "{err}");
    }
}

#[test]
fn benchmark_reports_failed_runs() {
    let runs = tempfile::tempdir().unwrap();
    let words = "benchmark --algos ppo --env-ids CartPole-v1,CartPole-v9 --num-seeds 2 -- \
                 --total-timesteps 64 --num-steps 16 --num-envs 2 --num-minibatches 2 --runs-dir";
    let mut words: Vec<&str> = words.split_whitespace().collect();
    words.push(runs.path().to_str().unwrap());
    let (status, out, err) = run(podracer(&words));
    assert_eq!(status, 1, "{err}");
    assert!(out.contains("| CartPole-v1 | ") && out.contains(" s compiling) |"), "{out}");
    assert!(!out.contains("NaN") && !out.contains("CartPole-v9"), "{out}");
    assert!(err.contains("error: 2 of 4 runs failed:"), "{err}");
    let mut lines = err.lines();
    let line = lines.find(|line| line.starts_with("  ppo on CartPole-v9, seed 2: ")).unwrap();
    assert!(line.contains("unknown environment \"CartPole-v9\""), "{err}");
}

/// The code of a source file without its tests and comments, with line numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().take_while(|line| *line != "#[cfg(test)]").zip(1..);
    lines.map(|(line, number)| (number, line)).filter(|(_, l)| !l.trim_start().starts_with("//"))
}

/// The law behind the tests above: `println!` and its relatives panic where they cannot write, so that
/// only one module prints. Examples print as any program does: none of them prints in a callback.
#[test]
fn only_the_output_module_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("src"), root.join("tools/src")];
    let mut found = Vec::new();
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|x| x == "rs") && !path.ends_with("tests.rs") {
                files += 1;
                let text = fs::read_to_string(&path).unwrap();
                let macros = ["println!", "eprintln!", "print!(", "eprint!(", "dbg!("];
                let prints = |line: &str| macros.iter().any(|name| line.contains(name));
                let lines = code(&text).filter(|(_, line)| prints(line));
                found.extend(lines.map(|(n, line)| format!("{}:{n}: {line}", path.display())));
            }
        }
    }
    assert!(files > 200, "{files} files");
    assert!(found.is_empty(), "use podracer::output instead:\n{}", found.join("\n"));
}
