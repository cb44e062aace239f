//! Runs of a benchmark as processes: started or resumed, interrupted, and read into a record.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use podracer::error::{Error, Result};
use podracer::output::child::{Tail, read_line};
use podracer::rl::checkpoint::saved::{CHECKPOINT, SavedMetadata};
use podracer::rl::logging::tensorboard::{Value, read_events};
use podracer::rl::returns::RETURN_WINDOW;
use podracer::rl::{Summary, interrupt, read_regular};

use super::job::{Job, RunSettings};
use super::progress::RunProgress;
use super::provenance::{Commit, machine};
use super::results::{MAX_POINTS, RunRecord};

/// Time between two looks at a process.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// File in the folder of a job's runs: commits of the programs that trained it, one a line.
const COMMITS: &str = "commits.txt";

/// Runs a job in a process and waits for its result.
///
/// # Errors
/// Returns the error that the process printed, and one for an interrupted run.
pub fn run(job: &Job, progress: RunProgress) -> Result<Summary> {
    finished(train(job.arguments(), Some(progress), || Ok(false))?)
}

/// Runs a job with checkpoints in the folder of its settings, or resumes it from the last of them.
///
/// # Errors
/// Returns the same errors as [`run`], and errors of that folder.
pub fn run_recorded(
    job: &Job,
    settings: &RunSettings,
    commit: &Commit,
    progress: RunProgress,
) -> Result<RunRecord> {
    let folder = settings.folder(job);
    fs::create_dir_all(&folder).map_err(Error::io("cannot create", &folder))?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let resumed = last_checkpoint(&folder)?;
    let arguments = match &resumed {
        Some(run) => {
            progress.print(&format!("resuming {}", run.display()));
            let words = ["train", &job.algo, "--resume", &text(run), "--json"];
            words.map(String::from).into_iter().chain(settings.env_flags()).collect()
        }
        None => {
            let frequency = settings.checkpoint_frequency().to_string();
            let mut words = job.arguments();
            words.extend(["--checkpoint-frequency".into(), frequency]);
            words.extend(["--runs-dir".into(), text(&folder)]);
            words
        }
    };
    let commits = commits(&folder.join(COMMITS), resumed.is_none(), commit)?;
    let summary = finished(train(arguments, Some(progress), || Ok(false))?)?;
    record(job, settings, commits, &summary)
}

/// Runs `podracer` with these arguments until its end, or until `stop` returns true, which is called
/// at every look at the process. `None` if it was stopped.
///
/// # Errors
/// Returns the same errors as [`run`], and those of `stop`.
pub fn run_until(
    arguments: Vec<String>,
    mut stop: impl FnMut() -> Result<bool>,
) -> Result<Option<Summary>> {
    let mut stopped = false;
    let ended = train(arguments, None, || {
        stopped = stopped || stop()?;
        Ok(stopped)
    })?;
    match stopped && !interrupt::requested() {
        true => Ok(None),
        false => finished(ended).map(Some),
    }
}

/// Removes the checkpoint of a recorded run, unless the flags asked for checkpoints.
///
/// # Errors
/// [`Error::Io`] if it cannot be removed.
pub fn remove_checkpoint(job: &Job, settings: &RunSettings) -> Result<()> {
    if settings.keeps_checkpoints() {
        return Ok(());
    }
    let Some(run) = last_checkpoint(&settings.folder(job))? else { return Ok(()) };
    let path = run.join(CHECKPOINT);
    fs::remove_file(&path).map_err(Error::io("cannot remove", &path))
}

/// Adds this program's commit to the file and returns all commits in it; a run that starts anew
/// starts a new file.
fn commits(path: &Path, is_new: bool, commit: &Commit) -> Result<Vec<Commit>> {
    let mut text = match is_new || !path.exists() {
        true => String::new(),
        false => String::from_utf8_lossy(&read_regular(path)?).into_owned(),
    };
    let hash = commit.hash.as_deref().unwrap_or("none");
    let line = format!("{hash} {}\n", if commit.clean { "clean" } else { "changed" });
    if !text.lines().any(|known| format!("{known}\n") == line) {
        text.push_str(&line);
        fs::write(path, &text).map_err(Error::io("cannot write", path))?;
    }
    let commit = |line: &str| {
        let (hash, state) = line.split_once(' ').unwrap_or((line, ""));
        let hash = Some(hash.to_string()).filter(|hash| hash != "none");
        Commit { hash, clean: state == "clean" }
    };
    Ok(text.lines().map(commit).collect())
}

/// Returns the run folder below `folder` whose checkpoint is furthest, if there is a checkpoint.
fn last_checkpoint(folder: &Path) -> Result<Option<PathBuf>> {
    let mut found: Option<(u64, PathBuf)> = None;
    // The name of a run begins with the id of its environment, which may contain a `/`.
    for run in folders_in(folder, 2)? {
        let path = run.join(CHECKPOINT);
        if !path.exists() {
            continue;
        }
        let step = SavedMetadata::read(&path)?.run_state(&path)?.global_step;
        if found.as_ref().is_none_or(|(furthest, _)| step > *furthest) {
            found = Some((step, run));
        }
    }
    Ok(found.map(|(_, run)| run))
}

