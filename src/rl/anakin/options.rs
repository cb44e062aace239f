//! Flags of the agents of a run, and the settings of one agent inside the program.

use clap::{Arg, Args, ValueEnum};
use serde::Serialize;

use crate::error::Result;
use crate::rl::algorithm::Algorithm;
use crate::rl::sweep::{Grid, Scalar, Sweep, as_words};
use crate::runtime::running_platform;
use crate::trace::control::map;
use crate::tree::Tree;
use crate::{Array, Key, Tensor, vmap};

/// Method by which one device trains several agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeedAxis {
    /// Map on the CPU, vmap on a GPU: the faster one
    Auto,
    /// One after another, each as if trained alone
    Map,
    /// All agents in one batch, as PureJaxRL does with vmap
    Vmap,
}

// Not a plain doc comment, which would become the description of the command.
#[cfg_attr(doc, doc = "Flags of the agents that one program trains: seeds, sweeps and devices.")]
#[allow(missing_docs)]
#[derive(Debug, Clone, Args, Serialize)]
pub struct AgentOptions {
    /// The number of agents in one program, with consecutive seeds starting at --seed
    #[arg(long, default_value = "1")]
    pub num_seeds: usize,
    /// Values of a hyperparameter, one agent each: learning-rate=log:1e-4:1e-2:64; twice for a grid
    // An algorithm replaces the parser by one that knows its hyperparameters.
    #[arg(long, value_parser = |text: &str| Sweep::parse(text, &[]), value_delimiter = ' ')]
    #[serde(serialize_with = "as_words")]
    pub sweep: Vec<Sweep>,
    /// Train the agents of a device one by one (map) or in a batch (vmap); auto: vmap on GPUs
    #[arg(long, value_enum, default_value_t = SeedAxis::Auto)]
    pub seed_axis: SeedAxis,
    /// The number of devices; 0 uses the largest divisor of the agents that fits
    #[arg(long, default_value = "0")]
    pub num_devices: usize,
    /// The number of updates in one call of the compiled program; 0 makes about 64 calls
    #[arg(long, default_value = "0", alias = "updates-per-launch")]
    #[serde(alias = "updates_per_launch")]
    pub updates_per_call: u64,
}

/// Lets `--sweep` take the hyperparameters `fields`; for `#[command(mut_args(..))]` of an algorithm.
pub fn with_sweeps_of(fields: &'static [&'static str]) -> impl Fn(Arg) -> Arg {
    move |arg| match arg.get_id() == "sweep" {
        true => arg.value_parser(move |text: &str| {
            let names: Vec<String> = fields.iter().map(|field| field.replace('_', "-")).collect();
            Sweep::parse(text, &names.iter().map(String::as_str).collect::<Vec<_>>())
        }),
        false => arg,
    }
}

/// Defines `TracedArgs`, the `Args` of one agent inside the program: the hyperparameters that `--sweep` can
/// vary, which are named here, are fixed or traced fields of it, in place of those of `Args`.
macro_rules! traced_args {
    ($($field:ident),*) => {
        /// Hyperparameters that `--sweep` takes.
        const SWEPT: &[&str] = &[$(stringify!($field)),*];

        /// [`Args`] of one agent inside the program: the hyperparameters that a sweep can vary are fields of
        /// their own, fixed or traced.
        #[derive(Debug, Clone, Copy)]
        pub struct TracedArgs<'a> {
            args: &'a Args,
            $(pub $field: $crate::rl::sweep::Scalar,)*
        }

        impl<'a> TracedArgs<'a> {
            /// Creates the settings of the agent with these values `f32[]`, one for each `--sweep`.
            pub fn new(args: &'a Args, swept: &[Tensor]) -> TracedArgs<'a> {
                let swept = $crate::rl::anakin::SweptValues::new(&args.agents, swept);
                TracedArgs { args, $($field: swept.scalar(stringify!($field), args.$field),)* }
            }
        }

        impl std::ops::Deref for TracedArgs<'_> {
            type Target = Args;

            fn deref(&self) -> &Args {
                self.args
            }
        }
    };
}
pub(crate) use traced_args;

impl AgentOptions {
    /// Checks the numbers of agents and sweeps.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) that names the flag.
    pub fn check(&self) -> Result<()> {
        self.grid().check()
    }

