//! Replay buffers on the device: transitions of vectors, frames of images, priorities.

pub mod frames;
pub(crate) mod memory;
pub mod prioritized;
pub mod replay;
pub mod sum_tree;
