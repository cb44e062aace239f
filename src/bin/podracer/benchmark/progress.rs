//! Progress of a benchmark: where each of its runs is, on a terminal as lines that are redrawn, and
//! elsewhere as plain lines.

use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use podracer::output;

use super::job::Job;

/// Time between two plain lines of a run.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// Progress of all runs.
pub struct Progress {
    total: usize,
    started: Mutex<usize>,
    /// Lines of a terminal.
    bars: Option<MultiProgress>,
}

impl Progress {
    pub fn new(total: usize) -> Progress {
        let bars = io::stderr().is_terminal().then(MultiProgress::new);
        Progress { total, started: Mutex::new(0), bars }
    }

    /// Begins the next run.
    pub fn start(&self, job: &Job) -> RunProgress {
        let number = {
            let mut started = self.started.lock().expect("no worker panics");
            *started += 1;
            *started
        };
        let name = format!(
            "run {number} of {}, {} {} seed {}",
            self.total, job.algo, job.env_id, job.seed
        );
        let bar = self.bars.as_ref().map(|bars| {
            let style = ProgressStyle::with_template("{msg}").expect("a well-formed template");
            bars.add(ProgressBar::new_spinner().with_style(style))
        });
        let (bars, first, shown) = (self.bars.clone(), Mutex::new(None), Mutex::new(None));
        let run = RunProgress { name, bars, bar, first, shown };
        run.show(run.name.clone());
        run
    }

    /// Prints a line above those of the runs.
    pub fn print(&self, line: &str) {
        print_above(self.bars.as_ref(), line);
    }
}

fn print_above(bars: Option<&MultiProgress>, line: &str) {
    match bars {
        Some(bars) => bars.suspend(|| output::stderr_line(line)),
        None => output::stderr_line(line),
    }
}

/// Progress of one run; its line of a terminal is removed when it is dropped.
pub struct RunProgress {
    name: String,
    bars: Option<MultiProgress>,
    bar: Option<ProgressBar>,
    /// Step of the first report, and its time.
    first: Mutex<Option<(u64, Instant)>>,
    /// Time of the last plain line.
    shown: Mutex<Option<Instant>>,
}

impl RunProgress {
    /// Prints a line above those of the runs.
    pub fn print(&self, line: &str) {
        print_above(self.bars.as_ref(), line);
    }

    /// Takes a line that the run printed; returns false if it does not report progress.
    pub fn take(&self, line: &str) -> bool {
        if line.starts_with("compiling ") && line.ends_with(" ...") {
            if let Some(bar) = &self.bar {
                bar.set_message(format!("{}, {line}", self.name));
            }
            return true;
        }
        let Some((step, total)) = step_of(line) else { return false };
        let now = Instant::now();
        let (first, since) =
            *self.first.lock().expect("no reader panics").get_or_insert((step, now));
        let eta = remaining((first, step, total), now - since);
        let due = {
            let mut shown = self.shown.lock().expect("no reader panics");
            let due = shown.is_none_or(|shown| now - shown >= LINE_INTERVAL);
            if due {
                *shown = Some(now);
            }
            due
        };
        if due || self.bar.is_some() {
            self.show(format!("{}, {} %{eta}", self.name, 100 * step / total.max(1)));
        }
        true
    }

    fn show(&self, line: String) {
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None => output::stderr_line(line),
        }
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Returns step and number of steps of a line such as `step 128/512 (25%)  SPS 1235`.
fn step_of(line: &str) -> Option<(u64, u64)> {
    let (step, rest) = line.strip_prefix("step ")?.split_once('/')?;
    let (total, _) = rest.split_once(" (")?;
    Some((step.parse().ok()?, total.parse().ok()?))
}

/// Returns the time that the steps from `step` to `total` take, if those from `first` took `elapsed`.
fn remaining((first, step, total): (u64, u64, u64), elapsed: Duration) -> String {
    if step <= first || step >= total {
        return String::new();
    }
    let step_seconds = elapsed.as_secs_f64() / (step - first) as f64;
    let seconds = (step_seconds * (total - step) as f64).round() as u64;
    let text = match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} m"),
        (hours, minutes) => format!("{hours} h {minutes} m"),
    };
    format!(", eta {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_runs_become_a_part_and_a_time() {
        assert_eq!(step_of("step 128/512 (25%)  SPS 1235  return 20.12"), Some((128, 512)));
        for line in ["error: step 1/2 (", "step x/2 (", "step 1 of 2", "compiling ppo_init ..."] {
            assert_eq!(step_of(line), None, "{line}");
        }
        let eta = |seconds| remaining((100, 200, 1000), Duration::from_secs(seconds));
        assert_eq!([eta(5), eta(15), eta(900)], [", eta 40 s", ", eta 2 m", ", eta 2 h 0 m"]);
        assert_eq!(remaining((100, 100, 1000), Duration::from_secs(5)), "");
        assert_eq!(remaining((0, 1000, 1000), Duration::from_secs(5)), "");
    }

    #[test]
    fn what_a_run_prints_beside_its_progress_is_kept() {
        let progress = Progress { total: 20, started: Mutex::new(2), bars: None };
        let (algo, env_id) = ("ppo".to_string(), "CartPole-v1".to_string());
        let run = progress.start(&Job { algo, env_id, seed: 3, flags: vec![], hours: None });
        assert_eq!(run.name, "run 3 of 20, ppo CartPole-v1 seed 3");
        assert!(run.take("step 128/512 (25%)  SPS 1235") && run.take("compiling ppo_init ..."));
        assert!(!run.take("error: no luck") && !run.take("warning: compiling ..."));
    }
}
