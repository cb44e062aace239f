//! Episodic returns of the last episodes of a run.

use std::collections::VecDeque;

use serde::{Deserialize, Deserializer, Serialize};

/// Number of last episodes that the average return is taken over.
pub const RETURN_WINDOW: usize = 100;
/// Maximum number of timesteps of a run: larger numbers are not exact as `f64`.
pub const MAX_STEPS: u64 = 1 << 53;

/// Deserializes floats from JSON, where a float that is not finite is null.
pub(in crate::rl) fn null_is_nan<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<VecDeque<f64>, D::Error> {
    let values = Vec::<Option<f64>>::deserialize(deserializer)?;
    Ok(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
}

/// The last [`RETURN_WINDOW`] episodic returns.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Returns {
    #[serde(deserialize_with = "null_is_nan")]
    last: VecDeque<f64>,
    episodes: u64,
}

impl Returns {
    /// Creates the window from the last returns and the number of episodes.
    pub(in crate::rl) fn of(last: VecDeque<f64>, episodes: u64) -> Returns {
        Returns { last, episodes }
    }

    /// Adds the return of an episode that ended.
    pub fn push(&mut self, episodic_return: f64) {
        if self.last.len() == RETURN_WINDOW {
            self.last.pop_front();
        }
        self.last.push_back(episodic_return);
        self.episodes += 1;
    }

    /// Checks that a run of fewer than [`MAX_STEPS`] timesteps can have these returns.
    ///
    /// # Errors
    /// Returns the problem, as the end of a sentence.
    pub(crate) fn ensure_possible(&self) -> std::result::Result<(), String> {
        if self.last.len() > RETURN_WINDOW || self.last.len() as u64 > self.episodes {
            return Err(format!(
                "{} returns of {} episodes; at most the last {RETURN_WINDOW} are kept",
                self.last.len(),
                self.episodes
            ));
        }
        match self.episodes <= MAX_STEPS {
            true => Ok(()),
            false => Err(format!("{} episodes; at most {MAX_STEPS}", self.episodes)),
        }
    }

    /// The last returns, in order.
    pub(in crate::rl) fn last(&self) -> &VecDeque<f64> {
        &self.last
    }

    /// Returns the number of episodes that ended.
    pub fn episodes(&self) -> u64 {
        self.episodes
    }

    /// Returns the mean of the last returns; `None` before the first episode.
    pub fn mean(&self) -> Option<f64> {
        let sum: f64 = self.last.iter().sum();
        (!self.last.is_empty()).then(|| sum / self.last.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_are_averaged_over_the_last_hundred() {
        let mut returns = Returns::default();
        assert_eq!((returns.mean(), returns.episodes()), (None, 0));
        (0..150).for_each(|i| returns.push(f64::from(i)));
        assert_eq!((returns.mean(), returns.episodes()), (Some(99.5), 150));
    }
}
