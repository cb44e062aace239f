//! Functions on rollouts: minibatches, and the value of the step at which a time limit ended an episode.

pub mod minibatch;
pub mod truncation;