fn folders_in(folder: &Path, depth: usize) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io("cannot read", folder))? {
        let entry = entry.map_err(Error::io("cannot read", folder))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            folders.push(entry.path());
            if depth > 1 {
                folders.extend(folders_in(&entry.path(), depth - 1)?);
            }
        }
    }
    folders.sort();
    Ok(folders)
}

/// Output of a process that ended.
struct Ended {
    status: ExitStatus,
    out: String,
    err: String,
}

/// Runs `podracer` with these arguments. The first interruption of this process, or the first time
/// that `stop` returns true, is passed on once, so that the run writes its checkpoint. `progress` takes
/// the lines in which the run reports its progress.
fn train(
    arguments: Vec<String>,
    progress: Option<RunProgress>,
    mut stop: impl FnMut() -> Result<bool>,
) -> Result<Ended> {
    let program = std::env::current_exe().map_err(Error::io("cannot find", "this program"))?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if progress.is_some() {
        command.env("PODRACER_PROGRESS", "lines");
    }
    ends_with_this_process(&mut command);
    let mut child = command.spawn().map_err(Error::io("cannot run", "this program"))?;
    let out = collect(child.stdout.take(), None);
    let err = collect(child.stderr.take(), progress);
    let mut interrupted = false;
    let status = loop {
        let status = child.try_wait().map_err(Error::io("cannot wait for", "a run"))?;
        if let Some(status) = status {
            break status;
        }
        if !interrupted && (interrupt::requested() || stop()?) {
            interrupt_child(&mut child)?;
            interrupted = true;
        }
        thread::sleep(POLL_INTERVAL);
    };
    let text = |reader: thread::JoinHandle<String>| reader.join().unwrap_or_default();
    Ok(Ended { status, out: text(out), err: text(err) })
}

/// Reads the lines of a stream to its end in a thread, so that the process never waits for a reader. Keeps
/// the last ones, and leaves out those that `progress` takes.
fn collect(
    stream: Option<impl Read + Send + 'static>,
    progress: Option<RunProgress>,
) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let (mut kept, mut line) = (Tail::default(), Vec::new());
        let mut stream = stream.map(BufReader::new);
        // Bytes that cannot be read are lost with the process.
        while let Some(stream) = &mut stream
            && read_line(stream, &mut line).is_ok_and(|count| count > 0)
        {
            let own = String::from_utf8_lossy(&line);
            if !progress.as_ref().is_some_and(|progress| progress.take(own.trim_end())) {
                kept.push(&line);
            }
        }
        String::from_utf8_lossy(&kept.into_bytes()).into_owned()
    })
}

/// Gives the process a group of its own, which Ctrl-C on the terminal does not reach, and on Linux
/// ends it when this process is killed.
#[cfg(unix)]
pub fn ends_with_this_process(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let parent = std::process::id();
        let ends_with_parent = move || {
            // SAFETY: prctl with PR_SET_PDEATHSIG and getppid take no pointers and are
            // async-signal-safe; the closure allocates nothing.
            let orphaned = unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
                    || libc::getppid() as u32 != parent
            };
            match orphaned {
                true => Err(std::io::Error::from_raw_os_error(libc::ESRCH)),
                false => Ok(()),
            }
        };
        // SAFETY: the closure only makes the two system calls above.
        unsafe { command.pre_exec(ends_with_parent) };
    }
}

#[cfg(not(unix))]
pub fn ends_with_this_process(_: &mut Command) {}

/// Gives this thread, the threads that it starts and their processes the scheduling class for work that
/// waits until a processor is idle.
///
/// # Errors
/// [`Error::Argument`] on systems without it, and [`Error::Io`] if the system refuses it.
#[cfg(target_os = "linux")]
pub fn use_idle_priority() -> Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads `none`, which outlives it; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) } {
        0 => Ok(()),
        _ => Err(Error::io("cannot lower", "the priority")(std::io::Error::last_os_error())),
    }
}

#[cfg(not(target_os = "linux"))]
pub fn use_idle_priority() -> Result<()> {
    Err(Error::Argument("--idle: this system has no idle priority; expected Linux".into()))
}

#[cfg(unix)]
fn interrupt_child(child: &mut Child) -> Result<()> {
    // SAFETY: kill takes no pointers. The process was not waited for, so that the id is its own.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    Ok(())
}

#[cfg(not(unix))]
fn interrupt_child(child: &mut Child) -> Result<()> {
    child.kill().map_err(Error::io("cannot end", "a run"))
}

/// Returns the result of a run that reached its end.
fn finished(ended: Ended) -> Result<Summary> {
    let last = ended.out.lines().last().unwrap_or_default();
    if ended.status.success()
        && let Ok(summary) = serde_json::from_str::<Summary>(last)
    {
        return match summary.interrupted {
            false => Ok(summary),
            true => Err(Error::Argument(format!("interrupted at step {}", summary.global_step))),
        };
    }
    let complaint = first_error(&ended.err).map_or_else(
        || format!("the process ended without a message ({})", ended.status),
        str::to_string,
    );
    Err(Error::Argument(complaint))
}

