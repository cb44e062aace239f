//! Live view of the activity of actors and learner on a terminal, updated twice a second.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::layout::Layout;
use super::status::{Activity, RunStatus, Snapshot, ThreadSnapshot};
use crate::rl::run::progress::Above;

/// Interval at which the lines are redrawn.
const INTERVAL: Duration = Duration::from_millis(500);
/// Minimum time span over which speeds and shares are measured, once the run is that old.
const SPAN: Duration = Duration::from_secs(3);
/// Number of snapshots that are kept.
const MAX_SNAPSHOTS: usize = 20;

/// Names and sizes of the threads that are shown.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveView {
    /// Label of the learner's line.
    pub learner: String,
    /// Label of each actor's line.
    pub actors: Vec<String>,
    /// Number of updates of the run.
    pub updates: u64,
    /// Number of timesteps in a rollout of one actor.
    pub rollout_steps: u64,
    /// Number of timesteps in an update, over all processes.
    pub update_steps: u64,
}

impl LiveView {
    /// Creates the view of a layout's threads, with rollouts of `num_steps` steps.
    pub fn new(layout: &Layout, num_steps: usize, updates: u64) -> LiveView {
        let ids: Vec<String> = layout.learners.iter().map(usize::to_string).collect();
        let actor = |actor| format!("actor {actor} d{}", layout.device_of(actor));
        LiveView {
            learner: format!("learner d{}", ids.join(",")),
            actors: (0..layout.num_actors()).map(actor).collect(),
            updates,
            rollout_steps: (layout.envs * num_steps) as u64,
            update_steps: (layout.num_envs() * num_steps) as u64,
        }
    }

    /// Returns the lines that describe the time between two snapshots, for a terminal of `(columns,
    /// rows)`: a heading, the learner, and the actors. Actors that do not fit are summarized in one
    /// line. Two rows are left free for other output.
    pub fn lines(
        &self,
        before: &Snapshot,
        now: &Snapshot,
        (columns, rows): (usize, usize),
    ) -> Vec<String> {
        let passed = now.at.saturating_sub(before.at);
        let mut lines = vec![line(["", "number", "version", "busy", "wait", "SPS", "p r", "now"])];
        let learner = &now.learner;
        let (params, rollouts) = queues(&now.actors);
        let shares = shares(&before.learner, learner, passed);
        lines.push(line([
            &self.learner,
            &format!("{}/{}", learner.number, self.updates),
            &learner.version.to_string(),
            &percent(shares.0),
            &percent(shares.1),
            &rate(sps(&before.learner, learner, self.update_steps)),
            &format!("{params} {rollouts}"),
            &now_of(learner),
        ]));
        let room = rows.saturating_sub(lines.len() + 2);
        let shown = if now.actors.len() <= room { room } else { room.saturating_sub(1) };
        for ((name, before), now) in
            self.actors.iter().zip(&before.actors).zip(&now.actors).take(shown)
        {
            let shares = self::shares(before, now, passed);
            lines.push(line([
                name,
                &now.number.to_string(),
                &now.version.to_string(),
                &percent(shares.0),
                &percent(shares.1),
                &rate(sps(before, now, self.rollout_steps)),
                &format!("{} {}", now.params, now.rollouts),
                &now_of(now),
            ]));
        }
        if now.actors.len() > shown {
            let before = &before.actors[shown..];
            lines.push(self.summary(before, &now.actors[shown..], passed, shown > 0));
        }
        lines.truncate(rows.saturating_sub(2));
        lines.iter_mut().for_each(|line| cut(line, columns));
        lines
    }

    /// Returns the summary line of the actors without a line of their own.
    fn summary(
        &self,
        before: &[ThreadSnapshot],
        now: &[ThreadSnapshot],
        passed: Duration,
        more: bool,
    ) -> String {
        let range = |of: &dyn Fn(&ThreadSnapshot) -> u64| {
            let least = now.iter().map(of).min().unwrap_or_default();
            let most = now.iter().map(of).max().unwrap_or_default();
            if least == most { least.to_string() } else { format!("{least}-{most}") }
        };
        let busy = before.iter().zip(now).map(|(before, now)| shares(before, now, passed).0);
        let busy = busy.sum::<f64>() / now.len().max(1) as f64;
        let speeds = before.iter().zip(now);
        let speeds = speeds.map(|(before, now)| sps(before, now, self.rollout_steps));
        let speed = speeds.fold(None, |sum: Option<f64>, speed| {
            speed.map(|speed| sum.unwrap_or_default() + speed).or(sum)
        });
        let (params, rollouts) = queues(now);
        let mut doing: Vec<Activity> = now.iter().map(|seen| seen.doing).collect();
        doing.sort_unstable();
        let kinds: Vec<String> = doing
            .chunk_by(|a, b| a == b)
            .map(|same| format!("{} {}", same.len(), same[0].words()))
            .collect();
        let name = format!("{} {}", now.len(), if more { "actors more" } else { "actors" });
        line([
            &name,
            &range(&|seen| seen.number),
            &range(&|seen| seen.version),
            &percent(busy),
            "",
            &rate(speed),
            &format!("{params} {rollouts}"),
            &kinds.join(", "),
        ])
    }
}

