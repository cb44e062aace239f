//! `podracer compare`: steps per second of the same training, eager and compiled, beside CleanRL
//! and LeanRL on the same machine.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use clap::Args;
use podracer::error::{Error, Result};
use podracer::output::{
    self,
    child::{output_of, tail},
};
use podracer::rl::logging::tensorboard::{Value, read_events};

use super::benchmark::machine;
use super::benchmark::runner::ends_with_this_process;
use super::picture::{self, Anchor, BLACK, Color, Picture, Rect, Text};

#[derive(Debug, Args)]
pub struct Settings {
    /// Algorithms of the rows to run; all rows if none is named
    #[arg(long, value_delimiter = ',')]
    algos: Vec<String>,
    /// Seconds that each run is measured, after its burn-in
    #[arg(long, default_value = "20.0")]
    seconds: f64,
    /// Seconds of training that are left out, after compilation and the filling of buffers
    #[arg(long, default_value = "5.0")]
    burnin: f64,
    /// Number of measurements of each run, of which the median is reported
    #[arg(long, default_value = "1")]
    rounds: usize,
    /// Also measure other libraries: a folder with the checkouts `cleanrl` and `leanrl`, in which a
    /// virtual environment is created once
    #[arg(long)]
    peers: Option<PathBuf>,
    /// Also draw the table, as an .svg, a .pdf or a .png file
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Row of the table: an algorithm on an environment, run in several ways.
struct Task {
    title: &'static str,
    algo: &'static str,
    env_id: &'static str,
    flags: &'static [&'static str],
    /// Flags for one compiled call per update, if the algorithm has them.
    by_update: Option<&'static [&'static str]>,
    peers: &'static [Peer],
}

/// Script of another library.
struct Peer {
    column: &'static str,
    /// Path within the folder of peers.
    script: &'static str,
    flags: &'static [&'static str],
    /// Id of the environment in that library, if it differs.
    env_id: Option<&'static str>,
}

const OURS: [&str; 3] = ["eager", "jit, a call an update", "jit, all in one call"];
const THEIRS: [&str; 4] = ["CleanRL torch", "CleanRL JAX", "LeanRL eager", "LeanRL compile"];

