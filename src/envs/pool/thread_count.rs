//! Choice of the number of threads of a pool from the cost of its steps.

use std::time::Duration;

/// Number of batches to time before choosing: the fastest one shows the cost without interruptions.
const PROBES: u32 = 16;

/// Amount of work that justifies waking one more thread. Passing a batch to a thread and back costs
/// 2 to 40 us (`benches/envs.rs`), so a thread must save more than that.
pub(super) const WORTH_A_THREAD: Duration = Duration::from_micros(60);

/// Upper limit of the cost of passing one environment to a thread and back (100 to 200 ns in the
/// same benchmark). Steps that cost little more than that stay on the caller's thread, regardless
/// of the number of environments.
const HAND_OVER: Duration = Duration::from_nanos(300);

/// Measurement of the cost of a step, from which the number of threads is chosen.
#[derive(Debug)]
pub(super) struct Probe {
    batches: u32,
    fastest: Duration,
}

impl Probe {
    pub(super) fn new() -> Probe {
        Probe { batches: 0, fastest: Duration::MAX }
    }

    /// Records the cost of a batch. Returns that of the fastest one after enough batches.
    pub(super) fn fastest_of_enough(&mut self, cost: Duration) -> Option<Duration> {
        self.batches += 1;
        self.fastest = self.fastest.min(cost);
        (self.batches >= PROBES).then_some(self.fastest)
    }
}

/// Returns the number of threads for batches whose steps take the time `cost` on one thread; `None` if
/// the caller steps them alone.
pub(super) fn threads_for(
    cost: Duration,
    batch_size: usize,
    cores: usize,
    synchronous: bool,
) -> Option<usize> {
    let work = cost.saturating_sub(HAND_OVER * batch_size as u32);
    let worth = (work.as_nanos() / WORTH_A_THREAD.as_nanos()) as usize;
    let count = worth.min(cores).min(batch_size);
    // The caller of an asynchronous pool has other work to do: a single thread is already a gain.
    (count >= if synchronous { 2 } else { 1 }).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_added_for_each_share_of_the_work_that_pays_for_it() {
        let of = |threads: u32, size, synchronous| {
            let cost = WORTH_A_THREAD * threads + HAND_OVER * size as u32;
            threads_for(cost, size, 8, synchronous)
        };
        assert_eq!(threads_for(Duration::ZERO, 4, 8, false), None);
        assert_eq!([0, 1, 2, 3].map(|share| of(share, 64, true)), [None, None, Some(2), Some(3)]);
        assert_eq!(
            [0, 1, 2, 3].map(|share| of(share, 64, false)),
            [None, Some(1), Some(2), Some(3)]
        );
        // At most one a core, and one an environment of a batch.
        assert_eq!(
            (of(100, 64, true), of(100, 4, true), of(100, 1, true)),
            (Some(8), Some(4), None)
        );
        let just_less = WORTH_A_THREAD * 2 + HAND_OVER * 64 - Duration::from_nanos(1);
        assert_eq!(threads_for(just_less, 64, 8, true), None);
    }
}
