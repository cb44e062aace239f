//! Environments and their pool: one binary, one module per family.

mod atari;
mod atari_envpool;
mod classic;
mod gymnasium;
mod jax;
mod memory_tasks;
mod minatar;
mod mujoco;
mod mujoco_pictures;
mod mujoco_task;
mod pettingzoo;
mod podracer;
mod pool;
mod soak;
mod toy_text;
mod traced;
mod traced_minatar;
mod wrappers;
mod xla;