const fn peer(column: usize, script: &'static str, flags: &'static [&'static str]) -> Peer {
    Peer { column: THEIRS[column], script, flags, env_id: None }
}

/// Flag that makes off-policy algorithms start learning, and being measured, early.
const SOON: &[&str] = &["--learning-starts", "1000"];
/// Flags for one compiled call per update, for off-policy algorithms.
const ONE_UPDATE: Option<&[&str]> = Some(&["--updates-per-call", "1"]);

const TASKS: &[Task] = &[
    Task {
        title: "PPO (Atari, Breakout-v5)",
        algo: "ppo_atari_envpool",
        env_id: "Breakout-v5",
        flags: &[],
        by_update: Some(&["--rollout", "host"]),
        peers: &[
            peer(0, "cleanrl/cleanrl/ppo_atari_envpool.py", &[]),
            peer(1, "cleanrl/cleanrl/ppo_atari_envpool_xla_jax.py", &[]),
            peer(2, "leanrl/leanrl/ppo_atari_envpool_torchcompile.py", &[]),
            peer(3, "leanrl/leanrl/ppo_atari_envpool_torchcompile.py", &["--compile"]),
        ],
    },
    Task {
        title: "PPO (continuous, HalfCheetah-v4)",
        algo: "ppo_continuous_action",
        env_id: "HalfCheetah-v4",
        flags: &[],
        by_update: None,
        peers: &[
            peer(0, "cleanrl/cleanrl/ppo_continuous_action.py", &[]),
            peer(2, "leanrl/leanrl/ppo_continuous_action_torchcompile.py", &[]),
            peer(3, "leanrl/leanrl/ppo_continuous_action_torchcompile.py", &["--compile"]),
        ],
    },
    Task {
        title: "PPO with LSTM (Atari, Breakout-v5)",
        algo: "ppo_atari_lstm",
        env_id: "Breakout-v5",
        flags: &[],
        by_update: None,
        // The same game under its Gymnasium id, without EnvPool.
        peers: &[Peer {
            env_id: Some("BreakoutNoFrameskip-v4"),
            ..peer(0, "cleanrl/cleanrl/ppo_atari_lstm.py", &[])
        }],
    },
    Task {
        title: "SAC (HalfCheetah-v4)",
        algo: "sac_continuous_action",
        env_id: "HalfCheetah-v4",
        flags: SOON,
        by_update: ONE_UPDATE,
        peers: &[
            peer(0, "cleanrl/cleanrl/sac_continuous_action.py", &[]),
            peer(2, "leanrl/leanrl/sac_continuous_action_torchcompile.py", &[]),
            peer(3, "leanrl/leanrl/sac_continuous_action_torchcompile.py", &["--compile"]),
        ],
    },
    Task {
        title: "TD3 (HalfCheetah-v4)",
        algo: "td3_continuous_action",
        env_id: "HalfCheetah-v4",
        flags: SOON,
        by_update: ONE_UPDATE,
        peers: &[
            peer(0, "cleanrl/cleanrl/td3_continuous_action.py", &[]),
            peer(1, "cleanrl/cleanrl/td3_continuous_action_jax.py", &[]),
            peer(2, "leanrl/leanrl/td3_continuous_action_torchcompile.py", &[]),
            peer(3, "leanrl/leanrl/td3_continuous_action_torchcompile.py", &["--compile"]),
        ],
    },
    Task {
        title: "DDPG (HalfCheetah-v4)",
        algo: "ddpg_continuous_action",
        env_id: "HalfCheetah-v4",
        flags: SOON,
        by_update: ONE_UPDATE,
        peers: &[
            peer(0, "cleanrl/cleanrl/ddpg_continuous_action.py", &[]),
            peer(1, "cleanrl/cleanrl/ddpg_continuous_action_jax.py", &[]),
        ],
    },
    Task {
        title: "DQN (CartPole-v1)",
        algo: "dqn",
        env_id: "CartPole-v1",
        flags: SOON,
        by_update: ONE_UPDATE,
        peers: &[
            peer(0, "cleanrl/cleanrl/dqn.py", &[]),
            peer(1, "cleanrl/cleanrl/dqn_jax.py", &[]),
            peer(2, "leanrl/leanrl/dqn_torchcompile.py", &[]),
            peer(3, "leanrl/leanrl/dqn_torchcompile.py", &["--compile"]),
        ],
    },
    Task {
        title: "C51 (CartPole-v1)",
        algo: "c51",
        env_id: "CartPole-v1",
        flags: SOON,
        by_update: None,
        peers: &[
            peer(0, "cleanrl/cleanrl/c51.py", &[]),
            peer(1, "cleanrl/cleanrl/c51_jax.py", &[]),
        ],
    },
];

/// Way of running a row.
#[derive(Clone, Copy)]
enum Way {
    /// Podracer, in the mode of this index of [`OURS`].
    Ours(usize),
    Theirs(&'static Peer),
}

/// Steps per second of one way of running one row, one value per measurement.
struct Cell {
    way: Way,
    column: &'static str,
    speeds: Vec<f64>,
    /// Error message, if there is no speed.
    problem: Option<String>,
}

impl Cell {
    fn median(&self) -> Option<f64> {
        let mut speeds = self.speeds.clone();
        speeds.sort_by(f64::total_cmp);
        let middle = speeds.len() / 2;
        match speeds.len() {
            0 => None,
            n if n % 2 == 1 => Some(speeds[middle]),
            _ => Some((speeds[middle - 1] + speeds[middle]) / 2.0),
        }
    }
}

pub fn compare(settings: &Settings) -> Result<String> {
    if let Some(out) = &settings.out {
        picture::ensure_known(out)?;
    }
    let known: Vec<&str> = TASKS.iter().map(|task| task.algo).collect();
    if let Some(other) = settings.algos.iter().find(|algo| !known.contains(&algo.as_str())) {
        let problem = format!("--algos {other}: the rows are {}", known.join(", "));
        return Err(Error::Argument(problem));
    }
    let wanted =
        |task: &&Task| settings.algos.is_empty() || settings.algos.iter().any(|a| a == task.algo);
    let python = settings.peers.as_deref().map(install).transpose()?;
    let mut rows: Vec<(&Task, Vec<Cell>)> = Vec::new();
    for task in TASKS.iter().filter(wanted) {
        let theirs = if python.is_some() { task.peers } else { &[] };
        let ways = (0..OURS.len()).filter(|way| *way != 1 || task.by_update.is_some());
        let ways = ways.map(|way| (Way::Ours(way), OURS[way]));
        let ways = ways.chain(theirs.iter().map(|peer| (Way::Theirs(peer), peer.column)));
        let cells = ways.map(|(way, column)| Cell { way, column, speeds: vec![], problem: None });
        rows.push((task, cells.collect()));
    }
    for round in 0..settings.rounds {
        for (task, cells) in &mut rows {
            for cell in cells {
                let speed = match cell.way {
                    Way::Ours(way) => ours(task, way, settings),
                    Way::Theirs(peer) => theirs(task, peer, python.as_deref(), settings),
                };
                match speed {
                    Ok(speed) => {
                        output::stderr_line(format_args!(
                            "{round} {}: {}: {speed:.0} SPS",
                            task.title, cell.column
                        ));
                        cell.speeds.push(speed);
                    }
                    Err(error) => {
                        output::stderr_line(format_args!(
                            "{round} {}: {}: {error}",
                            task.title, cell.column
                        ));
                        cell.problem = Some(error.to_string());
                    }
                }
            }
        }
    }
    let text = table(settings, &rows);
    if let Some(out) = &settings.out {
        bars(&rows).write(out)?;
    }
    Ok(text)
}

/// Child process that is killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns Podracer's steps per second, from the times at which a run logs its speed.
fn ours(task: &Task, way: usize, settings: &Settings) -> Result<f64> {
    let program = std::env::current_exe().map_err(Error::io("cannot find", "this program"))?;
    let runs = std::env::temp_dir().join(format!("podracer-compare-{}", std::process::id()));
    // Remove the files of an earlier run.
    let _ = fs::remove_dir_all(&runs);
    let mode: &[&str] = if way == 0 { &["--mode", "eager"] } else { &["--mode", "jit"] };
    let calls = task.by_update.filter(|_| way == 1).unwrap_or_default();
    let mut command = Command::new(program);
    command
        .args(["train", task.algo, "--env-id", task.env_id, "--json", "--runs-dir"])
        .arg(&runs)
        .args(["--total-timesteps", "1000000000"])
        .args([task.flags, mode, calls].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    ends_with_this_process(&mut command);
    let mut child = command.spawn().map_err(Error::io("cannot run", "this program"))?;
    let err = child.stderr.take().map(|stream| thread::spawn(move || tail(stream)));
    let mut running = Running(child);
    let started = Instant::now();
    let speed = loop {
        sleep(Duration::from_millis(500));
        if let Some(speed) = speed_of(&points(&runs)?, settings) {
            break Ok(speed);
        }
        if running.0.try_wait().map_err(Error::io("cannot watch", "a run"))?.is_some() {
            let stderr = err.and_then(|reader| reader.join().ok()).unwrap_or_default();
            break Err(Error::Argument(last_line(&stderr)));
        }
        if started.elapsed().as_secs_f64() > 300.0 + 10.0 * (settings.seconds + settings.burnin) {
            break Err(Error::Argument("it took too long to begin".into()));
        }
    };
    drop(running);
    let _ = fs::remove_dir_all(&runs);
    speed
}

/// Returns the steps and times at which the only run in `runs` logged its speed.
fn points(runs: &Path) -> Result<Vec<(f64, f64)>> {
    let Some(run) = fs::read_dir(runs).ok().and_then(|mut dirs| dirs.next()?.ok()) else {
        return Ok(Vec::new());
    };
    let files = fs::read_dir(run.path()).into_iter().flatten().flatten().map(|file| file.path());
    let events = files.filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("events."))
    });
    let mut points = Vec::new();
    for path in events {
        points.extend(read_events(path)?.iter().filter_map(|event| match &event.value {
            Value::Scalar { tag, .. } if tag == "charts/SPS" => {
                Some((event.step as f64, event.wall_time))
            }
            _ => None,
        }));
    }
    Ok(points)
}

