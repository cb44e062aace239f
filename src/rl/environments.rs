//! Facts about environments that algorithms need: the kinds that they support, sizes of observations and
//! actions, bounds of actions.

pub mod bounds;
pub mod spaces;
pub mod support;
