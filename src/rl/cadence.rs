//! Update schedule of an off-policy algorithm: environment steps, gradient steps and target
//! updates.

use crate::error::Result;

use super::flags::ensure;

/// Update schedule, in timesteps of all environments together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateSchedule {
    /// Number of environments, which step together.
    pub num_envs: usize,
    /// Timesteps between gradient steps.
    pub train_frequency: usize,
    /// Timesteps between updates of the target network.
    pub target_network_frequency: usize,
    /// Maximum number of gradient steps in one call of the compiled program. A run is logged, and
    /// can be interrupted, only between calls.
    pub most_rounds: usize,
}

impl UpdateSchedule {
    /// Returns the number of steps of each environment between gradient steps.
    pub fn turns(&self) -> usize {
        self.train_frequency / self.num_envs
    }

    /// Returns the number of gradient steps between updates of the target network.
    pub fn rounds_of_target(&self) -> usize {
        self.target_network_frequency / self.train_frequency
    }

    /// Returns the number of gradient steps in one call of the program. It divides the number of
    /// gradient steps between updates of the target network.
    pub fn rounds(&self) -> usize {
        let all = self.rounds_of_target();
        let fits = |rounds: &usize| all.is_multiple_of(*rounds);
        (1..=self.most_rounds.clamp(1, all.max(1))).rev().find(fits).unwrap_or(1)
    }

    /// Returns the number of timesteps in one call of the program.
    pub fn steps(&self) -> u64 {
        (self.rounds() * self.train_frequency) as u64
    }

    /// Returns the minimum capacity of a buffer of frames: new steps, a frame stack, and the steps
    /// after it.
    pub fn least_frames(&self) -> usize {
        self.train_frequency + 8 * self.num_envs
    }

    /// Checks that the frequencies divide each other and that a call fits into `total_timesteps`;
    /// `train_flag` is the flag of [`train_frequency`](UpdateSchedule::train_frequency).
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) that names the flag.
    pub fn check(&self, train_flag: &str, total_timesteps: u64) -> Result<()> {
        let (envs, train) = (self.num_envs, self.train_frequency);
        let target = self.target_network_frequency;
        ensure(envs > 0, "num-envs", envs, "at least 1")?;
        ensure(train > 0, train_flag, train, "at least 1")?;
        ensure(
            train.is_multiple_of(envs),
            train_flag,
            train,
            &format!("a multiple of --num-envs {envs}, the timesteps of one step of all"),
        )?;
        ensure(
            target > 0 && target.is_multiple_of(train),
            "target-network-frequency",
            target,
            &format!("a multiple of --{train_flag} {train}"),
        )?;
        let steps = self.steps();
        ensure(
            total_timesteps >= steps,
            "total-timesteps",
            total_timesteps,
            &format!("at least {steps}, the timesteps of one call of the program"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_divide_the_time_between_targets() {
        let cadence = |target_network_frequency, most_rounds| UpdateSchedule {
            num_envs: 2,
            train_frequency: 4,
            target_network_frequency,
            most_rounds,
        };
        assert_eq!((cadence(1000, 250).rounds(), cadence(1000, 250).steps()), (250, 1000));
        assert_eq!((cadence(10_000, 250).rounds(), cadence(10_000, 250).turns()), (250, 2));
        // 2000 gradient steps between target updates: 200 is the largest divisor that fits.
        assert_eq!(cadence(8000, 240).rounds(), 200);
        assert_eq!(cadence(28, 5).rounds(), 1);
        assert_eq!(cadence(28, 7).rounds(), 7);
        let told = cadence(10, 5).check("train-frequency", 100).unwrap_err().to_string();
        assert_eq!(
            told,
            "--target-network-frequency 10: must be a multiple of --train-frequency 4"
        );
        let told = cadence(400, 50).check("train-frequency", 100).unwrap_err().to_string();
        assert_eq!(
            told,
            "--total-timesteps 100: must be at least 200, the timesteps of one call of the program"
        );
    }
}
