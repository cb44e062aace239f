//! Command lines of CleanRL's and Cleanba's READMEs, typed after `podracer train`.

use std::ffi::OsString;
use std::fs;

use podracer::algos::registry;

use super::{podracer, run, run_dir};

/// A command line: the script with its folder, and its flags.
#[derive(Debug)]
struct Line {
    script: String,
    flags: Vec<String>,
}

/// The command lines of both READMEs; `tests/cli/readmes/make.py` extracts them.
fn lines() -> Vec<Line> {
    let texts = [include_str!("readmes/cleanrl.txt"), include_str!("readmes/cleanba.txt")];
    let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
    let lines: Vec<Line> = lines.map(line).collect();
    assert!(lines.len() >= 20, "{lines:?}");
    lines
}

/// Splits a line; of CleanRL's benchmark it is the quoted `--command`.
fn line(text: &str) -> Line {
    let command = match text.split_once("--command \"") {
        Some((_, rest)) => rest.split('"').next().unwrap(),
        None => text,
    };
    let mut words = command.split_whitespace().skip_while(|word| !word.ends_with(".py"));
    let script = words.next().unwrap_or_else(|| panic!("no script in {text}")).to_string();
    Line { script, flags: words.map(String::from).collect() }
}

/// A part of the message for command lines that need Procgen.
fn without_procgen(line: &Line) -> Option<&'static str> {
    match line.script.as_str() {
        "cleanrl/ppo_procgen.py" => Some("no algorithm ppo_procgen: cleanba_ppo has its network"),
        "cleanrl/ppg_procgen.py" => Some("unknown environment \"starpilot\""),
        _ => None,
    }
}

#[test]
fn command_lines_of_the_readmes_are_accepted() {
    for line in lines() {
        if line.script == "cleanrl/ppo_procgen.py" || line.flags.contains(&"--help".into()) {
            continue;
        }
        let entry = registry::find(&line.script).unwrap_or_else(|error| panic!("{error}"));
        let words: Vec<OsString> =
            [entry.name.into()].into_iter().chain(line.flags.iter().map(OsString::from)).collect();
        let settings = (entry.settings)(words).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        for flag in line.flags.iter().filter_map(|flag| flag.strip_prefix("--")) {
            let name = flag.split('=').next().unwrap().replace('-', "_");
            assert!(settings.contains_key(&name), "{line:?}: no setting {name}");
        }
    }
}

/// Flags that make a run short.
fn short(script: &str) -> &'static str {
    match script.rsplit('/').next().unwrap() {
        "ppo.py" => "--total-timesteps 512",
        "dqn.py" | "c51.py" => "--total-timesteps 200 --learning-starts 100 --updates-per-call 1",
        "ppo_atari_envpool.py" | "ppo_atari.py" | "ppo_atari_lstm.py" => {
            "--num-envs 4 --num-steps 4 --num-minibatches 2 --update-epochs 1 --total-timesteps 16"
        }
        "ppg_procgen.py" | "ppo_procgen.py" => "",
        "cleanba_ppo.py" => {
            "--local-num-envs 4 --num-actor-threads 1 --num-steps 2 --num-minibatches 1 \
             --update-epochs 1 --total-timesteps 8 --network nature"
        }
        "sac_atari.py" => {
            "--total-timesteps 1000 --learning-starts 992 --buffer-size 64 --batch-size 4"
        }
        _ => {
            "--total-timesteps 24 --learning-starts 8 --buffer-size 64 --batch-size 4 \
             --updates-per-call 1"
        }
    }
}

/// Each command line runs, with later flags that make it short. The layouts of several devices are
/// left to `tests/devices/sebulba.rs`.
#[test]
fn command_lines_of_the_readmes_run() {
    let mut finished = 0;
    for line in lines() {
        let flags: Vec<&str> = line.flags.iter().map(String::as_str).collect();
        let devices = flags.iter().position(|flag| *flag == "--learner-device-ids");
        let several = devices.is_some_and(|at| flags[at + 1..].contains(&"1"));
        if several || flags.contains(&"--help") {
            continue;
        }
        let runs = tempfile::tempdir().unwrap();
        let mut command = podracer(&["train", &line.script]);
        command.args(flags).args(short(&line.script).split_whitespace());
        command.arg("--runs-dir").arg(runs.path());
        // There is no package, which is one line.
        command.env("PODRACER_PYTHON", "/bin/false");
        let (status, out, err) = run(command);
        match without_procgen(&line) {
            Some(message) => assert!(status == 1 && err.contains(message), "{line:?}: {err}"),
            None => {
                assert_eq!(status, 0, "{line:?}: {err}");
                let script = registry::script(&line.script);
                assert!(out.contains(&format!("{script} on ")), "{line:?}: {out}");
                let dir = run_dir(runs.path());
                assert!(dir.to_str().unwrap().contains(&format!("__{script}__1__")), "{dir:?}");
                assert!(fs::read_dir(dir).unwrap().count() > 0);
                finished += 1;
            }
        }
    }
    assert!(finished >= 13, "{finished}");
}