/// Returns the first line of a process's standard error that begins with `error: `, without that
/// prefix; otherwise the message of a panic, or else the last line.
fn first_error(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_panic = |line: &str| line.starts_with("thread '") && line.contains("panicked");
    let error = text.lines().find_map(|line| line.strip_prefix("error: "));
    // The message of a panic is on the line after it.
    let panic = || lines.clone().skip_while(|line| !is_panic(line)).nth(1);
    error.or_else(panic).or_else(|| lines.next_back())
}

fn record(
    job: &Job,
    settings: &RunSettings,
    commits: Vec<Commit>,
    summary: &Summary,
) -> Result<RunRecord> {
    let clean = commits.iter().all(|commit| commit.clean);
    let mut hashes: Vec<String> = commits.into_iter().filter_map(|commit| commit.hash).collect();
    hashes.dedup();
    let mut hashes = hashes.into_iter();
    let total = settings.all.get("total_timesteps").and_then(|steps| steps.as_u64());
    Ok(RunRecord {
        algorithm: job.algo.clone(),
        env_id: job.env_id.clone(),
        seed: job.seed,
        flags: settings.flags.clone(),
        settings: settings.all.clone(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        commit: hashes.next(),
        clean,
        resumed_at_commits: hashes.collect(),
        machine: machine(),
        platform: summary.platform.clone(),
        wall_s: rounded(summary.wall_s),
        compile_s: rounded(summary.compile_s),
        steps: summary.global_step,
        sps: rounded(summary.sps),
        episodes: summary.episodes,
        mean_return: summary.avg_episodic_return.filter(|x| x.is_finite()),
        eval_return: summary.eval_episodic_return.filter(|x| x.is_finite()),
        curve: curve(&episodic_returns(Path::new(&summary.run_dir))?, total.unwrap_or(1)),
    })
}

/// Returns timestep and return of the episodes that a run logged.
fn episodic_returns(run: &Path) -> Result<Vec<(u64, f64)>> {
    let mut returns = Vec::new();
    for file in fs::read_dir(run).map_err(Error::io("cannot read", run))? {
        let path = file.map_err(Error::io("cannot read", run))?.path();
        if !path.file_name().is_some_and(|x| x.to_string_lossy().starts_with("events.")) {
            continue;
        }
        returns.extend(read_events(&path)?.into_iter().filter_map(|event| match event.value {
            Value::Scalar { tag, value } if tag == "charts/episodic_return" => {
                Some((event.step, f64::from(value)))
            }
            _ => None,
        }));
    }
    Ok(returns)
}

/// Returns the learning curve: at each hundredth of the run the mean of the last 100 returns.
fn curve(returns: &[(u64, f64)], total: u64) -> Vec<(u64, f64)> {
    let (mut curve, mut last) = (Vec::new(), VecDeque::new());
    let mut returns = returns.iter().peekable();
    let points = total.min(MAX_POINTS as u64);
    for k in 1..=points {
        let step = (u128::from(total) * u128::from(k) / u128::from(points)) as u64;
        while let Some((_, value)) = returns.next_if(|(at, _)| *at <= step) {
            if last.len() == RETURN_WINDOW {
                last.pop_front();
            }
            last.push_back(*value);
        }
        let mean = last.iter().sum::<f64>() / last.len() as f64;
        if mean.is_finite() {
            curve.push((step, rounded(mean)));
        }
    }
    curve
}

/// Rounds to six significant digits, which keeps lines short.
fn rounded(x: f64) -> f64 {
    format!("{x:.5e}").parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_of_a_process_is_found() {
        let text = "compiling ppo_init ...\nerror: first\n  help: this\nerror: second\n";
        assert_eq!(first_error(text), Some("first"));
        let text =
            "step 1\n\nthread 'main' (7) panicked at src/x.rs:1:2:\nno luck\nnote: run with\n";
        assert_eq!(first_error(text), Some("no luck"));
        assert_eq!(first_error("Killed\n\n"), Some("Killed"));
        assert_eq!(first_error("\n"), None);
    }

    #[test]
    fn a_curve_has_the_means_of_the_last_hundred_returns() {
        let returns: Vec<(u64, f64)> = (1..=300).map(|k| (k * 10, k as f64)).collect();
        let means = curve(&returns, 3000);
        assert_eq!(means.len(), 100);
        // The first three episodes; the hundred up to the 150th; the last hundred.
        assert_eq!(means[0], (30, 2.0));
        assert_eq!(means[49], (1500, 100.5));
        assert_eq!(means[99], (3000, 250.5));
        // No point precedes the first episode, and short runs have a point for each timestep.
        assert_eq!(curve(&[(6, 1.0)], 10), (6..=10).map(|k| (k, 1.0)).collect::<Vec<_>>());
        assert_eq!(curve(&[], 10), []);
        assert_eq!(rounded(1.0 / 3.0), 0.333333);
    }
}
