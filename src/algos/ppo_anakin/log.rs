//! Logging of a launch, with many updates of many agents, to the event file.

use serde_json::Value;

use super::{Args, Report};
use crate::Array;
use crate::error::{Error, Result};
use crate::rl::{Returns, Run};

/// State of the logging of a run.
pub(super) struct Log<'a> {
    args: &'a Args,
    /// Last returns of each seed.
    returns: Vec<Returns>,
    pub(super) updates: u64,
}

impl<'a> Log<'a> {
    /// Creates the state of a new run, or restores it from the [`notes`](Log::notes) of a
    /// checkpoint.
    pub(super) fn new(args: &'a Args, notes: &Value, updates: u64) -> Result<Log<'a>> {
        let returns: Vec<Returns> = match notes {
            Value::Null => vec![Returns::default(); args.num_seeds],
            notes => serde_json::from_value(notes.clone())
                .map_err(|e| Error::Argument(format!("the returns in the checkpoint: {e}")))?,
        };
        let wrong = match returns.len() == args.num_seeds {
            true => returns.iter().find_map(|returns| returns.ensure_possible().err()),
            false => Some(format!("those of {} of {} seeds", returns.len(), args.num_seeds)),
        };
        if let Some(problem) = wrong {
            return Err(Error::Argument(format!("the returns in the checkpoint: {problem}")));
        }
        Ok(Log { args, returns, updates })
    }

    /// Returns the part of the state that a checkpoint keeps.
    pub(super) fn notes(&self) -> Result<Value> {
        serde_json::to_value(&self.returns)
            .map_err(|e| Error::Argument(format!("the returns of the episodes: {e}")))
    }

    /// Returns the mean over the seeds of the mean of the last returns.
    pub(super) fn mean_return(&self) -> Option<f64> {
        let means: Vec<f64> = self.returns.iter().filter_map(Returns::mean).collect();
        (!means.is_empty()).then(|| means.iter().sum::<f64>() / means.len() as f64)
    }

    /// Logs the reports of one launch, `[seeds, updates, ..]` or `[updates, ..]`.
    pub(super) fn reports(
        &mut self,
        run: &mut Run,
        report: &Report<Array>,
        updates: u64,
    ) -> Result<()> {
        let seeds = self.args.num_seeds;
        let (updates, size) = (updates as usize, self.args.batch_size());
        let returns = report.episode_returns.to_vec::<f32>()?;
        let lengths = report.episode_lengths.to_vec::<i32>()?;
        let m = &report.metrics.last;
        let mut scalars = Vec::new();
        for (tag, column) in [
            ("losses/loss", &m.loss),
            ("losses/value_loss", &m.value_loss),
            ("losses/policy_loss", &m.policy_loss),
            ("losses/entropy", &m.entropy),
            ("losses/old_approx_kl", &m.old_approx_kl),
            ("losses/approx_kl", &m.approx_kl),
            ("losses/clipfrac", &m.clipfrac),
            ("losses/explained_variance", &report.metrics.explained_variance),
        ] {
            scalars.push((tag, column.to_vec::<f32>()?));
        }
        for update in 0..updates {
            let start = self.updates * size as u64;
            let step = start + size as u64;
            let remaining = 1.0 - self.updates as f64 / self.args.num_updates() as f64;
            let rate = self.args.learning_rate * if self.args.anneal_lr { remaining } else { 1.0 };
            self.updates += 1;
            let mut all = Vec::new();
            for seed in 0..seeds {
                let offset = (seed * updates + update) * size;
                let mut own = Vec::new();
                for i in (0..size).filter(|i| !returns[offset + i].is_nan()) {
                    let (value, length) = (f64::from(returns[offset + i]), lengths[offset + i]);
                    self.returns[seed].push(value);
                    own.push(value);
                    if seeds == 1 {
                        // Timestep at which the episode ended, counted as in CleanRL.
                        let at = start + ((i / self.args.num_envs + 1) * self.args.num_envs) as u64;
                        run.episode(value, length as u64, at)?;
                    } else {
                        run.returns.push(value);
                        all.push((value, f64::from(length)));
                    }
                }
                if seeds > 1 && !own.is_empty() {
                    let tag = format!("seeds/{}/episodic_return", self.args.run.seed + seed as u64);
                    run.events.scalar(&tag, own.iter().sum::<f64>() / own.len() as f64, step)?;
                }
            }
            if !all.is_empty() {
                let (sum, lengths) = all.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
                let count = all.len() as f64;
                run.events.scalar("charts/episodic_return", sum / count, step)?;
                run.events.scalar("charts/episodic_length", lengths / count, step)?;
            }
            let mut values = vec![("charts/learning_rate", rate)];
            for (tag, column) in &scalars {
                let of_seed = |seed: usize| f64::from(column[seed * updates + update]);
                let mean = (0..seeds).map(of_seed).sum::<f64>() / seeds as f64;
                if *tag != "losses/loss" {
                    values.push((tag, mean));
                } else if let Some(seed) = (0..seeds).find(|&seed| !of_seed(seed).is_finite()) {
                    run.events.flush()?;
                    return Err(Error::Nan(format!(
                        "the loss of seed {} is {} after update {}, at step {step}; run again \
                         with --check-nans to see which operation made it",
                        self.args.run.seed + seed as u64,
                        of_seed(seed),
                        self.updates
                    )));
                }
            }
            values.push(("charts/SPS", run.sps(step * seeds as u64).floor()));
            run.events.scalars(&values, step)?;
        }
        Ok(())
    }

    /// Returns a table with a line for each seed.
    pub(super) fn table(&self) -> String {
        let mut table = "seed  episodes  mean return of the last 100\n".to_string();
        for (seed, returns) in (self.args.run.seed..).zip(&self.returns) {
            let mean = returns.mean().map_or("none ended".to_string(), |mean| format!("{mean:.1}"));
            table.push_str(&format!("{seed:>4}  {:>8}  {mean:>10}\n", returns.episodes()));
        }
        table
    }
}
