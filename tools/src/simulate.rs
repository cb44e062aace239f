//! Simulation of the speed of a layout: actors and learners as tasks that take time and share
//! cores.
//!
//! It models what [`run_actor_learner`](podracer::rl::sebulba::run_actor_learner()) does with threads: the same queues, the same lag, the
//! same order. The costs are measured on one device; see `docs/scaling.md`.

use podracer::rl::sebulba::version_of;

/// Costs of the parts of an update in seconds, measured on one device that has the machine to
/// itself.
///
/// Costs proportional to the number of environments are work, for which devices on shared cores
/// compete. Costs independent of it are mostly synchronization and launches, which overlap with the
/// work of others. Work may keep several cores busy; it gets a smaller share of them while others
/// work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Share of one environment in a rollout.
    pub rollout_per_env: f64,
    /// Fixed part of a rollout.
    pub rollout: f64,
    /// Transfer of one environment's share of a rollout to a learner.
    pub transfer_per_env: f64,
    /// Share of one environment in an update.
    pub learn_per_env: f64,
    /// Fixed part of an update.
    pub learn: f64,
    /// Number of cores that a rollout keeps busy.
    pub rollout_cores: f64,
    /// Number of cores that an update of one learner keeps busy. Where a process has as many
    /// learners as cores, each has one core (see [`pmap`](podracer::pmap())).
    pub learn_cores: f64,
    /// Sum of the gradients of one update over all learners, for each doubling of their number.
    pub reduce: f64,
    /// Transfer of parameters to one actor.
    pub publish: f64,
    /// Number of cores that all devices of a process share; infinite where each device has its own.
    pub cores: f64,
}

/// Numbers that describe a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of devices that act.
    pub actors: usize,
    /// Number of devices that learn.
    pub learners: usize,
    /// True if the learner devices are the actor devices, or the first of them.
    pub shared: bool,
    /// Number of threads of each actor device.
    pub threads: usize,
    /// Number of environments of each thread.
    pub envs: usize,
    /// Number of processes.
    pub processes: usize,
    /// Number of steps of a rollout.
    pub num_steps: usize,
    /// If true, actors act while the learner learns.
    pub concurrency: bool,
}

/// Result of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// Steps per second of all environments.
    pub sps: f64,
    /// Seconds per update.
    pub period: f64,
    /// Fraction of the time in which the learner works.
    pub learner_busy: f64,
    /// Fraction of the time in which an actor works.
    pub actor_busy: f64,
}

/// Work on a device. Each device has a queue of tasks that it runs in order.
#[derive(Debug, Clone, Copy)]
struct Task {
    device: usize,
    /// Remaining seconds of waiting, before the work.
    wait: f64,
    /// Remaining seconds of work on one core.
    work: f64,
    /// Number of cores that the task uses if they are free.
    cores: f64,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Rollout { actor: usize },
    Learn,
}

/// Number of simulated updates; the first half is the warm-up.
const UPDATES: u64 = 40;

/// State of a simulation: the tasks in progress and what has been done.
struct Simulation<'a> {
    costs: &'a Costs,
    shape: &'a Shape,
    now: f64,
    tasks: Vec<Task>,
    /// Rollouts begun by each actor.
    begun: Vec<u64>,
    /// Rollouts of each actor that were queued or taken.
    made: Vec<u64>,
    /// Version of the parameters.
    version: u64,
    updates: u64,
    /// Learner devices that are still learning.
    learning: usize,
    /// Time that a learner, and that an actor, has been busy.
    busy: [f64; 2],
}

