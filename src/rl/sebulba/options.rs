//! Flags of actors, learners and their devices.

use clap::{ArgAction, Args, ValueEnum};
use serde::Serialize;

use super::layout::{Layout, World};
use crate::envs::{AtariOptions, EnvPool, PoolOptions};
use crate::error::Result;
use crate::rl::run::pools;
use crate::rl::settings::flags::{product, within};
use crate::rl::settings::options::ImageNetwork;

/// Group of these flags in the help.
const HEADING: &str = "Actors and learners";
/// Maximum number of actor threads of a process.
const MAX_ACTORS: usize = 1024;

/// Evaluation protocol of Atari environments; scores of the two are not comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Machado et al. 2018: full episodes as episodes, sticky actions, all 18 actions.
    Machado,
    /// Espeholt et al. 2018: lives as episodes, no-op starts, the game's minimal action set.
    Espeholt,
}

// Not a plain doc comment, which would become the description of the command.
#[cfg_attr(doc, doc = "Flags of algorithms with actors and learners, by Cleanba's names.")]
#[allow(missing_docs)]
#[derive(Debug, Clone, Args, Serialize)]
pub struct SebulbaOptions {
    /// Number of environments of each actor thread
    #[arg(long, help_heading = HEADING, default_value = "60")]
    pub local_num_envs: usize,
    /// Number of threads of each actor device
    #[arg(long, help_heading = HEADING, default_value = "2")]
    pub num_actor_threads: usize,
    /// Device ids that act
    #[arg(long, help_heading = HEADING, action = ArgAction::Set, num_args = 1.., value_delimiter = ',', default_value = "0")]
    pub actor_device_ids: Vec<usize>,
    /// Device ids that learn
    #[arg(long, help_heading = HEADING, action = ArgAction::Set, num_args = 1.., value_delimiter = ',', default_value = "0")]
    pub learner_device_ids: Vec<usize>,
    /// Number of devices of a CPU; 0 for as many as are named
    #[arg(long, help_heading = HEADING, default_value = "0")]
    pub num_devices: usize,
    /// Act while the learner learns, with parameters one update old
    #[arg(long, help_heading = HEADING, default_value = "true")]
    pub concurrency: bool,
    /// Take part in a run of several processes, started by `podracer mpiexec`
    #[arg(long, help_heading = HEADING, default_value = "false")]
    pub distributed: bool,
    /// Seconds to wait for the other processes to start
    #[arg(long, help_heading = HEADING, default_value = "120")]
    pub join_timeout: u64,
    /// Give equal parameters, bit for bit, in all layouts of as many environments; slow
    #[arg(long, help_heading = HEADING, default_value = "false")]
    pub deterministic: bool,
    /// Network for images of 84 by 84
    #[arg(long, help_heading = HEADING, value_enum, default_value_t = ImageNetwork::Impala)]
    pub network: ImageNetwork,
    /// Channels of the IMPALA network's convolution sequences
    #[arg(long, help_heading = HEADING, action = ArgAction::Set, num_args = 1.., value_delimiter = ',', default_value = "16,32,32")]
    pub channels: Vec<usize>,
    /// Units of the IMPALA network's dense layers
    #[arg(long, help_heading = HEADING, action = ArgAction::Set, num_args = 1.., value_delimiter = ',', default_value = "256")]
    pub hiddens: Vec<usize>,
    /// Evaluation protocol of Atari environments
    #[arg(long, help_heading = HEADING, value_enum, default_value_t = Protocol::Machado)]
    pub protocol: Protocol,
    /// Updates between two entries of the statistics in the event file
    #[arg(long, help_heading = HEADING, default_value = "10")]
    pub log_frequency: u64,
    /// Show the activity of actors and learner on a terminal, above the progress bar
    #[arg(long, help_heading = HEADING, default_value = "true")]
    pub live_view: bool,
}

impl SebulbaOptions {
    /// Returns the layout of this process among those of `world`.
    pub fn layout(&self, world: World) -> Layout {
        Layout {
            actors: self.actor_device_ids.clone(),
            learners: self.learner_device_ids.clone(),
            threads: self.num_actor_threads,
            envs: self.local_num_envs,
            world,
        }
    }

    /// Checks that actors with rollouts of `num_steps` steps fit the limits of threads and of
    /// indices.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) that names the flags.
    pub fn check(&self, num_steps: usize) -> Result<()> {
        let actors = self.num_actor_threads * self.actor_device_ids.len();
        within("num-actor-threads times actor devices", actors, 1, MAX_ACTORS)?;
        product(&[
            ("local-num-envs", self.local_num_envs),
            ("num-actor-threads", self.num_actor_threads),
            ("num-steps", num_steps),
        ])?;
        Ok(())
    }

    /// Returns the number of devices that the runtime needs.
    pub fn devices(&self) -> usize {
        let named = self.actor_device_ids.iter().chain(&self.learner_device_ids);
        self.num_devices.max(named.max().map_or(1, |last| last + 1))
    }

    /// Creates the environments with the protocol of these options.
    ///
    /// # Errors
    /// Returns the same errors as [`EnvPool::make`] and [`EnvPool::atari`].
    pub fn pool(&self, id: &str, options: PoolOptions) -> Result<EnvPool> {
        let atari = match self.protocol {
            Protocol::Machado => AtariOptions::machado(),
            Protocol::Espeholt => AtariOptions::espeholt(),
        };
        pools::any(id, atari, options)
    }
}
