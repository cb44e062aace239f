//! Settings of training programs and their command line: flags with their ranges, the options that all
//! algorithms share, help, and what settings from outside may do.

pub(in crate::rl) mod env_options;
pub mod flags;
pub mod help;
pub mod options;
pub mod ranges;
pub(in crate::rl) mod shared_flags;
pub(in crate::rl) mod trust;
