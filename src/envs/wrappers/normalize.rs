//! Normalization of observations and rewards by running statistics.

use super::running::RunningMeanStd;
use super::wrapped::{Wrapper, wrap};
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Env, ObsMut, StepOutcome};
use crate::error::{Error, Result};
use crate::spaces::Space;
use crate::trace::types::DType;

/// Options of the normalization of observations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormalizeObservationOptions {
    /// Number added to the variance.
    pub epsilon: f64,
    /// Largest absolute value of a normalized element; infinity for no limit, as in gymnasium.
    pub clip: f64,
}

impl Default for NormalizeObservationOptions {
    /// Epsilon 1e-8, and the limit that CleanRL adds: 10.
    fn default() -> Self {
        NormalizeObservationOptions { epsilon: 1e-8, clip: 10.0 }
    }
}

/// Options of the normalization of rewards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormalizeRewardOptions {
    /// Discount of the return by whose standard deviation rewards are divided.
    pub gamma: f64,
    /// Number added to the variance.
    pub epsilon: f64,
    /// Largest absolute value of a normalized reward; infinity for no limit, as in gymnasium.
    pub clip: f64,
}

impl Default for NormalizeRewardOptions {
    /// Gamma 0.99, epsilon 1e-8, and the limit that CleanRL adds: 10.
    fn default() -> Self {
        NormalizeRewardOptions { gamma: 0.99, epsilon: 1e-8, clip: 10.0 }
    }
}

/// Returns an error for invalid settings of a normalizer.
fn check(name: &str, size: usize, gamma: f64, epsilon: f64, clip: f64) -> Result<()> {
    let problem = if size == 0 {
        "there is nothing to normalize".into()
    } else if !(0.0..=1.0).contains(&gamma) {
        format!("gamma is {gamma}, expected 0 to 1")
    } else if !(epsilon >= 0.0 && epsilon.is_finite()) {
        format!("epsilon is {epsilon}, expected a small positive number")
    } else if clip.is_nan() || clip <= 0.0 {
        format!("clip is {clip}, expected a positive number")
    } else {
        return Ok(());
    };
    Err(Error::Config(format!("{name}: {problem}")))
}

/// Normalizes the observations of all rows of a pool's batches to mean 0 and variance 1, element by
/// element: gymnasium's vector wrapper `NormalizeObservation`.
///
/// ```
/// use podracer::envs::wrappers::ObservationNormalizer;
/// use podracer::envs::{EnvPool, PoolOptions};
/// let mut pool = EnvPool::make("Pendulum-v1", PoolOptions { num_envs: 4, ..Default::default() })?;
/// let mut normalizer = ObservationNormalizer::new(3, Default::default())?;
/// let mut obs = normalizer.normalize(pool.reset()?.obs::<f32>());
/// for _ in 0..100 {
///     let batch = pool.step(&[0.0f32; 4])?;
///     obs = normalizer.normalize(batch.obs::<f32>()); // takes the batch into the statistics first
///     if let Some(last) = batch.final_obs::<f32>(0) {
///         let last: Vec<f32> = normalizer.apply(last); // does not
///     }
/// }
/// assert_eq!(obs.len(), 4 * 3);
/// # Ok::<(), podracer::error::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ObservationNormalizer {
    /// Running statistics. They are part of the trained model.
    pub stats: RunningMeanStd,
    options: NormalizeObservationOptions,
}

impl ObservationNormalizer {
    /// Creates a normalizer for observations of `width` elements, at least one. Returns an error
    /// for invalid settings.
    pub fn new(
        width: usize,
        options: NormalizeObservationOptions,
    ) -> Result<ObservationNormalizer> {
        check("NormalizeObservation", width, 0.0, options.epsilon, options.clip)?;
        Ok(ObservationNormalizer { stats: RunningMeanStd::new(width), options })
    }

    /// Adds `rows` to the statistics, and normalizes them with the updated statistics.
    ///
    /// # Panics
    /// If `rows` are not a whole number of observations.
    pub fn normalize<T: Copy + Into<f64>>(&mut self, rows: &[T]) -> Vec<f32> {
        let rows: Vec<f64> = rows.iter().map(|&x| x.into()).collect();
        self.stats.update(&rows);
        self.apply(&rows)
    }

    /// Normalizes `rows` with the current statistics.
    ///
    /// # Panics
    /// If `rows` are not a whole number of observations.
    pub fn apply<T: Copy + Into<f64>>(&self, rows: &[T]) -> Vec<f32> {
        let NormalizeObservationOptions { epsilon, clip } = self.options;
        let width = self.stats.mean().len();
        assert_eq!(rows.len() % width, 0, "observations have {width} elements each");
        let elements = rows.iter().zip((0..width).cycle());
        let scaled = elements.map(|(&x, i)| {
            let x: f64 = x.into();
            let scaled = (x - self.stats.mean()[i]) / (self.stats.var()[i] + epsilon).sqrt();
            scaled.clamp(-clip, clip) as f32
        });
        scaled.collect()
    }
}

/// Divides the rewards of all rows of a pool's batches by the running standard deviation of the
/// discounted return: gymnasium's vector wrapper `NormalizeReward`. It does not subtract the mean.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardNormalizer {
    /// Statistics of the returns.
    pub stats: RunningMeanStd,
    returns: Vec<f64>,
    options: NormalizeRewardOptions,
}