/// Flags without effect say so in one line each.
#[test]
fn flags_without_effect_say_so_once() {
    for (flags, expected) in [
        (
            "--torch-deterministic",
            vec!["--torch-deterministic: no effect; a run repeats bit for bit"],
        ),
        ("--torch_deterministic False", vec!["--torch-deterministic: no effect"]),
        ("--cuda True", vec!["--cuda: no effect; PODRACER_PLATFORM=cuda chooses a GPU"]),
        ("--no-cuda", vec![]),
        ("--cuda=False", vec![]),
        ("--cuda --no-torch-deterministic", vec!["--torch-deterministic: no", "--cuda: no"]),
    ] {
        let runs = tempfile::tempdir().unwrap();
        let (status, _, err) = run(super::ppo(runs.path(), &format!("--mode interpret {flags}")));
        assert_eq!(status, 0, "{err}");
        let lines: Vec<&str> = err.lines().filter(|line| line.contains("no effect")).collect();
        assert_eq!(lines.len(), expected.len(), "{flags}: {err}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.contains(expected), "{flags}: {line}");
        }
    }
    let runs = tempfile::tempdir().unwrap();
    let mut command = super::ppo(runs.path(), "--no-cuda");
    command.env("PODRACER_PLATFORM", "cuda");
    let (status, _, err) = run(command);
    assert!(status == 1 && err.contains("--no-cuda: PODRACER_PLATFORM chooses a GPU"), "{err}");
}

#[test]
fn scripts_that_are_not_here_say_what_is() {
    for (script, expected) in [
        ("cleanrl/ppo_procgen.py", "no algorithm ppo_procgen: cleanba_ppo has its network"),
        (
            "ppo_continuous_action_isaacgym",
            "no algorithm ppo_continuous_action_isaacgym: Isaac Gym",
        ),
        ("no/such.py", "no algorithm no/such.py; `podracer train` lists"),
        (
            "sac",
            "no algorithm sac; did you mean fast_sac or sac_atari or sac_continuous_action or sebulba_sac or simba_sac?",
        ),
        (
            "ppo_lstm",
            "did you mean ppo_atari_lstm or ppo_continuous_action_lstm? `podracer train` lists",
        ),
        ("dqm", "no algorithm dqm; did you mean dqn? `podracer train` lists"),
    ] {
        let (status, _, err) = run(podracer(&["train", script]));
        assert!(status == 1 && err.contains(expected), "{err}");
    }
}

/// Help has one line a flag, in groups. Each line fits a wide terminal, and is wrapped in a narrow one.
#[test]
fn help_has_one_line_a_flag() {
    for entry in registry::ALGORITHMS {
        let (status, out, _) = run(podracer(&["train", entry.name, "--help"]));
        assert_eq!(status, 0, "{out}");
        let flags = out.lines().filter(|line| line.starts_with("  --")).count();
        let command = (entry.command)();
        assert_eq!(flags, command.get_arguments().count(), "{out}");
        let is_heading = |line: &&str| line.ends_with(':') && !line.starts_with(' ');
        let groups: Vec<&str> = out.lines().filter(is_heading).collect();
        assert!(groups.starts_with(&["Experiment:", "Algorithm:"]), "{groups:?}");
        assert_eq!(groups.last(), Some(&"Run:"), "{groups:?}");
        for line in out.lines() {
            assert!(line.len() <= MAX_HELP, "{}: {line}", line.len());
        }
    }
    let (_, out, _) = run(podracer(&["train", "ppo", "-h"]));
    for line in [
        "Usage: podracer train ppo [FLAGS]",
        "  --[no-]track ",
        "  --gamma FLOAT ",
        "The discount factor gamma [0 to 1, default 0.99]",
        "  --mode {jit,eager,interpret} ",
        "  --timeline PATH ",
    ] {
        assert!(out.contains(line), "{line} in {out}");
    }
}

/// Maximum length of a line of help.
const MAX_HELP: usize = 140;

#[test]
fn flags_of_every_command_have_cleanrls_spellings() {
    let line = "benchmark --algos ppo dqn --env_ids CartPole-v1 Acrobot-v1 --num_seeds 1_0 \
                --start_seed=1e1 --workers 0 -- --total_timesteps 1e5 --target_kl None";
    let words: Vec<&str> = line.split_whitespace().collect();
    let (status, out, err) = run(podracer(&words));
    assert_eq!(status, 0, "{err}");
    for part in ["ppo", "dqn", "CartPole-v1", "Acrobot-v1", "19"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    // The flags are known; what they name is not there.
    for (line, part) in [
        ("eval --run nothing --trust_remote_code --capture_video videos", "nothing"),
        ("export --run nothing --batch_size 2", "nothing"),
        (
            "tune ppo --env_id CartPole-v1 --search gamma=0.9,1 --num_seeds 1 --workers 0",
            "--workers 0",
        ),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = podracer(&words);
        let folder = tempfile::tempdir().unwrap();
        command.current_dir(folder.path());
        let (status, _, err) = run(command);
        assert!(status == 1 && err.contains(part), "{line}: {status}: {err}");
    }
}
