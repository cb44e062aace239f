//! How long actors and learner work and wait: Cleanba's `stats/` tags, in seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How many values a mean is of.
const WINDOW: usize = 10;

/// The mean of the last ten durations.
#[derive(Debug, Clone, Default)]
pub struct Window {
    last: VecDeque<f64>,
}

impl Window {
    /// Adds one.
    pub fn push(&mut self, duration: Duration) {
        if self.last.len() == WINDOW {
            self.last.pop_front();
        }
        self.last.push_back(duration.as_secs_f64());
    }

    /// The mean in seconds; 0 before the first.
    pub fn mean(&self) -> f64 {
        self.last.iter().sum::<f64>() / self.last.len().max(1) as f64
    }
}

/// What one rollout took, as its actor measured it; each time with the work finished.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RolloutTimes {
    /// Waiting for parameters.
    pub params_queue_get: Duration,
    /// Stepping environments and policy.
    pub rollout: Duration,
    /// Moving the rollout to the learners' devices.
    pub data_transfer: Duration,
    /// Waiting until the learner took the rollout before this one.
    pub rollout_queue_put: Duration,
}

/// The windows of all times of a run.
#[derive(Debug, Default)]
pub struct Stats {
    rollout: Window,
    params_queue_get: Window,
    rollout_queue_put: Window,
    data_transfer: Window,
    rollout_queue_get: Window,
    training: Window,
    params_put: Window,
    host: Window,
    last: Option<Instant>,
    difference: f64,
}

impl Stats {
    /// Takes note of a rollout: that of the first actor, as in Cleanba.
    pub fn rollout(&mut self, times: &RolloutTimes) {
        self.rollout.push(times.rollout);
        self.params_queue_get.push(times.params_queue_get);
        self.rollout_queue_put.push(times.rollout_queue_put);
        self.data_transfer.push(times.data_transfer);
    }

    /// Takes note of an update: how long the learner waited for rollouts, trained, and gave out
    /// parameters; `actor` is how long the first actor waited for those that it acted with. What is
    /// left of the time since the last update is the host's: events, checkpoints, queues.
    pub fn update(&mut self, waited: Duration, trained: Duration, gave: Duration, actor: Duration) {
        self.rollout_queue_get.push(waited);
        self.training.push(trained);
        self.params_put.push(gave);
        self.difference = waited.as_secs_f64() - actor.as_secs_f64();
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.host.push((now - last).saturating_sub(waited + trained + gave));
        }
    }

    /// The tags and their values.
    pub fn scalars(&self) -> [(&'static str, f64); 9] {
        [
            ("stats/rollout_time", self.rollout.mean()),
            ("stats/params_queue_get_time", self.params_queue_get.mean()),
            ("stats/rollout_queue_put_time", self.rollout_queue_put.mean()),
            ("stats/data_transfer_time", self.data_transfer.mean()),
            ("stats/rollout_queue_get_time", self.rollout_queue_get.mean()),
            ("stats/training_time", self.training.mean()),
            ("stats/params_put_time", self.params_put.mean()),
            ("stats/host_time", self.host.mean()),
            ("stats/rollout_params_queue_get_time_diff", self.difference),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_the_last_ten() {
        let mut window = Window::default();
        assert_eq!(window.mean(), 0.0);
        (1..=20).for_each(|s| window.push(Duration::from_secs(s)));
        assert_eq!(window.mean(), 15.5);
    }
}