impl Simulation<'_> {
    fn num_actors(&self) -> usize {
        self.shape.actors * self.shape.threads
    }

    /// Begins the rollouts of all actors that need not wait.
    fn begin_rollouts(&mut self) {
        let Costs { rollout, rollout_per_env, transfer_per_env, rollout_cores, .. } = *self.costs;
        let work = self.shape.envs as f64 * (rollout_per_env + transfer_per_env) * rollout_cores;
        for actor in 0..self.num_actors() {
            let next = self.begun[actor] + 1;
            let idle = self.made[actor] == self.begun[actor];
            // The queue is free once the learner has taken the previous rollout.
            let taken = self.updates + u64::from(self.learning > 0);
            let is_free = next <= taken + 2;
            if idle && is_free && version_of(next, self.shape.concurrency) <= self.version {
                self.begun[actor] = next;
                let device = actor / self.shape.threads;
                let what = What::Rollout { actor };
                self.tasks.push(Task { device, wait: rollout, work, cores: rollout_cores, what });
            }
        }
    }

    /// Begins an update if all its rollouts have been made. Returns true if it did.
    fn begin_update(&mut self) -> bool {
        let (costs, shape) = (self.costs, self.shape);
        if self.learning > 0 || self.made.iter().any(|&rollouts| rollouts <= self.updates) {
            return false;
        }
        let actors = self.num_actors() as f64;
        let learners = shape.learners as f64;
        let wait = costs.learn
            + costs.reduce * (learners * shape.processes as f64).log2()
            + costs.publish * actors;
        let work = shape.envs as f64 * actors / learners * costs.learn_per_env * costs.learn_cores;
        let alone = learners >= costs.cores;
        let cores = if alone { costs.learn_cores.min(1.0) } else { costs.learn_cores };
        self.learning = shape.learners;
        for k in 0..shape.learners {
            // A learner that shares an actor device has that device's index.
            let device = if shape.shared { k } else { shape.actors + k };
            self.tasks.push(Task { device, wait, work, cores, what: What::Learn });
        }
        true
    }

    /// Advances to the end of the next task or of its wait. The first task of each device runs; all
    /// running tasks share the cores.
    fn advance(&mut self) {
        let mut first: Vec<usize> = Vec::new();
        for (i, task) in self.tasks.iter().enumerate() {
            if first.iter().all(|&j| self.tasks[j].device != task.device) {
                first.push(i);
            }
        }
        let working = first.iter().filter(|&&i| self.tasks[i].wait <= 0.0);
        let wanted: f64 = working.map(|&i| self.tasks[i].cores).sum();
        let share = if wanted > self.costs.cores { self.costs.cores / wanted } else { 1.0 };
        let left = |task: &Task| match task.wait > 0.0 {
            true => task.wait,
            false => task.work / (task.cores * share),
        };
        let step = first.iter().map(|&i| left(&self.tasks[i])).fold(f64::INFINITY, f64::min);
        self.now += step;
        let counts = [self.shape.learners as f64, self.num_actors() as f64];
        for &i in &first {
            let task = &mut self.tasks[i];
            if task.wait > 0.0 {
                task.wait -= step;
                if task.wait < 1e-12 {
                    task.wait = 0.0;
                }
            } else {
                task.work -= step * task.cores * share;
            }
            let kind = usize::from(task.what != What::Learn);
            self.busy[kind] += step / counts[kind];
        }
    }

    /// Removes the tasks that have ended and counts their results.
    fn end_tasks(&mut self) {
        let mut ended = Vec::new();
        self.tasks.retain(|task| {
            let over = task.wait <= 0.0 && task.work <= 1e-12;
            if over {
                ended.push(task.what);
            }
            !over
        });
        for what in ended {
            match what {
                What::Rollout { actor } => self.made[actor] += 1,
                What::Learn => {
                    self.learning -= 1;
                    if self.learning == 0 {
                        self.updates += 1;
                        self.version += 1;
                    }
                }
            }
        }
    }
}