/// Returns the steps per second from the end of the burn-in, which begins with the second entry, to
/// the last entry; `None` if there are too few entries.
fn speed_of(points: &[(f64, f64)], settings: &Settings) -> Option<f64> {
    let begin = points.get(1)?.1 + settings.burnin;
    let (first, last) = (points.iter().find(|point| point.1 >= begin)?, points.last()?);
    (last.1 - first.1 >= settings.seconds).then(|| (last.0 - first.0) / (last.1 - first.1))
}

/// Returns the steps per second of another library's script, which runs under a script that reads
/// its logs.
fn theirs(task: &Task, peer: &Peer, python: Option<&Path>, settings: &Settings) -> Result<f64> {
    let (Some(python), Some(folder)) = (python, &settings.peers) else {
        return Err(Error::Argument("there are no peers".into()));
    };
    let watcher = folder.join("watch_sps.py");
    fs::write(&watcher, include_str!("../../../benches/peers/watch_sps.py"))
        .map_err(Error::io("cannot write", &watcher))?;
    let mut command = Command::new(python);
    ends_with_this_process(&mut command);
    command
        .arg("watch_sps.py")
        .args([settings.burnin, settings.seconds].map(|seconds| seconds.to_string()))
        .args([peer.script, "--env-id", peer.env_id.unwrap_or(task.env_id)])
        .args(task.flags)
        .args(peer.flags)
        // With this setting the last line of a traceback is the error.
        .env("JAX_TRACEBACK_FILTERING", "off")
        .current_dir(folder);
    let output = output_of(&mut command).map_err(Error::io("cannot run", python))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let speed = text.lines().rev().find_map(|line| line.strip_prefix("SPS ")?.parse().ok());
    speed.ok_or_else(|| Error::Argument(last_line(&output.stderr)))
}