    /// Returns the points of the sweeps, and the agents of each.
    pub fn grid(&self) -> Grid<'_> {
        Grid::new(&self.sweep, self.num_seeds)
    }

    /// Returns the number of agents: one for each point of the sweeps and seed.
    pub fn num_agents(&self) -> usize {
        self.grid().num_agents()
    }

    /// Returns true if the agents of a device are trained in one batch.
    pub fn are_batched(&self) -> bool {
        let batched = match self.seed_axis {
            SeedAxis::Auto => !running_platform().is_host(),
            SeedAxis::Map => false,
            SeedAxis::Vmap => true,
        };
        batched && self.num_agents() > 1
    }

    /// Returns the values of each sweep for all agents, `f32[agents]`; of one agent, `f32[]`.
    pub(super) fn swept_values(&self) -> Result<Vec<Array>> {
        let values = |sweep| match &self.grid().values_of_agents(sweep)[..] {
            [value] => Array::new([], &[*value]),
            values => Array::new([values.len()], values),
        };
        (0..self.sweep.len()).map(values).collect()
    }

    /// Applies `f` to all agents. A single agent has no axis.
    pub(super) fn for_agents<A: Tree<Tensor>, B: Tree<Tensor>>(
        &self,
        f: impl Fn(A) -> B,
        all: A,
    ) -> B {
        match (self.num_agents(), self.are_batched()) {
            (1, _) => f(all),
            (_, false) => map(f, all),
            (_, true) => vmap(f)(all),
        }
    }

    /// Returns the keys of the agents, `[agents]`. The agent of seed i of `--seed s` has the key of a run
    /// with `--seed s + i` alone; every point of the sweeps has the same keys.
    pub(super) fn keys(&self, seed: u64) -> Result<Key<Array>> {
        if self.num_agents() == 1 {
            return Ok(Key::new(seed));
        }
        let mut words = Vec::new();
        for agent in 0..self.num_agents() {
            let seed = self.seed_of(agent, seed);
            words.extend([(seed >> 32) as u32, seed as u32]);
        }
        Ok(Key::from_data(Array::new([self.num_agents(), 2], &words)?))
    }

    /// Returns the seed of an agent of a run with `--seed seed`.
    pub(super) fn seed_of(&self, agent: usize, seed: u64) -> u64 {
        seed.wrapping_add((agent % self.num_seeds) as u64)
    }

    /// Returns the name of an agent of a run with `--seed seed`: `seed 3`, or the point of the sweeps and
    /// the seed.
    pub(super) fn name_of(&self, agent: usize, seed: u64) -> String {
        let seed = self.seed_of(agent, seed);
        match self.sweep[..] {
            [] => format!("seed {seed}"),
            _ => format!("{}, seed {seed}", self.grid().label(agent / self.num_seeds)),
        }
    }
}

/// Settings of an algorithm whose agents are trained by [`train_agents`](super::train_agents).
pub trait AnakinArgs: Algorithm {
    /// Returns the flags of the agents.
    fn agents(&self) -> &AgentOptions;

    /// Returns the number of parallel environments of each agent.
    fn num_envs(&self) -> usize;

    /// Returns the number of timesteps of one agent in an update.
    fn steps_per_update(&self) -> usize;

    /// Returns the number of timesteps of one agent that a rollout holds.
    fn steps_per_rollout(&self) -> usize {
        self.steps_per_update()
    }

    /// Returns the flags of the memory of one agent, as in `--num-envs 4 --num-steps 128`.
    fn memory_flags(&self) -> String;

    /// Returns the learning rate after `num_updates` updates, if it is not swept.
    fn learning_rate(&self, num_updates: u64) -> f64;

    /// Returns the total number of updates; remaining timesteps are dropped, as in PureJaxRL.
    fn num_updates(&self) -> u64 {
        self.total_timesteps() / self.steps_per_update() as u64
    }
}

/// Values `f32[]` of the sweeps for one agent, inside the program.
#[derive(Debug, Clone, Copy)]
pub struct SweptValues<'a> {
    sweeps: &'a [Sweep],
    values: &'a [Tensor],
}

impl<'a> SweptValues<'a> {
    /// Creates the values of one agent, one for each `--sweep`.
    pub fn new(options: &'a AgentOptions, values: &'a [Tensor]) -> SweptValues<'a> {
        SweptValues { sweeps: &options.sweep, values }
    }

    /// Returns the hyperparameter of this field: the value of its sweep, or else `fixed`.
    pub fn scalar(&self, field: &str, fixed: f64) -> Scalar {
        let name = field.replace('_', "-");
        let swept = self.sweeps.iter().zip(self.values).find(|(sweep, _)| sweep.name == name);
        swept.map_or(Scalar::Fixed(fixed), |(_, value)| Scalar::Traced(*value))
    }
}