/// Formats the columns of one line.
fn line(cells: [&str; 8]) -> String {
    let [name, number, version, busy, wait, sps, queues, now] = cells;
    let mut line = String::new();
    let _ = write!(
        line,
        "{name:<15}{number:>9} {version:>8} {busy:>5} {wait:>5} {sps:>8} {queues:>5}  {now}"
    );
    line.truncate(line.trim_end().len());
    line
}

fn cut(line: &mut String, columns: usize) {
    if let Some((end, _)) = line.char_indices().nth(columns) {
        line.truncate(end);
    }
}

fn queues(actors: &[ThreadSnapshot]) -> (u64, u64) {
    let params = actors.iter().map(|seen| seen.params).sum();
    (params, actors.iter().map(|seen| seen.rollouts).sum())
}

/// Returns the fractions of the time in which the thread worked and in which it waited for others.
fn shares(before: &ThreadSnapshot, now: &ThreadSnapshot, passed: Duration) -> (f64, f64) {
    let share = |before: Duration, now: Duration| {
        let part = now.saturating_sub(before).as_secs_f64() / passed.as_secs_f64();
        if part.is_finite() { part.min(1.0) } else { 0.0 }
    };
    (share(before.work, now.work), share(before.wait, now.wait))
}

/// Returns steps per second, from the end of one rollout or update to the end of a later one.
fn sps(before: &ThreadSnapshot, now: &ThreadSnapshot, steps: u64) -> Option<f64> {
    let done = now.done.checked_sub(before.done).filter(|&done| done > 0)?;
    let time = now.done_at.checked_sub(before.done_at)?.as_secs_f64();
    (time > 0.0).then(|| (done * steps) as f64 / time)
}

fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

fn rate(sps: Option<f64>) -> String {
    sps.map_or_else(|| "-".into(), |sps| format!("{sps:.0}"))
}

/// Returns the current activity, with its duration if that is a second or more.
fn now_of(seen: &ThreadSnapshot) -> String {
    let words = seen.doing.words();
    match seen.lasts {
        lasts if lasts < Duration::from_secs(1) || seen.doing == Activity::Ended => words.into(),
        lasts => format!("{words} {:.0} s", lasts.as_secs_f64()),
    }
}

/// Snapshots of the last seconds, or of the last updates if those take longer.
#[derive(Debug, Default)]
struct History(VecDeque<Snapshot>);

impl History {
    fn push(&mut self, now: Snapshot) {
        let same = |last: &Snapshot| last.learner.done == now.learner.done;
        // A snapshot is kept only when an update has ended: others add nothing to compare with.
        if self.0.back().is_some_and(same) {
            return;
        }
        if self.0.len() == MAX_SNAPSHOTS {
            self.0.pop_front();
        }
        self.0.push_back(now);
    }

    /// Returns the snapshot that `now` is compared with, some seconds and two updates old.
    fn before(&self, now: &Snapshot) -> Option<&Snapshot> {
        let long_ago = |past: &&Snapshot| {
            now.at.saturating_sub(past.at) >= SPAN && now.learner.done >= past.learner.done + 2
        };
        self.0.iter().rev().find(long_ago).or(self.0.front())
    }
}

