//! Result of a run.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rl::returns::RETURN_WINDOW;

/// Result of a run: `--json` prints it as the last line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Name of the experiment.
    pub exp_name: String,
    /// Id of the environment.
    pub env_id: String,
    /// Seed.
    pub seed: u64,
    /// `jit` or `eager`.
    pub mode: String,
    /// Platform, as in `cpu`.
    pub platform: String,
    /// Number of devices used.
    pub num_devices: usize,
    /// Steps taken, over all environments.
    pub global_step: u64,
    /// Seconds from the start to the end of training, without the evaluation of the saved model.
    pub wall_s: f64,
    /// Seconds of these spent on compilation.
    pub compile_s: f64,
    /// Steps per second from start to end.
    pub sps: f64,
    /// Number of episodes that ended.
    pub episodes: u64,
    /// Mean return of the last [`RETURN_WINDOW`] episodes; null if none ended.
    pub avg_episodic_return: Option<f64>,
    /// Folder of the event file and the saved models.
    pub run_dir: String,
    /// Path of the saved model.
    #[serde(default)]
    pub model_path: Option<String>,
    /// Mean return of the evaluation episodes of the saved model.
    #[serde(default)]
    pub eval_episodic_return: Option<f64>,
    /// Standard deviation of the returns of these episodes, and their number.
    #[serde(skip)]
    pub eval_spread: Option<(f64, usize)>,
    /// True if a signal ended the run before its last iteration.
    #[serde(default)]
    pub interrupted: bool,
    /// Additional lines of the algorithm for people, each with a line end.
    #[serde(skip)]
    pub details: String,
    /// Rank of this process; only the result of the first process is printed.
    #[serde(skip)]
    pub rank: usize,
}

impl Summary {
    /// Returns a short description of the result for people.
    pub fn in_words(&self) -> String {
        let returns = match self.avg_episodic_return {
            Some(mean) => format!("mean return of the last {RETURN_WINDOW}: {}", rounded(mean)),
            None => "none of them ended".to_string(),
        };
        let model = match (&self.model_path, self.eval_episodic_return) {
            (Some(path), Some(mean)) => {
                let spread = match self.eval_spread {
                    None => String::new(),
                    Some((_, 1)) => " of 1 episode".into(),
                    Some((std, count)) => format!(" +- {} of {count} episodes", rounded(std)),
                };
                format!("\nmodel: {path}, mean return {}{spread}", rounded(mean))
            }
            (Some(path), None) => format!("\nmodel: {path}"),
            (None, _) => String::new(),
        };
        format!(
            "{}{} on {}, seed {}, {} on {}: {} steps in {:.1} s ({:.0} steps/s; {:.1} s \
             compiling)\n{} episodes, {returns}\n{}{model}",
            self.details,
            self.exp_name,
            self.env_id,
            self.seed,
            self.mode,
            self.platform,
            self.global_step,
            self.wall_s,
            self.sps,
            self.compile_s,
            self.episodes,
            self.run_dir
        )
    }
}

/// Returns a number with one decimal, and with three significant digits if it is below 1.
fn rounded(x: f64) -> String {
    let zeros = if x == 0.0 { 0.0 } else { -x.abs().log10().floor() };
    let decimals = if (1.0..=12.0).contains(&zeros) { zeros as usize + 2 } else { 1 };
    format!("{x:.decimals$}")
}

impl fmt::Display for Summary {
    /// One line of JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_returns_keep_their_digits() {
        let numbers = [475.25, -1.04, 0.0, 0.5, -0.0312, 1e-30, f64::NAN];
        let texts = ["475.2", "-1.0", "0.0", "0.500", "-0.0312", "0.0", "NaN"];
        assert_eq!(numbers.map(rounded), texts);
    }
}