/// Returns the last line that a process has written.
fn last_line(written: &[u8]) -> String {
    let text = String::from_utf8_lossy(written);
    text.trim().lines().last().unwrap_or("it ended without a word").to_string()
}

/// Returns the interpreter of the peers' virtual environment, which is created if it does not
/// exist.
fn install(folder: &Path) -> Result<PathBuf> {
    for checkout in ["cleanrl/cleanrl", "leanrl/leanrl"] {
        if !folder.join(checkout).is_dir() {
            return Err(Error::Argument(format!(
                "--peers {}: {checkout} is not there; clone CleanRL as `cleanrl` and LeanRL as \
                 `leanrl` into this folder",
                folder.display()
            )));
        }
    }
    let python = folder.join("venv/bin/python");
    let ready = folder.join("venv/ready");
    if !ready.exists() {
        output::stderr_line(format_args!(
            "installing the peers' packages in {}",
            folder.join("venv").display()
        ));
        run(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
        let packages = include_str!("../../../benches/peers/requirements.txt");
        let names = packages.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(names))?;
        fs::write(&ready, "").map_err(Error::io("cannot write", &ready))?;
    }
    Ok(python)
}

fn run(command: &mut Command) -> Result<()> {
    // A random.py in the working directory is not Python's.
    command.env("PYTHONSAFEPATH", "1");
    let program = command.get_program().to_os_string();
    let status = command.status().map_err(Error::io("cannot run", Path::new(&program)))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Argument(format!("{} failed: {status}", Path::new(&program).display())))
}