/// Simulates the actors and learners of one process; the other processes do the same at the same
/// time.
pub fn simulate(costs: &Costs, shape: &Shape) -> Forecast {
    let actors = shape.actors * shape.threads;
    let mut simulation = Simulation {
        costs,
        shape,
        now: 0.0,
        tasks: Vec::new(),
        begun: vec![0; actors],
        made: vec![0; actors],
        version: 1,
        updates: 0,
        learning: 0,
        busy: [0.0; 2],
    };
    let mut half = None;
    while simulation.updates < UPDATES {
        simulation.begin_rollouts();
        if simulation.begin_update() {
            // A queue is free again: check again which tasks can start.
            continue;
        }
        simulation.advance();
        simulation.end_tasks();
        if simulation.updates == UPDATES / 2 && half.is_none() {
            half = Some((simulation.now, simulation.busy));
        }
    }
    let (start, busy) = half.expect("the first half of the updates is over");
    let time = simulation.now - start;
    let period = time / (UPDATES / 2) as f64;
    let steps = (actors * shape.envs * shape.num_steps * shape.processes) as f64;
    Forecast {
        sps: steps / period,
        period,
        learner_busy: (simulation.busy[0] - busy[0]) / time,
        actor_busy: (simulation.busy[1] - busy[1]) / time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        rollout_per_env: 0.1,
        rollout: 0.0,
        transfer_per_env: 0.0,
        learn_per_env: 0.05,
        learn: 0.0,
        rollout_cores: 1.0,
        learn_cores: 1.0,
        reduce: 0.0,
        publish: 0.0,
        cores: f64::INFINITY,
    };

    const SHAPE: Shape = Shape {
        actors: 1,
        learners: 1,
        shared: false,
        threads: 1,
        envs: 10,
        processes: 1,
        num_steps: 100,
        concurrency: true,
    };

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 0.03 * b.abs(), "{a}, expected {b}");
    }

    #[test]
    fn the_slower_side_sets_the_pace() {
        // Rollouts take 1 s, updates half of it.
        let forecast = simulate(&COSTS, &SHAPE);
        near(forecast.period, 1.0);
        near(forecast.sps, 1000.0);
        near(forecast.learner_busy, 0.5);
        near(forecast.actor_busy, 1.0);
        // Without overlap the times add up, on one device too.
        near(simulate(&COSTS, &Shape { concurrency: false, ..SHAPE }).period, 1.5);
        near(simulate(&COSTS, &Shape { shared: true, ..SHAPE }).period, 1.5);
        // The same holds if both share one core.
        near(simulate(&Costs { cores: 1.0, ..COSTS }, &SHAPE).period, 1.5);
    }

    #[test]
    fn work_on_several_cores_leaves_less_to_others() {
        // A rollout of 1 s on one core, beside an update of 0.5 s on two.
        let costs = Costs { learn_cores: 2.0, cores: 2.0, ..COSTS };
        near(simulate(&costs, &Shape { concurrency: false, ..SHAPE }).period, 1.5);
        // Both run at two thirds of their speed for 0.75 s, in which half of the rollout is done.
        near(simulate(&costs, &SHAPE).period, 1.25);
        // Two learners have a core each: half a second, two of three parts of the cores each.
        let two = Shape { learners: 2, ..SHAPE };
        near(simulate(&costs, &two).period, 1.25);
        near(simulate(&costs, &Shape { concurrency: false, ..two }).period, 1.5);
        // Each device has cores of its own, as many as it can use.
        near(simulate(&Costs { cores: f64::INFINITY, ..costs }, &SHAPE).period, 1.0);
    }

    #[test]
    fn more_devices_share_the_work() {
        // Two threads on one device: 2 s of rollouts, twice the samples.
        let two = Shape { threads: 2, ..SHAPE };
        near(simulate(&COSTS, &two).sps, 1000.0);
        // Two devices work in parallel; then the learner, with 1 s, is as slow.
        near(simulate(&COSTS, &Shape { actors: 2, ..SHAPE }).sps, 2000.0);
        let four = Shape { actors: 4, ..SHAPE };
        near(simulate(&COSTS, &four).sps, 2000.0);
        near(simulate(&COSTS, &Shape { learners: 2, ..four }).sps, 4000.0);
        // Speeds of processes add up, less the time of the gradient sum.
        let costs = Costs { reduce: 0.1, learn_per_env: 0.1, ..COSTS };
        let many = Shape { processes: 8, ..SHAPE };
        near(simulate(&costs, &many).sps, 8.0 * 1000.0 / 1.3);
    }
}
