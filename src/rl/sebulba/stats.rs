//! Working and waiting times of actors and learner in seconds: Cleanba's `stats/` tags.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of values that a mean is taken over.
const WINDOW: usize = 10;

/// Mean of the last ten durations.
#[derive(Debug, Clone, Default)]
pub struct Window {
    last: VecDeque<f64>,
}

impl Window {
    /// Adds a duration.
    pub fn push(&mut self, duration: Duration) {
        if self.last.len() == WINDOW {
            self.last.pop_front();
        }
        self.last.push_back(duration.as_secs_f64());
    }

    /// Returns the mean in seconds; 0 before the first duration.
    pub fn mean(&self) -> f64 {
        self.last.iter().sum::<f64>() / self.last.len().max(1) as f64
    }
}

/// Times of one rollout, measured by its actor; each includes the completion of its device work.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RolloutTimes {
    /// Time waiting for parameters.
    pub params_queue_get: Duration,
    /// Time stepping the environments and the policy.
    pub rollout: Duration,
    /// Processor time of the whole process during the rollout.
    pub rollout_cpu: Duration,
    /// Time transferring the rollout to the learner devices.
    pub data_transfer: Duration,
    /// Time waiting until the learner took the previous rollout.
    pub rollout_queue_put: Duration,
}

/// Means of all measured times of a run.
#[derive(Debug, Default)]
pub struct Stats {
    rollout: Window,
    params_queue_get: Window,
    rollout_queue_put: Window,
    data_transfer: Window,
    rollout_queue_get: Window,
    training: Window,
    rollout_cpu: Window,
    training_cpu: Window,
    params_put: Window,
    host: Window,
    last: Option<Instant>,
    difference: f64,
}

impl Stats {
    /// Records the times of a rollout: that of the first actor, as in Cleanba.
    pub fn rollout(&mut self, times: &RolloutTimes) {
        self.rollout.push(times.rollout);
        self.rollout_cpu.push(times.rollout_cpu);
        self.params_queue_get.push(times.params_queue_get);
        self.rollout_queue_put.push(times.rollout_queue_put);
        self.data_transfer.push(times.data_transfer);
    }

    /// Records the times of an update: the time that the learner waited for rollouts, trained (with
    /// the processor time of the process meanwhile), and sent parameters; `actor` is the time that
    /// the first actor waited for the parameters it acted with. The rest of the time since the last
    /// update is host time: events, checkpoints, queues.
    pub fn update(
        &mut self,
        waited: Duration,
        (trained, trained_cpu): (Duration, Duration),
        gave: Duration,
        actor: Duration,
    ) {
        self.rollout_queue_get.push(waited);
        self.training.push(trained);
        self.training_cpu.push(trained_cpu);
        self.params_put.push(gave);
        self.difference = waited.as_secs_f64() - actor.as_secs_f64();
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.host.push((now - last).saturating_sub(waited + trained + gave));
        }
    }

    /// Returns the tags and their values.
    pub fn scalars(&self) -> [(&'static str, f64); 11] {
        let cores = |cpu: &Window, time: &Window| cpu.mean() / time.mean().max(1e-9);
        [
            ("stats/rollout_time", self.rollout.mean()),
            ("stats/params_queue_get_time", self.params_queue_get.mean()),
            ("stats/rollout_queue_put_time", self.rollout_queue_put.mean()),
            ("stats/data_transfer_time", self.data_transfer.mean()),
            ("stats/rollout_queue_get_time", self.rollout_queue_get.mean()),
            ("stats/training_time", self.training.mean()),
            ("stats/rollout_cores", cores(&self.rollout_cpu, &self.rollout)),
            ("stats/training_cores", cores(&self.training_cpu, &self.training)),
            ("stats/params_put_time", self.params_put.mean()),
            ("stats/host_time", self.host.mean()),
            ("stats/rollout_params_queue_get_time_diff", self.difference),
        ]
    }
}

/// Returns the processor time that this process has used on all cores; zero if the system does not
/// report it.
pub(crate) fn processor_time() -> Duration {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock's number is valid, and the struct is ours to fill.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
        if status == 0 {
            return Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
        }
    }
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn work_takes_processor_time_and_cores_are_its_share() {
        let before = processor_time();
        assert_ne!((0..1_000_000).fold(1u64, |sum, x| std::hint::black_box(sum ^ x << 1)), 0);
        assert!(processor_time() > before);
        let mut stats = Stats::default();
        let secs = Duration::from_secs;
        stats.update(secs(0), (secs(2), secs(3)), secs(0), secs(0));
        let times = RolloutTimes { rollout: secs(4), rollout_cpu: secs(5), ..Default::default() };
        stats.rollout(&times);
        let value = |name| stats.scalars().into_iter().find(|(tag, _)| *tag == name).unwrap().1;
        assert_eq!((value("stats/training_cores"), value("stats/rollout_cores")), (1.5, 1.25));
    }

    #[test]
    fn means_are_of_the_last_ten() {
        let mut window = Window::default();
        assert_eq!(window.mean(), 0.0);
        (1..=20).for_each(|s| window.push(Duration::from_secs(s)));
        assert_eq!(window.mean(), 15.5);
    }
}
