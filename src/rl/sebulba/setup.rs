//! Start of a run: processes, devices, environments and sizes.

use std::sync::Arc;
use std::time::Duration;

use super::agent::Sizes;
use super::config::UpdateConfig;
use super::exchange::{Exchange, ensure_same};
use super::layout::{Layout, World};
use super::options::SebulbaOptions;
use crate::Array;
use crate::distributed::{self, Mpi};
use crate::envs::{EnvPool, EnvSpec, Handle, ObsKind, PoolOptions, XlaPool};
use crate::error::{Error, Result};
use crate::jit::Mode;
use crate::rl::algorithm::Algorithm;
use crate::runtime::{Distributed, Runtime, RuntimeOptions};

/// Processes, devices and environments of a run.
pub(super) struct Setup {
    /// The other processes, with `--distributed`.
    pub processes: Option<Arc<dyn Exchange>>,
    pub runtime: &'static Runtime,
    pub layout: Layout,
    /// Handle of each pool.
    pub handles: Vec<i32>,
    /// One pool for each actor.
    pub envs: XlaPool,
    pub sizes: Sizes,
    /// Number of timesteps of an update, over all processes.
    pub update_steps: u64,
}

impl Setup {
    /// Starts the runtime and creates the environments.
    ///
    /// # Errors
    /// [`Error::Config`] for settings out of range, and errors of the environments and of the
    /// runtime.
    pub fn new<A: Algorithm>(
        args: &A,
        options: &SebulbaOptions,
        config: UpdateConfig,
        processes: Option<Arc<dyn Exchange>>,
    ) -> Result<Setup> {
        if args.options().mode != Mode::Jit {
            return Err(Error::Config(format!(
                "--mode {}: actors and learners run compiled programs; use ppo_atari_envpool to \
                 compare modes",
                args.options().mode
            )));
        }
        let runtime = start_runtime(options, processes.as_ref())?;
        let layout =
            options.layout(processes.as_ref().map_or(World::ALONE, |processes| processes.world()));
        layout.check()?;
        if let Some(processes) = &processes {
            processes.barrier(join_timeout(options))?;
            ensure_same(&**processes, args)?;
        }
        let (handles, mut envs) = make_pools(args, options, &layout)?;
        if config.bootstrap_truncated.is_some() {
            envs = envs.with_final_obs()?;
        }
        let sizes = sizes_of::<A>(options, envs.spec())?;
        let update_steps = (layout.num_envs() * config.num_steps) as u64;
        if args.total_timesteps() < update_steps {
            return Err(Error::Config(format!(
                "--total-timesteps {}: must be at least one batch, which is {update_steps}: {} \
                 environments of {} steps",
                args.total_timesteps(),
                layout.num_envs(),
                config.num_steps
            )));
        }
        let handles = handles.into_data().to_vec::<i32>()?;
        Ok(Setup { processes, runtime, layout, handles, envs, sizes, update_steps })
    }

    /// Returns true if the gradient steps of an update are calls of their own, between which the user
    /// may stop the run. Small networks take all of them in one call. On a CPU the convolutions of
    /// large networks run a few percent faster outside a loop.
    pub fn is_interruptible(&self) -> bool {
        self.sizes.obs_kind != ObsKind::Vector
    }
}

/// Starts the runtime with as many devices as the flags name. GPUs of several processes form one
/// cluster.
pub(super) fn start_runtime(
    options: &SebulbaOptions,
    processes: Option<&Arc<dyn Exchange>>,
) -> Result<&'static Runtime> {
    let wanted = RuntimeOptions::with_cpu_devices(options.devices());
    let Some(processes) = processes.filter(|_| wanted.joins_processes()) else {
        // If the runtime is already running, with enough devices or not, the layout's check reports
        // it.
        return Runtime::running_or_started(wanted);
    };
    // The clients wait for each other, and would not report which process is missing.
    processes.barrier(join_timeout(options))?;
    let World { rank, size } = processes.world();
    let store = processes.key_values()?;
    Runtime::start_distributed(wanted, Distributed { process_id: rank, num_processes: size, store })
}

/// Creates the environments of all actor threads of this process.
fn make_pools<A: Algorithm>(
    args: &A,
    options: &SebulbaOptions,
    layout: &Layout,
) -> Result<(Handle<Array>, XlaPool)> {
    let pool = |actor| {
        let run = args.options();
        let common = PoolOptions {
            num_threads: run.num_threads,
            seed: run.seed,
            clip_actions: true,
            ..PoolOptions::default()
        };
        options.pool(args.env_id(), layout.pool_options(actor, common))
    };
    XlaPool::new((0..layout.num_actors()).map(pool).collect::<Result<Vec<EnvPool>>>()?)
}

/// Returns the sizes of the agent for an environment.
pub(super) fn sizes_of<A: Algorithm>(options: &SebulbaOptions, spec: &EnvSpec) -> Result<Sizes> {
    Sizes::from_spec::<A>(spec, options.network, (&options.channels, &options.hiddens))
}

/// Returns the time that a process waits for the others.
fn join_timeout(options: &SebulbaOptions) -> Duration {
    Duration::from_secs(options.join_timeout)
}

/// Connects to the other processes, with `--distributed`.
pub(super) fn connect(options: &SebulbaOptions) -> Result<Option<Arc<dyn Exchange>>> {
    if !options.distributed {
        distributed::run_alone();
        return Ok(None);
    }
    Ok(Some(Arc::new(Mpi::join(join_timeout(options))?)))
}
