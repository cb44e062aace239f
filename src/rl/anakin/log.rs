//! Logging of many updates of many agents to the event file.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Array;
use crate::error::{Error, Result};
use crate::output;
use crate::rl::anakin::options::AnakinArgs;
use crate::rl::returns::Returns;
use crate::rl::run::Run;
use crate::rl::sweep::FIGURE;
use crate::tree::{self, Tree};

/// Metrics and episodes of an update of T steps.
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct Report<T, M> {
    /// Metrics of the update; the first is the loss.
    pub metrics: M,
    /// `f32[T, N]`: returns of the episodes that ended, 0 where none did.
    pub episode_returns: T,
    /// `i32[T, N]`: lengths of the episodes that ended, 0 where none did.
    pub episode_lengths: T,
}

/// Report of a call on the host.
struct Columns {
    /// Number of updates of the call.
    updates: usize,
    /// Number of timesteps of an update of one agent.
    steps: usize,
    /// `[agents, updates, steps]`.
    returns: Vec<f32>,
    /// `[agents, updates, steps]`.
    lengths: Vec<i32>,
    /// Tags and values `[agents, updates]` of the metrics.
    metrics: Vec<(String, Vec<f32>)>,
}

impl Columns {
    fn new<M: Tree<Array>>(report: &Report<Array, M>, updates: u64) -> Result<Columns> {
        let steps = report.episode_returns.shape();
        let mut metrics = Vec::new();
        for (path, column) in tree::leaves_with_path(&report.metrics) {
            let name = path.rsplit('.').next().expect("a split has a last part");
            metrics.push((format!("losses/{name}"), column.to_vec::<f32>()?));
        }
        Ok(Columns {
            updates: updates as usize,
            steps: steps[steps.len() - 2..].iter().product(),
            returns: report.episode_returns.to_vec::<f32>()?,
            lengths: report.episode_lengths.to_vec::<i32>()?,
            metrics,
        })
    }

    /// Returns the episodes of an agent that ended in an update: the index of the timestep, the return
    /// and the length.
    fn episodes(&self, agent: usize, update: usize) -> impl Iterator<Item = (usize, f64, i32)> {
        let offset = (agent * self.updates + update) * self.steps;
        let ended =
            move |i: &usize| self.lengths[offset + i] > 0 && !self.returns[offset + i].is_nan();
        let ended = (0..self.steps).filter(ended);
        ended.map(move |i| (i, f64::from(self.returns[offset + i]), self.lengths[offset + i]))
    }

    fn metric(&self, column: &[f32], agent: usize, update: usize) -> f64 {
        f64::from(column[agent * self.updates + update])
    }
}

/// Part of the state of the log that a checkpoint keeps.
#[derive(Serialize, Deserialize)]
struct LogState {
    returns: Vec<Returns>,
    diverged: Vec<Option<u64>>,
}

/// State of the logging of a run.
pub(super) struct AgentsLog<'a, A> {
    args: &'a A,
    /// Last returns of each agent.
    returns: Vec<Returns>,
    /// Timestep at which the loss of each agent was not finite.
    diverged: Vec<Option<u64>>,
    /// Number of updates so far.
    pub(super) num_updates: u64,
}