fn table(settings: &Settings, rows: &[(&Task, Vec<Cell>)]) -> String {
    let columns: Vec<&str> = match settings.peers {
        Some(_) => OURS.into_iter().chain(THEIRS).collect(),
        None => OURS.to_vec(),
    };
    let mut text = format!("| SPS | {} |", columns.join(" | "));
    let _ = write!(text, " jit over eager |");
    if settings.peers.is_some() {
        text.push_str(" ours over their best |");
    }
    let dashes = columns.len() + 2 + usize::from(settings.peers.is_some());
    let _ = writeln!(text, "\n|{}", "---|".repeat(dashes));
    for (task, cells) in rows {
        let of = |column: &str| cells.iter().find(|cell| cell.column == column);
        let speed = |column: &str| of(column).and_then(Cell::median);
        let _ = write!(text, "| {} |", task.title);
        for column in &columns {
            match speed(column) {
                Some(speed) => drop(write!(text, " {speed:.0} |")),
                None if of(column).is_some() => text.push_str(" failed |"),
                None => text.push_str(" - |"),
            }
        }
        let ratio = |of: Option<f64>, over: Option<f64>| match of.zip(over) {
            Some((of, over)) => format!(" {:.2}x |", of / over),
            None => " - |".to_string(),
        };
        let best = |columns: &[&str]| {
            columns
                .iter()
                .filter_map(|column| speed(column))
                .fold(None, |best: Option<f64>, x| Some(best.map_or(x, |best| best.max(x))))
        };
        let jit = best(&OURS[1..]);
        text.push_str(&ratio(jit, speed(OURS[0])));
        if settings.peers.is_some() {
            text.push_str(&ratio(jit, best(&THEIRS)));
        }
        text.push('\n');
    }
    for (task, cells) in rows {
        for cell in cells {
            if let Some(problem) = &cell.problem {
                let _ = writeln!(text, "\n{}, {}: {problem}", task.title, cell.column);
            }
        }
    }
    let _ = writeln!(
        text,
        "\n{}; medians of {}; {} s each after a burn-in of {} s that begins with the second log \
         entry of training, compilation and buffer filling left out; podracer {}",
        hardware(),
        settings.rounds,
        settings.seconds,
        settings.burnin,
        env!("CARGO_PKG_VERSION")
    );
    text
}

/// Returns the processor's name and the number of usable cores.
fn hardware() -> String {
    let machine = machine();
    format!("{}, {} cores", machine.processor, machine.cores)
}

/// Returns a bar chart with a group for each row, scaled to the row's fastest way.
fn bars(rows: &[(&Task, Vec<Cell>)]) -> Picture {
    const WIDTH: f64 = 960.0;
    const FONT: f64 = 14.0;
    const BAR: f64 = 22.0;
    let bars: usize = rows.iter().map(|(_, cells)| cells.len()).sum();
    let height = 2.0 * FONT + rows.len() as f64 * 3.0 * FONT + bars as f64 * BAR;
    let mut picture = Picture::new(WIDTH, height);
    let (left, room) = (200.0, WIDTH - 300.0);
    let mut y = 1.5 * FONT;
    for (task, cells) in rows {
        picture.text(Text::new(task.title, (left, y), 1.15 * FONT, Anchor::Start), BLACK);
        y += 0.7 * FONT;
        let fastest = cells.iter().filter_map(Cell::median).fold(1.0, f64::max);
        for (k, cell) in cells.iter().enumerate() {
            let end = left + room * cell.median().unwrap_or(0.0) / fastest;
            let bar = Rect { left, top: y + 2.0, right: end, bottom: y + BAR - 2.0 };
            let rgb = if k < OURS.len() { [0, 114, 178] } else { [170, 170, 170] };
            picture.rectangle(&bar, Color::opaque(rgb));
            let label = cell.median().map_or("failed".to_string(), |speed| format!("{speed:.0}"));
            let line = y + BAR / 2.0 + 0.36 * FONT;
            picture.text(Text::new(label, (end + 6.0, line), FONT, Anchor::Start), BLACK);
            picture.text(Text::new(cell.column, (left - 8.0, line), FONT, Anchor::End), BLACK);
            y += BAR;
        }
        y += 2.3 * FONT;
    }
    picture
}