impl RewardNormalizer {
    /// Creates a normalizer for `num_envs` environments, at least one. Returns an error for invalid
    /// settings.
    pub fn new(num_envs: usize, options: NormalizeRewardOptions) -> Result<RewardNormalizer> {
        check("NormalizeReward", num_envs, options.gamma, options.epsilon, options.clip)?;
        Ok(RewardNormalizer {
            stats: RunningMeanStd::new(1),
            returns: vec![0.0; num_envs],
            options,
        })
    }

    /// Adds one step of every environment to the statistics, and normalizes its rewards with the
    /// updated statistics. As in gymnasium, a return is reset with the reward that ends an episode.
    ///
    /// # Panics
    /// If there is not one reward and one flag per environment.
    pub fn normalize<T: Copy + Into<f64>>(
        &mut self,
        rewards: &[T],
        terminated: &[bool],
    ) -> Vec<f64> {
        let NormalizeRewardOptions { gamma, epsilon, clip } = self.options;
        let num_envs = self.returns.len();
        assert_eq!((rewards.len(), terminated.len()), (num_envs, num_envs), "one per environment");
        for ((total, &reward), &over) in self.returns.iter_mut().zip(rewards).zip(terminated) {
            *total = if over { 0.0 } else { *total * gamma } + reward.into();
        }
        self.stats.update(&self.returns);
        let scale = (self.stats.var()[0] + epsilon).sqrt();
        rewards.iter().map(|&reward| (reward.into() / scale).clamp(-clip, clip)).collect()
    }
}

/// Wrapper that normalizes observations to mean 0 and variance 1, with separate statistics for each
/// environment: gymnasium's `NormalizeObservation`, followed by CleanRL's limit.
#[derive(Debug)]
pub struct NormalizeObservation {
    normalizer: ObservationNormalizer,
    dtype: DType,
    place: Vec<f64>,
}

impl NormalizeObservation {
    /// Wraps `env` and normalizes its observations, as `f32`. Returns an error unless they are
    /// floats, and for invalid settings.
    pub fn wrap(env: Box<dyn Env>, options: NormalizeObservationOptions) -> Result<Box<dyn Env>> {
        let EnvSpec { id, observation, .. } = env.spec();
        let dtype = observation.dtype();
        if !matches!(dtype, DType::F32 | DType::F64) {
            let problem = format!("its observations are {observation}, not floats");
            return Err(Error::Config(format!("{id}: NormalizeObservation: {problem}")));
        }
        let normalizer = ObservationNormalizer::new(observation.shape().numel(), options)?;
        let place = vec![0.0; observation.bytes().div_ceil(size_of::<f64>())];
        Ok(wrap(env, NormalizeObservation { normalizer, dtype, place }))
    }

    fn bytes(&mut self) -> &mut [u8] {
        let bytes = self.normalizer.stats.mean().len() * self.dtype.size();
        &mut bytemuck::cast_slice_mut(&mut self.place)[..bytes]
    }
}

impl Wrapper for NormalizeObservation {
    fn spec(&self, mut spec: EnvSpec) -> EnvSpec {
        let clip = self.normalizer.options.clip;
        spec.observation = Space::f32(spec.observation.shape(), -clip, clip);
        spec
    }

    fn place(&mut self) -> Option<&mut [u8]> {
        Some(self.bytes())
    }

    fn observe(&mut self, _first: bool, mut obs: ObsMut<'_>) {
        let single = self.dtype == DType::F32;
        let bytes = self.bytes();
        let elements: Vec<f64> = if single {
            bytemuck::cast_slice::<u8, f32>(bytes).iter().map(|&x| x.into()).collect()
        } else {
            bytemuck::cast_slice(bytes).to_vec()
        };
        obs.write(&self.normalizer.normalize(&elements));
    }

    fn save(&self) -> Vec<u8> {
        self.normalizer.stats.save()
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        let stats = self.normalizer.stats.restored(state);
        stats.map(|stats| self.normalizer.stats = stats).is_some()
    }
}

/// Wrapper that divides rewards by the standard deviation of the discounted return, with separate
/// statistics for each environment: gymnasium's `NormalizeReward`, followed by CleanRL's limit.
/// Episode statistics count the unchanged rewards.
#[derive(Debug)]
pub struct NormalizeReward {
    normalizer: RewardNormalizer,
}

impl NormalizeReward {
    /// Wraps `env` and normalizes its rewards. Returns an error for invalid settings.
    pub fn wrap(env: Box<dyn Env>, options: NormalizeRewardOptions) -> Result<Box<dyn Env>> {
        Ok(wrap(env, NormalizeReward { normalizer: RewardNormalizer::new(1, options)? }))
    }
}

impl Wrapper for NormalizeReward {
    fn outcome(&mut self, outcome: StepOutcome) -> StepOutcome {
        let reward = self.normalizer.normalize(&[outcome.reward], &[outcome.terminated])[0];
        StepOutcome { reward, ..outcome }
    }

    /// Serializes the current return and the statistics.
    fn save(&self) -> Vec<u8> {
        let mut state = self.normalizer.returns[0].to_le_bytes().to_vec();
        state.extend(self.normalizer.stats.save());
        state
    }

    fn restore(&mut self, state: &[u8]) -> bool {
        let parts = state.split_first_chunk::<8>();
        let restored = parts.and_then(|(total, stats)| {
            let total = f64::from_le_bytes(*total);
            total.is_finite().then_some((total, self.normalizer.stats.restored(stats)?))
        });
        let Some((total, stats)) = restored else { return false };
        (self.normalizer.returns[0], self.normalizer.stats) = (total, stats);
        true
    }
}
