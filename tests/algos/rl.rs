//! The host tools of training programs, from outside: other programs read our files, and signals
//! end ours.

use std::path::Path;
use std::process::Command;

use podracer::rl::Run;
use serde::Serialize;

#[derive(Serialize)]
struct Args {
    learning_rate: f32,
    anneal_lr: bool,
}

fn run_in(root: &Path) -> Run {
    let args = Args { learning_rate: 2.5e-4, anneal_lr: true };
    Run::create(root, "ppo", "CartPole-v1", 1, &args).unwrap()
}

#[test]
fn tensorboard_reads_our_files() {
    let Some(python) = super::peers::python("PODRACER_TENSORBOARD_PYTHON") else { return };
    let root = tempfile::tempdir().unwrap();
    let mut run = run_in(root.path());
    run.episode(21.0, 21, 21).unwrap();
    run.episode(9.0, 9, 30).unwrap();
    run.events.scalars(&[("losses/entropy", 0.5), ("charts/SPS", 1e6)], 1 << 40).unwrap();
    let dir = run.dir.clone();
    drop(run);

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tensorboard/check.py");
    let output = Command::new(python).arg(script).arg(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let tag = "hyperparameters/text_summary";
    let table = "|param|value|\n|-|-|\n|learning_rate|0.00025|\n|anneal_lr|True|";
    assert_eq!(
        read,
        serde_json::json!({
            "scalars": {
                "charts/episodic_return": [[21, 21.0], [30, 9.0]],
                "charts/episodic_length": [[21, 21.0], [30, 9.0]],
                "charts/SPS": [[1_u64 << 40, 1e6]],
                "losses/entropy": [[1_u64 << 40, 0.5]],
            },
            "texts": { tag: [[0, table]] },
            "plugins": { tag: "text" },
        })
    );
}

#[cfg(unix)]
mod interrupts {
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, ChildStdout, Command, Stdio};
    use std::thread::sleep;
    use std::time::Duration;

    use podracer::rl::interrupt::{self, Interruptible};
    use podracer::rl::logging::tensorboard::read_events;

    use super::run_in;

    /// How the child process is told its part.
    const PART: &str = "PODRACER_TEST_INTERRUPT";
    /// Environment variable with the behavior of the child after the signal: `end`, `slow` or `serve`.
    const ENDING: &str = "PODRACER_TEST_ENDING";
    /// A script that only executes its arguments, in the same process.
    const PLAIN: &str = r#"exec "$0" "$@""#;

    /// The program that the tests below interrupt.
    #[test]
    #[ignore = "run by the tests of signals"]
    fn child() {
        let root = std::env::var_os(PART).expect("the test that runs this sets it");
        let both = [Interruptible::start().unwrap(), Interruptible::start().unwrap()];
        let mut run = run_in(root.as_ref());
        run.events.scalar("charts/SPS", 1.0, 1).unwrap();
        println!("\nready {}", run.events.path().display());
        while !interrupt::requested() {
            sleep(Duration::from_millis(5));
        }
        run.events.scalar("charts/SPS", 2.0, 2).unwrap();
        println!("\nstopping");
        match std::env::var(ENDING).unwrap().as_str() {
            "slow" => sleep(Duration::from_secs(60)),
            "serve" => {
                drop(both);
                assert!(!interrupt::requested());
                println!("\nserving");
                sleep(Duration::from_secs(60));
            }
            _ => {}
        }
    }

    struct Running {
        process: Child,
        output: BufReader<ChildStdout>,
        _root: tempfile::TempDir,
    }

    /// Starts the child from a shell script that executes its arguments.
    fn start(script: &str, ending: &str) -> Running {
        let root = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "rl::interrupts::child", "--ignored", "--nocapture"]);
        command.env(PART, root.path()).env(ENDING, ending);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Running { process, output, _root: root }
    }

    impl Running {
        /// The rest of the child's next line that starts so.
        fn line(&mut self, start: &str) -> String {
            let mut lines = self.output.by_ref().lines().map(Result::unwrap);
            lines.find_map(|line| line.strip_prefix(start).map(str::to_string)).unwrap()
        }

        fn signal(&self, name: &str) {
            let pid = self.process.id().to_string();
            assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
        }
    }

    #[test]
    fn the_first_signal_stops_cleanly() {
        for name in ["INT", "TERM"] {
            let mut running = start(PLAIN, "end");
            let events = running.line("ready ");
            running.signal(name);
            assert!(running.process.wait().unwrap().success());
            assert_eq!(read_events(events).unwrap().len(), 4);
        }
    }

    #[test]
    fn the_second_signal_ends_at_once() {
        let mut running = start(PLAIN, "slow");
        running.line("ready ");
        running.signal("INT");
        running.line("stopping");
        running.signal("TERM");
        assert_eq!(running.process.wait().unwrap().code(), Some(interrupt::EXIT_STATUS));
    }

    #[test]
    fn after_training_signals_are_the_programs_own() {
        let mut running = start(PLAIN, "serve");
        running.line("ready ");
        running.signal("INT");
        running.line("serving");
        running.signal("TERM");
        assert_eq!(running.process.wait().unwrap().signal(), Some(libc::SIGTERM));
    }

    /// The signals of a process that `/proc` lists in a row, as bits.
    #[cfg(target_os = "linux")]
    fn signals(process: &Child, row: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
        let row = status.lines().find_map(|line| line.strip_prefix(row)).unwrap();
        u64::from_str_radix(row.trim(), 16).unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_hangup_is_left_to_nohup() {
        let mut running = start(r#"trap "" HUP; exec "$0" "$@""#, "end");
        let events = running.line("ready ");
        let bit = |signal: i32| 1_u64 << (signal - 1);
        let caught = signals(&running.process, "SigCgt:");
        assert_eq!(caught & bit(libc::SIGHUP), 0);
        assert_ne!(caught & bit(libc::SIGINT), 0);
        assert_ne!(signals(&running.process, "SigIgn:") & bit(libc::SIGHUP), 0);
        running.signal("HUP");
        assert_eq!(read_events(&events).unwrap().len(), 2);
        running.signal("INT");
        assert!(running.process.wait().unwrap().success());
    }
}