impl<'a, A: AnakinArgs> AgentsLog<'a, A> {
    /// Creates the state of a new run, or restores it from the [`saved_state`](AgentsLog::saved_state) of a
    /// checkpoint.
    pub(super) fn new(args: &'a A, saved: &Value, num_updates: u64) -> Result<AgentsLog<'a, A>> {
        let agents = args.agents().num_agents();
        let damaged =
            |problem| Error::Argument(format!("the returns in the checkpoint: {problem}"));
        let LogState { returns, diverged } = match saved {
            Value::Null => {
                LogState { returns: vec![Returns::default(); agents], diverged: vec![None; agents] }
            }
            // Checkpoints of earlier versions have returns only.
            Value::Array(_) => LogState {
                returns: serde_json::from_value(saved.clone())
                    .map_err(|e| damaged(e.to_string()))?,
                diverged: vec![None; agents],
            },
            saved => serde_json::from_value(saved.clone()).map_err(|e| damaged(e.to_string()))?,
        };
        let (number, flags) = (returns.len(), diverged.len());
        let wrong = match returns.len() == agents && diverged.len() == agents {
            true => returns.iter().find_map(|returns| returns.ensure_possible().err()),
            false => Some(format!(
                "found those of {number} agents and flags of {flags}, expected {agents}"
            )),
        };
        match wrong {
            Some(problem) => Err(damaged(problem)),
            None => Ok(AgentsLog { args, returns, diverged, num_updates }),
        }
    }

    /// Returns the part of the state that a checkpoint keeps.
    pub(super) fn saved_state(&self) -> Result<Value> {
        let saved = LogState { returns: self.returns.clone(), diverged: self.diverged.clone() };
        serde_json::to_value(saved)
            .map_err(|e| Error::Argument(format!("the returns of the episodes: {e}")))
    }

    /// Returns the mean over the agents of the mean of the last returns; agents that diverged do not
    /// count.
    pub(super) fn mean_return(&self) -> Option<f64> {
        let means: Vec<f64> = self.trained().filter_map(|i| self.returns[i].mean()).collect();
        (!means.is_empty()).then(|| means.iter().sum::<f64>() / means.len() as f64)
    }

    /// Returns the agents that have not diverged.
    fn trained(&self) -> impl Iterator<Item = usize> {
        (0..self.diverged.len()).filter(|agent| self.diverged[*agent].is_none())
    }

    /// Logs the report of one call, `[agents, updates, ..]` or `[updates, ..]`.
    ///
    /// # Errors
    /// [`Error::Nan`] if the losses of all agents are not finite, [`Error::Io`] if the event file cannot
    /// be written.
    pub(super) fn record<M: Tree<Array>>(
        &mut self,
        run: &mut Run,
        report: &Report<Array, M>,
        updates: u64,
    ) -> Result<()> {
        let columns = Columns::new(report, updates)?;
        for update in 0..columns.updates {
            let step = (self.num_updates + 1) * columns.steps as u64;
            let rate = self.args.learning_rate(self.num_updates);
            self.record_episodes(run, &columns, update)?;
            self.num_updates += 1;
            self.check_losses(run, &columns, update)?;
            let mut values = Vec::new();
            if !self.args.agents().sweep.iter().any(|sweep| sweep.name == "learning-rate") {
                values.push(("charts/learning_rate", rate));
            }
            for (tag, column) in columns.metrics.iter().filter(|(tag, _)| tag != "losses/loss") {
                let sum: f64 =
                    self.trained().map(|agent| columns.metric(column, agent, update)).sum();
                values.push((tag, sum / self.trained().count() as f64));
            }
            let agents = self.returns.len() as u64;
            values.push(("charts/SPS", run.sps(step * agents).floor()));
            run.events.scalars(&values, step)?;
        }
        Ok(())
    }

    /// Logs the episodes that ended in an update. Those of agents that diverged before do not count.
    fn record_episodes(&mut self, run: &mut Run, columns: &Columns, update: usize) -> Result<()> {
        let (agents, num_envs) = (self.returns.len(), self.args.num_envs());
        let start = self.num_updates * columns.steps as u64;
        let step = start + columns.steps as u64;
        let mut all = Vec::new();
        let mut of_tag = Vec::new();
        for agent in 0..agents {
            let counts = self.diverged[agent].is_none();
            for (i, value, length) in columns.episodes(agent, update).filter(|_| counts) {
                self.returns[agent].push(value);
                of_tag.push(value);
                if agents == 1 {
                    // Timestep at which the episode ended, counted as in CleanRL.
                    let at = start + ((i / num_envs + 1) * num_envs) as u64;
                    run.episode(value, length as u64, at)?;
                } else {
                    run.returns.push(value);
                    all.push((value, f64::from(length)));
                }
            }
            if let Some(tag) = self.tag_after(agent) {
                if !of_tag.is_empty() {
                    let mean = of_tag.iter().sum::<f64>() / of_tag.len() as f64;
                    run.events.scalar(&tag, mean, step)?;
                }
                of_tag.clear();
            }
        }
        if !all.is_empty() {
            let (sum, lengths) = all.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
            let count = all.len() as f64;
            run.events.scalar("charts/episodic_return", sum / count, step)?;
            run.events.scalar("charts/episodic_length", lengths / count, step)?;
        }
        Ok(())
    }

    /// Returns the tag of the returns of the agents up to this one, if the next agent has another:
    /// each seed has one, or each point of a sweep. A single agent has none.
    fn tag_after(&self, agent: usize) -> Option<String> {
        let options = self.args.agents();
        let seeds = options.num_seeds;
        if !options.sweep.is_empty() {
            let label = options.grid().label(agent / seeds);
            return (agent % seeds == seeds - 1).then(|| format!("sweep/{label}/episodic_return"));
        }
        let seed = options.seed_of(agent, self.args.options().seed);
        (seeds > 1).then(|| format!("seeds/{seed}/episodic_return"))
    }

    /// Marks the agents whose loss is not finite as diverged, and prints their names.
    ///
    /// # Errors
    /// [`Error::Nan`] if no agent is left.
    fn check_losses(&mut self, run: &mut Run, columns: &Columns, update: usize) -> Result<()> {
        let (_, losses) = &columns.metrics[0];
        let step = self.num_updates * columns.steps as u64;
        let mut problems = Vec::new();
        for agent in self.trained().collect::<Vec<_>>() {
            let loss = columns.metric(losses, agent, update);
            if !loss.is_finite() {
                self.diverged[agent] = Some(step);
                let (name, updates) = (self.name_of(agent), self.num_updates);
                problems.push(format!(
                    "the loss of {name} is {loss} after update {updates}, at step {step}"
                ));
            }
        }
        if let Some(problem) = problems.first()
            && self.trained().next().is_none()
        {
            run.events.flush()?;
            return Err(Error::Nan(format!(
                "{problem}; run again with --check-nans to see which operation made it"
            )));
        }
        for problem in problems {
            output::stderr_line(format_args!("{problem}; the other agents continue"));
        }
        Ok(())
    }

    fn name_of(&self, agent: usize) -> String {
        self.args.agents().name_of(agent, self.args.options().seed)
    }

    /// Returns a table of the seeds or of the sweeps, whose results are also written into the run's
    /// folder, and the names of the agents that diverged; empty for one agent without a sweep.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the results cannot be written, and errors of the figure.
    pub(super) fn details(&self, folder: &Path) -> Result<String> {
        let options = self.args.agents();
        let grid = options.grid();
        let mut text = match options.sweep[..] {
            [] if self.returns.len() == 1 => return Ok(String::new()),
            [] => self.table(),
            _ => {
                let diverged: Vec<bool> = self.diverged.iter().map(Option::is_some).collect();
                let results = grid.results(&self.returns, &diverged);
                grid.write(folder, &results)?;
                format!("{}figure: {}\n", grid.table(&results), folder.join(FIGURE).display())
            }
        };
        let named = self.diverged.iter().enumerate().filter_map(|(agent, step)| {
            step.map(|step| format!("{} at step {step}", self.name_of(agent)))
        });
        let named: Vec<String> = named.collect();
        if !named.is_empty() {
            text.push_str(&format!("diverged: {}\n", named.join("; ")));
        }
        Ok(text)
    }

    /// Returns a table with a line for each seed.
    fn table(&self) -> String {
        let mut table = "seed  episodes  mean return of the last 100\n".to_string();
        for (agent, returns) in self.returns.iter().enumerate() {
            let seed = self.args.agents().seed_of(agent, self.args.options().seed);
            let mean = match (self.diverged[agent], returns.mean()) {
                (Some(_), _) => "diverged".to_string(),
                (None, Some(mean)) => format!("{mean:.1}"),
                (None, None) => "none ended".to_string(),
            };
            table.push_str(&format!("{seed:>4}  {:>8}  {mean:>10}\n", returns.episodes()));
        }
        table
    }
}
