//! Hours of training by timestep, from the times of log entries.

use podracer::rl::logging::tensorboard::{Event, Value};
use podracer::rl::returns::MAX_STEPS;

/// Longest run that is drawn, in hours: a century.
const MAX_HOURS: f64 = 876_600.0;
/// Time between entries of one iteration, in seconds.
const SAME_ITERATION: f64 = 0.005;
/// A pause is this many times as long as its timesteps take in the rest of the run, and longer than
/// a second.
const PAUSE: f64 = 10.0;

/// Hours of training by timestep.
#[derive(Debug, Clone, PartialEq)]
pub struct Clock(Vec<(f64, f64)>);

impl Clock {
    /// Measures from the first log entry, and leaves out pauses: compilation, and the time until an
    /// interrupted run was resumed. The time before the first entry is that of its timesteps in the
    /// rest of the run.
    pub fn new(events: &[Event]) -> Clock {
        let iterations = iterations(events);
        let steps_and_seconds =
            |pair: &[(f64, f64)]| (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
        let mut speeds: Vec<(f64, f64)> = iterations
            .windows(2)
            .map(|pair| {
                let (steps, seconds) = steps_and_seconds(pair);
                (seconds / steps, steps)
            })
            .collect();
        speeds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let half = speeds.iter().map(|speed| speed.1).sum::<f64>() / 2.0;
        let mut sum = 0.0;
        let median = speeds.iter().find(|speed| {
            sum += speed.1;
            sum >= half
        });
        let step_seconds = median.map_or(0.0, |speed| speed.0);
        let mut hours = vec![(0.0, 0.0)];
        let mut total = 0.0;
        if let Some(first) = iterations.first().filter(|first| first.0 > 0.0) {
            total = first.0 * step_seconds;
            hours.push((first.0, total / 3600.0));
        }
        for pair in iterations.windows(2) {
            let (steps, seconds) = steps_and_seconds(pair);
            let usual = steps * step_seconds;
            let paused = seconds > 1.0 && seconds > PAUSE * usual;
            total += if paused { usual } else { seconds };
            hours.push((pair[1].0, total / 3600.0));
        }
        Clock(hours)
    }

    /// Returns the hours until a timestep.
    pub fn hours(&self, step: f64) -> f64 {
        let after = self.0.partition_point(|entry| entry.0 < step);
        match (after.checked_sub(1).map(|k| self.0[k]), self.0.get(after)) {
            (Some(before), Some(next)) => {
                let part = (step - before.0) / (next.0 - before.0);
                before.1 + part * (next.1 - before.1)
            }
            (Some(last), None) => last.1,
            (None, _) => 0.0,
        }
    }
}

/// Returns timestep and seconds at the ends of iterations, both increasing. An iteration logs its
/// entries at once, at its end.
fn iterations(events: &[Event]) -> Vec<(f64, f64)> {
    let scalars = events.iter().filter(|event| matches!(event.value, Value::Scalar { .. }));
    let entries = scalars.filter(|event| event.wall_time.is_finite() && event.step <= MAX_STEPS);
    let entries: Vec<(f64, f64)> =
        entries.map(|event| (event.step as f64, event.wall_time)).collect();
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Vec::new() };
    let span = ((last.1 - first.1) / 100.0).max(SAME_ITERATION);
    let mut ends: Vec<(f64, f64)> = Vec::new();
    let mut open: Option<(f64, f64, f64)> = None;
    for &(step, time) in &entries {
        match &mut open {
            Some((begin, end, highest))
                if time >= *end && time - *end < SAME_ITERATION && time - *begin < span =>
            {
                *end = time;
                *highest = highest.max(step);
            }
            _ => {
                ends.extend(open.map(|(_, end, highest)| (highest, end)));
                open = Some((time, time, step));
            }
        }
    }
    ends.extend(open.map(|(_, end, highest)| (highest, end)));
    let mut increasing: Vec<(f64, f64)> = Vec::new();
    for (step, time) in ends {
        let later = |last: &(f64, f64)| {
            step > last.0 && time > last.1 && time - last.1 <= MAX_HOURS * 3600.0
        };
        if increasing.last().is_none_or(later) {
            increasing.push((step, time));
        }
    }
    increasing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(step: u64, wall_time: f64) -> Event {
        let value = Value::Scalar { tag: "x".into(), value: 0.0 };
        Event { wall_time, step, value }
    }

    #[test]
    fn compilation_and_interruptions_are_no_hours_of_training() {
        // Iterations of 100 steps and 2 seconds, each logged at its end as two entries. After the
        // fifth a program is compiled, and after the tenth the run is interrupted for a day.
        let mut events = Vec::new();
        let mut time = 1e9;
        for k in 1..=20 {
            time += match k {
                6 => 62.0,
                11 => 86_402.0,
                _ => 2.0,
            };
            events.push(event(100 * k - 50, time));
            events.push(event(100 * k, time + 1e-4));
        }
        let clock = Clock::new(&events);
        for (step, seconds) in [(0.0, 0.0), (100.0, 2.0), (550.0, 11.0), (2000.0, 40.0)] {
            let hours = clock.hours(step);
            assert!((hours * 3600.0 - seconds).abs() < 0.01, "{step}: {}", hours * 3600.0);
        }
        assert_eq!(clock.hours(1e9), clock.hours(2000.0));
    }

    #[test]
    fn a_clock_never_runs_backwards_whatever_was_logged() {
        let times = [5.0, 3.0, f64::NAN, 7.0, 1e300, 8.0, -1.0, 7.5];
        let steps = [1, 9, 4, u64::MAX, 2, 6, 6, 0];
        let events: Vec<Event> =
            times.iter().flat_map(|time| steps.map(|step| event(step, *time))).collect();
        let clock = Clock::new(&events);
        let hours: Vec<f64> = (0..50).map(|step| clock.hours(f64::from(step))).collect();
        assert!(hours.windows(2).all(|pair| pair[0] <= pair[1]), "{hours:?}");
        assert!(hours.iter().all(|x| (0.0..=MAX_HOURS).contains(x)), "{hours:?}");
        assert_eq!(Clock::new(&[]).hours(3.0), 0.0);
    }
}
