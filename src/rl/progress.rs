//! How far a training run is: a bar on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a bar is drawn at most.
const BAR_INTERVAL: Duration = Duration::from_millis(100);
/// How often a plain line is printed.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// The progress of a training run, shown on standard error: standard output belongs to results.
#[derive(Debug)]
pub struct Progress {
    total: u64,
    display: Display,
    shown: Option<Instant>,
    latest: Option<State>,
}

#[derive(Debug)]
enum Display {
    Bar(ProgressBar),
    Lines,
    Quiet,
}

#[derive(Debug, Clone, Copy)]
struct State {
    step: u64,
    sps: f64,
    episodic_return: Option<f64>,
}

impl Progress {
    /// The progress of a run of `total` steps: a bar if standard error is a terminal, else a line
    /// every few seconds, or nothing if the run ends with a JSON line that a program waits for.
    pub fn new(total: u64, json: bool) -> Progress {
        let display = match (io::stderr().is_terminal(), json) {
            (true, _) => Display::Bar(bar(total)),
            (false, false) => Display::Lines,
            (false, true) => Display::Quiet,
        };
        Progress { total, display, shown: None, latest: None }
    }

    /// A progress that shows nothing.
    pub fn quiet() -> Progress {
        Progress { total: 0, display: Display::Quiet, shown: None, latest: None }
    }

    /// Tells how far the run is: its global step, steps per second so far, and the mean return of
    /// the last episodes if there are any. It is cheap: most calls show nothing.
    pub fn update(&mut self, step: u64, sps: f64, episodic_return: Option<f64>) {
        let state = State { step, sps, episodic_return };
        self.latest = Some(state);
        let interval = match self.display {
            Display::Bar(_) => BAR_INTERVAL,
            Display::Lines => LINE_INTERVAL,
            Display::Quiet => return,
        };
        if self.shown.is_none_or(|shown| shown.elapsed() >= interval) {
            self.show(state);
        }
    }

    /// Prints a line without disturbing the bar. It is dropped where progress is quiet.
    pub fn note(&self, line: &str) {
        match &self.display {
            Display::Bar(bar) => bar.suspend(|| eprintln!("{line}")),
            Display::Lines => eprintln!("{line}"),
            Display::Quiet => {}
        }
    }

    /// Shows the latest state and ends. Dropping does the same.
    pub fn finish(self) {}

    fn show(&mut self, state: State) {
        self.shown = Some(Instant::now());
        match &self.display {
            Display::Bar(bar) => {
                bar.set_position(state.step);
                bar.set_message(state.message());
            }
            Display::Lines => eprintln!("{}", state.line(self.total)),
            Display::Quiet => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(state) = self.latest {
            self.show(state);
        }
        if let Display::Bar(bar) = &self.display {
            // The bar stays where it is: an interrupted run did not reach its end.
            bar.abandon();
        }
    }
}

impl State {
    fn message(&self) -> String {
        let sps = format!("SPS {:.0}", self.sps);
        match self.episodic_return {
            Some(episodic_return) => format!("{sps}  return {episodic_return:.2}"),
            None => sps,
        }
    }

    fn line(&self, total: u64) -> String {
        let percent = 100 * self.step / total.max(1);
        format!("step {}/{total} ({percent}%)  {}", self.step, self.message())
    }
}

fn bar(total: u64) -> ProgressBar {
    let template = "{bar:30} {human_pos}/{human_len} {percent}%  {msg}  eta {eta}";
    let style = ProgressStyle::with_template(template).expect("a well-formed template");
    ProgressBar::new(total).with_style(style.progress_chars("=> "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_step_speed_and_return() {
        let state = State { step: 128, sps: 1234.5678, episodic_return: Some(20.125) };
        assert_eq!(state.line(512), "step 128/512 (25%)  SPS 1235  return 20.12");
        let state = State { episodic_return: None, ..state };
        assert_eq!(state.line(0), "step 128/0 (12800%)  SPS 1235");
    }

    #[test]
    fn lines_are_seconds_apart_and_bars_are_well_formed() {
        let mut lines = Progress { display: Display::Lines, ..Progress::quiet() };
        lines.update(1, 1.0, None);
        let shown = lines.shown.unwrap();
        lines.update(2, 1.0, None);
        assert_eq!(lines.shown, Some(shown));

        let hidden = bar(10);
        hidden.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        let mut progress = Progress { display: Display::Bar(hidden.clone()), ..Progress::quiet() };
        progress.update(4, 2.0, Some(1.0));
        assert_eq!((hidden.position(), hidden.message()), (4, "SPS 2  return 1.00".to_string()));
        progress.update(10, 3.0, Some(1.0));
        progress.finish();
        assert_eq!(hidden.position(), 10);
    }
}
