//! Seeds and random number generators of environments.
//!
//! Adding the environment's index to a run's seed, as is common, makes environment 1 of run 0 the
//! same as environment 0 of run 1. Here one function maps (run, process, actor, environment) to a
//! 128-bit seed, and the map is one to one: no two can collide.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};

/// Seed of one environment's generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EnvSeed(pub u128);

/// Returns the seed of environment `env` of actor thread `actor` of process `process` in run `run`.
///
/// The map is one to one: the four numbers are packed side by side into 128 bits, and a Feistel
/// network (a permutation for any round function) mixes them, so that the seeds of neighbors look
/// unrelated.
pub fn seeds(run: u64, process: u16, actor: u16, env: u32) -> EnvSeed {
    let mut left = run;
    let mut right = u64::from(process) << 48 | u64::from(actor) << 32 | u64::from(env);
    for round in 0..6 {
        (left, right) = (right, left ^ splitmix64(right.wrapping_add(round)));
    }
    EnvSeed(u128::from(left) << 64 | u128::from(right))
}

/// Output function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, OOPSLA 2014).
#[inline]
fn splitmix64(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Random number generator of one environment: PCG64, the same bits on every platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvRng(Pcg64);

impl EnvRng {
    /// Creates the generator of `seed`.
    pub fn new(seed: EnvSeed) -> EnvRng {
        // The upper half selects the stream. All generators use the same stream: the stream's
        // lowest bit would be lost, and with it the guarantee that seeds do not collide.
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&seed.0.to_le_bytes());
        EnvRng(Pcg64::from_seed(bytes))
    }

    /// Draws a uniform number from `low` (included) to `high` (excluded, except for rounding).
    #[inline]
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        // The upper 53 bits fill the mantissa: evenly spaced in [0, 1).
        let unit = (self.0.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
        low + (high - low) * unit
    }

    /// Draws a number of the standard normal distribution by Marsaglia's polar method: two uniform
    /// numbers per try, of which four in five succeed. The second number of the pair is discarded,
    /// so that the state of a generator is its bits alone.
    #[inline]
    pub fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (self.uniform(-1.0, 1.0), self.uniform(-1.0, 1.0));
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * square.ln() / square).sqrt();
            }
        }
    }

    /// Draws a whole number below `n`, uniformly except for a bias of at most `n / 2^64`.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Draws 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }
}
