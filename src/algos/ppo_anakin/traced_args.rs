//! Settings of one agent inside the program, in which a sweep's hyper-parameters are traced.

use std::ops::Deref;

use super::Args;
use crate::Tensor;
use crate::rl::sweep::{Scalar, Sweep};

/// Hyper-parameters that `--sweep` takes.
const SWEPT: [&str; 5] = ["learning-rate", "gamma", "gae-lambda", "clip-coef", "ent-coef"];

/// Parses a value of `--sweep`.
pub(super) fn parse_sweep(text: &str) -> std::result::Result<Sweep, String> {
    Sweep::parse(text, &SWEPT)
}

/// [`Args`] of one agent: the hyper-parameters that a sweep can vary are fields of their own, fixed
/// or traced, in place of those of [`Args`].
#[derive(Debug, Clone, Copy)]
pub struct TracedArgs<'a> {
    args: &'a Args,
    /// As [`Args::learning_rate`].
    pub learning_rate: Scalar,
    /// As [`Args::gamma`].
    pub gamma: Scalar,
    /// As [`Args::gae_lambda`].
    pub gae_lambda: Scalar,
    /// As [`Args::clip_coef`].
    pub clip_coef: Scalar,
    /// As [`Args::ent_coef`].
    pub ent_coef: Scalar,
}

impl<'a> TracedArgs<'a> {
    /// Creates the settings of the agent with these values `f32[]`, one for each `--sweep`.
    pub fn new(args: &'a Args, swept: &[Tensor]) -> TracedArgs<'a> {
        let scalar = |name: &str, fixed: f64| {
            let values = args.sweep.iter().zip(swept).find(|(sweep, _)| sweep.name == name);
            values.map_or(Scalar::Fixed(fixed), |(_, value)| Scalar::Traced(*value))
        };
        TracedArgs {
            args,
            learning_rate: scalar("learning-rate", args.learning_rate),
            gamma: scalar("gamma", args.gamma),
            gae_lambda: scalar("gae-lambda", args.gae_lambda),
            clip_coef: scalar("clip-coef", args.clip_coef),
            ent_coef: scalar("ent-coef", args.ent_coef),
        }
    }
}

impl Deref for TracedArgs<'_> {
    type Target = Args;

    fn deref(&self) -> &Args {
        self.args
    }
}
