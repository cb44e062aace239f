//! The five classic-control tasks, step for step as gymnasium has them.
//!
//! State is `f64` wherever gymnasium's is, with the same operations in the same order, and the
//! observation is rounded to `f32` at the end. Recorded trajectories in `tests/fixtures/envs`
//! hold them to it.

mod acrobot;
mod cartpole;
mod mountain_car;
mod mountain_car_continuous;
mod pendulum;

pub use acrobot::Acrobot;
pub use cartpole::CartPole;
pub use mountain_car::MountainCar;
pub use mountain_car_continuous::MountainCarContinuous;
pub use pendulum::Pendulum;
