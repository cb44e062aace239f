//! `podracer eval`: evaluates a saved model, whichever algorithm saved it.

use podracer::algos::registry;
use podracer::error::Result;
use podracer::rl::eval_command::EvalOptions;

pub fn eval(options: &EvalOptions) -> Result<String> {
    options.evaluate(registry::play)
}
