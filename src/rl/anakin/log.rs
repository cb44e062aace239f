//! Logging of many updates of many agents to the event file.

use std::path::Path;

use serde_json::Value;

use super::AnakinArgs;
use crate::Array;
use crate::error::{Error, Result};
use crate::rl::sweep::FIGURE;
use crate::rl::{Returns, Run};
use crate::tree::{self, Tree};

/// Metrics and episodes of an update of T steps.
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct Report<T, M> {
    /// Metrics of the update; the first is the loss.
    pub metrics: M,
    /// `f32[T, N]`: returns of the episodes that ended, NaN where none did.
    pub episode_returns: T,
    /// `i32[T, N]`: number of steps of the episode so far.
    pub episode_lengths: T,
}

/// State of the logging of a run.
pub(super) struct AgentsLog<'a, A> {
    args: &'a A,
    /// Last returns of each agent.
    returns: Vec<Returns>,
    /// True for each agent of a sweep whose loss was not finite.
    diverged: Vec<bool>,
    /// Number of updates so far.
    pub(super) num_updates: u64,
}

impl<'a, A: AnakinArgs> AgentsLog<'a, A> {
    /// Creates the state of a new run, or restores it from the [`notes`](AgentsLog::notes) of a
    /// checkpoint.
    pub(super) fn new(args: &'a A, notes: &Value, num_updates: u64) -> Result<AgentsLog<'a, A>> {
        let returns: Vec<Returns> = match notes {
            Value::Null => vec![Returns::default(); args.agents().num_agents()],
            notes => serde_json::from_value(notes.clone())
                .map_err(|e| Error::Argument(format!("the returns in the checkpoint: {e}")))?,
        };
        let agents = args.agents().num_agents();
        let wrong = match returns.len() == agents {
            true => returns.iter().find_map(|returns| returns.ensure_possible().err()),
            false => Some(format!("those of {} of {agents} agents", returns.len())),
        };
        if let Some(problem) = wrong {
            return Err(Error::Argument(format!("the returns in the checkpoint: {problem}")));
        }
        Ok(AgentsLog { args, returns, diverged: vec![false; agents], num_updates })
    }

    /// Returns the part of the state that a checkpoint keeps.
    pub(super) fn notes(&self) -> Result<Value> {
        serde_json::to_value(&self.returns)
            .map_err(|e| Error::Argument(format!("the returns of the episodes: {e}")))
    }

    /// Returns the mean over the agents of the mean of the last returns.
    pub(super) fn mean_return(&self) -> Option<f64> {
        let means: Vec<f64> = self.returns.iter().filter_map(Returns::mean).collect();
        (!means.is_empty()).then(|| means.iter().sum::<f64>() / means.len() as f64)
    }

    /// Logs the reports of one call, `[agents, updates, ..]` or `[updates, ..]`. The first of the
    /// metrics is the loss.
    pub(super) fn record<M: Tree<Array>>(
        &mut self,
        run: &mut Run,
        report: &Report<Array, M>,
        updates: u64,
    ) -> Result<()> {
        let agents = self.args.agents().num_agents();
        let steps = report.episode_returns.shape();
        let (updates, size) = (updates as usize, steps[steps.len() - 2..].iter().product());
        let returns = report.episode_returns.to_vec::<f32>()?;
        let lengths = report.episode_lengths.to_vec::<i32>()?;
        let mut scalars = Vec::new();
        for (path, column) in tree::leaves_with_path(&report.metrics) {
            let name = path.rsplit('.').next().expect("a split has a last part");
            scalars.push((format!("losses/{name}"), column.to_vec::<f32>()?));
        }
        for update in 0..updates {
            let start = self.num_updates * size as u64;
            let step = start + size as u64;
            let rate = self.args.learning_rate(self.num_updates);
            self.num_updates += 1;
            let mut all = Vec::new();
            let mut of_tag = Vec::new();
            for agent in 0..agents {
                let offset = (agent * updates + update) * size;
                for i in (0..size).filter(|i| !returns[offset + i].is_nan()) {
                    let (value, length) = (f64::from(returns[offset + i]), lengths[offset + i]);
                    self.returns[agent].push(value);
                    of_tag.push(value);
                    if agents == 1 {
                        // Timestep at which the episode ended, counted as in CleanRL.
                        let at =
                            start + ((i / self.args.num_envs() + 1) * self.args.num_envs()) as u64;
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
            let of_agent =
                |column: &[f32], agent: usize| f64::from(column[agent * updates + update]);
            self.check_loss(run, |agent| of_agent(&scalars[0].1, agent), step)?;
            let mut values = Vec::new();
            if !self.args.agents().sweep.iter().any(|sweep| sweep.name == "learning-rate") {
                values.push(("charts/learning_rate", rate));
            }
            let trained = || (0..agents).filter(|agent| !self.diverged[*agent]);
            for (tag, column) in scalars.iter().filter(|(tag, _)| tag != "losses/loss") {
                let sum: f64 = trained().map(|agent| of_agent(column, agent)).sum();
                values.push((tag, sum / trained().count() as f64));
            }
            values.push(("charts/SPS", run.sps(step * agents as u64).floor()));
            run.events.scalars(&values, step)?;
        }
        Ok(())
    }

    /// Returns the tag of the returns of the agents up to this one, if the next agent has another:
    /// each seed has one, or each point of a sweep. A single agent has none.
    fn tag_after(&self, agent: usize) -> Option<String> {
        let seeds = self.args.agents().num_seeds;
        if !self.args.agents().sweep.is_empty() {
            let label = self.args.agents().grid().label(agent / seeds);
            return (agent % seeds == seeds - 1).then(|| format!("sweep/{label}/episodic_return"));
        }
        (seeds > 1)
            .then(|| format!("seeds/{}/episodic_return", self.args.options().seed + agent as u64))
    }

    /// Ends the run at a loss that is not finite; an agent of a sweep is only marked.
    fn check_loss(&mut self, run: &mut Run, loss: impl Fn(usize) -> f64, step: u64) -> Result<()> {
        for agent in 0..self.returns.len() {
            let loss = loss(agent);
            if loss.is_finite() {
                continue;
            }
            if !self.args.agents().sweep.is_empty() {
                self.diverged[agent] = true;
                continue;
            }
            run.events.flush()?;
            return Err(Error::Nan(format!(
                "the loss of seed {} is {loss} after update {}, at step {step}; run again with \
                 --check-nans to see which operation made it",
                self.args.options().seed + agent as u64,
                self.num_updates
            )));
        }
        Ok(())
    }

    /// Returns a table of the seeds or of the sweeps, whose results are also written into the run's
    /// folder; nothing for a single agent.
    ///
    /// # Errors
    /// [`Error::Io`] if they cannot be written.
    pub(super) fn details(&self, folder: &Path) -> Result<String> {
        let grid = self.args.agents().grid();
        if self.args.agents().sweep.is_empty() {
            return Ok(if self.returns.len() > 1 { self.table() } else { String::new() });
        }
        let results = grid.results(&self.returns, &self.diverged);
        grid.write(folder, &results)?;
        Ok(format!("{}figure: {}\n", grid.table(&results), folder.join(FIGURE).display()))
    }

    /// Returns a table with a line for each seed.
    fn table(&self) -> String {
        let mut table = "seed  episodes  mean return of the last 100\n".to_string();
        for (seed, returns) in (self.args.options().seed..).zip(&self.returns) {
            let mean = returns.mean().map_or("none ended".to_string(), |mean| format!("{mean:.1}"));
            table.push_str(&format!("{seed:>4}  {:>8}  {mean:>10}\n", returns.episodes()));
        }
        table
    }
}
