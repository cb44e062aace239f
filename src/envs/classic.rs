//! The five classic-control tasks, step for step as in gymnasium.
//!
//! The state is `f64` wherever gymnasium's is, with the same operations in the same order, and the
//! observation is rounded to `f32` at the end. Tests compare them with recorded trajectories in
//! `tests/fixtures/envs`.

mod acrobot;
mod canvas;
mod cartpole;
mod mountain_car;
mod mountain_car_continuous;
mod pendulum;

pub use acrobot::Acrobot;
pub use cartpole::CartPole;
pub use mountain_car::MountainCar;
pub use mountain_car_continuous::MountainCarContinuous;
pub use pendulum::Pendulum;

use crate::envs::env::entry::Entry;

/// Ids of this family.
pub(super) const ENVS: &[Entry] = &[
    ("Acrobot-v1", |_| Ok(Box::new(Acrobot::v1()))),
    ("CartPole-v0", |_| Ok(Box::new(CartPole::v0()))),
    ("CartPole-v1", |_| Ok(Box::new(CartPole::v1()))),
    ("MountainCar-v0", |_| Ok(Box::new(MountainCar::v0()))),
    ("MountainCarContinuous-v0", |_| Ok(Box::new(MountainCarContinuous::v0()))),
    ("Pendulum-v1", |_| Ok(Box::new(Pendulum::v1()))),
];
