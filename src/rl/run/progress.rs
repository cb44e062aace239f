//! Progress of a training run: a bar on a terminal, plain lines elsewhere.

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::lower::compile_log;
use crate::output;
use crate::rl::run::screen::Screen;

/// Minimum time between two redraws of a bar.
const BAR_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Environment variable that asks for plain lines beside a result in JSON.
const LINES: &str = "PODRACER_PROGRESS";

/// Makes lines that are printed anywhere appear above `bar`.
fn print_lines_above(bar: &ProgressBar) {
    let bar = bar.downgrade();
    output::set_progress_bar(Arc::new(move |write: &dyn Fn()| {
        match bar.upgrade().filter(|bar| !bar.is_finished()) {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }));
}

/// Lines that are displayed above a run's progress bar and redrawn with it.
#[derive(Debug, Clone)]
pub struct Above(ProgressBar);

impl Above {
    /// Replaces the displayed lines; an empty list removes them. They must be no wider than the
    /// terminal, and at least two fewer than its rows.
    pub fn show(&self, lines: &[String]) {
        self.0.set_prefix(lines.iter().map(|line| format!("{line}\n")).collect::<String>());
        self.0.tick();
    }

    /// Returns the columns and rows of the terminal; 80 and 24 if it does not report them.
    pub fn size(&self) -> (usize, usize) {
        let (rows, columns) = Term::stderr().size_checked().unwrap_or((24, 80));
        (columns.into(), rows.into())
    }
}

/// Progress of a training run, displayed on standard error: standard output is reserved for
/// results.
#[derive(Debug)]
pub struct Progress {
    total: u64,
    display: Display,
    /// Time and step of the state displayed last.
    shown: Option<(Instant, u64)>,
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
    /// Creates the progress of a run of `total` steps: a bar if standard error is a terminal,
    /// otherwise a line every few seconds, or nothing if the run's result is printed as JSON, unless
    /// `PODRACER_PROGRESS` is `lines`.
    pub fn new(total: u64, json: bool) -> Progress {
        let quiet = json && std::env::var_os(LINES).is_none_or(|value| value != "lines");
        let display = match (io::stderr().is_terminal(), quiet) {
            (true, _) => {
                let bar = bar(total);
                bar.set_draw_target(ProgressDrawTarget::term_like_with_hz(
                    Box::new(Screen::default()),
                    20,
                ));
                print_lines_above(&bar);
                let shown = bar.downgrade();
                compile_log::set_listener(move |name| {
                    if let Some(bar) = shown.upgrade() {
                        bar.set_message(compiling(name));
                    }
                });
                Display::Bar(bar)
            }
            (false, false) => {
                compile_log::set_listener(|name| output::stderr_line(compiling(name)));
                Display::Lines
            }
            (false, true) => Display::Quiet,
        };
        Progress { total, display, shown: None, latest: None }
    }

    /// Creates a progress that displays nothing.
    pub fn quiet() -> Progress {
        Progress { total: 0, display: Display::Quiet, shown: None, latest: None }
    }

    /// Updates the progress: the global step, the steps per second so far, and the mean return of
    /// the last episodes, if there are any. It is cheap: most calls display nothing.
    pub fn update(&mut self, step: u64, sps: f64, episodic_return: Option<f64>) {
        let state = State { step, sps, episodic_return };
        self.latest = Some(state);
        let interval = match self.display {
            Display::Bar(_) => BAR_INTERVAL,
            Display::Lines => LINE_INTERVAL,
            Display::Quiet => return,
        };
        if self.shown.is_none_or(|(shown, _)| shown.elapsed() >= interval) {
            self.show(state);
        }
    }

    /// Returns the area for lines above the bar, if there is a bar.
    pub fn above(&self) -> Option<Above> {
        match &self.display {
            Display::Bar(bar) => Some(Above(bar.clone())),
            Display::Lines | Display::Quiet => None,
        }
    }

    /// Sets the number of steps of the run.
    pub fn set_total(&mut self, total: u64) {
        self.total = total;
        if let Display::Bar(bar) = &self.display {
            bar.set_length(total);
        }
    }

    /// Prints a line above the bar; quiet progress drops it.
    pub fn note(&self, line: &str) {
        if !matches!(self.display, Display::Quiet) {
            output::stderr_line(line);
        }
    }

    /// Displays the latest state and ends. Dropping does the same.
    pub fn finish(self) {}

    fn show(&mut self, state: State) {
        self.shown = Some((Instant::now(), state.step));
        match &self.display {
            Display::Bar(bar) => {
                bar.set_position(state.step);
                bar.set_message(state.message());
            }
            Display::Lines => output::stderr_line(state.line(self.total)),
            Display::Quiet => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let shown = self.shown.map(|(_, step)| step);
        if let Some(state) = self.latest.filter(|latest| shown != Some(latest.step)) {
            self.show(state);
        }
        if let Display::Bar(bar) = &self.display {
            // The bar keeps its position: an interrupted run did not reach its end.
            bar.abandon();
        }
        if !matches!(self.display, Display::Quiet) {
            compile_log::clear_listener();
        }
    }
}

/// Returns the notice that XLA compiles a function.
fn compiling(name: &str) -> String {
    format!("compiling {name} ...")
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

/// Creates a bar that is not displayed yet.
fn bar(total: u64) -> ProgressBar {
    let template = "{prefix}{wide_bar} {human_pos}/{human_len} {percent}%  {msg}{left}";
    let style = ProgressStyle::with_template(template).expect("a well-formed template");
    // No estimate exists before the first step, and none is needed at the end.
    let left = |state: &ProgressState, out: &mut dyn fmt::Write| {
        if state.pos() > 0 && !state.is_finished() {
            let _ = write!(out, "  eta {:#}", HumanDuration(state.eta()));
        }
    };
    let hidden = ProgressDrawTarget::hidden();
    let bar = ProgressBar::with_draw_target(Some(total), hidden);
    bar.with_style(style.progress_chars("=> ").with_key("left", left))
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
        assert_eq!((lines.shown, shown.1), (Some(shown), 1));

        let hidden = bar(10);
        let mut progress = Progress { display: Display::Bar(hidden.clone()), ..Progress::quiet() };
        progress.update(4, 2.0, Some(1.0));
        assert_eq!((hidden.position(), hidden.message()), (4, "SPS 2  return 1.00".to_string()));
        progress.update(10, 3.0, Some(1.0));
        let above = progress.above().unwrap();
        above.show(&["one".into(), "two".into()]);
        assert_eq!(hidden.prefix(), "one\ntwo\n");
        above.show(&[]);
        assert_eq!(hidden.prefix(), "");
        assert!(Progress::quiet().above().is_none());
        progress.finish();
        assert_eq!(hidden.position(), 10);
    }
}
