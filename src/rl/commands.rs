//! Subcommands of every training program: evaluation and export of a saved model.

pub mod eval;
pub mod export;
