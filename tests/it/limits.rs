//! Runs of the `podracer` command with numeric flags at their limits: each ends with an error or trains,
//! within 4 GB. Most cases are checked without a run in `src/tests/flags.rs`; this is the named
//! command `cargo test --release --test it limits -- --ignored --nocapture`, whose number of cases is
//! `PODRACER_LIMIT_CASES`.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use podracer::algos::registry::ALGORITHMS;
use podracer::rl::settings::ranges::{Range, is_numeric, range_of};

/// Resident memory that no run may take.
const MAX_BYTES: u64 = 4 << 30;
/// Time after which a run counts as one that trains.
const TRAINS: Duration = Duration::from_secs(60);

fn podracer(words: &[String]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podracer"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Bytes of resident memory of a process; 0 when it is gone.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Runs a command line; says how it ended, and fails for a panic, a signal and too much memory.
fn outcome(words: &[String]) -> &'static str {
    let line = words.join(" ");
    let (mut child, began) = (podracer(words), Instant::now());
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut text).unwrap();
            let code = status.code().unwrap_or_else(|| panic!("{line}: {status}: {text}"));
            assert!(code != 101 && !text.contains("panicked"), "{line}: {text}");
            return if code == 0 { "trained" } else { "refused" };
        }
        let bytes = resident(child.id());
        if bytes > MAX_BYTES || began.elapsed() > TRAINS {
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(bytes <= MAX_BYTES, "{line}: {bytes} bytes");
            return "trains on";
        }
        sleep(Duration::from_millis(50));
    }
}

/// An environment of which an algorithm's steps are cheap, and flags that make it small.
fn small(algo: &str) -> Vec<String> {
    let flags: &[&str] = match algo {
        "ppo_masked" => &["--env-id", "Harvest-v0"],
        "ppo_self_play" => &["--env-id", "ConnectFour-v0"],
        "ppo_trxl" => &["--env-id", "ProofofMemory-v0", "--num-envs", "4", "--num-steps", "32"],
        name if name.contains("continuous") => &["--env-id", "Pendulum-v1"],
        name if name.contains("atari") || name.contains("rnd") || name == "ppg" => {
            &["--env-id", "MinAtar/Breakout-v1"]
        }
        _ => &["--env-id", "CartPole-v1"],
    };
    flags.iter().map(ToString::to_string).collect()
}

#[test]
#[ignore = "runs the command many times"]
fn runs_with_numbers_at_their_limits_end_or_train() {
    let cases: usize =
        std::env::var("PODRACER_LIMIT_CASES").map_or(40, |count| count.parse().unwrap());
    let runs = tempfile::tempdir().unwrap();
    let mut all: Vec<Vec<String>> = Vec::new();
    for entry in ALGORITHMS {
        let command = (entry.command)();
        for arg in command.get_arguments().filter(|arg| is_numeric(arg)) {
            let name = arg.get_long().unwrap();
            let mut values: Vec<String> =
                ["0", "1", "5000", "1e12", "18446744073709551615"].map(String::from).into();
            values.extend(match range_of(name).unwrap() {
                Range::Int(least, most) => [least.to_string(), most.to_string()],
                Range::Float(least, most) => [format!("{least:e}"), format!("{most:e}")],
            });
            for value in values {
                let mut words = vec!["train".to_string(), entry.name.to_string()];
                words.extend(small(entry.name));
                words.push(format!("--runs-dir={}", runs.path().display()));
                words.extend(["--json".to_string(), "--total-timesteps=3000".to_string()]);
                // By default a million frames, which are more than the memory allowed here.
                let buffer =
                    command.get_arguments().any(|arg| arg.get_long() == Some("buffer-size"));
                if buffer && name != "buffer-size" {
                    words.push("--buffer-size=5000".to_string());
                }
                words.push(format!("--{name}={value}"));
                all.push(words);
            }
        }
    }
    // Evenly spread over all of them.
    let step = (all.len() / cases.max(1)).max(1);
    for words in all.iter().step_by(step) {
        println!("{}: {}", words.join(" "), outcome(words));
    }
}
