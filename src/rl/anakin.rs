//! Anakin (Hessel et al. 2021), as PureJaxRL has it (Lu et al. 2022): environments, rollouts and updates
//! in one compiled program, which trains many agents, one for each seed and each point of a sweep.
//!
//! An algorithm writes three functions: the initial state of an agent and a number of updates of it,
//! both traced, and on the host the part of the state that is saved as the model. [`train_agents`] compiles them for all agents and devices,
//! calls the program about 64 times, and between the calls logs, writes checkpoints and reports
//! progress.
//!
//! ```text
//! host     |log |            |log |            |log |
//! device   |    update 1..k  |    update k+1..2k    | ..
//! ```

mod env;
mod log;
pub(crate) mod memory;
pub mod normalize;
mod ops;
mod options;
mod packed_scan;
mod program;
pub(crate) mod saved_model;
mod train;

pub use env::AnakinEnv;
pub use log::Report;
pub use normalize::Normalizers;
pub use ops::{argmax, clip_by_norm, permutations};
pub(crate) use options::traced_args;
pub use options::{AgentOptions, AnakinArgs, SeedAxis, SweptValues, with_sweeps_of};
pub use packed_scan::{is_packable, scan_packed};
pub use program::{AgentTree, TrainFn, start_runtime};
pub use saved_model::{evaluated_agent, load_agents, select_agent};
pub use train::train_agents;