/// Runs `work` on this thread and, if there is a terminal area above the progress bar, shows the
/// status's status from another thread meanwhile. The lines are removed when the work ends, however
/// it ends.
pub fn watch<T>(
    view: &LiveView,
    status: &RunStatus,
    place: Option<Above>,
    work: impl FnOnce() -> T,
) -> T {
    let Some(place) = place else { return work() };
    thread::scope(|scope| {
        let (end, ends) = mpsc::channel::<()>();
        let show = move || {
            let mut history = History::default();
            loop {
                let now = status.snapshot();
                let before = history.before(&now).unwrap_or(&now);
                place.show(&view.lines(before, &now, place.size()));
                history.push(now);
                if ends.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            place.show(&[]);
        };
        // If the thread cannot be started, nothing is shown.
        let _ = thread::Builder::new().name("view".into()).spawn_scoped(scope, show);
        let outcome = work();
        drop(end);
        outcome
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rl::sebulba::World;

    fn view(actors: usize) -> LiveView {
        let layout = Layout {
            actors: vec![0, 1],
            learners: vec![2, 3],
            threads: actors / 2,
            envs: 10,
            world: World::ALONE,
        };
        LiveView::new(&layout, 100, 97)
    }

    fn seen(doing: Activity, done: u64, secs: f64) -> ThreadSnapshot {
        let time = Duration::from_secs_f64;
        ThreadSnapshot {
            doing,
            lasts: time(0.25),
            work: time(0.75 * secs),
            wait: time(0.2 * secs),
            number: done + 1,
            version: done.max(1),
            done,
            done_at: time(secs),
            params: 0,
            rollouts: 1,
        }
    }

    fn snapshot(actors: usize, done: u64, secs: f64) -> Snapshot {
        let actor = |k: usize| {
            let doing = if k < 5 { Activity::Plays } else { Activity::WaitsForLearner };
            ThreadSnapshot { params: (k % 2) as u64, ..seen(doing, done + (k / 8) as u64, secs) }
        };
        Snapshot {
            at: Duration::from_secs_f64(secs),
            learner: ThreadSnapshot {
                lasts: Duration::from_secs(7),
                ..seen(Activity::Learns, done, secs)
            },
            actors: (0..actors).map(actor).collect(),
        }
    }

    #[test]
    fn each_thread_has_a_line() {
        let lines = view(2).lines(&snapshot(2, 10, 10.0), &snapshot(2, 12, 20.0), (80, 24));
        assert_eq!(
            lines,
            [
                "                  number  version  busy  wait      SPS   p r  now",
                "learner d2,3       13/97       12   75%   20%      400   1 2  learns 7 s",
                "actor 0 d0            13       12   75%   20%      200   0 1  plays",
                "actor 1 d1            13       12   75%   20%      200   1 1  plays",
            ]
        );
        // At the start no speed is known.
        let first = snapshot(2, 0, 0.0);
        let lines = view(2).lines(&first, &first, (80, 24));
        assert_eq!(
            lines[1],
            "learner d2,3        1/97        1    0%    0%        -   1 2  learns 7 s"
        );
    }

    #[test]
    fn twelve_actors_on_a_small_terminal() {
        let (before, now) = (snapshot(12, 10, 10.0), snapshot(12, 12, 20.0));
        let view = view(12);
        let all = view.lines(&before, &now, (80, 16));
        assert_eq!(all.len(), 14);
        assert!(all[13].starts_with("actor 11 d1"), "{all:?}");

        let some = view.lines(&before, &now, (80, 9));
        assert_eq!(some.len(), 7);
        assert!(some[5].starts_with("actor 3 d0"), "{some:?}");
        assert_eq!(
            some[6],
            "8 actors more      13-14    12-13   75%           1600   4 8  1 plays, 7 waits: learner"
                [..80]
        );
        // No actor has a line of its own.
        let few = view.lines(&before, &now, (200, 5));
        assert_eq!(few.len(), 3);
        assert!(few[2].starts_with("12 actors  "), "{few:?}");
        assert!(few[2].ends_with("6 12  5 plays, 7 waits: learner"), "{few:?}");
        assert_eq!(view.lines(&before, &now, (80, 4)).len(), 2);
        assert!(view.lines(&before, &now, (80, 2)).is_empty());
        assert!(view.lines(&before, &now, (80, 0)).is_empty());
    }

    #[test]
    fn lines_are_cut_to_the_width() {
        let (before, now) = (snapshot(12, 10, 10.0), snapshot(12, 12, 20.0));
        for columns in [0, 1, 20, 60] {
            let lines = view(12).lines(&before, &now, (columns, 10));
            assert!(lines.iter().all(|line| line.len() <= columns), "{columns}: {lines:?}");
            assert_eq!(lines.len(), 8);
        }
    }

    #[test]
    fn speeds_are_of_seconds_and_of_whole_updates() {
        let mut history = History::default();
        assert_eq!(history.before(&snapshot(1, 0, 0.0)), None);
        // Updates take a tenth of a second: the snapshot is some seconds old.
        for tick in 0..100 {
            history.push(snapshot(1, 5 * tick, 0.5 * tick as f64));
        }
        let now = snapshot(1, 500, 50.0);
        assert_eq!(history.before(&now).unwrap().at, Duration::from_secs(47));
        assert_eq!(history.0.len(), MAX_SNAPSHOTS);
        // Updates take a minute: the snapshot is two updates old.
        let mut history = History::default();
        for tick in 0..1000 {
            history.push(snapshot(1, tick / 120, 0.5 * tick as f64));
        }
        let now = snapshot(1, 8, 500.0);
        assert_eq!(history.before(&now).unwrap().learner.done, 6);
        assert_eq!(history.0.len(), 9);
    }

    #[test]
    fn without_a_terminal_there_is_only_the_work() {
        assert_eq!(watch(&view(2), &RunStatus::new(2), None, || 7), 7);
    }
}
