//! Assignment of actors, learners and environments to devices, threads and processes.

use crate::envs::PoolOptions;
use crate::error::{Error, Result};
use crate::rl::settings::flags::ensure;
use crate::runtime::Runtime;

/// Position of this process among those of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct World {
    /// Rank of this process.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
}

impl World {
    /// A run of one process.
    pub const ALONE: World = World { rank: 0, size: 1 };
}

/// Layout of a run over devices, threads and processes.
///
/// Environments are numbered over the whole run: environment `i` of actor thread `a` of process `p`
/// has the number [`first_env`](Layout::first_env)` + i`, from which its seed and the random
/// numbers of its policy are derived. What happens in an environment therefore does not depend on
/// the thread that steps it, and layouts with equal numbers of environments per thread over all
/// processes produce the same episodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Device ids of this process that act.
    pub actors: Vec<usize>,
    /// Device ids of this process that learn.
    pub learners: Vec<usize>,
    /// Number of threads of each actor device.
    pub threads: usize,
    /// Number of environments of each thread.
    pub envs: usize,
    /// The processes of the run.
    pub world: World,
}

impl Layout {
    /// Checks that the layout names at least one actor and one learner device, each of which exists
    /// and is named once, and that the number of learners divides the environments of a thread.
    ///
    /// # Errors
    /// [`Error::Config`] with the name of the flag and, for numbers that do not divide, the nearest
    /// that do.
    pub fn check(&self) -> Result<()> {
        let there = Runtime::get()?.client.devices().len();
        for (flag, ids) in
            [("actor-device-ids", &self.actors), ("learner-device-ids", &self.learners)]
        {
            ensure(!ids.is_empty(), flag, "", "at least one device")?;
            for (i, &id) in ids.iter().enumerate() {
                if id >= there {
                    return Err(Error::Config(format!(
                        "--{flag} {id}: there are {there} device(s), numbered from 0; on CPU \
                         --num-devices {} makes more",
                        id + 1
                    )));
                }
                ensure(
                    !ids[..i].contains(&id),
                    flag,
                    listed(ids),
                    "devices of which none is twice",
                )?;
            }
        }
        let learners = self.learners.len();
        if !self.envs.is_multiple_of(learners) {
            return Err(indivisible("local-num-envs", self.envs, learners, "learner devices"));
        }
        Ok(())
    }

    /// Returns the number of actor threads of this process.
    pub fn num_actors(&self) -> usize {
        self.actors.len() * self.threads
    }

    /// Returns the device of an actor thread.
    pub fn device_of(&self, actor: usize) -> usize {
        self.actors[actor / self.threads]
    }

    /// Returns the number of environments of all threads and processes.
    pub fn num_envs(&self) -> usize {
        self.num_actors() * self.envs * self.world.size
    }

    /// Returns the number of devices of this process: one more than the highest index in use.
    pub fn num_devices(&self) -> usize {
        self.actors.iter().chain(&self.learners).max().map_or(1, |last| last + 1)
    }

    /// Returns the number of learner devices of all processes.
    pub fn num_learners(&self) -> usize {
        self.learners.len() * self.world.size
    }

    /// Returns the number of an actor thread's first environment. The processes' shares of a thread
    /// are adjacent.
    pub fn first_env(&self, actor: usize) -> usize {
        (actor * self.world.size + self.world.rank) * self.envs
    }

    /// Returns `options` with the number of environments and the first environment of an actor
    /// thread, from which seeds are derived.
    pub(crate) fn pool_options(&self, actor: usize, options: PoolOptions) -> PoolOptions {
        PoolOptions { num_envs: self.envs, first_env: self.first_env(actor), ..options }
    }

    /// Returns the name that Cleanba gives the layout: `a0-l1,2,3-d1`.
    pub fn name(&self) -> String {
        format!("a{}-l{}-d{}", listed(&self.actors), listed(&self.learners), self.world.size)
    }
}

fn listed(ids: &[usize]) -> String {
    ids.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the error that `given` must be a multiple of `divisor`, with the nearest multiples.
///
/// The text is the same for all such flags.
pub(crate) fn indivisible(flag: &str, given: usize, divisor: usize, of: &str) -> Error {
    let below = given / divisor * divisor;
    let above = below + divisor;
    let nearest = if below == 0 { format!("{above}") } else { format!("{below} and {above}") };
    Error::Config(format!(
        "--{flag} {given}: must be a multiple of {divisor}, the number of {of}; nearest: {nearest}"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::envs::seeds;

    fn layout(actors: &[usize], threads: usize, envs: usize, world: World) -> Layout {
        Layout { actors: actors.to_vec(), learners: vec![0], threads, envs, world }
    }

    #[test]
    fn no_two_environments_have_one_number() {
        for (threads, envs) in [(1, 12), (2, 6), (3, 4)] {
            for size in [1, 2, 3] {
                let mut all = BTreeSet::new();
                let mut its_seeds = BTreeSet::new();
                let mut count = 0;
                for rank in 0..size {
                    let layout = layout(&[0, 1], threads, envs, World { rank, size });
                    for actor in 0..layout.num_actors() {
                        for env in 0..envs {
                            let number = layout.first_env(actor) + env;
                            all.insert(number);
                            its_seeds.insert(seeds(1, 0, 0, number as u32));
                            count += 1;
                        }
                    }
                    assert_eq!(layout.num_envs(), 2 * threads * envs * size);
                }
                assert_eq!((all.len(), its_seeds.len()), (count, count));
                assert_eq!(all.last(), Some(&(count - 1)));
            }
        }
    }

    #[test]
    fn half_the_environments_in_two_processes_are_the_same_ones() {
        let numbers = |layout: &Layout, actor: usize| {
            let first = layout.first_env(actor);
            (first..first + layout.envs).collect::<Vec<_>>()
        };
        let one = layout(&[0], 2, 8, World::ALONE);
        for actor in 0..2 {
            let mut both = Vec::new();
            for rank in 0..2 {
                both.extend(numbers(&layout(&[0], 2, 4, World { rank, size: 2 }), actor));
            }
            assert_eq!(both, numbers(&one, actor));
        }
    }

    #[test]
    fn layouts_have_cleanbas_names() {
        let layout = Layout { learners: vec![1, 2, 3], ..layout(&[0], 1, 4, World::ALONE) };
        assert_eq!(layout.name(), "a0-l1,2,3-d1");
        let error = indivisible("local-num-envs", 7, 3, "learner devices").to_string();
        assert!(error.contains("multiple of 3") && error.contains("nearest: 6 and 9"), "{error}");
    }
}
